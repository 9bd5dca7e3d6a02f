//! Lock files of mounts: other processes wait until a server has released a mount.
//!
//! umount(2) returns when the mount is gone; its server closes the image a moment later. A script
//! that unmounts and then replaces the image, or counts processes, needs the later moment. So the
//! server locks a file of its [`RuntimeDir`] for each mount. The file has the device number of the
//! mount as its name, which no other live mount has. A client opens the file before it unmounts,
//! and waits for the lock afterwards.
//!
//! Invariants:
//! 1. No other user can delay a client or impersonate a server: only the owner can enter the
//!    directory of the file.
//! 2. Only a process that holds the lock of a file removes its name, or the server of a newer mount
//!    with the same device number. A lock is valid only if the name still leads to the file after
//!    locking.

use crate::runtime_dir::RuntimeDir;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};
use weald_fuse::DeviceNo;

/// How long a server tries to lock the file of a new mount. Clients hold the lock for microseconds,
/// when they test it.
const HOLD_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a client waits while another one mounts a volume of the same store.
const STORE_TIMEOUT: Duration = Duration::from_secs(300);

/// Pause between two attempts at a lock. It bounds the delay until a client notices the release.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The same for a client that has waited for long.
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Word in the lock file of a volume, after the process id of its server.
const VOLUME: &str = "volume";

/// Lock of the server of a mount, held until the server has released the mount.
#[derive(Debug)]
pub(crate) struct MountLock {
    runtime_dir: RuntimeDir,
    /// Name of the file; `None` after its removal.
    name: Option<String>,
    file: OwnedFd,
}

impl MountLock {
    /// Removes the name but keeps the lock: clients that wait keep waiting, and no new client finds
    /// the file. The kernel may reuse the device number of a mount that is gone.
    pub(crate) fn hide(&mut self) {
        if let Some(name) = self.name.take()
            && self.runtime_dir.has(&name, &self.file)
            && let Err(error) = self.runtime_dir.unlink(&name)
        {
            log::info!("{error:?}");
        }
    }
}

impl Drop for MountLock {
    fn drop(&mut self) {
        self.hide();
    }
}

/// Lock of a client that mounts a volume of a store.
#[derive(Debug)]
pub struct StoreLock(#[expect(dead_code, reason = "held until it is dropped")] MountLock);

/// Wait for the server of a mount; a client begins it before the unmount.
#[derive(Debug)]
pub struct MountWaiter {
    file: OwnedFd,
}

impl MountWaiter {
    /// Waits until the server has released the mount; returns whether it did within `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        let start = Instant::now();
        loop {
            // Shared, so that two clients do not block each other.
            match flock(&self.file, FlockOperation::NonBlockingLockShared) {
                Err(Errno::WOULDBLOCK) if start.elapsed() < timeout => {
                    // The longer the wait, the less a late notice matters.
                    let pause = start.elapsed() / 8;
                    let rest = timeout.saturating_sub(start.elapsed());
                    std::thread::sleep(pause.clamp(LOCK_PAUSE, LOCK_PAUSE_MAX).min(rest));
                }
                other => return other.is_ok(),
            }
        }
    }

    /// Process id of the server, and whether it has a volume; `None` if no server holds the lock.
    pub(crate) fn server(&self) -> Option<(u32, bool)> {
        if self.wait(Duration::ZERO) {
            // The lock belongs to this open file, and must not stop a server.
            let _ = flock(&self.file, FlockOperation::Unlock);
            return None;
        }
        let mut text = [0; 64];
        let len = rustix::io::pread(&self.file, &mut text, 0).ok()?;
        let text = std::str::from_utf8(text.get(..len)?).ok()?;
        let mut words = text.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        Some((pid, words.next() == Some(VOLUME)))
    }
}

