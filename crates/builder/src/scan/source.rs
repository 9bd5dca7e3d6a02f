//! Source of the bytes of a scanned file: a directory on disk, or an image.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::ops::{ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use weald_format::tree_digest::ContentHasher;
use weald_format::{Error, Result};
use weald_image::{Image, Inode};

/// Source of a scanned tree.
pub enum Origin {
    /// A directory, open.
    Directory(OwnedFd),
    /// The tree of an image.
    Image(Arc<Image>),
    /// A directory added to the tree of an image.
    Added {
        /// The directory, open.
        dir: OwnedFd,
        /// The image.
        image: Arc<Image>,
        /// Index of the shard with the entries that come from the image.
        image_shard: usize,
        /// Length of the prefix that paths in the tree have compared with paths in the directory,
        /// bytes.
        at_len: usize,
    },
}

/// Device number of the inodes that come from an image; no file system has it.
pub const IMAGE_DEV: u64 = u64::MAX;

impl Origin {
    /// Index of the shard of the entries kept from the image.
    pub fn image_shard(&self) -> Option<usize> {
        match self {
            Self::Added { image_shard, .. } => Some(*image_shard),
            Self::Directory(_) | Self::Image(_) => None,
        }
    }
}

/// A regular file, open for reading.
pub enum SourceFile {
    /// A file on disk.
    Disk(File),
    /// A file in an image.
    Stored(Arc<Image>, Box<Inode>),
}

impl std::fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Disk(file) => f.debug_tuple("Disk").field(file).finish(),
            Self::Stored(_, inode) => f.debug_tuple("Stored").field(inode).finish(),
        }
    }
}

impl SourceFile {
    /// Returns the data runs of the file.
    ///
    /// # Errors
    /// `Io`; `Corrupt` in an image.
    pub fn layout(&self) -> Result<Layout> {
        match self {
            Self::Disk(file) => Layout::of_file(file),
            Self::Stored(image, inode) => Layout::of_inode(image, inode),
        }
    }

    /// Appends `len` bytes from the start of the file to `data`, fewer if the file is shorter.
    ///
    /// # Errors
    /// `Io`; `Corrupt` in an image.
    pub fn read_front(&self, len: u64, data: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::Disk(file) => {
                let mut file = file;
                // The search for holes has moved the file offset.
                let read = file
                    .rewind()
                    .and_then(|()| file.take(len).read_to_end(data));
                read.map_err(|e| Error::io("cannot be read", e)).map(drop)
            }
            Self::Stored(image, inode) => {
                data.extend_from_slice(&image.read(inode, 0, len as usize)?);
                Ok(())
            }
        }
    }

    /// Fills `run` with the bytes from `start` on.
    ///
    /// # Errors
    /// `Io`; [`is_cut`] tells if the file ends before the run does. `Corrupt` in an image.
    pub fn read_run(&self, run: &mut [u8], start: u64) -> Result<()> {
        let file = match self {
            Self::Disk(file) => file,
            Self::Stored(image, inode) => {
                return match image.read_at(inode, start, run)? == run.len() {
                    true => Ok(()),
                    false => Err(ended_early(ErrorKind::UnexpectedEof.into())),
                };
            }
        };
        file.read_exact_at(run, start).map_err(|e| match e.kind() {
            ErrorKind::UnexpectedEof => ended_early(e),
            _ => Error::io("cannot be read", e),
        })
    }
}

fn ended_early(error: std::io::Error) -> Error {
    let cause = std::io::Error::new(error.kind(), "it ended early");
    Error::io("changed while it was read", cause)
}

/// Whether the error means that a file ended before the length it had when it was opened.
pub fn is_cut(error: &Error) -> bool {
    error
        .io_source()
        .is_some_and(|e| e.kind() == ErrorKind::UnexpectedEof)
}

/// Length and data runs of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Length in bytes, holes included.
    pub len: u64,
    /// Data runs of a file with holes; `None` for a dense file.
    pub runs: Option<Vec<Range<u64>>>,
}

impl Layout {
    fn of_file(file: &File) -> Result<Self> {
        let stat = weald_sys::stat_fd(file).map_err(|e| Error::io("cannot be examined", e))?;
        // Do not use st_blocks: file systems count other data in it (xattrs, extent trees), which
        // would hide small holes.
        let runs = match stat.size {
            0 => Vec::new(),
            len => weald_sys::data_runs(file, len)
                .map_err(|e| Error::io("cannot be searched for holes", e))?,
        };
        Ok(Self::new(stat.size, runs))
    }

    fn of_inode(image: &Image, inode: &Inode) -> Result<Self> {
        let mut runs = Vec::new();
        image.runs(inode, 0, &mut |run| {
            if !run.is_hole {
                runs.push(run.offset..run.offset.saturating_add(run.len));
            }
            ControlFlow::Continue(())
        })?;
        Ok(Self::new(inode.size.0, runs))
    }

    fn new(len: u64, runs: Vec<Range<u64>>) -> Self {
        let is_dense = len == 0 || runs.len() == 1 && runs.first() == Some(&(0..len));
        Self {
            len,
            runs: (!is_dense).then_some(runs),
        }
    }

    /// Bytes of data, without holes.
    pub fn data_len(&self) -> u64 {
        self.runs
            .as_ref()
            .map_or(self.len, |runs| runs.iter().map(|r| r.end - r.start).sum())
    }

    /// Returns the hasher for contents of this layout.
    pub fn hasher(&self) -> ContentHasher {
        match &self.runs {
            None => ContentHasher::dense(),
            Some(runs) => {
                let runs: Vec<(u64, u64)> =
                    runs.iter().map(|r| (r.start, r.end - r.start)).collect();
                ContentHasher::sparse(self.len, &runs)
            }
        }
    }
}
