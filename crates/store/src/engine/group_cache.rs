//! Decoded groups that were read or written last, and those that are used often.
//!
//! An entry is valid for exactly the stored bytes that it was decoded from, which every lookup
//! compares. So no commit has to evict entries, and no reader of an older state can leave an entry
//! that a later reader takes for the newer state.

use super::Table;
use crate::row_cache::{CacheSize, RowCache};
use std::sync::Arc;
use weald_format::row_group::{GROUP_LEN_MAX, Rows};

/// Memory of all groups, bytes.
const CACHE_LEN: u64 = 4 << 20;

#[derive(Debug)]
struct Entry {
    stored: Vec<u8>,
    rows: Arc<Rows>,
}

/// A cache that several threads use.
#[derive(Debug)]
pub(super) struct GroupCache(RowCache<(Table, Vec<u8>), Arc<Entry>>);

impl Default for GroupCache {
    fn default() -> Self {
        let size = CacheSize {
            len_max: CACHE_LEN,
            usual_len: GROUP_LEN_MAX as u64,
            longest_len: 2 * GROUP_LEN_MAX as u64,
        };
        let memory_len = |entry: &Arc<Entry>| entry.stored.capacity() + entry.rows.byte_len();
        Self(RowCache::new(size, memory_len))
    }
}

impl GroupCache {
    /// The rows of the group with these stored bytes.
    pub fn get(&self, table: Table, key: &[u8], stored: &[u8]) -> Option<Arc<Rows>> {
        let entry = self.0.get(&(table, key.to_vec()))?;
        (entry.stored == stored).then(|| entry.rows.clone())
    }

    /// Keeps a group, unless it is one long row.
    pub fn put(&self, table: Table, key: &[u8], stored: &[u8], rows: &Arc<Rows>) {
        if rows.byte_len() > GROUP_LEN_MAX {
            return;
        }
        let entry = Entry {
            stored: stored.to_vec(),
            rows: rows.clone(),
        };
        self.0.put((table, key.to_vec()), Arc::new(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: rows of other bytes than those that are stored, and memory without a limit.
    #[test]
    fn a_changed_group_is_not_found_and_memory_has_a_limit() {
        let cache = GroupCache::default();
        let rows = Arc::new(Rows::default());
        cache.put(Table::Names, b"k", b"old", &rows);
        assert!(cache.get(Table::Names, b"k", b"old").is_some());
        assert!(cache.get(Table::Names, b"k", b"new").is_none());
        assert!(cache.get(Table::Inodes, b"k", b"old").is_none());
        let stored = [0; 10_000];
        for n in 0..1000usize {
            cache.put(Table::Names, &n.to_be_bytes(), &stored, &rows);
        }
        assert!(cache.0.memory_len() <= CACHE_LEN);
        let kept = (0..1000usize).filter(|n| {
            let found = cache.get(Table::Names, &n.to_be_bytes(), &stored);
            found.is_some()
        });
        assert!(kept.count() > 300);
    }
}
