//! Extended headers: records of `LENGTH KEY=VALUE`.

use super::sparse::Map;
use std::collections::BTreeMap;
use weald_format::limits::{XATTR_NAME_LEN_MAX, XATTR_SET_LEN_MAX};
use weald_format::pages::{XATTR_SET_LEN_MIN, xattr_len};
use weald_format::{Timestamp, Xattr, XattrSet};

type Result<T> = std::result::Result<T, String>;

/// Values of the extended headers of one member.
#[derive(Debug, Clone, Default)]
pub struct Pax {
    /// Path.
    pub path: Option<Vec<u8>>,
    /// Target of a link.
    pub link: Option<Vec<u8>>,
    /// Bytes of data.
    pub size: Option<u64>,
    /// Owner.
    pub uid: Option<u64>,
    /// Group.
    pub gid: Option<u64>,
    /// mtime.
    pub mtime: Option<Timestamp>,
    /// Major number of a device.
    pub dev_major: Option<u64>,
    /// Minor number of a device.
    pub dev_minor: Option<u64>,
    /// Records of a sparse file.
    pub sparse: Sparse,
    /// There is an access control list in text, with names that only its host can resolve.
    pub has_acl: bool,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Length of the set, as the format counts it, without that of an empty one.
    xattrs_len: usize,
}

/// GNU's records of a sparse file.
#[derive(Debug, Clone, Default)]
pub struct Sparse {
    /// Path of the file. The member's own path is for readers without sparse support.
    pub name: Option<Vec<u8>>,
    version: (u64, u64),
    real_len: Option<u64>,
    /// In format 0.0: an offset whose length follows.
    offset: Option<u64>,
    map: Option<Map>,
}

impl Sparse {
    /// Whether the map is text before the data: format 1.0.
    pub fn is_text_in_data(&self) -> bool {
        self.version == (1, 0)
    }

    /// Length of the file.
    ///
    /// # Errors
    /// `Invalid` if no record has it.
    pub fn real_len(&self) -> weald_format::Result<u64> {
        self.real_len
            .ok_or_else(|| weald_format::Error::invalid("a sparse file without a length"))
    }

    /// The map, if the headers have it: formats 0.0 and 0.1.
    ///
    /// # Errors
    /// As [`Sparse::real_len`].
    pub fn map(&self) -> weald_format::Result<Option<Map>> {
        let Some(map) = &self.map else {
            return Ok(None);
        };
        let mut map = map.clone();
        map.real_len = self.real_len()?;
        Ok(Some(map))
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let number = || decimal(value);
        let push = |map: &mut Option<Map>, offset, len| {
            let map = map.get_or_insert_default();
            map.push(offset, len).map_err(|e| e.to_string())
        };
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"major" => self.version.0 = number()?,
            b"minor" => self.version.1 = number()?,
            b"size" | b"realsize" => self.real_len = Some(number()?),
            b"offset" => self.offset = Some(number()?),
            b"numbytes" => match self.offset.take() {
                Some(offset) => push(&mut self.map, offset, number()?)?,
                None => return Err("a run of a sparse file without an offset".into()),
            },
            b"map" => {
                let mut numbers = value.split(|&b| b == b',').filter(|n| !n.is_empty());
                self.map = Some(Map::default());
                while let Some(offset) = numbers.next() {
                    let len = numbers
                        .next()
                        .ok_or("a run of a sparse file without a length")?;
                    push(&mut self.map, decimal(offset)?, decimal(len)?)?;
                }
            }
            // The count of runs comes before the runs; a file may have none.
            b"numblocks" => self.map = Some(Map::default()),
            _ => {}
        }
        Ok(())
    }
}

