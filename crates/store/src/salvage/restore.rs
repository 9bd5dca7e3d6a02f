//! Makes the tables again from the journal, where they are damaged, missing, or older than it.

use super::segments::Segments;
use super::tables::OldTables;
use crate::disk::{Access, LocalFiles, ReadOnlyDisk};
use crate::engine::redb::{RedbEngine, verify_pages};
use crate::engine::{Engine, Table, sum_of_rows};
use crate::journal::{JournalRows, TablesState};
use crate::layout;
use crate::mark::Mark;
use crate::store::{ENGINE_CACHE_LEN, Store, UUID_KEY, create_engine};
use crate::writer;
use std::sync::Arc;
use weald_format::{CommitNo, Error, ErrorKind, Result};

/// Tables that were made again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restored {
    /// The commit with which they end.
    pub commit: CommitNo,
    /// Whether rows are lost that neither the old tables nor the journal have.
    pub lacks_rows: bool,
    /// Whether there may have been later commits.
    pub lacks_commits: bool,
}

impl Store {
    /// Makes the tables again from the journal, if the journal has more of them. Returns `None` if
    /// they stay.
    ///
    /// # Errors
    /// `Io`, `Full`. The old tables then stay in place.
    pub(super) fn restore_tables(&self, segments: &Segments) -> Result<Option<Restored>> {
        let Some(mut rows) = JournalRows::read(self)? else {
            return Ok(None);
        };
        for damage in rows.damage.iter().chain(&rows.holes) {
            log::warn!("{}: {damage}", self.disk.shown());
        }
        let known = self.known_commit();
        let is_needed = match self.whole_tables()? {
            // One more may be that of a commit that did not succeed.
            Some(tables) => rows.is_all() && rows.commit > tables.commit.next(),
            None => {
                let is_newest = self.is_newest(&rows, known, segments);
                // Where both are damaged, each may have what the other lacks.
                if is_newest && !rows.is_all() {
                    self.add_readable(&mut rows)?;
                }
                // Otherwise what can be read of the tables is newer.
                rows.is_all() && is_newest || self.old_volumes(segments, false).is_err()
            }
        };
        if !is_needed {
            return Ok(None);
        }
        let lacks_rows = !rows.is_all();
        // The last frame may be cut off because its commit did not succeed, or be damaged.
        let lacks_commits = rows.damage.is_some() && known != Some(rows.commit);
        let commit = rows.commit;
        let disk = &*self.disk;
        disk.remove_if_there(layout::META_NEW)?;
        let engine = create_engine(disk, layout::META_NEW, self.superblock.uuid)?;
        rows.write(&engine)?;
        drop(engine);
        match disk.rename(layout::META, layout::META_OLD) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        disk.rename(layout::META_NEW, layout::META)?;
        disk.sync_dir("")?;
        Ok(Some(Restored {
            commit,
            lacks_rows,
            lacks_commits,
        }))
    }

    /// Adds the rows that can be read of damaged tables.
    fn add_readable(&self, rows: &mut JournalRows) -> Result<()> {
        let mut tables = match OldTables::open(self) {
            Ok(tables) => tables,
            Err(error) if error.is_unreadable() || error.kind() == ErrorKind::NotFound => {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for table in Table::ALL {
            match tables.read(table, &[]) {
                Ok(readable) => rows.add(table, readable),
                Err(error) if error.is_unreadable() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether nothing tells of a later commit than the journal has.
    fn is_newest(&self, rows: &JournalRows, known: Option<CommitNo>, segments: &Segments) -> bool {
        let marked = Mark::read(self).unwrap_or_default();
        let known = marked.max(known.unwrap_or_default());
        known <= rows.commit && segments.commit <= rows.commit.next()
    }

    /// The last commit of damaged tables, if that can be read.
    fn known_commit(&self) -> Option<CommitNo> {
        let counters = OldTables::open(self).ok()?.counters().ok()?;
        (counters.names_store && counters.commit > CommitNo::default()).then_some(counters.commit)
    }

    /// Whether all tables can be read and are as they were written.
    ///
    /// # Errors
    /// `Io`.
    pub(super) fn has_whole_tables(&self) -> Result<bool> {
        self.whole_tables().map(|tables| tables.is_some())
    }

    /// The last commit of the tables, if all of them can be read and are as they were written.
    ///
    /// # Errors
    /// `Io`.
    fn whole_tables(&self) -> Result<Option<TablesState>> {
        match self.read_whole_tables() {
            Ok(tables) => Ok(Some(tables)),
            Err(error) if error.is_unreadable() || error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read_whole_tables(&self) -> Result<TablesState> {
        let shown = format!("{}/{}", self.disk.shown(), layout::META);
        let damaged = |what: &str| {
            let what = format!("{shown}: {what}");
            Error::corrupt("store metadata", 0, "S-5.1", what)
        };
        let open = || -> Result<Arc<_>> {
            let file = ReadOnlyDisk::new(self.disk.clone()).open(layout::META, Access::Write)?;
            if file.is_empty()? {
                return Err(damaged("is empty"));
            }
            file.read_anew()?;
            Ok(Arc::from(file))
        };
        verify_pages(open()?, &shown, ENGINE_CACHE_LEN)?;
        let engine = RedbEngine::open(open()?, shown.clone(), ENGINE_CACHE_LEN)?;
        let uuid = engine.get(Table::Counters, UUID_KEY)?;
        if uuid.as_deref() != Some(self.superblock.uuid.as_slice()) {
            return Err(damaged("belongs to another store"));
        }
        let sum = sum_of_rows(&engine)?;
        if engine.row_sum()? != sum {
            return Err(damaged("the rows are not those that were written"));
        }
        let commit = CommitNo(writer::known_counter(&engine, writer::COMMIT)?.unwrap_or(0));
        Ok(TablesState { commit, sum })
    }
}
