//! Snapshots are taken, named, held and listed.

use super::rows::{shared_row, snapshots_of};
use super::view::SnapshotView;
use crate::engine::{Batch, Engine, Table};
use crate::layout::check_name;
use crate::writer::StoreWriter;
use std::sync::Arc;
use weald_format::snapshot::{
    HOLDS_MAX, SNAPSHOT_NO_MAX, SNAPSHOTS_MAX, SnapshotRow, SnapshotsRow, snapshot_key,
};
use weald_format::store::STORE_SNAPSHOTS;
use weald_format::volume::VolumeRow;
use weald_format::{Error, ErrorKind, Result, SnapshotNo, VolumeNo};

/// A snapshot of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its number.
    pub no: SnapshotNo,
    /// Its name.
    pub name: String,
    /// When it was taken, nanoseconds since 1970.
    pub created: i128,
    /// The row of the volume in that state.
    pub volume: VolumeRow,
    /// Tags that keep it from being removed.
    pub holds: Vec<String>,
}

/// Refuses a name that no snapshot can have.
///
/// # Errors
/// `Invalid`.
pub fn check_snapshot_name(name: &str) -> Result<()> {
    check_name(name)?;
    if name.contains('@') {
        let what = format!("name {name:?}: a name of a snapshot has no '@'");
        return Err(Error::invalid(what));
    }
    Ok(())
}

impl Snapshot {
    fn of(no: SnapshotNo, row: SnapshotRow) -> Self {
        Self {
            no,
            name: row.name,
            created: row.created,
            volume: row.volume,
            holds: row.holds,
        }
    }

    pub(super) fn into_row(self) -> SnapshotRow {
        SnapshotRow {
            name: self.name,
            created: self.created,
            volume: self.volume,
            holds: self.holds,
            removed_to: None,
        }
    }

    /// Refuses a snapshot that is held.
    ///
    /// # Errors
    /// `Busy`.
    pub fn refuse_held(&self) -> Result<()> {
        let Some(tag) = self.holds.first() else {
            return Ok(());
        };
        let what = format!(
            "@{}: is held by the tag {tag:?}: 'weald snapshot release' takes it away",
            self.name
        );
        Err(Error::new(ErrorKind::Busy, what))
    }

    /// The rows of the volume as this snapshot has them. It must not be removed meanwhile.
    pub fn view(&self, engine: Arc<dyn Engine>) -> SnapshotView {
        let place = (self.volume.volume_no, self.no);
        SnapshotView::new(engine, place, self.volume.next_ino)
    }
}

/// Number of snapshots of a volume that were removed and still have rows.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn removed_snapshot_count(engine: &dyn Engine, volume_no: VolumeNo) -> Result<u64> {
    let rows = snapshots_of(engine, volume_no)?;
    let removed = rows.iter().filter(|(_, row)| row.removed_to.is_some());
    Ok(removed.count() as u64)
}

/// The snapshots of a volume, oldest first, without those that are being removed.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn snapshots(engine: &dyn Engine, volume_no: VolumeNo) -> Result<Vec<Snapshot>> {
    let rows = snapshots_of(engine, volume_no)?.into_iter();
    let rows = rows.filter(|(_, row)| row.removed_to.is_none());
    Ok(rows.map(|(no, row)| Snapshot::of(no, row)).collect())
}

/// The snapshot `name` of a volume.
///
/// # Errors
/// `NotFound`; `Io`, `Corrupt`.
pub fn snapshot(engine: &dyn Engine, volume_no: VolumeNo, name: &str) -> Result<Snapshot> {
    let mut all = snapshots(engine, volume_no)?.into_iter();
    all.find(|snapshot| snapshot.name == name)
        .ok_or_else(|| Error::not_found(format!("@{name}: no such snapshot")))
}

