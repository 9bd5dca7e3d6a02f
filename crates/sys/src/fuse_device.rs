//! The device of FUSE.

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;

/// Opens the device of FUSE, not mounted yet.
///
/// # Errors
/// ENOENT, ENODEV without the module `fuse`; EACCES.
pub fn open_fuse_device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/fuse", flags, Mode::empty())?)
}
