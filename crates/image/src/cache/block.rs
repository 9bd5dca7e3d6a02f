//! Decoded blocks and the buffer pool that recycles their memory. Fresh memory costs a page fault
//! every 4 KiB; together these faults cost as much as decoding.

use super::key::CachedValue;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of the shortest buffer that the pool keeps. The allocator itself keeps shorter ones ready.
const SPARE_LEN_MIN: usize = 64 << 10;

/// Buffers that the pool keeps at most, so that the search for a fitting one is short.
const SPARE_COUNT_MAX: usize = 128;

/// Bytes that an empty block reserves at most. The kernel requests at most 1 MiB; other callers
/// request as many bytes as the image claims that a file has.
const CAPACITY_MAX: usize = 4 << 20;

/// Decoded bytes of a block, or the bytes that a recipe makes.
#[derive(Default)]
pub struct Block {
    bytes: Vec<u8>,
    pool: Option<Arc<BufferPool>>,
    /// Bytes that were handed out to readers that will not request them again.
    handed_out_len: AtomicUsize,
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            pool: None,
            handed_out_len: AtomicUsize::new(0),
        }
    }
}

impl CachedValue for Block {
    fn memory_len(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(pool) = &self.pool {
            pool.recycle(std::mem::take(&mut self.bytes));
        }
    }
}

impl Block {
    /// Counts `len` more bytes as handed out to a reader that will not request them again. Returns
    /// whether all bytes of the block are handed out now.
    pub fn count_handed_out(&self, len: usize) -> bool {
        let before = self.handed_out_len.fetch_add(len, Ordering::Relaxed);
        before.saturating_add(len) >= self.bytes.len()
    }

    /// The buffer behind the block, to decode into.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

/// Keeps the buffers of dropped blocks for new ones.
pub struct BufferPool {
    spare: Mutex<Spare>,
    len_max: AtomicUsize,
}

#[derive(Default)]
struct Spare {
    buffers: VecDeque<Vec<u8>>,
    len: usize,
}

impl BufferPool {
    /// A pool of at most `len_max` bytes.
    pub fn new(len_max: usize) -> Arc<Self> {
        Arc::new(Self {
            spare: Mutex::default(),
            len_max: AtomicUsize::new(len_max),
        })
    }

    /// Bytes of all spare buffers.
    pub fn len(&self) -> usize {
        self.spare.lock().len
    }

    /// Changes the limit and drops all spare buffers.
    pub fn set_len_max(&self, len_max: usize) {
        self.len_max.store(len_max, Ordering::Relaxed);
        self.clear();
    }

    /// A block of `len` bytes with arbitrary values, which the caller overwrites. The pool does not
    /// clear them: that would write every byte twice.
    pub fn block(self: &Arc<Self>, len: usize) -> Block {
        // The system hands out a large buffer as zeros without writing them.
        let mut bytes = self.take_fitting(len).unwrap_or_else(|| vec![0; len]);
        bytes.resize(len, 0);
        Block {
            bytes,
            pool: Some(self.clone()),
            handed_out_len: AtomicUsize::new(0),
        }
    }

    /// A block without bytes and with capacity for `len`, at most [`CAPACITY_MAX`]. A longer copy
    /// grows its buffer when the data are there.
    pub fn empty_block(self: &Arc<Self>, len: usize) -> Block {
        let len = len.min(CAPACITY_MAX);
        // All buffers of the pool are too long for less.
        let spare = if len >= SPARE_LEN_MIN / 2 {
            self.take_fitting(len)
        } else {
            None
        };
        let mut bytes = spare.unwrap_or_else(|| Vec::with_capacity(len));
        bytes.clear();
        Block {
            bytes,
            pool: Some(self.clone()),
            handed_out_len: AtomicUsize::new(0),
        }
    }

    /// Takes a spare buffer of `len` to `2 * len` bytes.
    fn take_fitting(&self, len: usize) -> Option<Vec<u8>> {
        let fits = len..=len.saturating_mul(2);
        let mut spare = self.spare.lock();
        let index = spare
            .buffers
            .iter()
            .rposition(|b| fits.contains(&b.capacity()))?;
        let buffer = spare.buffers.remove(index)?;
        spare.len = spare.len.saturating_sub(buffer.capacity());
        Some(buffer)
    }

