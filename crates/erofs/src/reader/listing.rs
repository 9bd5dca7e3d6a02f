//! Lists directories from any entry on, and finds entries by name.

use super::directory::DirBlock;
use super::{Inode, Volume, damaged};
use std::ops::ControlFlow;
use weald_format::{FileKind, Result};

/// Bits of an index that number the entry in its block. A block of 64 KiB has 5461 entries.
const ENTRY_BITS: u32 = 16;

/// Called with the index of an entry, its name and its inode number. `Break` ends the listing.
pub type VisitEntry<'a> = dyn FnMut(u64, &[u8], u64) -> Result<ControlFlow<()>> + 'a;

impl Volume {
    /// Visits the entries of the directory `dir` from the index `start` on, also `.` and `..`.
    /// Indexes ascend; the entry behind one is reached from the next number on.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage and for other inodes; what `visit` returns.
    pub fn list(&self, dir: &Inode, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        let mut block_no = start >> ENTRY_BITS;
        let mut skipped = (start & ((1 << ENTRY_BITS) - 1)) as usize;
        while block_no < self.dir_block_count(dir)? {
            let block = DirBlock::read(self, dir, block_no)?;
            let entries = block.entries().iter().enumerate().skip(skipped);
            for (entry_no, entry) in entries {
                let index = block_no << ENTRY_BITS | entry_no as u64;
                if visit(index, block.name(entry), entry.nid)?.is_break() {
                    return Ok(());
                }
            }
            block_no = block_no.saturating_add(1);
            skipped = 0;
        }
        Ok(())
    }

    /// The inode number of the entry `name` of the directory `dir`.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage and for other inodes.
    ///
    /// # Cost
    /// Reads O(log of the number of blocks) blocks.
    pub fn find(&self, dir: &Inode, name: &[u8]) -> Result<Option<u64>> {
        let (mut start, mut end) = (0, self.dir_block_count(dir)?);
        while start < end {
            let middle = start.midpoint(end);
            let block = DirBlock::read(self, dir, middle)?;
            let entries = block.entries();
            let found = entries.binary_search_by(|entry| block.name(entry).cmp(name));
            match found {
                Ok(at) => return Ok(entries.get(at).map(|entry| entry.nid)),
                Err(0) => end = middle,
                Err(at) if at == entries.len() => start = middle.saturating_add(1),
                Err(_) => return Ok(None),
            }
        }
        Ok(None)
    }

    fn dir_block_count(&self, dir: &Inode) -> Result<u64> {
        match dir.kind {
            FileKind::Directory => Ok(dir.size.div_ceil(self.block_len())),
            _ => Err(damaged(format_args!("inode {} is no directory", dir.nid))),
        }
    }
}
