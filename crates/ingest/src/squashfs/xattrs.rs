//! Extended attributes.

use super::blocks::{MetadataBlocks, MetadataCursor};
use super::failure::damaged;
use super::inode::InodeRef;
use super::superblock::Superblock;
use super::table::Table;
use crate::fields::Fields;
use weald_format::limits::XATTR_NAME_LEN_MAX;
use weald_format::{Error, Result, Xattr, XattrSet};

/// Namespaces by number.
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// Marks a value that lies elsewhere.
const ELSEWHERE: u16 = 0x100;
/// Bytes of a value at most: the limit of Linux.
const VALUE_LEN_MAX: u32 = 64 << 10;
/// Bytes of all values of an inode, and their count, at most: an inode names its set by number
/// only, and each may be read for every inode.
const SET_LEN_MAX: u64 = 4 << 20;
const SET_COUNT_MAX: u32 = 4096;

/// The sets of xattrs of an image.
#[derive(Debug)]
pub struct Xattrs {
    sets: Option<Sets>,
    /// The set that was read last, and its number: neighbours often have the same.
    last: Option<(u32, XattrSet)>,
}

#[derive(Debug)]
struct Sets {
    /// Where the values lie.
    start: u64,
    table: Table,
}

impl Xattrs {
    /// Finds the sets of the image.
    ///
    /// # Errors
    /// `Io`; `Invalid` for a table outside of the image.
    pub fn read(superblock: &Superblock, blocks: &MetadataBlocks) -> Result<Self> {
        let (mut sets, last) = (None, None);
        if let Some(at) = superblock.xattr_table {
            let mut head = [0; 16];
            blocks.read_plain(at, &mut head, "xattrs")?;
            let mut fields = Fields(&head);
            let (start, count) = (fields.u64(), fields.u32());
            sets = Some(Sets {
                start: start.unwrap_or_default(),
                table: Table::xattr_sets(at.saturating_add(16), count.unwrap_or_default()),
            });
        }
        Ok(Self { sets, last })
    }

    /// The set of this number, if there is one.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage; `Limit` for sets longer than Linux has.
    pub fn of(&mut self, blocks: &mut MetadataBlocks, no: Option<u32>) -> Result<XattrSet> {
        let Some(no) = no else {
            return Ok(XattrSet::new());
        };
        if let Some((_, set)) = self.last.as_ref().filter(|(last, _)| *last == no) {
            return Ok(set.clone());
        }
        let sets = self.sets.as_ref();
        let sets = sets.ok_or_else(|| damaged("an inode has xattrs, and the image has none"))?;
        let set = sets.set(blocks, no)?;
        self.last = Some((no, set.clone()));
        Ok(set)
    }
}

impl Sets {
    fn set(&self, blocks: &mut MetadataBlocks, no: u32) -> Result<XattrSet> {
        let mut item = [0; 16];
        self.table.read(blocks, no.into(), &mut item)?;
        let mut fields = Fields(&item);
        let place = InodeRef(fields.u64().unwrap_or_default());
        let count = fields.u32().unwrap_or_default();
        if count > SET_COUNT_MAX {
            let what = format!("{count} xattrs of one file, at most {SET_COUNT_MAX} are taken");
            return Err(Error::limit(what));
        }
        let mut cursor = place.cursor(self.start);
        let (mut set, mut remaining_len) = (XattrSet::new(), SET_LEN_MAX);
        for _ in 0..count {
            let xattr = self.xattr(blocks, &mut cursor)?;
            let len = (xattr.name.len() + xattr.value.len()) as u64;
            let remaining = remaining_len.checked_sub(len);
            remaining_len = remaining.ok_or_else(|| {
                Error::limit(format!(
                    "xattrs of more than {SET_LEN_MAX} bytes of one file"
                ))
            })?;
            set.push(xattr);
        }
        set.sort_by(|a, b| a.name.cmp(&b.name));
        if !set.is_sorted_by(|a, b| a.name < b.name) {
            return Err(damaged("an xattr twice"));
        }
        Ok(set)
    }

    fn xattr(&self, blocks: &mut MetadataBlocks, cursor: &mut MetadataCursor) -> Result<Xattr> {
        let mut head = [0; 4];
        blocks.read(cursor, &mut head, "xattrs")?;
        let mut fields = Fields(&head);
        let kind = fields.u16().unwrap_or_default();
        let len = usize::from(fields.u16().unwrap_or_default());
        let prefix = PREFIXES.get(usize::from(kind & !ELSEWHERE));
        let prefix = prefix.ok_or_else(|| damaged(format!("an xattr of type {kind}")))?;
        if len > XATTR_NAME_LEN_MAX {
            return Err(damaged(format!("an xattr with a name of {len} bytes")));
        }
        let mut name = prefix.to_vec();
        name.resize(prefix.len() + len, 0);
        let own = name.get_mut(prefix.len()..).unwrap_or_default();
        blocks.read(cursor, own, "xattrs")?;
        let value = read_value(blocks, cursor)?;
        if kind & ELSEWHERE == 0 {
            return Ok(Xattr { name, value });
        }
        let place = value.try_into().map(u64::from_le_bytes);
        let place = place.map_err(|_| damaged("the place of an xattr"))?;
        let value = read_value(blocks, &mut InodeRef(place).cursor(self.start))?;
        Ok(Xattr { name, value })
    }
}

fn read_value(blocks: &mut MetadataBlocks, cursor: &mut MetadataCursor) -> Result<Vec<u8>> {
    let mut len = [0; 4];
    blocks.read(cursor, &mut len, "xattrs")?;
    let len = u32::from_le_bytes(len);
    if len > VALUE_LEN_MAX {
        return Err(damaged(format!("an xattr of {len} bytes")));
    }
    let mut value = vec![0; len as usize];
    blocks.read(cursor, &mut value, "xattrs")?;
    Ok(value)
}
