//! Rows of snapshots in the tables: which there are, and which row a snapshot has.

use crate::engine::{Engine, Table};
use std::ops::ControlFlow;
use weald_format::snapshot::{
    KeptKey, SnapshotRow, SnapshotsRow, parse_kept, snapshot_key, split_snapshot_key,
};
use weald_format::volume::split_key;
use weald_format::{Error, Ino, Result, SnapshotNo, VolumeNo};

/// A kept row: the snapshot that it was kept for, and the row; `None` says that there was none.
pub(super) type Kept = (SnapshotNo, Option<Vec<u8>>);

/// The rows of all snapshots of a volume by number, those that are being removed included.
///
/// # Errors
/// `Io`, `Corrupt`.
pub(crate) fn snapshots_of(
    engine: &dyn Engine,
    volume_no: VolumeNo,
) -> Result<Vec<(SnapshotNo, SnapshotRow)>> {
    let mut rows = Vec::new();
    let start = snapshot_key(volume_no, SnapshotNo::FIRST);
    engine.scan(Table::Snapshots, &start, &mut |key, value| {
        let (of, no) = split_snapshot_key(key)?;
        if of != volume_no {
            return Ok(ControlFlow::Break(()));
        }
        rows.push((no, SnapshotRow::parse(value)?));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(rows)
}

/// What all snapshots of a volume share.
///
/// # Errors
/// `Io`, `Corrupt`.
pub(super) fn shared_row(engine: &dyn Engine, volume_no: VolumeNo) -> Result<SnapshotsRow> {
    let key = snapshot_key(volume_no, SnapshotNo::NONE);
    let value = engine.get(Table::Snapshots, &key)?;
    value.map_or(
        Ok(SnapshotsRow {
            next: SnapshotNo::FIRST,
            rollback: None,
        }),
        |value| SnapshotsRow::parse(&value),
    )
}

/// The kept row of `rest` in `table` that the snapshot `no` has: that of the oldest snapshot from
/// `no` on. Without one, the snapshot has the row that the volume has.
///
/// # Errors
/// `Io`, `Corrupt`.
pub(super) fn kept_from(
    engine: &dyn Engine,
    (volume_no, table, rest): (VolumeNo, Table, &[u8]),
    no: SnapshotNo,
) -> Result<Option<Kept>> {
    let place = KeptKey {
        volume_no,
        table: table.code(),
        rest: rest.to_vec(),
        no,
    };
    let mut found = None;
    engine.scan(Table::Kept, &place.encode(), &mut |key, value| {
        let key = KeptKey::parse(key)?;
        let is_same = (key.volume_no, key.table) == (volume_no, table.code()) && key.rest == rest;
        if is_same {
            found = Some((key.no, parse_kept(value)?.map(<[u8]>::to_vec)));
        }
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// Visits the places of all rows that changed between the snapshot `from` and the snapshot `to`, or
/// until now. A row that changed and changed back, or that is listed for two snapshots, is visited,
/// too; rows of inodes that are newer than `from` are not.
///
/// # Errors
/// `Io`, `Corrupt`, those of `visit`.
/// # Cost
/// By the rows that changed.
pub fn changed_rows(
    engine: &dyn Engine,
    volume_no: VolumeNo,
    (from, to): (SnapshotNo, Option<SnapshotNo>),
    visit: &mut dyn FnMut(&KeptKey) -> Result<()>,
) -> Result<()> {
    let start = snapshot_key(volume_no, from);
    engine.scan(Table::KeptBySnapshot, &start, &mut |key, _| {
        let key = KeptKey::parse_by_snapshot(key)?;
        if key.volume_no != volume_no || to.is_some_and(|to| key.no >= to) {
            return Ok(ControlFlow::Break(()));
        }
        visit(&key)?;
        Ok(ControlFlow::Continue(()))
    })
}

/// The inode of a row of a state, by its key without the number of the volume.
///
/// # Errors
/// `Corrupt`.
pub(super) fn ino_of(rest: &[u8]) -> Result<Ino> {
    let number = rest.first_chunk().ok_or_else(|| {
        let what = "a key is too short";
        Error::corrupt("snapshot row", 0, "N-2.2", what)
    })?;
    Ok(Ino(u64::from_be_bytes(*number)))
}

/// Splits the key of a row of a state into its volume, its inode and the key without the number of
/// the volume.
///
/// # Errors
/// `Corrupt`.
pub(super) fn split_state_key(key: &[u8]) -> Result<(VolumeNo, Ino, &[u8])> {
    let (volume_no, ino, _) = split_key(key)?;
    let rest = key.get(volume_no.to_be_bytes().len()..).unwrap_or_default();
    Ok((volume_no, ino, rest))
}

/// The key of a row of a state.
pub(super) fn state_key(volume_no: VolumeNo, rest: &[u8]) -> Vec<u8> {
    [&volume_no.to_be_bytes()[..], rest].concat()
}

/// The table that a kept row is of.
///
/// # Errors
/// `Corrupt`.
pub(super) fn table_of(place: &KeptKey) -> Result<Table> {
    Table::from_code(place.table).ok_or_else(|| {
        let what = format!("table {} does not exist", place.table);
        Error::corrupt("snapshot row", 0, "N-2.4", what)
    })
}
