//! The view cache: a directory with the metadata images of trees and the objects of all of them.
//!
//! | name | what it is |
//! |---|---|
//! | `weald-views` | marks the directory as a view cache, so that no other one is emptied |
//! | `images/IMAGE.cfs` | metadata image of the image with this image digest |
//! | `images/IMAGE.view` | its record, which appears when the view is complete |
//! | `images/IMAGE.verified` | empty: the fs-verity digests that this image keeps were computed |
//! | `objects/ab/cdef…` | a content, named by its fs-verity digest |
//! | `below` | empty; where EROFS is mounted, seen by no other process |
//! | `lock` | locked while a view is used for a mount (shared) or removed (exclusive) |
//! | `making` | locked while a view is made |
//!
//! Only the owner enters the directory: objects are readable by every mount, whatever the
//! permissions of the files that have them.
//!
//! No name comes from what an image claims. The image digest was computed from the image's bytes
//! when it was opened; an object has the name of the digest of its bytes. A view names an object
//! only if the image's own content was read and has that digest, now or when an earlier view of the
//! same image was made.

use super::dirs::{Dir, is_in_user_namespace, unsafe_parent};
use super::record::{RECORD_LEN_MAX, Record};
use crate::composefs::{Format, ImageOptions, ObjectPlace, VerityPolicy, data_len, write_image};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::SystemTime;
use weald_format::{Digest, Error, ErrorKind, Result};
use weald_image::Image;

/// Name and content of the file that marks a view cache.
const CACHE_MARKER: (&str, &str) = ("weald-views", "version 2\n");
/// Content of the mark of caches whose views had the names of tree digests, which images claim.
const OLD_MARK: &str = "version 1\n";
/// Directory of objects.
pub(super) const OBJECTS: &str = "objects";
/// Directory of metadata images and records.
const IMAGES: &str = "images";
/// Where EROFS is mounted.
pub(super) const BELOW: &str = "below";
/// End of the name of a metadata image.
pub(super) const IMAGE_SUFFIX: &str = ".cfs";
/// End of the name of a record.
pub(super) const RECORD_SUFFIX: &str = ".view";
/// End of the name of the empty file that says that the digests which an image keeps are right.
pub(super) const VERIFIED_SUFFIX: &str = ".verified";

/// Permissions of the cache.
const CACHE_DIR_MODE: u16 = 0o700;

/// An open view cache.
#[derive(Debug)]
pub struct ViewCache {
    dir: Dir,
    images: Dir,
    objects: Dir,
}

/// How a view is made.
pub struct ViewOptions<'a> {
    /// Protection of the objects.
    pub verity: VerityPolicy,
    /// Threads that read contents and write objects.
    pub thread_count: usize,
    /// Memory for lists, in bytes, besides the cache of the image.
    pub memory_len: u64,
    /// Limit of the cache.
    pub limit: ViewLimit,
    /// Whether to stop.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

/// Limit of a view cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewLimit {
    /// Bytes that the cache may have. Views without mounts make room for a new one.
    pub len_max: u64,
    /// Whether a view that does not fit all the same is refused.
    pub is_strict: bool,
}

impl ViewLimit {
    /// No limit.
    pub const NONE: Self = Self {
        len_max: u64::MAX,
        is_strict: false,
    };
}

/// A view, which stays in its cache as long as this value lives.
#[derive(Debug)]
pub struct View {
    /// Record of the view.
    pub record: Record,
    /// Whether this call made it.
    pub is_new: bool,
    name: String,
    _lock: File,
}

impl View {
    /// Path of the metadata image in the cache.
    pub(super) fn image_path(&self) -> String {
        format!("{IMAGES}/{}", image_name(&self.name))
    }

    /// Its name in the cache.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

pub(super) fn image_name(name: &str) -> String {
    format!("{name}{IMAGE_SUFFIX}")
}

pub(super) fn record_name(name: &str) -> String {
    format!("{name}{RECORD_SUFFIX}")
}

impl ViewCache {
    /// Opens the cache at `path`, or makes it. Views of a version that named them by what an image
    /// claims are removed.
    ///
    /// # Errors
    /// `Invalid` if somebody else owns the directory or may write to it, if somebody else can put
    /// another one in its place, or if it has other files; `Unsupported` for a cache of a later
    /// version; `NotFound`, `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error| Error::io(path.display().to_string(), error);
        let (fd, is_new) = weald_io::open_or_make_dir(path).map_err(read_only)?;
        if is_new {
            weald_sys::chmod_fd(&fd, CACHE_DIR_MODE).map_err(failed)?;
        }
        let absolute = std::path::absolute(path).map_err(failed)?;
        let dir = Dir::new(fd, absolute)?;
        if let Some(what) = unsafe_parent(&dir, is_in_user_namespace()?).map_err(failed)? {
            return Err(Error::invalid(format!(
                "{}: only root and you may be able to put another directory in the place of a \
                 view cache, and {what}: give --view-cache DIR elsewhere",
                path.display()
            )));
        }
        let is_old = check_mark(&dir)?;
        dir.enter(BELOW, CACHE_DIR_MODE)?;
        let cache = Self {
            images: dir.enter(IMAGES, CACHE_DIR_MODE)?,
            objects: dir.enter(OBJECTS, CACHE_DIR_MODE)?,
            dir,
        };
        if is_old {
            cache.remove_old_views()?;
        }
        Ok(cache)
    }

