//! Owners, modes, devices and xattrs where fakeroot or pseudo pretends them.
//!
//! Both are libraries that are loaded before libc and take its calls over; what they pretend lies
//! in a process of theirs. System calls that this room makes itself pass by them, so where one of
//! them is there, calls that tell or change what they pretend go through libc. Everything else
//! (reading directories and files, opening, making, times) is real and need not; what was made is
//! told to them by its owner ([`adopt`]).
//!
//! The calls name an inode by `/proc/self/fd/N/name`: pseudo knows only descriptors that libc
//! opened, but finds the path behind such a name.

use crate::raw_stat::{Stat, real_stat_at, stat_of};
use rustix::fs::{AtFlags, Statx};
use rustix::io::Errno;
use std::ffi::{CString, OsString};
use std::fs::Permissions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use weald_format::FileKind;

/// Prefixes of the names of the libraries.
const LIBRARIES: [&str; 2] = ["libfakeroot", "libpseudo"];

/// Whether the environment says that fakeroot or pseudo is loaded into this process.
pub fn is_on() -> bool {
    static IS_ON: OnceLock<bool> = OnceLock::new();
    *IS_ON.get_or_init(|| {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let is_preloaded = variable("LD_PRELOAD").is_some_and(|libraries| {
            let libraries = libraries.to_string_lossy();
            LIBRARIES.iter().any(|name| libraries.contains(name))
        });
        is_preloaded || variable("FAKEROOTKEY").is_some() || variable("PSEUDO_PREFIX").is_some()
    })
}

/// Refuses to go on where `LD_PRELOAD` asks for fakeroot or pseudo, and neither is loaded into this
/// process: the loader did not find the library, or does not load it into such a program (static,
/// set-uid). Owners, modes and devices would silently be the real ones.
///
/// # Errors
/// `Unsupported`, with what to do.
pub fn check_preload() -> io::Result<()> {
    let wanted = std::env::var("LD_PRELOAD").unwrap_or_default();
    let Some(library) = LIBRARIES.iter().find(|name| wanted.contains(**name)) else {
        return Ok(());
    };
    let is_loaded = |maps: Vec<u8>| {
        let mut parts = maps.windows(library.len());
        parts.any(|part| part == library.as_bytes())
    };
    match std::fs::read("/proc/self/maps").map(is_loaded) {
        Ok(false) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "LD_PRELOAD names {library}, which is not loaded into weald: owners, modes and \
                 devices would be the real ones; correct the path of the library, or unset \
                 LD_PRELOAD"
            ),
        )),
        _ => Ok(()),
    }
}

/// One call at a time: neither of the two promises more.
fn lock_calls() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A path of `name` in `dir`, or of `dir` itself where `name` is empty.
///
/// # Errors
/// `EINVAL` for a name with NUL.
fn path_at(dir: impl AsFd, name: &[u8]) -> io::Result<PathBuf> {
    if name.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    let fd = dir.as_fd().as_raw_fd();
    let path = match (fd == libc::AT_FDCWD, name.is_empty()) {
        (true, true) => b".".to_vec(),
        (true, false) => name.to_vec(),
        (false, true) => format!("/proc/self/fd/{fd}").into_bytes(),
        (false, false) => [format!("/proc/self/fd/{fd}/").as_bytes(), name].concat(),
    };
    Ok(OsString::from_vec(path).into())
}

/// As [`crate::stat_at`].
pub fn stat_at(dir: impl AsFd, name: &[u8]) -> io::Result<Stat> {
    if !name.is_empty() {
        return statx(path_at(dir, name)?, AtFlags::SYMLINK_NOFOLLOW);
    }
    let real = real_stat_at(&dir, b"")?;
    let mut path = path_at(&dir, b"")?;
    let mut flags = AtFlags::empty();
    if real.kind == FileKind::Symlink {
        // pseudo would follow the symlink itself, too.
        path = std::fs::read_link(path)?;
        flags = AtFlags::SYMLINK_NOFOLLOW;
    }
    // Nothing is pretended of an inode without a path: a pipe, or a file without a name.
    match statx(path, flags) {
        Ok(found) if (found.dev, found.ino) == (real.dev, real.ino) => Ok(found),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(real),
    }
}

