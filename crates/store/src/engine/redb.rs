//! Tables in one file, kept by redb: a copy-on-write B+tree with checksums.
//!
//! Every commit is synced and saves the data that redb needs to reopen the file after a crash (redb
//! calls this quick-repair). Opening therefore takes the same time for a file of any size.

use super::{Batch, Change, Engine, Table, VisitRow};
use crate::disk::DiskFile;
use ::redb::{
    Builder, CompactionError, Database, DatabaseError, ReadableDatabase, StorageBackend,
    StorageError, TableDefinition, TableError,
};
use parking_lot::{RwLock, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weald_format::{Error, ErrorKind, Result};

/// Bytes of a row's checksum.
const CHECKSUM_LEN: usize = 4;

/// Tables in a redb file.
#[derive(Debug)]
pub struct RedbEngine {
    /// `None` from the drop on.
    database: RwLock<Option<Database>>,
    shown: String,
    /// Whether redb has panicked.
    has_panicked: AtomicBool,
    /// Whether a write or a sync failed.
    has_failed: Arc<AtomicBool>,
    /// Cut to one byte when the file was closed without a failure. The byte keeps the block of the
    /// disk, so that a full disk can be locked.
    mark: Option<Arc<dyn DiskFile>>,
}

/// Calls redb; `None` if it panics, which it does on some damaged pages.
fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(AssertUnwindSafe(call)).ok()
}

fn senseless(shown: &str) -> Error {
    damaged(shown, "a page makes no sense")
}

fn definition(table: Table) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
    TableDefinition::new(table.name())
}

/// Storage of redb. It wraps the error of the disk in an `io::Error`, the only error that redb
/// passes on.
#[derive(Debug)]
struct Backend {
    file: Arc<dyn DiskFile>,
    /// Whether a write or a sync failed.
    has_failed: Arc<AtomicBool>,
}

impl Backend {
    fn changed(&self, outcome: Result<()>) -> io::Result<()> {
        outcome.map_err(|error| {
            self.has_failed.store(true, Ordering::Relaxed);
            as_io(error)
        })
    }
}

fn as_io(error: Error) -> io::Error {
    let kind = match error.kind() {
        ErrorKind::Full => io::ErrorKind::StorageFull,
        _ => match error.io_source().map(io::Error::kind) {
            Some(io::ErrorKind::UnexpectedEof) => io::ErrorKind::UnexpectedEof,
            _ => io::ErrorKind::Other,
        },
    };
    io::Error::new(kind, error)
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len().map_err(as_io)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(out, offset).map_err(as_io)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changed(self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.changed(self.file.sync())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.changed(self.file.write_at(data, offset))
    }
}

impl RedbEngine {
    /// Opens the tables in `file`; messages call the file `shown`. An empty file gets empty tables.
    /// redb keeps at most `cache_len` bytes of pages in memory.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged; the message says how to rebuild it. `Busy`, `Io`, `Full`.
    pub fn open(file: Arc<dyn DiskFile>, shown: String, cache_len: usize) -> Result<Self> {
        let has_failed = Arc::new(AtomicBool::new(false));
        let backend = Backend {
            file,
            has_failed: has_failed.clone(),
        };
        let open = || {
            let mut builder = Builder::new();
            builder.set_cache_size(cache_len);
            builder.create_with_backend(backend)
        };
        let opened = caught(open).ok_or_else(|| senseless(&shown))?;
        let database = match opened {
            Ok(database) => database,
            Err(DatabaseError::Storage(error)) => return Err(failed(&shown, error)),
            Err(DatabaseError::DatabaseAlreadyOpen) => {
                let what = format!("{shown}: another process has it open");
                return Err(Error::new(ErrorKind::Busy, what));
            }
            Err(error) => return Err(damaged(&shown, &error.to_string())),
        };
        let engine = Self {
            database: RwLock::new(Some(database)),
            shown,
            has_panicked: AtomicBool::new(false),
            has_failed,
            mark: None,
        };
        // All tables exist from the beginning, so that readers need not handle a missing table.
        if engine.is_new()? {
            engine.commit(&Batch::default())?;
        }
        Ok(engine)
    }

