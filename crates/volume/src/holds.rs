//! The readers of older states of an open volume, for which blocks stay.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use weald_format::{BlockId, VolumeNo};

/// Whether a reader has lost its state.
pub type IsOver = Arc<AtomicBool>;

/// Needs blocks of any number: a reader that adds blocks.
const ALL: BlockId = BlockId(u64::MAX);

/// Readers of older states.
#[derive(Debug, Default)]
pub struct Holds {
    readers: Vec<Reader>,
    /// The collection that is under way.
    collecting: Weak<()>,
}

#[derive(Debug)]
struct Reader {
    /// The volume that it reads.
    volume: VolumeNo,
    is_over: IsOver,
    /// It may need blocks with smaller numbers.
    below: BlockId,
    /// Whether it ends when a writer needs space.
    yields: bool,
}

impl Holds {
    /// Whether blocks must stay where they are.
    pub fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Blocks with smaller numbers stay without a reference.
    pub fn below(&self) -> BlockId {
        let all = self.readers.iter().map(|reader| reader.below);
        all.max().unwrap_or_default()
    }

    /// As [`Holds::below`] with the readers of this volume alone, for a deliberate bug.
    pub fn below_of(&self, volume: VolumeNo) -> BlockId {
        let readers = self.readers.iter();
        let of_volume = readers.filter(|reader| reader.volume == volume);
        let all = of_volume.map(|reader| reader.below);
        all.max().unwrap_or_default()
    }

    /// Begins a collection, which lasts as long as the result. Returns nothing while another one
    /// lasts.
    pub fn begin_collection(&mut self) -> Option<Arc<()>> {
        if self.collecting.strong_count() > 0 {
            return None;
        }
        let token = Arc::new(());
        self.collecting = Arc::downgrade(&token);
        Some(token)
    }

    /// Adds a reader of the volume with this number. It reads a state whose blocks all have smaller
    /// numbers than `below`; without that it needs the blocks that it adds, too. With `yields` it
    /// ends when a writer needs space.
    pub fn begin(&mut self, volume: VolumeNo, below: Option<BlockId>, yields: bool) -> IsOver {
        let is_over = IsOver::default();
        self.readers.push(Reader {
            volume,
            is_over: is_over.clone(),
            below: below.unwrap_or(ALL),
            yields,
        });
        is_over
    }

    /// Removes a reader.
    pub fn end(&mut self, reader: &IsOver) {
        self.end_if(|other| Arc::ptr_eq(&other.is_over, reader));
    }

    /// Removes the readers of the volume with this number. They lose their states.
    pub fn end_of(&mut self, volume: VolumeNo) {
        self.end_if(|reader| reader.volume == volume);
    }

    /// Lets a reader stay when a writer needs space.
    pub fn stay(&mut self, reader: &IsOver) {
        let mut readers = self.readers.iter_mut();
        if let Some(reader) = readers.find(|other| Arc::ptr_eq(&other.is_over, reader)) {
            reader.yields = false;
        }
    }

    /// Removes the readers that yield, because a writer needs space.
    pub fn end_yielding(&mut self) {
        self.end_if(|reader| reader.yields);
    }

    fn end_if(&mut self, is_ended: impl Fn(&Reader) -> bool) {
        self.readers.retain(|reader| {
            let is_ended = is_ended(reader);
            if is_ended {
                reader.is_over.store(true, Ordering::Relaxed);
            }
            !is_ended
        });
    }
}
