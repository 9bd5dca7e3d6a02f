//! Blocks that are decoded as far as somebody wants, and further when somebody wants more: who
//! waits for their front does not wait for the rest.
//!
//! Invariants: bytes that are told as made never change; one thread at a time decodes, and no lock
//! that readers take is held for longer than one step, 128 KiB at most.

use crate::block::Block;
use crate::cache::Weigh;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use weald_codec::{FrameDecoder, filter};
use weald_format::Result;
use weald_format::directory::Category;

/// A block on its way. Its bytes lie there as they were stored, and the filter of its category is
/// undone for who reads them: later bytes refer to them as they are.
pub struct Growing {
    category: Category,
    raw_len: usize,
    memory_len: AtomicUsize,
    /// Behind this lock only while it grows: who reads takes no share of the block before it is
    /// whole.
    bytes: RwLock<Arc<Block>>,
    progress: Mutex<Progress>,
    has_moved: Condvar,
    /// Gone when everything is made.
    work: Mutex<Option<Work>>,
}

struct Work {
    partial: FrameDecoder,
    /// Stored bytes, verified.
    stored: Block,
    /// Where they begin behind their header.
    stored_start: usize,
}

impl Work {
    fn step(&mut self, bytes: &mut [u8]) -> Result<bool> {
        let stored = self.stored.get(self.stored_start..).unwrap_or(&[]);
        self.partial.decode_block(stored, bytes)
    }
}

#[derive(Clone, Copy)]
struct Progress {
    made_len: usize,
    is_busy: bool,
    /// It does not decode.
    has_failed: bool,
}

impl Weigh for Growing {
    fn memory_len(&self) -> usize {
        self.memory_len.load(Ordering::Relaxed)
    }
}

/// How far a block was decoded for somebody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Growth {
    /// Bytes that this caller decoded.
    pub len: usize,
    /// The block is whole by this: it takes less memory from now on.
    pub is_over: bool,
}

/// Gives the turn to the next one, however decoding ended.
struct Turn<'a>(&'a Growing);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.progress.lock().is_busy = false;
        self.0.has_moved.notify_all();
    }
}

impl Growing {
    /// A block of `category` whose bytes come into `bytes`, a buffer for all of them, from the
    /// frame that `stored` has from `stored_start` on.
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
        let partial = FrameDecoder::new(stored.get(stored_start..).unwrap_or(&[]), raw_len)?;
        let working_len = stored
            .memory_len()
            .saturating_add(FrameDecoder::CONTEXT_LEN);
        Ok(Self {
            category,
            raw_len,
            memory_len: AtomicUsize::new(bytes.memory_len().saturating_add(working_len)),
            bytes: RwLock::new(Arc::new(bytes)),
            progress: Mutex::new(Progress {
                made_len: 0,
                is_busy: false,
                has_failed: false,
            }),
            has_moved: Condvar::new(),
            work: Mutex::new(Some(Work {
                partial,
                stored,
                stored_start,
            })),
        })
    }

    /// Bytes of all of it.
    pub const fn len(&self) -> usize {
        self.raw_len
    }

    /// How many bytes can be read where `made_len` are made: the filter is undone for the last ones
    /// once those behind them are there.
    fn sure_len(&self, made_len: usize) -> usize {
        match made_len < self.raw_len {
            true => made_len.saturating_sub(filter::front_tail_len(self.category)),
            false => made_len,
        }
    }

    /// Whether the first `len` bytes can be read.
    pub fn has(&self, len: usize) -> bool {
        let made_len = self.progress.lock().made_len;
        self.sure_len(made_len) >= len.min(self.raw_len)
    }

    /// Has the first `len` bytes decoded, or all; waits for who is at it already, no longer than it
    /// takes to have so many. None where it does not decode.
    pub fn grow(&self, len: usize) -> Option<Growth> {
        let len = len.min(self.raw_len);
        let mut progress = self.progress.lock();
        while self.sure_len(progress.made_len) < len {
            if progress.has_failed {
                return None;
            }
            if !progress.is_busy {
                progress.is_busy = true;
                drop(progress);
                let _turn = Turn(self);
                return self.decode(len);
            }
            self.has_moved.wait(&mut progress);
        }
        Some(Growth::default())
    }

    /// Decodes up to byte `len`. The turn is the caller's.
    fn decode(&self, len: usize) -> Option<Growth> {
        let mut work = self.work.lock();
        let mut growth = Growth::default();
        loop {
            let at_work = work.as_mut()?;
            let mut bytes = self.bytes.write();
            // Nobody has a share of it before it is whole.
            let room = Arc::get_mut(&mut bytes).map(Block::buffer);
            let goes_on = room.and_then(|room| at_work.step(room).ok());
            drop(bytes);
            let made_len = at_work.partial.decoded_len();
            let mut progress = self.progress.lock();
            let Some(goes_on) = goes_on else {
                progress.has_failed = true;
                return None;
            };
            growth.len = growth
                .len
                .saturating_add(made_len.saturating_sub(progress.made_len));
            progress.made_len = made_len;
            drop(progress);
            if !goes_on {
                growth.is_over = true;
                *work = None;
                let whole_len = self.bytes.read().memory_len();
                self.memory_len.store(whole_len, Ordering::Relaxed);
                return Some(growth);
            }
            if self.sure_len(made_len) >= len {
                return Some(growth);
            }
            self.has_moved.notify_all();
        }
    }

    /// All of it, where its bytes are there and stand as they are read.
    pub fn whole(&self) -> Option<Arc<Block>> {
        let made_len = self.progress.lock().made_len;
        let is_plain = made_len == self.raw_len && !filter::is_filtered(self.category);
        is_plain.then(|| self.bytes.read().clone())
    }

    /// To copy bytes that were decoded, as many as [`Growing::grow`] was asked for.
    pub fn read(&self) -> Grown<'_> {
        let made_len = self.progress.lock().made_len;
        Grown {
            category: self.category,
            sure_len: self.sure_len(made_len),
            bytes: self.bytes.read(),
        }
    }
}

