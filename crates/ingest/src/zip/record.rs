//! Records of the list, and the headers before the data.

use super::dos_time::dos_time;
use super::end::wrong;
use super::extra::Extra;
use super::names::{NameForm, path_of};
use crate::fields::Fields;
use flate2::Crc;
use std::io::Read;
use weald_format::{Error, ErrorKind, FileKind, Result, Timestamp};
use weald_io::{FileSource, ReadAt};

/// Begins the header before a member's data.
pub const LOCAL_MAGIC: &[u8] = b"PK\x03\x04";
const LOCAL_LEN: usize = 30;
const RECORD_MAGIC: &[u8] = b"PK\x01\x02";
const RECORD_LEN: usize = 46;
/// Begins a digital signature behind the list.
const SIGNATURE_MAGIC: &[u8] = b"PK\x05\x05";
/// A number that stands in an extra field instead.
const LARGE: u32 = u32::MAX;

/// Systems on which members have modes of Unix.
const UNIX_SYSTEMS: [u8; 2] = [3, 19];
/// Flags.
const ENCRYPTED: u16 = 1;
const PATCH: u16 = 1 << 5;
const UTF8: u16 = 1 << 11;
const HIDDEN_HEADER: u16 = 1 << 13;
/// Method of members that AES encrypts.
const AES: u16 = 99;
/// Attributes of MS-DOS.
const DOS_READ_ONLY: u32 = 1;
const DOS_DIRECTORY: u32 = 1 << 4;
/// Data of DEFLATE at most, for each byte that is stored.
const DEFLATE_RATIO_MAX: u64 = 1032;

/// Methods by number.
pub mod method {
    pub const STORED: u16 = 0;
    pub const DEFLATE: u16 = 8;
    pub const ZSTD: u16 = 93;
    pub const XZ: u16 = 95;
}

/// A record of the list.
#[derive(Debug)]
pub struct Record {
    pub path: Vec<u8>,
    raw_name: Vec<u8>,
    system: u8,
    flags: u16,
    pub method: u16,
    date: u16,
    time: u16,
    pub crc: u32,
    pub stored_len: u64,
    pub data_len: u64,
    outer_attributes: u32,
    offset: u64,
    pub extra: Extra,
    /// Bytes of the header before the data.
    local_len: u64,
}

impl Record {
    /// Reads the next record, which has at most `len_max` bytes; returns it with its length.
    /// `None` for a signature behind the list.
    ///
    /// # Errors
    /// `Io`; `Invalid` for other bytes.
    pub fn read(list: &mut impl Read, len_max: u64) -> Result<Option<(Self, u64)>> {
        let failed = |e| Error::io("the list of members", e);
        let short = || wrong("its list ends in a record");
        if len_max < RECORD_LEN as u64 {
            return Err(short());
        }
        let mut head = [0; RECORD_LEN];
        list.read_exact(&mut head).map_err(failed)?;
        if head.starts_with(SIGNATURE_MAGIC) {
            return Ok(None);
        }
        if !head.starts_with(RECORD_MAGIC) {
            return Err(wrong("a record of its list does not begin as one"));
        }
        let Some((mut record, lens)) = Self::parse(&head) else {
            return Err(short());
        };
        let [name_len, extra_len, comment_len] = lens.map(usize::from);
        let len = RECORD_LEN + name_len + extra_len + comment_len;
        if len as u64 > len_max {
            return Err(short());
        }
        let mut rest = vec![0; len - RECORD_LEN];
        list.read_exact(&mut rest).map_err(failed)?;
        let mut rest = Fields(&rest);
        let name = rest.take(name_len).unwrap_or_default();
        record.raw_name = name.to_vec();
        record.extra.read(rest.take(extra_len).unwrap_or_default());
        record.take_large()?;
        let form = NameForm {
            is_utf8: record.flags & UTF8 != 0,
            is_unix: UNIX_SYSTEMS.contains(&record.system),
        };
        record.path = match record.extra.path.take() {
            Some((crc, path)) if !form.is_utf8 && crc == crc_of(name) => path,
            _ => path_of(name, form),
        };
        Ok(Some((record, len as u64)))
    }

    /// The record that begins with `head`, and the lengths of name, extra fields and comment.
    fn parse(head: &[u8]) -> Option<(Self, [u16; 3])> {
        let mut fields = Fields(head.get(4..)?);
        let (_version, system) = (fields.u8()?, fields.u8()?);
        let _needed = fields.u16()?;
        let (flags, method) = (fields.u16()?, fields.u16()?);
        let (time, date) = (fields.u16()?, fields.u16()?);
        let crc = fields.u32()?;
        let (stored_len, data_len) = (fields.u32()?, fields.u32()?);
        let lens = [fields.u16()?, fields.u16()?, fields.u16()?];
        let (_disk, _inner_attributes) = (fields.u16()?, fields.u16()?);
        let (outer_attributes, offset) = (fields.u32()?, fields.u32()?);
        let record = Self {
            path: Vec::new(),
            raw_name: Vec::new(),
            system,
            flags,
            method,
            date,
            time,
            crc,
            stored_len: stored_len.into(),
            data_len: data_len.into(),
            outer_attributes,
            offset: offset.into(),
            extra: Extra::default(),
            local_len: 0,
        };
        Some((record, lens))
    }

