//! What a user says of a generation: a label, which is a line of a listing, and, if they are
//! wanted, a longer comment and the command lines that made it.

use crate::cursor::{Cursor, put_varint};
use crate::limits::{COMMAND_LINES_LEN_MAX, COMMENT_LEN_MAX, LABEL_LEN_MAX};
use crate::{Error, Result};
use std::fmt::{Display, Formatter};

/// Rules that a wrong label breaks, and wrong texts behind it.
const LABEL_RULE: &str = "F-36.1";
const PRESENCE_RULE: &str = "F-37.1";
const TEXT_RULE: &str = "F-37.2";

/// A text of 1 to 200 bytes of UTF-8 without control characters, or none: the default. A comment
/// and command lines, which may be missing, stand behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Label {
    text: String,
    comment: String,
    command_lines: String,
}

impl Label {
    /// The label `text`, without a comment.
    ///
    /// # Errors
    /// `Invalid` for an empty text, one that is too long, and one with control characters.
    pub fn new(text: &str) -> Result<Self> {
        match label_fault(text) {
            Some(fault) => Err(Error::invalid(format!("label: {fault}"))),
            None => Ok(Self {
                text: text.to_owned(),
                ..Self::default()
            }),
        }
    }

    /// The same with the comment `text`.
    ///
    /// # Errors
    /// `Invalid` for an empty text, one that is too long, and one with control characters other
    /// than newlines.
    pub fn with_comment(self, text: &str) -> Result<Self> {
        match text_fault(text, COMMENT_LEN_MAX) {
            Some(fault) => Err(Error::invalid(format!("comment: {fault}"))),
            None if text.is_empty() => Err(Error::invalid("comment: expected a text")),
            None => Ok(Self {
                comment: text.to_owned(),
                ..self
            }),
        }
    }

    /// The same with one more command line. The oldest lines go if there is no room for all.
    ///
    /// # Errors
    /// `Invalid` for a line that is too long, or has control characters.
    pub fn with_command_line(self, line: &str) -> Result<Self> {
        let has_newline = line.contains('\n');
        let fault = text_fault(line, COMMAND_LINES_LEN_MAX);
        let fault = fault.or_else(|| has_newline.then(|| "expected one line".to_owned()));
        if let Some(fault) = fault {
            return Err(Error::invalid(format!("the command line: {fault}")));
        }
        let mut room = COMMAND_LINES_LEN_MAX.saturating_add(1);
        let fits = |line: &&str| {
            let rest = room.checked_sub(line.len().saturating_add(1));
            room = rest.unwrap_or(0);
            rest.is_some()
        };
        let all = self.command_lines.lines().chain([line]);
        let mut lines: Vec<&str> = all.rev().take_while(fits).collect();
        lines.reverse();
        Ok(Self {
            command_lines: lines.join("\n"),
            ..self
        })
    }

    /// This label, and what it lacks from `before`.
    #[must_use]
    pub fn over(self, before: &Self) -> Self {
        let or = |own: String, other: &str| {
            if own.is_empty() {
                other.to_owned()
            } else {
                own
            }
        };
        Self {
            text: or(self.text, &before.text),
            comment: or(self.comment, &before.comment),
            command_lines: or(self.command_lines, &before.command_lines),
        }
    }

    /// Reads what stands at the end of a directory.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let mut label = Self::default();
        if cursor.remaining() == 0 {
            return Ok(label);
        }
        let len = cursor.count(LABEL_LEN_MAX, "bytes of the label")?;
        if len > 0 || cursor.remaining() == 0 {
            label.text = utf8(cursor.bytes(len)?, LABEL_RULE)?;
            if let Some(fault) = label_fault(&label.text) {
                return Err(bad(LABEL_RULE, format!("label: {fault}")));
            }
        }
        if cursor.remaining() == 0 {
            return Ok(label);
        }
        label.comment = read_text(cursor, COMMENT_LEN_MAX, "bytes of the comment")?;
        label.command_lines =
            read_text(cursor, COMMAND_LINES_LEN_MAX, "bytes of the command lines")?;
        if label.has_more() {
            Ok(label)
        } else {
            let what = "expected a comment or command lines, found neither";
            Err(bad(PRESENCE_RULE, what.to_owned()))
        }
    }

    /// Appends the bytes at the end of a directory.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let mut put = |text: &str| {
            put_varint(out, text.len() as u64);
            out.extend_from_slice(text.as_bytes());
        };
        if self.has_more() {
            for text in [&self.text, &self.comment, &self.command_lines] {
                put(text);
            }
        } else if !self.is_empty() {
            put(&self.text);
        }
    }

    fn has_more(&self) -> bool {
        !self.comment.is_empty() || !self.command_lines.is_empty()
    }

    /// Its text; empty if there is none.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether there is no label; there may be a comment.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// The comment; empty if there is none. It may have several lines.
    pub fn comment(&self) -> &str {
        &self.comment
    }

    /// The command lines that made the generation, the first one first; none if they are not kept.
    pub fn command_lines(&self) -> impl Iterator<Item = &str> {
        self.command_lines.lines()
    }
}

