//! Snapshots are removed, in steps.
//!
//! The rows that were kept for a snapshot, and those that were kept for newer ones which are gone,
//! stay if an older snapshot has them; the older one owns them from then on. The others go, with
//! their references. So a removal takes time by what was kept between two snapshots, and splices
//! one out of the middle without copying.

use super::keep::drop_kept;
use super::manage::{Snapshot, snapshot};
use super::rows::{ino_of, kept_from, snapshots_of, table_of};
use crate::engine::{Batch, Engine, Table};
use crate::faults::Bug;
use crate::volume::Dead;
use crate::writer::StoreWriter;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weald_format::snapshot::{KeptKey, SnapshotRow, snapshot_key};
use weald_format::store::BlockRow;
use weald_format::{BlockId, Result, SnapshotNo, VolumeNo};

/// A step of a removal.
#[derive(Debug, Default)]
pub struct SnapshotStep {
    /// Blocks that nothing refers to any more; [`StoreWriter::free`] frees their space.
    pub dead: Vec<Dead>,
    /// Kept rows that went.
    pub row_count: u64,
    /// Whether there is more to do.
    pub has_more: bool,
}

/// What the removal of a snapshot would free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotSpace {
    /// Rows that were kept for it, and that older snapshots may have too.
    pub kept_count: u64,
    /// Rows that only it has.
    pub own_count: u64,
    /// Bytes of blocks that nothing else refers to, as they lie in segments.
    pub own_len: u64,
}

/// Snapshots that follow each other, between two others: whose rows are whose.
struct Between {
    volume_no: VolumeNo,
    /// The oldest of them.
    no: SnapshotNo,
    /// The next older one, which may be on its way out, too.
    older: Option<(SnapshotNo, SnapshotRow)>,
    /// Rows kept for this one or a newer one are not theirs.
    newer: SnapshotNo,
}

impl Between {
    /// The snapshots from `no` to `last`.
    fn of(
        rows: &[(SnapshotNo, SnapshotRow)],
        volume_no: VolumeNo,
        (no, last): (SnapshotNo, SnapshotNo),
    ) -> Self {
        let older = rows.partition_point(|(other, _)| *other < no);
        let older = older.checked_sub(1).and_then(|at| rows.get(at));
        let newer = rows.get(rows.partition_point(|(other, _)| *other <= last));
        Self {
            volume_no,
            no,
            older: older.cloned(),
            newer: newer.map_or(SnapshotNo(u32::MAX), |(no, _)| *no),
        }
    }

    /// Whether the older snapshot has the kept row, too: it has the inode, and the row did not
    /// change between the two.
    fn is_of_older(&self, engine: &dyn Engine, place: &KeptKey, table: Table) -> Result<bool> {
        let Some((older, row)) = &self.older else {
            return Ok(false);
        };
        if ino_of(&place.rest)? >= row.volume.next_ino {
            return Ok(false);
        }
        let first = kept_from(engine, (self.volume_no, table, &place.rest), *older)?;
        Ok(first.is_some_and(|(no, _)| no == place.no))
    }

    /// Visits the kept rows of the snapshots from the key `from` on: the row, and whether only they
    /// have it.
    fn each_kept(
        &self,
        engine: &dyn Engine,
        from: &[u8],
        visit: &mut dyn FnMut(KeptKey, bool) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        engine.scan(Table::KeptBySnapshot, from, &mut |key, _| {
            let place = KeptKey::parse_by_snapshot(key)?;
            if place.volume_no != self.volume_no || place.no >= self.newer {
                return Ok(ControlFlow::Break(()));
            }
            let table = table_of(&place)?;
            let is_own = !self.is_of_older(engine, &place, table)?;
            visit(place, is_own)
        })
    }

    fn first_key(&self) -> Vec<u8> {
        snapshot_key(self.volume_no, self.no).to_vec()
    }
}

/// The snapshots whose removal goes on: one that was begun, since the rows that it left to an older
/// one are looked at again when that one goes, else the oldest; and those that follow it and are
/// removed, too. What was done of these is done again if it was cut off, to the same end.
fn next_to_go(rows: &[(SnapshotNo, SnapshotRow)]) -> &[(SnapshotNo, SnapshotRow)] {
    let is_begun = |row: &SnapshotRow| row.removed_to.as_ref().is_some_and(|at| !at.is_empty());
    let begun = rows.iter().position(|(_, row)| is_begun(row));
    let oldest = || rows.iter().position(|(_, row)| row.removed_to.is_some());
    let Some(rest) = begun.or_else(oldest).and_then(|first| rows.get(first..)) else {
        return &[];
    };
    let stays = |(_, row): &(SnapshotNo, SnapshotRow)| row.removed_to.is_none();
    let count = rest.iter().position(stays).unwrap_or(rest.len());
    rest.get(..count).unwrap_or_default()
}

