//! Xattrs: their bytes, and the filter of their names.

use crate::layout::{XATTR_PREFIXES, XattrEntry, XattrHeader};
use zerocopy::IntoBytes;

/// Largest value of an xattr, in bytes: its length has 16 bits.
pub const EROFS_VALUE_LEN_MAX: usize = u16::MAX as usize;

/// Seed of the hash of names without prefix; the number of the prefix is added.
const FILTER_SEED: u32 = 0x25bb_e08f;

/// Bits of the filter.
const NAME_FILTER_BITS: u32 = 32;

/// The number of the prefix of `name`, 0 for none, and the bytes behind the prefix.
pub fn suffix_of(name: &[u8]) -> (u8, &[u8]) {
    let found = XATTR_PREFIXES
        .iter()
        .find_map(|(index, prefix)| Some((*index, name.strip_prefix(*prefix)?)));
    found.unwrap_or((0, name))
}

/// Whether the xattr is a POSIX ACL.
pub fn is_acl(name: &[u8]) -> bool {
    matches!(suffix_of(name).0, 2 | 3)
}

/// The bit of the filter that `name` clears.
pub fn filter_bit(name: &[u8]) -> u32 {
    let (index, suffix) = suffix_of(name);
    1 << (xxh32(suffix, FILTER_SEED.wrapping_add(u32::from(index))) % NAME_FILTER_BITS)
}

/// Bytes of one xattr, with the zeros behind it.
pub fn xattr_len(name: &[u8], value_len: usize) -> u64 {
    let (_, suffix) = suffix_of(name);
    let len = size_of::<XattrEntry>() + suffix.len() + value_len;
    (len as u64).next_multiple_of(4)
}

/// Bytes behind an inode with these xattrs; 0 without any.
pub fn area_len(shared_count: usize, local_len: u64) -> u64 {
    if shared_count == 0 && local_len == 0 {
        0
    } else {
        size_of::<XattrHeader>() as u64 + shared_count as u64 * 4 + local_len
    }
}

/// Appends the header of the xattrs behind an inode. `name_bits` has the [`filter_bit`] of each.
pub fn put_area_header(out: &mut Vec<u8>, name_bits: u32, shared_count: u8) {
    let header = XattrHeader {
        name_filter: (!name_bits).into(),
        shared_count,
        reserved: [0; 7],
    };
    out.extend_from_slice(header.as_bytes());
}

/// Appends one xattr. The caller has checked that the lengths fit.
pub fn put_xattr(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let (name_index, suffix) = suffix_of(name);
    let entry = XattrEntry {
        name_len: suffix.len() as u8,
        name_index,
        value_len: (value.len() as u16).into(),
    };
    out.extend_from_slice(entry.as_bytes());
    out.extend_from_slice(suffix);
    out.extend_from_slice(value);
    let len = size_of::<XattrEntry>() + suffix.len() + value.len();
    out.resize(out.len() + (len.next_multiple_of(4) - len), 0);
}

const PRIMES: [u32; 5] = [
    0x9e37_79b1,
    0x85eb_ca77,
    0xc2b2_ae3d,
    0x27d4_eb2f,
    0x1656_67b1,
];

/// The hash XXH32. Source: `xxhash_spec.md` of xxHash.
fn xxh32(bytes: &[u8], seed: u32) -> u32 {
    let [p1, p2, p3, p4, p5] = PRIMES;
    let (stripes, rest) = bytes.as_chunks::<16>();
    let mut hash = seed.wrapping_add(p5);
    if !stripes.is_empty() {
        let mut lanes = [
            seed.wrapping_add(p1).wrapping_add(p2),
            seed.wrapping_add(p2),
            seed,
            seed.wrapping_sub(p1),
        ];
        for stripe in stripes {
            let (words, _) = stripe.as_chunks::<4>();
            for (lane, word) in lanes.iter_mut().zip(words) {
                let input = u32::from_le_bytes(*word).wrapping_mul(p2);
                *lane = lane.wrapping_add(input).rotate_left(13).wrapping_mul(p1);
            }
        }
        let turns = [1, 7, 12, 18];
        let turned = lanes.iter().zip(turns).map(|(lane, n)| lane.rotate_left(n));
        hash = turned.fold(0, u32::wrapping_add);
    }
    hash = hash.wrapping_add(bytes.len() as u32);
    let (words, tail) = rest.as_chunks::<4>();
    for word in words {
        let input = u32::from_le_bytes(*word).wrapping_mul(p3);
        hash = hash.wrapping_add(input).rotate_left(17).wrapping_mul(p4);
    }
    for byte in tail {
        let input = u32::from(*byte).wrapping_mul(p5);
        hash = hash.wrapping_add(input).rotate_left(11).wrapping_mul(p1);
    }
    hash = (hash ^ (hash >> 15)).wrapping_mul(p2);
    hash = (hash ^ (hash >> 13)).wrapping_mul(p3);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a hash that is wrong for names that are longer than a stripe, or empty.
    #[test]
    fn hash_has_the_published_values() {
        assert_eq!(xxh32(b"", 0), 0x02cc_5d05);
        assert_eq!(xxh32(b"a", 0), 0x550d_7456);
        assert_eq!(xxh32(b"abc", 0), 0x32d1_53ff);
        assert_eq!(
            xxh32(b"Nobody inspects the spammish repetition", 0),
            0xe229_3b2f
        );
    }

    #[test]
    fn prefixes_have_their_numbers() {
        assert_eq!(suffix_of(b"user.a"), (1, &b"a"[..]));
        assert_eq!(suffix_of(b"system.posix_acl_default"), (3, &b""[..]));
        assert_eq!(suffix_of(b"security.selinux"), (6, &b"selinux"[..]));
        assert_eq!(suffix_of(b"lustre.x"), (0, &b"lustre.x"[..]));
    }
}
