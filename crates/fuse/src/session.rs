//! Session with the kernel over one connection: worker threads read requests and answer them.
//!
//! A worker blocks in read(2) until the kernel has a request, and answers it before it reads the
//! next one. No request ends the session: a panic becomes the answer EIO.
//!
//! **Stopping.** Only a request wakes a thread from read(2) without harm. To stop, the session
//! closes its gate and sends its own mount requests that no cache answers, until every worker has
//! seen the gate and left. A surplus request stays in the kernel's queue; the next server answers
//! it.
//!
//! **The end.** The kernel ends a connection without a word, or, if the mount has a block device,
//! with the request DESTROY. umount(2) then waits for the answer. The worker that gets the request
//! ends the driver. The session is over then, although the other workers are still blocked in
//! read(2) until the answer. The owner of the mount may have more to close before it.

use crate::answer::Answers;
use crate::stats::Counters;
use crate::trace::Trace;
use crate::wire::{InvalEntryOut, NOTIFY_INVAL_ENTRY, NodeId};
use crate::worker::{Connection, Outcome, Worker};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weald_format::{Error, Result};
use zerocopy::IntoBytes;

/// Pause between two wake-up requests while a session closes; workers usually leave much earlier.
const WAKE_INTERVAL: Duration = Duration::from_millis(5);

/// State that the workers of a session and its owner share.
pub(crate) struct Session {
    connection: Connection,
    state: Mutex<SessionState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SessionState {
    /// Indexed by worker.
    is_running: Vec<bool>,
    threads: Vec<JoinHandle<()>>,
    /// The connection has ended, by unmount or by failure.
    is_over: bool,
    /// The kernel has announced the end: the workers that run get no further request.
    is_destroyed: bool,
    /// The owner of the mount answers DESTROY.
    is_end_held: bool,
    /// DESTROY, until it is answered.
    last_request: Option<u64>,
    failure: Option<Error>,
}

impl SessionState {
    /// No worker answers a request.
    fn is_idle(&self) -> bool {
        self.is_destroyed || !self.is_running.contains(&true)
    }
}

impl Session {
    /// Creates a session over `device` that answers up to `read_count` READ requests at a time. The
    /// caller starts it.
    pub(crate) fn new(device: OwnedFd, read_count: usize, trace: Option<Arc<Trace>>) -> Self {
        let connection = Connection::new(device, read_count, trace);
        let state = SessionState {
            is_running: vec![false; connection.workers.len()],
            ..SessionState::default()
        };
        Self {
            connection,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Opens the gate and starts all workers that do not run. Each holds `driver` until it ends.
    ///
    /// # Errors
    /// `Io` if not even one thread starts.
    pub(crate) fn start<D: Answers>(self: &Arc<Self>, driver: &Arc<D>) -> Result<()> {
        let mut state = self.state.lock();
        let SessionState {
            is_running,
            threads,
            ..
        } = &mut *state;
        self.connection.is_closed.store(false, Ordering::SeqCst);
        self.connection.seats.open();
        for (no, is_running) in is_running.iter_mut().enumerate() {
            if *is_running {
                continue;
            }
            let (session, driver) = (Arc::clone(self), Arc::clone(driver));
            let spawned = std::thread::Builder::new()
                .name(format!("fuse-{no}"))
                .spawn(move || session.run(no, driver));
            match spawned {
                Ok(thread) => {
                    *is_running = true;
                    threads.push(thread);
                }
                // Fewer workers are slower, not wrong.
                Err(error) if no > 0 => log::warn!("the mount runs with one worker less: {error}"),
                Err(error) => return Err(Error::io("start of a thread", error)),
            }
        }
        Ok(())
    }

    fn run<D: Answers>(&self, no: usize, driver: Arc<D>) {
        let worker = Worker {
            connection: &self.connection,
            driver: &*driver,
            no,
        };
        driver.begin_thread();
        let outcome = worker.serve();
        // The tree frees its resources before callers learn that the session has ended.
        drop(driver);
        self.leave(no, outcome);
    }

    fn leave(&self, no: usize, outcome: std::result::Result<Outcome, Errno>) {
        if !matches!(outcome, Ok(Outcome::GateClosed)) {
            // The connection is over: parked workers leave, too.
            self.connection.seats.close();
        }
        let mut state = self.state.lock();
        if let Some(is_running) = state.is_running.get_mut(no) {
            *is_running = false;
        }
        match outcome {
            Ok(Outcome::GateClosed) => {}
            Ok(Outcome::Unmounted) => state.is_over = true,
            Ok(Outcome::Destroyed(unique)) => {
                (state.is_over, state.is_destroyed) = (true, true);
                state.last_request = Some(unique);
                if !state.is_end_held {
                    self.answer_end(&mut state);
                }
            }
            Err(errno) => {
                state.is_over = true;
                state.failure = Some(Error::io("connection to the kernel", errno.into()));
            }
        }
        if state.is_idle()
            && state.is_over
            && let Some(trace) = &self.connection.trace
        {
            trace.end();
        }
        self.changed.notify_all();
    }

    /// Waits until no worker runs. Returns the failure that ended the connection to the first
    /// caller only.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut state = self.state.lock();
        while !state.is_idle() {
            self.changed.wait(&mut state);
        }
        let failure = state.failure.take();
        join(state);
        failure.map_or(Ok(()), Err)
    }

    /// Leaves the answer to DESTROY to [`Session::release`].
    pub(crate) fn hold_end(&self) {
        self.state.lock().is_end_held = true;
    }

    /// Answers DESTROY: now, or when it comes.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.is_end_held = false;
        self.answer_end(&mut state);
    }

