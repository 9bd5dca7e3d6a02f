//! Tables in one file, kept by redb: a copy-on-write B+tree with checksums.
//!
//! Every commit is synced and saves the data that redb needs to reopen the file after a crash (redb
//! calls this quick-repair). Opening therefore takes the same time for a file of any size.

mod backend;
mod convert;
mod failures;
mod header;
mod readable;
mod reopen;
mod repair;
mod slot_checksum;
mod sum;
mod verify;

use backend::History;
use failures::{catch_panic, damaged, failed, unreadable_page};
pub(crate) use readable::{From, ReadableTables, Stored};
use reopen::Opened;
pub(crate) use verify::verify_pages;

use super::group_cache::GroupCache;
use super::groups::{Editor, Group, Groups};
use super::sealed_group::{CHECKSUM_LEN, Sealer, checksum};
use super::second_copy::{REPAIRS_MAX, Repairs};
use super::{Batch, BeforeCommit, COMMIT, Change, Engine, ReadView, Table};
use super::{VisitDamage, VisitRow};
use crate::disk::LocalFile;
use ::redb::{
    CompactionError, Database, ReadOnlyTable, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageError, TableDefinition, TableError,
};
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use weald_format::journal::RowSum;
use weald_format::row_group::Rows;
use weald_format::{Error, ErrorKind, Result};

/// Tables in a redb file.
#[derive(Debug)]
pub struct RedbEngine {
    opened: RwLock<Opened>,
    shown: String,
    sealer: Sealer,
    cache: GroupCache,
    /// Sum of all rows as of the last commit; `None` until it is known.
    sum: Mutex<Option<RowSum>>,
    repairs: Repairs,
    /// Cut to one byte when the file was closed without a failure. The byte keeps the block of the
    /// disk, so that a full disk can be locked.
    mark: Option<Arc<dyn LocalFile>>,
}

type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

fn definition(table: Table) -> Definition {
    TableDefinition::new(table.stored_name())
}

impl RedbEngine {
    /// Opens the tables in `file`; messages call the file `shown`. An empty file gets empty tables.
    /// redb keeps at most `cache_len` bytes of pages in memory.
    ///
    /// # Errors
    /// `Corrupt` if the file is damaged; the message says how to rebuild it. `Busy`, `Io`, `Full`.
    pub fn open(file: Arc<dyn LocalFile>, shown: String, cache_len: usize) -> Result<Self> {
        let opened = Opened::new(file, cache_len, &shown)?;
        let engine = Self {
            opened: RwLock::new(opened),
            shown,
            sealer: Sealer::new()?,
            cache: GroupCache::default(),
            sum: Mutex::default(),
            repairs: Repairs::default(),
            mark: None,
        };
        *engine.sum.lock() = engine.known_sum()?;
        // All tables exist from the beginning, so that readers need not handle a missing table.
        if engine.is_new()? {
            engine.commit(&Batch::default())?;
        }
        if engine.call(|database| engine.convert(database))? {
            engine.compact()?;
        }
        if engine.row_sum().is_err() {
            engine.add_up()?;
        }
        Ok(engine)
    }

    /// Makes the tables usable again if redb gave up on them. Does nothing while another thread, or
    /// a visitor of this one, uses them: the next call tries again.
    fn reopen(&self) -> Result<()> {
        if self.opened.read().usable().is_some() {
            return Ok(());
        }
        let Some(mut opened) = self.opened.try_write() else {
            return Ok(());
        };
        opened.reopen(&self.shown)
    }

    /// Calls redb, whose file is opened again before if redb gave up on it.
    fn call<T>(&self, call: impl FnOnce(&Database) -> Result<T>) -> Result<T> {
        self.reopen()?;
        // Visitors of a scan call again, which works because no thread waits for the other lock.
        let opened = self.opened.read();
        let database = opened.usable().ok_or_else(|| self.gave_up())?;
        self.noted(opened.history(), catch_panic(|| call(database)))
    }

