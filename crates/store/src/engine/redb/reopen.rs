//! Opens the tables again when redb gave up on them.
//!
//! redb refuses all calls after one read that failed, and must not be called again after it
//! panicked, which it does on some damaged pages. Neither says anything about the other pages. What
//! it has committed is on the disk, so that the file is opened again as after a power cut. After a
//! failed write it is not: nobody knows what the disk has then.

use super::backend::{Backend, History};
use super::failures::{catch_panic, damaged, failed, unreadable_page};
use crate::disk::LocalFile;
use ::redb::{Builder, Database, DatabaseError};
use std::sync::Arc;
use weald_format::{Error, ErrorKind, Result};

/// Databases that are left behind after a panic, each with its cache: redb may panic again when it
/// is to close them.
const PANICS_MAX: usize = 16;

/// A file of tables, and the database that redb makes of it.
#[derive(Debug)]
pub(super) struct Opened {
    file: Arc<dyn LocalFile>,
    cache_len: usize,
    database: Option<Database>,
    history: Arc<History>,
    panic_count: usize,
}

fn open(
    file: &Arc<dyn LocalFile>,
    cache_len: usize,
    shown: &str,
) -> Result<(Database, Arc<History>)> {
    let backend = Backend::new(file.clone());
    let history = backend.history();
    let open = || {
        let mut builder = Builder::new();
        builder.set_cache_size(cache_len);
        builder.create_with_backend(backend)
    };
    match catch_panic(open).ok_or_else(|| unreadable_page(shown))? {
        Ok(database) => Ok((database, history)),
        Err(DatabaseError::Storage(error)) => Err(failed(shown, error)),
        Err(DatabaseError::DatabaseAlreadyOpen) => {
            let what = format!("{shown}: another process has it open");
            Err(Error::new(ErrorKind::Busy, what))
        }
        Err(error) => Err(damaged(shown, &error.to_string())),
    }
}

impl Opened {
    /// Opens `file`, which messages call `shown`. An empty one gets empty tables.
    pub fn new(file: Arc<dyn LocalFile>, cache_len: usize, shown: &str) -> Result<Self> {
        let (database, history) = open(&file, cache_len, shown)?;
        Ok(Self {
            file,
            cache_len,
            database: Some(database),
            history,
            panic_count: 0,
        })
    }

    /// The database; `None` if redb gave up on it.
    pub fn usable(&self) -> Option<&Database> {
        let database = self.database.as_ref();
        database.filter(|_| self.history.is_usable())
    }

    pub fn usable_mut(&mut self) -> Option<&mut Database> {
        let database = self.database.as_mut();
        database.filter(|_| self.history.is_usable())
    }

    pub fn history(&self) -> &Arc<History> {
        &self.history
    }

    /// Opens the file again, if redb gave up on it and the disk did not fail.
    pub fn reopen(&mut self, shown: &str) -> Result<()> {
        if self.usable().is_some() || self.history.has_failed() {
            return Ok(());
        }
        if self.panic_count >= PANICS_MAX {
            return Err(unreadable_page(shown));
        }
        self.close();
        log::debug!("{shown}: opened again");
        let (database, history) = open(&self.file, self.cache_len, shown)?;
        (self.database, self.history) = (Some(database), history);
        Ok(())
    }

    /// Closes a database that is not used any more, which writes nothing.
    fn close(&mut self) {
        self.history.end();
        let database = self.database.take();
        if self.history.has_panicked() {
            self.panic_count += usize::from(database.is_some());
            std::mem::forget(database);
        } else if catch_panic(|| drop(database)).is_none() {
            self.panic_count += 1;
        }
    }

