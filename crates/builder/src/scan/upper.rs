//! What overlayfs notes in the xattrs of its writable layer: opaque and renamed directories, files
//! without data of their own, whiteouts. Source: the kernel's Documentation/filesystems/overlayfs.

use super::shard::{Entry, NONE, Shard};
use weald_format::{Xattr, XattrSet};

/// Where a layer has the xattrs of overlayfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpperXattrs {
    /// `trusted.overlay.*`, of mounts of root.
    Trusted,
    /// `user.overlay.*`, of mounts with the option `userxattr`.
    User,
}

impl UpperXattrs {
    const fn prefix(self) -> &'static [u8] {
        match self {
            Self::Trusted => b"trusted.overlay.",
            Self::User => b"user.overlay.",
        }
    }
}

/// What follows the prefix twice in an xattr that overlayfs shows under the name with one.
const ESCAPED: &[u8] = b"overlay.";

/// What the xattrs of an entry say, and the others.
#[derive(Debug, Clone, Default)]
pub struct Mark {
    /// Number of the xattr set that overlayfs shows, or [`NONE`].
    pub xattrs: u32,
    /// Nothing of the directory below is shown.
    pub is_opaque: bool,
    /// An empty file that hides the name, as overlayfs makes in layers that lie on overlayfs.
    pub is_whiteout: bool,
    /// The file has its data in the layer below.
    pub is_metacopy: bool,
    /// Where the layer below has the directory, or the data: a path from the root that begins with
    /// a slash, or a name in the same directory.
    pub redirect: Option<Vec<u8>>,
}

/// The marks of all entries of a walk.
pub struct Marks {
    /// Number of the first shard of the walk.
    first: usize,
    /// By shard and xattr set.
    marks: Vec<Vec<Mark>>,
    /// The mark of entries without xattrs.
    none: Mark,
}

impl Marks {
    /// Takes the marks out of the xattr sets of `shards`, the first of which has the number
    /// `first`.
    pub fn take(shards: &mut [Shard], first: usize, xattrs: UpperXattrs) -> Self {
        let marks = shards.iter_mut().map(|shard| {
            let sets: Vec<XattrSet> = shard.xattr_sets.values.clone();
            let marks = sets.into_iter().map(|set| {
                let mut mark = Mark::default();
                let shown = shown(set, xattrs.prefix(), &mut mark);
                mark.xattrs = if shown.is_empty() {
                    NONE
                } else {
                    shard.intern_xattrs(shown)
                };
                mark
            });
            marks.collect()
        });
        Self {
            first,
            marks: marks.collect(),
            none: Mark {
                xattrs: NONE,
                ..Mark::default()
            },
        }
    }

    /// The mark of `entry`; `None` if it is of another walk.
    pub fn of(&self, entry: &Entry) -> Option<&Mark> {
        let shard = entry.name.shard().checked_sub(self.first)?;
        let marks = self.marks.get(shard)?;
        if entry.xattrs == NONE {
            return Some(&self.none);
        }
        marks.get(entry.xattrs as usize)
    }
}

/// The xattrs that overlayfs shows of `set`; what it does not show goes to `mark`.
fn shown(set: XattrSet, prefix: &[u8], mark: &mut Mark) -> XattrSet {
    let mut shown = Vec::with_capacity(set.len());
    for xattr in set {
        let Some(word) = xattr.name.strip_prefix(prefix) else {
            shown.push(xattr);
            continue;
        };
        if let Some(rest) = word.strip_prefix(ESCAPED) {
            shown.push(Xattr {
                name: [prefix, rest].concat(),
                value: xattr.value,
            });
            continue;
        }
        match word {
            b"opaque" => mark.is_opaque = xattr.value == b"y",
            b"whiteout" => mark.is_whiteout = true,
            b"metacopy" => mark.is_metacopy = true,
            b"redirect" => mark.redirect = Some(xattr.value),
            _ => {}
        }
    }
    shown.sort_by(|a, b| a.name.cmp(&b.name));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattr(name: &str, value: &str) -> Xattr {
        Xattr {
            name: name.into(),
            value: value.into(),
        }
    }

    /// Would catch: an xattr of overlayfs that gets into an image, or one of the user that does
    /// not; `opaque=x`, which says that files below are whiteouts, taken for an opaque directory.
    #[test]
    fn the_xattrs_of_overlayfs_are_taken_out() {
        let set = vec![
            xattr("trusted.overlay.metacopy", ""),
            xattr("trusted.overlay.opaque", "x"),
            xattr("trusted.overlay.origin", "abc"),
            xattr("trusted.overlay.overlay.opaque", "y"),
            xattr("trusted.overlay.redirect", "/a/b"),
            xattr("user.overlay.opaque", "y"),
        ];
        let mut mark = Mark::default();
        let left = shown(set.into_iter().collect(), b"trusted.overlay.", &mut mark);
        let expected = [
            xattr("trusted.overlay.opaque", "y"),
            xattr("user.overlay.opaque", "y"),
        ];
        assert_eq!(left.to_vec(), expected);
        assert!(mark.is_metacopy && !mark.is_opaque && !mark.is_whiteout);
        assert_eq!(mark.redirect.as_deref(), Some(&b"/a/b"[..]));
    }
}
