//! A work queue of leaves for several threads. Threads take leaves in order, and no leaf is started
//! far ahead of the first unfinished one.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;
use weald_format::{Error, ErrorKind, Result};

/// Maximum distance between the first unfinished leaf and a started one. After an interruption, all
/// missing leaves lie in a window of this length.
pub const LEAD_MAX: u64 = 1024;

/// Orders the leaves of `range` so that threads that take consecutive leaves work in different
/// directories. It interleaves groups of `lanes` directories of `leaf_count` leaves each: the first
/// leaf of each, then the second of each, and so on. File systems lock a directory while a name is
/// made in it, so threads in one directory would wait for each other. If a group is longer than
/// [`LEAD_MAX`], the leaves keep their order.
pub fn interleave_directories(
    range: Range<u64>,
    leaf_count: u64,
    lanes: u64,
) -> impl Iterator<Item = u64> {
    let lanes = match lanes.saturating_mul(leaf_count) {
        0..LEAD_MAX => lanes.max(1),
        _ => 1,
    };
    let leaf_count = leaf_count.max(1);
    let group_len = leaf_count * lanes;
    let groups = range.start / group_len..range.end.div_ceil(group_len);
    let order = groups.flat_map(move |group| {
        (0..group_len).map(move |no| group * group_len + no % lanes * leaf_count + no / lanes)
    });
    order.filter(move |leaf| range.contains(leaf))
}

/// Progress of the work. Another thread may read it at any time.
#[derive(Debug, Default)]
pub struct Progress {
    /// Finished leaves, including those of an earlier run.
    pub leaves: AtomicU64,
    /// Entries made or compared so far.
    pub entries: AtomicU64,
    /// Bytes written or compared so far.
    pub bytes: AtomicU64,
    /// Set this flag to cancel the work.
    pub is_cancelled: AtomicBool,
}

