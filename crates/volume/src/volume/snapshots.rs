//! Snapshots of an open volume.
//!
//! A snapshot is the state that the tables have after a commit of everything so far. Operations go
//! on meanwhile: those after the layer was frozen are not in it. What a snapshot keeps is kept by
//! the commits that follow (`weald_store`, `snapshot/keep.rs`).

use super::{OpenSnapshot, Volume};
use crate::changes::ViewEngine;
use crate::core::stat_of;
use crate::open_store::OpenStore;
use crate::options::{OpenOptions, PlantedBug};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weald_format::volume::{InodeRow, inode_key};
use weald_format::{Error, ErrorKind, Result, SnapshotNo, VolumeNo};
use weald_store::engine::{Engine, Table};
use weald_store::{Dead, Snapshot, SnapshotSpace, SnapshotSpaces, snapshot, snapshots};
use weald_vfs::Stat;

/// Memory for decoded blocks of a snapshot that is open, bytes.
const SNAPSHOT_CACHE_LEN: u64 = 16 << 20;

impl Volume {
    /// Commits all changes so far and keeps the state as the snapshot `name`. `now` is the time in
    /// nanoseconds since 1970.
    ///
    /// # Errors
    /// `Invalid` for a name that none can have; `Busy` if the volume has a snapshot of this name,
    /// is being closed, or cannot change; as [`Volume::commit`].
    pub fn take_snapshot(&self, name: &str, now: i128) -> Result<Snapshot> {
        self.refuse_read_only()?;
        let mut committer = self.committer.lock();
        let shared = &self.core.shared;
        let mut writing = shared.lock_writer()?;
        self.commit_locked(&mut committer, &mut writing, false)?;
        let taken = writing.writer.take_snapshot(&committer.row, name, now);
        let taken = shared.noted(&writing, taken)?;
        self.core.state.write().has_snapshots = true;
        Ok(taken)
    }

