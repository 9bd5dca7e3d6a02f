//! The lock of a store, which commands show to the server of its volumes.

use std::fs::File;
use std::path::Path;
use weald_format::{Error, Result};
use weald_store::LOCK_FILE;

/// The lock of the store in `dir`, as proof that this process may write to the store.
pub(in crate::commands) fn open_lock(dir: &Path) -> Result<File> {
    let path = dir.join(LOCK_FILE);
    let opened = File::options().read(true).write(true).open(&path);
    opened.map_err(|error| Error::io(path.display().to_string(), error))
}
