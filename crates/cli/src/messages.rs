//! Messages on standard error: one line `weald: what: why`; with `-v` the chain of causes.
//!
//! Every message goes through [`line()`] or [`usage`], which escape control characters and
//! bidirectional controls, whatever they came from: names in images and streams, paths of the host,
//! scripts, the answers of a server.

use crate::foreign::Foreign;
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
    let mut texts = describe(causes, is_verbose());
    if let Some(foreign) = error.downcast_ref::<Foreign>().filter(|_| is_verbose()) {
        texts.push(format!("because: {}", foreign.cause()));
    }
    lines(program, &texts);
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

/// An error and its causes on one line, with technical details if `-v` asks for them.
pub fn one_line(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = causes_of(error);
    match is_verbose() {
        true => causes.join(": "),
        false => describe(causes, false).concat(),
    }
}

/// A text of a library, with technical details if `-v` asks for them.
pub fn detailed(text: &str) -> String {
    match is_verbose() {
        true => text.to_owned(),
        false => plain(text),
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

/// One line of all causes, each once and in plain words; with `is_verbose` each cause again, on a
/// line of its own with its technical details.
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
    let line: Vec<String> = told.iter().map(|cause| plain(cause)).collect();
    let mut lines = vec![line.join(": ")];
    if is_verbose {
        let causes = told.iter().zip(&line).enumerate();
        let told_only_now = causes.filter(|(index, (cause, plain))| *index > 0 || cause != plain);
        lines.extend(told_only_now.map(|(_, (cause, _))| format!("because: {cause}")));
    }
    lines
}

/// Digits of a digest that are shown without `-v`.
const DIGEST_DIGITS: usize = 12;

/// The same text without digests, byte offsets and rule ids: those are for bug reports.
///
/// Texts of [`weald_format::Error`] end in ` (RECORD at byte N, rule ID)` for damaged bytes, also
/// where a server sent the text or another one quotes it.
pub fn plain(text: &str) -> String {
    let (text, record) = match without_place(text) {
        Some((text, record)) => (text, Some(record)),
        None => (text, None),
    };
    let text = text.split(": magic is [").next().unwrap_or(text);
    let mut pieces: Vec<&str> = text.split(": ").collect();
    // A path that two libraries put in front.
    pieces.dedup();
    let damage = pieces.iter().position(|piece| is_technical(piece));
    if let (Some(record), Some(at)) = (record, damage) {
        let what = format!("the image is damaged ({record})");
        let context = pieces.get(..at).unwrap_or_default();
        return [context, &[what.as_str()]].concat().join(": ");
    }
    let pieces: Vec<String> = pieces.into_iter().map(plain_piece).collect();
    pieces.join(": ")
}

/// The text before the place of damaged bytes, and the record there.
fn without_place(text: &str) -> Option<(&str, &str)> {
    let (before, place) = text.strip_suffix(')')?.rsplit_once(" (")?;
    let (record, rest) = place.split_once(" at byte ")?;
    rest.contains(", rule ").then_some((before, record))
}

/// Whether a piece of the text of damaged bytes says only which bytes differ from which.
fn is_technical(piece: &str) -> bool {
    let begins = [
        "expected ",
        "checksum differs",
        "digest",
        "record header differs",
    ];
    begins.iter().any(|begin| piece.starts_with(begin))
}

/// A piece without the offset of an operation, and with the front of a digest.
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

    /// Would catch: an error of the libraries whose details this module no longer finds, and one
    /// that loses what it says beside them.
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
