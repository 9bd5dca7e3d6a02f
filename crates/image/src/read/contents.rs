//! Contents: the bytes of files, from the cache or decoded.

use super::access_pattern::{AddressSpace, Detected, ReadaheadWindow, ReaderTable};
use super::decode_goal::{AccessPattern, BlockShape, RequestedPart, decode_goal};
use super::extent_groups::{Group, Window};
use super::extent_map::{ExtentMap, Recipes};
use super::prefetch::{PrefetchPlan, readahead_window};
use crate::cache::block::Block;
use crate::cache::prefetch_pool::PrefetchTarget;
use crate::cached_records::block_key::Wanted;
use crate::cached_records::blocks::Decoded;
use crate::cached_records::records::{BaseStreams, CachedRecords};
use crate::records::section::FoundRecord;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Weak};
use weald_format::container::{Codec, RecordType};
use weald_format::directory::Directory;
use weald_format::limits::RECIPE_LEN_MAX;
use weald_format::pages::Source;
use weald_format::recipes::Recipe;
use weald_format::{ContentId, Error, Result};

/// Buffers that a read returns at most; a read that spans more blocks is copied together.
const BUFFER_COUNT_MAX: usize = 8;

/// Length of the longest copy that is allocated at once. A longer one grows with its data.
const COPY_LEN_MAX: u64 = 4 << 20;

/// Read size above which a client counts as pipelined: it repeats requests this large and sends the
/// next before we answer.
const PIPELINED_READ_LEN: u64 = 512 << 10;

/// Bytes that a read returns: a part of a cached block, or a copy of several parts.
pub struct FileBytes(Bytes);

enum Bytes {
    Shared(Arc<Block>, Range<usize>),
    Copied(Block),
}

impl FileBytes {
    /// No bytes.
    pub(crate) fn empty() -> Self {
        Self(Bytes::Copied(Block::default()))
    }
}

impl std::ops::Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Shared(block, range) => block.get(range.clone()).unwrap_or(&[]),
            Bytes::Copied(block) => block,
        }
    }
}

/// The contents of one image.
pub struct Contents {
    map: Arc<ExtentMap>,
    records: Arc<CachedRecords>,
    bases: BaseStreams<Self>,
    readers: ReaderTable,
    /// Whether threads decode ahead of sequential readers.
    prefetches: bool,
    /// Whether the pattern of readers matters. If whole blocks are decoded without a prefetch, it
    /// does not, and threads would contend for the table of readers.
    watches_readers: bool,
    /// Whether nearly all data are stored uncompressed.
    is_plain: bool,
    window: ReadaheadWindow,
    own: Weak<Self>,
}

/// The client of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// A client that takes one buffer at a time; the threads of the cache prefetch for it.
    Any,
    /// The kernel. It takes several buffers at a time. Where it sends large requests for
    /// uncompressed data, its own readahead suffices.
    Kernel,
}

/// Properties of the read of a range of a stream.
#[derive(Debug, Clone, Copy)]
struct ReadContext {
    recipes: Recipes,
    pattern: AccessPattern,
    /// Bytes from the first requested one to the end of the extent.
    extent_len: u64,
}

impl ReadContext {
    /// A read at a random offset that needs nothing but the requested bytes.
    fn random(recipes: Recipes, len: u64) -> Self {
        Self {
            recipes,
            pattern: AccessPattern::default(),
            extent_len: len,
        }
    }
}

/// The block of a request, and how far to decode it.
struct BlockRequest {
    found: FoundRecord,
    wanted: Wanted,
    /// For a sequential reader of an uncompressed block, which will not request the bytes again:
    /// the bytes of the block that it takes.
    handed_out_len: Option<usize>,
}

/// Decoded bytes, and the part of them that a request covers.
struct Piece {
    bytes: Decoded,
    range: Range<usize>,
}

fn bad(rule: &'static str, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("content", 0, rule, what)
}

impl Contents {
    /// The contents that `map` describes; `bases` have the streams of base images. If the cache has
    /// no prefetch threads yet, `thread_count` threads are started.
    pub fn new(
        map: Arc<ExtentMap>,
        records: Arc<CachedRecords>,
        bases: BaseStreams<Self>,
        directory: &Directory,
        thread_count: usize,
    ) -> Arc<Self> {
        let cache = records.tag().cache();
        let is_plain = records.are_mostly_incompressible();
        let mut window = ReadaheadWindow::default();
        if thread_count > 0 {
            let thread_count = cache.prefetch_pool(thread_count).thread_count();
            let lens = directory.streams.iter().map(|s| s.block_len_max);
            let block_len = lens.max().unwrap_or(0);
            window = readahead_window(block_len, thread_count, cache.block_len_max(), is_plain);
        }
        let prefetches = window.len > 0;
        Arc::new_cyclic(|own| Self {
            watches_readers: prefetches || !records.decodes_whole_blocks(),
            map,
            records,
            bases,
            readers: ReaderTable::default(),
            prefetches,
            is_plain,
            window,
            own: own.clone(),
        })
    }

