//! Compares a file with its parity, and repairs it.

use crate::batches::Batches;
use crate::code::ColumnDecoder;
use crate::layout::Layout;
use crate::table::{self, Entry, Table};
use crate::{SECTOR, Watch, sectors};
use parking_lot::Mutex;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use weald_format::{Error, Result};

/// Blocks that one read takes when headers are searched for.
const SEARCH_BLOCKS: usize = 256;

/// An open parity file.
pub struct Parity {
    file: File,
    layout: Layout,
}

/// What was found. Ranges are of bytes of the file, ascending, and do not touch.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is not as it was when the parity was made, or cannot be read; a repair restores it, or
    /// has restored it.
    pub repairable: Vec<Range<u64>>,
    /// As `repairable`, but there is too much damage near it.
    pub lost: Vec<Range<u64>>,
    /// What may be right or wrong: so much of the parity file is damaged that nothing tells.
    pub unknown: Vec<Range<u64>>,
    /// Bytes that the file has behind those that the parity is for.
    pub extra_len: u64,
    /// Damaged blocks of the parity file.
    pub damaged_parity_count: u64,
}

impl Report {
    /// Whether the bytes that the parity is for are all right, or were repaired.
    pub fn is_file_repairable(&self) -> bool {
        self.lost.is_empty() && self.unknown.is_empty()
    }

    /// Whether nothing at all was found.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }
}

impl Parity {
    /// Opens a parity file by any of its headers.
    ///
    /// # Errors
    /// `Io`; `Unsupported` for a newer version; `Corrupt` for a file that is none, or one without a
    /// whole header.
    /// # Cost
    /// One read; the whole file if its first header is damaged.
    pub fn open(file: File) -> Result<Self> {
        let metadata = file.metadata().map_err(|e| Error::io("metadata", e))?;
        if !metadata.is_file() {
            return Err(Error::invalid("is no regular file"));
        }
        let block_count = metadata.len().div_ceil(SECTOR as u64);
        let mut bytes = vec![0; SEARCH_BLOCKS * SECTOR];
        let mut is_bad = vec![false; SEARCH_BLOCKS];
        for first in (0..block_count).step_by(SEARCH_BLOCKS) {
            let offset = first * SECTOR as u64;
            sectors::read(&file, offset, metadata.len(), &mut bytes, &mut is_bad)?;
            for block in bytes.as_chunks().0 {
                if let Some(layout) = Layout::parse(block)? {
                    return Ok(Self { file, layout });
                }
            }
        }
        Err(Error::corrupt(
            "parity",
            0,
            "F-35.1",
            "is no parity file, or all of its headers are damaged",
        ))
    }

    /// The layout of the file.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Compares `file` with its parity. With `repair`, everything in it that can be restored is
    /// written to it, which must be open for writing then, and synced.
    ///
    /// What a comparison calls repairable is what a repair restores, and nothing else.
    ///
    /// # Errors
    /// `Io`, `Full`; `Invalid` ("interrupted"). A repair that ended early can be done again.
    /// # Cost
    /// Reads both files once, in pieces that lie apart. Up to 512 MiB of memory, and the damaged
    /// blocks of the table of digests.
    pub fn examine(
        &self,
        file: &File,
        repair: bool,
        thread_count: usize,
        watch: &Watch<'_>,
    ) -> Result<Report> {
        let layout = &self.layout;
        let metadata = file.metadata().map_err(|e| Error::io("the file", e))?;
        let table = Table::open(&self.file, layout, watch)?;
        let run = Examination {
            file,
            parity: &self.file,
            layout,
            table: &table,
            repair,
            found: Mutex::new(SectorNumbers::default()),
        };
        let batches = Batches::new(&layout.code, thread_count);
        let start = || Ok(Work::new(layout, batches.width()));
        batches.run(watch, start, |work, columns| run.columns(work, columns))?;
        let found = run.found.into_inner();
        if repair && !found.repairable.is_empty() {
            file.sync_all().map_err(|e| Error::io("sync", e))?;
        }
        let damaged = table.damaged_count + found.damaged_recovery + self.damaged_headers()?;
        Ok(Report {
            repairable: ranges(found.repairable, layout.file_len),
            lost: ranges(found.lost, layout.file_len),
            unknown: ranges(found.unknown, layout.file_len),
            extra_len: metadata.len().saturating_sub(layout.file_len),
            damaged_parity_count: damaged,
        })
    }

