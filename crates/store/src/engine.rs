//! The metadata engine: ordered tables of bytes that change in atomic, durable batches.
//!
//! The store and the volume use only this trait. [`redb`] keeps the tables in one file; [`memory`]
//! keeps them in memory for tests.

mod group_cache;
mod groups;
pub mod memory;
mod page;
pub mod redb;
mod rows_file;
mod sealed_group;
mod second_copy;

#[cfg(any(test, feature = "planted-bugs"))]
pub use page::trial;
pub use rows_file::{RowsFile, RowsWriter};
pub(crate) use sealed_group::Sealer;
pub(crate) use second_copy::{Gap, KeyedRows};

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::journal::RowSum;
use weald_format::row_group::Shape;
use weald_format::{Error, Result};

/// The tables. A numeric key is stored as eight bytes in big-endian order, so that the byte order
/// of keys is the order of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Counters by name.
    Counters,
    /// Block rows; the key is the block id.
    Blocks,
    /// Segment rows; the key is the segment number.
    Segments,
    /// Image rows; the key is the image name.
    Images,
    /// Volume rows; the key is the volume's name.
    Volumes,
    /// Inodes of volumes, here and below: the keys are those of `weald_format::volume`.
    Inodes,
    /// Names in directories.
    Names,
    /// Pieces of the windows of files.
    Extents,
    /// Extended attributes.
    Xattrs,
    /// Inodes without a name, whose rows have to be removed.
    Orphans,
    /// Quotas of directories.
    Quotas,
    /// Commits of volumes.
    Log,
    /// Snapshots of volumes; the keys here and below are those of `weald_format::snapshot`.
    Snapshots,
    /// Rows of volumes that snapshots keep.
    Kept,
    /// The same rows by snapshot, without values.
    KeptBySnapshot,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 15] = [
        Self::Counters,
        Self::Blocks,
        Self::Segments,
        Self::Images,
        Self::Volumes,
        Self::Inodes,
        Self::Names,
        Self::Extents,
        Self::Xattrs,
        Self::Orphans,
        Self::Quotas,
        Self::Log,
        Self::Snapshots,
        Self::Kept,
        Self::KeptBySnapshot,
    ];

    /// The tables with rows of volumes, whose keys begin with the number of the volume: all that is
    /// checked, salvaged and removed of one.
    pub const OF_VOLUMES: [Self; 7] = [
        Self::Inodes,
        Self::Names,
        Self::Extents,
        Self::Xattrs,
        Self::Orphans,
        Self::Quotas,
        Self::Log,
    ];

    /// The tables of a volume's state: what a snapshot keeps.
    pub const OF_STATES: [Self; 6] = [
        Self::Inodes,
        Self::Names,
        Self::Extents,
        Self::Xattrs,
        Self::Orphans,
        Self::Quotas,
    ];

    /// The tables of the snapshots of volumes, whose keys begin with the number of the volume.
    pub const OF_SNAPSHOTS: [Self; 3] = [Self::Snapshots, Self::Kept, Self::KeptBySnapshot];

    /// Whether rows lie in compressed groups. The other tables have few rows.
    pub const fn is_grouped(self) -> bool {
        matches!(
            self,
            Self::Blocks
                | Self::Inodes
                | Self::Names
                | Self::Extents
                | Self::Xattrs
                | Self::Kept
                | Self::KeptBySnapshot
        )
    }

    /// Kind of the rows, if columns suit them.
    pub(crate) const fn shape(self) -> Option<Shape> {
        match self {
            Self::Blocks => Some(Shape::Blocks),
            Self::Inodes => Some(Shape::Inodes),
            Self::Names => Some(Shape::Names),
            Self::Extents => Some(Shape::Extents),
            _ => None,
        }
    }

    /// Whether each value of a table without groups ends with a checksum of table, key and value.
    /// redb does not verify pages that it reads. Rows of images need none: they name digests.
    pub const fn has_checksums(self) -> bool {
        !matches!(
            self,
            Self::Counters | Self::Blocks | Self::Segments | Self::Images
        )
    }

    /// Number of the table in the journal, and in the sum of all rows.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The table with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Name of the table of groups in the engine's file, or of the table of rows.
    pub const fn stored_name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks.groups",
            Self::Inodes => "inodes.groups",
            Self::Names => "names.groups",
            Self::Extents => "extents.groups",
            Self::Xattrs => "xattrs.groups",
            Self::Kept => "kept.groups",
            Self::KeptBySnapshot => "kept_by_snapshot.groups",
            _ => self.name(),
        }
    }

    /// Name of the table, and of the table of its rows in the engine's file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counters => "counters",
            Self::Blocks => "blocks",
            Self::Segments => "segments",
            Self::Images => "images",
            Self::Volumes => "volumes",
            Self::Inodes => "inodes",
            Self::Names => "names",
            Self::Extents => "extents",
            Self::Xattrs => "xattrs",
            Self::Orphans => "orphans",
            Self::Quotas => "quotas",
            Self::Log => "log",
            Self::Snapshots => "snapshots",
            Self::Kept => "kept",
            Self::KeptBySnapshot => "kept_by_snapshot",
        }
    }
}

/// A change of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` removes the key.
    pub value: Option<Vec<u8>>,
}

/// Changes that the engine applies in order, all of them or none.
#[derive(Debug, Clone, Default)]
pub struct Batch(pub Vec<Change>);

impl Batch {
    /// Sets `key` to `value`.
    pub fn put(&mut self, table: Table, key: &[u8], value: Vec<u8>) {
        self.0.push(Change {
            table,
            key: key.to_vec(),
            value: Some(value),
        });
    }

