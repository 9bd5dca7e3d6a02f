//! Segments: files of records, written at the end only.

use crate::disk::{Access, Disk, DiskFile};
use crate::layout;
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::store::{
    Location, SEGMENT_SUPERBLOCK_LEN, Uuid, check_segment_superblock, encode_segment_superblock,
};
use weald_format::{Digest, Error, Result};
use zerocopy::IntoBytes;

/// Bytes that are gathered before they are written.
const BUFFER_LEN: usize = 1 << 20;

/// The segment that new records go to.
#[derive(Debug)]
pub struct SegmentWriter {
    file: Box<dyn DiskFile>,
    number: u64,
    /// Bytes written.
    written_len: u64,
    buffer: Vec<u8>,
    /// Whether its name may still be lost in a crash.
    is_new: bool,
}

impl SegmentWriter {
    /// Makes segment `number`, whose row is committed already.
    ///
    /// # Errors
    /// `Io`, `Full`; `Busy` where the file exists.
    pub fn create(disk: &dyn Disk, uuid: Uuid, number: u64) -> Result<Self> {
        let file = disk.open(&layout::segment(number), Access::Create)?;
        let buffer = encode_segment_superblock(uuid, number).as_bytes().to_vec();
        Ok(Self {
            file,
            number,
            written_len: 0,
            buffer,
            is_new: true,
        })
    }

    /// Goes on behind the `len` committed bytes of segment `number`; what lies behind them is cut
    /// off.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Corrupt` where the file is shorter or is another segment.
    pub fn resume(disk: &dyn Disk, uuid: Uuid, number: u64, len: u64) -> Result<Self> {
        let name = layout::segment(number);
        let file = disk.open(&name, Access::Write)?;
        let found = file.len()?;
        if found < len {
            let what = format!(
                "{}/{name}: {found} bytes, {len} were committed",
                disk.shown()
            );
            return Err(Error::corrupt("segment", found, "S-2.5", what));
        }
        let mut superblock = [0; SEGMENT_SUPERBLOCK_LEN];
        file.read_at(&mut superblock, 0)?;
        check_segment_superblock(&superblock, uuid, number)?;
        if found > len {
            file.set_len(len)?;
        }
        Ok(Self {
            file,
            number,
            written_len: len,
            buffer: Vec::new(),
            is_new: false,
        })
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes so far, those that wait to be written included.
    pub fn len(&self) -> u64 {
        self.written_len + self.buffer.len() as u64
    }

    /// Whether the record at `location` waits to be written.
    pub fn is_unwritten(&self, location: Location) -> bool {
        location.segment == self.number && location.offset >= self.written_len
    }

    /// Appends a record; `stored` are its stored bytes. Returns where it will lie.
    ///
    /// # Errors
    /// `Io`, `Full`: the segment must not be used any more then.
    pub fn append(&mut self, record: &RecordRef, stored: &[u8]) -> Result<Location> {
        let location = Location {
            segment: self.number,
            offset: self.len(),
        };
        self.buffer.extend_from_slice(record.header().as_bytes());
        if self.buffer.len() + stored.len() > BUFFER_LEN {
            self.write_out()?;
            self.file.write_at(stored, self.written_len)?;
            self.written_len += stored.len() as u64;
        } else {
            self.buffer.extend_from_slice(stored);
        }
        Ok(location)
    }

    fn write_out(&mut self) -> Result<()> {
        self.file.write_at(&self.buffer, self.written_len)?;
        self.written_len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Makes all that was appended durable, and the name of the file.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn sync(&mut self, disk: &dyn Disk) -> Result<()> {
        self.write_out()?;
        self.file.sync()?;
        if std::mem::take(&mut self.is_new) {
            disk.sync_dir(layout::SEGMENTS)?;
        }
        Ok(())
    }
}

/// Reads the record at `location`, which must be `record`. Returns its stored bytes, verified.
///
/// # Errors
/// `NotFound` where the segment is gone; `Corrupt`, `Io`.
pub fn read_record(file: &dyn DiskFile, location: Location, record: &RecordRef) -> Result<Vec<u8>> {
    let mut header = [0; HEADER_LEN];
    file.read_at(&mut header, location.offset)?;
    let found = RecordRef::parse_header(&header, location.offset)?;
    if (RecordRef {
        offset: record.offset,
        ..found
    }) != *record
    {
        let what = "the record in the segment is not the one that the metadata names";
        return Err(Error::corrupt(
            "record header",
            location.offset,
            "S-2.6",
            what,
        ));
    }
    // Rows and maps bound the length (`BLOCK_LEN_MAX`).
    let mut stored = vec![0; record.stored_len as usize];
    file.read_at(&mut stored, location.offset + HEADER_LEN as u64)?;
    match Digest::of(&stored) == record.digest {
        true => Ok(stored),
        false => {
            let what = "the stored bytes differ from their digest";
            Err(Error::corrupt("record", location.offset, "F-3.15", what))
        }
    }
}

/// Visits the headers of the records of segment `number` up to byte `end`, in order.
///
/// # Errors
/// `NotFound`, `Io`; `Corrupt` where no record begins behind the one before; those of `visit`.
pub fn each_header(
    file: &dyn DiskFile,
    end: u64,
    visit: &mut dyn FnMut(u64, RecordRef) -> Result<()>,
) -> Result<()> {
    let mut at = SEGMENT_SUPERBLOCK_LEN as u64;
    while at < end {
        let mut header = [0; HEADER_LEN];
        if end - at < HEADER_LEN as u64 {
            let what = "the segment ends inside a record header";
            return Err(Error::corrupt("segment", at, "S-2.7", what));
        }
        file.read_at(&mut header, at)?;
        let record = RecordRef::parse_header(&header, at)?;
        if record.end() > end {
            let what = "the segment ends inside a record";
            return Err(Error::corrupt("segment", at, "S-2.7", what));
        }
        visit(
            at,
            RecordRef {
                offset: 0,
                ..record
            },
        )?;
        at = record.end();
    }
    Ok(())
}
