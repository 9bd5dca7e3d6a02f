//! Maps a directory's key to its template, so that equal directories are stored once.

use hashbrown::HashMap;

/// Memory per slot of a table, bytes: key, value and a control byte, and a quarter more because a
/// growing table exists twice for a while.
const DIR_SLOT_LEN: u64 = 57 * 5 / 4;

/// Directories written so far, by key. If memory is limited, about half of them are evicted at
/// once, the least recently used first; an evicted directory that comes again is written again.
pub struct KnownDirs<V> {
    recent: HashMap<[u8; 32], V>,
    older: HashMap<[u8; 32], V>,
    half_max: usize,
}

impl<V: Copy> KnownDirs<V> {
    /// Creates a map without a limit.
    pub fn new() -> Self {
        Self {
            recent: HashMap::new(),
            older: HashMap::new(),
            half_max: usize::MAX,
        }
    }

    /// Limits the memory of the map to `memory_len` bytes from now on.
    pub fn limit(&mut self, memory_len: u64) {
        let slots = (memory_len / 2 / DIR_SLOT_LEN).max(16);
        // Tables have 2^n slots and fill seven eighths of them.
        self.half_max = (1_usize << slots.ilog2()) / 8 * 7;
    }

    /// Returns the value of `key`.
    pub fn get(&mut self, key: &[u8; 32]) -> Option<V> {
        if let Some(value) = self.recent.get(key) {
            return Some(*value);
        }
        let value = self.older.remove(key)?;
        self.insert(*key, value);
        Some(value)
    }

    /// Inserts `value`.
    pub fn insert(&mut self, key: [u8; 32], value: V) {
        if self.recent.len() >= self.half_max {
            std::mem::swap(&mut self.recent, &mut self.older);
            self.recent.clear();
        }
        self.recent.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(no: u64) -> [u8; 32] {
        *blake3::hash(&no.to_le_bytes()).as_bytes()
    }

    /// Would catch: a limit without effect, eviction of a directory that is used all the time,
    /// values that are mixed up.
    #[test]
    fn least_recently_used_directories_are_evicted() {
        let mut known = KnownDirs::new();
        known.limit(1 << 14);
        for no in 0..10_000 {
            known.insert(key(no), no);
            assert_eq!(
                known.get(&key(3)).filter(|_| no >= 3),
                (no >= 3).then_some(3)
            );
            assert!((known.recent.len() + known.older.len()) as u64 * DIR_SLOT_LEN <= 1 << 14);
        }
        let there = (0..10_000)
            .filter(|&no| known.get(&key(no)).is_some())
            .count();
        assert!((50..200).contains(&there), "{there} of 10000 remembered");
        assert_eq!(known.get(&key(9_999)), Some(9_999));

        let mut all = KnownDirs::new();
        (0..10_000).for_each(|no| all.insert(key(no), no));
        assert!((0..10_000).all(|no| all.get(&key(no)) == Some(no)));
    }
}
