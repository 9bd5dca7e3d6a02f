//! Converts an inode of the tree to the attributes of the FUSE protocol.

use crate::wire::{Attr, NodeId, Statx, SxTime};
use weald_format::{Attributes, FileKind, Ids};
use weald_image::Inode;
use weald_vfs::{Nanoseconds, Stat};

/// Preferred I/O size (`st_blksize`), in bytes. Buffered readers allocate this much per open file,
/// so it is not more than a page.
const PREFERRED_IO_LEN: u32 = 4096;

/// `STATX_BASIC_STATS` and `STATX_BTIME` of statx(2).
const BASIC_STATS: u32 = 0x7ff;
const BTIME: u32 = 0x800;

/// Attributes that the mount options replace on every inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// Owner of every inode.
    pub uid: Option<u32>,
    /// Group of every inode.
    pub gid: Option<u32>,
    /// Permission bits cleared on every inode.
    pub umask: u16,
}

impl Overrides {
    /// Whether the mount shows other owners or permissions than the image stores. The mount then
    /// hides POSIX ACLs: they name users and repeat permission bits, and would contradict the
    /// attributes.
    pub fn is_active(&self) -> bool {
        *self != Self::default()
    }

    /// Whether the mount keeps the owners and groups of the tree.
    pub(crate) fn ids(&self) -> Ids {
        match (self.uid, self.gid) {
            (None, None) => Ids::Kept,
            _ => Ids::Changed,
        }
    }
}

/// Attributes of `inode`, whose node id is `node`. `data_len` counts the bytes outside holes;
/// `owners` has the owner and the group to show, unless `overrides` has others; `permissions` holds
/// the low 12 bits of the mode.
pub(crate) fn attributes(
    inode: &Inode,
    node: NodeId,
    data_len: u64,
    (owners, permissions): (Attributes, u16),
    overrides: &Overrides,
) -> Attr {
    let mtime = inode.times.mtime;
    let atime = inode.times.atime.unwrap_or(mtime);
    let ctime = inode.times.ctime.unwrap_or(mtime);
    Attr {
        ino: node.0,
        size: inode.size.0,
        blocks: data_len.div_ceil(512),
        // The kernel reads these bits as a signed number.
        atime: atime.seconds as u64,
        mtime: mtime.seconds as u64,
        ctime: ctime.seconds as u64,
        atimensec: atime.nanoseconds,
        mtimensec: mtime.nanoseconds,
        ctimensec: ctime.nanoseconds,
        mode: type_bits(inode.kind) << 12 | u32::from(permissions),
        nlink: u32::try_from(inode.nlink).unwrap_or(u32::MAX),
        uid: overrides.uid.unwrap_or(owners.uid),
        gid: overrides.gid.unwrap_or(owners.gid),
        rdev: device_number(inode.attributes.rdev),
        blksize: PREFERRED_IO_LEN,
        flags: 0,
    }
}

/// The same attributes for statx(2), with the birth time if the tree stores one.
pub(crate) fn extended(inode: &Inode, attr: &Attr) -> Statx {
    let btime = inode.times.btime;
    let btime = btime.map(|time| sx_time(time.seconds as u64, time.nanoseconds));
    with_btime(attr, btime)
}

fn with_btime(attr: &Attr, btime: Option<SxTime>) -> Statx {
    Statx {
        mask: BASIC_STATS | if btime.is_some() { BTIME } else { 0 },
        blksize: attr.blksize,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: attr.mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: sx_time(attr.atime, attr.atimensec),
        btime: btime.unwrap_or_default(),
        ctime: sx_time(attr.ctime, attr.ctimensec),
        mtime: sx_time(attr.mtime, attr.mtimensec),
        rdev_major: (attr.rdev & 0xfff00) >> 8,
        rdev_minor: (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00),
        ..Statx::default()
    }
}

/// Attributes of an inode of a file system that can change.
pub(crate) fn writable_attributes(stat: &Stat) -> Attr {
    let (atime, atimensec) = seconds(stat.atime);
    let (mtime, mtimensec) = seconds(stat.mtime);
    let (ctime, ctimensec) = seconds(stat.ctime);
    Attr {
        ino: stat.ino.0,
        size: stat.size,
        blocks: stat.allocated.div_ceil(512),
        atime,
        mtime,
        ctime,
        atimensec,
        mtimensec,
        ctimensec,
        mode: type_bits(stat.kind) << 12 | u32::from(stat.permissions),
        nlink: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        blksize: PREFERRED_IO_LEN,
        flags: 0,
    }
}

/// The same attributes for statx(2).
pub(crate) fn writable_statx(stat: &Stat) -> Statx {
    let (btime, btimensec) = seconds(stat.btime);
    let btime = sx_time(btime, btimensec);
    with_btime(&writable_attributes(stat), Some(btime))
}

/// Splits a time into seconds, as the kernel reads them, and nanoseconds.
const fn seconds(time: Nanoseconds) -> (u64, u32) {
    const SECOND: Nanoseconds = 1_000_000_000;
    // The kernel reads the seconds as a signed number.
    let seconds = time.div_euclid(SECOND) as i64 as u64;
    (seconds, time.rem_euclid(SECOND) as u32)
}

const fn sx_time(seconds: u64, nanoseconds: u32) -> SxTime {
    SxTime {
        tv_sec: seconds as i64,
        tv_nsec: nanoseconds,
        reserved: 0,
    }
}

/// File type: the upper four bits of a mode, also the type of a directory entry (`DT_DIR` and so
/// on).
pub(crate) const fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharDevice => 2,
        FileKind::Directory => 4,
        FileKind::BlockDevice => 6,
        FileKind::Regular => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

/// Packs (major << 32 | minor) for the FUSE protocol: 12 bits of major, 20 bits of minor. Linux has
/// no larger device numbers.
///
/// # Source
/// `new_encode_dev` in the kernel's `include/linux/kdev_t.h`.
fn device_number(rdev: u64) -> u32 {
    let (major, minor) = ((rdev >> 32) as u32, rdev as u32);
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_packed_as_the_kernel_unpacks_them() {
        assert_eq!(device_number(1 << 32 | 3), 0x0103);
        assert_eq!(device_number(0xfff << 32 | 0xf_ffff), 0xffff_ffff);
        assert_eq!(device_number(8 << 32 | 0x12345), 0x1230_0845);
    }

    #[test]
    fn statx_unpacks_device_numbers() {
        for (major, minor) in [(1u32, 3u32), (0xfff, 0xf_ffff), (8, 0x12345)] {
            let attr = Attr {
                rdev: device_number(u64::from(major) << 32 | u64::from(minor)),
                ..Attr::default()
            };
            let unpacked = (
                (attr.rdev & 0xfff00) >> 8,
                (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00),
            );
            assert_eq!(unpacked, (major, minor));
        }
    }
}
