//! The dump format of composefs: a tree as text, one line an entry, as `composefs-info dump`
//! writes it and `mkcomposefs --from-file` reads it.
//!
//! A line has eleven fields with spaces between them, then xattrs: path, size, mode, number of
//! links, owner, group, device, time, payload, content, digest. `-` stands for nothing. Bytes that
//! are not printable are escaped as `\xNN`. A further name of a file has `@` before its mode, and
//! the path of the first name as payload.
//!
//! Source: `man/composefs-dump.md` of composefs.

use weald_format::{Attributes, Error, FileKind, Result, Timestamp, Xattr, XattrSet};

/// Fields before the xattrs.
const FIELD_COUNT: usize = 11;

/// Bytes of a digest in a dump.
const DIGEST_LEN: usize = 32;

/// One line of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpEntry {
    /// Path from the root, without a slash in front; empty for the root.
    pub path: Vec<u8>,
    /// Type of the entry, with the fields of that type.
    pub item: DumpItem,
}

/// Type of the entry of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DumpItem {
    /// A further name of the file at this path.
    Link(Vec<u8>),
    /// An inode.
    Inode(DumpInode),
}

/// An inode in a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DumpInode {
    /// Its type.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// Links.
    pub nlink: u64,
    /// Modification time.
    pub mtime: Timestamp,
    /// Bytes of data.
    pub size: u64,
    /// Target of a symlink; path of an object among the objects; else empty.
    pub payload: Vec<u8>,
    /// Bytes of a file that are in the dump itself.
    pub content: Vec<u8>,
    /// fs-verity digest of a file.
    pub digest: Option<[u8; DIGEST_LEN]>,
    /// Xattrs, sorted by name.
    pub xattrs: XattrSet,
}

impl DumpEntry {
    /// Parses a line without its newline.
    ///
    /// # Errors
    /// `Invalid`, with the field and what is expected there; `Unsupported` for a digest of another
    /// algorithm.
    pub fn parse(line: &[u8]) -> Result<Self> {
        let mut words = line.split(|byte| *byte == b' ');
        let mut fields: [&[u8]; FIELD_COUNT] = [b""; FIELD_COUNT];
        for (found, field) in fields.iter_mut().enumerate() {
            *field = words.next().ok_or_else(|| {
                Error::invalid(format!(
                    "has {found} fields, and an entry has {FIELD_COUNT} and its xattrs"
                ))
            })?;
        }
        let [
            path,
            size,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            mtime,
            payload,
            content,
            digest,
        ] = fields;
        let path = parse_path(path)?;
        if mode.first() == Some(&b'@') {
            let target = unescape(payload).map_err(|error| in_field("payload", error))?;
            let target = inner_path(&target, "payload")?;
            let item = DumpItem::Link(target);
            return Ok(Self { path, item });
        }
        let mode = number(mode, 8, u64::from(u16::MAX), "mode")? as u32;
        let kind = FileKind::from_mode(mode);
        let kind = kind.ok_or_else(|| {
            Error::invalid(format!("mode: {mode:o} has no file type that weald knows"))
        })?;
        let (device, max) = (number(rdev, 10, u64::MAX, "rdev")?, u64::from(u32::MAX));
        let inode = DumpInode {
            kind,
            attributes: Attributes {
                permissions: (mode & 0o7777) as u16,
                uid: number(uid, 10, max, "uid")? as u32,
                gid: number(gid, 10, max, "gid")? as u32,
                rdev: if kind.is_device() {
                    split_device(device)
                } else {
                    0
                },
            },
            nlink: number(nlink, 10, max, "nlink")?,
            mtime: parse_time(mtime)?,
            size: number(size, 10, i64::MAX as u64, "size")?,
            payload: optional(payload, "payload")?,
            content: optional(content, "content")?,
            digest: parse_digest(digest)?,
            xattrs: parse_xattrs(words)?,
        };
        inode.check()?;
        let item = DumpItem::Inode(inode);
        Ok(Self { path, item })
    }

    /// Appends the line with its newline.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(b'/');
        escape(&self.path, false, out);
        let inode = match &self.item {
            DumpItem::Link(target) => {
                out.extend_from_slice(b" 0 @120000 - - - - 0.0 /");
                escape(target, false, out);
                out.extend_from_slice(b" - -\n");
                return;
            }
            DumpItem::Inode(inode) => inode,
        };
        let attributes = &inode.attributes;
        let numbers = format!(
            " {} {:o} {} {} {} {} {}.{} ",
            inode.size,
            inode.kind.mode_bits() | u32::from(attributes.permissions),
            inode.nlink,
            attributes.uid,
            attributes.gid,
            join_device(attributes.rdev),
            inode.mtime.seconds,
            inode.mtime.nanoseconds,
        );
        out.extend_from_slice(numbers.as_bytes());
        put_optional(&inode.payload, out);
        out.push(b' ');
        put_optional(&inode.content, out);
        out.push(b' ');
        match &inode.digest {
            None => out.push(b'-'),
            Some(digest) => digest.iter().for_each(|byte| {
                out.extend_from_slice(format!("{byte:02x}").as_bytes());
            }),
        }
        for xattr in &inode.xattrs {
            out.push(b' ');
            escape(&xattr.name, true, out);
            out.push(b'=');
            escape(&xattr.value, true, out);
        }
        out.push(b'\n');
    }
}

