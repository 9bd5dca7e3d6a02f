//! What the user is told on stderr: one line `weald: what: why`; with `-v` the chain of causes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};

/// How often `-v` was given: 1 shows causes and what the libraries say, 2 also their details.
static VERBOSITY: AtomicU8 = AtomicU8::new(0);

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("weald")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            line(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Decides what is shown from here on.
pub fn init(verbosity: u8) {
    VERBOSITY.store(verbosity, Ordering::Relaxed);
    let level = match verbosity {
        0 => log::LevelFilter::Warn,
        1 => log::LevelFilter::Info,
        _ => log::LevelFilter::Debug,
    };
    // Fails only where a logger is set already, and then that one is as good.
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(level);
    }
}

/// Shows one line. A stderr that is gone is nobody to complain to.
pub fn line(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "weald: {text}");
}

/// Shows why a command could not be done.
pub fn error(error: &anyhow::Error) {
    line(&describe(
        error.chain().map(ToString::to_string).collect(),
        is_verbose(),
    ));
}

/// Shows what is wrong with one path.
pub fn problem(path: &[u8], error: &(dyn std::error::Error + 'static)) {
    let mut causes = vec![weald_vfs::shown_path(path)];
    causes.extend(causes_of(error));
    line(&describe(causes, is_verbose()));
}

/// An error and its causes on one line.
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    describe(causes_of(error), false)
}

fn causes_of(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect()
}

fn is_verbose() -> bool {
    VERBOSITY.load(Ordering::Relaxed) > 0
}

/// One line of all causes, each once; with `is_verbose` each cause again, on a line of its own.
fn describe(causes: Vec<String>, is_verbose: bool) -> String {
    let mut told: Vec<&str> = Vec::new();
    for cause in causes.iter().map(|cause| without_errno(cause)) {
        // What a cause quotes, or is quoted by, is not said twice.
        if told.last().is_some_and(|last| last.ends_with(cause)) {
            continue;
        }
        if told.last().is_some_and(|last| {
            cause
                .strip_prefix(last)
                .is_some_and(|rest| rest.starts_with(": "))
        }) {
            told.pop();
        }
        told.push(cause);
    }
    let mut text = told.join(": ");
    if is_verbose {
        for cause in told.iter().skip(1) {
            let _ = write!(text, "\n  because: {cause}");
        }
    }
    text
}

/// `std` appends ` (os error N)` to the system's words.
pub fn without_errno(text: &str) -> &str {
    match text.rfind(" (os error ") {
        Some(at) if text.ends_with(')') => text.get(..at).unwrap_or(text),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn one_line_says_what_and_why() {
        let chain = causes(&["a.weald", "No such file or directory (os error 2)"]);
        assert_eq!(describe(chain, false), "a.weald: No such file or directory");
    }

    #[test]
    fn a_cause_is_not_said_twice() {
        assert_eq!(
            describe(causes(&["x: bad magic", "bad magic"]), false),
            "x: bad magic"
        );
    }

    #[test]
    fn verbose_lists_the_causes() {
        assert_eq!(describe(causes(&["a", "b"]), true), "a: b\n  because: b");
    }
}
