//! The walker: reads a source directory into a compact tree in memory, with many threads, the same
//! for any number.
//!
//! `scan/walk.rs` visits the directories of `scan/queue.rs` and fills one shard a thread,
//! `scan/assemble.rs` puts the shards into one deterministic order, `scan/tree.rs` answers
//! questions, `scan/open.rs` opens files for reading. `scan/image.rs` reads the tree of an image
//! instead, `scan/merge.rs` adds a directory to the tree of an image.
//!
//! Invariants:
//! 1. What cannot be read is reported and left out; a directory that could not be listed whole is
//!    not in the tree.
//! 2. The tree depends on the names and inodes found, not on threads, timing or the order on disk.
//! 3. No symlink below the source is followed, and no path is given to the kernel whole, so depth
//!    has no limit.

mod assemble;
mod image;
mod intern;
mod merge;
mod open;
mod queue;
mod shard;
mod tree;
mod walk;

#[cfg(test)]
mod tests;

use crate::Watch;
use crate::filter::Filter;
use crate::script::{Candidate, Script};
use std::path::Path;
use weald_format::{Attributes, Error, ErrorKind, FileKind, Result, Timestamp};

pub use image::scan_image;
pub use merge::scan_onto;
pub use tree::{DirNo, EntryNo, ScannedTree};

/// What to scan and what to keep.
#[derive(Debug, Clone, Copy)]
pub struct ScanOptions<'a> {
    /// Threads, at least 1.
    pub threads: usize,
    /// What is left out; excluded directories are not entered.
    pub filter: &'a Filter,
    /// Asked about what the rules keep.
    pub script: Option<&'a Script>,
    /// Inodes that are left out without a word, as (device, inode number), device as major << 32 |
    /// minor.
    pub left_out: &'a [(u64, u64)],
    /// Directories of other file systems are kept, but empty.
    pub one_file_system: bool,
    /// Keep extended attributes.
    pub keep_xattrs: bool,
    /// Keep atime.
    pub keep_atime: bool,
    /// Keep ctime.
    pub keep_ctime: bool,
    /// Keep btime, where the file system has it.
    pub keep_btime: bool,
}

impl ScanOptions<'_> {
    /// Whether the script, if there is one that filters, keeps an entry. Its path
    /// is made only where one is needed.
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

/// The bytes of the file of rules `name` in `dir`, for [`Filter::below`]; `None` where there is
/// none, or it is no regular file.
///
/// # Errors
/// `Io` where it cannot be read, also where it is a symlink, or longer than
/// [`crate::filter::DIR_FILE_LEN_MAX`].
pub fn read_dir_rules(dir: &Path, name: &[u8]) -> Result<Option<Vec<u8>>> {
    match weald_sys::open_dir(dir) {
        Ok(dir) => walk::read_rules(dir, name).map_err(|e| Error::io("filter file", e)),
        // Paths that are not there can be asked about too.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(dir.display().to_string(), error)),
    }
}

/// Walks the directory `source` and everything below it.
///
/// `watch` hears of progress every 100 ms from the calling thread, and of all problems, sorted by
/// path, at the end.
///
/// # Errors
/// `NotFound`, `Io`, `Invalid` (not a directory) where `source` itself cannot be read; `Limit`
/// beyond 2^32 - 2 entries, 65534 directories in each other or 4095 threads; `Invalid`
/// "interrupted" when cancelled, or where the script fails. Problems below `source` are no errors.
/// # Cost
/// One statx and one llistxattr an entry. Memory: 48 bytes + name + target an entry, 12 a
/// directory, 8 a hard-linked name, distinct attributes and xattr sets once; twice the 48 bytes
/// while the tree is put in order.
pub fn scan(source: &Path, options: &ScanOptions<'_>, watch: &dyn Watch) -> Result<ScannedTree> {
    if options.threads > shard::SHARD_COUNT_MAX {
        return Err(Error::limit(format!(
            "{} threads, at most {}",
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
        // Being interrupted is not the source's fault.
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
