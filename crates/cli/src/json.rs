//! JSON output for programs, one object per line.
//!
//! A name or path that is not UTF-8 is written twice: `"path"` has U+FFFD for invalid bytes, and
//! `"path_hex"` has all bytes in hexadecimal. Control characters and bidirectional controls are
//! written as `\u` escapes, so that a terminal shows the JSON text unchanged; a parser returns the
//! same strings. A time is given as seconds since 1970 in `"mtime"` and nanoseconds of that second
//! in `"mtime_nsec"`. A single number of nanoseconds would lose digits in parsers that read numbers
//! as 64-bit floats.

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::io;
use weald_format::Timestamp;
use weald_format::label::Label;

/// A JSON object.
pub type Object = Map<String, Value>;

/// Writes one value and a newline.
///
/// # Errors
/// The errors of `out`.
pub fn write_line(out: &mut impl io::Write, value: &Value) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(&mut *out, SafeFormatter))?;
    out.write_all(b"\n")
}

/// Formats compact JSON and escapes all characters that a terminal interprets. (serde_json escapes
/// only the C0 controls.)
struct SafeFormatter;

impl Formatter for SafeFormatter {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(weald_vfs::is_unsafe) {
            let (plain, tail) = rest.split_at(at);
            out.write_all(plain.as_bytes())?;
            let mut chars = tail.chars();
            if let Some(c) = chars.next() {
                // Four digits suffice: all unsafe characters are below U+10000.
                write!(out, "\\u{:04x}", u32::from(c))?;
            }
            rest = chars.as_str();
        }
        out.write_all(rest.as_bytes())
    }
}

/// An object with these numbers.
pub fn numbers(numbers: &[(&str, u64)]) -> Object {
    let numbers = numbers.iter();
    numbers
        .map(|&(key, number)| (key.to_owned(), number.into()))
        .collect()
}

/// Adds a name, which may have any bytes.
pub fn put_name(object: &mut Object, key: &str, name: &[u8]) {
    object.insert(key.to_owned(), String::from_utf8_lossy(name).into());
    if std::str::from_utf8(name).is_err() {
        object.insert(format!("{key}_hex"), hex(name).into());
    }
}

/// Adds a time.
pub fn put_time(object: &mut Object, key: &str, time: Timestamp) {
    object.insert(key.to_owned(), time.seconds.into());
    object.insert(format!("{key}_nsec"), time.nanoseconds.into());
}

/// Encodes each byte as two hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Puts the label of a generation: null if it has none.
pub fn put_label(object: &mut Object, label: &Label) {
    let text = (!label.is_empty()).then(|| label.as_str());
    object.insert("label".into(), text.into());
}

/// Puts the comment of a generation, null if it has none, and the command lines that made it, null
/// if they are not kept.
pub fn put_remarks(object: &mut Object, label: &Label) {
    let comment = (!label.comment().is_empty()).then(|| label.comment());
    object.insert("comment".into(), comment.into());
    let lines: Vec<&str> = label.command_lines().collect();
    let lines = (!lines.is_empty()).then_some(lines);
    object.insert("history".into(), lines.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: an unescaped character that a terminal interprets, and JSON that parses to
    /// another string.
    #[test]
    fn no_control_character_is_written_raw() {
        let every: String = ('\0'..='\u{ffff}')
            .filter(|&c| weald_vfs::is_unsafe(c))
            .collect();
        assert!(every.contains('\u{9b}') && every.contains('\u{202e}') && every.len() > 100);
        let value = Value::from(format!("\"a{every}\\é"));
        let mut out = Vec::new();
        write_line(&mut out, &value).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(weald_vfs::is_unsafe), "{line}");
        assert_eq!(serde_json::from_str::<Value>(line).unwrap(), value);
        assert!(line.contains("\\u009b") && line.contains("\\u202e") && line.contains("é"));
    }

    #[test]
    fn names_of_any_bytes_survive() {
        let mut object = Object::new();
        put_name(&mut object, "path", b"caf\xe9");
        assert_eq!(
            Value::from(object).to_string(),
            r#"{"path":"caf�","path_hex":"636166e9"}"#
        );
    }
}
