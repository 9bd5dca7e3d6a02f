//! The scanner reads a source directory into a compact tree in memory with many threads. The result
//! is the same for any number of threads.
//!
//! `scan/walk.rs` visits the directories of `scan/queue.rs` and fills one shard per thread.
//! `scan/listed.rs` tells which paths of a list it takes, `scan/follow.rs` what a symlink leads to.
//! `scan/assemble.rs` puts the shards into one deterministic order. `scan/tree.rs` answers queries,
//! and `scan/open.rs` opens files for reading. `scan/image.rs` reads the tree of an image instead.
//! `scan/layers.rs` puts directories over each other and over the tree of an image: `scan/merge.rs`
//! merges two walks, and `scan/upper.rs` knows the notes of overlayfs in its writable layer.
//! `scan/add.rs` lays single entries over all of them. `scan/options.rs` and `scan/error.rs` have
//! the options and the errors of all of them.
//!
//! Invariants:
//! 1. Entries that cannot be read are reported and omitted. A directory that cannot be listed
//!    completely is not in the tree.
//! 2. The tree depends on the names and inodes found, not on threads, timing or the order on disk.
//! 3. No symlink below the source is followed unless the user wants that, and no path is passed to
//!    the kernel as a whole, so the depth has no limit.

mod add;
mod assemble;
mod error;
mod follow;
mod image;
mod intern;
mod layer;
mod layers;
mod listed;
mod merge;
mod open;
mod options;
mod prune;
mod queue;
mod shard;
pub mod source;
mod tree;
mod upper;
mod walk;

#[cfg(test)]
mod filter_tests;
#[cfg(test)]
mod tests;

use crate::Observer;
use std::path::Path;
use weald_format::{Error, Result};

pub use image::scan_image;
pub use layer::{Layer, LayerKind};
pub use layers::scan_layers;
pub use options::ScanOptions;
pub use tree::{DirNo, EntryNo, ScannedTree};
pub use upper::UpperXattrs;

/// Returns the content of the filter file `name` in `dir`, for
/// [`weald_filter::Filter::below`]; `None` if there is no such regular file.
///
/// # Errors
/// `Io` if it cannot be read, is a symlink, or is longer than
/// [`weald_filter::DIR_FILE_LEN_MAX`] bytes.
pub fn read_dir_rules(dir: &Path, name: &[u8]) -> Result<Option<Vec<u8>>> {
    match weald_sys::open_dir(dir) {
        Ok(dir) => walk::read_rules(dir, name).map_err(|e| Error::io("filter file", e)),
        // A caller may ask about paths that do not exist.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(dir.display().to_string(), error)),
    }
}

/// Scans the directory `source` and everything below it.
///
/// `observer` gets progress every 100 ms from the calling thread and, at the end, all problems
/// sorted by path.
///
/// # Errors
/// `NotFound`, `Io`, `Invalid` (not a directory) if `source` itself cannot be read; `Limit` for
/// more than 2^32 - 2 entries, 65534 nested directories or 4095 threads; `Invalid` "interrupted"
/// if cancelled, or if the script fails. Problems below `source` are no errors.
/// # Cost
/// One statx and one llistxattr per entry. Memory: 48 bytes + name + target per entry, 12 per
/// directory, 8 per hard-linked name, distinct attributes and xattr sets once; the 48 bytes twice
/// while the tree is sorted.
pub fn scan(
    source: &Path,
    options: &ScanOptions<'_>,
    observer: &dyn Observer,
) -> Result<ScannedTree> {
    scan_layers(None, &[Layer::plain(source)], options, observer)
}
