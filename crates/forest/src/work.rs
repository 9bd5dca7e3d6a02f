//! Leaves shared out to threads in their order, never far ahead of the slowest.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weald_format::{Error, ErrorKind, Result};

/// Leaves in work or done ahead of the first that is not done: so what is missing after an
/// interruption lies in a window.
pub const WINDOW: u64 = 1024;

/// The leaves of `range` in an order in which threads that take one after the other are in
/// directories of their own: of `lanes` directories with `leaf_count` leaves each, the first of
/// all, then the second of all, and so on. File systems keep what lies in one directory together,
/// so that threads which fill leaves of one would wait for each other. Where that led further ahead
/// than [`WINDOW`], they come as they are.
pub fn side_by_side(range: Range<u64>, leaf_count: u64, lanes: u64) -> impl Iterator<Item = u64> {
    let lanes = match lanes.saturating_mul(leaf_count) {
        0..WINDOW => lanes.max(1),
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

/// How far work has come; another thread may look at any time.
#[derive(Debug, Default)]
pub struct Progress {
    /// Leaves done, those included that were there already.
    pub leaves: AtomicU64,
    /// Entries made or compared.
    pub entries: AtomicU64,
    /// Bytes written or compared.
    pub bytes: AtomicU64,
    /// Set it to have the work end early.
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
    rest: I,
    /// Claimed and not done.
    open: BTreeSet<u64>,
    error: Option<Error>,
}

/// Leaves on their way.
pub struct Queue<'a, I> {
    claims: Mutex<Claims<I>>,
    done: Condvar,
    progress: &'a Progress,
}

impl<'a, I: Iterator<Item = u64>> Queue<'a, I> {
    /// The leaves `rest`, none of which comes more than [`WINDOW`] too early.
    pub fn new(rest: I, progress: &'a Progress) -> Self {
        Self {
            claims: Mutex::new(Claims {
                rest,
                open: BTreeSet::new(),
                error: None,
            }),
            done: Condvar::new(),
            progress,
        }
    }

    /// The next leaf; `None` where there is none left, or work has failed. Waits while the first
    /// that is not done is too far behind.
    fn claim(&self, last: &mut Option<u64>) -> Option<u64> {
        let mut claims = self.claims.lock();
        if let Some(number) = last.take() {
            claims.open.remove(&number);
            self.done.notify_all();
        }
        if claims.error.is_some() || self.progress.is_cancelled.load(Ordering::Relaxed) {
            return None;
        }
        let number = claims.rest.next()?;
        claims.open.insert(number);
        // Whoever has the first of them is at work, so this ends.
        while claims
            .open
            .first()
            .is_some_and(|&first| number >= first + WINDOW)
        {
            self.done.wait(&mut claims);
            if claims.error.is_some() {
                return None;
            }
        }
        *last = Some(number);
        Some(number)
    }

    /// Waits until nobody is at leaf `number`.
    ///
    /// # Errors
    /// `Busy` where work has failed meanwhile.
    pub fn wait_for(&self, number: u64) -> Result<()> {
        let mut claims = self.claims.lock();
        while claims.open.contains(&number) {
            if claims.error.is_some() {
                return Err(Error::new(ErrorKind::Busy, "the work was given up"));
            }
            self.done.wait(&mut claims);
        }
        Ok(())
    }

    /// Runs `work` over all leaves on `thread_count` threads, each with a state of its own from
    /// `state`.
    ///
    /// # Errors
    /// The first error of `work`; `Busy` where it was cancelled.
    pub fn run<S>(
        &self,
        thread_count: usize,
        state: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u64) -> Result<()> + Sync,
    ) -> Result<()>
    where
        I: Send,
    {
        std::thread::scope(|scope| {
            for _ in 0..thread_count.max(1) {
                scope.spawn(|| {
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
                });
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

    /// Would catch: leaves made twice or not at all, or far ahead of one that is slow.
    #[test]
    fn every_leaf_is_claimed_once_and_none_far_ahead() {
        let progress = Progress::default();
        let leaf_count = WINDOW * 4;
        let queue = Queue::new(0..leaf_count, &progress);
        let open = Mutex::new(BTreeSet::new());
        let count = AtomicU64::new(0);
        let work = |_: &mut (), number: u64| {
            open.lock().insert(number);
            // Time enough for the others to come to the end of the window.
            if number == 10 {
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
            let first = *open.lock().first().unwrap();
            assert!(number < first + WINDOW);
            assert!(open.lock().remove(&number));
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        queue.run(4, || (), work).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), leaf_count);
    }

    /// Would catch: a leaf that is lost at the edge of a group, or one that comes before another of
    /// its directory that it may have links to.
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
            let mut order: Vec<u64> = side_by_side(range.clone(), leaf_count, lanes).collect();
            for (at, leaf) in order.iter().enumerate() {
                let later = &order[at..];
                let directory = leaf / leaf_count.max(1);
                let is_ascending =
                    |other: &u64| other / leaf_count.max(1) != directory || other >= leaf;
                assert!(later.iter().take(100).all(is_ascending));
                assert!(later.iter().take(100).all(|other| other + WINDOW > *leaf));
            }
            order.sort_unstable();
            assert!(order.into_iter().eq(range), "{leaf_count} by {lanes}");
        }
        assert!(side_by_side(0..8, 4, 2).eq([0, 4, 1, 5, 2, 6, 3, 7]));
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
