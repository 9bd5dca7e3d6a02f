//! Ways to directories far below the root, so that a walk of a deep tree does not descend from the
//! root for each name.
//!
//! The numbers below a directory are one range, and the ranges along a way lie within each other.
//! So the deepest directory of a way above a number is found by going up, in jumps. Ways to
//! different directories share what they have in common.
//!
//! # Source
//! Myers, "An applicative random-access stack", Information Processing Letters 17 (1983).

use super::view::DirectoryView;
use std::sync::Arc;

/// Level from which on directories are remembered. Most trees are flatter, and need no lock.
pub const DEEP_LEVEL: usize = 32;
/// Ways that are remembered.
const WAYS_MAX: usize = 8;
/// Directories on all ways together, shared ones counted for each; each takes about 150 bytes.
const LENGTH_MAX: usize = 1 << 18;

/// A directory on a way.
pub struct Step {
    pub view: DirectoryView,
    /// Number of directories above it on the way.
    pub depth: usize,
    parent: Option<Arc<Self>>,
    /// A directory further up.
    jump: Option<Arc<Self>>,
}

impl Step {
    /// The first directory of a way.
    pub fn first(view: DirectoryView) -> Arc<Self> {
        Arc::new(Self {
            view,
            depth: 0,
            parent: None,
            jump: None,
        })
    }

    /// The next directory behind `parent`.
    pub fn behind(parent: &Arc<Self>, view: DirectoryView) -> Arc<Self> {
        let depth_of = |step: &Option<Arc<Self>>| step.as_ref().map(|step| step.depth);
        let further = parent.jump.as_ref().and_then(|jump| jump.jump.clone());
        // Two jumps of one length become one of twice the length.
        let is_equal = match (depth_of(&parent.jump), depth_of(&further)) {
            (Some(jump), Some(further)) => {
                parent.depth.saturating_sub(jump) == jump.saturating_sub(further)
            }
            _ => false,
        };
        Arc::new(Self {
            view,
            depth: parent.depth.saturating_add(1),
            parent: Some(parent.clone()),
            jump: if is_equal {
                further
            } else {
                Some(parent.clone())
            },
        })
    }

    /// Whether the number `no` is one of the names below it.
    fn contains(&self, no: u64) -> bool {
        let below = no.checked_sub(self.view.base);
        below.is_some_and(|below| below < self.view.template.subtree_count)
    }

    /// The deepest directory on the way to `last` with the number `no` below it.
    fn above(last: &Arc<Self>, no: u64) -> Option<Arc<Self>> {
        let mut at = last;
        while !at.contains(no) {
            let jump = at.jump.as_ref().filter(|jump| !jump.contains(no));
            at = jump.or(at.parent.as_ref())?;
        }
        Some(at.clone())
    }
}

impl Drop for Step {
    /// Drops the way one step at a time: a recursion would need the stack of its length.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(mut step) = next.and_then(Arc::into_inner) {
            next = step.parent.take();
        }
    }
}

/// The ends of the ways that were used last, the newest at the end.
#[derive(Default)]
pub struct DeepWays(Vec<Arc<Step>>);

impl DeepWays {
    /// The deepest directory on a way with the number `no` below it.
    pub fn above(&self, no: u64) -> Option<Arc<Step>> {
        let steps = self.0.iter().filter_map(|last| Step::above(last, no));
        steps.max_by_key(|step| step.depth)
    }

    /// Keeps the way to `last`, and forgets those that were not used for the longest time.
    pub fn put(&mut self, last: Arc<Step>) {
        let is_on_way = |step: &Arc<Step>| Arc::ptr_eq(step, &last);
        if let Some(at) = self.0.iter().position(is_on_way) {
            self.0.remove(at);
        }
        // The new way may go on from the end of an old one.
        if let Some(parent) = &last.parent
            && let Some(at) = self.0.iter().position(|old| Arc::ptr_eq(old, parent))
        {
            self.0.remove(at);
        }
        self.0.push(last);
        let mut len: usize = self.0.iter().map(|step| step.depth).sum();
        while self.0.len() > WAYS_MAX || (len > LENGTH_MAX && self.0.len() > 1) {
            len = len.saturating_sub(self.0.remove(0).depth);
        }
    }

    /// Forgets all ways.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
