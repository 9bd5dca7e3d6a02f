//! Compression of physical clusters.

use crate::layout::BLOCK_LEN;
use weald_format::{Error, Result};

/// Bytes of a file that are compressed together: a reader of 4 KiB decodes so many at most. With
/// less, the unused end of each cluster's last block weighs more.
pub const CLUSTER_LEN_MAX: usize = 128 << 10;

/// A codec of compressed files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// LZ4, fast.
    Lz4,
    /// LZ4 with a thorough search at this level, 3 to 12. The kernel decodes it as LZ4.
    Lz4Hc(u8),
    /// Zstandard at this level, 1 to 22. Linux 6.10 and newer.
    Zstd(u8),
}

impl Codec {
    /// Base-2 logarithm of the window of Zstandard: that of a cluster.
    pub(super) const WINDOW_BITS: u8 = CLUSTER_LEN_MAX.ilog2() as u8;

    /// Number of the codec in an image.
    pub const fn number(self) -> u8 {
        match self {
            Self::Lz4 | Self::Lz4Hc(_) => 0,
            Self::Zstd(_) => 3,
        }
    }

    /// Compresses `data` into whole blocks. Zeros fill the first one. Returns `None` if that saves
    /// no block.
    ///
    /// # Errors
    /// `Invalid` if the codec fails: the level is out of range.
    pub fn compress(self, data: &[u8]) -> Result<Option<Vec<u8>>> {
        let failed = |what: String| Error::invalid(format!("compression: {what}"));
        let stored = match self {
            Self::Lz4 => lz4_flex::block::compress(data),
            Self::Lz4Hc(level) => {
                let mode = lz4::block::CompressionMode::HIGHCOMPRESSION(level.into());
                lz4::block::compress(data, Some(mode), false).map_err(|e| failed(e.to_string()))?
            }
            Self::Zstd(level) => {
                let stored = zstd::bulk::compress(data, level.into());
                stored.map_err(|e| failed(e.to_string()))?
            }
        };
        let stored_len = stored.len().next_multiple_of(BLOCK_LEN as usize);
        if stored_len >= data.len().next_multiple_of(BLOCK_LEN as usize) {
            return Ok(None);
        }
        let mut blocks = vec![0; stored_len - stored.len()];
        blocks.extend_from_slice(&stored);
        Ok(Some(blocks))
    }
}
