//! The directory of a store on the host.

use super::{Access, Disk, DiskSpace, LocalFile, LocalFiles, Object, of_change};
use crate::far_objects::FarPlace;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use weald_format::{Error, ErrorKind, Result};

/// Memory for entries of a directory, in bytes.
const LIST_BUFFER_LEN: usize = 32 << 10;

/// A directory of the host's file system.
///
/// The directory is opened once. All its files are then reached through that descriptor, and no
/// symlink below it is followed. So a user who may write to the directory cannot lead another
/// writer to other files.
#[derive(Debug, Clone)]
pub struct HostDisk {
    path: PathBuf,
    /// Path of the directory in messages.
    shown: PathBuf,
    /// Permissions of the directory, if this makes it.
    mode: u32,
    dir: Arc<OnceLock<OwnedFd>>,
}

/// Directory of a file: the store's own, or one in it.
enum ParentDir<'a> {
    Own(BorrowedFd<'a>),
    Below(OwnedFd),
}

impl AsFd for ParentDir<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Own(dir) => *dir,
            Self::Below(dir) => dir.as_fd(),
        }
    }
}

impl HostDisk {
    /// Uses the directory at `path`, which need not exist yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            shown: path.to_owned(),
            mode: 0o777,
            dir: Arc::default(),
        }
    }

    /// As [`HostDisk::new`]; if it makes the directory, nobody else may enter that.
    pub fn private(path: &Path) -> Self {
        Self {
            mode: 0o700,
            ..Self::new(path)
        }
    }

    /// Uses the open directory `dir`, even if its path leads elsewhere later. Messages call it
    /// `shown`.
    pub fn of_dir(dir: OwnedFd, shown: &Path) -> Self {
        Self {
            path: shown.to_owned(),
            shown: shown.to_owned(),
            mode: 0o777,
            dir: Arc::new(OnceLock::from(dir)),
        }
    }

    fn dir(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(dir) = self.dir.get() {
            return Ok(dir.as_fd());
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&self.path, flags, Mode::empty())?;
        Ok(self.dir.get_or_init(|| opened).as_fd())
    }

    /// The directory of the file `name`, and the name in it.
    fn parent_of<'a>(&self, name: &'a str) -> io::Result<(ParentDir<'_>, &'a str)> {
        let dir = self.dir()?;
        Ok(match name.split_once('/') {
            // Names of images and volumes come from tables, which somebody else may have made.
            Some(_) if leads_out(name) => return Err(Errno::INVAL.into()),
            Some((below, name)) => {
                let below = weald_sys::open_place_at(dir, below.as_bytes())?;
                (ParentDir::Below(below), name)
            }
            None => (ParentDir::Own(dir), name),
        })
    }

    fn open_dir(&self, name: &str) -> io::Result<OwnedFd> {
        let name = match name {
            "" => ".",
            name => name,
        };
        weald_sys::open_dir_at(self.dir()?, name.as_bytes())
    }

    fn open_file(&self, name: &str, access: Access) -> io::Result<File> {
        let (parent, name) = self.parent_of(name)?;
        let how = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
            Access::Create | Access::CreatePrivate => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        // A FIFO with the name of a file must not block the open.
        let how = how | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(
            parent,
            name,
            how,
            Mode::from_raw_mode(0o666),
        )?);
        if access == Access::CreatePrivate {
            let mode = Mode::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
            rustix::fs::fchmod(&file, for_writers(mode))?;
        }
        Ok(file)
    }

    /// Whether `name`, or the directory that it lies in, is a symlink.
    fn is_symlink(&self, name: &str) -> bool {
        let names = [name.split('/').next().unwrap_or(name), name];
        let is_symlink = |name| {
            let stat =
                rustix::fs::statat(self.dir().ok()?, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            Some(rustix::fs::FileType::from_raw_mode(stat.st_mode).is_symlink())
        };
        names.iter().any(|name| is_symlink(*name) == Some(true))
    }

    fn failed(&self, name: &str, error: impl Into<io::Error>) -> Error {
        let error = error.into();
        let shown = join(&self.shown, name);
        let errno = Errno::from_io_error(&error);
        if matches!(errno, Some(Errno::LOOP | Errno::NOTDIR)) && self.is_symlink(name) {
            let what = format!(
                "{}: leads through a symlink: the files of a store lie in its own directories",
                shown.display()
            );
            return Error::invalid(what);
        }
        if leads_out(name) {
            let what = "is no name of a file of a store, whatever its tables say";
            return Error::invalid(format!("{}: {what}", shown.display()));
        }
        match error.kind() {
            io::ErrorKind::AlreadyExists => Error::new(
                ErrorKind::Busy,
                format!("{}: exists already", shown.display()),
            ),
            _ => Error::io(shown.display().to_string(), error),
        }
    }
}

