//! Blocks of streams, as far as somebody wants them, and what recipes make: decoded once and
//! cached.

use super::decoding::read_record_into;
use super::{BlockKey, Form, Found, Records, Wanted};
use crate::block::Block;
use crate::growing::Growing;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weald_codec::{FrameDecoder, filter, front_buffer_len, front_len};
use weald_format::Result;
use weald_format::container::{Codec, HEADER_LEN, RecordRef};
use weald_format::directory::Category;

/// Shorter blocks are decoded in one go: that takes a millisecond, and nobody waits for long.
const GROWING_LEN_MIN: u64 = 1 << 20;

/// A block grows where the cache has room for so many of them.
const GROWING_SHARE: u64 = 4;

/// Decoded bytes of a block, or what a recipe makes.
#[derive(Clone)]
pub enum Decoded {
    /// As they are read, all of them or a front.
    Block(Arc<Block>),
    /// As many as somebody wanted.
    Growing(Arc<Growing>),
}

impl Decoded {
    /// Bytes that it has or will have.
    pub fn len(&self) -> usize {
        match self {
            Self::Block(block) => block.len(),
            Self::Growing(growing) => growing.len(),
        }
    }
}

impl Records {
    /// Whether a block is decoded in steps, as far as somebody wants and further when somebody
    /// wants more. Memory for all of it is set aside at once: in a small cache fronts are kept by
    /// themselves.
    pub fn grows(&self, record: &RecordRef) -> bool {
        let len_max = self.tag.cache().block_len_max() / GROWING_SHARE;
        record.codec == Codec::Zstd && (GROWING_LEN_MIN + 1..=len_max).contains(&record.raw_len)
    }