    /// Closes the file at the end. Returns whether all that was committed is on the disk.
    pub fn end(&mut self) -> bool {
        // redb may panic when it closes a damaged file. Nothing waits to be written.
        if self.usable().is_none() {
            self.close();
            return false;
        }
        let database = self.database.take();
        catch_panic(|| drop(database)).is_some() && !self.history.has_failed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::RedbEngine;
    use super::PANICS_MAX;
    use crate::disk::{Access, LocalFiles};
    use crate::engine::{Batch, Engine, ReadView, Table};
    use crate::simulated_disk::SimDisk;
    use std::ops::ControlFlow;
    use std::sync::Arc;
    use weald_format::{ErrorKind, Result};

    const ROWS: u32 = 3000;

    /// Tables of which redb keeps nothing in memory.
    fn open(disk: &SimDisk) -> Result<RedbEngine> {
        let file = disk.open("meta", Access::Write)?;
        RedbEngine::open(Arc::from(file), "meta".to_owned(), 0)
    }

    fn value_of(number: u32, round: u32) -> Vec<u8> {
        format!("{number} {round}").repeat(9).into_bytes()
    }

    fn put(engine: &RedbEngine, numbers: impl Iterator<Item = u32>, round: u32) -> Result<()> {
        let mut batch = Batch::default();
        for number in numbers {
            batch.put(Table::Log, &number.to_be_bytes(), value_of(number, round));
        }
        engine.commit(&batch)
    }

    fn get(engine: &RedbEngine, number: u32) -> Result<Option<Vec<u8>>> {
        engine.get(Table::Log, &number.to_be_bytes())
    }

    fn with_rows(seed: u64) -> (SimDisk, RedbEngine) {
        let disk = SimDisk::new(seed);
        drop(disk.open("meta", Access::Create).expect("create"));
        let engine = open(&disk).expect("open");
        put(&engine, 0..ROWS, 0).expect("commit");
        (disk, engine)
    }

    fn count(view: &dyn ReadView, round: u32) -> Result<u32> {
        let mut count = 0;
        let mut visit = |key: &[u8], value: &[u8]| {
            let number = u32::from_be_bytes(key.try_into().expect("four bytes"));
            assert_eq!(value, value_of(number, round));
            count += 1;
            Ok(ControlFlow::Continue(()))
        };
        view.scan(Table::Log, &[], &mut visit)?;
        Ok(count)
    }

    fn copy_of(disk: &SimDisk) -> SimDisk {
        let copy = SimDisk::new(0);
        drop(copy.open("meta", Access::Create).expect("create"));
        copy.put_back("meta", &disk.contents()["meta"]);
        copy
    }

    // Would catch: tables of which nothing can be read or written any more after one read failed, a
    // transaction that is said to be a failure of the disk, and a view that shows other rows.
    #[test]
    fn a_failed_read_costs_what_it_read() {
        let (disk, engine) = with_rows(1);
        let engine = Arc::new(engine);
        for round in 1..40 {
            let view = engine.clone().read_view().expect("a view");
            disk.set_unreadable("meta", true);
            let error = get(&engine, 7).expect_err("a read that fails");
            assert_eq!(
                (error.kind(), error.is_failed_write()),
                (ErrorKind::Io, false)
            );
            let error = put(&engine, 0..ROWS, 99).expect_err("no row can be read");
            assert!(!error.is_failed_write(), "{error}");
            disk.set_unreadable("meta", false);
            assert_eq!(get(&engine, 7).expect("get"), Some(value_of(7, round - 1)));
            put(&engine, 0..ROWS, round).expect("a commit");
            assert_eq!(
                get(&engine, ROWS - 1).expect("get"),
                Some(value_of(ROWS - 1, round))
            );
            // Its rows were overwritten: it has the old ones in memory, or none.
            if let Ok(found) = count(&*view, round - 1) {
                assert_eq!(found, ROWS);
            }
            drop(view);
        }
        assert_eq!(
            count(&*engine.clone().read_view().expect("view"), 39).expect("scan"),
            ROWS
        );
        drop(engine);
        let engine = Arc::new(open(&disk).expect("open"));
        assert_eq!(
            count(&*engine.read_view().expect("view"), 39).expect("scan"),
            ROWS
        );
    }

    // Would catch: a damaged page that costs more after it was met than before, a commit beside it
    // that is refused for ever, and a panic that passes on.
    #[test]
    fn damage_costs_no_more_after_it_was_met() {
        let (mut failures, mut panics) = (0, 0);
        for seed in 0..60u64 {
            let (disk, engine) = with_rows(seed);
            drop(engine);
            let engine = open(&disk).expect("open");
            let len = disk.contents()["meta"].len();
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut random = |below: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % below as u64) as usize
            };
            // Behind the header, which is read when the file is opened.
            let page = 4096 * (1 + random(len / 4096 - 1));
            for byte in page..page + 16 {
                disk.flip("meta", byte, (byte % 8) as u8);
            }
            for _ in 0..12 {
                let number = random(ROWS as usize) as u32;
                // Another program that has met nothing yet.
                let expected = open(&copy_of(&disk)).map(|fresh| get(&fresh, number));
                let found = get(&engine, number);
                match (&found, &expected) {
                    (Ok(found), Ok(Ok(expected))) => assert_eq!(found, expected, "seed {seed}"),
                    (Err(_), Ok(Ok(_))) => panic!("seed {seed}: {found:?} instead of a row"),
                    _ => failures += usize::from(found.is_err()),
                }
            }
            panics += engine.opened.read().panic_count;
        }
        println!("{failures} rows not read, {panics} panics");
        assert!(failures > 20, "{failures}");
    }

    // Would catch: memory for each of any number of panics.
    #[test]
    fn panics_have_an_end() {
        let (_disk, engine) = with_rows(3);
        let panic = || engine.call::<()>(|_| panic!("as redb does"));
        for _ in 0..PANICS_MAX {
            assert_eq!(panic().expect_err("panic").kind(), ErrorKind::Corrupt);
            assert_eq!(get(&engine, 1).expect("get"), Some(value_of(1, 0)));
        }
        assert!(panic().is_err());
        assert!(get(&engine, 1).is_err());
    }

    // Would catch: a commit that failed as far as anyone was told, and that later ones build on.
    #[test]
    fn a_commit_of_which_nobody_knows_ends_the_writer() {
        let (_disk, engine) = with_rows(4);
        let sum = *engine.sum.lock();
        put(&engine, 0..1, 1).expect("commit");
        // As if redb had panicked after the commit was on the disk.
        *engine.sum.lock() = sum;
        let error = put(&engine, 2..3, 1).expect_err("a commit on top");
        assert!(error.is_failed_write(), "{error}");
    }
}
