//! A block that is decoded in steps: as far as a reader wants, and further when a reader wants
//! more. A reader of its front does not wait for the rest.
//!
//! Invariants: bytes that count as decoded never change; one thread at a time decodes; no lock that
//! readers take is held for longer than one step, 128 KiB at most.

use crate::cache::block::Block;
use crate::cache::key::CachedValue;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weald_codec::{FrameDecoder, filter};
use weald_format::Result;
use weald_format::directory::Category;

/// A block that is decoded in steps. Its bytes stay filtered, because the decoder's later bytes
/// refer to them; a copy for a reader undoes the filter.
pub struct PartialBlock {
    category: Category,
    raw_len: usize,
    memory_len: AtomicUsize,
    /// The decoder writes under this lock. Readers take no share of the block before it is whole.
    bytes: RwLock<Arc<Block>>,
    progress: Mutex<Progress>,
    has_progressed: Condvar,
    /// `None` when the whole block is decoded.
    work: Mutex<Option<Work>>,
}

struct Work {
    decoder: FrameDecoder,
    /// Stored bytes, verified.
    stored: Block,
    /// Offset of the first one behind the header.
    stored_start: usize,
}

impl Work {
    fn step(&mut self, bytes: &mut [u8]) -> Result<bool> {
        let stored = self.stored.get(self.stored_start..).unwrap_or(&[]);
        self.decoder.decode_block(stored, bytes)
    }
}

#[derive(Clone, Copy)]
struct Progress {
    decoded_len: usize,
    /// Whether a thread is decoding.
    is_busy: bool,
    /// Whether the stored bytes do not decode.
    has_failed: bool,
}

impl CachedValue for PartialBlock {
    fn memory_len(&self) -> usize {
        self.memory_len.load(Ordering::Relaxed)
    }
}

/// Result of a call that decoded a part of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodedPart {
    /// Bytes that this call decoded.
    pub len: usize,
    /// Whether this call completed the block, which takes less memory from now on.
    pub is_complete: bool,
}

/// The right to decode; dropping it lets another thread decode, whatever the outcome.
struct Turn<'a>(&'a PartialBlock);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().is_busy = false;
        self.0.has_progressed.notify_all();
    }
}

impl PartialBlock {
    /// A block of `category`. Decodes the frame at offset `stored_start` of `stored` into `bytes`,
    /// which has the length of the whole block.
    ///
    /// # Errors
    /// As [`FrameDecoder::new`].
    pub fn new(
        category: Category,
        bytes: Block,
        stored: Block,
        stored_start: usize,
    ) -> Result<Self> {
        let raw_len = bytes.len();
        let decoder = FrameDecoder::new(stored.get(stored_start..).unwrap_or(&[]), raw_len)?;
        let working_len = stored
            .memory_len()
            .saturating_add(FrameDecoder::CONTEXT_LEN);
        Ok(Self {
            category,
            raw_len,
            memory_len: AtomicUsize::new(bytes.memory_len().saturating_add(working_len)),
            bytes: RwLock::new(Arc::new(bytes)),
            progress: Mutex::new(Progress {
                decoded_len: 0,
                is_busy: false,
                has_failed: false,
            }),
            has_progressed: Condvar::new(),
            work: Mutex::new(Some(Work {
                decoder,
                stored,
                stored_start,
            })),
        })
    }

    /// Bytes of the whole block.
    pub const fn len(&self) -> usize {
        self.raw_len
    }

    /// Number of readable bytes among `decoded_len` decoded ones. Undoing the filter for the last
    /// ones needs the bytes behind them.
    fn readable_len(&self, decoded_len: usize) -> usize {
        if decoded_len < self.raw_len {
            decoded_len.saturating_sub(filter::front_tail_len(self.category))
        } else {
            decoded_len
        }
    }

    /// Whether the first `len` bytes can be read.
    pub fn has(&self, len: usize) -> bool {
        let decoded_len = self.progress.lock().decoded_len;
        self.readable_len(decoded_len) >= len.min(self.raw_len)
    }

    /// Returns when the first `len` bytes, or all, are decoded. Decodes them, or waits for a thread
    /// that is decoding until it has that many. Returns `None` if the block does not decode.
    pub fn decode_up_to(&self, len: usize) -> Option<DecodedPart> {
        let len = len.min(self.raw_len);
        let mut progress = self.progress.lock();
        while self.readable_len(progress.decoded_len) < len {
            if progress.has_failed {
                return None;
            }
            if !progress.is_busy {
                progress.is_busy = true;
                drop(progress);
                let _turn = Turn(self);
                return self.decode(len);
            }
            self.has_progressed.wait(&mut progress);
        }
        Some(DecodedPart::default())
    }

