//! Leaves shared out to threads in their order, never far ahead of the slowest.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weald_format::{Error, ErrorKind, Result};

/// Leaves in work or done ahead of the first that is not done: so what is missing after an interruption lies in a window.
pub const WINDOW: u64 = 64;

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
    /// The leaves `rest`, in ascending order.
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

    /// The next leaf; `None` where there is none left, or work has failed. Waits while the first that is not done is too far behind.
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

    /// Runs `work` over all leaves on `thread_count` threads, each with a state of its own from `state`.
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
        let queue = Queue::new(0..1000, &progress);
        let open = Mutex::new(BTreeSet::new());
        let count = AtomicU64::new(0);
        let work = |_: &mut (), number: u64| {
            open.lock().insert(number);
            if number.is_multiple_of(100) {
                std::thread::yield_now();
            }
            let first = *open.lock().first().unwrap();
            assert!(number < first + WINDOW);
            assert!(open.lock().remove(&number));
            count.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        queue.run(4, || (), work).unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 1000);
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
