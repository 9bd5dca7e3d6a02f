//! A stable external merge sort of records by key, within a memory limit, with temporary files.
//!
//! In memory: multikey quicksort over twelve bytes of the keys at a time (Bentley & Sedgewick,
//! "Fast Algorithms for Sorting and Searching Strings", 1997; cached bytes after Ng & Kakehi,
//! 2007). Keys in a run are front-coded. A loser tree merges the runs (Knuth, TAOCP 3, 5.4.1).

use std::cmp::Ordering;
use std::ops::Range;
use std::path::{Path, PathBuf};
use weald_format::cursor::{Cursor, put_varint};
use weald_format::{Error, Result};
use weald_io::{ReadAt, Spool};

/// Bytes of a run read or written at once.
const RUN_PIECE_LEN: usize = 64 << 10;
/// Runs merged at once.
const FAN_IN_MAX: usize = 128;
/// Bytes of memory for reading the merged records.
pub const MERGE_LEN: u64 = (FAN_IN_MAX * RUN_PIECE_LEN * 2) as u64;
/// Records prefetched into the CPU cache at once.
const PREFETCH_COUNT: usize = 64;
/// Groups up to this count of records are sorted by comparing whole keys.
const SMALL_GROUP_COUNT: usize = 12;
/// Bytes of the length before a key in memory.
const KEY_HEADER_LEN: usize = size_of::<u32>();
/// Bytes of memory per record in the sorter besides the record itself.
const ITEM_LEN: usize = size_of::<Item>();

/// Bytes of a key compared at once.
const CHUNK_LEN: usize = 12;
/// Bytes compared at once to find the common prefix of two keys.
const WORD_LEN: usize = size_of::<u64>();

/// A record in memory as one number. One comparison instead of two avoids a branch that the CPU
/// cannot predict. The lowest 32 bits are the offset of the record. The bits above are the bytes of
/// its key at the depth of the sort, with zeros behind its end.
type Item = u128;

fn start_of(item: Item) -> usize {
    (item & Item::from(u32::MAX)) as usize
}

/// Sorts records by key. Keys do not end in a zero byte and have no two adjacent zeros, so a key
/// sorts as if zeros followed it.
pub struct Sorter {
    dir: PathBuf,
    memory_len: usize,
    bytes: Vec<u8>,
    items: Vec<Item>,
    runs: Runs,
}

/// Sorted runs in one temporary file.
struct Runs {
    spool: Spool,
    ranges: Vec<Range<u64>>,
}

impl Runs {
    fn new(dir: &Path) -> Result<Self> {
        Ok(Self {
            spool: Spool::create(dir)?,
            ranges: Vec::new(),
        })
    }
}

impl Sorter {
    /// A sorter with about `memory_len` bytes of memory; its runs go to `dir`.
    ///
    /// # Errors
    /// `Io` if no temporary file can be made.
    pub fn new(dir: &Path, memory_len: u64) -> Result<Self> {
        // Offsets of records have 32 bits.
        let memory_len = memory_len.clamp(1 << 16, 1 << 30) as usize;
        Ok(Self {
            dir: dir.to_owned(),
            memory_len,
            bytes: Vec::new(),
            items: Vec::new(),
            runs: Runs::new(dir)?,
        })
    }

