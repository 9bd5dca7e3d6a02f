//! The storage below a store, by two doors.
//!
//! [`Objects`] are whole things with names that never change: closed segments, the maps of images
//! and the names of volumes. [`LocalFiles`] are for what is written in place or locked: the
//! metadata engine, the lock, the sync logs, and the segment that receives records until it is
//! closed. A [`Disk`] has both. A store does all its I/O through them, its metadata engine
//! included, so that tests run the whole store on a simulated disk.
//!
//! Contract that the upper modules rely on and that the simulated disk tests:
//! 1. Bytes written to a file become durable when [`LocalFile::sync`] of that file returns.
//! 2. A created, changed or removed name becomes durable when [`LocalFiles::sync_dir`] of its
//!    directory returns.
//! 3. A rename is atomic: after a crash the name refers to the old file or to the new file.
//! 4. The error of a write, a sync or a change of names that the disk failed is marked
//!    ([`Error::of_failed_write`]). That of a read is not, nor is that of an existing file that
//!    cannot be opened: it is of that file.
//!
//! Those of objects stand at [`Objects`].

mod host;
mod objects;
mod read_only;
#[cfg(test)]
mod tests;
mod unsynced;

pub use host::HostDisk;
pub use objects::Objects;
pub(crate) use objects::remove_if_there;
pub use read_only::ReadOnlyDisk;
pub use unsynced::UnsyncedDisk;

use crate::far_objects::FarPlace;
use crate::layout;
use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::sync::Arc;
use weald_format::{Error, ErrorKind, Result, SegmentNo};

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    Write,
    /// A new file, for reading and writing; the name must not exist.
    Create,
    /// As [`Access::Create`], for a file that only its writers may open. Otherwise a user with the
    /// permission to read could take the lock and keep all writers out.
    CreatePrivate,
}

/// Marks the error of a change that the disk failed. A name that is missing or taken, and one that
/// leads elsewhere, is no such failure: nothing was changed.
pub(crate) fn of_change<T>(done: Result<T>) -> Result<T> {
    done.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::Busy | ErrorKind::Invalid => error,
        _ => error.of_failed_write(),
    })
}

/// What can be read in ranges: an object or a file.
pub trait Object: Debug + Send + Sync {
    /// Length in bytes.
    ///
    /// # Errors
    /// `Io`.
    fn len(&self) -> Result<u64>;

    /// Whether the file is empty.
    ///
    /// # Errors
    /// `Io`.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Io`, also if the file ends before `buf` is full.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;

