//! Regular files: opens them safely, finds and makes holes, makes files without a name.

use crate::faked;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, ResolveFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Appends the bytes of `file` from `offset` on to `bytes`, as many as `bytes` has room for without
/// growing. Returns their number; 0 at the end of the file. The file offset does not move.
///
/// # Errors
/// The errno of pread(2).
pub fn append_at(file: &File, offset: u64, bytes: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        match rustix::io::pread(file, rustix::buffer::spare_capacity(bytes), offset) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Opens the file at the relative path `path` below `dir` for reading. No component may be a
/// symlink or lead out of `dir`. A fifo or device does not block. The atime does not change if the
/// kernel allows that. `path` must be shorter than 4096 bytes.
///
/// The kind of file is not checked here.
///
/// # Errors
/// The errno of openat(2) for a `path` of one component, else of openat2(2): `ENOSYS` before Linux
/// 5.6.
pub fn open_file_at(dir: impl AsFd, path: &[u8]) -> io::Result<File> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match open_resolved(&dir, path, flags | OFlags::NOATIME) {
        Err(Errno::PERM) => Ok(open_resolved(&dir, path, flags)?),
        other => Ok(other?),
    }
}

/// As [`open_file_at`], but follows symlinks, which may lead anywhere.
///
/// # Errors
/// The errno of openat(2).
pub fn open_file_followed_at(dir: impl AsFd, path: &[u8]) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |flags| rustix::fs::openat(&dir, path, flags, Mode::empty());
    match open(flags | OFlags::NOATIME) {
        Err(Errno::PERM) => Ok(open(flags)?.into()),
        other => Ok(other?.into()),
    }
}

/// Whether `error` of [`open_file_at`] means that a component of the path is a symlink.
pub fn is_of_link(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::LOOP.raw_os_error())
}

fn open_resolved(dir: impl AsFd, path: &[u8], flags: OFlags) -> Result<File, Errno> {
    let opened = if path.contains(&b'/') {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve)
    } else {
        rustix::fs::openat(dir, path, flags, Mode::empty())
    };
    opened.map(File::from)
}

/// Opens `name` in `dir`, an inode of any kind, only as a base for other calls (`O_PATH`). A
/// symlink is not followed, and a device driver is not called.
///
/// # Errors
/// The errno of openat(2).
pub fn open_node_at(dir: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// As [`open_node_at`], but follows a symlink in the last component. Links in `/proc` need this:
/// they lead to an open file, not to a path.
///
/// # Errors
/// The errno of openat(2).
pub fn open_followed_at(dir: impl AsFd, name: &[u8]) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// Opens for writing the inode of `node`, a descriptor from [`open_node_at`], even if its name now
/// belongs to another inode. For a fifo the call waits for a reader.
///
/// # Errors
/// The errno of open(2); `ENOENT` without `/proc`.
pub fn open_for_writing(node: impl AsFd) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", node.as_fd().as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// As [`open_for_writing`], for reading and writing.
///
/// # Errors
/// As [`open_for_writing`].
pub fn open_for_update(node: impl AsFd) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", node.as_fd().as_raw_fd());
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Whether `fd` is in a procfs.
pub fn is_in_proc(fd: impl AsFd) -> bool {
    /// `PROC_SUPER_MAGIC` of Linux.
    const PROC: u64 = 0x9fa0;
    rustix::fs::fstatfs(fd).is_ok_and(|state| state.f_type as u64 == PROC)
}

/// Creates the regular file `name` in `dir` for reading and writing. It must not exist; the umask
/// applies.
///
/// # Errors
/// The errno of openat(2); `EEXIST` if the name exists.
pub fn create_file_at(dir: impl AsFd, name: &[u8], permissions: u16) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_bits_retain(u32::from(permissions));
    let file = rustix::fs::openat(&dir, name, flags, mode)?;
    faked::adopt(dir, name)?;
    Ok(file.into())
}

/// Creates a file without a name in the file system of `dir`, for reading and writing. It is
/// deleted on close unless [`link_unnamed_at`] gives it a name. The umask applies.
///
/// # Errors
/// The errno of openat(2); `EOPNOTSUPP`, `EISDIR` or `ENOENT` if the file system does not support
/// such files.
pub fn create_unnamed_at(dir: impl AsFd, permissions: u16) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let mode = Mode::from_bits_retain(u32::from(permissions));
    Ok(rustix::fs::openat(dir, ".", flags, mode)?.into())
}

/// Gives a file from [`create_unnamed_at`] the name `name` in `dir`.
///
/// # Errors
/// The errno of linkat(2); `EEXIST` if the name exists, `ENOENT` without `/proc`.
pub fn link_unnamed_at(file: impl AsFd, dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(rustix::fs::linkat(
        rustix::fs::CWD,
        path,
        dir,
        name,
        AtFlags::SYMLINK_FOLLOW,
    )?)
}

