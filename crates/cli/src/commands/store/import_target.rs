//! The writer of a store that takes images: this process, or the server of a mounted volume.

use super::names_writer::rename_by_server;
use super::store_lock::open_lock;
use crate::commands::sent_image::SentImage;
use crate::runtime_dir::runtime_dir_path;
use anyhow::bail;
use std::os::fd::AsFd;
use std::path::Path;
use weald_daemon::{HeldVolume, RuntimeDir};
use weald_format::{Error, ErrorKind, Result};
use weald_io::ReadAt;
use weald_store::{IfTaken, Imported, Store, StoreWriter, WriteOptions, read_parts};

/// The writer of a store.
#[allow(clippy::large_enum_variant)] // one for each command
pub(in crate::commands) enum ImportTarget {
    /// This process.
    Own(StoreWriter),
    /// The server that has a volume of the store mounted.
    Mounted(HeldVolume),
}

impl ImportTarget {
    /// Opens `store`, which lies in `dir`.
    pub(in crate::commands) fn open(
        store: &Store,
        dir: &Path,
        options: WriteOptions,
    ) -> anyhow::Result<Self> {
        let verifies = options.verifies_duplicates;
        match store.write(options) {
            Err(error) if error.kind() == ErrorKind::Busy => match held(dir)? {
                Some(_) if verifies => bail!(
                    "{error}; --verify-duplicates needs a store of which no volume is mounted"
                ),
                Some(held) => Ok(Self::Mounted(held)),
                None => Err(error.into()),
            },
            Err(error) => Err(error.into()),
            Ok(writer) => {
                writer.renew_reserve();
                Ok(Self::Own(writer))
            }
        }
    }

    /// Gives the image `name` of `store`, whose writer this is, the name `new`.
    pub(super) fn rename(
        &mut self,
        store: &Store,
        name: &str,
        new: &str,
        if_taken: IfTaken,
    ) -> Result<()> {
        match self {
            Self::Own(writer) => writer.rename(name, new, if_taken),
            Self::Mounted(_) => {
                if rename_by_server(store, name, new, if_taken)? {
                    return Ok(());
                }
                let what = "the volume was unmounted meanwhile: 'weald store mv' moves the name";
                Err(Error::new(ErrorKind::Busy, what))
            }
        }
    }

    /// Imports the image `source` as `name`.
    pub(super) fn import(&mut self, name: &str, source: &dyn ReadAt) -> Result<Imported> {
        match self {
            Self::Own(writer) => writer.import(name, source),
            Self::Mounted(held) => send(held, name, source).map_err(|error| {
                if error.kind() == ErrorKind::Io && held.is_over() {
                    error.context(format!(
                        "{name}: the server of the mounted volume has ended: if 'weald store ls' \
                     does not show the image, import it again"
                    ))
                } else {
                    error
                }
            }),
        }
    }
}

fn send(held: &HeldVolume, name: &str, source: &dyn ReadAt) -> Result<Imported> {
    let sent = SentImage::begin(held, name)?;
    let (image_digest, tree_digest) = read_parts(source, &mut sent.sink())?;
    sent.finish(image_digest, tree_digest)
}

/// A connection to the server that has a volume of the store in `dir` mounted, if there is one.
pub(super) fn held(dir: &Path) -> anyhow::Result<Option<HeldVolume>> {
    let lock = open_lock(dir)?;
    match RuntimeDir::find(&runtime_dir_path())? {
        Some(runtime_dir) => Ok(HeldVolume::of_store(&runtime_dir, lock.as_fd())?),
        None => Ok(None),
    }
}
