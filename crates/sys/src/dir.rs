//! Opens directories relative to each other, and reads them with getdents64 in large pieces.

use crate::faked;
use rustix::fs::{FileType, Mode, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;
use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use weald_format::FileKind;

const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// Opens the directory at `path` and follows symlinks: the start of a walk.
///
/// # Errors
/// The errno of open(2); `ENOTDIR` if it is not a directory.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, DIR_FLAGS, Mode::empty())?)
}

/// Opens the directory `name` in `dir` for reading. Its atime does not change if the kernel allows
/// that.
///
/// # Errors
/// The errno of openat(2); `ENOTDIR` or `ELOOP` if it is not a directory, also for a symlink.
pub fn open_dir_at(dir: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    open_for_listing(dir, name, DIR_FLAGS | OFlags::NOFOLLOW)
}

/// As [`open_dir_at`], but follows symlinks in `path`, which must be shorter than 4096 bytes.
///
/// # Errors
/// The errno of openat(2); `ENOTDIR` if it is not a directory.
pub fn open_dir_followed_at(dir: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    open_for_listing(dir, path, DIR_FLAGS)
}

fn open_for_listing(dir: impl AsFd, name: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
    match rustix::fs::openat(&dir, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => Ok(rustix::fs::openat(&dir, name, flags, Mode::empty())?),
        other => Ok(other?),
    }
}

