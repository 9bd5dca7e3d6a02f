//! The share of the memory budget, and the options, that each stage gets.

use crate::options::{Categories, SmallTree};
use weald_codec::CodecSpec;
use weald_io::WriteBehind;

/// Shares of the stages, in bytes unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Compressor threads.
    pub threads: usize,
    /// Raw bytes per block.
    pub block_len: u64,
    /// What a small tree has instead, and how many threads compress its blocks.
    pub small_tree: Option<(SmallTree, usize)>,
    /// Codec of ordinary blocks.
    pub codec: CodecSpec,
    /// Codec of blocks of x86 code.
    pub x86_codec: CodecSpec,
    /// Codec of blocks of ARM64 code.
    pub arm64_codec: CodecSpec,
    /// Length of the shortest repeat.
    pub match_len_min: u32,
    /// Length of the pieces that clustering moves next to similar ones; 0 turns clustering off.
    pub cluster_len: u64,
    /// Longest dictionary of ordinary blocks; 0 if their codec has none.
    pub dictionary_len: u64,
    /// Categories that are detected.
    pub categories: Categories,
    /// Whether the image keeps the fs-verity digest of each content.
    pub keep_fsverity: bool,
    /// Match table of the segmenter.
    pub table_len: u64,
    /// Blocks kept in memory for comparison (look-back window).
    pub window_len: u64,
    /// Bytes of files read ahead of the segmenter.
    pub read_ahead_len: u64,
    /// Longest archive that is read whole, so that its compressed members can be decoded.
    pub archive_len_max: u64,
    /// Plain bytes of archives that readers keep until they are written.
    pub plains_len: u64,
    /// Threads that write the spool of the blocks. They do not decide about the image.
    pub spool_writers: WriteBehind,
    /// The budget that the other lengths are derived from.
    pub memory_len: u64,
    /// The limit: `memory_len`, or more for more threads, or if the options need more.
    pub limit_len: u64,
    /// What all threads may take, bytes, if that is more than usual and was not asked for.
    pub raised_len: Option<u64>,
}
