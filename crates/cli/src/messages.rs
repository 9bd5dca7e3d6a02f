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
        all.push_str(&weald_vfs::safe_line(text));
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

fn is_verbose() -> bool {
    VERBOSITY.load(Ordering::Relaxed) > 0
}

/// Joins all causes on one line, each once and without technical details. With `is_verbose`, a line
/// follows for each cause, with its technical details.
fn describe(causes: Vec<String>, is_verbose: bool) -> Vec<String> {
    let mut shown_causes: Vec<&str> = Vec::new();
    for cause in causes.iter().map(|cause| without_errno(cause)) {
        // Skip a cause that the text before quotes, or that quotes the text before.
        if shown_causes
            .last()
            .is_some_and(|last| last.ends_with(cause))
        {
            continue;
        }
        if shown_causes.last().is_some_and(|last| {
            cause
                .strip_prefix(last)
                .is_some_and(|rest| rest.starts_with(": "))
        }) {
            shown_causes.pop();
        }
        shown_causes.push(cause);
    }
    let line: Vec<String> = shown_causes.iter().map(|cause| plain(cause)).collect();
    let mut lines = vec![line.join(": ")];
    if is_verbose {
        let causes = shown_causes.iter().zip(&line).enumerate();
        let detailed_causes = causes.filter(|(index, (cause, plain))| *index > 0 || cause != plain);
        lines.extend(detailed_causes.map(|(_, (cause, _))| format!("because: {cause}")));
    }
    lines
}

/// Number of digits of a digest that are shown without `-v`.
const DIGEST_DIGITS: usize = 12;

/// Records that are part of a store, and of no image.
const STORE_RECORDS: &[&str] = &[
    "store superblock",
    "store metadata",
    "segment superblock",
    "segment",
    "note header",
    "note",
    "block row",
    "segment row",
    "image row",
    "row group",
    "sync log",
];

/// Removes digests, byte offsets and rule ids from `text`; only bug reports need them.
///
/// For damaged bytes, a text of [`weald_format::Error`] ends in ` (RECORD at byte N, rule ID)`. The
/// same holds if a server sent the text or another text quotes it.
pub fn plain(text: &str) -> String {
    let (text, record) = match without_place(text) {
        Some((text, record)) => (text, Some(record)),
        None => (text, None),
    };
    let text = text.split(": magic is [").next().unwrap_or(text);
    let mut pieces: Vec<&str> = text.split(": ").collect();
    // Two libraries may have added the same path.
    pieces.dedup();
    let damage = pieces.iter().position(|piece| is_technical(piece));
    if let (Some(record), Some(at)) = (record, damage) {
        let thing = if STORE_RECORDS.contains(&record) {
            "store"
        } else {
            "image"
        };
        let what = format!("the {thing} is damaged ({record})");
        let context = pieces.get(..at).unwrap_or_default();
        return [context, &[what.as_str()]].concat().join(": ");
    }
    let pieces: Vec<String> = pieces.into_iter().map(plain_piece).collect();
    pieces.join(": ")
}

/// Splits a text about damaged bytes: the text before the place, and the name of the record.
fn without_place(text: &str) -> Option<(&str, &str)> {
    let (before, place) = text.strip_suffix(')')?.rsplit_once(" (")?;
    let (record, rest) = place.split_once(" at byte ")?;
    rest.contains(", rule ").then_some((before, record))
}

/// Whether a piece of a text about damaged bytes only compares bytes or digests.
fn is_technical(piece: &str) -> bool {
    let begins = [
        "expected ",
        "checksum differs",
        "digest",
        "record header differs",
    ];
    begins.iter().any(|begin| piece.starts_with(begin))
}

/// Removes the offset of an operation from a piece, and shortens a digest.
fn plain_piece(piece: &str) -> String {
    let is_offset = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    let operation = piece
        .rsplit_once(" at ")
        .filter(|(_, rest)| is_offset(rest));
    if let Some((operation, _)) = operation {
        let word = operation.split(' ').next().unwrap_or_default();
        if ["read", "write"].contains(&word) {
            return format!("{word} error");
        }
    }
    let is_hex = |c: char| c.is_ascii_hexdigit();
    let words = piece.split_inclusive(|c| !is_hex(c)).map(|word| {
        let digits = word.trim_end_matches(|c| !is_hex(c));
        match (digits.len() == 64, digits.get(..DIGEST_DIGITS)) {
            (true, Some(front)) => format!("{front}…{}", &word[digits.len()..]),
            _ => word.to_owned(),
        }
    });
    words.collect()
}

/// Removes ` (os error N)`, which `std` appends to the message of the system.
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
    fn one_line_has_the_operation_and_the_cause() {
        let chain = causes(&["a.weald", "No such file or directory (os error 2)"]);
        let expected = ["a.weald: No such file or directory"];
        assert_eq!(describe(chain, false), expected);
    }

    #[test]
    fn a_repeated_cause_is_shown_once() {
        assert_eq!(
            describe(causes(&["x: bad magic", "bad magic"]), false),
            ["x: bad magic"]
        );
    }

    /// Would catch: an error text whose technical details are no longer recognised, and one whose
    /// other words are removed.
    #[test]
    fn technical_details_are_for_verbose_messages() {
        let corrupt = |what: &'static str| {
            let error = weald_format::Error::corrupt("footer", 77, "F-4.3", what);
            error.context("a.weald").to_string()
        };
        let damaged = "a.weald: the image is damaged (footer)";
        for what in [
            "checksum differs",
            "expected 3 bytes, found 2",
            "digest: expected a",
        ] {
            assert_eq!(describe(vec![corrupt(what)], false), [damaged], "{what}");
            let verbose = describe(vec![corrupt(what)], true);
            let because = format!("because: a.weald: {what} (footer at byte 77, rule F-4.3)");
            assert_eq!(verbose, [damaged.to_owned(), because]);
        }
        assert_eq!(plain(&corrupt("no footer")), "a.weald: no footer");
        let digest = "0123456789abcdef".repeat(4);
        let text = format!("a: expected {digest}, found {digest}");
        assert_eq!(
            plain(&text),
            "a: expected 0123456789ab…, found 0123456789ab…"
        );
        assert_eq!(
            plain("a: read of 64 bytes at 0: denied"),
            "a: read error: denied"
        );
        assert_eq!(plain("a: look at 5"), "a: look at 5");
    }

    #[test]
    fn verbose_lists_the_causes() {
        let expected = ["a: b", "because: b"];
        assert_eq!(describe(causes(&["a", "b"]), true), expected);
    }
}
