//! The old tables of a store, as far as they can be read. Nothing of the old file is changed.

use crate::disk::{Access, LocalFiles, ReadOnlyDisk};
use crate::engine::Table;
use crate::engine::redb::{From, ReadableTables, Stored};
use crate::layout;
use crate::store::{ENGINE_CACHE_LEN, Store, UUID_KEY};
use crate::volume::NEXT_VOLUME_NO;
use crate::writer;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::{BlockId, CommitNo, Error, Result, SegmentNo};

/// Steps with which the readable rest of a table is looked for behind damaged pages: each is twice
/// as far as the one before.
const PROBES: u32 = 64;

/// Numbers from here on are damage: no store had so many blocks.
const COUNTER_MAX: u64 = 1 << 46;

/// Rows by key.
pub type ReadableRows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The counters of the old tables; 1 for one that is lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    /// Whether the tables name this store as theirs. Damage can hide that.
    pub names_store: bool,
    pub next_block: BlockId,
    pub next_segment: SegmentNo,
    pub next_volume_no: u64,
    pub commit: CommitNo,
}

/// The old tables.
#[derive(Debug)]
pub struct OldTables<'a> {
    store: &'a Store,
    /// Opened anew after damage on which the engine gives up.
    tables: ReadableTables,
}

fn open(store: &Store) -> Result<ReadableTables> {
    let shown = format!("{}/{}", store.disk.shown(), layout::META);
    let disk = ReadOnlyDisk::new(store.disk.clone());
    let file = disk.open(layout::META, Access::Write)?;
    if file.is_empty()? {
        let what = format!("{shown}: is empty");
        return Err(Error::corrupt("store metadata", 0, "S-5.1", what));
    }
    file.read_anew()?;
    ReadableTables::open(Arc::from(file), shown, ENGINE_CACHE_LEN)
}

/// The key that lies `distance` inodes, or rows of a table with numeric keys, behind `key`.
fn behind(key: &[u8], distance: u64) -> Option<Vec<u8>> {
    let at = match key.len() {
        8 => 0,
        _ => 4,
    };
    let number = key.get(at..at + 8)?.first_chunk()?;
    let number = u64::from_be_bytes(*number).checked_add(distance)?;
    Some([&key[..at], &number.to_be_bytes()].concat())
}

impl<'a> OldTables<'a> {
    /// Opens them.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub fn open(store: &'a Store) -> Result<Self> {
        let tables = open(store)?;
        Ok(Self { store, tables })
    }

    /// The counters.
    ///
    /// # Errors
    /// As [`OldTables::read`].
    pub fn counters(&mut self) -> Result<Counters> {
        let rows = self.read(Table::Counters, &[])?;
        let number = |key: &[u8]| {
            let value = rows.get(key)?.as_slice().try_into();
            let number = value.ok().map(u64::from_le_bytes);
            // These rows have no checksums.
            number.filter(|number| *number <= COUNTER_MAX)
        };
        let uuid = rows.get(UUID_KEY).map(Vec::as_slice);
        Ok(Counters {
            names_store: uuid == Some(self.store.superblock.uuid.as_slice()),
            next_block: BlockId(number(writer::NEXT_BLOCK).unwrap_or(1)),
            next_segment: SegmentNo(number(writer::NEXT_SEGMENT).unwrap_or(1)),
            next_volume_no: number(NEXT_VOLUME_NO)
                .filter(|number| *number <= COUNTER_MAX >> 16)
                .unwrap_or(1),
            commit: CommitNo(number(writer::COMMIT).unwrap_or(0)),
        })
    }

    fn reopen(&mut self) -> Result<()> {
        self.tables = open(self.store)?;
        Ok(())
    }

    /// The rows of `table` whose keys begin with `prefix`, which has four bytes or none, as far as
    /// they can be read.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if the tables cannot be opened any more.
    pub fn read(&mut self, table: Table, prefix: &[u8]) -> Result<ReadableRows> {
        let end = prefix.first_chunk().and_then(|number| {
            let next = u32::from_be_bytes(*number).checked_add(1)?;
            Some(next.to_be_bytes().to_vec())
        });
        let mut readable = ReadableRows::new();
        let mut last: Option<Vec<u8>> = None;
        for (key, stored) in &self.stored(table, prefix, end.as_deref())? {
            let rows = self.tables.rows_of(table, (key, stored));
            let Some(rows) = rows.filter(|_| last.as_ref().is_none_or(|last| last < key)) else {
                continue;
            };
            last = rows.last().map(|(key, _)| key.clone());
            let rows = rows.into_iter();
            readable.extend(rows.filter(|(key, _)| key.starts_with(prefix)));
        }
        Ok(readable)
    }

    /// Rows or groups from both ends of a range.
    fn stored(&mut self, table: Table, start: &[u8], end: Option<&[u8]>) -> Result<Stored> {
        let mut stored = Stored::new();
        let before = if table.is_grouped() {
            self.tables.group_key(table, start)
        } else {
            Ok(None)
        };
        if before.is_err() {
            self.reopen()?;
        }
        let first = before.unwrap_or_default().unwrap_or(start.to_vec());
        let is_read = self
            .tables
            .read_stored((table, From::Start), (&first, end), &mut stored);
        if is_read {
            return Ok(stored);
        }
        self.reopen()?;
        let last = stored.last_key_value().map_or(start, |(key, _)| key);
        let last = match last.len() {
            0..8 => [last, &[0; 8]].concat(),
            _ => last.to_vec(),
        };
        for probe in 0..PROBES {
            let Some(from) = behind(&last, 1 << probe) else {
                break;
            };
            if end.is_some_and(|end| from.as_slice() >= end) {
                break;
            }
            let mut rest = Stored::new();
            let keys = (from.as_slice(), end);
            let is_read = self.tables.read_stored((table, From::End), keys, &mut rest);
            stored.extend(rest);
            if is_read {
                break;
            }
            self.reopen()?;
        }
        Ok(stored)
    }
}