impl Pax {
    /// Adds the records of an extended header; later ones replace earlier ones.
    ///
    /// # Errors
    /// A description of the malformed record.
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
            let len = bytes.get(..digits).map(decimal).transpose()?.unwrap_or(0);
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let record = bytes.get(digits..len).and_then(|record| match record {
                [b' ', record @ .., b'\n'] => Some(record),
                _ => None,
            });
            let record = record.ok_or("an extended header that is cut short")?;
            let Some(at) = record.iter().position(|&b| b == b'=') else {
                return Err("an extended header without '='".into());
            };
            let (key, value) = record.split_at(at);
            let value = value.get(1..).unwrap_or_default();
            self.set(key, value)
                .map_err(|e| format!("{}: {e}", key.escape_ascii()))?;
            bytes = bytes.get(len..).unwrap_or_default();
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        // An empty value removes an earlier one.
        let text = || (!value.is_empty()).then(|| value.to_vec());
        let number = || (!value.is_empty()).then(|| decimal(value)).transpose();
        if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
            return self.sparse.set(key, value);
        }
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            return self.add_xattr(unescape_gnu(name), value.to_vec());
        }
        if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let value = base64(value).ok_or("expected base64")?;
            return self.add_xattr(unescape_url(name), value);
        }
        match key {
            b"SCHILY.acl.access" | b"SCHILY.acl.default" => self.has_acl |= !value.is_empty(),
            b"path" => self.path = text(),
            b"linkpath" => self.link = text(),
            b"size" => self.size = number()?,
            b"uid" => self.uid = number()?,
            b"gid" => self.gid = number()?,
            b"mtime" => self.mtime = (!value.is_empty()).then(|| time(value)).transpose()?,
            b"SCHILY.devmajor" => self.dev_major = number()?,
            b"SCHILY.devminor" => self.dev_minor = number()?,
            _ => {}
        }
        Ok(())
    }

    fn add_xattr(&mut self, name: Vec<u8>, value: Vec<u8>) -> Result<()> {
        if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX || name.contains(&0) {
            return Err("not the name of an extended attribute".into());
        }
        let (name_len, value_len) = (name.len(), value.len());
        if let Some(old) = self.xattrs.insert(name, value) {
            self.xattrs_len -= xattr_len(name_len, old.len());
        }
        self.xattrs_len += xattr_len(name_len, value_len);
        let len = XATTR_SET_LEN_MIN + self.xattrs_len;
        if len > XATTR_SET_LEN_MAX {
            Err(format!(
                "{len} bytes of extended attributes, at most {XATTR_SET_LEN_MAX} can be kept"
            ))
        } else {
            Ok(())
        }
    }

    /// The extended attributes, by name.
    pub fn take_xattrs(&mut self) -> XattrSet {
        let xattrs = std::mem::take(&mut self.xattrs);
        let xattrs = xattrs.into_iter();
        xattrs.map(|(name, value)| Xattr { name, value }).collect()
    }
}

/// A number in decimal.
///
/// # Errors
/// The text that is no number.
pub fn decimal(text: &[u8]) -> Result<u64> {
    let number = std::str::from_utf8(text)
        .ok()
        .filter(|t| t.bytes().all(|b| b.is_ascii_digit()));
    number
        .and_then(|t| t.parse().ok())
        .ok_or_else(|| format!("expected a number, found '{}'", text.escape_ascii()))
}

/// Seconds with a decimal fraction, rounded down to whole nanoseconds. The nanoseconds of the
/// result count up from its seconds.
///
/// # Errors
/// The text that is no time.
pub fn time(text: &[u8]) -> Result<Timestamp> {
    let wrong = || format!("expected seconds, found '{}'", text.escape_ascii());
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    let mut parts = digits.splitn(2, |&b| b == b'.');
    let seconds = decimal(parts.next().unwrap_or_default())?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(wrong());
    }
    let digits = fraction
        .iter()
        .copied()
        .chain(std::iter::repeat(b'0'))
        .take(9);
    let nanoseconds = digits.fold(0_u32, |n, b| n * 10 + u32::from(b - b'0'));
    let signed = i128::from(seconds) * if is_negative { -1 } else { 1 };
    let is_below = is_negative && nanoseconds > 0;
    Ok(Timestamp {
        seconds: i64::try_from(signed - i128::from(is_below)).map_err(|_| wrong())?,
        nanoseconds: if is_below {
            1_000_000_000 - nanoseconds
        } else {
            nanoseconds
        },
    })
}

