//! Samples: the positions of data at which the segmenter looks for repeats. The content decides
//! where they are: a gear hash of the bytes before, whose top bits are zero, marks a position.
//!
//! Threads that read files mark their data ahead, and the segmenter, of which there is one, only
//! goes through the marks. Both ways find the same samples.

use crate::segment::match_table::{GEAR, HASH_WINDOW_LEN};
use std::ops::Range;

/// Least distance between two samples, bytes. Without it constant data would be sampled at every
/// byte.
pub const SAMPLE_GAP: usize = 16;

/// Marks of more than one byte in this many take too much memory.
const LEN_PER_MARK_MIN: usize = 24;

/// Says which positions are marked: those whose hash has no bits set from a certain bit on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleRule {
    shift: u32,
}

impl SampleRule {
    /// Marks a position of random data every 2^(64 - `shift`) bytes.
    pub fn new(shift: u32) -> Self {
        Self { shift }
    }

    /// Samples of one block: the hash, and the end of the bytes that it covers. They take at most
    /// one byte of memory per byte of the block.
    pub fn samples(self, block: &[u8]) -> Vec<(u64, u32)> {
        let mut found = Vec::new();
        let (mut at, mut hash, mut last_sample) = (0, 0, 0);
        while at < block.len() {
            let (next, is_marked) = self.next(block, at, &mut hash, usize::MAX);
            at = next;
            if is_marked && at >= HASH_WINDOW_LEN && at >= last_sample + SAMPLE_GAP {
                last_sample = at;
                found.push((hash, at as u32));
            }
        }
        found
    }

    /// All marks of `data` behind its first window. `None` if they would take more than half as
    /// much memory as the data, which has long runs of the same bytes, or if it is longer than
    /// 4 GiB.
    pub fn marks(self, data: &[u8]) -> Option<MarkList> {
        let count_max = data.len() / LEN_PER_MARK_MIN;
        let mut list = MarkList {
            ends: Vec::new(),
            hashes: Vec::new(),
        };
        let (mut at, mut hash) = (0, 0);
        while at < data.len() {
            let (next, is_marked) = self.next(data, at, &mut hash, usize::MAX);
            at = next;
            if is_marked && at >= HASH_WINDOW_LEN {
                if list.ends.len() == count_max {
                    return None;
                }
                list.ends.push(u32::try_from(at).ok()?);
                list.hashes.push(hash);
            }
        }
        Some(list)
    }

    /// Advances the rolling hash from `at` to behind the next mark, at most `len_max` bytes.
    /// Returns the position reached, and whether it is marked.
    fn next(self, data: &[u8], at: usize, hash: &mut u64, len_max: usize) -> (usize, bool) {
        let end = data.len().min(at.saturating_add(len_max));
        let mut h = *hash;
        for (i, &byte) in data[at..end].iter().enumerate() {
            h = (h << 1).wrapping_add(GEAR[usize::from(byte)]);
            if h >> self.shift == 0 {
                *hash = h;
                return (at + i + 1, true);
            }
        }
        *hash = h;
        (end, false)
    }
}

/// Gear hash of the window that ends at `at`.
fn hash_before(data: &[u8], at: usize) -> u64 {
    let start = at.saturating_sub(HASH_WINDOW_LEN);
    data[start..at]
        .iter()
        .fold(0, |h, &b| (h << 1).wrapping_add(GEAR[usize::from(b)]))
}

/// Marks of some data, in order.
#[derive(Debug, Default)]
pub struct MarkList {
    ends: Vec<u32>,
    hashes: Vec<u64>,
}

impl MarkList {
    /// The marks inside of a part of the data.
    pub fn within(&self, part: Range<usize>) -> Marked<'_> {
        let place = |at: usize| self.ends.partition_point(|&end| end as usize <= at);
        let range = place(part.start)..place(part.end);
        Marked {
            ends: &self.ends[range.clone()],
            hashes: &self.hashes[range],
            start: part.start,
        }
    }
}

/// Marks in a part of data.
#[derive(Debug, Clone, Copy)]
pub struct Marked<'a> {
    ends: &'a [u32],
    hashes: &'a [u64],
    /// Where the part begins in the data.
    start: usize,
}

/// Goes through the marks of data, which are known or looked for.
pub struct Marks<'a> {
    rule: SampleRule,
    data: &'a [u8],
    hash: u64,
    known: Option<Marked<'a>>,
}

impl<'a> Marks<'a> {
    /// Begins at `at` in `data`.
    pub fn new(rule: SampleRule, data: &'a [u8], at: usize, known: Option<Marked<'a>>) -> Self {
        let mut marks = Self {
            rule,
            data,
            hash: 0,
            known,
        };
        marks.jump(at);
        marks
    }

    /// Goes on at `at`.
    pub fn jump(&mut self, at: usize) {
        match &mut self.known {
            Some(known) => {
                let passed = known
                    .ends
                    .partition_point(|&end| end as usize <= known.start + at);
                known.ends = &known.ends[passed..];
                known.hashes = &known.hashes[passed..];
            }
            None => self.hash = hash_before(self.data, at),
        }
    }

    /// The hash of the known mark that lies `count` marks behind the next one.
    pub fn ahead(&self, count: usize) -> Option<u64> {
        let known = self.known.as_ref()?;
        known.hashes.get(count).copied()
    }

    /// Goes on from `at` to behind the next mark, at most `len_max` bytes. Returns the position
    /// reached, and the hash if it is marked. Marks in the first window of the data do not count
    /// and may be missing.
    pub fn next(&mut self, at: usize, len_max: usize) -> (usize, Option<u64>) {
        let Some(known) = &mut self.known else {
            let (next, is_marked) = self.rule.next(self.data, at, &mut self.hash, len_max);
            return (next, is_marked.then_some(self.hash));
        };
        let end = self.data.len().min(at + len_max);
        match (known.ends.split_first(), known.hashes.split_first()) {
            (Some((&mark, ends)), Some((&hash, hashes))) if mark as usize - known.start <= end => {
                let next = mark as usize - known.start;
                (known.ends, known.hashes) = (ends, hashes);
                (next, Some(hash))
            }
            _ => (end, None),
        }
    }
}