/// Finds the first data run of `file` that overlaps `from .. end`, clipped to it; `None` if the
/// whole range is a hole. On a file system without support for holes, everything is data. The
/// function moves the file's offset, so several threads must not call it on one file at once.
///
/// # Errors
/// The errno of lseek(2).
pub fn next_data(file: &File, from: u64, end: u64) -> io::Result<Option<Range<u64>>> {
    if from >= end {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(from..end)),
        Err(error) => return Err(error.into()),
    };
    if start >= end {
        return Ok(None);
    }
    match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(stop) if stop > start => Ok(Some(start..stop.min(end))),
        // The file shrank between the two calls. The promised data must be read, so that the caller
        // notices.
        Ok(_) | Err(Errno::NXIO) => Ok(Some(start..end)),
        Err(error) => Err(error.into()),
    }
}

/// Finds all data runs in the first `len` bytes of `file`, in order. The gaps between them are
/// holes.
///
/// # Errors
/// The errno of lseek(2).
/// # Cost
/// Two system calls and 16 bytes per run; use [`next_data`] if there may be millions.
pub fn data_runs(file: &File, len: u64) -> io::Result<Vec<Range<u64>>> {
    let mut runs = Vec::new();
    let mut from = 0;
    while let Some(run) = next_data(file, from, len)? {
        from = run.end;
        runs.push(run);
    }
    Ok(runs)
}

/// Makes `range` of `file` a hole. The length of the file does not change.
///
/// # Errors
/// The errno of fallocate(2); `EOPNOTSUPP` if the file system does not support it.
pub fn punch_hole(file: &File, range: Range<u64>) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(
        file,
        flags,
        range.start,
        range.end.saturating_sub(range.start),
    )?)
}

/// Reserves space for `range` of `file`. The length of the file does not change.
///
/// # Errors
/// The errno of fallocate(2); `ENOSPC` if the file system is full, `EOPNOTSUPP` if it does not
/// support it.
pub fn allocate(file: &File, range: Range<u64>) -> io::Result<()> {
    let len = range.end.saturating_sub(range.start);
    Ok(rustix::fs::fallocate(
        file,
        FallocateFlags::KEEP_SIZE,
        range.start,
        len,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: bytes that are overwritten, a vector that grows, an end that is no end.
    #[test]
    fn bytes_are_appended_as_far_as_there_is_room() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("file"), b"0123456789").unwrap();
        let file = File::open(temp.path().join("file")).unwrap();
        let mut bytes = Vec::with_capacity(100);
        bytes.push(b'>');
        assert_eq!(append_at(&file, 4, &mut bytes).unwrap(), 6);
        assert_eq!(bytes, b">456789");
        assert_eq!(append_at(&file, 10, &mut bytes).unwrap(), 0);
        let mut full = vec![0; 3].into_boxed_slice().into_vec();
        assert_eq!(append_at(&file, 0, &mut full).unwrap(), 0);
        assert_eq!(full, [0; 3]);
    }
    use crate::{make_node_at, open_dir};
    use std::os::unix::fs::FileExt;

    #[test]
    fn holes_are_found_where_they_were_made() {
        let temp = tempfile::tempdir().unwrap();
        let file = create_unnamed_at(open_dir(temp.path()).unwrap(), 0o600).unwrap();
        assert_eq!(data_runs(&file, 0).unwrap(), []);
        file.set_len(1 << 40).unwrap();
        assert_eq!(data_runs(&file, 1 << 40).unwrap(), []);
        file.write_all_at(&[1; 4096], 65536).unwrap();
        file.write_all_at(&[1; 65536], 1 << 30).unwrap();
        assert_eq!(
            data_runs(&file, 1 << 40).unwrap(),
            [65536..69632, (1 << 30)..(1 << 30) + 65536]
        );
        assert_eq!(data_runs(&file, 66000).unwrap(), [65536..66000; 1]);
        punch_hole(&file, (1 << 30)..(1 << 30) + 4096).unwrap();
        assert_eq!(
            next_data(&file, 1 << 30, 1 << 40).unwrap(),
            Some((1 << 30) + 4096..(1 << 30) + 65536)
        );
    }

    #[test]
    fn fifos_do_not_block_and_links_do_not_lead_out() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_dir(temp.path()).unwrap();
        make_node_at(&dir, b"fifo", crate::NodeKind::Fifo, 0o600).unwrap();
        open_file_at(&dir, b"fifo").unwrap();
        std::os::unix::fs::symlink("/etc", temp.path().join("etc")).unwrap();
        assert!(open_file_at(&dir, b"etc/passwd").is_err());
        assert!(open_file_at(&dir, b"etc").is_err());
        assert!(open_file_at(&dir, b"../x").is_err());
    }

    #[test]
    fn unnamed_files_appear_when_linked() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_dir(temp.path()).unwrap();
        let file = create_unnamed_at(&dir, 0o600).unwrap();
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
        link_unnamed_at(&file, &dir, b"name").unwrap();
        let again = link_unnamed_at(&file, &dir, b"name").unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        let taken = create_file_at(&dir, b"name", 0o600).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
    }
}
