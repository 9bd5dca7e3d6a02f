//! Parity of a record of a sync log: what makes a short run of damaged bytes good again.
//!
//! The bytes are taken as units of one length. The parity has two units: the XOR of all even ones,
//! and that of all odd ones. Damage that lies within two units next to each other changes each of
//! the two sums by what it changed in one unit; where it lies, the checksum of the record tells.

/// Units are this long at least, bytes.
const UNIT_LEN_MIN: usize = 64;
/// A record has at most about this many units: so often a repair tries.
const UNITS_MAX: usize = 128;

/// Bytes of a unit of `len` bytes: damage of so many, and one more, is repaired wherever it begins.
pub fn unit_len(len: usize) -> usize {
    let unit_len = len.div_ceil(UNITS_MAX).next_power_of_two();
    unit_len.max(UNIT_LEN_MIN)
}

/// Bytes of the parity of `len` bytes.
pub fn parity_len(len: usize) -> usize {
    unit_len(len).saturating_mul(2)
}

fn add(to: &mut [u8], bytes: &[u8]) {
    for (to, byte) in to.iter_mut().zip(bytes) {
        *to ^= byte;
    }
}

/// The parity of `bytes`; zeros fill up the last unit.
pub fn parity(bytes: &[u8]) -> Vec<u8> {
    let mut sums = vec![0; parity_len(bytes.len())];
    // Two units at a time: the even and the odd one lie beside each other in the sums, too.
    for units in bytes.chunks(sums.len()) {
        add(&mut sums, units);
    }
    sums
}

/// Repairs `bytes`, of which two units next to each other are damaged at most, until `is_whole`
/// says so. Returns whether it did; otherwise `bytes` are as they were.
///
/// # Cost
/// Calls `is_whole` up to 130 times.
pub fn repair(bytes: &mut [u8], parity: &[u8], is_whole: &dyn Fn(&[u8]) -> bool) -> bool {
    let unit_len = unit_len(bytes.len());
    let mut differs = self::parity(bytes);
    if parity.len() != differs.len() {
        return false;
    }
    add(&mut differs, parity);
    let (even, odd) = differs.split_at(unit_len);
    let count = bytes.len().div_ceil(unit_len);
    for first in 0..count {
        let start = first.saturating_mul(unit_len);
        let Some(units) = bytes.get_mut(start..) else {
            break;
        };
        let sums = match first % 2 {
            0 => [even, odd],
            _ => [odd, even],
        };
        add(units, &sums.concat());
        if is_whole(bytes) {
            return true;
        }
        if let Some(units) = bytes.get_mut(start..) {
            add(units, &sums.concat());
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: damage at some place, or of some length, that is not repaired although it is
    /// short enough, bytes that a vain repair changes, and a parity that takes no part of a record.
    #[test]
    fn damage_of_a_unit_is_repaired_wherever_it_lies() {
        for len in [1, 63, 64, 65, 127, 128, 129, 700, 8192, 8193, 20_000] {
            let whole: Vec<u8> = (0..len).map(|at: usize| (at * 31 % 251) as u8).collect();
            let parity = parity(&whole);
            let is_whole = |bytes: &[u8]| bytes == whole;
            for damaged_len in [1, 16, 64, unit_len(len) + 1] {
                for start in (0..len).step_by(13) {
                    let mut bytes = whole.clone();
                    let end = len.min(start + damaged_len);
                    bytes[start..end].iter_mut().for_each(|byte| *byte ^= 0x5a);
                    assert!(repair(&mut bytes, &parity, &is_whole), "{len} {start}");
                    assert_eq!(bytes, whole);
                }
            }
        }
        let whole = vec![1; 8192];
        let mut bytes = whole.clone();
        bytes[..200].fill(0);
        let damaged = bytes.clone();
        let repaired = repair(&mut bytes, &parity(&whole), &|bytes| bytes == whole);
        assert!(!repaired && bytes == damaged);
    }
}
