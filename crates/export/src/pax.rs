//! Headers of a tar stream: ustar, and pax records for what ustar cannot hold. The same entry
//! always gives the same bytes.
//!
//! Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar 1.35
//! manual, appendix "Sparse Formats", "PAX Format, Version 1.0"; star(4) for `SCHILY.*`; for names
//! that need escapes GNU tar's `xattr_encode_keyword` (src/xheader.c) and libarchive's
//! `archive_write_pax_header_xattr` (archive_write_set_format_pax.c).

use weald_format::{FileKind, Timestamp, Xattr, XattrSet};

/// Bytes of a header block; data is padded to a multiple.
pub(crate) const TAR_BLOCK_LEN: usize = 512;

/// A header block being written.
pub(crate) struct Header([u8; TAR_BLOCK_LEN]);

// Field offsets and lengths of ustar.
const NAME: (usize, usize) = (0, 100);
const MODE: (usize, usize) = (100, 8);
const UID: (usize, usize) = (108, 8);
const GID: (usize, usize) = (116, 8);
const SIZE: (usize, usize) = (124, 12);
const MTIME: (usize, usize) = (136, 12);
const CHECKSUM: (usize, usize) = (148, 8);
const TYPE: (usize, usize) = (156, 1);
const LINK: (usize, usize) = (157, 100);
const MAGIC: (usize, usize) = (257, 8);
const DEVICE_MAJOR: (usize, usize) = (329, 8);
const DEVICE_MINOR: (usize, usize) = (337, 8);
const PREFIX: (usize, usize) = (345, 155);

/// Contents of the headers of one entry.
pub struct Entry<'a> {
    /// Path; that of a directory ends in `/`.
    pub path: &'a [u8],
    /// One of ustar's type letters.
    pub type_flag: u8,
    /// Low 12 bits of the mode.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes that follow the headers, padding not counted.
    pub size: u64,
    /// mtime.
    pub mtime: Timestamp,
    /// Time of the last access, if the header has one.
    pub atime: Option<Timestamp>,
    /// Time of the last change of the inode, if the header has one.
    pub ctime: Option<Timestamp>,
    /// Target of a symlink, path of a hard link's file, else empty.
    pub link: &'a [u8],
    /// (major, minor).
    pub device: (u32, u32),
    /// Extended attributes.
    pub xattrs: &'a XattrSet,
    /// Length of a sparse file, whose `size` is that of its map and data.
    pub sparse_len: Option<u64>,
}

/// The type letter of `kind`; `None` for a socket, which tar does not have.
pub fn type_flag(kind: FileKind) -> Option<u8> {
    Some(match kind {
        FileKind::Regular => b'0',
        FileKind::Symlink => b'2',
        FileKind::CharDevice => b'3',
        FileKind::BlockDevice => b'4',
        FileKind::Directory => b'5',
        FileKind::Fifo => b'6',
        FileKind::Socket => return None,
    })
}

impl Header {
    fn new() -> Self {
        let mut header = Self([0; TAR_BLOCK_LEN]);
        header.put(MAGIC, b"ustar\x0000");
        header
    }

    /// Writes `bytes` into a field, truncated to its length.
    fn put(&mut self, (start, len): (usize, usize), bytes: &[u8]) {
        let field = self.0.iter_mut().skip(start).take(len);
        field.zip(bytes).for_each(|(slot, &byte)| *slot = byte);
    }

    /// Writes an octal number ended by NUL. Returns false and writes zero if it does not fit.
    fn put_number(&mut self, field: (usize, usize), number: u64) -> bool {
        let width = field.1 - 1;
        let text = format!("{number:0width$o}");
        let is_fitting = text.len() <= width;
        self.put(
            field,
            if is_fitting {
                text.as_bytes()
            } else {
                &b"00000000000"[..width]
            },
        );
        is_fitting
    }

    /// Writes a path into name and prefix. Returns false and writes its beginning if it does not
    /// fit.
    fn put_path(&mut self, path: &[u8]) -> bool {
        if path.len() <= NAME.1 {
            self.put(NAME, path);
            return true;
        }
        // The prefix ends before a slash, and the name behind it is not empty.
        let is_split = |&at: &usize| {
            path.get(at) == Some(&b'/') && at + 1 < path.len() && path.len() - at - 1 <= NAME.1
        };
        let split = (1..=PREFIX.1).rev().find(is_split);
        let Some((prefix, name)) =
            split.and_then(|at| Some((path.get(..at)?, path.get(at + 1..)?)))
        else {
            self.put(NAME, path);
            return false;
        };
        self.put(PREFIX, prefix);
        self.put(NAME, name);
        true
    }

