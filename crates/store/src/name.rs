//! Parses `STORE:NAME`, which names an image of a store where a command expects an image file.

use crate::location::StoreLocation;
use crate::{StoredImage, layout};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_format::Result;

/// Splits `STORE:NAME` at the last colon that follows the directory of a store; names may contain
/// colons. An existing file whose whole name is `path` takes precedence, so that a path that worked
/// before stores existed keeps its meaning. A URL names no image of a store on this machine.
pub fn split(path: &Path) -> Option<(PathBuf, String)> {
    let bytes = path.as_os_str().as_bytes();
    let is_url = weald_remote::is_url(path);
    if !bytes.contains(&b':') || is_url || path.symlink_metadata().is_ok() {
        return None;
    }
    let colons = bytes.iter().enumerate().rev();
    let mut colons = colons.filter(|(_, byte)| **byte == b':');
    colons.find_map(|(at, _)| {
        let store = Path::new(OsStr::from_bytes(bytes.get(..at)?));
        let name = std::str::from_utf8(bytes.get(at.saturating_add(1)..)?).ok()?;
        let is_named = !name.is_empty() && (is_store(store) || is_closed(store));
        is_named.then(|| (store.to_owned(), name.to_owned()))
    })
}

/// Splits `VOLUME@NAME`, which names a snapshot of a volume, at the last `@`: a name of a snapshot
/// has none. A volume or an image whose whole name this is comes first, where there is one.
pub fn split_state(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('@')
}

/// Whether `path` is a directory whose files the caller may not see: whether there is a store
/// shows when it is opened, as "permission denied".
fn is_closed(path: &Path) -> bool {
    let seen = path.join(layout::SUPERBLOCK).metadata();
    let is_denied = |error: std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    seen.is_err_and(is_denied) && path.is_dir()
}

/// Whether the directory at `path` has a file with the name of a store's superblock, or of its
/// copy.
pub fn is_store(path: &Path) -> bool {
    let has = |name| path.join(name).is_file();
    // The copy alone is that of a store if there are segments, too.
    let is_left = || has(layout::SUPERBLOCK_COPY) && path.join(layout::SEGMENTS).is_dir();
    !path.as_os_str().is_empty() && (has(layout::SUPERBLOCK) || is_left())
}

/// Opens the image that `path` names as `STORE:NAME`; returns `None` if `path` has another form.
///
/// # Errors
/// As [`Store::open`] and [`StoredImage::open`].
pub fn find(path: &Path) -> Result<Option<StoredImage>> {
    let Some((store, name)) = split(path) else {
        return Ok(None);
    };
    let store = StoreLocation::Path(store).open()?;
    StoredImage::open(store, &name).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a name with a colon that is split at the wrong place, a file with a colon in
    /// its name that counts as an image of a store, and a store directory with a colon.
    #[test]
    fn the_store_is_what_stands_before_the_colon() {
        let scratch = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| scratch.path().join(name);
        for dir in ["store", "a:b"] {
            std::fs::create_dir(at(dir)).expect("mkdir");
            std::fs::write(at(dir).join(layout::SUPERBLOCK), "").expect("write");
        }
        std::fs::write(at("store:file"), "").expect("write");
        for (path, expected) in [
            ("store:gcc", Some(("store", "gcc"))),
            ("store:gcc:14", Some(("store", "gcc:14"))),
            ("a:b:gcc", Some(("a:b", "gcc"))),
            ("store/:gcc", Some(("store/", "gcc"))),
            ("store:file", None),
            ("store:", None),
            ("store", None),
            ("gone:gcc", None),
            ("a:b", None),
            ("https://host/store:gcc", None),
            ("s3://store:gcc", None),
        ] {
            let expected = expected.map(|(store, name)| (at(store), name.to_owned()));
            let found = split(&at(path));
            assert_eq!(
                found.map(|(store, name)| (store.into_os_string(), name)),
                expected.map(|(store, name)| (store.into_os_string(), name)),
                "{path}"
            );
        }
    }
}
