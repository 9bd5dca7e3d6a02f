//! Puts a tree into the name space and takes it out again.
//!
//! Root mounts by mount(2), which gives the true type (`fuse.weald`) and true flags; everybody else by `fusermount3`.

use crate::driver::{Driver, REQUEST_LEN_MAX};
use crate::fusermount;
use crate::options::{Access, MountOptions};
use crate::tree::Tree;
use crate::view::{Shown, View, find_dir};
use fuser::{BackgroundSession, Config, Session, SessionACL};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use weald_format::{Error, ErrorKind, ROOT_INODE, Result};

/// What `/proc/mounts` shows after `fuse.`.
const SUBTYPE: &str = "weald";

/// Read-ahead of the kernel in KiB: what one request can carry. The kernel's own 128 KiB makes eight requests of one.
const READ_AHEAD_KIB: u32 = REQUEST_LEN_MAX / 1024;

/// `STATX_MNT_ID` of statx(2), Linux 5.8.
const STATX_MNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x1000);

/// A live mount and the threads that serve it. Dropping it detaches the mount.
pub struct Mount {
    session: Option<BackgroundSession>,
    unmounter: Unmounter,
    device: (u32, u32),
}

/// Takes one mount out of the name space; can be sent to other threads, does nothing once the mount is gone.
#[derive(Debug, Clone)]
pub struct Unmounter {
    dir: PathBuf,
    mount_id: u64,
}

/// What to do about a mount that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    /// Fail with `Busy`.
    Refuse,
    /// Take it out of the name space now; it goes away when its last user does.
    Detach,
}

/// Mounts `tree` on the directory `dir`; `source` is shown as its origin. The mount is live when this returns.
///
/// # Errors
/// `NotFound` and `Invalid` where `dir` is missing or no directory; `Io` where the kernel or `fusermount3` refuses.
pub fn mount<T: Tree>(
    tree: T,
    source: &OsStr,
    dir: &Path,
    options: &MountOptions,
) -> Result<Mount> {
    let dir = checked_dir(dir)?;
    let root = match &options.subdir {
        Some(path) => find_dir(&tree, path)?,
        None => ROOT_INODE,
    };
    let access = access(options);
    let shown = Shown {
        root,
        overrides: options.overrides,
        is_shared: access == Access::Everybody,
    };
    let driver = Driver::new(View::new(tree, shown));
    let source = options.source_name.as_deref().map_or(source, OsStr::new);
    let session = start(driver, source, &dir, options, access)?;
    let session = session
        .spawn()
        .map_err(|error| Error::io("start of the session", error))?;
    Mount::new(session, dir)
}

/// Takes what is mounted on `dir` out of the name space.
///
/// # Errors
/// `Invalid` where nothing is mounted there, `Busy` where it is in use (unless `busy` says otherwise), `NotFound`, `Io`.
pub fn unmount(dir: &Path, busy: Busy) -> Result<()> {
    let mut flags = UnmountFlags::NOFOLLOW;
    if busy == Busy::Detach {
        flags |= UnmountFlags::DETACH;
    }
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount::unmount(dir, busy),
        Err(Errno::INVAL) => Err(not_mounted()),
        Err(Errno::BUSY) => Err(in_use()),
        Err(errno) => Err(Error::io("umount", errno.into())),
    }
}

/// The device number (major, minor) of what is mounted on `dir`; asks no file system, so that a dead one cannot hang it.
///
/// # Errors
/// `NotFound`, `Io`.
pub fn device_of(dir: &Path) -> Result<(u32, u32)> {
    local_statx(dir).map(|stat| (stat.stx_dev_major, stat.stx_dev_minor))
}

/// Whether what is mounted on `dir`, or holds it, is a FUSE file system; `None` where the kernel does not tell.
pub fn is_fuse(dir: &Path) -> Option<bool> {
    let mount_id = local_statx(dir).ok()?.stx_mnt_id.to_string();
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = table
        .lines()
        .find(|line| line.split(' ').next() == Some(&mount_id))?;
    let (_, after) = line.split_once(" - ")?;
    Some(after.starts_with("fuse"))
}

impl Mount {
    fn new(session: BackgroundSession, dir: PathBuf) -> Result<Self> {
        let stat = local_statx(&dir)?;
        let unmounter = Unmounter {
            dir,
            mount_id: stat.stx_mnt_id,
        };
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        let mount = Self {
            session: Some(session),
            unmounter,
            device,
        };
        mount.widen_read_ahead();
        Ok(mount)
    }

    /// The device number (major, minor) of the mounted file system.
    pub fn device(&self) -> (u32, u32) {
        self.device
    }

