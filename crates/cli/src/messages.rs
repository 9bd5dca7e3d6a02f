//! Messages on standard error: one line `weald: what: why`; with `-v` also the chain of causes.
//!
//! Every message goes through [`line()`] or [`usage`], which escape control characters and
//! bidirectional controls. These may come from names in images and streams, paths of the host,
//! scripts, or answers of a server.

use crate::foreign::Foreign;
use clap::error::ContextValue;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, Ordering};
use weald_vfs::error_text::{describe, plain};

/// Number of `-v` options: 1 shows causes and warnings of the libraries, 2 also their details.
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

/// Sets the verbosity and installs the logger.
pub fn init(verbosity: u8) {
    VERBOSITY.store(verbosity, Ordering::Relaxed);
    let level = match verbosity {
        0 => log::LevelFilter::Warn,
        1 => log::LevelFilter::Info,
        _ => log::LevelFilter::Debug,
    };
    // This fails only if a logger is installed already, which is then used.
    if log::set_logger(&Logger).is_ok() {
        log::set_max_level(level);
    }
}

/// Writes one message as one line. Errors of standard error are ignored.
pub fn line(text: &str) {
    lines("weald", &[text.to_owned()]);
}

/// Writes a message of `program` and the lines that explain it. All messages are written here.
fn lines(program: &str, texts: &[String]) {
    let mut all = format!("{program}: ");
    for (index, text) in texts.iter().enumerate() {
        if index > 0 {
            all.push_str("  ");
        }
        let text = weald_remote::without_secrets(text);
        all.push_str(&weald_vfs::safe_line(&text));
        all.push('\n');
    }
    let _ = std::io::stderr().lock().write_all(all.as_bytes());
}

/// Writes the lines of a table to standard error, as they are but for control characters.
pub fn table(text: &str) {
    let mut all = String::with_capacity(text.len());
    for line in text.lines() {
        all.push_str(&weald_vfs::safe_line(line));
        all.push('\n');
    }
    let _ = std::io::stderr().lock().write_all(all.as_bytes());
}

/// Reports the error of a command.
pub fn error(error: &anyhow::Error) {
    error_of("weald", error);
}

/// Reports the error in the name of `program`.
pub fn error_of(program: &str, error: &anyhow::Error) {
    let causes = error.chain().map(ToString::to_string).collect();
    let mut texts = describe(causes, is_verbose());
    if let Some(foreign) = error.downcast_ref::<Foreign>().filter(|_| is_verbose()) {
        texts.push(format!("because: {}", foreign.cause()));
    }
    lines(program, &texts);
}

/// Handles a command line without a valid command: writes help and version to standard output,
/// errors to standard error.
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
            // Styled text keeps its newlines, except in a word that it quotes.
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
    ExitCode::from(crate::status::FAILED)
}

fn safe_word(word: &str) -> String {
    weald_vfs::safe_line(word).into_owned()
}

/// Reports a problem with one path.
pub fn problem(path: &[u8], error: &(dyn std::error::Error + 'static)) {
    let mut causes = vec![weald_vfs::shown_path(path)];
    causes.extend(causes_of(error));
    lines("weald", &describe(causes, is_verbose()));
}

/// An error and its causes on one line; with technical details if `-v` was given.
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = causes_of(error);
    if is_verbose() {
        causes.join(": ")
    } else {
        describe(causes, false).concat()
    }
}

/// A text of a library; with technical details if `-v` was given.
pub fn detailed(text: &str) -> String {
    if is_verbose() {
        text.to_owned()
    } else {
        plain(text)
    }
}

fn causes_of(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect()
}

/// Whether the user asked for more (`-v`).
pub fn is_verbose() -> bool {
    VERBOSITY.load(Ordering::Relaxed) > 0
}
