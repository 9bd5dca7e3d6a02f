//! Volumes of the old tables: which rows of them can be read, and what is lost.
//!
//! A volume stays with the rows that can be read. A recount of them finds what is lost. Directories
//! and files whose inode is lost get another one, of root and without times, if names or contents
//! show what was there. Other names without an inode go, because they would make the listings of
//! their directories fail. All other rows stay, and a check of the volume finds the losses, too.

use super::tables::OldTables;
use crate::engine::{Batch, Table};
use crate::layout;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::store::BlockRow;
use weald_format::volume::{
    ExtentsRow, InodeRow, NameRow, QuotaRow, VolumeRow, number_key, split_key, split_pair_key,
};
use weald_format::{ErrorKind, FileKind, Result, limits};

/// Tables with rows of volumes.
const TABLES: [Table; 7] = [
    Table::Inodes,
    Table::Names,
    Table::Extents,
    Table::Xattrs,
    Table::Orphans,
    Table::Quotas,
    Table::Log,
];
/// Most directories between an inode and the root in a shown path.
const DEPTH_MAX: usize = 4096;

/// References to a block.
#[derive(Debug, Clone, Copy, Default)]
pub struct References {
    pub count: u64,
    /// Most bytes of the decoded block that a reference needs.
    pub len: u64,
}