impl StoreWriter {
    /// Begins to remove the snapshot `name`: it is gone for all users.
    /// [`StoreWriter::snapshot_step`] does the rest.
    ///
    /// # Errors
    /// `NotFound`; `Busy` if it is held, or being read; `Io`, `Full`, `Corrupt`.
    pub fn remove_snapshot(&mut self, volume_no: VolumeNo, name: &str) -> Result<Snapshot> {
        let found = snapshot(self.tables(), volume_no, name)?;
        found.refuse_held()?;
        // Until the row says that it is gone.
        let _locked = self.store().lock_out_readers_of(volume_no, &found)?;
        self.refuse_after_failure(|writer| {
            let row = SnapshotRow {
                removed_to: Some(Vec::new()),
                ..found.clone().into_row()
            };
            let mut batch = Batch::default();
            let key = snapshot_key(volume_no, found.no);
            batch.put(Table::Snapshots, &key, row.encode());
            writer.commit(batch)?;
            writer.newest_snapshots.remove(&volume_no);
            Ok(found)
        })
    }

    /// Whether a snapshot of the volume is being removed.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn removes_snapshot(&self, volume_no: VolumeNo) -> Result<bool> {
        let rows = snapshots_of(self.tables(), volume_no)?;
        Ok(rows.iter().any(|(_, row)| row.removed_to.is_some()))
    }

    /// Does the next step of the removal of snapshots of a volume: of [`crate::Steps::row_count`]
    /// kept rows at most. `before_commit` is that of [`StoreWriter::commit_counts`].
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    pub fn snapshot_step(
        &mut self,
        volume_no: VolumeNo,
        before_commit: &mut dyn FnMut(&[Dead]),
    ) -> Result<SnapshotStep> {
        let rows = snapshots_of(self.tables(), volume_no)?;
        let going = next_to_go(&rows);
        let [(no, row), ..] = going else {
            return Ok(SnapshotStep::default());
        };
        let last = going.last().map_or(*no, |(last, _)| *last);
        let between = Between::of(&rows, volume_no, (*no, last));
        let mut from = row.removed_to.clone().unwrap_or_default();
        if from.is_empty() {
            from = between.first_key();
        }
        let engine = self.engine();
        let mut batch = Batch::default();
        let mut counts: BTreeMap<BlockId, i64> = BTreeMap::new();
        let mut step = SnapshotStep::default();
        let (mut seen, mut next) = (0, None);
        let row_count = self.options().steps.row_count;
        let drops_shared = self.faults.has(Bug::SharedRowDropped);
        let is_late = self.faults.has(Bug::RemovalResumesLate);
        between.each_kept(&*engine, &from, &mut |place, is_own| {
            if seen == row_count {
                let mut key = place.encode_by_snapshot();
                if is_late {
                    key.push(0);
                }
                next = Some(key);
                return Ok(ControlFlow::Break(()));
            }
            seen += 1;
            if is_own || drops_shared {
                drop_kept(&*engine, &place, &mut batch, &mut counts)?;
                step.row_count += 1;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        match next {
            Some(next) => {
                let row = SnapshotRow {
                    removed_to: Some(next),
                    ..row.clone()
                };
                batch.put(
                    Table::Snapshots,
                    &snapshot_key(volume_no, *no),
                    row.encode(),
                );
                step.has_more = true;
            }
            None => {
                for (no, _) in going {
                    batch.remove(Table::Snapshots, &snapshot_key(volume_no, *no));
                }
                let removed = rows.iter().filter(|(_, row)| row.removed_to.is_some());
                step.has_more = removed.count() > going.len();
            }
        }
        step.dead = self.commit_counts(&counts, batch, before_commit)?;
        Ok(step)
    }
}

/// What removals of snapshots of a volume would free, each on its own.
#[derive(Debug)]
pub struct SnapshotSpaces<'a> {
    engine: &'a dyn Engine,
    volume_no: VolumeNo,
    rows: Vec<(SnapshotNo, SnapshotRow)>,
}

impl<'a> SnapshotSpaces<'a> {
    /// Of the volume `volume_no` in `engine`, whose rows stay the same, or only those of snapshots.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads the rows of all snapshots, once.
    pub fn of(engine: &'a dyn Engine, volume_no: VolumeNo) -> Result<Self> {
        Ok(Self {
            engine,
            volume_no,
            rows: snapshots_of(engine, volume_no)?,
        })
    }

    /// What the removal of the snapshots from `first` to `last` would free.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads the rows that were kept for them.
    pub fn space(&self, (first, last): (SnapshotNo, SnapshotNo)) -> Result<SnapshotSpace> {
        let between = Between::of(&self.rows, self.volume_no, (first, last));
        let mut space = SnapshotSpace::default();
        let (mut batch, mut counts) = (Batch::default(), BTreeMap::new());
        between.each_kept(self.engine, &between.first_key(), &mut |place, is_own| {
            space.kept_count += 1;
            if is_own {
                space.own_count += 1;
                batch.0.clear();
                drop_kept(self.engine, &place, &mut batch, &mut counts)?;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        for (id, change) in counts {
            let value = self.engine.get(Table::Blocks, &id.key())?;
            // One that went meanwhile frees nothing.
            let row = value.map(|value| BlockRow::parse(&value)).transpose()?;
            if let Some(row) = row
                && row.references.checked_add_signed(change) == Some(0)
            {
                space.own_len += row.len();
            }
        }
        Ok(space)
    }
}
