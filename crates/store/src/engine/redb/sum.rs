//! The sum of all rows, in a table of its own.

use super::{COMMIT, RedbEngine, definition};
use crate::engine::{Engine, Table};
use ::redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError,
    WriteTransaction,
};
use std::ops::ControlFlow;
use weald_format::Result;
use weald_format::journal::RowSum;

/// The sum of all rows, and the counter [`COMMIT`] as it was then: another program that does not
/// know the sum changes only the counter.
const SUM: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("sum");
/// The only key of [`SUM`].
const ALL_ROWS: &str = "rows";

impl RedbEngine {
    /// The sum of all rows, if the tables have it, and no program has changed them without it.
    pub(super) fn known_sum(&self) -> Result<Option<RowSum>> {
        self.call(|database| self.known_sum_in(database))
    }

    /// As [`RedbEngine::known_sum`].
    pub(super) fn known_sum_in(&self, database: &Database) -> Result<Option<RowSum>> {
        let read = database.begin_read().map_err(|e| self.failed(e))?;
        let sums = match read.open_table(SUM) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            other => other.map_err(|e| self.failed(e))?,
        };
        let stored = sums.get(ALL_ROWS).map_err(|e| self.failed(e))?;
        let counters = definition(Table::Counters);
        let counters = read.open_table(counters).map_err(|e| self.failed(e))?;
        let commit = counters.get(COMMIT).map_err(|e| self.failed(e))?;
        let commit = commit.as_ref().map_or(&[][..], |value| value.value());
        Ok(stored.and_then(|stored| {
            let (sum, of) = stored.value().split_first_chunk()?;
            (of == commit).then(|| RowSum::from_bytes(*sum))
        }))
    }

    /// The counter of commits, as it is stored.
    pub(super) fn commit_in(&self, read: &ReadTransaction) -> Result<Vec<u8>> {
        let counters = read.open_table(definition(Table::Counters));
        let counters = counters.map_err(|e| self.failed(e))?;
        let commit = counters.get(COMMIT).map_err(|e| self.failed(e))?;
        Ok(commit.map_or(Vec::new(), |commit| commit.value().to_vec()))
    }

    /// Adds all rows up, of tables that an older version has changed. A row that cannot be read
    /// counts as none; whoever reads it says so.
    pub(super) fn add_up(&self) -> Result<()> {
        let mut sum = RowSum::default();
        for table in Table::ALL {
            let mut visit = |key: &[u8], value: &[u8]| {
                sum.add(table.code(), key, value);
                Ok(ControlFlow::Continue(()))
            };
            self.scan_readable(table, &[], &mut visit, &mut |_, _| Ok(()))?;
        }
        self.marked(self.call(|database| {
            let mut write = database.begin_write().map_err(|e| self.failed(e))?;
            write.set_quick_repair(true);
            self.put_sum(&write, sum)?;
            write.commit().map_err(|e| self.uncommitted(e))
        }))?;
        *self.sum.lock() = Some(sum);
        Ok(())
    }

    pub(super) fn put_sum(&self, write: &WriteTransaction, sum: RowSum) -> Result<()> {
        let counters = write.open_table(definition(Table::Counters));
        let counters = counters.map_err(|e| self.failed(e))?;
        let commit = counters.get(COMMIT).map_err(|e| self.failed(e))?;
        let mut stored = sum.to_bytes().to_vec();
        if let Some(commit) = &commit {
            stored.extend_from_slice(commit.value());
        }
        let mut sums = write.open_table(SUM).map_err(|e| self.failed(e))?;
        let old = sums.insert(ALL_ROWS, &*stored);
        old.map(drop).map_err(|e| self.failed(e))
    }
}