/// Whether a path has more than a directory and a name in it, and so may lead elsewhere.
fn leads_out(path: &str) -> bool {
    let name = path.split_once('/').map(|(_, name)| name);
    name.is_some_and(|name| name.contains('/') || matches!(name, "" | "." | ".."))
}

/// Takes the permission to read away where there is none to write.
fn for_writers(mode: Mode) -> Mode {
    let writers = mode & (Mode::WUSR | Mode::WGRP | Mode::WOTH);
    writers | Mode::from_raw_mode(writers.as_raw_mode() << 1)
}

fn join(dir: &Path, name: &str) -> PathBuf {
    match name {
        "" => dir.to_owned(),
        name => dir.join(name),
    }
}

impl LocalFiles for HostDisk {
    fn open(&self, name: &str, access: Access) -> Result<Box<dyn LocalFile>> {
        let failed = |e| self.failed(name, e);
        let opened = self.open_file(name, access).map_err(failed);
        let file = match access {
            Access::Read | Access::Write => opened,
            Access::Create | Access::CreatePrivate => of_change(opened),
        }?;
        let path = join(&self.shown, name);
        if !file.metadata().map_err(failed)?.is_file() {
            let what = format!("{}: expected a regular file", path.display());
            return Err(Error::invalid(what));
        }
        Ok(Box::new(HostFile { file, path }))
    }

    fn list(&self, dir: &str) -> Result<Vec<String>> {
        let failed = |e| self.failed(dir, e);
        let opened = self.open_dir(dir).map_err(failed)?;
        let mut names = Vec::new();
        let mut buffer = weald_sys::DirBuffer::new(LIST_BUFFER_LEN);
        weald_sys::read_dir(opened, &mut buffer, |entry| {
            // The store gives all its files UTF-8 names, so other names are not its files.
            if let Ok(name) = std::str::from_utf8(entry.name) {
                names.push(name.to_owned());
            }
            Ok(())
        })
        .map_err(failed)?;
        Ok(names)
    }

