//! Messages on standard error: one line `weald: what: why`; with `-v` the chain of causes.
//!
//! Every message goes through [`line()`] or [`usage`], which escape control characters and
//! bidirectional controls, whatever they came from: names in images and streams, paths of the host,
//! scripts, the answers of a server.

use clap::error::ContextValue;
use std::io::Write as _;
use std::process::ExitCode;
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

/// Shows one message on one line. A closed standard error is ignored.
pub fn line(text: &str) {
    lines("weald", &[text.to_owned()]);
}

/// Shows a message of `program` and the lines that explain it. This is the only place that writes
/// messages.
fn lines(program: &str, texts: &[String]) {
    let mut all = format!("{program}: ");
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            all.push_str("  ");
        }
        all.push_str(&weald_vfs::safe_line(text));
        all.push('\n');
    }
    let _ = std::io::stderr().lock().write_all(all.as_bytes());
}

/// Shows why a command failed.
pub fn error(error: &anyhow::Error) {
    error_of("weald", error);
}

/// The same in the name of another program.
pub fn error_of(program: &str, error: &anyhow::Error) {
    let causes = error.chain().map(ToString::to_string).collect();
    lines(program, &describe(causes, is_verbose()));
}

/// Answers a command line that names no work: prints help and version to standard output, and what
/// is wrong with the command line to standard error.
pub fn usage(mut error: clap::Error) -> ExitCode {
    if !error.use_stderr() {
        error.exit();
    }
    let given: Vec<_> = error
        .context()
        .map(|(kind, value)| (kind, value.clone()))
        .collect();
    for (kind, value) in given {
        let safe = match value {
            ContextValue::String(word) => ContextValue::String(safe_word(&word)),
            ContextValue::Strings(words) => {
                ContextValue::Strings(words.iter().map(|word| safe_word(word)).collect())
            }
            // Styled text has newlines of its own beside those of a word that it quotes.
            ContextValue::StyledStrs(texts) => {
                let is_safe = |text: &clap::builder::StyledStr| {
                    !text.to_string().contains(weald_vfs::is_unsafe)
                };
                ContextValue::StyledStrs(texts.into_iter().filter(is_safe).collect())
            }
            other => other,
        };
        error.insert(kind, safe);
    }
    let text = error.render().to_string();
    let text = weald_vfs::safe_text(&text);
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
    ExitCode::from(crate::FAILED)
}

fn safe_word(word: &str) -> String {
    weald_vfs::safe_line(word).into_owned()
}

/// Shows what is wrong with one path.
pub fn problem(path: &[u8], error: &(dyn std::error::Error + 'static)) {
    let mut causes = vec![weald_vfs::shown_path(path)];
    causes.extend(causes_of(error));
    lines("weald", &describe(causes, is_verbose()));
}

/// An error and its causes on one line.
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    describe(causes_of(error), false).concat()
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
fn describe(causes: Vec<String>, is_verbose: bool) -> Vec<String> {
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
    let mut lines = vec![told.join(": ")];
    if is_verbose {
        lines.extend(told.iter().skip(1).map(|cause| format!("because: {cause}")));
    }
    lines
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
        let expected = ["a.weald: No such file or directory"];
        assert_eq!(describe(chain, false), expected);
    }

    #[test]
    fn a_cause_is_not_said_twice() {
        assert_eq!(
            describe(causes(&["x: bad magic", "bad magic"]), false),
            ["x: bad magic"]
        );
    }

    #[test]
    fn verbose_lists_the_causes() {
        let expected = ["a: b", "because: b"];
        assert_eq!(describe(causes(&["a", "b"]), true), expected);
    }
}
