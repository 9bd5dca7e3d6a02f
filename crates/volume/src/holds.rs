//! The blocks that stay while an older state of an open volume is read.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use weald_format::{BlockId, VolumeNo};
use weald_store::Dead;

/// Whether a reader has lost its state.
pub type IsOver = Arc<AtomicBool>;

/// Readers of older states, and the blocks that only they may need.
#[derive(Debug, Default)]
pub struct Holds {
    /// Each with the number of the volume that it reads.
    readers: Vec<(VolumeNo, IsOver)>,
    /// Blocks that lost their last reference meanwhile.
    dead: BTreeSet<BlockId>,
    /// The collection that is under way.
    collecting: Weak<()>,
}

impl Holds {
    /// Whether dead blocks stay.
    pub fn keeps_dead(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Whether a reader of this volume is there, for a deliberate bug.
    pub fn keeps_dead_of(&self, volume: VolumeNo) -> bool {
        self.readers.iter().any(|(of, _)| *of == volume)
    }

    /// Notes blocks that stay.
    pub fn keep(&mut self, dead: &[Dead]) {
        self.keep_ids(dead.iter().map(|(id, _)| *id));
    }

    /// Notes blocks that stay, by their numbers.
    pub fn keep_ids(&mut self, ids: impl IntoIterator<Item = BlockId>) {
        self.dead.extend(ids);
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

    /// Adds a reader of the volume with this number.
    pub fn begin(&mut self, volume: VolumeNo) -> IsOver {
        let is_over = IsOver::default();
        self.readers.push((volume, is_over.clone()));
        is_over
    }

    /// Removes a reader. Returns the blocks that stayed for readers if it was the last one.
    pub fn end(&mut self, reader: &IsOver) -> BTreeSet<BlockId> {
        self.end_if(|_, other| Arc::ptr_eq(other, reader))
    }

    /// Removes the readers of the volume with this number, as [`Holds::end`]. They lose their
    /// states.
    pub fn end_of(&mut self, volume: VolumeNo) -> BTreeSet<BlockId> {
        self.end_if(|of, _| of == volume)
    }

    /// Removes all readers, which lose their states, and returns the blocks that stayed for them.
    pub fn end_all(&mut self) -> BTreeSet<BlockId> {
        self.end_if(|_, _| true)
    }

    fn end_if(&mut self, is_ended: impl Fn(VolumeNo, &IsOver) -> bool) -> BTreeSet<BlockId> {
        self.readers.retain(|(volume, is_over)| {
            let is_ended = is_ended(*volume, is_over);
            if is_ended {
                is_over.store(true, Ordering::Relaxed);
            }
            !is_ended
        });
        if self.readers.is_empty() {
            std::mem::take(&mut self.dead)
        } else {
            BTreeSet::new()
        }
    }
}
