//! One cache for any number of images: a hard limit in bytes for all they keep, requests for one
//! key merged.
//!
//! Neighbours: `cache/shard.rs` holds entries and chooses which one goes, `cache/flight.rs` merges
//! loads, `cache/counts.rs` counts. Invariants: what is kept never exceeds the limit, counted when
//! it comes in and again only when it is gone; nothing is loaded and nothing is dropped under a
//! lock.

mod counts;
mod flight;
mod shard;
#[cfg(test)]
mod tests;

pub use counts::{CacheCounts, HitCounts};
pub(crate) use shard::spread;

use crate::ahead::Pool;
use crate::block::Shelf;
use flight::{Flights, Waited};
use parking_lot::Mutex;
use shard::{Entry, Ring};
use std::any::Any;
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use weald_format::{ByteLen, Digest, Error, Result};

/// What a cached value costs.
pub trait Weigh: Any + Send + Sync {
    /// Bytes of memory behind the value.
    fn memory_len(&self) -> usize;
}

impl Weigh for Vec<u8> {
    fn memory_len(&self) -> usize {
        self.len()
    }
}

/// A value of any type.
type Value = Arc<dyn Any + Send + Sync>;

/// What an entry costs besides its value: its place, its share of a table that is half empty, and
/// what an `Arc` adds.
const ENTRY_LEN: u64 = 160;

/// Least bytes for pages in a cache that is not empty: a few of the largest entry blocks (8192
/// names of 255 bytes take about 3 MiB decoded). Without them a walk would decode a block for every
/// few of its entries.
const PAGE_BUDGET_MIN: u64 = 8 << 20;

/// Most bytes that pages take of a cache of up to sixteen times as much; of a larger one they take
/// a sixteenth. What is larger than this by itself is read once here and there: records of a tree
/// are decoded again in a few hundred microseconds, and the kernel keeps the entries it was told.
const PAGE_LEN_MAX: u64 = 96 << 20;
/// See [`PAGE_LEN_MAX`].
const PAGE_SHARE_MAX: u64 = 16;

/// Spare buffers for blocks get this share of a cache at most, and no more than [`SPARE_LEN_MAX`].
const SPARE_SHARE: u64 = 16;
/// Bytes of spare buffers: a few of the usual blocks for each of some threads.
const SPARE_LEN_MAX: u64 = 64 << 20;

/// What is kept: says which part of the budget it belongs to, and keeps the numbers of one kind
/// from those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Room {
    /// Decoded blocks and what recipes make.
    Blocks,
    /// Metadata records.
    Pages,
    /// Indexes of sub-directories.
    Children,
    /// Places of directories.
    Views,
}

/// Parts of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Blocks,
    Pages,
}

impl Room {
    const fn part(self) -> Part {
        match self {
            Self::Blocks => Part::Blocks,
            Self::Pages | Self::Children | Self::Views => Part::Pages,
        }
    }
}

/// What tells values of one room and one image apart.
pub trait CacheKey: Copy {
    /// A kind and a number.
    fn place(self) -> (u32, u64);
}

impl CacheKey for u64 {
    fn place(self) -> (u32, u64) {
        (0, self)
    }
}

/// Names an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Key {
    /// Of the image.
    tag: u64,
    room: Room,
    kind: u32,
    no: u64,
}

/// A cache that any number of images share, with a hard limit in bytes for all that they keep
/// there.
///
/// A quarter of it, but 8 MiB at least where that is no more than half, is sure to the metadata of
/// the images, the rest to blocks of contents; what one of them leaves free the other may use,
/// metadata up to what [`page_len_max`] says. Images of one image digest share entries: what lies
/// under a digest is verified.
pub struct SharedCache {
    budget: Budget,
    blocks: Ring,
    pages: Ring,
    flights: Flights,
    /// Images that are open, by image digest and generation.
    tags: Mutex<HashMap<(Digest, u64), Weak<Tag>>>,
    next_tag: AtomicU64,
    counters: Mutex<Counters>,
    shelf: Arc<Shelf>,
    pool: OnceLock<Pool>,
    /// Whether nobody else calls [`SharedCache::rest`].
    rests_itself: bool,
}

/// Who counts hits and misses: one place for each image, so that a hit is counted once.
#[derive(Default)]
struct Counters {
    open: Vec<Arc<HitCounts>>,
    /// Those of images that are closed.
    closed: CacheCounts,
}