    /// A handle that ends the mount from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Serves until the mount is gone, however it was ended.
    ///
    /// # Errors
    /// `Io` where the connection to the kernel failed before that.
    pub fn wait(mut self) -> Result<()> {
        match self.session.take() {
            Some(session) => session.join().map_err(|error| Error::io("session", error)),
            None => Ok(()),
        }
    }

    /// The kernel starts every FUSE mount with 128 KiB and lets only root change it, and only there.
    fn widen_read_ahead(&self) {
        let (major, minor) = self.device;
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        if let Err(error) = std::fs::write(&path, READ_AHEAD_KIB.to_string()) {
            log::info!("read-ahead stays as it is: {path}: {error}");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.session.is_some()
            && let Err(error) = self.unmounter.unmount(Busy::Detach)
        {
            log::warn!("{error:?}");
        }
    }
}

impl Unmounter {
    /// Ends the mount, if it is still there. What somebody else has mounted on the same directory is left alone.
    ///
    /// # Errors
    /// As [`unmount`].
    pub fn unmount(&self, busy: Busy) -> Result<()> {
        match local_statx(&self.dir) {
            Ok(stat) if stat.stx_mnt_id == self.mount_id => {
                unmount(&self.dir, busy).map_err(|error| error.context(self.dir.display()))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

pub(crate) fn not_mounted() -> Error {
    Error::invalid("nothing is mounted there")
}

pub(crate) fn in_use() -> Error {
    Error::new(
        ErrorKind::Busy,
        "it is in use (an open file or a working directory is in it)",
    )
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn access(options: &MountOptions) -> Access {
    let default = if is_root() {
        Access::Everybody
    } else {
        Access::Owner
    };
    options.access.unwrap_or(default)
}

/// The absolute path of `dir`, free of symlinks.
fn checked_dir(dir: &Path) -> Result<PathBuf> {
    let path = dir
        .canonicalize()
        .map_err(|error| Error::io("mount point", error))?;
    if path.is_dir() {
        Ok(path)
    } else {
        Err(Error::invalid("mount point: not a directory"))
    }
}

/// statx(2) from what the kernel has cached.
fn local_statx(path: &Path) -> Result<Statx> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE | STATX_MNT_ID)
        .map_err(|errno| Error::io(path.display().to_string(), errno.into()))
}

fn session_config(options: &MountOptions, access: Access) -> Config {
    let mut config = Config::default();
    config.acl = match access {
        Access::Everybody => SessionACL::All,
        Access::OwnerAndRoot => SessionACL::RootAndOwner,
        Access::Owner => SessionACL::Owner,
    };
    let cpu_count = || std::thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some(options.worker_count.unwrap_or_else(cpu_count));
    config.clone_fd = true;
    config
}

fn start<T: Tree>(
    driver: Driver<T>,
    source: &OsStr,
    dir: &Path,
    options: &MountOptions,
    access: Access,
) -> Result<Session<Driver<T>>> {
    let config = session_config(options, access);
    let subtype = options.subtype.as_deref().unwrap_or(SUBTYPE);
    let device = if is_root() {
        direct_mount(source, subtype, dir, options, access)?
    } else {
        fusermount::mount(source, subtype, dir, options, access)?
    };
    let acl = config.acl;
    Session::from_fd(driver, device, acl, config).map_err(|error| {
        if let Err(error) = unmount(dir, Busy::Detach) {
            log::warn!("{}: {error:?}", dir.display());
        }
        Error::io("handshake with the kernel", error)
    })
}

/// Opens the device and mounts it.
fn direct_mount(
    source: &OsStr,
    subtype: &str,
    dir: &Path,
    options: &MountOptions,
    access: Access,
) -> Result<OwnedFd> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::io("/dev/fuse (is the module 'fuse' loaded?)", errno.into()))?;
    let uid = rustix::process::getuid().as_raw();
    let gid = rustix::process::getgid().as_raw();
    let fd = device.as_raw_fd();
    let mut data =
        format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},default_permissions");
    if access != Access::Owner {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(|_| Error::invalid("a zero byte in an option"))?;
    let kind = format!("fuse.{subtype}");
    rustix::mount::mount(source, dir, kind, direct_flags(options), data.as_c_str())
        .map_err(|errno| Error::io("mount", errno.into()))?;
    Ok(device)
}

fn direct_flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::RDONLY;
    flags.set(MountFlags::NODEV, options.has_devices == Some(false));
    flags.set(MountFlags::NOSUID, options.has_suid == Some(false));
    flags.set(MountFlags::NOEXEC, options.is_noexec);
    flags.set(MountFlags::NOATIME, options.is_noatime);
    flags
}
