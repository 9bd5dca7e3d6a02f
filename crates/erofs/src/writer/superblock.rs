//! The first block of an image that holds data: superblock, settings of the codec, checksum.

use super::compress::Codec;
use crate::layout::{
    BLOCK_BITS, BLOCK_LEN, MAGIC, SUPERBLOCK_OFFSET, Superblock, compat, incompat,
};
use zerocopy::IntoBytes;

/// Largest distance of an LZ4 match.
const LZ4_DISTANCE: u16 = u16::MAX;

/// Values of the superblock of an image that holds data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataSuperblock {
    /// Number of the root's inode.
    pub root_nid: u16,
    /// Number of inodes.
    pub inode_count: u64,
    /// Time of compact inodes: seconds and nanoseconds.
    pub epoch: (u64, u32),
    /// Blocks of the image.
    pub block_count: u32,
    /// Block where inodes begin.
    pub meta_block: u32,
    /// Block where shared xattrs begin.
    pub xattr_block: u32,
    /// Identity of the image.
    pub uuid: [u8; 16],
    /// Whether files consist of chunks.
    pub has_chunks: bool,
    /// Codec of compressed files.
    pub codec: Option<Codec>,
    /// Blocks of the largest physical cluster.
    pub cluster_blocks_max: u16,
}

impl DataSuperblock {
    /// The first block of the image.
    pub fn block(&self) -> Vec<u8> {
        let mut required = 0;
        if self.has_chunks {
            required |= incompat::CHUNKED_FILES;
        }
        if self.codec.is_some() {
            required |= incompat::ZERO_PADDING | incompat::CODEC_SETTINGS;
        }
        let mut superblock = <Superblock as zerocopy::FromZeros>::new_zeroed();
        superblock.magic = MAGIC.into();
        superblock.feature_compat =
            (compat::CHECKSUM | compat::MTIME | compat::XATTR_FILTER).into();
        superblock.feature_incompat = required.into();
        superblock.block_bits = BLOCK_BITS;
        superblock.root_nid = self.root_nid.into();
        superblock.inode_count = self.inode_count.into();
        superblock.epoch = self.epoch.0.into();
        superblock.epoch_nsec = self.epoch.1.into();
        superblock.block_count = self.block_count.into();
        superblock.meta_block = self.meta_block.into();
        superblock.xattr_block = self.xattr_block.into();
        superblock.uuid = self.uuid;
        superblock.codecs = self.codec.map_or(0, |codec| 1 << codec.number()).into();
        let mut block = vec![0; SUPERBLOCK_OFFSET as usize];
        block.extend_from_slice(superblock.as_bytes());
        if let Some(codec) = self.codec {
            let settings = self.settings(codec);
            block.extend_from_slice(&(settings.len() as u16).to_le_bytes());
            block.extend_from_slice(&settings);
        }
        block.resize(BLOCK_LEN as usize, 0);
        // EROFS does not invert the result.
        let covered = &block[SUPERBLOCK_OFFSET as usize..];
        let checksum = !crc32c::crc32c(covered);
        let field = SUPERBLOCK_OFFSET as usize + 4;
        block[field..field + 4].copy_from_slice(&checksum.to_le_bytes());
        block
    }

    fn settings(&self, codec: Codec) -> Vec<u8> {
        match codec {
            Codec::Lz4 | Codec::Lz4Hc(_) => {
                let mut settings = vec![0; 14];
                settings[..2].copy_from_slice(&LZ4_DISTANCE.to_le_bytes());
                settings[2..4].copy_from_slice(&self.cluster_blocks_max.to_le_bytes());
                settings
            }
            // Format, and the base-2 logarithm of the window less 10.
            Codec::Zstd(_) => {
                let mut settings = vec![0; 6];
                settings[1] = Codec::WINDOW_BITS - 10;
                settings
            }
        }
    }
}
