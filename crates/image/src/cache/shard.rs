//! Entries in shards, and which of them goes: the clock of Corbató, once around all shards in turn.
//!
//! # Source
//! F. J. Corbató, "A Paging Experiment with the Multics System" (1968): an entry that was asked for
//! since the hand passed it gets a second chance.

use super::{Key, Room, Value};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Shards of a ring: many more than threads, so that they seldom meet.
const SHARD_COUNT: usize = 64;

/// Asked for since the hand passed.
const BY_HAND: u8 = 1;
/// Asked for since the cache rested.
const BY_REST: u8 = 2;
const ASKED: u8 = BY_HAND | BY_REST;

impl Key {
    /// All its bits, spread: numbers follow each other.
    pub fn mixed(&self) -> u64 {
        let room = match self.room {
            Room::Blocks => 0u64,
            Room::Pages => 1,
            Room::Children => 2,
            Room::Views => 3,
        };
        let kind = u64::from(self.kind) << 2 | room;
        let first = spread(self.tag ^ kind.rotate_left(32));
        spread(first ^ self.no)
    }
}

/// The finalizer of SplitMix64, a bijection that spreads every bit (Steele, Lea and Flood 2014).
pub(crate) const fn spread(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.mixed());
    }
}

/// Hands on a key that is mixed already.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = spread(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A value that is kept.
pub struct Entry {
    key: Key,
    value: Value,
    len: u64,
    asked: AtomicU8,
}

impl Entry {
    /// An entry of `len` bytes, its own included.
    pub fn new(key: Key, value: Value, len: u64) -> Self {
        Self {
            key,
            value,
            len,
            asked: AtomicU8::new(ASKED),
        }
    }

    /// Bytes that it was counted with.
    pub fn len(&self) -> u64 {
        self.len
    }

    fn ask(&self) {
        // Only the first of many writes, so that threads do not take the line from each other.
        if self.asked.load(Ordering::Relaxed) != ASKED {
            self.asked.store(ASKED, Ordering::Relaxed);
        }
    }
}

/// Some of the entries.
#[derive(Default)]
pub struct Shard {
    places: HashMap<Key, usize, BuildHasherDefault<Mixed>>,
    slots: Vec<Option<Entry>>,
    free: Vec<usize>,
    hand: usize,
}

impl Shard {
    fn entry(&self, key: &Key) -> Option<&Entry> {
        let place = *self.places.get(key)?;
        self.slots.get(place)?.as_ref()
    }

    /// Puts an entry in; that of the same key goes.
    fn insert(&mut self, entry: Entry) -> Option<Entry> {
        let old = self.remove(&entry.key);
        let key = entry.key;
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.slots.push(None);
                self.slots.len().saturating_sub(1)
            }
        };
        if let Some(slot) = self.slots.get_mut(place) {
            *slot = Some(entry);
            self.places.insert(key, place);
        }
        old
    }

    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let place = self.places.remove(key)?;
        let entry = self.slots.get_mut(place)?.take();
        self.free.push(place);
        entry
    }

    /// Takes the first entry out that nobody asked for since the hand passed it; one round at most.
    fn evict(&mut self) -> Option<Entry> {
        if self.places.is_empty() {
            return None;
        }
        for _ in 0..self.slots.len() {
            let place = self.hand;
            let next = place.saturating_add(1);
            self.hand = if next < self.slots.len() { next } else { 0 };
            let entry = self.slots.get(place).and_then(Option::as_ref);
            let Some(entry) = entry else { continue };
            // The shard is ours: nobody asks meanwhile.
            if entry.asked.fetch_and(!BY_HAND, Ordering::Relaxed) & BY_HAND == 0 {
                let key = entry.key;
                return self.remove(&key);
            }
        }
        None
    }

    /// Takes the entries out that `is_wanted` chooses.
    pub fn take(&mut self, is_wanted: &dyn Fn(&Key) -> bool) -> Vec<Entry> {
        let keys: Vec<Key> = self
            .places
            .keys()
            .filter(|key| is_wanted(key))
            .copied()
            .collect();
        let taken = keys.iter().filter_map(|key| self.remove(key)).collect();
        if self.places.is_empty() {
            // Their tables go too.
            *self = Self::default();
        }
        taken
    }

    /// The same among those that nobody asked for since the last call.
    pub fn take_unasked(&mut self, is_wanted: &dyn Fn(&Key) -> bool) -> Vec<Entry> {
        let entries = self.slots.iter().flatten();
        let entries = entries.filter(|entry| is_wanted(&entry.key));
        let is_unasked = |e: &&Entry| e.asked.fetch_and(!BY_REST, Ordering::Relaxed) & BY_REST == 0;
        let keys: Vec<Key> = entries.filter(is_unasked).map(|e| e.key).collect();
        match keys.len() == self.places.len() {
            true => self.take(&|_| true),
            false => keys.iter().filter_map(|key| self.remove(key)).collect(),
        }
    }
}

