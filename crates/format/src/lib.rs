//! The bytes of Weald: records, columns, limits. No I/O happens here.
//!
//! `docs/format.md` is normative; this crate is its first reader and writer.
#![forbid(unsafe_code)]

pub mod column;
pub mod container;
pub mod cursor;
pub mod directory;
pub mod entries;
pub mod error;
pub mod limits;
pub mod names;
pub mod pages;
pub mod tree_digest;
pub mod types;

pub use error::{Error, ErrorKind, Place, Result};
pub use types::*;
