//! Limits how many workers wait for a request at a time.
//!
//! The kernel wakes the worker that has waited longest, so that many waiting workers take turns and
//! each runs with cold caches. Few of them wait at the connection; the others are parked. A worker
//! that takes a request wakes a parked one only if nobody else waits at the connection.

use parking_lot::{Condvar, Mutex};

/// Workers at the connection, and parked ones.
#[derive(Debug)]
pub(crate) struct Seats {
    seat_count: usize,
    state: Mutex<SeatsState>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct SeatsState {
    taken: usize,
    parked: usize,
    is_closed: bool,
}

impl Seats {
    /// Lets `seat_count` workers wait at the connection.
    pub(crate) fn new(seat_count: usize) -> Self {
        Self {
            seat_count: seat_count.max(1),
            state: Mutex::default(),
            freed: Condvar::new(),
        }
    }

    /// Takes a seat, and waits for one. Returns false after [`Seats::close`].
    pub(crate) fn take(&self) -> bool {
        let mut state = self.state.lock();
        while state.taken >= self.seat_count && !state.is_closed {
            state.parked += 1;
            self.freed.wait(&mut state);
            state.parked -= 1;
        }
        state.taken += usize::from(!state.is_closed);
        !state.is_closed
    }

    /// Gives a seat back, to work on a request.
    pub(crate) fn leave(&self) {
        let mut state = self.state.lock();
        state.taken = state.taken.saturating_sub(1);
        if state.taken == 0 && state.parked > 0 {
            drop(state);
            self.freed.notify_one();
        }
    }

    /// Sends all parked workers away. Those at the connection have to be woken by a request.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.freed.notify_all();
    }

    /// Lets workers in again.
    pub(crate) fn open(&self) {
        self.state.lock().is_closed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    fn taker(seats: &Arc<Seats>) -> Receiver<bool> {
        let (sender, receiver) = channel();
        let seats = Arc::clone(seats);
        thread::spawn(move || sender.send(seats.take()));
        receiver
    }

    // Would catch: a session in which nobody reads requests while all that did work on slow ones.
    #[test]
    fn a_parked_worker_takes_over_when_nobody_is_left() {
        let seats = Arc::new(Seats::new(2));
        assert!(seats.take() && seats.take());
        let parked = taker(&seats);
        while seats.state.lock().parked == 0 {
            thread::yield_now();
        }
        seats.leave();
        // One is left at the connection.
        assert_eq!(seats.state.lock().parked, 1);
        seats.leave();
        assert_eq!(parked.recv_timeout(Duration::from_secs(60)), Ok(true));
    }

    #[test]
    fn closing_sends_parked_workers_away() {
        let seats = Arc::new(Seats::new(1));
        assert!(seats.take());
        let parked = taker(&seats);
        while seats.state.lock().parked == 0 {
            thread::yield_now();
        }
        seats.close();
        assert_eq!(parked.recv_timeout(Duration::from_secs(60)), Ok(false));
        assert!(!seats.take());
        seats.leave();
        seats.open();
        assert!(seats.take());
    }
}
