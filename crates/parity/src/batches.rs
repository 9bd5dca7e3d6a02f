//! Columns of a code in batches, by several threads.

use crate::layout::Code;
use crate::{SECTOR, Watch};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::{Error, Result};

/// Bytes of sectors that all threads together have in memory.
const MEMORY: u64 = 512 << 20;

/// Fewest columns of a batch: short reads are slow.
const MIN_COLUMNS: u64 = 4;

/// How the columns of a code are taken.
pub struct Batches {
    columns: u64,
    per_batch: u64,
    thread_count: usize,
}

impl Batches {
    pub fn new(code: &Code, thread_count: usize) -> Self {
        let thread_count = thread_count.max(1);
        let column_len = (code.rows * SECTOR) as u64;
        let per_batch = MEMORY / thread_count as u64 / column_len;
        // No thread is without work while there are columns.
        let share = code.columns.div_ceil(thread_count as u64);
        Self {
            columns: code.columns,
            per_batch: per_batch.max(MIN_COLUMNS).min(share),
            thread_count,
        }
    }

    /// Most columns of a batch.
    pub fn width(&self) -> usize {
        self.per_batch as usize
    }

    /// Calls `step` with every batch of columns and with what `start` made for the thread. The
    /// first error ends all threads.
    pub fn run<S>(
        &self,
        watch: &Watch<'_>,
        start: impl Fn() -> Result<S> + Sync,
        step: impl Fn(&mut S, Range<u64>) -> Result<u64> + Sync,
    ) -> Result<()> {
        let next = AtomicU64::new(0);
        let failure = Mutex::new(None);
        let work = || -> Result<()> {
            let mut state = start()?;
            loop {
                let first = next.fetch_add(self.per_batch, Ordering::Relaxed);
                if first >= self.columns || failure.lock().is_some() {
                    return Ok(());
                }
                let end = (first + self.per_batch).min(self.columns);
                let read_len = step(&mut state, first..end)?;
                if watch(read_len).is_break() {
                    return Err(stopped());
                }
            }
        };
        std::thread::scope(|scope| {
            let thread_count = self.thread_count.min(self.columns as usize);
            for _ in 0..thread_count {
                scope.spawn(|| {
                    if let Err(error) = work() {
                        failure.lock().get_or_insert(error);
                    }
                });
            }
        });
        failure.into_inner().map_or(Ok(()), Err)
    }
}

/// The error of work that the caller ended.
pub fn stopped() -> Error {
    Error::invalid("interrupted")
}
