//! The cache itself: entries of any number of images within one budget.

use super::block::BufferPool;
use super::budget::{Budget, page_len_max};
use super::counts::{CacheCounts, HitCounts};
use super::flight::Flights;
use super::key::{BudgetPart, Key, Value};
use super::prefetch_pool::{IdleHook, PrefetchPool};
use super::shard::{Entry, Ring};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use weald_format::{ByteLen, Digest};
#[cfg(feature = "places")]
use weald_store::Store;

/// Bytes that an entry costs besides its value: its slot, its share of a table that is half empty,
/// and the counters of an `Arc`.
pub const CACHE_ENTRY_LEN: u64 = 160;

/// A cache that any number of images share, with a hard limit in bytes for everything in it.
///
/// A quarter of it (at least 8 MiB, unless that is more than half) is guaranteed to the metadata of
/// the images, the rest to blocks of file contents. Each of the two may use what the other leaves
/// free, metadata up to [`page_len_max`]. Open images with the same image digest share entries,
/// because everything that a digest covers was verified. Images of one store share blocks and
/// pages by digest.
pub struct SharedCache {
    pub(super) budget: Budget,
    pub(super) blocks: Ring,
    pub(super) pages: Ring,
    flights: Flights,
    /// Open images, by image digest and generation.
    tags: Mutex<HashMap<(Digest, u64), Weak<Tag>>>,
    next_tag: AtomicU64,
    counters: Mutex<Counters>,
    buffer_pool: Arc<BufferPool>,
    prefetch_pool: OnceLock<PrefetchPool>,
    /// Whether a prefetch thread evicts idle blocks. True for a private cache, which has no owner
    /// that calls [`SharedCache::evict_idle`].
    evicts_idle_blocks: bool,
}

/// The hit counters of all images. Each image has its own, so that a hit is counted once.
#[derive(Default)]
struct Counters {
    open: Vec<Arc<HitCounts>>,
    /// Sum for the images that were closed.
    closed: CacheCounts,
}

impl Counters {
    /// Adds the counters of closed images to their sum.
    fn sum_closed(&mut self) {
        let closed = &mut self.closed;
        self.open.retain(|counts| {
            let is_open = Arc::strong_count(counts) > 1;
            if !is_open {
                *closed = counts.add_to(*closed);
            }
            is_open
        });
    }
}

impl std::fmt::Debug for SharedCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SharedCache").field(&self.counts()).finish()
    }
}

impl SharedCache {
    /// A cache of at most `len_max` bytes, spare buffers included; 0 keeps nothing.
    pub fn new(len_max: ByteLen) -> Arc<Self> {
        Arc::new(Self::with_budget(Budget::new(len_max.0), false))
    }

    /// The private cache of one image, of `cache_len` bytes; pages may exceed that to have 8 MiB.
    pub(crate) fn for_one_image(cache_len: ByteLen) -> Arc<Self> {
        Arc::new(Self::with_budget(Budget::for_one_image(cache_len.0), true))
    }

    fn with_budget(budget: Budget, evicts_idle_blocks: bool) -> Self {
        let buffer_pool = BufferPool::new(budget.spare_len_max() as usize);
        Self {
            budget,
            blocks: Ring::new(),
            pages: Ring::new(),
            flights: Flights::new(),
            tags: Mutex::default(),
            next_tag: AtomicU64::new(1),
            counters: Mutex::default(),
            buffer_pool,
            prefetch_pool: OnceLock::new(),
            evicts_idle_blocks,
        }
    }

    /// Limit, use, hits and misses of all images together.
    pub fn counts(&self) -> CacheCounts {
        let used = self.budget.used();
        let mut counters = self.counters.lock();
        counters.sum_closed();
        let counts = CacheCounts {
            len_max: self.budget.len_max(),
            used_len: used.saturating_add(self.buffer_pool.len() as u64),
            ..counters.closed
        };
        let open = counters.open.iter();
        open.fold(counts, |sum, counts| counts.add_to(sum))
    }

    /// Hit counters for one more image.
    pub(crate) fn new_counts(&self) -> Arc<HitCounts> {
        let counts = Arc::new(HitCounts::default());
        let mut counters = self.counters.lock();
        counters.sum_closed();
        counters.open.push(counts.clone());
        counts
    }

