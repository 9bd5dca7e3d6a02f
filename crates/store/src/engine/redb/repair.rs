//! Makes damaged groups and rows again, from a second copy of the tables, while they are in use.
//!
//! A group whose checksum is wrong lies between two others. Whatever rows it had, their keys lie
//! between the last key of the group before and the first of the group behind, and no other group
//! has rows there. The second copy gives the rows of that gap. Damage of the pages of redb is for a
//! salvage.

use super::{CHECKSUM_LEN, COMMIT, OpenTable, RedbEngine, checksum, definition};
use crate::engine::groups::Editor;
use crate::engine::second_copy::{Gap, KeyedRows, REPAIRS_MAX, RowsAgain};
use crate::engine::{Change, Table};
use ::redb::{Database, ReadableTable};
use std::ops::Bound;
use weald_format::journal::RowSum;
use weald_format::{ErrorKind, Result};

impl RedbEngine {
    /// Lets the engine make damaged groups again from a second copy of the tables.
    pub(crate) fn repair_from(&self, second_copy: Box<RowsAgain>) {
        // The first one stays.
        let _is_set = self.repairs.second_copy.set(second_copy);
    }

    /// Repeats a call after each repair of what it met.
    pub(super) fn repairing<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 0..REPAIRS_MAX {
            match call() {
                Err(error)
                    if error.kind() == ErrorKind::Corrupt
                        && !error.is_failed_write()
                        && self.repair().is_some() => {}
                other => return other,
            }
        }
        call()
    }

    /// Makes again what was damaged last. Returns the gap in which it lies; `None` if nothing was
    /// repaired.
    pub(super) fn repair(&self) -> Option<Gap> {
        let (table, key) = self.repairs.damaged.lock().take()?;
        let second_copy = self.repairs.second_copy.get()?;
        let _writing = self.repairs.writing.lock();
        let repaired =
            self.marked(self.call(|database| self.repair_in(database, (table, &key), second_copy)));
        repaired.unwrap_or_else(|error| {
            log::debug!("{}: not repaired: {error}", self.shown);
            None
        })
    }

    fn repair_in(
        &self,
        database: &Database,
        (table, key): (Table, &[u8]),
        second_copy: &RowsAgain,
    ) -> Result<Option<Gap>> {
        let mut write = database.begin_write().map_err(|e| self.failed(e))?;
        write.set_quick_repair(true);
        let commit = {
            let counters = write.open_table(definition(Table::Counters));
            let counters = counters.map_err(|e| self.failed(e))?;
            let commit = counters.get(COMMIT).map_err(|e| self.failed(e))?;
            commit.map_or(Vec::new(), |commit| commit.value().to_vec())
        };
        let (gap, count) = {
            let rows = write.open_table(definition(table));
            let mut rows = rows.map_err(|e| self.failed(e))?;
            let groups = OpenTable {
                engine: self,
                of: table,
                table: &mut rows,
            };
            let gap = if table.is_grouped() {
                groups.gap_of(key)?
            } else {
                let before = Some([key, &[0]].concat());
                let after = None;
                Some(Gap { after, before })
            };
            let Some(gap) = gap else { return Ok(None) };
            let Some(mut again) = second_copy(table, &gap, &commit) else {
                return Ok(None);
            };
            if !table.is_grouped() {
                again.retain(|(of, _)| of == key);
            }
            let old = groups.table.remove(key).map_err(|e| self.failed(e))?;
            if old.is_none() || again.iter().any(|(key, _)| !gap.has(key)) {
                return Ok(None);
            }
            drop(old);
            let count = again.len();
            self.put_again(table, groups, again)?;
            (gap, count)
        };
        write.commit().map_err(|e| self.uncommitted(e))?;
        log::warn!(
            "{}: {count} rows of table {} were damaged, and were made again from the journal",
            self.shown,
            table.name()
        );
        Ok(Some(gap))
    }

    /// Puts rows that are in the sum of all rows already.
    fn put_again(&self, table: Table, groups: OpenTable<'_, '_>, rows: KeyedRows) -> Result<()> {
        if table.is_grouped() {
            let changes = rows.into_iter().map(|(key, value)| Change {
                table,
                key,
                value: Some(value),
            });
            let changes: Vec<Change> = changes.collect();
            let mut editor = Editor {
                table,
                sealer: &self.sealer,
                groups,
                sum: RowSum::default(),
            };
            return editor.apply(changes.iter().collect());
        }
        for (key, mut value) in rows {
            if table.has_checksums() {
                let sum: [u8; CHECKSUM_LEN] = checksum(table, &key, &value);
                value.extend_from_slice(&sum);
            }
            let old = groups.table.insert(&*key, &*value);
            drop(old.map_err(|e| self.failed(e))?);
        }
        Ok(())
    }
}

impl OpenTable<'_, '_> {
    /// Where the rows of the group `key` lie, if the group is damaged and its neighbours are not.
    fn gap_of(&self, key: &[u8]) -> Result<Option<Gap>> {
        let stored = self.table.get(key).map_err(|e| self.engine.failed(e))?;
        let Some(stored) = stored else {
            return Ok(None);
        };
        let open = |key: &[u8], stored: &[u8]| self.engine.sealer.open(self.of, key, stored).ok();
        let mut gap = Gap::default();
        if open(key, stored.value()).is_some() {
            return Ok(None);
        }
        if let Some((before, stored)) = self.last_in((Bound::Unbounded, Bound::Excluded(key)))? {
            let rows = open(&before, &stored);
            let last = rows.as_ref().and_then(|rows| rows.last_key());
            let Some(last) = last else { return Ok(None) };
            gap.after = Some(last.to_vec());
        }
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        let behind = self.table.range::<&[u8]>(behind);
        let mut behind = behind.map_err(|e| self.engine.failed(e))?;
        let behind = behind.next().transpose();
        if let Some((bound, stored)) = behind.map_err(|e| self.engine.failed(e))? {
            let rows = open(bound.value(), stored.value());
            let first = rows.as_ref().and_then(|rows| rows.get(0));
            let Some((first, _)) = first else {
                return Ok(None);
            };
            gap.before = Some(first.to_vec());
        }
        Ok(Some(gap))
    }
}
