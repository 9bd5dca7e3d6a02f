//! Verifies the pages of the engine's file.
//!
//! redb verifies no page that it reads. Groups and rows have checksums of their own, but damage of
//! the pages that lead to them can make a lookup fail for a row that a scan finds.

use super::backend::Backend;
use super::failures::{catch_panic, damaged, unreadable_page};
use crate::disk::LocalFile;
use ::redb::{Builder, DatabaseError, StorageError};
use std::sync::Arc;
use weald_format::{Error, Result};

/// Compares every page in use of the tables in `file` with its checksum; messages call the file
/// `shown`. redb keeps at most `cache_len` bytes of pages in memory. The file must keep its changes
/// to itself: redb writes to a file that it opens.
///
/// # Errors
/// `Corrupt` if a page differs; `Io`.
///
/// # Cost
/// Reads the file twice.
pub(crate) fn verify_pages(file: Arc<dyn LocalFile>, shown: &str, cache_len: usize) -> Result<()> {
    let backend = Backend::new(file);
    let verify = || -> std::result::Result<bool, DatabaseError> {
        let mut builder = Builder::new();
        builder.set_cache_size(cache_len);
        let mut database = builder.create_with_backend(backend)?;
        let verified = database.check_integrity();
        // redb may panic when it closes a damaged file. Nothing waits to be written.
        if !matches!(verified, Ok(true)) {
            std::mem::forget(database);
        }
        verified
    };
    match catch_panic(verify).ok_or_else(|| unreadable_page(shown))? {
        Ok(true) => Ok(()),
        Ok(false) => Err(damaged(shown, "its pages are not those of the last commit")),
        Err(DatabaseError::Storage(StorageError::Io(error))) => {
            Err(Error::io(shown.to_owned(), error))
        }
        Err(DatabaseError::Storage(StorageError::Corrupted(what))) => Err(damaged(shown, &what)),
        Err(error) => Err(damaged(shown, &error.to_string())),
    }
}
