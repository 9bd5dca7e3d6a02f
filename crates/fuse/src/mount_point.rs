//! Mount point, resolved once. The mount goes onto the directory that was checked, even if its path
//! changes in between.
//!
//! Invariant: the path resolution follows no symlink of another user. So the owner of a parent
//! directory cannot redirect a mount of root.

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, openat, readlinkat, statx};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use weald_format::{Error, ErrorKind, Result};

/// Most symlinks that path resolution follows: the kernel's own limit.
const LINK_COUNT_MAX: usize = 40;

/// An open directory to mount on.
#[derive(Debug)]
pub struct MountPoint {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl MountPoint {
    /// Opens the directory `dir`. Follows symlinks that belong to root or to this user.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Invalid` if `dir` is not a directory, or if its path contains a symlink
    /// of another user.
    pub fn open(dir: &Path) -> Result<Self> {
        let descriptor = open_trusted(dir).map_err(|error| error.context("mount point"))?;
        Self::new(descriptor, dir)
    }

    /// Wraps the directory that `descriptor` holds, opened and checked by another process of this
    /// user; `dir` names it in errors.
    ///
    /// # Errors
    /// `Invalid` if it is not a directory; `Io`.
    pub fn new(descriptor: OwnedFd, dir: &Path) -> Result<Self> {
        // The standard library's stat(2) would trigger an automount point, and then wait for the
        // very mount that we are about to make.
        let (kind, _) = kind_and_owner(descriptor.as_fd(), dir)?;
        if kind != FileType::Directory {
            let what = format!("mount point: {}: not a directory", dir.display());
            return Err(Error::invalid(what));
        }
        let number = descriptor.as_raw_fd();
        let path = std::fs::read_link(format!("/proc/self/fd/{number}"))
            .map_err(|error| Error::io("mount point: /proc/self/fd", error))?;
        Ok(Self { descriptor, path })
    }

    /// Absolute path without symlinks, as it was when the directory was opened or received.
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
    let failed = |errno: Errno| Error::io(dir.display().to_string(), errno.into());
    let open = |from: BorrowedFd<'_>, name: &OsStr, more: OFlags| {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC | more;
        openat(from, name, flags, Mode::empty())
    };
    let mut found = open(CWD, OsStr::new("."), OFlags::DIRECTORY).map_err(failed)?;
    let mut names = Vec::new();
    push_names(dir, &mut names);
    let mut link_count = 0;
    while let Some(name) = names.pop() {
        // DIRECTORY triggers the automounts on the way, which must be mounted to continue. The last
        // component must not trigger one: it would wait for the very mount that we make.
        if !names.is_empty() {
            match open(found.as_fd(), &name, OFlags::DIRECTORY) {
                Ok(next) => {
                    found = next;
                    continue;
                }
                Err(Errno::NOTDIR | Errno::LOOP) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        let next = open(found.as_fd(), &name, OFlags::empty()).map_err(failed)?;
        let (kind, owner) = kind_and_owner(next.as_fd(), dir)?;
        if kind != FileType::Symlink {
            found = next;
            continue;
        }
        link_count += 1;
        if link_count > LINK_COUNT_MAX {
            return Err(failed(Errno::LOOP));
        }
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            let what = format!(
                "{}: the symlink {} belongs to user {owner}, who could redirect the \
                 mount; give a path without symlinks of other users",
                dir.display(),
                name.display()
            );
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        let target = readlinkat(&next, "", Vec::new()).map_err(failed)?;
        push_names(
            Path::new(&OsString::from_vec(target.into_bytes())),
            &mut names,
        );
    }
    Ok(found)
}

/// Pushes the components of `path` on the stack, the first on top. The root is a component too:
/// openat(2) of `/` restarts there.
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
