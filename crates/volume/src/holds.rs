//! The blocks that stay while an older state of an open volume is read.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use weald_store::Dead;

/// Whether a reader has lost its state.
pub type IsOver = Arc<AtomicBool>;

/// Readers of older states, and the blocks that only they may need.
#[derive(Debug, Default)]
pub struct Holds {
    readers: Vec<IsOver>,
    /// Blocks that lost their last reference meanwhile.
    dead: BTreeSet<u64>,
    /// Whether the volume was closed, so that there are no readers any more.
    pub is_closed: bool,
    /// The collection that is under way.
    collecting: Weak<()>,
}

impl Holds {
    /// Whether dead blocks stay.
    pub fn keeps_dead(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Notes blocks that stay.
    pub fn keep(&mut self, dead: &[Dead]) {
        self.keep_ids(dead.iter().map(|(id, _)| *id));
    }

    /// Notes blocks that stay, by their numbers.
    pub fn keep_ids(&mut self, ids: impl IntoIterator<Item = u64>) {
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

    /// Adds a reader.
    pub fn begin(&mut self) -> IsOver {
        let is_over = IsOver::default();
        self.readers.push(is_over.clone());
        is_over
    }

    /// Removes a reader. Returns the blocks that stayed for readers if it was the last one.
    pub fn end(&mut self, reader: &IsOver) -> BTreeSet<u64> {
        let count = self.readers.len();
        self.readers.retain(|other| !Arc::ptr_eq(other, reader));
        match self.readers.is_empty() && count > 0 {
            true => std::mem::take(&mut self.dead),
            false => BTreeSet::new(),
        }
    }

    /// Removes all readers, which lose their states, and returns the blocks that stayed for them.
    pub fn end_all(&mut self) -> BTreeSet<u64> {
        for is_over in self.readers.drain(..) {
            is_over.store(true, Ordering::Relaxed);
        }
        std::mem::take(&mut self.dead)
    }
}
