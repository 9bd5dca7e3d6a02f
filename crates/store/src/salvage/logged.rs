//! The sync log of a volume in a salvage: the changes that the next mount takes into the tables.
//! With them, the rows tell what a reader misses.
//!
//! A salvage takes the rows of a whole log into the tables. The log then gets one record, which has
//! contents alone and what counts them: rows of the old records would undo repairs.

use super::volumes::OldVolume;
use crate::engine::Table;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use weald_format::sync_log::{
    DeltaBuilder, DeltaItem, DeltaStart, DeltaTable, chain_start, parse_body,
};
use weald_format::volume::{InodeRow, LogRow, commit_key, inode_key, split_key};
use weald_format::{BlockId, ErrorKind, Ino, Result, VolumeCommitNo};

/// What a range of a file has.
#[derive(Debug, Clone)]
pub enum Content {
    /// Bytes of the log, from this offset on.
    Bytes(Arc<[u8]>, usize),
    /// Zeros that take no space.
    Hole,
    /// Bytes of a decoded block, from this offset on.
    Block(BlockId, u32),
}

impl Content {
    /// Whether it is a hole.
    pub fn is_hole(&self) -> bool {
        matches!(self, Self::Hole)
    }

    /// The content `count` bytes further on.
    fn after(&self, count: u64) -> Self {
        match self {
            Self::Bytes(bytes, offset) => Self::Bytes(bytes.clone(), offset + count as usize),
            Self::Hole => Self::Hole,
            Self::Block(block, offset) => Self::Block(*block, offset + count as u32),
        }
    }
}

/// The changes of a log, the last one of each row and of each byte.
#[derive(Debug, Default)]
pub struct Logged {
    /// Rows by table and key; `None` is a removed one.
    rows: BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>,
    /// Inodes whose rows go.
    removed: BTreeSet<Ino>,
    /// Changed ranges of files by their start, each with its end.
    files: BTreeMap<Ino, BTreeMap<u64, (u64, Content)>>,
    next_ino: Ino,
    /// Time of the last change.
    now: i128,
    /// Whether there is a log, and all of it could be read.
    is_whole: bool,
}

fn table_of(table: DeltaTable) -> Table {
    match table {
        DeltaTable::Inodes => Table::Inodes,
        DeltaTable::Names => Table::Names,
        DeltaTable::Xattrs => Table::Xattrs,
        DeltaTable::Orphans => Table::Orphans,
        DeltaTable::Quotas => Table::Quotas,
    }
}

