//! Mounts whose server has died: every access to them fails with ENOTCONN until they are unmounted.

use crate::mount::local_statx;
use crate::mount_table::{MountEntry, mount_table};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a mount may take to answer. A dead one answers at once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The mount on top of the directory `dir`, an absolute path without symlinks; `None` if `dir` is no
/// mount point. Sends no request to the file system.
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
        self.kind == "fuse.weald"
    }
}

/// Whether the server of the mount on top of `dir` has died. False if it does not answer within two
/// seconds, or if this user may not access it. A caller that knows a live server of the mount need
/// not ask: one that is stuck would keep this process from ending.
pub fn is_dead(dir: &Path) -> bool {
    let (answer, answered) = mpsc::channel();
    let dir = dir.to_owned();
    let asking = std::thread::Builder::new().spawn(move || {
        let flags = AtFlags::STATX_FORCE_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(CWD, &dir, flags, StatxFlags::MODE);
        // The other side may be gone.
        let _ = answer.send(stat.err() == Some(Errno::NOTCONN));
    });
    asking.is_ok() && answered.recv_timeout(ANSWER_TIMEOUT) == Ok(true)
}