    /// Notes a request for addresses `requested`.
    fn note(&self, space: AddressSpace, requested: Range<u64>) -> Detected {
        if self.watches_readers {
            self.readers.note(space, requested, self.window)
        } else {
            Detected::default()
        }
    }

    /// Forgets which readers are sequential.
    pub fn forget_readers(&self) {
        self.readers.clear();
    }

    /// Up to `len` bytes of content `id` from `offset`; fewer only at the end of the content.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read(&self, id: ContentId, offset: u64, len: usize) -> Result<FileBytes> {
        let mut buffers = self.read_vectored(id, offset, len, Client::Any)?;
        Ok(buffers.pop().unwrap_or_else(FileBytes::empty))
    }

    /// The same bytes for `client`. The kernel gets up to [`BUFFER_COUNT_MAX`] buffers without a
    /// copy of decoded bytes, or else one buffer.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read_vectored(
        &self,
        id: ContentId,
        offset: u64,
        len: usize,
        client: Client,
    ) -> Result<Vec<FileBytes>> {
        let (start, content_len) = self.map.range_of(id)?;
        let len = content_len.saturating_sub(offset).min(len as u64);
        let requested = offset..offset.saturating_add(len);
        let space = AddressSpace::Content(id.0);
        let reader = self.note(space, requested);
        let bypasses_cache = client == Client::Kernel
            && reader.is_sequential
            && len >= PIPELINED_READ_LEN
            && self.is_plain;
        if !reader.prefetch.is_empty() && self.prefetches && !bypasses_cache {
            self.queue(PrefetchPlan::for_file(
                &self.map,
                start,
                reader.prefetch,
                content_len,
            ));
        }
        let from = start.saturating_add(offset);
        let end = from.saturating_add(len);
        // A sequential reader needs the length of the last extent.
        let seen_end = if reader.is_sequential {
            start.saturating_add(content_len)
        } else {
            end
        };
        if len == 0 {
            return Ok(Vec::new());
        }
        let pattern = AccessPattern {
            is_sequential: reader.is_sequential,
            read_len: len,
            bypasses_cache,
        };
        let mut shared = None;
        self.map.each_extent(from..seen_end, &mut |_, extent| {
            if extent.len >= len
                && let Source::Stream { stream, address } = extent.source
            {
                let count_max = match client {
                    Client::Any => 1,
                    Client::Kernel => BUFFER_COUNT_MAX,
                };
                let lens = (len, extent.len);
                shared = self.shared_buffers(stream, address, lens, pattern, count_max)?;
            }
            Ok(ControlFlow::Break(()))
        })?;
        if let Some(shared) = shared {
            return Ok(shared);
        }
        // Recycled memory: a copy is as long as the kernel's request, which is hundreds of
        // kilobytes of fresh pages during its readahead.
        let mut copy = if len <= COPY_LEN_MAX {
            self.records.blank_block(len as usize)
        } else {
            self.records.empty_block(len as usize)
        };
        let context = ReadContext {
            recipes: Recipes::Allowed,
            pattern,
            extent_len: 0,
        };
        self.fill(from..end, seen_end, copy.buffer(), context)?;
        Ok(vec![FileBytes(Bytes::Copied(copy))])
    }

    /// The `len` bytes at `address` of a stream, in an extent that has `extent_len` bytes from
    /// there, without a copy; `None` if they are in more than `count_max` blocks.
    fn shared_buffers(
        &self,
        stream: u8,
        address: u64,
        (len, extent_len): (u64, u64),
        pattern: AccessPattern,
        count_max: usize,
    ) -> Result<Option<Vec<FileBytes>>> {
        let (mut buffers, mut at) = (Vec::with_capacity(1), 0u64);
        while at < len && buffers.len() < count_max {
            let context = ReadContext {
                recipes: Recipes::Allowed,
                pattern,
                extent_len: extent_len.saturating_sub(at),
            };
            let remaining_len = len.saturating_sub(at);
            let piece = self.piece(stream, address.saturating_add(at), remaining_len, context)?;
            if piece.range.is_empty() {
                break;
            }
            at = at.saturating_add(piece.range.len() as u64);
            buffers.push(self.bytes_of(piece)?);
        }
        Ok((at == len).then_some(buffers))
    }

    fn bytes_of(&self, piece: Piece) -> Result<FileBytes> {
        Ok(FileBytes(match piece.bytes {
            Decoded::Block(block) => Bytes::Shared(block, piece.range),
            Decoded::Partial(partial) => {
                let mut copy = self.records.blank_block(piece.range.len());
                if partial.read().copy_to(piece.range.start, copy.buffer()) {
                    Bytes::Copied(copy)
                } else {
                    return Err(bad("F-11.5", "extent passes its block"));
                }
            }
        }))
    }

    /// Writes logical bytes `range` to the front of `copy`. Its old bytes are overwritten, and it
    /// grows if it is too short. The length of extents counts up to `seen_end`.
    fn fill(
        &self,
        range: Range<u64>,
        seen_end: u64,
        copy: &mut Vec<u8>,
        context: ReadContext,
    ) -> Result<()> {
        let (mut from, mut copied_len) = (range.start, 0usize);
        while from < range.end {
            let window = Window::new(&self.map, from..range.end, seen_end)?;
            let len = window.len;
            if len == 0 {
                return Err(bad("F-11.4", format!("no extent for logical byte {from}")));
            }
            let end = copied_len.saturating_add(len as usize);
            if copy.len() < end {
                copy.resize(end, 0);
            }
            let target = copy.get_mut(copied_len..end).unwrap_or(&mut []);
            if window.data_len() < len {
                // Bytes that no extent fills are a hole.
                target.fill(0);
            }
            window.each_group(&mut |group| self.copy_group(&group, target, context))?;
            from = from.saturating_add(len);
            copied_len = end;
        }
        Ok(())
    }

    /// Copies the parts of a group, which one block or one recipe has, to their offsets in
    /// `target`.
    fn copy_group(
        &self,
        group: &Group<'_, '_>,
        target: &mut [u8],
        context: ReadContext,
    ) -> Result<()> {
        let start = group.requested.start;
        let context = ReadContext {
            extent_len: group.extent_end.saturating_sub(start),
            ..context
        };
        let len = group.requested.end.saturating_sub(start);
        let piece = self.piece(group.stream, start, len, context)?;
        let mut each_part = |copy: &mut dyn FnMut(Range<usize>, &mut [u8]) -> bool| {
            for part in group.parts {
                let skipped = part.address.saturating_sub(start) as usize;
                let remaining_len = group.requested.end.saturating_sub(part.address);
                let part_len = part.len.min(remaining_len) as usize;
                let from = piece.range.start.saturating_add(skipped);
                let from = from..from.saturating_add(part_len);
                let to = target.get_mut(part.at..part.at.saturating_add(part_len));
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
            Decoded::Partial(partial) => {
                let bytes = partial.read();
                each_part(&mut |from, to| bytes.copy_to(from.start, to))
            }
        }
    }

    /// The bytes at `address` of `stream`: as many of `len` as one block has or one recipe makes.
    fn piece(&self, stream: u8, address: u64, len: u64, context: ReadContext) -> Result<Piece> {
        if let Some((base, stream)) = self.base_of(stream) {
            return base.piece(*stream, address, len, context);
        }
        let (bytes, first) = match self.map.is_recipe_stream(stream) {
            true if context.recipes == Recipes::Refused => {
                return Err(bad("F-20.3", "the input of a recipe comes from a recipe"));
            }
            true => {
                let (bytes, first) = self.recipe_output(stream, address)?;
                if let Some(recorder) = self.records.recorder() {
                    recorder.recipe(stream, first);
                }
                (Decoded::Block(bytes), first)
            }
            false => self.block_for(stream, address, len, context)?,
        };
        let start = address.saturating_sub(first) as usize;
        let end = usize::try_from(len).map_or(usize::MAX, |len| start.saturating_add(len));
        let range = start..end.min(bytes.len());
        Ok(Piece { bytes, range })
    }

    /// The output of the recipe that makes byte `address` of the recipe stream, and the address of
    /// its first byte.
    fn recipe_output(&self, stream: u8, address: u64) -> Result<(Arc<Block>, u64)> {
        let found = self.map.recipe_at(address)?;
        let make = || self.run_recipe(found.recipe()?);
        let bytes = self.records.recipe_output(stream, found.no, make)?;
        Ok((bytes, found.first))
    }

    fn run_recipe(&self, recipe: &Recipe) -> Result<Vec<u8>> {
        let (start, len) = self.map.range_of(recipe.plain)?;
        let Some(input) = recipe.input_range(len) else {
            return Err(bad(
                "F-20.8",
                "a recipe refers to bytes behind the end of its input",
            ));
        };
        let input_len = input.end.saturating_sub(input.start);
        if input_len > RECIPE_LEN_MAX {
            let what = format!(
                "plain bytes of a recipe: expected at most {RECIPE_LEN_MAX}, found {input_len}"
            );
            return Err(bad("F-20.3", what));
        }
        let mut plain = Vec::with_capacity(input_len as usize);
        let range = start.saturating_add(input.start)..start.saturating_add(input.end);
        let end = range.end;
        let context = ReadContext::random(Recipes::Refused, 0);
        self.fill(range, end, &mut plain, context)?;
        let output = weald_codec::run_recipe(recipe, &plain, len)?;
        if Recipe::check_of(&output) == recipe.check {
            Ok(output)
        } else {
            Err(bad(
                "F-20.5",
                "the output of a recipe does not match its checksum",
            ))
        }
    }

    /// The block of `stream` that has byte `address`, and the address of its first byte. At least
    /// `len` bytes from `address` on are decoded, or all that the block has.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also if the stream is shorter.
    pub fn block_at(&self, stream: u8, address: u64, len: u64) -> Result<(Arc<Block>, u64)> {
        let context = ReadContext::random(Recipes::Refused, len);
        let BlockRequest { found, wanted, .. } = self.request(stream, (address, len), context)?;
        let block = self.records.block(stream, &found, wanted)?;
        Ok((block, found.first_item))
    }

    /// Appends the bytes at `address` of `stream` to `bytes`: as many of `len` as the block there
    /// has.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also if the stream is shorter.
    pub fn append_from_block(
        &self,
        stream: u8,
        address: u64,
        len: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let found = self.map.block_at(stream, address)?;
        let start = address.saturating_sub(found.first_item);
        let len = len.min(found.item_count.saturating_sub(start));
        let end = start.saturating_add(len);
        let (range, old_len) = (start as usize..end as usize, bytes.len());
        let is_whole = match self.records.decoded(stream, &found, Wanted::Front(end))? {
            Decoded::Block(block) => {
                let part = block.get(range).filter(|part| !part.is_empty());
                part.map(|part| bytes.extend_from_slice(part)).is_some()
            }
            Decoded::Partial(partial) => {
                bytes.resize(old_len.saturating_add(range.len()), 0);
                let part = bytes.get_mut(old_len..).unwrap_or(&mut []);
                partial.read().copy_to(range.start, part) && !range.is_empty()
            }
        };
        if is_whole {
            Ok(())
        } else {
            Err(bad("F-11.5", "extent passes its block"))
        }
    }

    fn block_for(
        &self,
        stream: u8,
        address: u64,
        len: u64,
        context: ReadContext,
    ) -> Result<(Decoded, u64)> {
        let request = self.request(stream, (address, len), context)?;
        let found = &request.found;
        let takes_whole = request.handed_out_len == Some(found.record.raw_len as usize);
        if context.pattern.bypasses_cache && takes_whole {
            let block = self.records.passing_block(stream, found)?;
            return Ok((Decoded::Block(block), found.first_item));
        }
        let decoded = self.records.decoded(stream, found, request.wanted)?;
        if let (Some(len), Decoded::Block(block)) = (request.handed_out_len, &decoded) {
            self.records.hand_out_plain(stream, found, block, len);
        }
        Ok((decoded, found.first_item))
    }

    /// Notes a read of the `len` bytes at `address` of a stream, as many as one block has of them;
    /// returns that block, and how far to decode it. Queues a prefetch along the stream.
    fn request(
        &self,
        stream: u8,
        (address, len): (u64, u64),
        context: ReadContext,
    ) -> Result<BlockRequest> {
        let found = self.map.block_at(stream, address)?;
        let start = address.saturating_sub(found.first_item);
        let block_end = found.first_item.saturating_add(found.item_count);
        let part_len = len.min(found.item_count.saturating_sub(start));
        let requested = address..address.saturating_add(part_len);
        let space = AddressSpace::Stream(stream);
        let reader = self.note(space, requested);
        // For a sequential reader of a file, the prefetch follows the file instead.
        let follows_file = context.pattern.is_sequential;
        if !reader.prefetch.is_empty() && self.prefetches && !follows_file {
            let stream_end = self.records.item_count(RecordType::Data, stream);
            let range = reader.prefetch.start.max(block_end)..reader.prefetch.end.min(stream_end);
            self.queue(PrefetchPlan::for_stream(&self.map, stream, range));
        }
        let record = &found.record;
        let is_sequential = reader.is_sequential || context.pattern.is_sequential;
        let is_handed_out = is_sequential && record.codec == Codec::None;
        let part = RequestedPart {
            start,
            len,
            extent_len: context.extent_len,
        };
        let block = BlockShape {
            raw_len: record.raw_len,
            is_resumable: self.records.is_resumable(record),
        };
        let wanted = decode_goal(part, block, context.pattern, reader.is_sequential);
        if let Some(recorder) = self.records.recorder() {
            let wanted_len = match wanted {
                Wanted::Whole => record.raw_len,
                Wanted::Front(len) => len.min(record.raw_len),
            };
            recorder.block(stream, found.no, wanted_len);
        }
        Ok(BlockRequest {
            found,
            wanted,
            handed_out_len: is_handed_out.then_some(part_len as usize),
        })
    }

    fn queue(&self, plan: PrefetchPlan) {
        let pool = self.records.tag().cache().prefetch_pool(0);
        plan.queue(pool, &self.own);
    }

    fn base_of(&self, stream: u8) -> Option<&(Arc<Self>, u8)> {
        self.bases.get(usize::from(stream))?.as_ref()
    }

    /// Decodes all blocks and recipes of addresses `range` of a stream into the cache. Calls
    /// `visit` with the length of each; stops when that returns `true`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn load_range(
        &self,
        stream: u8,
        range: Range<u64>,
        visit: &mut dyn FnMut(usize) -> bool,
    ) -> Result<()> {
        if let Some((base, stream)) = self.base_of(stream) {
            return base.load_range(*stream, range, visit);
        }
        let mut at = range.start;
        while at < range.end {
            let end = self.map.piece_at(stream, at)?.1.end;
            if visit(self.load(stream, at, range.end.saturating_sub(at))?) {
                break;
            }
            // Every block and recipe has at least one byte; without one the loop would not end.
            at = end.max(at.saturating_add(1));
        }
        Ok(())
    }

    /// Decodes the block or the recipe at `address` of a stream, which is not one of a base image,
    /// into the cache: `len` bytes of it, or all if that is much of it. Returns the length of the
    /// block, or of the recipe's output.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn load(&self, stream: u8, address: u64, len: u64) -> Result<usize> {
        if self.map.is_recipe_stream(stream) {
            return self
                .recipe_output(stream, address)
                .map(|(bytes, _)| bytes.len());
        }
        let found = self.map.block_at(stream, address)?;
        self.load_block(stream, &found, address, len)
    }

    fn load_block(&self, stream: u8, found: &FoundRecord, address: u64, len: u64) -> Result<usize> {
        let pattern = AccessPattern {
            is_sequential: true,
            ..AccessPattern::default()
        };
        let part = RequestedPart {
            start: address.saturating_sub(found.first_item),
            len,
            extent_len: len,
        };
        let block = BlockShape {
            raw_len: found.record.raw_len,
            is_resumable: self.records.is_resumable(&found.record),
        };
        let wanted = decode_goal(part, block, pattern, false);
        let decoded = self.records.decoded(stream, found, wanted)?;
        Ok(decoded.len())
    }

    /// The same for a reader that will request the bytes soon. Skips an uncompressed block that the
    /// reader has passed meanwhile: it left the cache ([`CachedRecords::hand_out_plain`]), and no
    /// reader needs it.
    fn load_ahead(&self, stream: u8, address: u64, len: u64) -> Result<()> {
        if let Some((base, stream)) = self.base_of(stream) {
            return base.load_ahead(*stream, address, len);
        }
        if self.map.is_recipe_stream(stream) {
            return self.recipe_output(stream, address).map(drop);
        }
        let found = self.map.block_at(stream, address)?;
        let all = found.first_item..found.first_item.saturating_add(found.item_count);
        let is_plain = found.record.codec == Codec::None;
        if is_plain && self.readers.have_passed(AddressSpace::Stream(stream), &all) {
            return Ok(());
        }
        self.load_block(stream, &found, address, len).map(drop)
    }
}

impl PrefetchTarget for Contents {
    fn decode_ahead(&self, stream: u8, address: u64, len: u64) {
        let _ = self.load_ahead(stream, address, len);
    }
}
