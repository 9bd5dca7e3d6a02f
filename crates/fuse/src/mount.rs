//! Mounts a tree, unmounts it, and hands a mount to another server.
//!
//! Root mounts with fsopen(2) and move_mount(2), on exactly the directory that was checked. Other
//! users mount with `fusermount3`.

use crate::answer::Answers;
use crate::block_device::{BLOCK_LEN, BlockDevice};
use crate::busy::{Busy, in_use, not_mounted};
use crate::device_no::DeviceNo;
use crate::driver::{Driver, wanted_flags};
use crate::fusermount;
use crate::handshake::{Negotiated, REQUEST_PAGES_MAX, WRITE_LEN_MIN, Wishes, shake_hands};
use crate::mount_point::MountPoint;
use crate::mount_table::mount_table;
use crate::options::{Access, MountOptions};
use crate::plan::Plan;
use crate::session::Session;
use crate::stats::Counters;
use crate::trace::Trace;
use crate::tree::{Features, Tree};
use crate::view::{Shown, View, find_dir};
use crate::wire::NodeId;
use crate::writable_options::{AccessTime, BlockUse, LiveOptions, SharedOptions};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use weald_filter::AttributeChoice;
use weald_format::{ByteLen, Error, ErrorKind, ROOT_INODE, Result};

/// File system subtype: `/proc/mounts` shows it after `fuse.`.
const SUBTYPE: &str = "weald";

/// Longest source string of a mount in bytes that fsconfig(2) accepts.
const SOURCE_LEN_MAX: usize = 255;

/// Default readahead of the kernel in bytes. On a page fault in a program the kernel reads this
/// much around the page, so that a larger value decodes data that no process needs. A smaller value
/// slows sequential readers (`docs/design/0017-one-cache.md`).
const IMAGE_READAHEAD_LEN: ByteLen = ByteLen(256 << 10);
/// Default readahead of the kernel in bytes for uncompressed images: four requests of the largest
/// size, which keep all processors busy.
const READ_AHEAD_LEN_UNCOMPRESSED: ByteLen = ByteLen(REQUEST_PAGES_MAX as u64 * 4096 * 4);

/// Threads that answer reads of contents, in addition to one per processor. They keep the
/// processors busy while other threads wait for storage or for a block that another thread decodes
/// (`docs/design/0017-one-cache.md`).
const EXTRA_READER_COUNT: usize = 4;
/// The same for uncompressed images, for which the kernel has several large requests in flight.
/// With fewer threads, the reader process gets a processor sooner.
const EXTRA_WORKER_COUNT_UNCOMPRESSED: usize = 2;

/// How long [`Mount::pause`] waits for requests in progress. If the storage blocks for longer, the
/// mount stays with its server.
const PAUSE_TIMEOUT: Duration = Duration::from_secs(30);

/// `STATX_MNT_ID` of statx(2), Linux 5.8.
const STATX_MNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x1000);

/// A live mount and the threads that serve it. Dropping it detaches the mount.
pub struct Mount {
    session: Arc<Session>,
    /// Restarts the workers after a pause that failed.
    restart_workers: Box<dyn Fn() + Send + Sync>,
    unmounter: Unmounter,
    device: DeviceNo,
    negotiated: Negotiated,
    /// Whether another server has the connection now; locked during a pause.
    is_handed_over: Mutex<bool>,
    /// Whether the server keeps no state of its own, so that another one can take over.
    can_be_handed_over: bool,
    /// Options of a writable mount that can change.
    live: Option<Arc<SharedOptions>>,
}

/// A mount without a server: its users wait until a server [resumes](resume) it. Dropping it ends
/// the mount.
#[derive(Debug)]
pub struct Paused {
    /// Connection to the kernel.
    pub device: OwnedFd,
    /// Protocol features that were negotiated on the connection.
    pub negotiated: Negotiated,
    /// Mount point.
    pub dir: PathBuf,
    /// Mount id that the kernel assigned.
    pub mount_id: u64,
}

/// Unmounts one mount, also from another thread. Does nothing if the mount is gone.
#[derive(Debug, Clone)]
pub struct Unmounter {
    dir: PathBuf,
    mount_id: u64,
}