    /// Takes large numbers from their extra field.
    fn take_large(&mut self) -> Result<()> {
        let large = std::mem::take(&mut self.extra.large);
        let mut fields = Fields(&large);
        for number in [&mut self.data_len, &mut self.stored_len, &mut self.offset] {
            if *number == u64::from(LARGE) {
                let found = fields.u64();
                *number = found.ok_or_else(|| wrong("a record has no large numbers"))?;
            }
        }
        Ok(())
    }

    /// Refuses members that are encrypted, or are no whole files.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn refuse_encrypted(&self) -> Result<()> {
        let unsupported = |what| Err(Error::new(ErrorKind::Unsupported, what));
        if self.flags & (ENCRYPTED | HIDDEN_HEADER) != 0 || self.method == AES {
            return unsupported("is encrypted: unpack the archive, and build from the directory");
        }
        if self.flags & PATCH != 0 {
            return unsupported("is a patch of another file");
        }
        Ok(())
    }

    /// Reads the header before the data, for what the list does not say. Returns the offset of the
    /// data. Offsets of the archive count from `before_len`.
    ///
    /// # Errors
    /// `Io`; `Invalid` for a header of another member, or none.
    pub fn read_local(&mut self, file: &FileSource, before_len: u64) -> Result<u64> {
        let at = before_len.checked_add(self.offset);
        let at = at.ok_or_else(|| wrong("an offset of a member"))?;
        let read = |start: u64, out: &mut [u8]| {
            let end = start.checked_add(out.len() as u64);
            if end.is_none_or(|end| end > file.len()) {
                return Err(wrong("a member lies outside of the file"));
            }
            file.read_exact_at(out, start)
        };
        let mut head = [0; LOCAL_LEN];
        read(at, &mut head)?;
        let mut lens = Fields(head.get(26..).unwrap_or_default());
        let (name_len, extra_len) = (lens.u16(), lens.u16());
        let name_len = usize::from(name_len.unwrap_or_default());
        let mut rest = vec![0; name_len + usize::from(extra_len.unwrap_or_default())];
        read(at + LOCAL_LEN as u64, &mut rest)?;
        let (name, extra) = rest.split_at_checked(name_len).unwrap_or_default();
        if !head.starts_with(LOCAL_MAGIC) || name != self.raw_name {
            return Err(wrong("another member lies where the list says"));
        }
        self.extra.read(extra);
        self.extra.large.clear();
        self.local_len = (LOCAL_LEN + rest.len()) as u64;
        Ok(at + self.local_len)
    }

    /// Bytes of the archive that the member takes at least.
    pub fn taken_len(&self) -> u64 {
        self.local_len.saturating_add(self.stored_len)
    }

    /// Refuses lengths that cannot be true; the data lie from `data_start` on, and end before
    /// `end`.
    ///
    /// # Errors
    /// `Invalid`.
    pub fn check_lens(&self, end: u64, data_start: u64) -> Result<()> {
        let data_end = data_start.checked_add(self.stored_len);
        if data_end.is_none_or(|data_end| data_end > end) {
            return Err(wrong("its data lie behind the members"));
        }
        let len_max = match self.method {
            method::STORED => self.stored_len,
            method::DEFLATE => self.stored_len.saturating_mul(DEFLATE_RATIO_MAX),
            _ => u64::MAX,
        };
        if self.data_len > len_max {
            let (data_len, stored_len) = (self.data_len, self.stored_len);
            return Err(wrong(format!(
                "{stored_len} bytes cannot hold {data_len}, which the list announces"
            )));
        }
        Ok(())
    }

    /// Mode of Unix, if the member has one.
    fn mode(&self) -> Option<u32> {
        let mode = self.outer_attributes >> 16;
        (UNIX_SYSTEMS.contains(&self.system) && mode != 0).then_some(mode)
    }

    /// Kind of the member; `None` for one that has no data.
    pub fn kind(&self) -> Option<FileKind> {
        let is_dir_by_name = self.path.ends_with(b"/");
        let is_dos_dir = self.outer_attributes & DOS_DIRECTORY != 0;
        match self.mode().map(|mode| mode & 0o170_000) {
            Some(0o040_000) => Some(FileKind::Directory),
            Some(0o120_000) => Some(FileKind::Symlink),
            Some(0o010_000 | 0o020_000 | 0o060_000 | 0o140_000) => None,
            Some(_) if !is_dir_by_name => Some(FileKind::Regular),
            None if !is_dir_by_name && !is_dos_dir => Some(FileKind::Regular),
            _ => Some(FileKind::Directory),
        }
    }

    /// Permissions of the member, which is of this kind.
    pub fn permissions(&self, kind: FileKind) -> u16 {
        let is_read_only = self.outer_attributes & DOS_READ_ONLY != 0;
        match (self.mode(), kind) {
            (Some(mode), _) => (mode & 0o7777) as u16,
            (None, FileKind::Directory) => 0o755,
            (None, _) if is_read_only => 0o444,
            (None, _) => 0o644,
        }
    }

    /// mtime of the member: the finest that it has.
    pub fn mtime(&self) -> Timestamp {
        let of_seconds = self.extra.mtime_s.map(|seconds| Timestamp {
            seconds: seconds.into(),
            nanoseconds: 0,
        });
        let known = self.extra.ntfs_mtime.or(of_seconds);
        known.unwrap_or_else(|| dos_time(self.date, self.time))
    }
}

/// CRC-32 of a name.
fn crc_of(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