/// Entries that compete for one part of the budget.
pub struct Ring {
    shards: [RwLock<Shard>; SHARD_COUNT],
    /// Bytes of all entries, and of those on their way out.
    used: AtomicU64,
    /// The shard that the hand comes to next.
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

    /// Bytes of its entries.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts bytes that come in.
    pub fn count_in(&self, len: u64) {
        self.used.fetch_add(len, Ordering::Relaxed);
    }

    /// Counts bytes that are gone.
    pub fn count_out(&self, len: u64) {
        self.used.fetch_sub(len, Ordering::Relaxed);
    }

    fn shard(&self, key: &Key) -> &RwLock<Shard> {
        let [first, ..] = &self.shards;
        let place = (key.mixed() >> 40) as usize % SHARD_COUNT;
        self.shards.get(place).unwrap_or(first)
    }

    /// The value of `key`, which is asked for by this.
    pub fn get(&self, key: &Key) -> Option<Value> {
        let shard = self.shard(key).read();
        let entry = shard.entry(key)?;
        entry.ask();
        Some(entry.value.clone())
    }

    /// The value of `key`.
    pub fn peek(&self, key: &Key) -> Option<Value> {
        let shard = self.shard(key).read();
        shard.entry(key).map(|entry| entry.value.clone())
    }

    /// Whether `key` is there.
    pub fn contains(&self, key: &Key) -> bool {
        self.shard(key).read().places.contains_key(key)
    }

    /// Puts an entry in; that of the same key is handed out.
    pub fn insert(&self, entry: Entry) -> Option<Entry> {
        self.shard(&entry.key).write().insert(entry)
    }

    /// Counts the entry of `key` with `len` bytes from now on, if it is still `value` and was
    /// counted with more; how many fewer that is.
    pub fn shrink(&self, key: &Key, value: &Value, len: u64) -> u64 {
        let mut shard = self.shard(key).write();
        let place = shard.places.get(key).copied();
        let entry = place.and_then(|place| shard.slots.get_mut(place)?.as_mut());
        let Some(entry) = entry.filter(|e| Arc::ptr_eq(&e.value, value)) else {
            return 0;
        };
        let fewer = entry.len.saturating_sub(len);
        entry.len = entry.len.saturating_sub(fewer);
        fewer
    }

    /// Takes an entry out.
    pub fn remove(&self, key: &Key) -> Option<Entry> {
        self.shard(key).write().remove(key)
    }

    /// Takes out the entry that goes next; `None` where there is none, or where all are asked for
    /// faster than the hand goes round.
    pub fn evict(&self) -> Option<Entry> {
        for _ in 0..SHARD_COUNT.saturating_mul(3) {
            let place = self.next.fetch_add(1, Ordering::Relaxed) % SHARD_COUNT;
            let shard = self.shards.get(place)?;
            let entry = shard.write().evict();
            if entry.is_some() {
                return entry;
            }
        }
        None
    }

    /// Takes entries out of each shard in turn, under its lock, and hands them to `let_go` outside
    /// of it.
    pub fn sweep(
        &self,
        take: &dyn Fn(&mut Shard) -> Vec<Entry>,
        let_go: &mut dyn FnMut(Vec<Entry>),
    ) {
        for shard in &self.shards {
            let taken = take(&mut shard.write());
            let_go(taken);
        }
    }
}
