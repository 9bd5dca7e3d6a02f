//! Where content-defined samples were seen before: a fixed-size table of fingerprints, newest first.

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

/// Fingerprint of 18 bits, stream of 6 bits, address of 40 bits; 0 = free.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slot(u64);

impl Slot {
    fn new(hash: u64, place: Place) -> Self {
        Self(Self::tag(hash) | u64::from(place.stream & 63) << 40 | place.address & ((1 << 40) - 1))
    }

    /// Never 0, so that a used slot never looks free.
    fn tag(hash: u64) -> u64 {
        (hash << 46) | (1 << 46)
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
}

impl MatchTable {
    /// A table of at most `len_max` bytes.
    pub fn new(len_max: u64) -> Self {
        let buckets = (len_max / (8 * WAYS as u64)).max(2);
        let bucket_bits = buckets.ilog2();
        Self {
            slots: vec![Slot(0); WAYS << bucket_bits],
            bucket_bits,
        }
    }

    /// Samples that the table can hold.
    pub fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    fn bucket(&self, hash: u64) -> (usize, u64) {
        // The gear hash's top bits decided that this is a sample: mix before using any.
        let mixed = hash.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((mixed >> (64 - self.bucket_bits)) as usize * WAYS, mixed)
    }

    /// Places where a sample with this hash was seen, newest first.
    pub fn find(&self, hash: u64) -> impl Iterator<Item = Place> + use<> {
        let (start, mixed) = self.bucket(hash);
        let tag = Slot::tag(mixed);
        let mut bucket = [Slot(0); WAYS];
        bucket.copy_from_slice(&self.slots[start..start + WAYS]);
        bucket
            .into_iter()
            .filter(move |s| s.0 != 0 && (s.0 ^ tag) >> 46 == 0)
            .map(Slot::place)
    }

    /// Remembers a sample; the oldest of a full bucket is forgotten.
    pub fn insert(&mut self, hash: u64, place: Place) {
        let (start, mixed) = self.bucket(hash);
        let bucket = &mut self.slots[start..start + WAYS];
        bucket.rotate_right(1);
        bucket[0] = Slot::new(mixed, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_places_are_found_first_and_the_oldest_forgotten() {
        let mut table = MatchTable::new(1 << 16);
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
}
