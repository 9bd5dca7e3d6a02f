//! Contents: from a file offset through the logical space and its extents to bytes of blocks.

use crate::block::Block;
use crate::records::{Page, Records, Wanted};
use crate::{Image, Run};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use weald_format::container::RecordType;
use weald_format::directory::Directory;
use weald_format::limits::{ITEMS_PER_PAGE, RECIPE_LEN_MAX};
use weald_format::pages::{Extent, Source};
use weald_format::recipes::Recipe;
use weald_format::{ContentId, Error, Result};

/// Bytes handed out by a read: a part of a cached block, or a copy of several parts.
pub struct Chunk(Held);

enum Held {
    Block(Arc<Block>, Range<usize>),
    Copy(Vec<u8>),
}

impl Chunk {
    /// No bytes.
    pub(crate) const fn empty() -> Self {
        Self(Held::Copy(Vec::new()))
    }
}

impl std::ops::Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Block(block, range) => block.get(range.clone()).unwrap_or(&[]),
            Held::Copy(bytes) => bytes,
        }
    }
}

/// Told about blocks that a sequential reader will want next.
pub trait Prefetch: Send + Sync {
    /// Block `no` of `stream` will be wanted soon.
    fn want(&self, stream: u8, no: u64);
}

/// The contents of one image.
pub struct Contents {
    records: Arc<Records>,
    deflate_stream: Option<u8>,
    recent_blocks: Vec<RecentBlocks>,
    prefetch: Option<Box<dyn Prefetch>>,
}

/// How many blocks of a stream count as in use: those of several readers, and those that repeats lead them back to.
const RECENT_COUNT: usize = 8;

/// The blocks of one stream that were used lately, to recognise who reads in order even where repeats lead back to other
/// blocks in between. Threads may overwrite each other here: what is lost is a block read ahead.
#[derive(Debug, Default)]
pub struct RecentBlocks {
    /// Numbers plus one; 0 is none.
    nos: [AtomicU64; RECENT_COUNT],
    next: AtomicUsize,
}

/// How a reader came to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// It is there already.
    Staying,
    /// From the block before.
    FromTheOneBefore,
    /// From anywhere else.
    Jumping,
}

impl Entered {
    /// What such a reader wants of a block whose bytes up to `end` it reads now: who reads in order will want the rest.
    pub fn wants(self, end: u64) -> Wanted {
        match self {
            Self::FromTheOneBefore => Wanted::Whole,
            Self::Staying | Self::Jumping => Wanted::Front(end),
        }
    }
}

impl RecentBlocks {
    /// Notes that block `no` is used, and says how the reader came to it.
    pub fn enter(&self, no: u64) -> Entered {
        let has = |wanted: u64| self.nos.iter().any(|n| n.load(Ordering::Relaxed) == wanted);
        let own = no.saturating_add(1);
        if has(own) {
            return Entered::Staying;
        }
        // Numbers are stored plus one, so that of the block before is `no` itself.
        let entered = match no > 0 && has(no) {
            true => Entered::FromTheOneBefore,
            false => Entered::Jumping,
        };
        let place = self.next.fetch_add(1, Ordering::Relaxed) % RECENT_COUNT;
        if let Some(slot) = self.nos.get(place) {
            slot.store(own, Ordering::Relaxed);
        }
        entered
    }
}

impl RecentBlocks {
    fn forget(&self) {
        self.nos
            .iter()
            .for_each(|no| no.store(0, Ordering::Relaxed));
    }
}

/// Decoded bytes, and the part of them that an extent covers from some address on.
struct Piece {
    bytes: Arc<Block>,
    range: Range<usize>,
}

/// Whether what is read may be made by recipes: what recipes are made of may not, so that there are no loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipes {
    /// It may.
    Allowed,
    /// It may not.
    Refused,
}

/// A recipe, and where in its stream the bytes begin that it makes.
pub struct Made {
    /// Number of the recipe.
    pub no: u64,
    /// Address of its first byte.
    pub first: u64,
    /// The page with the recipe, which is not copied: its corrections can be long.
    page: Arc<Page>,
    index: usize,
}

