//! Structures of an EROFS image. All integers are little-endian. Source: `erofs_fs.h` of Linux.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offset of the superblock in the image, in bytes.
pub const SUPERBLOCK_OFFSET: u64 = 1024;

/// Magic number of the superblock.
pub const MAGIC: u32 = 0xe0f5_e1e2;

/// Base-2 logarithm of the block size that Weald writes.
pub const BLOCK_BITS: u8 = 12;

/// Bytes of a block that Weald writes.
pub const BLOCK_LEN: u64 = 1 << BLOCK_BITS;

/// Bytes of a slot: an inode lies at `meta_blkaddr * block size + nid * 32`.
pub const SLOT_LEN: u64 = 32;

/// Optional features: readers that do not know them can read the image.
pub mod compat {
    /// The field `checksum` of the superblock is valid.
    pub const CHECKSUM: u32 = 1 << 0;
    /// Times of inodes are modification times.
    pub const MTIME: u32 = 1 << 1;
    /// Xattr headers have a bloom filter of their names.
    pub const XATTR_FILTER: u32 = 1 << 2;
}

/// Required features: readers that do not know them must refuse the image.
pub mod incompat {
    /// Compressed data ends at the end of its cluster, zeros before it.
    pub const ZERO_PADDING: u32 = 1 << 0;
    /// Settings of the codecs follow the superblock.
    pub const CODEC_SETTINGS: u32 = 1 << 1;
    /// Physical clusters may be larger than a block.
    pub const BIG_CLUSTERS: u32 = 1 << 1;
    /// Files may consist of chunks.
    pub const CHUNKED_FILES: u32 = 1 << 2;
    /// A table lists other devices that hold data.
    pub const DEVICE_TABLE: u32 = 1 << 3;
    /// A file may use a second codec.
    pub const SECOND_CODEC: u32 = 1 << 3;
    /// Compressed tails may lie behind the inode.
    pub const INLINE_TAILS: u32 = 1 << 4;
    /// Tails of several files may lie in the packed inode.
    pub const FRAGMENTS: u32 = 1 << 5;
    /// Clusters may be referenced more than once.
    pub const DEDUPLICATED: u32 = 1 << 5;
    /// Long xattr prefixes are listed in the image.
    pub const XATTR_PREFIXES: u32 = 1 << 6;
    /// Block addresses have 48 bits.
    pub const WIDE_ADDRESSES: u32 = 1 << 7;
    /// Metadata may be compressed.
    pub const METADATA_BOX: u32 = 1 << 8;
}

/// Superblock, at [`SUPERBLOCK_OFFSET`].
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Superblock {
    /// [`MAGIC`].
    pub magic: U32,
    /// CRC-32C from the superblock to the end of its block, with this field as zero.
    pub checksum: U32,
    /// Optional features, see [`compat`].
    pub feature_compat: U32,
    /// Base-2 logarithm of the block size.
    pub block_bits: u8,
    /// Further slots of 16 bytes that the superblock has.
    pub extra_slots: u8,
    /// Number of the root directory's inode.
    pub root_nid: U16,
    /// Number of inodes.
    pub inode_count: U64,
    /// Time of inodes of 32 bytes, in seconds since 1970.
    pub epoch: U64,
    /// Nanoseconds of `epoch`.
    pub epoch_nsec: U32,
    /// Number of blocks.
    pub block_count: U32,
    /// Block where inodes begin.
    pub meta_block: U32,
    /// Block where shared xattrs begin.
    pub xattr_block: U32,
    /// Identity of the image.
    pub uuid: [u8; 16],
    /// Name of the image.
    pub volume_name: [u8; 16],
    /// Required features, see [`incompat`].
    pub feature_incompat: U32,
    /// Codecs that are used, a bit each, or the distance of LZ4 matches.
    pub codecs: U16,
    /// Number of other devices.
    pub device_count: U16,
    /// Offset of the device table, in units of 128 bytes.
    pub device_table: U16,
    /// Base-2 logarithm of the directory block size, minus that of the block size.
    pub dir_block_bits: u8,
    /// Number of long xattr prefixes.
    pub xattr_prefix_count: u8,
    /// Offset of the long xattr prefixes, in units of 4 bytes.
    pub xattr_prefix_start: U32,
    /// Number of the inode that holds tails of files.
    pub packed_nid: U64,
    /// Zero where the bloom filter of xattr names has its first layout.
    pub xattr_filter_reserved: u8,
    /// Zero.
    pub reserved: [u8; 23],
}

/// How an inode's data lies in the image: bits 1 to 3 of `format`.
pub mod data_layout {
    /// Whole blocks in a row.
    pub const PLAIN: u16 = 0;
    /// Compressed, with an index of 8 bytes a cluster.
    pub const COMPRESSED_FULL: u16 = 1;
    /// Whole blocks in a row, and the tail behind the inode.
    pub const INLINE: u16 = 2;
    /// Compressed, with a packed index.
    pub const COMPRESSED_COMPACT: u16 = 3;
    /// Chunks of equal size.
    pub const CHUNKED: u16 = 4;
}

