//! Words of mtree: names in the escapes of vis(3), keywords and their values.

use sha2::{Digest, Sha256, Sha384, Sha512};
use weald_format::{Error, ErrorKind, FileKind, Result, Timestamp};

/// The words of a line.
pub fn split(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty())
}

/// A line of `mtree -D`, which has the name at its end, with the name at its beginning; other lines
/// as they are. No keyword begins with a dot, and all names of that form do.
pub fn name_first(line: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    let is_path = |word: &[u8]| word == b"." || word.starts_with(b"./");
    let trimmed = line.trim_ascii();
    let blank = trimmed.iter().rposition(u8::is_ascii_whitespace);
    match blank.map(|at| trimmed.split_at(at)) {
        Some((keys, name))
            if is_path(name.trim_ascii_start())
                && !is_path(split(keys).next().unwrap_or_default())
                && !keys.starts_with(b"#") =>
        {
            [name.trim_ascii_start(), b" ", keys].concat().into()
        }
        _ => line.into(),
    }
}

/// Decodes the escapes of vis(3) in a word.
///
/// # Errors
/// `Invalid` for a backslash that starts no escape of vis.
pub fn decoded(word: &[u8]) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, behind @ ..] = rest {
        (out, rest) = match first {
            b'\\' => match escaped(behind) {
                Some((byte, behind)) => (pushed(out, byte), behind),
                None => {
                    let what = format!(
                        "'{}': a backslash that is not of vis(3)",
                        word.escape_ascii()
                    );
                    return Err(Error::invalid(what));
                }
            },
            &byte => (pushed(out, byte), behind),
        };
    }
    Ok(out)
}

fn pushed(mut out: Vec<u8>, byte: u8) -> Vec<u8> {
    out.push(byte);
    out
}

/// The byte of the escape behind a backslash, and the bytes behind the escape.
fn escaped(rest: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |b: &u8| matches!(b, b'0'..=b'7');
    Some(match rest {
        // Three octal digits. NUL may have fewer, but no name has a NUL.
        [a @ b'0'..=b'3', b, c, rest @ ..] if digit(b) && digit(c) => {
            ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), rest)
        }
        [b'M', b'-', byte, rest @ ..] => (byte | 0x80, rest),
        [b'M', b'^', byte, rest @ ..] => (control(*byte) | 0x80, rest),
        [b'^', byte, rest @ ..] => (control(*byte), rest),
        [b'a', rest @ ..] => (7, rest),
        [b'b', rest @ ..] => (8, rest),
        [b't', rest @ ..] => (b'\t', rest),
        [b'n', rest @ ..] => (b'\n', rest),
        [b'v', rest @ ..] => (11, rest),
        [b'f', rest @ ..] => (12, rest),
        [b'r', rest @ ..] => (b'\r', rest),
        [b's', rest @ ..] => (b' ', rest),
        [byte, rest @ ..] if byte.is_ascii_punctuation() => (*byte, rest),
        _ => return None,
    })
}

fn control(byte: u8) -> u8 {
    match byte {
        b'?' => 0x7f,
        byte => byte & 0x1f,
    }
}

/// The name of an owner.
#[derive(Debug, Clone)]
pub struct Name {
    /// The name is `root`, which has the number 0 on every system.
    pub is_root: bool,
    /// For messages.
    pub shown: String,
}

/// Expected digest of a content.
#[derive(Clone)]
pub struct Check {
    word: &'static str,
    hasher: Hasher,
    expected: Vec<u8>,
}

#[derive(Clone)]
enum Hasher {
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
}

impl Check {
    fn new(word: &'static str, hasher: Hasher, len: usize, hex: &[u8]) -> Result<Self> {
        let nibble = |b: &u8| (*b as char).to_digit(16).map(|d| d as u8);
        let digits: Option<Vec<u8>> = hex.iter().map(nibble).collect();
        match digits.filter(|digits| digits.len() == len * 2) {
            Some(digits) => Ok(Self {
                word,
                hasher,
                expected: digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect(),
            }),
            None => Err(Error::invalid(format!(
                "{word}: expected {} hexadecimal digits",
                len * 2
            ))),
        }
    }