    /// Decodes up to byte `len`. The caller holds the turn.
    fn decode(&self, len: usize) -> Option<DecodedPart> {
        let mut work = self.work.lock();
        let mut part = DecodedPart::default();
        loop {
            let active = work.as_mut()?;
            let mut bytes = self.bytes.write();
            // No reader has a share of the block before it is whole.
            let buffer = Arc::get_mut(&mut bytes).map(Block::buffer);
            let has_more = buffer.and_then(|buffer| active.step(buffer).ok());
            drop(bytes);
            let decoded_len = active.decoder.decoded_len();
            let mut progress = self.progress.lock();
            let Some(has_more) = has_more else {
                progress.has_failed = true;
                return None;
            };
            let step_len = decoded_len.saturating_sub(progress.decoded_len);
            part.len = part.len.saturating_add(step_len);
            progress.decoded_len = decoded_len;
            drop(progress);
            if !has_more {
                part.is_complete = true;
                *work = None;
                let whole_len = self.bytes.read().memory_len();
                self.memory_len.store(whole_len, Ordering::Relaxed);
                return Some(part);
            }
            if self.readable_len(decoded_len) >= len {
                return Some(part);
            }
            self.has_progressed.notify_all();
        }
    }

    /// The whole block, if it is decoded and its category has no filter.
    pub fn whole(&self) -> Option<Arc<Block>> {
        let decoded_len = self.progress.lock().decoded_len;
        let is_plain = decoded_len == self.raw_len && !filter::is_filtered(self.category);
        is_plain.then(|| self.bytes.read().clone())
    }

    /// Access to the decoded bytes: at least as many as [`PartialBlock::decode_up_to`] decoded.
    pub fn read(&self) -> PartialBytes<'_> {
        let decoded_len = self.progress.lock().decoded_len;
        PartialBytes {
            category: self.category,
            readable_len: self.readable_len(decoded_len),
            bytes: self.bytes.read(),
        }
    }
}

/// The decoded bytes of a block. Decoding waits while this is held.
pub struct PartialBytes<'a> {
    category: Category,
    readable_len: usize,
    bytes: RwLockReadGuard<'a, Arc<Block>>,
}

impl PartialBytes<'_> {
    /// Fills `part` with the bytes from `start` on; returns whether that many are decoded.
    pub fn copy_to(&self, start: usize, part: &mut [u8]) -> bool {
        let are_decoded = start.saturating_add(part.len()) <= self.readable_len;
        if are_decoded {
            filter::unfilter_part(self.category, &self.bytes, start, part);
        }
        are_decoded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::block::BufferPool;

    const LEN: usize = 2 << 20;

    fn raw() -> Vec<u8> {
        let words =
            (0u32..).flat_map(|n| format!("{} ", n.wrapping_mul(2_654_435_761) >> 18).into_bytes());
        words.take(LEN).collect()
    }

    fn partial_block(stored: Vec<u8>) -> PartialBlock {
        let pool = BufferPool::new(8 << 20);
        let category = Category::General;
        PartialBlock::new(category, pool.block(LEN), Block::from(stored), 0).expect("a frame")
    }

    fn front(block: &PartialBlock, len: usize) -> Vec<u8> {
        let mut front = vec![0; len];
        assert!(block.read().copy_to(0, &mut front));
        front
    }

    /// Would catch: a reader of the front that waits for the whole block, a whole block that keeps
    /// its stored bytes, and bytes counted twice.
    #[test]
    fn it_is_decoded_as_far_as_requested() {
        let raw = raw();
        let block = partial_block(zstd::bulk::compress(&raw, 3).expect("compressed"));
        let at_first = block.memory_len();
        assert!(block.whole().is_none() && !block.has(1));
        let first = block.decode_up_to(300_000).expect("decoded");
        assert!(first.len >= 300_000 && first.len < 600_000 && !first.is_complete);
        assert!(block.has(300_000) && !block.has(LEN));
        assert!(!block.read().copy_to(LEN - 10, &mut [0; 10]));
        assert_eq!(front(&block, 300_000), raw[..300_000]);
        assert_eq!(block.decode_up_to(1000), Some(DecodedPart::default()));
        let rest = block.decode_up_to(usize::MAX).expect("decoded");
        assert_eq!((first.len + rest.len, rest.is_complete), (LEN, true));
        assert_eq!(
            block.whole().as_deref().map(|whole| &**whole),
            Some(&raw[..])
        );
        assert!(block.memory_len() < at_first && block.memory_len() >= LEN);
    }

    /// Would catch: damage that loses the bytes decoded before it, or a reader of later bytes that
    /// waits for ever.
    #[test]
    fn bytes_before_damage_stay_readable() {
        let raw = raw();
        let mut stored = zstd::bulk::compress(&raw, 3).expect("compressed");
        let middle = stored.len() / 2;
        stored[middle..middle + 2000].fill(0xff);
        let block = partial_block(stored);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert!(block.decode_up_to(100_000).is_some());
                    assert_eq!(front(&block, 100_000), raw[..100_000]);
                    assert_eq!(block.decode_up_to(LEN), None);
                    assert!(block.decode_up_to(100_000).is_some());
                });
            }
        });
        assert!(block.whole().is_none());
    }
}
