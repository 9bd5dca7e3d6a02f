//! Where a replica lies: files that are put once, read, listed and removed.

use crate::disk::{Access, Disk};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use weald_format::replica::{DataFile, Epoch, ItemNo};
use weald_format::store::Uuid;
use weald_format::{Digest, Error, ErrorKind, Result};

/// The file that says of which store a place is a replica.
pub(super) const IDENTITY: &str = "replica";
/// Directory of items.
pub(super) const ITEMS: &str = "items";
/// Directory of files of data.
pub(super) const DATA: &str = "data";

/// Directory of files that say with which item the items begin.
pub(super) const FIRST: &str = "first";

/// Directory of files that say that another store has taken over.
pub(super) const EPOCHS: &str = "epochs";

/// A place for a replica. It needs no more than a bucket has.
pub trait Place: Debug + Send + Sync {
    /// Its name in messages.
    fn shown(&self) -> String;

    /// Puts a file, durably when this returns. A file of the same name is replaced; readers see the
    /// old one or the new one, never a part of one.
    ///
    /// # Errors
    /// `Io`, `Full`: the file may be there or not, also later.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Reads a whole file of at most `len_max` bytes.
    ///
    /// # Errors
    /// `NotFound`; `Limit` if it is longer; `Io`.
    fn read(&self, name: &str, len_max: u64) -> Result<Vec<u8>>;

    /// Names of the files in a directory, in any order; none if there is no such directory.
    ///
    /// # Errors
    /// `Io`.
    fn list(&self, dir: &str) -> Result<Vec<String>>;

    /// Removes a file, which may be gone already.
    ///
    /// # Errors
    /// `Io`.
    fn remove(&self, name: &str) -> Result<()>;

    /// Whether a file of data that [`Place::list`] named is there now. Places whose lists are never
    /// late know it.
    ///
    /// # Errors
    /// `Io`.
    fn is_there(&self, _name: &str) -> Result<bool> {
        Ok(true)
    }

    /// Whether it costs requests to open it, and nothing to keep it open.
    fn stays_open(&self) -> bool {
        false
    }

    /// Refuses a place that cannot keep a replica, before one is begun in it.
    ///
    /// # Errors
    /// `Unsupported` if it cannot; `Io`.
    fn prepare(&self) -> Result<()> {
        Ok(())
    }
}

/// A place in a directory.
#[derive(Debug)]
pub struct DirPlace {
    disk: Arc<dyn Disk>,
    /// Directories that are there, durably.
    made: Mutex<BTreeSet<String>>,
}

impl DirPlace {
    /// The directory of `disk`, which may be missing.
    pub fn new(disk: Arc<dyn Disk>) -> Self {
        Self {
            disk,
            made: Mutex::default(),
        }
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        if self.made.lock().contains(dir) {
            return Ok(());
        }
        match self.disk.make_dir(dir) {
            Err(error) if error.kind() != ErrorKind::Busy => return Err(error),
            _ => {}
        }
        // One that was there may have been made before a crash.
        if !dir.is_empty() {
            self.disk.sync_dir("")?;
        }
        self.made.lock().insert(dir.to_owned());
        Ok(())
    }
}

/// The directory of a file, and its name there.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

impl Place for DirPlace {
    fn shown(&self) -> String {
        self.disk.shown()
    }

    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (dir, base) = split(name);
        // Two senders must not write to one file.
        let random = std::hash::RandomState::new().build_hasher().finish();
        let new = match dir {
            "" => format!(".{base}.{random:016x}"),
            dir => format!("{dir}/.{base}.{random:016x}"),
        };
        self.make_dir("")?;
        self.make_dir(dir)?;
        let file = self.disk.open(&new, Access::Create)?;
        let written = file.write_at(bytes, 0).and_then(|()| file.sync());
        let done = written.and_then(|()| self.disk.rename(&new, name));
        if let Err(error) = done {
            if let Err(error) = self.disk.remove_if_there(&new) {
                log::debug!("{}/{new}: {error}", self.shown());
            }
            return Err(error);
        }
        self.disk.sync_dir(dir)
    }

    fn read(&self, name: &str, len_max: u64) -> Result<Vec<u8>> {
        self.disk.read_file(name, len_max)
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let mut names = match self.disk.list(dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        names.retain(|name| !name.starts_with('.'));
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let (dir, _) = split(name);
        self.disk.remove_if_there(name)?;
        self.disk.sync_dir(dir)
    }
}

/// Path of an item with this digest.
pub(super) fn item_path(number: ItemNo, digest: &Digest) -> String {
    format!("{ITEMS}/{:016x}-{digest}", number.0)
}

/// Number and digest of the item with this file name; `None` if it is none.
pub(super) fn parse_item_name(name: &str) -> Option<(ItemNo, Digest)> {
    let (number, digest) = name.split_once('-')?;
    let found = (
        ItemNo(u64::from_str_radix(number, 16).ok()?),
        Digest::from_hex(digest)?,
    );
    (item_path(found.0, &found.1).strip_prefix(ITEMS)?.get(1..) == Some(name)).then_some(found)
}

/// Path of the file that says that the items begin with this one.
pub(super) fn first_path(number: ItemNo) -> String {
    format!("{FIRST}/{:016x}", number.0)
}

/// The item that a file with this name says; `None` if it says none.
pub(super) fn parse_first_name(name: &str) -> Option<ItemNo> {
    let number = ItemNo(u64::from_str_radix(name, 16).ok()?);
    (first_path(number).strip_prefix(FIRST)?.strip_prefix('/')? == name).then_some(number)
}

/// Path of the file that says that a store has taken over, which has this random identity.
pub(super) fn epoch_path(epoch: Epoch, id: Uuid) -> String {
    format!("{EPOCHS}/{:08x}-{:032x}", epoch.0, u128::from_be_bytes(id))
}

/// The epoch, and the identity of the store, that a file with this name says; `None` if it says
/// none.
pub(super) fn parse_epoch_name(name: &str) -> Option<(Epoch, Uuid)> {
    let (epoch, id) = name.split_once('-')?;
    let found = (
        Epoch(u32::from_str_radix(epoch, 16).ok()?),
        u128::from_str_radix(id, 16).ok()?.to_be_bytes(),
    );
    let path = epoch_path(found.0, found.1);
    (path.strip_prefix(EPOCHS)?.strip_prefix('/')? == name).then_some(found)
}

/// Path of the file of data with this digest.
pub(super) fn data_path(digest: &Digest) -> String {
    format!("{DATA}/{digest}")
}

/// Reads a file of data, and compares it with its digest.
///
/// # Errors
/// `Corrupt`, `NotFound`, `Limit`, `Io`.
pub(super) fn read_data(place: &dyn Place, file: &DataFile) -> Result<Vec<u8>> {
    let path = data_path(&file.digest);
    let bytes = place.read(&path, file.file_len)?;
    if Digest::of(&bytes) == file.digest && bytes.len() as u64 == file.file_len {
        return Ok(bytes);
    }
    let what = format!("{}/{path}: differs from its digest", place.shown());
    Err(Error::corrupt("replica", 0, "S-9.5", what))
}