/// statx(2) by libc. std has it too, but asks on an error with a null pointer whether there is such
/// a call, of which pseudo complains.
fn statx(path: PathBuf, flags: AtFlags) -> io::Result<Stat> {
    const { assert!(size_of::<Statx>() == size_of::<libc::statx>()) }
    let path = CString::new(path.into_os_string().into_vec())?;
    let mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    let mut raw = MaybeUninit::<Statx>::zeroed();
    let _alone = lock_calls();
    // SAFETY: `path` ends with NUL and outlives the call, which writes one `struct statx`;
    // `raw` has its size and, as a type for the same system call, its layout.
    let done = unsafe {
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            flags.bits() as i32,
            mask,
            raw.as_mut_ptr().cast(),
        )
    };
    match done {
        // SAFETY: all fields are integers, and were zeros before the call.
        0 => stat_of(&unsafe { raw.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Owner and group that this process seems to have.
pub fn effective_ids() -> (u32, u32) {
    // SAFETY: neither takes an argument, and neither fails.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// As [`crate::chown_at`]; `None` leaves an id unchanged.
pub fn chown_at(dir: impl AsFd, name: &[u8], uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    let path = path_at(dir, name)?;
    let _alone = lock_calls();
    if name.is_empty() {
        std::os::unix::fs::chown(path, uid, gid)
    } else {
        std::os::unix::fs::lchown(path, uid, gid)
    }
}

/// Tells the library of the new inode `name` in `dir`, which a system call made: it belongs to the
/// user that this process seems to be. pseudo would show the real one.
///
/// # Errors
/// The errno of lchown(2).
pub fn adopt(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    if !is_on() {
        return Ok(());
    }
    let (uid, gid) = effective_ids();
    chown_at(dir, name, Some(uid), Some(gid))
}

/// As [`crate::chmod_at`], of anything but a symlink.
pub fn chmod_at(dir: impl AsFd, name: &[u8], permissions: u16) -> io::Result<()> {
    let path = path_at(dir, name)?;
    let permissions = Permissions::from_mode(u32::from(permissions & 0o7777));
    let _alone = lock_calls();
    std::fs::set_permissions(path, permissions)
}

/// Makes a node of `mode`, type and permissions.
///
/// # Errors
/// The errno of mknod(2); `EEXIST` where something has the name, which fakeroot would replace.
pub fn make_node_at(dir: impl AsFd, name: &[u8], mode: u32, rdev: u64) -> io::Result<()> {
    if real_stat_at(&dir, name).is_ok() {
        return Err(Errno::EXIST.into());
    }
    let path = path_at(dir, name)?;
    let _alone = lock_calls();
    let path = CString::new(path.into_os_string().into_vec())?;
    // SAFETY: `path` ends with NUL and outlives the call.
    match unsafe { libc::mknod(path.as_ptr(), mode, rdev) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// As [`crate::link_at`].
pub fn link_at(old_dir: impl AsFd, old: &[u8], new_dir: impl AsFd, new: &[u8]) -> io::Result<()> {
    let (old, new) = (path_at(old_dir, old)?, path_at(new_dir, new)?);
    let _alone = lock_calls();
    std::fs::hard_link(old, new)
}

/// As [`crate::rename_at`].
pub fn rename_at(old_dir: impl AsFd, old: &[u8], new_dir: impl AsFd, new: &[u8]) -> io::Result<()> {
    let (old, new) = (path_at(old_dir, old)?, path_at(new_dir, new)?);
    let _alone = lock_calls();
    std::fs::rename(old, new)
}

/// As [`crate::remove_file_at`].
pub fn remove_file_at(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    let path = path_at(dir, name)?;
    let _alone = lock_calls();
    std::fs::remove_file(path)
}

/// As [`crate::remove_dir_at`].
pub fn remove_dir_at(dir: impl AsFd, name: &[u8]) -> io::Result<()> {
    let path = path_at(dir, name)?;
    let _alone = lock_calls();
    std::fs::remove_dir(path)
}

/// Result of a call that gives a length or an errno.
fn outcome(returned: isize) -> Result<usize, Errno> {
    let error = || Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
    usize::try_from(returned).map_err(|_| error())
}

fn c_string(text: &[u8]) -> Result<CString, Errno> {
    CString::new(text).map_err(|_| Errno::INVAL)
}

/// llistxattr(2).
pub fn llistxattr(path: &[u8], names: &mut [u8]) -> Result<usize, Errno> {
    let path = c_string(path)?;
    let _alone = lock_calls();
    // SAFETY: `path` ends with NUL and outlives the call, which writes no further than `names` is
    // long.
    outcome(unsafe { libc::llistxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) })
}

/// lgetxattr(2); getxattr(2) where `follows`.
pub fn getxattr(
    path: &[u8],
    xattr: &[u8],
    value: &mut [u8],
    follows: bool,
) -> Result<usize, Errno> {
    let get = if follows {
        libc::getxattr
    } else {
        libc::lgetxattr
    };
    let (path, xattr) = (c_string(path)?, c_string(xattr)?);
    let (out, len) = (value.as_mut_ptr().cast(), value.len());
    let _alone = lock_calls();
    // SAFETY: both texts end with NUL and outlive the call, which writes no further than `value`
    // is long.
    outcome(unsafe { get(path.as_ptr(), xattr.as_ptr(), out, len) })
}

/// lsetxattr(2); setxattr(2) where `follows`.
pub fn setxattr(path: &[u8], xattr: &[u8], value: &[u8], follows: bool) -> Result<(), Errno> {
    let (path, xattr) = (c_string(path)?, c_string(xattr)?);
    let set = if follows {
        libc::setxattr
    } else {
        libc::lsetxattr
    };
    let (data, len) = (value.as_ptr().cast(), value.len());
    let _alone = lock_calls();
    // SAFETY: both texts end with NUL and outlive the call, which reads no further than `value` is
    // long.
    let set = unsafe { set(path.as_ptr(), xattr.as_ptr(), data, len, 0) };
    outcome(set as isize).map(drop)
}

/// lremovexattr(2); removexattr(2) where `follows`.
pub fn removexattr(path: &[u8], xattr: &[u8], follows: bool) -> Result<(), Errno> {
    let remove = if follows {
        libc::removexattr
    } else {
        libc::lremovexattr
    };
    let (path, xattr) = (c_string(path)?, c_string(xattr)?);
    let _alone = lock_calls();
    // SAFETY: both texts end with NUL and outlive the call.
    let removed = unsafe { remove(path.as_ptr(), xattr.as_ptr()) };
    outcome(removed as isize).map(drop)
}
