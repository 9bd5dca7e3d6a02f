//! Starting threads where there may be no more of them.

use std::thread::{Builder, Scope, ScopedJoinHandle};
use weald_format::{Error, Result};

/// Starts a thread of `scope`.
///
/// # Errors
/// `Io` where the system has no thread to give (`ulimit -u`, the limits of a container).
pub fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new()
        .spawn_scoped(scope, work)
        .map_err(|e| Error::io("starting a thread", e))
}

/// Has up to `width` threads make something of each item, and hands on what they made in the order of the items, whatever they take.
/// No more than twice as many as there are threads are held.
///
/// # Errors
/// The first of `make`, in the order of the items.
/// # Panics
/// Where `make` does.
pub fn in_order<T: Sync, U: Send>(
    width: usize,
    items: &[T],
    make: &(dyn Fn(&T) -> Result<U> + Sync),
    take: &mut dyn FnMut(U),
) -> Result<()> {
    let mut ready: Vec<U> = Vec::new();
    for round in items.chunks(width.max(1)) {
        let made: Vec<Result<U>> = std::thread::scope(|scope| {
            let started: Vec<_> = (round.iter())
                .map(|item| (item, start(scope, move || make(item)).ok()))
                .collect();
            ready.drain(..).for_each(&mut *take);
            let made = started.into_iter().map(|(item, thread)| match thread {
                Some(thread) => match thread.join() {
                    Ok(made) => made,
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                // Without threads it takes longer.
                None => make(item),
            });
            made.collect()
        });
        ready = made.into_iter().collect::<Result<_>>()?;
    }
    ready.into_iter().for_each(take);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: results that come in the order of their threads, are lost at the end of a round, or come behind an error.
    #[test]
    fn what_threads_make_comes_in_order() {
        let items: Vec<u64> = (0..23).collect();
        for width in [0, 1, 3, 64] {
            let mut taken = Vec::new();
            let make = &|&item: &u64| {
                // The first of a round has the most to do.
                let turns = (3 - item % 3) * 100_000;
                assert!((0..turns).fold(item, |a, b| std::hint::black_box(a ^ b)) < u64::MAX);
                Ok(item * 2)
            };
            in_order(width, &items, make, &mut |made| taken.push(made)).unwrap();
            assert!(taken.iter().copied().eq(items.iter().map(|i| i * 2)));
            let fail = &|&item: &u64| match item {
                0..10 => Ok(item),
                _ => Err(Error::invalid(format!("item {item}"))),
            };
            let mut taken = Vec::new();
            let error = in_order(width, &items, fail, &mut |made| taken.push(made));
            assert!(error.unwrap_err().to_string().contains("item 10"));
            assert!(taken.iter().copied().eq(0..taken.len() as u64));
        }
    }
}