impl Counters {
    /// Adds up what is counted in places that nobody else has any more.
    fn settle(&mut self) {
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

/// Bytes that may be kept, and are.
struct Budget {
    /// All that may be used, spare buffers included.
    len_max: AtomicU64,
    /// Of it, what is sure to pages.
    page_len: AtomicU64,
    used: AtomicU64,
}

/// Bytes that pages of the tree may take of a cache of at most `len_max` bytes.
pub const fn page_len_max(len_max: u64) -> u64 {
    let share = len_max / PAGE_SHARE_MAX;
    if share > PAGE_LEN_MAX {
        share
    } else {
        PAGE_LEN_MAX
    }
}

impl Budget {
    fn new(len_max: u64, page_len: u64) -> Self {
        Self {
            len_max: AtomicU64::new(len_max),
            page_len: AtomicU64::new(page_len),
            used: AtomicU64::new(0),
        }
    }

    /// Bytes that entries may take together.
    fn entries_max(&self) -> u64 {
        let len_max = self.len_max.load(Ordering::Relaxed);
        len_max.saturating_sub(spare_len(len_max))
    }

    fn reserve(&self, len: u64) -> bool {
        let max = self.entries_max();
        let grown = |used: u64| used.checked_add(len).filter(|&sum| sum <= max);
        let (set, get) = (Ordering::AcqRel, Ordering::Acquire);
        self.used.fetch_update(set, get, grown).is_ok()
    }
}

const fn spare_len(len_max: u64) -> u64 {
    let share = len_max / SPARE_SHARE;
    if share < SPARE_LEN_MAX {
        share
    } else {
        SPARE_LEN_MAX
    }
}

fn page_len(len_max: u64) -> u64 {
    let quarter = (len_max / 4).min(page_len_max(len_max));
    quarter.max(PAGE_BUDGET_MIN.min(len_max / 2))
}

impl std::fmt::Debug for SharedCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SharedCache").field(&self.counts()).finish()
    }
}

impl SharedCache {
    /// A cache that keeps at most `len_max` bytes, spare buffers included; 0 keeps nothing.
    pub fn new(len_max: ByteLen) -> Arc<Self> {
        let budget = Budget::new(len_max.0, page_len(len_max.0));
        Arc::new(Self::with_budget(budget, false))
    }

    /// The cache of one image that has none with others: of `cache_len` bytes, which pages may
    /// exceed to have [`PAGE_BUDGET_MIN`].
    pub(crate) fn of_one(cache_len: ByteLen) -> Arc<Self> {
        let quarter = (cache_len.0 / 4).min(page_len_max(cache_len.0));
        let pages = match cache_len.0 {
            0 => 0,
            _ => quarter.max(PAGE_BUDGET_MIN),
        };
        let all = cache_len.0.saturating_sub(quarter).saturating_add(pages);
        Arc::new(Self::with_budget(Budget::new(all, pages), true))
    }

    fn with_budget(budget: Budget, rests_itself: bool) -> Self {
        let len_max = budget.len_max.load(Ordering::Relaxed);
        Self {
            budget,
            blocks: Ring::new(),
            pages: Ring::new(),
            flights: Flights::new(),
            tags: Mutex::default(),
            next_tag: AtomicU64::new(1),
            counters: Mutex::default(),
            shelf: Shelf::new(spare_len(len_max) as usize),
            pool: OnceLock::new(),
            rests_itself,
        }
    }

    /// Limit, use, hits and misses of all images together.
    pub fn counts(&self) -> CacheCounts {
        let used = self.budget.used.load(Ordering::Relaxed);
        let mut counters = self.counters.lock();
        counters.settle();
        let counts = CacheCounts {
            len_max: self.budget.len_max.load(Ordering::Relaxed),
            used_len: used.saturating_add(self.shelf.len() as u64),
            ..counters.closed
        };
        let open = counters.open.iter();
        open.fold(counts, |sum, counts| counts.add_to(sum))
    }

    /// A place to count hits and misses of another image in.
    pub(crate) fn new_counts(&self) -> Arc<HitCounts> {
        let counts = Arc::new(HitCounts::default());
        let mut counters = self.counters.lock();
        counters.settle();
        counters.open.push(counts.clone());
        counts
    }

    /// Drops what nobody asked for since the last call. To be called once a minute by who opens a
    /// cache for many images: what was read from it is mostly in the kernel's page cache by then.
    pub fn rest(&self) {
        self.rest_where(&self.pages, &|_| true);
        self.rest_blocks();
    }

    /// The same for blocks alone: pages of one image are few, and dear to a walk.
    pub(crate) fn rest_blocks(&self) {
        self.rest_where(&self.blocks, &|_| true);
        self.shelf.clear();
    }

    fn rest_where(&self, ring: &Ring, is_wanted: &dyn Fn(&Key) -> bool) {
        ring.sweep(&|shard| shard.take_unasked(is_wanted), &mut |entries| {
            self.let_go(ring, entries);
        });
    }

