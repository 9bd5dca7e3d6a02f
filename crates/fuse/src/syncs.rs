//! Queue of requests that sync: few workers answer all of them, so that the others stay free and
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

/// Most workers that sync at a time: a file system has two records of its log under way, so that
/// the disk does not wait for the answers to one of them.
pub const RUNNING_SYNCS_MAX: usize = 2;

#[derive(Debug, Default)]
struct SyncsState {
    running_count: usize,
    waiting: Vec<WaitingSync>,
}

/// Syncs of one session. The kernel bounds the queue: it sends one request for each waiting thread.
#[derive(Debug)]
pub(crate) struct SyncQueue {
    running_max: usize,
    state: Mutex<SyncsState>,
}

impl SyncQueue {
    /// The queue of a session with so many workers, of which one never syncs.
    pub(crate) fn new(worker_count: usize) -> Self {
        Self {
            running_max: worker_count.saturating_sub(1).clamp(1, RUNNING_SYNCS_MAX),
            state: Mutex::default(),
        }
    }

    /// Returns the syncs that the caller must answer now, and then call
    /// [`next`](SyncQueue::next); none if enough workers are at it.
    pub(crate) fn begin(&self, sync: WaitingSync) -> Vec<WaitingSync> {
        let mut state = self.state.lock();
        if state.running_count >= self.running_max {
            state.waiting.push(sync);
            return Vec::new();
        }
        state.running_count += 1;
        vec![sync]
    }

    /// All syncs that came in the meantime. None ends the worker's turn.
    pub(crate) fn next(&self) -> Vec<WaitingSync> {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        if waiting.is_empty() {
            state.running_count -= 1;
        }
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
        let uniques = |batch: Vec<WaitingSync>| -> Vec<u64> {
            batch.iter().map(|sync| sync.unique).collect()
        };
        for worker_count in [1, 2, 9] {
            let syncs = SyncQueue::new(worker_count);
            let begin = |unique| {
                uniques(syncs.begin(WaitingSync {
                    unique,
                    opcode: Opcode::Fsync,
                    node: NodeId(5),
                    begun: Instant::now(),
                }))
            };
            let is_alone = worker_count < 9;
            assert_eq!(begin(1), [1]);
            assert!(is_alone || begin(2) == [2]);
            assert!(begin(3).is_empty() && begin(4).is_empty());
            assert_eq!(syncs.waiting_count(), 2);
            assert_eq!(uniques(syncs.next()), [3, 4]);
            assert!(begin(5).is_empty());
            assert_eq!(uniques(syncs.next()), [5]);
            assert!(syncs.next().is_empty());
            assert!(is_alone || syncs.next().is_empty());
            assert_eq!(begin(6), [6]);
        }
    }
}
