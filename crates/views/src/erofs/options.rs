//! Options of the writer, and checks that all passes need.

use std::path::Path;
use weald_erofs::layout::BLOCK_LEN;
use weald_erofs::writer::Codec;
use weald_format::{Error, Result};

/// Options of `write_image`.
pub struct ErofsOptions<'a> {
    /// Codec of files; without one they are stored as they are.
    pub codec: Option<Codec>,
    /// Threads that compress; at least 1 is used.
    pub thread_count: usize,
    /// Memory for lists, in bytes, besides the cache of the image.
    pub memory_len: u64,
    /// Directory of temporary files.
    pub temp_dir: &'a Path,
    /// Whether to stop.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// The number of the block at `offset`, which is a multiple of its length.
pub(super) fn block_no(offset: u64) -> Result<u32> {
    u32::try_from(offset / BLOCK_LEN)
        .ok()
        .filter(|&no| no != u32::MAX)
        .ok_or_else(|| Error::limit("an EROFS image of more than 16 TiB"))
}

/// Error for an interrupt.
pub(super) fn check_cancelled(options: &ErofsOptions<'_>) -> Result<()> {
    if (options.is_cancelled)() {
        Err(Error::invalid("interrupted"))
    } else {
        Ok(())
    }
}