    fn answer_end(&self, state: &mut SessionState) {
        if let Some(unique) = state.last_request.take() {
            self.connection.write(unique, 0, std::iter::empty());
        }
    }

    /// Whether the connection has ended and all workers have left.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.is_over && state.is_idle()
    }

    /// Stops the workers after their current requests; returns whether all left within `timeout`.
    /// If not, [`Session::start`] restarts those that left.
    ///
    /// `wake` must make the kernel send a request. Other threads call it, one at a time; it may
    /// block for ever.
    pub(crate) fn close(&self, wake: impl Fn() + Send + Sync + 'static, timeout: Duration) -> bool {
        self.connection.is_closed.store(true, Ordering::SeqCst);
        self.connection.seats.close();
        let wake = Arc::new(wake);
        let deadline = Instant::now() + timeout;
        let mut waking: Option<JoinHandle<()>> = None;
        let mut state = self.state.lock();
        while !state.is_idle() {
            if Instant::now() >= deadline {
                return false;
            }
            if waking.as_ref().is_none_or(|thread| thread.is_finished()) {
                let wake = Arc::clone(&wake);
                let builder = std::thread::Builder::new().name("wake".into());
                waking = builder.spawn(move || wake()).ok();
            }
            self.changed.wait_for(&mut state, WAKE_INTERVAL);
        }
        join(state);
        true
    }

    /// Duplicates the descriptor of the connection, which keeps it open without workers.
    ///
    /// # Errors
    /// `Io` if the process has too many open files.
    pub(crate) fn device(&self) -> Result<OwnedFd> {
        let device = self.connection.device.try_clone();
        device.map_err(|error| Error::io("descriptor of the connection", error))
    }

    /// Makes the kernel drop the name `name` in the directory `dir`. No request on this directory
    /// may wait for the caller, because the kernel locks it.
    pub(crate) fn drop_entry(&self, dir: NodeId, name: &[u8]) {
        let body = InvalEntryOut {
            parent: dir.0,
            namelen: u32::try_from(name.len()).unwrap_or(0),
            flags: 0,
        };
        // A notification has the request number 0, and its code in the place of the error.
        let parts = [body.as_bytes(), name, b"\0"];
        self.connection
            .write(0, NOTIFY_INVAL_ENTRY, parts.into_iter());
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.connection.trace.is_some()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.connection.counters()
    }
}

/// Joins the threads that have left, so that they release the session and its connection.
fn join(mut state: MutexGuard<'_, SessionState>) {
    if state.is_destroyed {
        // Threads wait for the answer to DESTROY, and leave after it.
        return;
    }
    let threads = std::mem::take(&mut state.threads);
    drop(state);
    for thread in threads {
        // The panic hook has already reported a panic outside of an answer.
        let _ = thread.join();
    }
}
