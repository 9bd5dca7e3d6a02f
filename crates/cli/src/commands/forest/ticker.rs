//! Shows progress once a second: counts, rates, remaining time.

use crate::interrupt::interrupt_flag;
use crate::messages;
use crate::progress::{bytes, count, duration};
use anyhow::Context;
use indicatif::ProgressBar;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use weald_forest::{Forest, Progress};

/// Interval between two updates.
const INTERVAL: Duration = Duration::from_secs(1);

/// A thread that shows the progress.
pub struct Ticker {
    progress: Arc<Progress>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    bar: Option<ProgressBar>,
}

impl Ticker {
    /// Shows the progress of `words` for `forest`, unless `is_quiet`. A signal cancels the work.
    pub fn start(words: &'static str, forest: &Forest, is_quiet: bool) -> anyhow::Result<Self> {
        let progress = Arc::new(Progress::default());
        let is_over = Arc::new(AtomicBool::new(false));
        let is_interrupted = interrupt_flag()?;
        let bar = (!is_quiet && std::io::stderr().is_terminal()).then(ProgressBar::new_spinner);
        let (leaf_count, files) = (forest.leaf_count(), forest.files_per_leaf());
        let thread = std::thread::Builder::new()
            .spawn({
                let (progress, is_over, bar) = (progress.clone(), is_over.clone(), bar.clone());
                move || {
                    let start = Instant::now();
                    let mut shown = start;
                    while !is_over.load(Ordering::Relaxed) {
                        std::thread::park_timeout(Duration::from_millis(50));
                        if is_interrupted.load(Ordering::Relaxed) {
                            progress.is_cancelled.store(true, Ordering::Relaxed);
                        }
                        if !is_quiet && shown.elapsed() >= INTERVAL {
                            shown = Instant::now();
                            let text = describe(&progress, leaf_count, files, start.elapsed());
                            match &bar {
                                Some(bar) => bar.set_message(format!("{words}: {text}")),
                                None => messages::line(&format!("{words}: {text}")),
                            }
                        }
                    }
                }
            })
            .context("starting a thread")?;
        Ok(Self {
            progress,
            is_over,
            thread,
            bar,
        })
    }

    /// Counters that the work updates.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Writes a line above the progress.
    pub fn print_above_bar(&self, show: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(show),
            None => show(),
        }
    }

    /// Ends the thread; returns the number of entries.
    pub fn finish(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // If the thread panicked, there is nothing more to show.
        let _ = self.thread.join();
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.progress.entries.load(Ordering::Relaxed)
    }
}

/// `1,000,000 entries, 123,456/s, 1.2 GiB, 45% of the directories, 12 s left`.
fn describe(progress: &Progress, leaf_count: u64, files: u64, elapsed: Duration) -> String {
    let entries = progress.entries.load(Ordering::Relaxed);
    let leaves = progress.leaves.load(Ordering::Relaxed);
    let rate = entries as f64 / elapsed.as_secs_f64();
    let mut parts = vec![
        format!("{} entries", count(entries)),
        format!("{}/s", count(rate as u64)),
    ];
    let len = progress.bytes.load(Ordering::Relaxed);
    if len > 0 {
        parts.push(bytes(len));
    }
    parts.push(format!("{:.1}%", leaves as f64 / leaf_count as f64 * 100.0));
    if entries > 0 {
        let remaining = leaf_count.saturating_sub(leaves) as f64 * files as f64 / rate;
        parts.push(format!("{} left", duration(remaining as u64)));
    }
    parts.join(", ")
}
