//! Lets other processes wait until the server of a mount holds nothing of it any more.
//!
//! umount(2) returns when the mount is gone, its server lets go of the image a moment later. A
//! script that unmounts and then replaces the image, or counts processes, wants the later moment.
//! The server holds a lock on a file of its [`Place`] that is named after the device number of the
//! mount, which no other live mount has. A watch opens that file before the mount goes and tries
//! the lock afterwards.
//!
//! Invariants:
//! 1. No other user can hold up a watch or stand in for a server: the file lies in a directory that
//!    only its owner can enter.
//! 2. A name is removed only by a process that holds the lock of its file. A lock counts only if
//!    the name still leads to the file after locking.

use crate::place::Place;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};

/// How long a server tries to lock the file of a new mount: others lock it for microseconds, to see
/// whether it is locked.
const HOLD_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause between two attempts at a lock, and so how late a watch hears of the end.
const PAUSE: Duration = Duration::from_millis(2);

/// Held by the server of a mount until it holds nothing of the mount any more.
#[derive(Debug)]
pub(crate) struct Presence {
    place: Place,
    /// The name of the file; `None` once removed.
    name: Option<String>,
    _file: OwnedFd,
}

impl Presence {
    /// Removes the name: a watch that has begun goes on waiting, and none begins any more. For a
    /// mount that is gone, whose device number may come again.
    pub(crate) fn hide(&mut self) {
        if let Some(name) = self.name.take()
            && let Err(error) = self.place.unlink(&name)
        {
            log::info!("{error:?}");
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.hide();
    }
}

/// A look at the server of a mount, begun while the mount is still there.
#[derive(Debug)]
pub struct Watch {
    file: OwnedFd,
}

impl Watch {
    /// Waits until the server has let go of the mount; whether it has within `timeout`.
    pub fn wait(self, timeout: Duration) -> bool {
        let start = Instant::now();
        loop {
            // Shared, so that two watches do not disturb each other.
            match flock(&self.file, FlockOperation::NonBlockingLockShared) {
                Err(Errno::WOULDBLOCK) if start.elapsed() < timeout => std::thread::sleep(PAUSE),
                other => return other.is_ok(),
            }
        }
    }
}

impl Place {
    /// Makes this process known as the server of the mount with the device number `device` (major,
    /// minor).
    ///
    /// # Errors
    /// `Busy` where another process serves it; `Io`.
    pub(crate) fn announce(&self, device: (u32, u32)) -> Result<Presence> {
        let name = name_of(device);
        let start = Instant::now();
        while start.elapsed() < HOLD_TIMEOUT {
            let file = self.open_lock(&name, OFlags::CREATE)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if self.has(&name, &file) => {
                    return Ok(Presence {
                        place: self.clone(),
                        name: Some(name),
                        _file: file,
                    });
                }
                // Its last holder has just removed it.
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(errno) => return Err(Error::io(name, errno.into())),
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("{name}: held by another process"),
        ))
    }

    /// Watches the server of the mount with `device`; `None` where no server of this place has such
    /// a mount. Never waits.
    ///
    /// # Errors
    /// `Io`.
    pub fn watch(&self, device: (u32, u32)) -> Result<Option<Watch>> {
        match self.open_lock(&name_of(device), OFlags::empty()) {
            Ok(file) => Ok(Some(Watch { file })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes what killed servers have left behind.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn clear_presences(&self) -> Result<()> {
        for name in self.all_names()?.iter().filter(|name| is_presence(name)) {
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

fn name_of((major, minor): (u32, u32)) -> String {
    format!("mount-{major}-{minor}.lock")
}

fn is_presence(name: &str) -> bool {
    name.starts_with("mount-") && name.ends_with(".lock")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: (u32, u32) = (0, 77);

    fn place() -> (tempfile::TempDir, Place) {
        let base = tempfile::tempdir().expect("directory");
        let place = Place::make(&base.path().join("run")).expect("made");
        (base, place)
    }

    #[test]
    fn a_watch_hears_of_the_end_and_not_before() {
        let (_base, place) = place();
        assert!(place.watch(DEVICE).expect("open").is_none());
        let mut presence = place.announce(DEVICE).expect("held");
        let watch = || place.watch(DEVICE).expect("open").expect("a server");
        assert!(!watch().wait(Duration::from_millis(20)));
        let [first, second] = [watch(), watch()];
        presence.hide();
        assert!(place.watch(DEVICE).expect("open").is_none());
        assert!(!first.wait(Duration::from_millis(20)));
        drop(presence);
        assert!(second.wait(Duration::from_secs(120)));
        assert!(
            !place
                .all_names()
                .expect("list")
                .iter()
                .any(|name| is_presence(name))
        );
    }

    /// Would catch: a file of a killed server that stays for ever or keeps the next one away, and
    /// one of a live server that is cleared away.
    #[test]
    fn what_a_killed_server_left_is_taken_or_cleared_away() {
        let (_base, place) = place();
        let held = place.announce((0, 1)).expect("held");
        let busy = place.announce((0, 1)).expect_err("held already");
        assert_eq!(busy.kind(), ErrorKind::Busy);
        for device in [(0, 2), (0, 3)] {
            drop(
                place
                    .open_lock(&name_of(device), OFlags::CREATE)
                    .expect("made"),
            );
        }
        let taken = place.announce((0, 2)).expect("nobody holds it");
        place.clear_presences().expect("cleared");
        let is_there = |device| place.watch(device).expect("open").is_some();
        assert_eq!([(0, 1), (0, 2), (0, 3)].map(is_there), [true, true, false]);
        drop((held, taken));
    }
}
