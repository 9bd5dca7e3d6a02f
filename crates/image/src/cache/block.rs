//! Decoded blocks, whose memory is used again: fresh memory costs a page fault every 4 KiB, and
//! together they cost as much as decoding.

use crate::cache::Weigh;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Shorter buffers are left to the allocator, which keeps them at hand by itself.
const SPARE_LEN_MIN: usize = 64 << 10;

/// Spare buffers at most, so that looking for one ends soon.
const SPARE_COUNT_MAX: usize = 128;

/// Bytes that room is made for at once: the kernel asks for a mebibyte at most, other callers for
/// whatever an image says that a file has.
const ROOM_LEN_MAX: usize = 4 << 20;

/// Decoded bytes of a block, or what a recipe makes.
#[derive(Default)]
pub struct Block {
    bytes: Vec<u8>,
    shelf: Option<Arc<Shelf>>,
    /// Bytes that were handed out to who will not ask for them again.
    taken: AtomicUsize,
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
            shelf: None,
            taken: AtomicUsize::new(0),
        }
    }
}

impl Weigh for Block {
    fn memory_len(&self) -> usize {
        self.bytes.capacity()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(shelf) = &self.shelf {
            shelf.give_back(std::mem::take(&mut self.bytes));
        }
    }
}

/// Buffers of blocks that are gone, for blocks to come.
pub struct Shelf {
    spare: Mutex<Spare>,
    len_max: AtomicUsize,
}

#[derive(Default)]
struct Spare {
    buffers: VecDeque<Vec<u8>>,
    len: usize,
}

impl Shelf {
    /// A shelf for at most `len_max` bytes.
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

    /// Changes the limit; what lies on the shelf goes.
    pub fn set_len_max(&self, len_max: usize) {
        self.len_max.store(len_max, Ordering::Relaxed);
        self.clear();
    }

    /// A block of `len` bytes, of any value: who takes it overwrites them. They are not cleared,
    /// for who decodes would clear as many bytes as it then writes.
    pub fn block(self: &Arc<Self>, len: usize) -> Block {
        let mut bytes = self.take(len);
        bytes.resize(len, 0);
        Block {
            bytes,
            shelf: Some(self.clone()),
            taken: AtomicUsize::new(0),
        }
    }

    /// A block without bytes, with room for `len` to be added, or for as many as anybody asks for
    /// at once: the rest has to be there first.
    pub fn room(self: &Arc<Self>, len: usize) -> Block {
        let len = len.min(ROOM_LEN_MAX);
        // Nothing that is kept fits less.
        let spare = match len >= SPARE_LEN_MIN / 2 {
            true => self.spare(len),
            false => None,
        };
        let mut bytes = spare.unwrap_or_else(|| Vec::with_capacity(len));
        bytes.clear();
        Block {
            bytes,
            shelf: Some(self.clone()),
            taken: AtomicUsize::new(0),
        }
    }

    fn take(&self, len: usize) -> Vec<u8> {
        // The system hands large ones out as zeros, which nobody writes.
        self.spare(len).unwrap_or_else(|| vec![0; len])
    }

    /// A spare buffer for `len` bytes that is not twice as long.
    fn spare(&self, len: usize) -> Option<Vec<u8>> {
        let fits = len..=len.saturating_mul(2);
        let mut spare = self.spare.lock();
        let place = spare
            .buffers
            .iter()
            .rposition(|b| fits.contains(&b.capacity()))?;
        let buffer = spare.buffers.remove(place)?;
        spare.len = spare.len.saturating_sub(buffer.capacity());
        Some(buffer)
    }

    fn give_back(&self, buffer: Vec<u8>) {
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
        // What was dropped goes back to the system outside the lock.
        drop(spare);
    }

    /// Gives all spare memory back.
    pub fn clear(&self) {
        let spare = std::mem::take(&mut *self.spare.lock());
        drop(spare);
    }
}

impl Block {
    /// Notes that `len` of its bytes are handed out to who will not ask for them again; whether all
    /// are by now.
    pub fn take(&self, len: usize) -> bool {
        let before = self.taken.fetch_add(len, Ordering::Relaxed);
        before.saturating_add(len) >= self.bytes.len()
    }

    /// The buffer behind the block, to decode into.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: bytes of a block that is gone among those that are added, memory for a length
    /// that nobody has, and copies whose memory is not used again.
    #[test]
    fn room_is_empty_and_bounded() {
        let shelf = Shelf::new(1 << 20);
        let mut block = shelf.block(100_000);
        block.buffer().fill(7);
        let place = block.as_ptr();
        drop(block);
        let mut room = shelf.room(90_000);
        assert!(room.is_empty() && room.as_ptr() == place);
        room.buffer().extend_from_slice(b"new");
        assert_eq!(&room[..], b"new");
        assert!(shelf.room(usize::MAX).memory_len() <= ROOM_LEN_MAX);
        assert!(shelf.room(100).memory_len() < 1000);
    }

    const LEN: usize = 1 << 20;

    fn filled(shelf: &Arc<Shelf>, len: usize) -> Block {
        let mut block = shelf.block(len);
        block.buffer().resize(len, 7);
        block
    }

    #[test]
    fn memory_is_used_again() {
        let shelf = Shelf::new(4 * LEN);
        let block = filled(&shelf, LEN);
        let place = block.as_ptr();
        drop(block);
        let again = filled(&shelf, LEN - 100);
        assert_eq!(again.as_ptr(), place);
        assert_eq!(again.len(), LEN - 100);
    }

    /// Would catch: a small block that holds the memory of a large one, which the cache would have
    /// to count in full.
    #[test]
    fn a_buffer_far_too_long_stays_on_the_shelf() {
        let shelf = Shelf::new(8 * LEN);
        drop(filled(&shelf, 4 * LEN));
        assert!(filled(&shelf, LEN).memory_len() < 2 * LEN);
    }

    #[test]
    fn a_shelf_holds_no_more_than_its_limit() {
        let shelf = Shelf::new(3 * LEN);
        let blocks: Vec<_> = (0..10).map(|_| filled(&shelf, LEN)).collect();
        drop(blocks);
        assert_eq!(shelf.spare.lock().len, 3 * LEN);
        assert_eq!(shelf.spare.lock().buffers.len(), 3);
        drop(filled(&shelf, 4 * LEN));
        assert_eq!(shelf.spare.lock().len, 3 * LEN);
        shelf.clear();
        assert_eq!(shelf.spare.lock().len, 0);
        let small: Vec<_> = (0..2 * SPARE_COUNT_MAX)
            .map(|_| filled(&shelf, SPARE_LEN_MIN / 2))
            .collect();
        drop(small);
        assert_eq!(shelf.spare.lock().len, 0);
    }

    #[test]
    fn a_shelf_holds_no_more_buffers_than_are_soon_looked_through() {
        let shelf = Shelf::new(2 * SPARE_COUNT_MAX * SPARE_LEN_MIN);
        let blocks: Vec<_> = (0..2 * SPARE_COUNT_MAX)
            .map(|_| filled(&shelf, SPARE_LEN_MIN))
            .collect();
        drop(blocks);
        assert_eq!(shelf.spare.lock().buffers.len(), SPARE_COUNT_MAX);
    }
}
