//! Blocks that stay after their last reference has gone, because a reader of an older state may
//! need them.

use std::collections::BTreeSet;
use weald_format::BlockId;

/// Which blocks stay, and those that did.
#[derive(Debug, Default)]
pub struct HeldBlocks {
    below: BlockId,
    ids: BTreeSet<BlockId>,
}

impl HeldBlocks {
    /// From now on, blocks with a smaller number than `below` stay: those that there were when the
    /// last of the readers began. Returns those that stayed so far and need not any more.
    #[must_use]
    pub fn keep_below(&mut self, below: BlockId) -> BTreeSet<BlockId> {
        self.below = below;
        self.ids.split_off(&below)
    }

    /// Whether this block stays.
    pub(crate) fn has(&self, id: BlockId) -> bool {
        id < self.below
    }

    /// Notes blocks without a reference.
    pub fn note(&mut self, ids: impl IntoIterator<Item = BlockId>) {
        self.ids.extend(ids);
    }
}
