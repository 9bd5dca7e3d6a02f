//! A hash function for small keys, and a hasher for keys that are mixed already.

use std::hash::Hasher;

/// Mixes the bits of `value`: the finalizer of SplitMix64, a bijection.
///
/// # Source
/// Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
pub const fn mix_bits(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Returns the `u64` that a key writes as its hash, without mixing it again.
#[derive(Default)]
pub struct MixedHasher(u64);

impl Hasher for MixedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mix_bits(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
