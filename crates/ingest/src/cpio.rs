//! Reader of cpio archives: newc and crc, also several archives in a row, as in an initramfs.
//!
//! Of a file with several names, newc has the data behind one of them, and the others have no
//! data. So the names without data wait until the one with data has come.
//!
//! Source: the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`; `copyin.c` of
//! GNU cpio 2.13 for links and for paths below symlinks.

use crate::first_names::FirstNames;
use crate::input::Input;
use crate::member::{Member, MemberKind};
use crate::members::{Layout, Members, Tell};
use crate::path::PATH_LEN_MAX;
use crate::through::{Reach, Through};
use std::collections::{HashMap, VecDeque};
use weald_format::limits::TARGET_LEN_MAX;
use weald_format::{Attributes, Error, ErrorKind, FileKind, Result, Timestamp, XattrSet};

const NEWC_MAGIC: &[u8] = b"070701";
const CRC_MAGIC: &[u8] = b"070702";
const OLD_ASCII_MAGIC: &[u8] = b"070707";
/// The old binary format, in both byte orders.
const OLD_BINARY_MAGICS: [&[u8]; 2] = [b"\xc7\x71", b"\x71\xc7"];
const HEADER_LEN: usize = 110;
/// Names and data end at a multiple of this, counted from the start of the archive.
const ALIGNMENT: u64 = 4;
/// Name of the last entry of an archive.
const TRAILER: &[u8] = b"TRAILER!!!";
/// Bytes of memory for a name that waits for its data, besides its path.
const WAITING_LEN: u64 = 160;
/// Archives in a row, each of which may be compressed in its own way.
const ARCHIVE_COUNT_MAX: u32 = 64;

/// Identifies a file in an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FileKey {
    device: u64,
    ino: u32,
}

/// The fields of a header, checked.
#[derive(Debug, Clone)]
struct Header {
    key: FileKey,
    kind: FileKind,
    attributes: Attributes,
    nlink: u32,
    mtime: Timestamp,
    data_len: u64,
    name_len: u64,
    /// Sum of the bytes of data, in the format crc.
    sum: Option<u32>,
}

/// Names of a file whose data have not come.
struct Waiting {
    attributes: Attributes,
    mtime: Timestamp,
    paths: Vec<Vec<u8>>,
    /// Place of the first of them in the stream, for an order that does not vary.
    no: u64,
}

/// Reads a cpio archive member by member.
pub struct CpioReader {
    input: Input,
    /// Bytes that a decoder may take.
    decoder_len: u64,
    /// Offset in the input at which the archive begins.
    start: u64,
    /// Bytes of earlier inputs, for messages.
    before_len: u64,
    archive_count: u32,
    data_len: u64,
    sum: Option<u32>,
    found_sum: u32,
    layout: Option<Layout>,
    through: Through,
    names: FirstNames<FileKey>,
    waiting: HashMap<FileKey, Waiting>,
    waiting_len: u64,
    waiting_len_max: u64,
    member_no: u64,
    /// Members that come before the next header.
    ready: VecDeque<Member>,
    is_over: bool,
}

impl CpioReader {
    /// Reads from `input`. A decoder may take `decoder_len` bytes, and paths of files with several
    /// names `links_len`.
    pub fn new(input: Input, decoder_len: u64, links_len: u64) -> Self {
        Self {
            input,
            decoder_len,
            start: 0,
            before_len: 0,
            archive_count: 1,
            data_len: 0,
            sum: None,
            found_sum: 0,
            layout: None,
            through: Through::new(Reach::Inside),
            names: FirstNames::new(links_len / 2),
            waiting: HashMap::new(),
            waiting_len: 0,
            waiting_len_max: links_len / 2,
            member_no: 0,
            ready: VecDeque::new(),
            is_over: false,
        }
    }

    /// Whether `front`, the first bytes of a stream, is the start of an archive of any cpio format.
    pub fn is_cpio(front: &[u8]) -> bool {
        [NEWC_MAGIC, CRC_MAGIC, OLD_ASCII_MAGIC]
            .iter()
            .any(|magic| front.starts_with(magic))
            || Self::is_old_binary(front)
    }

