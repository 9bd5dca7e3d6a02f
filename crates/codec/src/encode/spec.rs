//! Codecs and levels that a writer can choose.

/// A codec and its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecSpec {
    /// No compression.
    None,
    /// LZ4.
    Lz4,
    /// LZ4 with a longer search, level 1 … 12. It decodes as fast as LZ4.
    Lz4Hc(i32),
    /// Zstandard at level 1 … 22.
    Zstd(i32),
    /// Zstandard for ordinary data: level 16 with half and a quarter of its tables, so that more of
    /// a search stays in the processor's caches, and with matches from four bytes on. Blocks whose
    /// sample shows that a long search gains little are encoded at level 12. Blocks of up to 256
    /// KiB, and blocks with a dictionary, have level 16.
    ZstdLean,
    /// Zstandard for machine code: the parser of level 16, a quarter of its tables, half of its
    /// search, and matches from three bytes on. The result is 3% smaller than at level 16, in less
    /// time.
    ZstdCode,
    /// Zstandard for blocks of 16 MiB: the parser of level 19 with half of its tables and of its
    /// search.
    ZstdDeep,
    /// xz (LZMA2) at preset 0 … 9.
    Xz(u32),
    /// Brotli at quality 0 … 11.
    Brotli(u32),
}

impl CodecSpec {
    /// Level of Zstandard, or the level that the own parameters are based on.
    pub(super) const fn zstd_level(self) -> i32 {
        match self {
            Self::Zstd(level) => level,
            _ => 16,
        }
    }

    /// Whether it makes frames of Zstandard.
    pub const fn is_zstd(self) -> bool {
        matches!(
            self,
            Self::Zstd(_) | Self::ZstdLean | Self::ZstdCode | Self::ZstdDeep
        )
    }

    /// Level of Zstandard for blocks with a dictionary; `None` if the codec does not use
    /// dictionaries.
    pub const fn dictionary_level(self) -> Option<i32> {
        match self {
            Self::Zstd(_) | Self::ZstdLean => Some(self.zstd_level()),
            _ => None,
        }
    }
}
