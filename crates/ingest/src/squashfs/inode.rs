//! Inodes.

use super::blocks::{MetadataBlocks, MetadataCursor};
use super::failure::damaged;
use super::superblock::Superblock;
use crate::fields::Fields;
use weald_format::limits::TARGET_LEN_MAX;
use weald_format::{FileKind, Result, Timestamp};

/// Place of an inode: the block in the table, and 16 bits for the offset in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeRef(pub u64);

impl InodeRef {
    /// Where it stands, in a table that begins at `start`.
    pub fn cursor(self, start: u64) -> MetadataCursor {
        MetadataCursor {
            block: start.saturating_add(self.0 >> 16),
            at: (self.0 & 0xffff) as usize,
        }
    }
}

/// Marks an inode without xattrs, and a file without a fragment.
pub const NONE: u32 = u32::MAX;
/// Bytes with which every inode begins.
const HEAD_LEN: usize = 16;

/// Where the list of a directory lies.
#[derive(Debug, Clone, Copy, Default)]
pub struct DirPlace {
    pub block: u32,
    pub offset: u16,
    /// Bytes of the list, and three more.
    pub len: u32,
}

/// Where the data of a file lie.
#[derive(Debug, Clone, Copy)]
pub struct FilePlace {
    pub start: u64,
    pub len: u64,
    /// Number of the fragment that has its end, and the offset in it.
    pub fragment: Option<u32>,
    pub fragment_offset: u32,
    /// The sizes of its blocks.
    pub sizes: MetadataCursor,
}

/// An inode, parsed.
#[derive(Debug, Clone)]
pub struct Inode {
    pub kind: FileKind,
    pub permissions: u16,
    pub uid_no: u16,
    pub gid_no: u16,
    pub mtime: Timestamp,
    pub number: u32,
    pub nlink: u32,
    pub rdev: u64,
    pub target: Vec<u8>,
    pub xattr_no: Option<u32>,
    pub dir: DirPlace,
    pub file: Option<FilePlace>,
}

impl Inode {
    /// Reads the inode at `place`.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage.
    pub fn read(
        blocks: &mut MetadataBlocks,
        superblock: &Superblock,
        place: InodeRef,
    ) -> Result<Self> {
        let mut cursor = place.cursor(superblock.inode_table);
        let mut reader = InodeReader {
            blocks,
            cursor: &mut cursor,
        };
        reader.inode()
    }
}

struct InodeReader<'a> {
    blocks: &'a mut MetadataBlocks,
    cursor: &'a mut MetadataCursor,
}