impl Display for Label {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn label_fault(text: &str) -> Option<String> {
    if text.is_empty() || text.len() > LABEL_LEN_MAX {
        let len = text.len();
        return Some(format!("expected 1 to {LABEL_LEN_MAX} bytes, found {len}"));
    }
    let is_control = text.chars().any(char::is_control);
    is_control.then(|| "expected no control characters".to_owned())
}

fn text_fault(text: &str, len_max: usize) -> Option<String> {
    if text.len() > len_max {
        let len = text.len();
        return Some(format!("expected at most {len_max} bytes, found {len}"));
    }
    let mut controls = text.chars().filter(|c| c.is_control());
    let is_bad = controls.any(|c| c != '\n');
    is_bad.then(|| "expected no control characters but newlines".to_owned())
}

fn read_text(cursor: &mut Cursor<'_>, len_max: usize, name: &'static str) -> Result<String> {
    let len = cursor.count(len_max, name)?;
    let text = utf8(cursor.bytes(len)?, TEXT_RULE)?;
    match text_fault(&text, len_max) {
        Some(fault) => Err(bad(TEXT_RULE, format!("{name}: {fault}"))),
        None => Ok(text),
    }
}

fn utf8(bytes: &[u8], rule: &'static str) -> Result<String> {
    let text = std::str::from_utf8(bytes).map(str::to_owned);
    text.map_err(|_| bad(rule, "label: expected UTF-8".to_owned()))
}

fn bad(rule: &'static str, what: String) -> Error {
    Error::corrupt("directory", 0, rule, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Label> {
        let mut cursor = Cursor::new(bytes, "directory");
        let label = Label::read(&mut cursor)?;
        cursor.finish().map(|()| label)
    }

    fn bytes_of(label: &Label) -> Vec<u8> {
        let mut out = Vec::new();
        label.put(&mut out);
        out
    }

    #[test]
    fn writer_and_reader_have_the_same_limits() {
        let (longest, longer) = ("x".repeat(LABEL_LEN_MAX), "x".repeat(LABEL_LEN_MAX + 1));
        for good in ["x", "before the upgrade", "ünï — code", &longest] {
            let label = Label::new(good).expect(good);
            assert_eq!(label.as_str(), good);
            assert_eq!(read(&bytes_of(&label)).expect(good), label);
        }
        for bad in ["", "a\nb", "tab\t", "\u{7f}", "\u{85}", &longer] {
            let written = Label::new(bad).expect_err(bad);
            assert!(written.to_string().contains("label: expected"), "{written}");
            let mut bytes = Vec::new();
            put_varint(&mut bytes, bad.len() as u64);
            bytes.extend_from_slice(bad.as_bytes());
            read(&bytes).expect_err(bad);
        }
        read(b"\x01\xff").expect_err("no UTF-8");
    }

    /// Would catch: a comment that is lost or taken for a label, two ways to write the same, and
    /// texts that steer a terminal.
    #[test]
    fn comments_and_command_lines_come_back() {
        let (plain, named) = (Label::default(), Label::new("x").unwrap());
        let both = named.clone().with_comment("two\nlines — ü").unwrap();
        let all = both.clone().with_command_line("weald build a b").unwrap();
        let only = plain.clone().with_command_line("weald build a b").unwrap();
        for label in [&plain, &named, &both, &all, &only] {
            assert_eq!(&read(&bytes_of(label)).unwrap(), label);
        }
        let again = all.clone().with_command_line("weald rewrite b c").unwrap();
        let lines: Vec<&str> = again.command_lines().collect();
        assert_eq!(lines, ["weald build a b", "weald rewrite b c"]);
        assert_eq!(
            Label::new("y").unwrap().over(&all).comment(),
            "two\nlines — ü"
        );
        let long = "x".repeat(COMMAND_LINES_LEN_MAX);
        let last = again.clone().with_command_line(&long).unwrap();
        assert_eq!(last.command_lines().collect::<Vec<_>>(), [&long]);
        for bad in ["", "\u{1b}[2J", "a\rb", &"x".repeat(COMMENT_LEN_MAX + 1)] {
            plain.clone().with_comment(bad).expect_err(bad);
        }
        plain
            .clone()
            .with_command_line("a\nb")
            .expect_err("two lines");
        for bad in [
            &b"\x00\x00\x00"[..],
            b"\x01x\x00\x00",
            b"\x00\x01\x07\x00",
            b"\x00\x00\x01\r",
            b"\x00\x01\xff\x00",
            b"\x00",
            b"\x00\x01c",
            b"\x00\x01c\x00\x00",
        ] {
            read(bad).expect_err("a tail that no writer makes");
        }
    }
}
