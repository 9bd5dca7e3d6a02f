//! Inodes.

use super::{Volume, damaged, unsupported};
use crate::layout::{CompactInode, ExtendedInode, SLOT_LEN, XattrHeader, data_layout};
use weald_format::limits::NUMBER_MAX;
use weald_format::{FileKind, Result, Timestamp};
use zerocopy::FromBytes;

/// How the data of an inode lie in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataLayout {
    /// Blocks from this offset of the image on.
    Plain { start: u64 },
    /// The same, with the last block's bytes behind the inode.
    Inline { start: u64 },
    /// Chunks; the index follows the inode.
    Chunked { format: u32 },
    /// Compressed; the index follows the inode.
    Compressed { is_compact: bool },
}

/// An inode, checked as far as it stands for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inode {
    /// Number: equal for all names of a file.
    pub nid: u64,
    /// Type.
    pub kind: FileKind,
    /// The low 12 bits of the mode.
    pub permissions: u16,
    /// Bytes of data.
    pub size: u64,
    /// Number of names, as the image has it.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// Device number as (major << 32 | minor), 0 unless the inode is a device.
    pub rdev: u64,
    pub(super) layout: DataLayout,
    /// Offset of the xattrs in the image.
    pub(super) xattr_start: u64,
    pub(super) xattr_len: u64,
}

impl Inode {
    /// Offset behind inode and xattrs: inline data or an index.
    pub(super) fn end(&self) -> u64 {
        self.xattr_start.saturating_add(self.xattr_len)
    }

    /// Whether the data are compressed.
    pub fn is_compressed(&self) -> bool {
        matches!(self.layout, DataLayout::Compressed { .. })
    }
}

/// The fields that both sizes of inodes have.
struct Fields {
    format: u16,
    xattr_count: u16,
    mode: u16,
    size: u64,
    union: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    mtime: Timestamp,
    len: u64,
}

impl Volume {
    /// The root directory.
    ///
    /// # Errors
    /// As [`Volume::inode`].
    pub fn root(&self) -> Result<Inode> {
        self.inode(self.geometry.root_nid)
    }

    /// Reads the inode `nid`.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage, `Unsupported` for layouts that the reader lacks.
    pub fn inode(&self, nid: u64) -> Result<Inode> {
        let start = nid
            .checked_mul(SLOT_LEN)
            .and_then(|offset| offset.checked_add(self.geometry.meta_start));
        let start = start.ok_or_else(|| damaged(format_args!("inode {nid}")))?;
        self.parse_inode(nid, start)
            .map_err(|e| e.context(format_args!("inode {nid}")))
    }

    fn parse_inode(&self, nid: u64, start: u64) -> Result<Inode> {
        let fields = self.inode_fields(start)?;
        let mode = u32::from(fields.mode);
        let kind = FileKind::from_mode(mode);
        let kind = kind.ok_or_else(|| damaged(format_args!("mode {mode:o} is of no type")))?;
        let xattr_len = match fields.xattr_count {
            0 => 0,
            count => (size_of::<XattrHeader>() as u64)
                .saturating_add(u64::from(count.saturating_sub(1)).saturating_mul(4)),
        };
        let xattr_start = start.saturating_add(fields.len);
        self.windows.check_range(xattr_start, xattr_len, "xattrs")?;
        if fields.size > NUMBER_MAX {
            return Err(damaged(format_args!("a size of {} bytes", fields.size)));
        }
        let has_data = matches!(
            kind,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        let layout = self.data_layout(&fields, has_data)?;
        Ok(Inode {
            nid,
            kind,
            permissions: fields.mode & 0o7777,
            size: if has_data { fields.size } else { 0 },
            nlink: fields.nlink,
            uid: fields.uid,
            gid: fields.gid,
            mtime: fields.mtime,
            rdev: if kind.is_device() {
                device(fields.union)
            } else {
                0
            },
            layout,
            xattr_start,
            xattr_len,
        })
    }

    fn inode_fields(&self, start: u64) -> Result<Fields> {
        let mut bytes = [0; size_of::<ExtendedInode>()];
        let (head, tail) = bytes.split_at_mut(size_of::<CompactInode>());
        self.windows.read(start, head, "inode")?;
        let compact = CompactInode::read_from_bytes(head).map_err(|_| damaged("inode"))?;
        if compact.format.get() & 1 == 0 {
            return Ok(Fields {
                format: compact.format.get(),
                xattr_count: compact.xattr_count.get(),
                mode: compact.mode.get(),
                size: compact.size.get().into(),
                union: compact.union.get(),
                uid: compact.uid.get().into(),
                gid: compact.gid.get().into(),
                nlink: compact.nlink.get().into(),
                mtime: self.geometry.epoch,
                len: size_of::<CompactInode>() as u64,
            });
        }
        let rest_start = start.saturating_add(size_of::<CompactInode>() as u64);
        self.windows.read(rest_start, tail, "inode")?;
        let inode = ExtendedInode::read_from_bytes(&bytes).map_err(|_| damaged("inode"))?;
        let mtime = Timestamp {
            seconds: inode.mtime.get() as i64,
            nanoseconds: inode.mtime_nsec.get(),
        };
        if mtime.nanoseconds > 999_999_999 {
            return Err(damaged(format_args!("{} nanoseconds", mtime.nanoseconds)));
        }
        Ok(Fields {
            format: inode.format.get(),
            xattr_count: inode.xattr_count.get(),
            mode: inode.mode.get(),
            size: inode.size.get(),
            union: inode.union.get(),
            uid: inode.uid.get(),
            gid: inode.gid.get(),
            nlink: inode.nlink.get(),
            mtime,
            len: size_of::<ExtendedInode>() as u64,
        })
    }

    fn data_layout(&self, fields: &Fields, has_data: bool) -> Result<DataLayout> {
        if fields.format >> 4 != 0 {
            return Err(unsupported(format_args!(
                "inodes of format {:#x}",
                fields.format
            )));
        }
        let start = u64::from(fields.union) << self.geometry.block_bits;
        Ok(match fields.format >> 1 & 7 {
            _ if !has_data => DataLayout::Plain { start: 0 },
            data_layout::PLAIN => DataLayout::Plain { start },
            data_layout::INLINE => DataLayout::Inline { start },
            data_layout::CHUNKED => DataLayout::Chunked {
                format: fields.union,
            },
            data_layout::COMPRESSED_FULL => DataLayout::Compressed { is_compact: false },
            data_layout::COMPRESSED_COMPACT => DataLayout::Compressed { is_compact: true },
            other => return Err(unsupported(format_args!("data layout {other}"))),
        })
    }
}

/// The device number of the kernel's 32-bit form: 12 bits of major between 8 and 12 of minor.
fn device(union: u32) -> u64 {
    let major = u64::from(union >> 8 & 0xfff);
    let minor = u64::from((union & 0xff) | (union >> 12 & 0xf_ff00));
    major << 32 | minor
}
