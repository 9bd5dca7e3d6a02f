//! Escapes names and messages for people: without control characters and bidirectional controls,
//! and without loss.
//!
//! [`shown`] is for one name, which may have any bytes; the escaping can be undone. [`safe_line`]
//! and [`safe_text`] are for whole messages, whether their names are escaped already or not: a sink
//! that writes to a terminal passes everything through them.

use std::borrow::Cow;
use std::fmt::Write;
use weald_format::FileKind;

/// Escapes `name` for a message: valid UTF-8 stays, control characters and other bytes become
/// `\xNN`, a backslash becomes `\\`.
pub fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for part in name.utf8_chunks() {
        part.valid().chars().for_each(|c| push_char(&mut text, c));
        part.invalid().iter().for_each(|&b| push_byte(&mut text, b));
    }
    text
}

/// The same for a path inside an image; the root, whose path is empty, becomes `/`.
pub fn shown_path(path: &[u8]) -> String {
    if path.is_empty() {
        "/".to_owned()
    } else {
        shown(path)
    }
}

/// `text` as one line for a terminal: control characters, newlines and tabs included, and
/// bidirectional controls become `\xNN`, a group for each byte of their UTF-8. Backslashes stay, so
/// that a name inside `text` that was [`shown`] is not escaped twice.
pub fn safe_line(text: &str) -> Cow<'_, str> {
    safe(text, is_unsafe)
}

/// The same for text of several lines: newlines stay.
pub fn safe_text(text: &str) -> Cow<'_, str> {
    safe(text, |c| c != '\n' && is_unsafe(c))
}

fn safe(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) {
            push_bytes(&mut safe, c)
        } else {
            safe.push(c)
        }
    }
    Cow::Owned(safe)
}

/// Whether a terminal would act on `c`, or show other characters in another order because of it:
/// control characters (C0, DEL, C1), bidirectional controls, line and paragraph separators, and the
/// byte order mark, which is invisible.
///
/// # Source
/// Unicode 15, annex 9, "Directional Formatting Characters".
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200e}'
                | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{feff}'
        )
}

fn push_char(text: &mut String, c: char) {
    match c {
        '\\' => text.push_str("\\\\"),
        c if is_unsafe(c) => push_bytes(text, c),
        c => text.push(c),
    }
}

fn push_bytes(text: &mut String, c: char) {
    let mut bytes = [0; 4];
    c.encode_utf8(&mut bytes)
        .bytes()
        .for_each(|b| push_byte(text, b));
}

fn push_byte(text: &mut String, byte: u8) {
    // Writing to a String cannot fail.
    let _ = write!(text, "\\x{byte:02x}");
}

/// Kind and permissions as letters, for example `drwxr-xr-t`.
pub fn mode_letters(kind: FileKind, permissions: u16) -> String {
    let bits = permissions;
    let kind = match kind {
        FileKind::Directory => 'd',
        FileKind::Regular => '-',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut letters = String::from(kind);
    for (shift, special, with_execute, without) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let rwx = bits >> shift;
        letters.push(if rwx & 4 != 0 { 'r' } else { '-' });
        letters.push(if rwx & 2 != 0 { 'w' } else { '-' });
        letters.push(match (bits & special != 0, rwx & 1 != 0) {
            (true, true) => with_execute,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_and_other_bytes_are_escaped() {
        assert_eq!(shown("größe.txt".as_bytes()), "größe.txt");
        assert_eq!(shown(b"a\nb\x1b[2J"), "a\\x0ab\\x1b[2J");
        assert_eq!(shown(b"caf\xe9\\"), "caf\\xe9\\\\");
        assert_eq!(shown("a\u{202e}b".as_bytes()), "a\\xe2\\x80\\xaeb");
        assert_eq!(shown("\u{61c}\u{9b}".as_bytes()), "\\xd8\\x9c\\xc2\\x9b");
    }

    /// Would catch: a name that is escaped twice on its way through a sink, and a newline that lets
    /// a name write a message of its own.
    #[test]
    fn messages_are_made_safe_once() {
        let message = format!("{}: gone\n", shown(b"a\x1b\\"));
        assert_eq!(safe_line(&message), "a\\x1b\\\\: gone\\x0a");
        assert_eq!(safe_text(&message), message);
        assert_eq!(safe_text("a\u{feff}\tb"), "a\\xef\\xbb\\xbf\\x09b");
    }

    #[test]
    fn the_root_is_a_slash() {
        assert_eq!(shown_path(b""), "/");
        assert_eq!(shown_path(b"usr/bin"), "usr/bin");
    }
}
