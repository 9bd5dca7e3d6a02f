//! Writers that ignore barriers, and the file that says so until everything is on the disk.

use crate::disk::{Access, UnsyncedDisk};
use crate::layout;
use crate::store::Store;
use std::sync::Arc;
use weald_format::{ErrorKind, Result};

impl Store {
    /// The same store without syncs: a power cut can damage all of it, images included. Between
    /// [`Store::mark_unsynced`] and [`Store::sync_all`] the file `unsynced` says so.
    pub fn without_barriers(&self) -> Self {
        Self {
            disk: Arc::new(UnsyncedDisk(self.disk.clone())),
            superblock: self.superblock,
        }
    }

    /// Notes that writes will not be synced. The caller has the writer's lock.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn mark_unsynced(&self) -> Result<()> {
        match self.disk.open(layout::UNSYNCED, Access::Create) {
            Err(error) if error.kind() != ErrorKind::Busy => return Err(error),
            _ => {}
        }
        self.disk.sync_all()
    }

    /// Makes all writes so far durable, and notes that.
    ///
    /// # Errors
    /// `Io`.
    pub fn sync_all(&self) -> Result<()> {
        self.disk.sync_all()?;
        self.disk.remove_if_there(layout::UNSYNCED)?;
        self.disk.sync_all()
    }

    /// Whether a writer does not sync what it writes, or did not and was not ended in order.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.disk.open(layout::UNSYNCED, Access::Read).is_ok()
    }

    /// Syncs what a writer left that ignored barriers and did not end in order.
    pub(crate) fn sync_leftovers(&self) -> Result<()> {
        match self.disk.open(layout::UNSYNCED, Access::Read) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            // Something else than a file says nothing.
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(()),
            Err(error) => Err(error),
            Ok(_) => {
                log::warn!(
                    "{}: a volume was mounted with barrier=ignore and not unmounted: after a power \
                     cut the store may be damaged: verify it with 'weald store check' and 'weald \
                     volume check --data'",
                    self.disk.shown()
                );
                self.sync_all()
            }
        }
    }
}
