//! What lies in segments that the tables do not know, when a store is opened for writing.
//!
//! After a crash these are records whose commit did not succeed, at the end of the newest segment.
//! They are truncated. But tables that are older than the segments look alike: a backup of `meta`
//! that was put back, for example. What they do not know are the records of newer commits, and to
//! write there would destroy them. The notes in the segments tell the two apart:
//!
//! 1. Each commit is preceded by a note with its number and the epoch of its writer, which was
//!    durable before the commit. The tables have the number of their last commit, and the epoch of
//!    the writer that appended last.
//! 2. So behind the bytes that the tables know, a crash leaves notes of the next commit and of the
//!    same epoch, or no note. A note of a later commit, or of the next one and another epoch, is
//!    one of newer tables: the store is not opened.
//! 3. A tail without such a note that is complete to its end has no committed record. It is
//!    truncated, and the truncation is durable before the next commit.
//! 4. A tail that cannot be walked to its end, and one of a store without notes, stays as it is.
//!    Records go into a new segment. Until there is one, the tail has a note of a commit number
//!    that a commit without records has taken since, possibly of a writer with another epoch.
//! 5. The file of a segment is made after the commit of its row. A segment without a row that has a
//!    higher number than all others is one of newer tables.
//! 6. The file `mark` names a commit that the tables have had.

use super::StoreWriter;
use crate::disk::Object;
use crate::engine::{Table, key_of};
use crate::faults::Bug;
use crate::layout;
use crate::mark::Mark;
use crate::role::Role;
use crate::segment::{self, read_note};
use weald_format::container::{HEADER_LEN, RECORD_MAGIC};
use weald_format::segment_note::{NOTE_CODE, Note, SegmentItem};
use weald_format::store::{
    Location, SEGMENT_SUPERBLOCK_LEN, SegmentRow, Uuid, check_segment_superblock,
};
use weald_format::{CommitNo, Error, ErrorKind, Result, SegmentNo};

/// Bytes that are searched for notes at once.
const SEARCH_LEN: usize = 1 << 20;

/// What lies behind the bytes of a segment that the tables know.
#[derive(Debug, Default)]
struct Tail {
    notes: Vec<Note>,
    /// Whether records and notes follow each other up to the end, the last one possibly cut off.
    is_complete: bool,
}

/// What was found behind the bytes of the newest segment that the tables know.
#[derive(Debug)]
enum Behind {
    /// Nothing, or the segment is given up.
    Nothing,
    /// The file is missing, too short, or no segment of this store.
    NoSegment,
    /// Bytes up to the length `len` of the file.
    Bytes {
        known_len: u64,
        len: u64,
        tail: Tail,
    },
}

