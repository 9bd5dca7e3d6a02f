//! Work by several threads whose results are delivered in the order of the items, so that output
//! does not depend on the threads.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::Builder;

/// Items in flight for each thread: enough to keep all threads busy behind one slow item.
const WINDOW_PER_THREAD: usize = 32;

/// Passes the items of `produce` to `thread_count` threads that run `work`, and the results to
/// `emit` in the order of the items, until `produce` returns `None` or `emit` breaks. `produce` and
/// `emit` run on the calling thread.
///
/// # Cost
/// Holds at most 32 items or results for each thread.
///
/// # Panics
/// If `work` panics.
pub fn ordered<T: Send, R: Send>(
    thread_count: usize,
    mut produce: impl FnMut() -> Option<T>,
    work: impl Fn(T) -> R + Sync,
    mut emit: impl FnMut(R) -> ControlFlow<()>,
) {
    let (job_sender, job_receiver) = crossbeam_channel::unbounded::<(u64, T)>();
    let (result_sender, result_receiver) = crossbeam_channel::unbounded();
    std::thread::scope(|scope| {
        let start_thread = || {
            let (jobs, results, work) = (job_receiver.clone(), result_sender.clone(), &work);
            Builder::new().spawn_scoped(scope, move || {
                jobs.iter().try_for_each(|(number, item)| {
                    let result = catch_unwind(AssertUnwindSafe(|| work(item)));
                    results.send((number, result))
                })
            })
        };
        // If the system allows no more threads, fewer do the work.
        let started = (0..thread_count.max(1)).map_while(|_| start_thread().ok());
        if started.count() == 0 {
            while let Some(item) = produce()
                && emit(work(item)).is_continue()
            {}
            return;
        }
        // This closure drops the sender, which ends the threads.
        let jobs = job_sender;
        let mut results = OrderedResults {
            waiting: VecDeque::new(),
            first: 0,
        };
        let window = thread_count.max(1) * WINDOW_PER_THREAD;
        let mut is_exhausted = false;
        loop {
            while !is_exhausted && results.waiting.len() < window {
                let item = produce();
                is_exhausted = item.is_none();
                let sent = item.map(|item| jobs.send((results.push(), item)));
                assert!(
                    !matches!(sent, Some(Err(_))),
                    "threads live as long as their channel"
                );
            }
            if results.waiting.is_empty() {
                return;
            }
            let (number, result) = result_receiver.recv().expect("a thread answers every item");
            results.fill(number, result.unwrap_or_else(|panic| resume_unwind(panic)));
            while let Some(ready) = results.pop_ready() {
                if emit(ready).is_break() {
                    return;
                }
            }
        }
    });
}

/// Results in the order of their items, some still missing.
struct OrderedResults<R> {
    waiting: VecDeque<Option<R>>,
    /// Number of the item at the front.
    first: u64,
}

impl<R> OrderedResults<R> {
    /// Adds an empty slot for one more result; returns its number.
    fn push(&mut self) -> u64 {
        self.waiting.push_back(None);
        self.first + self.waiting.len() as u64 - 1
    }

    fn fill(&mut self, number: u64, result: R) {
        let index = number
            .checked_sub(self.first)
            .and_then(|index| usize::try_from(index).ok());
        let slot = index.and_then(|index| self.waiting.get_mut(index));
        *slot.expect("a result belongs to an item in flight") = Some(result);
    }

    fn pop_ready(&mut self) -> Option<R> {
        let ready = self.waiting.front_mut()?.take()?;
        self.waiting.pop_front();
        self.first += 1;
        Some(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_for_any_number_of_threads() {
        for thread_count in [0, 1, 2, 7] {
            let mut items = 0..1000_u64;
            let mut results = Vec::new();
            ordered(
                thread_count,
                || items.next(),
                |item| {
                    if item % 7 == 0 {
                        (0..10_000).fold(item, |a, _| std::hint::black_box(a))
                    } else {
                        item
                    }
                },
                |result| {
                    results.push(result);
                    ControlFlow::Continue(())
                },
            );
            assert_eq!(
                results,
                (0..1000).collect::<Vec<_>>(),
                "{thread_count} threads"
            );
        }
    }

    #[test]
    fn a_break_ends_an_endless_producer() {
        let mut items = 0..;
        let mut count = 0;
        ordered(
            2,
            || items.next(),
            |item: u64| item,
            |item| {
                count += 1;
                if item == 99 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            },
        );
        assert_eq!(count, 100);
    }

    #[test]
    fn a_panic_of_the_work_reaches_the_caller() {
        let run = || {
            let mut items = 0..100;
            ordered(
                2,
                || items.next(),
                |item| assert_ne!(item, 50),
                |()| ControlFlow::Continue(()),
            );
        };
        assert!(catch_unwind(run).is_err());
    }
}
