//! A thread with a mount namespace of its own.

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::UnshareFlags;
use std::io;

/// Runs `work` on a new thread that has its own copy of all mounts, and its own working directory.
/// No other thread sees a mount that `work` makes. The mount is gone when the thread ends or the
/// process is killed.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`; `ENOMEM`, `ENOSPC` (limits of mounts and of namespaces).
///
/// # Panics
/// If `work` panics.
///
/// # Source
/// mount_namespaces(7): a new namespace propagates mounts to the old one until its mounts are
/// made private.
pub fn with_own_mounts<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, || {
            // SAFETY: `NEWNS` and the `FS` that it implies leave the descriptor table shared, which
            // is what the function is unsafe for. Root, working directory and umask of this thread
            // are its own from here on; `work` runs nowhere else.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
            let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
            mount_change("/", private)?;
            Ok(work())
        })?;
        match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