    /// Adds bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.hasher {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha384(hasher) => hasher.update(bytes),
            Hasher::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// The keyword, if the digest of the content differs.
    pub fn wrong(self) -> Option<&'static str> {
        let found = match self.hasher {
            Hasher::Sha256(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha384(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha512(hasher) => hasher.finalize().to_vec(),
        };
        (found != self.expected).then_some(self.word)
    }
}

/// Values of the keywords of an entry.
#[derive(Clone, Default)]
pub struct Keys {
    /// `type`.
    pub kind: Option<FileKind>,
    /// `mode`, without the type.
    pub mode: Option<u16>,
    /// `uid`.
    pub uid: Option<u32>,
    /// `gid`.
    pub gid: Option<u32>,
    /// `uname`.
    pub uname: Option<Name>,
    /// `gname`.
    pub gname: Option<Name>,
    /// `time`.
    pub time: Option<Timestamp>,
    /// `size`, bytes.
    pub size: Option<u64>,
    /// `link`, the target of a symlink.
    pub link: Option<Vec<u8>>,
    /// `device`: major number, 32 bits, minor number.
    pub device: Option<u64>,
    /// `contents`, the path of the file with the contents.
    pub contents: Option<Vec<u8>>,
    /// Digests.
    pub checks: Vec<Check>,
}

impl Keys {
    /// Adds `word`, a keyword and its value.
    ///
    /// # Errors
    /// `Invalid` for malformed values; `Unsupported` for unknown keywords.
    pub fn set(&mut self, word: &[u8]) -> Result<()> {
        let at = word.iter().position(|&b| b == b'=');
        let (key, value) = match at {
            Some(at) => (&word[..at], &word[at + 1..]),
            None => (word, &b""[..]),
        };
        match key {
            b"type" => self.kind = Some(kind(value)?),
            b"mode" => self.mode = Some(mode(value)?),
            b"uid" => self.uid = Some(number(value, word)?),
            b"gid" => self.gid = Some(number(value, word)?),
            b"uname" => self.uname = Some(name(value)),
            b"gname" => self.gname = Some(name(value)),
            b"time" => self.time = Some(time(value, word)?),
            b"size" => self.size = Some(number(value, word)?),
            b"link" => self.link = Some(decoded(value)?),
            b"device" => self.device = Some(device(value)?),
            b"contents" | b"content" => self.contents = Some(decoded(value)?),
            b"sha256" | b"sha256digest" => {
                let hasher = Hasher::Sha256(Sha256::new());
                self.checks.push(Check::new("sha256", hasher, 32, value)?);
            }
            b"sha384" | b"sha384digest" => {
                let hasher = Hasher::Sha384(Sha384::new());
                self.checks.push(Check::new("sha384", hasher, 48, value)?);
            }
            b"sha512" | b"sha512digest" => {
                let hasher = Hasher::Sha512(Sha512::new());
                self.checks.push(Check::new("sha512", hasher, 64, value)?);
            }
            key if is_passed_over(key) => {}
            key => return Err(unknown(key)),
        }
        Ok(())
    }

    /// Removes the value of the keyword `key`, or of all.
    ///
    /// # Errors
    /// `Unsupported` for unknown keywords.
    pub fn unset(&mut self, key: &[u8]) -> Result<()> {
        match key {
            b"all" => *self = Self::default(),
            b"type" => self.kind = None,
            b"mode" => self.mode = None,
            b"uid" => self.uid = None,
            b"gid" => self.gid = None,
            b"uname" => self.uname = None,
            b"gname" => self.gname = None,
            b"time" => self.time = None,
            b"size" => self.size = None,
            b"link" => self.link = None,
            b"device" => self.device = None,
            b"contents" | b"content" => self.contents = None,
            b"sha256" | b"sha256digest" => self.checks.retain(|c| c.word != "sha256"),
            b"sha384" | b"sha384digest" => self.checks.retain(|c| c.word != "sha384"),
            b"sha512" | b"sha512digest" => self.checks.retain(|c| c.word != "sha512"),
            key if is_passed_over(key) => {}
            key => return Err(unknown(key)),
        }
        Ok(())
    }
}

/// Keywords that an image does not keep, and digests that are not verified.
fn is_passed_over(key: &[u8]) -> bool {
    [
        &b"nlink"[..],
        b"inode",
        b"flags",
        b"resdevice",
        b"tags",
        b"optional",
        b"nochange",
        b"ignore",
        b"cksum",
        b"md5",
        b"md5digest",
        b"sha1",
        b"sha1digest",
        b"rmd160",
        b"rmd160digest",
        b"ripemd160digest",
    ]
    .contains(&key)
}

fn unknown(key: &[u8]) -> Error {
    let what = format!("the keyword '{}' is not known", key.escape_ascii());
    Error::new(ErrorKind::Unsupported, what)
}

fn bad(word: &[u8]) -> Error {
    Error::invalid(format!(
        "'{}': no value of that keyword",
        word.escape_ascii()
    ))
}

fn number<T: std::str::FromStr>(value: &[u8], word: &[u8]) -> Result<T> {
    let is_plain = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(value).ok().filter(|_| is_plain);
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| bad(word))
}

