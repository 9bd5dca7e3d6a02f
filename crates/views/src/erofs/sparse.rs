//! Chunks of sparse files.

use std::ops::Range;
use weald_erofs::layout::{BLOCK_BITS, BLOCK_LEN};
use weald_format::{Error, Result};

/// Base-2 logarithm of the largest chunk, in blocks.
const CHUNK_BITS_MAX: u32 = 31;
/// Longest index of chunks, in bytes. It holds a file of 1 TiB with holes of 4 KiB.
const INDEX_LEN_MAX: u64 = 1 << 30;
/// Number of runs of data that a sparse file may have: 16 MiB of memory.
pub(super) const RUNS_MAX: usize = 1 << 20;

/// How a sparse file is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunks {
    /// Base-2 logarithm of the chunk, in blocks.
    pub bits: u32,
}

impl Chunks {
    /// Bytes of a chunk.
    pub fn len(self) -> u64 {
        BLOCK_LEN << self.bits
    }

    /// The chunk size that takes least space for index and data of a file of `size` bytes with data
    /// in `runs`.
    ///
    /// # Errors
    /// `Limit` if the best index is too long.
    pub fn choose(size: u64, runs: &[Range<u64>]) -> Result<Self> {
        let mut best: Option<(u64, u32)> = None;
        for bits in 0..=CHUNK_BITS_MAX {
            let index_len = index_len(size, bits);
            if index_len > INDEX_LEN_MAX {
                continue;
            }
            let data_len = data_len(size, runs, bits);
            let cost = data_len.saturating_add(index_len);
            if best.is_none_or(|(least, _)| cost <= least) {
                best = Some((cost, bits));
            }
            // Larger chunks hold the same data or more.
            if data_len >= best.map_or(u64::MAX, |(least, _)| least) {
                break;
            }
        }
        let data: u64 = runs.iter().map(|run| run.end - run.start).sum();
        let cost_max = data.saturating_mul(4).max(1 << 30);
        match best.filter(|&(cost, _)| cost <= cost_max) {
            Some((_, bits)) => Ok(Self { bits }),
            None => Err(Error::limit(format!(
                "a sparse file of {size} bytes with {data} bytes of data needs a larger index \
                 than Weald writes; leave the file out of the image"
            ))),
        }
    }
}

/// Bytes of the index.
fn index_len(size: u64, bits: u32) -> u64 {
    (size.div_ceil(BLOCK_LEN) >> bits)
        .saturating_add(1)
        .saturating_mul(4)
}

/// Bytes of the chunks that hold data.
fn data_len(size: u64, runs: &[Range<u64>], bits: u32) -> u64 {
    let bits = bits + u32::from(BLOCK_BITS);
    let chunk = |offset: u64| offset.checked_shr(bits).unwrap_or(0);
    let (mut count, mut next) = (0_u64, 0);
    for run in runs.iter().filter(|run| !run.is_empty()) {
        let (first, last) = (chunk(run.start).max(next), chunk(run.end - 1));
        if last >= first {
            count += last - first + 1;
            next = last + 1;
        }
    }
    let end = size.next_multiple_of(BLOCK_LEN);
    count
        .saturating_mul(1_u64.checked_shl(bits).unwrap_or(u64::MAX))
        .min(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: an index with an entry for each block of a file that is one hole, and chunks of
    /// which most is zeros.
    #[test]
    fn the_chunk_size_follows_the_holes() {
        let choose = |size, start, len| {
            let run = start..start + len;
            Chunks::choose(size, std::slice::from_ref(&run)).map(|chunks| chunks.bits)
        };
        assert_eq!(choose(1 << 40, 0, 0).unwrap(), CHUNK_BITS_MAX);
        assert_eq!(choose(1 << 20, 4096, 4096).unwrap(), 0);
        assert_eq!(choose(1 << 30, 0, 1 << 29).unwrap(), 17);
        assert!(choose(1 << 40, 1 << 39, 100).unwrap() > 8);
        assert!(choose(1 << 62, 1 << 50, 1).is_err());
    }
}
