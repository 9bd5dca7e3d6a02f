//! Destination of an image, and the image that it continues.

use crate::dedup::contents::ContentTable;
use crate::dedup::starting_images::OpenedImages;
use crate::options::BuildOptions;
use crate::write::image_writer::Sink;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::store::Part;
use weald_format::{ContentId, Digest, FileKind, Result};
use weald_io::{OutputFile, ReadAt};
use weald_store::Incoming;

/// An image of a store that the new image continues.
pub struct Continued {
    /// Reader of its bytes.
    pub source: Arc<dyn ReadAt>,
    /// Its content as parts: blocks of the store and literal bytes.
    pub parts: Vec<Part>,
    /// Its name in the store.
    pub name: String,
    /// Digests of its contents by number, as far as the store has them.
    pub digests: Option<Vec<Option<Digest>>>,
}

/// A build into a store.
pub struct Intake {
    /// The image being written.
    pub incoming: Arc<Mutex<Incoming>>,
    /// The image that it continues.
    pub continued: Option<Continued>,
    /// Directory of the spools.
    pub spool_dir: PathBuf,
    /// Digests of the contents of the image that was built, by number.
    pub digests: Mutex<Vec<Digest>>,
}

/// Destination of an image.
pub enum Destination<'a> {
    /// A file, which may exist.
    File {
        /// Its path.
        target: &'a Path,
        /// Whether an existing file may be replaced.
        overwrite: bool,
    },
    /// A store.
    Store(&'a Intake),
}

impl Destination<'_> {
    /// Opens the images that the new one continues or refers to.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `NotFound`, `Busy`, `Unsupported`, `Limit`, `Invalid`.
    pub fn open_starting(&self, options: &BuildOptions, threads: usize) -> Result<OpenedImages> {
        match self {
            Self::File { target, overwrite } => {
                let is_appended = is_appended(target, *overwrite, options)?;
                OpenedImages::open(target, is_appended, options, threads)
            }
            Self::Store(intake) => match &intake.continued {
                Some(continued) => {
                    let (source, digests) = (continued.source.clone(), continued.digests.clone());
                    OpenedImages::continued(source, digests, options, threads)
                }
                None => Ok(OpenedImages::default()),
            },
        }
    }

    /// Opens the destination for writing, behind the `starting` image. Also returns the inodes that
    /// the image must not contain.
    ///
    /// # Errors
    /// `Io`, `Full`, `Invalid`.
    pub fn open_sink(
        &self,
        starting: &OpenedImages,
        options: &BuildOptions,
    ) -> Result<(Sink, Vec<(u64, u64)>)> {
        match self {
            Self::File { target, .. } => {
                let out = match starting.appended() {
                    Some(image) => OutputFile::append(target, image.summary().image_len)?,
                    None => options.new_output(target)?,
                };
                let own = own_inodes(&out, target);
                Ok((Sink::File(out), own))
            }
            Self::Store(intake) => {
                let dir = weald_sys::stat_path(&intake.spool_dir);
                let own = dir.map(|stat| (stat.dev, stat.ino)).into_iter().collect();
                Ok((Sink::Store(intake.incoming.clone()), own))
            }
        }
    }

    /// Directory of the spools.
    pub fn spool_dir(&self) -> PathBuf {
        match self {
            Self::File { target, .. } => spool_dir(target),
            Self::Store(intake) => intake.spool_dir.clone(),
        }
    }

    /// Keeps the digests of the new image's contents, if the destination has a place for them.
    pub fn keep_digests(&self, contents: &ContentTable) {
        if let Self::Store(intake) = self {
            let ids = (0..contents.count()).map(ContentId);
            *intake.digests.lock() = ids.map(|id| contents.digest(id)).collect();
        }
    }

    /// Whether an existing file may be replaced.
    pub const fn overwrites(&self) -> bool {
        matches!(
            self,
            Self::File {
                overwrite: true,
                ..
            }
        )
    }
}

/// Whether the build appends to an image at `target`.
fn is_appended(target: &Path, overwrite: bool, options: &BuildOptions) -> Result<bool> {
    let is_there = || target != Path::new("-") && weald_sys::stat_path(target).is_ok();
    match options.append && is_there() {
        true => Ok(true),
        false if overwrite => Ok(false),
        false => weald_io::refuse_existing(target).map(|()| false),
    }
}

/// Directory of the spools: that of the image, because its file system has room for data of this
/// size if any has.
pub fn spool_dir(target: &Path) -> std::path::PathBuf {
    match target.parent() {
        Some(dir) if target != Path::new("-") && dir != Path::new("") => dir.to_owned(),
        _ if target == Path::new("-") => std::env::temp_dir(),
        _ => ".".into(),
    }
}

/// Inodes that the image must not contain: its own file and the one that it replaces.
fn own_inodes(out: &OutputFile, target: &Path) -> Vec<(u64, u64)> {
    let old = weald_sys::stat_path(target).ok();
    let old = old.filter(|stat| stat.kind == FileKind::Regular);
    let old = old.map(|stat| (stat.dev, stat.ino));
    out.regular_inode().into_iter().chain(old).collect()
}