    /// Removes `key`.
    pub fn remove(&mut self, table: Table, key: &[u8]) {
        self.0.push(Change {
            table,
            key: key.to_vec(),
            value: None,
        });
    }
}

/// Callback that receives the rows of a range in ascending order of keys; `Break` ends the scan.
pub type VisitRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>> + 'a;

/// Callback that receives damage of a scan: the key of the group or row that cannot be read, and
/// why. An error ends the scan.
pub type VisitDamage<'a> = dyn FnMut(&[u8], Error) -> Result<()> + 'a;

/// Callback that receives the sum of all rows, the changes of a batch included, before the batch
/// becomes durable. Its error rolls the batch back.
pub type BeforeCommit<'a> = dyn FnMut(RowSum) -> Result<()> + 'a;

/// The counter with the number of the last commit.
pub(crate) const COMMIT: &[u8] = b"commit";

/// An ordered, transactional key-value store with one writer.
pub trait Engine: Debug + Send + Sync {
    /// Returns the value of `key`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Visits the rows from `start` (inclusive) to the end of the table. All rows belong to one
    /// consistent state.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and the errors of `visit`.
    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()> {
        self.scan_readable(table, start, visit, &mut |_, error| Err(error))
    }

    /// As [`Engine::scan`], past the groups and rows that differ from their checksums. An engine
    /// without checksums meets no such damage.
    ///
    /// # Errors
    /// As [`Engine::scan`], and the errors of `damaged`.
    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()>;

    /// Applies `batch`, which is durable when the call returns.
    ///
    /// # Errors
    /// `Io`, `Full`. The batch is then applied or not; the caller learns which by reopening the
    /// store.
    fn commit(&self, batch: &Batch) -> Result<()> {
        self.commit_after(batch, &mut |_| Ok(()))
    }

    /// As [`Engine::commit`], after `before` has got the sum of all rows.
    ///
    /// # Errors
    /// As [`Engine::commit`], and those of `before`.
    fn commit_after(&self, batch: &Batch, before: &mut BeforeCommit<'_>) -> Result<()>;

    /// The sum of all rows as of the last commit.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn row_sum(&self) -> Result<RowSum>;

    /// Gives the space of removed rows back to the disk. Moves rows, so that it takes seconds for
    /// each gigabyte, and other calls wait. Nobody may be within [`Engine::scan`].
    ///
    /// # Errors
    /// `Io`, `Full`.
    fn compact(&self) -> Result<()>;

    /// All tables as of the last commit. Until the result is dropped, the space of rows that are
    /// removed meanwhile is not used again.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>>;
}

/// Adds all rows of an engine up.
///
/// # Errors
/// `Io`; `Corrupt` if some cannot be read.
pub(crate) fn sum_of_rows(engine: &dyn Engine) -> Result<RowSum> {
    let mut sum = RowSum::default();
    for table in Table::ALL {
        engine.scan(table, &[], &mut |key, value| {
            sum.add(table.code(), key, value);
            Ok(ControlFlow::Continue(()))
        })?;
    }
    Ok(sum)
}

/// All tables as they were at one moment, while commits go on.
pub trait ReadView: Debug + Send {
    /// As [`Engine::scan`], of the tables at that moment.
    ///
    /// # Errors
    /// As [`Engine::scan`].
    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()>;

    /// As [`Engine::get`], of the tables at that moment.
    ///
    /// # Errors
    /// As [`Engine::get`].
    fn row(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        first_if(key, |visit| self.scan(table, key, visit))
    }
}

/// The value of the first row that `scan` visits, if it has this key.
pub(crate) fn first_if(
    key: &[u8],
    scan: impl FnOnce(&mut VisitRow<'_>) -> Result<()>,
) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    scan(&mut |at, value| {
        found = (at == key).then(|| value.to_vec());
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// The view of tables that do not change: the tables themselves.
#[derive(Debug)]
pub(crate) struct SameRows(pub Arc<dyn Engine>);

impl ReadView for SameRows {
    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()> {
        self.0.scan(table, start, visit)
    }
}

/// Encodes the number `id` as a key.
pub fn key_of(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

/// Decodes a numeric key; `None` if `key` does not have eight bytes.
pub fn number_of(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_of_tables_are_those_of_the_format() {
        for (code, table) in Table::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(table.code()), code);
            assert_eq!(Table::from_code(table.code()), Some(table));
        }
        assert_eq!(Table::from_code(15), None);
    }

    // Would catch a table that is checked, and neither salvaged nor removed with its volume.
    #[test]
    fn each_table_is_one_of_the_store_or_one_of_volumes() {
        let is_of_store = |table: &Table| match table {
            Table::Counters | Table::Blocks | Table::Segments => true,
            Table::Images | Table::Volumes => true,
            Table::Inodes | Table::Names | Table::Extents | Table::Xattrs => false,
            Table::Orphans | Table::Quotas | Table::Log => false,
            Table::Snapshots | Table::Kept | Table::KeptBySnapshot => false,
        };
        let mut of_volumes = Table::ALL.to_vec();
        of_volumes.retain(|table| !is_of_store(table));
        let named = [&Table::OF_VOLUMES[..], &Table::OF_SNAPSHOTS].concat();
        assert_eq!(of_volumes, named);
        let without_log = Table::OF_VOLUMES
            .into_iter()
            .filter(|table| *table != Table::Log);
        assert!(without_log.eq(Table::OF_STATES));
    }
}
