//! Session with the kernel over one connection: worker threads read requests and answer them.
//!
//! A worker blocks in read(2) until the kernel has a request, and answers it before it reads the
//! next one. No request ends the session: a panic becomes the answer EIO.
//!
//! **Contents and names.** A READ may take long on a slow disk. The session has one worker more
//! than READ requests may run at a time. A worker queues a READ beyond that limit, and a worker
//! that finishes a READ takes the next one from the queue. So lookups and listings never wait for
//! contents.
//!
//! **Syncs.** A driver says which requests make everything durable. One worker at a time answers
//! those, all that wait with one sync, so that they never occupy all workers.
//!
//! **Stopping.** Only a request wakes a thread from read(2) without harm. To stop, the session
//! closes its gate and sends its own mount requests that no cache answers, until every worker has
//! seen the gate and left. A surplus request stays in the kernel's queue; the next server answers
//! it.

use crate::answer::{Answer, Answers};
use crate::reads::ReadQueue;
use crate::request::{Operation, Request, parse, split};
use crate::seats::Seats;
use crate::stats::{Counters, WorkerStats, sum};
use crate::syncs::{SyncQueue, WaitingSync};
use crate::trace::{Event, Trace};
use crate::wire::{Opcode, OutHeader};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weald_format::{Error, Result};
use zerocopy::IntoBytes;

/// Pause between two wake-up requests while a session closes; workers usually leave much earlier.
const WAKE_INTERVAL: Duration = Duration::from_millis(5);

/// State that the workers of a session and its owner share.
pub(crate) struct Session {
    /// Connection to the kernel. All workers share one descriptor: one per worker made no
    /// measurable difference.
    device: OwnedFd,
    workers: Vec<WorkerStats>,
    seats: Seats,
    reads: ReadQueue,
    syncs: SyncQueue,
    trace: Option<Arc<Trace>>,
    /// Closed gate: workers leave when they see it.
    is_closed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Indexed by worker.
    is_running: Vec<bool>,
    threads: Vec<JoinHandle<()>>,
    /// The connection has ended, by unmount or by failure.
    is_over: bool,
    failure: Option<Error>,
}

impl State {
    fn is_idle(&self) -> bool {
        !self.is_running.contains(&true)
    }
}

impl Session {
    /// Creates a session over `device` that answers up to `read_count` READ requests at a time. The
    /// caller starts it.
    pub(crate) fn new(device: OwnedFd, read_count: usize, trace: Option<Arc<Trace>>) -> Self {
        let worker_count = read_count + 1;
        let state = State {
            is_running: vec![false; worker_count],
            ..State::default()
        };
        Self {
            device,
            workers: (0..worker_count).map(|_| WorkerStats::new()).collect(),
            seats: Seats::new(std::thread::available_parallelism().map_or(1, usize::from)),
            reads: ReadQueue::new(read_count),
            syncs: SyncQueue::default(),
            trace,
            is_closed: AtomicBool::new(false),
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
        let State {
            is_running,
            threads,
            ..
        } = &mut *state;
        self.is_closed.store(false, Ordering::SeqCst);
        self.seats.open();
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
            session: self,
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
            self.seats.close();
        }
        let mut state = self.state.lock();
        if let Some(is_running) = state.is_running.get_mut(no) {
            *is_running = false;
        }
        match outcome {
            Ok(Outcome::GateClosed) => {}
            Ok(Outcome::Unmounted) => state.is_over = true,
            Err(errno) => {
                state.is_over = true;
                state.failure = Some(Error::io("connection to the kernel", errno.into()));
            }
        }
        if state.is_idle()
            && state.is_over
            && let Some(trace) = &self.trace
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
        self.is_closed.store(true, Ordering::SeqCst);
        self.seats.close();
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
        let device = self.device.try_clone();
        device.map_err(|error| Error::io("descriptor of the connection", error))
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = sum(self.workers.iter());
        let waiting_count = self.reads.waiting_count() + self.syncs.waiting_count();
        counters.in_flight += waiting_count as u64;
        counters
    }
}

