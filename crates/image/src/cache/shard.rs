//! Entries in shards, and the choice of the entry to evict: Corbató's clock, whose hand visits the
//! shards in turn.
//!
//! # Source
//! F. J. Corbató, "A Paging Experiment with the Multics System" (1968): an entry that was
//! requested since the hand passed it gets a second chance.

use super::hash::MixedHasher;
use super::key::{Key, Value};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Shards of a ring: many more than threads, so that two threads seldom need the same lock.
const CACHE_SHARD_COUNT: usize = 64;

/// Flag of an entry: requested since the hand passed it.
const SINCE_HAND: u8 = 1;
/// Flag of an entry: requested since the last eviction of idle entries.
const SINCE_IDLE_SWEEP: u8 = 2;
const REQUESTED: u8 = SINCE_HAND | SINCE_IDLE_SWEEP;

/// A value in the cache.
pub struct Entry {
    key: Key,
    value: Value,
    len: u64,
    requested: AtomicU8,
}

impl Entry {
    /// An entry that counts as `len` bytes, those of the entry itself included.
    pub fn new(key: Key, value: Value, len: u64) -> Self {
        Self {
            key,
            value,
            len,
            requested: AtomicU8::new(REQUESTED),
        }
    }

    /// Bytes that the entry counts as.
    pub fn len(&self) -> u64 {
        self.len
    }

    fn mark_requested(&self) {
        // Only the first of many requests writes, so that threads do not contend for the line.
        if self.requested.load(Ordering::Relaxed) != REQUESTED {
            self.requested.store(REQUESTED, Ordering::Relaxed);
        }
    }
}

/// One part of the entries, behind one lock.
#[derive(Default)]
pub struct Shard {
    /// Index of the slot of each key.
    slot_by_key: HashMap<Key, usize, BuildHasherDefault<MixedHasher>>,
    slots: Vec<Option<Entry>>,
    free: Vec<usize>,
    hand: usize,
}

impl Shard {
    fn entry(&self, key: &Key) -> Option<&Entry> {
        let slot = *self.slot_by_key.get(key)?;
        self.slots.get(slot)?.as_ref()
    }

    /// Inserts an entry and returns the one that had the same key.
    fn insert(&mut self, entry: Entry) -> Option<Entry> {
        let old = self.remove(&entry.key);
        let key = entry.key;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.slots.push(None);
                self.slots.len().saturating_sub(1)
            }
        };
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = Some(entry);
            self.slot_by_key.insert(key, index);
        }
        old
    }

    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let index = self.slot_by_key.remove(key)?;
        let entry = self.slots.get_mut(index)?.take();
        self.free.push(index);
        entry
    }

    /// Removes the first entry that was not requested since the hand passed it; the hand goes round
    /// the shard once at most.
    fn evict(&mut self) -> Option<Entry> {
        if self.slot_by_key.is_empty() {
            return None;
        }
        for _ in 0..self.slots.len() {
            let index = self.hand;
            let next = index.saturating_add(1);
            self.hand = if next < self.slots.len() { next } else { 0 };
            let entry = self.slots.get(index).and_then(Option::as_ref);
            let Some(entry) = entry else { continue };
            // The write lock is held, so that no request comes between.
            if entry.requested.fetch_and(!SINCE_HAND, Ordering::Relaxed) & SINCE_HAND == 0 {
                let key = entry.key;
                return self.remove(&key);
            }
        }
        None
    }

    /// Removes and returns the entries that `is_selected` chooses.
    pub fn remove_selected(&mut self, is_selected: &dyn Fn(&Key) -> bool) -> Vec<Entry> {
        let keys: Vec<Key> = self
            .slot_by_key
            .keys()
            .filter(|key| is_selected(key))
            .copied()
            .collect();
        let removed = keys.iter().filter_map(|key| self.remove(key)).collect();
        if self.slot_by_key.is_empty() {
            // This frees the tables too.
            *self = Self::default();
        }
        removed
    }

    /// Removes and returns those of the chosen entries that were not requested since the last call.
    pub fn remove_idle(&mut self, is_selected: &dyn Fn(&Key) -> bool) -> Vec<Entry> {
        let entries = self.slots.iter().flatten();
        let entries = entries.filter(|entry| is_selected(&entry.key));
        let is_idle = |entry: &&Entry| {
            let before = entry
                .requested
                .fetch_and(!SINCE_IDLE_SWEEP, Ordering::Relaxed);
            before & SINCE_IDLE_SWEEP == 0
        };
        let keys: Vec<Key> = entries.filter(is_idle).map(|e| e.key).collect();
        if keys.len() == self.slot_by_key.len() {
            self.remove_selected(&|_| true)
        } else {
            keys.iter().filter_map(|key| self.remove(key)).collect()
        }
    }
}

