//! Queue of requests that sync: one worker answers all of them, so that the others stay free and
//! all that wait share one sync.

use crate::wire::{NodeId, Opcode};
use parking_lot::Mutex;
use std::time::Instant;

/// A sync that waits for its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingSync {
    pub(crate) unique: u64,
    pub(crate) opcode: Opcode,
    pub(crate) node: NodeId,
    pub(crate) begun: Instant,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    waiting: Vec<WaitingSync>,
}

/// Syncs of one session. The kernel bounds the queue: it sends one request for each waiting thread.
#[derive(Debug, Default)]
pub(crate) struct SyncQueue {
    state: Mutex<State>,
}

impl SyncQueue {
    /// Returns the syncs that the caller must answer now, and then call
    /// [`next`](SyncQueue::next); none if another worker is at it.
    pub(crate) fn begin(&self, sync: WaitingSync) -> Vec<WaitingSync> {
        let mut state = self.state.lock();
        if state.is_running {
            state.waiting.push(sync);
            return Vec::new();
        }
        state.is_running = true;
        vec![sync]
    }

    /// All syncs that came in the meantime. None ends the worker's turn.
    pub(crate) fn next(&self) -> Vec<WaitingSync> {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        state.is_running = !waiting.is_empty();
        waiting
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: a sync that is answered by one that began before it, or by none.
    #[test]
    fn syncs_wait_for_the_next_turn_and_share_it() {
        let syncs = SyncQueue::default();
        let begin = |unique| {
            syncs.begin(WaitingSync {
                unique,
                opcode: Opcode::Fsync,
                node: NodeId(5),
                begun: Instant::now(),
            })
        };
        let uniques = |batch: Vec<WaitingSync>| -> Vec<u64> {
            batch.iter().map(|sync| sync.unique).collect()
        };
        assert_eq!(uniques(begin(1)), [1]);
        assert!(begin(2).is_empty() && begin(3).is_empty());
        assert_eq!(syncs.waiting_count(), 2);
        assert_eq!(uniques(syncs.next()), [2, 3]);
        assert!(begin(4).is_empty());
        assert_eq!(uniques(syncs.next()), [4]);
        assert!(syncs.next().is_empty());
        assert_eq!(uniques(begin(5)), [5]);
    }
}
