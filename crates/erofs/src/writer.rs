//! Parts of a writer: the bytes of inodes, directories, xattrs and the superblock, and where an
//! inode may lie. The order of inodes and the I/O are the caller's.
//!
//! The rules of placement are those of `mkcomposefs`, so that the same tree gives the same bytes.
//! `superblock`, `compress` and `clusters` are for images that hold data.

mod clusters;
mod compress;
mod dir;
mod inode;
mod superblock;
mod xattr;

pub use clusters::{INDEX_HEADER_LEN, put_compressed, put_index_header, put_plain};
pub use compress::{CLUSTER_LEN_MAX, Codec};
pub use dir::{DIR_TAIL_LEN_MAX, DirBlock, DirLayout, DirShape};
pub use inode::{InodeFields, Shape, Tail, fits_compact};
pub use superblock::DataSuperblock;
pub use xattr::{
    EROFS_VALUE_LEN_MAX, area_len, filter_bit, is_acl, put_area_header, put_xattr, suffix_of,
    xattr_len,
};

use crate::layout::{
    BLOCK_BITS, BLOCK_LEN, MAGIC, SLOT_LEN, SUPERBLOCK_OFFSET, Superblock, compat,
};
use zerocopy::IntoBytes;

/// Offset of the first inode of an image whose metadata begin behind the superblock.
pub const FIRST_INODE_OFFSET: u64 = SUPERBLOCK_OFFSET + size_of::<Superblock>() as u64;

/// Values of the superblock that differ from image to image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuperblockFields {
    /// Number of the root's inode.
    pub root_nid: u16,
    /// Number of inodes.
    pub inode_count: u64,
    /// Time of compact inodes: seconds and nanoseconds.
    pub epoch: (u64, u32),
    /// Blocks of the image.
    pub block_count: u32,
    /// Block where shared xattrs begin.
    pub xattr_block: u32,
}

impl SuperblockFields {
    /// Appends the superblock of an image without a checksum, as composefs has it.
    pub fn put(&self, out: &mut Vec<u8>) {
        let mut block = <Superblock as zerocopy::FromZeros>::new_zeroed();
        block.magic = MAGIC.into();
        block.feature_compat = (compat::MTIME | compat::XATTR_FILTER).into();
        block.block_bits = BLOCK_BITS;
        block.root_nid = self.root_nid.into();
        block.inode_count = self.inode_count.into();
        block.epoch = self.epoch.0.into();
        block.epoch_nsec = self.epoch.1.into();
        block.block_count = self.block_count.into();
        block.xattr_block = self.xattr_block.into();
        out.extend_from_slice(block.as_bytes());
    }
}

/// The number of an inode at `offset` of an image whose metadata begin in block 0.
pub const fn nid_at(offset: u64) -> u64 {
    offset / SLOT_LEN
}

/// `offset`, or the next multiple of `unit` behind it.
pub const fn round_up(offset: u64, unit: u64) -> u64 {
    offset.div_ceil(unit) * unit
}

/// Chunk size of a file whose data lie elsewhere, as the base-2 logarithm of its blocks: the
/// smallest that makes one chunk of the file, up to the largest of the format.
pub const fn hole_chunk_bits(size: u64) -> u32 {
    let bits = match size {
        0 | 1 => 1,
        _ => u64::BITS - (size - 1).leading_zeros(),
    };
    let block_bits = BLOCK_BITS as u32;
    match bits.saturating_sub(block_bits) {
        bits if bits > 31 => 31,
        bits => bits,
    }
}

/// Chunks of that size in a file of `size` bytes.
pub const fn hole_chunk_count(size: u64) -> u64 {
    size.div_ceil(BLOCK_LEN << hole_chunk_bits(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a chunk size that is one bit too small or too large at a power of two.
    #[test]
    fn one_chunk_holds_a_file_up_to_the_largest_chunk() {
        let cases = [
            (1, 0, 1),
            (4096, 0, 1),
            (4097, 1, 1),
            (1 << 20, 8, 1),
            ((1 << 20) + 1, 9, 1),
            (1 << 43, 31, 1),
            ((1 << 43) + 1, 31, 2),
        ];
        for (size, bits, count) in cases {
            let found = (hole_chunk_bits(size), hole_chunk_count(size));
            assert_eq!(found, (bits, count), "{size} bytes");
        }
    }
}