/// Entries that compete for one part of the budget.
pub struct Ring {
    shards: [RwLock<Shard>; CACHE_SHARD_COUNT],
    /// Bytes of all entries, those included that are removed but not yet freed.
    used: AtomicU64,
    /// Number of the shard that the hand visits next.
    next: AtomicUsize,
}

impl Ring {
    /// An empty ring.
    pub fn new() -> Self {
        Self {
            shards: std::array::from_fn(|_| RwLock::default()),
            used: AtomicU64::new(0),
            next: AtomicUsize::new(0),
        }
    }

    /// Bytes of all entries.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Adds the bytes of a new entry to the sum.
    pub fn count_in(&self, len: u64) {
        self.used.fetch_add(len, Ordering::Relaxed);
    }

    /// Subtracts the bytes of a freed entry from the sum.
    pub fn count_out(&self, len: u64) {
        self.used.fetch_sub(len, Ordering::Relaxed);
    }

    fn shard(&self, key: &Key) -> &RwLock<Shard> {
        let [first, ..] = &self.shards;
        let index = (key.mixed() >> 40) as usize % CACHE_SHARD_COUNT;
        self.shards.get(index).unwrap_or(first)
    }

    /// The value of `key`; the entry counts as requested.
    pub fn get(&self, key: &Key) -> Option<Value> {
        let shard = self.shard(key).read();
        let entry = shard.entry(key)?;
        entry.mark_requested();
        Some(entry.value.clone())
    }

    /// The value of `key`, without marking the entry as requested.
    pub fn peek(&self, key: &Key) -> Option<Value> {
        let shard = self.shard(key).read();
        shard.entry(key).map(|entry| entry.value.clone())
    }

    /// Whether there is an entry for `key`.
    pub fn contains(&self, key: &Key) -> bool {
        self.shard(key).read().slot_by_key.contains_key(key)
    }

    /// Inserts an entry and returns the one that had the same key.
    pub fn insert(&self, entry: Entry) -> Option<Entry> {
        self.shard(&entry.key).write().insert(entry)
    }

    /// Lets the entry of `key` count as `len` bytes if it still holds `value` and counted as more.
    /// Returns the difference.
    pub fn shrink(&self, key: &Key, value: &Value, len: u64) -> u64 {
        let mut shard = self.shard(key).write();
        let index = shard.slot_by_key.get(key).copied();
        let entry = index.and_then(|index| shard.slots.get_mut(index)?.as_mut());
        let Some(entry) = entry.filter(|e| Arc::ptr_eq(&e.value, value)) else {
            return 0;
        };
        let fewer = entry.len.saturating_sub(len);
        entry.len = entry.len.saturating_sub(fewer);
        fewer
    }

    /// Removes and returns the entry of `key`.
    pub fn remove(&self, key: &Key) -> Option<Entry> {
        self.shard(key).write().remove(key)
    }

    /// Removes and returns the entry that the hand chooses. Returns `None` if there is none, or if
    /// entries are requested faster than the hand goes round.
    pub fn evict(&self) -> Option<Entry> {
        for _ in 0..CACHE_SHARD_COUNT.saturating_mul(3) {
            let index = self.next.fetch_add(1, Ordering::Relaxed) % CACHE_SHARD_COUNT;
            let shard = self.shards.get(index)?;
            let entry = shard.write().evict();
            if entry.is_some() {
                return entry;
            }
        }
        None
    }

    /// Removes entries from each shard in turn: calls `remove` under the lock of the shard and
    /// hands its result to `free` outside the lock.
    pub fn sweep(
        &self,
        remove: &dyn Fn(&mut Shard) -> Vec<Entry>,
        free: &mut dyn FnMut(Vec<Entry>),
    ) {
        for shard in &self.shards {
            let removed = remove(&mut shard.write());
            free(removed);
        }
    }
}
