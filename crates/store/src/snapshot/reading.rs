//! A snapshot that a process reads is not removed: the reader locks a byte of the superblock for
//! it, as readers of images do, and needs no right to write.

use super::manage::{Snapshot, snapshot};
use crate::disk::{Access, LocalFile};
use crate::engine::Engine;
use crate::layout;
use crate::store::Store;
use crate::users::readers_of;
use weald_format::{Error, ErrorKind, Result, SnapshotNo, VolumeNo};

/// Keeps a snapshot from being removed, until it is dropped or its process ends.
#[derive(Debug)]
pub struct SnapshotLock {
    _file: Box<dyn LocalFile>,
}

impl Store {
    /// Finds the snapshot `name` of a volume in the tables `engine` of this store and keeps it from
    /// being removed.
    ///
    /// # Errors
    /// `NotFound` if there is none, or none any more; `Io`, `Corrupt`.
    pub fn lock_snapshot(
        &self,
        engine: &dyn Engine,
        (volume_no, name): (VolumeNo, &str),
    ) -> Result<(Snapshot, SnapshotLock)> {
        let found = snapshot(engine, volume_no, name)?;
        let file = self.lock_file(Access::Read)?;
        let is_free = file.try_lock(layout::snapshot_lock(volume_no, found.no), false)?;
        // It may have been removed between the two.
        let again = snapshot(engine, volume_no, name)?;
        if !is_free || again.no != found.no {
            return Err(Error::not_found(format!("@{name}: is being removed")));
        }
        Ok((again, SnapshotLock { _file: file }))
    }

    /// Locks a snapshot against readers. `Busy` names those that there are.
    pub(super) fn lock_out_readers_of(
        &self,
        volume_no: VolumeNo,
        found: &Snapshot,
    ) -> Result<Vec<Box<dyn LocalFile>>> {
        let files = self.lock_files()?;
        let offset = layout::snapshot_lock(volume_no, found.no);
        for file in &files {
            if !file.try_lock(offset, true)? {
                let by = readers_of(&*self.disk, offset, "");
                let what = format!(
                    "@{}: the snapshot is being read{by}: try again when that has ended",
                    found.name
                );
                return Err(Error::new(ErrorKind::Busy, what));
            }
        }
        Ok(files)
    }

    /// Whether a process reads the snapshot, so that it cannot be removed.
    ///
    /// # Errors
    /// `Io`.
    pub fn is_snapshot_read(&self, volume_no: VolumeNo, no: SnapshotNo) -> Result<bool> {
        for file in self.lock_files()? {
            if !file.try_lock(layout::snapshot_lock(volume_no, no), true)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
