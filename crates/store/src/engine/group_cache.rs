//! Decoded groups that were read or written last.
//!
//! An entry is valid for exactly the stored bytes that it was decoded from, which every lookup
//! compares. So no commit has to evict entries, and no reader of an older state can leave an entry
//! that a later reader takes for the newer state.

use super::Table;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::Arc;
use weald_format::row_group::Rows;

/// Most groups. Each takes up to 37 KiB, unless it is one long row, which is not kept.
const GROUPS_MAX: usize = 64;
/// Longest group that is kept, bytes of keys and values.
const CACHED_GROUP_LEN_MAX: usize = weald_format::row_group::GROUP_LEN_MAX;

#[derive(Debug)]
struct Entry {
    stored: Vec<u8>,
    rows: Arc<Rows>,
    used: u64,
}

#[derive(Debug, Default)]
struct Entries {
    by_key: HashMap<(Table, Vec<u8>), Entry>,
    /// Counts lookups.
    clock: u64,
}

/// A cache that several threads use.
#[derive(Debug, Default)]
pub(super) struct GroupCache(Mutex<Entries>);

impl GroupCache {
    /// The rows of the group with these stored bytes.
    pub fn get(&self, table: Table, key: &[u8], stored: &[u8]) -> Option<Arc<Rows>> {
        let mut entries = self.0.lock();
        entries.clock += 1;
        let now = entries.clock;
        let entry = entries.by_key.get_mut(&(table, key.to_vec()))?;
        if entry.stored != stored {
            return None;
        }
        entry.used = now;
        Some(entry.rows.clone())
    }

    /// Keeps a group.
    pub fn put(&self, table: Table, key: &[u8], stored: &[u8], rows: &Arc<Rows>) {
        if rows.byte_len() > CACHED_GROUP_LEN_MAX {
            return;
        }
        let mut entries = self.0.lock();
        let used = entries.clock;
        let place = (table, key.to_vec());
        if entries.by_key.len() >= GROUPS_MAX && !entries.by_key.contains_key(&place) {
            let oldest = entries.by_key.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                entries.by_key.remove(&oldest);
            }
        }
        let entry = Entry {
            stored: stored.to_vec(),
            rows: rows.clone(),
            used,
        };
        entries.by_key.insert(place, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_group_is_not_found_and_the_oldest_goes() {
        let cache = GroupCache::default();
        let rows = Arc::new(Rows::default());
        cache.put(Table::Names, b"k", b"old", &rows);
        assert!(cache.get(Table::Names, b"k", b"old").is_some());
        assert!(cache.get(Table::Names, b"k", b"new").is_none());
        assert!(cache.get(Table::Inodes, b"k", b"old").is_none());
        for n in 0..GROUPS_MAX {
            assert!(cache.get(Table::Names, b"k", b"old").is_some(), "{n}");
            cache.put(Table::Names, &n.to_be_bytes(), b"", &rows);
        }
        assert!(
            cache
                .get(Table::Names, &0usize.to_be_bytes(), b"")
                .is_none()
        );
        assert_eq!(cache.0.lock().by_key.len(), GROUPS_MAX);
    }
}
