//! How a build is shown while it runs: a bar on a terminal, lines elsewhere.

use crate::commands::build::ProgressWord;
use crate::messages;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weald_build::{Problem, Progress, Stage, Watch};

/// Time between two lines where there is no bar.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Steps of a bar without a known length of work.
const BAR_STEPS: u64 = 1000;

/// Shows a build, and stops it when the flag is raised.
pub struct Display {
    is_cancelled: Arc<AtomicBool>,
    bar: Option<ProgressBar>,
    shows_lines: bool,
    clock: Mutex<Clock>,
}

/// When the stage began and the last line was shown.
struct Clock {
    stage: Stage,
    stage_start: Instant,
    last_line: Instant,
}

impl Display {
    /// A display as `word` says, for standard error.
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
            stage: Stage::Scan,
            stage_start: now,
            last_line: now,
        });
        Self {
            is_cancelled,
            bar: has_bar.then(new_bar),
            shows_lines,
            clock,
        }
    }

    /// Clears the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Time since the stage began, and whether a line is due.
    fn tick(&self, stage: Stage) -> (Duration, bool) {
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if clock.stage != stage {
            (clock.stage, clock.stage_start) = (stage, now);
        }
        let is_due = now.duration_since(clock.last_line) >= LINE_INTERVAL;
        if is_due {
            clock.last_line = now;
        }
        (now.duration_since(clock.stage_start), is_due)
    }
}

impl Watch for Display {
    fn progress(&self, progress: &Progress) {
        let (elapsed, is_due) = self.tick(progress.stage);
        let words = stage_word(progress.stage);
        if let Some(bar) = &self.bar {
            bar.set_prefix(words);
            bar.set_position(position(progress));
            bar.set_message(describe(progress, elapsed));
        } else if self.shows_lines && is_due {
            messages::line(&format!("{words}: {}", describe(progress, elapsed)));
        }
    }

    fn problem(&self, problem: &Problem) {
        let show = || {
            messages::line(&format!(
                "{}: {}",
                weald_vfs::shown_path(&problem.path),
                messages::without_errno(&problem.what)
            ))
        };
        match &self.bar {
            Some(bar) => bar.suspend(show),
            None => show(),
        }
    }

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

fn new_bar() -> ProgressBar {
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
        Stage::Tree => "tree",
    }
}

fn position(progress: &Progress) -> u64 {
    let (done, total) = match progress.read_total {
        0 => (progress.entry_count, progress.entry_total),
        total => (progress.read_len, total),
    };
    if total == 0 {
        0
    } else {
        (done as f64 / total as f64 * BAR_STEPS as f64) as u64
    }
}

/// `1,234/5,678 files, 1.2/3.4 GiB, 123 MiB/s, ratio 4.56, 12 s left`.
fn describe(progress: &Progress, elapsed: Duration) -> String {
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
        parts.push(format!("{}/s", bytes(rate as u64)));
        if written_len > 0 {
            parts.push(format!("ratio {:.2}", read_len as f64 / written_len as f64));
        }
        let left = read_total.saturating_sub(read_len) as f64 / rate;
        parts.push(format!("{} left", duration(left as u64)));
    }
    parts.join(", ")
}

/// `1:02:03`, `2:03` or `3 s`.
fn duration(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest} s"),
        (0, minutes) => format!("{minutes}:{rest:02}"),
        (hours, minutes) => format!("{hours}:{minutes:02}:{rest:02}"),
    }
}

/// A number with its thousands apart.
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

/// A length with the unit that suits it (powers of 1024).
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
    fn a_line_says_how_far_it_is() {
        let progress = Progress {
            stage: Stage::Write,
            entry_count: 1000,
            entry_total: 4000,
            read_len: 100 << 20,
            read_total: 400 << 20,
            written_len: 25 << 20,
        };
        let text = describe(&progress, Duration::from_secs(2));
        assert_eq!(
            text,
            "1,000/4,000 files, 100.0 MiB of 400.0 MiB, 50.0 MiB/s, ratio 4.00, 6 s left"
        );
        assert_eq!(position(&progress), BAR_STEPS / 4);
    }
}
