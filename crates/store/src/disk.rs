//! The storage below a store: named files in one directory, with rules for crashes.
//!
//! A store does all its I/O through [`Disk`], its metadata engine included, so that tests run the
//! whole store on a simulated disk.
//!
//! Contract that the upper modules rely on and that the simulated disk tests:
//! 1. Bytes written to a file become durable when [`DiskFile::sync`] of that file returns.
//! 2. A created, changed or removed name becomes durable when [`Disk::sync_dir`] of its directory
//!    returns.
//! 3. A rename is atomic: after a crash the name refers to the old file or to the new file.

mod unsynced;

pub use unsynced::UnsyncedDisk;

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::{Error, ErrorKind, Result};

/// Flag of open(2): opening a FIFO does not wait for the other side.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    Write,
    /// A new file, for reading and writing; the name must not exist.
    Create,
}

/// An open file.
pub trait DiskFile: Debug + Send + Sync {
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
    /// what the disk has. After a failed [`DiskFile::sync`] the system may keep bytes that the disk
    /// does not have, also for later processes.
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
}

/// The directory of a store.
pub trait Disk: Debug + Send + Sync {
    /// Opens the file at the relative path `name`.
    ///
    /// # Errors
    /// `NotFound`; `Busy` if a file to create exists; `Io`, `Full`.
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn DiskFile>>;

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

    /// Name of the disk in messages: the store's path.
    fn shown(&self) -> String;

    /// Total and free space. A disk without a limit has 2^62 bytes.
    ///
    /// # Errors
    /// `Io`.
    fn space(&self) -> Result<DiskSpace> {
        Ok(DiskSpace {
            total: 1 << 62,
            free: 1 << 62,
        })
    }
}

/// Space of a disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// All of it.
    pub total: u64,
    /// Bytes that can still be written.
    pub free: u64,
}

/// A directory of the host's file system.
#[derive(Debug, Clone)]
pub struct HostDisk {
    path: PathBuf,
    /// Path of the directory in messages.
    shown: PathBuf,
    /// The open directory, if the disk was created from one; `path` then leads to it.
    _dir: Option<Arc<OwnedFd>>,
}

impl HostDisk {
    /// Uses the directory at `path`, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            shown: path.to_owned(),
            _dir: None,
        }
    }

    /// Uses the open directory `dir`, even if its path leads elsewhere later. Messages call it
    /// `shown`. Needs `/proc`.
    pub fn of_dir(dir: OwnedFd, shown: &Path) -> Self {
        Self {
            path: format!("/proc/self/fd/{}", dir.as_raw_fd()).into(),
            shown: shown.to_owned(),
            _dir: Some(Arc::new(dir)),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        join(&self.path, name)
    }

    fn failed(&self, name: &str, error: io::Error) -> Error {
        let shown = join(&self.shown, name);
        match error.kind() {
            io::ErrorKind::AlreadyExists => Error::new(
                ErrorKind::Busy,
                format!("{}: exists already", shown.display()),
            ),
            _ => Error::io(shown.display().to_string(), error),
        }
    }
}

fn join(dir: &Path, name: &str) -> PathBuf {
    match name {
        "" => dir.to_owned(),
        name => dir.join(name),
    }
}

impl Disk for HostDisk {
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn DiskFile>> {
        let mut options = File::options();
        options
            .read(true)
            .write(access != Access::Read)
            .create_new(access == Access::Create);
        // A FIFO with the name of a file must not block the open.
        options.custom_flags(NONBLOCK);
        let failed = |e| self.failed(name, e);
        let file = options.open(self.at(name)).map_err(failed)?;
        let path = join(&self.shown, name);
        if !file.metadata().map_err(failed)?.is_file() {
            let what = format!("{}: expected a regular file", path.display());
            return Err(Error::invalid(what));
        }
        Ok(Box::new(HostFile { file, path }))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let failed = |e| self.failed(dir, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(self.at(dir)).map_err(failed)? {
            // The store gives all its files UTF-8 names, so other names are not its files.
            if let Ok(name) = entry.map_err(failed)?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        fs::create_dir(self.at(dir)).map_err(|e| self.failed(dir, e))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        fs::rename(self.at(from), self.at(to)).map_err(|e| self.failed(from, e))
    }

    fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.at(name)).map_err(|e| self.failed(name, e))
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        let opened = File::open(self.at(dir)).map_err(|e| self.failed(dir, e))?;
        let shown = join(&self.shown, dir);
        opened.sync_all().map_err(|e| unsynced(&shown, e))
    }

    fn sync_all(&self) -> Result<()> {
        let opened = File::open(self.at("")).map_err(|e| self.failed("", e))?;
        let synced = rustix::fs::syncfs(&opened);
        synced.map_err(|e| unsynced(&self.shown, io::Error::from_raw_os_error(e.raw_os_error())))
    }

    fn shown(&self) -> String {
        self.shown.display().to_string()
    }

    fn space(&self) -> Result<DiskSpace> {
        let state = rustix::fs::statvfs(&self.path)
            .map_err(|e| self.failed("", io::Error::from_raw_os_error(e.raw_os_error())))?;
        let bytes = |blocks: u64| blocks.saturating_mul(state.f_frsize);
        Ok(DiskSpace {
            total: bytes(state.f_blocks),
            free: bytes(state.f_bavail),
        })
    }
}

/// Converts an error of syncing the file or directory `path`.
fn unsynced(path: &Path, error: io::Error) -> Error {
    let is_missing = matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    );
    if !is_missing {
        return Error::io(path.display().to_string(), error);
    }
    let what = format!(
        "{}: this file system cannot make data durable (fsync), which a store needs: put the \
         store on a local disk",
        path.display()
    );
    Error::new(ErrorKind::Unsupported, what).with_source(error)
}

/// A file of the host's file system.
#[derive(Debug)]
struct HostFile {
    file: File,
    path: PathBuf,
}

impl HostFile {
    fn failed(&self, error: io::Error) -> Error {
        Error::io(self.path.display().to_string(), error)
    }
}

impl DiskFile for HostFile {
    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|e| self.failed(e))?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file
            .read_exact_at(buf, offset)
            .map_err(|e| self.failed(e))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|e| self.failed(e))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len).map_err(|e| self.failed(e))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| unsynced(&self.path, e))
    }

    fn read_anew(&self) -> Result<()> {
        self.sync()?;
        // The kernel drops pages that are not dirty. A failed sync leaves such pages.
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|e| self.failed(e.into()))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        match weald_sys::punch_hole(&self.file, offset..offset.saturating_add(len)) {
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
            other => other.map_err(|e| self.failed(e)),
        }
    }

    fn try_lock(&self, offset: u64, is_exclusive: bool) -> Result<bool> {
        weald_sys::try_lock_byte(&self.file, offset, is_exclusive).map_err(|error| {
            let what = format!(
                "{}: this file system has no file locks, which a store needs: \
                 put the store on a local disk",
                self.path.display()
            );
            Error::new(ErrorKind::Unsupported, what).with_source(error)
        })
    }
}
