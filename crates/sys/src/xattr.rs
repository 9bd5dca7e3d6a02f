//! Extended attributes of any inode by directory and name, symlinks and devices included.
//!
//! Linux before 6.13 has no `*xattrat` calls. So these functions use the `l*xattr` calls on
//! `/proc/self/fd/N/name`; they do not follow the last component.

use crate::faked;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use weald_format::{Xattr, XattrSet};

/// Path `/proc/self/fd/N/name`, or `/proc/self/fd/N/.` for the directory itself.
fn proc_path(dir: impl AsFd, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", dir.as_fd().as_raw_fd()).into_bytes();
    path.extend_from_slice(if name.is_empty() { b"." } else { name });
    path
}

/// Path `/proc/self/fd/N`, which leads to the open file itself.
fn open_path(fd: impl AsFd) -> Vec<u8> {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into_bytes()
}

/// Calls `get` with larger and larger buffers until the value fits. The kernel limits both lists
/// and values to 64 KiB.
fn fill_growing(
    buffer: &mut Vec<u8>,
    mut get: impl FnMut(&mut [u8]) -> Result<usize, Errno>,
) -> io::Result<()> {
    const XATTR_BUFFER_LEN_MAX: usize = 1 << 20;
    let mut capacity = 512;
    loop {
        buffer.resize(capacity, 0);
        match get(buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(());
            }
            Err(Errno::RANGE) if capacity < XATTR_BUFFER_LEN_MAX => capacity *= 8,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads the names of all xattrs of `name` in `dir` (of `dir` itself if `name` is empty) into
/// `names`, each followed by a NUL. The list is empty for inodes that cannot have xattrs
/// (`ENOTSUP`, `EPERM`).
///
/// # Errors
/// The errno of llistxattr(2).
pub fn list_xattrs_at(dir: impl AsFd, name: &[u8], names: &mut Vec<u8>) -> io::Result<()> {
    list_xattrs(&proc_path(dir, name), names)
}

/// As [`list_xattrs_at`], for `name` in the working directory: see [`crate::enter_dir`].
///
/// # Errors
/// The errno of llistxattr(2).
/// # Cost
/// Less CPU time than [`list_xattrs_at`], which resolves a path through `/proc`.
pub fn list_xattrs_here(name: &[u8], names: &mut Vec<u8>) -> io::Result<()> {
    list_xattrs(name, names)
}

fn list_xattrs(path: &[u8], names: &mut Vec<u8>) -> io::Result<()> {
    let listed = fill_growing(names, |buffer| {
        if faked::is_on() {
            faked::llistxattr(path, buffer)
        } else {
            rustix::fs::llistxattr(path, buffer)
        }
    });
    or_none(listed, names)
}

/// No names where an inode cannot have xattrs.
fn or_none(listed: io::Result<()>, names: &mut Vec<u8>) -> io::Result<()> {
    match listed {
        Err(error) if is_without_xattrs(&error) => {
            names.clear();
            Ok(())
        }
        other => other,
    }
}

fn is_without_xattrs(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::OPNOTSUPP | Errno::PERM))
}

/// Whether an error of [`get_xattr_at`] says that there is no such xattr, or none at all.
pub fn is_without_xattr(error: &io::Error) -> bool {
    is_without_xattrs(error) || error.raw_os_error() == Some(Errno::NODATA.raw_os_error())
}

/// Reads the value of one xattr of `name` in `dir`.
///
/// # Errors
/// The errno of lgetxattr(2); `ENODATA` if the inode has no such xattr.
pub fn get_xattr_at(dir: impl AsFd, name: &[u8], xattr: &[u8]) -> io::Result<Vec<u8>> {
    let path = proc_path(dir, name);
    let mut value = Vec::new();
    fill_growing(&mut value, |buffer| {
        if faked::is_on() {
            faked::getxattr(&path, xattr, buffer, false)
        } else {
            rustix::fs::lgetxattr(path.as_slice(), xattr, buffer)
        }
    })?;
    Ok(value)
}

/// Reads all xattrs of `name` in `dir`, sorted by name. Omits those that are removed meanwhile.
///
/// # Errors
/// The errno of llistxattr(2) or lgetxattr(2).
pub fn read_xattrs_at(dir: impl AsFd, name: &[u8]) -> io::Result<XattrSet> {
    let mut names = Vec::new();
    list_xattrs_at(&dir, name, &mut names)?;
    values_of(&names, |xattr| get_xattr_at(&dir, name, xattr))
}

/// As [`read_xattrs_at`], for the open file `fd`, which may be an `O_PATH` descriptor, but not of a
/// symlink.
///
/// # Errors
/// The errno of listxattr(2) or getxattr(2).
pub fn read_xattrs_fd(fd: impl AsFd) -> io::Result<XattrSet> {
    let mut names = Vec::new();
    let path = open_path(&fd);
    if faked::is_on() {
        // What is pretended is known by the file's own path.
        let path = std::fs::read_link(OsStr::from_bytes(&path))?;
        list_xattrs(path.as_os_str().as_bytes(), &mut names)?;
    } else {
        let listed = fill_growing(&mut names, |buffer| {
            rustix::fs::listxattr(path.as_slice(), buffer)
        });
        or_none(listed, &mut names)?;
    }
    values_of(&names, |xattr| get_xattr_fd(&fd, xattr))
}

