//! How to unmount a busy mount, and the errors of unmounting.

use weald_format::{Error, ErrorKind};

/// How to unmount a busy mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    /// Fail with the error `Busy`.
    Refuse,
    /// Detach it from the name space now; it ends when its last user closes it (lazy unmount).
    Detach,
}

pub(crate) fn not_mounted() -> Error {
    Error::invalid("nothing is mounted there")
}

pub(crate) fn in_use() -> Error {
    Error::new(
        ErrorKind::Busy,
        "it is in use (an open file or a working directory is in it)",
    )
}
