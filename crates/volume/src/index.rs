//! The dedup index: from digests of raw bytes to the place in a block. It is advisory: a hit counts
//! only after the bytes were compared, and a miss costs space only.

use weald_format::{BlockId, Digest};

/// Shorter runs of bytes are not looked up in the index.
pub const DEDUP_LEN_MIN: usize = 64;

/// Slots of a bucket.
const DIGEST_WAYS: usize = 8;
/// Number of buckets of a new index.
const BUCKETS_MIN: usize = 1 << 8;
/// Bits of an offset in a block: blocks have at most 16 MiB.
const OFFSET_BITS: u32 = 24;

/// Bytes of a decoded block, from one on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace {
    /// The block.
    pub block: BlockId,
    /// First byte.
    pub offset: u32,
}

/// Fingerprint and packed place: 12 bytes. An empty slot has a place of 0, since there is no block
/// 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Slot {
    fingerprint: u32,
    place: [u32; 2],
}

impl Slot {
    fn of(fingerprint: u32, place: BlockPlace) -> Option<Self> {
        let is_small = place.offset >> OFFSET_BITS == 0 && place.block.0 >> (64 - OFFSET_BITS) == 0;
        let packed = place.block.0 << OFFSET_BITS | u64::from(place.offset);
        is_small.then_some(Self {
            fingerprint,
            place: [packed as u32, (packed >> 32) as u32],
        })
    }

    fn place(self) -> BlockPlace {
        let packed = u64::from(self.place[1]) << 32 | u64::from(self.place[0]);
        BlockPlace {
            block: BlockId(packed >> OFFSET_BITS),
            offset: packed as u32 & ((1 << OFFSET_BITS) - 1),
        }
    }

    fn is_empty(self) -> bool {
        self.place == [0, 0]
    }
}

/// Places by digest: buckets of eight slots. A full index replaces old entries.
#[derive(Debug)]
pub struct Index {
    buckets: Vec<[Slot; DIGEST_WAYS]>,
    buckets_max: usize,
    count: usize,
    /// The slot of a full bucket that is replaced next.
    turn: usize,
}

/// Fingerprint of a digest.
fn fingerprint(digest: &Digest) -> u32 {
    let [a, b, c, d, ..] = digest.0;
    u32::from_le_bytes([a, b, c, d])
}

impl Index {
    /// Takes `memory_len` bytes at most, and half of it besides while it grows.
    pub fn new(memory_len: u64) -> Self {
        let bucket_len = size_of::<[Slot; DIGEST_WAYS]>() as u64;
        let most = usize::try_from(memory_len / bucket_len).unwrap_or(usize::MAX);
        // The largest power of two that fits.
        let most = 1 << most.clamp(BUCKETS_MIN, 1 << 30).ilog2();
        Self {
            buckets: vec![Default::default(); BUCKETS_MIN],
            buckets_max: most,
            count: 0,
            turn: 0,
        }
    }

    fn bucket(&self, fingerprint: u32) -> usize {
        // Bits that no bucket chooses by still tell entries apart.
        let spread = fingerprint.wrapping_mul(0x9e37_79b9);
        (spread >> 4) as usize & (self.buckets.len() - 1)
    }

    /// Places whose bytes may have this digest.
    pub fn candidates(&self, digest: &Digest) -> impl Iterator<Item = BlockPlace> + use<'_> {
        let wanted = fingerprint(digest);
        let bucket = self.buckets.get(self.bucket(wanted));
        let hits = bucket.into_iter().flatten();
        hits.filter(move |slot| slot.fingerprint == wanted && !slot.is_empty())
            .map(|slot| slot.place())
    }

    /// Notes where bytes are.
    pub fn insert(&mut self, digest: &Digest, place: BlockPlace) {
        if self.count > self.buckets.len() * DIGEST_WAYS / 8 * 5
            && self.buckets.len() < self.buckets_max
        {
            self.grow();
        }
        if let Some(slot) = Slot::of(fingerprint(digest), place) {
            self.put(slot);
        }
    }

    fn put(&mut self, slot: Slot) {
        let at = self.bucket(slot.fingerprint);
        self.turn = (self.turn + 1) % DIGEST_WAYS;
        let turn = self.turn;
        let Some(bucket) = self.buckets.get_mut(at) else {
            return;
        };
        let chosen = match bucket
            .iter_mut()
            .position(|old| *old == slot || old.is_empty())
        {
            Some(at) => &mut bucket[at],
            None => &mut bucket[turn],
        };
        self.count += usize::from(chosen.is_empty());
        *chosen = slot;
    }

    fn grow(&mut self) {
        let new = vec![Default::default(); self.buckets.len() * 2];
        let old = std::mem::replace(&mut self.buckets, new);
        self.count = 0;
        for slot in old.into_iter().flatten().filter(|slot| !slot.is_empty()) {
            self.put(slot);
        }
    }

    /// Bytes of memory.
    #[cfg(test)]
    pub fn memory_len(&self) -> u64 {
        size_of_val(self.buckets.as_slice()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(number: u64) -> Digest {
        Digest::of(&number.to_le_bytes())
    }

    fn place(number: u64) -> BlockPlace {
        BlockPlace {
            block: BlockId(number / 7 + 1),
            offset: (number % 7) as u32 * 1000,
        }
    }

    // Would catch: an index without a limit, an entry of more than 16 bytes, and new entries that
    // are lost before old ones.
    #[test]
    fn it_stays_within_its_memory_and_keeps_new_entries() {
        let mut index = Index::new(1 << 20);
        let knows = |index: &Index, n: u64| index.candidates(&digest(n)).any(|p| p == place(n));
        let mut fitting = 0;
        for number in 0..400_000 {
            index.insert(&digest(number), place(number));
            assert!(index.memory_len() <= 1 << 20);
            if number == 60_000 {
                fitting = (0..number).filter(|n| knows(&index, *n)).count();
            }
        }
        // 60,000 entries of 16 bytes fit into 1 MiB.
        assert!(fitting > 50_000, "{fitting}");
        let new = (390_000..400_000).filter(|n| knows(&index, *n)).count();
        assert!(new > 8_500, "{new}");
        let old = (0..100_000).filter(|n| knows(&index, *n)).count();
        assert!(old < 20_000, "{old}");
    }

    // Would catch: a place that is cut off.
    #[test]
    fn places_come_back_whole_or_not_at_all() {
        let mut index = Index::new(0);
        let largest = BlockPlace {
            block: BlockId((1 << 40) - 1),
            offset: (1 << 24) - 1,
        };
        index.insert(&digest(1), largest);
        assert_eq!(index.candidates(&digest(1)).next(), Some(largest));
        let larger = BlockPlace {
            block: BlockId(1 << 40),
            offset: 0,
        };
        index.insert(&digest(2), larger);
        assert_eq!(index.candidates(&digest(2)).next(), None);
    }
}