    /// Evicts the entries that were not requested since the last call. The owner of a cache for
    /// many images calls it once a minute: by then the kernel's page cache has most of what was
    /// read from these entries.
    pub fn evict_idle(&self) {
        self.evict_idle_of(BudgetPart::Pages, &|_| true);
        self.evict_idle_blocks();
    }

    /// The same for blocks alone: the pages of one image are few, and a walk needs them.
    fn evict_idle_blocks(&self) {
        self.evict_idle_of(BudgetPart::Blocks, &|_| true);
        self.buffer_pool.clear();
    }

    fn evict_idle_of(&self, part: BudgetPart, is_selected: &dyn Fn(&Key) -> bool) {
        let ring = self.ring(part);
        ring.sweep(&|shard| shard.remove_idle(is_selected), &mut |entries| {
            self.free(ring, entries)
        });
    }

    /// Changes the limit and evicts what exceeds it. The share of pages stays the same.
    pub fn set_len_max(&self, len_max: ByteLen) {
        let budget = &self.budget;
        budget.set_len_max(len_max.0);
        self.buffer_pool
            .set_len_max(budget.spare_len_max() as usize);
        while budget.used() > budget.entries_len_max() {
            if !self.evict_for(BudgetPart::Pages, 0) {
                return;
            }
        }
    }

    /// Bytes that blocks may take while pages take what is guaranteed to them.
    pub(crate) fn block_len_max(&self) -> u64 {
        let page_len = self.budget.page_len();
        self.budget.entries_len_max().saturating_sub(page_len)
    }

    /// The pool of buffers for blocks.
    pub(crate) fn buffer_pool(&self) -> &Arc<BufferPool> {
        &self.buffer_pool
    }

    /// The threads that decode ahead for all images of this cache. The first call starts
    /// `thread_count` threads.
    pub(crate) fn prefetch_pool(self: &Arc<Self>, thread_count: usize) -> &PrefetchPool {
        let idle_hook = || {
            let cache = Arc::downgrade(self);
            let evict = move || {
                if let Some(cache) = Weak::upgrade(&cache) {
                    cache.evict_idle_blocks();
                }
            };
            self.evicts_idle_blocks.then(|| Box::new(evict) as IdleHook)
        };
        self.prefetch_pool
            .get_or_init(|| PrefetchPool::start(thread_count, idle_hook()))
    }

    /// Threads that decode ahead; 0 until an image wants some.
    pub(crate) fn thread_count(&self) -> usize {
        self.prefetch_pool
            .get()
            .map_or(0, PrefetchPool::thread_count)
    }

    /// The tag of the image with this digest and generation. All such images that are open at the
    /// same time have the same tag.
    pub(crate) fn tag(self: &Arc<Self>, digest: &Digest, generation: u64) -> Arc<Tag> {
        let mut tags = self.tags.lock();
        let name = (*digest, generation);
        if let Some(tag) = tags.get(&name).and_then(Weak::upgrade) {
            return tag;
        }
        let tag = Arc::new(Tag {
            cache: self.clone(),
            no: self.next_tag.fetch_add(1, Ordering::Relaxed),
            name,
        });
        tags.insert(name, Arc::downgrade(&tag));
        tag
    }

    /// The tag of what all images of a store share. It lives as long as one of them is open.
    ///
    /// Blocks of a store are found in the cache by their digests, before a byte of the store is
    /// read. So a store is known by the directory that it lies in, which the disk holds open, and
    /// not by its UUID: another user can give a store the UUID of this one.
    #[cfg(feature = "places")]
    pub(crate) fn store_tag(self: &Arc<Self>, store: &Store) -> Arc<Tag> {
        let identity = store.identity().unwrap_or_else(|| {
            let own = self.next_tag.fetch_add(1, Ordering::Relaxed);
            [u64::MAX, own]
        });
        let bytes = identity.map(u64::to_le_bytes).concat();
        // No generation of an image has this number.
        self.tag(&Digest::of(&bytes), u64::MAX)
    }

    /// The entries that one part of the budget pays for.
    pub(super) fn ring(&self, part: BudgetPart) -> &Ring {
        match part {
            BudgetPart::Blocks => &self.blocks,
            BudgetPart::Pages => &self.pages,
        }
    }

    /// Loads in progress.
    pub(super) fn flights(&self) -> &Flights {
        &self.flights
    }

    /// The value of `key`; the entry counts as requested.
    pub(super) fn get(&self, key: &Key) -> Option<Value> {
        self.ring(key.kind.budget_part()).get(key)
    }

