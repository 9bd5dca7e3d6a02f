//! The view cache: a directory with the metadata images of trees and the objects of all of them.
//!
//! | name | what it is |
//! |---|---|
//! | `weald-views` | marks the directory as a view cache, so that no other one is emptied |
//! | `images/TREE.cfs` | metadata image of the tree with this digest |
//! | `images/TREE.view` | its record, which appears when the view is complete |
//! | `objects/ab/cdef…` | a content, named by its fs-verity digest |
//! | `below` | empty; where EROFS is mounted, seen by no other process |
//! | `lock` | locked while a view is used for a mount (shared) or removed (exclusive) |
//! | `making` | locked while a view is made |
//!
//! Only the owner enters the directory: objects are readable by every mount, whatever the
//! permissions of the files that have them.

use super::record::Record;
use crate::composefs::{Format, ImageOptions, VerityPolicy, write_image};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use weald_format::{Digest, Error, ErrorKind, Result};
use weald_image::Image;
use weald_io::{OutputFile, TargetKind};

/// Name and content of the file that marks a view cache.
const CACHE_MARKER: (&str, &str) = ("weald-views", "version 1\n");
/// Directory of objects.
pub(super) const OBJECTS: &str = "objects";
/// Directory of metadata images and records.
pub(super) const IMAGES: &str = "images";
/// Where EROFS is mounted.
pub(super) const BELOW: &str = "below";
/// End of the name of a metadata image.
pub(super) const IMAGE_SUFFIX: &str = ".cfs";
/// End of the name of a record.
pub(super) const RECORD_SUFFIX: &str = ".view";

/// Permissions of the cache.
const CACHE_DIR_MODE: u16 = 0o700;

/// An open view cache.
#[derive(Debug)]
pub struct ViewCache {
    dir: OwnedFd,
    path: PathBuf,
}

/// How a view is made.
pub struct ViewOptions<'a> {
    /// Protection of the objects.
    pub verity: VerityPolicy,
    /// Threads that read contents and write objects.
    pub thread_count: usize,
    /// Memory for lists, in bytes, besides the cache of the image.
    pub memory_len: u64,
    /// Whether to stop.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
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
        image_path(&self.name)
    }
}

pub(super) fn image_path(name: &str) -> String {
    format!("{IMAGES}/{name}{IMAGE_SUFFIX}")
}

pub(super) fn record_path(name: &str) -> String {
    format!("{IMAGES}/{name}{RECORD_SUFFIX}")
}

