//! The bytes of Weald: records, columns, limits. No I/O happens here.
//!
//! `docs/format.md` is normative; this crate is its first reader and writer.
#![forbid(unsafe_code)]
// Untrusted bytes never panic; encoders, which see only what this program made, say so where they
// need to.
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

pub mod column;
pub mod container;
pub mod cursor;
pub mod directory;
pub mod entries;
pub mod error;
pub mod history;
pub mod limits;
pub mod names;
pub mod pages;
pub mod recipes;
pub mod tree_digest;
pub mod types;

pub use error::{Error, ErrorKind, Place, Result};
pub use types::*;
