//! Converts tables of older versions, whose rows lie one by one.

use super::{Definition, OpenTable, RedbEngine, definition};
use crate::engine::Table;
use crate::engine::groups::{Editor, Filler};
use ::redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableHandle};
use weald_format::Result;
use weald_format::journal::RowSum;

/// Definition of a table of rows as older versions kept all tables.
fn old_definition(table: Table) -> Definition {
    TableDefinition::new(table.name())
}

impl RedbEngine {
    /// Packs the rows of each table that an older version wrote, each table in one transaction.
    /// Returns whether there was one.
    pub(super) fn convert(&self, database: &Database) -> Result<bool> {
        let read = database.begin_read().map_err(|e| self.failed(e))?;
        let names = read.list_tables().map_err(|e| self.failed(e))?;
        let names: Vec<String> = names.map(|table| table.name().to_owned()).collect();
        drop(read);
        let mut old = Table::ALL.to_vec();
        old.retain(|table| table.is_grouped() && names.iter().any(|name| name == table.name()));
        for table in &old {
            self.convert_table(database, *table)?;
        }
        Ok(!old.is_empty())
    }

    fn convert_table(&self, database: &Database, table: Table) -> Result<()> {
        let mut write = database.begin_write().map_err(|e| self.failed(e))?;
        write.set_quick_repair(true);
        {
            let old = write.open_table(old_definition(table));
            let old = old.map_err(|e| self.failed(e))?;
            let new = write.open_table(definition(table));
            let mut new = new.map_err(|e| self.failed(e))?;
            let groups = OpenTable {
                engine: self,
                of: table,
                table: &mut new,
            };
            let mut filler = Filler::new(Editor {
                table,
                sealer: &self.sealer,
                groups,
                // The rows stay the same.
                sum: RowSum::default(),
            });
            for row in old.iter().map_err(|e| self.failed(e))? {
                let (key, value) = row.map_err(|e| self.failed(e))?;
                let value = self.verified(table, key.value(), value.value())?;
                filler.push(key.value(), value)?;
            }
            filler.finish()?;
        }
        write
            .delete_table(old_definition(table))
            .map_err(|e| self.failed(e))?;
        write.commit().map_err(|e| self.uncommitted(e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Access, LocalFiles};
    use crate::engine::redb::tests::{open, rows_of};
    use crate::simulated_disk::{Fault, SimDisk};
    use weald_codec::Decoder;
    use weald_format::container::Codec;

    /// Tables of a store with a volume of 300 files and an image, as Weald 0.1 wrote them before
    /// rows lay in groups.
    const OLD: &[u8] = include_bytes!("../golden/rows.redb.zst");

    const OLD_LEN: usize = 208_896;

    /// Number of rows of each table in `OLD`, and the first bytes of their digest, which another
    /// program found that reads redb only.
    const OLD_ROWS: [(Table, usize, [u8; 4]); 5] = [
        (Table::Blocks, 11, [0xc1, 0x0b, 0x74, 0x13]),
        (Table::Inodes, 306, [0xae, 0x9c, 0x46, 0x65]),
        (Table::Names, 306, [0xe9, 0x87, 0x6f, 0x29]),
        (Table::Extents, 305, [0x2b, 0x4a, 0x72, 0x60]),
        (Table::Xattrs, 1, [0x6b, 0xa7, 0xcc, 0x80]),
    ];

    fn old_disk() -> SimDisk {
        let disk = SimDisk::new(1);
        let bytes = Decoder::default().decode(Codec::Zstd, OLD, OLD_LEN, None);
        let file = disk.open("meta", Access::Create).expect("create");
        file.write_at(&bytes.expect("golden bytes"), 0)
            .expect("write");
        file.sync().expect("sync");
        disk.sync_dir("").expect("sync");
        disk
    }

    fn compare(engine: &RedbEngine) {
        for (table, count, digest) in OLD_ROWS {
            assert_eq!(rows_of(engine, table), (count, digest), "{table:?}");
        }
    }

    // Would catch a conversion that loses or changes a row, and one that is repeated.
    #[test]
    fn tables_of_an_older_version_keep_their_rows() {
        let disk = old_disk();
        for _ in 0..2 {
            compare(&open(&disk).expect("open"));
        }
        let len = disk.used();
        assert!(len < OLD_LEN as u64 * 3 / 4, "{len} bytes of {OLD_LEN}");
        let engine = open(&disk).expect("open");
        let opened = engine.opened.read();
        let read = opened.usable().expect("open").begin_read().expect("read");
        let names: Vec<_> = read.list_tables().expect("list").collect();
        // And the table of the sum.
        assert_eq!(names.len(), Table::ALL.len() + 1);
        assert!(names.iter().all(|table| table.name() != "names"));
    }

    // Would catch a conversion that is no transaction.
    #[test]
    fn a_conversion_that_is_cut_off_loses_nothing() {
        let mut cuts = 0;
        for count in 0.. {
            let disk = old_disk();
            let fault = match count % 2 {
                0 => Fault::PowerCut,
                _ => Fault::NoSpace,
            };
            disk.fail_after(count / 2, fault);
            let opened = open(&disk);
            if opened.is_ok() && disk.fault_count() == 0 {
                break;
            }
            drop(opened);
            let disk = disk.reboot();
            compare(&open(&disk).unwrap_or_else(|e| panic!("{fault:?} at {count}: {e}")));
            cuts += 1;
        }
        assert!(cuts > 20, "{cuts} cuts");
    }
}
