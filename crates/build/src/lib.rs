//! The builder: turns a source tree into a sealed image.
//!
//! `scan → dedup → order → segment → compress → emit`, deterministic for any number of threads, within a memory budget.
#![forbid(unsafe_code)]
#![allow(unused_variables, dead_code)] // removed with the last todo

pub mod filter;
pub mod mode;
pub mod scan;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::{Digest, Result};

/// How blocks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecChoice {
    /// Stored as they are.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard at a level of 1 … 22.
    Zstd(i32),
    /// xz (LZMA2) at a preset of 0 … 9.
    Xz(u32),
}

/// In which order contents are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As the tree is walked (names in byte order, directories where their names come).
    Path,
    /// As the scan found them, by (device, inode): fastest on rotating disks; not reproducible.
    None,
}

/// Everything that decides what the image will hold and how. `Default` is level 7.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// Codec and level for blocks of ordinary data.
    pub codec: CodecChoice,
    /// Raw bytes per block, 4 KiB … 64 MiB.
    pub block_len: u64,
    /// Shortest repeat that is shared, bytes, 64 … 4096; 0 = no segmentation.
    pub match_len_min: u32,
    /// Order of contents.
    pub order: Order,
    /// Worker threads; 0 = one per CPU.
    pub threads: usize,
    /// Memory budget in bytes for everything the builder allocates.
    pub memory_len: u64,
    /// Include and exclude rules, first match wins.
    pub filter: weald_filter_placeholder::Filter,
    /// Owner for everything.
    pub uid: Option<u32>,
    /// Group for everything.
    pub gid: Option<u32>,
    /// Permission changes as chmod(1) writes them, parsed.
    pub mode: Option<weald_filter_placeholder::ModeRule>,
    /// Times: clamp to, or set to.
    pub mtime: MtimeRule,
    /// Keep atime.
    pub keep_atime: bool,
    /// Keep ctime.
    pub keep_ctime: bool,
    /// Keep btime.
    pub keep_btime: bool,
    /// Keep extended attributes.
    pub keep_xattrs: bool,
    /// Do not cross into other file systems.
    pub one_file_system: bool,
}

/// What happens to mtimes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MtimeRule {
    /// Kept.
    Keep,
    /// Later ones become this (`SOURCE_DATE_EPOCH`).
    Clamp(i64),
    /// All become this.
    Set(i64),
}

/// Where the build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Walking the source.
    Scan,
    /// Hashing candidates for whole-file sharing.
    Dedup,
    /// Reading, segmenting, compressing, writing.
    Write,
    /// Writing the tree.
    Tree,
}

/// What a progress display shows; counters only grow within a stage.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Stage.
    pub stage: Stage,
    /// Entries found (Scan) or done.
    pub entry_count: u64,
    /// Entries there are, once known.
    pub entry_total: u64,
    /// Source bytes read in this stage.
    pub read_len: u64,
    /// Source bytes this stage will read, once known.
    pub read_total: u64,
    /// Bytes written to the image so far.
    pub written_len: u64,
}

/// Something that went wrong with one source path; the build goes on.
#[derive(Debug, Clone)]
pub struct Problem {
    /// Path relative to the source.
    pub path: Vec<u8>,
    /// What happened, in words.
    pub what: String,
}

/// How a caller watches a build.
pub trait Watch: Send + Sync {
    /// Called a few times a second from one thread at a time.
    fn progress(&self, progress: &Progress) {}
    /// Called once per problem.
    fn problem(&self, problem: &Problem) {}
    /// Asked often; true stops the build with an `Invalid` error "interrupted".
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// What a finished build did.
#[derive(Debug, Clone)]
pub struct Report {
    /// Digest of the image.
    pub image_digest: Digest,
    /// Digest of the tree.
    pub tree_digest: Digest,
    /// Entries, the root included.
    pub entry_count: u64,
    /// Sum of st_size of regular files.
    pub file_len: u64,
    /// Bytes that whole-file sharing saved.
    pub dedup_len: u64,
    /// Bytes that segmentation saved.
    pub segment_len: u64,
    /// Bytes in holes.
    pub hole_len: u64,
    /// Raw bytes that went to blocks.
    pub block_raw_len: u64,
    /// Stored bytes of blocks.
    pub block_stored_len: u64,
    /// Stored bytes of everything else.
    pub metadata_len: u64,
    /// Bytes of the image.
    pub image_len: u64,
    /// How many problems were reported.
    pub problem_count: u64,
}

/// Builds an image of directory `source` at `target`, which appears only when complete.
///
/// # Errors
/// `Io`, `Full`, `Limit`, `Invalid` (source not a directory, target exists and `overwrite` is off).
pub fn build_image(
    source: &Path,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    watch: Arc<dyn Watch>,
) -> Result<Report> {
    todo!()
}

#[doc(hidden)]
pub mod weald_filter_placeholder {
    /// Rules of rsync: see `filter`.
    #[derive(Debug, Clone, Default)]
    pub struct Filter;
    /// See `mode`.
    #[derive(Debug, Clone)]
    pub struct ModeRule;
}

fn _unused(_: PathBuf) {}