/// Joins the threads that have left, so that they release the session and its connection.
fn join(mut state: MutexGuard<'_, State>) {
    let threads = std::mem::take(&mut state.threads);
    drop(state);
    for thread in threads {
        // The panic hook has already reported a panic outside of an answer.
        let _ = thread.join();
    }
}

/// Size from which a READ counts as the kernel's readahead for a sequential reader, in bytes.
const LARGE_READ_LEN: u32 = 512 << 10;

fn is_large(request: &Request<'_>) -> bool {
    matches!(request.operation, Operation::Read { size, .. } if size >= LARGE_READ_LEN)
}

/// Reason why a worker left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    GateClosed,
    Unmounted,
}

/// Worker thread.
struct Worker<'a, D> {
    session: &'a Session,
    driver: &'a D,
    no: usize,
}

impl<D: Answers> Worker<'_, D> {
    fn serve(&self) -> std::result::Result<Outcome, Errno> {
        let mut buffer = vec![0u8; D::REQUEST_LEN_MAX];
        let mut out = Vec::new();
        while !self.session.is_closed.load(Ordering::SeqCst) && self.session.seats.take() {
            let read = rustix::io::read(&self.session.device, &mut buffer[..]);
            self.session.seats.leave();
            match read {
                Ok(len) => {
                    let request = buffer.get(..len).unwrap_or(&[]);
                    self.handle(request, &mut out);
                    trim(&mut out, D::ANSWER_LEN_KEPT);
                }
                Err(Errno::NODEV) => return Ok(Outcome::Unmounted),
                // ENOENT: the calling process was killed before we read its request.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Outcome::GateClosed)
    }

    fn handle(&self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some((header, body)) = split(bytes) else {
            return log::error!(
                "the kernel sent a malformed request of {} bytes",
                bytes.len()
            );
        };
        let begun = Instant::now();
        let parsed = match Opcode::of(header.opcode) {
            Some(opcode) => parse(&header, opcode, body).map(|request| (opcode, request)),
            None => Err(Errno::NOSYS),
        };
        match parsed {
            Ok((Opcode::Read, request)) => self.read(&request, begun, out),
            Ok((opcode, request)) if self.driver.is_sync(opcode) => {
                let mut batch = self.session.syncs.begin(WaitingSync {
                    unique: request.unique,
                    opcode,
                    node: request.node,
                    begun,
                });
                while !batch.is_empty() {
                    self.sync(&batch, out);
                    batch = self.session.syncs.next();
                }
            }
            Ok((opcode, request)) => self.answer(opcode, &request, begun, out),
            Err(errno) => {
                let stats = self.session.workers.get(self.no);
                stats.inspect(|stats| stats.begin());
                let done = self.send(header.unique, Answer::Failed(errno), out);
                stats.inspect(|s| s.end(Opcode::of(header.opcode), begun.elapsed(), done));
            }
        }
    }

    /// Answers a READ request and then the queued ones, or queues it.
    fn read(&self, request: &Request<'_>, begun: Instant, out: &mut Vec<u8>) {
        let mut next = self.session.reads.begin(request, begun);
        while let Some((request, begun)) = next {
            self.answer(Opcode::Read, &request, begun, out);
            next = self.session.reads.next();
            if is_large(&request) {
                // The reader runs at once, not at the end of this worker's time slice, and so
                // sends its next request in time.
                std::thread::yield_now();
            }
        }
    }

    fn answer(&self, opcode: Opcode, request: &Request<'_>, begun: Instant, out: &mut Vec<u8>) {
        let stats = self.session.workers.get(self.no);
        stats.inspect(|stats| stats.begin());
        let answer = self.answer_of(opcode, request, out);
        let done = self.send(request.unique, answer, out);
        let took = begun.elapsed();
        stats.inspect(|stats| stats.end(Some(opcode), took, done));
        self.note(&Event {
            worker: self.no,
            opcode,
            ino: self.driver.ino(request.node),
            begun,
            took,
            range: range(request),
            done,
        });
    }

    /// Syncs once, and gives the outcome to all requests of `batch`.
    fn sync(&self, batch: &[WaitingSync], out: &mut Vec<u8>) {
        let Some(first) = batch.first() else {
            return;
        };
        let stats = self.session.workers.get(self.no);
        stats.inspect(|stats| stats.begin());
        let opcode = match batch.len() {
            1 => first.opcode,
            _ => Opcode::Syncfs,
        };
        let request = Request {
            unique: first.unique,
            node: first.node,
            uid: 0,
            gid: 0,
            operation: Operation::Other,
        };
        let failure = match self.answer_of(opcode, &request, out) {
            Answer::Failed(errno) => Some(errno),
            _ => None,
        };
        for sync in batch {
            let answer = failure.map_or(Answer::Buffered, Answer::Failed);
            let done = self.send(sync.unique, answer, out);
            let took = sync.begun.elapsed();
            stats.inspect(|stats| stats.end(Some(sync.opcode), took, done));
            self.note(&Event {
                worker: self.no,
                opcode: sync.opcode,
                ino: self.driver.ino(sync.node),
                begun: sync.begun,
                took,
                range: None,
                done,
            });
        }
    }

    fn note(&self, event: &Event) {
        if let Some(trace) = &self.session.trace {
            trace.add(event);
        }
    }

    /// The answer to a request, without sending it. A panic becomes EIO.
    fn answer_of(
        &self,
        opcode: Opcode,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Answer<D::Chunk> {
        out.clear();
        // Unwind safety: an answer modifies caches and look-up counts, and those stay consistent
        // after a panic; a file system that changes keeps its own invariants.
        let answered = catch_unwind(AssertUnwindSafe(|| {
            self.driver.answer(opcode, request, out)
        }));
        answered.unwrap_or_else(|_| {
            log::error!("panic in the answer to {}", opcode.word());
            Answer::Failed(Errno::IO)
        })
    }

    /// Sends an answer; returns its bytes, or its errno.
    fn send(
        &self,
        unique: u64,
        answer: Answer<D::Chunk>,
        out: &[u8],
    ) -> std::result::Result<usize, Errno> {
        match answer {
            Answer::NoReply => Ok(0),
            Answer::Failed(errno) => {
                self.write(unique, -errno.raw_os_error(), [].into_iter());
                Err(errno)
            }
            Answer::Buffered => Ok(self.write(unique, 0, [out].into_iter())),
            Answer::Content(chunks) => Ok(self.write(unique, 0, chunks.iter().map(|c| &**c))),
        }
    }

    /// Writes an answer; returns its bytes without the header.
    fn write<'b>(
        &self,
        unique: u64,
        error: i32,
        body: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> usize {
        let body_len = body.clone().map(<[u8]>::len).sum();
        let len = size_of::<OutHeader>().saturating_add(body_len);
        let header = OutHeader {
            // Content is never longer than the request's `size`, which is a u32.
            len: len as u32,
            error,
            unique,
        };
        let mut parts = vec![IoSlice::new(header.as_bytes())];
        for bytes in body {
            parts.push(IoSlice::new(bytes));
        }
        match rustix::io::writev(&self.session.device, &parts) {
            // ENOENT: the calling process was killed. ENODEV: unmounted, as the next read reports.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(errno) => log::error!("an answer of {len} bytes did not reach the kernel: {errno}"),
        }
        body_len
    }
}

/// Offset and size of a request that reads or writes.
fn range(request: &Request<'_>) -> Option<(u64, u32)> {
    match request.operation {
        Operation::Read { offset, size }
        | Operation::Readdir { offset, size }
        | Operation::Readdirplus { offset, size } => Some((offset, size)),
        // A request is never longer than 4 GiB.
        Operation::Write { offset, bytes, .. } => Some((offset, bytes.len() as u32)),
        _ => None,
    }
}

/// Frees the buffer after a large answer.
fn trim(out: &mut Vec<u8>, len_max: usize) {
    if out.capacity() > len_max {
        *out = Vec::new();
    }
}
