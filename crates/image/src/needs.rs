//! What a read would have to decode, told by the index: nothing is decoded for it.

use crate::Image;
use crate::content::{Contents, RecentBlocks, Recipes};
use crate::records::{Found, Wanted};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use weald_format::container::RecordType;
use weald_format::pages::Source;
use weald_format::{ContentId, Error, Result};

/// A block or what a recipe makes: the contents that it belongs to, stream and number.
type Piece = (usize, u8, u64);

/// What is decoded by now of a block.
#[derive(Debug, Default, Clone, Copy)]
struct Held {
    /// Bytes of its front, or all.
    len: u64,
    /// Bytes that were decoded for it, a front besides the whole block.
    decoded_len: u64,
}

/// What some reads together decode, from empty caches that forget nothing: it follows what [`Contents::read`] does.
#[derive(Debug, Default)]
pub struct Needs {
    pieces: HashMap<Piece, Held>,
    recent: HashMap<(usize, u8), RecentBlocks>,
}

impl Needs {
    /// Bytes decoded for all of them; what recipes make counts besides the blocks that they need.
    pub fn decoded_len(&self) -> u64 {
        self.pieces
            .values()
            .fold(0, |sum, held| sum.saturating_add(held.decoded_len))
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.recent.clear();
    }

    /// Whether a recipe's bytes were not there yet.
    fn make(&mut self, piece: Piece, len: u64) -> bool {
        let decoded_len = len;
        let made = Held { len, decoded_len };
        self.pieces.insert(piece, made).is_none()
    }

    /// Decodes the block `found` as far as `end`, if it is not yet.
    fn decode(
        &mut self,
        contents: &Contents,
        (owner, stream, no): Piece,
        found: &Found,
        end: u64,
    ) -> Result<()> {
        let recent = self.recent.entry((owner, stream)).or_default();
        let wanted = recent.enter(no).wants(end);
        let raw_len = found.record.raw_len;
        let held = self.pieces.entry((owner, stream, no)).or_default();
        let is_enough = match wanted {
            Wanted::Front(end) => held.len >= end.min(raw_len),
            Wanted::Whole => held.len >= raw_len,
        };
        if is_enough {
            return Ok(());
        }
        let records = contents.records();
        let (len, sure_len) = match wanted {
            Wanted::Front(end) if held.len == 0 => records.front_lens(stream, &found.record, end),
            _ => (raw_len, raw_len),
        };
        held.len = sure_len;
        let before_len = records.history_len(stream, &found.record)?;
        held.decoded_len = held
            .decoded_len
            .saturating_add(len)
            .saturating_add(before_len);
        Ok(())
    }
}

impl Image {
    /// Adds what reading bytes `range` of content `id` needs; what passes its end is left out.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index and of extents.
    pub fn add_needs(&self, id: ContentId, range: Range<u64>, needs: &mut Needs) -> Result<()> {
        self.contents.add_needs(id, range, Recipes::Allowed, needs)
    }

    /// The content that holds byte `at` of all contents in a row, and where in it; `None` behind the last.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// O(log of the number of contents) looks into the content table.
    pub fn content_at(&self, at: u64) -> Result<Option<(ContentId, u64)>> {
        if at >= self.summary().content_len {
            return Ok(None);
        }
        let (mut first, mut end) = (0, self.summary().content_count);
        while first < end {
            let middle = first.midpoint(end);
            let (start, len) = self.contents.extent_of(ContentId(middle))?;
            if at < start {
                end = middle;
            } else if at >= start.saturating_add(len) {
                first = middle.saturating_add(1);
            } else {
                return Ok(Some((ContentId(middle), at.saturating_sub(start))));
            }
        }
        Ok(None)
    }
}

impl Contents {
    fn add_needs(
        &self,
        id: ContentId,
        range: Range<u64>,
        recipes: Recipes,
        needs: &mut Needs,
    ) -> Result<()> {
        let (start, len) = self.extent_of(id)?;
        let range = range.start..range.end.min(len);
        if range.is_empty() {
            return Ok(());
        }
        let logical = start.saturating_add(range.start)..start.saturating_add(range.end);
        self.each_extent(logical, &mut |_, extent| {
            if let Source::Stream { stream, address } = extent.source {
                let end = address.saturating_add(extent.len);
                self.add_run(stream, address..end, recipes, needs)?;
            }
            Ok(ControlFlow::Continue(()))
        })
    }

    fn add_run(
        &self,
        stream: u8,
        run: Range<u64>,
        recipes: Recipes,
        needs: &mut Needs,
    ) -> Result<()> {
        if let Some((image, stream)) = self.base_of(stream) {
            return image.contents.add_run(*stream, run, recipes, needs);
        }
        // An open image stays where it is, so that its place tells it from its bases.
        let owner = std::ptr::from_ref(self).addr();
        let mut at = run.start;
        while at < run.end {
            let next = match self.is_made(stream) {
                true if recipes == Recipes::Refused => {
                    let what = "a recipe made of what recipes make";
                    return Err(Error::corrupt("content", 0, "F-20.3", what));
                }
                true => {
                    let made = self.made_at(at)?;
                    let recipe = made.recipe()?;
                    if needs.make((owner, stream, made.no), recipe.len) {
                        let (_, plain_len) = self.extent_of(recipe.plain)?;
                        // What is damaged is said where it is read.
                        let run = recipe.needs(plain_len).unwrap_or(0..plain_len);
                        self.add_needs(recipe.plain, run, Recipes::Refused, needs)?;
                    }
                    made.first.saturating_add(recipe.len)
                }
                false => {
                    let found = self
                        .records()
                        .record_of_item(RecordType::Data, stream, at)?;
                    let end = run.end.saturating_sub(found.first_item);
                    needs.decode(self, (owner, stream, found.no), &found, end)?;
                    found.first_item.saturating_add(found.item_count)
                }
            };
            // Every record and recipe has a byte at least; without one there would be no end.
            at = next.max(at.saturating_add(1));
        }
        Ok(())
    }
}