/// Mounts `tree` on the directory `dir`; `/proc/mounts` shows `source` as its origin. The mount is
/// live when the call returns.
///
/// # Errors
/// `NotFound` if `dir` does not exist; `Invalid` if it is not a directory or is reached through
/// another user's symlink; `Io` if the kernel or `fusermount3` refuses.
pub fn mount<T: Tree>(
    tree: T,
    source: &OsStr,
    dir: &Path,
    options: &MountOptions,
) -> Result<Mount> {
    mount_on(tree, source, &MountPoint::open(dir)?, options, None)
}

/// Serves a mount that another server or process has [paused](Mount::pause). `tree` and `options`
/// must be the same as before, because the kernel has cached answers.
///
/// # Errors
/// `NotFound` if the tree lacks `subdir`, `Io` if no thread can be started. The mount is then dead.
pub fn resume<T: Tree>(tree: T, paused: Paused, options: &MountOptions) -> Result<Mount> {
    let view = view(tree, options)?;
    let stat = local_statx(&paused.dir)?;
    if stat.stx_mnt_id != paused.mount_id {
        let what = format!("{}: another mount lies there", paused.dir.display());
        return Err(Error::invalid(what));
    }
    let worker_count = worker_count(options, view.features);
    let session = Session::new(paused.device, worker_count, None);
    serve(view, session, paused.negotiated, paused.dir, &stat)
}

/// Unmounts the file system that is mounted on `dir`.
///
/// # Errors
/// `Invalid` if nothing is mounted there; `Busy` if the mount is in use and `busy` is
/// [`Busy::Refuse`]; `NotFound`, `Io`.
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

/// Ends the connection of the mount on `dir`, as `umount -f` does: all requests fail, also those
/// that a server holds for ever. Then unmounts it.
///
/// # Errors
/// As [`unmount`] with [`Busy::Refuse`]; `Io` without the rights of root.
pub fn abort(dir: &Path) -> Result<()> {
    let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE;
    match rustix::mount::unmount(dir, flags) {
        Ok(()) => Ok(()),
        Err(Errno::INVAL) => Err(not_mounted()),
        Err(Errno::BUSY) => Err(in_use()),
        Err(errno) => Err(Error::io("umount", errno.into())),
    }
}

/// Number of the device of the file system mounted on `dir`. The call sends no request to
/// the file system, so that a dead one cannot block it.
///
/// # Errors
/// `NotFound`, `Io`.
pub fn device_of(dir: &Path) -> Result<DeviceNo> {
    local_statx(dir).map(|stat| device_in(&stat))
}

fn device_in(stat: &Statx) -> DeviceNo {
    DeviceNo {
        major: stat.stx_dev_major,
        minor: stat.stx_dev_minor,
    }
}

/// Whether `dir` is on a FUSE file system; `None` if the kernel does not report the type.
pub fn is_fuse(dir: &Path) -> Option<bool> {
    type_of(dir).map(|name| name.starts_with("fuse"))
}

/// Whether `dir` is an automount point. While the automounter mounts there, all processes outside
/// its own process group block on access to the directory.
pub fn is_automount(dir: &Path) -> bool {
    type_of(dir).is_some_and(|name| name == "autofs")
}

/// Type of the file system that contains `dir`, as in `/proc/mounts`.
fn type_of(dir: &Path) -> Option<String> {
    let mount_id = local_statx(dir).ok()?.stx_mnt_id;
    let table = mount_table("self").ok()?;
    let entry = table.into_iter().find(|entry| entry.id == mount_id)?;
    Some(entry.kind)
}

impl Mount {
    /// The number of the device of the mounted file system.
    pub fn device(&self) -> DeviceNo {
        self.device
    }

    /// The absolute path of the directory on which it is mounted.
    pub fn dir(&self) -> &Path {
        &self.unmounter.dir
    }

    /// A handle that ends the mount from another thread.
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Number and durations of the requests so far.
    pub fn counters(&self) -> Counters {
        self.session.counters()
    }

    /// Makes the kernel drop what it knows of the name `name` in the root, so that it gives back
    /// what is below it and is not open.
    pub fn drop_root_entry(&self, name: &[u8]) {
        self.session.drop_entry(NodeId::ROOT, name);
    }

