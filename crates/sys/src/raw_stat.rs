//! Attributes of an inode as the kernel has them, whatever fakeroot or pseudo pretends.

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

/// As [`crate::stat_at`].
///
/// # Errors
/// The errno of statx(2).
pub fn real_stat_at(dir: impl AsFd, name: &[u8]) -> io::Result<Stat> {
    let mut flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    if name.is_empty() {
        flags |= AtFlags::EMPTY_PATH;
    }
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    stat_of(&rustix::fs::statx(dir, name, flags, mask)?)
}

/// Attributes from an answer of statx(2).
///
/// # Errors
/// `Other` for a kind of file that Linux does not have.
pub fn stat_of(raw: &Statx) -> io::Result<Stat> {
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

/// A device number as (major << 32 | minor).
fn device(major: u32, minor: u32) -> u64 {
    u64::from(major) << 32 | u64::from(minor)
}

fn timestamp(raw: StatxTimestamp) -> Timestamp {
    Timestamp {
        seconds: raw.tv_sec,
        nanoseconds: raw.tv_nsec,
    }
}