    fn make_dir(&self, dir: &str) -> Result<()> {
        if dir.is_empty() {
            use std::os::unix::fs::DirBuilderExt;
            let made = fs::DirBuilder::new().mode(self.mode).create(&self.path);
            return of_change(made.map_err(|e| self.failed(dir, e)));
        }
        let made = self.parent_of(dir).and_then(|(parent, name)| {
            Ok(rustix::fs::mkdirat(
                parent,
                name,
                Mode::from_raw_mode(0o777),
            )?)
        });
        of_change(made.map_err(|e| self.failed(dir, e)))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let renamed = || -> io::Result<()> {
            let ((from_dir, from), (to_dir, to)) = (self.parent_of(from)?, self.parent_of(to)?);
            Ok(rustix::fs::renameat(from_dir, from, to_dir, to)?)
        };
        let named = if leads_out(to) { to } else { from };
        of_change(renamed().map_err(|e| self.failed(named, e)))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let removed = self
            .parent_of(name)
            .and_then(|(parent, name)| Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?));
        of_change(removed.map_err(|e| match e.kind() {
            io::ErrorKind::IsADirectory => {
                let path = join(&self.shown, name);
                Error::invalid(format!("{}: expected a regular file", path.display()))
            }
            _ => self.failed(name, e),
        }))
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        let opened = self.open_dir(dir);
        let opened = opened.map_err(|e| self.failed(dir, e).of_failed_write())?;
        let shown = join(&self.shown, dir);
        rustix::fs::fsync(opened).map_err(|e| unsynced(&shown, e.into()))
    }

    fn sync_all(&self) -> Result<()> {
        let opened = self.open_dir("");
        let opened = opened.map_err(|e| self.failed("", e).of_failed_write())?;
        rustix::fs::syncfs(opened).map_err(|e| unsynced(&self.shown, e.into()))
    }

    fn shown(&self) -> String {
        self.shown.display().to_string()
    }

    fn identity(&self) -> Option<[u64; 2]> {
        let stat = weald_sys::stat_fd(self.dir().ok()?).ok()?;
        Some([stat.dev, stat.ino])
    }

    fn owner(&self, name: &str) -> Result<Option<u32>> {
        use std::os::unix::fs::MetadataExt;
        let file = self.open_file(name, Access::Read);
        let metadata = file.and_then(|file| file.metadata());
        metadata
            .map(|metadata| Some(metadata.uid()))
            .map_err(|e| self.failed(name, e))
    }

    fn holders_of_lock(&self, name: &str, offset: u64) -> Vec<u32> {
        crate::lock_holders::holders(&self.shown.join(name), offset)
    }

    fn allocated_len(&self, name: &str) -> Result<Option<u64>> {
        use std::os::unix::fs::MetadataExt;
        match self
            .open_file(name, Access::Read)
            .and_then(|file| file.metadata())
        {
            Ok(metadata) => Ok(Some(metadata.blocks().saturating_mul(512))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(0)),
            Err(error) => Err(self.failed(name, error)),
        }
    }

    fn space(&self) -> Result<DiskSpace> {
        let state = self.dir().and_then(|dir| Ok(rustix::fs::fstatvfs(dir)?));
        let state = state.map_err(|e| self.failed("", e))?;
        if state.f_blocks == 0 {
            // Some FUSE programs answer so. A full disk still has blocks.
            return Ok(DiskSpace::UNKNOWN);
        }
        let bytes = |blocks: u64| blocks.saturating_mul(state.f_frsize);
        Ok(DiskSpace {
            total: bytes(state.f_blocks),
            free: bytes(state.f_bavail),
        })
    }

    fn changed_at(&self, name: &str) -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        let file = self.open_file(name, Access::Read).ok()?;
        u64::try_from(file.metadata().ok()?.mtime()).ok()
    }

    fn open_place(&self, place: &str) -> Result<Arc<dyn Disk>> {
        Ok(Arc::new(Self::new(Path::new(place))))
    }

    fn open_far(&self, place: &str) -> Result<Arc<FarPlace>> {
        crate::far_objects::open(place)
    }
}

/// Converts an error of syncing the file or directory `path`.
fn unsynced(path: &Path, error: io::Error) -> Error {
    let is_missing = matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    );
    if !is_missing {
        return Error::io(path.display().to_string(), error).of_failed_write();
    }
    let what = format!(
        "{}: this file system cannot make data durable (fsync), which a store needs: put the \
         store on a local disk",
        path.display()
    );
    let error = Error::new(ErrorKind::Unsupported, what).with_source(error);
    error.of_failed_write()
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

impl Object for HostFile {
    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|e| self.failed(e))?.len())
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.file
            .read_exact_at(buf, offset)
            .map_err(|e| self.failed(e))
    }
}

impl LocalFile for HostFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|e| self.failed(e).of_failed_write())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let done = self.file.set_len(len);
        done.map_err(|e| self.failed(e).of_failed_write())
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| unsynced(&self.path, e))
    }

    fn read_anew(&self) -> Result<()> {
        let synced = self.sync();
        // The kernel drops pages that are not dirty. A failed sync leaves such pages.
        rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|e| self.failed(e.into()))?;
        synced
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        match weald_sys::punch_hole(&self.file, offset..offset.saturating_add(len)) {
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
            other => other.map_err(|e| self.failed(e).of_failed_write()),
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