    /// Makes umount(2) wait for [`Mount::release`], if the mount has a block device and so waits at
    /// all. Otherwise it returns after the last sync.
    pub fn hold_end(&self) {
        self.session.hold_end();
    }

    /// Lets umount(2) return: the caller has closed what was mounted.
    pub fn release(&self) {
        self.session.release();
    }

    /// Waits until the mount is unmounted or [paused](Mount::pause). umount(2) of a mount with a
    /// block device may still wait for [`Mount::release`].
    ///
    /// # Errors
    /// `Io` if the connection to the kernel failed; if several threads wait, only one of them gets
    /// the error.
    pub fn wait(&self) -> Result<()> {
        loop {
            let ended = self.session.wait();
            // During a pause all workers may stop and then restart.
            let is_handed_over = *self.is_handed_over.lock();
            if is_handed_over || ended.is_err() || self.session.is_over() {
                return ended;
            }
        }
    }

    /// Whether the mount is gone.
    pub fn is_over(&self) -> bool {
        self.session.is_over()
    }

    /// Stops serving: workers answer the requests in progress; later requests wait until a server
    /// [resumes](resume) the mount.
    ///
    /// # Errors
    /// `Invalid` if the mount is gone or paused already. `Busy` if the mount is writable, is
    /// traced, is covered by another mount, was detached, or if a request takes longer than half a
    /// minute; the mount is then still served.
    pub fn pause(&self) -> Result<Paused> {
        let busy = |what| Error::new(ErrorKind::Busy, format!("{}: {what}", self.dir().display()));
        let mut is_handed_over = self.is_handed_over.lock();
        if *is_handed_over || self.session.is_over() {
            return Err(not_mounted());
        }
        if !self.can_be_handed_over {
            return Err(busy(
                "a writable mount stays with its server; unmount it instead",
            ));
        }
        if self.session.is_traced() {
            return Err(busy("a traced mount stays where it is"));
        }
        if !self.unmounter.is_reachable() {
            return Err(busy("it cannot be reached by its path"));
        }
        let device = self.session.device()?;
        let dir = self.dir().to_owned();
        let send_request = move || {
            // Any request will do to wake the workers. The kernel never caches the answer to
            // statfs(2), so that it always sends this one.
            let _ = rustix::fs::statfs(&dir);
        };
        let is_closed = self.session.close(send_request, PAUSE_TIMEOUT);
        if !is_closed {
            (self.restart_workers)();
            return Err(busy("requests take too long"));
        }
        if self.session.is_over() {
            return Err(not_mounted());
        }
        *is_handed_over = true;
        Ok(Paused {
            device,
            negotiated: self.negotiated,
            dir: self.dir().to_owned(),
            mount_id: self.unmounter.mount_id,
        })
    }

    /// Keeps the mount with this server: it has state that another one lacks. `live` are its
    /// options that can change.
    pub(crate) fn keep_here(&mut self, live: Arc<SharedOptions>) {
        self.can_be_handed_over = false;
        self.live = Some(live);
    }

    /// Changes options of a writable mount; a read-only one has none of them. They hold for all
    /// requests that begin after the call.
    pub fn set_options(&self, options: LiveOptions) {
        if let Some(live) = &self.live {
            live.set(options);
        }
    }

    /// Options of a writable mount that can change.
    pub fn options(&self) -> Option<LiveOptions> {
        self.live.as_ref().map(|live| live.get())
    }

    /// Sets the readahead through sysfs. The kernel starts every FUSE mount with 128 KiB, and only
    /// root can change it.
    fn set_read_ahead(&self, len: ByteLen) {
        let device = self.device;
        // Without a block device, the kernel makes a device number with the major number 0.
        let suffix = if device.major == 0 { "" } else { "-fuseblk" };
        let path = format!("/sys/class/bdi/{device}{suffix}/read_ahead_kb");
        if let Err(error) = std::fs::write(&path, (len.0 >> 10).to_string()) {
            log::info!("read-ahead stays as it is: {path}: {error}");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Nobody else does, and the unmount below waits for it.
        self.session.release();
        if !*self.is_handed_over.get_mut()
            && !self.session.is_over()
            && let Err(error) = self.unmounter.unmount(Busy::Detach)
        {
            log::warn!("{error:?}");
        }
    }
}

impl Unmounter {
    /// Ends the mount if it still exists. Another mount on the same directory is not affected.
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