impl StoreWriter {
    /// Keeps the state that the tables have of a volume as the snapshot `name`. `now` is the time
    /// in nanoseconds since 1970.
    ///
    /// # Errors
    /// `Invalid` for a name that none can have; `Busy` if the volume has a snapshot of this name;
    /// `Limit` with 65,536 snapshots, and after 16 million; `Io`, `Full`, `Corrupt`.
    ///
    /// # Cost
    /// One small commit, whatever the volume has; reads the rows of its snapshots.
    pub fn take_snapshot(&mut self, volume: &VolumeRow, name: &str, now: i128) -> Result<Snapshot> {
        check_snapshot_name(name)?;
        let volume_no = volume.volume_no;
        let shared = shared_row(self.tables(), volume_no)?;
        let known = snapshots_of(self.tables(), volume_no)?;
        let is_taken = |(_, row): &(_, SnapshotRow)| row.name == name && row.removed_to.is_none();
        if known.iter().any(is_taken) {
            let what = format!("@{name}: the volume has a snapshot of this name");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        if known.len() >= SNAPSHOTS_MAX {
            let what = format!("@{name}: the volume has {SNAPSHOTS_MAX} snapshots: remove some");
            return Err(Error::limit(what));
        }
        // A number that damage has lost is not given again.
        let above = known.last().map_or(SnapshotNo::FIRST, |(no, _)| no.next());
        let no = shared.next.max(above);
        if no > SNAPSHOT_NO_MAX {
            return Err(Error::limit("the volume has had 16 million snapshots"));
        }
        let snapshot = Snapshot {
            no,
            name: name.to_owned(),
            created: now,
            volume: volume.clone(),
            holds: Vec::new(),
        };
        self.refuse_after_failure(|writer| {
            writer.require_snapshots()?;
            let mut batch = Batch::default();
            let shared = SnapshotsRow {
                next: no.next(),
                ..shared
            };
            let key = snapshot_key(volume_no, SnapshotNo::NONE);
            batch.put(Table::Snapshots, &key, shared.encode());
            let row = snapshot.clone().into_row();
            batch.put(Table::Snapshots, &snapshot_key(volume_no, no), row.encode());
            writer.commit(batch)?;
            writer.newest_snapshots.remove(&volume_no);
            Ok(snapshot)
        })
    }

    /// Keeps programs out of the store that know no snapshots: their commits would keep nothing.
    fn require_snapshots(&self) -> Result<()> {
        self.store().set_feature(STORE_SNAPSHOTS, true)
    }

    /// Adds the tag `tag` to a snapshot, so that it cannot be removed, or takes the tag away.
    ///
    /// # Errors
    /// `NotFound` for a snapshot or a tag that is not there; `Busy` if the snapshot has the tag;
    /// `Invalid` for a tag that none can be; `Limit` for too many; `Io`, `Full`, `Corrupt`.
    pub fn hold_snapshot(
        &mut self,
        volume_no: VolumeNo,
        name: &str,
        (tag, is_held): (&str, bool),
    ) -> Result<()> {
        check_name(tag)?;
        let mut snapshot = snapshot(self.tables(), volume_no, name)?;
        let found = snapshot.holds.binary_search_by(|held| (**held).cmp(tag));
        match (found, is_held) {
            (Ok(_), true) => {
                let what = format!("@{name}: is held by the tag {tag:?} already");
                return Err(Error::new(ErrorKind::Busy, what));
            }
            (Err(_), false) => {
                let what = format!("@{name}: is not held by the tag {tag:?}");
                return Err(Error::not_found(what));
            }
            (Ok(at), false) => drop(snapshot.holds.remove(at)),
            (Err(at), true) if snapshot.holds.len() < HOLDS_MAX => {
                snapshot.holds.insert(at, tag.to_owned());
            }
            (Err(_), true) => {
                let what = format!("@{name}: is held by {HOLDS_MAX} tags already");
                return Err(Error::limit(what));
            }
        }
        self.refuse_after_failure(|writer| {
            let mut batch = Batch::default();
            let key = snapshot_key(volume_no, snapshot.no);
            batch.put(Table::Snapshots, &key, snapshot.into_row().encode());
            writer.commit(batch)
        })
    }
}