    /// Reads all of it, if that is at most `len_max` bytes; `shown` is its name in messages.
    ///
    /// # Errors
    /// `Limit` if it is longer; `Io`.
    fn read_all(&self, len_max: u64, shown: &dyn Display) -> Result<Vec<u8>> {
        let len = self.len()?;
        if len > len_max {
            let what = format!("{shown}: {len} bytes, expected at most {len_max}");
            return Err(Error::limit(what));
        }
        let mut bytes = vec![0; len as usize];
        self.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

/// An open file.
pub trait LocalFile: Object {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// `Io`, `Full`; an unknown part of the bytes may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()>;

    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// `Io`, `Full`.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Makes the bytes and the length durable (fdatasync).
    ///
    /// # Errors
    /// `Io`: earlier writes may then be lost, even if a later sync succeeds.
    fn sync(&self) -> Result<()>;

    /// Makes the bytes durable and drops what is kept of them in memory, so that later reads see
    /// what the disk has. After a failed [`LocalFile::sync`] the system may keep bytes that the
    /// disk does not have, also for later processes.
    ///
    /// # Errors
    /// `Io`.
    fn read_anew(&self) -> Result<()>;

    /// Frees the space of `offset .. offset + len`, which then reads as zeros. On a file system
    /// without this feature the call changes nothing.
    ///
    /// # Errors
    /// `Io`.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;

    /// Locks the byte at `offset` until the file is closed; the byte may lie after the end of the
    /// file. Returns false if another open file holds a conflicting lock. An exclusive lock needs a
    /// file that is open for writing.
    ///
    /// # Errors
    /// `Unsupported` if the file system has no locks.
    fn try_lock(&self, offset: u64, is_exclusive: bool) -> Result<bool>;

    /// Asks whether the bytes are there, if they lie on another machine.
    ///
    /// # Errors
    /// `Lost`.
    fn confirm(&self) -> Result<()> {
        Ok(())
    }
}

/// Files in the directory of a store, by their paths there.
pub trait LocalFiles: Debug + Send + Sync {
    /// Opens the file at the relative path `name`.
    ///
    /// # Errors
    /// `NotFound`; `Busy` if a file to create exists; `Io`, `Full`.
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn LocalFile>>;

    /// Reads the whole file `name` of at most `len_max` bytes.
    ///
    /// # Errors
    /// As [`LocalFiles::open`]; `Limit` if it is longer.
    fn read_file(&self, name: &str, len_max: u64) -> Result<Vec<u8>> {
        let file = self.open(name, Access::Read)?;
        file.read_all(len_max, &format_args!("{}/{name}", self.shown()))
    }

    /// Writes the file `name` in place of an existing one, and makes its bytes durable; the caller
    /// syncs the directory.
    ///
    /// # Errors
    /// `Io`, `Full`.
    fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        match self.remove(name) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.open(name, Access::Create)?;
        file.write_at(bytes, 0)?;
        file.sync()
    }

    /// Lists the names in the directory `dir` in any order; `""` is the store's own directory.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    fn list(&self, dir: &str) -> Result<Vec<String>>;

    /// Creates the directory `dir`.
    ///
    /// # Errors
    /// `Busy` if it exists, `Io`, `Full`.
    fn make_dir(&self, dir: &str) -> Result<()>;

    /// Renames `from` to `to` and replaces an existing file `to`.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Removes the file `name`.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    fn remove(&self, name: &str) -> Result<()>;

    /// Removes the file `name`, which may be gone already. A directory in its place stays.
    ///
    /// # Errors
    /// `Io`.
    fn remove_if_there(&self, name: &str) -> Result<()> {
        match self.remove(name) {
            Err(error) if error.kind() == ErrorKind::Invalid => {
                log::warn!("{error}: it stays");
                Ok(())
            }
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes all changes of names in `dir` durable.
    ///
    /// # Errors
    /// `Io`.
    fn sync_dir(&self, dir: &str) -> Result<()>;

    /// Makes all changes of all files and names durable.
    ///
    /// # Errors
    /// `Io`; `Unsupported` on a disk that only tests use.
    fn sync_all(&self) -> Result<()> {
        let what = "this disk syncs files and directories only";
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    /// Whether syncs do something.
    fn has_syncs(&self) -> bool {
        true
    }

    /// Name of the disk in messages: the store's path.
    fn shown(&self) -> String;

    /// Device and inode of the directory, which stays open as long as the disk does: no other disk
    /// that is open has them, whatever its files claim. (A file of the store would not do: another
    /// user may make a hard link to it.) `None` if the disk is none of the host's.
    fn identity(&self) -> Option<[u64; 2]> {
        None
    }

    /// Whether changes stay in memory, and are gone with it.
    fn is_in_memory(&self) -> bool {
        false
    }

    /// User to whom the file `name` belongs; `None` on a disk without users.
    ///
    /// # Errors
    /// As [`LocalFiles::open`].
    fn owner(&self, _name: &str) -> Result<Option<u32>> {
        Ok(None)
    }

    /// Processes that hold a lock on the byte at `offset` of the file `name`, as far as this user
    /// may see them.
    fn holders_of_lock(&self, _name: &str, _offset: u64) -> Vec<u32> {
        Vec::new()
    }

    /// Bytes that the file `name` takes on the disk: less than its length where ranges were freed.
    /// `None` if the disk does not tell, 0 for a file that is missing.
    ///
    /// # Errors
    /// `Io`.
    fn allocated_len(&self, _name: &str) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Total and free space. A disk without a limit, or that does not tell, has 2^62 bytes.
    ///
    /// # Errors
    /// `Io`.
    fn space(&self) -> Result<DiskSpace> {
        Ok(DiskSpace::UNKNOWN)
    }

    /// Space for new segments: more than [`LocalFiles::space`] if they can also lie elsewhere.
    ///
    /// # Errors
    /// `Io`.
    fn capacity(&self) -> Result<DiskSpace> {
        self.space()
    }

    /// When the file `name` was changed last, in seconds since 1970; `None` if it is missing or the
    /// disk does not tell.
    fn changed_at(&self, _name: &str) -> Option<u64> {
        None
    }

    /// Opens another directory, as a user named it: that of a tier.
    ///
    /// # Errors
    /// `Unsupported` on a disk without neighbours.
    fn open_place(&self, place: &str) -> Result<Arc<dyn Disk>> {
        let what = format!("{place}: this store cannot have tiers");
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    /// Opens a place on another machine, as a user named it: that of a tier.
    ///
    /// # Errors
    /// `Unsupported` on a disk without neighbours; `Invalid` for anything else than a bucket.
    fn open_far(&self, place: &str) -> Result<Arc<FarPlace>> {
        let what = format!("{place}: this store cannot have tiers");
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    /// Creates the file for segment `number` on its way here, in place of another one.
    ///
    /// # Errors
    /// As [`LocalFiles::open`].
    fn create_moving(&self, _number: SegmentNo) -> Result<Box<dyn LocalFile>> {
        self.remove_if_there(layout::MOVING)?;
        self.open(layout::MOVING, Access::Create)
    }

    /// Whether the file `name` lies on another machine: reading it takes long, and costs.
    fn is_far(&self, _name: &str) -> bool {
        false
    }

    /// Asks another machine whether what it has is what it was.
    ///
    /// # Errors
    /// `Lost`.
    fn check_here(&self) -> Result<()> {
        Ok(())
    }

    /// Removes what was dropped on another machine, and what interrupted moves have left there;
    /// with `is_all`, also what would be due later.
    ///
    /// # Errors
    /// `Lost` if the machine does not answer: the rest is removed by another call; `Io`.
    fn sweep(&self, _is_all: bool) -> Result<()> {
        Ok(())
    }

    /// The directory of the store alone, if this disk has tiers beside it.
    fn home(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    /// Whether the file `name`, if it is there, lies in the directory of the store, and not in a
    /// tier that may be gone at any moment.
    fn is_at_home(&self, _name: &str) -> bool {
        true
    }

    /// What is not here, and may have the file `name`; `None` if nothing can.
    fn why_missing(&self, _name: &str) -> Option<String> {
        None
    }

    /// Opens the file `name` for reading, without a note that it is used.
    ///
    /// # Errors
    /// As [`LocalFiles::open`].
    fn open_unnoted(&self, name: &str) -> Result<Box<dyn LocalFile>> {
        self.open(name, Access::Read)
    }

    /// Reads of segments since the last call, by their names without a directory.
    fn take_reads(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
}

/// What a store lies on.
pub trait Disk: Objects + LocalFiles {}

impl<F: Objects + LocalFiles + ?Sized> Disk for F {}

/// Space of a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// All of it.
    pub total: u64,
    /// Bytes that can still be written.
    pub free: u64,
}

impl DiskSpace {
    /// A disk whose space is not known.
    pub const UNKNOWN: Self = Self {
        total: 1 << 62,
        free: 1 << 62,
    };
}
