//! Contents: from a file offset through the logical space and its extents to bytes of blocks.

#[path = "prefetch.rs"]
mod coming;

use crate::block::Block;
use crate::parts::{Group, Window};
use crate::readers::{Readers, Sight, Trail};
use crate::records::{Decoded, Found, Page, Records, Wanted};
use crate::{Image, Run};
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Weak};
use weald_format::container::{Codec, RecordType};
use weald_format::directory::Directory;
use weald_format::limits::{ITEMS_PER_PAGE, RECIPE_LEN_MAX};
use weald_format::pages::{Extent, Source};
use weald_format::recipes::Recipe;
use weald_format::{ContentId, Error, Result};

/// Bytes handed out by a read: a part of a cached block, or a copy of several parts.
pub struct Chunk(Held);

/// Chunks that follow each other at most: what takes more is copied together.
const CHUNK_COUNT_MAX: usize = 8;

enum Held {
    Block(Arc<Block>, Range<usize>),
    Copy(Block),
}

impl Chunk {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        Self(Held::Copy(Block::default()))
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

/// The contents of one image.
pub struct Contents {
    records: Arc<Records>,
    deflate_stream: Option<u8>,
    pub(crate) readers: Readers,
    /// Whether threads decode ahead of who reads in order.
    reads_ahead: bool,
    /// Whether nearly all data are stored as they are.
    is_plain: bool,
    sight: Sight,
    own: Weak<Self>,
}

/// How somebody reads a file; by default here and there.
#[derive(Debug, Clone, Copy, Default)]
pub struct Manner {
    /// In order.
    pub is_in_order: bool,
    /// Bytes that were asked for at once.
    pub read_len: u64,
    /// Several such requests are on their way at a time, and what is stored as it is is read for
    /// each by itself.
    pub reads_through: bool,
}

/// For whom a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Somebody who takes one chunk after the other: threads of the cache look ahead.
    Any,
    /// The kernel, which takes several chunks at a time and looks ahead by itself, by what it asks
    /// for at once, where that is much and is stored as it is.
    Kernel,
}

/// Who asks for so much at once, again and again, has the next request on its way before this one
/// is answered.
const READ_THROUGH_LEN: u64 = 512 << 10;

/// How bytes are read.
#[derive(Debug, Clone, Copy)]
struct Reading {
    recipes: Recipes,
    manner: Manner,
    /// Bytes that the extent goes on for, those that are wanted now included.
    rest_len: u64,
}

impl Reading {
    /// Nothing but what is wanted now.
    fn just(recipes: Recipes, len: u64) -> Self {
        Self {
            recipes,
            manner: Manner::default(),
            rest_len: len,
        }
    }
}

/// Who asks for so much at once will ask for more of a block: the kernel does so for programs, of
/// which it maps pages here and there.
const LARGE_READ_LEN: u64 = 64 << 10;

/// How far a block of `raw_len` bytes is decoded for who wants `len` bytes of it from `start` on.
///
/// Who reads the stream in order wants all of it. Who reads a file in order wants what its extent
/// has there, `rest_len` bytes. A block that cannot grow is decoded whole where that is a quarter
/// of it, for others will come, and so it is for who reads much at once and would have a quarter
/// decoded anyway.
pub fn wanted(
    (start, len, rest_len): (u64, u64, u64),
    (raw_len, grows): (u64, bool),
    manner: Manner,
    stream_in_order: bool,
) -> Wanted {
    let is_much = |len: u64| !grows && len.saturating_mul(4) >= raw_len;
    if stream_in_order || manner.is_in_order && is_much(rest_len) {
        return Wanted::Whole;
    }
    let front_len = match manner.is_in_order {
        true => start.saturating_add(rest_len),
        false => start.saturating_add(len),
    };
    match manner.read_len >= LARGE_READ_LEN && is_much(front_len) {
        true => Wanted::Whole,
        false => Wanted::Front(front_len),
    }
}

/// Where what somebody reads is, and how far it is wanted.
struct Noted {
    found: Found,
    wanted: Wanted,
    /// Bytes that are taken of a block that is stored as it is, by who reads in order and will not
    /// ask for them again.
    taken_len: Option<usize>,
}

/// Decoded bytes, and the part of them that an extent covers from some address on.
struct Piece {
    bytes: Decoded,
    range: Range<usize>,
}

