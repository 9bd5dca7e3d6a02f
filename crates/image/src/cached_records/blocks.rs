//! Blocks of streams, and the bytes that recipes make: decoded once, as far as a reader wants, and
//! cached.

use super::block_key::{BlockKey, Wanted};
use super::partial_block::PartialBlock;
use super::records::CachedRecords;
use crate::cache::block::Block;
use crate::records::read::read_record_into;
use crate::records::section::FoundRecord;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weald_codec::{FrameDecoder, filter, front_buffer_len, front_len};
use weald_format::Result;
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::directory::Category;

/// Raw bytes from which on a block is decoded in steps. A shorter block is decoded in one step of
/// about a millisecond.
const RESUMABLE_LEN_MIN: u64 = 1 << 20;

/// A block is decoded in steps, or as a whole for a reader of a part, only if the cache can hold
/// this many of its size.
const CACHED_COUNT_MIN: u64 = 4;

/// Decoded bytes of a block, or the bytes that a recipe makes.
#[derive(Clone)]
pub enum Decoded {
    /// All bytes, or a front.
    Block(Arc<Block>),
    /// A block that is decoded in steps, as far as a reader has wanted.
    Partial(Arc<PartialBlock>),
}

impl Decoded {
    /// Bytes when the decoding is complete.
    pub fn len(&self) -> usize {
        match self {
            Self::Block(block) => block.len(),
            Self::Partial(partial) => partial.len(),
        }
    }
}

impl CachedRecords {
    /// The key of a block. Images of a store name a block by what it is decoded from, so that the
    /// cache holds it once for all of them.
    fn block_key(&self, stream: u8, found: &FoundRecord) -> BlockKey {
        let record = &found.record;
        match self.shared_bits(stream, record) {
            Some(bits) => BlockKey::shared(bits, record.codec, self.category(stream)),
            None => BlockKey::whole(stream, found.no),
        }
    }

    /// Whether a block is decoded in steps: as far as a reader wants, and further when a reader
    /// wants more. Such a block takes the memory of the whole block from the start; a small cache
    /// keeps separate fronts instead.
    pub fn is_resumable(&self, record: &RecordRef) -> bool {
        record.codec == Codec::Zstd
            && record.raw_len > RESUMABLE_LEN_MIN
            && !self.decodes_whole
            && self.fits_several_times(record)
    }

    /// Whether the cache can hold several blocks of this size.
    fn fits_several_times(&self, record: &RecordRef) -> bool {
        record.raw_len <= self.tag().cache().block_len_max() / CACHED_COUNT_MIN
    }

