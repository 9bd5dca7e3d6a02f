//! What a change of the rows that wait for the next commit takes to undo it.

use std::collections::BTreeMap;
use weald_format::store::{BlockRow, SegmentRow};
use weald_format::{BlockId, SegmentNo};

/// Waiting rows as they were before the change under way or, if that has committed, at its last
/// commit; `None` for a row that did not wait.
#[derive(Debug, Default)]
pub struct Undo {
    /// Rows of blocks.
    pub blocks: BTreeMap<BlockId, Option<BlockRow>>,
    /// Rows of segments.
    pub segments: BTreeMap<SegmentNo, Option<SegmentRow>>,
}

impl Undo {
    /// Forgets all.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.segments.clear();
    }
}
