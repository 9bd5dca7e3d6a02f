//! Makes, names and changes inodes relative to open directories.

use crate::faked;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT, Uid,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use weald_format::Timestamp;

/// Kind of inode for [`make_node_at`]; device numbers are (major << 32 | minor).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// An empty regular file. This is cheaper than open and close.
    EmptyFile,
    /// Named pipe.
    Fifo,
    /// Unix socket (unbound).
    Socket,
    /// Character device.
    CharDevice(u64),
    /// Block device.
    BlockDevice(u64),
}

fn mode_of(permissions: u16) -> Mode {
    Mode::from_bits_retain(u32::from(permissions & 0o7777))
}

/// Makes the directory `name` in `dir`; the umask applies.
///
/// # Errors
/// The errno of mkdirat(2).
pub fn make_dir_at(dir: impl AsFd, name: &[u8], permissions: u16) -> io::Result<()> {
    rustix::fs::mkdirat(&dir, name, mode_of(permissions))?;
    faked::adopt(dir, name)
}

/// Makes a special or an empty regular file `name` in `dir`; the umask applies.
///
/// # Errors
/// The errno of mknodat(2); `EINVAL` for a device number that Linux cannot hold (major over 12
/// bits, minor over 20).
pub fn make_node_at(
    dir: impl AsFd,
    name: &[u8],
    kind: NodeKind,
    permissions: u16,
) -> io::Result<()> {
    let (file_type, rdev) = match kind {
        NodeKind::EmptyFile => (FileType::RegularFile, 0),
        NodeKind::Fifo => (FileType::Fifo, 0),
        NodeKind::Socket => (FileType::Socket, 0),
        NodeKind::CharDevice(rdev) => (FileType::CharacterDevice, rdev),
        NodeKind::BlockDevice(rdev) => (FileType::BlockDevice, rdev),
    };
    let (major, minor) = ((rdev >> 32) as u32, rdev as u32);
    if major >= 1 << 12 || minor >= 1 << 20 {
        return Err(Errno::INVAL.into());
    }
    let dev = rustix::fs::makedev(major, minor);
    if faked::is_on() && kind != NodeKind::EmptyFile {
        let mode = file_type.as_raw_mode() | u32::from(permissions & 0o7777);
        return faked::make_node_at(dir, name, mode, dev);
    }
    rustix::fs::mknodat(&dir, name, file_type, mode_of(permissions), dev)?;
    faked::adopt(dir, name)
}

/// Makes the symlink `name` in `dir` with the target `target`.
///
/// # Errors
/// The errno of symlinkat(2).
pub fn make_symlink_at(target: &[u8], dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    rustix::fs::symlinkat(target, &dir, name)?;
    faked::adopt(dir, name)
}

/// Makes the hard link `new` in `new_dir` to the inode `old` in `old_dir`.
///
/// # Errors
/// The errno of linkat(2).
pub fn link_at(old_dir: impl AsFd, old: &[u8], new_dir: impl AsFd, new: &[u8]) -> io::Result<()> {
    if faked::is_on() {
        return faked::link_at(old_dir, old, new_dir, new);
    }
    Ok(rustix::fs::linkat(
        old_dir,
        old,
        new_dir,
        new,
        AtFlags::empty(),
    )?)
}

/// Renames; replaces an inode with the new name.
///
/// # Errors
/// The errno of renameat(2).
pub fn rename_at(old_dir: impl AsFd, old: &[u8], new_dir: impl AsFd, new: &[u8]) -> io::Result<()> {
    if faked::is_on() {
        faked::rename_at(old_dir, old, new_dir, new)
    } else {
        Ok(rustix::fs::renameat(old_dir, old, new_dir, new)?)
    }
}

/// Renames only if the new name does not exist: by renameat2, or by link and unlink if the file
/// system does not support that, or under fakeroot and pseudo. A directory cannot have a second
/// name. There it is renamed after a check that the new name does not exist. If another process
/// makes an empty directory of that name in between, that directory is lost.
///
/// # Errors
/// `EEXIST` if the new name exists; else the errno of renameat2(2), linkat(2), unlinkat(2) or
/// fstatat(2).
pub fn rename_new_at(
    old_dir: impl AsFd,
    old: &[u8],
    new_dir: impl AsFd,
    new: &[u8],
) -> io::Result<()> {
    let renamed = if faked::is_on() {
        Err(Errno::NOSYS)
    } else {
        rustix::fs::renameat_with(&old_dir, old, &new_dir, new, RenameFlags::NOREPLACE)
    };
    match renamed {
        Err(Errno::INVAL | Errno::NOSYS) => {
            let found = rustix::fs::statat(&old_dir, old, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                return match rustix::fs::statat(&new_dir, new, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => rename_at(old_dir, old, new_dir, new),
                    Err(e) => Err(e.into()),
                    Ok(_) => Err(Errno::EXIST.into()),
                };
            }
            link_at(&old_dir, old, &new_dir, new)?;
            remove_file_at(old_dir, old)
        }
        other => Ok(other?),
    }
}

