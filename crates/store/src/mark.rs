//! The file `mark`: a commit that the tables have. Tables that end before it are older than the
//! store, as after a backup of `meta` alone was put back.
//!
//! The file is written after each commit, without a sync. After a crash it may name an earlier
//! commit, or be damaged or missing, which says nothing. It never names a commit that the tables
//! of the disk do not have, because the commit was durable before. Where writes are not synced, it
//! is written at the end alone, when everything is on the disk.

use crate::disk::{Access, LocalFile};
use crate::layout;
use crate::store::Store;
use weald_format::store::MarkRecord;
use weald_format::{CommitNo, ErrorKind, Result};
use zerocopy::IntoBytes;

/// Writes the file.
#[derive(Debug)]
pub struct Mark {
    store: Store,
    file: Option<Box<dyn LocalFile>>,
    /// The last commit, if it is not in the file.
    waiting: Option<CommitNo>,
}

impl Mark {
    /// The mark of `store`, whose lock the caller has.
    pub fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            file: None,
            waiting: None,
        }
    }

    /// The commit that the file names; `None` if it names none.
    pub fn read(store: &Store) -> Option<CommitNo> {
        let bytes = store.disk.read_file(layout::MARK, 4096).ok()?;
        MarkRecord::parse(&bytes, store.superblock.uuid)
    }

    /// Notes a commit that the tables have. A failure is none of the commit.
    pub fn set(&mut self, commit: CommitNo) {
        self.waiting = Some(commit);
        if self.store.disk.has_syncs() {
            self.write_out();
        }
    }

    fn write_out(&mut self) {
        let Some(commit) = self.waiting.take() else {
            return;
        };
        if let Err(error) = self.write(commit) {
            log::debug!("{}/{}: {error}", self.store.disk.shown(), layout::MARK);
        }
    }

    fn write(&mut self, commit: CommitNo) -> Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => self.open()?,
        };
        let record = MarkRecord::of(self.store.superblock.uuid, commit);
        file.write_at(record.as_bytes(), 0)?;
        self.file = Some(file);
        Ok(())
    }

    fn open(&self) -> Result<Box<dyn LocalFile>> {
        let disk = &*self.store.disk;
        match disk.open(layout::MARK, Access::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                disk.open(layout::MARK, Access::Create)
            }
            other => other,
        }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // The file `unsynced` goes when everything is on the disk.
        let disk = &*self.store.disk;
        let unsynced = disk.open(layout::UNSYNCED, Access::Read);
        if unsynced.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            self.write_out();
        }
    }
}