    /// A block of a stream for a reader, decoded as far as `wanted` or further.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn decoded(&self, stream: u8, found: &FoundRecord, wanted: Wanted) -> Result<Decoded> {
        let wanted = if self.decodes_whole && self.fits_several_times(&found.record) {
            Wanted::Whole
        } else {
            wanted
        };
        if self.is_resumable(&found.record)
            && !self.is_check()
            && let Some(decoded) = self.partial(stream, found, wanted)?
        {
            return Ok(decoded);
        }
        self.block(stream, found, wanted).map(Decoded::Block)
    }

    /// The block as one that is decoded in steps; `None` if it does not decode.
    fn partial(&self, stream: u8, found: &FoundRecord, wanted: Wanted) -> Result<Option<Decoded>> {
        let whole = self.block_key(stream, found);
        if let Some(block) = self.blocks.get(&whole) {
            return Ok(Some(Decoded::Block(block)));
        }
        let key = whole.partial();
        let record = &found.record;
        let begin = || self.remembering(record, || self.begin_partial(stream, record));
        let partial = self.partial_blocks.get_or_load(&key, begin)?;
        let len = match wanted {
            Wanted::Whole => partial.len(),
            Wanted::Front(len) => usize::try_from(len).unwrap_or(usize::MAX),
        };
        let Some(progress) = partial.decode_up_to(len) else {
            // The caller decodes the block in one step, which fails with the reason.
            self.partial_blocks.remove(&key);
            return Ok(None);
        };
        self.count_decoded(progress.len);
        if progress.is_complete {
            self.partial_blocks.shrink(&key, &partial);
        }
        Ok(Some(match partial.whole() {
            Some(block) => Decoded::Block(block),
            None => Decoded::Partial(partial),
        }))
    }

    /// Reads and verifies the stored bytes of a block and prepares its decoding.
    fn begin_partial(&self, stream: u8, record: &RecordRef) -> Result<PartialBlock> {
        let stored_len = usize::try_from(record.stored_len).unwrap_or(usize::MAX);
        let raw_len = usize::try_from(record.raw_len).unwrap_or(usize::MAX);
        let mut stored = self
            .buffer_pool
            .block(stored_len.saturating_add(HEADER_LEN));
        read_record_into(&*self.source, record, stored.buffer())?;
        let bytes = self.buffer_pool.block(raw_len);
        let begun = PartialBlock::new(self.category(stream), bytes, stored, HEADER_LEN);
        begun.map_err(|e| e.at_offset(record.offset))
    }

    /// Whether the cache has the first `len` bytes of block `no` of a stream, or the bytes that
    /// recipe `no` makes.
    pub fn has_block(&self, stream: u8, no: u64, len: u64) -> bool {
        let whole = if self.shared_tag.is_some() && self.recipe_stream() != Some(stream) {
            match self.record(RecordType::Data, stream, no) {
                Ok(found) => self.block_key(stream, &found),
                Err(_) => return false,
            }
        } else {
            BlockKey::whole(stream, no)
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let partial = || self.partial_blocks.peek(&whole.partial());
        self.blocks.contains(&whole) || partial().is_some_and(|partial| partial.has(len))
    }

    /// A block of a stream, decoded as far as `wanted` or further. If the cache has a front that is
    /// too short, the whole block is decoded: a block costs at most one front and one whole
    /// decoding. A check decodes every byte.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn block(&self, stream: u8, found: &FoundRecord, wanted: Wanted) -> Result<Arc<Block>> {
        let whole = self.block_key(stream, found);
        if let Some(block) = self.blocks.get(&whole) {
            return Ok(block);
        }
        let front = whole.front();
        let record = &found.record;
        if let Wanted::Front(len) = wanted
            && self.front_lens(stream, record, len).0 < record.raw_len
            && !self.is_check()
        {
            let load = || self.remembering(record, || self.read_front(stream, record, len));
            let block = self.blocks.get_or_load(&front, load)?;
            if block.len() as u64 >= len.min(record.raw_len) {
                return Ok(block);
            }
        }
        let load = || self.remembering(record, || self.read_block(stream, record));
        let block = self.blocks.get_or_load(&whole, load)?;
        self.blocks.remove(&front);
        Ok(block)
    }

    /// A whole block for a reader that takes all of it and will not request it again. The block
    /// leaves the cache, or does not enter it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn passing_block(&self, stream: u8, found: &FoundRecord) -> Result<Arc<Block>> {
        let whole = self.block_key(stream, found);
        if let Some(block) = self.blocks.get(&whole) {
            self.blocks.remove(&whole);
            return Ok(block);
        }
        let record = &found.record;
        let read = self.remembering(record, || self.read_block(stream, record));
        read.map(Arc::new)
    }

    /// Counts `len` bytes of an uncompressed block as handed out to a sequential reader. When all
    /// bytes are handed out, the block leaves the cache: by then the kernel has them twice, and
    /// reading them again costs less than fresh memory does.
    pub fn hand_out_plain(&self, stream: u8, found: &FoundRecord, block: &Block, len: usize) {
        if block.count_handed_out(len) {
            self.blocks.remove(&self.block_key(stream, found));
        }
    }

    /// Bytes that are decoded for the first `wanted` bytes of a block of `stream`, and how many of
    /// them are final then: the filter changes the last ones once later bytes are there.
    pub fn front_lens(&self, stream: u8, record: &RecordRef, wanted: u64) -> (u64, u64) {
        let raw_len = usize::try_from(record.raw_len).unwrap_or(usize::MAX);
        let tail = filter::front_tail_len(self.category(stream));
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let len = front_len(record.codec, raw_len, wanted.saturating_add(tail));
        let final_len = if len < raw_len {
            len.saturating_sub(tail)
        } else {
            len
        };
        (len as u64, final_len as u64)
    }

    /// The same, also for a block that [`Self::is_resumable`]. The steps of its decoder may be
    /// shorter than this function assumes and end elsewhere, so that the result is off by up to one
    /// step.
    pub fn partial_lens(&self, stream: u8, record: &RecordRef, wanted: u64) -> (u64, u64) {
        if !self.is_resumable(record) {
            return self.front_lens(stream, record, wanted);
        }
        let tail = filter::front_tail_len(self.category(stream)) as u64;
        let step_len = FrameDecoder::FRAME_BLOCK_LEN_MAX as u64;
        let len = wanted.saturating_add(tail);
        let len = len.checked_next_multiple_of(step_len).unwrap_or(u64::MAX);
        if len < record.raw_len {
            (len, len.saturating_sub(tail))
        } else {
            (record.raw_len, record.raw_len)
        }
    }

    /// Whether the blocks of a stream are filtered before they are encoded.
    pub fn is_filtered(&self, stream: u8) -> bool {
        filter::is_filtered(self.category(stream))
    }

    fn category(&self, stream: u8) -> Category {
        let stream = self.directory.streams.get(usize::from(stream));
        stream.map_or(Category::General, |s| s.category)
    }

    /// Reads, verifies and decodes a block of `stream`, and undoes the filter of its category.
    ///
    /// # Errors
    /// As [`CachedRecords::read_raw`].
    pub fn read_block(&self, stream: u8, record: &RecordRef) -> Result<Block> {
        self.read_front(stream, record, record.raw_len)
    }

    /// The same for the first `wanted` bytes or more.
    fn read_front(&self, stream: u8, record: &RecordRef, wanted: u64) -> Result<Block> {
        let (len, final_len) = self.front_lens(stream, record, wanted);
        let buffer_len = front_buffer_len(record.codec, record.raw_len as usize, len as usize);
        let mut block = self.buffer_pool.block(buffer_len);
        self.read_front_into(stream, record, len as usize, block.buffer())?;
        let bytes = block.buffer();
        self.count_decoded(bytes.len());
        filter::unfilter(self.category(stream), bytes);
        // A codec without fronts decoded the whole block, and all bytes are final.
        if (bytes.len() as u64) < record.raw_len {
            bytes.truncate(final_len as usize);
        }
        Ok(block)
    }

    /// Counts `len` bytes of a block as decoded.
    pub fn count_decoded(&self, len: usize) {
        self.decoded_len.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// Bytes of blocks that were decoded so far, and bytes that recipes made.
    pub fn decoded_len(&self) -> u64 {
        self.decoded_len.load(Ordering::Relaxed)
    }

    /// The bytes that recipe `no` of `stream` makes: from the cache, or from `make`.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn recipe_output(
        &self,
        stream: u8,
        no: u64,
        make: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Arc<Block>> {
        self.blocks.get_or_load(&BlockKey::whole(stream, no), || {
            let output = make()?;
            self.count_decoded(output.len());
            Ok(Block::from(output))
        })
    }
}