    /// Adds a record.
    ///
    /// # Errors
    /// `Io`, `Full` for the temporary file; `Limit` for a record of 256 MiB.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        debug_assert!(key.last() != Some(&0), "a key that ends in a zero");
        let len = KEY_HEADER_LEN + key.len() + value.len() + 5;
        if len > 1 << 28 {
            return Err(Error::limit("a record of more than 256 MiB"));
        }
        let held = self.bytes.len() + (self.items.len() + 1) * ITEM_LEN;
        if held + len > self.memory_len && !self.items.is_empty() {
            self.write_run()?;
        }
        if self.bytes.capacity() == 0 {
            self.reserve();
        }
        self.items.push(self.bytes.len() as Item);
        self.bytes
            .extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(key);
        put_varint(&mut self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    /// Reserves all memory at once. The kernel allocates pages at the first write, so unused memory
    /// costs nothing. Doubling a vector would need half as much again.
    fn reserve(&mut self) {
        self.bytes.reserve(self.memory_len);
        self.items.reserve(self.memory_len / ITEM_LEN / 2);
    }

    fn write_run(&mut self) -> Result<()> {
        let mut writer = RunWriter::new(&mut self.runs.spool);
        let bytes = &self.bytes;
        let mut last: &[u8] = &[];
        sort(&mut self.items, bytes, &mut |items| {
            for some in items.chunks(PREFETCH_COUNT) {
                prefetch(some, bytes);
                for &item in some {
                    let (key, value) = record(item, bytes)?;
                    writer.push(key, value, common_len(key, last))?;
                    last = key;
                }
            }
            Ok(())
        })?;
        let place = writer.finish()?;
        self.runs.ranges.push(place);
        self.bytes.clear();
        self.items.clear();
        Ok(())
    }

    /// Ends the input and returns all records by key.
    ///
    /// # Errors
    /// `Io`, `Full` for temporary files.
    pub fn finish(mut self) -> Result<Sorted> {
        if !self.items.is_empty() {
            self.write_run()?;
        }
        (self.bytes, self.items) = (Vec::new(), Vec::new());
        let mut runs = self.runs;
        while runs.ranges.len() > FAN_IN_MAX {
            let mut merged = Runs::new(&self.dir)?;
            // Adjacent runs are merged into one, so that equal keys keep their order.
            for some in runs.ranges.chunks(FAN_IN_MAX) {
                let mut merge = LoserTree::new(&runs.spool, some)?;
                let mut writer = RunWriter::new(&mut merged.spool);
                while let Some(next) = merge.next(&runs.spool)? {
                    writer.push(next.key, next.value, next.common)?;
                }
                let place = writer.finish()?;
                merged.ranges.push(place);
            }
            runs = merged;
        }
        let merge = LoserTree::new(&runs.spool, &runs.ranges)?;
        Ok(Sorted {
            spool: runs.spool,
            merge,
        })
    }
}

/// A record of the sorted sequence.
pub struct Next<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// Bytes of the common prefix with the key before.
    pub common: usize,
}

/// Records in the order of their keys.
pub struct Sorted {
    spool: Spool,
    merge: LoserTree,
}

impl Sorted {
    /// The next record.
    ///
    /// # Errors
    /// `Io`.
    pub fn next(&mut self) -> Result<Option<Next<'_>>> {
        self.merge.next(&self.spool)
    }
}

/// Reads from all records of `items`, which lie anywhere in memory, so that their cache misses
/// overlap. One miss after the other took half of the sorting time.
fn prefetch(items: &[Item], bytes: &[u8]) {
    let mut seen = 0;
    for &item in items {
        let start = start_of(item);
        // Most records lie in two cache lines.
        let end = (start + 64).min(bytes.len() - 1);
        seen ^= bytes[start] ^ bytes[end];
    }
    std::hint::black_box(seen);
}

fn key_of(item: Item, bytes: &[u8]) -> &[u8] {
    let (len, rest) = bytes[start_of(item)..].split_at(KEY_HEADER_LEN);
    let len = len
        .iter()
        .rev()
        .fold(0, |len, &b| len << 8 | usize::from(b));
    &rest[..len]
}

fn record(item: Item, bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let key = key_of(item, bytes);
    let end = start_of(item) + KEY_HEADER_LEN + key.len();
    let mut cursor = Cursor::new(&bytes[end..], "record");
    let len = cursor.varint()?;
    Ok((key, cursor.bytes(len as usize)?))
}

/// A range of items.
struct ItemRange {
    items: Range<usize>,
    /// Length of the common prefix of their keys; `None` if they are in order.
    depth: Option<usize>,
}

