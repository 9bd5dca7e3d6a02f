//! Runs the parts of a check with threads; what they find keeps its order.

use parking_lot::Mutex;
use std::thread::Builder;
use weald_format::Error;

/// Items that a thread takes at a time.
const ITEMS_AT_ONCE: usize = 4;

/// Stored bytes for which another thread is worth its start.
const LEN_PER_THREAD: u64 = 64 << 10;

/// The number of threads, at most `threads`, for a check of `len` stored bytes.
pub fn threads_for(len: u64, threads: usize) -> usize {
    let worth = usize::try_from(len / LEN_PER_THREAD).unwrap_or(usize::MAX);
    threads.min(worth.saturating_add(1))
}

/// Calls `check` for all `items` with up to `threads` threads. Returns the errors in the order of
/// the items.
pub fn in_parallel<T: Send>(
    threads: usize,
    items: Vec<T>,
    check: &(dyn Fn(T) -> Option<Error> + Sync),
) -> Vec<Error> {
    let thread_count = threads.min(items.len().div_ceil(ITEMS_AT_ONCE));
    if thread_count <= 1 {
        return items.into_iter().filter_map(check).collect();
    }
    let items = Mutex::new(items.into_iter().enumerate());
    let found = Mutex::new(Vec::new());
    let work = || {
        loop {
            let taken: Vec<_> = items.lock().by_ref().take(ITEMS_AT_ONCE).collect();
            if taken.is_empty() {
                return;
            }
            for (no, item) in taken {
                if let Some(error) = check(item) {
                    found.lock().push((no, error));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        // If the system allows no more threads, fewer do the work.
        (1..thread_count)
            .map_while(|_| Builder::new().spawn_scoped(scope, work).ok())
            .for_each(drop);
        work();
    });
    let mut found = found.into_inner();
    found.sort_by_key(|(no, _)| *no);
    found.into_iter().map(|(_, error)| error).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Would catch: an item that no thread takes or two take, and errors in the order in which
    /// threads end.
    #[test]
    fn every_item_is_checked_once_and_errors_keep_their_order() {
        for (count, threads) in [(0, 2), (1, 8), (5, 2), (1000, 4)] {
            let sum = AtomicU64::new(0);
            let check = |item: u64| {
                sum.fetch_add(item, Ordering::Relaxed);
                item.is_multiple_of(3)
                    .then(|| Error::invalid(item.to_string()))
            };
            let errors = in_parallel(threads, (0..count).collect(), &check);
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let wanted: Vec<String> = (0..count).step_by(3).map(|n| n.to_string()).collect();
            assert_eq!(found, wanted);
            assert_eq!(sum.into_inner(), (0..count).sum::<u64>());
        }
    }
}
