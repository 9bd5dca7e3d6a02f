//! Positioned reading, atomic output files and spools: the I/O that images are read and written with.
#![forbid(unsafe_code)]

mod read_at;

pub use read_at::{FileSource, ReadAt};