    /// Whether the path of the mount point leads to this mount.
    fn is_reachable(&self) -> bool {
        local_statx(&self.dir).is_ok_and(|stat| stat.stx_mnt_id == self.mount_id)
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Users that may access a mount with these options.
pub(crate) fn access(options: &MountOptions) -> Access {
    let default = if is_root() {
        Access::Everybody
    } else {
        Access::Owner
    };
    options.access.unwrap_or(default)
}

/// Calls statx(2) with the attributes that the kernel has cached, without a request to the file
/// system.
pub(crate) fn local_statx(path: &Path) -> Result<Statx> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE | STATX_MNT_ID)
        .map_err(|errno| Error::io(path.display().to_string(), errno.into()))
}

/// Calls statx(2) on an open descriptor.
fn statx_of(mount: &OwnedFd) -> Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(mount, "", flags, StatxFlags::TYPE | STATX_MNT_ID)
        .map_err(|errno| Error::io("mount", errno.into()))
}

fn worker_count(options: &MountOptions, features: Features) -> usize {
    let cpu_count = || std::thread::available_parallelism().map_or(1, usize::from);
    let more = if features.is_plain {
        EXTRA_WORKER_COUNT_UNCOMPRESSED
    } else {
        EXTRA_READER_COUNT
    };
    options
        .worker_count
        .unwrap_or_else(|| cpu_count().saturating_add(more))
}

fn view<T: Tree>(tree: T, options: &MountOptions) -> Result<View<T>> {
    let root = match &options.subdir {
        Some(path) => find_dir(&tree, path)?,
        None => ROOT_INODE,
    };
    let shown = Shown {
        root,
        overrides: options.overrides,
        maps: AttributeChoice {
            uids: options.uids.clone(),
            gids: options.gids.clone(),
            ..AttributeChoice::default()
        },
        access: access(options),
    };
    Ok(View::new(tree, shown))
}

/// As [`mount`], on a directory that is already open: a later change of its path has no effect.
/// Writes every request to `trace`, if given.
///
/// # Errors
/// `NotFound` if the directory was removed; otherwise as [`mount`].
pub fn mount_on<T: Tree>(
    tree: T,
    source: &OsStr,
    point: &MountPoint,
    options: &MountOptions,
    trace: Option<Arc<Trace>>,
) -> Result<Mount> {
    let view = view(tree, options)?;
    let access = view.shown.access;
    let read_ahead_len = options.read_ahead_len.unwrap_or(if view.features.is_plain {
        READ_AHEAD_LEN_UNCOMPRESSED
    } else {
        IMAGE_READAHEAD_LEN
    });
    let worker_count = worker_count(options, view.features);
    let plan = Plan {
        source,
        point,
        options,
        access,
        is_read_only: true,
        live: LiveOptions::default(),
        block: BlockUse::Never,
        wishes: wishes(&view),
        read_ahead_len,
    };
    mount_planned(&plan, |device, negotiated, dir, stat| {
        let session = Session::new(device, worker_count, trace);
        serve(view, session, negotiated, dir, stat)
    })
}

fn wishes<T: Tree>(view: &View<T>) -> Wishes {
    Wishes {
        flags: wanted_flags(view),
        write_len_max: WRITE_LEN_MIN,
    }
}

/// Mounts, and starts the server with `begin`: it gets the connection, its features, the path of
/// the mount point and attributes of the mount.
pub(crate) fn mount_planned(
    plan: &Plan<'_>,
    begin: impl FnOnce(OwnedFd, Negotiated, PathBuf, &Statx) -> Result<Mount>,
) -> Result<Mount> {
    let options = plan.options;
    let source = options.source_name.as_deref();
    let source = source.map_or(plan.source, OsStr::new);
    let subtype = options.subtype.as_deref().unwrap_or(SUBTYPE);
    let dir = plan.point.path().to_owned();
    let mount = if is_root() {
        let (device, detached) = make_mount(source, subtype, plan)?;
        let negotiated = shake_hands(&device, plan.wishes)?;
        let mount = begin(device, negotiated, dir, &statx_of(&detached)?)?;
        attach(&detached, plan.point)?;
        mount
    } else {
        if plan.block == BlockUse::Always {
            return Err(Error::invalid(
                "option 'fuseblk': only root's mounts can have it",
            ));
        }
        let device = fusermount::mount(source, subtype, plan)?;
        let begun = shake_hands(&device, plan.wishes)
            .and_then(|negotiated| Ok((negotiated, local_statx(&dir)?)))
            .and_then(|(negotiated, stat)| begin(device, negotiated, dir.clone(), &stat));
        begun.inspect_err(|_| {
            if let Err(error) = unmount(&dir, Busy::Detach) {
                log::warn!("{}: {error:?}", dir.display());
            }
        })?
    };
    mount.set_read_ahead(plan.read_ahead_len);
    Ok(mount)
}