    /// Calls redb, which is not called again after a panic.
    fn call<T>(&self, call: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        // Visitors of a scan call again, which works because nobody waits for the other lock.
        let database = self.database.read();
        let is_usable = !self.has_panicked.load(Ordering::Relaxed);
        let database = database.as_ref().filter(|_| is_usable);
        let database = database.ok_or_else(|| senseless(&self.shown))?;
        caught(|| call(database)).unwrap_or_else(|| {
            self.has_panicked.store(true, Ordering::Relaxed);
            Err(senseless(&self.shown))
        })
    }

    /// Cuts `mark` to one byte when the file is closed, unless a failure may have left bytes in the
    /// memory of the system that the disk does not have.
    pub fn mark_when_closed(&mut self, mark: Arc<dyn DiskFile>) {
        self.mark = Some(mark);
    }

    /// The database, as soon as nobody else uses it; `None` after some seconds.
    fn alone(&self) -> Option<RwLockWriteGuard<'_, Option<Database>>> {
        for _ in 0..300 {
            if let Some(database) = self.database.try_write() {
                return Some(database);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    /// Whether a table is missing: in a new file, or in one of an older version.
    fn is_new(&self) -> Result<bool> {
        self.call(|database| self.is_new_in(database))
    }

    fn is_new_in(&self, database: &Database) -> Result<bool> {
        let read = database.begin_read().map_err(|e| self.failed(e))?;
        for table in Table::ALL {
            match read.open_table(definition(table)) {
                Ok(_) => {}
                Err(TableError::TableDoesNotExist(_)) => return Ok(true),
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(false)
    }

    fn failed(&self, error: impl Into<::redb::Error>) -> Error {
        match error.into() {
            ::redb::Error::Io(error) => failed(&self.shown, StorageError::Io(error)),
            ::redb::Error::Corrupted(what) => damaged(&self.shown, &what),
            other => Error::new(ErrorKind::Io, format!("{}: {other}", self.shown)),
        }
    }
}

fn damaged(shown: &str, what: &str) -> Error {
    let text = format!(
        "{shown}: the metadata of the store is damaged ({what}): \
         'weald store salvage' rebuilds it from the segments"
    );
    Error::corrupt("store metadata", 0, "S-5.1", text)
}

fn failed(shown: &str, error: StorageError) -> Error {
    let is_damage = |error: &std::io::Error| {
        use std::io::ErrorKind as K;
        matches!(error.kind(), K::InvalidData | K::UnexpectedEof)
    };
    match error {
        StorageError::Io(error) if is_damage(&error) => damaged(shown, &error.to_string()),
        StorageError::Io(error) => Error::io(shown.to_owned(), error),
        StorageError::Corrupted(what) => damaged(shown, &what),
        other => Error::new(ErrorKind::Io, format!("{shown}: {other}")),
    }
}

impl Drop for RedbEngine {
    fn drop(&mut self) {
        let database = self.database.get_mut().take();
        // redb may panic when it closes a damaged file. Nothing waits to be written.
        if self.has_panicked.load(Ordering::Relaxed) {
            std::mem::forget(database);
            return;
        }
        let is_closed = caught(|| drop(database)).is_some();
        if is_closed
            && !self.has_failed.load(Ordering::Relaxed)
            && let Some(mark) = &self.mark
        {
            // A mark that stays only makes the next writer read more.
            let _emptied = mark.write_at(b"\n", 0).and_then(|()| mark.set_len(1));
        }
    }
}

/// CRC-32C of a row, with the row's place in it.
fn checksum(table: Table, key: &[u8], value: &[u8]) -> [u8; CHECKSUM_LEN] {
    let sum = crc32c::crc32c(table.name().as_bytes());
    let sum = crc32c::crc32c_append(sum, key);
    crc32c::crc32c_append(sum, value).to_le_bytes()
}

impl RedbEngine {
    /// The value in `stored`, whose checksum is compared where the table has checksums.
    fn verified<'a>(&self, table: Table, key: &[u8], stored: &'a [u8]) -> Result<&'a [u8]> {
        if !table.has_checksums() {
            return Ok(stored);
        }
        match stored.split_last_chunk::<CHECKSUM_LEN>() {
            Some((value, sum)) if *sum == checksum(table, key, value) => Ok(value),
            _ => {
                let what = format!("a row of table {} differs from its checksum", table.name());
                Err(damaged(&self.shown, &what))
            }
        }
    }

    fn get_from(&self, database: &Database, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let read = database.begin_read().map_err(|e| self.failed(e))?;
        let rows = read
            .open_table(definition(table))
            .map_err(|e| self.failed(e))?;
        let value = rows.get(key).map_err(|e| self.failed(e))?;
        match value {
            Some(stored) => Ok(Some(self.verified(table, key, stored.value())?.to_vec())),
            None => Ok(None),
        }
    }

    fn scan_in(
        &self,
        database: &Database,
        (table, start): (Table, &[u8]),
        visit: &mut VisitRow<'_>,
    ) -> Result<()> {
        let read = database.begin_read().map_err(|e| self.failed(e))?;
        let rows = read
            .open_table(definition(table))
            .map_err(|e| self.failed(e))?;
        for row in rows.range(start..).map_err(|e| self.failed(e))? {
            let (key, value) = row.map_err(|e| self.failed(e))?;
            let (key, value) = (
                key.value(),
                self.verified(table, key.value(), value.value())?,
            );
            if visit(key, value)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit_to(&self, database: &Database, batch: &Batch) -> Result<()> {
        let mut write = database.begin_write().map_err(|e| self.failed(e))?;
        write.set_quick_repair(true);
        let mut by_table: BTreeMap<Table, Vec<&Change>> = BTreeMap::new();
        for change in &batch.0 {
            by_table.entry(change.table).or_default().push(change);
        }
        if batch.0.is_empty() {
            by_table.extend(Table::ALL.map(|table| (table, Vec::new())));
        }
        for (table, changes) in by_table {
            let mut rows = write
                .open_table(definition(table))
                .map_err(|e| self.failed(e))?;
            for change in changes {
                let key = change.key.as_slice();
                match &change.value {
                    Some(value) => {
                        let mut value = std::borrow::Cow::from(value);
                        if table.has_checksums() {
                            let sum = checksum(table, key, &value);
                            value.to_mut().extend_from_slice(&sum);
                        }
                        let old = rows.insert(key, &*value);
                        drop(old.map_err(|e| self.failed(e))?);
                    }
                    None => drop(rows.remove(key).map_err(|e| self.failed(e))?),
                }
            }
        }
        write.commit().map_err(|e| self.failed(e))
    }
}

impl Engine for RedbEngine {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.call(|database| self.get_from(database, table, key))
    }

    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()> {
        self.call(|database| self.scan_in(database, (table, start), visit))
    }

    fn commit(&self, batch: &Batch) -> Result<()> {
        self.call(|database| self.commit_to(database, batch))
    }

    fn compact(&self) -> Result<()> {
        {
            let Some(mut database) = self.alone() else {
                return Ok(());
            };
            let is_usable = !self.has_panicked.load(Ordering::Relaxed);
            let database = database.as_mut().filter(|_| is_usable);
            let database = database.ok_or_else(|| senseless(&self.shown))?;
            let compacted = caught(|| database.compact()).ok_or_else(|| {
                self.has_panicked.store(true, Ordering::Relaxed);
                senseless(&self.shown)
            })?;
            match compacted {
                Ok(_) | Err(CompactionError::TransactionInProgress) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        // redb does not keep what it needs to reopen quickly while it compacts.
        self.commit(&Batch::default())
    }
}