impl Made {
    /// The recipe.
    ///
    /// # Errors
    /// None where [`Contents::made_at`] found it.
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

impl Contents {
    /// Contents over `records`, as `directory` has them; `prefetch` is told of sequential readers.
    pub fn new(
        records: Arc<Records>,
        directory: &Directory,
        prefetch: Option<Box<dyn Prefetch>>,
    ) -> Self {
        let recent_blocks = (0..directory.streams.len()).map(|_| RecentBlocks::default());
        Self {
            deflate_stream: records.deflate_stream(),
            records,
            recent_blocks: recent_blocks.collect(),
            prefetch,
        }
    }

    /// Forgets which blocks were used lately.
    pub fn forget_readers(&self) {
        self.recent_blocks.iter().for_each(RecentBlocks::forget);
    }

    /// The records that hold them.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Logical start and length of content `id`.
    pub fn extent_of(&self, id: ContentId) -> Result<(u64, u64)> {
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

    /// Visits the extents that cover logical bytes `range`, each cut to it.
    pub fn each_extent(
        &self,
        range: Range<u64>,
        visit: &mut dyn FnMut(u64, Extent) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        self.records.each_extent(range, visit)
    }

    /// Bytes `offset .. offset + len` of content `id`, cut at its end.
    pub fn read(&self, id: ContentId, offset: u64, len: usize) -> Result<Chunk> {
        let (start, content_len) = self.extent_of(id)?;
        let len = content_len.saturating_sub(offset).min(len as u64);
        let from = start.saturating_add(offset);
        let range = from..from.saturating_add(len);
        let mut whole: Option<Chunk> = None;
        let mut copy: Vec<u8> = Vec::new();
        self.each_extent(range, &mut |_, extent| {
            if extent.len == len
                && let Source::Stream { stream, address } = extent.source
            {
                let piece = self.piece(stream, address, len, Recipes::Allowed)?;
                if piece.range.len() as u64 == len {
                    whole = Some(Chunk(Held::Block(piece.bytes, piece.range)));
                    return Ok(ControlFlow::Break(()));
                }
            }
            self.append(extent, &mut copy, Recipes::Allowed)?;
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(whole.unwrap_or(Chunk(Held::Copy(copy))))
    }

    fn append(&self, extent: Extent, copy: &mut Vec<u8>, recipes: Recipes) -> Result<()> {
        let Source::Stream {
            stream,
            mut address,
        } = extent.source
        else {
            copy.resize(copy.len().saturating_add(extent.len as usize), 0);
            return Ok(());
        };
        let mut left = extent.len;
        while left > 0 {
            let piece = self.piece(stream, address, left, recipes)?;
            let bytes = piece.bytes.get(piece.range).filter(|b| !b.is_empty());
            let bytes = bytes.ok_or_else(|| bad("F-11.5", "extent passes its block"))?;
            copy.extend_from_slice(bytes);
            left = left.saturating_sub(bytes.len() as u64);
            address = address.saturating_add(bytes.len() as u64);
        }
        Ok(())
    }

    /// The bytes at `address` of `stream`, as many of `len` as lie in one block or come from one recipe.
    fn piece(&self, stream: u8, address: u64, len: u64, recipes: Recipes) -> Result<Piece> {
        if let Some((image, stream)) = self.base_of(stream) {
            return image.contents.piece(*stream, address, len, recipes);
        }
        let (bytes, first) = match self.deflate_stream == Some(stream) {
            true if recipes == Recipes::Refused => {
                return Err(bad("F-20.3", "a recipe made of what recipes make"));
            }
            true => {
                let made = self.made_at(address)?;
                let bytes = self
                    .records
                    .made(stream, made.no, || self.make(made.recipe()?))?;
                (bytes, made.first)
            }
            false => self.block_at(stream, address, len)?,
        };
        let start = address.saturating_sub(first) as usize;
        let end = usize::try_from(len).map_or(usize::MAX, |len| start.saturating_add(len));
        let range = start..end.min(bytes.len());
        Ok(Piece { bytes, range })
    }

    /// The recipe that makes byte `address` of the deflate stream.
    pub fn made_at(&self, address: u64) -> Result<Made> {
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
        Ok(Made {
            no: page_no.saturating_add(index as u64),
            first: found.first_item.saturating_add(start),
            page,
            index,
        })
    }

    fn make(&self, recipe: &Recipe) -> Result<Vec<u8>> {
        let (start, len) = self.extent_of(recipe.plain)?;
        let Some(needs) = recipe.needs(len) else {
            return Err(bad("F-20.8", "a part behind the plain bytes of its recipe"));
        };
        let needs_len = needs.end.saturating_sub(needs.start);
        if needs_len > RECIPE_LEN_MAX {
            let what = format!(
                "plain bytes of a recipe: expected at most {RECIPE_LEN_MAX}, found {needs_len}"
            );
            return Err(bad("F-20.3", what));
        }
        let mut plain = Vec::with_capacity(needs_len as usize);
        let run = start.saturating_add(needs.start)..start.saturating_add(needs.end);
        self.each_extent(run, &mut |_, extent| {
            self.append(extent, &mut plain, Recipes::Refused)?;
            Ok(ControlFlow::Continue(()))
        })?;
        let made = weald_codec::make(recipe, &plain, len)?;
        match Recipe::check_of(&made) == recipe.check {
            true => Ok(made),
            false => Err(bad("F-20.5", "a recipe makes other bytes than it says")),
        }
    }

    /// The block of `stream` that holds `address`, and the address of its first byte; of the block at least the `len` bytes from
    /// there on, or all that it has.
    pub fn block_at(&self, stream: u8, address: u64, len: u64) -> Result<(Arc<Block>, u64)> {
        let found = self
            .records
            .record_of_item(RecordType::Data, stream, address)?;
        let end = address.saturating_sub(found.first_item).saturating_add(len);
        let recent = self.recent_blocks.get(usize::from(stream));
        let entered = recent.map_or(Entered::Jumping, |recent| recent.enter(found.no));
        if let (Some(prefetch), Entered::FromTheOneBefore) = (&self.prefetch, entered) {
            prefetch.want(stream, found.no.saturating_add(1));
        }
        let block = self.records.block(stream, &found, entered.wants(end))?;
        Ok((block, found.first_item))
    }

    /// Whether the bytes of `stream` are made by recipes of this image.
    pub fn is_made(&self, stream: u8) -> bool {
        self.deflate_stream == Some(stream)
    }

    /// Whether the bytes of `stream` are made by recipes of this image or of one below it.
    pub fn is_made_anywhere(&self, stream: u8) -> bool {
        match self.base_of(stream) {
            Some((image, stream)) => image.contents.is_made_anywhere(*stream),
            None => self.is_made(stream),
        }
    }

    /// The base image and the stream there that `stream` stands for.
    pub fn base_of(&self, stream: u8) -> Option<&(Arc<Image>, u8)> {
        self.records.base_of(stream)
    }

    /// Visits the data and hole runs of content `id` that touch `offset ..`, merged where adjacent.
    pub fn runs(
        &self,
        id: ContentId,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        let (start, len) = self.extent_of(id)?;
        if offset >= len {
            return Ok(());
        }
        let mut pending: Option<Run> = None;
        let mut stopped = false;
        self.each_extent(
            start.saturating_add(offset)..start.saturating_add(len),
            &mut |at, extent| {
                let is_hole = extent.source == Source::Hole;
                let run = Run {
                    offset: at.saturating_sub(start),
                    len: extent.len,
                    is_hole,
                };
                match &mut pending {
                    Some(last) if last.is_hole == is_hole => {
                        last.len = last.len.saturating_add(run.len)
                    }
                    _ => {
                        if let Some(done) = pending.replace(run)
                            && visit(done).is_break()
                        {
                            stopped = true;
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                }
                Ok(ControlFlow::Continue(()))
            },
        )?;
        if let Some(last) = pending
            && !stopped
        {
            let _ = visit(last);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: reading ahead that stops as soon as one repeat leads back to an old block.
    #[test]
    fn a_reader_in_order_is_known_though_repeats_lead_it_back() {
        let recent = RecentBlocks::default();
        assert_eq!(recent.enter(0), Entered::Jumping);
        assert_eq!(recent.enter(0), Entered::Staying);
        assert_eq!(recent.enter(1), Entered::FromTheOneBefore);
        for back in [700, 20, 300] {
            assert_eq!(recent.enter(back), Entered::Jumping);
        }
        assert_eq!(recent.enter(1), Entered::Staying);
        assert_eq!(recent.enter(2), Entered::FromTheOneBefore);
        for back in 0..RECENT_COUNT as u64 {
            recent.enter(1000 + 2 * back);
        }
        assert_eq!(recent.enter(3), Entered::Jumping);
    }
}
