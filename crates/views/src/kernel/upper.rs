//! The writable layer of a mount: a directory for what is changed, and the work directory that
//! overlayfs needs beside it.
//!
//! The layer refers to the tree below it: a file of which only attributes were changed has no data
//! of its own, and a renamed directory names the one it was. Over another tree both would show
//! something that nobody made. So the layer notes the tree in an xattr that overlayfs hides, and
//! another tree is refused.

use super::record::hex;
use super::table;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use weald_format::{ACL_ACCESS, ACL_DEFAULT, Digest, Error, ErrorKind, FileKind, Result};
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

/// Names of xattrs of a layer.
struct XattrNames {
    /// Begin of all xattrs that overlayfs reads.
    prefix: &'static [u8],
    /// Begin of those that it shows to programs without the second word.
    escaped: &'static [u8],
    probe: &'static [u8],
    /// The digest of the metadata image that the layer was made over.
    tree: &'static [u8],
    /// The digest of the tree that the layer was made over.
    base: &'static [u8],
    opaque: &'static [u8],
    whiteout: &'static [u8],
    metacopy: &'static [u8],
    redirect: &'static [u8],
}

const TRUSTED_NAMES: XattrNames = XattrNames {
    prefix: b"trusted.overlay.",
    escaped: b"trusted.overlay.overlay.",
    probe: b"trusted.overlay.probe",
    tree: b"trusted.overlay.weald.tree",
    base: b"trusted.overlay.weald.base",
    opaque: b"trusted.overlay.opaque",
    whiteout: b"trusted.overlay.whiteout",
    metacopy: b"trusted.overlay.metacopy",
    redirect: b"trusted.overlay.redirect",
};

const USER_NAMES: XattrNames = XattrNames {
    prefix: b"user.overlay.",
    escaped: b"user.overlay.overlay.",
    probe: b"user.overlay.probe",
    tree: b"user.overlay.weald.tree",
    base: b"user.overlay.weald.base",
    opaque: b"user.overlay.opaque",
    whiteout: b"user.overlay.whiteout",
    metacopy: b"user.overlay.metacopy",
    redirect: b"user.overlay.redirect",
};

impl XattrKind {
    fn names(self) -> &'static XattrNames {
        match self {
            Self::Trusted => &TRUSTED_NAMES,
            Self::User => &USER_NAMES,
        }
    }
}

/// The directories of a writable layer, and whether one of another tree is taken.
#[derive(Debug, Clone, Copy)]
pub struct UpperLayer<'a> {
    /// Directory of what is changed; it is made if it is missing.
    pub dir: &'a Path,
    /// Work directory of overlayfs; the default is beside the layer.
    pub work: Option<&'a Path>,
    /// Whether a layer that was made over another tree is taken, if nothing in it depends on that.
    pub is_adopted: bool,
}

/// Entries of a layer that an error names.
const NAMED_COUNT_MAX: usize = 3;

/// Memory for entries of a directory, in bytes.
const LIST_BUFFER_LEN: usize = 32 << 10;

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
    /// Opens the directory of `layer` and its work directory, or makes them. A new layer gets the
    /// attributes of the root of `image`: it covers that directory. `tree` is the digest of the
    /// metadata image of the view, which all images of an equal tree have.
    ///
    /// # Errors
    /// `Busy` if another mount has the layer; `Unsupported` if its file system has no xattrs;
    /// `Invalid` if the work directory is on another one, or if the layer was made over another
    /// tree; `Io`.
    pub fn prepare(
        layer: &UpperLayer<'_>,
        image: &Image,
        tree: &[u8; 32],
        kind: XattrKind,
    ) -> Result<Self> {
        let (dir, is_new) = open(layer.dir)?;
        let shown = dir.1.display().to_string();
        refuse_used(&dir.1)?;
        if let Err(error) = probe(&dir.0, kind) {
            return Err(no_xattrs(&shown, error));
        }
        if is_new {
            copy_root(image, &dir.0, kind).map_err(|error| error.context(&shown))?;
        }
        note_tree(&dir.0, &shown, tree, kind, layer.is_adopted)?;
        let base = image.summary().tree_digest.to_string();
        weald_sys::set_xattr_fd(&dir.0, kind.names().base, base.as_bytes())
            .map_err(|error| Error::io(shown.clone(), error))?;
        let beside;
        let work = match layer.work {
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
        let failed = |error| Error::io(path.display().to_string(), error);
        // An inherited ACL would let in whom the image does not.
        for name in [ACL_DEFAULT, ACL_ACCESS] {
            match weald_sys::remove_xattr_fd(&fd, name) {
                Err(error) if !weald_sys::is_without_xattr(&error) => return Err(failed(error)),
                _ => {}
            }
        }
        weald_sys::chmod_fd(&fd, WORK_MODE).map_err(failed)?;
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
    let name = kind.names().probe;
    weald_sys::set_xattr_fd(dir, name, b"y")?;
    weald_sys::remove_xattr_fd(dir, name)
}

fn no_xattrs(shown: &str, error: io::Error) -> Error {
    if weald_sys::is_without_xattr(&error) {
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "{shown}: its file system has no xattrs, which a writable layer needs: give \
             --upper a directory on ext4, XFS, btrfs or tmpfs"
            ),
        )
    } else {
        Error::io(format!("{shown}: setting an xattr"), error)
    }
}