    /// Whether the first bytes are a header of the old binary format: its name is no longer than a
    /// path, and ends in a zero.
    fn is_old_binary(front: &[u8]) -> bool {
        let pair = front.get(20..22).and_then(|pair| pair.try_into().ok());
        let lens = pair.map(|pair| [u16::from_le_bytes(pair), u16::from_be_bytes(pair)]);
        let mut found = OLD_BINARY_MAGICS.iter().zip(lens.unwrap_or_default());
        found.any(|(magic, len)| {
            let end = 25 + usize::from(len);
            front.starts_with(magic) && len > 1 && front.get(end) == Some(&0)
        })
    }

    fn wrong(&self, what: impl std::fmt::Display) -> Error {
        let at = self.before_len + self.input.offset();
        Error::invalid(format!("cpio archive, byte {at}: {what}"))
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        if self.input.read(out)? == out.len() {
            Ok(())
        } else {
            Err(self.wrong("the archive is cut short"))
        }
    }

    /// Skips to the next multiple of four.
    fn align(&mut self) -> Result<()> {
        let at = self.input.offset() - self.start;
        let mut padding = [0; ALIGNMENT as usize];
        let len = at.next_multiple_of(ALIGNMENT) - at;
        self.fill(padding.get_mut(..len as usize).unwrap_or_default())
    }

    /// Reads what the caller did not want, and compares the sum of the data.
    fn end_data(&mut self) -> Result<()> {
        let mut piece = vec![0; self.data_len.min(64 << 10) as usize];
        while self.data_len > 0 {
            let len = self.data_len.min(piece.len() as u64) as usize;
            self.fill_data(piece.get_mut(..len).unwrap_or_default())?;
        }
        self.align()?;
        match self.sum.take() {
            Some(sum) if sum != self.found_sum => Err(self.wrong(format_args!(
                "the data have the sum {:08x}, expected {sum:08x}",
                self.found_sum
            ))),
            _ => Ok(()),
        }
    }

    fn fill_data(&mut self, out: &mut [u8]) -> Result<()> {
        self.data_len = match self.data_len.checked_sub(out.len() as u64) {
            Some(remaining) => remaining,
            None => return Err(self.wrong("more data wanted than there is")),
        };
        self.fill(out)?;
        if self.sum.is_some() {
            let bytes = out.iter();
            self.found_sum = bytes.fold(self.found_sum, |sum, &byte| sum.wrapping_add(byte.into()));
        }
        Ok(())
    }

    /// The next header and its path; `None` behind the last archive.
    fn header(&mut self, tell: &mut Tell<'_>) -> Result<Option<(Header, Vec<u8>)>> {
        loop {
            let mut bytes = [0; HEADER_LEN];
            match self.input.read(&mut bytes)? {
                HEADER_LEN => {}
                _ => return Err(self.wrong("no trailer at the end: the archive is cut short")),
            }
            let header = Header::parse(&bytes).map_err(|e| {
                let what = self.wrong(&e).to_string();
                Error::new(e.kind(), what)
            })?;
            if header.name_len > PATH_LEN_MAX as u64 + 1 {
                let what = format!(
                    "a path of {} bytes, at most {PATH_LEN_MAX} are taken",
                    header.name_len
                );
                return Err(Error::limit(self.wrong(what).to_string()));
            }
            let mut path = vec![0; header.name_len as usize];
            self.fill(&mut path)?;
            if path.pop() != Some(0) || path.contains(&0) {
                return Err(self.wrong("a path without a zero byte at its end"));
            }
            self.align()?;
            if path != TRAILER {
                return Ok(Some((header, path)));
            }
            self.put_waiting_first();
            if !self.next_archive(tell)? {
                return Ok(None);
            }
            if !self.ready.is_empty() {
                // The names that still waited come first; the caller asks again.
                return Ok(None);
            }
        }
    }

    /// Makes files without data of the names that waited for some.
    fn put_waiting_first(&mut self) {
        let mut waiting: Vec<Waiting> = self.waiting.drain().map(|(_, waiting)| waiting).collect();
        waiting.sort_by_key(|waiting| waiting.no);
        self.waiting_len = 0;
        for Waiting {
            attributes,
            mtime,
            paths,
            ..
        } in waiting
        {
            let mut paths = paths.into_iter();
            let Some(first) = paths.next() else {
                continue;
            };
            self.ready.push_back(Member {
                path: first.clone(),
                kind: MemberKind::Entry(FileKind::Regular),
                attributes,
                mtime,
                ..Member::default()
            });
            self.ready.extend(paths.map(|path| link(path, &first)));
        }
    }

