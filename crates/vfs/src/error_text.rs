//! Texts of errors for a user: one line with each cause once, without the technical details that
//! only bug reports need.

/// Joins all causes on one line, each once and without technical details. With `is_verbose`, a line
/// follows for each cause, with its technical details.
pub fn describe(causes: Vec<String>, is_verbose: bool) -> Vec<String> {
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
