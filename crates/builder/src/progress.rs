//! Progress and problems that a build reports to its caller, and its final report.

use std::path::Path;
use weald_filter::Rule;
use weald_format::Digest;

/// Current stage of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Walking the source.
    Scan,
    /// Reading, whole-file sharing, segmentation; compressing and writing blocks whose order is
    /// known.
    Write,
    /// Compressing and writing the remaining blocks, in order.
    Compress,
    /// Writing the tree.
    Tree,
}

/// Figures for a progress display. Counters only grow within a stage.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Stage.
    pub stage: Stage,
    /// Entries found (Scan), files done (Write).
    pub entry_count: u64,
    /// Number of entries in total, once known.
    pub entry_total: u64,
    /// Source bytes read in this stage; in `Compress`, fresh bytes handed to the compressors.
    pub read_len: u64,
    /// Final value of `read_len`, once known.
    pub read_total: u64,
    /// Bytes written to the image so far.
    pub written_len: u64,
}

/// A problem with one path of the source; the build continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path relative to the source.
    pub path: Vec<u8>,
    /// Description in words.
    pub what: String,
}

/// Why an entry of a source is left out, with everything below it.
#[derive(Debug, Clone, Copy)]
pub enum LeftOut<'a> {
    /// This rule excludes it.
    Rule(&'a Rule),
    /// The function `filter` of the script.
    Script,
    /// It is the image itself, or the one that is replaced.
    Image,
    /// It is a mount point.
    MountPoint,
}

/// Receives reports of a build.
pub trait Observer: Send + Sync {
    /// Called a few times per second, by one thread at a time.
    fn progress(&self, _progress: &Progress) {}

    /// Called once per problem.
    fn problem(&self, _problem: &Problem) {}

    /// Called once for each entry of a source that is replaced by one of a later source, `by`, and
    /// is not a directory like that. `path` is that in the image.
    fn replaced(&self, _path: &[u8], _by: &Path) {}

    /// Called for each entry that is left out as the user asked, by any thread. `path` is that in
    /// the tree. A stream can name an entry more than once.
    fn left_out(&self, _path: &[u8], _why: LeftOut<'_>) {}

    /// Called if `threads` threads may take `to` bytes of memory, which is more than the usual
    /// `from` and was not asked for.
    fn memory_raised(&self, _from: u64, _to: u64, _threads: usize) {}

    /// Called often; true stops the build with the `Invalid` error "interrupted".
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// An observer that ignores all reports.
pub struct Silent;

impl Observer for Silent {}

/// Differences between the tree of an appended generation and the one before, without the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Names that only the new tree has.
    pub added_count: u64,
    /// Names that both trees have, but of inodes that differ in type, permissions, owner, extended
    /// attributes, content, target or mtime. mtimes of directories are ignored, because each new
    /// name changes one.
    pub changed_count: u64,
    /// Names that only the old tree has.
    pub removed_count: u64,
}

/// Result of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Digest of the image.
    pub image_digest: Digest,
    /// Digest of the tree.
    pub tree_digest: Digest,
    /// Generation of the image, from 1.
    pub generation: u64,
    /// Bytes that the new generation added to the image; `None` for a new image.
    pub appended_len: Option<u64>,
    /// Names that the new generation adds, changes and removes; `None` for a new image.
    pub changes: Option<Changes>,
    /// Number of entries, the root included.
    pub entry_count: u64,
    /// Number of distinct directories.
    pub template_count: u64,
    /// Number of stored entries, those of distinct directories.
    pub stored_entry_count: u64,
    /// Number of distinct contents.
    pub content_count: u64,
    /// Sum of st_size of regular files, each inode once.
    pub file_len: u64,
    /// Bytes that whole-file sharing saved.
    pub dedup_len: u64,
    /// Bytes of whole contents that lie in base images.
    pub base_len: u64,
    /// Bytes that segmentation saved.
    pub segment_len: u64,
    /// Bytes of the image that the build continues that were decoded, to find repeats of them and
    /// to compress after them; 0 for a new image.
    pub old_decoded_len: u64,
    /// Bytes in holes.
    pub hole_len: u64,
    /// Bytes that recipes make.
    pub made_len: u64,
    /// Plain bytes stored only for recipes, because no file has them as its content.
    pub plain_len: u64,
    /// Raw bytes stored in blocks.
    pub block_raw_len: u64,
    /// Stored bytes of blocks and of their dictionaries, headers included.
    pub block_stored_len: u64,
    /// Stored bytes of extents and recipes, which describe how contents are composed of repeats,
    /// fresh bytes and streams.
    pub extents_len: u64,
    /// Stored bytes of everything else: names, attributes, content lengths, index, directory.
    pub tree_len: u64,
    /// Length of the image, bytes.
    pub image_len: u64,
    /// Number of problems reported.
    pub problem_count: u64,
}
