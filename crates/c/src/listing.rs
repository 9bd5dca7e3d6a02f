//! Attributes for C.

use weald_image::Inode;

/// `weald_stat` of the header.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct WealdStat {
    /// Inode number.
    pub ino: u64,
    /// Number of names.
    pub nlink: u64,
    /// Bytes, or entries of a directory.
    pub size: u64,
    /// Seconds since 1970.
    pub mtime: i64,
    /// Nanoseconds of them.
    pub mtime_nsec: u32,
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major number of a device.
    pub rdev_major: u32,
    /// Minor number of a device.
    pub rdev_minor: u32,
}

/// The attributes of an inode.
pub fn stat_of(inode: &Inode) -> WealdStat {
    let attributes = inode.attributes;
    // The numbers of a device, as the format has them.
    let (major, minor) = (attributes.rdev >> 32, attributes.rdev & u64::from(u32::MAX));
    let half = |number| u32::try_from(number).unwrap_or(u32::MAX);
    WealdStat {
        ino: inode.ino.0,
        nlink: inode.nlink,
        size: inode.size.0,
        mtime: inode.times.mtime.seconds,
        mtime_nsec: inode.times.mtime.nanoseconds,
        mode: inode.kind.mode_bits() | u32::from(attributes.permissions),
        uid: attributes.uid,
        gid: attributes.gid,
        rdev_major: half(major),
        rdev_minor: half(minor),
    }
}
