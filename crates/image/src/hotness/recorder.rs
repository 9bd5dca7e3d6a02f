//! Records which parts of an image are used: files with their ranges, blocks, recipes, metadata
//! records; each in the order of its first use.
//!
//! Cost: one atomic load for an item that is recorded already; without a recorder, one load of a
//! pointer.

use super::text::{HotItem, LINE_COUNT_MAX, add_range};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::container::RecordType;

/// Ranges of files are rounded to this many bytes, the kernel's smallest request.
const UNIT_LEN: u64 = 4096;

/// The recorder of one image.
pub struct Recorder {
    /// For each block of each stream: the largest number of its first bytes that a read needed.
    blocks: Vec<Box<[AtomicU64]>>,
    /// For each record type, by its code: one bit for each record.
    pages: Vec<Box<[AtomicU64]>>,
    /// Stream and address of the recipes that were used.
    recipes: Mutex<HashSet<(u8, u64)>>,
    /// All items in the order of their first use. The lengths are those of the first use.
    order: Mutex<Vec<HotItem>>,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    /// Index in `ranges` of each name.
    index_by_name: HashMap<u64, usize>,
    /// Number of the name, and the ranges that were read.
    ranges: Vec<(u64, Vec<Range<u64>>)>,
}

fn zeros(count: u64) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Recorder {
    /// A recorder for an image whose streams have `block_counts` blocks; `record_count` gives the
    /// number of metadata records of a type.
    pub fn new(
        block_counts: impl Iterator<Item = u64>,
        record_count: impl Fn(RecordType) -> u64,
    ) -> Self {
        let blocks = block_counts.map(zeros);
        let code_max = RecordType::ALL.iter().map(|(_, code, _)| *code).max();
        let pages = (0..=code_max.unwrap_or(0)).map(|code| {
            let record_type = RecordType::from_code(code);
            let is_page = record_type.filter(|t| !matches!(t, RecordType::Data));
            let count = is_page.map_or(0, &record_count);
            zeros(count.div_ceil(64))
        });
        Self {
            blocks: blocks.collect(),
            pages: pages.collect(),
            recipes: Mutex::default(),
            order: Mutex::default(),
            files: Mutex::default(),
        }
    }

    fn push(&self, item: HotItem) {
        let mut order = self.order.lock();
        if order.len() < LINE_COUNT_MAX {
            order.push(item);
        }
    }

    /// Records that a read needs the first `len` bytes of a block.
    pub fn block(&self, stream: u8, no: u64, len: u64) {
        let stream_blocks = self.blocks.get(usize::from(stream));
        let Some(wanted) = stream_blocks.and_then(|b| b.get(usize::try_from(no).ok()?)) else {
            return;
        };
        if wanted.load(Ordering::Relaxed) < len && wanted.fetch_max(len, Ordering::Relaxed) == 0 {
            self.push(HotItem::Block { stream, no, len });
        }
    }

    /// Records the use of a metadata record.
    pub fn page(&self, record_type: RecordType, no: u64) {
        let bits = self.pages.get(usize::from(record_type as u8));
        let word = bits.and_then(|b| b.get(usize::try_from(no / 64).ok()?));
        let Some(word) = word else { return };
        let bit = 1u64 << (no % 64);
        if word.load(Ordering::Relaxed) & bit == 0
            && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        {
            self.push(HotItem::Page(record_type, no));
        }
    }

    /// Records the use of the recipe whose output begins at `address` of the stream.
    pub fn recipe(&self, stream: u8, address: u64) {
        let mut recipes = self.recipes.lock();
        if recipes.len() < LINE_COUNT_MAX && recipes.insert((stream, address)) {
            drop(recipes);
            self.push(HotItem::Made { stream, address });
        }
    }

    /// Records a read of bytes `read` of the file of name `no`.
    pub fn file(&self, no: u64, read: Range<u64>) {
        if read.is_empty() {
            return;
        }
        let start = read.start.saturating_sub(read.start % UNIT_LEN);
        let end = read.end.checked_next_multiple_of(UNIT_LEN);
        let read = start..end.unwrap_or(u64::MAX);
        let files = &mut *self.files.lock();
        let count = files.ranges.len();
        if count >= LINE_COUNT_MAX && !files.index_by_name.contains_key(&no) {
            return;
        }
        let index = *files.index_by_name.entry(no).or_insert(count);
        if index == count {
            files.ranges.push((no, Vec::new()));
        }
        if let Some((_, ranges)) = files.ranges.get_mut(index) {
            add_range(ranges, read);
        }
    }

    /// The blocks, recipes and records that were used, in the order of their first use.
    pub fn items(&self) -> Vec<HotItem> {
        let recorded = self.order.lock().clone();
        let with_final_len = |item| match item {
            HotItem::Block { stream, no, len } => {
                let stream_blocks = self.blocks.get(usize::from(stream));
                let wanted = stream_blocks.and_then(|b| b.get(usize::try_from(no).ok()?));
                let len = wanted.map_or(len, |w| w.load(Ordering::Relaxed));
                HotItem::Block { stream, no, len }
            }
            other => other,
        };
        recorded.into_iter().map(with_final_len).collect()
    }

    /// The files that were read, in the order of their first read: the number of the name, and
    /// ascending ranges.
    pub fn files(&self) -> Vec<(u64, Vec<Range<u64>>)> {
        self.files.lock().ranges.clone()
    }
}
