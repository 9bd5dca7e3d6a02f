//! Tables in memory, lost when the process ends: for tests that simulate no crash.

use super::{Batch, Engine, ReadView, Table, VisitDamage, VisitRow};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::Result;

/// All rows; the key is table and row key.
type Rows = BTreeMap<(Table, Vec<u8>), Vec<u8>>;

/// Tables in memory.
#[derive(Debug, Default)]
pub struct MemoryEngine {
    rows: RwLock<Rows>,
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

    fn commit(&self, batch: &Batch) -> Result<()> {
        let mut rows = self.rows.write();
        for change in &batch.0 {
            let key = (change.table, change.key.clone());
            match &change.value {
                Some(value) => rows.insert(key, value.clone()),
                None => rows.remove(&key),
            };
        }
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        let rows = RwLock::new(self.rows.read().clone());
        Ok(Box::new(Self { rows }))
    }
}

impl ReadView for MemoryEngine {
    fn scan(&self, table: Table, start: &[u8], visit: &mut VisitRow<'_>) -> Result<()> {
        Engine::scan(self, table, start, visit)
    }
}
