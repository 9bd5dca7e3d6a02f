//! Makes the mount, without a place at first: EROFS, and overlayfs over it and the objects.
//!
//! EROFS needs a path until overlayfs has it. A thread with its own mounts gives it one that no
//! other process sees, and that a killed process does not leave behind.

use super::cache::{BELOW, OBJECTS, View, ViewCache};
use super::record::hex;
use super::table::{SOURCE_MARK, is_plain};
use super::upper::Upper;
use super::warm;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_fd,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use weald_format::{Error, ErrorKind, Result};

/// Longest string that fsconfig(2) accepts, in bytes.
const FSCONFIG_VALUE_LEN_MAX: usize = 255;

/// Messages of the kernel that an error quotes.
const MESSAGE_COUNT_MAX: usize = 8;

/// Methods that newer kernels have. Each has an older one that is used if the kernel refuses it, or
/// if the method is turned off here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Methods {
    /// EROFS on a file, without a loop device: Linux 6.12.
    pub file_backed: bool,
    /// A loop device that reads past the page cache of the file.
    pub direct_loop: bool,
    /// Layers as `lowerdir+` and `datadir+`: Linux 6.7.
    pub layer_options: bool,
}

impl Default for Methods {
    fn default() -> Self {
        Self {
            file_backed: true,
            direct_loop: true,
            layer_options: true,
        }
    }
}

/// The parts of a mount.
pub(super) struct Assembly<'a> {
    pub cache: &'a ViewCache,
    pub view: &'a View,
    pub expected_digest: Option<[u8; 32]>,
    pub source: &'a OsStr,
    pub upper: Option<&'a Upper>,
    pub is_verified: bool,
    pub attributes: MountAttrFlags,
    pub methods: Methods,
}

