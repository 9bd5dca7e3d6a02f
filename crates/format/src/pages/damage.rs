//! Damaged bytes for the tests of parsers.

use crate::Result;

/// Checks that `parse` refuses every prefix and that no flipped bit makes it panic.
pub fn check_damaged<T>(bytes: &[u8], parse: fn(&[u8]) -> Result<T>) {
    for len in 0..bytes.len() {
        assert!(parse(&bytes[..len]).is_err(), "prefix of {len}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        let _ = parse(&bad);
    }
}
