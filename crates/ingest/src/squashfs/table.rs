//! Tables of equal items: owners, and places of fragments. They lie in blocks of metadata, whose
//! places are listed.

use super::blocks::{BLOCK_LEN, MetadataBlocks, MetadataCursor};
use super::failure::damaged;
use super::superblock::Superblock;
use weald_format::Result;

/// A table.
#[derive(Debug, Clone)]
pub struct Table {
    /// Where the list of places lies.
    places: u64,
    count: u64,
    item_len: usize,
    what: &'static str,
}

impl Table {
    /// The table of owners and groups.
    pub fn ids(superblock: &Superblock) -> Self {
        Self {
            places: superblock.id_table,
            count: superblock.id_count.into(),
            item_len: 4,
            what: "owners",
        }
    }

    /// The table of fragments.
    pub fn fragments(superblock: &Superblock) -> Self {
        let is_there = superblock.fragment_table.is_some();
        Self {
            places: superblock.fragment_table.unwrap_or_default(),
            count: u64::from(superblock.fragment_count) * u64::from(is_there),
            item_len: 16,
            what: "fragments",
        }
    }

    /// The table of sets of xattrs, whose places are listed at `places`.
    pub fn xattr_sets(places: u64, count: u32) -> Self {
        Self {
            places,
            count: count.into(),
            item_len: 16,
            what: "xattrs",
        }
    }

    /// Fills `out` with item `no`.
    ///
    /// # Errors
    /// `Io`; `Invalid` for an item that is not there.
    pub fn read(&self, blocks: &mut MetadataBlocks, no: u64, out: &mut [u8]) -> Result<()> {
        let what = self.what;
        if no >= self.count || out.len() != self.item_len {
            let count = self.count;
            return Err(damaged(format!("{what}: number {no} of {count}")));
        }
        let start = no.saturating_mul(self.item_len as u64);
        let (block_no, at) = (start / BLOCK_LEN as u64, start % BLOCK_LEN as u64);
        let mut place = [0; 8];
        let place_at = self.places.saturating_add(block_no * 8);
        blocks.read_plain(place_at, &mut place, what)?;
        let mut cursor = MetadataCursor {
            block: u64::from_le_bytes(place),
            at: at as usize,
        };
        blocks.read(&mut cursor, out, what)
    }

    /// The owner or group of this number.
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn id(&self, blocks: &mut MetadataBlocks, no: u16) -> Result<u32> {
        let mut id = [0; 4];
        self.read(blocks, no.into(), &mut id)?;
        Ok(u32::from_le_bytes(id))
    }
}