    /// Goes behind the zeros that follow an archive. False at the end of the stream.
    fn next_archive(&mut self, tell: &mut Tell<'_>) -> Result<bool> {
        let mut word = [0; ALIGNMENT as usize];
        loop {
            let len = self.input.read(&mut word)?;
            if word == [0; 4] && len == word.len() {
                continue;
            }
            let found = word.get(..len).unwrap_or_default();
            if found.iter().all(|byte| *byte == 0) {
                self.is_over = true;
                return Ok(false);
            }
            let offset = self.before_len + self.input.offset() - len as u64;
            self.archive_count += 1;
            if self.archive_count > ARCHIVE_COUNT_MAX {
                let what = format!("more than {ARCHIVE_COUNT_MAX} archives in a row");
                return Err(Error::limit(self.wrong(what).to_string()));
            }
            self.before_len = offset;
            self.input = self.input.again_from(found, self.decoder_len)?;
            self.start = 0;
            if Self::is_cpio(self.input.front()) {
                // Another archive has its own numbers of files.
                self.names.forget_all();
                return Ok(true);
            }
            let what = "data follows the end of the cpio archive: it is not read".to_owned();
            tell(format!("byte {offset}").as_bytes(), what);
            self.input.drain()?;
            self.is_over = true;
            return Ok(false);
        }
    }

    /// Fills `member`. False for a name that waits for its data.
    fn take(&mut self, header: Header, path: Vec<u8>, member: &mut Member) -> Result<bool> {
        self.member_no += 1;
        *member = Member {
            path,
            kind: MemberKind::Entry(header.kind),
            attributes: header.attributes,
            mtime: header.mtime,
            xattrs: XattrSet::new(),
            target: Vec::new(),
        };
        self.data_len = header.data_len;
        (self.sum, self.found_sum) = (header.sum, 0);
        if header.kind == FileKind::Symlink {
            if header.data_len > TARGET_LEN_MAX as u64 {
                let what = format!(
                    "a symlink whose target has {} bytes, expected 1 to {TARGET_LEN_MAX}",
                    header.data_len
                );
                return Err(self.wrong(what));
            }
            let mut target = vec![0; header.data_len as usize];
            self.fill_data(&mut target)?;
            member.target = target;
        }
        self.through.follow(member);
        if header.nlink < 2 || header.kind == FileKind::Directory {
            self.begin(&header);
            return Ok(true);
        }
        // cpio programs give each name of a symlink a target, and make symlinks of their own.
        if header.kind == FileKind::Symlink && !member.target.is_empty() {
            self.names
                .first_path(header.key, header.nlink, &member.path)?;
            return Ok(true);
        }
        if self.names.has(&header.key) || header.kind != FileKind::Regular || header.data_len > 0 {
            let first = self
                .names
                .first_path(header.key, header.nlink, &member.path)?;
            match first {
                Some(first) => {
                    member.kind = MemberKind::HardLink;
                    member.target = first;
                }
                None => {
                    self.begin(&header);
                    self.settle(&header, member)?;
                }
            }
            return Ok(true);
        }
        self.wait(&header, member)?;
        Ok(false)
    }

    fn begin(&mut self, header: &Header) {
        self.layout = (header.kind == FileKind::Regular).then_some(Layout {
            len: header.data_len,
            runs: None,
        });
    }

    /// Links the names that waited for the data of `member`.
    fn settle(&mut self, header: &Header, member: &Member) -> Result<()> {
        let Some(waiting) = self.waiting.remove(&header.key) else {
            return Ok(());
        };
        for path in waiting.paths {
            self.waiting_len -= WAITING_LEN + path.len() as u64;
            // Counts the name.
            self.names.first_path(header.key, header.nlink, &path)?;
            self.ready.push_back(link(path, &member.path));
        }
        Ok(())
    }

