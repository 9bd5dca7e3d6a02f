//! What a build tells whoever watches it, and what it has done in the end.

use weald_format::Digest;

/// Where the build is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Walking the source.
    Scan,
    /// Reading, sharing, segmenting; compressing and writing what need not wait for its order.
    Write,
    /// Compressing and writing the rest, in order.
    Compress,
    /// Writing the tree.
    Tree,
}

/// What a progress display shows; counters only grow within a stage.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// Stage.
    pub stage: Stage,
    /// Entries found (Scan), files done (Write).
    pub entry_count: u64,
    /// Entries there are, once known.
    pub entry_total: u64,
    /// Source bytes read in this stage; fresh bytes handed on (Compress).
    pub read_len: u64,
    /// What that will be, once known.
    pub read_total: u64,
    /// Bytes written to the image so far.
    pub written_len: u64,
}

/// Something that went wrong with one source path; the build goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path relative to the source.
    pub path: Vec<u8>,
    /// What happened, in words.
    pub what: String,
}

/// How a caller watches a build.
pub trait Watch: Send + Sync {
    /// Called a few times a second from one thread at a time.
    fn progress(&self, _progress: &Progress) {}

    /// Called once per problem.
    fn problem(&self, _problem: &Problem) {}

    /// Called where the options need more memory than their budget: the limit is `to` bytes, not
    /// `from`.
    fn memory_raised(&self, _from: u64, _to: u64) {}

    /// Asked often; true stops the build with an `Invalid` error "interrupted".
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// A watcher that hears nothing.
pub struct Silent;

impl Watch for Silent {}

/// How the tree of an appended generation differs from the one before; the root does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Names that only the new tree has.
    pub added_count: u64,
    /// Names that both trees have, of inodes that differ in type, permissions, owner, extended
    /// attributes, content, target, or mtime. mtimes of directories do not count: each new name
    /// changes one.
    pub changed_count: u64,
    /// Names that only the old tree has.
    pub removed_count: u64,
}

/// What a finished build did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Digest of the image.
    pub image_digest: Digest,
    /// Digest of the tree.
    pub tree_digest: Digest,
    /// Generation of the image, from 1.
    pub generation: u64,
    /// Bytes that it took behind the ones before; `None` where nothing was appended to.
    pub appended_len: Option<u64>,
    /// Names that it adds to those before, changes and removes; `None` where nothing was
    /// appended to.
    pub changes: Option<Changes>,
    /// Entries, the root included.
    pub entry_count: u64,
    /// Distinct directories.
    pub template_count: u64,
    /// Entries stored, of distinct directories.
    pub stored_entry_count: u64,
    /// Distinct contents.
    pub content_count: u64,
    /// Sum of st_size of regular files, each inode once.
    pub file_len: u64,
    /// Bytes that whole-file sharing saved.
    pub dedup_len: u64,
    /// Bytes of whole contents that lie in base images.
    pub base_len: u64,
    /// Bytes that segmentation saved.
    pub segment_len: u64,
    /// Bytes in holes.
    pub hole_len: u64,
    /// Bytes of DEFLATE streams that recipes make.
    pub made_len: u64,
    /// Bytes that were stored for them only: plain bytes that no file had.
    pub plain_len: u64,
    /// Raw bytes that went to blocks.
    pub block_raw_len: u64,
    /// Stored bytes of blocks and of the dictionaries that they share, headers included.
    pub block_stored_len: u64,
    /// Stored bytes of extents and recipes: which repeats, fresh bytes and streams contents are
    /// made of.
    pub extents_len: u64,
    /// Stored bytes of everything else: names, attributes, content lengths, index, directory.
    pub tree_len: u64,
    /// Bytes of the image.
    pub image_len: u64,
    /// How many problems were reported.
    pub problem_count: u64,
}
