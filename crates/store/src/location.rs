//! Where a store is, and the one way to open it: all crates above give a location, and only this
//! one knows which disk serves it.

use crate::disk::{Disk, HostDisk};
use crate::replica::{AsOf, Place, ReplicaSettings, RestoredStore, restore_store};
use crate::store::Store;
use crate::tier::TieredDisk;
use crate::writer::WriteOptions;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::Result;
use weald_format::store::Uuid;

/// Where a store is.
#[derive(Debug)]
pub enum StoreLocation {
    /// A directory of the host, by its path.
    Path(PathBuf),
    /// A directory of the host that is open, even if its path leads elsewhere later.
    Dir {
        /// The directory.
        dir: OwnedFd,
        /// Its path in messages.
        shown: PathBuf,
    },
}

impl From<&Path> for StoreLocation {
    fn from(path: &Path) -> Self {
        Self::Path(path.to_owned())
    }
}

impl StoreLocation {
    fn disk(self) -> Arc<dyn Disk> {
        let home = match self {
            Self::Path(path) => HostDisk::new(&path),
            Self::Dir { dir, shown } => HostDisk::of_dir(dir, &shown),
        };
        Arc::new(TieredDisk::new(Arc::new(home)))
    }

    /// Opens the store here.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(self) -> Result<Store> {
        Store::open(self.disk())
    }

    /// Makes a store here.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn create(self, uuid: Uuid, segment_len: u64) -> Result<Store> {
        Store::create(self.disk(), uuid, segment_len)
    }

    /// Makes a store here of what a replica has.
    ///
    /// # Errors
    /// As [`crate::restore_store`].
    pub fn restore(
        self,
        place: &dyn Place,
        as_of: AsOf,
        options: WriteOptions,
    ) -> Result<RestoredStore> {
        restore_store(place, self.private_disk(), as_of, options)
    }

    /// Makes a standby here, which is empty.
    ///
    /// # Errors
    /// As [`Store::create_standby`].
    pub fn create_standby(self, place: &dyn Place, of: (&str, ReplicaSettings)) -> Result<Store> {
        Store::create_standby(place, self.private_disk(), of)
    }

    /// The store that was sent may have been private.
    fn private_disk(self) -> Arc<dyn Disk> {
        match self {
            Self::Path(path) => Arc::new(TieredDisk::new(Arc::new(HostDisk::private(&path)))),
            other => other.disk(),
        }
    }
}
