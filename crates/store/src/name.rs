//! `STORE:NAME`: how an image of a store is named where an image file is expected.

use crate::disk::HostDisk;
use crate::{Store, StoredImage, layout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::Result;

/// Splits `STORE:NAME` at the last colon, if STORE is the directory of a store. A file that is
/// called so comes first: nothing that could be opened before means something else now.
pub fn split(path: &Path) -> Option<(PathBuf, String)> {
    if path.symlink_metadata().is_ok() {
        return None;
    }
    let (store, name) = path.to_str()?.rsplit_once(':')?;
    let store = PathBuf::from(store);
    let is_store = !name.is_empty() && store.join(layout::SUPERBLOCK).is_file();
    is_store.then(|| (store, name.to_owned()))
}

/// Opens the image that `path` names as `STORE:NAME`; `None` where it names none.
///
/// # Errors
/// As [`Store::open`] and [`StoredImage::open`].
pub fn find(path: &Path) -> Result<Option<StoredImage>> {
    let Some((store, name)) = split(path) else {
        return Ok(None);
    };
    let store = Store::open(Arc::new(HostDisk::new(&store)))?;
    StoredImage::open(store, &name).map(Some)
}