    /// The snapshots of the volume, oldest first.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let engine = self.core.shared.reader.engine();
        snapshots(engine, self.core.tables.volume_no())
    }

    /// What the removal of the snapshots of each range, from one to another, would free.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads the rows that were kept for them, as of one commit; commits go on meanwhile.
    pub fn snapshot_spaces(&self, ranges: &[[SnapshotNo; 2]]) -> Result<Vec<SnapshotSpace>> {
        let view = self.core.shared.reader.shared_engine().read_view()?;
        let view = ViewEngine::new(view);
        let spaces = SnapshotSpaces::of(&view, self.core.tables.volume_no())?;
        let each = ranges
            .iter()
            .map(|[first, last]| spaces.space((*first, *last)));
        each.collect()
    }

    /// Removes the snapshot `name`. Its space comes back in steps, in the background or by
    /// [`Volume::snapshot_step`].
    ///
    /// # Errors
    /// `NotFound`; `Busy` if it is held, or the volume is being closed or cannot change; `Io`,
    /// `Full`, `Corrupt`.
    pub fn remove_snapshot(&self, name: &str) -> Result<()> {
        self.refuse_read_only()?;
        let shared = &self.core.shared;
        let mut writing = shared.lock_writer()?;
        let volume_no = self.core.tables.volume_no();
        let open = &writing.open_snapshots;
        if !open.is_empty() {
            let found = snapshot(shared.reader.engine(), volume_no, name)?;
            if open.contains_key(&(volume_no, found.no)) {
                let what = format!("@{name}: the snapshot is mounted: unmount it first");
                return Err(Error::new(ErrorKind::Busy, what));
            }
        }
        let removed = writing.writer.remove_snapshot(volume_no, name);
        let removed = shared.noted(&writing, removed)?;
        // Before its rows go, for those that read them.
        self.gone_snapshots.lock().insert(removed.no);
        self.may_have_removed.store(true, Ordering::Relaxed);
        self.signal.wake_committer();
        Ok(())
    }

    /// Adds the tag `tag` to the snapshot `name`, which then cannot be removed, or takes it away.
    ///
    /// # Errors
    /// As [`weald_store::StoreWriter::hold_snapshot`]; `Busy` if the volume is being closed or
    /// cannot change.
    pub fn hold_snapshot(&self, name: &str, tag: (&str, bool)) -> Result<()> {
        self.refuse_read_only()?;
        let shared = &self.core.shared;
        let mut writing = shared.lock_writer()?;
        let volume_no = self.core.tables.volume_no();
        let held = writing.writer.hold_snapshot(volume_no, name, tag);
        shared.noted(&writing, held)
    }

    /// Does the next step of the removal of snapshots. Returns whether there is more.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    pub fn snapshot_step(&self) -> Result<bool> {
        if !self.may_have_removed.load(Ordering::Relaxed) || self.core.options.is_read_only {
            return Ok(false);
        }
        let has_more = self
            .core
            .shared
            .snapshot_step(self.core.tables.volume_no())?;
        if !has_more {
            self.may_have_removed.store(false, Ordering::Relaxed);
        }
        Ok(has_more)
    }

    /// Makes the volume `new`, which starts as the snapshot `name`. `now` is the time in
    /// nanoseconds since 1970.
    ///
    /// # Errors
    /// As [`weald_store::StoreWriter::clone_snapshot`]; `NotFound` if there is no such snapshot;
    /// `Busy` if the volume is being closed or cannot change.
    pub fn clone_snapshot(&self, name: &str, new: &str, now: i128) -> Result<()> {
        self.refuse_read_only()?;
        let shared = &self.core.shared;
        let mut writing = shared.lock_writer()?;
        let found = snapshot(shared.reader.engine(), self.core.tables.volume_no(), name)?;
        shared.prepare_commit()?;
        let cloned = writing.writer.clone_snapshot(&found, new, now);
        let cloned = shared.noted(&writing, cloned);
        shared.refresh_free()?;
        cloned
    }

    /// Opens the snapshot `name` as a volume that does not change. The snapshot must not be removed
    /// as long as the result is read; reads fail after that.
    ///
    /// # Errors
    /// `NotFound`; `Io`, `Corrupt`.
    pub fn open_snapshot(&self, name: &str) -> Result<Arc<Self>> {
        let shared = &self.core.shared;
        let found = snapshot(shared.reader.engine(), self.core.tables.volume_no(), name)?;
        Self::of_snapshot(shared, (name, &found), &self.core.options)
    }

    /// Attributes of the root directory of a snapshot, without opening it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(crate) fn snapshot_root(&self, of: &Snapshot) -> Result<Stat> {
        let engine = self.core.shared.reader.shared_engine();
        let row = &of.volume;
        let key = inode_key(row.volume_no, row.root);
        let value = of.view(engine).get(Table::Inodes, &key)?.ok_or_else(|| {
            let what = format!("snapshot {} has no root directory", of.no);
            Error::corrupt("inode row", 0, "V-3.3", what)
        })?;
        Ok(stat_of(row.root, &InodeRow::parse(&value)?))
    }

    /// As [`Volume::open_snapshot`], by its number.
    ///
    /// # Errors
    /// As [`Volume::open_snapshot`].
    pub(crate) fn open_snapshot_no(&self, no: SnapshotNo) -> Result<Arc<Self>> {
        let mut all = self.snapshots()?.into_iter();
        let found = all.find(|snapshot| snapshot.no == no);
        let found = found.ok_or_else(|| Error::not_found("the snapshot was removed"))?;
        Self::of_snapshot(&self.core.shared, (&found.name, &found), &self.core.options)
    }

    /// Whether the snapshot with this number of the volume is mounted on its own.
    pub fn is_snapshot_mounted(&self, no: SnapshotNo) -> bool {
        let writing = self.core.shared.writing.lock();
        let of = (self.core.tables.volume_no(), no);
        writing.open_snapshots.contains_key(&of)
    }

    /// Whether it is the state of a snapshot, which does not change.
    pub fn is_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Whether a snapshot was removed since the volume was opened.
    pub(crate) fn is_snapshot_gone(&self, no: SnapshotNo) -> bool {
        self.gone_snapshots.lock().contains(&no)
    }

    /// The volume as a snapshot of it.
    fn of_snapshot(
        shared: &Arc<OpenStore>,
        (name, of): (&str, &Snapshot),
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        let engine = shared.reader.shared_engine();
        let options = OpenOptions {
            is_read_only: true,
            background: false,
            is_preloaded: false,
            threads: 1,
            cache_len: SNAPSHOT_CACHE_LEN,
            index_len: 0,
            ..options.clone()
        };
        let view = Arc::new(of.view(engine));
        let row = of.volume.clone();
        Self::with_rows(shared, (name, row), view, (options, Some(of.clone())))
    }

    /// Opens the snapshot `of` of a volume, which need not be open.
    pub(super) fn open_snapshot_in(
        shared: &Arc<OpenStore>,
        (volume, of): (&str, &str),
        options: OpenOptions,
    ) -> Result<Arc<Self>> {
        let mut writing = shared.writing.lock();
        let volume_no = writing.writer.volume_row(volume)?.volume_no;
        let found = snapshot(shared.reader.engine(), volume_no, of);
        let found = found.map_err(|error| error.context(volume))?;
        let options = OpenOptions {
            is_read_only: true,
            ..options
        };
        let name = format!("{volume}@{of}");
        let opened = Self::of_snapshot(shared, (&name, &found), &options)?;
        shared.enter_snapshot(&mut writing, (volume_no, found.no), &options)?;
        if let Some(of) = &opened.snapshot {
            of.is_entered.store(true, Ordering::Relaxed);
        }
        Ok(opened)
    }

    pub(super) fn close_snapshot(&self, of: &OpenSnapshot) {
        if of.is_entered.swap(false, Ordering::Relaxed) {
            let shared = &self.core.shared;
            let mut writing = shared.writing.lock();
            let volume_no = self.core.tables.volume_no();
            shared.leave_snapshot(&mut writing, (volume_no, of.found.no));
        }
    }

    fn refuse_read_only(&self) -> Result<()> {
        if self.core.options.is_read_only {
            let what = "the volume is mounted read-only: mount it for writing first";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(())
    }
}