fn name(value: &[u8]) -> Name {
    Name {
        is_root: value == b"root",
        shown: value.escape_ascii().to_string(),
    }
}

fn kind(value: &[u8]) -> Result<FileKind> {
    Ok(match value {
        b"file" => FileKind::Regular,
        b"dir" => FileKind::Directory,
        b"link" => FileKind::Symlink,
        b"char" => FileKind::CharDevice,
        b"block" => FileKind::BlockDevice,
        b"fifo" => FileKind::Fifo,
        b"socket" => FileKind::Socket,
        other => {
            return Err(Error::invalid(format!(
                "type '{}' is not known",
                other.escape_ascii()
            )));
        }
    })
}

fn mode(value: &[u8]) -> Result<u16> {
    let text = std::str::from_utf8(value).unwrap_or_default();
    let is_octal = !text.is_empty() && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
    let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
    match mode.filter(|mode| *mode <= 0o177_777) {
        // Some writers put the type in front.
        Some(mode) => Ok((mode & 0o7777) as u16),
        None => {
            let what = format!("mode '{}': expected octal digits", value.escape_ascii());
            Err(Error::invalid(what))
        }
    }
}

/// Seconds and, behind a point, a count of nanoseconds: no decimal fraction.
fn time(value: &[u8], word: &[u8]) -> Result<Timestamp> {
    let (is_negative, value) = match value {
        [b'-', value @ ..] => (true, value),
        value => (false, value),
    };
    let mut parts = value.splitn(2, |&b| b == b'.');
    let seconds: i64 = number(parts.next().unwrap_or_default(), word)?;
    let nanoseconds = match parts.next() {
        None | Some(b"") => 0,
        Some(digits) => number(digits, word)?,
    };
    if nanoseconds < 1_000_000_000 {
        Ok(Timestamp {
            seconds: if is_negative { -seconds } else { seconds },
            nanoseconds,
        })
    } else {
        Err(bad(word))
    }
}

/// `FORMAT,MAJOR,MINOR`. A plain number is refused: its encoding differs between systems.
fn device(value: &[u8]) -> Result<u64> {
    let wrong = || {
        let shown = value.escape_ascii();
        Error::invalid(format!(
            "device '{shown}': expected FORMAT,MAJOR,MINOR: a bare number means something else on \
             each system; bsdtar --format=mtree writes devices in this form"
        ))
    };
    let parts: Vec<&[u8]> = value.split(|&b| b == b',').collect();
    let [format, major, minor] = parts[..] else {
        return Err(wrong());
    };
    if format.is_empty() || !format.iter().all(u8::is_ascii_alphanumeric) {
        return Err(wrong());
    }
    let part = |part: &[u8]| -> Result<u64> {
        let hex = part
            .strip_prefix(b"0x")
            .map(|hex| std::str::from_utf8(hex).unwrap_or_default());
        let number: u32 = match hex {
            Some(hex) => u32::from_str_radix(hex, 16).map_err(|_| wrong())?,
            None => number(part, value).map_err(|_| wrong())?,
        };
        Ok(number.into())
    };
    Ok(part(major)? << 32 | part(minor)?)
}
