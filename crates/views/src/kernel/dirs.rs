//! The directories of a view cache. All files in them are reached through descriptors, and no
//! symlink is followed, so that root can keep a cache in a place that another user may rename.

use rustix::fs::{Mode, OFlags, openat};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use weald_format::{Error, FileKind, Result};
use weald_io::OutputFile;
use weald_sys::Stat;

/// Memory for entries of a directory, in bytes.
const LIST_BUFFER_LEN: usize = 32 << 10;

/// The bit that lets only the owner of a file, or of the directory, remove or rename the file.
const STICKY: u16 = 0o1000;

/// Write permissions of group and others.
const WRITABLE_BY_OTHERS: u16 = 0o022;

/// The user as which a user namespace shows all users that it does not have.
const OVERFLOW_UID: u32 = 65534;

/// An open directory, which belongs to the caller and to which nobody else can write.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    /// Absolute path in messages.
    path: PathBuf,
}

impl Dir {
    /// Takes the open directory `fd`, which `path` leads to.
    ///
    /// # Errors
    /// `Invalid` if somebody else owns it or may write to it; `Io`.
    pub fn new(fd: OwnedFd, path: PathBuf) -> Result<Self> {
        let dir = Self { fd, path };
        let stat = weald_sys::stat_fd(&dir.fd).map_err(|error| dir.error("", error))?;
        let is_own = stat.uid == weald_sys::effective_ids().0;
        if is_own && stat.permissions & WRITABLE_BY_OTHERS == 0 {
            Ok(dir)
        } else {
            Err(Error::invalid(format!(
                "{}: a view cache belongs to the user who mounts, and no other user may write to \
             it; this directory belongs to user {} and has mode {:o}: give --view-cache DIR",
                dir.path.display(),
                stat.uid,
                stat.permissions
            )))
        }
    }

