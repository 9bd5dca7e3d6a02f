//! Composefs images: an EROFS image with the metadata of a tree, and a directory of objects with
//! the data of its files, named by fs-verity digest. overlayfs joins the two.
//!
//! The image has the bytes that `mkcomposefs` gives for the same tree. It is made in three passes,
//! in memory that does not grow with the tree:
//! 1. `gather` walks the image, lists its entries level by level, and counts uses of contents and
//!    xattrs. The lists are temporary files if they are long.
//! 2. `objects` reads each content once for its digest, and writes it as an object.
//! 3. `emit` computes the place of each inode, then writes all bytes in order.

mod bits;
mod digests;
mod dump;
mod emit;
mod gather;
mod levels;
mod objects;
mod xattrs;

pub use dump::{DumpOptions, write_dump};

use digests::Digests;
use emit::Emitter;
use std::path::Path;
use weald_format::{Error, FileKind, Result};
use weald_image::Image;
use xattrs::XattrTable;

/// Largest file that lies in the image itself, in bytes: `LCFS_INLINE_FILE_SIZE_LIMIT` of
/// composefs.
pub const INLINE_LEN_MAX: u64 = 64;

/// Largest file, in bytes: an index of 512 chunks, which always fits into a block.
const FILE_LEN_MAX: u64 = 512 << 43;

/// Format of the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// What `mkcomposefs` writes for a tree without whiteouts.
    #[default]
    V0,
    /// What `mkcomposefs --min-version=1` writes.
    V1,
    /// What `mkcomposefs` chooses without options: the second for a tree with whiteouts, otherwise
    /// the first.
    AsNeeded,
}

/// What to do about fs-verity of objects.
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

/// Options of [`write_image`].
pub struct ImageOptions<'a> {
    /// Format of the image.
    pub format: Format,
    /// Directory of objects; it and its parents are made. Without one, only digests are computed.
    pub objects: Option<&'a Path>,
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

/// Takes the bytes of an image in order.
pub type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// What [`write_image`] wrote.
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

/// Writes the composefs image of `image` to `sink`, after its objects.
///
/// # Errors
/// `Limit` for an inode that EROFS cannot hold; `Unsupported` for objects that cannot be protected
/// although [`VerityPolicy::Require`] demands it; `Invalid` ("interrupted"); `Io`, `Full`,
/// `Corrupt`.
///
/// # Cost
/// Reads the metadata once and each content of more than 64 bytes once. Temporary files take about
/// 100 bytes for each entry beyond `memory_len`.
pub fn write_image(
    image: &Image,
    sink: &mut Sink<'_>,
    options: &ImageOptions<'_>,
) -> Result<Written> {
    let (levels, mut census) = gather::gather(image, options)?;
    let format = match options.format {
        Format::AsNeeded if census.whiteout_count > 0 => Format::V1,
        Format::AsNeeded => Format::V0,
        given => given,
    };
    let options = &ImageOptions { format, ..*options };
    let contents = std::mem::take(&mut census.contents);
    let (list, mut written) = objects::write_objects(image, &contents.once, options)?;
    let digests = Digests::new(contents, list)?;
    let table = XattrTable::new(image, &census, &digests, options)?;
    let emitter = Emitter {
        levels: &levels,
        census: &census,
        digests: &digests,
        table,
        options,
    };
    (written.image_len, written.image_digest) = emitter.emit(sink)?;
    written.inode_count = census.inode_count;
    Ok(written)
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

fn check_file(kind: FileKind, len: u64) -> Result<()> {
    match kind == FileKind::Regular && len > FILE_LEN_MAX {
        true => Err(Error::limit(format!(
            "the file has {len} bytes; a composefs image holds files of {FILE_LEN_MAX}"
        ))),
        false => Ok(()),
    }
}

fn check_device(rdev: u64) -> Result<()> {
    match weald_erofs::dump::join_device(rdev) > u64::from(u32::MAX) {
        true => Err(Error::limit(format!(
            "the device number {}, {} has more than 32 bits, which EROFS cannot hold",
            rdev >> 32,
            rdev & u64::from(u32::MAX)
        ))),
        false => Ok(()),
    }
}
