//! Writes the times overlay: times in the order of names, divided into pages.

use crate::write::tree_writer::Out;
use weald_format::container::RecordType;
use weald_format::limits::{TIMES_PER_PAGE, TIMES_PER_RUN};
use weald_format::pages::{TimesPage, TimesRun};
use weald_format::{Result, Timestamp};

/// Writes the times of all names. Times in equal steps become a run if there are at least as many
/// as a page of single times holds.
#[derive(Default)]
pub struct TimesWriter {
    /// Times in no page yet, and the number of them from the first on that are in equal steps.
    pending: Vec<Timestamp>,
    even_count: usize,
    /// The run that the first two times define.
    run: Option<TimesRun>,
    /// Length of the open run, in times; nothing is pending while a run is open.
    run_count: u64,
}

impl TimesWriter {
    /// Adds the time of the next name.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`.
    pub fn push(&mut self, out: &mut Out<'_>, time: Timestamp) -> Result<()> {
        if self.run_count > 0 {
            if self.run.is_some_and(|run| run.has_at(self.run_count, time)) {
                self.run_count += 1;
                return if self.run_count == TIMES_PER_RUN as u64 {
                    self.end_page(out)
                } else {
                    Ok(())
                };
            }
            self.end_page(out)?;
        }
        let count = self.pending.len();
        match self.pending.first() {
            None => self.even_count = 1,
            Some(&first) if count == 1 => {
                self.run = TimesRun::of(first, time);
                self.even_count += usize::from(self.run.is_some());
            }
            Some(_) => {
                let is_even = self.even_count == count
                    && self.run.is_some_and(|run| run.has_at(count as u64, time));
                self.even_count += usize::from(is_even);
            }
        }
        self.pending.push(time);
        if self.pending.len() < TIMES_PER_PAGE {
            return Ok(());
        }
        if self.even_count == TIMES_PER_PAGE {
            self.run_count = TIMES_PER_PAGE as u64;
            self.pending.clear();
            Ok(())
        } else {
            self.end_page(out)
        }
    }

    /// Writes the times that are in no page yet.
    ///
    /// # Errors
    /// As [`TimesWriter::push`].
    pub fn finish(mut self, out: &mut Out<'_>) -> Result<()> {
        if self.run_count > 0 || !self.pending.is_empty() {
            self.end_page(out)
        } else {
            Ok(())
        }
    }

    fn end_page(&mut self, out: &mut Out<'_>) -> Result<()> {
        let (page, count) = match self.run {
            Some(run) if self.run_count > 0 => {
                (TimesPage::encode_run(&run, self.run_count), self.run_count)
            }
            _ => (TimesPage::encode(&self.pending), self.pending.len() as u64),
        };
        self.pending.clear();
        (self.run, self.run_count) = (None, 0);
        out.push(RecordType::Times, page, count)
    }
}