impl InodeReader<'_> {
    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        self.blocks.read(self.cursor, out, "inodes")
    }

    /// The fields that `parse` takes of the next `N` bytes.
    fn fields<T, const N: usize>(
        &mut self,
        parse: impl FnOnce(&mut Fields<'_>) -> Option<T>,
    ) -> Result<T> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        parse(&mut Fields(&bytes)).ok_or_else(|| damaged("an inode"))
    }

    fn inode(&mut self) -> Result<Inode> {
        let (kind_no, mut inode) = self.fields::<_, HEAD_LEN>(|f| {
            let kind_no = f.u16()?;
            let permissions = f.u16()? & 0o7777;
            let (uid_no, gid_no) = (f.u16()?, f.u16()?);
            let mtime = Timestamp {
                seconds: f.u32()?.into(),
                nanoseconds: 0,
            };
            let inode = Inode {
                kind: FileKind::Regular,
                permissions,
                uid_no,
                gid_no,
                mtime,
                number: f.u32()?,
                nlink: 1,
                rdev: 0,
                target: Vec::new(),
                xattr_no: None,
                dir: DirPlace::default(),
                file: None,
            };
            Some((kind_no, inode))
        })?;
        inode.kind = match kind_no {
            1 | 8 => FileKind::Directory,
            2 | 9 => FileKind::Regular,
            3 | 10 => FileKind::Symlink,
            4 | 11 => FileKind::BlockDevice,
            5 | 12 => FileKind::CharDevice,
            6 | 13 => FileKind::Fifo,
            7 | 14 => FileKind::Socket,
            other => return Err(damaged(format!("an inode of the unknown type {other}"))),
        };
        match kind_no {
            1 => {
                inode.dir = self.fields::<_, 16>(|f| {
                    let (block, _nlink) = (f.u32()?, f.u32()?);
                    let (len, offset) = (f.u16()?.into(), f.u16()?);
                    Some(DirPlace { block, offset, len })
                })?;
            }
            8 => self.long_dir(&mut inode)?,
            2 => self.file(&mut inode)?,
            9 => self.long_file(&mut inode)?,
            3 | 10 => self.symlink(&mut inode, kind_no == 10)?,
            _ => self.special(&mut inode, kind_no > 7)?,
        }
        Ok(inode)
    }

    fn long_dir(&mut self, inode: &mut Inode) -> Result<()> {
        (inode.dir, inode.xattr_no) = self.fields::<_, 24>(|f| {
            let (_nlink, len, block) = (f.u32()?, f.u32()?, f.u32()?);
            let (_parent, _index_count, offset) = (f.u32()?, f.u16()?, f.u16()?);
            Some((DirPlace { block, offset, len }, some(f.u32()?)))
        })?;
        Ok(())
    }

    fn file(&mut self, inode: &mut Inode) -> Result<()> {
        let mut place = self.fields::<_, 16>(|f| {
            let start = f.u32()?.into();
            let (fragment, fragment_offset) = (some(f.u32()?), f.u32()?);
            Some(FilePlace {
                start,
                len: f.u32()?.into(),
                fragment,
                fragment_offset,
                sizes: MetadataCursor { block: 0, at: 0 },
            })
        })?;
        place.sizes = *self.cursor;
        inode.file = Some(place);
        Ok(())
    }

    fn long_file(&mut self, inode: &mut Inode) -> Result<()> {
        let (mut place, nlink, xattr_no) = self.fields::<_, 40>(|f| {
            let (start, len, _sparse_len) = (f.u64()?, f.u64()?, f.u64()?);
            let nlink = f.u32()?;
            let place = FilePlace {
                start,
                len,
                fragment: some(f.u32()?),
                fragment_offset: f.u32()?,
                sizes: MetadataCursor { block: 0, at: 0 },
            };
            Some((place, nlink, some(f.u32()?)))
        })?;
        place.sizes = *self.cursor;
        (inode.file, inode.nlink, inode.xattr_no) = (Some(place), nlink, xattr_no);
        Ok(())
    }

    fn symlink(&mut self, inode: &mut Inode, is_long: bool) -> Result<()> {
        let (nlink, len) = self.fields::<_, 8>(|f| Some((f.u32()?, f.u32()?)))?;
        inode.nlink = nlink;
        if len as usize > TARGET_LEN_MAX {
            return Err(damaged(format!("a symlink with a target of {len} bytes")));
        }
        inode.target = vec![0; len as usize];
        let mut target = std::mem::take(&mut inode.target);
        self.fill(&mut target)?;
        inode.target = target;
        if is_long {
            inode.xattr_no = some(self.fields::<_, 4>(|f| f.u32())?);
        }
        Ok(())
    }

    fn special(&mut self, inode: &mut Inode, is_long: bool) -> Result<()> {
        inode.nlink = self.fields::<_, 4>(|f| f.u32())?;
        if inode.kind.is_device() {
            let device = u64::from(self.fields::<_, 4>(|f| f.u32())?);
            let (major, minor) = (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00);
            inode.rdev = major << 32 | minor;
        }
        if is_long {
            inode.xattr_no = some(self.fields::<_, 4>(|f| f.u32())?);
        }
        Ok(())
    }
}

fn some(number: u32) -> Option<u32> {
    Some(number).filter(|number| *number != NONE)
}