impl Assembly<'_> {
    /// Makes the mount; [`attach`] gives it a place.
    ///
    /// # Errors
    /// Errors of the system calls, with the messages of the kernel.
    pub fn make(&self) -> Result<OwnedFd> {
        let made = weald_sys::with_own_mounts(|| {
            self.enter_cache()?;
            self.mount_metadata()?;
            self.overlay()
        });
        made.map_err(|error| Error::io("a thread with its own mounts", error))?
    }

    /// Makes the cache the working directory, so that paths in it are short. The open directory
    /// itself would not do: it is in the mounts of the other threads.
    fn enter_cache(&self) -> Result<()> {
        let failed = |errno: Errno| Error::io(self.cache.shown(), errno.into());
        rustix::process::chdir(self.cache.path()).map_err(failed)?;
        let here = rustix::fs::open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        check_same(
            here.map_err(failed)?.as_fd(),
            self.cache.as_fd(),
            &self.cache.shown(),
        )
    }

    /// Mounts the metadata image at [`BELOW`], after reading it.
    fn mount_metadata(&self) -> Result<()> {
        let path = self.view.image_path();
        let shown = self.cache.shown_at(&path);
        let failed = |error| Error::io(shown.clone(), error);
        let file = File::open(&path).map_err(failed)?;
        let expected = self.cache.open_image(self.view.name())?;
        check_same(file.as_fd(), expected.as_fd(), &shown)?;
        let len = self.view.record.image_len;
        if let Some(expected) = self.expected_digest {
            check_digest(&file, len, &expected, &shown)?;
        }
        if self.methods.file_backed {
            match erofs(Path::new(&path)) {
                Ok(mount) => {
                    warm::read_ahead(&file, len, &shown)?;
                    return attach_below(&mount);
                }
                Err(error) => log::info!("no EROFS on a file, a loop device instead: {error:?}"),
            }
        }
        let attached = weald_sys::attach_loop(&file, self.methods.direct_loop);
        let (device, device_path) = attached
            .map_err(|error| Error::io(format!("{shown}: attaching it to a loop device"), error))?;
        let mount = erofs(&device_path)?;
        // The mount reads through the page cache of the device. That of the file is another one.
        warm::read_ahead(&device, len, &device_path.display().to_string())?;
        attach_below(&mount)
    }

    fn overlay(&self) -> Result<OwnedFd> {
        let context = open_type("overlay")?;
        let set = |key: &str, value: &[u8]| match fsconfig_set_string(&context, key, value) {
            Ok(()) => Ok(()),
            Err(errno) => Err(refused(
                &context,
                &format!("overlayfs, option {key}"),
                errno,
            )),
        };
        set("source", &shown_source(self.source))?;
        self.set_layers(&context)?;
        set("metacopy", b"on")?;
        set("redirect_dir", b"on")?;
        if self.is_verified {
            set("verity", b"require")?;
        }
        let mut opened = Vec::new();
        if let Some(upper) = self.upper {
            for (key, dir) in [("upperdir", &upper.dir), ("workdir", &upper.work)] {
                let (fd, words) = reopen(dir)?;
                set(key, &words)?;
                opened.push(fd);
            }
        }
        if let Err(errno) = fsconfig_create(&context) {
            return Err(refused(&context, "overlayfs", errno));
        }
        let mut attributes = self.attributes;
        attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, self.upper.is_none());
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
            .map_err(|errno| refused(&context, "overlayfs", errno))
    }

    /// Names the layers: the metadata, and the objects as a layer of data only. The kernel gets the
    /// open directory of objects where it takes one (Linux 6.13), otherwise a path. The cache lies
    /// where nobody else can exchange a directory on that path.
    fn set_layers(&self, context: &OwnedFd) -> Result<()> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Among the mounts of this thread.
        let opened = rustix::fs::open(OBJECTS, flags, Mode::empty());
        let shown = self.cache.shown_at(OBJECTS);
        let opened = opened.map_err(|errno| Error::io(shown.clone(), errno.into()))?;
        check_same(opened.as_fd(), self.cache.objects().as_fd(), &shown)?;
        let absolute = self.cache.path().join(OBJECTS);
        let objects = if is_plain(&absolute) {
            absolute.as_os_str().as_bytes().to_vec()
        } else {
            OBJECTS.as_bytes().to_vec()
        };
        if self.methods.layer_options && fsconfig_set_string(context, "lowerdir+", BELOW).is_ok() {
            return fsconfig_set_fd(context, "datadir+", opened.as_fd())
                .or_else(|_| fsconfig_set_string(context, "datadir+", objects.as_slice()))
                .map_err(|errno| refused(context, "overlayfs, option datadir+", errno));
        }
        let mut layers = [BELOW.as_bytes(), b"::", &objects].concat();
        if layers.len() > FSCONFIG_VALUE_LEN_MAX {
            layers = format!("{BELOW}::{OBJECTS}").into_bytes();
        }
        fsconfig_set_string(context, "lowerdir", layers.as_slice()).map_err(|errno| {
            let error = refused(context, "overlayfs, option lowerdir", errno);
            match errno {
                Errno::INVAL => error.context(
                    "the kernel has no layers of data only (Linux 6.5): leave --kernel out to \
                     mount through FUSE",
                ),
                _ => error,
            }
        })
    }
}

/// Gives the mount `made` its place on the directory `point`.
pub(super) fn attach(made: &OwnedFd, point: BorrowedFd<'_>) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(made.as_fd(), "", point, "", flags).map_err(|errno| Error::io("mount", errno.into()))
}

fn attach_below(mount: &OwnedFd) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(mount.as_fd(), "", CWD, BELOW, flags)
        .map_err(|errno| Error::io("mount of the metadata", errno.into()))
}

/// Makes a mount of the EROFS image at `path`, without a place.
fn erofs(path: &Path) -> Result<OwnedFd> {
    let context = open_type("erofs")?;
    let what = format!("EROFS on {}", path.display());
    fsconfig_set_string(&context, "source", path)
        .and_then(|()| fsconfig_set_flag(&context, "ro"))
        .and_then(|()| fsconfig_create(&context))
        .map_err(|errno| refused(&context, &what, errno))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        .map_err(|errno| refused(&context, &what, errno))
}