/// An inode of 32 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CompactInode {
    /// Bit 0: zero; bits 1 to 3: [`data_layout`].
    pub format: U16,
    /// Zero without xattrs, else (bytes of xattrs - 12) / 4 + 1.
    pub xattr_count: U16,
    /// Type and permissions, as `st_mode`.
    pub mode: U16,
    /// Links to the inode.
    pub nlink: U16,
    /// Bytes of data.
    pub size: U32,
    /// Zero.
    pub reserved: U32,
    /// First block of the data, device number, or [chunk format](chunk).
    pub union: U32,
    /// Number for `stat` on 32-bit systems.
    pub ino: U32,
    /// Owner.
    pub uid: U16,
    /// Group.
    pub gid: U16,
    /// Zero.
    pub reserved2: U32,
}

/// An inode of 64 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtendedInode {
    /// Bit 0: one; bits 1 to 3: [`data_layout`].
    pub format: U16,
    /// Zero without xattrs, else (bytes of xattrs - 12) / 4 + 1.
    pub xattr_count: U16,
    /// Type and permissions, as `st_mode`.
    pub mode: U16,
    /// Zero.
    pub reserved: U16,
    /// Bytes of data.
    pub size: U64,
    /// First block of the data, device number, or [chunk format](chunk).
    pub union: U32,
    /// Number for `stat` on 32-bit systems.
    pub ino: U32,
    /// Owner.
    pub uid: U32,
    /// Group.
    pub gid: U32,
    /// Modification time, in seconds since 1970.
    pub mtime: U64,
    /// Nanoseconds of the modification time.
    pub mtime_nsec: U32,
    /// Links to the inode.
    pub nlink: U32,
    /// Zero.
    pub reserved2: [u8; 16],
}

/// Format of a file that consists of chunks, in `union` of its inode.
pub mod chunk {
    /// Bits 0 to 4: base-2 logarithm of the chunk size, minus that of the block size.
    pub const SIZE_BITS: u32 = 0x1f;
    /// The index has [`ChunkIndex`](super::ChunkIndex) entries; without it block addresses.
    pub const HAS_INDEXES: u32 = 0x20;
    /// Block address of a hole.
    pub const HOLE: u32 = u32::MAX;
}

/// Where a chunk lies.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChunkIndex {
    /// Zero, or the high bits of the address with [`incompat::WIDE_ADDRESSES`].
    pub start_high: U16,
    /// Zero for the image itself, else a row of the device table plus one.
    pub device: U16,
    /// First block, or [`chunk::HOLE`].
    pub start: U32,
}

/// Header of the xattrs behind an inode; the numbers of shared xattrs and the xattrs follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct XattrHeader {
    /// Bloom filter of the names: a bit is one where no name has it.
    pub name_filter: U32,
    /// Number of shared xattrs.
    pub shared_count: u8,
    /// Zero.
    pub reserved: [u8; 7],
}

/// Header of one xattr; name without its prefix and value follow, then zeros to 4 bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct XattrEntry {
    /// Bytes of the name without its prefix.
    pub name_len: u8,
    /// Number of the prefix, see [`XATTR_PREFIXES`].
    pub name_index: u8,
    /// Bytes of the value.
    pub value_len: U16,
}

/// Prefixes of xattr names; the number of a prefix is `name_index`.
pub const XATTR_PREFIXES: [(u8, &[u8]); 5] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
];

/// An entry of a directory block. The entries come first, in ascending order of names; names
/// follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Dirent {
    /// Number of the inode.
    pub nid: U64,
    /// Offset of the name in the directory block.
    pub name_offset: U16,
    /// Type of the file: 1 regular, 2 directory, 3 character device, 4 block device, 5 FIFO,
    /// 6 socket, 7 symlink.
    pub file_type: u8,
    /// Zero.
    pub reserved: u8,
}

/// Header of the index of a compressed file, behind inode and xattrs, at a multiple of 8.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CompressedHeader {
    /// Offset in the packed inode, or bytes of an inline tail in the upper half.
    pub fragment_offset: U32,
    /// How the index is laid out.
    pub advise: U16,
    /// Bits 0 to 3: codec of first kind, bits 4 to 7: of second kind.
    pub codec: u8,
    /// Bits 0 to 2: base-2 logarithm of the logical cluster size minus that of the block size.
    pub cluster_bits: u8,
}

/// Index entry of one logical cluster of a compressed file with the full index.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ClusterIndex {
    /// Bits 0 and 1: kind of the cluster.
    pub advise: U16,
    /// Where the extent begins in the cluster.
    pub offset: U16,
    /// Block address of the extent, or two distances of 16 bits.
    pub union: U32,
}

const _: () = {
    assert!(size_of::<Superblock>() == 128);
    assert!(size_of::<CompactInode>() == 32);
    assert!(size_of::<ExtendedInode>() == 64);
    assert!(size_of::<ChunkIndex>() == 8);
    assert!(size_of::<XattrHeader>() == 12);
    assert!(size_of::<XattrEntry>() == 4);
    assert!(size_of::<Dirent>() == 12);
    assert!(size_of::<CompressedHeader>() == 8);
    assert!(size_of::<ClusterIndex>() == 8);
};
