//! Reads what damage has left of the tables.
//!
//! An engine notes which pages are free, and cannot be opened if it cannot read that. A reader of
//! redb that shares the file with a writer does not need it, and takes the last commit as recorded.

use super::backend::Backend;
use super::failures::{catch_panic, damaged, unreadable_page};
use super::{RedbEngine, definition};
use crate::disk::LocalFile;
use crate::engine::Table;
use crate::engine::sealed_group::{CHECKSUM_LEN, Sealer, checksum};
use ::redb::{
    BackendError, Builder, ConcurrencyMode, ReadOnlyDatabase, ReadOnlyTable, ReadTransaction,
    ReadableDatabase, StorageBackend,
};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use weald_format::{Error, Result};

/// Rows by key, or groups of rows by their first key, as the file has them.
pub type Stored = BTreeMap<Vec<u8>, Vec<u8>>;

/// End of a range from which it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Start,
    End,
}

/// Tables of a file that may be damaged.
#[derive(Debug)]
pub struct ReadableTables {
    opened: Opened,
    shown: String,
    sealer: Sealer,
}

enum Opened {
    Engine(Box<RedbEngine>),
    AsRecorded(ReadOnlyDatabase),
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Engine(_) => "Engine",
            Self::AsRecorded(_) => "AsRecorded",
        })
    }
}

/// The byte that a writer of redb locks while it records commits in one step. Without a writer, a
/// reader refuses a file that was not closed; the engine records its commits so in any case.
const CONSISTENT_BYTE: u64 = (1 << 62) + 4;

/// Storage that nothing else uses.
#[derive(Debug)]
struct OwnBackend(Backend);

type Range = Bound<u64>;
type Locked<T> = std::result::Result<T, BackendError>;

impl StorageBackend for OwnBackend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn try_lock_range(&self, _: Range, _: Range) -> Locked<bool> {
        Ok(true)
    }

    fn try_lock_shared_range(&self, _: Range, _: Range) -> Locked<bool> {
        Ok(true)
    }

    fn lock_range(&self, _: Range, _: Range) -> Locked<()> {
        Ok(())
    }

    fn lock_shared_range(&self, _: Range, _: Range) -> Locked<()> {
        Ok(())
    }

    fn unlock_range(&self, _: Range, _: Range) -> Locked<()> {
        Ok(())
    }

    fn query_lock_range(&self, start: Range, _: Range) -> Locked<bool> {
        Ok(start == Bound::Included(CONSISTENT_BYTE))
    }
}

type Rows = ReadOnlyTable<&'static [u8], &'static [u8]>;

/// Opens the last commit that the header of `file` names, if redb can read its tables.
fn open_as_recorded(file: &Arc<dyn LocalFile>, cache_len: usize) -> Option<ReadOnlyDatabase> {
    let backend = OwnBackend(Backend::new(file.clone()));
    catch_panic(|| {
        let mut builder = Builder::new();
        builder.set_cache_size(cache_len);
        builder.set_concurrency_mode(ConcurrencyMode::SingleWriter);
        let database = builder.open_read_only_with_backend(backend).ok()?;
        database.begin_read().ok()?.list_tables().ok()?.count();
        Some(database)
    })
    .flatten()
}

impl ReadableTables {
    /// Opens the tables in `file`, which nothing else uses; messages call it `shown`. redb keeps at
    /// most `cache_len` bytes of pages in memory. The file must keep its changes to itself: a
    /// damaged header is replaced.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn open(file: Arc<dyn LocalFile>, shown: String, cache_len: usize) -> Result<Self> {
        let opened = match RedbEngine::open(file.clone(), shown.clone(), cache_len) {
            Ok(engine) => Opened::Engine(Box::new(engine)),
            Err(error) => {
                let mut opened = open_as_recorded(&file, cache_len);
                for header in super::header::mended(&*file)? {
                    if opened.is_some() {
                        break;
                    }
                    file.write_at(&header, 0)?;
                    opened = open_as_recorded(&file, cache_len);
                }
                Opened::AsRecorded(opened.ok_or(error)?)
            }
        };
        Ok(Self {
            opened,
            shown,
            sealer: Sealer::new()?,
        })
    }

    fn damaged(&self, error: impl ToString) -> Error {
        damaged(&self.shown, &error.to_string())
    }

    /// Calls redb for one table.
    fn call<T>(&self, table: Table, call: impl FnOnce(&Rows) -> Result<T>) -> Result<T> {
        let call = |read: ReadTransaction| {
            let rows = read.open_table(definition(table));
            call(&rows.map_err(|e| self.damaged(e))?)
        };
        match &self.opened {
            Opened::Engine(engine) => {
                engine.call(|database| call(database.begin_read().map_err(|e| self.damaged(e))?))
            }
            Opened::AsRecorded(database) => {
                let called = catch_panic(|| {
                    let read = database.begin_read();
                    call(read.map_err(|e| self.damaged(e))?)
                });
                called.unwrap_or_else(|| Err(unreadable_page(&self.shown)))
            }
        }
    }

    /// Adds rows or groups with keys from `start` to before `end` to `stored`, in this direction,
    /// as far as the pages of the table make sense. Returns whether the other end was reached. If
    /// it was not, the tables may be unusable afterwards.
    pub fn read_stored(
        &self,
        (table, from): (Table, From),
        (start, end): (&[u8], Option<&[u8]>),
        stored: &mut Stored,
    ) -> bool {
        let read = self.call(table, |rows| {
            let end = end.map_or(Bound::Unbounded, Bound::Excluded);
            let range = rows.range::<&[u8]>((Bound::Included(start), end));
            let mut range = range.map_err(|e| self.damaged(e))?;
            let mut last: Option<Vec<u8>> = None;
            loop {
                let next = match from {
                    From::Start => range.next(),
                    From::End => range.next_back(),
                };
                let Some((key, value)) = next.transpose().map_err(|e| self.damaged(e))? else {
                    return Ok(());
                };
                // Damaged pages may lead in a circle.
                let is_in_order = last.as_deref().is_none_or(|last| match from {
                    From::Start => last < key.value(),
                    From::End => last > key.value(),
                });
                if !is_in_order {
                    return Err(unreadable_page(&self.shown));
                }
                last = Some(key.value().to_vec());
                stored.insert(key.value().to_vec(), value.value().to_vec());
            }
        });
        read.is_ok()
    }

    /// The key of the group that may have the row `start`, if there is one before.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn group_key(&self, table: Table, start: &[u8]) -> Result<Option<Vec<u8>>> {
        self.call(table, |groups| {
            let mut before = groups.range(..=start).map_err(|e| self.damaged(e))?;
            let last = before.next_back().transpose();
            let last = last.map_err(|e| self.damaged(e))?;
            Ok(last.map(|(key, _)| key.value().to_vec()))
        })
    }

    /// The rows of a stored group, or the stored row; nothing if they differ from their checksum.
    pub fn rows_of(
        &self,
        table: Table,
        (key, stored): (&[u8], &[u8]),
    ) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        if table.is_grouped() {
            let rows = self.sealer.open(table, key, stored).ok()?;
            let rows = rows.within(0..rows.count());
            return Some(
                rows.map(|(key, value)| (key.into(), value.into()))
                    .collect(),
            );
        }
        let value = if table.has_checksums() {
            let (value, sum) = stored.split_last_chunk::<CHECKSUM_LEN>()?;
            (*sum == checksum(table, key, value)).then_some(value)?
        } else {
            stored
        };
        Some(vec![(key.to_vec(), value.to_vec())])
    }
}