/// The bytes of a block so far. It grows no further as long as this is held.
pub struct Grown<'a> {
    category: Category,
    sure_len: usize,
    bytes: RwLockReadGuard<'a, Arc<Block>>,
}

impl Grown<'_> {
    /// Fills `part` with the bytes from `start` on; whether so many are there.
    pub fn copy_to(&self, start: usize, part: &mut [u8]) -> bool {
        let are_there = start.saturating_add(part.len()) <= self.sure_len;
        if are_there {
            filter::unfilter_part(self.category, &self.bytes, start, part);
        }
        are_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Shelf;

    const LEN: usize = 2 << 20;

    fn raw() -> Vec<u8> {
        let words =
            (0u32..).flat_map(|n| format!("{} ", n.wrapping_mul(2_654_435_761) >> 18).into_bytes());
        words.take(LEN).collect()
    }

    fn growing(stored: Vec<u8>) -> Growing {
        let shelf = Shelf::new(8 << 20);
        let category = Category::General;
        Growing::new(category, shelf.block(LEN), Block::from(stored), 0).expect("a frame")
    }

    fn front(growing: &Growing, len: usize) -> Vec<u8> {
        let mut front = vec![0; len];
        assert!(growing.read().copy_to(0, &mut front));
        front
    }

    /// Would catch: who waits for a front and waits for all, a whole block that keeps what it was
    /// decoded from, and bytes counted twice.
    #[test]
    fn it_grows_as_far_as_it_is_asked_to() {
        let raw = raw();
        let growing = growing(zstd::bulk::compress(&raw, 3).expect("compressed"));
        let at_first = growing.memory_len();
        assert!(growing.whole().is_none() && !growing.has(1));
        let first = growing.grow(300_000).expect("decoded");
        assert!(first.len >= 300_000 && first.len < 600_000 && !first.is_over);
        assert!(growing.has(300_000) && !growing.has(LEN));
        assert!(!growing.read().copy_to(LEN - 10, &mut [0; 10]));
        assert_eq!(front(&growing, 300_000), raw[..300_000]);
        assert_eq!(growing.grow(1000), Some(Growth::default()));
        let rest = growing.grow(usize::MAX).expect("decoded");
        assert_eq!((first.len + rest.len, rest.is_over), (LEN, true));
        assert_eq!(
            growing.whole().as_deref().map(|whole| &**whole),
            Some(&raw[..])
        );
        assert!(growing.memory_len() < at_first && growing.memory_len() >= LEN);
    }

    /// Would catch: damage that takes away what was decoded before it, or lets those wait for ever
    /// who want what is behind it.
    #[test]
    fn damage_ends_it_where_it_is() {
        let raw = raw();
        let mut stored = zstd::bulk::compress(&raw, 3).expect("compressed");
        let middle = stored.len() / 2;
        stored[middle..middle + 2000].fill(0xff);
        let growing = growing(stored);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert!(growing.grow(100_000).is_some());
                    assert_eq!(front(&growing, 100_000), raw[..100_000]);
                    assert_eq!(growing.grow(LEN), None);
                    assert!(growing.grow(100_000).is_some());
                });
            }
        });
        assert!(growing.whole().is_none());
    }
}