    /// Opens the cache at `path`, if there is one.
    ///
    /// # Errors
    /// As [`ViewCache::open`].
    pub fn find(path: &Path) -> Result<Option<Self>> {
        if path.join(CACHE_MARKER.0).is_file() {
            Self::open(path).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Whether a directory in `place` can be a cache of the caller: nobody else could put another
    /// one there.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    pub fn is_safe_in(place: &Path) -> Result<bool> {
        let failed = |error| Error::io(place.display().to_string(), error);
        let dir = weald_sys::open_dir(place).map_err(failed)?;
        let stat = weald_sys::stat_fd(&dir).map_err(failed)?;
        let is_own = stat.uid == weald_sys::effective_ids().0 && stat.permissions & 0o022 == 0;
        Ok(is_own
            && unsafe_parent(&dir, is_in_user_namespace()?)
                .map_err(failed)?
                .is_none())
    }

    /// Removes the views of an earlier version that no mount has. The names of the others are none
    /// of this version.
    fn remove_old_views(&self) -> Result<()> {
        let _lock = self.lock_and_wait("lock", FlockOperation::LockExclusive)?;
        for name in self.images.names()? {
            if let Some(name) = name.strip_suffix(IMAGE_SUFFIX)
                && self.record(name)?.is_none()
                && !self.is_mounted(name)?
            {
                self.remove_image(name)?;
            }
        }
        self.dir.write(CACHE_MARKER.0, CACHE_MARKER.1.as_bytes())
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The directory of objects.
    pub(super) fn objects(&self) -> &Dir {
        &self.objects
    }

    /// The directory of metadata images and records.
    pub(super) fn images(&self) -> &Dir {
        &self.images
    }

    pub(super) fn shown(&self) -> String {
        self.path().display().to_string()
    }

    pub(super) fn shown_at(&self, name: &str) -> String {
        self.dir.shown_at(name)
    }

    /// Opens the metadata image of a view.
    pub(super) fn open_image(&self, name: &str) -> Result<File> {
        let name = image_name(name);
        let missing = || self.images.error(&name, io::ErrorKind::NotFound.into());
        self.images.open(&name)?.ok_or_else(missing)
    }

    /// Waits for a lock of the whole cache; with `may_wait` off, returns `None` instead.
    pub(super) fn lock(&self, name: &str, how: FlockOperation) -> Result<Option<File>> {
        let file = self.dir.open_lock(name)?;
        loop {
            match flock(&file, how) {
                Ok(()) => return Ok(Some(file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(self.dir.error(name, errno.into())),
            }
        }
    }

    fn lock_and_wait(&self, name: &str, how: FlockOperation) -> Result<File> {
        let lock = self.lock(name, how)?;
        lock.ok_or_else(|| self.dir.error(name, io::ErrorKind::WouldBlock.into()))
    }

    /// Whether the view of `image` is there.
    pub(super) fn has_view(&self, image: &Image, options: &ViewOptions<'_>) -> Result<bool> {
        let name = name_of(&image.summary().image_digest);
        Ok(self.complete(&name, options)?.is_some())
    }

    /// Returns the view of `image`; makes it if it is not there, with at most `new_len_max` bytes
    /// of new objects.
    ///
    /// # Errors
    /// As [`write_image`].
    pub(super) fn make_view(
        &self,
        image: &Image,
        options: &ViewOptions<'_>,
        new_len_max: u64,
    ) -> Result<View> {
        let lock = self.lock_and_wait("lock", FlockOperation::LockShared)?;
        let name = name_of(&image.summary().image_digest);
        let view = |record, is_new| View {
            record,
            is_new,
            name: name.clone(),
            _lock: lock,
        };
        if let Some(record) = self.complete(&name, options)? {
            return Ok(view(record, false));
        }
        let _making = self.lock_and_wait("making", FlockOperation::LockExclusive)?;
        if let Some(record) = self.complete(&name, options)? {
            return Ok(view(record, false));
        }
        self.remove_image(&name)?;
        let made = self.write(image, &name, options, new_len_max);
        made.map(|record| view(record, true))
    }

    /// The record of a view that is complete and as well protected as `options` demand.
    fn complete(&self, name: &str, options: &ViewOptions<'_>) -> Result<Option<Record>> {
        let Some(record) = self.record(name)? else {
            return Ok(None);
        };
        let image = self.images.stat(&image_name(name))?;
        if image.is_none_or(|image| image.size != record.image_len) {
            return Ok(None);
        }
        if options.verity == VerityPolicy::Require && !record.is_protected {
            return Ok(None);
        }
        // The order in which `collect` removes views. A failure makes the view older than it is.
        let record_name = record_name(name);
        let touched = self.images.open(&record_name)?;
        if let Some(Err(error)) = touched.map(|file| file.set_modified(SystemTime::now())) {
            log::info!("{}: {error}", self.images.shown_at(&record_name));
        }
        Ok(Some(record))
    }

    /// Reads the record of a view; `None` without one, with a damaged one, and with that of another
    /// image.
    pub(super) fn record(&self, name: &str) -> Result<Option<Record>> {
        let bytes = self.images.read(&record_name(name), RECORD_LEN_MAX)?;
        let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
        let record = text.and_then(|text| Record::parse(&text).ok());
        Ok(record.filter(|record| name_of(&record.source) == name))
    }

    /// Removes record and image of a view that no mount has.
    pub(super) fn remove_image(&self, name: &str) -> Result<()> {
        if self.is_mounted(name)? {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{}: this metadata image is damaged or not protected by fs-verity, and a mount \
                     has it: unmount it first ('weald mounts' lists mounts)",
                    self.images.shown_at(&image_name(name))
                ),
            ));
        }
        self.images.remove(&record_name(name))?;
        self.images.remove(&image_name(name))
    }

    /// Whether the kernel, or a process, has the metadata image of a view open. A mount in any
    /// mount namespace counts.
    pub(super) fn is_mounted(&self, name: &str) -> Result<bool> {
        let name = image_name(name);
        match self.images.open(&name)? {
            None => Ok(false),
            Some(file) => {
                weald_sys::is_open_elsewhere(&file).map_err(|error| self.images.error(&name, error))
            }
        }
    }

    /// Bytes of the data of files in the view of `image`, holes left out.
    ///
    /// # Cost
    /// Walks the tree and reads all pages of extents.
    pub(super) fn data_len(&self, image: &Image, options: &ViewOptions<'_>) -> Result<u64> {
        data_len(image, &image_options(options, &self.dir.own_path()))
    }

    fn write(
        &self,
        image: &Image,
        name: &str,
        options: &ViewOptions<'_>,
        new_len_max: u64,
    ) -> Result<Record> {
        let verified = format!("{name}{VERIFIED_SUFFIX}");
        let is_verified = self.images.stat(&verified)?.is_some();
        let mut output = self.images.output(&image_name(name))?;
        let temp_dir = self.dir.own_path();
        let image_options = ImageOptions {
            objects: Some(ObjectPlace {
                path: self.objects.path(),
                dir: Some(self.objects.as_fd()),
                new_len_max,
                has_right_digests: is_verified,
            }),
            ..image_options(options, &temp_dir)
        };
        let written = write_image(image, &mut |bytes| output.write_all(bytes), &image_options)?;
        output.commit(true)?;
        let record = Record {
            source: image.summary().image_digest,
            image_len: written.image_len,
            image_digest: written.image_digest,
            object_count: written.object_count,
            object_len: written.object_len,
            is_protected: written.is_protected,
        };
        if !is_verified && image.keeps_fsverity() {
            // Each content was read, and its digest compared with the kept one.
            self.images.write(&verified, b"")?;
        }
        self.images
            .write(&record_name(name), record.encode().as_bytes())?;
        Ok(record)
    }
}

fn image_options<'a>(options: &ViewOptions<'a>, temp_dir: &'a Path) -> ImageOptions<'a> {
    ImageOptions {
        format: Format::AsNeeded,
        objects: None,
        verity: options.verity,
        thread_count: options.thread_count,
        memory_len: options.memory_len,
        temp_dir,
        is_cancelled: options.is_cancelled,
    }
}

impl AsFd for ViewCache {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Checks the mark of the directory, or puts it into an empty one. Returns whether it is that of an
/// earlier version.
fn check_mark(dir: &Dir) -> Result<bool> {
    let shown = dir.path().display();
    match dir.read(CACHE_MARKER.0, RECORD_LEN_MAX)? {
        Some(text) if text == CACHE_MARKER.1.as_bytes() => return Ok(false),
        Some(text) if text == OLD_MARK.as_bytes() => return Ok(true),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{shown}: a later version of weald made this view cache: use that, or give \
                     another --view-cache"
                ),
            ));
        }
        None => {}
    }
    if dir.names()?.is_empty() {
        dir.write(CACHE_MARKER.0, CACHE_MARKER.1.as_bytes())?
    } else {
        return Err(Error::invalid(format!(
            "{shown}: has files and is no view cache: give --view-cache an empty or new \
             directory"
        )));
    }
    Ok(false)
}

/// Says what to do about a cache in a place that cannot be written to.
fn read_only(error: Error) -> Error {
    let cause = error.io_source().map(io::Error::kind);
    if cause == Some(io::ErrorKind::ReadOnlyFilesystem) {
        error.context("give --view-cache DIR on a file system that can be written to")
    } else {
        error
    }
}

/// Name of the view of the image with this digest, which was compared with the image's bytes when
/// it was opened. It covers the generation, the tree, the contents and the digests that are kept of
/// them. (The tree digest is what an image claims: nobody compares it when an image is opened.)
pub(super) fn name_of(image_digest: &Digest) -> String {
    image_digest.to_string()
}