    fn wait(&mut self, header: &Header, member: &Member) -> Result<()> {
        self.waiting_len += WAITING_LEN + member.path.len() as u64;
        if self.waiting_len > self.waiting_len_max {
            return Err(Error::limit(format!(
                "memory: {} files have several names and no data so far; more memory takes more \
                 of them",
                self.waiting.len()
            )));
        }
        let no = self.member_no;
        let waiting = self.waiting.entry(header.key).or_insert_with(|| Waiting {
            attributes: header.attributes,
            mtime: header.mtime,
            paths: Vec::new(),
            no,
        });
        waiting.paths.push(member.path.clone());
        Ok(())
    }
}

fn link(path: Vec<u8>, first: &[u8]) -> Member {
    Member {
        path,
        kind: MemberKind::HardLink,
        target: first.to_vec(),
        ..Member::default()
    }
}

impl Header {
    fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self> {
        let is = |magic: &[u8]| bytes.starts_with(magic);
        if is(OLD_ASCII_MAGIC) || OLD_BINARY_MAGICS.iter().any(|magic| is(magic)) {
            let what = "an old format of cpio: make the archive with cpio -H newc, or give its \
                        tree as a tar stream (bsdtar -cf - @ARCHIVE)";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if !is(NEWC_MAGIC) && !is(CRC_MAGIC) {
            return Err(Error::invalid("no header of cpio (newc)"));
        }
        let field = |no: usize| -> Result<u32> {
            let start = NEWC_MAGIC.len() + 8 * no;
            let digits = bytes.get(start..start + 8).unwrap_or_default();
            let value = digits.iter().try_fold(0_u32, |value, &digit| {
                let digit = char::from(digit).to_digit(16)?;
                Some(value << 4 | digit)
            });
            value.ok_or_else(|| Error::invalid("a field of a header has no number"))
        };
        let mode = field(1)?;
        let kind = match mode & 0o170_000 {
            0o040_000 => FileKind::Directory,
            0o100_000 => FileKind::Regular,
            0o120_000 => FileKind::Symlink,
            0o020_000 => FileKind::CharDevice,
            0o060_000 => FileKind::BlockDevice,
            0o010_000 => FileKind::Fifo,
            0o140_000 => FileKind::Socket,
            // The trailer has none.
            0 => FileKind::Regular,
            other => return Err(Error::invalid(format!("a mode of no type: {other:o}"))),
        };
        let rdev = if kind.is_device() {
            u64::from(field(9)?) << 32 | u64::from(field(10)?)
        } else {
            0
        };
        Ok(Self {
            key: FileKey {
                device: u64::from(field(7)?) << 32 | u64::from(field(8)?),
                ino: field(0)?,
            },
            kind,
            attributes: Attributes {
                permissions: (mode & 0o7777) as u16,
                uid: field(2)?,
                gid: field(3)?,
                rdev,
            },
            nlink: field(4)?,
            mtime: Timestamp {
                seconds: field(5)?.into(),
                nanoseconds: 0,
            },
            data_len: field(6)?.into(),
            name_len: field(11)?.into(),
            // Programs give symlinks none.
            sum: Some(field(12)?).filter(|_| is(CRC_MAGIC) && kind == FileKind::Regular),
        })
    }
}

impl Members for CpioReader {
    fn next(&mut self, member: &mut Member, tell: &mut Tell<'_>) -> Result<bool> {
        loop {
            if !self.is_over {
                self.end_data()?;
            }
            self.layout = None;
            if let Some(next) = self.ready.pop_front() {
                if next.kind != MemberKind::HardLink {
                    self.layout = Some(Layout::default());
                }
                *member = next;
                return Ok(true);
            }
            if self.is_over {
                return Ok(false);
            }
            let Some((header, path)) = self.header(tell)? else {
                continue;
            };
            let taken = self.take(header, path, member);
            if taken.map_err(|e| e.context(weald_vfs::shown_path(&member.path)))? {
                return Ok(true);
            }
        }
    }

    fn has_contents(&self) -> bool {
        true
    }

    fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn read_data(&mut self, out: &mut [u8]) -> Result<()> {
        self.fill_data(out)
    }
}

#[cfg(test)]
mod tests;
