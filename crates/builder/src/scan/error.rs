//! Errors of the source as a whole.

use std::path::Path;
use weald_format::{Error, ErrorKind};

pub fn walk_error(source: &Path, error: Error) -> Error {
    match error.kind() {
        // An interrupt is not an error of the source.
        ErrorKind::Invalid => error,
        _ => error.context(source.display()),
    }
}

pub fn source_error(source: &Path, error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::NotADirectory => {
            Error::invalid(format!("{}: not a directory", source.display()))
        }
        _ => Error::io(format!("{}", source.display()), error),
    }
}