    /// What a reader has of a block of a stream: decoded as far as `wanted` or further.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn decoded(&self, stream: u8, found: &Found, wanted: Wanted) -> Result<Decoded> {
        if self.grows(&found.record)
            && !self.is_check()
            && let Some(grown) = self.grown(stream, found, wanted)?
        {
            return Ok(grown);
        }
        self.block(stream, found, wanted).map(Decoded::Block)
    }

    /// None where it does not decode.
    fn grown(&self, stream: u8, found: &Found, wanted: Wanted) -> Result<Option<Decoded>> {
        let whole = BlockKey::whole(stream, found.no);
        if let Some(block) = self.blocks.get(&whole) {
            return Ok(Some(Decoded::Block(block)));
        }
        let key = BlockKey {
            form: Form::Growing,
            ..whole
        };
        let record = &found.record;
        let begin = || self.remembering(record, || self.begin(stream, record));
        let growing = self.growing.get_or_load(&key, begin)?;
        let len = match wanted {
            Wanted::Whole => growing.len(),
            Wanted::Front(len) => usize::try_from(len).unwrap_or(usize::MAX),
        };
        let Some(growth) = growing.grow(len) else {
            // Who decodes it in one go says why.
            self.growing.remove(&key);
            return Ok(None);
        };
        self.count_decoded(growth.len);
        if growth.is_over {
            self.growing.weigh_again(&key, &growing);
        }
        Ok(Some(match growing.whole() {
            Some(block) => Decoded::Block(block),
            None => Decoded::Growing(growing),
        }))
    }

    /// Reads and verifies what a block is decoded from.
    fn begin(&self, stream: u8, record: &RecordRef) -> Result<Growing> {
        let stored_len = usize::try_from(record.stored_len).unwrap_or(usize::MAX);
        let raw_len = usize::try_from(record.raw_len).unwrap_or(usize::MAX);
        let mut stored = self.shelf.block(stored_len.saturating_add(HEADER_LEN));
        read_record_into(&*self.source, record, stored.buffer())?;
        let bytes = self.shelf.block(raw_len);
        let begun = Growing::new(self.category(stream), bytes, stored, HEADER_LEN);
        begun.map_err(|e| e.at_offset(record.offset))
    }

    /// Whether the first `len` bytes of block `no` of a stream, or what recipe `no` makes, are in
    /// memory.
    pub fn has_block(&self, stream: u8, no: u64, len: u64) -> bool {
        let whole = BlockKey::whole(stream, no);
        let growing = BlockKey {
            form: Form::Growing,
            ..whole
        };
        let has = |growing: Arc<Growing>| growing.has(usize::try_from(len).unwrap_or(usize::MAX));
        self.blocks.contains(&whole) || self.growing.peek(&growing).is_some_and(has)
    }

    /// Who checks wants to know of every byte that it decodes to what it should.
    fn is_check(&self) -> bool {
        self.failures.lock().is_some()
    }

    /// A block of a stream, decoded as far as `wanted` or further. Who comes back for what lies
    /// behind a front gets the whole block: decoding never costs more than that and one front.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn block(&self, stream: u8, found: &Found, wanted: Wanted) -> Result<Arc<Block>> {
        let whole = BlockKey::whole(stream, found.no);
        if let Some(block) = self.blocks.get(&whole) {
            return Ok(block);
        }
        let front = BlockKey {
            form: Form::Front,
            ..whole
        };
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

    /// A whole block for who takes all of it and does not come back: the one that is cached, until
    /// now, or one that nobody else will have.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn passing_block(&self, stream: u8, found: &Found) -> Result<Arc<Block>> {
        let whole = BlockKey::whole(stream, found.no);
        if let Some(block) = self.blocks.get(&whole) {
            self.blocks.remove(&whole);
            return Ok(block);
        }
        let record = &found.record;
        let read = self.remembering(record, || self.read_block(stream, record));
        read.map(Arc::new)
    }

    /// Notes that who reads a stream in order takes `len` bytes of a block of it that is stored as
    /// it is, which goes when all of it is taken: the kernel has its bytes twice by then, and
    /// reading them again costs less than fresh memory does.
    pub fn take_plain(&self, stream: u8, found: &Found, block: &Block, len: usize) {
        if block.take(len) {
            self.blocks.remove(&BlockKey::whole(stream, found.no));
        }
    }

    /// Bytes that are decoded for the first `wanted` bytes of a block of `stream`, and how many of
    /// them can be used then.
    pub fn front_lens(&self, stream: u8, record: &RecordRef, wanted: u64) -> (u64, u64) {
        let raw_len = usize::try_from(record.raw_len).unwrap_or(usize::MAX);
        let tail = filter::front_tail_len(self.category(stream));
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let len = front_len(record.codec, raw_len, wanted.saturating_add(tail));
        let sure = match len < raw_len {
            true => len.saturating_sub(tail),
            false => len,
        };
        (len as u64, sure as u64)
    }

    /// The same also for a block that [`Self::grows`]; its decoder's steps may be shorter than is
    /// counted here.
    pub fn grown_lens(&self, stream: u8, record: &RecordRef, wanted: u64) -> (u64, u64) {
        if !self.grows(record) {
            return self.front_lens(stream, record, wanted);
        }
        let tail = filter::front_tail_len(self.category(stream)) as u64;
        let step_len = FrameDecoder::FRAME_BLOCK_LEN_MAX as u64;
        let len = wanted.saturating_add(tail);
        let len = len.checked_next_multiple_of(step_len).unwrap_or(u64::MAX);
        match len < record.raw_len {
            true => (len, len.saturating_sub(tail)),
            false => (record.raw_len, record.raw_len),
        }
    }

    fn category(&self, stream: u8) -> Category {
        let stream = self.directory.streams.get(usize::from(stream));
        stream.map_or(Category::General, |s| s.category)
    }

    /// Reads, verifies and decodes a block of `stream`, and undoes the filter of its category.
    ///
    /// # Errors
    /// As [`Records::read_raw`].
    pub fn read_block(&self, stream: u8, record: &RecordRef) -> Result<Block> {
        self.read_front(stream, record, record.raw_len)
    }

    /// The same for its first `wanted` bytes at least.
    fn read_front(&self, stream: u8, record: &RecordRef, wanted: u64) -> Result<Block> {
        let (len, sure_len) = self.front_lens(stream, record, wanted);
        let room = front_buffer_len(record.codec, record.raw_len as usize, len as usize);
        let mut block = self.shelf.block(room);
        self.read_front_into(stream, record, len as usize, block.buffer())?;
        let bytes = block.buffer();
        self.count_decoded(bytes.len());
        filter::unfilter(self.category(stream), bytes);
        // Where a front could not be had, these are all bytes, and all are sure.
        if (bytes.len() as u64) < record.raw_len {
            bytes.truncate(sure_len as usize);
        }
        Ok(block)
    }

    fn count_decoded(&self, len: usize) {
        self.decoded_len.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// Bytes of blocks that were decoded so far, and that recipes made.
    pub fn decoded_len(&self) -> u64 {
        self.decoded_len.load(Ordering::Relaxed)
    }

    /// What recipe `no` of `stream` makes, from the cache of blocks or by `make`.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn made(
        &self,
        stream: u8,
        no: u64,
        make: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Arc<Block>> {
        self.blocks.get_or_load(&BlockKey::whole(stream, no), || {
            let made = make()?;
            self.count_decoded(made.len());
            Ok(Block::from(made))
        })
    }
}
