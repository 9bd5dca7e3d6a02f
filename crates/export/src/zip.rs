//! Writes an image, or a selection of it, as a zip archive, to a pipe too. The same input gives
//! the same bytes.
//!
//! The format has no extended attributes, no devices, fifos and sockets, no hard links and no
//! holes. Small files are compressed before their header is written, which has their length and
//! CRC-32 then. Those of longer files follow their data. As in [`crate::write_tar`], each file is
//! read whole before its header is written.
//!
//! Source of the format: APPNOTE.TXT 6.3.10 of PKWARE; `proginfo/extrafld.txt` of Info-ZIP.

mod records;

use crate::extract::ExtractObserver;
use crate::restore::READ_LEN;
use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use records::{ListWriter, Member, Method};
use std::io::Write;
use std::path::Path;
use weald_filter::AttributeChoice;
use weald_format::{Error, FileKind, Ids, Result, permissions_without_acl};
use weald_image::{Image, Inode};
use weald_vfs::{Choice, Event, Located, SelectedWalk, Unmatched};

/// Bytes of data held in memory until they are compressed. Longer contents are read twice.
const HELD_LEN_MAX: u64 = 8 << 20;
/// Level of DEFLATE: that of Info-ZIP.
const LEVEL: u32 = 6;
/// Bytes of compressed data that are written at once.
const OUT_LEN: usize = 64 << 10;
/// Longest name of the format, in bytes.
const NAME_LEN_MAX: usize = 0xffff;

/// Result of writing a zip archive.
#[derive(Debug, Clone, Default)]
pub struct ZipReport {
    /// Problems reported to the observer.
    pub problem_count: u64,
    /// Entries that have extended attributes, which the archive has not.
    pub without_xattrs_count: u64,
    /// Devices, fifos and sockets, which are left out.
    pub special_count: u64,
    /// Names of files with several names, each of which is a file of its own in the archive.
    pub linked_count: u64,
    /// What selected nothing.
    pub unmatched: Unmatched,
}

/// Writes the chosen entries of `image` to `output`, with the ids that `attributes` gives them.
/// Paths begin at the directory `root`, which has no member itself. A long list of members lies in
/// a temporary file in `temp_dir` until the end.
///
/// # Errors
/// Those of `output`; `Io` and `Full` for the temporary file; `Invalid` "interrupted" if the
/// observer cancels. An entry that cannot be read is left out and reported to `observer`.
/// # Cost
/// As [`crate::write_tar`], and DEFLATE in one thread. Memory for one file of up to 8 MiB.
pub fn write_zip(
    image: &Image,
    root: Inode,
    (choice, attributes): (&Choice, &AttributeChoice),
    (output, temp_dir): (&mut dyn Write, &Path),
    observer: &dyn ExtractObserver,
) -> Result<ZipReport> {
    let mut writer = ZipWriter {
        image,
        output,
        written_len: 0,
        list: ListWriter::new(temp_dir),
        held: Vec::new(),
    };
    let start = Located {
        path: Vec::new(),
        inode: root,
    };
    let mut walk = SelectedWalk::new(image, start, choice);
    let mut report = ZipReport::default();
    loop {
        let written = match walk.step() {
            Ok(None) => break,
            Ok(Some(Event::Leave)) => Ok(()),
            Ok(Some(Event::Enter(mut visit))) => {
                visit.inode.attributes = attributes.attributes_of(visit.inode.attributes);
                report.count(&visit.inode);
                writer.entry(walk.shortened_path(), &visit.inode)?
            }
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            report.problem_count += 1;
            observer.problem(walk.path(), &error);
        }
        if observer.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
    }
    writer.finish()?;
    report.unmatched = walk.unmatched();
    Ok(report)
}

impl ZipReport {
    /// Counts what the archive does not hold of an entry.
    fn count(&mut self, inode: &Inode) {
        self.without_xattrs_count += u64::from(inode.xattr_set.is_some());
        self.special_count += u64::from(is_special(inode.kind));
        let is_linked = inode.kind == FileKind::Regular && inode.nlink > 1;
        self.linked_count += u64::from(is_linked);
    }
}

fn is_special(kind: FileKind) -> bool {
    !matches!(
        kind,
        FileKind::Directory | FileKind::Regular | FileKind::Symlink
    )
}

struct ZipWriter<'a> {
    image: &'a Image,
    output: &'a mut dyn Write,
    written_len: u64,
    list: ListWriter,
    /// Buffer for the data of one file.
    held: Vec<u8>,
}