impl DumpInode {
    fn check(&self) -> Result<()> {
        let content_len = self.content.len() as u64;
        let is_regular = self.kind == FileKind::Regular;
        if !self.content.is_empty() && !is_regular {
            return Err(Error::invalid("content: only a regular file has content"));
        }
        if !self.content.is_empty() && content_len != self.size {
            return Err(Error::invalid(format!(
                "content: has {content_len} bytes, and the size is {}",
                self.size
            )));
        }
        let target_len = self.payload.len();
        if self.kind == FileKind::Symlink && target_len == 0 {
            return Err(Error::invalid("payload: a symlink needs its target there"));
        }
        if is_regular && self.content.is_empty() && self.size > 0 && !self.payload.is_empty() {
            inner_path(&self.payload, "payload")?;
        }
        Ok(())
    }
}

fn in_field(field: &str, error: Error) -> Error {
    error.context(field)
}

fn parse_path(field: &[u8]) -> Result<Vec<u8>> {
    let path = unescape(field).map_err(|error| in_field("path", error))?;
    match path.strip_prefix(b"/") {
        None => Err(Error::invalid("path: expected a path that begins with '/'")),
        Some(b"") => Ok(Vec::new()),
        Some(rest) => inner_path(rest, "path"),
    }
}

/// A path below the root, with or without a slash in front.
fn inner_path(path: &[u8], field: &str) -> Result<Vec<u8>> {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    let is_bad = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.contains(&0);
    if path.split(|byte| *byte == b'/').any(is_bad) {
        Err(Error::invalid(format!(
            "{field}: the path has an empty name, '.', '..' or a zero byte"
        )))
    } else {
        Ok(path.to_vec())
    }
}

fn number(field: &[u8], radix: u32, max: u64, name: &str) -> Result<u64> {
    let text = str::from_utf8(field).ok();
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let found = text.and_then(|text| u64::from_str_radix(text, radix).ok());
    found.filter(|found| *found <= max).ok_or_else(|| {
        let kind = if radix == 8 { "an octal" } else { "a decimal" };
        Error::invalid(format!(
            "{name}: expected {kind} number up to {max}, found '{}'",
            shown(field)
        ))
    })
}

fn parse_time(field: &[u8]) -> Result<Timestamp> {
    let text = str::from_utf8(field).unwrap_or_default();
    let (seconds, nanoseconds) = text.split_once('.').unwrap_or((text, "0"));
    let nanoseconds = nanoseconds.parse().ok();
    let nanoseconds = nanoseconds.filter(|nanoseconds| *nanoseconds < 1_000_000_000);
    match (seconds.parse(), nanoseconds) {
        (Ok(seconds), Some(nanoseconds)) => Ok(Timestamp {
            seconds,
            nanoseconds,
        }),
        _ => Err(Error::invalid(format!(
            "mtime: expected SECONDS.NANOSECONDS, found '{}'",
            shown(field)
        ))),
    }
}

fn parse_digest(field: &[u8]) -> Result<Option<[u8; DIGEST_LEN]>> {
    if field == b"-" {
        return Ok(None);
    }
    let digits = field.chunks(2).map(|pair| {
        let text = str::from_utf8(pair).ok().filter(|text| text.len() == 2)?;
        u8::from_str_radix(text, 16).ok()
    });
    let bytes: Option<Vec<u8>> = digits.collect();
    let bytes = bytes.ok_or_else(|| {
        Error::invalid(format!(
            "digest: expected hexadecimal digits or '-', found '{}'",
            shown(field)
        ))
    })?;
    match <[u8; DIGEST_LEN]>::try_from(bytes) {
        Ok(digest) => Ok(Some(digest)),
        Err(bytes) if bytes.len() == 64 => Err(Error::new(
            weald_format::ErrorKind::Unsupported,
            "digest: is one of SHA-512, and weald reads those of SHA-256: make the dump with \
             SHA-256",
        )),
        Err(bytes) => Err(Error::invalid(format!(
            "digest: has {} bytes, expected {DIGEST_LEN}",
            bytes.len()
        ))),
    }
}

