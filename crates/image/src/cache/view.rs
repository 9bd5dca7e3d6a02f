//! A typed view of the cache: the items of one kind and one image.

use super::counts::HitCounts;
use super::flight::Entered;
use super::key::{CacheKey, CachedKind, CachedValue, Key, Value};
use super::shared::Tag;
use std::marker::PhantomData;
use std::sync::Arc;
use weald_format::{Error, Result};

/// The values of one type and one image in a cache.
pub struct CacheView<K, V> {
    pub(super) tag: Arc<Tag>,
    pub(super) kind: CachedKind,
    /// The owner of the items that images share.
    shared: Option<Arc<Tag>>,
    counts: Option<Arc<HitCounts>>,
    types: PhantomData<fn(K) -> V>,
}

impl<K: CacheKey, V: CachedValue> CacheView<K, V> {
    /// A view of the items of one `kind` of the image that owns `tag`. It counts hits and misses in
    /// `counts`.
    pub fn new(tag: &Arc<Tag>, kind: CachedKind, counts: Option<Arc<HitCounts>>) -> Self {
        Self {
            tag: tag.clone(),
            kind,
            shared: None,
            counts,
            types: PhantomData,
        }
    }

    /// The same view with an owner for the items that images share.
    pub fn sharing(self, shared: Option<Arc<Tag>>) -> Self {
        Self { shared, ..self }
    }

    fn key(&self, key: K) -> Key {
        let (sub_kind, no) = key.kind_and_no();
        let (tag, shared_bits) = match (key.shared_bits(), &self.shared) {
            (Some(bits), Some(shared)) => (shared.no(), bits),
            _ => (self.tag.no(), [0; 2]),
        };
        Key {
            tag,
            kind: self.kind,
            sub_kind,
            no,
            shared_bits,
        }
    }

    fn count(&self, is_hit: bool) {
        if let Some(counts) = &self.counts {
            counts.count(is_hit);
        }
    }

    /// The value of `key`; `load` makes it if it is not in the cache. Other requests for the same
    /// key wait for that load. If it fails, the next of them tries itself.
    ///
    /// # Errors
    /// Those of `load`; `Corrupt` if the item needs itself to be loaded.
    pub fn get_or_load(&self, key: &K, load: impl FnOnce() -> Result<V>) -> Result<Arc<V>> {
        let (cache, key) = (&**self.tag.cache(), self.key(*key));
        if let Some(value) = typed(cache.get(&key)) {
            self.count(true);
            return Ok(value);
        }
        loop {
            match cache.flights().enter(&key, || cache.get(&key)) {
                Entered::Loaded(value) => {
                    if let Some(value) = typed(Some(value)) {
                        self.count(true);
                        return Ok(value);
                    }
                }
                Entered::Failed => {}
                Entered::Own(flight) => {
                    self.count(false);
                    let value = Arc::new(load()?);
                    cache.insert(key, value.clone(), value.memory_len() as u64);
                    flight.publish_to_waiters(value.clone());
                    return Ok(value);
                }
                Entered::InItself => {
                    let what = "the record needs itself to be decoded";
                    return Err(Error::corrupt("record", 0, "F-3.12", what));
                }
            }
        }
    }

    /// The value of `key`, if it is in the cache.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        let value = typed(self.tag.cache().get(&self.key(*key)));
        if value.is_some() {
            self.count(true);
        }
        value
    }

    /// Updates the size of the entry of `key`, which holds `value`, to the value's memory now: less
    /// than before.
    pub fn shrink(&self, key: &K, value: &Arc<V>) {
        let len = value.memory_len() as u64;
        let value: Value = value.clone();
        self.tag.cache().shrink(&self.key(*key), &value, len);
    }

    /// Removes the value of `key`.
    pub fn remove(&self, key: &K) {
        self.tag.cache().remove(&self.key(*key));
    }

    /// The value of `key`, if it is in the cache; it does not count as requested.
    pub fn peek(&self, key: &K) -> Option<Arc<V>> {
        let ring = self.tag.cache().ring(self.kind.budget_part());
        typed(ring.peek(&self.key(*key)))
    }

    /// Whether `key` is in the cache; it does not count as requested.
    pub fn contains(&self, key: &K) -> bool {
        let ring = self.tag.cache().ring(self.kind.budget_part());
        ring.contains(&self.key(*key))
    }

    /// Removes all items of this view, also for other open images with the same digest, and those
    /// that are shared.
    pub fn clear(&self) {
        let shared = self.shared.as_ref().map(|tag| tag.no());
        let is_tag = |tag| tag == self.tag.no() || Some(tag) == shared;
        let is_own = |key: &Key| is_tag(key.tag) && key.kind == self.kind;
        self.tag.cache().remove_selected(&is_own);
    }
}

fn typed<V: CachedValue>(value: Option<Value>) -> Option<Arc<V>> {
    value?.downcast().ok()
}
