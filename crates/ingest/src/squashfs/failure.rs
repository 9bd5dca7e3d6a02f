//! Errors about images.

use std::fmt::Display;
use weald_format::{Error, ErrorKind};

/// Error for bytes that break the format.
pub fn damaged(what: impl Display) -> Error {
    Error::invalid(format!("the SquashFS image is damaged: {what}"))
}

/// Error for a feature that Weald does not read.
pub fn unsupported(what: impl Display) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("not supported in SquashFS images: {what}"),
    )
}
