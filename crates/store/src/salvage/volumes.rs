//! Volumes of the old tables: which rows of them can be read.

use super::tables::OldTables;
use crate::engine::{Batch, Table};
use crate::layout;
use crate::store::Store;
use crate::volume::extents_in;
use std::collections::BTreeMap;
use weald_format::snapshot::{SnapshotRow, kept_value};
use weald_format::volume::{ExtentsRow, LogRow, Piece, VolumeRow, split_commit_key};
use weald_format::{BlockId, ErrorKind, Result, VolumeCommitNo, VolumeNo, limits};

/// References to a block.
#[derive(Debug, Clone, Copy, Default)]
pub struct References {
    pub count: u64,
    /// Most bytes of the decoded block that a reference needs.
    pub len: u64,
}

/// The last known commit of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastCommit {
    /// Its number.
    pub commit: VolumeCommitNo,
    /// When it began, nanoseconds since 1970.
    pub time: i128,
}

/// A volume of the old tables.
#[derive(Debug)]
pub struct OldVolume {
    /// Key of its row: its name, or that of a volume which is being made or removed.
    pub key: String,
    pub row: VolumeRow,
    pub tables: BTreeMap<Table, Rows>,
    /// Names of its snapshots, if these are lost.
    pub lost_snapshots: Vec<String>,
}

/// Rows of a table by key.
pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

impl OldVolume {
    /// Reads the volumes of the old tables whose own rows, or the copies in `volumes/`, can be
    /// read. Their snapshots are lost unless the tables are whole: a snapshot of which a kept row
    /// is missing would show a newer one in its place.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if nothing can be read; `Unsupported` if a newer Weald made a volume.
    pub fn read_all(store: &Store, old: &mut OldTables<'_>, is_whole: bool) -> Result<Vec<Self>> {
        let mut volumes = Vec::new();
        for (key, value) in old.read(Table::Volumes, &[])? {
            let (Ok(key), row) = (String::from_utf8(key), VolumeRow::parse(&value)) else {
                continue;
            };
            match row {
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                row => volumes.push(Self::read(old, (key, row?), is_whole)?),
            }
        }
        for name in store.volume_names()? {
            let Some(row) = store.first_volume_row(&name)? else {
                continue;
            };
            let is_of = |volume: &Self| volume.key == name || volume.row.volume_no == row.volume_no;
            if volumes.iter().any(is_of) {
                continue;
            }
            let mut volume = Self::read(old, (name, row), is_whole)?;
            // Without inodes, nothing tells what was there.
            if volume.rows(Table::Inodes).next().is_some() {
                volume.renew_row(&store.sync_logs()?);
                volumes.push(volume);
            }
        }
        volumes.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(volumes)
    }

    /// Brings the row of a new volume to the last commit in `log`; `logs` are the volumes with a
    /// sync log. The repair counts the rest.
    fn renew_row(&mut self, logs: &[VolumeNo]) {
        let last = self.rows(Table::Log).filter_map(|(key, value)| {
            let (_, commit) = split_commit_key(key).ok()?;
            Some((commit, LogRow::parse(value).ok()?.chain))
        });
        if let Some((commit, chain)) = last.max_by_key(|(commit, _)| *commit) {
            (self.row.commit, self.row.chain) = (commit, chain);
        }
        self.row.has_sync_log = logs.contains(&self.row.volume_no);
    }

    fn read(
        old: &mut OldTables<'_>,
        (key, row): (String, VolumeRow),
        is_whole: bool,
    ) -> Result<Self> {
        let mut volume = Self {
            key,
            row,
            tables: BTreeMap::new(),
            lost_snapshots: Vec::new(),
        };
        for table in Table::OF_SNAPSHOTS {
            let read = old.read(table, &volume.row.volume_no.to_be_bytes())?;
            if is_whole {
                volume.tables.insert(table, read);
            } else if table == Table::Snapshots {
                let rows = read.values().map(|value| SnapshotRow::parse(value));
                let rows = rows.flatten().filter(|row| row.removed_to.is_none());
                volume.lost_snapshots = rows.map(|row| row.name).collect();
            }
        }
        for table in Table::OF_VOLUMES {
            // The recount tells the rows of the volume that are damaged from those of neighbours.
            let read = old.read(table, &volume.row.volume_no.to_be_bytes())?;
            volume.tables.insert(table, read);
        }
        Ok(volume)
    }

    /// The last commit in its log of commits.
    pub fn last_commit(&self) -> Option<LastCommit> {
        let commits = self.rows(Table::Log).filter_map(|(key, value)| {
            let (_, commit) = split_commit_key(key).ok()?;
            let time = LogRow::parse(value).ok()?.time;
            Some(LastCommit { commit, time })
        });
        commits.max_by_key(|last| last.commit)
    }

    /// Whether users know it by its name.
    pub fn is_shown(&self) -> bool {
        !layout::is_replaced_key(&self.key)
    }

    /// The rows of a table.
    pub fn rows(&self, table: Table) -> impl Iterator<Item = (&[u8], &[u8])> {
        let rows = self.tables.get(&table).into_iter().flatten();
        rows.map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    /// References to blocks.
    pub fn references(&self) -> BTreeMap<BlockId, References> {
        let mut references: BTreeMap<BlockId, References> = BTreeMap::new();
        for (table, key, value) in self.rows_of_extents() {
            for piece in pieces(extents_of(table, key, value)) {
                let of = references.entry(piece.block).or_default();
                of.count += 1;
                let end = u64::from(piece.offset) + u64::from(piece.len);
                of.len = of.len.max(end);
            }
        }
        references
    }

    /// Rows of extents, those that snapshots keep included.
    fn rows_of_extents(&self) -> impl Iterator<Item = (Table, &[u8], &[u8])> {
        [Table::Extents, Table::Kept].into_iter().flat_map(|table| {
            let rows = self.rows(table);
            rows.map(move |(key, value)| (table, key, value))
        })
    }

    /// Gives the blocks `renamed` other numbers.
    pub fn rename_blocks(&mut self, renamed: &BTreeMap<BlockId, BlockId>) {
        for table in [Table::Extents, Table::Kept] {
            for (key, value) in self.tables.entry(table).or_default() {
                let mut row = ExtentsRow(pieces(extents_of(table, key, value)));
                let mut is_changed = false;
                for piece in &mut row.0 {
                    if let Some(id) = renamed.get(&piece.block) {
                        (piece.block, is_changed) = (*id, true);
                    }
                }
                if is_changed {
                    *value = match table {
                        Table::Kept => kept_value(Some(&row.encode())),
                        _ => row.encode(),
                    };
                }
            }
        }
    }

    /// All rows.
    pub fn into_batch(self) -> Batch {
        let mut batch = Batch::default();
        batch.put(Table::Volumes, self.key.as_bytes(), self.row.encode());
        for (table, rows) in self.tables {
            for (key, value) in rows {
                batch.put(table, &key, value);
            }
        }
        batch
    }
}

/// The row of extents in a row; an empty one, which makes no sense, if it has none.
fn extents_of<'a>(table: Table, key: &[u8], value: &'a [u8]) -> &'a [u8] {
    extents_in(table, key, value)
        .unwrap_or_default()
        .unwrap_or_default()
}

/// Pieces of a row of extents; none if the row makes no sense.
pub fn pieces(value: &[u8]) -> Vec<Piece> {
    ExtentsRow::parse(value, limits::BLOCK_LEN_MAX as u32)
        .unwrap_or_default()
        .0
}
