//! Progress of a stream.

use super::source::StreamSize;
use crate::progress::{Observer, Progress, Stage};
use std::time::Instant;
use weald_format::{Error, Result};

/// Entries between two progress reports.
const ENTRIES_PER_REPORT: u64 = 1 << 16;

/// Reports progress at intervals.
pub struct ProgressReporter<'a> {
    observer: &'a dyn Observer,
    stage: Stage,
    pub entry_total: u64,
    pub read_total: u64,
    pub entry_count: u64,
    pub read_len: u64,
    last_report: Instant,
}

impl<'a> ProgressReporter<'a> {
    pub fn new(observer: &'a dyn Observer, size: &StreamSize) -> Self {
        Self {
            observer,
            stage: Stage::Write,
            entry_total: size.entry_count,
            read_total: size.data_len.unwrap_or(0),
            entry_count: 0,
            read_len: 0,
            last_report: Instant::now(),
        }
    }

    /// Begins a stage that reads `read_total` bytes; 0 if unknown.
    pub fn begin(&mut self, stage: Stage, read_total: u64) {
        (self.stage, self.read_total, self.read_len) = (stage, read_total, 0);
    }

    /// Adds to the counters, reports if the interval has passed, and fails if the build was
    /// cancelled.
    pub fn advance(&mut self, entries: u64, len: u64, written_len: u64) -> Result<()> {
        let before = self.entry_count / ENTRIES_PER_REPORT;
        self.entry_count += entries;
        self.read_len += len;
        if len == 0 && self.entry_count / ENTRIES_PER_REPORT == before {
            return Ok(());
        }
        if self.observer.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
        if self.last_report.elapsed().as_millis() >= 100 {
            self.last_report = Instant::now();
            self.observer.progress(&Progress {
                stage: self.stage,
                entry_count: self.entry_count,
                entry_total: self.entry_total,
                read_len: self.read_len,
                read_total: self.read_total,
                written_len,
            });
        }
        Ok(())
    }
}
