//! Request counters and latency histograms. Each worker has counters of its own, so that workers do
//! not contend for cache lines.

use crate::wire::Opcode;
use rustix::io::Errno;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of a histogram: below 1 µs, 2 µs, 4 µs … 2^24 µs (17 s), and all longer times.
const BUCKET_COUNT: usize = 26;

/// Counters of a mount since it was mounted or taken over.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counters {
    /// Counters per operation; operations without requests are left out.
    pub operations: Vec<OperationCount>,
    /// Requests answered with EIO, because the image is damaged or unreadable.
    pub error_count: u64,
    /// Requests in flight.
    pub in_flight: u64,
    /// Bytes of content read from files.
    pub read_len: u64,
}

impl Counters {
    /// Number of all requests.
    pub fn request_count(&self) -> u64 {
        self.operations.iter().map(|o| o.count).sum()
    }
}

/// Counters of one operation.
#[derive(Debug, Clone, Default, Serialize)]
pub struct OperationCount {
    /// Name of the operation, as in `fuse.h` but in lower case.
    pub name: String,
    /// Number of requests.
    pub count: u64,
    /// Number of requests answered with EIO.
    pub error_count: u64,
    /// Sum of latencies in nanoseconds, each from reading the request to writing its answer.
    pub total_ns: u64,
    /// Latency histogram. Entry `i` counts requests below 2^`i` microseconds that no earlier entry
    /// counts; the last entry counts all longer ones.
    pub latency_counts: Vec<u64>,
}

/// Counters of one operation in one worker.
#[derive(Debug, Default)]
struct Cell {
    count: AtomicU64,
    error_count: AtomicU64,
    total_ns: AtomicU64,
    buckets: [AtomicU64; BUCKET_COUNT],
}

/// Counters of one worker. Only that worker writes them.
#[derive(Debug)]
pub(crate) struct WorkerStats {
    cells: Box<[Cell]>,
    read_len: AtomicU64,
    is_busy: AtomicBool,
}

/// Index of an operation in the cells; the last cell counts unknown requests.
fn index_of(opcode: Option<Opcode>) -> usize {
    let known = opcode.and_then(|wanted| Opcode::ALL.iter().position(|o| *o == wanted));
    known.unwrap_or(Opcode::ALL.len())
}

fn bucket_of(took: Duration) -> usize {
    let micros = took.as_micros().min(u128::from(u64::MAX)) as u64;
    ((u64::BITS - micros.leading_zeros()) as usize).min(BUCKET_COUNT - 1)
}

/// Adds without a locked instruction. Each counter has one writer, so this is no race; several
/// locked instructions per request would cost noticeable time.
fn add(counter: &AtomicU64, n: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(n),
        Ordering::Relaxed,
    );
}

impl WorkerStats {
    pub(crate) fn new() -> Self {
        Self {
            cells: (0..=Opcode::ALL.len()).map(|_| Cell::default()).collect(),
            read_len: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
        }
    }

    pub(crate) fn begin(&self) {
        self.is_busy.store(true, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, opcode: Option<Opcode>, took: Duration, done: Result<usize, Errno>) {
        if let Some(cell) = self.cells.get(index_of(opcode)) {
            add(&cell.count, 1);
            add(&cell.total_ns, took.as_nanos() as u64);
            if let Some(bucket) = cell.buckets.get(bucket_of(took)) {
                add(bucket, 1);
            }
            match done {
                Err(Errno::IO) => add(&cell.error_count, 1),
                Ok(len) if opcode == Some(Opcode::Read) => add(&self.read_len, len as u64),
                _ => {}
            }
        }
        self.is_busy.store(false, Ordering::Relaxed);
    }
}

/// Sums the counters of all workers.
pub(crate) fn sum<'a>(workers: impl Iterator<Item = &'a WorkerStats>) -> Counters {
    let mut counters = Counters::default();
    let words = Opcode::ALL.iter().map(|o| o.word()).chain(["unknown"]);
    let mut all: Vec<OperationCount> = words.map(empty).collect();
    for worker in workers {
        for (sum, cell) in all.iter_mut().zip(&worker.cells) {
            add_cell(sum, cell);
        }
        counters.read_len += worker.read_len.load(Ordering::Relaxed);
        counters.in_flight += u64::from(worker.is_busy.load(Ordering::Relaxed));
    }
    all.retain(|operation| operation.count > 0);
    counters.error_count = all.iter().map(|operation| operation.error_count).sum();
    counters.operations = all;
    counters
}

fn empty(name: &str) -> OperationCount {
    OperationCount {
        name: name.to_owned(),
        latency_counts: vec![0; BUCKET_COUNT],
        ..OperationCount::default()
    }
}

fn add_cell(sum: &mut OperationCount, cell: &Cell) {
    sum.count += cell.count.load(Ordering::Relaxed);
    sum.error_count += cell.error_count.load(Ordering::Relaxed);
    sum.total_ns += cell.total_ns.load(Ordering::Relaxed);
    for (sum, bucket) in sum.latency_counts.iter_mut().zip(&cell.buckets) {
        *sum += bucket.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double() {
        let micros = |n| bucket_of(Duration::from_micros(n));
        assert_eq!(bucket_of(Duration::from_nanos(999)), 0);
        assert_eq!((micros(1), micros(2), micros(3), micros(4)), (1, 2, 2, 3));
        assert_eq!(micros((1 << 24) - 1), 24);
        assert_eq!(micros(1 << 24), BUCKET_COUNT - 1);
        assert_eq!(bucket_of(Duration::MAX), BUCKET_COUNT - 1);
    }

    /// Would catch: ENOENT counted as a failure, or counters added to another operation.
    #[test]
    fn workers_are_added_up() {
        let workers = [WorkerStats::new(), WorkerStats::new()];
        let took = Duration::from_micros(5);
        workers[0].begin();
        workers[0].end(Some(Opcode::Read), took, Ok(4096));
        workers[1].end(Some(Opcode::Read), took, Err(Errno::IO));
        workers[1].end(Some(Opcode::Lookup), took, Err(Errno::NOENT));
        workers[1].end(None, took, Err(Errno::NOSYS));
        workers[1].begin();
        let sum = sum(workers.iter());
        let counted: Vec<(&str, u64, u64)> = sum
            .operations
            .iter()
            .map(|o| (o.name.as_str(), o.count, o.error_count))
            .collect();
        assert_eq!(
            counted,
            [("lookup", 1, 0), ("read", 2, 1), ("unknown", 1, 0)]
        );
        assert_eq!((sum.error_count, sum.in_flight, sum.read_len), (1, 1, 4096));
        assert_eq!(sum.operations[1].latency_counts[3], 2);
        assert_eq!(sum.request_count(), 4);
    }
}
