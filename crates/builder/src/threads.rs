//! Worker threads whose results come in the order of the jobs. If the system allows no more
//! threads, the work continues with fewer.

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};
use weald_format::{Error, Result};

/// Starts a thread in `scope`. `weald build --stages` shows threads of one `name` together.
///
/// # Errors
/// `Io` if the system refuses a thread (`ulimit -u`, the limits of a container).
pub fn start<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, work)
        .map_err(|e| Error::io("starting a thread", e))
}

/// Calls `make` for each item on up to `width` threads and hands the results to `take` in the order
/// of the items. At most twice `width` results are in memory.
///
/// # Errors
/// The first error of `make`, in the order of the items.
/// # Panics
/// If `make` panics.
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
                .map(|item| (item, start(scope, "in-order", move || make(item)).ok()))
                .collect();
            ready.drain(..).for_each(&mut *take);
            let made = started.into_iter().map(|(item, thread)| match thread {
                Some(thread) => match thread.join() {
                    Ok(made) => made,
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                // Without a thread the caller's thread does the work.
                None => make(item),
            });
            made.collect()
        });
        ready = made.into_iter().collect::<Result<_>>()?;
    }
    ready.into_iter().for_each(take);
    Ok(())
}

/// Threads that turn each job `J` into a result `R`. Jobs may finish in any order; results are
/// handed on in the order of submission. At most [`Pool::in_flight_max`] jobs and results are in
/// memory.
pub struct Pool<J, R> {
    jobs: Sender<(u64, J)>,
    done: Receiver<(u64, Result<R>)>,
    submitted: u64,
    taken: u64,
    waiting: BTreeMap<u64, R>,
    in_flight_max: u64,
    threads: Vec<JoinHandle<()>>,
}

/// Takes the results of the threads.
pub type Take<'a, R> = &'a mut dyn FnMut(R) -> Result<()>;

impl<J: Send + 'static, R: Send + 'static> Pool<J, R> {
    /// Starts `threads` threads, or as many as the system allows. `worker` creates the state of
    /// each.
    ///
    /// # Errors
    /// `Io` if the system allows none.
    pub fn start<W>(threads: usize, name: &str, worker: &dyn Fn() -> W) -> Result<Self>
    where
        W: FnMut(J) -> Result<R> + Send + 'static,
    {
        let (jobs, receiver) = bounded(threads);
        let (sender, done) = unbounded();
        let spawn = |no: usize| {
            let (receiver, sender, worker) = (receiver.clone(), sender.clone(), worker());
            let thread = Builder::new()
                .name(format!("{name}-{no}"))
                .spawn(move || work(&receiver, &sender, worker));
            thread.map_err(|e| Error::io("starting a thread", e))
        };
        let mut started = vec![spawn(0)?];
        started.extend((1..threads).map_while(|no| spawn(no).ok()));
        Ok(Self {
            jobs,
            done,
            submitted: 0,
            taken: 0,
            waiting: BTreeMap::new(),
            in_flight_max: Self::in_flight_max(threads as u64),
            threads: started,
        })
    }

    /// Maximum number of jobs in memory at once, results included.
    pub const fn in_flight_max(threads: u64) -> u64 {
        threads * 2 + 1
    }

    /// Submits a job. It hands on finished results and waits until there is room for the job.
    ///
    /// # Errors
    /// Those of earlier jobs, and of `take`.
    pub fn submit(&mut self, job: J, take: Take<'_, R>) -> Result<()> {
        while let Ok(made) = self.done.try_recv() {
            self.hand_on(made, take)?;
        }
        while self.submitted - self.taken >= self.in_flight_max {
            self.wait(take)?;
        }
        self.jobs
            .send((self.submitted, job))
            .map_err(|_| stopped())?;
        self.submitted += 1;
        Ok(())
    }

    /// Adds a result that was made elsewhere, after those of the jobs before it. Its position does
    /// not depend on the speed of the threads.
    ///
    /// # Errors
    /// As [`Pool::submit`].
    pub fn pass(&mut self, made: R, take: Take<'_, R>) -> Result<()> {
        let no = self.submitted;
        self.submitted += 1;
        self.hand_on((no, Ok(made)), take)?;
        while self.submitted - self.taken > self.in_flight_max {
            self.wait(take)?;
        }
        Ok(())
    }

