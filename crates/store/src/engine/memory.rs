//! Tables in memory, lost when the process ends: for tests that simulate no crash.

use super::{Batch, BeforeCommit, Engine, ReadView, Table, VisitDamage, VisitRow};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::Result;
use weald_format::journal::RowSum;

/// All rows; the key is table and row key.
type Rows = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// Tables in memory.
#[derive(Debug, Default)]
pub struct MemoryEngine {
    rows: RwLock<Rows>,
    sum: Mutex<RowSum>,
}

impl Engine for MemoryEngine {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.rows.read().get(&(table, key.to_vec())).cloned())
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        _: &mut VisitDamage<'_>,
    ) -> Result<()> {
        let rows = self.rows.read();
        for ((of, key), value) in rows.range((table, start.to_vec())..) {
            if *of != table || visit(key, value)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commit_after(&self, batch: &Batch, before: &mut BeforeCommit<'_>) -> Result<()> {
        let mut rows = self.rows.write();
        let mut sum = self.sum.lock();
        let mut last = BTreeMap::new();
        for change in &batch.0 {
            last.insert((change.table, &change.key), &change.value);
        }
        let mut new = *sum;
        for (&(table, key), value) in &last {
            if let Some(old) = rows.get(&(table, key.clone())) {
                new.remove(table.code(), key, old);
            }
            if let Some(value) = value {
                new.add(table.code(), key, value);
            }
        }
        before(new)?;
        for ((table, key), value) in last {
            match value {
                Some(value) => rows.insert((table, key.clone()), value.clone()),
                None => rows.remove(&(table, key.clone())),
            };
        }
        *sum = new;
        Ok(())
    }

    fn row_sum(&self) -> Result<RowSum> {
        Ok(*self.sum.lock())
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        let rows = RwLock::new(self.rows.read().clone());
        let sum = Mutex::new(*self.sum.lock());
        Ok(Box::new(Self { rows, sum }))
    }
}

impl ReadView for MemoryEngine {
    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()> {
        Engine::scan(self, table, start, visit)
    }
}
