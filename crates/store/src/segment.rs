//! Segments: files of records. The writer only appends to them.

use crate::disk::{Access, Disk, LocalFile, LocalFiles, Object};
use crate::layout;
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::limits::NOTE_BLOCKS_MAX;
use weald_format::segment_note::{Note, SegmentItem};
use weald_format::store::{
    Location, SEGMENT_SUPERBLOCK_LEN, SegmentRow, Uuid, check_segment_superblock,
    encode_segment_superblock,
};
use weald_format::{BlockId, CommitNo, Digest, Error, ErrorKind, Result, SegmentNo};
use zerocopy::IntoBytes;

/// Bytes that are buffered before a write.
const SEGMENT_BUFFER_LEN: usize = 1 << 20;

/// The segment that receives new records.
#[derive(Debug)]
pub struct SegmentWriter {
    file: Box<dyn LocalFile>,
    number: SegmentNo,
    /// Bytes written to the file.
    written_len: u64,
    buffer: Vec<u8>,
    /// Whether a crash may still lose the file's name: its directory is not synced.
    is_new: bool,
    /// Blocks of the records since the last note.
    ids: Vec<BlockId>,
    /// Bytes of all notes.
    notes_len: u64,
}

impl SegmentWriter {
    /// Creates segment `number`, whose row is committed already.
    ///
    /// # Errors
    /// `Io`, `Full`; `Busy` if the file exists.
    pub fn create(files: &dyn LocalFiles, uuid: Uuid, number: SegmentNo) -> Result<Self> {
        let file = files.open(&layout::segment_file(number), Access::Create)?;
        let buffer = encode_segment_superblock(uuid, number).as_bytes().to_vec();
        Ok(Self {
            file,
            number,
            written_len: 0,
            buffer,
            is_new: true,
            ids: Vec::new(),
            notes_len: 0,
        })
    }

    /// Continues segment `number` after its committed bytes, where its file ends.
    ///
    /// # Errors
    /// `Lost`, `Io`; `Corrupt` if the file has another length or belongs to another segment.
    pub fn resume(
        files: &dyn LocalFiles,
        uuid: Uuid,
        number: SegmentNo,
        row: &SegmentRow,
    ) -> Result<Self> {
        let len = row.len;
        let name = layout::segment_file(number);
        let file = open_file(files, number)?;
        let found = file.len()?;
        // The recovery truncates what is left of a crash. Anything else is not ours to overwrite.
        if found != len {
            let what = format!(
                "{}/{name}: {found} bytes, {len} were committed",
                files.shown()
            );
            return Err(Error::corrupt("segment", found, "S-2.5", what));
        }
        let mut superblock = [0; SEGMENT_SUPERBLOCK_LEN];
        file.read_at(&mut superblock, 0)?;
        check_segment_superblock(&superblock, uuid, number)?;
        Ok(Self {
            file,
            number,
            written_len: len,
            buffer: Vec::new(),
            is_new: false,
            ids: Vec::new(),
            notes_len: row.notes_len,
        })
    }

    /// Number of the segment.
    pub fn number(&self) -> SegmentNo {
        self.number
    }

    /// Length in bytes, including buffered bytes.
    pub fn len(&self) -> u64 {
        self.written_len + self.buffer.len() as u64
    }

    /// Bytes of all notes in it.
    pub fn notes_len(&self) -> u64 {
        self.notes_len
    }

    /// Whether the record at `location` is still in the buffer.
    pub fn is_unwritten(&self, location: Location) -> bool {
        location.segment == self.number && location.offset >= self.written_len
    }

    /// Appends the record of block `id` with the stored bytes `stored` and returns its location.
    ///
    /// # Errors
    /// `Io`, `Full`: the segment must not be used after an error.
    pub fn append(&mut self, id: BlockId, record: &RecordRef, stored: &[u8]) -> Result<Location> {
        self.ids.push(id);
        let location = Location {
            segment: self.number,
            offset: self.len(),
        };
        self.buffer.extend_from_slice(record.header().as_bytes());
        if self.buffer.len() + stored.len() > SEGMENT_BUFFER_LEN {
            self.write_out()?;
            self.file.write_at(stored, self.written_len)?;
            self.written_len += stored.len() as u64;
        } else {
            self.buffer.extend_from_slice(stored);
        }
        Ok(location)
    }

