//! Queue of READ requests: limits how many run at a time.

use crate::caller::Caller;
use crate::request::{Operation, Request};
use crate::wire::NodeId;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Instant;

/// READ requests of one session. The kernel bounds the queue: it sends one request for each waiting
/// thread, and its readahead.
#[derive(Debug)]
pub(crate) struct ReadQueue {
    running_max: usize,
    state: Mutex<ReadsState>,
}

#[derive(Debug, Default)]
struct ReadsState {
    running: usize,
    waiting: VecDeque<Waiting>,
}

/// A queued READ request.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    unique: u64,
    node: NodeId,
    uid: u32,
    gid: u32,
    offset: u64,
    size: u32,
    begun: Instant,
}

impl Waiting {
    /// Copies a READ request; `None` for other requests, which never wait.
    fn of(request: &Request<'_>, begun: Instant) -> Option<Self> {
        match request.operation {
            Operation::Read { offset, size } => Some(Self {
                unique: request.unique,
                node: request.node,
                uid: request.uid,
                gid: request.gid,
                offset,
                size,
                begun,
            }),
            _ => None,
        }
    }

    fn request(self) -> (Request<'static>, Instant) {
        let request = Request {
            unique: self.unique,
            node: self.node,
            uid: self.uid,
            gid: self.gid,
            // No read depends on more.
            caller: Caller { pid: 0 },
            operation: Operation::Read {
                offset: self.offset,
                size: self.size,
            },
        };
        (request, self.begun)
    }
}

impl ReadQueue {
    pub(crate) fn new(running_max: usize) -> Self {
        Self {
            running_max,
            state: Mutex::default(),
        }
    }

    /// Returns the request if the caller must answer it now, and then call
    /// [`next`](ReadQueue::next). Otherwise queues the request and returns `None`.
    pub(crate) fn begin(
        &self,
        request: &Request<'_>,
        begun: Instant,
    ) -> Option<(Request<'static>, Instant)> {
        let read = Waiting::of(request, begun)?;
        let mut state = self.state.lock();
        if state.running >= self.running_max {
            state.waiting.push_back(read);
            return None;
        }
        state.running += 1;
        Some(read.request())
    }

    /// Next queued request, for a worker that has answered one. `None` ends that worker's turn.
    pub(crate) fn next(&self) -> Option<(Request<'static>, Instant)> {
        let mut state = self.state.lock();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.running = state.running.saturating_sub(1);
        }
        next.map(Waiting::request)
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.state.lock().waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: more requests at a time than the limit, a lost request, one answered twice.
    #[test]
    fn requests_beyond_the_limit_wait_in_order() {
        let reads = ReadQueue::new(2);
        let request = |unique| Request {
            unique,
            node: NodeId(5),
            uid: 0,
            gid: 0,
            caller: Caller { pid: 0 },
            operation: Operation::Read { offset: 1, size: 2 },
        };
        let now = Instant::now();
        let unique = |given: Option<(Request<'_>, Instant)>| given.map(|(r, _)| r.unique);
        assert_eq!(unique(reads.begin(&request(1), now)), Some(1));
        assert_eq!(unique(reads.begin(&request(2), now)), Some(2));
        assert_eq!(unique(reads.begin(&request(3), now)), None);
        assert_eq!(unique(reads.begin(&request(4), now)), None);
        assert_eq!(reads.waiting_count(), 2);
        assert_eq!(unique(reads.next()), Some(3));
        assert_eq!(unique(reads.next()), Some(4));
        assert_eq!(unique(reads.next()), None);
        assert_eq!(unique(reads.begin(&request(5), now)), Some(5));
        assert_eq!(unique(reads.begin(&request(6), now)), None);
    }
}
