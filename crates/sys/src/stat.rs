//! Reads attributes of inodes: statx and readlink relative to an open directory.

use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp};
use std::io;
use std::os::fd::AsFd;
use weald_format::{FileKind, Timestamp};

/// Attributes of an inode, from statx(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// File type.
    pub kind: FileKind,
    /// The low 12 bits of `st_mode`.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number as (major << 32 | minor); 0 unless the inode is a device.
    pub rdev: u64,
    /// Length, bytes.
    pub size: u64,
    /// Number of hard links.
    pub nlink: u32,
    /// The file system's device number as (major << 32 | minor).
    pub dev: u64,
    /// Inode number in its file system.
    pub ino: u64,
    /// Allocated units of 512 bytes.
    pub blocks: u64,
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of the inode.
    pub ctime: Timestamp,
    /// Birth time, if the file system stores it.
    pub btime: Option<Timestamp>,
}

/// Reads the attributes of `name` in `dir`, or of `dir` itself if `name` is empty. Does not follow
/// symlinks and automounts. Network file systems may answer from their caches.
///
/// # Errors
/// The errno of statx(2).
pub fn stat_at(dir: impl AsFd, name: &[u8]) -> io::Result<Stat> {
    let mut flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    if name.is_empty() {
        flags |= AtFlags::EMPTY_PATH;
    }
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    stat_of(&rustix::fs::statx(dir, name, flags, mask)?)
}

/// Reads the attributes of the open file `fd`.
///
/// # Errors
/// The errno of statx(2).
pub fn stat_fd(fd: impl AsFd) -> io::Result<Stat> {
    stat_at(fd, b"")
}

fn stat_of(raw: &Statx) -> io::Result<Stat> {
    let mode = u32::from(raw.stx_mode);
    let kind = FileKind::from_mode(mode);
    let kind =
        kind.ok_or_else(|| io::Error::other(format!("unknown kind of file, mode {mode:o}")))?;
    let has_btime = raw.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(Stat {
        kind,
        permissions: raw.stx_mode & 0o7777,
        uid: raw.stx_uid,
        gid: raw.stx_gid,
        rdev: if kind.is_device() {
            device(raw.stx_rdev_major, raw.stx_rdev_minor)
        } else {
            0
        },
        size: raw.stx_size,
        nlink: raw.stx_nlink,
        dev: device(raw.stx_dev_major, raw.stx_dev_minor),
        ino: raw.stx_ino,
        blocks: raw.stx_blocks,
        mtime: timestamp(raw.stx_mtime),
        atime: timestamp(raw.stx_atime),
        ctime: timestamp(raw.stx_ctime),
        btime: has_btime.then(|| timestamp(raw.stx_btime)),
    })
}

fn device(major: u32, minor: u32) -> u64 {
    u64::from(major) << 32 | u64::from(minor)
}

fn timestamp(raw: StatxTimestamp) -> Timestamp {
    Timestamp {
        seconds: raw.tv_sec,
        nanoseconds: raw.tv_nsec,
    }
}

/// Appends the target of the symlink `name` in `dir` to `target`; returns the number of appended
/// bytes.
///
/// # Errors
/// The errno of readlinkat(2), `EINVAL` if it is not a symlink. `target` is unchanged then.
pub fn read_link_at(dir: impl AsFd, name: &[u8], target: &mut Vec<u8>) -> io::Result<usize> {
    let start = target.len();
    let mut capacity = 256;
    loop {
        target.resize(start + capacity, 0);
        match rustix::fs::readlinkat_raw(&dir, name, &mut target[start..]) {
            Ok(len) if len < capacity => {
                target.truncate(start + len);
                return Ok(len);
            }
            Ok(_) => capacity *= 4,
            Err(error) => {
                target.truncate(start);
                return Err(error.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_dir;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn stat_agrees_with_std() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        let dir = open_dir(temp.path()).unwrap();
        let ours = stat_at(&dir, b"file").unwrap();
        let theirs = std::fs::metadata(&path).unwrap();
        assert_eq!(
            (ours.kind, ours.size, ours.ino),
            (FileKind::Regular, 5, theirs.ino())
        );
        assert_eq!(
            (ours.mtime.seconds, i64::from(ours.mtime.nanoseconds)),
            (theirs.mtime(), theirs.mtime_nsec())
        );
        assert_eq!(u32::from(ours.permissions), theirs.mode() & 0o7777);
        let null = stat_at(open_dir("/dev".as_ref()).unwrap(), b"null").unwrap();
        assert_eq!((null.kind, null.rdev), (FileKind::CharDevice, 1 << 32 | 3));
        assert_eq!(stat_fd(&dir).unwrap().kind, FileKind::Directory);
    }

    #[test]
    fn targets_of_every_length_are_read_whole() {
        let temp = tempfile::tempdir().unwrap();
        let dir = open_dir(temp.path()).unwrap();
        let mut found = b"before".to_vec();
        for len in [1, 255, 256, 257, 1023, 1024, 4095] {
            let link = temp.path().join(format!("{len}"));
            symlink("x".repeat(len), link).unwrap();
            assert_eq!(
                read_link_at(&dir, format!("{len}").as_bytes(), &mut found).unwrap(),
                len
            );
            assert_eq!(found.len(), 6 + len);
            found.truncate(6);
        }
        assert!(read_link_at(&dir, b"none", &mut found).is_err());
        assert_eq!(found, b"before");
    }
}
