//! Where the bytes of a file lie in the image.

use crate::image::{Image, content_of};
use crate::tree::inode::Inode;
use std::ops::ControlFlow;
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::pages::Source;
use weald_format::{Digest, Error, Result};

/// A range of a file that lies in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedRange {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
    /// The base image that has it; `None` if this image has it.
    pub base: Option<Digest>,
    /// Where it lies there.
    pub place: RangePlace,
}

/// Where a range of a file lies in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangePlace {
    /// Nowhere: it reads as zeros.
    Hole,
    /// In a block.
    Block {
        /// The record of the block.
        record: RecordRef,
        /// Offset of the first byte in the decoded block.
        at: u64,
    },
    /// A recipe makes it from other contents.
    Recipe {
        /// Number of the recipe.
        no: u64,
        /// Offset of the first byte in what the recipe makes.
        at: u64,
    },
}

impl RangePlace {
    /// Offset of the stored bytes in their image; `None` if there are none.
    pub fn stored_at(&self) -> Option<u64> {
        match self {
            Self::Block { record, .. } => Some(record.offset.saturating_add(HEADER_LEN as u64)),
            _ => None,
        }
    }
}

impl Image {
    /// Visits the ranges of the file `inode` in order, each where it lies.
    ///
    /// # Errors
    /// `Invalid` if the inode is not a regular file; `Io`, `Corrupt`.
    /// # Cost
    /// Reads the extents of the file and the index of blocks; no content.
    pub fn each_placed_range(
        &self,
        inode: &Inode,
        visit: &mut dyn FnMut(PlacedRange) -> ControlFlow<()>,
    ) -> Result<()> {
        let Some(content) = content_of(inode)? else {
            return Ok(());
        };
        let (start, len) = self.map.range_of(content)?;
        let range = start..start.saturating_add(len);
        self.map.each_extent(range, &mut |logical, extent| {
            let mut offset = logical.saturating_sub(start);
            let Source::Stream { stream, address } = extent.source else {
                return Ok(visit(PlacedRange {
                    offset,
                    len: extent.len,
                    base: None,
                    place: RangePlace::Hole,
                }));
            };
            let base = self.base_of(stream);
            let (owner, stream, digest) = match &base {
                Some((image, stream)) => (&**image, *stream, Some(image.summary().image_digest)),
                None => (self, stream, None),
            };
            let end = address.saturating_add(extent.len);
            let mut address = address;
            while address < end {
                let (place, piece_end) = owner.place_of(stream, address)?;
                let len = piece_end.min(end).saturating_sub(address);
                if len == 0 {
                    return Err(Error::corrupt("content", 0, "F-11.5", "an empty block"));
                }
                let placed = PlacedRange {
                    offset,
                    len,
                    base: digest,
                    place,
                };
                if visit(placed).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                offset = offset.saturating_add(len);
                address = address.saturating_add(len);
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Where byte `address` of a stream of this image lies, and the address behind the block or
    /// the recipe that has it.
    fn place_of(&self, stream: u8, address: u64) -> Result<(RangePlace, u64)> {
        if self.map.is_recipe_stream(stream) {
            let (no, range) = self.map.piece_at(stream, address)?;
            let at = address.saturating_sub(range.start);
            return Ok((RangePlace::Recipe { no, at }, range.end));
        }
        let found = self.map.block_at(stream, address)?;
        let place = RangePlace::Block {
            record: found.record,
            at: address.saturating_sub(found.first_item),
        };
        Ok((place, found.first_item.saturating_add(found.item_count)))
    }
}