/// Mounts `tree` without a place, as root of its user namespace; `source` names its origin. The
/// mount ends when the returned descriptor is closed and no overlayfs has it as a layer.
///
/// # Errors
/// `Io` if the kernel refuses.
pub fn mount_detached<T: Tree>(
    tree: T,
    source: &OsStr,
    options: &MountOptions,
) -> Result<(Mount, OwnedFd)> {
    let view = view(tree, options)?;
    let worker_count = worker_count(options, view.features);
    let (device, detached) = new_mount(&NewMount {
        source,
        block: None,
        subtype: SUBTYPE,
        access: Access::Everybody,
        is_read_only: true,
        live: LiveOptions::default(),
        flags: mount_flags(options) | MountAttrFlags::MOUNT_ATTR_RDONLY,
    })?;
    let negotiated = shake_hands(&device, wishes(&view))?;
    let session = Session::new(device, worker_count, None);
    let stat = statx_of(&detached)?;
    let mount = serve(view, session, negotiated, PathBuf::new(), &stat)?;
    Ok((mount, detached))
}

fn serve<T: Tree>(
    view: View<T>,
    session: Session,
    negotiated: Negotiated,
    dir: PathBuf,
    stat: &Statx,
) -> Result<Mount> {
    let owner = rustix::process::getuid().as_raw();
    let driver = Driver::new(view, negotiated.flags, owner);
    serve_driver(driver, session, negotiated, dir, stat)
}

/// Starts the threads of a mount.
pub(crate) fn serve_driver<D: Answers>(
    driver: D,
    session: Session,
    negotiated: Negotiated,
    dir: PathBuf,
    stat: &Statx,
) -> Result<Mount> {
    let (driver, session) = (Arc::new(driver), Arc::new(session));
    session.start(&driver)?;
    let (of_session, of_driver) = (Arc::downgrade(&session), Arc::downgrade(&driver));
    let restart_workers = move || {
        let both = of_session.upgrade().zip(of_driver.upgrade());
        if let Some((session, driver)) = both
            && let Err(error) = session.start(&driver)
        {
            log::error!("{error:?}");
        }
    };
    Ok(Mount {
        session,
        restart_workers: Box::new(restart_workers),
        unmounter: Unmounter {
            dir,
            mount_id: stat.stx_mnt_id,
        },
        device: device_in(stat),
        negotiated,
        is_handed_over: Mutex::new(false),
        can_be_handed_over: true,
        live: None,
    })
}

fn make_mount(source: &OsStr, subtype: &str, plan: &Plan<'_>) -> Result<(OwnedFd, OwnedFd)> {
    let mut flags = mount_flags(plan.options);
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, plan.is_read_only);
    let live = plan.live;
    let is_strictatime = live.access_time == AccessTime::Always;
    flags.set(MountAttrFlags::MOUNT_ATTR_STRICTATIME, is_strictatime);
    flags.set(
        MountAttrFlags::MOUNT_ATTR_NODIRATIME,
        live.skips_directories,
    );
    let new = NewMount {
        source,
        block: None,
        subtype,
        access: plan.access,
        is_read_only: plan.is_read_only,
        live,
        flags,
    };
    let is_named = plan.options.source_name.is_some();
    match plan.block {
        BlockUse::Never => return new_mount(&new),
        BlockUse::IfPossible if is_named => return new_mount(&new),
        BlockUse::Always if is_named => {
            let what = "options fuseblk and fsname=: the source of such a mount is its device";
            return Err(Error::invalid(what));
        }
        BlockUse::IfPossible | BlockUse::Always => {}
    }
    let attached = BlockDevice::attach(source);
    let on_device = attached.and_then(|device| {
        let block = Some(device.path.as_path());
        new_mount(&NewMount { block, ..new })
    });
    match on_device {
        Err(error) if plan.block == BlockUse::IfPossible => {
            log::info!("the mount has no block device, so that sync(2) does not reach it: {error}");
            new_mount(&new)
        }
        made => made.map_err(|error| error.context("option 'fuseblk'")),
    }
}

