//! Caches with a hard limit in bytes; requests for one key are merged.

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use std::hash::Hash;
use std::sync::Arc;
use weald_format::Result;

/// What a cached value costs.
pub trait Weigh {
    /// Bytes of memory behind the value.
    fn memory_len(&self) -> usize;
}

impl Weigh for Vec<u8> {
    fn memory_len(&self) -> usize {
        self.len()
    }
}

#[derive(Clone)]
struct ByLen;

impl<K, V: Weigh> Weighter<K, Arc<V>> for ByLen {
    fn weight(&self, _: &K, value: &Arc<V>) -> u64 {
        value.memory_len().saturating_add(64) as u64
    }
}

/// A sharded cache of `Arc<V>`, limited in bytes.
pub struct ByteCache<K, V: Weigh>(Cache<K, Arc<V>, ByLen>);

impl<K: Hash + Eq + Clone, V: Weigh> ByteCache<K, V> {
    /// A cache of at most `len_max` bytes whose values are about `item_len` bytes each, at most.
    pub fn new(len_max: u64, item_len: u64) -> Self {
        // A shard must hold several of the largest values, or it could never keep one.
        let shards = len_max
            .checked_div(item_len.saturating_mul(4))
            .unwrap_or(1)
            .clamp(1, 32);
        let options = OptionsBuilder::new()
            .weight_capacity(len_max)
            .estimated_items_capacity(
                len_max
                    .checked_div(item_len)
                    .unwrap_or(16)
                    .clamp(16, 1 << 16) as usize,
            )
            .shards(shards as usize)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(
                options,
                ByLen,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            Err(_) => Cache::with_weighter(16, len_max, ByLen),
        };
        Self(cache)
    }

    /// The value of `key`, made by `load` where it is not there. Other callers for the same key wait for that one load.
    pub fn get_or_load(&self, key: &K, load: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        if let Some(value) = self.0.get(key) {
            return Ok(value);
        }
        self.0.get_or_insert_with(key, || load().map(Arc::new))
    }

    /// The value of `key`, if it is there.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.0.get(key)
    }

    /// Forgets the value of `key`.
    pub fn remove(&self, key: &K) {
        self.0.remove(key);
    }

    /// Whether `key` is there, without touching its age.
    pub fn contains(&self, key: &K) -> bool {
        self.0.contains_key(key)
    }

    /// Drops everything.
    pub fn clear(&self) {
        self.0.clear();
    }
}