impl StoreWriter {
    /// Truncates what a crash left, and refuses tables that are older than the segments.
    pub(crate) fn settle_tails(&mut self) -> Result<()> {
        if self.store.role()? == Role::Standby {
            return self.pass_tails();
        }
        if let Some(marked) = Mark::read(&self.store).filter(|marked| *marked > self.commit_no) {
            return Err(self.older(layout::MARK, "names", marked));
        }
        self.settle_newest()?;
        for name in self.store.disk.list(layout::SEGMENTS)? {
            match layout::segment_number(&name) {
                Some(number) if number >= self.next_segment => self.refuse_newer(number)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Leaves what a standby has got of a state that its tables do not have yet.
    fn pass_tails(&mut self) -> Result<()> {
        for name in self.store.disk.list(layout::SEGMENTS)? {
            let number = layout::segment_number(&name);
            let next = number.map_or(SegmentNo(0), SegmentNo::next);
            self.next_segment = self.next_segment.max(next);
        }
        self.resume_from = self.next_segment;
        Ok(())
    }

    fn older(&self, file: &str, verb: &str, commit: CommitNo) -> Error {
        let shown = self.store.disk.shown();
        let what = format!(
            "{shown}/{meta}: is older than the rest of the store: it ends with commit {last}, and \
             {file} {verb} commit {commit}: put the newer file back; without it, 'weald store \
             salvage {shown}' makes the metadata again, as far as it can",
            meta = layout::META,
            last = self.commit_no,
        );
        Error::corrupt("store metadata", 0, "S-7.4", what)
    }

    /// Refuses a segment without a row and with a higher number than all others. A file that is no
    /// segment of this store stays, and its number is not used.
    fn refuse_newer(&mut self, number: SegmentNo) -> Result<()> {
        let name = layout::segment_file(number);
        let file = match segment::open(&*self.store.disk, number) {
            // Something else than a file.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.next_segment = number.next();
                return Ok(());
            }
            other => other?,
        };
        let uuid = self.store.superblock.uuid;
        let read = file.len().and_then(|len| {
            if !is_segment(&*file, (uuid, number), len)? {
                return Ok(None);
            }
            let start = SEGMENT_SUPERBLOCK_LEN as u64;
            read_tail(&*file, (uuid, number), (start, len)).map(Some)
        });
        let tail = match read {
            Ok(Some(tail)) => tail,
            // No segment of this store, or one that the disk cannot read: it stays. If the tables
            // were older than it, the mark and the journal would tell.
            Ok(None) => {
                self.next_segment = number.next();
                return Ok(());
            }
            Err(error) if error.is_unreadable() => {
                log::warn!("{error}: the segment has no row, and stays");
                self.next_segment = number.next();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let commits = tail.notes.iter().map(|note| note.commit);
        match commits.max() {
            Some(commit) => Err(self.older(&name, "has records of", commit)),
            None => Err(self.older(&name, "belongs to", self.commit_no.next())),
        }
    }

    /// Looks behind the known bytes of the newest segment. If that cannot be done, the segment gets
    /// no more records: what lies there stays, and the store can be written to.
    fn settle_newest(&mut self) -> Result<()> {
        let number = self.newest_segment();
        let name = layout::segment_file(number);
        let (known_len, len, tail) = match self.look_behind(number) {
            Ok(Behind::Nothing) => return Ok(()),
            Ok(Behind::Bytes {
                known_len,
                len,
                tail,
            }) => (known_len, len, tail),
            // The check reports it. Nothing can be appended.
            Ok(Behind::NoSegment) => {
                self.resume_from = self.next_segment;
                return Ok(());
            }
            Err(error) if error.is_unreadable() => {
                log::warn!("{error}: the segment gets no more records");
                self.resume_from = self.next_segment;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let next = self.commit_no.next();
        // A note of a commit that these tables have, or of an earlier one, is none of newer tables.
        // It is of a commit that failed, and of which the tail stays; later writers may have
        // committed their epoch since.
        let is_ours = |note: &&Note| {
            note.commit <= self.commit_no || note.commit == next && Some(note.epoch) == self.epoch
        };
        let is_trusted = self.faults.has(Bug::TailTruncated);
        if let Some(note) = tail.notes.iter().find(|note| !is_ours(note))
            && !is_trusted
        {
            return Err(self.older(&name, "has records of", note.commit));
        }
        let disk = self.store.disk.clone();
        if tail.is_complete && self.epoch.is_some() || is_trusted {
            let file = segment::open_file(&*disk, number)?;
            file.set_len(known_len)?;
            // Durable before the tables reach the commit that the truncated notes name.
            return file.sync();
        }
        log::warn!(
            "{}/{name}: {} bytes are left of a crash, which cannot be told from records: they stay",
            disk.shown(),
            len - known_len
        );
        self.resume_from = self.next_segment;
        Ok(())
    }

    /// Reads what lies behind the known bytes of segment `number`.
    ///
    /// # Errors
    /// `Corrupt` for a damaged row, `Io`.
    fn look_behind(&self, number: SegmentNo) -> Result<Behind> {
        let Some(value) = self.engine.get(Table::Segments, &key_of(number.0))? else {
            return Ok(Behind::Nothing);
        };
        let row = SegmentRow::parse(&value)?;
        if row.is_lost || row.is_emptied {
            return Ok(Behind::Nothing);
        }
        let file = match segment::open(&*self.store.disk, number) {
            Err(error) if error.kind() == ErrorKind::Lost => return Ok(Behind::NoSegment),
            other => other?,
        };
        let (len, uuid) = (file.len()?, self.store.superblock.uuid);
        if len == row.len {
            return Ok(Behind::Nothing);
        }
        if len < row.len || !is_segment(&*file, (uuid, number), len)? {
            return Ok(Behind::NoSegment);
        }
        let tail = read_tail(&*file, (uuid, number), (row.len, len))?;
        Ok(Behind::Bytes {
            known_len: row.len,
            len,
            tail,
        })
    }
}

/// Whether a file of `len` bytes is segment `number` of the store `uuid`.
fn is_segment(file: &dyn Object, (uuid, number): (Uuid, SegmentNo), len: u64) -> Result<bool> {
    let mut superblock = [0; SEGMENT_SUPERBLOCK_LEN];
    if len < superblock.len() as u64 {
        return Ok(false);
    }
    file.read_at(&mut superblock, 0)?;
    Ok(check_segment_superblock(&superblock, uuid, number).is_ok())
}

/// Finds the notes in a range of segment `number` of the store `uuid`.
fn read_tail(
    file: &dyn Object,
    (uuid, number): (Uuid, SegmentNo),
    (start, end): (u64, u64),
) -> Result<Tail> {
    let mut tail = Tail::default();
    let mut at = start;
    loop {
        let mut header = [0; HEADER_LEN];
        if end - at < HEADER_LEN as u64 {
            tail.is_complete = true;
            return Ok(tail);
        }
        file.read_at(&mut header, at)?;
        let Ok(item) = SegmentItem::parse(&header, at) else {
            break;
        };
        let next = at.saturating_add(item.len());
        if next > end {
            tail.is_complete = true;
            return Ok(tail);
        }
        if let SegmentItem::Note { stored_len, digest } = item {
            let place = Location {
                segment: number,
                offset: at,
            };
            match read_note(file, uuid, place, (stored_len, &digest)) {
                Ok(note) => tail.notes.push(note),
                Err(error) if error.kind() == ErrorKind::Corrupt => break,
                Err(error) => return Err(error),
            }
        }
        at = next;
    }
    search_notes(file, (uuid, number), (at, end), &mut tail.notes)?;
    Ok(tail)
}

/// Finds the notes in a range whose records cannot be walked.
fn search_notes(
    file: &dyn Object,
    (uuid, number): (Uuid, SegmentNo),
    (start, end): (u64, u64),
    notes: &mut Vec<Note>,
) -> Result<()> {
    let mut magic = [NOTE_CODE; 5];
    magic[..4].copy_from_slice(&RECORD_MAGIC);
    let mut at = start;
    while end.saturating_sub(at) >= HEADER_LEN as u64 {
        let mut bytes = vec![0; SEARCH_LEN.min((end - at) as usize)];
        file.read_at(&mut bytes, at)?;
        for (inside, window) in bytes.windows(HEADER_LEN).enumerate() {
            let offset = at + inside as u64;
            if !window.starts_with(&magic) {
                continue;
            }
            let Ok(SegmentItem::Note { stored_len, digest }) = SegmentItem::parse(window, offset)
            else {
                continue;
            };
            let place = Location {
                segment: number,
                offset,
            };
            let is_inside = end - offset >= HEADER_LEN as u64 + stored_len;
            if is_inside && let Ok(note) = read_note(file, uuid, place, (stored_len, &digest)) {
                notes.push(note);
            }
        }
        at += (bytes.len() - (HEADER_LEN - 1)) as u64;
    }
    Ok(())
}
