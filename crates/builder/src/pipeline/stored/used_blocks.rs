//! Finds the blocks of an image that its contents use, and the used parts of each.

use std::ops::Range;
use weald_format::container::{Codec, RecordRef, RecordType};
use weald_format::history::History;
use weald_format::pages::Source;
use weald_format::{ContentId, Result};
use weald_image::Image;

/// Granularity of use, bytes.
pub const GRAIN_LEN: u64 = 4 << 10;

/// The used grains of a block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grains {
    /// One bit for each [`GRAIN_LEN`] bytes.
    bits: Vec<u64>,
}

impl Grains {
    /// Marks the bytes `range` as used.
    pub fn add(&mut self, range: Range<u64>) {
        for grain in range.start / GRAIN_LEN..range.end.div_ceil(GRAIN_LEN) {
            let word = (grain / 64) as usize;
            if self.bits.len() <= word {
                self.bits.resize(word + 1, 0);
            }
            self.bits[word] |= 1 << (grain % 64);
        }
    }

    /// Adds the used grains of `other`.
    pub fn add_all(&mut self, other: &Self) {
        if self.bits.len() < other.bits.len() {
            self.bits.resize(other.bits.len(), 0);
        }
        for (word, more) in self.bits.iter_mut().zip(&other.bits) {
            *word |= more;
        }
    }

    /// Length of the used grains, bytes.
    pub fn used_len(&self) -> u64 {
        let count: u64 = self.bits.iter().map(|w| u64::from(w.count_ones())).sum();
        count * GRAIN_LEN
    }

    /// Sets all bytes of `raw` outside of used grains to zero.
    pub fn clear_unused(&self, raw: &mut [u8]) {
        for (grain, bytes) in raw.chunks_mut(GRAIN_LEN as usize).enumerate() {
            let word = self.bits.get(grain / 64).copied().unwrap_or(0);
            if word >> (grain % 64) & 1 == 0 {
                bytes.fill(0);
            }
        }
    }
}

/// The blocks of one stream and their use.
#[derive(Debug, Default)]
pub struct UsedBlocks {
    /// Address of the first byte of each block, ascending, and the end of the stream.
    starts: Vec<u64>,
    records: Vec<RecordRef>,
    used: Vec<Grains>,
    /// For each block, whether it is in the history of a used block.
    is_history: Vec<bool>,
}

impl UsedBlocks {
    fn of(image: &Image, stream: u8) -> Result<Self> {
        let mut blocks = Self::default();
        let mut at = 0;
        image.each_record(RecordType::Data, stream, &mut |record, item_count| {
            blocks.starts.push(at);
            blocks.records.push(*record);
            at += item_count;
            Ok(())
        })?;
        blocks.starts.push(at);
        blocks.used = vec![Grains::default(); blocks.records.len()];
        blocks.is_history = vec![false; blocks.records.len()];
        Ok(blocks)
    }

    /// Whether block `no` is needed for its bytes or as a history.
    pub fn is_needed(&self, no: u64) -> bool {
        let used = self.used.get(no as usize);
        self.is_history(no) || used.is_none_or(|used| used.used_len() > 0)
    }

    /// Whether block `no` is in the history of a used block, so that it must not change.
    pub fn is_history(&self, no: u64) -> bool {
        self.is_history.get(no as usize) != Some(&false)
    }

    /// The blocks in order, each with its used grains.
    pub fn iter(&self) -> impl Iterator<Item = (&RecordRef, &Grains)> {
        self.records.iter().zip(&self.used)
    }

    fn add(&mut self, range: Range<u64>) {
        let first = self.starts.partition_point(|&start| start <= range.start);
        for no in first.saturating_sub(1)..self.records.len() {
            let (start, end) = (self.starts[no], self.starts[no + 1]);
            if start >= range.end {
                break;
            }
            let inside = range.start.max(start) - start..range.end.min(end) - start;
            self.used[no].add(inside);
        }
    }

    /// Marks the blocks in the histories of used ones.
    fn add_histories(&mut self, image: &Image) -> Result<()> {
        let mut waiting: Vec<usize> = (0..self.records.len())
            .filter(|&no| self.used[no].used_len() > 0)
            .collect();
        while let Some(no) = waiting.pop() {
            let record = self.records[no];
            if record.codec != Codec::ZstdHistory {
                continue;
            }
            let stored = image.stored(&record)?;
            let (history, _) = History::parse(&stored)?;
            let is_own = history.base_stream.is_none();
            for number in history.numbers.into_iter().filter(|_| is_own) {
                let mark = self.is_history.get_mut(number as usize);
                if mark.is_some_and(|mark| !std::mem::replace(mark, true)) {
                    waiting.push(number as usize);
                }
            }
        }
        Ok(())
    }
}

/// For each stream of `image`, finds the blocks that the contents in `is_used` need. The input of a
/// recipe stays as long as the image has the recipe, so that the whole image can be decoded.
///
/// # Errors
/// `Io`, `Corrupt`.
/// # Cost
/// Reads all extents; 130 bytes of memory per block, and one bit per 4 KiB of data.
pub fn used_blocks(image: &Image, is_used: &[bool]) -> Result<Vec<UsedBlocks>> {
    let mut is_wanted = is_used.to_vec();
    for id in image.contents_from_recipes()? {
        image.mark_recipe_inputs(id, &mut is_wanted)?;
    }
    let streams = 0..image.directory().streams.len();
    let blocks = streams.map(|stream| UsedBlocks::of(image, stream as u8));
    let mut blocks: Vec<UsedBlocks> = blocks.collect::<Result<_>>()?;
    let wanted = (0..).zip(&is_wanted).filter(|(_, is_wanted)| **is_wanted);
    for (id, _) in wanted {
        image.each_extent_of(ContentId(id), &mut |extent| {
            if let Source::Stream { stream, address } = extent.source
                && !image.has_recipe_output(stream)
                && let Some(blocks) = blocks.get_mut(usize::from(stream))
            {
                blocks.add(address..address + extent.len);
            }
            Ok(())
        })?;
    }
    for blocks in &mut blocks {
        blocks.add_histories(image)?;
    }
    Ok(blocks)
}