    /// Inserts `value`, of `len` bytes, if it fits.
    pub(super) fn insert(&self, key: Key, value: Value, len: u64) {
        let part = key.kind.budget_part();
        let len = len.saturating_add(CACHE_ENTRY_LEN);
        if len > self.part_len_max(part) {
            return;
        }
        let ring = self.ring(part);
        let is_over_share = || ring.used().saturating_add(len) > self.part_len_max(part);
        while part == BudgetPart::Pages && is_over_share() {
            match ring.evict() {
                Some(entry) => self.free(ring, [entry]),
                None => break,
            }
        }
        while !self.budget.reserve(len) {
            if !self.evict_for(part, len) {
                return;
            }
        }
        ring.count_in(len);
        self.free(ring, ring.insert(Entry::new(key, value, len)));
    }

    /// Lets the entry of `key` count as `len` bytes if it still holds `value` and counted as more.
    pub(super) fn shrink(&self, key: &Key, value: &Value, len: u64) {
        let ring = self.ring(key.kind.budget_part());
        let freed_len = ring.shrink(key, value, len.saturating_add(CACHE_ENTRY_LEN));
        ring.count_out(freed_len);
        self.budget.release(freed_len);
    }

    /// Removes the entry of `key`.
    pub(super) fn remove(&self, key: &Key) {
        let ring = self.ring(key.kind.budget_part());
        self.free(ring, ring.remove(key));
    }

    /// Bytes that the entries of `part` can take at most: blocks never evict pages within the share
    /// that is guaranteed to these.
    fn part_len_max(&self, part: BudgetPart) -> u64 {
        let max = self.budget.entries_len_max();
        match part {
            BudgetPart::Pages => max.min(page_len_max(max)),
            BudgetPart::Blocks => max.saturating_sub(self.pages.used().min(self.budget.page_len())),
        }
    }

    /// Evicts one entry to make room for `len` bytes of `part`. Returns whether there was one that
    /// may be evicted.
    fn evict_for(&self, part: BudgetPart, len: u64) -> bool {
        let page_used = match part {
            BudgetPart::Pages => self.pages.used().saturating_add(len),
            BudgetPart::Blocks => self.pages.used(),
        };
        let is_over_share = page_used > self.budget.page_len();
        let order = match (is_over_share, part) {
            (true, _) => [Some(&self.pages), Some(&self.blocks)],
            (false, BudgetPart::Pages) => [Some(&self.blocks), Some(&self.pages)],
            (false, BudgetPart::Blocks) => [Some(&self.blocks), None],
        };
        for ring in order.into_iter().flatten() {
            if let Some(entry) = ring.evict() {
                self.free(ring, [entry]);
                return true;
            }
        }
        false
    }

    /// Drops removed entries, and only then counts their bytes as free.
    fn free(&self, ring: &Ring, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            let len = entry.len();
            drop(entry);
            ring.count_out(len);
            self.budget.release(len);
        }
    }

    /// Removes the entries that `is_selected` chooses.
    pub(super) fn remove_selected(&self, is_selected: &dyn Fn(&Key) -> bool) {
        for ring in [&self.blocks, &self.pages] {
            ring.sweep(
                &|shard| shard.remove_selected(is_selected),
                &mut |entries| self.free(ring, entries),
            );
        }
    }
}

/// Owner of the entries of one image, or of those that the images of a store share. When the last
/// copy is dropped, its entries are removed.
pub struct Tag {
    cache: Arc<SharedCache>,
    no: u64,
    name: (Digest, u64),
}

impl Tag {
    /// The cache that holds the entries.
    pub fn cache(&self) -> &Arc<SharedCache> {
        &self.cache
    }

    /// Number of the image in the cache.
    pub(super) fn no(&self) -> u64 {
        self.no
    }

    /// Evicts the blocks of the image that were not requested since the last call.
    pub fn evict_idle_blocks(&self) {
        let cache = &self.cache;
        cache.evict_idle_of(BudgetPart::Blocks, &|key| key.tag == self.no);
        cache.buffer_pool.clear();
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        let mut tags = self.cache.tags.lock();
        // A new tag may have the name already.
        if tags.get(&self.name).is_some_and(|t| t.strong_count() == 0) {
            tags.remove(&self.name);
        }
        drop(tags);
        self.cache.remove_selected(&|key| key.tag == self.no);
        self.cache.buffer_pool.clear();
    }
}
