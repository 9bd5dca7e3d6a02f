//! Rows of all tables in memory, and their sum.

use crate::engine::{Batch, Change, Engine, Table};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weald_format::journal::RowSum;
use weald_format::{Error, Result};

/// Changes of one commit of the engine while rows are written to new tables.
const BATCH_LEN: usize = 1 << 16;

/// Rows by table and key.
pub(crate) type RowMap = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

fn put(table: Table, key: &[u8], value: &[u8]) -> Change {
    Change {
        table,
        key: key.to_vec(),
        value: Some(value.to_vec()),
    }
}

/// Rows, and their sum.
#[derive(Debug, Default)]
pub(crate) struct SummedRows {
    rows: RowMap,
    sum: RowSum,
}

impl SummedRows {
    /// The sum of the rows.
    pub fn sum(&self) -> RowSum {
        self.sum
    }

    /// The rows.
    pub fn rows(&self) -> &RowMap {
        &self.rows
    }

    /// Whether there is a row with this key.
    pub fn has(&self, table: Table, key: &[u8]) -> bool {
        self.rows.contains_key(&(table, key.to_vec()))
    }

    /// Applies changes in order.
    pub fn apply(&mut self, changes: Vec<Change>) {
        for Change { table, key, value } in changes {
            let code = table.code();
            let place = (table, key);
            if let Some(old) = self.rows.remove(&place) {
                self.sum.remove(code, &place.1, &old);
            }
            if let Some(value) = value {
                self.sum.add(code, &place.1, &value);
                self.rows.insert(place, value);
            }
        }
    }

    /// The changes that undo `changes`.
    pub fn before(&self, changes: &[Change]) -> Vec<Change> {
        let before = changes.iter().map(|change| Change {
            table: change.table,
            key: change.key.clone(),
            value: self.rows.get(&(change.table, change.key.clone())).cloned(),
        });
        before.collect()
    }

    /// Adds the rows that are not there.
    pub fn add(&mut self, table: Table, rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
        for (key, value) in rows {
            let place = (table, key);
            if !self.rows.contains_key(&place) {
                self.sum.add(table.code(), &place.1, &value);
                self.rows.insert(place, value);
            }
        }
    }

    /// All rows, as changes of empty tables.
    pub fn as_changes(&self) -> Vec<Change> {
        let rows = self.rows.iter();
        let changes = rows.map(|((table, key), value)| put(*table, key, value));
        changes.collect()
    }

    /// The changes that make the rows of `engine` these.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn differences(&self, engine: &dyn Engine) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        for table in Table::ALL {
            let from = self.rows.range((table, Vec::new())..);
            let mut wanted = from.take_while(|((of, _), _)| *of == table).peekable();
            engine.scan(table, &[], &mut |key, value| {
                while let Some(((_, other), value)) =
                    wanted.next_if(|((_, other), _)| other.as_slice() < key)
                {
                    changes.push(put(table, other, value));
                }
                match wanted.next_if(|((_, other), _)| other == key) {
                    Some((_, wanted)) if wanted == value => {}
                    Some((_, wanted)) => changes.push(put(table, key, wanted)),
                    None => changes.push(Change {
                        table,
                        key: key.to_vec(),
                        value: None,
                    }),
                }
                Ok(ControlFlow::Continue(()))
            })?;
            changes.extend(wanted.map(|((_, key), value)| put(table, key, value)));
        }
        Ok(changes)
    }

    /// Writes all rows to empty tables.
    ///
    /// # Errors
    /// Those of the engine; `Corrupt` if the tables then have other rows.
    pub fn write(self, engine: &dyn Engine) -> Result<()> {
        let mut batch = Batch::default();
        for ((table, key), value) in self.rows {
            batch.put(table, &key, value);
            if batch.0.len() >= BATCH_LEN {
                engine.commit(&std::mem::take(&mut batch))?;
            }
        }
        engine.commit(&batch)?;
        if engine.row_sum()? == self.sum {
            Ok(())
        } else {
            let what = "the tables have other rows than were written";
            Err(Error::corrupt("store metadata", 0, "S-8.7", what))
        }
    }
}
