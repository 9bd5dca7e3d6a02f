//! The bytes that a cache may use, and their division between blocks, pages and spare buffers.

use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::ByteLen;

/// Fewest bytes for pages in a cache that is not empty: the largest entry block (16384 names of 255
/// bytes take about 6 MiB decoded) and a few small pages. With less, a walk would decode a block
/// for every few of its entries.
pub const PAGE_LEN_MIN: u64 = 8 << 20;

/// Most bytes that pages take of a cache of up to sixteen times as much; of a larger cache they
/// take a sixteenth. The metadata of a larger tree is read once here and there: a record is decoded
/// again in a few hundred microseconds, and the kernel keeps the entries that it received.
const PAGE_LEN_MAX: u64 = 96 << 20;
/// See [`PAGE_LEN_MAX`].
const PAGE_SHARE_MAX: u64 = 16;

/// Spare buffers for blocks take at most this share of a cache, and no more than [`SPARE_LEN_MAX`].
const SPARE_SHARE: u64 = 16;
/// Bytes of spare buffers: a few blocks of the usual size for each of several threads.
const SPARE_LEN_MAX: u64 = 64 << 20;

/// Bytes that a cache may use, and does.
pub struct Budget {
    /// Everything, spare buffers included.
    len_max: AtomicU64,
    /// The part of it that is guaranteed to pages.
    page_len: AtomicU64,
    used: AtomicU64,
}

/// Default limit of the cache of a machine with `memory_len` bytes. The repeats in an image refer
/// to distant blocks; with a small cache the same blocks are decoded again and again
/// (`docs/benchmarks.md` has the figures).
pub fn default_cache_len(memory_len: u64) -> ByteLen {
    ByteLen((memory_len / CACHE_SHARE).clamp(CACHE_LEN_MIN, CACHE_LEN_MAX))
}

/// The cache gets this fraction of the memory by default.
const CACHE_SHARE: u64 = 16;
/// Least and most that it gets by default, bytes.
const CACHE_LEN_MIN: u64 = 256 << 20;
const CACHE_LEN_MAX: u64 = 2 << 30;

/// Most bytes that pages of the tree take of a cache of at most `len_max` bytes.
pub const fn page_len_max(len_max: u64) -> u64 {
    let share = len_max / PAGE_SHARE_MAX;
    if share > PAGE_LEN_MAX {
        share
    } else {
        PAGE_LEN_MAX
    }
}

/// Bytes that are guaranteed to pages in a cache of `len_max` bytes.
fn guaranteed_page_len(len_max: u64) -> u64 {
    let quarter = (len_max / 4).min(page_len_max(len_max));
    quarter.max(PAGE_LEN_MIN.min(len_max / 2))
}

const fn spare_len(len_max: u64) -> u64 {
    let share = len_max / SPARE_SHARE;
    if share < SPARE_LEN_MAX {
        share
    } else {
        SPARE_LEN_MAX
    }
}

impl Budget {
    /// The budget of a cache of `len_max` bytes in all.
    pub fn new(len_max: u64) -> Self {
        Self::with_page_len(len_max, guaranteed_page_len(len_max))
    }

    /// The budget of a private cache of `cache_len` bytes. It exceeds `cache_len` where a quarter
    /// of that is less than [`PAGE_LEN_MIN`]; 0 keeps nothing.
    pub fn for_one_image(cache_len: u64) -> Self {
        let quarter = (cache_len / 4).min(page_len_max(cache_len));
        let page_len = match cache_len {
            0 => 0,
            _ => quarter.max(PAGE_LEN_MIN),
        };
        let len_max = cache_len.saturating_sub(quarter).saturating_add(page_len);
        Self::with_page_len(len_max, page_len)
    }

    fn with_page_len(len_max: u64, page_len: u64) -> Self {
        Self {
            len_max: AtomicU64::new(len_max),
            page_len: AtomicU64::new(page_len),
            used: AtomicU64::new(0),
        }
    }

    /// The limit in bytes, spare buffers included.
    pub fn len_max(&self) -> u64 {
        self.len_max.load(Ordering::Relaxed)
    }

    /// Changes the limit.
    pub fn set_len_max(&self, len_max: u64) {
        self.len_max.store(len_max, Ordering::Relaxed);
        let page_len = guaranteed_page_len(len_max);
        self.page_len.store(page_len, Ordering::Relaxed);
    }

    /// Bytes that are guaranteed to pages.
    pub fn page_len(&self) -> u64 {
        self.page_len.load(Ordering::Relaxed)
    }

    /// Bytes that spare buffers may take.
    pub fn spare_len_max(&self) -> u64 {
        spare_len(self.len_max())
    }

    /// Bytes that all entries together may take.
    pub fn entries_len_max(&self) -> u64 {
        let len_max = self.len_max();
        len_max.saturating_sub(spare_len(len_max))
    }

    /// Bytes that all entries together take, those included that are about to be inserted and those
    /// that are removed but not yet freed.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Counts `len` bytes as used if they fit; returns whether they do.
    pub fn reserve(&self, len: u64) -> bool {
        let max = self.entries_len_max();
        let sum_within = |used: u64| used.checked_add(len).filter(|&sum| sum <= max);
        let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
        self.used.fetch_update(set, get, sum_within).is_ok()
    }

    /// Counts `len` bytes as free again.
    pub fn release(&self, len: u64) {
        self.used.fetch_sub(len, Ordering::AcqRel);
    }
}
