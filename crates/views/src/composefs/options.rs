//! Options and results of an export, and limits of the format.

use std::os::fd::BorrowedFd;
use std::path::Path;
use weald_format::{Error, FileKind, Result};

/// Largest file that lies in the image itself, in bytes: `LCFS_INLINE_FILE_SIZE_LIMIT` of
/// composefs.
pub const INLINE_FILE_LEN_MAX: u64 = 64;

/// Largest file, in bytes: an index of 512 chunks, which always fits into a block.
const INDEXED_FILE_LEN_MAX: u64 = 512 << 43;

/// Format of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// The format that `mkcomposefs` writes for a tree without whiteouts.
    #[default]
    V0,
    /// The format that `mkcomposefs --min-version=1` writes.
    V1,
    /// The choice of `mkcomposefs` without options: the second for a tree with whiteouts, otherwise
    /// the first.
    AsNeeded,
}

/// Whether objects get fs-verity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VerityPolicy {
    /// Do not protect objects.
    Off,
    /// Protect objects where the file system can.
    #[default]
    Try,
    /// Fail where it cannot.
    Require,
}

/// A directory of objects.
#[derive(Debug, Clone, Copy)]
pub struct ObjectPlace<'a> {
    /// Its path, only for messages if it is open.
    pub path: &'a Path,
    /// The open directory. Without it, the directory and its parents are made.
    pub dir: Option<BorrowedFd<'a>>,
    /// Most bytes that new objects may take on the disk.
    pub new_len_max: u64,
    /// Whether the fs-verity digests that the image keeps were compared with its contents before:
    /// a content whose object is there is then not read. Otherwise the image of somebody else could
    /// name an object that it does not have, and show it.
    pub has_right_digests: bool,
}

impl<'a> ObjectPlace<'a> {
    /// The directory at `path`, for an image of which nothing is known.
    pub fn at(path: &'a Path) -> Self {
        Self {
            path,
            dir: None,
            new_len_max: u64::MAX,
            has_right_digests: false,
        }
    }
}

/// Options of [`super::write_image`].
pub struct ImageOptions<'a> {
    /// Format of the image.
    pub format: Format,
    /// Directory of objects. Without one, only digests are computed.
    pub objects: Option<ObjectPlace<'a>>,
    /// Protection of the objects.
    pub verity: VerityPolicy,
    /// Threads that read contents and write objects; at least 1 is used.
    pub thread_count: usize,
    /// Memory for lists, in bytes, besides the cache of the image.
    pub memory_len: u64,
    /// Directory of temporary files.
    pub temp_dir: &'a Path,
    /// Whether to stop.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl ImageOptions<'_> {
    pub(super) fn check_cancelled(&self) -> Result<()> {
        if (self.is_cancelled)() {
            Err(Error::invalid("interrupted"))
        } else {
            Ok(())
        }
    }
}

/// Takes the bytes of an image in order.
pub type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Report of [`super::write_image`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes of the image.
    pub image_len: u64,
    /// fs-verity digest of the image.
    pub image_digest: [u8; 32],
    /// Inodes of the image, with the 256 stubs.
    pub inode_count: u64,
    /// Distinct contents that are objects, and their bytes.
    pub object_count: u64,
    /// Bytes of these contents.
    pub object_len: u64,
    /// Objects that were not there before.
    pub new_object_count: u64,
    /// Bytes of these objects.
    pub new_object_len: u64,
    /// Whether all objects are protected by fs-verity.
    pub is_protected: bool,
}

/// The path of an object in its directory: `ab/cdef…`.
pub fn object_name(digest: &[u8; 32]) -> String {
    let mut name = String::with_capacity(65);
    for (index, byte) in digest.iter().enumerate() {
        if index == 1 {
            name.push('/');
        }
        name.push_str(&format!("{byte:02x}"));
    }
    name
}

/// Refuses a file that the format cannot hold.
pub(super) fn check_file(kind: FileKind, len: u64) -> Result<()> {
    if kind == FileKind::Regular && len > INDEXED_FILE_LEN_MAX {
        Err(Error::limit(format!(
            "the file has {len} bytes; a composefs image holds files of {INDEXED_FILE_LEN_MAX}"
        )))
    } else {
        Ok(())
    }
}

/// Refuses a device number that the format cannot hold.
pub(super) fn check_device(rdev: u64) -> Result<()> {
    if weald_erofs::dump::join_device(rdev) > u64::from(u32::MAX) {
        Err(Error::limit(format!(
            "the device number {}, {} has more than 32 bits, which EROFS cannot hold",
            rdev >> 32,
            rdev & u64::from(u32::MAX)
        )))
    } else {
        Ok(())
    }
}