impl ViewCache {
    /// Opens the cache at `path`, or makes it.
    ///
    /// # Errors
    /// `Invalid` if somebody else owns the directory or may write to it, or if it has other files;
    /// `Unsupported` for a cache of a later version; `NotFound`, `Io`.
    pub fn open(path: &Path) -> Result<Self> {
        let (dir, is_new) = weald_io::open_or_make_dir(path)?;
        let cache = Self::of(dir, path)?;
        if is_new {
            weald_sys::chmod_fd(&cache.dir, CACHE_DIR_MODE).map_err(|e| cache.error("", e))?;
        }
        cache.check_mark()?;
        for name in [OBJECTS, IMAGES, BELOW] {
            match weald_sys::make_dir_at(&cache.dir, name.as_bytes(), CACHE_DIR_MODE) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(cache.error(name, error));
                }
                _ => {}
            }
        }
        Ok(cache)
    }

    /// Opens the cache at `path`, if there is one.
    ///
    /// # Errors
    /// As [`ViewCache::open`].
    pub fn find(path: &Path) -> Result<Option<Self>> {
        match path.join(CACHE_MARKER.0).is_file() {
            true => Self::open(path).map(Some),
            false => Ok(None),
        }
    }

    fn of(dir: OwnedFd, path: &Path) -> Result<Self> {
        let failed = |error| Error::io(path.display().to_string(), error);
        let stat = weald_sys::stat_fd(&dir).map_err(failed)?;
        let user = weald_sys::effective_ids().0;
        if stat.uid != user || stat.permissions & 0o022 != 0 {
            return Err(Error::invalid(format!(
                "{}: a view cache belongs to the user who mounts, and no other user may write to \
                 it; this directory belongs to user {} and has mode {:o}: give --view-cache DIR",
                path.display(),
                stat.uid,
                stat.permissions
            )));
        }
        let path = std::path::absolute(path).map_err(failed)?;
        Ok(Self { dir, path })
    }

    /// Checks the mark, or puts it into an empty directory.
    fn check_mark(&self) -> Result<()> {
        let path = self.path.join(CACHE_MARKER.0);
        match std::fs::read(&path) {
            Ok(text) if text == CACHE_MARKER.1.as_bytes() => return Ok(()),
            Ok(_) => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "{}: a later version of weald made this view cache: use that, or give \
                         another --view-cache",
                        self.shown()
                    ),
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(self.error(CACHE_MARKER.0, error)),
        }
        let mut entries = std::fs::read_dir(&self.path).map_err(|e| self.error("", e))?;
        if entries.next().is_some() {
            return Err(Error::invalid(format!(
                "{}: has files and is no view cache: give --view-cache an empty or new directory",
                self.shown()
            )));
        }
        let mut output = OutputFile::create(&path, TargetKind::File)?;
        output.write_all(CACHE_MARKER.1.as_bytes())?;
        output.commit(true)
    }

    /// Its absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) fn shown_at(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    pub(super) fn error(&self, name: &str, error: io::Error) -> Error {
        Error::io(self.shown_at(name), error)
    }

    /// Waits for a lock of the whole cache; with `may_wait` off, returns `None` instead.
    pub(super) fn lock(&self, name: &str, how: FlockOperation) -> Result<Option<File>> {
        let path = self.path.join(name);
        let opened = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path);
        let file = opened.map_err(|error| self.error(name, error))?;
        loop {
            match flock(&file, how) {
                Ok(()) => return Ok(Some(file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(errno) => return Err(self.error(name, errno.into())),
            }
        }
    }

    fn lock_and_wait(&self, name: &str, how: FlockOperation) -> Result<File> {
        let lock = self.lock(name, how)?;
        lock.ok_or_else(|| self.error(name, io::ErrorKind::WouldBlock.into()))
    }

    /// Returns the view of `image`; makes it if it is not there.
    ///
    /// # Errors
    /// As [`write_image`].
    pub(super) fn make_view(&self, image: &Image, options: &ViewOptions<'_>) -> Result<View> {
        let lock = self.lock_and_wait("lock", FlockOperation::LockShared)?;
        let name = name_of(&image.summary().tree_digest);
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
        let made = self.write(image, &name, options);
        made.map(|record| view(record, true))
    }

    /// The record of a view that is complete and as well protected as `options` demand.
    fn complete(&self, name: &str, options: &ViewOptions<'_>) -> Result<Option<Record>> {
        let Some(record) = self.record(name)? else {
            return Ok(None);
        };
        let image = std::fs::metadata(self.path.join(image_path(name)));
        if !image.is_ok_and(|image| image.len() == record.image_len) {
            return Ok(None);
        }
        if options.verity == VerityPolicy::Require && !record.is_protected {
            return Ok(None);
        }
        // The order in which `collect` removes views. A failure makes the view older than it is.
        let touched = File::open(self.path.join(record_path(name)))
            .and_then(|file| file.set_modified(SystemTime::now()));
        if let Err(error) = touched {
            log::info!("{}: {error}", self.shown_at(&record_path(name)));
        }
        Ok(Some(record))
    }

    /// Reads the record of a view; `None` without one, or with a damaged one.
    pub(super) fn record(&self, name: &str) -> Result<Option<Record>> {
        let path = record_path(name);
        match std::fs::read_to_string(self.path.join(&path)) {
            Ok(text) => Ok(Record::parse(&text).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
            Err(error) => Err(self.error(&path, error)),
        }
    }

    /// Removes record and image of a view that no mount has.
    pub(super) fn remove_image(&self, name: &str) -> Result<()> {
        if self.is_mounted(name)? {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{}: this metadata image is damaged or not protected by fs-verity, and a mount \
                     has it: unmount it first ('weald mounts' lists mounts)",
                    self.shown_at(&image_path(name))
                ),
            ));
        }
        for path in [record_path(name), image_path(name)] {
            match std::fs::remove_file(self.path.join(&path)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(self.error(&path, error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether the kernel, or a process, has the metadata image of a view open. A mount in any
    /// mount namespace counts.
    pub(super) fn is_mounted(&self, name: &str) -> Result<bool> {
        let path = image_path(name);
        let file = match File::open(self.path.join(&path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other.map_err(|error| self.error(&path, error))?,
        };
        weald_sys::is_open_elsewhere(&file).map_err(|error| self.error(&path, error))
    }

    fn write(&self, image: &Image, name: &str, options: &ViewOptions<'_>) -> Result<Record> {
        let path = self.path.join(image_path(name));
        let mut output = OutputFile::create(&path, TargetKind::File)?;
        let objects = self.path.join(OBJECTS);
        let image_options = ImageOptions {
            format: Format::AsNeeded,
            objects: Some(&objects),
            verity: options.verity,
            thread_count: options.thread_count,
            memory_len: options.memory_len,
            temp_dir: &self.path,
            is_cancelled: options.is_cancelled,
        };
        let written = write_image(image, &mut |bytes| output.write_all(bytes), &image_options)?;
        output.commit(false)?;
        let record = Record {
            image_len: written.image_len,
            image_digest: written.image_digest,
            object_count: written.object_count,
            object_len: written.object_len,
            is_protected: written.is_protected,
        };
        let path = self.path.join(record_path(name));
        let mut output = OutputFile::create(&path, TargetKind::File)?;
        output.write_all(record.encode().as_bytes())?;
        output.commit(true)?;
        Ok(record)
    }
}

impl AsFd for ViewCache {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// Name of the view of the tree with this digest.
pub(super) fn name_of(tree_digest: &Digest) -> String {
    tree_digest.to_string()
}
