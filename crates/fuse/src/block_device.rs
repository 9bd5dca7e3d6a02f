//! A block device for a mount of type `fuseblk`.
//!
//! The kernel passes sync(2) and syncfs(2) to the server of such a mount, and its umount(2) waits
//! for the server's last answer. It insists on a block device. Ours is a loop device over a page
//! of memory, which nobody reads or writes. It vanishes with the mount, however the server ends.
//!
//! **Its name.** The kernel shows the device as the source of the mount. The page is a file of a
//! tmpfs without a place, whose path there is the source proper. sysfs shows that path, and so do
//! `losetup` and `lsblk`; mount(8) finds the line of fstab again by it.
//!
//! **Only in the first mount namespace.** A process that is the last one of its mount namespace
//! unmounts what is mounted there when it exits. The kernel does that before it closes the files of
//! the process. If the process is the server, it waits for its own answer, for ever, and SIGKILL
//! does not help. The first namespace never ends.
//!
use crate::device_no::DeviceNo;
use rustix::fs::{Mode, OFlags, ftruncate, mkdirat, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use weald_format::{Error, ErrorKind, Result};

/// Bytes of the device, and of the file system's blocks: the smallest page.
pub(crate) const BLOCK_LEN: u64 = 4096;

/// Longest name of a file, in bytes.
const NAME_LEN_MAX: usize = 255;

/// Longest path of a backing file, in bytes: sysfs shows no more than a page.
const PATH_LEN_MAX: usize = 4000;

/// Major device number of loop devices.
const LOOP_MAJOR: u32 = 7;

/// Inode number of the first mount namespace, Linux 6.18.
///
/// # Source
/// Linux, `include/uapi/linux/nsfs.h`.
const FIRST_MOUNT_NAMESPACE: u64 = 0xefff_fff8;

/// Inode number of the first namespace of process ids.
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Whether this process is in the mount namespace that the kernel started with. False if that
/// cannot be known.
fn is_in_first_namespace() -> bool {
    let number = |path: &str| std::fs::metadata(path).ok().map(|file| file.ino());
    let own = number("/proc/self/ns/mnt");
    let is_that_of_init = || {
        number("/proc/self/ns/pid") == Some(FIRST_PID_NAMESPACE)
            && own.is_some()
            && number("/proc/1/ns/mnt") == own
    };
    own == Some(FIRST_MOUNT_NAMESPACE) || is_that_of_init()
}

/// A loop device. It is free again when this is dropped and no mount has it.
pub(crate) struct BlockDevice {
    pub(crate) path: PathBuf,
    _open: File,
}

impl BlockDevice {
    /// Attaches a device whose backing file is called `source`.
    ///
    /// # Errors
    /// `Unsupported` outside the first mount namespace; `Io`, `NotFound` without loop devices or
    /// without rights.
    pub(crate) fn attach(source: &OsStr) -> Result<Self> {
        if !is_in_first_namespace() {
            let what = "not in the mount namespace of the system: in another one, a server that is \
                        killed could not end";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let page = backing_file(source).map_err(|errno| Error::io("tmpfs", errno.into()))?;
        let attached = weald_sys::attach_writable_loop(&page);
        let (open, path) = attached.map_err(|error| Error::io("loop device", error))?;
        Ok(Self { path, _open: open })
    }
}

/// A file of one page in a tmpfs of its own, with the path `source`.
fn backing_file(source: &OsStr) -> std::result::Result<File, Errno> {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "size", BLOCK_LEN.to_string())?;
    fsconfig_create(context.as_fd())?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let mut dir: OwnedFd = fsmount(context.as_fd(), flags, MountAttrFlags::empty())?;
    let names = names(source);
    let (name, parents) = names.split_last().ok_or(Errno::INVAL)?;
    for parent in parents {
        mkdirat(&dir, *parent, Mode::RWXU)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        dir = openat(&dir, *parent, flags, Mode::empty())?;
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(&dir, *name, flags, Mode::RUSR | Mode::WUSR)?;
    ftruncate(&file, BLOCK_LEN)?;
    Ok(File::from(file))
}

/// The components of a path, as far as a tmpfs and sysfs take them.
fn names(source: &OsStr) -> Vec<&OsStr> {
    let mut len = 0;
    let mut names = Vec::new();
    for component in Path::new(source).components() {
        let Component::Normal(name) = component else {
            continue;
        };
        let cut = name.as_bytes().get(..NAME_LEN_MAX);
        let name = cut.map_or(name, OsStr::from_bytes);
        len += name.len() + 1;
        if len > PATH_LEN_MAX {
            break;
        }
        names.push(name);
    }
    if names.is_empty() {
        names.push(OsStr::new("weald"));
    }
    names
}

/// The path of the backing file of the block device with this number; `None` for another device.
pub(crate) fn source_of(device: DeviceNo) -> Option<OsString> {
    if device.major != LOOP_MAJOR {
        return None;
    }
    let path = format!("/sys/dev/block/{device}/loop/backing_file");
    let mut text = std::fs::read(path).ok()?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    Some(OsString::from_vec(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_backing_file_has_the_path_of_the_source() {
        let long = "x".repeat(300);
        for (source, shown) in [
            ("/srv/store:home", "/srv/store:home".to_owned()),
            ("relative:v", "/relative:v".to_owned()),
            ("/../a/./b c\\d", "/a/b c\\d".to_owned()),
            ("/", "/weald".to_owned()),
            (&format!("/{long}/y"), format!("/{}/y", &long[..255])),
        ] {
            let names: PathBuf = names(OsStr::new(source)).iter().collect();
            assert_eq!(Path::new("/").join(names), Path::new(&shown), "{source}");
            // Only root mounts.
            let Ok(file) = backing_file(OsStr::new(source)) else {
                assert!(!rustix::process::geteuid().is_root(), "{source}");
                continue;
            };
            let link = format!("/proc/self/fd/{}", file.as_raw_fd());
            let path = std::fs::read_link(link).expect("path");
            assert_eq!(path, Path::new(&shown));
            assert_eq!(file.metadata().expect("attributes").len(), BLOCK_LEN);
        }
        let deep = "/d".repeat(5000);
        assert_eq!(names(OsStr::new(&deep)).len(), PATH_LEN_MAX / 2);
    }
}
