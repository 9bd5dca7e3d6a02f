//! How names of any bytes are shown in messages: one line, no control characters, nothing lost.

use std::fmt::Write;

/// `name` for a message: valid UTF-8 stays, control characters and other bytes become `\xNN`, a
/// backslash `\\`.
pub fn shown(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for part in name.utf8_chunks() {
        part.valid().chars().for_each(|c| push_char(&mut text, c));
        part.invalid().iter().for_each(|&b| push_byte(&mut text, b));
    }
    text
}

/// The same for a path inside an image: the root, whose path is empty, is shown as `/`.
pub fn shown_path(path: &[u8]) -> String {
    if path.is_empty() {
        "/".to_owned()
    } else {
        shown(path)
    }
}

fn push_char(text: &mut String, c: char) {
    match c {
        '\\' => text.push_str("\\\\"),
        c if c.is_control() || is_reordering(c) => {
            let mut bytes = [0; 4];
            c.encode_utf8(&mut bytes)
                .bytes()
                .for_each(|b| push_byte(text, b));
        }
        c => text.push(c),
    }
}

/// Unicode's bidirectional controls and line separators, which let a name disguise itself on a
/// terminal.
fn is_reordering(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn push_byte(text: &mut String, byte: u8) {
    // Writing to a String cannot fail.
    let _ = write!(text, "\\x{byte:02x}");
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
    }

    #[test]
    fn the_root_is_a_slash() {
        assert_eq!(shown_path(b""), "/");
        assert_eq!(shown_path(b"usr/bin"), "usr/bin");
    }
}
