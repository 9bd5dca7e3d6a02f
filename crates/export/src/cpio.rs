//! Writes an image, or a selection of it, as a cpio archive of the format newc, which the kernel
//! unpacks as an initramfs. The same input gives the same bytes.
//!
//! The format has no extended attributes, no nanoseconds and no holes, and files of less than 4
//! GiB. The data of a file with several names follow the first of them, as the kernel and the cpio
//! programs take it. A header announces the length of the data, so each file is read before its
//! header is written, as in [`crate::write_tar`].
//!
//! Source of the format: the kernel's `Documentation/driver-api/early-userspace/buffer-format.rst`.

use crate::extract::ExtractObserver;
use crate::restore::READ_LEN;
use std::collections::HashMap;
use std::io::Write;
use weald_filter::AttributeChoice;
use weald_format::{Error, FileKind, Ids, InodeNo, Result, permissions_without_acl};
use weald_image::{Image, Inode};
use weald_vfs::{Choice, Event, Located, SelectedWalk, Unmatched};

/// Bytes of data held in memory until all of them are read. Longer contents are read twice.
const HELD_LEN_MAX: u64 = 8 << 20;

/// Name of the last entry.
const TRAILER: &[u8] = b"TRAILER!!!";

/// The archive ends at a multiple of this, as cpio programs pad it.
const BLOCK_LEN: u64 = 512;

/// Result of writing a cpio archive.
#[derive(Debug, Clone, Default)]
pub struct CpioReport {
    /// Problems reported to the observer.
    pub problem_count: u64,
    /// Entries that have extended attributes, which the archive has not.
    pub without_xattrs_count: u64,
    /// What selected nothing.
    pub unmatched: Unmatched,
}

