//! The device of FUSE: what no file call reaches.

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{self, Opcode, Setter};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// `FUSE_DEV_IOC_CLONE` of `include/uapi/linux/fuse.h`.
const CLONE: Opcode = ioctl::opcode::read::<u32>(229, 0);

/// Opens the device of FUSE, not mounted yet.
///
/// # Errors
/// ENOENT, ENODEV without the module `fuse`; EACCES.
pub fn open_fuse_device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/fuse", flags, Mode::empty())?)
}

/// Another descriptor of the connection of `device`, with a queue of its own for requests that were read and not answered: threads
/// that have each their own do not wait for each other. A request is answered where it was read.
///
/// # Errors
/// EINVAL where `device` is not mounted.
pub fn clone_fuse_device(device: impl AsFd) -> io::Result<OwnedFd> {
    let clone = open_fuse_device()?;
    let number = device.as_fd().as_raw_fd() as u32;
    // SAFETY: the opcode is of this device and reads one u32 through the pointer, which `Setter` makes of its value; the value
    // is the number of a descriptor that is open as long as `device` is borrowed. Nothing is written to our memory.
    unsafe { ioctl::ioctl(&clone, Setter::<CLONE, u32>::new(number)) }?;
    Ok(clone)
}
