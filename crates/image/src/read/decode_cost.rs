//! What a read would have to decode, told by the index: nothing is decoded for it.

use crate::Image;
use crate::content::{Contents, Manner, Recipes, wanted};
use crate::parts::Window;
use crate::readers::{Readers, Sight, Trail};
use crate::records::{Found, Wanted};
use std::collections::HashMap;
use std::ops::Range;
use weald_format::container::RecordType;
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

/// What some reads together decode, from empty caches that forget nothing: it follows what
/// [`Contents::read`] does.
#[derive(Debug, Default)]
pub struct Needs {
    pieces: HashMap<Piece, Held>,
    readers: HashMap<usize, Readers>,
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
        self.readers.clear();
    }

    /// Whether a recipe's bytes were not there yet.
    fn make(&mut self, piece: Piece, len: u64) -> bool {
        let decoded_len = len;
        let made = Held { len, decoded_len };
        self.pieces.insert(piece, made).is_none()
    }

    /// How the reader of a trail of `contents` goes on.
    fn is_in_order(&mut self, contents: &Contents, trail: Trail, read: Range<u64>) -> bool {
        let readers = self.readers.entry(owner(contents)).or_default();
        readers.note(trail, read, Sight::default()).is_in_order
    }

    /// Decodes the block `found` as far as `wanted`, if it is not yet.
    fn decode(
        &mut self,
        contents: &Contents,
        (owner, stream, no): Piece,
        found: &Found,
        wanted: Wanted,
    ) -> Result<()> {
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
        let goes_on = records.grows(&found.record);
        let (len, sure_len) = match wanted {
            Wanted::Front(end) if goes_on || held.len == 0 => {
                records.grown_lens(stream, &found.record, end)
            }
            _ => (raw_len, raw_len),
        };
        held.len = sure_len;
        if goes_on {
            held.decoded_len = len;
            return Ok(());
        }
        let before_len = records.history_len(stream, &found.record)?;
        held.decoded_len = held
            .decoded_len
            .saturating_add(len)
            .saturating_add(before_len);
        Ok(())
    }
}

/// An open image stays where it is, so that its place tells it from its bases.
fn owner(contents: &Contents) -> usize {
    std::ptr::from_ref(contents).addr()
}

/// Bytes of a stream that a read wants together, and how it reads.
struct Run {
    stream: u8,
    /// Addresses that are wanted.
    wanted: Range<u64>,
    /// Where the longest of the extents ends.
    end: u64,
    recipes: Recipes,
    manner: Manner,
}

impl Image {
    /// Adds what reading bytes `range` of content `id` needs; what passes its end is left out.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index and of extents.
    pub fn add_needs(&self, id: ContentId, range: Range<u64>, needs: &mut Needs) -> Result<()> {
        let contents = &*self.contents;
        let (_, len) = contents.extent_of(id)?;
        let read = range.start.min(len)..range.end.min(len);
        let manner = Manner {
            is_in_order: needs.is_in_order(contents, Trail::File(id.0), read.clone()),
            read_len: read.end.saturating_sub(read.start),
            ..Manner::default()
        };
        contents.add_needs(id, read, Recipes::Allowed, manner, needs)
    }

    /// The content that holds byte `at` of all contents in a row, and where in it; `None` behind
    /// the last.
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
        manner: Manner,
        needs: &mut Needs,
    ) -> Result<()> {
        let (start, len) = self.extent_of(id)?;
        let range = range.start..range.end.min(len);
        if range.is_empty() {
            return Ok(());
        }
        let logical_end = start.saturating_add(range.end);
        let seen_end = match manner.is_in_order {
            true => start.saturating_add(len),
            false => logical_end,
        };
        let mut from = start.saturating_add(range.start);
        while from < logical_end {
            let window = Window::of(self, from..logical_end, seen_end)?;
            // An image without extents for all of its contents is refused where it is read.
            from = from.saturating_add(window.len.max(1));
            window.each_group(&mut |contents, stream, group| {
                let run = Run {
                    stream,
                    wanted: group.wanted,
                    end: group.rest_end,
                    recipes,
                    manner,
                };
                match contents.is_made(stream) {
                    true => contents.add_made(&run, needs),
                    false => contents.add_block(&run, needs),
                }
            })?;
        }
        Ok(())
    }

    /// Adds the recipe that makes the bytes of a run.
    fn add_made(&self, run: &Run, needs: &mut Needs) -> Result<()> {
        if run.recipes == Recipes::Refused {
            let what = "a recipe made of what recipes make";
            return Err(Error::corrupt("content", 0, "F-20.3", what));
        }
        let made = self.made_at(run.wanted.start)?;
        let recipe = made.recipe()?;
        if needs.make((owner(self), run.stream, made.no), recipe.len) {
            let (_, plain_len) = self.extent_of(recipe.plain)?;
            // What is damaged is said where it is read.
            let plain = recipe.input_range(plain_len).unwrap_or(0..plain_len);
            let manner = Manner::default();
            self.add_needs(recipe.plain, plain, Recipes::Refused, manner, needs)?;
        }
        Ok(())
    }

    /// Adds the block that holds the bytes of a run.
    fn add_block(&self, run: &Run, needs: &mut Needs) -> Result<()> {
        let records = self.records();
        let at = run.wanted.start;
        let found = records.record_of_item(RecordType::Data, run.stream, at)?;
        let end = found.first_item.saturating_add(found.item_count);
        let read = at..run.wanted.end.min(end);
        let stream_in_order = needs.is_in_order(self, Trail::Stream(run.stream), read);
        let wanted = wanted(
            (
                at.saturating_sub(found.first_item),
                run.wanted.end.saturating_sub(at),
                run.end.saturating_sub(at),
            ),
            (found.record.raw_len, records.grows(&found.record)),
            run.manner,
            stream_in_order,
        );
        needs.decode(self, (owner(self), run.stream, found.no), &found, wanted)
    }
}
