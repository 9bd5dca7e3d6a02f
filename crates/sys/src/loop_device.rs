//! Loop devices: a file as a block device.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// Request of `/dev/loop-control` for the number of a free device.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82_u32 as libc::Ioctl;
/// Request that attaches a file with all settings at once, Linux 5.8.
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a_u32 as libc::Ioctl;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Attempts to get a device while other processes take the free ones.
const DEVICE_ATTEMPT_COUNT_MAX: usize = 64;

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// Attaches `file`, read-only, to a free loop device; returns the device and its path. The device
/// is free again when the returned file is closed and no mount uses it, also after a crash. With
/// `is_direct` it reads past the page cache of `file`, where the file system can.
///
/// # Errors
/// `ENOENT` without loop devices; `EACCES`, `EPERM` for users other than root; `EBUSY` if other
/// processes took every free device.
pub fn attach_loop(file: &File, is_direct: bool) -> io::Result<(File, PathBuf)> {
    let direct = if is_direct { LO_FLAGS_DIRECT_IO } else { 0 };
    attach(file, LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR | direct)
}

/// As [`attach_loop`], for writing. `file` must be open for writing, too.
///
/// # Errors
/// As [`attach_loop`].
pub fn attach_writable_loop(file: &File) -> io::Result<(File, PathBuf)> {
    attach(file, LO_FLAGS_AUTOCLEAR)
}

fn attach(file: &File, flags: u32) -> io::Result<(File, PathBuf)> {
    let control = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open("/dev/loop-control")?;
    let mut last = io::Error::from_raw_os_error(libc::EBUSY);
    for _ in 0..DEVICE_ATTEMPT_COUNT_MAX {
        // SAFETY: the descriptor is open; the request has no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        // The kernel makes a device read-only that is open for reading only.
        let is_writable = flags & LO_FLAGS_READ_ONLY == 0;
        let device = File::options()
            .read(true)
            .write(is_writable)
            .custom_flags(libc::O_CLOEXEC)
            .open(&path)?;
        match configure(&device, file, flags) {
            Ok(()) => return Ok((device, path)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn configure(device: &File, file: &File, flags: u32) -> io::Result<()> {
    let config = LoopConfig {
        fd: file.as_raw_fd() as u32,
        block_size: 0,
        info: LoopInfo {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    // SAFETY: both descriptors are open during the call; `config` is a whole `struct loop_config`
    // (its size is asserted above) that lives across the call, and the kernel only reads it.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
