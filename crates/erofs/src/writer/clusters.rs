//! The index of a compressed file, with an entry of 8 bytes for each block of the file.

use super::compress::Codec;
use crate::layout::{BLOCK_LEN, ClusterIndex, CompressedHeader};
use zerocopy::IntoBytes;

/// Kinds of entries.
const PLAIN_ENTRY: u16 = 0;
const HEAD_ENTRY: u16 = 1;
const INSIDE_ENTRY: u16 = 2;
/// Bit of the first distance behind a head: the rest is the number of blocks.
const BLOCK_COUNT: u16 = 1 << 11;
/// Physical clusters may have several blocks.
const BIG_CLUSTERS: u16 = 1 << 1;

/// Bytes before the first entry: the header, and as many zeros.
pub const INDEX_HEADER_LEN: u64 = 2 * size_of::<CompressedHeader>() as u64;

/// Appends the header of an index, which begins at a multiple of 8.
pub fn put_index_header(out: &mut Vec<u8>, codec: Codec) {
    let header = CompressedHeader {
        fragment_offset: 0.into(),
        advise: BIG_CLUSTERS.into(),
        codec: codec.number(),
        cluster_bits: 0,
    };
    out.extend_from_slice(header.as_bytes());
    out.resize(out.len() + size_of::<CompressedHeader>(), 0);
}

/// Appends the entries of `data_len` bytes, which lie compressed in `block_count` blocks from
/// `block` on.
pub fn put_compressed(out: &mut Vec<u8>, data_len: u64, block: u32, block_count: u16) {
    let entry_count = data_len.div_ceil(BLOCK_LEN) as u16;
    put_entry(out, HEAD_ENTRY, block);
    for no in 1..entry_count {
        let back = match no {
            1 => BLOCK_COUNT | block_count,
            no => no,
        };
        let distances = u32::from(back) | u32::from(entry_count - no) << 16;
        put_entry(out, INSIDE_ENTRY, distances);
    }
}

/// Appends the entries of `data_len` bytes, which lie as they are from `block` on.
pub fn put_plain(out: &mut Vec<u8>, data_len: u64, block: u32) {
    for no in 0..data_len.div_ceil(BLOCK_LEN) as u32 {
        put_entry(out, PLAIN_ENTRY, block + no);
    }
}

fn put_entry(out: &mut Vec<u8>, kind: u16, union: u32) {
    let entry = ClusterIndex {
        advise: kind.into(),
        offset: 0.into(),
        union: union.into(),
    };
    out.extend_from_slice(entry.as_bytes());
}
