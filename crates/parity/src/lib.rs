//! Parity of a file: a second file from which damaged sectors come back. `docs/format.md`, section
//! 35, is its format, `docs/design/0040-parity.md` the reasons.
//!
//! The file is a table of sectors of 4096 bytes with as many rows as the code has shards: row 0 has
//! the first sectors of the file, the next row those that follow. Each column is coded for itself.
//! So damage in one piece, however long, hits each column about equally often. A damaged sector is
//! found by its digest; then its place is known, and each recovery sector of its column repairs
//! one.
#![forbid(unsafe_code)]

mod batches;
mod code;
mod create;
mod examine;
mod layout;
mod sectors;
mod table;

pub use create::create;
pub use examine::{Parity, Report};
pub use layout::{Layout, SECTOR, Share};

use std::ops::ControlFlow;

/// Called with the bytes that were read since the last call; `Break` ends the work. Many threads
/// call it.
pub type Watch<'a> = dyn Fn(u64) -> ControlFlow<()> + Sync + 'a;
