//! Contents of a file: pages in a map, so that a file of 8 EiB costs what was written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Length of a page, bytes.
pub const PAGE_LEN: u64 = 4096;

/// Contents; a page that is missing is a hole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pages(BTreeMap<u64, Arc<Vec<u8>>>);

impl Pages {
    /// Bytes of all pages.
    pub fn len(&self) -> u64 {
        self.0.len() as u64 * PAGE_LEN
    }

    /// The parts of `range`, cut at page borders: page number and range within the page.
    fn by_page(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
        let pages = range.start / PAGE_LEN..range.end.div_ceil(PAGE_LEN);
        pages.map(move |page| {
            let first = range.start.max(page * PAGE_LEN) - page * PAGE_LEN;
            let end = (range.end - page * PAGE_LEN).min(PAGE_LEN);
            (page, first as usize..end as usize)
        })
    }

    /// Appends the bytes of `range` to `out`.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<u8>) {
        for (page, part) in Self::by_page(range) {
            match self.0.get(&page) {
                Some(bytes) => out.extend_from_slice(&bytes[part]),
                None => out.resize(out.len() + part.len(), 0),
            }
        }
    }

    /// Stores `bytes` at `offset`.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (page, part) in Self::by_page(offset..offset + bytes.len() as u64) {
            let (now, later) = rest.split_at(part.len());
            let page = self.0.entry(page);
            let page = page.or_insert_with(|| Arc::new(vec![0; PAGE_LEN as usize]));
            Arc::make_mut(page)[part].copy_from_slice(now);
            rest = later;
        }
    }

    /// Makes `range` zeros; whole pages become holes.
    pub fn clear(&mut self, range: Range<u64>) {
        let within = range.start / PAGE_LEN..range.end.div_ceil(PAGE_LEN);
        let pages: Vec<u64> = self.0.range(within).map(|(page, _)| *page).collect();
        for page in pages {
            let first = range.start.max(page * PAGE_LEN) - page * PAGE_LEN;
            let end = (range.end - page * PAGE_LEN).min(PAGE_LEN);
            if end - first == PAGE_LEN {
                self.0.remove(&page);
            } else if let Some(bytes) = self.0.get_mut(&page) {
                Arc::make_mut(bytes)[first as usize..end as usize].fill(0);
            }
        }
    }

    /// Moves all pages from number `first` on by `by` pages.
    pub fn shift(&mut self, first: u64, by: i64) {
        let moved = self.0.split_off(&first);
        let moved = moved.into_iter().map(|(page, bytes)| {
            let page = page.checked_add_signed(by).expect("a page number");
            (page, bytes)
        });
        self.0.extend(moved);
    }

    /// Copies `from` of `source` to `offset`. Holes of the source become holes or zeros.
    pub fn copy(&mut self, source: &Self, from: Range<u64>, offset: u64) {
        self.clear(offset..offset + (from.end - from.start));
        let within = from.start / PAGE_LEN..from.end.div_ceil(PAGE_LEN);
        for (page, bytes) in source.0.range(within) {
            let start = from.start.max(page * PAGE_LEN);
            let end = from.end.min((page + 1).saturating_mul(PAGE_LEN));
            let part = (start - page * PAGE_LEN) as usize..(end - page * PAGE_LEN) as usize;
            self.write(offset + (start - from.start), &bytes[part]);
        }
    }

    /// The first byte from `offset` on that is in a page (`wants_hole`: in none).
    pub fn seek(&self, offset: u64, wants_hole: bool) -> Option<u64> {
        let first = offset / PAGE_LEN;
        if !wants_hole {
            let (page, _) = self.0.range(first..).next()?;
            return Some(offset.max(page * PAGE_LEN));
        }
        let mut page = first;
        for (present, _) in self.0.range(first..) {
            if *present != page {
                break;
            }
            page += 1;
        }
        Some(offset.max(page * PAGE_LEN))
    }
}