fn parse_xattrs<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<XattrSet> {
    let mut xattrs = XattrSet::new();
    for word in words.filter(|word| !word.is_empty()) {
        let at = word.iter().position(|byte| *byte == b'=');
        let (name, value) = at.and_then(|at| word.split_at_checked(at)).ok_or_else(|| {
            Error::invalid(format!(
                "xattr: expected NAME=VALUE, found '{}'",
                shown(word)
            ))
        })?;
        let value = value.get(1..).unwrap_or_default();
        let name = unescape(name).map_err(|error| in_field("xattr", error))?;
        let value = unescape(value).map_err(|error| in_field("xattr", error))?;
        if name.is_empty() || name.contains(&0) {
            let what = "xattr: the name is empty or has a zero byte";
            return Err(Error::invalid(what));
        }
        xattrs.push(Xattr { name, value });
    }
    xattrs.sort();
    let twins = xattrs.windows(2).find_map(|pair| match pair {
        [a, b] if a.name == b.name => Some(a.name.clone()),
        _ => None,
    });
    match twins {
        Some(name) => Err(Error::invalid(format!(
            "xattr: {} is there twice",
            shown(&name)
        ))),
        None => Ok(xattrs),
    }
}

/// The bytes of a field that may be `-` for nothing.
fn optional(field: &[u8], name: &str) -> Result<Vec<u8>> {
    match field {
        b"-" => Ok(Vec::new()),
        field => unescape(field).map_err(|error| in_field(name, error)),
    }
}

/// The bytes that `text` stands for.
///
/// # Errors
/// `Invalid` for an escape that is cut off or unknown.
fn unescape(text: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        if *byte != b'\\' {
            bytes.push(*byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b'\\') => b'\\',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b't') => b'\t',
            Some(b'x') => hex_byte(rest.next(), rest.next())?,
            Some(other) => {
                return Err(Error::invalid(format!(
                    "unknown escape '\\{}': expected \\xNN, \\\\, \\n, \\r or \\t",
                    other.escape_ascii()
                )));
            }
            None => {
                let what = "ends in the middle of an escape: expected \\xNN, \\\\, \\n, \\r or \\t";
                return Err(Error::invalid(what));
            }
        });
    }
    Ok(bytes)
}

fn hex_byte(high: Option<&u8>, low: Option<&u8>) -> Result<u8> {
    let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
    match (digit(high), digit(low)) {
        (Some(high), Some(low)) => Ok((high << 4 | low) as u8),
        _ => {
            let what = "\\x needs two hexadecimal digits behind it";
            Err(Error::invalid(what))
        }
    }
}

fn put_optional(bytes: &[u8], out: &mut Vec<u8>) {
    match bytes {
        b"" => out.push(b'-'),
        b"-" => out.extend_from_slice(b"\\x2d"),
        bytes => escape(bytes, false, out),
    }
}

fn escape(bytes: &[u8], escapes_equals: bool, out: &mut Vec<u8>) {
    for byte in bytes {
        match byte {
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            b'=' if !escapes_equals => out.push(b'='),
            b'!'..=b'~' if *byte != b'=' => out.push(*byte),
            byte => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
        }
    }
}

/// A device number as `st_rdev` has it, from major and minor number.
pub fn join_device(rdev: u64) -> u64 {
    let (major, minor) = (rdev >> 32, rdev & 0xffff_ffff);
    (major & 0xffff_f000) << 32 | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | minor & 0xff
}

/// Major and minor number of `st_rdev`.
pub fn split_device(device: u64) -> u64 {
    let major = device >> 32 & 0xffff_f000 | device >> 8 & 0xfff;
    let minor = device >> 12 & 0xffff_ff00 | device & 0xff;
    major << 32 | minor
}