    fn wait(&mut self, take: Take<'_, R>) -> Result<()> {
        let made = self.done.recv().map_err(|_| stopped())?;
        self.hand_on(made, take)
    }

    fn hand_on(&mut self, (no, made): (u64, Result<R>), take: Take<'_, R>) -> Result<()> {
        self.waiting.insert(no, made?);
        while let Some(next) = self.waiting.remove(&self.taken) {
            take(next)?;
            self.taken += 1;
        }
        Ok(())
    }

    /// Waits for all jobs and hands on their results.
    ///
    /// # Errors
    /// As [`Pool::submit`].
    pub fn drain(&mut self, take: Take<'_, R>) -> Result<()> {
        self.wait_below(1, take)
    }

    /// Waits until fewer than `count` jobs are in memory, and hands on the results of others.
    ///
    /// # Errors
    /// As [`Pool::submit`].
    pub fn wait_below(&mut self, count: u64, take: Take<'_, R>) -> Result<()> {
        while self.submitted - self.taken >= count {
            self.wait(take)?;
        }
        Ok(())
    }

    /// Waits as [`Pool::drain`] does, then ends the threads.
    ///
    /// # Errors
    /// As [`Pool::submit`].
    pub fn finish(mut self, take: Take<'_, R>) -> Result<()> {
        self.drain(take)?;
        drop(self.jobs);
        for thread in self.threads {
            thread.join().map_err(|_| panicked())?;
        }
        Ok(())
    }
}

fn stopped() -> Error {
    Error::invalid("threads of the builder have stopped")
}

fn panicked() -> Error {
    Error::invalid("a thread of the builder panicked")
}

fn work<J, R>(
    jobs: &Receiver<(u64, J)>,
    done: &Sender<(u64, Result<R>)>,
    mut make: impl FnMut(J) -> Result<R>,
) {
    while let Ok((no, job)) = jobs.recv() {
        // A panic must not leave the other threads waiting for this one.
        let made = catch_unwind(AssertUnwindSafe(|| make(job)));
        if done
            .send((no, made.unwrap_or_else(|_| Err(panicked()))))
            .is_err()
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: results in the order in which threads end, results lost at the end of a round,
    /// results after an error.
    #[test]
    fn results_of_threads_come_in_order() {
        let items: Vec<u64> = (0..23).collect();
        for width in [0, 1, 3, 64] {
            let mut taken = Vec::new();
            let make = &|&item: &u64| {
                // The first item of a round takes longest.
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

    /// Would catch: results out of order; passed results before those of earlier jobs; more jobs in
    /// flight than allowed; an error or a panic that leaves other threads waiting.
    #[test]
    fn a_pool_returns_results_in_the_order_of_submission() {
        let slow_first = || {
            |item: u64| {
                let turns = (5 - item % 5) * 50_000;
                assert!((0..turns).fold(item, |a, b| std::hint::black_box(a ^ b)) < u64::MAX);
                Ok(item * 2)
            }
        };
        let mut taken = Vec::new();
        let mut pool = Pool::start(3, "test", &slow_first).unwrap();
        for item in 0..100 {
            let mut take = |made| {
                taken.push(made);
                Ok(())
            };
            match item % 7 {
                0 => pool.pass(item * 2, &mut take).unwrap(),
                _ => pool.submit(item, &mut take).unwrap(),
            }
            assert!(item + 1 - taken.len() as u64 <= Pool::<u64, u64>::in_flight_max(3));
        }
        let mut take = |made| {
            taken.push(made);
            Ok(())
        };
        pool.finish(&mut take).unwrap();
        assert!(taken.iter().copied().eq((0..100).map(|item| item * 2)));

        for panics in [false, true] {
            let fail = || {
                move |item: u64| match item {
                    0..10 => Ok(item),
                    _ if panics => panic!("meant: item {item}"),
                    _ => Err(Error::invalid(format!("item {item}"))),
                }
            };
            let mut pool = Pool::start(2, "test", &fail).unwrap();
            let submitted = (0..20).try_for_each(|item| pool.submit(item, &mut |_| Ok(())));
            let ended = submitted.and_then(|()| pool.finish(&mut |_| Ok(())));
            let message = if panics { "panicked" } else { "item 1" };
            assert!(ended.unwrap_err().to_string().contains(message));
        }
    }
}
