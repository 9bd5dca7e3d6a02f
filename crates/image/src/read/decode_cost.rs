//! Computes what a read would decode, from metadata alone.

use super::access_pattern::{AddressSpace, ReadaheadWindow, ReaderTable};
use super::decode_goal::{AccessPattern, BlockShape, RequestedPart, decode_goal};
use super::extent_groups::Window;
use super::extent_map::{ExtentMap, Recipes};
use crate::cached_records::block_key::Wanted;
use crate::records::section::FoundRecord;
use std::collections::HashMap;
use std::ops::Range;
use weald_format::{ContentId, Error, Result};

/// A block or the output of a recipe: the address of the map that owns it, stream and number.
type Piece = (usize, u8, u64);

/// State of a block.
#[derive(Debug, Default, Clone, Copy)]
struct PieceCost {
    /// Bytes of its front that are decoded, or all.
    len: u64,
    /// Bytes that were decoded for it: a front and the whole block both count.
    decoded_len: u64,
}

/// The bytes that several reads together decode, starting with an empty cache that evicts nothing.
/// The model follows `Contents::read`.
#[derive(Debug, Default)]
pub struct DecodeCost {
    pieces: HashMap<Piece, PieceCost>,
    readers: HashMap<usize, ReaderTable>,
}

impl DecodeCost {
    /// Bytes decoded for all reads. The output of a recipe counts besides the blocks of its input.
    pub fn decoded_len(&self) -> u64 {
        self.pieces
            .values()
            .fold(0, |sum, piece| sum.saturating_add(piece.decoded_len))
    }

    /// Forgets all reads.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.readers.clear();
    }

    /// Adds the output of a recipe, `len` bytes; returns whether it was not decoded yet.
    fn add_recipe(&mut self, piece: Piece, len: u64) -> bool {
        let decoded_len = len;
        let cost = PieceCost { len, decoded_len };
        self.pieces.insert(piece, cost).is_none()
    }

    /// Notes a read; returns whether its reader is sequential.
    fn is_sequential(&mut self, map: &ExtentMap, space: AddressSpace, read: Range<u64>) -> bool {
        let readers = self.readers.entry(map.address()).or_default();
        let window = ReadaheadWindow::default();
        readers.note(space, read, window).is_sequential
    }

    /// Decodes the block `found` as far as `wanted`, if it is not decoded so far yet.
    fn decode(
        &mut self,
        map: &ExtentMap,
        (owner, stream, no): Piece,
        found: &FoundRecord,
        wanted: Wanted,
    ) -> Result<()> {
        let raw_len = found.record.raw_len;
        let cost = self.pieces.entry((owner, stream, no)).or_default();
        let is_enough = match wanted {
            Wanted::Front(end) => cost.len >= end.min(raw_len),
            Wanted::Whole => cost.len >= raw_len,
        };
        if is_enough {
            return Ok(());
        }
        let records = map.records();
        let is_resumable = records.is_resumable(&found.record);
        let (len, final_len) = match wanted {
            Wanted::Front(end) if is_resumable || cost.len == 0 => {
                records.partial_lens(stream, &found.record, end)
            }
            _ => (raw_len, raw_len),
        };
        cost.len = final_len;
        if is_resumable {
            cost.decoded_len = len;
            return Ok(());
        }
        let history_len = records.history_len(stream, &found.record)?;
        cost.decoded_len = cost
            .decoded_len
            .saturating_add(len)
            .saturating_add(history_len);
        Ok(())
    }
}

/// Bytes of a stream that a read requests from one block or one recipe.
struct GroupRead {
    stream: u8,
    requested: Range<u64>,
    /// End of the longest extent.
    extent_end: u64,
    recipes: Recipes,
    pattern: AccessPattern,
}

impl ExtentMap {
    /// Adds a read of bytes `range` of content `id` to `cost`; bytes behind the end of the content
    /// are ignored.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index and of extents.
    pub fn add_decode_cost(
        &self,
        id: ContentId,
        range: Range<u64>,
        cost: &mut DecodeCost,
    ) -> Result<()> {
        let (_, len) = self.range_of(id)?;
        let read = range.start.min(len)..range.end.min(len);
        let space = AddressSpace::Content(id.0);
        let pattern = AccessPattern {
            is_sequential: cost.is_sequential(self, space, read.clone()),
            read_len: read.end.saturating_sub(read.start),
            ..AccessPattern::default()
        };
        self.add_read(id, read, Recipes::Allowed, pattern, cost)
    }

    fn add_read(
        &self,
        id: ContentId,
        range: Range<u64>,
        recipes: Recipes,
        pattern: AccessPattern,
        cost: &mut DecodeCost,
    ) -> Result<()> {
        let (start, len) = self.range_of(id)?;
        let range = range.start..range.end.min(len);
        if range.is_empty() {
            return Ok(());
        }
        let logical_end = start.saturating_add(range.end);
        let seen_end = if pattern.is_sequential {
            start.saturating_add(len)
        } else {
            logical_end
        };
        let mut from = start.saturating_add(range.start);
        while from < logical_end {
            let window = Window::new(self, from..logical_end, seen_end)?;
            // A read reports an image that lacks extents; here it only must not loop.
            from = from.saturating_add(window.len.max(1));
            window.each_group(&mut |group| {
                let read = GroupRead {
                    stream: group.owner_stream,
                    requested: group.requested,
                    extent_end: group.extent_end,
                    recipes,
                    pattern,
                };
                if group.owner.is_recipe_stream(read.stream) {
                    group.owner.add_recipe(&read, cost)
                } else {
                    group.owner.add_block(&read, cost)
                }
            })?;
        }
        Ok(())
    }

    /// Adds the recipe that makes the bytes of a group, and the read of its input.
    fn add_recipe(&self, read: &GroupRead, cost: &mut DecodeCost) -> Result<()> {
        if read.recipes == Recipes::Refused {
            let what = "the input of a recipe comes from a recipe";
            return Err(Error::corrupt("content", 0, "F-20.3", what));
        }
        let found = self.recipe_at(read.requested.start)?;
        let recipe = found.recipe()?;
        if cost.add_recipe((self.address(), read.stream, found.no), recipe.len) {
            let (_, plain_len) = self.range_of(recipe.plain)?;
            // A read reports a damaged recipe.
            let plain = recipe.input_range(plain_len).unwrap_or(0..plain_len);
            let pattern = AccessPattern::default();
            self.add_read(recipe.plain, plain, Recipes::Refused, pattern, cost)?;
        }
        Ok(())
    }

    /// Adds the block that has the bytes of a group.
    fn add_block(&self, read: &GroupRead, cost: &mut DecodeCost) -> Result<()> {
        let at = read.requested.start;
        let found = self.block_at(read.stream, at)?;
        let end = found.first_item.saturating_add(found.item_count);
        let requested = at..read.requested.end.min(end);
        let space = AddressSpace::Stream(read.stream);
        let is_stream_sequential = cost.is_sequential(self, space, requested);
        let part = RequestedPart {
            start: at.saturating_sub(found.first_item),
            len: read.requested.end.saturating_sub(at),
            extent_len: read.extent_end.saturating_sub(at),
        };
        let block = BlockShape {
            raw_len: found.record.raw_len,
            is_resumable: self.records().is_resumable(&found.record),
        };
        let wanted = decode_goal(part, block, read.pattern, is_stream_sequential);
        let piece = (self.address(), read.stream, found.no);
        cost.decode(self, piece, &found, wanted)
    }
}
