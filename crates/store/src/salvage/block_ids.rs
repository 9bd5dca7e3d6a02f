//! Numbers of blocks whose rows are lost, from the order of records in segments.
//!
//! Blocks get numbers in the order in which their records are appended, and a collection copies
//! records in that order. So if as many records lie between two known blocks as there are numbers
//! between theirs, these are their numbers.

use super::segments::Segments;
use std::collections::BTreeMap;
use weald_format::BlockId;
use weald_format::store::{BlockRow, Location};

/// The rows of blocks that lie between the blocks of `known`. `next` is the number that the next
/// new block would have got.
pub fn between(
    segments: &Segments,
    known: &BTreeMap<BlockId, BlockRow>,
    next: BlockId,
) -> BTreeMap<BlockId, BlockRow> {
    let ids: BTreeMap<Location, BlockId> = known
        .iter()
        .filter(|(_, row)| segments.has(row))
        .map(|(id, row)| (row.location, *id))
        .collect();
    let mut rows = BTreeMap::new();
    let mut waiting: Vec<BlockRow> = Vec::new();
    let mut last: Option<BlockId> = None;
    let mut fill = |last: Option<BlockId>, id: BlockId, waiting: &mut Vec<BlockRow>| {
        let is_exact =
            last.is_some_and(|last| last < id && last.moved(waiting.len() as i64 + 1) == id);
        let first = last.unwrap_or_default().next();
        for (no, row) in waiting.drain(..).enumerate().filter(|_| is_exact) {
            rows.insert(first.moved(no as i64), row);
        }
    };
    for (&segment, found) in &segments.by_number {
        for (&offset, record) in &found.records {
            let location = Location { segment, offset };
            match ids.get(&location) {
                Some(id) => {
                    fill(last, *id, &mut waiting);
                    last = Some(*id);
                }
                None => waiting.push(BlockRow {
                    location,
                    references: 0,
                    record: *record,
                }),
            }
        }
    }
    fill(last, next, &mut waiting);
    rows.retain(|id, _| !known.contains_key(id));
    rows
}
