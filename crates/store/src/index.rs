//! The dedup index: maps a digest to the ids of blocks that may have it. The index is advisory. A
//! hit counts only if the block's row has the whole digest; a miss costs space, never data.

use hashbrown::HashTable;
use weald_format::{BlockId, Digest};

/// Memory per entry in bytes, including the unused slots of the table.
const INDEX_ENTRY_LEN: usize = 28;
/// When the table is full, one old fingerprint in 2^`SAMPLE_SHIFT` is kept.
const SAMPLE_SHIFT: u32 = 3;
/// Number of rows to load before and after a hit: blocks that were written together are usually
/// requested together.
pub const NEIGHBOUR_ROW_COUNT: u64 = 64;

#[derive(Debug, Clone, Copy)]
struct Entry {
    fingerprint: u32,
    id: BlockId,
}

/// Maps fingerprints of digests to block ids.
#[derive(Debug)]
pub struct DedupIndex {
    entries: HashTable<Entry>,
    count_max: usize,
    /// Whether entries were dropped because the table was full. Then a miss does not prove that the
    /// block is absent.
    is_sampled: bool,
}

fn fingerprint(digest: &Digest) -> u32 {
    let [a, b, c, d, ..] = digest.0;
    u32::from_le_bytes([a, b, c, d])
}

/// Spreads the fingerprint over the bits that the hash table uses.
fn bucket_hash(fingerprint: u32) -> u64 {
    u64::from(fingerprint).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl DedupIndex {
    /// Creates an index that takes about `memory_len` bytes at most.
    pub fn new(memory_len: u64) -> Self {
        let count_max = usize::try_from(memory_len).unwrap_or(usize::MAX) / INDEX_ENTRY_LEN;
        Self {
            entries: HashTable::new(),
            count_max: count_max.max(64),
            is_sampled: false,
        }
    }

    /// Records that block `id` has this digest.
    pub fn insert(&mut self, digest: &Digest, id: BlockId) {
        let fingerprint = fingerprint(digest);
        if self.entries.len() >= self.count_max {
            self.thin_out();
        }
        let entry = Entry { fingerprint, id };
        let hash = |entry: &Entry| bucket_hash(entry.fingerprint);
        self.entries
            .insert_unique(bucket_hash(fingerprint), entry, hash);
    }

    /// Keeps one fingerprint in eight of the older half of the entries, and all newer ones.
    fn thin_out(&mut self) {
        self.is_sampled = true;
        let mut ids: Vec<BlockId> = self.entries.iter().map(|entry| entry.id).collect();
        let middle = ids.len() / 2;
        let (_, median, _) = ids.select_nth_unstable(middle);
        let median = *median;
        let is_kept = |e: &Entry| e.fingerprint.trailing_zeros() >= SAMPLE_SHIFT;
        self.entries
            .retain(|entry| entry.id > median || is_kept(entry));
        // The samples alone still fill the table: drop the oldest half of them.
        if self.entries.len() > self.count_max / 4 * 3 {
            self.entries.retain(|entry| entry.id > median);
        }
    }

    /// Removes block `id` with this digest.
    pub fn remove(&mut self, digest: &Digest, id: BlockId) {
        let fingerprint = fingerprint(digest);
        let is_it = |entry: &Entry| entry.id == id;
        if let Ok(found) = self.entries.find_entry(bucket_hash(fingerprint), is_it) {
            found.remove();
        }
    }

    /// Ids of blocks that may have this digest.
    pub fn candidates(&self, digest: &Digest) -> impl Iterator<Item = BlockId> {
        let fingerprint = fingerprint(digest);
        let hits = self.entries.iter_hash(bucket_hash(fingerprint));
        hits.filter(move |entry| entry.fingerprint == fingerprint)
            .map(|entry| entry.id)
    }

    /// Whether the store may have blocks that the index does not list.
    pub fn is_sampled(&self) -> bool {
        self.is_sampled
    }

    /// Number of entries.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch an index that grows without limit, or that drops new entries before old ones.
    #[test]
    fn the_index_stays_within_its_memory_and_keeps_new_entries() {
        let mut index = DedupIndex::new(28 * 1000);
        let digest = |n: u64| Digest::of(&n.to_le_bytes());
        for id in 0..10_000 {
            index.insert(&digest(id), BlockId(id));
            assert!(index.count() <= 1000);
        }
        assert!(index.is_sampled());
        let knows = |id: u64| index.candidates(&digest(id)).any(|found| found.0 == id);
        assert!((9_900..10_000).all(knows));
        let old = (0..9_000).filter(|&id| knows(id)).count();
        assert!(old < 1000, "{old}");
    }
}
