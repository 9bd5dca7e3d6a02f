//! Mounts whose server has died: every access to them fails with ENOTCONN until they are unmounted.

use crate::busy::Busy;
use crate::device_no::DeviceNo;
use crate::mount::{local_statx, unmount};
use crate::mount_table::{MountEntry, mount_table};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use weald_format::Result;
use weald_vfs::shown;

/// How long a mount may take to answer. A dead one answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Most dead mounts on one directory that are taken away.
const STACKED_MAX: usize = 1000;

/// The mount on top of the directory `dir`, an absolute path without symlinks; `None` if `dir` is
/// no mount point. Sends no request to the file system.
pub fn mount_at(dir: &Path) -> Option<MountEntry> {
    let id = local_statx(dir).ok()?.stx_mnt_id;
    let mut table = mount_table("self").ok()?.into_iter();
    table.find(|entry| entry.id == id && entry.dir == dir)
}

/// Absolute path of the directory `dir` without symlinks, as `canonicalize` makes it, but without a
/// request to the file system on it: a dead or stopped server cannot block it.
///
/// # Errors
/// Those of open(2).
pub fn path_of(dir: &Path) -> std::io::Result<PathBuf> {
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd;
    let opened = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

impl MountEntry {
    /// Whether this is a mount of Weald through FUSE.
    pub fn is_weald(&self) -> bool {
        self.kind == "fuse.weald" || self.is_on_block_device()
    }

    /// Whether this is a mount of a volume that has a block device: umount(2) of it waits for its
    /// server.
    pub fn is_on_block_device(&self) -> bool {
        self.kind == "fuseblk.weald"
    }
}

/// Numbers of the connections of mounts through FUSE whose servers are stopped, as far as this user
/// can see. A connection keeps its number when its mount is gone, so that a server that runs is
/// asked instead.
///
/// # Source
/// Linux, `fuse_dev_show_fdinfo` in `fs/fuse/dev.c`. An older kernel shows none.
fn stopped_connections() -> BTreeSet<u32> {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let is_process = |name: &OsStr| {
        name.to_str()
            .is_some_and(|name| name.parse::<u32>().is_ok())
    };
    let mut found = BTreeSet::new();
    for process in entries(Path::new("/proc")).filter(|one| is_process(&one.file_name())) {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // proc_pid_stat(5): the state follows the name.
        if !stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with(['T', 't']))
        {
            continue;
        }
        for fd in entries(&process.path().join("fd")) {
            if std::fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("/dev/fuse")) {
                let info = process.path().join("fdinfo").join(fd.file_name());
                let info = std::fs::read_to_string(info).unwrap_or_default();
                let number = info
                    .lines()
                    .find_map(|line| line.strip_prefix("fuse_connection:"));
                found.extend(number.and_then(|number| number.trim().parse::<u32>().ok()));
            }
        }
    }
    found
}

/// Number of the connection of the mount with this device number.
///
/// # Source
/// Linux, `MKDEV` in `include/linux/kdev_t.h`.
const fn connection_no(device: DeviceNo) -> u32 {
    device.major << 20 | device.minor
}

/// Whether the server of the mount `entry`, which is on top of its directory, has died. False if it
/// does not answer within two seconds, or if this user may not know.
///
/// A mount whose server is seen to be stopped gets no request: it would keep this process waiting.
pub fn is_dead(entry: &MountEntry) -> bool {
    let own = rustix::process::geteuid().as_raw();
    if own != 0 && entry.user != Some(own)
        || stopped_connections().contains(&connection_no(entry.device))
    {
        return false;
    }
    let (answer, answered) = mpsc::channel();
    let dir = entry.dir.clone();
    let asking = std::thread::Builder::new().spawn(move || {
        let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(CWD, &dir, flags, StatxFlags::MODE);
        // The other side may be gone.
        let _ = answer.send(stat.err() == Some(Errno::NOTCONN));
    });
    asking.is_ok() && answered.recv_timeout(ANSWER_TIMEOUT) == Ok(true)
}

/// Takes away the mounts of Weald on top of `dir` whose servers have died, and warns of each.
/// `has_died` says so of a mount: [`is_dead`], or what knows more.
///
/// # Errors
/// A dead mount that cannot be unmounted.
pub fn take_away_dead(dir: &Path, has_died: impl Fn(&MountEntry) -> bool) -> Result<()> {
    for _ in 0..STACKED_MAX {
        // What is wrong with the directory, the mount itself reports.
        let Ok(dir) = path_of(dir) else {
            return Ok(());
        };
        let Some(dead) = mount_at(&dir).filter(|entry| entry.is_weald() && has_died(entry)) else {
            return Ok(());
        };
        unmount(&dir, Busy::Detach).map_err(|error| error.context(dir.display()))?;
        log::warn!(
            "{}: a mount of {} was there, whose server has died; it is unmounted",
            dir.display(),
            shown(dead.source.as_bytes())
        );
    }
    Ok(())
}