    /// Whether a note has to follow before more records: it cannot name more blocks.
    pub fn needs_note(&self) -> bool {
        self.ids.len() >= NOTE_BLOCKS_MAX
    }

    /// Deliberate bug: the note names other blocks.
    pub fn mix_up_ids(&mut self) {
        self.ids.rotate_left(1);
    }

    /// Appends a note about the records since the last note, if there are any. Returns its length.
    pub fn put_note(&mut self, uuid: Uuid, commit: CommitNo, epoch: u64) -> u64 {
        if self.ids.is_empty() {
            return 0;
        }
        let place = Location {
            segment: self.number,
            offset: self.len(),
        };
        let note = Note {
            commit,
            epoch,
            ids: std::mem::take(&mut self.ids),
        };
        let bytes = note.encode(uuid, place);
        self.buffer.extend_from_slice(&bytes);
        self.notes_len += bytes.len() as u64;
        bytes.len() as u64
    }

    /// Writes the buffered bytes to the file.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn write_out(&mut self) -> Result<()> {
        self.file.write_at(&self.buffer, self.written_len)?;
        self.written_len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Makes all appended records durable, and the name of the file too.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn sync(&mut self, files: &dyn LocalFiles) -> Result<()> {
        self.write_out()?;
        self.file.sync()?;
        if std::mem::take(&mut self.is_new) {
            files.sync_dir(layout::SEGMENTS)?;
        }
        Ok(())
    }
}

/// Writes the first bytes of a segment again.
///
/// # Errors
/// `Io`, `Full`.
pub fn write_superblock(file: &dyn LocalFile, uuid: Uuid, number: SegmentNo) -> Result<()> {
    file.write_at(encode_segment_superblock(uuid, number).as_bytes(), 0)
}

/// Reads the record at `location`, compares it with `record` and verifies its digest. Returns the
/// stored bytes.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn read_record(file: &dyn Object, location: Location, record: &RecordRef) -> Result<Vec<u8>> {
    let mut header = [0; HEADER_LEN];
    file.read_at(&mut header, location.offset)?;
    check_header(&header, location, record)?;
    // Rows and maps limit the length to `BLOCK_LEN_MAX`.
    let mut stored = vec![0; record.stored_len as usize];
    file.read_at(&mut stored, location.offset + HEADER_LEN as u64)?;
    check_stored(&stored, location, record)?;
    Ok(stored)
}

fn check_header(header: &[u8], location: Location, record: &RecordRef) -> Result<()> {
    let found = RecordRef::parse_header(header, location.offset)?;
    let found = RecordRef {
        offset: record.offset,
        ..found
    };
    if found == *record {
        return Ok(());
    }
    let (at, what) = (
        location.offset,
        "the record in the segment is not the one that the metadata names",
    );
    Err(Error::corrupt("record header", at, "S-2.6", what))
}

fn check_stored(stored: &[u8], location: Location, record: &RecordRef) -> Result<()> {
    if Digest::of(stored) == record.digest {
        return Ok(());
    }
    let what = "the stored bytes differ from their digest";
    Err(Error::corrupt("record", location.offset, "F-3.15", what))
}

/// Compares the bytes of a record, header included, with `record`, and verifies its digest.
///
/// # Errors
/// `Corrupt`.
pub fn check_record(bytes: &[u8], location: Location, record: &RecordRef) -> Result<()> {
    let (header, stored) = bytes.split_at_checked(HEADER_LEN).unwrap_or_default();
    check_header(header, location, record)?;
    check_stored(stored, location, record)
}

/// Opens segment `number`, which a row or a map names, for reading.
///
/// # Errors
/// `Lost` if it is missing; `Corrupt` if something else than a segment is there; `Io`.
pub fn open(disk: &dyn Disk, number: SegmentNo) -> Result<Box<dyn Object>> {
    let name = layout::segment(number);
    of_segment(disk.open_object(&name), disk, name.path())
}

/// As [`open`], without a note that the segment is used.
///
/// # Errors
/// As [`open`].
pub fn open_unnoted(disk: &dyn Disk, number: SegmentNo) -> Result<Box<dyn LocalFile>> {
    let name = layout::segment_file(number);
    of_segment(disk.open_unnoted(&name), disk, &name)
}