    /// Changes the limit, and drops what is too much by then. Pages keep their share.
    pub fn set_len_max(&self, len_max: ByteLen) {
        let budget = &self.budget;
        budget.len_max.store(len_max.0, Ordering::Relaxed);
        let pages = page_len(len_max.0);
        budget.page_len.store(pages, Ordering::Relaxed);
        self.shelf.set_len_max(spare_len(len_max.0) as usize);
        while budget.used.load(Ordering::Acquire) > budget.entries_max() {
            if !self.evict_for(Part::Pages, 0) {
                return;
            }
        }
    }

    /// Bytes that blocks may take where pages take their share.
    pub(crate) fn block_len_max(&self) -> u64 {
        let pages = self.budget.page_len.load(Ordering::Relaxed);
        self.budget.entries_max().saturating_sub(pages)
    }

    /// Buffers for blocks.
    pub(crate) fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// The threads that decode ahead for all images of this cache: `thread_count` where there are
    /// none yet.
    pub(crate) fn pool(self: &Arc<Self>, thread_count: usize) -> &Pool {
        let resting = || self.rests_itself.then(|| Arc::downgrade(self));
        self.pool
            .get_or_init(|| Pool::start(thread_count, resting()))
    }

    /// Threads that decode ahead; 0 as long as no image wants any.
    pub(crate) fn thread_count(&self) -> usize {
        self.pool.get().map_or(0, Pool::thread_count)
    }

    /// The tag of the image with this digest and generation, the same for all that are open at a
    /// time.
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

    fn ring(&self, part: Part) -> &Ring {
        match part {
            Part::Blocks => &self.blocks,
            Part::Pages => &self.pages,
        }
    }

    fn get(&self, key: &Key) -> Option<Value> {
        self.ring(key.room.part()).get(key)
    }

    /// Keeps `value`, of `len` bytes, if it fits.
    fn keep(&self, key: Key, value: Value, len: u64) {
        let part = key.room.part();
        let len = len.saturating_add(ENTRY_LEN);
        if len > self.most_of(part) {
            return;
        }
        let ring = self.ring(part);
        while part == Part::Pages && ring.used().saturating_add(len) > self.most_of(part) {
            match ring.evict() {
                Some(entry) => self.let_go(ring, [entry]),
                None => break,
            }
        }
        while !self.budget.reserve(len) {
            if !self.evict_for(part, len) {
                return;
            }
        }
        ring.count_in(len);
        self.let_go(ring, ring.insert(Entry::new(key, value, len)));
    }

    /// Bytes that entries of `part` can take at most: blocks do not drive out pages within their
    /// share.
    fn most_of(&self, part: Part) -> u64 {
        let max = self.budget.entries_max();
        match part {
            Part::Pages => max.min(page_len_max(max)),
            Part::Blocks => {
                let sure = self.budget.page_len.load(Ordering::Relaxed);
                max.saturating_sub(self.pages.used().min(sure))
            }
        }
    }

    /// Drops one entry to make room for `len` bytes of `part`; whether there was one that may go.
    fn evict_for(&self, part: Part, len: u64) -> bool {
        let page_used = match part {
            Part::Pages => self.pages.used().saturating_add(len),
            Part::Blocks => self.pages.used(),
        };
        let is_over = page_used > self.budget.page_len.load(Ordering::Relaxed);
        let order = match (is_over, part) {
            (true, _) => [Some(&self.pages), Some(&self.blocks)],
            (false, Part::Pages) => [Some(&self.blocks), Some(&self.pages)],
            (false, Part::Blocks) => [Some(&self.blocks), None],
        };
        for ring in order.into_iter().flatten() {
            if let Some(entry) = ring.evict() {
                self.let_go(ring, [entry]);
                return true;
            }
        }
        false
    }

    /// Drops entries that were taken out, and only then counts them as gone.
    fn let_go(&self, ring: &Ring, entries: impl IntoIterator<Item = Entry>) {
        for entry in entries {
            let len = entry.len();
            drop(entry);
            ring.count_out(len);
            self.budget.used.fetch_sub(len, Ordering::AcqRel);
        }
    }

    /// Drops the entries that `is_wanted` chooses.
    fn drop_where(&self, is_wanted: &dyn Fn(&Key) -> bool) {
        for ring in [&self.blocks, &self.pages] {
            ring.sweep(&|shard| shard.take(is_wanted), &mut |entries| {
                self.let_go(ring, entries);
            });
        }
    }
}

