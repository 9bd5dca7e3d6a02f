//! A volume gets the state of a snapshot again.
//!
//! The rows that changed since are those that were kept for the snapshot and for newer ones, and
//! those of inodes that are newer. Each step sets some of them; newer snapshots keep what they
//! have, as with any change. The row that all snapshots of the volume share says that a rollback is
//! under way, so that the next writer of the store completes it after a crash: until then nobody
//! sees the volume.

use super::keep::{add_pieces, drop_kept};
use super::manage::{Snapshot, snapshot};
use super::rows::{ino_of, kept_from, shared_row, snapshots_of, state_key, table_of};
use crate::engine::{Batch, Table};
use crate::faults::Bug;
use crate::writer::StoreWriter;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weald_format::snapshot::{KeptKey, SnapshotsRow, snapshot_key, split_snapshot_key};
use weald_format::volume::{VolumeRow, inode_key, split_key};
use weald_format::{BlockId, Error, ErrorKind, Result, SnapshotNo, VolumeNo};

/// Changes of a step.
#[derive(Default)]
struct Changes {
    batch: Batch,
    counts: BTreeMap<BlockId, i64>,
}

impl StoreWriter {
    /// Gives the volume `name` the state of its snapshot `of`. The volume is not open, and its sync
    /// log is empty. Newer snapshots stay as they are. The next writer of the store completes a
    /// rollback that a crash ends.
    ///
    /// # Errors
    /// `NotFound`; `Busy` if the sync log has changes; `Io`, `Full`, `Corrupt`.
    ///
    /// # Cost
    /// Time by the rows that changed since.
    pub fn roll_back(&mut self, name: &str, of: &str) -> Result<()> {
        let row = self.volume_row(name)?;
        if row.has_sync_log {
            let what = format!("{name}: the volume was not unmounted in order: mount it first");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let volume_no = row.volume_no;
        let found = snapshot(self.tables(), volume_no, of)?;
        // Those that are being removed go first: what they own goes to others.
        while self.snapshot_step(volume_no, &mut |_| {})?.has_more {}
        if !self.faults.has(Bug::RollbackNotNoted) {
            self.set_rollback(volume_no, Some(found.no), None)?;
        }
        self.finish_rollback(name, &row, &found)
    }

    /// Refuses a volume whose rollback could not be completed.
    ///
    /// # Errors
    /// `Corrupt` if there is one; `Io`.
    pub fn refuse_rollback(&self, volume_no: VolumeNo) -> Result<()> {
        match shared_row(self.tables(), volume_no)?.rollback {
            None => Ok(()),
            Some(no) => {
                let what = format!("a rollback to snapshot {no} is not complete");
                Err(Error::corrupt("snapshot row", 0, "N-1.5", what))
            }
        }
    }

    /// Completes the rollbacks that a crash left.
    pub(crate) fn recover_rollbacks(&mut self, rows: &[(String, VolumeRow)]) -> Result<()> {
        let mut open = Vec::new();
        self.tables().scan_readable(
            Table::Snapshots,
            &[],
            &mut |key, value| {
                let (volume_no, no) = split_snapshot_key(key)?;
                if no == SnapshotNo::NONE {
                    let rollback = SnapshotsRow::parse(value)?.rollback;
                    open.extend(rollback.map(|no| (volume_no, no)));
                }
                Ok(ControlFlow::Continue(()))
            },
            // Whoever opens the volume is told.
            &mut |_, _| Ok(()),
        )?;
        for (volume_no, no) in open {
            let Some((name, row)) = rows.iter().find(|(_, row)| row.volume_no == volume_no) else {
                continue;
            };
            let of = super::manage::snapshots(self.tables(), volume_no)?;
            let Some(found) = of.into_iter().find(|snapshot| snapshot.no == no) else {
                let what = format!("a rollback to snapshot {no}, which does not exist");
                return Err(Error::corrupt("snapshot row", 0, "N-1.5", what));
            };
            self.finish_rollback(name, row, &found)?;
        }
        Ok(())
    }

    fn set_rollback(
        &mut self,
        volume_no: VolumeNo,
        rollback: Option<SnapshotNo>,
        volume: Option<(&str, VolumeRow)>,
    ) -> Result<()> {
        let shared = shared_row(self.tables(), volume_no)?;
        self.refuse_after_failure(|writer| {
            let mut batch = Batch::default();
            let shared = SnapshotsRow { rollback, ..shared };
            let key = snapshot_key(volume_no, SnapshotNo::NONE);
            batch.put(Table::Snapshots, &key, shared.encode());
            if let Some((name, row)) = volume {
                batch.put(Table::Volumes, name.as_bytes(), row.encode());
            }
            writer.commit(batch)
        })
    }

    fn finish_rollback(&mut self, name: &str, row: &VolumeRow, to: &Snapshot) -> Result<()> {
        self.set_kept_rows(to)?;
        if !self.faults.has(Bug::NewRowsStay) {
            self.remove_newer_inodes(to)?;
        }
        let rows = snapshots_of(self.tables(), row.volume_no)?;
        if rows.last().is_some_and(|(no, _)| *no == to.no) {
            self.drop_equal_rows(to)?;
        }
        let row = VolumeRow {
            counts_attributes: to.volume.counts_attributes,
            ..row.clone()
        };
        self.set_rollback(row.volume_no, None, Some((name, row.clone())))
    }

    fn apply(&mut self, changes: Changes) -> Result<()> {
        if changes.batch.0.is_empty() {
            return Ok(());
        }
        // The bytes of blocks that die stay where they are until a collection: a seal of another
        // volume may read them.
        self.commit_counts(&changes.counts, changes.batch, &mut |_| {})?;
        Ok(())
    }

    /// Sets the rows that were kept for the snapshot, or for a newer one.
    fn set_kept_rows(&mut self, to: &Snapshot) -> Result<()> {
        let volume_no = to.volume.volume_no;
        let mut from = snapshot_key(volume_no, to.no).to_vec();
        loop {
            let row_count = self.options().steps.row_count;
            let (mut changes, mut next) = (Changes::default(), None);
            let engine = self.engine();
            engine.scan(Table::KeptBySnapshot, &from, &mut |key, _| {
                let place = KeptKey::parse_by_snapshot(key)?;
                if place.volume_no != volume_no {
                    return Ok(ControlFlow::Break(()));
                }
                if changes.batch.0.len() >= row_count {
                    next = Some(key.to_vec());
                    return Ok(ControlFlow::Break(()));
                }
                let table = table_of(&place)?;
                let kept = kept_from(&*engine, (volume_no, table, &place.rest), to.no)?;
                let Some((first, old)) = kept else {
                    return Ok(ControlFlow::Continue(()));
                };
                // Inodes of newer ones go later; a row that was kept several times is set once.
                if first != place.no || ino_of(&place.rest)? >= to.volume.next_ino {
                    return Ok(ControlFlow::Continue(()));
                }
                let key = state_key(volume_no, &place.rest);
                let new = engine.get(table, &key)?;
                if new == old {
                    return Ok(ControlFlow::Continue(()));
                }
                if table == Table::Extents {
                    add_pieces(new.as_deref(), -1, &mut changes.counts)?;
                    add_pieces(old.as_deref(), 1, &mut changes.counts)?;
                }
                match old {
                    Some(old) => changes.batch.put(table, &key, old),
                    None => changes.batch.remove(table, &key),
                }
                Ok(ControlFlow::Continue(()))
            })?;
            self.apply(changes)?;
            match next {
                Some(next) => from = next,
                None => return Ok(()),
            }
        }
    }

    /// Removes the rows of inodes that the snapshot does not have.
    fn remove_newer_inodes(&mut self, to: &Snapshot) -> Result<()> {
        let volume_no = to.volume.volume_no;
        let start = inode_key(volume_no, to.volume.next_ino);
        let row_count = self.options().steps.row_count;
        for table in Table::OF_STATES {
            loop {
                let mut changes = Changes::default();
                self.engine().scan(table, &start, &mut |key, value| {
                    let is_full = changes.batch.0.len() >= row_count;
                    if split_key(key)?.0 != volume_no || is_full {
                        return Ok(ControlFlow::Break(()));
                    }
                    if table == Table::Extents {
                        add_pieces(Some(value), -1, &mut changes.counts)?;
                    }
                    changes.batch.remove(table, key);
                    Ok(ControlFlow::Continue(()))
                })?;
                if changes.batch.0.is_empty() {
                    break;
                }
                self.apply(changes)?;
            }
        }
        Ok(())
    }

    /// Removes what was kept for the newest snapshot, which the volume is equal to: the rows of the
    /// volume stand for it.
    fn drop_equal_rows(&mut self, to: &Snapshot) -> Result<()> {
        let volume_no = to.volume.volume_no;
        let start = snapshot_key(volume_no, to.no);
        let row_count = self.options().steps.row_count;
        loop {
            let mut changes = Changes::default();
            let engine = self.engine();
            engine.scan(Table::KeptBySnapshot, &start, &mut |key, _| {
                let place = KeptKey::parse_by_snapshot(key)?;
                if place.volume_no != volume_no || changes.batch.0.len() >= row_count {
                    return Ok(ControlFlow::Break(()));
                }
                let Changes { batch, counts } = &mut changes;
                drop_kept(&*engine, &place, batch, counts)?;
                Ok(ControlFlow::Continue(()))
            })?;
            if changes.batch.0.is_empty() {
                return Ok(());
            }
            self.apply(changes)?;
        }
    }
}
