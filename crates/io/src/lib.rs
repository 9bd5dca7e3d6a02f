//! Positioned reading, atomic output files and spools: the I/O that images are read and written
//! with.
#![forbid(unsafe_code)]

mod access;
mod output;
mod place;
mod read_at;
mod spool;

pub use output::{OutputFile, TargetKind, refuse_existing, truncate, with_hidden_name};
pub use place::open_or_make_dir;
pub use read_at::{FileSource, ReadAt};
pub use spool::Spool;

#[cfg(test)]
mod test_mount;
