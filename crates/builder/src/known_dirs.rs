//! Directories that were written already, by what tells them from all others.

use hashbrown::HashMap;

/// Memory of a place in a table, bytes: key, value, one of control, and that tables double before
/// they are full and hold both meanwhile.
const PLACE_LEN: u64 = 57 * 5 / 4;

/// What is known of directories by key. With a limit, those that nobody asked for the longest are
/// forgotten, about half of them at once: what comes again then is written again.
pub struct KnownDirs<V> {
    new: HashMap<[u8; 32], V>,
    old: HashMap<[u8; 32], V>,
    half_max: usize,
}

impl<V: Copy> KnownDirs<V> {
    /// Remembers everything.
    pub fn new() -> Self {
        Self {
            new: HashMap::new(),
            old: HashMap::new(),
            half_max: usize::MAX,
        }
    }

    /// From now on remembers what fits in `memory_len` bytes.
    pub fn limit(&mut self, memory_len: u64) {
        let places = (memory_len / 2 / PLACE_LEN).max(16);
        // Tables have a power of two of places, and fill seven eighths of them.
        self.half_max = (1_usize << places.ilog2()) / 8 * 7;
    }

    /// What is known of `key`.
    pub fn get(&mut self, key: &[u8; 32]) -> Option<V> {
        if let Some(value) = self.new.get(key) {
            return Some(*value);
        }
        let value = self.old.remove(key)?;
        self.insert(*key, value);
        Some(value)
    }

    /// Remembers `value`.
    pub fn insert(&mut self, key: [u8; 32], value: V) {
        if self.new.len() >= self.half_max {
            std::mem::swap(&mut self.new, &mut self.old);
            self.new.clear();
        }
        self.new.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(no: u64) -> [u8; 32] {
        *blake3::hash(&no.to_le_bytes()).as_bytes()
    }

    /// Would catch: a limit that is none, one that forgets what is asked for all the time, values
    /// that get mixed up.
    #[test]
    fn what_nobody_asks_for_is_forgotten() {
        let mut known = KnownDirs::new();
        known.limit(1 << 14);
        for no in 0..10_000 {
            known.insert(key(no), no);
            assert_eq!(
                known.get(&key(3)).filter(|_| no >= 3),
                (no >= 3).then_some(3)
            );
            assert!((known.new.len() + known.old.len()) as u64 * PLACE_LEN <= 1 << 14);
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
