//! The metadata engine: ordered tables of bytes, changed in atomic, durable batches.
//!
//! The store and the volume know only this trait. [`redb`] keeps the tables in one file;
//! [`memory`] keeps them for tests.

pub mod memory;
pub mod redb;

use std::fmt::Debug;
use std::ops::ControlFlow;
use weald_format::Result;

/// The tables. Keys that are numbers are stored as eight bytes, most significant first, so that
/// the order of the bytes is that of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Counters by name.
    Counters,
    /// Block rows by block id.
    Blocks,
    /// Segment rows by number.
    Segments,
    /// Image rows by name.
    Images,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 4] = [Self::Counters, Self::Blocks, Self::Segments, Self::Images];

    /// Its name in the engine's file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counters => "counters",
            Self::Blocks => "blocks",
            Self::Segments => "segments",
            Self::Images => "images",
        }
    }
}

/// One change of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The table.
    pub table: Table,
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` removes the key.
    pub value: Option<Vec<u8>>,
}

/// Changes that happen together or not at all, in order.
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

/// Receives rows of a range in the order of their keys.
pub type VisitRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>> + 'a;

/// An ordered, transactional key-value store with one writer.
pub trait Engine: Debug + Send + Sync {
    /// The value of `key`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Visits the rows from `start` (inclusive) on, as one consistent state.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()>;

    /// Applies `batch`; it is durable when this returns.
    ///
    /// # Errors
    /// `Io`, `Full`: the batch happened or did not, and only reopening tells.
    fn commit(&self, batch: &Batch) -> Result<()>;
}

/// The key that is the number `id`.
pub fn key_of(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

/// The number that `key` is; `None` where it has not eight bytes.
pub fn number_of(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes)
}