/// Sorts `items` by key and passes each sorted range to `take` at once, while the keys are still in
/// the CPU cache.
fn sort(
    items: &mut [Item],
    bytes: &[u8],
    take: &mut dyn FnMut(&[Item]) -> Result<()>,
) -> Result<()> {
    // A stack: the first range lies on top.
    let mut parts = vec![ItemRange {
        items: 0..items.len(),
        depth: Some(0),
    }];
    while let Some(ItemRange {
        items: range,
        depth,
    }) = parts.pop()
    {
        let part = &mut items[range.clone()];
        let Some(depth) = depth else {
            take(part)?;
            continue;
        };
        let rest = |item: Item| key_of(item, bytes).get(depth..).unwrap_or_default();
        if part.len() <= SMALL_GROUP_COUNT {
            part.sort_unstable_by(|&a, &b| {
                rest(a).cmp(rest(b)).then(start_of(a).cmp(&start_of(b)))
            });
            take(part)?;
            continue;
        }
        for item in part.iter_mut() {
            *item = chunk(*item, depth, bytes);
        }
        part.sort_unstable();
        let below = parts.len();
        // End of the ranges that are done, and start of the current group.
        let (mut done, mut start) = (range.start, range.start);
        for group in items[range.clone()].chunk_by(|a, b| a >> 32 == b >> 32) {
            let end = start + group.len();
            let is_longer = |&item: &Item| key_of(item, bytes).len() > depth + CHUNK_LEN;
            if group.len() > 1 && group.iter().any(is_longer) {
                let before = ItemRange {
                    items: done..start,
                    depth: None,
                };
                let alike = ItemRange {
                    items: start..end,
                    depth: Some(depth + CHUNK_LEN),
                };
                parts.extend([before, alike]);
                done = end;
            }
            start = end;
        }
        parts.push(ItemRange {
            items: done..range.end,
            depth: None,
        });
        parts[below..].reverse();
    }
    Ok(())
}

/// The item with the bytes of its key from `depth` on.
fn chunk(item: Item, depth: usize, bytes: &[u8]) -> Item {
    let rest = key_of(item, bytes).get(depth..).unwrap_or_default();
    // Reads the length of an item and masks the bytes behind the key: a copy of variable length is
    // slow.
    let at = start_of(item) + KEY_HEADER_LEN + depth;
    let read = match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(read) => Item::from_be_bytes(*read),
        None => {
            let mut read = [0; ITEM_LEN];
            let len = rest.len().min(ITEM_LEN);
            read[..len].copy_from_slice(&rest[..len]);
            Item::from_be_bytes(read)
        }
    };
    let extra = (ITEM_LEN - rest.len().min(CHUNK_LEN)) * 8;
    let kept = Item::MAX.checked_shl(extra as u32).unwrap_or(0);
    read & kept | start_of(item) as Item
}

fn common_len(a: &[u8], b: &[u8]) -> usize {
    let chunks = a.chunks_exact(WORD_LEN).zip(b.chunks_exact(WORD_LEN));
    let alike = chunks.take_while(|(a, b)| a == b).count() * WORD_LEN;
    let rest = a[alike..].iter().zip(&b[alike..]);
    alike + rest.take_while(|(a, b)| a == b).count()
}

/// Writes one run.
struct RunWriter<'a> {
    spool: &'a mut Spool,
    start: u64,
    pending: Vec<u8>,
    is_begun: bool,
}

impl<'a> RunWriter<'a> {
    fn new(spool: &'a mut Spool) -> Self {
        Self {
            start: spool.len(),
            spool,
            pending: Vec::with_capacity(RUN_PIECE_LEN * 2),
            is_begun: false,
        }
    }

    /// Adds a record whose key shares `common` bytes with the key before; ignored for the first.
    fn push(&mut self, key: &[u8], value: &[u8], common: usize) -> Result<()> {
        let common = if self.is_begun { common } else { 0 };
        self.is_begun = true;
        let own = &key[common..];
        put_varint(&mut self.pending, common as u64);
        put_varint(&mut self.pending, own.len() as u64);
        put_varint(&mut self.pending, value.len() as u64);
        self.pending.extend_from_slice(own);
        self.pending.extend_from_slice(value);
        if self.pending.len() >= RUN_PIECE_LEN {
            self.spool.append(&self.pending)?;
            self.pending.clear();
        }
        Ok(())
    }

    fn finish(self) -> Result<Range<u64>> {
        self.spool.append(&self.pending)?;
        Ok(self.start..self.spool.len())
    }
}

