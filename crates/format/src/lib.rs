//! The bytes of Weald: records, columns, limits. No I/O happens here.
//!
//! `docs/format.md` is normative; this crate is its first reader and writer.
#![forbid(unsafe_code)]

pub mod error;
pub mod types;

pub use error::{Error, ErrorKind, Place, Result};
pub use types::*;
