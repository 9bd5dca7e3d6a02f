//! From an inode of the tree to the attributes that the kernel is told.

use fuser::{FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime};
use weald_format::{FileKind, Timestamp};
use weald_image::Inode;

/// Block size told by stat(2), in bytes. Buffered readers allocate that much per open file, so not more than a page.
const BLOCK_LEN: u32 = 4096;

/// What the mount options change about every inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overrides {
    /// Owner of everything.
    pub uid: Option<u32>,
    /// Group of everything.
    pub gid: Option<u32>,
    /// Permission bits taken away from everything.
    pub umask: u16,
}

impl Overrides {
    /// Whether any inode is shown otherwise than it is stored. POSIX ACLs, which name users and repeat the permission
    /// bits, would then contradict what is shown, and are left out.
    pub fn is_active(&self) -> bool {
        *self != Self::default()
    }
}

/// The attributes of `inode`, which the kernel knows as `ino`; `data_len` is the number of bytes that are not holes.
pub(crate) fn attributes(
    inode: &Inode,
    ino: INodeNo,
    data_len: u64,
    overrides: &Overrides,
) -> FileAttr {
    let mtime = system_time(inode.times.mtime);
    FileAttr {
        ino,
        size: inode.size.0,
        blocks: data_len.div_ceil(512),
        atime: inode.times.atime.map_or(mtime, system_time),
        mtime,
        ctime: inode.times.ctime.map_or(mtime, system_time),
        crtime: inode.times.btime.map_or(mtime, system_time),
        kind: file_type(inode.kind),
        perm: permissions(inode, overrides),
        nlink: u32::try_from(inode.nlink).unwrap_or(u32::MAX),
        uid: overrides.uid.unwrap_or(inode.attributes.uid),
        gid: overrides.gid.unwrap_or(inode.attributes.gid),
        rdev: device_number(inode.attributes.rdev),
        blksize: BLOCK_LEN,
        flags: 0,
    }
}

/// Symlinks keep their bits: lstat(2) says `lrwxrwxrwx` whatever the umask.
fn permissions(inode: &Inode, overrides: &Overrides) -> u16 {
    match inode.kind {
        FileKind::Symlink => inode.attributes.permissions,
        _ => inode.attributes.permissions & !overrides.umask,
    }
}

/// The kernel's name for a kind.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Directory => FileType::Directory,
        FileKind::Regular => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// Packs (major << 32 | minor) as the FUSE protocol does: 12 bits of major, 20 of minor, all that Linux has.
///
/// # Source
/// `new_encode_dev` in the kernel's `include/linux/kdev_t.h`.
fn device_number(rdev: u64) -> u32 {
    let (major, minor) = ((rdev >> 32) as u32, rdev as u32);
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// A point in time as `std` has it; the epoch where `std` cannot express it.
fn system_time(time: Timestamp) -> SystemTime {
    let epoch = SystemTime::UNIX_EPOCH;
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        epoch.checked_sub(seconds)
    } else {
        epoch.checked_add(seconds)
    };
    whole
        .and_then(|whole| whole.checked_add(Duration::from_nanos(time.nanoseconds.into())))
        .unwrap_or(epoch)
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
    fn times_before_1970_and_beyond_std_do_not_panic() {
        let before = Timestamp {
            seconds: -1,
            nanoseconds: 250_000_000,
        };
        assert_eq!(
            system_time(before),
            SystemTime::UNIX_EPOCH - Duration::from_millis(750)
        );
        let far = Timestamp {
            seconds: i64::MAX,
            nanoseconds: u32::MAX,
        };
        assert_eq!(system_time(far), SystemTime::UNIX_EPOCH);
        system_time(Timestamp {
            seconds: i64::MIN,
            nanoseconds: 0,
        });
    }
}
