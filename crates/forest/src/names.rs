//! Names in many styles, distinct within a directory by what they are made of.

use crate::draw::Key;

/// How names look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameStyle {
    /// Numbers, all of one length.
    Counter,
    /// Words, a number and an extension.
    Words,
    /// 32 hexadecimal digits.
    Hex,
    /// Keys as git-annex makes them.
    Annex,
    /// Letters of many scripts, composed and decomposed, and some outside the Basic Multilingual
    /// Plane.
    Unicode,
    /// 255 bytes, the most that a name may have.
    Long,
    /// Names of which four at a time differ in case only.
    Case,
}

/// Names in `weald forest` and spec files.
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
const UNICODE: [&str; 8] = ["λόγος", "лес", "森林", "é", "e\u{301}", "🌲", "غابة", "ﬁ"];
/// Longest name that Linux takes, bytes.
const NAME_LEN_MAX: usize = 255;

/// Which of a directory's names is meant.
#[derive(Debug, Clone, Copy)]
pub struct NameOf {
    /// What the name is drawn from; another name for every other key.
    pub key: Key,
    /// Number in the directory.
    pub index: u64,
    /// Names in the directory.
    pub count: u64,
    /// How often it was renamed.
    pub epoch: u64,
    /// Bytes of the file, which keys of git-annex tell.
    pub len: u64,
    /// Whether files are named, not directories.
    pub is_file: bool,
}

impl NameStyle {
    /// Appends the name of `name`.
    ///
    /// # Cost
    /// 10 to 300 ns; no allocation but that of `out`.
    pub fn append(self, name: &NameOf, out: &mut Vec<u8>) {
        // A directory keeps its name over versions; a file that was renamed is another number of
        // drawing.
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

/// Four neighbours have the same letters: small ones, capitals, and two mixtures.
fn append_case(name: &NameOf, out: &mut Vec<u8>) {
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

/// Two to four syllables of a consonant and a vowel.
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

/// Digits that `number` has in `base`.
fn digits(mut number: u64, base: u64) -> usize {
    let mut count = 1;
    while number >= base {
        number /= base;
        count += 1;
    }
    count
}

/// Appends `number`, with zeros in front up to `width` digits.
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

    /// Would catch: two files of a directory with one name, names that no file system takes.
    #[test]
    fn names_are_distinct_and_allowed() {
        let key = Key::new(3);
        for (word, style) in NAME_STYLES {
            let mut seen = BTreeSet::new();
            for index in 0..3000 {
                for epoch in 0..2 {
                    let mut name = Vec::new();
                    let of = NameOf {
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
