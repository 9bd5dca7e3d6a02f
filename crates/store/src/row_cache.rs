//! Values in memory: shards, a budget in bytes, and one read for all that miss the same value at
//! once.

use hashbrown::DefaultHashBuilder;
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult};
use quick_cache::{OptionsBuilder, Weighter};
use std::hash::Hash;
use weald_format::Result;

/// Memory that an entry takes beside its value, bytes, roughly.
const ENTRY_LEN: u64 = 64;
/// Bytes of a shard; a longer value is not kept. A cache has shards for a few threads.
const SHARD_LEN_MIN: u64 = 2 << 20;
/// Most shards.
const SHARD_COUNT_MAX: u64 = 32;
/// Share of a shard for values that are used often; the rest is for those that were used last. Many
/// clients that read files from begin to end use each value a few times in a row.
const HOT_SHARE: f64 = 0.75;

/// Has the memory of a value, in bytes.
#[derive(Clone, Copy)]
struct MemoryLen<V>(fn(&V) -> usize);

impl<K, V> Weighter<K, V> for MemoryLen<V> {
    fn weight(&self, _: &K, value: &V) -> u64 {
        (self.0)(value) as u64 + ENTRY_LEN
    }
}

/// The values that were used last and those that are used often.
///
/// Several threads use it, and no lock is held while a value is read.
pub struct RowCache<K, V>(Cache<K, V, MemoryLen<V>, DefaultHashBuilder>);

/// Memory that a cache and its values take, bytes.
#[derive(Debug, Clone, Copy)]
pub struct CacheSize {
    /// All values.
    pub len_max: u64,
    /// A value, usually.
    pub usual_len: u64,
    /// A value at most. Longer ones may not be kept.
    pub longest_len: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> RowCache<K, V> {
    /// A cache of this size for values whose memory `memory_len` tells.
    pub fn new(size: CacheSize, memory_len: fn(&V) -> usize) -> Self {
        let len_max = size.len_max;
        // A shard keeps no value that is longer than `HOT_SHARE` of it.
        let shard_len = SHARD_LEN_MIN.max(size.longest_len + size.longest_len / 2);
        let shard_count = (len_max / shard_len).clamp(1, SHARD_COUNT_MAX);
        // Shards become as many as a power of two that is not less.
        let shard_count = (shard_count + 1).next_power_of_two() / 2;
        let options = OptionsBuilder::new()
            .weight_capacity(len_max)
            .estimated_items_capacity((len_max / size.usual_len) as usize)
            .shards(shard_count as usize)
            .hot_allocation(HOT_SHARE)
            .build();
        let options = options.expect("all that must be set is set");
        let weighter = MemoryLen(memory_len);
        let (hasher, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        Self(Cache::with_options(options, weighter, hasher, lifecycle))
    }

    /// The value of `key`. The first that misses it reads it, and others wait for that.
    ///
    /// # Errors
    /// Those of `read`, which are not kept.
    pub fn get_or_read(&self, key: &K, read: impl FnOnce() -> Result<V>) -> Result<V> {
        match self.0.get_value_or_guard(key, None) {
            GuardResult::Value(value) => Ok(value),
            GuardResult::Guard(guard) => {
                let value = read()?;
                // A value that was replaced or forgotten while it was read is not kept.
                let _ = guard.insert(value.clone());
                Ok(value)
            }
            GuardResult::Timeout => read(),
        }
    }

    /// The value of `key`, if it is there.
    pub fn get(&self, key: &K) -> Option<V> {
        self.0.get(key)
    }

    /// Sets the value of `key`. Nobody receives or keeps an older one from here on.
    pub fn put(&self, key: K, value: V) {
        self.0.insert(key, value);
    }

    /// Forgets the value of `key`, also one that is being read.
    pub fn forget(&self, key: &K) {
        self.0.remove(key);
    }

    /// Memory of all values, bytes, roughly.
    pub fn memory_len(&self) -> u64 {
        self.0.weight()
    }
}

impl<K, V> std::fmt::Debug for RowCache<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RowCache").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;
    use weald_format::Error;

    fn cache(len_max: u64) -> RowCache<u64, Vec<u8>> {
        let size = CacheSize {
            len_max,
            usual_len: 1000,
            longest_len: 1000,
        };
        RowCache::new(size, Vec::len)
    }

    /// Would catch: a read for each thread, and an error that is taken for a value.
    #[test]
    fn equal_misses_have_one_read() {
        let (cache, count) = (cache(1 << 20), AtomicU32::new(0));
        let read = || {
            count.fetch_add(1, Ordering::Relaxed);
            thread::sleep(std::time::Duration::from_millis(50));
            Ok(vec![7])
        };
        let barrier = Barrier::new(8);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    assert_eq!(cache.get_or_read(&1, read).expect("a value"), [7]);
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
        let failed = cache.get_or_read(&2, || Err(Error::invalid("no")));
        assert!(failed.is_err());
        assert_eq!(cache.get_or_read(&2, || Ok(vec![2])).expect("a value"), [2]);
    }

    /// Would catch: an old row that a reader leaves in the cache after a commit changed it.
    #[test]
    fn a_value_that_changes_while_it_is_read_is_not_kept() {
        let cache = cache(1 << 20);
        let old = cache.get_or_read(&1, || {
            cache.forget(&1);
            Ok(vec![1])
        });
        assert_eq!(old.expect("a value"), [1]);
        assert_eq!(cache.get(&1), None);
        let old = cache.get_or_read(&1, || {
            cache.put(1, vec![2]);
            Ok(vec![1])
        });
        assert_eq!(old.expect("a value"), [1]);
        assert_eq!(cache.get(&1), Some(vec![2]));
    }

    /// Would catch: a cache that grows without limit, that is emptied as a whole when it is full,
    /// or that keeps nothing.
    #[test]
    fn a_full_cache_stays_full_and_within_its_budget() {
        for len_max in [4 << 10, 1 << 20, 40 << 20] {
            let cache = cache(len_max);
            let value_len = 1000;
            for key in 0..2 * len_max / value_len {
                cache.put(key, vec![0; value_len as usize]);
                assert!(cache.memory_len() <= len_max);
            }
            assert!(
                cache.memory_len() > len_max / 2,
                "{} of {len_max}",
                cache.memory_len()
            );
        }
    }

    /// Would catch: values of which most are dropped before their second use, because others come
    /// in between.
    #[test]
    fn clients_that_take_turns_read_each_value_once() {
        const CLIENT_COUNT: u64 = 48;
        let size = CacheSize {
            len_max: 32 << 20,
            usual_len: 128 << 10,
            longest_len: 16 << 20,
        };
        let cache: RowCache<u64, Vec<u8>> = RowCache::new(size, Vec::len);
        let mut read_count = 0;
        for block in 0..20 {
            for _ in 0..8 {
                for client in 0..CLIENT_COUNT {
                    let key = client * 1000 + block;
                    let value = cache.get_or_read(&key, || {
                        read_count += 1;
                        Ok(vec![0; 128 << 10])
                    });
                    assert!(value.is_ok());
                }
            }
        }
        println!("{read_count} reads of {} values", 20 * CLIENT_COUNT);
        assert!(read_count <= 20 * CLIENT_COUNT);
    }
}
