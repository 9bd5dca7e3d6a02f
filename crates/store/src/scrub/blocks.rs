//! Chooses the blocks of a group, and reads them.

use super::record::WHOLE;
use super::view::TablesView;
use crate::disk::{LocalFile, Object};
use crate::engine::{Table, key_of, number_of};
use crate::segment::{self, check_record, read_record};
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use weald_format::store::{BlockRow, Location, SegmentRow};
use weald_format::{BlockId, Error, ErrorKind, Result, SegmentNo};

/// Bytes that are read with one call at most, unless a record is longer.
const SPAN_LEN: u64 = 1 << 20;
/// Bytes between two records that are read with them.
const GAP_LEN: u64 = 16 << 10;
/// Bytes of a range that is in a sample, or not.
const SAMPLE_BITS: u32 = 20;

/// A segment of a group.
#[derive(Debug)]
pub(super) struct PlannedSegment {
    pub number: SegmentNo,
    /// Committed bytes of its file.
    pub len: u64,
    /// Blocks that are left, in order of place.
    pub blocks: Vec<Planned>,
}

/// A block, as its row says.
pub(super) type Planned = (BlockId, BlockRow);

/// Which blocks are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub from: Location,
    /// Exclusive.
    pub end: Location,
    /// The run, and its share in millionths.
    pub sample: (u64, u32),
}

impl Range {
    /// Whether a block at this place is read.
    pub fn has(&self, at: Location) -> bool {
        at >= self.from && at < self.end && is_in_sample(self.sample, at)
    }
}

/// Whether a place is in the sample of this run: other ranges in each run, and all in the course of
/// time.
fn is_in_sample((run, share): (u64, u32), at: Location) -> bool {
    if share >= WHOLE {
        return true;
    }
    let words = [run, at.segment.0, at.offset >> SAMPLE_BITS];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let [a, b, c, d, ..] = *blake3::hash(&bytes).as_bytes();
    u32::from_le_bytes([a, b, c, d]) % WHOLE < share
}

/// The next segments with blocks of a range, in order of place; those of `only`, if it says so.
/// Nothing at the end.
///
/// # Errors
/// `Io`, `Corrupt`.
/// # Cost
/// One pass over the rows of blocks.
pub(super) fn next_group(
    view: &TablesView,
    range: &Range,
    only: Option<&BTreeSet<SegmentNo>>,
    block_count_max: usize,
) -> Result<VecDeque<PlannedSegment>> {
    let mut segments: BTreeMap<SegmentNo, Vec<Planned>> = BTreeMap::new();
    let mut count = 0;
    // Segments from here on belong to later groups.
    let mut bound: Option<SegmentNo> = None;
    let visit = &mut |key: &[u8], value: &[u8]| {
        let Some(id) = number_of(key).map(BlockId) else {
            return Ok(ControlFlow::Continue(()));
        };
        let row = match BlockRow::parse(value) {
            // The look at the tables has told it.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Ok(ControlFlow::Continue(()));
            }
            other => other?,
        };
        let at = row.location;
        let is_wanted = only.is_none_or(|only| only.contains(&at.segment))
            && bound.is_none_or(|bound| at.segment < bound);
        if row.references == 0 || !is_wanted || !range.has(at) {
            return view.go_on();
        }
        segments.entry(at.segment).or_default().push((id, row));
        count += 1;
        // Whole segments, however many blocks the first one has.
        while count > block_count_max
            && segments.len() > 1
            && let Some((number, last)) = segments.pop_last()
        {
            count -= last.len();
            bound = Some(number);
        }
        view.go_on()
    };
    view.live()
        .scan_readable(Table::Blocks, &[], visit, &mut |_, _| Ok(()))?;
    let mut group = VecDeque::with_capacity(segments.len());
    for (number, mut blocks) in segments {
        blocks.sort_unstable_by_key(|(_, row)| row.location);
        let len = match view.live().get(Table::Segments, &key_of(number.0)) {
            Ok(row) => row.map_or(0, |row| SegmentRow::parse(&row).map_or(0, |row| row.len)),
            Err(error) if error.kind() == ErrorKind::Corrupt => 0,
            Err(error) => return Err(error),
        };
        group.push_back(PlannedSegment {
            number,
            len,
            blocks,
        });
    }
    Ok(group)
}