/// A mount to make without `fusermount3`.
#[derive(Clone, Copy)]
struct NewMount<'a> {
    source: &'a OsStr,
    /// A block device, which makes the type `fuseblk`.
    block: Option<&'a Path>,
    subtype: &'a str,
    access: Access,
    /// Whether the file system is read-only for all mounts of it.
    is_read_only: bool,
    live: LiveOptions,
    flags: MountAttrFlags,
}

/// Opens `/dev/fuse` and creates a mount that is not attached to any directory yet.
fn new_mount(new: &NewMount<'_>) -> Result<(OwnedFd, OwnedFd)> {
    let device = weald_sys::open_fuse_device()
        .map_err(|error| Error::io("/dev/fuse (is the module 'fuse' loaded?)", error))?;
    let failed = |errno: Errno| Error::io("mount", errno.into());
    let (kind, source) = match new.block {
        Some(path) => ("fuseblk", path.as_os_str().as_bytes().to_vec()),
        None => ("fuse", shown_source(new.source)),
    };
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed)?;
    if new.block.is_some() {
        fsconfig_set_string(context.as_fd(), "blksize", BLOCK_LEN.to_string()).map_err(failed)?;
    }
    for (key, value) in [
        ("source", source.as_slice()),
        ("subtype", new.subtype.as_bytes()),
        ("fd", device.as_raw_fd().to_string().as_bytes()),
        ("rootmode", b"40000"),
        (
            "user_id",
            rustix::process::getuid().as_raw().to_string().as_bytes(),
        ),
        (
            "group_id",
            rustix::process::getgid().as_raw().to_string().as_bytes(),
        ),
    ] {
        fsconfig_set_string(context.as_fd(), key, value).map_err(failed)?;
    }
    let allow_other = (new.access != Access::Owner).then_some("allow_other");
    let read_only = new.is_read_only.then_some("ro");
    // With this flag, the kernel sends FSYNC after each write.
    let sync = new.live.is_sync.then_some("sync");
    let dirsync = new.live.is_dirsync.then_some("dirsync");
    let flags = ["default_permissions"].into_iter();
    let flags = flags.chain(allow_other).chain(read_only);
    for flag in flags.chain(sync).chain(dirsync) {
        fsconfig_set_flag(context.as_fd(), flag).map_err(failed)?;
    }
    fsconfig_create(context.as_fd()).map_err(failed)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let mount = fsmount(context.as_fd(), flags, new.flags).map_err(failed)?;
    Ok((device, mount))
}

/// Attaches a mount to the directory of `point`.
fn attach(mount: &OwnedFd, point: &MountPoint) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), "", point.as_fd(), "", flags)
        .map_err(|errno| Error::io("mount", errno.into()))
}

/// The source of a mount of root as `/proc/mounts` shows it: one that is too long for the kernel is
/// shortened to its end, after `...`.
pub fn shown_source(source: &OsStr) -> Vec<u8> {
    let bytes = source.as_bytes();
    match bytes.len().checked_sub(SOURCE_LEN_MAX) {
        None | Some(0) => bytes.to_vec(),
        Some(_) => {
            const ELLIPSIS: &[u8] = b"...";
            let kept = bytes.len() - (SOURCE_LEN_MAX - ELLIPSIS.len());
            [ELLIPSIS, bytes.get(kept..).unwrap_or_default()].concat()
        }
    }
}

fn mount_flags(options: &MountOptions) -> MountAttrFlags {
    let mut flags = MountAttrFlags::empty();
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.has_devices);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.has_suid);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, options.is_noexec);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOATIME, options.is_noatime);
    flags
}
