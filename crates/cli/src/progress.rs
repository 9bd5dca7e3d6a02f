//! Progress of a build or an extraction: a bar on a terminal, otherwise lines.

use crate::messages;
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weald_builder::{Observer, Problem, Progress, Stage};
use weald_export::{ExtractObserver, ExtractProgress};
use weald_format::Error;
use weald_vfs::error_text::without_errno;

/// Interval between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Shortest interval between two updates for an extraction, which reports every entry.
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

/// Length of a bar, in steps.
const BAR_STEPS: u64 = 1000;

/// Written bytes from which on they say something of the rate and the ratio.
const WRITTEN_LEN_MIN: u64 = 64 << 10;

/// Replaced entries that are named.
const REPLACED_SHOWN_MAX: u64 = 20;

/// Form of the progress display.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressWord {
    /// A bar on a terminal, lines otherwise
    Auto,
    /// A bar
    Bar,
    /// One line every five seconds
    Lines,
    /// No progress
    None,
}

/// Shows progress and problems, and cancels the work when the flag is set.
pub struct Display {
    is_cancelled: Arc<AtomicBool>,
    bar: Option<ProgressBar>,
    shows_lines: bool,
    clock: Mutex<Clock>,
    /// Entries that a later source replaced.
    replaced_count: AtomicU64,
}

/// Start of the stage, and time of the last line.
struct Clock {
    stage: Option<Stage>,
    stage_start: Instant,
    last_line: Instant,
    last_look: Option<Instant>,
}

impl Display {
    /// Creates a display of the kind `word` on standard error.
    pub fn new(word: ProgressWord, is_cancelled: Arc<AtomicBool>) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let (has_bar, shows_lines) = match word {
            ProgressWord::Auto => (is_terminal, !is_terminal),
            ProgressWord::Bar => (true, false),
            ProgressWord::Lines => (false, true),
            ProgressWord::None => (false, false),
        };
        let now = Instant::now();
        let clock = Mutex::new(Clock {
            stage: None,
            stage_start: now,
            last_line: now,
            last_look: None,
        });
        Self {
            is_cancelled,
            bar: has_bar.then(new_bar),
            shows_lines,
            clock,
            replaced_count: AtomicU64::new(0),
        }
    }

    /// Clears the bar, and tells how many replaced entries were not named.
    pub fn finish(&self) {
        let count = self.replaced_count.load(Ordering::Relaxed);
        if let Some(rest) = count
            .checked_sub(REPLACED_SHOWN_MAX)
            .filter(|&rest| rest > 0)
        {
            self.print_above_bar(|| {
                messages::line(&format!(
                    "{} more were replaced by later sources",
                    self::count(rest)
                ));
            });
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Shows the progress of a build.
    fn show_build(&self, progress: &Progress) {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = clock.time_in_stage(progress.stage);
        self.show(
            &mut clock,
            stage_word(progress.stage),
            position(progress),
            || describe(progress, elapsed, weald_sys::resident_len()),
        );
    }

    /// Shows the progress of an extraction, unless the last update was very recent or another
    /// thread is showing it.
    fn show_extraction(&self, progress: &ExtractProgress) {
        let Ok(mut clock) = self.clock.try_lock() else {
            return;
        };
        if !clock.is_update_due() {
            return;
        }
        let elapsed = clock.stage_start.elapsed();
        let total = progress.entry_total.unwrap_or(0);
        let position = share(progress.entry_count, total);
        self.show(&mut clock, "extract", position, || {
            describe_extraction(progress, elapsed)
        });
    }

    fn show(
        &self,
        clock: &mut Clock,
        words: &'static str,
        position: u64,
        describe: impl FnOnce() -> String,
    ) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(words);
            bar.set_position(position);
            bar.set_message(describe());
        } else if self.shows_lines && clock.is_line_due() {
            messages::line(&format!("{words}: {}", describe()));
        }
    }

    /// Writes messages, above the bar if there is one.
    fn print_above_bar(&self, show: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(show),
            None => show(),
        }
    }
}

impl Clock {
    /// Time since the start of the stage.
    fn time_in_stage(&mut self, stage: Stage) -> Duration {
        if self.stage != Some(stage) {
            (self.stage, self.stage_start) = (Some(stage), Instant::now());
        }
        self.stage_start.elapsed()
    }