fn shown(field: &[u8]) -> String {
    let front = field.get(..field.len().min(40)).unwrap_or_default();
    front.escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(fields: &str) -> Result<DumpEntry> {
        DumpEntry::parse(fields.as_bytes())
    }

    /// Would catch: a field that is read from the wrong place or written differently.
    #[test]
    fn lines_come_back() {
        for text in [
            "/ 0 40755 3 0 0 0 1000000000.5 - - -",
            "/a\\x20b 5 100644 1 1000 4294967295 0 -3.0 - hello -",
            "/f 70 104755 2 0 0 0 0.999999999 ab/cd - \
             aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \
             user.a=b security.x\\x3dy=\\x00\\n\\\\",
            "/l 1 120777 1 0 0 0 0.0 \\x2d - -",
            "/d 0 20600 1 0 0 17592186110211 0.0 - - -",
            "/g 0 @120000 - - - - 0.0 /a/f - -",
        ] {
            let entry = line(text).unwrap();
            let mut again = Vec::new();
            entry.put(&mut again);
            let parsed = DumpEntry::parse(again.strip_suffix(b"\n").unwrap()).unwrap();
            assert_eq!(parsed, entry, "{text}");
            if !text.contains("user.a") {
                assert_eq!(String::from_utf8(again).unwrap(), format!("{text}\n"));
            }
        }
    }

    /// Would catch: a bad line that is accepted, or whose message does not name the field.
    #[test]
    fn bad_lines_are_refused_with_the_field() {
        let digest = "a".repeat(128);
        for (text, reason) in [
            ("/a 0", "has 2 fields"),
            (
                "a 0 100644 1 0 0 0 0.0 - - -",
                "path: expected a path that begins with '/'",
            ),
            ("/a/../b 0 100644 1 0 0 0 0.0 - - -", "path: the path has"),
            ("/a\\x00 0 100644 1 0 0 0 0.0 - - -", "path: the path has"),
            (
                "/a\\q 0 100644 1 0 0 0 0.0 - - -",
                "path: unknown escape '\\q'",
            ),
            ("/a\\x4 0 100644 1 0 0 0 0.0 - - -", "path: \\x needs two"),
            (
                "/a\\ 0 100644 1 0 0 0 0.0 - - -",
                "path: ends in the middle",
            ),
            (
                "/a x 100644 1 0 0 0 0.0 - - -",
                "size: expected a decimal number",
            ),
            (
                "/a +1 100644 1 0 0 0 0.0 - - -",
                "size: expected a decimal number",
            ),
            (
                "/a 0 100849 1 0 0 0 0.0 - - -",
                "mode: expected an octal number",
            ),
            ("/a 0 0644 1 0 0 0 0.0 - - -", "mode: 644 has no file type"),
            ("/a 0 100644 1 4294967296 0 0 0.0 - - -", "uid: expected"),
            ("/a 0 100644 1 0 0 0 0.1000000000 - - -", "mtime: expected"),
            ("/a 3 100644 1 0 0 0 0.0 - hello -", "content: has 5 bytes"),
            (
                "/a 5 40755 1 0 0 0 0.0 - hello -",
                "content: only a regular file",
            ),
            ("/a 0 120777 1 0 0 0 0.0 - - -", "payload: a symlink needs"),
            ("/a 99 100644 1 0 0 0 0.0 ../x - -", "payload: the path has"),
            (
                "/a 0 100644 1 0 0 0 0.0 - - xyz",
                "digest: expected hexadecimal",
            ),
            ("/a 0 100644 1 0 0 0 0.0 - - abab", "digest: has 2 bytes"),
            (
                "/a 0 100644 1 0 0 0 0.0 - - - user.a",
                "xattr: expected NAME=VALUE",
            ),
            (
                "/a 0 100644 1 0 0 0 0.0 - - - a=1 a=2",
                "xattr: a is there twice",
            ),
            (
                &format!("/a 0 100644 1 0 0 0 0.0 - - {digest}"),
                "digest: is one of SHA-512",
            ),
        ] {
            let error = line(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    /// Would catch: a changed byte that makes the parser panic, or that is read as one thing and
    /// written as another.
    #[test]
    fn changed_lines_are_refused_or_come_back() {
        let digest = "ab".repeat(32);
        let seed = format!(
            "/a\\x20b 70 104755 2 0 0 0 -1.999999999 ab/cd - {digest} user.a=\\x00\\n s\\x3dy="
        );
        let mut accepted_count = 0;
        for at in 0..seed.len() {
            for byte in 0..=u8::MAX {
                for mut line in [seed.clone().into_bytes(), seed.as_bytes()[..at].to_vec()] {
                    match line.get_mut(at) {
                        Some(place) => *place = byte,
                        None => line.push(byte),
                    }
                    let Ok(entry) = DumpEntry::parse(&line) else {
                        continue;
                    };
                    accepted_count += 1;
                    let mut again = Vec::new();
                    entry.put(&mut again);
                    let again = again.strip_suffix(b"\n").unwrap();
                    assert_eq!(DumpEntry::parse(again).unwrap(), entry);
                }
            }
        }
        assert!(accepted_count > 1000, "{accepted_count}");
    }

    /// Would catch: device numbers that lose bits on the way.
    #[test]
    fn device_numbers_come_back() {
        for rdev in [0, 1 << 32 | 3, 0xfff << 32 | 0xf_ffff, u64::MAX] {
            assert_eq!(split_device(join_device(rdev)), rdev, "{rdev:x}");
        }
    }
}
