//! The memory plan: who gets how much of `--memory`. A budget that cannot be kept is refused, not overrun.

use crate::compress::Compressors;
use crate::options::BuildOptions;
use crate::read::WHOLE_LEN_MAX;
use weald_codec::CodecSpec;
use weald_format::{Error, Result};

/// Code, stacks, allocator slack, metadata pages and their encoders.
const FIXED_LEN: u64 = 48 << 20;
/// What one entry costs from scan to end: 48 + name (about 24) in the scan, twice the 48 while it is put in order,
/// 44 for digest and table of a content of its own, 4 for its number.
const ENTRY_LEN: u64 = 170;

/// What the stages may use, bytes unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Compressor threads.
    pub threads: usize,
    /// Raw bytes per block.
    pub block_len: u64,
    /// Codec of ordinary blocks.
    pub codec: CodecSpec,
    /// Shortest repeat.
    pub match_len_min: u32,
    /// Table of samples.
    pub table_len: u64,
    /// Blocks kept in memory to compare with.
    pub window_len: u64,
    /// Files read ahead.
    pub read_ahead_len: u64,
}

impl Plan {
    /// Shares out `options.memory_len` for a tree of `entry_count` entries on `cpu_count` CPUs.
    ///
    /// # Errors
    /// `Limit` where even the smallest plan needs more; it says how much.
    pub fn new(options: &BuildOptions, cpu_count: usize, entry_count: u64) -> Result<Self> {
        let wanted = if options.threads == 0 { cpu_count } else { options.threads };
        let fixed = FIXED_LEN + entry_count * ENTRY_LEN;
        let smallest = |threads: u64| {
            let blocks = Compressors::in_flight_max(threads) * options.block_len * 2;
            fixed + threads * options.codec.context_len(options.block_len) + blocks + minimum_shared(options)
        };
        // Fewer threads need less; the bytes of the image do not depend on how many there are.
        let threads = (1..=wanted as u64).rev().find(|&t| smallest(t) <= options.memory_len);
        let threads = threads.ok_or_else(|| {
            let need = smallest(1).div_ceil(1 << 20);
            let have = options.memory_len >> 20;
            Error::limit(format!("memory: this build needs {need} MiB at least, the limit is {have} MiB"))
        })?;
        Ok(Self {
            threads: threads as usize,
            block_len: options.block_len,
            codec: options.codec,
            match_len_min: options.match_len_min,
            table_len: table_len(options),
            window_len: window_len(options),
            read_ahead_len: WHOLE_LEN_MAX * 3,
        })
    }
}

/// Table and window decide which repeats are found, so they follow from the options alone, never from the machine.
fn table_len(options: &BuildOptions) -> u64 {
    if options.match_len_min == 0 { 0 } else { (options.memory_len / 8).clamp(1 << 20, 1 << 30) }
}

fn window_len(options: &BuildOptions) -> u64 {
    (options.memory_len / 16).max(options.block_len * 2)
}

fn minimum_shared(options: &BuildOptions) -> u64 {
    // Read-ahead, one file more in the segmenter's hands, and the open block of each stream.
    table_len(options) + window_len(options) + WHOLE_LEN_MAX * 4 + options.block_len * 2
}