/// A volume of the old tables.
#[derive(Debug)]
pub struct OldVolume {
    /// Key of its row: its name, or that of a volume which is being made or removed.
    pub key: String,
    pub row: VolumeRow,
    tables: BTreeMap<Table, BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl OldVolume {
    /// Reads the volumes of the old tables whose own rows can be read.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if nothing can be read; `Unsupported` if a newer Weald made a volume.
    pub fn read_all(old: &mut OldTables<'_>) -> Result<Vec<Self>> {
        let mut volumes = Vec::new();
        for (key, value) in old.read(Table::Volumes, &[])? {
            let (Ok(key), row) = (String::from_utf8(key), VolumeRow::parse(&value)) else {
                continue;
            };
            match row {
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                row => volumes.push(Self::read(old, key, row?)?),
            }
        }
        Ok(volumes)
    }

    fn read(old: &mut OldTables<'_>, key: String, row: VolumeRow) -> Result<Self> {
        let mut volume = Self {
            key,
            row,
            tables: BTreeMap::new(),
        };
        for table in TABLES {
            // The recount tells the rows of the volume that are damaged from those of neighbours.
            let read = old.read(table, &volume.row.snapshot.to_be_bytes())?;
            volume.tables.insert(table, read);
        }
        Ok(volume)
    }

    /// Whether users know it by its name.
    pub fn is_shown(&self) -> bool {
        !layout::is_replaced_key(&self.key)
    }

    fn rows(&self, table: Table) -> impl Iterator<Item = (&[u8], &[u8])> {
        let rows = self.tables.get(&table).into_iter().flatten();
        rows.map(|(key, value)| (key.as_slice(), value.as_slice()))
    }

    /// References to blocks.
    pub fn references(&self) -> BTreeMap<u64, References> {
        let mut references: BTreeMap<u64, References> = BTreeMap::new();
        for (_, value) in self.rows(Table::Extents) {
            for piece in extents(value).0 {
                let of = references.entry(piece.block).or_default();
                of.count += 1;
                let end = u64::from(piece.offset) + u64::from(piece.len);
                of.len = of.len.max(end);
            }
        }
        references
    }

    /// Counts what is lost, one line each, and removes the names of lost inodes. `blocks` has the
    /// blocks that are known.
    pub fn recount(&mut self, blocks: &BTreeMap<u64, BlockRow>) -> Vec<String> {
        let mut losses = Vec::new();
        let made = Recount::of(self, blocks).lost_inodes(&mut losses);
        let snapshot = self.row.snapshot;
        let inodes = self.tables.entry(Table::Inodes).or_default();
        for (ino, row) in made {
            inodes.insert(number_key(snapshot, ino), row.encode());
        }
        let count = Recount::of(self, blocks);
        losses.extend(count.losses());
        let last = number_key(snapshot, self.row.commit);
        let commits = self.tables.get(&Table::Log);
        if self.row.commit > 0 && commits.is_none_or(|rows| !rows.contains_key(&last)) {
            losses.push("the row of its last commit".to_owned());
        }
        let dangling = count.dangling();
        if let Some(names) = self.tables.get_mut(&Table::Names) {
            names.retain(|key, _| !dangling.contains(key));
        }
        losses
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

/// Pieces of a row; none if the row makes no sense.
fn extents(value: &[u8]) -> ExtentsRow {
    ExtentsRow::parse(value, limits::BLOCK_LEN_MAX as u32).unwrap_or_default()
}

/// A name: its key, directory and row.
type Named = (Vec<u8>, u64, NameRow);

/// A count of the rows of a volume.
#[derive(Default)]
struct Recount {
    root: u64,
    inodes: BTreeMap<u64, InodeRow>,
    names: Vec<Named>,
    /// Index in `names` of the first name of an inode.
    first_name: BTreeMap<u64, usize>,
    name_counts: BTreeMap<u64, u32>,
    allocated: BTreeMap<u64, u64>,
    /// Bytes before the end of the last piece.
    ends: BTreeMap<u64, u64>,
    /// Bytes in blocks that are not known.
    without_block: BTreeMap<u64, u64>,
    xattr_counts: BTreeMap<u64, u32>,
    orphans: BTreeSet<u64>,
    quotas: BTreeMap<u64, QuotaRow>,
}

impl Recount {
    fn of(volume: &OldVolume, blocks: &BTreeMap<u64, BlockRow>) -> Self {
        let mut count = Self {
            root: volume.row.root,
            ..Self::default()
        };
        let number = |key: &[u8]| split_key(key).map_or(0, |(_, number, _)| number);
        for (key, value) in volume.rows(Table::Inodes) {
            if let Ok(row) = InodeRow::parse(value) {
                count.inodes.insert(number(key), row);
            }
        }
        for (key, value) in volume.rows(Table::Names) {
            if let (Ok((_, dir, _)), Ok(row)) = (split_pair_key(key), NameRow::parse(value)) {
                let at = count.names.len();
                count.first_name.entry(row.ino).or_insert(at);
                *count.name_counts.entry(row.ino).or_default() += 1;
                count.names.push((key.to_vec(), dir, row));
            }
        }
        for (key, value) in volume.rows(Table::Extents) {
            let window = split_pair_key(key).map_or(0, |(_, _, window)| window);
            let start = window.saturating_mul(volume.row.chunk_len.into());
            for piece in extents(value).0 {
                let end = start.saturating_add(piece.end().into());
                let last = count.ends.entry(number(key)).or_default();
                *last = end.max(*last);
                let len = u64::from(piece.len);
                *count.allocated.entry(number(key)).or_default() += len;
                if !blocks.contains_key(&piece.block) {
                    *count.without_block.entry(number(key)).or_default() += len;
                }
            }
        }
        for (key, _) in volume.rows(Table::Xattrs) {
            *count.xattr_counts.entry(number(key)).or_default() += 1;
        }
        let orphans = volume.rows(Table::Orphans);
        count.orphans = orphans.map(|(key, _)| number(key)).collect();
        for (key, value) in volume.rows(Table::Quotas) {
            if let Ok(row) = QuotaRow::parse(value) {
                count.quotas.insert(number(key), row);
            }
        }
        count
    }

    /// Inodes for directories and files whose own are lost.
    fn lost_inodes(&self, losses: &mut Vec<String>) -> BTreeMap<u64, InodeRow> {
        let mut dirs: BTreeMap<u64, u64> = BTreeMap::from([(self.root, self.root)]);
        let mut made = BTreeMap::new();
        let mut dir_counts: BTreeMap<u64, u32> = BTreeMap::new();
        for (_, dir, row) in &self.names {
            match row.kind {
                FileKind::Directory => {
                    dirs.insert(row.ino, *dir);
                    *dir_counts.entry(*dir).or_default() += 1;
                }
                FileKind::Regular if self.ends.contains_key(&row.ino) => {
                    made.insert(row.ino, self.new_inode(row.ino, FileKind::Regular));
                }
                _ => {}
            }
        }
        for (ino, parent) in dirs {
            let mut row = self.new_inode(ino, FileKind::Directory);
            row.nlink = 2 + dir_counts.get(&ino).copied().unwrap_or(0);
            row.parent = parent;
            made.insert(ino, row);
        }
        made.retain(|ino, _| !self.inodes.contains_key(ino));
        for (ino, row) in &made {
            losses.push(match row.kind {
                FileKind::Directory => format!("the attributes of {}", self.shown(*ino)),
                _ => format!("the attributes and the length of {}", self.shown(*ino)),
            });
        }
        made
    }

    fn new_inode(&self, ino: u64, kind: FileKind) -> InodeRow {
        let of = |counts: &BTreeMap<u64, u64>| counts.get(&ino).copied().unwrap_or(0);
        InodeRow {
            kind,
            permissions: 0o700,
            uid: 0,
            gid: 0,
            nlink: self.name_counts.get(&ino).copied().unwrap_or(0),
            rdev: 0,
            size: of(&self.ends),
            allocated: of(&self.allocated),
            atime: 0,
            mtime: 0,
            ctime: 0,
            btime: 0,
            parent: 0,
            quota: 0,
            xattr_count: self.xattr_counts.get(&ino).copied().unwrap_or(0),
            target: Vec::new(),
        }
    }

    /// Keys of the names whose inode is gone.
    fn dangling(&self) -> BTreeSet<Vec<u8>> {
        let names = self.names.iter();
        let dangling = names.filter(|(_, _, row)| !self.inodes.contains_key(&row.ino));
        dangling.map(|(key, ..)| key.clone()).collect()
    }

    /// The path of `name` in the directory `dir`, as far as names lead to it.
    fn path(&self, dir: u64, name: &[u8]) -> String {
        let mut parts = vec![String::from_utf8_lossy(name).into_owned()];
        let mut at = dir;
        while at != self.root {
            let above = self.first_name.get(&at).and_then(|no| self.names.get(*no));
            let Some((_, above, row)) = above.filter(|_| parts.len() < DEPTH_MAX) else {
                parts.push(format!("(inode {at})"));
                break;
            };
            parts.push(String::from_utf8_lossy(&row.name).into_owned());
            at = *above;
        }
        parts.reverse();
        format!("{:?}", parts.join("/"))
    }

    fn shown(&self, ino: u64) -> String {
        let named = self.first_name.get(&ino).and_then(|no| self.names.get(*no));
        match named {
            Some((_, dir, row)) => self.path(*dir, &row.name),
            None if ino == self.root => "the root directory".to_owned(),
            None => format!("inode {ino}"),
        }
    }

    fn losses(&self) -> Vec<String> {
        let mut losses = Vec::new();
        for (_, dir, row) in &self.names {
            if !self.inodes.contains_key(&row.ino) {
                let path = self.path(*dir, &row.name);
                losses.push(match row.kind {
                    FileKind::Directory => format!("{path}, a directory"),
                    _ => path,
                });
            }
        }
        for (ino, row) in &self.inodes {
            self.count_inode(*ino, row, &mut losses);
        }
        let quotas: BTreeSet<u64> = self.inodes.values().map(|row| row.quota).collect();
        for dir in quotas.iter().filter(|dir| **dir != 0) {
            if !self.quotas.contains_key(dir) {
                losses.push(format!("the quota of {}", self.shown(*dir)));
            }
        }
        let owners = self.allocated.keys().chain(self.xattr_counts.keys());
        let owners: BTreeSet<&u64> = owners.collect();
        for ino in owners {
            let is_known = self.inodes.contains_key(ino) || self.first_name.contains_key(ino);
            if !is_known && !self.orphans.contains(ino) {
                losses.push(format!("inode {ino}, with its name"));
            }
        }
        losses
    }

    fn count_inode(&self, ino: u64, row: &InodeRow, losses: &mut Vec<String>) {
        let shown = self.shown(ino);
        let count = self.name_counts.get(&ino).copied().unwrap_or(0);
        let is_named = ino == self.root || row.nlink == 0 || count > 0;
        if !is_named {
            losses.push(format!("the name of inode {ino}, {} bytes", row.size));
        } else if row.kind != FileKind::Directory && count < row.nlink {
            losses.push(format!(
                "{} of {} names of {shown}",
                row.nlink - count,
                row.nlink
            ));
        }
        if (row.nlink == 0) != self.orphans.contains(&ino) {
            losses.push(format!("the note that inode {ino} is removed"));
        }
        let found = self.allocated.get(&ino).copied().unwrap_or(0);
        if found != row.allocated {
            let lost = row.allocated.abs_diff(found);
            losses.push(format!("{lost} of {} bytes of {shown}", row.allocated));
        }
        if let Some(len) = self.without_block.get(&ino) {
            losses.push(format!("the blocks of {len} bytes of {shown}"));
        }
        let found = self.xattr_counts.get(&ino).copied().unwrap_or(0);
        if found != row.xattr_count {
            let lost = row.xattr_count.abs_diff(found);
            losses.push(format!(
                "{lost} of {} attributes of {shown}",
                row.xattr_count
            ));
        }
    }
}
