//! Progress of commands that read images: how many bytes were decoded so far.

use crate::messages;
use crate::progress::{bytes, new_bar, share};
use clap::{Args, ValueEnum};
use std::io::IsTerminal;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weald_image::Image;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Time between two lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Form of the progress display.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// A bar if standard error is a terminal
    Auto,
    /// A bar
    Bar,
    /// One line every five seconds
    Lines,
    /// No progress
    None,
}

/// How progress is shown.
#[derive(Args, Debug)]
pub struct ReadingArgs {
    /// How to show progress on standard error
    #[arg(long, value_enum, default_value = "auto", hide_short_help = true)]
    progress: Word,
}

impl ReadingArgs {
    /// Runs `work`, and shows meanwhile, under the name `what`, how much of `images` was decoded.
    /// Lists on the terminal are progress enough: `lists` says that the command writes one.
    pub fn during<T>(
        &self,
        what: &'static str,
        images: &[&Image],
        lists: bool,
        work: impl FnOnce() -> T,
    ) -> T {
        let is_beside_list = lists && std::io::stdout().is_terminal();
        let has_bar = match self.progress {
            Word::Auto => std::io::stderr().is_terminal() && !is_beside_list,
            Word::Bar => true,
            Word::Lines | Word::None => false,
        };
        if !has_bar && self.progress != Word::Lines {
            return work();
        }
        let (is_over, ended) = (Mutex::new(false), Condvar::new());
        let reading = Reading {
            what,
            images,
            start: Instant::now(),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| reading.show(has_bar, &is_over, &ended));
            // Also if `work` panics.
            let _end = End(&is_over, &ended);
            work()
        })
    }
}

/// Ends the display.
struct End<'a>(&'a Mutex<bool>, &'a Condvar);

impl Drop for End<'_> {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.1.notify_all();
    }
}

struct Reading<'a> {
    what: &'static str,
    images: &'a [&'a Image],
    start: Instant,
}

impl Reading<'_> {
    fn show(&self, has_bar: bool, is_over: &Mutex<bool>, ended: &Condvar) {
        let bar = has_bar.then(new_bar);
        if let Some(bar) = &bar {
            bar.set_prefix(self.what);
        }
        let mut last_line = Instant::now();
        let mut over = is_over.lock().unwrap_or_else(PoisonError::into_inner);
        while !*over {
            let waited = ended.wait_timeout(over, INTERVAL);
            over = waited.unwrap_or_else(PoisonError::into_inner).0;
            let (done, most) = self.lens();
            if let Some(bar) = &bar {
                bar.set_position(share(done, most));
                bar.set_message(self.text(done, most));
            } else if last_line.elapsed() >= LINE_INTERVAL {
                last_line = Instant::now();
                messages::line(&format!("{}: {}", self.what, self.text(done, most)));
            }
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
    }

    /// Bytes decoded, and most that can be: repeats are decoded once, and what differs in size is
    /// not read.
    fn lens(&self) -> (u64, u64) {
        let add = |sum: (u64, u64), image: &&Image| {
            let done = image.decoded_len().0;
            let most = image.summary().content_len;
            (sum.0.saturating_add(done), sum.1.saturating_add(most))
        };
        self.images.iter().fold((0, 0), add)
    }

    /// `1.2 GiB of 3.4 GiB or less, 123.0 MiB/s`.
    fn text(&self, done: u64, most: u64) -> String {
        let mut text = format!("{} of {} or less", bytes(done), bytes(most.max(done)));
        let seconds = self.start.elapsed().as_secs_f64();
        if done > 0 && seconds > 0.2 {
            text.push_str(&format!(", {}/s", bytes((done as f64 / seconds) as u64)));
        }
        text
    }
}