/// Reads blocks of one segment.
#[derive(Debug, Default)]
pub(super) struct BlockFile {
    open: Option<(SegmentNo, Box<dyn LocalFile>)>,
    buffer: Vec<u8>,
}

impl BlockFile {
    /// Opens segment `number`, unless it is open, without a note that it is used.
    pub fn open(&mut self, store: &Store, number: SegmentNo) -> Result<&dyn LocalFile> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != number) {
            self.open = None;
            let file = segment::open_unnoted(&*store.disk, number)?;
            self.open = Some((number, file));
        }
        let open = self.open.as_ref().map(|(_, file)| &**file);
        open.ok_or_else(|| Error::not_found("a segment"))
    }

    /// Whether segment `number` is open.
    pub fn is_of(&self, number: SegmentNo) -> bool {
        self.open.as_ref().is_some_and(|(open, _)| *open == number)
    }

    /// Closes the segment.
    pub fn close(&mut self) {
        self.open = None;
    }

    /// Verifies blocks that lie one after the other in the open segment, `len_max` bytes or a few
    /// more. Returns how many were looked at, and those whose records are not what the rows say.
    pub fn verify(&mut self, blocks: &[Planned], len_max: u64) -> (usize, Vec<Planned>) {
        let (mut count, mut len, mut suspects) = (0, 0, Vec::new());
        let Some((_, file)) = &self.open else {
            return (0, suspects);
        };
        while len < len_max {
            let rest = blocks.get(count..).unwrap_or_default();
            let span = span_of(rest, SPAN_LEN.min(len_max - len));
            if span.is_empty() {
                break;
            }
            verify_span(&**file, &mut self.buffer, span, &mut suspects);
            count += span.len();
            len += span.iter().map(|(_, row)| row.len()).sum::<u64>();
        }
        (count, suspects)
    }
}

/// The first blocks of `blocks` that are read with one call.
fn span_of(blocks: &[Planned], len_max: u64) -> &[Planned] {
    let Some((_, first)) = blocks.first() else {
        return blocks;
    };
    let start = first.location.offset;
    let mut end = start;
    let mut count = 0;
    for (_, row) in blocks {
        let from = row.location.offset;
        let to = from.saturating_add(row.len());
        let is_near = from <= end.saturating_add(GAP_LEN) && to - start <= len_max;
        if count > 0 && !is_near {
            break;
        }
        end = end.max(to);
        count += 1;
    }
    blocks.get(..count).unwrap_or_default()
}

fn verify_span(
    file: &dyn Object,
    buffer: &mut Vec<u8>,
    span: &[Planned],
    suspects: &mut Vec<Planned>,
) {
    let (Some((_, first)), Some((_, last))) = (span.first(), span.last()) else {
        return;
    };
    let start = first.location.offset;
    let len = last.location.offset.saturating_add(last.len()) - start;
    buffer.resize(len as usize, 0);
    let is_read = file.read_at(buffer, start).is_ok();
    for (id, row) in span {
        let at = (row.location.offset - start) as usize;
        let bytes = buffer.get(at..at.saturating_add(row.len() as usize));
        let is_right = match bytes.filter(|_| is_read) {
            Some(bytes) => check_record(bytes, row.location, &row.record).is_ok(),
            // One of them cannot be read, or the file ends early.
            None => read_record(file, row.location, &row.record).is_ok(),
        };
        if !is_right {
            suspects.push((*id, *row));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: samples that are the same each time, and a share that is another one.
    #[test]
    fn samples_have_their_share_and_differ() {
        let places = |run| {
            let at = |number: u64| Location {
                segment: SegmentNo(number / 64),
                offset: (number % 64) << SAMPLE_BITS,
            };
            let chosen =
                (0..100_000).filter(move |number| is_in_sample((run, 10_000), at(*number)));
            chosen.collect::<BTreeSet<u64>>()
        };
        let (first, second) = (places(1), places(2));
        assert!((800..1200).contains(&first.len()), "{}", first.len());
        assert!(first.intersection(&second).count() < 50);
        assert_eq!(first, places(1));
    }
}
