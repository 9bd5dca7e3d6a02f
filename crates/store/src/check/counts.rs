//! Compares what rows say of blocks with what was counted, and with notes and maps.

use crate::disk::Object;
use crate::layout;
use crate::segment::each_noted;
use std::collections::BTreeMap;
use weald_format::container::RecordRef;
use weald_format::store::{BlockRow, Location, SegmentRow, Uuid};
use weald_format::{BlockId, Result, SegmentNo};

/// A note that calls a block by the number of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongNote {
    /// The block.
    pub id: BlockId,
    /// Where it lies in its segment.
    pub offset: u64,
    /// What the note calls it.
    pub noted: BlockId,
}

impl WrongNote {
    /// In words.
    pub fn what(&self, number: SegmentNo) -> String {
        let Self { id, offset, noted } = self;
        let name = layout::segment_file(number);
        format!("{name}, byte {offset}: a note calls block {id} block {noted}")
    }
}

/// Finds the row of a block.
pub type FindRow<'a> = dyn Fn(BlockId) -> Result<Option<BlockRow>> + 'a;

/// Compares the numbers of blocks with the notes in the first `end` bytes of a segment.
///
/// # Errors
/// `Io`; those of `find`.
pub fn wrong_notes(
    (file, identity): (&dyn Object, (Uuid, SegmentNo)),
    end: u64,
    blocks: &[(BlockId, BlockRow)],
    find: &FindRow<'_>,
) -> Result<Vec<WrongNote>> {
    let by_offset = blocks
        .iter()
        .map(|(id, row)| (row.location.offset, (*id, *row)));
    let by_offset: BTreeMap<u64, (BlockId, BlockRow)> = by_offset.collect();
    let mut wrong = Vec::new();
    let walked = each_noted(file, identity, end, &mut |found| {
        let (Some((_, noted)), Some((id, row))) = (found.noted, by_offset.get(&found.offset))
        else {
            return Ok(());
        };
        if row.references == 0 || noted == *id {
            return Ok(());
        }
        // Equal records have several blocks.
        if !find(noted)?.is_some_and(|other| other.record == row.record) {
            wrong.push(WrongNote {
                id: *id,
                offset: found.offset,
                noted,
            });
        }
        Ok(())
    });
    match walked {
        // Damage between the records of blocks harms nobody.
        Err(error) if error.is_unreadable() => Ok(wrong),
        other => other.map(|()| wrong),
    }
}

/// What is wrong with what a map says of a block; `None` if nothing is.
pub fn wrong_in_map(
    id: BlockId,
    row: &BlockRow,
    location: Location,
    record: &RecordRef,
) -> Option<String> {
    if row.record != *record {
        let what = format!("block {id} is another one in the table than in the map");
        return Some(what);
    }
    let has_moved = row.location != location;
    has_moved.then(|| format!("block {id} has moved, and the map does not say so"))
}

/// Whether a count differs from what a row says. If the count is partial, it may be lower.
const fn is_wrong(counted: u64, stated: u64, is_partial: bool) -> bool {
    counted != stated && !(is_partial && counted < stated)
}

/// Compares the references in the rows of blocks with those that were counted. If the count is
/// partial, the missing references may be those of a map or of rows that cannot be read.
pub fn wrong_references(
    blocks: &BTreeMap<BlockId, BlockRow>,
    references: &BTreeMap<BlockId, u64>,
    is_partial: bool,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (id, row) in blocks {
        let counted = references.get(id).copied().unwrap_or(0);
        if is_wrong(counted, row.references, is_partial) {
            wrong.push(format!(
                "block {id}: the table has {} references, maps and volumes have {counted}",
                row.references
            ));
        }
    }
    wrong
}

/// Compares the live bytes in the rows of segments with those of their blocks. Some of these may be
/// missing.
pub fn wrong_live_lens(
    blocks: &BTreeMap<BlockId, BlockRow>,
    segments: &BTreeMap<SegmentNo, SegmentRow>,
    is_block_missing: bool,
) -> Vec<String> {
    let mut live: BTreeMap<SegmentNo, u64> = BTreeMap::new();
    for row in blocks.values().filter(|row| row.references > 0) {
        *live.entry(row.location.segment).or_default() += row.len();
    }
    let mut wrong = Vec::new();
    for (number, row) in segments {
        let counted = live.get(number).copied().unwrap_or(0);
        if is_wrong(counted, row.live_len, is_block_missing) {
            wrong.push(format!(
                "segment {number}: the table has {} live bytes, its blocks have {counted}",
                row.live_len
            ));
        }
    }
    wrong
}