/// Writes the chosen entries of `image` to `output`, with the ids that `attributes` gives them.
/// Paths begin at the directory `root` and have no leading `/`; the root is `.`.
///
/// # Errors
/// Those of `output`; `Invalid` "interrupted" if the observer cancels. An entry that cannot be read
/// or has no form in the archive is left out and reported to `observer`.
/// # Cost
/// As [`crate::write_tar`].
pub fn write_cpio(
    image: &Image,
    root: Inode,
    (choice, attributes): (&Choice, &AttributeChoice),
    output: &mut dyn Write,
    observer: &dyn ExtractObserver,
) -> Result<CpioReport> {
    let mut writer = CpioWriter {
        image,
        output,
        written_len: 0,
        next_ino: 1,
        links: HashMap::new(),
        held: Vec::new(),
    };
    let start = Located {
        path: Vec::new(),
        inode: root,
    };
    let mut walk = SelectedWalk::new(image, start, choice);
    let mut report = CpioReport::default();
    loop {
        let written = match walk.step() {
            Ok(None) => break,
            Ok(Some(Event::Leave)) => Ok(()),
            Ok(Some(Event::Enter(mut visit))) => {
                visit.inode.attributes = attributes.attributes_of(visit.inode.attributes);
                report.without_xattrs_count += u64::from(visit.inode.xattr_set.is_some());
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

struct CpioWriter<'a> {
    image: &'a Image,
    output: &'a mut dyn Write,
    written_len: u64,
    next_ino: u32,
    /// Numbers of the inodes with several names, of which one is written.
    links: HashMap<InodeNo, u32>,
    /// Buffer for the data of one file.
    held: Vec<u8>,
}

/// A number of a header: 32 bits.
fn field(number: u64, what: &str) -> Result<u32> {
    u32::try_from(number).map_err(|_| {
        Error::limit(format!(
            "left out: {what} of {number}, and cpio holds less than 2^32"
        ))
    })
}

impl CpioWriter<'_> {
    /// Writes one entry. An outer error is one of the output; an inner one is one of the entry, and
    /// nothing of it was written, or zeros in place of its last bytes.
    fn entry(&mut self, path: &[u8], inode: &Inode) -> Result<Result<()>> {
        let is_linked = inode.nlink > 1 && inode.kind != FileKind::Directory;
        let known = self.links.get(&inode.ino).copied().filter(|_| is_linked);
        let header = match self.header(inode, known) {
            Ok(header) => header,
            Err(error) => return Ok(Err(error)),
        };
        let Header {
            ino, len, target, ..
        } = &header;
        let (ino, len) = (*ino, *len);
        let is_file = inode.kind == FileKind::Regular && known.is_none();
        let mut held = None;
        if is_file {
            match self.checked_data(inode) {
                Ok(data) => held = data,
                Err(error) => return Ok(Err(error)),
            }
        }
        let name: &[u8] = if path.is_empty() { b"." } else { path };
        let target = target.clone();
        self.put_header(&header, name)?;
        if known.is_none() {
            self.next_ino += 1;
            if is_linked {
                self.links.insert(inode.ino, ino);
            }
        }
        let mut written = Ok(());
        match held {
            Some(data) => {
                self.put(&data)?;
                self.held = data;
            }
            None if is_file => written = self.put_data(inode, u64::from(len))?,
            None => self.put(&target)?,
        }
        self.pad(4)?;
        Ok(written)
    }

    fn header(&self, inode: &Inode, known: Option<u32>) -> Result<Header> {
        let target = match inode.kind {
            FileKind::Symlink if known.is_none() => self.image.read_link(inode)?.to_vec(),
            _ => Vec::new(),
        };
        let len = match inode.kind {
            FileKind::Regular if known.is_none() => inode.size.0,
            _ => target.len() as u64,
        };
        let attributes = &inode.attributes;
        // 0 unless the inode is a device.
        let (major, minor) = (attributes.rdev >> 32, attributes.rdev & u64::from(u32::MAX));
        Ok(Header {
            ino: known.unwrap_or(self.next_ino),
            mode: inode.kind.mode_bits() | u32::from(self.permissions(inode)),
            uid: attributes.uid,
            gid: attributes.gid,
            nlink: field(inode.nlink.max(1), "a link count")?,
            // Times before 1970 and after 2106 have no form.
            mtime: inode.times.mtime.seconds.clamp(0, i64::from(u32::MAX)) as u32,
            len: field(len, "a length")?,
            rdev: (field(major, "a device")?, field(minor, "a device")?),
            target,
        })
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

    fn put_header(&mut self, header: &Header, name: &[u8]) -> Result<()> {
        let Header {
            ino,
            mode,
            uid,
            gid,
            nlink,
            mtime,
            len,
            rdev: (major, minor),
            ..
        } = header;
        let name_len = name.len() + 1;
        let text = format!(
            "070701{ino:08X}{mode:08X}{uid:08X}{gid:08X}{nlink:08X}{mtime:08X}{len:08X}{:08X}{:08X}\
             {major:08X}{minor:08X}{name_len:08X}{:08X}",
            0, 0, 0
        );
        self.put(text.as_bytes())?;
        self.put(name)?;
        self.put(&[0])?;
        self.pad(4)
    }

    /// Reads the whole content before its header is written. Returns it if it is small.
    fn checked_data(&mut self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        let mut held = std::mem::take(&mut self.held);
        held.clear();
        let is_held = inode.size.0 <= HELD_LEN_MAX;
        let mut offset = 0;
        while offset < inode.size.0 {
            let piece = self.piece(inode, offset)?;
            offset += piece.len() as u64;
            if is_held {
                held.extend_from_slice(&piece);
            }
        }
        Ok(is_held.then_some(held))
    }

    fn piece(&self, inode: &Inode, offset: u64) -> Result<Vec<u8>> {
        let len = (inode.size.0 - offset).min(READ_LEN) as usize;
        let piece = self.image.read(inode, offset, len)?;
        if piece.is_empty() {
            return Err(Error::invalid(format!("the content ends at byte {offset}")));
        }
        Ok(piece.to_vec())
    }

    /// Writes the data of a file, and zeros in place of what cannot be read this time.
    fn put_data(&mut self, inode: &Inode, len: u64) -> Result<Result<()>> {
        let mut offset = 0;
        while offset < len {
            match self.piece(inode, offset) {
                Ok(piece) => {
                    offset += piece.len() as u64;
                    self.put(&piece)?;
                }
                Err(error) => {
                    let zeros = vec![0; 1 << 16];
                    while offset < len {
                        let count = (len - offset).min(zeros.len() as u64);
                        self.put(zeros.get(..count as usize).unwrap_or_default())?;
                        offset += count;
                    }
                    return Ok(Err(error));
                }
            }
        }
        Ok(Ok(()))
    }

    fn finish(&mut self) -> Result<()> {
        let header = Header {
            nlink: 1,
            ..Header::default()
        };
        self.put_header(&header, TRAILER)?;
        self.pad(BLOCK_LEN)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.written_len += bytes.len() as u64;
        let written = self.output.write_all(bytes);
        written.map_err(|error| Error::io("cpio", error))
    }

    /// Writes zeros up to the next multiple of `unit`.
    fn pad(&mut self, unit: u64) -> Result<()> {
        let count = self.written_len.next_multiple_of(unit) - self.written_len;
        let zeros = [0; BLOCK_LEN as usize];
        self.put(zeros.get(..count as usize).unwrap_or_default())
    }
}

/// What a header says, and the target of a symlink.
#[derive(Default)]
struct Header {
    ino: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    nlink: u32,
    mtime: u32,
    len: u32,
    rdev: (u32, u32),
    target: Vec<u8>,
}
