//! Inodes: their bytes, and where they may lie.

use super::round_up;
use crate::layout::{BLOCK_LEN, CompactInode, ExtendedInode, SLOT_LEN, XattrHeader};
use zerocopy::IntoBytes;

/// Data or index behind an inode and its xattrs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    None,
    /// Bytes that lie in one block.
    Bytes(u64),
    /// The target of a symlink, which lies in the same block as its inode. A target that does not
    /// fit has a block of its own; then only the place of the inode depends on its length.
    Target(u64),
}

/// Lengths of an inode and what follows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the inode.
    pub inode_len: u64,
    /// Bytes of its xattrs.
    pub xattr_len: u64,
    /// Data or index behind both.
    pub tail: Tail,
}

impl Shape {
    fn head_len(&self) -> u64 {
        self.inode_len + self.xattr_len
    }

    /// Whether the target of a symlink needs a block of its own.
    pub fn has_target_block(&self) -> bool {
        matches!(self.tail, Tail::Target(len) if self.head_len() + len >= BLOCK_LEN)
    }

    /// Bytes of inode, xattrs and tail.
    pub fn len(&self) -> u64 {
        let tail_len = match self.tail {
            Tail::Target(_) if self.has_target_block() => 0,
            Tail::Bytes(len) | Tail::Target(len) => len,
            Tail::None => 0,
        };
        self.head_len() + tail_len
    }

    /// Whether it has no bytes; an inode always has some.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where the inode begins if the one before it ends at `position`.
    pub fn start(&self, position: u64) -> u64 {
        let start = round_up(position, SLOT_LEN);
        match self.tail {
            Tail::None => start,
            Tail::Target(len) => {
                let last = start + self.head_len() + len - 1;
                if start / BLOCK_LEN == last / BLOCK_LEN {
                    start
                } else {
                    round_up(start, BLOCK_LEN)
                }
            }
            Tail::Bytes(len) => {
                let tail_start = start + self.head_len();
                let free_len = BLOCK_LEN - tail_start % BLOCK_LEN;
                if free_len < len {
                    start + round_up(free_len, SLOT_LEN)
                } else {
                    start
                }
            }
        }
    }
}

/// Whether 32 bytes hold an inode, apart from its time.
pub fn fits_compact(nlink: u64, uid: u32, gid: u32, size: u64) -> bool {
    let limit = u64::from(u16::MAX);
    nlink <= limit
        && u64::from(uid) <= limit
        && u64::from(gid) <= limit
        && size <= u64::from(u32::MAX)
}

/// The fields of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeFields {
    /// Whether the inode has 32 bytes; [`fits_compact`] is true then, and its time is that of the
    /// superblock.
    pub is_compact: bool,
    /// One of [`crate::layout::data_layout`].
    pub data_layout: u16,
    /// Bytes of xattrs behind the inode.
    pub xattr_len: u64,
    /// Type and permissions, as `st_mode`.
    pub mode: u16,
    /// Links.
    pub nlink: u64,
    /// Bytes of data.
    pub size: u64,
    /// First block of the data, device number, or format of chunks.
    pub union: u32,
    /// Number for `stat` on 32-bit systems.
    pub ino: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Seconds of the modification time.
    pub mtime: u64,
    /// Nanoseconds of it.
    pub mtime_nsec: u32,
}

impl InodeFields {
    /// Appends the inode.
    pub fn put(&self, out: &mut Vec<u8>) {
        let format = self.data_layout << 1 | u16::from(!self.is_compact);
        let xattr_count = match self.xattr_len.checked_sub(size_of::<XattrHeader>() as u64) {
            Some(len) => (len / 4 + 1) as u16,
            None => 0,
        };
        if self.is_compact {
            let inode = CompactInode {
                format: format.into(),
                xattr_count: xattr_count.into(),
                mode: self.mode.into(),
                nlink: (self.nlink as u16).into(),
                size: (self.size as u32).into(),
                reserved: 0.into(),
                union: self.union.into(),
                ino: self.ino.into(),
                uid: (self.uid as u16).into(),
                gid: (self.gid as u16).into(),
                reserved2: 0.into(),
            };
            out.extend_from_slice(inode.as_bytes());
            return;
        }
        let inode = ExtendedInode {
            format: format.into(),
            xattr_count: xattr_count.into(),
            mode: self.mode.into(),
            reserved: 0.into(),
            size: self.size.into(),
            union: self.union.into(),
            ino: self.ino.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            mtime: self.mtime.into(),
            mtime_nsec: self.mtime_nsec.into(),
            nlink: (self.nlink as u32).into(),
            reserved2: [0; 16],
        };
        out.extend_from_slice(inode.as_bytes());
    }
}