/// Removes the name of an inode that is not a directory.
///
/// # Errors
/// The errno of unlinkat(2).
pub fn remove_file_at(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    if faked::is_on() {
        faked::remove_file_at(dir, name)
    } else {
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::empty())?)
    }
}

/// Removes an empty directory.
///
/// # Errors
/// The errno of unlinkat(2).
pub fn remove_dir_at(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    if faked::is_on() {
        faked::remove_dir_at(dir, name)
    } else {
        Ok(rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR)?)
    }
}

/// Sets owner and group of `name` in `dir`, or of `dir` itself if `name` is empty. The kernel
/// clears set-uid, set-gid and capabilities, so call it before [`chmod_at`] and before setting
/// xattrs.
///
/// # Errors
/// The errno of fchownat(2); `EINVAL` for the id 0xFFFFFFFF, which means "unchanged" to the kernel.
pub fn chown_at(dir: impl AsFd, name: &[u8], uid: u32, gid: u32) -> io::Result<()> {
    if uid == u32::MAX || gid == u32::MAX {
        return Err(Errno::INVAL.into());
    }
    if faked::is_on() {
        return faked::chown_at(dir, name, Some(uid), Some(gid));
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    Ok(rustix::fs::chownat(
        dir,
        name,
        Some(Uid::from_raw(uid)),
        Some(Gid::from_raw(gid)),
        flags,
    )?)
}

/// Sets owner and group of the open file `fd`; `None` leaves an id unchanged.
///
/// # Errors
/// The errno of fchown(2).
pub fn chown_fd(fd: impl AsFd, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVAL.into());
    }
    if faked::is_on() {
        return faked::chown_at(fd, b"", uid, gid);
    }
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    Ok(rustix::fs::fchown(fd, uid, gid)?)
}

/// Sets the low 12 mode bits of `name` in `dir`, or of `dir` itself if `name` is empty.
///
/// fchmodat(2) follows symlinks, and fchmodat2(2) needs Linux 6.6. So this function uses an
/// `O_PATH` descriptor.
///
/// # Errors
/// `EOPNOTSUPP` for a symlink, because Linux does not change its mode; else the errno of openat(2)
/// or chmod(2).
pub fn chmod_at(dir: impl AsFd, name: &[u8], permissions: u16) -> io::Result<()> {
    let name = if name.is_empty() { b"." } else { name };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = rustix::fs::openat(&dir, name, flags, Mode::empty())?;
    let is_symlink =
        rustix::fs::fstat(&node).map(|s| FileType::from_raw_mode(s.st_mode).is_symlink())?;
    if is_symlink {
        return Err(Errno::OPNOTSUPP.into());
    }
    if faked::is_on() {
        return faked::chmod_at(dir, name, permissions);
    }
    let path = format!("/proc/self/fd/{}", node.as_raw_fd());
    Ok(rustix::fs::chmod(path, mode_of(permissions))?)
}

/// Sets the low 12 mode bits of the open file `fd`.
///
/// # Errors
/// The errno of fchmod(2).
pub fn chmod_fd(fd: impl AsFd, permissions: u16) -> io::Result<()> {
    if faked::is_on() {
        faked::chmod_at(fd, b"", permissions)
    } else {
        Ok(rustix::fs::fchmod(fd, mode_of(permissions))?)
    }
}

/// Times to set; `None` leaves a time unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewTimes {
    /// Time of the last change of the content.
    pub mtime: Option<Timestamp>,
    /// Time of the last access.
    pub atime: Option<Timestamp>,
}