/// A run that is being read, and its current record.
#[derive(Default)]
struct RunReader {
    place: Range<u64>,
    piece: Vec<u8>,
    at: usize,
    key: Vec<u8>,
    /// Bytes of the common prefix with the record returned last, or with the key that won a
    /// comparison against this one.
    common: usize,
    value: Range<usize>,
    is_over: bool,
}

impl RunReader {
    /// Reads the next record.
    fn advance(&mut self, spool: &Spool) -> Result<()> {
        if self.at == self.piece.len() && self.place.is_empty() {
            self.is_over = true;
            return Ok(());
        }
        // Three numbers of at most ten bytes each.
        self.fill_to(30, spool)?;
        let mut cursor = Cursor::new(&self.piece[self.at..], "temporary record");
        let before = cursor.remaining();
        let mut number = || cursor.bounded(1 << 28, "length");
        let (common, own, value) = (number()?, number()?, number()?);
        self.at += before - cursor.remaining();
        let (own, value) = (own as usize, value as usize);
        self.fill_to(own + value, spool)?;
        let end = self.at + own;
        let Some(suffix) = self.piece.get(self.at..end) else {
            return Err(truncated());
        };
        self.common = common as usize;
        if self.common > self.key.len() {
            return Err(truncated());
        }
        self.key.truncate(self.common);
        self.key.extend_from_slice(suffix);
        self.value = end..end + value;
        self.at = end + value;
        if self.at <= self.piece.len() {
            Ok(())
        } else {
            Err(truncated())
        }
    }

    /// Reads until `piece` has `len` bytes from `at` on, or the run ends.
    fn fill_to(&mut self, len: usize, spool: &Spool) -> Result<()> {
        if self.piece.len() - self.at >= len || self.place.is_empty() {
            return Ok(());
        }
        self.piece.drain(..self.at);
        self.at = 0;
        let left = self.place.end - self.place.start;
        let start = self.piece.len();
        let len = left.min(len.saturating_sub(start).max(RUN_PIECE_LEN) as u64);
        self.piece.resize(start + len as usize, 0);
        spool.read_exact_at(&mut self.piece[start..], self.place.start)?;
        self.place.start += len;
        Ok(())
    }
}

fn truncated() -> Error {
    crate::member::damaged(Error::invalid("a record is cut short"))
}

/// Loser tree of the merged runs. Each inner node holds the loser of its comparison, with the
/// length of the common prefix with the winner. All losers on the path of a new key have lost to
/// the key before it, so these lengths alone decide most comparisons (Ng & Kakehi, "Merging String
/// Sequences by Longest Common Prefixes", 2008).
struct LoserTree {
    runs: Vec<RunReader>,
    losers: Vec<u32>,
    winner: u32,
    is_begun: bool,
}

impl LoserTree {
    fn new(spool: &Spool, ranges: &[Range<u64>]) -> Result<Self> {
        let mut runs = Vec::with_capacity(ranges.len().max(1));
        for place in ranges {
            let mut run = RunReader {
                place: place.clone(),
                ..RunReader::default()
            };
            run.advance(spool)?;
            runs.push(run);
        }
        if runs.is_empty() {
            runs.push(RunReader {
                is_over: true,
                ..RunReader::default()
            });
        }
        let mut merge = Self {
            losers: vec![0; runs.len()],
            runs,
            winner: 0,
            is_begun: false,
        };
        merge.winner = merge.play(1);
        Ok(merge)
    }

    /// The winner below a node; the numbers of leaves follow those of inner nodes.
    fn play(&mut self, node: usize) -> u32 {
        let count = self.runs.len();
        if node >= count {
            return (node - count) as u32;
        }
        let (a, b) = (self.play(node * 2), self.play(node * 2 + 1));
        let (winner, loser) = if self.is_before(a, b) { (a, b) } else { (b, a) };
        self.losers[node] = loser;
        winner
    }