    fn is_line_due(&mut self) -> bool {
        let is_due = self.last_line.elapsed() >= LINE_INTERVAL;
        if is_due {
            self.last_line = Instant::now();
        }
        is_due
    }

    fn is_update_due(&mut self) -> bool {
        let is_time = self
            .last_look
            .is_none_or(|last| last.elapsed() >= UPDATE_INTERVAL);
        if is_time {
            self.last_look = Some(Instant::now());
        }
        is_time
    }
}

impl Observer for Display {
    fn progress(&self, progress: &Progress) {
        self.show_build(progress);
    }

    fn problem(&self, problem: &Problem) {
        self.print_above_bar(|| {
            messages::line(&format!(
                "{}: {}",
                weald_vfs::shown_path(&problem.path),
                without_errno(&problem.what)
            ));
        });
    }

    fn replaced(&self, path: &[u8], by: &Path) {
        let count = self.replaced_count.fetch_add(1, Ordering::Relaxed);
        if count < REPLACED_SHOWN_MAX {
            let by = by.as_os_str().as_bytes();
            self.print_above_bar(|| {
                messages::line(&format!(
                    "{}: replaced by that of {}",
                    weald_vfs::shown_path(path),
                    weald_vfs::shown_path(by)
                ));
            });
        }
    }

    fn memory_raised(&self, from: u64, to: u64, threads: usize) {
        if self.bar.is_none() && !self.shows_lines {
            return;
        }
        let (from, to) = (from >> 20, to.div_ceil(1 << 20));
        let threads = match threads {
            1 => "one thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        self.print_above_bar(|| {
            messages::line(&format!(
                "memory: {threads} may take {to} MiB, more than the usual {from} MiB; -m sets a \
                 limit"
            ));
        });
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

impl ExtractObserver for Display {
    fn problem(&self, path: &[u8], error: &Error) {
        self.print_above_bar(|| messages::problem(path, error));
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    fn progress(&self, progress: &ExtractProgress) {
        self.show_extraction(progress);
    }
}

/// A bar of so many steps on standard error.
pub fn new_bar() -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(10);
    let bar = ProgressBar::with_draw_target(Some(BAR_STEPS), target);
    let style = ProgressStyle::with_template("{prefix:>5} [{bar:20}] {wide_msg}");
    bar.set_style(
        style
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .progress_chars("=> "),
    );
    bar
}

fn stage_word(stage: Stage) -> &'static str {
    match stage {
        Stage::Scan => "scan",
        Stage::Write => "write",
        Stage::Compress => "compress",
        Stage::Tree => "tree",
    }
}

fn position(progress: &Progress) -> u64 {
    let (done, total) = match progress.read_total {
        0 => (progress.entry_count, progress.entry_total),
        total => (progress.read_len, total),
    };
    share(done, total)
}

/// Position in the bar for `done` of `total`; 0 if the total is unknown.
pub fn share(done: u64, total: u64) -> u64 {
    if total == 0 {
        0
    } else {
        (done as f64 / total as f64 * BAR_STEPS as f64) as u64
    }
}

/// `1,234/5,678 entries, 1.2 GiB of 3.4 GiB or more, 123.0 MiB/s`. There is no remaining time,
/// because the total counts shared contents once.
fn describe_extraction(progress: &ExtractProgress, elapsed: Duration) -> String {
    let entries = match progress.entry_total {
        Some(total) => format!("{}/{}", count(progress.entry_count), count(total)),
        None => count(progress.entry_count),
    };
    let done = bytes(progress.content_len);
    let len_min = progress.content_len_min.unwrap_or(0);
    let content = if len_min > progress.content_len {
        format!("{done} of {} or more", bytes(len_min))
    } else {
        done
    };
    let mut text = format!("{entries} entries, {content}");
    let seconds = elapsed.as_secs_f64();
    if progress.content_len > 0 && seconds > 0.2 {
        let rate = progress.content_len as f64 / seconds;
        text.push_str(&format!(", {}/s", bytes(rate as u64)));
    }
    text
}

