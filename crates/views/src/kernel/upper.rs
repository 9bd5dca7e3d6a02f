//! The writable layer of a mount: a directory for what is changed, and the work directory that
//! overlayfs needs beside it.

use super::table;
use rustix::fs::{Mode, OFlags, openat};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use weald_format::{Error, ErrorKind, Result};
use weald_image::Image;
use weald_sys::NewTimes;

/// Suffix of the layer's name that gives the name of the default work directory.
const WORK_SUFFIX: &str = ".weald-work";

/// Xattrs in which overlayfs keeps its notes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrKind {
    /// `trusted.*`, for root.
    Trusted,
    /// `user.*`, for a user in a user namespace.
    User,
}

/// Permissions of a work directory.
const WORK_MODE: u16 = 0o700;

/// A writable layer.
pub struct Upper {
    /// Directory of what is changed, and its absolute path.
    pub dir: (OwnedFd, PathBuf),
    /// Work directory, and its absolute path.
    pub work: (OwnedFd, PathBuf),
}

impl Upper {
    /// Opens the directory `dir` and its work directory, or makes them. A new layer gets the
    /// attributes of the root of `image`: it covers that directory.
    ///
    /// # Errors
    /// `Busy` if another mount has the layer; `Unsupported` if its file system has no xattrs;
    /// `Invalid` if the work directory is on another one; `Io`.
    pub fn prepare(
        dir: &Path,
        work: Option<&Path>,
        image: &Image,
        kind: XattrKind,
    ) -> Result<Self> {
        let (dir, is_new) = open(dir)?;
        let shown = dir.1.display().to_string();
        refuse_used(&dir.1)?;
        if let Err(error) = probe(&dir.0, kind) {
            return Err(no_xattrs(&shown, error));
        }
        if is_new {
            copy_root(image, &dir.0).map_err(|error| error.context(&shown))?;
        }
        let beside;
        let work = match work {
            Some(work) => work,
            None => {
                beside = work_dir_beside(&dir.1).ok_or_else(|| {
                    Error::invalid(format!("{shown}: has no directory beside it: give --work"))
                })?;
                &beside
            }
        };
        let (work, _) = open(work)?;
        let device = |fd: &OwnedFd| weald_sys::stat_fd(fd).map(|stat| stat.dev);
        match (device(&dir.0), device(&work.0)) {
            (Ok(one), Ok(other)) if one == other => Ok(Self { dir, work }),
            (Ok(_), Ok(_)) => Err(Error::invalid(format!(
                "{}: the work directory is not on the file system of {shown}: give --work DIR \
                 on the same file system",
                work.1.display()
            ))),
            (Err(error), _) | (_, Err(error)) => Err(Error::io(shown, error)),
        }
    }
}

/// The default work directory of the layer `dir`, an absolute path; `None` for `/`.
pub fn work_dir_beside(dir: &Path) -> Option<PathBuf> {
    let mut name = OsString::from(".");
    name.push(dir.file_name()?);
    name.push(WORK_SUFFIX);
    Some(dir.with_file_name(name))
}

/// Opens a directory, or makes it; returns it with its absolute path and whether it is new.
fn open(path: &Path) -> Result<((OwnedFd, PathBuf), bool)> {
    let (fd, is_new) = weald_io::open_or_make_dir(path)?;
    let real = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
        .map_err(|error| Error::io("/proc/self/fd", error))?;
    if is_new {
        weald_sys::chmod_fd(&fd, WORK_MODE)
            .map_err(|error| Error::io(path.display().to_string(), error))?;
    }
    Ok(((fd, real), is_new))
}

/// Refuses a layer that another mount has: both would change it.
fn refuse_used(dir: &Path) -> Result<()> {
    let used = table::mounts()?
        .into_iter()
        .find(|m| m.upper.as_deref() == Some(dir));
    match used {
        None => Ok(()),
        Some(mount) => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{}: is the writable layer of the mount on {}: give another directory, or unmount \
                 that one",
                dir.display(),
                mount.dir.display()
            ),
        )),
    }
}

/// Sets and removes an xattr as overlayfs does.
fn probe(dir: &OwnedFd, kind: XattrKind) -> io::Result<()> {
    let name: &[u8] = match kind {
        XattrKind::Trusted => b"trusted.overlay.probe",
        XattrKind::User => b"user.overlay.probe",
    };
    weald_sys::set_xattr_fd(dir, name, b"y")?;
    weald_sys::remove_xattr_fd(dir, name)
}

fn no_xattrs(shown: &str, error: io::Error) -> Error {
    match weald_sys::is_without_xattr(&error) {
        true => Error::new(
            ErrorKind::Unsupported,
            format!(
                "{shown}: its file system has no xattrs, which a writable layer needs: give \
                 --upper a directory on ext4, XFS, btrfs or tmpfs"
            ),
        ),
        false => Error::io(format!("{shown}: setting an xattr"), error),
    }
}

/// Gives a new layer the owner, permissions, xattrs and time of the image's root.
fn copy_root(image: &Image, dir: &OwnedFd) -> Result<()> {
    let root = image.root()?;
    let failed = |error: io::Error| Error::io("attributes of the root", error);
    let attributes = root.attributes;
    let (uid, gid) = (Some(attributes.uid), Some(attributes.gid));
    weald_sys::chown_fd(dir, uid, gid).map_err(failed)?;
    for xattr in image.xattrs(&root)?.iter() {
        match weald_sys::set_xattr_fd(dir, &xattr.name, &xattr.value) {
            Err(error) if !weald_sys::is_without_xattr(&error) => return Err(failed(error)),
            _ => {}
        }
    }
    weald_sys::chmod_fd(dir, attributes.permissions).map_err(failed)?;
    let times = NewTimes {
        atime: None,
        mtime: Some(root.times.mtime),
    };
    weald_sys::set_times_fd(dir, times).map_err(failed)
}

/// Removes a work directory and what overlayfs left in it.
///
/// # Errors
/// Errors of the system calls; a missing directory is none.
pub fn remove_work_dir(path: &Path) -> io::Result<()> {
    match openat(
        rustix::fs::CWD,
        path,
        OFlags::DIRECTORY | OFlags::NOFOLLOW,
        Mode::empty(),
    ) {
        Ok(_) => std::fs::remove_dir_all(path),
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