/// The xattrs of the list `names` with the values that `get` reads. Omits those removed meanwhile.
fn values_of(names: &[u8], get: impl Fn(&[u8]) -> io::Result<Vec<u8>>) -> io::Result<XattrSet> {
    let mut set = XattrSet::new();
    for xattr in names.split(|&b| b == 0).filter(|n| !n.is_empty()) {
        match get(xattr) {
            Ok(value) => set.push(Xattr {
                name: xattr.to_vec(),
                value,
            }),
            Err(error) if error.raw_os_error() == Some(Errno::NODATA.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
    }
    set.sort();
    Ok(set)
}

/// Sets (creates or replaces) one xattr of `name` in `dir`.
///
/// # Errors
/// The errno of lsetxattr(2).
pub fn set_xattr_at(dir: impl AsFd, name: &[u8], xattr: &[u8], value: &[u8]) -> io::Result<()> {
    let path = proc_path(dir, name);
    if faked::is_on() {
        return Ok(faked::setxattr(&path, xattr, value, false)?);
    }
    Ok(rustix::fs::lsetxattr(
        path,
        xattr,
        value,
        XattrFlags::empty(),
    )?)
}

/// Sets (creates or replaces) one xattr of the open file `fd`.
///
/// # Errors
/// The errno of fsetxattr(2).
pub fn set_xattr_fd(fd: impl AsFd, xattr: &[u8], value: &[u8]) -> io::Result<()> {
    if faked::is_on() {
        return Ok(faked::setxattr(&open_path(fd), xattr, value, true)?);
    }
    Ok(rustix::fs::fsetxattr(
        fd,
        xattr,
        value,
        XattrFlags::empty(),
    )?)
}

/// Reads the value of one xattr of the open file `fd`, which may be an `O_PATH` descriptor, but not
/// of a symlink.
///
/// # Errors
/// The errno of getxattr(2); `ENODATA` if the inode has no such xattr.
pub fn get_xattr_fd(fd: impl AsFd, xattr: &[u8]) -> io::Result<Vec<u8>> {
    let path = open_path(fd);
    let mut value = Vec::new();
    fill_growing(&mut value, |buffer| {
        if faked::is_on() {
            faked::getxattr(&path, xattr, buffer, true)
        } else {
            rustix::fs::getxattr(path.as_slice(), xattr, buffer)
        }
    })?;
    Ok(value)
}

/// Removes one xattr of the open file `fd`.
///
/// # Errors
/// The errno of fremovexattr(2); `ENODATA` if the inode has no such xattr.
pub fn remove_xattr_fd(fd: impl AsFd, xattr: &[u8]) -> io::Result<()> {
    let removed = if faked::is_on() {
        faked::removexattr(&open_path(fd), xattr, true)
    } else {
        rustix::fs::fremovexattr(fd, xattr)
    };
    Ok(removed?)
}

/// Removes one xattr of `name` in `dir`.
///
/// # Errors
/// The errno of lremovexattr(2); `ENODATA` if the inode has no such xattr.
pub fn remove_xattr_at(dir: impl AsFd, name: &[u8], xattr: &[u8]) -> io::Result<()> {
    let path = proc_path(dir, name);
    let removed = if faked::is_on() {
        faked::removexattr(&path, xattr, false)
    } else {
        rustix::fs::lremovexattr(path, xattr)
    };
    Ok(removed?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open_dir;

    #[test]
    fn large_values_and_odd_names_round_trip() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("-f\n x"), b"").unwrap();
        let dir = open_dir(temp.path()).unwrap();
        let large = vec![7; 3000];
        set_xattr_at(&dir, b"-f\n x", b"user.large", &large).unwrap();
        set_xattr_at(&dir, b"-f\n x", b"user.empty", b"").unwrap();
        let set = read_xattrs_at(&dir, b"-f\n x").unwrap();
        let found: Vec<_> = set
            .iter()
            .filter(|x| x.name.starts_with(b"user."))
            .cloned()
            .collect();
        let xattr = |name: &[u8], value: &[u8]| Xattr {
            name: name.to_vec(),
            value: value.to_vec(),
        };
        assert_eq!(
            found,
            [xattr(b"user.empty", b""), xattr(b"user.large", &large)]
        );
        remove_xattr_at(&dir, b"-f\n x", b"user.large").unwrap();
        assert!(get_xattr_at(&dir, b"-f\n x", b"user.large").is_err());
    }

    #[test]
    fn symlinks_have_their_own_xattrs() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("file"), b"").unwrap();
        std::os::unix::fs::symlink("file", temp.path().join("link")).unwrap();
        let dir = open_dir(temp.path()).unwrap();
        set_xattr_at(&dir, b"file", b"trusted.of", b"file").unwrap();
        set_xattr_at(&dir, b"link", b"trusted.of", b"link").unwrap();
        set_xattr_fd(&dir, b"trusted.of", b"dir").unwrap();
        for (name, value) in [("file", "file"), ("link", "link"), ("", "dir")] {
            assert_eq!(
                get_xattr_at(&dir, name.as_bytes(), b"trusted.of").unwrap(),
                value.as_bytes()
            );
        }
    }

    #[test]
    fn xattrs_are_listed_in_the_working_directory_too() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("file"), b"").unwrap();
        let dir = open_dir(temp.path()).unwrap();
        set_xattr_at(&dir, b"file", b"user.a", b"").unwrap();
        let listed = std::thread::spawn(move || {
            crate::separate_working_dir().unwrap();
            crate::enter_dir(&dir).unwrap();
            let mut names = Vec::new();
            list_xattrs_here(b"file", &mut names).unwrap();
            names
        });
        assert_eq!(listed.join().unwrap(), b"user.a\0");
    }

    #[test]
    fn a_file_system_without_xattrs_has_none() {
        let proc = open_dir("/proc".as_ref()).unwrap();
        assert_eq!(read_xattrs_at(&proc, b"version").unwrap(), XattrSet::new());
    }
}