    /// The number of headers that are damaged, and one more if something follows the last one.
    fn damaged_headers(&self) -> Result<u64> {
        let header = self.layout.header();
        let mut block = [0; SECTOR];
        let mut is_bad = [false];
        let mut count = 0;
        for number in self.layout.headers() {
            let offset = number * SECTOR as u64;
            sectors::read(&self.file, offset, u64::MAX, &mut block, &mut is_bad)?;
            count += u64::from(is_bad[0] || block != *header);
        }
        let metadata = self.file.metadata().map_err(|e| Error::io("metadata", e))?;
        Ok(count + u64::from(metadata.len() > self.layout.parity_len()))
    }
}

/// Sorted ranges of bytes of the sectors `numbers` of a file.
fn ranges(mut numbers: Vec<u64>, file_len: u64) -> Vec<Range<u64>> {
    numbers.sort_unstable();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for number in numbers {
        let start = number * SECTOR as u64;
        let end = (start + SECTOR as u64).min(file_len);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

/// Numbers of sectors, in no order.
#[derive(Default)]
struct SectorNumbers {
    repairable: Vec<u64>,
    lost: Vec<u64>,
    unknown: Vec<u64>,
    /// Damaged recovery sectors.
    damaged_recovery: u64,
}

/// What a thread keeps from batch to batch.
struct Work {
    sectors: Vec<u8>,
    is_bad: Vec<bool>,
    recovery: Vec<u8>,
    is_bad_recovery: Vec<bool>,
    /// Made for the first damage.
    decoder: Option<ColumnDecoder>,
}

impl Work {
    fn new(layout: &Layout, width: usize) -> Self {
        let (count, recovery_count) = (layout.code.rows * width, layout.code.recovery_rows * width);
        Self {
            sectors: vec![0; count * SECTOR],
            is_bad: vec![false; count],
            recovery: vec![0; recovery_count * SECTOR],
            is_bad_recovery: vec![false; recovery_count],
            decoder: None,
        }
    }
}

/// What is known of a sector.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SectorState {
    Whole,
    Damaged,
    /// Its digest is lost.
    Unknown,
}

struct Examination<'a> {
    file: &'a File,
    parity: &'a File,
    layout: &'a Layout,
    table: &'a Table<'a>,
    repair: bool,
    found: Mutex<SectorNumbers>,
}

