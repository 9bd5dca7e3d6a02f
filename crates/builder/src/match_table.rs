//! Where content-defined samples were seen before: a fixed-size table of fingerprints, newest
//! first.

/// Entries that share a bucket.
const WAYS: usize = 4;
/// Bytes of a rolling hash's window: what a 64-bit gear hash remembers.
pub const WINDOW_LEN: usize = 64;

/// A random number for every byte value, from SplitMix64 started at 0.
///
/// # Source
/// Gear hashing: Xia et al., "Ddelta", Performance Evaluation 79 (2014).
pub static GEAR: [u64; 256] = {
    let mut table = [0u64; 256];
    let mut state = 0u64;
    let mut i = 0;
    while i < 256 {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        table[i] = z ^ (z >> 31);
        i += 1;
    }
    table
};

/// A place in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Stream number.
    pub stream: u8,
    /// Address in the stream, below 2^40.
    pub address: u64,
}

/// How often samples can be thinned out: the bits of a hash that say which stay, from the highest
/// on, lie in the tag.
const THINNINGS_MAX: u32 = 8;
/// Where the tag begins.
const TAG_SHIFT: u32 = 46;

/// Tag of 18 bits, stream of 6 bits, address of 40 bits; 0 = free. Of the tag 8 bits are those of
/// the hash that samples are thinned out by, the highest in front, 9 others, and the last is set,
/// so that a used slot never looks free.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(u64);

impl Slot {
    fn new(tag: u64, place: Place) -> Self {
        Self(tag | u64::from(place.stream & 63) << 40 | place.address & ((1 << 40) - 1))
    }

    fn place(self) -> Place {
        Place {
            stream: (self.0 >> 40 & 63) as u8,
            address: self.0 & ((1 << 40) - 1),
        }
    }
}

/// The table.
pub struct MatchTable {
    slots: Vec<Slot>,
    bucket_bits: u32,
    /// Bits of a hash below those that are zero in all samples.
    sample_shift: u32,
    /// Slots that are not free.
    used_count: usize,
    /// How often samples were thinned out.
    thinning_count: u32,
}

impl MatchTable {
    /// Slots of a table of at most `len_max` bytes.
    pub fn slot_count(len_max: u64) -> u64 {
        let buckets = (len_max / (8 * WAYS as u64)).max(2);
        (WAYS as u64) << buckets.ilog2()
    }

    /// A table of so many slots, for samples whose hashes have no bits from `sample_shift` on, at
    /// least 8.
    pub fn new(slot_count: u64, sample_shift: u32) -> Self {
        Self {
            slots: vec![Slot(0); slot_count as usize],
            bucket_bits: (slot_count / WAYS as u64).ilog2(),
            sample_shift,
            used_count: 0,
            thinning_count: 0,
        }
    }

    /// Whether more samples would soon push each other out.
    pub fn is_half_full(&self) -> bool {
        self.used_count > self.slots.len() / 2
    }

    /// Forgets the samples whose next bit is set, half of them, unless that was done
    /// `THINNINGS_MAX` times; whether it was done.
    pub fn thin_out(&mut self) -> bool {
        if self.thinning_count == THINNINGS_MAX {
            return false;
        }
        self.thinning_count += 1;
        let bit = 1 << (64 - self.thinning_count);
        for bucket in self.slots.chunks_exact_mut(WAYS) {
            let mut kept = 0;
            for at in 0..WAYS {
                let slot = bucket[at];
                if slot.0 != 0 && slot.0 & bit == 0 {
                    bucket[kept] = slot;
                    kept += 1;
                }
            }
            self.used_count -= bucket[kept..].iter().filter(|s| s.0 != 0).count();
            bucket[kept..].fill(Slot(0));
        }
        true
    }

    /// The first slot of the bucket of `hash`, and its tag.
    fn bucket(&self, hash: u64) -> (usize, u64) {
        // The gear hash's top bits decided that this is a sample: mix before using any.
        let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let bucket = (mixed >> (64 - self.bucket_bits)) as usize * WAYS;
        let thinning_bits = hash << (64 - self.sample_shift) >> (64 - THINNINGS_MAX);
        let others = mixed & 0x1ff;
        let tag = thinning_bits << 10 | others << 1 | 1;
        (bucket, tag << TAG_SHIFT)
    }

    /// Places where a sample with this hash was seen, newest first.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = Place> + use<> {
        let (start, tag) = self.bucket(hash);
        let mut bucket = [Slot(0); WAYS];
        bucket.copy_from_slice(&self.slots[start..start + WAYS]);
        bucket
            .into_iter()
            .filter(move |s| (s.0 ^ tag) >> TAG_SHIFT == 0)
            .map(Slot::place)
    }

    /// Remembers a sample; the oldest of a full bucket is forgotten.
    pub fn insert(&mut self, hash: u64, place: Place) {
        let (start, tag) = self.bucket(hash);
        let bucket = &mut self.slots[start..start + WAYS];
        self.used_count += usize::from(bucket[WAYS - 1].0 == 0);
        bucket.rotate_right(1);
        bucket[0] = Slot::new(tag, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_places_are_found_first_and_the_oldest_forgotten() {
        let mut table = MatchTable::new(MatchTable::slot_count(1 << 16), 59);
        let places: Vec<Place> = (0..6)
            .map(|i| Place {
                stream: i as u8,
                address: 1000 + i,
            })
            .collect();
        places.iter().for_each(|&p| table.insert(42, p));
        let found: Vec<Place> = table.find(42).collect();
        assert_eq!(
            found,
            places.iter().rev().take(4).copied().collect::<Vec<_>>()
        );
        assert_eq!(table.find(43 << 50).count(), 0);
    }

    /// Would catch: samples that stay though they are not looked for any more, or go though they
    /// are; a count that is wrong afterwards.
    #[test]
    fn half_of_the_samples_are_left_each_time() {
        let shift = 59;
        let mut table = MatchTable::new(1 << 12, shift);
        let hashes: Vec<u64> = (1..1500u64)
            .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 5)
            .collect();
        for (address, &hash) in (0..).zip(&hashes) {
            table.insert(hash, Place { stream: 1, address });
        }
        for thinning in 0..THINNINGS_MAX {
            let found = |hash: u64, address| table.find(hash).any(|p| p.address == address);
            let (mut kept, mut lost) = (0, 0);
            for (address, &hash) in (0..).zip(&hashes) {
                let stays = hash >> (shift - thinning) == 0;
                assert!(stays || !found(hash, address));
                kept += u32::from(stays && found(hash, address));
                lost += u32::from(stays && !found(hash, address));
            }
            assert!(
                kept > 0 && lost * 20 <= kept,
                "{thinning}: {lost} of {kept}"
            );
            assert_eq!(
                table.used_count,
                table.slots.iter().filter(|s| s.0 != 0).count()
            );
            assert!(table.thin_out());
        }
        assert!(!table.thin_out());
    }
}