    fn finish(mut self) -> [u8; TAR_BLOCK_LEN] {
        self.put(CHECKSUM, b"        ");
        let sum: u32 = self.0.iter().map(|&byte| u32::from(byte)).sum();
        self.put(CHECKSUM, format!("{sum:06o}\0 ").as_bytes());
        self.0
    }
}

/// The header blocks of `entry`: a pax header with its records, if any are needed, and the ustar
/// header.
pub(crate) fn headers(entry: &Entry<'_>) -> Vec<u8> {
    let mut header = Header::new();
    let mut records = Records::default();
    put_names(entry, &mut header, &mut records);
    put_numbers(entry, &mut header, &mut records);
    for xattr in entry.xattrs {
        put_xattr(xattr, &mut records);
    }
    let mut blocks = records.into_blocks();
    blocks.extend_from_slice(&header.finish());
    blocks
}

fn put_names(entry: &Entry<'_>, header: &mut Header, records: &mut Records) {
    let path_key: &[u8] = if entry.sparse_len.is_some() {
        b"GNU.sparse.name"
    } else {
        b"path"
    };
    let mut long: Vec<(&[u8], &[u8])> = Vec::new();
    if let Some(len) = entry.sparse_len {
        records.push(b"GNU.sparse.major", b"1");
        records.push(b"GNU.sparse.minor", b"0");
        records.push(b"GNU.sparse.realsize", len.to_string().as_bytes());
        // Readers without sparse support unpack map and data under this name.
        header.put_path(b"GNUSparseFile.0/unreadable-without-sparse-support");
        long.push((path_key, entry.path));
    } else if !header.put_path(entry.path) {
        long.push((path_key, entry.path));
    }
    header.put(LINK, entry.link);
    if entry.link.len() > LINK.1 {
        long.push((b"linkpath", entry.link));
    }
    if long
        .iter()
        .any(|(_, value)| std::str::from_utf8(value).is_err())
    {
        records.push(b"hdrcharset", b"BINARY");
    }
    long.into_iter()
        .for_each(|(key, value)| records.push(key, value));
}

fn put_numbers(entry: &Entry<'_>, header: &mut Header, records: &mut Records) {
    header.put(TYPE, &[entry.type_flag]);
    header.put_number(MODE, entry.permissions.into());
    let numbers: [(_, u64, &[u8]); 5] = [
        (UID, entry.uid.into(), b"uid"),
        (GID, entry.gid.into(), b"gid"),
        (SIZE, entry.size, b"size"),
        (DEVICE_MAJOR, entry.device.0.into(), b"SCHILY.devmajor"),
        (DEVICE_MINOR, entry.device.1.into(), b"SCHILY.devminor"),
    ];
    for (field, number, key) in numbers {
        if !header.put_number(field, number) {
            records.push(key, number.to_string().as_bytes());
        }
    }
    let whole_seconds = u64::try_from(entry.mtime.seconds).ok();
    let is_whole = whole_seconds.is_some_and(|seconds| header.put_number(MTIME, seconds));
    if !is_whole || entry.mtime.nanoseconds != 0 {
        records.push(b"mtime", time_text(entry.mtime).as_bytes());
    }
    let others: [(&[u8], _); 2] = [(b"atime", entry.atime), (b"ctime", entry.ctime)];
    for (key, time) in others {
        if let Some(time) = time {
            records.push(key, time_text(time).as_bytes());
        }
    }
}

/// Adds the record `SCHILY.xattr.NAME`. A name with `=` needs escapes because `=` ends a keyword;
/// so do `%3D` and `%25`, which GNU tar reads as escapes. Such an xattr gets two records: one with
/// the escapes of GNU tar and one with those of libarchive. libarchive reads no escapes behind
/// `SCHILY.xattr.`, so it also makes an xattr with the escaped name, as it does from its own
/// streams.
fn put_xattr(xattr: &Xattr, records: &mut Records) {
    let name = &xattr.name;
    let is_escape = |letters: &[u8]| matches!(letters, b"%3D" | b"%25");
    let needs_escapes = name.contains(&b'=') || name.windows(3).any(is_escape);
    let escaped = if needs_escapes {
        let everywhere = escape(name, |byte| !byte.is_ascii_graphic());
        let key = [b"LIBARCHIVE.xattr.", everywhere.as_slice()].concat();
        records.push(&key, &base64(&xattr.value));
        escape(name, |_| false)
    } else {
        name.clone()
    };
    let key = [b"SCHILY.xattr.", escaped.as_slice()].concat();
    records.push(&key, &xattr.value);
}

