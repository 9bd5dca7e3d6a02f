//! What redb says when it fails, as errors of the store.

use ::redb::StorageError;
use std::panic::AssertUnwindSafe;
use weald_format::{Error, ErrorKind};

/// Calls redb; `None` if it panics, which it does on some damaged pages.
pub(super) fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(AssertUnwindSafe(call)).ok()
}

pub(super) fn unreadable_page(shown: &str) -> Error {
    damaged(shown, "a page makes no sense")
}

pub(super) fn damaged(shown: &str, what: &str) -> Error {
    let text = format!(
        "{shown}: the metadata of the store is damaged ({what}): 'weald store salvage' makes it \
         again from the journal"
    );
    Error::corrupt("store metadata", 0, "S-5.1", text)
}

pub(super) fn failed(shown: &str, error: StorageError) -> Error {
    let is_damage = |error: &std::io::Error| {
        use std::io::ErrorKind as K;
        matches!(error.kind(), K::InvalidData | K::UnexpectedEof)
    };
    match error {
        StorageError::Io(error) if is_damage(&error) => damaged(shown, &error.to_string()),
        StorageError::Io(error) => Error::io(shown.to_owned(), error),
        StorageError::Corrupted(what) => damaged(shown, &what),
        other => Error::new(ErrorKind::Io, format!("{shown}: {other}")),
    }
}
