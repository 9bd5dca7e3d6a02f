//! Index pages: the references of a section.

use super::{check_items, check_lens, codec_of};
use crate::Result;
use crate::column::{self, Column};
use crate::container::{RecordRef, RecordType};
use crate::cursor::Cursor;

/// An index page: references to up to `REFS_PER_PAGE` records of one section, with the number of
/// items in each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IndexPage {
    /// The references, in order.
    pub refs: Vec<RecordRef>,
    /// Items before each reference; the last element, one more than `refs` has, is the sum.
    pub item_starts: Vec<u64>,
}

impl IndexPage {
    /// Makes the page that would hold this record alone.
    pub fn single(record: RecordRef, item_count: u64) -> Self {
        Self {
            refs: vec![record],
            item_starts: vec![0, item_count],
        }
    }

    /// Encodes a page for `refs`; record i has `items[i]` items.
    // trusted input: values of this program
    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
    pub fn encode(refs: &[RecordRef], items: &[u64]) -> Vec<u8> {
        let mut out = Vec::with_capacity(refs.len() * 44 + 64);
        let mut put = |value: &dyn Fn(usize) -> u64| {
            column::encode(&mut out, &(0..refs.len()).map(value).collect::<Vec<_>>());
        };
        put(&|i| refs[i].offset);
        put(&|i| refs[i].stored_len);
        put(&|i| refs[i].raw_len);
        put(&|i| u64::from(refs[i].codec as u8));
        put(&|i| items[i]);
        refs.iter().for_each(|r| out.extend_from_slice(&r.digest.0));
        out
    }

    /// Parses a page of `count` references of `record_type`. Its `PageRef` announced `item_count`
    /// items.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(
        bytes: &[u8],
        record_type: RecordType,
        count: usize,
        item_count: u64,
    ) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "index page");
        let offsets = Column::decode(&mut cursor, count)?;
        let stored_lens = Column::decode(&mut cursor, count)?;
        let raw_lens = Column::decode(&mut cursor, count)?;
        let codecs = Column::decode(&mut cursor, count)?;
        let items = Column::decode(&mut cursor, count)?;
        let mut page = Self {
            refs: Vec::with_capacity(count),
            item_starts: vec![0],
        };
        let mut sum = 0u64;
        for i in 0..count {
            let record = RecordRef {
                record_type,
                codec: codec_of(&cursor, codecs.get(i))?,
                offset: offsets.get(i),
                stored_len: stored_lens.get(i),
                raw_len: raw_lens.get(i),
                digest: cursor.digest()?,
            };
            check_lens(&record)?;
            check_items(&cursor, &record, items.get(i))?;
            sum = sum.saturating_add(items.get(i));
            page.refs.push(record);
            page.item_starts.push(sum);
        }
        if sum != item_count {
            return Err(cursor.error(
                "F-7.9",
                format!("items: expected {item_count} in all, found {sum}"),
            ));
        }
        cursor.finish()?;
        Ok(page)
    }

    /// Bytes of heap memory of the page.
    pub fn memory_len(&self) -> usize {
        self.refs
            .len()
            .saturating_mul(size_of::<RecordRef>().saturating_add(8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::reference;

    #[test]
    fn index_pages_round_trip_and_refuse_prefixes() {
        let refs: Vec<_> = (0..30).map(|i| reference(64 + i * i * 100)).collect();
        let bytes = IndexPage::encode(&refs, &[20; 30]);
        let page = IndexPage::parse(&bytes, RecordType::Data, 30, 600).unwrap();
        assert_eq!(page.refs, refs);
        assert_eq!(page.item_starts.last(), Some(&600));
        for len in 0..bytes.len() {
            assert!(IndexPage::parse(&bytes[..len], RecordType::Data, 30, 600).is_err());
        }
        assert!(IndexPage::parse(&bytes, RecordType::Data, 30, 601).is_err());
    }
}