/// `name` with `%` and two hexadecimal digits for `%`, `=` and all bytes for which `must` holds.
fn escape(name: &[u8], must: impl Fn(u8) -> bool) -> Vec<u8> {
    let letter = |&byte: &u8| match byte {
        b'%' | b'=' => format!("%{byte:02X}").into_bytes(),
        byte if must(byte) => format!("%{byte:02X}").into_bytes(),
        byte => vec![byte],
    };
    name.iter().flat_map(letter).collect()
}

/// Base64 of RFC 4648, section 4, without padding, as libarchive writes and reads it.
fn base64(bytes: &[u8]) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let group = three
            .iter()
            .fold(0u32, |group, &byte| group << 8 | u32::from(byte))
            << (8 * (3 - three.len()));
        let digit = |place: usize| DIGITS[(group >> (18 - 6 * place)) as usize % 64];
        text.extend((0..=three.len()).map(digit));
    }
    text
}

/// Seconds with a decimal fraction. `time` counts nanoseconds up from its seconds, so −1.25 s is
/// (−2 s, 750,000,000 ns).
fn time_text(time: Timestamp) -> String {
    let (mut seconds, mut nanoseconds) = (i128::from(time.seconds), time.nanoseconds);
    let is_negative = seconds < 0 && nanoseconds > 0;
    if is_negative {
        (seconds, nanoseconds) = (
            -(seconds + 1),
            1_000_000_000_u32.saturating_sub(nanoseconds),
        );
    }
    let sign = if is_negative { "-" } else { "" };
    let fraction = format!("{nanoseconds:09}");
    let text = format!("{sign}{seconds}.{}", fraction.trim_end_matches('0'));
    text.trim_end_matches('.').to_owned()
}

/// Records of a pax header.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    /// Adds `LENGTH KEY=VALUE\n`, where LENGTH includes its own digits.
    fn push(&mut self, key: &[u8], value: &[u8]) {
        let rest_len = key.len() + value.len() + 3;
        let mut len = rest_len + 1;
        while len != rest_len + len.to_string().len() {
            len = rest_len + len.to_string().len();
        }
        self.0.extend_from_slice(format!("{len} ").as_bytes());
        self.0.extend_from_slice(key);
        self.0.push(b'=');
        self.0.extend_from_slice(value);
        self.0.push(b'\n');
    }

    fn into_blocks(self) -> Vec<u8> {
        if self.0.is_empty() {
            return self.0;
        }
        let mut header = Header::new();
        header.put_path(b"PaxHeaders/0");
        header.put(TYPE, b"x");
        for field in [UID, GID, MTIME, DEVICE_MAJOR, DEVICE_MINOR] {
            header.put_number(field, 0);
        }
        header.put_number(MODE, 0o644);
        header.put_number(SIZE, self.0.len() as u64);
        let mut blocks = header.finish().to_vec();
        blocks.extend_from_slice(&self.0);
        blocks.resize(blocks.len().next_multiple_of(TAR_BLOCK_LEN), 0);
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for value_len in 0..2000 {
            let mut records = Records::default();
            records.push(b"key", &vec![b'x'; value_len]);
            let text = String::from_utf8(records.0).unwrap();
            let len: usize = text.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(len, text.len());
        }
    }

    #[test]
    fn times_before_1970_count_backwards() {
        let at = |seconds, nanoseconds| {
            time_text(Timestamp {
                seconds,
                nanoseconds,
            })
        };
        assert_eq!(at(5, 0), "5");
        assert_eq!(at(5, 20), "5.00000002");
        assert_eq!(at(-1, 0), "-1");
        assert_eq!(at(-2, 750_000_000), "-1.25");
        assert_eq!(at(-1, 500_000_000), "-0.5");
        assert_eq!(at(i64::MIN, 1), "-9223372036854775807.999999999");
    }

    // Source: RFC 4648, section 10.
    #[test]
    fn base64_is_that_of_the_standard() {
        let table = [
            "", "", "f", "Zg", "fo", "Zm8", "foo", "Zm9v", "foob", "Zm9vYg", "fooba", "Zm9vYmE",
            "foobar", "Zm9vYmFy",
        ];
        for pair in table.chunks(2) {
            assert_eq!(base64(pair[0].as_bytes()), pair[1].as_bytes());
        }
        assert_eq!(base64(&[0xff, 0xef, 0xbe]), b"/+++");
    }

    #[test]
    fn paths_are_split_at_a_slash() {
        let mut header = Header::new();
        let path = format!("{}/{}", "d".repeat(150), "n".repeat(100));
        assert!(header.put_path(path.as_bytes()));
        assert!(!Header::new().put_path(format!("{path}n").as_bytes()));
        assert!(!Header::new().put_path(&[b'x'; 101]));
        assert!(!Header::new().put_path(format!("{}/", "d".repeat(120)).as_bytes()));
    }
}