/// Opens the file of segment `number`, which a row names, to write to it.
///
/// # Errors
/// As [`open`].
pub fn open_file(files: &dyn LocalFiles, number: SegmentNo) -> Result<Box<dyn LocalFile>> {
    let name = layout::segment_file(number);
    of_segment(files.open(&name, Access::Write), files, &name)
}

fn of_segment<F, D>(opened: Result<F>, files: &D, name: &str) -> Result<F>
where
    D: LocalFiles + ?Sized,
{
    opened.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let shown = files.shown();
            let why = files.why_missing(name);
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            Error::lost(format!("{shown}/{name}: the segment is missing{why}"))
        }
        ErrorKind::Invalid => Error::corrupt("segment", 0, "S-2.8", error.what().to_owned()),
        _ => error,
    })
}

/// Visits the headers of records and notes of a segment in order, from byte `start` to byte `end`
/// (exclusive).
///
/// # Errors
/// `Io`; `Corrupt` if a record is not directly followed by the next one or by `end`;
/// the errors of `visit`.
pub fn each_item(
    file: &dyn Object,
    (start, end): (u64, u64),
    visit: &mut dyn FnMut(u64, SegmentItem) -> Result<()>,
) -> Result<()> {
    let mut at = start;
    while at < end {
        let mut header = [0; HEADER_LEN];
        if end - at < HEADER_LEN as u64 {
            let what = "the segment ends inside a record header";
            return Err(Error::corrupt("segment", at, "S-2.7", what));
        }
        file.read_at(&mut header, at)?;
        let item = SegmentItem::parse(&header, at)?;
        let next = at.saturating_add(item.len());
        if next > end {
            let what = "the segment ends inside a record";
            return Err(Error::corrupt("segment", at, "S-2.7", what));
        }
        visit(at, item)?;
        at = next;
    }
    Ok(())
}

/// Reads the note at `place`, whose header has this length and digest.
///
/// # Errors
/// `Corrupt`, `Io`.
pub fn read_note(
    file: &dyn Object,
    uuid: Uuid,
    place: Location,
    (stored_len, digest): (u64, &Digest),
) -> Result<Note> {
    // The header limits the length to `NOTE_LEN_MAX`.
    let mut stored = vec![0; stored_len as usize];
    file.read_at(&mut stored, place.offset + HEADER_LEN as u64)?;
    Note::parse(&stored, digest, uuid, place)
}

/// A record in a segment, and what the note behind it says about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotedRecord {
    /// Offset of its header.
    pub offset: u64,
    /// The record; its offset is 0.
    pub record: RecordRef,
    /// Commit and number of the block; `None` if no note says it.
    pub noted: Option<(CommitNo, BlockId)>,
}

/// Visits the records of segment `number` in order, up to byte `end` (exclusive), with what the
/// notes say about them. A damaged note says nothing.
///
/// # Errors
/// As [`each_item`]; the records before the place of an error were visited.
/// # Cost
/// About 100 bytes of memory for each record between two notes.
pub fn each_noted(
    file: &dyn Object,
    (uuid, number): (Uuid, SegmentNo),
    end: u64,
    visit: &mut dyn FnMut(NotedRecord) -> Result<()>,
) -> Result<()> {
    let mut waiting: Vec<NotedRecord> = Vec::new();
    let walked = each_item(
        file,
        (SEGMENT_SUPERBLOCK_LEN as u64, end),
        &mut |at, item| {
            match item {
                SegmentItem::Block(record) => waiting.push(NotedRecord {
                    offset: at,
                    record: RecordRef {
                        offset: 0,
                        ..record
                    },
                    noted: None,
                }),
                SegmentItem::Note { stored_len, digest } => {
                    let place = Location {
                        segment: number,
                        offset: at,
                    };
                    let note = match read_note(file, uuid, place, (stored_len, &digest)) {
                        Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                        other => other.ok().filter(|note| note.ids.len() == waiting.len()),
                    };
                    for (at, mut found) in waiting.drain(..).enumerate() {
                        let note = note.as_ref();
                        found.noted = note.and_then(|n| Some((n.commit, *n.ids.get(at)?)));
                        visit(found)?;
                    }
                }
            }
            Ok(())
        },
    );
    for found in waiting {
        visit(found)?;
    }
    walked
}
