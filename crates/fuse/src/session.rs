//! The conversation with the kernel over one connection: threads that read requests and answer
//! them.
//!
//! A worker waits in read(2) until the kernel has a request for it, and answers it before it reads
//! the next one. What a worker meets never ends the session: a panic is the answer EIO to one
//! request.
//!
//! **Contents and names.** Contents may take long, on a slow disk very long. There is one worker
//! more than may be at contents at a time; who reads a request for more of them puts it aside, and
//! who is done with one takes it up. So names never wait for contents.
//!
//! **Stopping.** Nothing wakes a thread out of read(2) without harm but a request. So a session
//! that is to stop closes its gate, and asks its own mount for something that no cache answers
//! until every worker has come out and seen the gate. A request too many stays in the kernel's
//! queue, and whoever continues answers it.

use crate::driver::{Answer, Driver};
use crate::reads::Reads;
use crate::request::{Operation, Request, parse, split};
use crate::stats::{Counters, WorkerStats, sum};
use crate::trace::{Event, Trace};
use crate::tree::Tree;
use crate::wire::{Opcode, OutHeader, READ_BUFFER_MIN};
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

/// Bytes of the buffer that requests are read into. The largest one that the kernel sends a
/// read-only file system without being remounted `rw` has a name; one with an attribute of 64 KiB
/// fits too.
const REQUEST_LEN_MAX: usize = READ_BUFFER_MIN + (80 << 10);

/// Most bytes that a worker keeps between requests for its answers.
const OUT_LEN_KEPT: usize = 256 << 10;

/// How long somebody who closes a session waits before asking for the next request; workers are
/// mostly out long before.
const KNOCK_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A session: what its workers and its owner share.
pub(crate) struct Session {
    /// The connection. One descriptor serves all workers: a descriptor for each did not show in any
    /// measurement.
    device: OwnedFd,
    workers: Vec<WorkerStats>,
    reads: Reads,
    trace: Option<Arc<Trace>>,
    /// Workers leave when they see it closed.
    is_closed: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// By worker.
    is_running: Vec<bool>,
    threads: Vec<JoinHandle<()>>,
    /// The connection is gone: unmounted, or failed.
    is_over: bool,
    failure: Option<Error>,
}

impl State {
    fn is_idle(&self) -> bool {
        !self.is_running.contains(&true)
    }
}

impl Session {
    /// A session over `device`, not yet started, that answers `read_count` requests for contents at
    /// a time.
    pub(crate) fn new(device: OwnedFd, read_count: usize, trace: Option<Arc<Trace>>) -> Self {
        let worker_count = read_count + 1;
        let state = State {
            is_running: vec![false; worker_count],
            ..State::default()
        };
        Self {
            device,
            workers: (0..worker_count).map(|_| WorkerStats::new()).collect(),
            reads: Reads::new(read_count),
            trace,
            is_closed: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Opens the gate and starts the workers that do not run; they hold `driver` until they end.
    ///
    /// # Errors
    /// `Io` where not even one thread can be started.
    pub(crate) fn start<T: Tree>(self: &Arc<Self>, driver: &Arc<Driver<T>>) -> Result<()> {
        let mut state = self.state.lock();
        let State {
            is_running,
            threads,
            ..
        } = &mut *state;
        self.is_closed.store(false, Ordering::SeqCst);
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
                Err(error) if no > 0 => log::warn!("one worker less: {error}"),
                Err(error) => return Err(Error::io("start of a thread", error)),
            }
        }
        Ok(())
    }

    fn run<T: Tree>(&self, no: usize, driver: Arc<Driver<T>>) {
        let worker = Worker {
            session: self,
            driver: &*driver,
            no,
        };
        let outcome = worker.serve();
        // What the tree holds is given back before anybody hears that the session is over.
        drop(driver);
        self.leave(no, outcome);
    }