/// Whether what is read may be made by recipes: what recipes are made of may not, so that there are
/// no loops.
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
    /// Contents over `records`, as `directory` has them; so many threads decode ahead, if the cache
    /// has none yet.
    pub fn new(records: Arc<Records>, directory: &Directory, thread_count: usize) -> Arc<Self> {
        let cache = records.tag().cache();
        let is_plain = records.are_mostly_incompressible();
        let mut sight = Sight::default();
        if thread_count > 0 {
            let thread_count = cache.pool(thread_count).thread_count();
            let lens = directory.streams.iter().map(|s| s.block_len_max);
            sight = coming::sight_of(
                lens.max().unwrap_or(0),
                thread_count,
                cache.block_len_max(),
                is_plain,
            );
        }
        Arc::new_cyclic(|own| Self {
            deflate_stream: records.deflate_stream(),
            records,
            readers: Readers::default(),
            reads_ahead: sight.len > 0,
            is_plain,
            sight,
            own: own.clone(),
        })
    }

    /// Forgets who reads in order.
    pub fn forget_readers(&self) {
        self.readers.forget();
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
        let mut chunks = self.read_chunks(id, offset, len, Reader::Any)?;
        Ok(chunks.pop().unwrap_or_else(Chunk::empty))
    }

    /// The same, for the kernel in as many chunks as it takes without a copy of what is decoded, or
    /// in one where that would be many.
    pub fn read_chunks(
        &self,
        id: ContentId,
        offset: u64,
        len: usize,
        reader: Reader,
    ) -> Result<Vec<Chunk>> {
        let (start, content_len) = self.extent_of(id)?;
        let len = content_len.saturating_sub(offset).min(len as u64);
        let read = offset..offset.saturating_add(len);
        let pace = self.readers.note(Trail::File(id.0), read, self.sight);
        let reads_through = reader == Reader::Kernel
            && pace.is_in_order
            && len >= READ_THROUGH_LEN
            && self.is_plain;
        if !pace.ahead.is_empty() && self.reads_ahead && !reads_through {
            // What fails here fails again where it is read.
            let _ = self.look_ahead(start, pace.ahead, content_len);
        }
        let from = start.saturating_add(offset);
        let end = from.saturating_add(len);
        // Who reads in order wants to know how far the last extent goes on.
        let seen_end = match pace.is_in_order {
            true => start.saturating_add(content_len),
            false => end,
        };
        if len == 0 {
            return Ok(Vec::new());
        }
        let manner = Manner {
            is_in_order: pace.is_in_order,
            read_len: len,
            reads_through,
        };
        let mut whole = None;
        self.each_extent(from..seen_end, &mut |_, extent| {
            if extent.len >= len
                && let Source::Stream { stream, address } = extent.source
            {
                let count_max = match reader {
                    Reader::Any => 1,
                    Reader::Kernel => CHUNK_COUNT_MAX,
                };
                let lens = (len, extent.len);
                whole = self.chunks_of(stream, address, lens, manner, count_max)?;
            }
            Ok(ControlFlow::Break(()))
        })?;
        if let Some(whole) = whole {
            return Ok(whole);
        }
        // Memory that was used before: a copy is as long as what the kernel asks for, hundreds of
        // kilobytes of fresh pages where it reads ahead.
        let mut copy = self.records.room(len as usize);
        let read = Reading {
            recipes: Recipes::Allowed,
            manner,
            rest_len: 0,
        };
        self.append(from..end, seen_end, copy.buffer(), read)?;
        Ok(vec![Chunk(Held::Copy(copy))])
    }

    /// The `len` bytes at `address` of a stream, of an extent that goes on for `rest_len`; None
    /// where they lie in more than `count_max` blocks.
    fn chunks_of(
        &self,
        stream: u8,
        address: u64,
        (len, rest_len): (u64, u64),
        manner: Manner,
        count_max: usize,
    ) -> Result<Option<Vec<Chunk>>> {
        let (mut chunks, mut at) = (Vec::with_capacity(1), 0u64);
        while at < len && chunks.len() < count_max {
            let reading = Reading {
                recipes: Recipes::Allowed,
                manner,
                rest_len: rest_len.saturating_sub(at),
            };
            let left = len.saturating_sub(at);
            let piece = self.piece(stream, address.saturating_add(at), left, reading)?;
            if piece.range.is_empty() {
                break;
            }
            at = at.saturating_add(piece.range.len() as u64);
            chunks.push(self.chunk_of(piece)?);
        }
        Ok((at == len).then_some(chunks))
    }

    fn chunk_of(&self, piece: Piece) -> Result<Chunk> {
        Ok(Chunk(match piece.bytes {
            Decoded::Block(block) => Held::Block(block, piece.range),
            Decoded::Growing(growing) => {
                let mut copy = self.records.blank(piece.range.len());
                match growing.read().copy_to(piece.range.start, copy.buffer()) {
                    true => Held::Copy(copy),
                    false => return Err(bad("F-11.5", "extent passes its block")),
                }
            }
        }))
    }

    /// Adds logical bytes `range` to `copy`; extents are looked at up to `seen_end`.
    fn append(
        &self,
        range: Range<u64>,
        seen_end: u64,
        copy: &mut Vec<u8>,
        reading: Reading,
    ) -> Result<()> {
        let mut from = range.start;
        while from < range.end {
            let window = Window::of(self, from..range.end, seen_end)?;
            let (here, len) = (copy.len(), window.len);
            if len == 0 {
                return Err(bad("F-11.4", format!("no extent for logical byte {from}")));
            }
            // What no extent fills is a hole.
            copy.resize(here.saturating_add(len as usize), 0);
            let room = copy.get_mut(here..).unwrap_or(&mut []);
            window.each_group(&mut |contents, stream, group| {
                contents.copy_group(stream, &group, room, reading)
            })?;
            from = from.saturating_add(len);
        }
        Ok(())
    }

    /// Copies to `room` what one block, or one recipe, has of a group of parts.
    fn copy_group(
        &self,
        stream: u8,
        group: &Group<'_, '_>,
        room: &mut [u8],
        reading: Reading,
    ) -> Result<()> {
        let start = group.wanted.start;
        let reading = Reading {
            rest_len: group.rest_end.saturating_sub(start),
            ..reading
        };
        let len = group.wanted.end.saturating_sub(start);
        let piece = self.piece(stream, start, len, reading)?;
        let mut each_part = |copy: &mut dyn FnMut(Range<usize>, &mut [u8]) -> bool| {
            for part in group.parts {
                let skipped = part.address.saturating_sub(start) as usize;
                let here = part.len.min(group.wanted.end.saturating_sub(part.address)) as usize;
                let from = piece.range.start.saturating_add(skipped);
                let from = from..from.saturating_add(here);
                let to = room.get_mut(part.at..part.at.saturating_add(here));
                let to = to.filter(|_| from.end <= piece.range.end);
                if !to.is_some_and(|to| copy(from, to)) {
                    return Err(bad("F-11.5", "extent passes its block"));
                }
            }
            Ok(())
        };
        match &piece.bytes {
            Decoded::Block(block) => each_part(&mut |from, to| {
                let bytes = block.get(from);
                bytes.map(|bytes| to.copy_from_slice(bytes)).is_some()
            }),
            Decoded::Growing(growing) => {
                let grown = growing.read();
                each_part(&mut |from, to| grown.copy_to(from.start, to))
            }
        }
    }

    /// The bytes at `address` of `stream`, as many of `len` as lie in one block or come from one
    /// recipe.
    fn piece(&self, stream: u8, address: u64, len: u64, reading: Reading) -> Result<Piece> {
        if let Some((image, stream)) = self.base_of(stream) {
            return image.contents.piece(*stream, address, len, reading);
        }
        let (bytes, first) = match self.is_made(stream) {
            true if reading.recipes == Recipes::Refused => {
                return Err(bad("F-20.3", "a recipe made of what recipes make"));
            }
            true => {
                let (bytes, first) = self.made_bytes(stream, address)?;
                if let Some(recorder) = self.records.recorder() {
                    recorder.made(stream, first);
                }
                (Decoded::Block(bytes), first)
            }
            false => self.block_for(stream, address, len, reading)?,
        };
        let start = address.saturating_sub(first) as usize;
        let end = usize::try_from(len).map_or(usize::MAX, |len| start.saturating_add(len));
        let range = start..end.min(bytes.len());
        Ok(Piece { bytes, range })
    }

    /// What the recipe makes that has byte `address` of the deflate stream, and where that begins.
    fn made_bytes(&self, stream: u8, address: u64) -> Result<(Arc<Block>, u64)> {
        let made = self.made_at(address)?;
        let bytes = self
            .records
            .made(stream, made.no, || self.make(made.recipe()?))?;
        Ok((bytes, made.first))
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
        let Some(needs) = recipe.input_range(len) else {
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
        let run_end = run.end;
        self.append(run, run_end, &mut plain, Reading::just(Recipes::Refused, 0))?;
        let made = weald_codec::run_recipe(recipe, &plain, len)?;
        match Recipe::check_of(&made) == recipe.check {
            true => Ok(made),
            false => Err(bad("F-20.5", "a recipe makes other bytes than it says")),
        }
    }

    /// The block of `stream` that holds `address`, and the address of its first byte; of the block
    /// at least the `len` bytes from there on, or all that it has.
    pub fn block_at(&self, stream: u8, address: u64, len: u64) -> Result<(Arc<Block>, u64)> {
        let reading = Reading::just(Recipes::Refused, len);
        let Noted { found, wanted, .. } = self.note(stream, (address, len), reading)?;
        let block = self.records.block(stream, &found, wanted)?;
        Ok((block, found.first_item))
    }

    fn block_for(
        &self,
        stream: u8,
        address: u64,
        len: u64,
        reading: Reading,
    ) -> Result<(Decoded, u64)> {
        let noted = self.note(stream, (address, len), reading)?;
        let found = &noted.found;
        if reading.manner.reads_through && noted.taken_len == Some(found.record.raw_len as usize) {
            let block = self.records.passing_block(stream, found)?;
            return Ok((Decoded::Block(block), found.first_item));
        }
        let decoded = self.records.decoded(stream, found, noted.wanted)?;
        if let (Some(len), Decoded::Block(block)) = (noted.taken_len, &decoded) {
            self.records.take_plain(stream, found, block, len);
        }
        Ok((decoded, found.first_item))
    }

    /// Notes that somebody reads the `len` bytes at `address` of a stream, as many as one block has
    /// of them; which block that is, and how far it is wanted then.
    fn note(&self, stream: u8, (address, len): (u64, u64), reading: Reading) -> Result<Noted> {
        let found = self
            .records
            .record_of_item(RecordType::Data, stream, address)?;
        let start = address.saturating_sub(found.first_item);
        let here = len.min(found.item_count.saturating_sub(start));
        let read = address..address.saturating_add(here);
        let pace = self.readers.note(Trail::Stream(stream), read, self.sight);
        // Who reads a file in order was looked ahead for along that file.
        if !pace.ahead.is_empty() && self.reads_ahead && !reading.manner.is_in_order {
            let stream_end = self.records.item_count(RecordType::Data, stream);
            let ahead = pace
                .ahead
                .start
                .max(found.first_item.saturating_add(found.item_count));
            self.look_along(stream, ahead..pace.ahead.end.min(stream_end));
        }
        let record = &found.record;
        let is_in_order = pace.is_in_order || reading.manner.is_in_order;
        let is_taken = is_in_order && record.codec == Codec::None;
        let taken_len = is_taken.then_some(here as usize);
        let wanted = wanted(
            (start, len, reading.rest_len),
            (record.raw_len, self.records.grows(record)),
            reading.manner,
            pace.is_in_order,
        );
        if let Some(recorder) = self.records.recorder() {
            let wanted_len = match wanted {
                Wanted::Whole => found.record.raw_len,
                Wanted::Front(len) => len.min(found.record.raw_len),
            };
            recorder.block(stream, found.no, wanted_len);
        }
        Ok(Noted {
            found,
            wanted,
            taken_len,
        })
    }

    /// The number of the block or recipe that has byte `at` of a stream, and the addresses of all
    /// bytes of it.
    pub fn piece_at(&self, stream: u8, at: u64) -> Result<(u64, Range<u64>)> {
        let (no, first, len) = if self.is_made(stream) {
            let made = self.made_at(at)?;
            (made.no, made.first, made.recipe()?.len)
        } else {
            let found = self.records.record_of_item(RecordType::Data, stream, at)?;
            (found.no, found.first_item, found.item_count)
        };
        Ok((no, first..first.saturating_add(len)))
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

    /// The contents that have the bytes of `stream`, these or those of a base image, and its number
    /// there.
    pub fn holder_of(&self, stream: u8) -> (&Self, u8) {
        match self.base_of(stream) {
            Some((image, stream)) => image.contents.holder_of(*stream),
            None => (self, stream),
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
