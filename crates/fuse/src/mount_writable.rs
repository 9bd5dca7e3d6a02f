//! Mounts a file system that can change.

use crate::answer::Admission;
use crate::ending::Ending;
use crate::handshake::Wishes;
use crate::mount::{Mount, access, mount_planned, serve_driver};
use crate::mount_point::MountPoint;
use crate::options::{Access, MountOptions};
use crate::plan::Plan;
use crate::session::Session;
use crate::trace::Trace;
use crate::writable::{Policy, WRITE_LEN_MAX, WritableDriver, wanted_flags};
use crate::writable_options::{SharedOptions, WritableOptions};
use std::ffi::OsStr;
use std::sync::Arc;
use weald_format::{ByteLen, Error, Result};
use weald_vfs::WritableFs;

/// Threads that answer requests, in addition to one per processor: requests that wait for storage
/// should not stop the others.
const EXTRA_WORKER_COUNT: usize = 6;

/// Default readahead of the kernel in bytes: two requests of the largest size.
const VOLUME_READAHEAD_LEN: ByteLen = ByteLen(2 << 20);

/// Mounts `fs` on the directory of `point`; `/proc/mounts` shows `source` as its origin. The mount
/// is live when the call returns. The last sync of `fs` has ended when [`Mount::wait`] returns.
///
/// Device nodes and set-uid bits take effect as `options` say, for a mount of root.
/// [`MountOptions::parse_writable`] turns both on for root, as on other file systems.
///
/// # Errors
/// `Invalid` for options that need an image: `uid=`, `gid=`, `umask=`, `subdir=`; `NotFound` if
/// the directory was removed; `Io` if the kernel or `fusermount3` refuses.
pub fn mount_writable(
    fs: Arc<dyn WritableFs>,
    source: &OsStr,
    point: &MountPoint,
    options: &MountOptions,
    writable: &WritableOptions,
    trace: Option<Arc<Trace>>,
) -> Result<Mount> {
    refuse_image_options(options)?;
    let access = access(options);
    let plan = Plan {
        source,
        point,
        options,
        access,
        is_read_only: writable.is_read_only,
        live: writable.live,
        block: writable.block,
        wishes: Wishes {
            flags: wanted_flags(access == Access::Everybody, writable),
            write_len_max: WRITE_LEN_MAX,
        },
        read_ahead_len: options.read_ahead_len.unwrap_or(VOLUME_READAHEAD_LEN),
    };
    let live = Arc::new(SharedOptions::new(writable.live));
    let policy = Policy {
        admission: Admission::new(access, rustix::process::getuid().as_raw()),
        live: Arc::clone(&live),
        ignores_case: writable.ignores_case,
        hides_xattrs: writable.hides_xattrs,
        hides_acls: writable.hides_acls,
        changes_elsewhere: writable.changes_elsewhere,
    };
    let worker_count = options.worker_count.unwrap_or_else(default_worker_count);
    mount_planned(&plan, |device, negotiated, dir, stat| {
        let session = Session::new(device, worker_count, trace);
        let driver = Ending::new(WritableDriver::new(fs, negotiated.flags, policy));
        let mut mount = serve_driver(driver, session, negotiated, dir, stat)?;
        mount.keep_here(live);
        Ok(mount)
    })
}

fn default_worker_count() -> usize {
    let cpu_count = std::thread::available_parallelism().map_or(1, usize::from);
    cpu_count.saturating_add(EXTRA_WORKER_COUNT)
}

/// A writable mount shows what is stored, and all of it.
fn refuse_image_options(options: &MountOptions) -> Result<()> {
    let word = match options {
        options if options.overrides.is_active() => "uid=, gid= and umask=",
        options if options.maps_owners() => "map_uid= and map_gid=",
        options if options.subdir.is_some() => "subdir=",
        _ => return Ok(()),
    };
    let what = format!("the options {word} are for images; remove them to mount a volume");
    Err(Error::invalid(what))
}