    fn leave(&self, no: usize, outcome: std::result::Result<Outcome, Errno>) {
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

    /// Waits until no worker runs; the failure that ended the connection, if it was one, is told
    /// once.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut state = self.state.lock();
        while !state.is_idle() {
            self.changed.wait(&mut state);
        }
        let failure = state.failure.take();
        join(state);
        failure.map_or(Ok(()), Err)
    }

    /// Whether the connection is gone and nobody answers any more.
    pub(crate) fn is_over(&self) -> bool {
        let state = self.state.lock();
        state.is_over && state.is_idle()
    }

    /// Makes the workers leave once each has answered what it is at. `knock` must make the kernel
    /// send a request; it is called from other threads, one at a time, and may wait for ever. Says
    /// whether all have left within `timeout`; where they have not, [`Session::start`] brings back
    /// those who did.
    pub(crate) fn close(
        &self,
        knock: impl Fn() + Send + Sync + 'static,
        timeout: Duration,
    ) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        let knock = Arc::new(knock);
        let deadline = Instant::now() + timeout;
        let mut knocking: Option<JoinHandle<()>> = None;
        let mut state = self.state.lock();
        while !state.is_idle() {
            if Instant::now() >= deadline {
                return false;
            }
            if knocking.as_ref().is_none_or(|k| k.is_finished()) {
                let knock = Arc::clone(&knock);
                let builder = std::thread::Builder::new().name("knock".into());
                knocking = builder.spawn(move || knock()).ok();
            }
            self.changed.wait_for(&mut state, KNOCK_AGAIN_AFTER);
        }
        join(state);
        true
    }

    /// A descriptor of the connection, which keeps it open while nobody answers.
    ///
    /// # Errors
    /// `Io` where there are too many.
    pub(crate) fn device(&self) -> Result<OwnedFd> {
        let device = self.device.try_clone();
        device.map_err(|error| Error::io("descriptor of the connection", error))
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.trace.is_some()
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = sum(self.workers.iter());
        counters.in_flight += self.reads.waiting_count() as u64;
        counters
    }
}

/// Waits until the threads that have left let go of the session too, and with it of the connection.
fn join(mut state: MutexGuard<'_, State>) {
    let threads = std::mem::take(&mut state.threads);
    drop(state);
    for thread in threads {
        // A panic outside of an answer was told when it happened.
        let _ = thread.join();
    }
}

/// Who asks for so many bytes at once is the kernel, which reads ahead of somebody in order.
const LARGE_READ_LEN: u32 = 512 << 10;

fn is_large(request: &Request<'_>) -> bool {
    matches!(request.operation, Operation::Read { size, .. } if size >= LARGE_READ_LEN)
}

/// Why a worker left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    GateClosed,
    Unmounted,
}

/// One thread that answers.
struct Worker<'a, T> {
    session: &'a Session,
    driver: &'a Driver<T>,
    no: usize,
}

