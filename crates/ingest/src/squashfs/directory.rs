//! Lists of directories: runs of up to 256 names whose inodes lie in one block.

use super::blocks::{MetadataBlocks, MetadataCursor};
use super::failure::damaged;
use super::inode::{Inode, InodeRef};
use super::superblock::Superblock;
use crate::fields::Fields;
use weald_format::limits::NAME_LEN_MAX;
use weald_format::{Error, Result};

/// Bytes before a run, and before a name.
const RUN_HEAD_LEN: u64 = 12;
const NAME_HEAD_LEN: u64 = 8;
/// Names of a run.
const RUN_COUNT_MAX: u32 = 256;
/// An inode counts so many bytes more than its list has, for `.` and `..`.
const EXTRA_LEN: u32 = 3;

/// One name of a directory.
#[derive(Debug)]
pub struct DirEntry {
    pub name: Vec<u8>,
    pub inode: InodeRef,
}

/// Reads the list of a directory.
#[derive(Debug)]
pub struct DirReader {
    cursor: MetadataCursor,
    len: u64,
    remaining_len: u64,
    /// Names that remain in the run, and the block of their inodes.
    remaining_count: u32,
    block: u32,
    last: Vec<u8>,
}

impl DirReader {
    /// The list of `inode`.
    ///
    /// # Errors
    /// `Invalid` for a list without room for what every list counts.
    pub fn new(superblock: &Superblock, inode: &Inode) -> Result<Self> {
        let place = inode.dir;
        // An empty directory may count nothing at all.
        let len = u64::from(place.len.saturating_sub(EXTRA_LEN));
        let block = superblock.dir_table.checked_add(place.block.into());
        Ok(Self {
            cursor: MetadataCursor {
                block: block.ok_or_else(|| damaged("the place of a directory"))?,
                at: place.offset.into(),
            },
            len,
            remaining_len: len,
            remaining_count: 0,
            block: 0,
            last: Vec::new(),
        })
    }

    /// Bytes of the list.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The next name; `None` at the end.
    ///
    /// # Errors
    /// `Io`; `Invalid` for names that no directory has, or in no order.
    pub fn next(&mut self, blocks: &mut MetadataBlocks) -> Result<Option<DirEntry>> {
        if self.remaining_len == 0 && self.remaining_count == 0 {
            return Ok(None);
        }
        if self.remaining_count == 0 {
            let mut head = [0; RUN_HEAD_LEN as usize];
            self.fill(blocks, &mut head)?;
            let mut fields = Fields(&head);
            let (last_no, block) = (fields.u32(), fields.u32());
            self.remaining_count = last_no.unwrap_or_default().saturating_add(1);
            self.block = block.unwrap_or_default();
            if self.remaining_count > RUN_COUNT_MAX {
                return Err(damaged("a run of more than 256 names"));
            }
        }
        self.remaining_count -= 1;
        let mut head = [0; NAME_HEAD_LEN as usize];
        self.fill(blocks, &mut head)?;
        let mut fields = Fields(&head);
        let offset = fields.u16().unwrap_or_default();
        let (_number, _kind) = (fields.u16(), fields.u16());
        let len = usize::from(fields.u16().unwrap_or_default()) + 1;
        if len > NAME_LEN_MAX {
            let what = format!("a name of {len} bytes, at most {NAME_LEN_MAX} can be kept");
            return Err(Error::limit(what));
        }
        let mut name = vec![0; len];
        self.fill(blocks, &mut name)?;
        let is_bad = name.contains(&b'/') || name.contains(&0) || name == b"." || name == b"..";
        if is_bad || name <= self.last {
            return Err(damaged(format!(
                "the name '{}' behind '{}' in a directory",
                name.escape_ascii(),
                self.last.escape_ascii()
            )));
        }
        self.last.clone_from(&name);
        let inode = InodeRef(u64::from(self.block) << 16 | u64::from(offset));
        Ok(Some(DirEntry { name, inode }))
    }

    fn fill(&mut self, blocks: &mut MetadataBlocks, out: &mut [u8]) -> Result<()> {
        let remaining_len = self.remaining_len.checked_sub(out.len() as u64);
        self.remaining_len = remaining_len.ok_or_else(|| damaged("a directory is cut short"))?;
        blocks.read(&mut self.cursor, out, "directories")
    }
}
