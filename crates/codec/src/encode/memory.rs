//! Memory that encoders take; a build plans with these figures.

use super::parameters::effort_len;
use super::spec::CodecSpec;
use crate::decode::BROTLI_WINDOW_BITS;

impl CodecSpec {
    /// Memory that one encoding thread needs besides input and output, bytes, for blocks of
    /// `block_len`.
    ///
    /// # Source
    /// Zstandard: window, hash table, chain table and, from level 16 on, the tables of the optimal
    /// parser, as `ZSTD_estimateCCtxSize` computes for the window of the block. xz: 11.5 ×
    /// dictionary (`lzma_easy_encoder_memusage`).
    // trusted input: values of this program
    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
    pub fn context_len(self, block_len: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1 << 16,
            Self::Lz4Hc(_) => 1 << 19,
            Self::ZstdLean | Self::ZstdCode => {
                // Four bytes for each entry of two tables; then the parser's tables and the
                // sequences.
                let entries = block_len.clamp(1 << 16, 1 << 27).next_power_of_two() * 2;
                let tree_entries = match self {
                    Self::ZstdLean => entries.min(1 << 21),
                    _ => entries.min(1 << 20),
                };
                let tables_len = (tree_entries + entries.min(1 << 20)) * 4;
                tables_len + (2 << 20) + effort_len(self, block_len)
            }
            Self::ZstdDeep => {
                // As above, and the third table of the strongest parser.
                let entries = block_len.clamp(1 << 16, 1 << 27).next_power_of_two() * 2;
                (entries.min(1 << 23) + entries.min(1 << 21)) * 4 + (5 << 19)
            }
            Self::Zstd(level) => {
                let tables = block_len.clamp(1 << 16, 1 << 27);
                let factor = if level >= 19 {
                    14
                } else if level >= 13 {
                    9
                } else {
                    5
                };
                tables * factor + (1 << 20)
            }
            Self::Xz(_) => block_len.max(1 << 20) * 12,
            Self::Brotli(quality) => brotli_context_len(quality, block_len),
        }
    }
}

/// Maximum memory of a Zstandard context with a dictionary besides its tables, bytes.
const SHARED_CONTEXT_FIXED_LEN: u64 = 2 << 20;

impl CodecSpec {
    /// Memory that one encoding thread needs for blocks of `block_len` with a dictionary of
    /// `dictionary_len`, bytes; 0 without a dictionary.
    ///
    /// # Source
    /// `ZSTD_sizeof_CCtx` of zstd 1.5.7. Its tables are sized for the dictionary and the half
    /// kilobyte that Zstandard assumes to follow it, rounded up to a power of two. It holds them
    /// twice: the prepared tables, and the copy that a frame updates.
    #[allow(clippy::arithmetic_side_effects)] // lengths of blocks and small factors
    pub fn shared_context_len(self, dictionary_len: u64, block_len: u64) -> u64 {
        let Some(level) = self.dictionary_level().filter(|_| dictionary_len > 0) else {
            return 0;
        };
        let entries = (dictionary_len + 1024).next_power_of_two();
        let factor = match level {
            10.. => 34,
            4.. => 23,
            _ => 4,
        };
        entries * factor + block_len + SHARED_CONTEXT_FIXED_LEN
    }
}

/// Maximum memory of Brotli's encoder, measured for blocks of 256 KiB to 16 MiB of Python sources,
/// plus a tenth. Beyond its largest window it takes no more.
#[allow(clippy::arithmetic_side_effects)] // lengths of blocks and small factors
fn brotli_context_len(quality: u32, block_len: u64) -> u64 {
    let len = block_len.clamp(1 << 18, 1 << (BROTLI_WINDOW_BITS + 1));
    let (factor, mib) = match quality {
        0 | 1 => (0, 1),
        2 | 3 => (3, 2),
        4..=6 => (8, 4),
        7 | 8 => (8, 12),
        9 => (9, 40),
        _ => (16, 24),
    };
    len * factor + (mib << 20)
}

/// Memory that [`encode_with_history`](super::encode_with_history) needs at level 12 or below for
/// this history, bytes. The history itself counts twice: as decoded records, and as the buffer that
/// joins them.
///
/// # Source
/// zstd 1.5.7, `clevels.h`: hash and chain table of level 12 have at most 2^22 and 2^21 entries.
pub fn history_context_len(history_len: u64) -> u64 {
    let entries = history_len.next_power_of_two().min(1 << 21);
    entries
        .saturating_mul(12)
        .saturating_add(history_len.saturating_mul(2))
        .saturating_add(4 << 20)
}