/// Sets times of `name` in `dir`, or of `dir` itself if `name` is empty. The file system clamps
/// times that it cannot store.
///
/// # Errors
/// The errno of utimensat(2).
pub fn set_times_at(dir: impl AsFd, name: &[u8], times: NewTimes) -> io::Result<()> {
    let name = if name.is_empty() { b"." } else { name };
    Ok(rustix::fs::utimensat(
        dir,
        name,
        &timestamps(times),
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

/// Sets times of the open file `fd`. The file system clamps times that it cannot store.
///
/// # Errors
/// The errno of futimens(2).
pub fn set_times_fd(fd: impl AsFd, times: NewTimes) -> io::Result<()> {
    Ok(rustix::fs::futimens(fd, &timestamps(times))?)
}

fn timestamps(times: NewTimes) -> Timestamps {
    let timespec = |time: Option<Timestamp>| match time {
        Some(t) => Timespec {
            tv_sec: t.seconds,
            tv_nsec: t.nanoseconds.into(),
        },
        None => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
    };
    Timestamps {
        last_access: timespec(times.atime),
        last_modification: timespec(times.mtime),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{open_dir, stat_at};
    use weald_format::FileKind;

    #[test]
    fn nodes_of_every_kind_are_made() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_dir(temp.path()).unwrap();
        let rdev = 4095 << 32 | 1_048_575;
        let nodes = [
            (NodeKind::EmptyFile, FileKind::Regular, 0),
            (NodeKind::Fifo, FileKind::Fifo, 0),
            (NodeKind::Socket, FileKind::Socket, 0),
            (NodeKind::CharDevice(rdev), FileKind::CharDevice, rdev),
            (NodeKind::BlockDevice(rdev), FileKind::BlockDevice, rdev),
        ];
        for (kind, expected, rdev) in nodes {
            let name = format!("{kind:?}").into_bytes();
            make_node_at(&dir, &name, kind, 0o600).unwrap();
            chmod_at(&dir, &name, 0o7777).unwrap();
            chown_at(&dir, &name, 0xFFFF_FFFE, 1).unwrap();
            let stat = stat_at(&dir, &name).unwrap();
            assert_eq!(
                (stat.kind, stat.rdev, stat.uid),
                (expected, rdev, 0xFFFF_FFFE)
            );
        }
        let error = make_node_at(&dir, b"x", NodeKind::CharDevice(4096 << 32), 0o600).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
    }

    #[test]
    fn symlinks_are_changed_themselves() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_dir(temp.path()).unwrap();
        make_node_at(&dir, b"file", NodeKind::EmptyFile, 0o600).unwrap();
        let before = stat_at(&dir, b"file").unwrap();
        make_symlink_at(b"file", &dir, b"link").unwrap();
        let mtime = Timestamp {
            seconds: -1_000_000_000,
            nanoseconds: 999_999_999,
        };
        set_times_at(
            &dir,
            b"link",
            NewTimes {
                mtime: Some(mtime),
                atime: None,
            },
        )
        .unwrap();
        chown_at(&dir, b"link", 5, 6).unwrap();
        let refused = chmod_at(&dir, b"link", 0o700).unwrap_err();
        assert_eq!(
            refused.raw_os_error(),
            Some(Errno::OPNOTSUPP.raw_os_error())
        );
        let link = stat_at(&dir, b"link").unwrap();
        assert_eq!((link.mtime, link.uid, link.gid), (mtime, 5, 6));
        assert_eq!(stat_at(&dir, b"file").unwrap(), before);
    }

    #[test]
    fn open_files_are_changed_without_their_names() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_dir(temp.path()).unwrap();
        let file = crate::create_file_at(&dir, b"file", 0o600).unwrap();
        let mtime = Some(Timestamp {
            seconds: 13_000_000_000,
            nanoseconds: 1,
        });
        set_times_fd(&file, NewTimes { mtime, atime: None }).unwrap();
        chmod_fd(&file, 0o6751).unwrap();
        let stat = stat_at(&dir, b"file").unwrap();
        assert_eq!((Some(stat.mtime), stat.permissions), (mtime, 0o6751));
    }

    #[test]
    fn renaming_to_a_taken_name_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_dir(temp.path()).unwrap();
        for name in [b"a", b"b"] {
            make_node_at(&dir, name, NodeKind::EmptyFile, 0o600).unwrap();
        }
        let taken = rename_new_at(&dir, b"a", &dir, b"b").unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        rename_new_at(&dir, b"a", &dir, b"c").unwrap();
        assert!(stat_at(&dir, b"a").is_err());
    }
}
