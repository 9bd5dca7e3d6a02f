//! The dedup index: from digests of raw bytes to the place in a block. It is advisory: a miss costs
//! space only.

use hashbrown::HashMap;
use weald_format::Digest;

/// Memory of an entry, unused slots of the table included, bytes.
const ENTRY_LEN: u64 = 80;

/// Bytes of a decoded block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The block.
    pub block: u64,
    /// First byte.
    pub offset: u32,
}

/// Places by digest. When the new half is full, the old half is dropped.
#[derive(Debug)]
pub struct Index {
    new: HashMap<Digest, Place>,
    old: HashMap<Digest, Place>,
    count_max: usize,
}

impl Index {
    /// Takes about `memory_len` bytes at most.
    pub fn new(memory_len: u64) -> Self {
        let count = (memory_len / ENTRY_LEN / 2).max(1024);
        Self {
            new: HashMap::new(),
            old: HashMap::new(),
            count_max: usize::try_from(count).unwrap_or(usize::MAX),
        }
    }

    /// The place of the bytes with this digest.
    pub fn get(&self, digest: &Digest) -> Option<Place> {
        self.new
            .get(digest)
            .or_else(|| self.old.get(digest))
            .copied()
    }

    /// Notes where bytes are.
    pub fn insert(&mut self, digest: Digest, place: Place) {
        if self.new.len() >= self.count_max {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(digest, place);
    }
}
