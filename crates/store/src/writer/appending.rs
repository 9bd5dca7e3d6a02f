//! Records and notes that the writer appends to segments.

use super::StoreWriter;
use crate::engine::{Batch, Table, key_of};
use crate::faults::Bug;
use crate::layout;
use crate::segment::SegmentWriter;
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::store::{Location, SEGMENT_SUPERBLOCK_LEN, SegmentRow};
use weald_format::{BlockId, Error, Result, SegmentNo};

impl StoreWriter {
    /// Returns a segment with room for `len` more bytes. The row of a new segment is committed
    /// before its file is created, so that every file has a row.
    fn open_segment(&mut self, len: u64) -> Result<&mut SegmentWriter> {
        let disk = self.store.disk.clone();
        let limit = self.store.superblock.segment_len;
        let uuid = self.store.superblock.uuid;
        if self.segment.as_ref().is_some_and(|s| s.len() + len > limit) {
            self.commit(Batch::default())?;
            self.segment = None;
        }
        if self.segment.is_none() {
            // The tables know the writer before anything of it is in a segment.
            if self.epoch != Some(self.options.epoch) {
                let before = self.epoch.replace(self.options.epoch);
                if let Err(error) = self.commit(Batch::default()) {
                    self.epoch = before;
                    return Err(error);
                }
            }
            self.segment = Some(match self.resumed_segment(len)? {
                Some(resumed) => resumed,
                None => {
                    let number = self.next_segment;
                    self.next_segment = number.next();
                    let row = SegmentRow {
                        len: SEGMENT_SUPERBLOCK_LEN as u64,
                        ..SegmentRow::default()
                    };
                    self.set_segment(number, row);
                    self.commit(Batch::default())?;
                    SegmentWriter::create(&*disk, uuid, number)?
                }
            });
        }
        self.segment
            .as_mut()
            .ok_or_else(|| Error::invalid("no segment is open"))
    }

    /// Commits what was appended, and sees to it that no writer appends to a segment that is there,
    /// now or later: so all copies of it that interrupted moves leave have the same bytes, and it
    /// does not matter which one a reader finds.
    pub(crate) fn close_newest_segment(&mut self) -> Result<()> {
        self.refuse_after_failure(|writer| {
            if !writer.faults.has(Bug::MovedStaysOpen) {
                // No segment gets this number. The newest one is what later writers continue.
                writer.next_segment = writer.next_segment.next();
            }
            writer.commit(Batch::default())?;
            writer.begin_new_segment();
            Ok(())
        })
    }

    /// The newest segment, if it can take `len` more bytes. One that is missing or damaged, or that
    /// cannot be opened, receives nothing.
    fn resumed_segment(&self, len: u64) -> Result<Option<SegmentWriter>> {
        let Some((number, row)) = self.unfinished_segment(len)? else {
            return Ok(None);
        };
        let (disk, uuid) = (&*self.store.disk, self.store.superblock.uuid);
        if !disk.is_at_home(&layout::segment_file(number)) {
            return Ok(None);
        }
        match SegmentWriter::resume(disk, uuid, number, &row) {
            Ok(segment) => Ok(Some(segment)),
            Err(error) if error.is_failed_write() => Err(error),
            Err(error) => {
                log::debug!(
                    "nothing more is written to {}: {error}",
                    layout::segment(number)
                );
                Ok(None)
            }
        }
    }

    /// The newest segment, if it has room for `len` more bytes.
    fn unfinished_segment(&self, len: u64) -> Result<Option<(SegmentNo, SegmentRow)>> {
        let number = self.newest_segment();
        if number < self.resume_from {
            return Ok(None);
        }
        let Some(value) = self.engine.get(Table::Segments, &key_of(number.0))? else {
            return Ok(None);
        };
        let row = SegmentRow::parse(&value)?;
        let has_room = row.len + len <= self.store.superblock.segment_len;
        // After a crash the file of a segment without records may be missing.
        let is_written = row.len > SEGMENT_SUPERBLOCK_LEN as u64;
        let is_usable = is_written && !row.is_emptied && !row.is_lost;
        Ok((has_room && is_usable).then_some((number, row)))
    }

    /// Appends a record of block `id` and returns its location; the record becomes durable with the
    /// next commit.
    pub(crate) fn append(
        &mut self,
        id: BlockId,
        record: &RecordRef,
        stored: &[u8],
    ) -> Result<Location> {
        let record = RecordRef {
            offset: 0,
            ..*record
        };
        let len = HEADER_LEN as u64 + record.stored_len;
        let segment = self.open_segment(len)?;
        let location = segment.append(id, &record, stored)?;
        let (number, end) = (segment.number(), segment.len());
        let needs_note = segment.needs_note();
        let mut row = self.segment_row(number)?;
        row.len = end;
        self.set_segment(number, row);
        self.appended_len += len;
        if needs_note {
            self.put_note()?;
        }
        Ok(location)
    }

    /// Appends a note about the records that the next commit makes durable.
    pub(crate) fn put_note(&mut self) -> Result<()> {
        let (uuid, commit) = (self.store.superblock.uuid, self.commit_no.next());
        let epoch = self.options.epoch;
        let is_wrong = self.faults.has(Bug::NoteNamesOthers);
        let Some(segment) = &mut self.segment else {
            return Ok(());
        };
        if is_wrong {
            segment.mix_up_ids();
        }
        let len = segment.put_note(uuid, commit, epoch);
        if len == 0 {
            return Ok(());
        }
        let (number, end) = (segment.number(), segment.len());
        let mut row = self.segment_row(number)?;
        row.len = end;
        row.notes_len += len;
        self.set_segment(number, row);
        Ok(())
    }
}