impl<T: Tree> Worker<'_, T> {
    fn serve(&self) -> std::result::Result<Outcome, Errno> {
        let mut buffer = vec![0u8; REQUEST_LEN_MAX];
        let mut out = Vec::new();
        while !self.session.is_closed.load(Ordering::SeqCst) {
            match rustix::io::read(&self.session.device, &mut buffer[..]) {
                Ok(len) => {
                    let request = buffer.get(..len).unwrap_or(&[]);
                    self.handle(request, &mut out);
                    trim(&mut out);
                }
                Err(Errno::NODEV) => return Ok(Outcome::Unmounted),
                // ENOENT: who asked was killed before we could read what he asked.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Outcome::GateClosed)
    }

    fn handle(&self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some((header, body)) = split(bytes) else {
            return log::error!("the kernel sent {} bytes that are no request", bytes.len());
        };
        let begun = Instant::now();
        let parsed = match Opcode::of(header.opcode) {
            Some(opcode) => parse(&header, opcode, body).map(|request| (opcode, request)),
            None => Err(Errno::NOSYS),
        };
        match parsed {
            Ok((Opcode::Read, request)) => self.read(&request, begun, out),
            Ok((opcode, request)) => self.answer(opcode, &request, begun, out),
            Err(errno) => {
                let stats = self.session.workers.get(self.no);
                stats.inspect(|stats| stats.begin());
                let done = self.send(header.unique, Answer::Failed(errno), out);
                stats.inspect(|s| s.end(Opcode::of(header.opcode), begun.elapsed(), done));
            }
        }
    }

    /// Answers a request for content and those that others put aside meanwhile, or puts it aside.
    fn read(&self, request: &Request<'_>, begun: Instant, out: &mut Vec<u8>) {
        let mut next = self.session.reads.begin(request, begun);
        while let Some((request, begun)) = next {
            self.answer(Opcode::Read, &request, begun, out);
            next = self.session.reads.next();
            if is_large(&request) {
                // Who waited for it goes on at once, not when this worker's time is up: it is who
                // asks for more in time.
                std::thread::yield_now();
            }
        }
    }

    fn answer(&self, opcode: Opcode, request: &Request<'_>, begun: Instant, out: &mut Vec<u8>) {
        let stats = self.session.workers.get(self.no);
        stats.inspect(|stats| stats.begin());
        let done = self.try_answer(opcode, request, out);
        let took = begun.elapsed();
        stats.inspect(|stats| stats.end(Some(opcode), took, done));
        if let Some(trace) = &self.session.trace {
            trace.add(&Event {
                worker: self.no,
                opcode,
                ino: self.driver.ino(request.node),
                begun,
                took,
                range: range(request),
                done,
            });
        }
    }

    /// Answers a request; how many bytes that took, or what failed.
    fn try_answer(
        &self,
        opcode: Opcode,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> std::result::Result<usize, Errno> {
        out.clear();
        // Nothing of ours is left half changed: answering changes caches only, which look after
        // themselves.
        let answered = catch_unwind(AssertUnwindSafe(|| {
            self.driver.answer(opcode, request, out)
        }));
        let answer = answered.unwrap_or_else(|_| {
            log::error!("a panic while answering {}", opcode.word());
            Answer::Failed(Errno::IO)
        });
        self.send(request.unique, answer, out)
    }

    fn send(
        &self,
        unique: u64,
        answer: Answer<T::Chunk>,
        out: &[u8],
    ) -> std::result::Result<usize, Errno> {
        match answer {
            Answer::Nothing => Ok(0),
            Answer::Failed(errno) => {
                self.write(unique, -errno.raw_os_error(), [].into_iter());
                Err(errno)
            }
            Answer::Buffered => Ok(self.write(unique, 0, [out].into_iter())),
            Answer::Content(chunks) => Ok(self.write(unique, 0, chunks.iter().map(|c| &**c))),
        }
    }

    /// Writes an answer; how many bytes it has without its header.
    fn write<'b>(
        &self,
        unique: u64,
        error: i32,
        body: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> usize {
        let body_len = body.clone().map(<[u8]>::len).sum();
        let len = size_of::<OutHeader>().saturating_add(body_len);
        let header = OutHeader {
            // Content is at most what one request asks for.
            len: len as u32,
            error,
            unique,
        };
        let mut parts = vec![IoSlice::new(header.as_bytes())];
        for bytes in body {
            parts.push(IoSlice::new(bytes));
        }
        match rustix::io::writev(&self.session.device, &parts) {
            // ENOENT: who asked was killed meanwhile; ENODEV: unmounted, as the next read says.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(errno) => log::error!("an answer of {len} bytes did not reach the kernel: {errno}"),
        }
        body_len
    }
}

/// Where a request reads, and how much.
fn range(request: &Request<'_>) -> Option<(u64, u32)> {
    match request.operation {
        Operation::Read { offset, size }
        | Operation::Readdir { offset, size }
        | Operation::Readdirplus { offset, size } => Some((offset, size)),
        _ => None,
    }
}

/// A large listing does not hold its memory for ever.
fn trim(out: &mut Vec<u8>) {
    if out.capacity() > OUT_LEN_KEPT {
        *out = Vec::new();
    }
}
