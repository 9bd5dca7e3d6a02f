//! What a read would have to decode, told by the index: nothing is decoded for it.

use crate::Image;
use crate::content::{Contents, Recipes};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use weald_format::container::RecordType;
use weald_format::pages::Source;
use weald_format::{ContentId, Error, Result};

/// A block or what a recipe makes: the contents that it belongs to, stream and number.
type Piece = (usize, u8, u64);

/// The blocks that some reads need together, each once.
#[derive(Debug, Default)]
pub struct Needs {
    lens: HashMap<Piece, u64>,
}

impl Needs {
    /// Raw bytes of all of them; what recipes make counts besides the blocks that they need.
    pub fn decoded_len(&self) -> u64 {
        self.lens
            .values()
            .fold(0, |sum, &len| sum.saturating_add(len))
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.lens.clear();
    }

    /// Whether the piece was not there yet.
    fn add(&mut self, piece: Piece, len: u64) -> bool {
        self.lens.insert(piece, len).is_none()
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
                    if needs.add((owner, stream, made.no), recipe.len) {
                        self.add_needs(recipe.plain, 0..u64::MAX, Recipes::Refused, needs)?;
                    }
                    made.first.saturating_add(recipe.len)
                }
                false => {
                    let found = self
                        .records()
                        .record_of_item(RecordType::Data, stream, at)?;
                    needs.add((owner, stream, found.no), found.record.raw_len);
                    found.first_item.saturating_add(found.item_count)
                }
            };
            // Every record and recipe has a byte at least; without one there would be no end.
            at = next.max(at.saturating_add(1));
        }
        Ok(())
    }
}
