//! Reads EROFS images: those of `mkfs.erofs`, of composefs, and of Weald.
//!
//! The bytes are not trusted. Every address and length is compared with the image before it is
//! used, directories that contain each other end in an error, and memory does not grow with what
//! the image announces. The modules, each using only those above it:
//!
//! 1. `source` reads bytes and keeps windows of metadata.
//! 2. `superblock` validates the features; `volume` is [`Volume`], which all others read from.
//! 3. `inode`, `xattrs` and `directory` parse metadata.
//! 4. `extents` maps the offsets of files that are not compressed.
//! 5. `compressed` maps and decodes those that are.
//! 6. `file` reads the data of any file; `walk` visits the whole tree, `listing`
//!    one directory.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable
    )
)]

mod compressed;
mod directory;
mod extents;
mod file;
mod inode;
mod listing;
mod source;
mod superblock;
mod volume;
mod walk;
mod xattrs;

pub use file::FileReader;
pub use inode::Inode;
pub use listing::VisitEntry;
pub use source::ImageStorage;
pub use volume::Volume;
pub use walk::Walker;

use std::fmt;
use weald_format::{Error, ErrorKind};

/// Error for bytes that break the format.
fn damaged(what: impl fmt::Display) -> Error {
    Error::invalid(format!("the EROFS image is damaged: {what}"))
}

/// Error for a feature that Weald does not read.
fn unsupported(what: impl fmt::Display) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("not supported in EROFS images: {what}"),
    )
}
