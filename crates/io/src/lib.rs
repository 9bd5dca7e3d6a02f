//! I/O of images: positioned reads, atomic output files, temporary files.
//!
//! ```
//! use weald_io::{FileSource, ReadAt};
//!
//! # fn main() -> weald_format::Result<()> {
//! let path = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
//! let source = FileSource::open(path.as_ref(), 1)?;
//! let mut word = [0; 7];
//! source.read_exact_at(&mut word, 0)?;
//! assert_eq!(&word, b"package");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod access;
mod hidden_name;
mod output;
mod own_dir;
mod place;
mod read_at;
mod spool;

pub use access::{are_new_files_private, keep_new_files_private, remove_acl};
pub use hidden_name::with_hidden_name;
pub use output::{OutputFile, TargetKind, open_to_update, refuse_existing, truncate};
pub use own_dir::{OwnDir, runtime_dir_path};
pub use place::{Named, locate, locate_dir, open_or_make_dir};
pub use read_at::{FileSource, ReadAt, open_to_read};
pub use spool::{Spool, SpoolReader, WriteBehind};

#[cfg(test)]
mod test_mount;
