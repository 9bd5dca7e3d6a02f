//! A mount point, looked up once: what was checked is what is mounted on, whatever becomes of its
//! name meanwhile.
//!
//! Invariant: no symlink of another user is followed on the way, so that the owner of a directory
//! above cannot lead a mount of root's elsewhere.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, openat, readlinkat, statx};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use weald_format::{Error, ErrorKind, Result};

/// Symlinks followed on the way, as many as the kernel follows.
const LINK_COUNT_MAX: usize = 40;

/// A directory that is held open to be mounted on.
#[derive(Debug)]
pub struct MountPoint {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl MountPoint {
    /// Opens the directory `dir`. Symlinks are followed where they belong to root or to this user.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Invalid` where it is no directory, and where a symlink of another user
    /// leads to it.
    pub fn open(dir: &Path) -> Result<Self> {
        let descriptor = open_trusted(dir).map_err(|error| error.context("mount point"))?;
        Self::new(descriptor, dir)
    }

    /// The directory that `descriptor` holds, as another process of this user has opened and
    /// checked it; `dir` names it in errors.
    ///
    /// # Errors
    /// `Invalid` where it is no directory; `Io`.
    pub fn new(descriptor: OwnedFd, dir: &Path) -> Result<Self> {
        // Not by stat(2) as the standard library calls it: on an automount point that waits for
        // the very mount that is to be made here.
        let (kind, _) = kind_and_owner(descriptor.as_fd(), dir)?;
        if kind != FileType::Directory {
            return Err(Error::invalid("mount point: not a directory"));
        }
        let number = descriptor.as_raw_fd();
        let path = std::fs::read_link(format!("/proc/self/fd/{number}"))
            .map_err(|error| Error::io("mount point: /proc/self/fd", error))?;
        Ok(Self { descriptor, path })
    }

    /// Its absolute path, free of symlinks, as it was when it was opened or received.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for MountPoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn open_trusted(dir: &Path) -> Result<OwnedFd> {
    let told = |errno: Errno| Error::io(dir.display().to_string(), errno.into());
    let open = |from: BorrowedFd<'_>, name: &OsStr, more: OFlags| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
        openat(from, name, flags, Mode::empty())
    };
    let mut found = open(CWD, OsStr::new("."), OFlags::DIRECTORY).map_err(told)?;
    let mut names = Vec::new();
    push_names(dir, &mut names);
    let mut link_count = 0;
    while let Some(name) = names.pop() {
        // What is only passed through an automounter may have to mount first; the last one must
        // not, as that waits for this very mount.
        if !names.is_empty() {
            match open(found.as_fd(), &name, OFlags::DIRECTORY) {
                Ok(next) => {
                    found = next;
                    continue;
                }
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(told(errno)),
            }
        }
        let next = open(found.as_fd(), &name, OFlags::empty()).map_err(told)?;
        let (kind, owner) = kind_and_owner(next.as_fd(), dir)?;
        if kind != FileType::Symlink {
            found = next;
            continue;
        }
        link_count += 1;
        if link_count > LINK_COUNT_MAX {
            return Err(told(Errno::LOOP));
        }
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            let what = format!(
                "{}: the symlink {} belongs to user {owner}, who could lead the mount elsewhere; \
                 give the path without symlinks of others",
                dir.display(),
                name.display()
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let target = readlinkat(&next, "", Vec::new()).map_err(told)?;
        push_names(
            Path::new(&OsString::from_vec(target.into_bytes())),
            &mut names,
        );
    }
    Ok(found)
}

/// Puts the components of `path` on the stack, the first on top. The root is a component of its
/// own, from which openat(2) begins anew.
fn push_names(path: &Path, names: &mut Vec<OsString>) {
    let components = path.components().rev();
    names.extend(components.map(|component: Component<'_>| component.as_os_str().to_owned()));
}

fn kind_and_owner(descriptor: BorrowedFd<'_>, dir: &Path) -> Result<(FileType, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = statx(descriptor, "", flags, StatxFlags::TYPE | StatxFlags::UID)
        .map_err(|errno| Error::io(dir.display().to_string(), errno.into()))?;
    Ok((FileType::from_raw_mode(stat.stx_mode.into()), stat.stx_uid))
}