    /// Whether run `a` comes before run `b`. Their common prefixes must be with the same key. The
    /// later run then gets the length of its common prefix with the other.
    fn is_before(&mut self, a: u32, b: u32) -> bool {
        let (left, right) = (&self.runs[a as usize], &self.runs[b as usize]);
        if left.is_over || right.is_over {
            return !left.is_over;
        }
        match left.common.cmp(&right.common) {
            // Both keys sort behind that key, so the one with the longer prefix is smaller.
            Ordering::Greater => true,
            Ordering::Less => false,
            Ordering::Equal => {
                let start = left.common;
                let (left_rest, right_rest) = (&left.key[start..], &right.key[start..]);
                let common = common_len(left_rest, right_rest);
                let is_before = match (left_rest.get(common), right_rest.get(common)) {
                    (None, None) => a < b,
                    (x, y) => x < y,
                };
                let later = if is_before { b } else { a };
                self.runs[later as usize].common = start + common;
                is_before
            }
        }
    }

    fn next(&mut self, spool: &Spool) -> Result<Option<Next<'_>>> {
        if self.is_begun {
            let winner = self.winner;
            self.runs[winner as usize].advance(spool)?;
            let mut best = winner;
            let mut node = (self.runs.len() + winner as usize) / 2;
            while node >= 1 {
                let loser = self.losers[node];
                if self.is_before(loser, best) {
                    self.losers[node] = best;
                    best = loser;
                }
                node /= 2;
            }
            self.winner = best;
        }
        self.is_begun = true;
        let run = &self.runs[self.winner as usize];
        let value = run.piece.get(run.value.clone()).unwrap_or_default();
        Ok((!run.is_over).then_some(Next {
            key: &run.key,
            value,
            common: run.common,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sorted(records: &[(Vec<u8>, Vec<u8>)], memory_len: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
        let temp = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(temp.path(), 1 << 16).unwrap();
        sorter.memory_len = memory_len;
        for (key, value) in records {
            sorter.push(key, value).unwrap();
        }
        let mut sorted = sorter.finish().unwrap();
        let mut found = Vec::new();
        while let Some(next) = sorted.next().unwrap() {
            let last: &[u8] = found.last().map_or(&[], |(key, _): &(Vec<u8>, _)| key);
            assert_eq!(next.common, common_len(next.key, last));
            found.push((next.key.to_vec(), next.value.to_vec()));
        }
        assert!(sorted.next().unwrap().is_none(), "the end stays the end");
        found
    }

    proptest! {
        /// Would catch: an order that is not that of bytes, equal keys out of their order, records
        /// that get lost between runs.
        #[test]
        fn it_is_a_stable_sort(
            keys in proptest::collection::vec(proptest::collection::vec(1..4_u8, 0..20), 0..400),
            memory_len in 100..4000_usize,
        ) {
            let number = |(no, key): (usize, Vec<u8>)| (key, no.to_le_bytes().to_vec());
            let records: Vec<_> = keys.into_iter().enumerate().map(number).collect();
            let mut expected = records.clone();
            expected.sort_by(|a, b| a.0.cmp(&b.0));
            prop_assert_eq!(sorted(&records, memory_len), expected);
        }
    }

    /// Would catch: a second level of merging that changes the order, records longer than a piece
    /// that are cut.
    #[test]
    fn many_runs_are_merged_in_steps_and_long_records_pass() {
        let record = |no: u64| {
            (
                format!("{:03}", no * 7919 % 1000).into_bytes(),
                no.to_le_bytes().to_vec(),
            )
        };
        let mut records: Vec<_> = (0..3000).map(record).collect();
        records.push((b"long".to_vec(), vec![7; RUN_PIECE_LEN * 3]));
        let mut expected = records.clone();
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        // Each record is a run of its own: more than FAN_IN_MAX of them.
        assert_eq!(sorted(&records, 1), expected);
        assert_eq!(sorted(&[], 1), []);
    }

    /// Would catch: a key that ends where another goes on with the mark of a name, on the border of
    /// what is compared at once.
    #[test]
    fn keys_that_end_on_a_border_sort_before_longer_ones() {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for len in 1..30 {
            keys.push(vec![9; len]);
            keys.push([vec![9; len], vec![0, 9]].concat());
            keys.push([vec![9; len], vec![1, 9]].concat());
        }
        let records: Vec<_> = keys.iter().rev().map(|k| (k.clone(), Vec::new())).collect();
        let mut expected = records.clone();
        expected.sort();
        assert_eq!(sorted(&records, 1 << 20), expected);
    }
}