/// Marks the entries of an image; when its last user goes, they go.
pub struct Tag {
    cache: Arc<SharedCache>,
    no: u64,
    name: (Digest, u64),
}

impl Tag {
    /// The cache that it belongs to.
    pub fn cache(&self) -> &Arc<SharedCache> {
        &self.cache
    }

    /// Drops the blocks of the image that nobody asked for since the last call.
    pub fn rest(&self) {
        let cache = &self.cache;
        cache.rest_where(&cache.blocks, &|key| key.tag == self.no);
        cache.shelf.clear();
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        let mut tags = self.cache.tags.lock();
        // Another one may have taken the name over already.
        if tags.get(&self.name).is_some_and(|t| t.strong_count() == 0) {
            tags.remove(&self.name);
        }
        drop(tags);
        self.cache.drop_where(&|key| key.tag == self.no);
        self.cache.shelf.clear();
    }
}

/// The values of one type and one image in a cache.
pub struct ByteCache<K, V> {
    tag: Arc<Tag>,
    room: Room,
    counts: Option<Arc<HitCounts>>,
    types: PhantomData<fn(K) -> V>,
}

impl<K: CacheKey, V: Weigh> ByteCache<K, V> {
    /// A view of what is kept in `room` for the image of `tag`; hits and misses are counted in
    /// `counts`.
    pub fn new(tag: &Arc<Tag>, room: Room, counts: Option<Arc<HitCounts>>) -> Self {
        Self {
            tag: tag.clone(),
            room,
            counts,
            types: PhantomData,
        }
    }

    fn key(&self, key: K) -> Key {
        let (kind, no) = key.place();
        Key {
            tag: self.tag.no,
            room: self.room,
            kind,
            no,
        }
    }

    fn count(&self, is_hit: bool) {
        if let Some(counts) = &self.counts {
            counts.count(is_hit);
        }
    }

    /// The value of `key`, made by `load` where it is not there. Other callers for the same key
    /// wait for that one load; where it fails, the next of them tries itself.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn get_or_load(&self, key: &K, load: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        let (cache, key) = (&*self.tag.cache, self.key(*key));
        if let Some(value) = typed(cache.get(&key)) {
            self.count(true);
            return Ok(value);
        }
        loop {
            match cache.flights.enter(&key, || cache.get(&key)) {
                Waited::There(value) => {
                    if let Some(value) = typed(Some(value)) {
                        self.count(true);
                        return Ok(value);
                    }
                }
                Waited::Failed => {}
                Waited::Own(flight) => {
                    self.count(false);
                    let value = Arc::new(load()?);
                    cache.keep(key, value.clone(), value.memory_len() as u64);
                    flight.land(value.clone());
                    return Ok(value);
                }
                Waited::InItself => {
                    let what = "it needs itself to be decoded";
                    return Err(Error::corrupt("record", 0, "F-3.12", what));
                }
            }
        }
    }

    /// The value of `key`, if it is there.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        let value = typed(self.tag.cache.get(&self.key(*key)));
        if value.is_some() {
            self.count(true);
        }
        value
    }

    /// Counts `value`, which is kept under `key`, with what it weighs by now: less than before.
    pub fn weigh_again(&self, key: &K, value: &Arc<V>) {
        let (cache, key) = (&*self.tag.cache, self.key(*key));
        let ring = cache.ring(key.room.part());
        let len = (value.memory_len() as u64).saturating_add(ENTRY_LEN);
        let value: Value = value.clone();
        let fewer = ring.shrink(&key, &value, len);
        ring.count_out(fewer);
        cache.budget.used.fetch_sub(fewer, Ordering::AcqRel);
    }

    /// Forgets the value of `key`.
    pub fn remove(&self, key: &K) {
        let ring = self.tag.cache.ring(self.room.part());
        self.tag.cache.let_go(ring, ring.remove(&self.key(*key)));
    }

    /// The value of `key`, if it is there, without touching its age.
    pub fn peek(&self, key: &K) -> Option<Arc<V>> {
        let ring = self.tag.cache.ring(self.room.part());
        typed(ring.peek(&self.key(*key)))
    }

    /// Whether `key` is there, without touching its age.
    pub fn contains(&self, key: &K) -> bool {
        let ring = self.tag.cache.ring(self.room.part());
        ring.contains(&self.key(*key))
    }

    /// Drops everything of this view, also what others see of the same image.
    pub fn clear(&self) {
        let is_own = |key: &Key| key.tag == self.tag.no && key.room == self.room;
        self.tag.cache.drop_where(&is_own);
    }
}

fn typed<V: Weigh>(value: Option<Value>) -> Option<Arc<V>> {
    value?.downcast().ok()
}
