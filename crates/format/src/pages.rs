//! The smaller metadata pages. Contents, attributes and fs-verity digests are here; each other page
//! has a file: extents, links, templates, times, xattr sets.

#[cfg(test)]
mod damage;
mod extents;
mod links;
mod templates;
mod times;
mod xattrs;

pub use extents::*;
pub use links::*;
pub use templates::*;
pub use times::*;
pub use xattrs::*;

use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint};
use crate::limits::{ITEMS_PER_PAGE, NUMBER_MAX};
use crate::{Attributes, Result};

/// A page of up to `ITEMS_PER_PAGE` contents: the position of each in the logical space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentPage {
    /// Logical start of each content; the last element is the end of the last content.
    starts: Vec<u64>,
}

impl ContentPage {
    /// Encodes consecutive contents of these lengths. The first begins at `start` in the logical
    /// space.
    pub fn encode(start: u64, lens: &[u64]) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, lens.len() as u64);
        put_varint(&mut out, start);
        column::encode(&mut out, lens);
        out
    }

    /// Parses a page.
    ///
    /// # Errors
    /// `Corrupt`, also for a content of length 0.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "content page");
        let count = cursor.count(ITEMS_PER_PAGE, "content count")?;
        let mut start = cursor.bounded(NUMBER_MAX, "logical start")?;
        let lens = Column::decode(&mut cursor, count)?;
        let mut starts = vec![start];
        for len in lens.iter(count) {
            start = start.saturating_add(len);
            if len == 0 || start > NUMBER_MAX {
                return Err(cursor.error("F-10.1", format!("content length {len}: out of range")));
            }
            starts.push(start);
        }
        cursor.finish()?;
        Ok(Self { starts })
    }

    /// Contents in the page.
    pub fn count(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Logical start and length of content `index` of the page.
    pub fn get(&self, index: usize) -> Option<(u64, u64)> {
        let &start = self.starts.get(index)?;
        let &end = self.starts.get(index.checked_add(1)?)?;
        Some((start, end.saturating_sub(start)))
    }

    /// Bytes of heap memory of the page.
    pub fn memory_len(&self) -> usize {
        self.starts.len().saturating_mul(8)
    }
}

/// Encodes a page of attributes.
pub fn encode_attributes(items: &[Attributes]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, items.len() as u64);
    let columns: [fn(&Attributes) -> u64; 4] = [
        |a| u64::from(a.permissions),
        |a| u64::from(a.uid),
        |a| u64::from(a.gid),
        |a| a.rdev,
    ];
    for of in columns {
        column::encode(&mut out, &items.iter().map(of).collect::<Vec<_>>());
    }
    out
}

/// Parses a page of attributes.
///
/// # Errors
/// `Corrupt`, also for permissions over 0o7777 and owners over 32 bits.
pub fn parse_attributes(bytes: &[u8]) -> Result<Vec<Attributes>> {
    let mut cursor = Cursor::new(bytes, "attribute page");
    let count = cursor.count(ITEMS_PER_PAGE, "attribute count")?;
    let permissions = Column::decode(&mut cursor, count)?;
    let uids = Column::decode(&mut cursor, count)?;
    let gids = Column::decode(&mut cursor, count)?;
    let rdevs = Column::decode(&mut cursor, count)?;
    let item = |i| {
        Some(Attributes {
            permissions: u16::try_from(permissions.get(i))
                .ok()
                .filter(|p| *p <= 0o7777)?,
            uid: u32::try_from(uids.get(i)).ok()?,
            gid: u32::try_from(gids.get(i)).ok()?,
            rdev: rdevs.get(i),
        })
    };
    let items: Option<Vec<_>> = (0..count).map(item).collect();
    let items = items.ok_or_else(|| cursor.error("F-12.1", "attributes out of range"))?;
    cursor.finish()?;
    Ok(items)
}

/// Bytes of an fs-verity digest.
pub const FSVERITY_LEN: usize = 32;

/// Parses a page of fs-verity digests, one for each of consecutive contents.
///
/// # Errors
/// `Corrupt`.
pub fn parse_fsverity(bytes: &[u8]) -> Result<Vec<[u8; FSVERITY_LEN]>> {
    let mut cursor = Cursor::new(bytes, "fsverity page");
    let (digests, rest) = bytes.as_chunks();
    if digests.is_empty() || digests.len() > ITEMS_PER_PAGE || !rest.is_empty() {
        let what = format!(
            "fs-verity digests: expected 1 to {ITEMS_PER_PAGE} of {FSVERITY_LEN} bytes, found {} \
             bytes",
            bytes.len()
        );
        return Err(cursor.error("F-28.1", what));
    }
    cursor.bytes(bytes.len())?;
    Ok(digests.to_vec())
}

#[cfg(test)]
mod tests {
    use super::damage::check_damaged;
    use super::*;

    #[test]
    fn contents_round_trip() {
        let bytes = ContentPage::encode(1000, &[5, 6, 1 << 40]);
        let page = ContentPage::parse(&bytes).unwrap();
        assert_eq!(page.get(1), Some((1005, 6)));
        check_damaged(&bytes, ContentPage::parse);
    }

    #[test]
    fn attributes_round_trip() {
        let items: Vec<Attributes> = (0..40)
            .map(|i| Attributes {
                permissions: i as u16 * 100,
                uid: u32::MAX - i,
                gid: i * 7,
                rdev: u64::from(i) << 32,
            })
            .collect();
        let bytes = encode_attributes(&items);
        assert_eq!(parse_attributes(&bytes).unwrap(), items);
        check_damaged(&bytes, parse_attributes);
    }
}
