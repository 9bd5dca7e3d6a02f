//! Worker threads of a session: each takes a request of the kernel, answers it, and takes the next.
//!
//! **Contents and names.** A READ may take long on a slow disk. The session has one worker more
//! than READ requests may run at a time. A worker queues a READ beyond that limit, and a worker
//! that finishes a READ takes the next one from the queue. So lookups and listings never wait for
//! contents.
//!
//! **Syncs.** A driver says which requests make everything durable. Two workers at a time answer
//! those, all that wait with one sync, so that they never occupy all workers.

use crate::answer::{Answer, Answers};
use crate::caller::Caller;
use crate::reads::ReadQueue;
use crate::request::{Operation, Request, parse, split};
use crate::seats::Seats;
use crate::stats::{Counters, WorkerStats, sum};
use crate::syncs::{SyncQueue, WaitingSync};
use crate::trace::{Event, Trace};
use crate::wire::{InvalInodeOut, NOTIFY_INVAL_INODE, NodeId, Opcode, OutHeader};
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use zerocopy::IntoBytes;

/// Connection to the kernel, and the queues of its requests, which all workers share.
pub(crate) struct Connection {
    /// All workers share one descriptor: one per worker made no measurable difference.
    pub(crate) device: OwnedFd,
    /// Indexed by worker.
    pub(crate) workers: Vec<WorkerStats>,
    pub(crate) seats: Seats,
    reads: ReadQueue,
    syncs: SyncQueue,
    pub(crate) trace: Option<Arc<Trace>>,
    /// Closed gate: workers leave when they see it.
    pub(crate) is_closed: AtomicBool,
}

impl Connection {
    /// Connection over `device` whose workers answer up to `read_count` READ requests at a time.
    pub(crate) fn new(device: OwnedFd, read_count: usize, trace: Option<Arc<Trace>>) -> Self {
        let worker_count = read_count + 1;
        Self {
            device,
            workers: (0..worker_count).map(|_| WorkerStats::new()).collect(),
            seats: Seats::new(std::thread::available_parallelism().map_or(1, usize::from)),
            reads: ReadQueue::new(read_count),
            syncs: SyncQueue::new(worker_count),
            trace,
            is_closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        let mut counters = sum(self.workers.iter());
        let waiting_count = self.reads.waiting_count() + self.syncs.waiting_count();
        counters.in_flight += waiting_count as u64;
        counters
    }
}

/// Number of the request if it is the last one of a mount.
fn destroying(bytes: &[u8]) -> Option<u64> {
    let (header, _) = split(bytes)?;
    (header.opcode == Opcode::Destroy as u32).then_some(header.unique)
}

/// Size from which a READ counts as the kernel's readahead for a sequential reader, in bytes.
const LARGE_READ_LEN: u32 = 512 << 10;

fn is_large(request: &Request<'_>) -> bool {
    matches!(request.operation, Operation::Read { size, .. } if size >= LARGE_READ_LEN)
}

/// Reason why a worker left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    GateClosed,
    Unmounted,
    /// The kernel unmounts, and waits for the answer to the request with this number. The driver
    /// has ended.
    Destroyed(u64),
}

/// Worker thread.
pub(crate) struct Worker<'a, D> {
    pub(crate) connection: &'a Connection,
    pub(crate) driver: &'a D,
    /// Index of the worker.
    pub(crate) no: usize,
}

impl<D: Answers> Worker<'_, D> {
    /// Reads requests and answers them until the connection ends or its gate closes.
    ///
    /// # Errors
    /// The errno of read(2).
    pub(crate) fn serve(&self) -> std::result::Result<Outcome, Errno> {
        let mut buffer = vec![0u8; D::REQUEST_LEN_MAX];
        let mut out = Vec::new();
        while !self.connection.is_closed.load(Ordering::SeqCst) && self.connection.seats.take() {
            let read = rustix::io::read(&self.connection.device, &mut buffer[..]);
            self.connection.seats.leave();
            match read {
                Ok(len) => {
                    let request = buffer.get(..len).unwrap_or(&[]);
                    if let Some(unique) = destroying(request) {
                        self.end();
                        return Ok(Outcome::Destroyed(unique));
                    }
                    self.handle(request, &mut out);
                    trim(&mut out, D::ANSWER_LEN_KEPT);
                }
                Err(Errno::NODEV) => {
                    self.driver.abandon();
                    return Ok(Outcome::Unmounted);
                }
                // ENOENT: the calling process was killed before we read its request.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(Outcome::GateClosed)
    }

    /// Ends the driver before the answer to DESTROY.
    fn end(&self) {
        // As for any answer; the kernel waits for this one.
        if catch_unwind(AssertUnwindSafe(|| self.driver.end())).is_err() {
            log::error!("panic at the end of a mount");
        }
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
                let mut batch = self.connection.syncs.begin(WaitingSync {
                    unique: request.unique,
                    opcode,
                    node: request.node,
                    begun,
                });
                while !batch.is_empty() {
                    self.sync(&batch, out);
                    batch = self.connection.syncs.next();
                }
            }
            Ok((opcode, request)) => self.answer(opcode, &request, begun, out),
            Err(errno) => {
                let stats = self.connection.workers.get(self.no);
                stats.inspect(|stats| stats.begin());
                let done = self.send(header.unique, Answer::Failed(errno), out);
                stats.inspect(|s| s.end(Opcode::of(header.opcode), begun.elapsed(), done));
            }
        }
    }

    /// Answers a READ request and then the queued ones, or queues it.
    fn read(&self, request: &Request<'_>, begun: Instant, out: &mut Vec<u8>) {
        let mut next = self.connection.reads.begin(request, begun);
        while let Some((request, begun)) = next {
            self.answer(Opcode::Read, &request, begun, out);
            next = self.connection.reads.next();
            if is_large(&request) {
                // The reader runs at once, not at the end of this worker's time slice, and so
                // sends its next request in time.
                std::thread::yield_now();
            }
        }
    }

    fn answer(&self, opcode: Opcode, request: &Request<'_>, begun: Instant, out: &mut Vec<u8>) {
        let stats = self.connection.workers.get(self.no);
        stats.inspect(|stats| stats.begin());
        let answer = self.answer_of(opcode, request, out);
        for dir in self.driver.outdated_listings(request) {
            self.drop_listing(dir);
        }
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
        let stats = self.connection.workers.get(self.no);
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
            caller: Caller { pid: 0 },
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
        if let Some(trace) = &self.connection.trace {
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

    /// Makes the kernel drop its cache of a directory's listing.
    fn drop_listing(&self, dir: NodeId) {
        let body = InvalInodeOut {
            ino: dir.0,
            ..InvalInodeOut::default()
        };
        // A notification has the request number 0, and its code in the place of the error.
        self.write(0, NOTIFY_INVAL_INODE, [body.as_bytes()].into_iter());
    }

    fn write<'b>(
        &self,
        unique: u64,
        error: i32,
        body: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> usize {
        self.connection.write(unique, error, body)
    }
}

impl Connection {
    /// Writes an answer; returns its bytes without the header.
    pub(crate) fn write<'b>(
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
        match rustix::io::writev(&self.device, &parts) {
            // ENOENT: the calling process was killed, or the kernel does not know the inode of a
            // notification. ENODEV: unmounted, as the next read reports.
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
        | Operation::Readdir { offset, size, .. }
        | Operation::Readdirplus { offset, size, .. } => Some((offset, size)),
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