    /// Opens the directory `name` in this one; makes it if it is missing.
    ///
    /// # Errors
    /// As [`Dir::new`].
    pub fn enter(&self, name: &str, mode: u16) -> Result<Self> {
        match weald_sys::make_dir_at(&self.fd, name.as_bytes(), mode) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.error(name, error));
            }
            _ => {}
        }
        let opened = weald_sys::open_dir_at(&self.fd, name.as_bytes());
        let opened = opened.map_err(|error| self.error(name, error))?;
        Self::new(opened, self.path.join(name))
    }

    /// Opens the directory `name` in this one, if it is there. Its owner is not checked.
    pub fn find(&self, name: &str) -> Result<Option<Self>> {
        match weald_sys::open_dir_at(&self.fd, name.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.error(name, error)),
            Ok(fd) => Ok(Some(Self {
                fd,
                path: self.path.join(name),
            })),
        }
    }

    /// Its absolute path when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path that leads to this very directory as long as it is open.
    pub fn own_path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }

    /// Path of `name` in messages.
    pub fn shown_at(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// The error of an operation on `name`.
    pub fn error(&self, name: &str, error: io::Error) -> Error {
        Error::io(self.shown_at(name), error)
    }

    /// Opens the regular file `name` for reading; `None` if it is missing.
    pub fn open(&self, name: &str) -> Result<Option<File>> {
        let failed = |error| self.error(name, error);
        match weald_sys::open_file_at(&self.fd, name.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error)),
            Ok(file) => {
                if file.metadata().map_err(failed)?.is_file() {
                    Ok(Some(file))
                } else {
                    Err(Error::invalid(format!(
                        "{}: expected a regular file",
                        self.shown_at(name)
                    )))
                }
            }
        }
    }

    /// Reads at most `len_max` bytes of the file `name`; `None` if it is missing.
    pub fn read(&self, name: &str, len_max: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open(name)? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let read = file.take(len_max).read_to_end(&mut bytes);
        read.map_err(|error| self.error(name, error))?;
        Ok(Some(bytes))
    }

    /// An output that gets the name `name`, in place of what has it.
    pub fn output(&self, name: &str) -> Result<OutputFile> {
        OutputFile::create_in(&self.fd, name.as_bytes(), self.shown_at(name))
    }

    /// Writes the file `name` as a whole, in place of what has the name.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut output = self.output(name)?;
        output.write_all(bytes)?;
        output.commit(true)
    }

    /// Opens the file `name` for a lock; makes it if it is missing.
    pub fn open_lock(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let opened = openat(&self.fd, name, flags, Mode::from_raw_mode(0o600));
        opened
            .map(File::from)
            .map_err(|errno| self.error(name, errno.into()))
    }

    /// Removes the file `name`, if it is there.
    pub fn remove(&self, name: &str) -> Result<()> {
        match weald_sys::remove_file_at(&self.fd, name.as_bytes()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.error(name, error)),
            _ => Ok(()),
        }
    }

    /// Attributes of what has the name; `None` if nothing has it.
    pub fn stat(&self, name: &str) -> Result<Option<Stat>> {
        match weald_sys::stat_at(&self.fd, name.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some).map_err(|error| self.error(name, error)),
        }
    }

    /// Names in the directory. Those that are not UTF-8 are left out: a cache makes none.
    pub fn names(&self) -> Result<Vec<String>> {
        let failed = |error| self.error("", error);
        // Another descriptor: that of the directory keeps its place for all who share it.
        let opened = weald_sys::open_dir_at(&self.fd, b".").map_err(failed)?;
        let mut names = Vec::new();
        let mut buffer = weald_sys::DirBuffer::new(LIST_BUFFER_LEN);
        weald_sys::read_dir(opened, &mut buffer, |entry| {
            names.extend(std::str::from_utf8(entry.name).map(str::to_owned));
            Ok(())
        })
        .map_err(failed)?;
        Ok(names)
    }

    /// Bytes that a file takes on the disk, holes left out; 0 if it is missing.
    pub fn disk_len(&self, name: &str) -> u64 {
        match self.stat(name) {
            Ok(Some(stat)) if stat.kind == FileKind::Regular => stat.blocks * 512,
            _ => 0,
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The map of the first user namespace: all users have their own numbers.
const MAP_OF_ALL: [&str; 3] = ["0", "0", "4294967295"];

/// Whether this process is in a user namespace other than the first one.
///
/// # Errors
/// `Io` without `/proc`.
pub fn is_in_user_namespace() -> Result<bool> {
    const MAP: &str = "/proc/self/uid_map";
    let map = std::fs::read_to_string(MAP).map_err(|error| Error::io(MAP, error))?;
    Ok(!map.split_ascii_whitespace().eq(MAP_OF_ALL))
}

/// A directory above `dir` whose owner could put another one in the place of `dir`: its path, and
/// what is wrong with it. `None` if only root and the caller can.
///
/// The walk goes up from the descriptor, so that it sees the directories that `dir` lies in,
/// whatever any path leads to.
///
/// # Errors
/// Errors of the system calls.
pub fn unsafe_parent(dir: impl AsFd, is_in_user_namespace: bool) -> io::Result<Option<String>> {
    let user = weald_sys::effective_ids().0;
    let is_trusted = |uid| uid == 0 || uid == user || is_in_user_namespace && uid == OVERFLOW_UID;
    let mut at = weald_sys::open_place_at(&dir, b".")?;
    let mut stat = weald_sys::stat_fd(&at)?;
    loop {
        let parent = weald_sys::open_place_at(&at, b"..")?;
        let above = weald_sys::stat_fd(&parent)?;
        if (above.dev, above.ino) == (stat.dev, stat.ino) {
            return Ok(None);
        }
        let is_writable = above.permissions & WRITABLE_BY_OTHERS != 0;
        if !is_trusted(above.uid) || is_writable && above.permissions & STICKY == 0 {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", parent.as_raw_fd()))?;
            return Ok(Some(format!(
                "{} belongs to user {} and has mode {:o}",
                path.display(),
                above.uid,
                above.permissions
            )));
        }
        (at, stat) = (parent, above);
    }
}