    /// The outcome of a call of redb, whose panic makes its database unusable.
    fn noted<T>(&self, history: &History, outcome: Option<Result<T>>) -> Result<T> {
        outcome.unwrap_or_else(|| {
            history.note_panic();
            Err(unreadable_page(&self.shown))
        })
    }

    fn gave_up(&self) -> Error {
        let what = format!("{}: the tables are not read after a failure", self.shown);
        Error::new(ErrorKind::Io, what)
    }

    /// Marks the error of a transaction that the disk failed. redb refuses all transactions after
    /// that. One that meets a damaged page, or cannot read one, is rolled back: the tables are as
    /// before.
    fn marked<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| {
            let history = self.opened.read().history().clone();
            let is_rolled_back = error.kind() == ErrorKind::Corrupt || !history.is_usable();
            if is_rolled_back && !history.has_failed() {
                error
            } else {
                error.of_failed_write()
            }
        })
    }

    /// The error of a commit of redb, of which nobody knows what was done, unless it met damage.
    fn uncommitted(&self, error: impl Into<::redb::Error>) -> Error {
        let error = self.failed(error);
        match error.kind() {
            ErrorKind::Corrupt => error,
            _ => error.of_failed_write(),
        }
    }

    /// Refuses to write to tables that have a commit which failed, as was said.
    fn refuse_unknown_commit(&self, database: &Database) -> Result<()> {
        let known = *self.sum.lock();
        if known.is_none() || self.known_sum_in(database)? == known {
            return Ok(());
        }
        let what = format!(
            "{}: the tables have changes of which a failure was reported",
            self.shown
        );
        Err(Error::new(ErrorKind::Io, what).of_failed_write())
    }

    /// Cuts `mark` to one byte when the file is closed. After a failure it stays, because the
    /// system may have bytes in memory that the disk does not have.
    pub fn mark_when_closed(&mut self, mark: Arc<dyn LocalFile>) {
        self.mark = Some(mark);
    }

    /// The tables, as soon as no other thread uses them; `None` after some seconds.
    fn lock_exclusively(&self) -> Option<RwLockWriteGuard<'_, Opened>> {
        for _ in 0..300 {
            if let Some(opened) = self.opened.try_write() {
                return Some(opened);
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

impl Drop for RedbEngine {
    fn drop(&mut self) {
        if self.opened.get_mut().end()
            && let Some(mark) = &self.mark
        {
            // A mark that stays only makes the next writer read more.
            let _emptied = mark.write_at(b"\n", 0).and_then(|()| mark.set_len(1));
        }
    }
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
                self.repairs.note(table, key);
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
        if table.is_grouped() {
            let group = rows.range(..=key).map_err(|e| self.failed(e))?.next_back();
            let Some(group) = group else {
                return Ok(None);
            };
            let (bound, stored) = group.map_err(|e| self.failed(e))?;
            let rows = self.opened(table, bound.value(), stored.value())?;
            return Ok(rows.find(key).map(<[u8]>::to_vec));
        }
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
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        let read = database.begin_read().map_err(|e| self.failed(e))?;
        self.scan_of(&read, (table, start), visit, damaged)
    }

    fn scan_of(
        &self,
        read: &ReadTransaction,
        (table, start): (Table, &[u8]),
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        let rows = read
            .open_table(definition(table))
            .map_err(|e| self.failed(e))?;
        if table.is_grouped() {
            return self.scan_groups(&rows, (table, start), visit, damaged);
        }
        for row in rows.range(start..).map_err(|e| self.failed(e))? {
            let (key, value) = row.map_err(|e| self.failed(e))?;
            let key = key.value();
            let value = match self.verified(table, key, value.value()) {
                Ok(value) => value,
                Err(error) => {
                    damaged(key, error)?;
                    continue;
                }
            };
            if visit(key, value)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The rows of a group, which the cache may have and keeps.
    fn opened(&self, table: Table, key: &[u8], stored: &[u8]) -> Result<Arc<Rows>> {
        if let Some(rows) = self.cache.get(table, key, stored) {
            return Ok(rows);
        }
        let rows = Arc::new(self.decoded(table, key, stored)?);
        self.cache.put(table, key, stored, &rows);
        Ok(rows)
    }

    fn decoded(&self, table: Table, key: &[u8], stored: &[u8]) -> Result<Rows> {
        let opened = self.sealer.open(table, key, stored);
        opened.map_err(|error| match error.kind() {
            ErrorKind::Corrupt => {
                self.repairs.note(table, key);
                damaged(&self.shown, &format!("table {}: {error}", table.name()))
            }
            _ => error,
        })
    }

    fn scan_groups(
        &self,
        groups: &ReadOnlyTable<&'static [u8], &'static [u8]>,
        (table, start): (Table, &[u8]),
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        let mut first = groups.range(..=start).map_err(|e| self.failed(e))?;
        let first = first.next_back().transpose().map_err(|e| self.failed(e))?;
        let from = first.as_ref().map_or(&[][..], |(bound, _)| bound.value());
        let mut last: Option<Vec<u8>> = None;
        for group in groups.range(from..).map_err(|e| self.failed(e))? {
            let (bound, stored) = group.map_err(|e| self.failed(e))?;
            // Scans of a few rows repeat; a scan of the whole table would empty the cache.
            let rows = match &last {
                None => self.opened(table, bound.value(), stored.value()),
                Some(last) if last.as_slice() >= bound.value() => {
                    let what = format!("table {}: groups overlap", table.name());
                    return Err(self::damaged(&self.shown, &what));
                }
                Some(_) => self
                    .decoded(table, bound.value(), stored.value())
                    .map(Arc::new),
            };
            let rows = match rows {
                Ok(rows) => rows,
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    damaged(bound.value(), error)?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            for (key, value) in rows.within(rows.lower_bound(start)..rows.count()) {
                if visit(key, value)?.is_break() {
                    return Ok(());
                }
            }
            last = rows.last_key().map(<[u8]>::to_vec);
        }
        Ok(())
    }

    fn commit_to(
        &self,
        database: &Database,
        batch: &Batch,
        before: &mut BeforeCommit<'_>,
    ) -> Result<()> {
        self.refuse_unknown_commit(database)?;
        let known = *self.sum.lock();
        let mut sum = known.unwrap_or_default();
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
            if table.is_grouped() {
                let groups = OpenTable {
                    engine: self,
                    of: table,
                    table: &mut rows,
                };
                let mut editor = Editor {
                    table,
                    sealer: &self.sealer,
                    groups,
                    sum,
                };
                editor.apply(changes)?;
                sum = editor.sum;
                continue;
            }
            for change in changes {
                let key = change.key.as_slice();
                match &change.value {
                    Some(value) => {
                        let mut value = std::borrow::Cow::from(value);
                        if table.has_checksums() {
                            let sum = checksum(table, key, &value);
                            value.to_mut().extend_from_slice(&sum);
                        }
                        let old = rows.insert(key, &*value).map_err(|e| self.failed(e))?;
                        if let Some(old) = old {
                            sum.remove(table.code(), key, without_checksum(table, old.value()));
                        }
                        let len = change.value.as_ref().map_or(0, Vec::len);
                        sum.add(table.code(), key, value.get(..len).unwrap_or_default());
                    }
                    None => {
                        let old = rows.remove(key).map_err(|e| self.failed(e))?;
                        if let Some(old) = old {
                            sum.remove(table.code(), key, without_checksum(table, old.value()));
                        }
                    }
                }
            }
        }
        if known.is_some() {
            self.put_sum(&write, sum)?;
        }
        before(sum)?;
        write.commit().map_err(|e| self.uncommitted(e))?;
        *self.sum.lock() = known.map(|_| sum);
        Ok(())
    }
}

/// The value of a row of `table`, as redb has it.
fn without_checksum(table: Table, stored: &[u8]) -> &[u8] {
    if table.has_checksums() {
        let value = stored.split_last_chunk::<CHECKSUM_LEN>();
        value.map_or(stored, |(value, _)| value)
    } else {
        stored
    }
}

/// The groups of a table in a transaction that writes.
struct OpenTable<'a, 'txn> {
    engine: &'a RedbEngine,
    of: Table,
    table: &'a mut ::redb::Table<'txn, &'static [u8], &'static [u8]>,
}

impl OpenTable<'_, '_> {
    fn last_in(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<Option<Group>> {
        let range = self.table.range::<&[u8]>(bounds);
        let mut range = range.map_err(|e| self.engine.failed(e))?;
        let last = range.next_back().transpose();
        let last = last.map_err(|e| self.engine.failed(e))?;
        Ok(last.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())))
    }
}

impl Groups for OpenTable<'_, '_> {
    fn at_or_before(&self, key: &[u8]) -> Result<Option<Group>> {
        self.last_in((Bound::Unbounded, Bound::Included(key)))
    }

    fn before(&self, key: &[u8]) -> Result<Option<Group>> {
        self.last_in((Bound::Unbounded, Bound::Excluded(key)))
    }

    fn first_key_in(&self, bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<Option<Vec<u8>>> {
        let range = self.table.range::<&[u8]>(bounds);
        let mut range = range.map_err(|e| self.engine.failed(e))?;
        let first = range.next().transpose();
        let first = first.map_err(|e| self.engine.failed(e))?;
        Ok(first.map(|(key, _)| key.value().to_vec()))
    }

    fn open(&self, (key, stored): &Group) -> Result<Arc<Rows>> {
        self.engine.opened(self.of, key, stored)
    }

    fn put(&mut self, key: &[u8], value: &[u8], rows: Rows) -> Result<()> {
        // Small commits change the same groups again and again.
        self.engine.cache.put(self.of, key, value, &Arc::new(rows));
        let old = self.table.insert(key, value);
        old.map(drop).map_err(|e| self.engine.failed(e))
    }

    fn remove(&mut self, key: &[u8]) -> Result<()> {
        let old = self.table.remove(key);
        old.map(drop).map_err(|e| self.engine.failed(e))
    }
}

impl Engine for RedbEngine {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.repairing(|| self.call(|database| self.get_from(database, table, key)))
    }

    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()> {
        let mut from = start.to_vec();
        let mut commit = None;
        for _ in 0..=REPAIRS_MAX {
            let mut stop = |_: &[u8], error| Err(error);
            let scanned = self.call(|database| {
                let read = database.begin_read().map_err(|e| self.failed(e))?;
                let now = self.commit_in(&read)?;
                // All rows belong to one state.
                if *commit.get_or_insert_with(|| now.clone()) != now {
                    return Err(damaged(&self.shown, "a group of rows was damaged"));
                }
                self.scan_of(&read, (table, &from), visit, &mut stop)
            });
            match scanned {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let Some(gap) = self.repair() else {
                        return Err(error);
                    };
                    // The rows before the gap were visited.
                    let next = gap.after.map(|mut key| {
                        key.push(0);
                        key
                    });
                    from = next.unwrap_or_default().max(start.to_vec());
                }
                other => return other,
            }
        }
        Err(damaged(&self.shown, "many groups of rows are damaged"))
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        self.call(|database| self.scan_in(database, (table, start), visit, damaged))
    }

    fn commit_after(&self, batch: &Batch, before: &mut BeforeCommit<'_>) -> Result<()> {
        self.repairing(|| {
            let _writing = self.repairs.writing.lock();
            self.marked(self.call(|database| self.commit_to(database, batch, before)))
        })
    }

    fn row_sum(&self) -> Result<RowSum> {
        let sum = *self.sum.lock();
        sum.ok_or_else(|| damaged(&self.shown, "the rows have no sum"))
    }

    fn compact(&self) -> Result<()> {
        {
            self.reopen()?;
            let Some(mut opened) = self.lock_exclusively() else {
                return Ok(());
            };
            let history = opened.history().clone();
            let database = opened.usable_mut().ok_or_else(|| self.gave_up())?;
            let compacted = self.noted(&history, catch_panic(|| Ok(database.compact())))?;
            match compacted {
                Ok(_) | Err(CompactionError::TransactionInProgress) => {}
                Err(error) => return Err(self.uncommitted(error)),
            }
        }
        // redb does not keep what it needs to reopen quickly while it compacts.
        self.commit(&Batch::default())
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        self.reopen()?;
        let (read, history) = {
            let opened = self.opened.read();
            let database = opened.usable().ok_or_else(|| self.gave_up())?;
            let begin = || database.begin_read().map_err(|e| self.failed(e));
            let read = self.noted(opened.history(), catch_panic(begin))?;
            (read, opened.history().clone())
        };
        Ok(Box::new(RedbReadView {
            read,
            history,
            engine: self,
        }))
    }
}

/// A transaction that reads, and the file that it reads, which is closed after it. It ends when the
/// tables are opened again.
#[derive(Debug)]
struct RedbReadView {
    read: ReadTransaction,
    history: Arc<History>,
    engine: Arc<RedbEngine>,
}

impl ReadView for RedbReadView {
    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()> {
        let engine = &*self.engine;
        if !self.history.is_usable() {
            return Err(engine.gave_up());
        }
        let mut stop = |_: &[u8], error| Err(error);
        let scan = || engine.scan_of(&self.read, (table, start), visit, &mut stop);
        engine.noted(&self.history, catch_panic(scan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Access, LocalFiles};
    use crate::simulated_disk::SimDisk;
    use weald_format::Digest;

    pub(super) fn open(disk: &SimDisk) -> Result<RedbEngine> {
        let file = disk.open("meta", Access::Write)?;
        RedbEngine::open(Arc::from(file), "meta".to_owned(), 1 << 20)
    }

    pub(super) fn rows_of(engine: &RedbEngine, table: Table) -> (usize, [u8; 4]) {
        let (mut count, mut all) = (0, Vec::new());
        let mut visit = |key: &[u8], value: &[u8]| {
            count += 1;
            all.push(key.len() as u8);
            all.extend_from_slice(key);
            all.extend((value.len() as u16).to_le_bytes());
            all.extend_from_slice(value);
            Ok(std::ops::ControlFlow::Continue(()))
        };
        engine.scan(table, &[], &mut visit).expect("scan");
        let [a, b, c, d, ..] = Digest::of(&all).0;
        (count, [a, b, c, d])
    }

    // Would catch a state that follows later commits, and a compaction that fails beside it.
    #[test]
    fn a_read_view_stays_as_it_was() {
        let disk = SimDisk::new(1);
        drop(disk.open("meta", Access::Create).expect("create"));
        let engine = Arc::new(open(&disk).expect("open"));
        let put = |value: u8| {
            let mut batch = Batch::default();
            for number in 0..2000u32 {
                let key = number.to_be_bytes();
                match value {
                    0 => batch.remove(Table::Names, &key),
                    _ => batch.put(Table::Names, &key, vec![value; 40]),
                }
            }
            engine.commit(&batch).expect("commit");
        };
        put(1);
        let view = engine.clone().read_view().expect("a view");
        for value in [2, 0, 3] {
            put(value);
            engine.compact().expect("compact");
        }
        let mut count = 0;
        let mut visit = |_: &[u8], value: &[u8]| {
            count += 1;
            assert_eq!(value, [1; 40]);
            Ok(std::ops::ControlFlow::Continue(()))
        };
        view.scan(Table::Names, &[], &mut visit).expect("scan");
        assert_eq!(count, 2000);
        drop(view);
        put(0);
        engine.compact().expect("compact");
        assert_eq!(rows_of(&engine, Table::Names).0, 0);
    }
}