    fn recycle(&self, buffer: Vec<u8>) {
        let len = buffer.capacity();
        let len_max = self.len_max.load(Ordering::Relaxed);
        if len < SPARE_LEN_MIN || len > len_max {
            return;
        }
        let mut dropped = Vec::new();
        let mut spare = self.spare.lock();
        while spare.len.saturating_add(len) > len_max || spare.buffers.len() >= SPARE_COUNT_MAX {
            let Some(oldest) = spare.buffers.pop_front() else {
                break;
            };
            spare.len = spare.len.saturating_sub(oldest.capacity());
            dropped.push(oldest);
        }
        spare.len = spare.len.saturating_add(len);
        spare.buffers.push_back(buffer);
        // The dropped buffers return to the system outside the lock.
        drop(spare);
    }

    /// Returns all spare memory to the system.
    pub fn clear(&self) {
        let spare = std::mem::take(&mut *self.spare.lock());
        drop(spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: bytes of a dropped block in a new one, memory reserved for a length that no
    /// caller has, and copies whose memory is not recycled.
    #[test]
    fn an_empty_block_has_no_old_bytes_and_a_bounded_capacity() {
        let pool = BufferPool::new(1 << 20);
        let mut block = pool.block(100_000);
        block.buffer().fill(7);
        let address = block.as_ptr();
        drop(block);
        let mut empty = pool.empty_block(90_000);
        assert!(empty.is_empty() && empty.as_ptr() == address);
        empty.buffer().extend_from_slice(b"new");
        assert_eq!(&empty[..], b"new");
        assert!(pool.empty_block(usize::MAX).memory_len() <= CAPACITY_MAX);
        assert!(pool.empty_block(100).memory_len() < 1000);
    }

    const LEN: usize = 1 << 20;

    fn filled(pool: &Arc<BufferPool>, len: usize) -> Block {
        let mut block = pool.block(len);
        block.buffer().resize(len, 7);
        block
    }

    #[test]
    fn memory_is_recycled() {
        let pool = BufferPool::new(4 * LEN);
        let block = filled(&pool, LEN);
        let address = block.as_ptr();
        drop(block);
        let again = filled(&pool, LEN - 100);
        assert_eq!(again.as_ptr(), address);
        assert_eq!(again.len(), LEN - 100);
    }

    /// Would catch: a small block that holds the memory of a large one, which the cache would have
    /// to count in full.
    #[test]
    fn a_buffer_far_too_long_stays_in_the_pool() {
        let pool = BufferPool::new(8 * LEN);
        drop(filled(&pool, 4 * LEN));
        assert!(filled(&pool, LEN).memory_len() < 2 * LEN);
    }

    #[test]
    fn a_pool_holds_no_more_than_its_limit() {
        let pool = BufferPool::new(3 * LEN);
        let blocks: Vec<_> = (0..10).map(|_| filled(&pool, LEN)).collect();
        drop(blocks);
        assert_eq!(pool.spare.lock().len, 3 * LEN);
        assert_eq!(pool.spare.lock().buffers.len(), 3);
        drop(filled(&pool, 4 * LEN));
        assert_eq!(pool.spare.lock().len, 3 * LEN);
        pool.clear();
        assert_eq!(pool.spare.lock().len, 0);
        let small: Vec<_> = (0..2 * SPARE_COUNT_MAX)
            .map(|_| filled(&pool, SPARE_LEN_MIN / 2))
            .collect();
        drop(small);
        assert_eq!(pool.spare.lock().len, 0);
    }

    #[test]
    fn a_pool_holds_a_bounded_number_of_buffers() {
        let pool = BufferPool::new(2 * SPARE_COUNT_MAX * SPARE_LEN_MIN);
        let blocks: Vec<_> = (0..2 * SPARE_COUNT_MAX)
            .map(|_| filled(&pool, SPARE_LEN_MIN))
            .collect();
        drop(blocks);
        assert_eq!(pool.spare.lock().buffers.len(), SPARE_COUNT_MAX);
    }
}