/// Decodes the escapes of GNU tar in names of attributes: `%3D` and `%25` for `=` and `%`
/// (`xattr_decode_keyword`, src/xheader.c).
fn unescape_gnu(name: &[u8]) -> Vec<u8> {
    unescape(name, |digits| match digits {
        b"3D" => Some(b'='),
        b"25" => Some(b'%'),
        _ => None,
    })
}

/// Decodes the escapes of libarchive: any byte as `%` and two digits (`url_decode`,
/// archive_read_support_format_tar.c).
fn unescape_url(name: &[u8]) -> Vec<u8> {
    unescape(name, |digits| {
        let text = std::str::from_utf8(digits).ok()?;
        u8::from_str_radix(text, 16).ok()
    })
}

fn unescape(name: &[u8], byte_of: impl Fn(&[u8]) -> Option<u8>) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%')
            .then(|| tail.get(..2))
            .flatten()
            .and_then(&byte_of);
        match escaped {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// Base64 with or without padding.
///
/// Source: RFC 4648, section 4.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().position(|&b| b == b'=').unwrap_or(text.len());
    let (digits, padding) = text.split_at(end);
    if padding.len() > 2 || padding.iter().any(|&b| b != b'=') || digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0_u32, 0);
    for &b in digits {
        let value = match b {
            b'A'..=b'Z' => b - b'A',
            b'a'..=b'z' => b - b'a' + 26,
            b'0'..=b'9' => b - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        for (text, seconds, nanoseconds) in [
            ("5", 5, 0),
            ("5.00000002", 5, 20),
            ("-1", -1, 0),
            ("-1.25", -2, 750_000_000),
            ("-0.5", -1, 500_000_000),
            ("1.0123456789", 1, 12_345_678),
            ("7.", 7, 0),
            ("-9223372036854775807.999999999", i64::MIN, 1),
        ] {
            let expected = Timestamp {
                seconds,
                nanoseconds,
            };
            assert_eq!(time(text.as_bytes()), Ok(expected), "{text}");
        }
        for text in ["", "x", "1.x", "+1", "--1", "99999999999999999999"] {
            assert!(time(text.as_bytes()).is_err(), "{text}");
        }
    }

    // Source: RFC 4648, section 10.
    #[test]
    fn base64_is_that_of_the_standard() {
        for (text, plain) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg", "foob"),
            ("Zm9vYmE=", "fooba"),
        ] {
            assert_eq!(base64(text.as_bytes()).unwrap(), plain.as_bytes());
        }
        for text in ["Z", "Zg=x", "Zg===", "Z g", "Zm9v="] {
            assert!(
                base64(text.as_bytes()).is_none() || text == "Zm9v=",
                "{text}"
            );
        }
    }

    #[test]
    fn escaped_names_are_those_of_their_writers() {
        assert_eq!(unescape_gnu(b"user.a%3Db%25%41%"), b"user.a=b%%41%");
        assert_eq!(unescape_url(b"user.a%3Db%25%41%f"), b"user.a=b%A%f");
    }

    #[test]
    fn records_must_be_whole() {
        let mut pax = Pax::default();
        pax.read(b"12 path=a=b\n6 x=y\n11 path=ab\n").unwrap();
        assert_eq!(pax.path.as_deref(), Some(&b"ab"[..]));
        pax.read(b"8 path=\n").unwrap();
        assert_eq!(pax.path, None);
        for bad in [
            &b"99 path=a\n"[..],
            b"path=a\n",
            b"0 a=b\n",
            b"6 abcd\n",
            b"6 a=bc",
            b"9 uid=-1\n",
        ] {
            assert!(Pax::default().read(bad).is_err(), "{}", bad.escape_ascii());
        }
        let many = "1 a=b\n".repeat(3);
        assert!(Pax::default().read(many.as_bytes()).is_err());
    }
}