/// Opens a context of the file system `name`.
pub(super) fn open_type(name: &str) -> Result<OwnedFd> {
    fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|errno| match errno {
        Errno::NODEV => Error::new(
            ErrorKind::Unsupported,
            format!(
                "the kernel has no file system {name} (is the module loaded?): leave --kernel out \
                 to mount through FUSE"
            ),
        ),
        errno => Error::io(format!("file system {name}"), errno.into()),
    })
}

/// The error of a refused step, with what the kernel says about it.
pub(super) fn refused(context: &OwnedFd, what: &str, errno: Errno) -> Error {
    let messages = messages(context);
    let error = Error::io(what.to_owned(), errno.into());
    if messages.is_empty() {
        error
    } else {
        error.context(format!("the kernel says '{}'", messages.join("; ")))
    }
}

/// Reads the messages that a context has; each begins with its level, as in `e overlay: …`.
fn messages(context: &OwnedFd) -> Vec<String> {
    let mut messages = Vec::new();
    let mut buffer = [0; 1024];
    while messages.len() < MESSAGE_COUNT_MAX {
        let Ok(len) = rustix::io::read(context, &mut buffer) else {
            break;
        };
        let text = String::from_utf8_lossy(buffer.get(..len).unwrap_or_default());
        let text = text.trim_end();
        let text = text
            .strip_prefix("e ")
            .or(text.strip_prefix("w "))
            .unwrap_or(text);
        messages.push(text.to_owned());
    }
    messages
}

fn check_digest(file: &File, len: u64, expected: &[u8; 32], shown: &str) -> Result<()> {
    let found = warm::digest(file, len, shown)?;
    if found == *expected {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "{shown}: this metadata image has the fs-verity digest {}, and --digest demands {}: \
         the tree is another one, or the file is damaged; without mounts of it, 'weald store \
         gc --views' removes it and the next mount makes it again",
            hex(&found),
            hex(expected)
        )))
    }
}

/// A directory of the writable layer, opened among the mounts of this thread, and the path that
/// overlayfs gets for it: that of the descriptor if the options cannot hold its own.
pub(super) fn reopen((opened, path): &(OwnedFd, PathBuf)) -> Result<(OwnedFd, Vec<u8>)> {
    let shown = || path.display().to_string();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|errno| Error::io(shown(), errno.into()))?;
    check_same(fd.as_fd(), opened.as_fd(), &shown())?;
    let words = if is_plain(path) {
        path.as_os_str().as_bytes().to_vec()
    } else {
        format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes()
    };
    Ok((fd, words))
}

/// Checks that a directory is the one that was opened before under the same path.
fn check_same(found: BorrowedFd<'_>, expected: BorrowedFd<'_>, shown: &str) -> Result<()> {
    let inode = |fd| {
        let stat = rustix::fs::fstat(fd);
        stat.map(|stat| (stat.st_dev, stat.st_ino))
            .map_err(|errno| Error::io(shown.to_owned(), errno.into()))
    };
    if inode(found)? == inode(expected)? {
        Ok(())
    } else {
        Err(Error::invalid(format!(
            "{shown}: was replaced by another directory: mount again"
        )))
    }
}

/// The source of the mount: the mark, and `source` or its end after `...`.
pub(super) fn shown_source(source: &OsStr) -> Vec<u8> {
    let len_max = FSCONFIG_VALUE_LEN_MAX - SOURCE_MARK.len();
    let bytes = source.as_bytes();
    let (dots, kept) = if bytes.len() <= len_max {
        ("", bytes)
    } else {
        ("...", &bytes[bytes.len() - (len_max - 3)..])
    };
    [SOURCE_MARK.as_bytes(), dots.as_bytes(), kept].concat()
}