impl Progress {
    pub(crate) fn add(&self, entries: u64, bytes: u64) {
        self.leaves.fetch_add(1, Ordering::Relaxed);
        self.entries.fetch_add(entries, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

struct Claims<I> {
    leaves: I,
    /// Leaves that are started and not finished.
    open: BTreeSet<u64>,
    error: Option<Error>,
}

/// Queue of leaves for worker threads.
pub struct Queue<'a, I> {
    claims: Mutex<Claims<I>>,
    done: Condvar,
    progress: &'a Progress,
}

impl<'a, I: Iterator<Item = u64>> Queue<'a, I> {
    /// Makes a queue of `leaves`, which must come in order up to a distance of
    /// [`LEAD_MAX`].
    pub fn new(leaves: I, progress: &'a Progress) -> Self {
        Self {
            claims: Mutex::new(Claims {
                leaves,
                open: BTreeSet::new(),
                error: None,
            }),
            done: Condvar::new(),
            progress,
        }
    }

    /// Takes the next leaf; `None` if no leaf is left or the work has failed. Waits while the first
    /// unfinished leaf is too far behind.
    fn claim(&self, last: &mut Option<u64>) -> Option<u64> {
        let mut claims = self.claims.lock();
        if let Some(number) = last.take() {
            claims.open.remove(&number);
            self.done.notify_all();
        }
        if claims.error.is_some() || self.progress.is_cancelled.load(Ordering::Relaxed) {
            return None;
        }
        let number = claims.leaves.next()?;
        claims.open.insert(number);
        // A thread is working on the first of them, so this loop ends.
        while claims
            .open
            .first()
            .is_some_and(|&first| number >= first + LEAD_MAX)
        {
            self.done.wait(&mut claims);
            if claims.error.is_some() {
                return None;
            }
        }
        *last = Some(number);
        Some(number)
    }

    /// Waits until no thread is working on leaf `number`.
    ///
    /// # Errors
    /// `Busy` if the work has failed meanwhile.
    pub fn wait_for(&self, number: u64) -> Result<()> {
        let mut claims = self.claims.lock();
        while claims.open.contains(&number) {
            if claims.error.is_some() {
                return Err(Error::new(ErrorKind::Busy, "the work has failed"));
            }
            self.done.wait(&mut claims);
        }
        Ok(())
    }

    /// Runs `work` on all leaves with `thread_count` threads. `state` makes the state of each
    /// thread.
    ///
    /// # Errors
    /// The first error of `work`; `Busy` if the work was cancelled.
    pub fn run<S>(
        &self,
        thread_count: usize,
        state: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u64) -> Result<()> + Sync,
    ) -> Result<()>
    where
        I: Send,
    {
        let work_on_leaves = || {
            let mut state = state();
            let mut last = None;
            while let Some(number) = self.claim(&mut last) {
                if let Err(error) = work(&mut state, number) {
                    let mut claims = self.claims.lock();
                    claims.error.get_or_insert(error);
                    self.done.notify_all();
                    return;
                }
            }
            self.done.notify_all();
        };
        std::thread::scope(|scope| {
            let start_thread = |_| Builder::new().spawn_scoped(scope, work_on_leaves).ok();
            // If the system allows no more threads, fewer do the work.
            let started = (0..thread_count.max(1)).map_while(start_thread);
            if started.count() == 0 {
                work_on_leaves();
            }
        });
        match self.claims.lock().error.take() {
            Some(error) => Err(error),
            None if self.progress.is_cancelled.load(Ordering::Relaxed) => {
                Err(Error::new(ErrorKind::Busy, "interrupted"))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches: leaves that are made twice or never, or far ahead of a slow one.
    #[test]
    fn every_leaf_is_claimed_once_and_none_far_ahead() {
        let progress = Progress::default();
        let leaf_count = LEAD_MAX * 4;
        let queue = Queue::new(0..leaf_count, &progress);
        let open = Mutex::new(BTreeSet::new());
        let count = AtomicU64::new(0);
        let work = |_: &mut (), number: u64| {
            open.lock().insert(number);
            // Enough time for the other threads to reach the end of the window.
            if number == 10 {
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            let first = *open.lock().first().unwrap();
            assert!(number < first + LEAD_MAX);
            assert!(open.lock().remove(&number));
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        queue.run(4, || (), work).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), leaf_count);
    }

    /// Catches: a leaf that is lost at the edge of a group; a leaf that comes before an earlier one
    /// of its directory, to which it may have links.
    #[test]
    fn leaves_side_by_side_are_all_leaves() {
        for (range, leaf_count, lanes) in [
            (0..40, 10, 2),
            (3..38, 10, 3),
            (5..5, 4, 2),
            (7..100, 1, 4),
            (0..9000, 5000, 2),
            (0..10, 0, 0),
        ] {
            let mut order: Vec<u64> =
                interleave_directories(range.clone(), leaf_count, lanes).collect();
            for (at, leaf) in order.iter().enumerate() {
                let later = &order[at..];
                let directory = leaf / leaf_count.max(1);
                let is_ascending =
                    |other: &u64| other / leaf_count.max(1) != directory || other >= leaf;
                assert!(later.iter().take(100).all(is_ascending));
                assert!(later.iter().take(100).all(|other| other + LEAD_MAX > *leaf));
            }
            order.sort_unstable();
            assert!(order.into_iter().eq(range), "{leaf_count} by {lanes}");
        }
        assert!(interleave_directories(0..8, 4, 2).eq([0, 4, 1, 5, 2, 6, 3, 7]));
    }

    #[test]
    fn the_first_error_ends_the_work() {
        let progress = Progress::default();
        let queue = Queue::new(0.., &progress);
        let work = |_: &mut (), number| match number {
            500 => Err(Error::invalid("five hundred")),
            _ => Ok(()),
        };
        let error = queue.run(4, || (), work).unwrap_err();
        assert!(error.to_string().contains("five hundred"));
    }
}
