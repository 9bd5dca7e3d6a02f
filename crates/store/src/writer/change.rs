//! A change of a store as a unit: after an error that is only of one item, the rows that wait for
//! the next commit are as they were before.

use super::StoreWriter;
use crate::faults::Bug;
use weald_format::store::{BlockRow, SegmentRow};
use weald_format::{BlockId, Error, ErrorKind, Result, SegmentNo};

impl StoreWriter {
    /// Whether no write has failed so far.
    pub fn is_usable(&self) -> bool {
        !self.is_dead
    }

    /// Runs `change`. After a failed write or sync of the disk, and after a panic, the writer
    /// refuses all further calls, because nobody knows what the disk has.
    ///
    /// Any other error is of one item: a segment, a map or a row that is damaged or missing, or
    /// what the caller wants to store. The writer goes on with what the last commit has, and with
    /// the rows that waited before the change. This is safe because:
    /// 1. A commit leaves the store in a state from which [`crate::recover`] can continue, so that
    ///    the state between two commits of one change is a complete one.
    /// 2. Rows that the change has set since are undone. None of them is in the tables: a
    ///    transaction that fails for a damaged page is rolled back.
    /// 3. Bytes that the change has appended stay, and no row refers to them. The open segment
    ///    keeps its length, so that nothing overwrites them. Notes may name their blocks, whose
    ///    numbers are not given away again.
    /// 4. Files that the change has made (hidden maps, a volume without a row) are those that a
    ///    crash leaves, too: the next writer removes them.
    ///
    /// Not safe, and so marked as failed writes: an error of a sync, of a write that may be partly
    /// done, of a rename or a removal that may be done or not, and of the tables' commit, unless
    /// the tables themselves are damaged.
    pub(crate) fn refuse_after_failure<T>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if self.is_dead {
            let what = format!(
                "{}: an earlier write failed: open the store again",
                self.store.disk.shown()
            );
            return Err(Error::new(ErrorKind::Io, what).of_failed_write());
        }
        self.is_dead = true;
        self.undo.clear();
        let result = change(self);
        let ends = self.faults.has(Bug::ItemEndsWriter);
        self.is_dead = match &result {
            Ok(_) => false,
            Err(error) => error.is_failed_write() || ends || self.undo().is_err(),
        };
        self.undo.clear();
        result
    }

    /// Gives the waiting rows the values that they had before the change under way, or at its last
    /// commit.
    fn undo(&mut self) -> Result<()> {
        let undo = std::mem::take(&mut self.undo);
        if self.faults.has(Bug::RowsNotUndone) {
            return Ok(());
        }
        for (id, row) in undo.blocks {
            match row {
                Some(row) => drop(self.blocks.insert(id, row)),
                None => drop(self.blocks.remove(&id)),
            }
        }
        for (number, row) in undo.segments {
            match row {
                Some(row) => drop(self.segments.insert(number, row)),
                None => drop(self.segments.remove(&number)),
            }
        }
        // What was appended stays.
        let Some(segment) = &self.segment else {
            return Ok(());
        };
        let (number, len, notes_len) = (segment.number(), segment.len(), segment.notes_len());
        let mut row = self.segment_row(number)?;
        if row.len != len {
            (row.len, row.notes_len) = (len, notes_len);
            self.segments.insert(number, row);
        }
        Ok(())
    }

    /// Sets the row of a block, which waits for the next commit.
    pub(crate) fn set_block(&mut self, id: BlockId, row: BlockRow) {
        self.near.remove(&id);
        let before = self.blocks.insert(id, row);
        self.undo.blocks.entry(id).or_insert(before);
    }

    /// Sets the row of a segment, which waits for the next commit.
    pub(crate) fn set_segment(&mut self, number: SegmentNo, row: SegmentRow) {
        let before = self.segments.insert(number, row);
        self.undo.segments.entry(number).or_insert(before);
    }
}