/// Opens the directory at the relative path `path` below `dir`, only as a base for other calls
/// (`O_PATH`). No component may be a symlink or lead out of `dir`. `path` must be shorter than
/// `PATH_MAX` (4096).
///
/// # Errors
/// The errno of openat2(2), `ENOSYS` before Linux 5.6.
pub fn open_beneath(dir: impl AsFd, path: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(
        dir,
        path,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

/// Opens the directory `name` in `dir` only as a base for other calls (`O_PATH`). This needs no
/// permission to read it. It triggers an automount at `name`.
///
/// # Errors
/// The errno of openat(2); `ENOTDIR` if it is not a directory, also for a symlink.
pub fn open_place_at(dir: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// The working directory, for functions that take a directory descriptor: see [`enter_dir`].
pub const WORKING_DIR: BorrowedFd<'static> = rustix::fs::CWD;

thread_local! {
    static HAS_OWN_WORKING_DIR: Cell<bool> = const { Cell::new(false) };
}

/// Gives the calling thread a working directory of its own. Then [`enter_dir`] does not affect
/// other threads. It cannot be undone, so it is for threads that end soon.
///
/// # Errors
/// The errno of unshare(2); `EPERM` in some sandboxes, and under fakeroot and pseudo.
pub fn separate_working_dir() -> io::Result<()> {
    // The library that pretends would take a relative name for one in its own working directory.
    if faked::is_on() {
        return Err(Errno::PERM.into());
    }
    // SAFETY: the call is unsafe only because of `UnshareFlags::FILES`, which is not set:
    // descriptors stay shared.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }?;
    HAS_OWN_WORKING_DIR.set(true);
    Ok(())
}

/// Makes `dir` the working directory of the calling thread alone.
///
/// # Errors
/// `EPERM` without [`separate_working_dir`]; else the errno of fchdir(2).
pub fn enter_dir(dir: impl AsFd) -> io::Result<()> {
    if !HAS_OWN_WORKING_DIR.get() {
        return Err(Errno::PERM.into());
    }
    Ok(rustix::process::fchdir(dir)?)
}

/// Makes the root directory the working directory of the calling thread, so that the file system
/// that it was in can be unmounted. A joined thread may still hold its working directory for a
/// moment. Has no effect without [`separate_working_dir`].
///
/// # Errors
/// The errno of chdir(2).
pub fn leave_dir() -> io::Result<()> {
    if HAS_OWN_WORKING_DIR.get() {
        Ok(rustix::process::chdir("/")?)
    } else {
        Ok(())
    }
}

/// Buffer for getdents64 calls, reused from directory to directory.
pub struct DirBuffer(Box<[MaybeUninit<u8>]>);

impl DirBuffer {
    /// Makes a buffer of `len` bytes, or of the size that one entry with the longest name needs.
    pub fn new(len: usize) -> Self {
        const DIR_BUFFER_LEN_MIN: usize = 1024;
        Self(vec![MaybeUninit::uninit(); len.max(DIR_BUFFER_LEN_MIN)].into_boxed_slice())
    }
}

impl Default for DirBuffer {
    /// 256 KiB: about 8,000 entries per call.
    fn default() -> Self {
        Self::new(256 << 10)
    }
}

/// One entry in the form of getdents64.
#[derive(Debug, Clone, Copy)]
pub struct DirEntry<'a> {
    /// Name, without NUL or slash.
    pub name: &'a [u8],
    /// Inode number.
    pub ino: u64,
    /// Kind of the inode, if the file system reports it here.
    pub kind: Option<FileKind>,
}

/// Visits every entry of `dir` except `.` and `..`, in the order of the file system, from the
/// directory's current offset.
///
/// # Errors
/// The errno of getdents64(2), or the first error of `visit`.
pub fn read_dir(
    dir: impl AsFd,
    buffer: &mut DirBuffer,
    mut visit: impl FnMut(DirEntry<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut entries = RawDir::new(dir, &mut buffer.0);
    while let Some(entry) = entries.next() {
        let entry = match entry {
            // The directory was removed while it was open.
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            visit(DirEntry {
                name,
                ino: entry.ino(),
                kind: kind_of(entry.file_type()),
            })?;
        }
    }
    Ok(())
}

fn kind_of(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::Directory => FileKind::Directory,
        FileType::RegularFile => FileKind::Regular,
        FileType::Symlink => FileKind::Symlink,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_visited_whatever_the_buffer() {
        let temp = tempfile::tempdir().unwrap();
        let mut expected: Vec<_> = (0..500).map(|i| format!("{i:0200}").into_bytes()).collect();
        for name in &expected {
            std::fs::write(temp.path().join(std::str::from_utf8(name).unwrap()), b"").unwrap();
        }
        expected.sort();
        for len in [0, 1 << 20] {
            let dir = open_dir(temp.path()).unwrap();
            let mut names = Vec::new();
            let visited = read_dir(&dir, &mut DirBuffer::new(len), |entry| {
                names.push(entry.name.to_vec());
                Ok(())
            });
            visited.unwrap();
            names.sort();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn a_working_directory_of_its_own_leaves_other_threads_alone() {
        let before = std::env::current_dir().unwrap();
        let dir = open_dir("/proc".as_ref()).unwrap();
        assert_eq!(enter_dir(&dir).unwrap_err().raw_os_error(), Some(1));
        let inside = std::thread::spawn(move || {
            separate_working_dir().unwrap();
            enter_dir(&dir).unwrap();
            let inside = std::env::current_dir().unwrap();
            leave_dir().unwrap();
            (inside, std::env::current_dir().unwrap())
        });
        let [proc, root] = ["/proc", "/"].map(std::path::PathBuf::from);
        assert_eq!(inside.join().unwrap(), (proc, root));
        leave_dir().unwrap();
        assert_eq!(std::env::current_dir().unwrap(), before);
    }

    #[test]
    fn symlinks_to_directories_are_not_opened() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("dir")).unwrap();
        std::os::unix::fs::symlink("dir", temp.path().join("link")).unwrap();
        let root = open_dir(temp.path()).unwrap();
        assert!(open_dir_at(&root, b"dir").is_ok());
        assert!(open_dir_at(&root, b"link").is_err());
        assert!(open_beneath(&root, b"link").is_err());
        assert!(open_beneath(&root, b"dir/../..").is_err());
        assert_eq!(
            open_dir_at(&root, b"a\0b").unwrap_err().raw_os_error(),
            Some(22)
        );
    }
}
