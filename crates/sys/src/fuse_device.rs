//! The FUSE device.

use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;

/// Opens the FUSE device; it is not mounted yet.
///
/// # Errors
/// ENOENT or ENODEV without the kernel module `fuse`; EACCES.
pub fn open_fuse_device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/fuse", flags, Mode::empty())?)
}