/// Notes in the layer `dir` that it lies over `tree`.
///
/// # Errors
/// `Invalid` if it has something that was made over another tree, or over one that is not known.
fn note_tree(
    dir: &OwnedFd,
    shown: &str,
    tree: &[u8; 32],
    kind: XattrKind,
    is_adopted: bool,
) -> Result<()> {
    let failed = |error| Error::io(shown.to_owned(), error);
    let (name, tree) = (kind.names().tree, hex(tree));
    let found = xattr(|| weald_sys::get_xattr_fd(dir, name)).map_err(failed)?;
    if found.as_deref() == Some(tree.as_bytes()) {
        return Ok(());
    }
    if !is_empty(dir).map_err(failed)? {
        if is_adopted {
            refuse_dependent(dir, shown, kind)?
        } else {
            return Err(other_tree(shown, found.is_some()));
        }
    }
    weald_sys::set_xattr_fd(dir, name, tree.as_bytes()).map_err(failed)
}

/// Checks that the layer `dir`, called `shown`, was made over a tree with the digest `tree`, or if
/// it is `adopted`, that nothing in it depends on the tree that it was made over: then `adopted`
/// says how it notes what it hides, unless a note of Weald does. Returns how it does.
///
/// # Errors
/// `Invalid` if it was not; `Io`.
pub fn layer_over(
    dir: &OwnedFd,
    shown: &str,
    tree: &Digest,
    adopted: Option<XattrKind>,
) -> Result<XattrKind> {
    let failed = |error| Error::io(shown.to_owned(), error);
    let mut noted = None;
    for kind in [XattrKind::Trusted, XattrKind::User] {
        let base = xattr(|| weald_sys::get_xattr_fd(dir, kind.names().base)).map_err(failed)?;
        noted = noted.or(base.map(|base| (kind, base)));
    }
    let what = match (noted, adopted) {
        (Some((kind, base)), _) if base == tree.to_string().as_bytes() => return Ok(kind),
        (Some((kind, _)), Some(_)) => {
            refuse_dependent(dir, shown, kind)?;
            return Ok(kind);
        }
        (None, Some(kind)) => {
            refuse_dependent(dir, shown, kind)?;
            refuse_other_notes(dir, shown, kind)?;
            return Ok(kind);
        }
        (Some(_), None) => "was made over another tree than that of the base image",
        (None, None) => "nothing says over which image it was made",
    };
    Err(Error::invalid(format!(
        "{shown}: {what}: --adopt-upper takes it if nothing in it depends on that image"
    )))
}

/// Refuses a layer that has notes of the kind that is not `kind`.
fn refuse_other_notes(dir: &OwnedFd, shown: &str, kind: XattrKind) -> Result<()> {
    let (other, hint) = match kind {
        XattrKind::Trusted => (XattrKind::User, "give --userxattr"),
        XattrKind::User => (XattrKind::Trusted, "leave out --userxattr"),
    };
    let names = other.names();
    let steering = [names.opaque, names.whiteout, names.redirect, names.metacopy];
    let found = entries_with(dir, &steering).map_err(|error| Error::io(shown.to_owned(), error))?;
    match found.first() {
        None => Ok(()),
        Some(path) => Err(Error::invalid(format!(
            "{shown}: {} has notes of overlayfs in xattrs that begin with {}: {hint}",
            path.escape_ascii(),
            names.prefix.escape_ascii()
        ))),
    }
}

fn other_tree(shown: &str, is_known: bool) -> Error {
    let what = if is_known {
        "was made over another image"
    } else {
        "has files, and nothing says over which image it was made"
    };
    Error::invalid(format!(
        "{shown}: this writable layer {what}; over this one, files of which only owner, mode or \
         times were changed would show the wrong data: mount the image that it was made over, give \
         another --upper, or give --adopt-upper, which takes the layer if all changed files in it \
         have their own data"
    ))
}