/// `1,234/5,678 files, 1.2 of 3.4 GiB, 123 MiB/s in, 27 MiB/s out, ratio 4.56, memory 240 MiB, 12 s
/// left`.
fn describe(progress: &Progress, elapsed: Duration, memory_len: Option<u64>) -> String {
    let Progress {
        entry_count,
        entry_total,
        read_len,
        read_total,
        written_len,
        ..
    } = *progress;
    if progress.stage == Stage::Scan {
        return format!(
            "{} entries, {}",
            count(entry_count),
            bytes(read_len.max(read_total))
        );
    }
    let mut parts = vec![format!(
        "{}/{} files",
        count(entry_count),
        count(entry_total)
    )];
    if read_total > 0 {
        parts.push(format!("{} of {}", bytes(read_len), bytes(read_total)));
    }
    let seconds = elapsed.as_secs_f64();
    if read_len > 0 && seconds > 0.2 {
        let rate = read_len as f64 / seconds;
        let written_rate = written_len as f64 / seconds;
        parts.push(format!("{}/s in", bytes(rate as u64)));
        // The first bytes are the superblock.
        if written_len >= WRITTEN_LEN_MIN {
            parts.push(format!("{}/s out", bytes(written_rate as u64)));
            parts.push(format!("ratio {:.2}", read_len as f64 / written_len as f64));
        }
        parts.extend(memory_len.map(|len| format!("memory {}", bytes(len))));
        let remaining = read_total.saturating_sub(read_len) as f64 / rate;
        if remaining >= 1.0 {
            parts.push(format!("{} left", duration(remaining as u64)));
        }
    }
    parts.join(", ")
}

/// `1:02:03`, `2:03` or `3 s`.
pub fn duration(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest} s"),
        (0, minutes) => format!("{minutes}:{rest:02}"),
        (hours, minutes) => format!("{hours}:{minutes:02}:{rest:02}"),
    }
}

/// Formats a number with a comma between thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a length with a suitable unit (powers of 1024).
pub fn bytes(len: u64) -> String {
    let mut value = len as f64;
    let mut unit = "B";
    for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" {
        format!("{len} B")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// The last lines of a check: `what` was checked, bytes of data that were `verified` (if any), and
/// the `hint` if there were findings.
pub fn verdict(what: &str, verified: Option<u64>, finding_count: usize, hint: &str) -> String {
    let verified = match verified {
        Some(len) => format!("; read and verified {}", bytes(len)),
        None => "; contents were not read (--data does that)".to_owned(),
    };
    match finding_count as u64 {
        0 => format!("clean: {what}{verified}\n"),
        found => format!(
            "not clean: {} findings; {what}{verified}\n{hint}",
            count(found)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1234567), "1,234,567");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(duration(59), "59 s");
        assert_eq!(duration(3723), "1:02:03");
    }

    #[test]
    fn a_progress_line_shows_counts_and_rates() {
        let progress = Progress {
            stage: Stage::Write,
            entry_count: 1000,
            entry_total: 4000,
            read_len: 100 << 20,
            read_total: 400 << 20,
            written_len: 25 << 20,
        };
        let text = describe(&progress, Duration::from_secs(2), Some(200 << 20));
        assert_eq!(
            text,
            "1,000/4,000 files, 100.0 MiB of 400.0 MiB, 50.0 MiB/s in, 12.5 MiB/s out, ratio 4.00, \
             memory 200.0 MiB, 6 s left"
        );
        assert_eq!(position(&progress), BAR_STEPS / 4);
        // A superblock alone says nothing of the ratio, and less than a second is not 0 s.
        let early = Progress {
            read_len: 399 << 20,
            written_len: 64,
            ..progress
        };
        assert_eq!(
            describe(&early, Duration::from_secs(2), None),
            "1,000/4,000 files, 399.0 MiB of 400.0 MiB, 199.5 MiB/s in"
        );
    }

    // Would catch totals that are shown before they are known, or as exact although files share
    // contents.
    #[test]
    fn an_extraction_shows_only_known_totals() {
        let after =
            |progress: &ExtractProgress| describe_extraction(progress, Duration::from_secs(2));
        let mut progress = ExtractProgress {
            entry_count: 1000,
            entry_total: Some(4000),
            content_len: 100 << 20,
            content_len_min: Some(400 << 20),
        };
        assert_eq!(
            after(&progress),
            "1,000/4,000 entries, 100.0 MiB of 400.0 MiB or more, 50.0 MiB/s"
        );
        progress.content_len = 500 << 20;
        assert_eq!(
            after(&progress),
            "1,000/4,000 entries, 500.0 MiB, 250.0 MiB/s"
        );
        (progress.entry_total, progress.content_len_min) = (None, None);
        assert_eq!(after(&progress), "1,000 entries, 500.0 MiB, 250.0 MiB/s");
    }
}
