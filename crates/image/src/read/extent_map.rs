//! The extent map: from a content to its extents, and from an address of a stream to the block or
//! the recipe that has the byte. Reads metadata only.

use crate::cached_records::records::{BaseStreams, CachedRecords};
use crate::records::page::Page;
use crate::records::section::FoundRecord;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::container::RecordType;
use weald_format::limits::ITEMS_PER_PAGE;
use weald_format::pages::{Extent, Source};
use weald_format::recipes::Recipe;
use weald_format::{ContentId, Error, Result};

/// A run of data or of absent data in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
    /// Whether the data are absent and read as zeros.
    pub is_hole: bool,
}

/// The extent map of one image.
pub struct ExtentMap {
    records: Arc<CachedRecords>,
    bases: BaseStreams<Self>,
    recipe_stream: Option<u8>,
}

/// Whether a read may use recipes. The input of a recipe may not come from a recipe, so that there
/// are no loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipes {
    /// It may.
    Allowed,
    /// It may not.
    Refused,
}

/// A recipe, and the address in its stream of the first byte that it makes.
pub struct FoundRecipe {
    /// Number of the recipe.
    pub no: u64,
    /// Address of its first byte.
    pub first: u64,
    /// The page with the recipe. The recipe is not copied, because its corrections can be long.
    page: Arc<Page>,
    index: usize,
}

impl FoundRecipe {
    /// The recipe.
    ///
    /// # Errors
    /// None if [`ExtentMap::recipe_at`] found it.
    pub fn recipe(&self) -> Result<&Recipe> {
        match &*self.page {
            Page::Recipes(page) => page.recipes().get(self.index),
            _ => None,
        }
        .ok_or_else(|| bad("F-11.5", "no recipe"))
    }
}

fn bad(rule: &'static str, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("content", 0, rule, what)
}

impl ExtentMap {
    /// The extent map of `records`; `bases` are the maps that have the streams of base images.
    pub fn new(records: Arc<CachedRecords>, bases: BaseStreams<Self>) -> Self {
        Self {
            recipe_stream: records.recipe_stream(),
            records,
            bases,
        }
    }

    /// The records of the image.
    pub fn records(&self) -> &CachedRecords {
        &self.records
    }

    /// Logical start and length of content `id`, in bytes.
    ///
    /// # Errors
    /// `Corrupt` if there is no such content; `Io`.
    pub fn range_of(&self, id: ContentId) -> Result<(u64, u64)> {
        let found = self.records.record_of_item(RecordType::Contents, 0, id.0)?;
        let page = self.records.page(&found)?;
        let index = id.0.saturating_sub(found.first_item) as usize;
        match &*page {
            Page::Contents(page) => page
                .get(index)
                .ok_or_else(|| bad("F-10.2", format!("no content {id}"))),
            _ => Err(bad("F-10.2", format!("no content {id}"))),
        }
    }

    /// Visits the extents that cover logical bytes `range`, each cut to the range.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_extent(
        &self,
        range: Range<u64>,
        visit: &mut dyn FnMut(u64, Extent) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.records.each_extent(range, visit)
    }

    /// The record of the block that has byte `address` of `stream`, which is not a stream of a base
    /// image.
    ///
    /// # Errors
    /// `Corrupt` if the stream is shorter; `Io`.
    pub fn block_at(&self, stream: u8, address: u64) -> Result<FoundRecord> {
        self.records
            .record_of_item(RecordType::Data, stream, address)
    }

    /// The recipe that makes byte `address` of the image's recipe stream.
    ///
    /// # Errors
    /// `Corrupt` if there is none; `Io`.
    pub fn recipe_at(&self, address: u64) -> Result<FoundRecipe> {
        let found = self
            .records
            .record_of_item(RecordType::Recipes, 0, address)?;
        let page = self.records.page(&found)?;
        let Page::Recipes(recipes) = &*page else {
            return Err(bad("F-11.5", "no recipe page"));
        };
        let in_page = address.saturating_sub(found.first_item);
        let (index, start, _) = recipes
            .find(in_page)
            .ok_or_else(|| bad("F-11.5", format!("no recipe for byte {address}")))?;
        let page_no = found.no.saturating_mul(ITEMS_PER_PAGE as u64);
        Ok(FoundRecipe {
            no: page_no.saturating_add(index as u64),
            first: found.first_item.saturating_add(start),
            page,
            index,
        })
    }

    /// The block or the recipe that has byte `at` of a stream, which is not one of a base image:
    /// its number, and the addresses of all its bytes.
    ///
    /// # Errors
    /// `Corrupt` if the stream is shorter; `Io`.
    pub fn piece_at(&self, stream: u8, at: u64) -> Result<(u64, Range<u64>)> {
        let (no, first, len) = if self.is_recipe_stream(stream) {
            let found = self.recipe_at(at)?;
            (found.no, found.first, found.recipe()?.len)
        } else {
            let found = self.block_at(stream, at)?;
            (found.no, found.first_item, found.item_count)
        };
        Ok((no, first..first.saturating_add(len)))
    }

    /// Whether recipes of this image make the bytes of `stream`.
    pub fn is_recipe_stream(&self, stream: u8) -> bool {
        self.recipe_stream == Some(stream)
    }

    /// Whether recipes of this image or of a base image make the bytes of `stream`.
    pub fn has_recipe_output(&self, stream: u8) -> bool {
        let (owner, stream) = self.owner_of(stream);
        owner.is_recipe_stream(stream)
    }

    /// The map of the image that has the bytes of `stream`, this one or a base image, and the
    /// number of the stream there.
    pub fn owner_of(&self, stream: u8) -> (&Self, u8) {
        match self.bases.get(usize::from(stream)) {
            Some(Some((base, stream))) => base.owner_of(*stream),
            _ => (self, stream),
        }
    }

    /// Whether `stream` is a stream of a base image.
    pub fn is_base_stream(&self, stream: u8) -> bool {
        matches!(self.bases.get(usize::from(stream)), Some(Some(_)))
    }

    /// Identifies the map among those of all open images: an open image never moves.
    pub fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Visits the data runs and holes of content `id` from `offset` on, adjacent ones merged.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn runs(
        &self,
        id: ContentId,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        let (start, len) = self.range_of(id)?;
        if offset >= len {
            return Ok(());
        }
        let mut pending: Option<Run> = None;
        let mut is_stopped = false;
        let range = start.saturating_add(offset)..start.saturating_add(len);
        self.each_extent(range, &mut |at, extent| {
            let is_hole = extent.source == Source::Hole;
            let run = Run {
                offset: at.saturating_sub(start),
                len: extent.len,
                is_hole,
            };
            match &mut pending {
                Some(last) if last.is_hole == is_hole => {
                    last.len = last.len.saturating_add(run.len);
                }
                _ => {
                    if let Some(done) = pending.replace(run)
                        && visit(done).is_break()
                    {
                        is_stopped = true;
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if let Some(last) = pending
            && !is_stopped
        {
            let _ = visit(last);
        }
        Ok(())
    }
}