impl Examination<'_> {
    /// Looks at the columns of a batch; returns the bytes that it read.
    fn columns(&self, work: &mut Work, columns: Range<u64>) -> Result<u64> {
        let code = self.layout.code;
        let width = (columns.end - columns.start) as usize;
        let row_len = width * SECTOR;
        let rows = work.sectors.chunks_mut(row_len).take(code.rows);
        for (row, (piece, is_bad)) in rows.zip(work.is_bad.chunks_mut(width)).enumerate() {
            let offset = code.block(row, columns.start) * SECTOR as u64;
            sectors::read(self.file, offset, self.layout.file_len, piece, is_bad)?;
        }
        let rows = work.recovery.chunks_mut(row_len).take(code.recovery_rows);
        let flags = work.is_bad_recovery.chunks_mut(width);
        for (row, (piece, is_bad)) in rows.zip(flags).enumerate() {
            let block = code.block(row, columns.start);
            let offset = self.layout.recovery_block(block) * SECTOR as u64;
            sectors::read(self.parity, offset, u64::MAX, piece, is_bad)?;
        }
        for (index, column) in columns.enumerate() {
            self.column(work, width, index, column)?;
        }
        Ok(((code.rows + code.recovery_rows) * row_len) as u64)
    }

    /// Looks at the column `column`, which is at `index` of the `width` columns of the batch.
    fn column(&self, work: &mut Work, width: usize, index: usize, column: u64) -> Result<()> {
        let code = self.layout.code;
        let entries = self.table.entries(column)?;
        let (entries, recovery_entries) = entries.split_at(code.rows);
        let sector_at =
            |row: usize| (row * width + index) * SECTOR..(row * width + index + 1) * SECTOR;
        let states: Vec<SectorState> = entries
            .iter()
            .enumerate()
            .map(|(row, entry)| {
                let sector = &work.sectors[sector_at(row)];
                if work.is_bad[row * width + index] {
                    SectorState::Damaged
                } else if code.block(row, column) * SECTOR as u64 >= self.layout.file_len {
                    SectorState::Whole
                } else {
                    state_of(sector, entry.as_ref())
                }
            })
            .collect();
        let whole_recovery: Vec<usize> = (0..code.recovery_rows)
            .filter(|row| {
                let sector = &work.recovery[sector_at(*row)];
                !work.is_bad_recovery[row * width + index]
                    && state_of(sector, recovery_entries[*row].as_ref()) == SectorState::Whole
            })
            .collect();
        let count_of = |state| states.iter().filter(|s| **s == state).count();
        let (damaged_count, unknown_count) = (
            count_of(SectorState::Damaged),
            count_of(SectorState::Unknown),
        );
        let sectors_in = |state| {
            let rows = states.iter().enumerate();
            let rows = rows.filter(move |(_, s)| **s == state);
            rows.map(move |(row, _)| code.block(row, column))
        };
        {
            let lost = recovery_entries.len() - whole_recovery.len();
            let without_digest = recovery_entries.iter().filter(|e| e.is_none()).count();
            self.found.lock().damaged_recovery += lost.saturating_sub(without_digest) as u64;
        }
        if damaged_count + unknown_count == 0 {
            return Ok(());
        }
        if damaged_count + unknown_count > whole_recovery.len() {
            let mut found = self.found.lock();
            found.lost.extend(sectors_in(SectorState::Damaged));
            found.unknown.extend(sectors_in(SectorState::Unknown));
            return Ok(());
        }
        if !self.repair && unknown_count == 0 {
            let mut found = self.found.lock();
            found.repairable.extend(sectors_in(SectorState::Damaged));
            return Ok(());
        }
        let decoder = match &mut work.decoder {
            Some(decoder) => decoder,
            none => none.insert(ColumnDecoder::new(&code, SECTOR)?),
        };
        let whole = states.iter().enumerate();
        let whole = whole.filter(|(_, state)| **state == SectorState::Whole);
        let whole = whole.map(|(row, _)| (row, &work.sectors[sector_at(row)]));
        let recovery = whole_recovery.iter();
        let recovery = recovery.map(|row| (*row, &work.recovery[sector_at(*row)]));
        decoder.decode(whole, recovery, |row, restored| {
            let number = code.block(row, column);
            if states[row] == SectorState::Unknown && restored == &work.sectors[sector_at(row)] {
                return Ok(());
            }
            let mut found = self.found.lock();
            if entries[row].is_some_and(|entry| entry != table::entry(restored)) {
                found.lost.push(number);
                return Ok(());
            }
            found.repairable.push(number);
            drop(found);
            if self.repair {
                self.write(number, restored)?;
            }
            Ok(())
        })
    }

    /// Writes the restored sector `number` of the file.
    fn write(&self, number: u64, sector: &[u8]) -> Result<()> {
        let offset = number * SECTOR as u64;
        let len = (self.layout.file_len - offset).min(SECTOR as u64) as usize;
        let written = self.file.write_all_at(&sector[..len], offset);
        written.map_err(|e| Error::io(format!("write at {offset}"), e))
    }
}

fn state_of(sector: &[u8], entry: Option<&Entry>) -> SectorState {
    match entry {
        None => SectorState::Unknown,
        Some(entry) if table::entry(sector) == *entry => SectorState::Whole,
        Some(_) => SectorState::Damaged,
    }
}
