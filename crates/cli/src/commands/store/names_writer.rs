//! The writer of a store that removes and renames images: this process, or the server of a mounted
//! volume.

use super::store_lock::open_lock;
use crate::runtime_dir::runtime_dir_path;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use weald_daemon::RuntimeDir;
use weald_format::{Error, ErrorKind, Result};
use weald_store::{IfTaken, Removal, Store, StoreWriter, WriteOptions};

/// The writer of a store.
#[allow(clippy::large_enum_variant)] // one for each command
pub(super) enum NamesWriter {
    /// This process.
    Own(StoreWriter),
    /// Another process has the lock, with this error. It may be the server of a volume.
    Other(Error),
}

impl NamesWriter {
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
                let removed = ask_server(store, |runtime_dir, lock| {
                    weald_daemon::remove_image(runtime_dir, lock.as_fd(), name, is_forced)
                })?;
                if removed {
                    Ok(())
                } else {
                    Err(busy.duplicate())
                }
            }
        }
    }

    /// Gives the image `name` of `store` the name `new`.
    pub(super) fn rename(
        &mut self,
        store: &Store,
        name: &str,
        new: &str,
        if_taken: IfTaken,
    ) -> Result<()> {
        match self {
            Self::Own(writer) => writer.rename(name, new, if_taken),
            Self::Other(busy) => {
                if rename_by_server(store, name, new, if_taken)? {
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
    NamesWriter::open(store, options)?.remove(store, name, false)
}

/// Lets the server that has a volume of `store` mounted give the image `name` the name `new`.
/// Returns whether there is one.
pub(super) fn rename_by_server(
    store: &Store,
    name: &str,
    new: &str,
    if_taken: IfTaken,
) -> Result<bool> {
    ask_server(store, |runtime_dir, lock| {
        weald_daemon::rename_image(runtime_dir, lock.as_fd(), name, new, if_taken)
    })
}

/// Calls `ask` with the directory of the servers and the lock of `store`. Returns what it returns,
/// or false if there are no servers.
fn ask_server(store: &Store, ask: impl FnOnce(&RuntimeDir, &File) -> Result<bool>) -> Result<bool> {
    let lock = open_lock(Path::new(&store.shown()))?;
    match RuntimeDir::find(&runtime_dir_path())? {
        Some(runtime_dir) => ask(&runtime_dir, &lock),
        None => Ok(false),
    }
}