impl Logged {
    /// Reads the log of a volume, up to what is damaged.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(store: &Store, volume: &OldVolume) -> Result<Self> {
        let row = &volume.row;
        let chain_of = |commit: VolumeCommitNo| {
            let key = commit_key(row.volume_no, commit);
            let value = volume.tables.get(&Table::Log).and_then(|t| t.get(&key));
            let row = value.and_then(|value| LogRow::parse(value).ok());
            Ok(row.map(|row| chain_start(&row.chain)))
        };
        let mut logged = Self::default();
        let mut is_whole = true;
        let records = match store.read_sync_log(row, &chain_of, &|log| log) {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(logged),
            records => records?,
        };
        for body in records.first.iter().chain(&records.second) {
            let checked = parse_body(body, &mut |item| match item {
                DeltaItem::Row(table, key, value) => table.check_row(row.volume_no, key, value),
                _ => Ok(()),
            });
            if checked.is_err() {
                is_whole = false;
                break;
            }
            let start = parse_body(body, &mut |item| logged.add(&item))?;
            logged.next_ino = logged.next_ino.max(start.next_ino);
            logged.now = start.now;
        }
        logged.is_whole = !records.is_empty() && is_whole && records.damage.is_none();
        Ok(logged)
    }

    fn add(&mut self, item: &DeltaItem<'_>) -> Result<()> {
        let (ino, range, content) = match *item {
            DeltaItem::Row(table, key, value) => {
                let table = table_of(table);
                let (_, ino, _) = split_key(key)?;
                if table == Table::Inodes {
                    match value {
                        Some(_) => self.removed.remove(&ino),
                        None => self.removed.insert(ino),
                    };
                    if value.is_none() {
                        self.files.remove(&ino);
                    }
                }
                self.rows
                    .insert((table, key.to_vec()), value.map(<[u8]>::to_vec));
                return Ok(());
            }
            // The row of the inode says so, too.
            DeltaItem::Drop(_) => return Ok(()),
            DeltaItem::Bytes { ino, start, bytes } => {
                let range = start..start + bytes.len() as u64;
                (ino, range, Content::Bytes(bytes.into(), 0))
            }
            DeltaItem::Hole { ino, start, len } => (ino, start..start + len, Content::Hole),
            DeltaItem::Block {
                ino,
                start,
                len,
                block,
                offset,
            } => (ino, start..start + len, Content::Block(block, offset)),
        };
        put(self.files.entry(ino).or_default(), range, content);
        Ok(())
    }

    /// Brings the rows of a volume to where the log leads. Removed inodes stay without a name, as
    /// the tables have their content until the next mount.
    pub fn apply(&self, volume: &mut OldVolume) {
        for ((table, key), value) in &self.rows {
            let rows = volume.tables.entry(*table).or_default();
            let ino = split_key(key).map_or(Ino::NONE, |(_, ino, _)| ino);
            let is_removed = self.removed.contains(&ino);
            match value {
                _ if is_removed && matches!(table, Table::Inodes | Table::Xattrs) => {}
                Some(value) => drop(rows.insert(key.clone(), value.clone())),
                None => drop(rows.remove(key)),
            }
        }
        for ino in &self.removed {
            let key = inode_key(volume.row.volume_no, *ino);
            let rows = volume.tables.entry(Table::Inodes).or_default();
            if let Some(value) = rows.get_mut(&key)
                && let Ok(mut row) = InodeRow::parse(value)
            {
                row.nlink = 0;
                *value = row.encode();
            }
            let orphans = volume.tables.entry(Table::Orphans).or_default();
            orphans.insert(key, Vec::new());
        }
        volume.row.next_ino = volume.row.next_ino.max(self.next_ino);
    }

    /// Changed ranges of a file, in order.
    pub fn changed(&self, ino: Ino) -> impl Iterator<Item = (Range<u64>, &Content)> {
        let file = self.files.get(&ino).into_iter().flatten();
        file.map(|(start, (end, content))| (*start..*end, content))
    }

    /// The body of the one record that a salvage leaves, with these rows; `None` if the log stays
    /// as it is.
    pub fn body<'a>(
        &self,
        rows: impl Iterator<Item = (DeltaTable, &'a [u8], &'a [u8])>,
    ) -> Option<Vec<u8>> {
        if !self.is_whole {
            return None;
        }
        let mut builder = DeltaBuilder::new(DeltaStart {
            next_ino: self.next_ino,
            now: self.now,
        });
        for (table, key, value) in rows {
            builder.push(&DeltaItem::Row(table, key, Some(value)));
        }
        for ino in self.files() {
            for (range, content) in self.changed(ino) {
                let (start, len) = (range.start, range.end - range.start);
                builder.push(&match content {
                    Content::Bytes(bytes, at) => {
                        let bytes = bytes.get(*at..*at + len as usize);
                        let bytes = bytes.unwrap_or_default();
                        DeltaItem::Bytes { ino, start, bytes }
                    }
                    Content::Hole => DeltaItem::Hole { ino, start, len },
                    Content::Block(block, offset) => DeltaItem::Block {
                        ino,
                        start,
                        len,
                        block: *block,
                        offset: *offset,
                    },
                });
            }
        }
        Some(builder.finish())
    }

    /// Files with changed ranges.
    pub fn files(&self) -> impl Iterator<Item = Ino> {
        self.files.keys().copied()
    }

    /// The parts of a range of a file that the log leaves as they are, in order.
    pub fn unchanged(&self, ino: Ino, range: Range<u64>) -> Vec<Range<u64>> {
        let Some(file) = self.files.get(&ino) else {
            return vec![range];
        };
        let before = file.range(..range.start).next_back();
        let changed = before.into_iter().chain(file.range(range.clone()));
        let (mut parts, mut at) = (Vec::new(), range.start);
        for (start, (end, _)) in changed {
            if *start > at {
                parts.push(at..*start);
            }
            at = at.max(*end);
        }
        if at < range.end {
            parts.push(at..range.end);
        }
        parts
    }
}

/// Sets the content of a range.
fn put(file: &mut BTreeMap<u64, (u64, Content)>, range: Range<u64>, content: Content) {
    let before = file.range(..range.start).next_back();
    let within = file.range(range.clone());
    let cut: Vec<_> = before.into_iter().chain(within).collect();
    let cut = cut.into_iter();
    let cut = cut.map(|(start, (end, of))| (*start, *end, of.clone()));
    for (start, end, of) in cut.collect::<Vec<_>>() {
        if end <= range.start {
            continue;
        }
        file.remove(&start);
        if end > range.end {
            file.insert(range.end, (end, of.after(range.end - start)));
        }
        if start < range.start {
            file.insert(start, (range.start, of));
        }
    }
    file.insert(range.start, (range.end, content));
}
