//! File names in many styles. Each style makes distinct names within a directory.

use crate::draw::Key;

/// Style of file names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameStyle {
    /// Numbers of equal length.
    Counter,
    /// Words, a number and an extension.
    Words,
    /// 32 hexadecimal digits.
    Hex,
    /// Keys in the format of git-annex.
    Annex,
    /// Letters of many scripts, composed and decomposed, and some outside the Basic Multilingual
    /// Plane.
    Unicode,
    /// Names of 255 bytes, the maximum length.
    Long,
    /// Groups of four names that differ only in case.
    Case,
}

/// Words for the styles in `weald forest` and in spec files.
pub const NAME_STYLES: [(&str, NameStyle); 7] = [
    ("counter", NameStyle::Counter),
    ("words", NameStyle::Words),
    ("hex", NameStyle::Hex),
    ("annex", NameStyle::Annex),
    ("unicode", NameStyle::Unicode),
    ("long", NameStyle::Long),
    ("case", NameStyle::Case),
];

const EXTENSIONS: [&[u8]; 8] = [
    b".txt", b".py", b".h", b".c", b".json", b".so", b".html", b".md",
];
const UNICODE: [&str; 8] = [
    "λόγος",
    "лес",
    "森林",
    "é",
    "e\u{301}",
    "🌲",
    "\u{63a}\u{627}\u{628}\u{629}",
    "ﬁ",
];
/// Maximum length of a name on Linux, bytes.
const NAME_LEN_MAX: usize = 255;

/// Input of a name: the file and its directory.
#[derive(Debug, Clone, Copy)]
pub struct NameInput {
    /// Key from which the name is drawn; each key gives another name.
    pub key: Key,
    /// Number of the file in its directory.
    pub index: u64,
    /// Number of files in the directory.
    pub count: u64,
    /// Last version that renamed it; 0 for none.
    pub epoch: u64,
    /// Length of the file, bytes; it is part of git-annex keys.
    pub len: u64,
    /// Whether it is a file, not a directory.
    pub is_file: bool,
}

impl NameStyle {
    /// Appends the name for `name`.
    ///
    /// # Cost
    /// 10 to 300 ns; allocates only to extend `out`.
    pub fn append(self, name: &NameInput, out: &mut Vec<u8>) {
        // Directories keep their names in all versions. A renamed file gets a name from another
        // key.
        let key = match name.epoch {
            0 => name.key,
            epoch => name.key.part(epoch),
        };
        match self {
            Self::Counter => {
                let width = digits(name.count.saturating_sub(1).max(1), 10);
                append_number(name.index, width, out);
                if name.epoch > 0 {
                    out.push(b'-');
                    append_number(name.epoch, 1, out);
                }
            }
            Self::Words => {
                append_word(key.part(1), out);
                out.push(b'_');
                append_word(key.part(2), out);
                append_number(name.index, 1, out);
                if name.is_file {
                    out.extend_from_slice(EXTENSIONS[key.part(3).below(8) as usize]);
                }
            }
            Self::Hex => {
                append_hex(key.part(1).bits(), out);
                append_hex(key.part(2).bits(), out);
            }
            Self::Annex => {
                out.extend_from_slice(b"SHA256E-s");
                append_number(name.len, 1, out);
                out.extend_from_slice(b"--");
                (1..5).for_each(|i| append_hex(key.part(i).bits(), out));
                if name.is_file {
                    out.extend_from_slice(b".dat");
                }
            }
            Self::Unicode => {
                for i in 0..1 + key.part(0).below(4) {
                    out.extend_from_slice(UNICODE[key.part(1 + i).below(8) as usize].as_bytes());
                }
                append_number(name.index, 1, out);
                append_epoch(name.epoch, out);
            }
            Self::Long => {
                let start = out.len();
                append_number(name.index, 1, out);
                append_epoch(name.epoch, out);
                out.push(b'-');
                (0..)
                    .take_while(|i| i * 16 < NAME_LEN_MAX as u64)
                    .for_each(|i| append_hex(key.part(i).bits(), out));
                out.truncate(start + NAME_LEN_MAX);
            }
            Self::Case => append_case(name, out),
        }
    }
}

/// Four neighbours have the same letters: lower case, upper case, and two mixtures.
fn append_case(name: &NameInput, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(b"leaf-");
    let mut rest = name.index / 4;
    loop {
        out.push(b'a' + (rest % 26) as u8);
        rest /= 26;
        if rest == 0 {
            break;
        }
    }
    append_epoch(name.epoch, out);
    for (i, letter) in out[start..].iter_mut().enumerate() {
        let is_capital = match name.index % 4 {
            0 => false,
            1 => true,
            2 => i == 0,
            _ => i == 1,
        };
        if is_capital {
            letter.make_ascii_uppercase();
        }
    }
}

fn append_epoch(epoch: u64, out: &mut Vec<u8>) {
    if epoch > 0 {
        out.push(b'~');
        append_number(epoch, 1, out);
    }
}

/// Appends two to four syllables of a consonant and a vowel.
pub fn append_word(key: Key, out: &mut Vec<u8>) {
    const CONSONANTS: &[u8; 16] = b"bdfghklmnprstvwz";
    const VOWELS: &[u8; 4] = b"aeio";
    let mut bits = key.bits();
    for _ in 0..2 + (bits >> 60 & 3).min(2) {
        out.push(CONSONANTS[(bits & 15) as usize]);
        out.push(VOWELS[(bits >> 4 & 3) as usize]);
        bits >>= 6;
    }
}

/// Number of digits of `number` in `base`.
fn digits(mut number: u64, base: u64) -> usize {
    let mut count = 1;
    while number >= base {
        number /= base;
        count += 1;
    }
    count
}

/// Appends `number`, padded with zeros to `width` digits.
pub fn append_number(number: u64, width: usize, out: &mut Vec<u8>) {
    let start = out.len();
    let count = digits(number, 10).max(width);
    out.resize(start + count, b'0');
    let mut rest = number;
    for place in out[start..].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

fn append_hex(bits: u64, out: &mut Vec<u8>) {
    for i in (0..16).rev() {
        out.push(b"0123456789abcdef"[(bits >> (4 * i) & 15) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Catches: two files of a directory with one name, and names that file systems refuse.
    #[test]
    fn names_are_distinct_and_allowed() {
        let key = Key::new(3);
        for (word, style) in NAME_STYLES {
            let mut seen = BTreeSet::new();
            for index in 0..3000 {
                for epoch in 0..2 {
                    let mut name = Vec::new();
                    let of = NameInput {
                        key: key.part(index),
                        index,
                        count: 3000,
                        epoch,
                        len: 5,
                        is_file: true,
                    };
                    style.append(&of, &mut name);
                    assert!((1..=255).contains(&name.len()), "{word}");
                    assert!(!name.iter().any(|&b| b == b'/' || b == 0), "{word}");
                    assert!(style != NameStyle::Long || name.len() == 255);
                    assert!(seen.insert(name), "{word} {index} {epoch}");
                }
            }
            let folded: BTreeSet<Vec<u8>> = seen.iter().map(|n| n.to_ascii_lowercase()).collect();
            assert_eq!(
                style == NameStyle::Case,
                folded.len() < seen.len(),
                "{word}"
            );
        }
    }
}