impl OpenStore {
    /// Gives the volume `name`, which is not open, the state of its snapshot `of` again.
    ///
    /// # Errors
    /// `Busy` if it is open, or was not closed in order; as
    /// [`weald_store::StoreWriter::roll_back`].
    pub fn roll_back(&self, name: &str, of: &str) -> Result<()> {
        let mut writing = self.writing.lock();
        self.refuse_failed()?;
        let row = writing.writer.volume_row(name)?;
        if writing.open.contains(&row.volume_no) {
            let what = format!("{name}: the volume is mounted: unmount it first");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.prepare_commit()?;
        let rolled = writing.writer.roll_back(name, of);
        self.noted(&writing, rolled)?;
        self.note_dead();
        self.refresh_free()
    }

    /// Does the next step of the removal of snapshots of a volume. Returns whether there is more.
    pub(super) fn snapshot_step(&self, volume_no: VolumeNo) -> Result<bool> {
        let mut writing = self.lock_writer()?;
        if !writing.writer.removes_snapshot(volume_no)? {
            return Ok(false);
        }
        self.removable_rows()?;
        let keep = &mut |dead: &[Dead]| self.reader.keep_removed_rows(dead);
        self.plant_holds(&mut writing, volume_no);
        let step = writing.writer.snapshot_step(volume_no, keep);
        let step = self.noted(&writing, step)?;
        let freed = self.free(&writing, &step.dead);
        let freed = freed.and_then(|()| self.refresh_free());
        if let Err(error) = freed {
            self.fail(&error);
            return Err(error);
        }
        Ok(step.has_more)
    }
}

impl PlantedBug {
    /// The bug of the store's writer that this one is, if it is one of snapshots.
    pub(crate) fn of_snapshots(self) -> Option<weald_store::faults::Bug> {
        use weald_store::faults::Bug;
        Some(match self {
            Self::RowNotKept => Bug::RowNotKept,
            Self::RowKeptTwice => Bug::RowKeptTwice,
            Self::AbsenceNotKept => Bug::AbsenceNotKept,
            Self::KeptNotCounted => Bug::KeptNotCounted,
            Self::SharedRowDropped => Bug::SharedRowDropped,
            Self::SnapshotResumesLate => Bug::RemovalResumesLate,
            Self::RollbackNotNoted => Bug::RollbackNotNoted,
            Self::NewRowsStay => Bug::NewRowsStay,
            Self::CloneNotCounted => Bug::CloneNotCounted,
            _ => return None,
        })
    }
}
