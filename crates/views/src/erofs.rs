//! Writes an image as a plain EROFS image, which the kernel mounts without Weald.
//!
//! Three passes over the metadata, in memory that does not grow with the number of names:
//! 1. `contents` reads each distinct content once and writes its blocks, compressed if asked for.
//!    `shared` writes xattrs of several inodes behind them.
//! 2. `inode_positions` computes where each inode lies. The list of numbers is a temporary file if
//!    it is long.
//! 3. `emit` writes inodes, then the blocks of directories, then the superblock in block 0.
//!
//! `tree` walks in the order of inode numbers, `sparse` chooses the chunk size of sparse files, and
//! `shape` computes the lengths of inodes.

mod contents;
mod emit;
mod inode_positions;
mod options;
mod shape;
mod shared;
mod sparse;
mod tree;

pub use options::ErofsOptions;
pub use weald_erofs::writer::Codec;

use contents::write_contents;
use emit::Emitter;
use options::block_no;
use shared::SharedXattrs;
use weald_erofs::layout::{BLOCK_LEN, SLOT_LEN};
use weald_erofs::writer::{CLUSTER_LEN_MAX, DataSuperblock};
use weald_format::{Error, Result};
use weald_image::Image;
use weald_io::OutputFile;

/// Bytes of memory for each distinct content.
const DISTINCT_CONTENT_LEN: u64 = contents::STORED_LEN as u64;

/// Report of [`write_image`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ErofsWritten {
    /// Bytes of the image.
    pub image_len: u64,
    /// Inodes.
    pub inode_count: u64,
    /// Distinct contents that are not empty.
    pub content_count: u64,
    /// Bytes of these contents, without holes.
    pub content_len: u64,
    /// Bytes of the blocks that hold them.
    pub stored_len: u64,
    /// Bytes of inodes, xattrs, directories, indexes and tails.
    pub metadata_len: u64,
}

/// Writes the EROFS image of `image` to `out`, which is empty and must be a file.
///
/// # Errors
/// `Limit` for what EROFS cannot hold, and if the contents do not fit in the memory; `Invalid` for
/// an output that cannot be written at any place, and for an interrupt; `Io`, `Full`, `Corrupt`.
///
/// # Cost
/// Reads each distinct content once and the metadata three times. Holds 32 bytes for each distinct
/// content. Temporary files take 8 bytes for each name and the tails of files.
pub fn write_image(
    image: &Image,
    out: &mut OutputFile,
    options: &ErofsOptions<'_>,
) -> Result<ErofsWritten> {
    if !out.is_atomic() {
        return Err(Error::invalid(
            "an EROFS image is not written in order, which a pipe or device needs: name a file",
        ));
    }
    let needed_len = image
        .summary()
        .content_count
        .saturating_mul(DISTINCT_CONTENT_LEN);
    if needed_len > options.memory_len / 2 {
        return Err(Error::limit(format!(
            "memory: {} distinct contents need {needed_len} bytes; more memory takes more of them",
            image.summary().content_count
        )));
    }
    out.write_all(&[0; BLOCK_LEN as usize])?;
    let stored = write_contents(image, out, options)?;
    let mut written = ErofsWritten {
        content_count: stored.count,
        content_len: stored.data_len,
        stored_len: out.position() - BLOCK_LEN,
        ..ErofsWritten::default()
    };
    let meta_start = out.position();
    let shared = SharedXattrs::write(image, &stored.set_uses, out, options)?;
    let inodes_start = out.position();
    let positions = inode_positions::compute(image, &stored, &shared, options)?;
    let mut emitter = Emitter::new(image, (&stored, &shared), &positions, out, options)?;
    emitter.write_tree()?;
    let root = image.root()?;
    written.inode_count = positions.inode_count;
    written.image_len = out.position();
    written.metadata_len = written.image_len - meta_start;
    let mtime = root.times.mtime;
    let (uuid, _) = image.summary().tree_digest.0.split_at(16);
    let superblock = DataSuperblock {
        root_nid: (positions.root_start / SLOT_LEN) as u16,
        inode_count: written.inode_count,
        epoch: (mtime.seconds as u64, mtime.nanoseconds),
        block_count: block_no(written.image_len)?,
        meta_block: block_no(inodes_start)?,
        xattr_block: block_no(shared.start)?,
        uuid: uuid.try_into().unwrap_or_default(),
        has_chunks: stored.has_chunks,
        codec: options.codec.filter(|_| stored.has_compressed),
        cluster_blocks_max: (CLUSTER_LEN_MAX as u64 / BLOCK_LEN) as u16,
    };
    out.rewrite_at(&superblock.block(), 0)?;
    Ok(written)
}