/// Refuses a layer with files or directories that depend on the tree below it.
fn refuse_dependent(dir: &OwnedFd, shown: &str, kind: XattrKind) -> Result<()> {
    let dependent = dependent(dir, kind).map_err(|error| Error::io(shown.to_owned(), error))?;
    let named = dependent.iter().take(NAMED_COUNT_MAX);
    let named: Vec<_> = named.map(|path| path.escape_ascii().to_string()).collect();
    match dependent.len() {
        0 => Ok(()),
        count => Err(Error::invalid(format!(
            "{shown}: {count} entries have their data or their other names in the image that this \
             layer was made over: {}{}: mount that image with the layer, open each such file for \
             writing (': >> FILE'), so that it gets its own data, and copy renamed directories; or \
             remove the entries from the layer",
            named.join(", "),
            if count > named.len() { ", …" } else { "" }
        ))),
    }
}

/// Paths in the layer of files without own data and of renamed directories.
fn dependent(dir: &OwnedFd, kind: XattrKind) -> io::Result<Vec<Vec<u8>>> {
    let names = kind.names();
    entries_with(dir, &[names.metacopy, names.redirect])
}

/// Paths in the layer of entries with one of these xattrs, sorted.
fn entries_with(dir: &OwnedFd, xattr_names: &[&[u8]]) -> io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    let mut remaining: Vec<Vec<u8>> = vec![b".".to_vec()];
    while let Some(path) = remaining.pop() {
        let at = weald_sys::open_dir_at(weald_sys::open_beneath(dir, &path)?, b".")?;
        let mut entries: Vec<Vec<u8>> = Vec::new();
        let mut buffer = weald_sys::DirBuffer::new(LIST_BUFFER_LEN);
        weald_sys::read_dir(&at, &mut buffer, |entry| {
            entries.push(entry.name.to_vec());
            Ok(())
        })?;
        for name in entries {
            let path = match path.as_slice() {
                b"." => name.clone(),
                path => [path, b"/", &name].concat(),
            };
            let has = |xattr_name| {
                xattr(|| weald_sys::get_xattr_at(&at, &name, xattr_name)).map(|x| x.is_some())
            };
            for xattr_name in xattr_names {
                if has(xattr_name)? {
                    found.push(path.clone());
                    break;
                }
            }
            if weald_sys::stat_at(&at, &name)?.kind == FileKind::Directory {
                remaining.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The value of an xattr that may be missing.
fn xattr(get: impl FnOnce() -> io::Result<Vec<u8>>) -> io::Result<Option<Vec<u8>>> {
    match get() {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(Errno::NODATA.raw_os_error()) => Ok(None),
        Err(error) if weald_sys::is_without_xattr(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_empty(dir: &OwnedFd) -> io::Result<bool> {
    let at = weald_sys::open_dir_at(dir, b".")?;
    let mut is_empty = true;
    let mut buffer = weald_sys::DirBuffer::new(LIST_BUFFER_LEN);
    weald_sys::read_dir(at, &mut buffer, |_| {
        is_empty = false;
        Ok(())
    })?;
    Ok(is_empty)
}

/// The name that an xattr of the image gets in the layer, so that overlayfs shows it under its own
/// name and does not act on it.
fn name_in_layer(name: &[u8], kind: XattrKind) -> Vec<u8> {
    let names = kind.names();
    match name.strip_prefix(names.prefix) {
        Some(rest) => [names.escaped, rest].concat(),
        None => name.to_vec(),
    }
}

/// Gives a new layer the owner, permissions, xattrs and time of the image's root.
fn copy_root(image: &Image, dir: &OwnedFd, kind: XattrKind) -> Result<()> {
    let root = image.root()?;
    let failed = |error: io::Error| Error::io("attributes of the root", error);
    let attributes = root.attributes;
    let (uid, gid) = (Some(attributes.uid), Some(attributes.gid));
    weald_sys::chown_fd(dir, uid, gid).map_err(failed)?;
    for xattr in image.xattrs(&root)?.iter() {
        let name = name_in_layer(&xattr.name, kind);
        match weald_sys::set_xattr_fd(dir, &name, &xattr.value) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Would catch: a user whom an ACL beside the layer lets into the whole mount.
    #[test]
    fn a_new_layer_inherits_no_acl() {
        let temp = tempfile::tempdir().expect("a directory");
        let set = Command::new("setfacl")
            .args(["-d", "-m", "u:1234:rwx"])
            .arg(temp.path())
            .status();
        assert!(set.expect("setfacl").success());
        let ((fd, _), is_new) = open(&temp.path().join("upper")).expect("made");
        assert!(is_new);
        for name in [ACL_DEFAULT, ACL_ACCESS] {
            let found = weald_sys::get_xattr_at(&fd, b"", name);
            assert!(found.is_err_and(|error| weald_sys::is_without_xattr(&error)));
        }
        let stat = weald_sys::stat_fd(&fd).expect("stat");
        assert_eq!(stat.permissions, WORK_MODE);
    }
}
