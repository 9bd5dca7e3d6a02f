//! What a commit keeps for snapshots: the old values of rows that it changes.
//!
//! A row is kept once for the newest snapshot. Later changes before the next snapshot keep nothing:
//! that snapshot has the first value. The references of a kept row of extents stay counted.

use super::rows::{kept_from, snapshots_of, split_state_key};
use crate::engine::{Batch, Change, Engine, Table};
use crate::faults::Bug;
use crate::newest_snapshots::Newest;
use crate::volume::parse_extents;
use crate::writer::StoreWriter;
use std::collections::BTreeMap;
use weald_format::snapshot::{KeptKey, kept_value};
use weald_format::{BlockId, Result, VolumeNo};

impl StoreWriter {
    /// The newest snapshot of a volume that is not being removed.
    fn newest_snapshot(&mut self, volume_no: VolumeNo) -> Result<Option<Newest>> {
        if let Some(known) = self.newest_snapshots.get(&volume_no) {
            return Ok(*known);
        }
        let rows = snapshots_of(self.tables(), volume_no)?;
        let mut rows = rows.into_iter().rev();
        let newest = rows.find(|(_, row)| row.removed_to.is_none());
        let newest = newest.map(|(no, row)| Newest {
            no,
            next_ino: row.volume.next_ino,
        });
        self.newest_snapshots.insert(volume_no, newest);
        Ok(newest)
    }

    /// Adds to `batch` what snapshots keep of the rows that it changes. Returns the references of
    /// that.
    pub(crate) fn keep_rows(&mut self, batch: &mut Batch) -> Result<BTreeMap<BlockId, i64>> {
        let mut changed: BTreeMap<(Table, &[u8]), Option<&[u8]>> = BTreeMap::new();
        for Change { table, key, value } in &batch.0 {
            if Table::OF_STATES.contains(table)
                && self.newest_snapshot(split_state_key(key)?.0)?.is_some()
            {
                changed.insert((*table, key), value.as_deref());
            }
        }
        let (mut kept, mut counts) = (Batch::default(), BTreeMap::new());
        for ((table, key), new) in changed {
            let (volume_no, ino, rest) = split_state_key(key)?;
            let Some(newest) = self.newest_snapshot(volume_no)? else {
                continue;
            };
            if ino >= newest.next_ino || self.faults.has(Bug::RowNotKept) {
                continue;
            }
            let engine = self.tables();
            let is_kept = kept_from(engine, (volume_no, table, rest), newest.no)?.is_some();
            if is_kept && !self.faults.has(Bug::RowKeptTwice) {
                continue;
            }
            let old = engine.get(table, key)?;
            if old.as_deref() == new || (old.is_none() && self.faults.has(Bug::AbsenceNotKept)) {
                continue;
            }
            if table == Table::Extents && !self.faults.has(Bug::KeptNotCounted) {
                add_pieces(old.as_deref(), 1, &mut counts)?;
            }
            let place = KeptKey {
                volume_no,
                table: table.code(),
                rest: rest.to_vec(),
                no: newest.no,
            };
            put_kept(&mut kept, &place, old.as_deref());
        }
        batch.0.extend(kept.0);
        Ok(counts)
    }
}

fn put_kept(batch: &mut Batch, place: &KeptKey, old: Option<&[u8]>) {
    batch.put(Table::Kept, &place.encode(), kept_value(old));
    let listed = place.encode_by_snapshot();
    batch.put(Table::KeptBySnapshot, &listed, Vec::new());
}

/// Removes a kept row, and the references that it has from `counts`.
///
/// # Errors
/// `Io`, `Corrupt`.
pub(super) fn drop_kept(
    engine: &dyn Engine,
    place: &KeptKey,
    batch: &mut Batch,
    counts: &mut BTreeMap<BlockId, i64>,
) -> Result<()> {
    let key = place.encode();
    if place.table == Table::Extents.code()
        && let Some(value) = engine.get(Table::Kept, &key)?
    {
        add_pieces(weald_format::snapshot::parse_kept(&value)?, -1, counts)?;
    }
    batch.remove(Table::Kept, &key);
    batch.remove(Table::KeptBySnapshot, &place.encode_by_snapshot());
    Ok(())
}

/// Changes the counts of the blocks that a row of extents refers to, by `change` for each piece.
///
/// # Errors
/// `Corrupt`.
pub(super) fn add_pieces(
    row: Option<&[u8]>,
    change: i64,
    counts: &mut BTreeMap<BlockId, i64>,
) -> Result<()> {
    let Some(row) = row else { return Ok(()) };
    for piece in parse_extents(row)?.0 {
        *counts.entry(piece.block).or_default() += change;
    }
    Ok(())
}
