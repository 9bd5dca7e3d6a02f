//! What a command looks at in a tree, so that opening a state of a volume reads no more than that.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use weald_image::TreePlace;
use weald_volume::{Levels, ShownPath};

/// Bytes that patterns have, and ordinary paths mostly do not.
const OF_PATTERNS: &[u8] = b"*?[{\\";

/// Paths, relative to the place that the name of the tree means, or patterns of them.
#[derive(Debug, Clone)]
pub struct Looks {
    paths: Vec<OsString>,
    levels: Levels,
}

impl Looks {
    /// The paths `paths`, or the place itself if there are none, and `levels` of names below each.
    pub fn at(paths: &[OsString], levels: Levels) -> Self {
        let mut paths = paths.to_vec();
        if paths.is_empty() {
            paths.push(OsString::new());
        }
        Self { paths, levels }
    }

    /// Everything below the place.
    pub fn everything() -> Self {
        Self::at(&[], Levels::ALL)
    }

    /// The paths from the root of the tree on; `None` for all of it.
    pub fn shown(&self, place: &TreePlace) -> Option<Vec<ShownPath>> {
        let mut shown = Vec::new();
        for path in &self.paths {
            let path = place.join(path);
            if let Some(above) = above_pattern(&path) {
                shown.push(ShownPath {
                    path: above.to_vec(),
                    levels: Levels::ALL,
                });
            }
            // There can be a file of this name.
            shown.push(ShownPath {
                path: path.as_bytes().to_vec(),
                levels: self.levels,
            });
        }
        let is_root = |path: &[u8]| path.iter().all(|byte| matches!(byte, b'/' | b'.'));
        let is_all = |shown: &ShownPath| is_root(&shown.path) && shown.levels == Levels::ALL;
        if shown.iter().any(is_all) {
            return None;
        }
        Some(shown)
    }
}

/// The directory below which all lies that a pattern can match; `None` for a path that is none.
fn above_pattern(path: &OsStr) -> Option<&[u8]> {
    let path = path.as_bytes();
    let first = path.iter().position(|byte| OF_PATTERNS.contains(byte))?;
    let above = path.get(..first).unwrap_or_default();
    let end = above.iter().rposition(|byte| *byte == b'/');
    Some(above.get(..end.unwrap_or(0)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_of(source: &str, paths: &[&str], levels: Levels) -> Option<Vec<(String, Levels)>> {
        let paths: Vec<OsString> = paths.iter().map(OsString::from).collect();
        let place = TreePlace {
            image: "image".into(),
            generation: None,
            path: source.into(),
        };
        let shown = Looks::at(&paths, levels).shown(&place)?.into_iter();
        let text = |shown: ShownPath| (String::from_utf8_lossy(&shown.path).into(), shown.levels);
        Some(shown.map(text).collect())
    }

    // Would catch a pattern below whose directory nothing is read, and a whole tree for one path.
    #[test]
    fn patterns_show_all_below_their_directory() {
        let of = |path: &str, levels| (path.to_owned(), levels);
        let (one, all) = (Levels::NAMES, Levels::ALL);
        assert_eq!(shown_of("", &[], all), None);
        assert_eq!(shown_of("", &["/"], all), None);
        assert_eq!(shown_of("", &["*.c"], one), None);
        assert_eq!(shown_of("", &["a/b"], one), Some(vec![of("a/b", one)]));
        assert_eq!(shown_of("d", &[], all), Some(vec![of("d", all)]));
        assert_eq!(
            shown_of("d", &["a/b*/c"], one),
            Some(vec![of("d/a", all), of("d/a/b*/c", one)])
        );
    }
}
