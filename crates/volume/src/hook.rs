//! Functions that a test runs in the middle of a commit, in its thread.

use parking_lot::Mutex;

/// A moment of a commit, or of a record of the sync log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The active layer is about to be written to the sync log.
    Logging,
    /// A record of the sync log is written; it is not durable.
    Recorded,
    /// The layer is frozen; nothing is written.
    Frozen,
    /// Blocks are written and the rows are known; nothing is durable.
    Written,
    /// The tables are committed; the frozen layer is still there.
    Committed,
}

type Function = Box<dyn FnMut(Stage) + Send>;

/// Place of such a function.
#[derive(Default)]
pub struct Hook(Mutex<Option<Function>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hook").finish_non_exhaustive()
    }
}

impl Hook {
    /// Runs `function` at each stage of the next commits.
    pub fn set(&self, function: impl FnMut(Stage) + Send + 'static) {
        *self.0.lock() = Some(Box::new(function));
    }

    /// Runs nothing any more.
    pub fn clear(&self) {
        *self.0.lock() = None;
    }

    /// Runs the function, if there is one. A commit within it does not run it again.
    pub fn reach(&self, stage: Stage) {
        let function = self.0.lock().take();
        if let Some(mut function) = function {
            function(stage);
            self.0.lock().get_or_insert(function);
        }
    }
}
