//! The scanner reads a source directory into a compact tree in memory with many threads. The result
//! is the same for any number of threads.
//!
//! `scan/walk.rs` visits the directories of `scan/queue.rs` and fills one shard per thread.
//! `scan/assemble.rs` puts the shards into one deterministic order. `scan/tree.rs` answers queries,
//! and `scan/open.rs` opens files for reading. `scan/image.rs` reads the tree of an image instead,
//! and `scan/merge.rs` adds a directory to the tree of an image.
//!
//! Invariants:
//! 1. Entries that cannot be read are reported and omitted. A directory that cannot be listed
//!    completely is not in the tree.
//! 2. The tree depends on the names and inodes found, not on threads, timing or the order on disk.
//! 3. No symlink below the source is followed, and no path is passed to the kernel as a whole, so
//!    the depth has no limit.

mod assemble;
mod image;
mod intern;
mod merge;
mod open;
mod queue;
mod shard;
pub mod source;
mod tree;
mod walk;

#[cfg(test)]
mod tests;

use crate::Watch;
use crate::options::filter::Filter;
use crate::options::script::{Candidate, Script};
use std::path::Path;
use weald_format::{Attributes, Error, ErrorKind, FileKind, Result, Timestamp};

pub use image::scan_image;
pub use merge::scan_onto;
pub use tree::{DirNo, EntryNo, ScannedTree};

/// Options of a scan.
#[derive(Debug, Clone, Copy)]
pub struct ScanOptions<'a> {
    /// Threads, at least 1.
    pub threads: usize,
    /// Rules that exclude entries. Excluded directories are not entered.
    pub filter: &'a Filter,
    /// A script that decides about entries that the rules include.
    pub script: Option<&'a Script>,
    /// Inodes that are omitted silently, as (device, inode number); the device is major << 32 |
    /// minor.
    pub omitted_inodes: &'a [(u64, u64)],
    /// Keeps directories of other file systems, but does not enter them.
    pub one_file_system: bool,
    /// Keeps extended attributes.
    pub keep_xattrs: bool,
    /// Keeps atimes.
    pub keep_atime: bool,
    /// Keeps ctimes.
    pub keep_ctime: bool,
    /// Keeps btimes, if the file system has them.
    pub keep_btime: bool,
}

impl ScanOptions<'_> {
    /// Whether the script keeps an entry; true if no script filters. `path` is called only if a
    /// script needs the path.
    fn is_kept(
        &self,
        path: impl FnOnce() -> Vec<u8>,
        kind: FileKind,
        size: u64,
        attributes: &Attributes,
        mtime: Timestamp,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<bool> {
        match self.script.filter(|script| script.filters()) {
            Some(script) => {
                let path = path();
                let candidate = Candidate::new(&path, kind, size, attributes, mtime);
                script.keeps(&candidate, is_cancelled)
            }
            None => Ok(true),
        }
    }

    fn keeps_more_times(&self) -> bool {
        self.keep_atime || self.keep_ctime || self.keep_btime
    }
}

/// Returns the content of the filter file `name` in `dir`, for [`Filter::below`]; `None` if there
/// is no such regular file.
///
/// # Errors
/// `Io` if it cannot be read, is a symlink, or is longer than
/// [`crate::options::filter::DIR_FILE_LEN_MAX`] bytes.
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
/// `watch` gets progress every 100 ms from the calling thread and, at the end, all problems sorted
/// by path.
///
/// # Errors
/// `NotFound`, `Io`, `Invalid` (not a directory) if `source` itself cannot be read; `Limit` for
/// more than 2^32 - 2 entries, 65534 nested directories or 4095 threads; `Invalid` "interrupted" if
/// cancelled, or if the script fails. Problems below `source` are no errors.
/// # Cost
/// One statx and one llistxattr per entry. Memory: 48 bytes + name + target per entry, 12 per
/// directory, 8 per hard-linked name, distinct attributes and xattr sets once; the 48 bytes twice
/// while the tree is sorted.
pub fn scan(source: &Path, options: &ScanOptions<'_>, watch: &dyn Watch) -> Result<ScannedTree> {
    if options.threads > shard::SHARD_COUNT_MAX {
        return Err(Error::limit(format!(
            "{} threads: at most {} are possible",
            options.threads,
            shard::SHARD_COUNT_MAX
        )));
    }
    let root = weald_sys::open_dir(source).map_err(|e| source_error(source, e))?;
    let walked = walk::walk(root, options, watch).map_err(|e| walk_error(source, e))?;
    let (tree, mut problems) = assemble::assemble(walked)?;
    problems.sort_by(|a, b| a.path.cmp(&b.path));
    problems.iter().for_each(|problem| watch.problem(problem));
    Ok(tree)
}

fn walk_error(source: &Path, error: Error) -> Error {
    match error.kind() {
        // An interrupt is not an error of the source.
        ErrorKind::Invalid => error,
        _ => error.context(source.display()),
    }
}

fn source_error(source: &Path, error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::NotADirectory => {
            Error::invalid(format!("{}: not a directory", source.display()))
        }
        _ => Error::io(format!("{}", source.display()), error),
    }
}
