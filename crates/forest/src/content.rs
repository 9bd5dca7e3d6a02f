//! Contents of files. Any part of any file can be made without the rest.

use crate::draw::{Key, Sequence};
use crate::names::append_word;
use std::ops::Range;

/// Length of a page, bytes. Each page is drawn at once, so a change alters whole pages.
const PAGE_LEN: usize = 4096;
/// A sparse file has a data run of this many bytes …
const SPARSE_RUN_LEN: u64 = 16 << 10;
/// … at the start of every period of this many bytes. The rest of the period is a hole, so the
/// file ends with a hole.
const SPARSE_PERIOD_LEN: u64 = 64 << 10;
/// Number of words in the vocabulary of text.
const WORD_COUNT: u64 = 512;

/// The content of a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    key: Key,
    /// Key from which changes are drawn.
    change_key: Key,
    len: u64,
    is_sparse: bool,
    /// Versions that changed the content, ascending.
    epochs: Vec<u64>,
}

impl Content {
    /// Makes a content of `len` data bytes, drawn from `key`. The versions `epochs` change it; the
    /// changes are drawn from `change_key`.
    pub(crate) fn new(
        key: Key,
        len: u64,
        is_sparse: bool,
        change_key: Key,
        epochs: Vec<u64>,
    ) -> Self {
        // A change makes most files a little longer.
        let grown = epochs
            .iter()
            .map(|&v| change_key.part(v).part(1).below(len / 64 + 1))
            .sum::<u64>();
        Self {
            key,
            change_key,
            // File systems store holes in units of pages.
            len: if is_sparse {
                (len + grown).next_multiple_of(PAGE_LEN as u64)
            } else {
                len + grown
            },
            is_sparse,
            epochs,
        }
    }

    /// Length with holes, bytes.
    pub fn len(&self) -> u64 {
        if self.is_sparse {
            self.len.div_ceil(SPARSE_RUN_LEN) * SPARSE_PERIOD_LEN
        } else {
            self.len
        }
    }

    /// Whether the content has no data.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length without holes, bytes.
    pub fn data_len(&self) -> u64 {
        self.len
    }

    /// Data runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let (step, run) = if self.is_sparse {
            (SPARSE_PERIOD_LEN, SPARSE_RUN_LEN)
        } else {
            (self.len.max(1), self.len)
        };
        let len = self.len;
        let count = len.div_ceil(run.max(1));
        (0..count).map(move |i| i * step..i * step + run.min(len - i * run))
    }

    /// Fills `out` with the bytes from `start` on. Holes and everything after the end are zeros.
    ///
    /// # Cost
    /// 1 to 3 ns per byte.
    pub fn fill(&self, start: u64, out: &mut [u8]) {
        let mut page = Vec::with_capacity(PAGE_LEN + 16);
        let mut done = 0;
        while done < out.len() {
            let at = start + done as u64;
            let page_start = at / PAGE_LEN as u64 * PAGE_LEN as u64;
            let skip = (at - page_start) as usize;
            let count = (PAGE_LEN - skip).min(out.len() - done);
            let piece = &mut out[done..done + count];
            self.fill_piece(page_start, skip, piece, &mut page);
            done += count;
        }
    }

    fn fill_piece(&self, page_start: u64, skip: usize, piece: &mut [u8], page: &mut Vec<u8>) {
        // End of the data in this page.
        let end = if self.is_sparse {
            let (period, at) = (
                page_start / SPARSE_PERIOD_LEN,
                page_start % SPARSE_PERIOD_LEN,
            );
            let remaining = self.len.saturating_sub(period * SPARSE_RUN_LEN);
            page_start + remaining.min(SPARSE_RUN_LEN).saturating_sub(at)
        } else {
            self.len
        };
        let remaining = end.saturating_sub(page_start + skip as u64);
        let data_len = (piece.len() as u64).min(remaining) as usize;
        if data_len > 0 {
            self.make_page(page_start / PAGE_LEN as u64, page);
            piece[..data_len].copy_from_slice(&page[skip..skip + data_len]);
        }
        piece[data_len..].fill(0);
    }

    fn make_page(&self, number: u64, page: &mut Vec<u8>) {
        let mut key = self.key.part(number);
        // A change alters one page in eight.
        let changed = self.epochs.iter().rev().find(|&&v| {
            let change = self.change_key.part(v).part(2).part(number);
            change.below(8) == 0
        });
        if let Some(&version) = changed {
            key = key.part(version);
        }
        page.clear();
        let mut sequence = Sequence::new(key);
        // Two of three pages are text; the third is incompressible.
        match key.part(0).below(3) {
            0 => {
                while page.len() < PAGE_LEN {
                    page.extend_from_slice(&sequence.next_bits().to_le_bytes());
                }
            }
            _ => {
                while page.len() < PAGE_LEN {
                    let bits = sequence.next_bits();
                    // The product of two draws makes some words far more frequent.
                    let word = ((bits & 0xffff) * (bits >> 16 & 0xffff) * WORD_COUNT) >> 32;
                    append_word(Key::new(word), page);
                    page.push(if bits >> 60 == 0 { b'\n' } else { b' ' });
                }
            }
        }
        page.truncate(PAGE_LEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(len: u64, is_sparse: bool, epochs: &[u64]) -> Content {
        let key = Key::new(5);
        Content::new(key, len, is_sparse, key.part(1), epochs.to_vec())
    }

    /// Catches: bytes that depend on how a reader splits its requests.
    #[test]
    fn parts_agree_with_the_whole() {
        for content in [
            content(300_000, false, &[]),
            content(300_000, true, &[]),
            content(100_000, false, &[1, 4]),
        ] {
            let mut whole = vec![1; content.len() as usize + 100];
            content.fill(0, &mut whole);
            assert!(whole[content.len() as usize..].iter().all(|&b| b == 0));
            for (start, len) in [(0, 1), (4095, 2), (65_000, 9000), (99_000, 1000)] {
                let mut part = vec![1; len];
                content.fill(start as u64, &mut part);
                assert_eq!(part, whole[start..start + len]);
            }
            let data: u64 = content.runs().map(|r| r.end - r.start).sum();
            assert_eq!(data, content.data_len());
            let mut at = 0;
            for run in content.runs() {
                assert!(whole[at..run.start as usize].iter().all(|&b| b == 0));
                at = run.end as usize;
            }
        }
    }

    /// Catches: versions that share nothing, or everything.
    #[test]
    fn a_change_alters_few_pages() {
        let page_of = |content: &Content, i: u64| {
            let mut page = vec![0; PAGE_LEN];
            content.fill(i * PAGE_LEN as u64, &mut page);
            page
        };
        let (old, new) = (
            content(4 << 20, false, &[2]),
            content(4 << 20, false, &[2, 3]),
        );
        let altered = (0..1000)
            .filter(|&i| page_of(&old, i) != page_of(&new, i))
            .count();
        assert!((80..180).contains(&altered), "{altered}");
        assert!(new.len() > old.len());
    }
}
