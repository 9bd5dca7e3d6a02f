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
mod options;
mod xattrs;

pub use dump::{DumpOptions, write_dump};

pub use options::{
    Format, INLINE_FILE_LEN_MAX, ImageOptions, ObjectPlace, Sink, VerityPolicy, Written,
    object_name,
};

use digests::Digests;
use emit::Emitter;
use std::ops::ControlFlow;
use weald_format::{ContentId, Result};
use weald_image::Image;
use xattrs::XattrTable;

/// Bytes that the objects of `image` take on the disk, holes left out.
///
/// # Errors
/// As [`write_image`].
///
/// # Cost
/// Reads the metadata once, and all pages of extents.
pub fn data_len(image: &Image, options: &ImageOptions<'_>) -> Result<u64> {
    let (_, census) = gather::gather(image, options)?;
    let mut sum = 0_u64;
    for content in census.contents.once.iter() {
        image.content_runs(ContentId(content), &mut |run| {
            if !run.is_hole {
                sum = sum.saturating_add(run.len);
            }
            ControlFlow::Continue(())
        })?;
    }
    Ok(sum)
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
    // No content is read from here on.
    image.drop_caches();
    weald_sys::trim_heap();
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
