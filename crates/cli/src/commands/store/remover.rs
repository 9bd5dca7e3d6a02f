//! The writer of a store that removes images: this process, or the server of a mounted volume.

use super::import_target::open_lock;
use crate::runtime_dir::runtime_dir_path;
use std::os::fd::AsFd;
use std::path::Path;
use weald_daemon::RuntimeDir;
use weald_format::{Error, ErrorKind, Result};
use weald_store::{Removal, Store, StoreWriter, WriteOptions};

/// The writer of a store.
#[allow(clippy::large_enum_variant)] // one for each command
pub(super) enum Remover {
    /// This process.
    Own(StoreWriter),
    /// Another process has the lock, with this error. It may be the server of a volume.
    Other(Error),
}

impl Remover {
    /// Opens `store`.
    pub(super) fn open(store: &Store, options: WriteOptions) -> Result<Self> {
        match store.write(options) {
            Err(error) if error.kind() == ErrorKind::Busy => Ok(Self::Other(error)),
            other => other.map(Self::Own),
        }
    }

    /// Removes the image `name` of `store`.
    pub(super) fn remove(&mut self, store: &Store, name: &str, is_forced: bool) -> Result<()> {
        match self {
            Self::Own(writer) => writer.remove(name, is_forced),
            Self::Other(busy) => {
                // The server finds the same, and names the store by another path.
                drop(Removal::begin(store, name, is_forced)?);
                if ask_server(store, name, is_forced)? {
                    Ok(())
                } else {
                    Err(busy.duplicate())
                }
            }
        }
    }
}

/// Removes the image `name` of `store`, by this process or by the server of a volume.
pub fn remove_image(store: &Store, name: &str, options: WriteOptions) -> Result<()> {
    Remover::open(store, options)?.remove(store, name, false)
}

/// Lets the server remove the image that has a volume of `store` mounted. Returns whether there is
/// one.
fn ask_server(store: &Store, name: &str, is_forced: bool) -> Result<bool> {
    let lock = open_lock(Path::new(&store.shown()))?;
    match RuntimeDir::find(&runtime_dir_path())? {
        Some(runtime_dir) => {
            weald_daemon::remove_image(&runtime_dir, lock.as_fd(), name, is_forced)
        }
        None => Ok(false),
    }
}
