//! The superblock, validated.

use super::source::Windows;
use super::{damaged, unsupported};
use crate::layout::{self, SUPERBLOCK_OFFSET, Superblock, compat, incompat};
use weald_format::{Error, Result, Timestamp};
use zerocopy::FromBytes;

/// Base-2 logarithms of the block sizes that the kernel knows: a sector to the largest page.
const BLOCK_BITS_RANGE: std::ops::RangeInclusive<u8> = 9..=16;

/// Required features that the reader knows. They share bits: see [`incompat`].
const KNOWN: u32 = incompat::ZERO_PADDING
    | incompat::BIG_CLUSTERS
    | incompat::CHUNKED_FILES
    | incompat::SECOND_CODEC
    | incompat::INLINE_TAILS
    | incompat::FRAGMENTS
    | incompat::XATTR_PREFIXES;

/// Features that give full indexes a header.
const HEADERS: u32 = incompat::BIG_CLUSTERS | incompat::INLINE_TAILS | incompat::FRAGMENTS;

/// Optional feature: long xattr prefixes lie outside the packed inode. Linux 6.17.
const PLAIN_PREFIXES: u32 = 1 << 4;

/// Fields of the superblock that the reader uses.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    /// Base-2 logarithm of the block size.
    pub block_bits: u8,
    /// Offset of inode 0 in bytes.
    pub meta_start: u64,
    /// Offset of the shared xattrs in bytes.
    pub xattr_start: u64,
    /// Number of the root directory's inode.
    pub root_nid: u64,
    /// Time of inodes of 32 bytes.
    pub epoch: Timestamp,
    /// Full indexes of compressed files have a header.
    pub has_cluster_headers: bool,
    /// Number of the inode with the tails of files, 0 without one.
    pub packed_nid: u64,
    /// Number of long xattr prefixes.
    pub prefix_count: u8,
    /// Offset of the long xattr prefixes in bytes, in the packed inode or in the image.
    pub prefix_start: u64,
    /// The prefixes lie in the packed inode.
    pub has_packed_prefixes: bool,
}

impl Geometry {
    /// Reads the superblock.
    ///
    /// # Errors
    /// `Io`; `Invalid` for other files and for damage, `Unsupported` for features.
    pub fn read(windows: &Windows) -> Result<Self> {
        let mut bytes = [0; size_of::<Superblock>()];
        if windows.len() < SUPERBLOCK_OFFSET.saturating_add(bytes.len() as u64) {
            let what = format!("not an EROFS image: it has only {} bytes", windows.len());
            return Err(Error::invalid(what));
        }
        windows.read(SUPERBLOCK_OFFSET, &mut bytes, "superblock")?;
        let superblock = Superblock::read_from_bytes(&bytes);
        let superblock = superblock.map_err(|_| damaged("superblock"))?;
        let magic = superblock.magic.get();
        if magic != layout::MAGIC {
            let what = format!("not an EROFS image: its magic number is {magic:#x}");
            return Err(Error::invalid(what));
        }
        let bits = superblock.block_bits;
        if !BLOCK_BITS_RANGE.contains(&bits) {
            return Err(damaged(format_args!("blocks of 2^{bits} bytes")));
        }
        let unknown = superblock.feature_incompat.get() & !KNOWN;
        if unknown != 0 {
            return Err(unsupported(format_args!(
                "its features {unknown:#x}, which a newer mkfs.erofs wrote"
            )));
        }
        if superblock.dir_block_bits != 0 {
            return Err(unsupported("directory blocks larger than blocks"));
        }
        if superblock.feature_compat.get() & compat::CHECKSUM != 0 {
            check_sum(&superblock, windows)?;
        }
        let blocks = |no: u32| u64::from(no) << bits;
        windows.check_range(0, blocks(superblock.block_count.get()), "blocks")?;
        let nanoseconds = superblock.epoch_nsec.get();
        if nanoseconds > 999_999_999 {
            return Err(damaged(format_args!("{nanoseconds} nanoseconds")));
        }
        Ok(Self {
            block_bits: bits,
            meta_start: blocks(superblock.meta_block.get()),
            xattr_start: blocks(superblock.xattr_block.get()),
            root_nid: superblock.root_nid.get().into(),
            epoch: Timestamp {
                seconds: superblock.epoch.get() as i64,
                nanoseconds,
            },
            has_cluster_headers: superblock.feature_incompat.get() & HEADERS != 0,
            packed_nid: match superblock.feature_incompat.get() & incompat::FRAGMENTS {
                0 => 0,
                _ => superblock.packed_nid.get(),
            },
            prefix_count: superblock.xattr_prefix_count,
            prefix_start: u64::from(superblock.xattr_prefix_start.get()) << 2,
            has_packed_prefixes: superblock.feature_compat.get() & PLAIN_PREFIXES == 0,
        })
    }

    /// Bytes of a block.
    pub fn block_len(&self) -> u64 {
        1 << self.block_bits
    }
}

/// Compares the checksum, which covers the superblock and the rest of its block.
fn check_sum(superblock: &Superblock, windows: &Windows) -> Result<()> {
    let block_len = 1_u64 << superblock.block_bits;
    let end = if block_len > SUPERBLOCK_OFFSET {
        block_len
    } else {
        SUPERBLOCK_OFFSET.saturating_add(block_len)
    };
    let mut bytes = vec![0; end.saturating_sub(SUPERBLOCK_OFFSET) as usize];
    windows.read(SUPERBLOCK_OFFSET, &mut bytes, "superblock")?;
    if let Some(field) = bytes.get_mut(4..8) {
        field.fill(0);
    }
    // EROFS does not invert the result.
    let (found, stored) = (!crc32c::crc32c(&bytes), superblock.checksum.get());
    if found == stored {
        Ok(())
    } else {
        Err(damaged(format_args!(
            "checksum of the superblock: expected {stored:08x}, found {found:08x}"
        )))
    }
}