impl ZipWriter<'_> {
    /// Writes one entry. An outer error is one of the output; an inner one is one of the entry, and
    /// nothing of it was written, or zeros in place of its last bytes.
    fn entry(&mut self, path: &[u8], inode: &Inode) -> Result<Result<()>> {
        if path.is_empty() || is_special(inode.kind) {
            return Ok(Ok(()));
        }
        let mut name = path.to_vec();
        if inode.kind == FileKind::Directory {
            name.push(b'/');
        }
        if name.len() > NAME_LEN_MAX {
            let what = format!("left out: a path of {} bytes, zip holds 65535", name.len());
            return Ok(Err(Error::limit(what)));
        }
        let permissions = self.permissions(inode);
        let mut member = Member::new(name, inode, permissions, self.written_len);
        match inode.kind {
            FileKind::Regular if inode.size.0 > HELD_LEN_MAX => self.long_file(member, inode),
            FileKind::Regular => {
                let data = match self.small_data(inode) {
                    Ok(data) => data,
                    Err(error) => return Ok(Err(error)),
                };
                let compressed = compressed(&data)?;
                let is_smaller = compressed.len() < data.len();
                member.set_data(&data);
                let written = if is_smaller {
                    member.set_compressed(compressed.len() as u64);
                    self.put_member(member, &compressed)
                } else {
                    self.put_member(member, &data)
                };
                self.held = data;
                written.map(Ok)
            }
            FileKind::Symlink => {
                let target = match self.image.read_link(inode) {
                    Ok(target) => target.to_vec(),
                    Err(error) => return Ok(Err(error)),
                };
                member.set_data(&target);
                self.put_member(member, &target).map(Ok)
            }
            _ => self.put_member(member, &[]).map(Ok),
        }
    }

    /// Writes a member whose header has all numbers, and what is stored of it.
    fn put_member(&mut self, member: Member, stored: &[u8]) -> Result<()> {
        self.put(&member.local_header())?;
        self.put(stored)?;
        self.list.push(&member)
    }

    /// Writes a file whose length and CRC-32 follow its data.
    fn long_file(&mut self, mut member: Member, inode: &Inode) -> Result<Result<()>> {
        let mut offset = 0;
        while offset < inode.size.0 {
            match self.piece(inode, offset) {
                Ok(piece) => offset += piece.len() as u64,
                Err(error) => return Ok(Err(error)),
            }
        }
        member.method = Method::Deflate;
        member.data_len = inode.size.0;
        member.follow_data();
        self.put(&member.local_header())?;
        let before_len = self.written_len;
        let (mut crc, mut encoder) = (Crc::new(), Compress::new(Compression::new(LEVEL), false));
        let (mut offset, mut result) = (0, Ok(()));
        while offset < inode.size.0 {
            let piece = match self.piece(inode, offset) {
                Ok(piece) => piece,
                Err(error) => {
                    result = Err(error);
                    vec![0; (inode.size.0 - offset).min(READ_LEN) as usize]
                }
            };
            offset += piece.len() as u64;
            crc.update(&piece);
            self.put_compressed(&mut encoder, &piece, FlushCompress::None)?;
        }
        self.put_compressed(&mut encoder, &[], FlushCompress::Finish)?;
        member.crc = crc.sum();
        member.stored_len = self.written_len - before_len;
        self.put(&member.descriptor())?;
        self.list.push(&member)?;
        Ok(result)
    }

    fn put_compressed(
        &mut self,
        encoder: &mut Compress,
        mut data: &[u8],
        flush: FlushCompress,
    ) -> Result<()> {
        let mut out = Vec::with_capacity(OUT_LEN);
        loop {
            out.clear();
            let before = encoder.total_in();
            let status = encoder.compress_vec(data, &mut out, flush);
            let status = status.map_err(|e| Error::io("zip", e.into()))?;
            data = data
                .get((encoder.total_in() - before) as usize..)
                .unwrap_or_default();
            self.put(&out)?;
            let is_done = match flush {
                FlushCompress::Finish => status == Status::StreamEnd,
                _ => data.is_empty() && out.len() < OUT_LEN,
            };
            if is_done {
                return Ok(());
            }
        }
    }

    /// The permissions without the ACL, which the archive has not: they let in nobody whom it
    /// denies.
    fn permissions(&self, inode: &Inode) -> u16 {
        let stored = inode.attributes.permissions;
        match inode.xattr_set.map(|_| self.image.xattrs(inode)) {
            None => stored,
            Some(Ok(set)) => permissions_without_acl(stored, &set, Ids::Kept),
            Some(Err(_)) => stored & 0o7700,
        }
    }

    fn small_data(&mut self, inode: &Inode) -> Result<Vec<u8>> {
        let mut held = std::mem::take(&mut self.held);
        held.clear();
        while (held.len() as u64) < inode.size.0 {
            let piece = self.piece(inode, held.len() as u64)?;
            held.extend_from_slice(&piece);
        }
        Ok(held)
    }

    fn piece(&self, inode: &Inode, offset: u64) -> Result<Vec<u8>> {
        let len = (inode.size.0 - offset).min(READ_LEN) as usize;
        let piece = self.image.read(inode, offset, len)?;
        if piece.is_empty() {
            return Err(Error::invalid(format!("the content ends at byte {offset}")));
        }
        Ok(piece.to_vec())
    }

    /// Writes the list of members and the end.
    fn finish(&mut self) -> Result<()> {
        let start = self.written_len;
        let list = std::mem::replace(&mut self.list, ListWriter::new(Path::new("")));
        let end = list.end(start);
        list.read(&mut |part| self.put(part))?;
        self.put(&end)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.written_len += bytes.len() as u64;
        let written = self.output.write_all(bytes);
        written.map_err(|error| Error::io("zip", error))
    }
}

/// `data`, compressed.
fn compressed(data: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = Compress::new(Compression::new(LEVEL), false);
    let mut out = Vec::with_capacity(data.len() / 2 + 64);
    loop {
        let rest = data.get(encoder.total_in() as usize..).unwrap_or_default();
        let status = encoder.compress_vec(rest, &mut out, FlushCompress::Finish);
        let status = status.map_err(|e| Error::io("zip", e.into()))?;
        // What does not become smaller is stored.
        if status == Status::StreamEnd || out.len() > data.len() {
            return Ok(out);
        }
        out.reserve(out.len() / 2 + 64);
    }
}