impl RuntimeDir {
    /// Locks the file of the mount with device number `device` (major, minor) for this server, and
    /// writes its process id into it.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn lock_mount(&self, device: DeviceNo, is_volume: bool) -> Result<MountLock> {
        let name = name_of(device);
        let lock = match self.lock_file(name.clone(), HOLD_TIMEOUT) {
            // The kernel has given the number to our mount. So the mount of the holder is gone, and
            // the holder is slow to end: it is stopped perhaps.
            Err(error) if error.kind() == ErrorKind::Busy => {
                self.unlink(&name)?;
                self.lock_file(name.clone(), HOLD_TIMEOUT)?
            }
            other => other?,
        };
        let word = if is_volume { VOLUME } else { "image" };
        let text = format!("{} {word}\n", std::process::id());
        rustix::fs::ftruncate(&lock.file, 0)
            .and_then(|()| rustix::io::pwrite(&lock.file, text.as_bytes(), 0))
            .map_err(|errno| Error::io(name, errno.into()))?;
        Ok(lock)
    }

    fn lock_file(&self, name: String, timeout: Duration) -> Result<MountLock> {
        let start = Instant::now();
        while start.elapsed() < timeout {
            let file = self.open_lock(&name, OFlags::CREATE)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if self.has(&name, &file) => {
                    return Ok(MountLock {
                        runtime_dir: self.clone(),
                        name: Some(name),
                        file,
                    });
                }
                // The last holder has just removed the file.
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
                Err(errno) => return Err(Error::io(name, errno.into())),
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("{name}: another process serves this mount"),
        ))
    }

    /// Locks the store whose writer locks the file `lock_file`, until the result is dropped: two
    /// clients that mount its first volumes at the same time start one server.
    ///
    /// # Errors
    /// `Busy` if another client mounts a volume of the store for minutes; `Io`.
    pub fn lock_store(&self, lock_file: BorrowedFd<'_>) -> Result<StoreLock> {
        let failed = |errno: Errno| Error::io("lock of a store", errno.into());
        let stat = rustix::fs::fstat(lock_file).map_err(failed)?;
        let name = format!("mount-store-{}-{}.lock", stat.st_dev, stat.st_ino);
        self.lock_file(name, STORE_TIMEOUT).map(StoreLock)
    }

    /// Opens the lock file of the mount with `device`; `None` if no server of this directory has
    /// the mount. Never blocks.
    ///
    /// # Errors
    /// `Io`.
    pub fn mount_waiter(&self, device: DeviceNo) -> Result<Option<MountWaiter>> {
        match self.open_lock(&name_of(device), OFlags::empty()) {
            Ok(file) => Ok(Some(MountWaiter { file })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the lock files of killed servers.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn remove_stale_mount_locks(&self) -> Result<()> {
        for name in self.all_names()?.iter().filter(|name| is_mount_lock(name)) {
            let Ok(file) = self.open_lock(name, OFlags::empty()) else {
                continue;
            };
            let is_dead = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if is_dead && self.has(name, &file) {
                self.unlink(name)?;
            }
        }
        Ok(())
    }
}

fn name_of(DeviceNo { major, minor }: DeviceNo) -> String {
    format!("mount-{major}-{minor}.lock")
}

fn is_mount_lock(name: &str) -> bool {
    name.starts_with("mount-") && name.ends_with(".lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceNo = DeviceNo {
        major: 0,
        minor: 77,
    };

    fn runtime_dir() -> (tempfile::TempDir, RuntimeDir) {
        let base = tempfile::tempdir().expect("directory");
        let runtime_dir = RuntimeDir::make(&base.path().join("run")).expect("made");
        (base, runtime_dir)
    }

    #[test]
    fn a_waiter_ends_when_the_server_releases_the_mount() {
        let (_base, runtime_dir) = runtime_dir();
        assert!(runtime_dir.mount_waiter(DEVICE).expect("open").is_none());
        let mut mount_lock = runtime_dir.lock_mount(DEVICE, true).expect("held");
        let waiter = || {
            runtime_dir
                .mount_waiter(DEVICE)
                .expect("open")
                .expect("a server")
        };
        assert!(!waiter().wait(Duration::from_millis(20)));
        assert_eq!(waiter().server(), Some((std::process::id(), true)));
        let [first, second] = [waiter(), waiter()];
        mount_lock.hide();
        assert!(runtime_dir.mount_waiter(DEVICE).expect("open").is_none());
        assert!(!first.wait(Duration::from_millis(20)));
        drop(mount_lock);
        assert!(second.wait(Duration::from_secs(120)));
        assert!(
            !runtime_dir
                .all_names()
                .expect("list")
                .iter()
                .any(|name| is_mount_lock(name))
        );
    }

    /// Would catch: the file of a killed server that stays or blocks the next server, and the
    /// removal of a live server's file.
    #[test]
    fn lock_files_of_killed_servers_are_reused_or_removed() {
        let (_base, runtime_dir) = runtime_dir();
        let [first, second, third] = [1, 2, 3].map(|minor| DeviceNo { major: 0, minor });
        let held = runtime_dir.lock_mount(first, false).expect("held");
        // A newer mount with the number takes the name, and keeps it when the older one ends.
        let newer = runtime_dir.lock_mount(first, false).expect("taken over");
        drop(held);
        let held = newer;
        for device in [second, third] {
            drop(
                runtime_dir
                    .open_lock(&name_of(device), OFlags::CREATE)
                    .expect("made"),
            );
        }
        let taken = runtime_dir
            .lock_mount(second, false)
            .expect("nobody holds it");
        runtime_dir.remove_stale_mount_locks().expect("cleared");
        let is_there = |device| runtime_dir.mount_waiter(device).expect("open").is_some();
        assert_eq!([first, second, third].map(is_there), [true, true, false]);
        drop((held, taken));
    }
}
