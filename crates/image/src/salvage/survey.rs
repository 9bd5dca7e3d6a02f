//! The walk over all records of a file, from front to back, without an index.

use crate::records::read::read_or_zeros;
use std::ops::{ControlFlow, Range};
use weald_format::container::{
    FOOTER_LEN, FOOTER_MAGIC, Footer, FooterRecord, HEADER_LEN, RECORD_MAGIC, RecordRef,
    SUPERBLOCK_LEN,
};
use weald_format::directory::check_lens;
use weald_format::{Digest, Error, Result};
use weald_io::ReadAt;
use zerocopy::FromBytes;

/// Bytes that the walk reads at once.
const WINDOW_LEN: usize = 1 << 20;

/// A record that the walk found: its header is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remnant {
    /// As the header describes it.
    pub record: RecordRef,
    /// Whether the stored bytes have the digest of the header.
    pub is_whole: bool,
}

/// What a walk over a file found.
#[derive(Debug, Default)]
pub struct Survey {
    /// Records in ascending order of their offsets.
    pub records: Vec<Remnant>,
    /// Footers, each with its offset in the file, ascending.
    pub footers: Vec<(u64, Footer)>,
    /// Ranges of bytes that belong to no whole record and no footer, ascending.
    pub damaged: Vec<Range<u64>>,
    /// Bytes of the file.
    pub len: u64,
}

/// Called with the number of bytes that the walk has passed; `Break` ends it.
pub type WatchSurvey<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

impl Survey {
    /// Walks over `source`.
    ///
    /// # Errors
    /// `Invalid` ("interrupted") if `watch` ends the walk.
    /// # Cost
    /// Reads every byte once and hashes the records; what is no record is searched for the next
    /// one. 72 bytes of memory for each record, which has 65 bytes or more in the file.
    pub fn of(source: &dyn ReadAt, watch: &mut WatchSurvey<'_>) -> Result<Self> {
        let mut walk = Walk {
            window: Window::new(source),
            found: Self {
                len: source.len(),
                ..Self::default()
            },
            watch,
        };
        let start = SUPERBLOCK_LEN as u64;
        let begins = walk.has_mark(start) || source.len() <= start;
        let mut at = if begins { start } else { 0 };
        while let Some(next) = walk.step(at)? {
            at = next;
        }
        Ok(walk.found)
    }

    /// The record at `offset`.
    pub fn at(&self, offset: u64) -> Option<&Remnant> {
        let records = &self.records;
        let found = records.binary_search_by_key(&offset, |r| r.record.offset);
        records.get(found.ok()?)
    }
}

/// What stands at an offset.
enum Mark {
    Record(RecordRef),
    Footer(Footer),
}

struct Walk<'a, 'w> {
    window: Window<'a>,
    found: Survey,
    watch: &'a mut WatchSurvey<'w>,
}

impl Walk<'_, '_> {
    /// Takes what is at `at`; returns where to go on, or `None` at the end.
    fn step(&mut self, at: u64) -> Result<Option<u64>> {
        if (self.watch)(at).is_break() {
            return Err(Error::invalid("interrupted"));
        }
        if at >= self.found.len {
            return Ok(None);
        }
        let next = match self.mark(at) {
            Some(Mark::Footer(footer)) => {
                self.found.footers.push((at, footer));
                at.saturating_add(FOOTER_LEN as u64)
            }
            Some(Mark::Record(record)) => self.record(record)?,
            None => {
                let next = self.search(at.saturating_add(1))?;
                self.found.damaged.push(at..next);
                next
            }
        };
        Ok(Some(next))
    }

    fn record(&mut self, record: RecordRef) -> Result<u64> {
        let body = record.offset.saturating_add(HEADER_LEN as u64);
        let end = record.end();
        let is_whole = end <= self.found.len && self.digest(body, end)? == record.digest;
        self.found.records.push(Remnant { record, is_whole });
        if is_whole {
            return Ok(end);
        }
        // Overwritten bytes leave the next record in its place. Missing or inserted bytes do not.
        let next = if end <= self.found.len && (end == self.found.len || self.has_mark(end)) {
            end
        } else {
            self.search(body)?
        };
        self.found.damaged.push(record.offset..next);
        Ok(next)
    }

    /// The digest of the bytes from `at` to `end`.
    fn digest(&mut self, mut at: u64, end: u64) -> Result<Digest> {
        let mut hasher = blake3::Hasher::new();
        while at < end {
            if (self.watch)(at).is_break() {
                return Err(Error::invalid("interrupted"));
            }
            let len = end.saturating_sub(at).min(WINDOW_LEN as u64) as usize;
            let piece = self.window.get(at, len);
            if piece.is_empty() {
                break;
            }
            hasher.update(piece);
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(Digest(*hasher.finalize().as_bytes()))
    }

    fn has_mark(&mut self, at: u64) -> bool {
        self.mark(at).is_some()
    }

    fn mark(&mut self, at: u64) -> Option<Mark> {
        let bytes = self.window.get(at, FOOTER_LEN);
        if bytes.starts_with(&RECORD_MAGIC) {
            let header = bytes.get(..HEADER_LEN)?;
            let record = RecordRef::parse_header(header, at).ok()?;
            return check_lens(&record).is_ok().then_some(Mark::Record(record));
        }
        if !bytes.starts_with(&FOOTER_MAGIC) {
            return None;
        }
        // It may have moved, if bytes before it are missing.
        let claimed = FooterRecord::ref_from_bytes(bytes).ok()?;
        let footer = Footer::parse(bytes, claimed.footer_offset.get()).ok()?;
        Some(Mark::Footer(footer))
    }

    /// The first record or footer from `from` on, or the end of the file.
    fn search(&mut self, from: u64) -> Result<u64> {
        let mut at = from;
        while at < self.found.len {
            if (self.watch)(at).is_break() {
                return Err(Error::invalid("interrupted"));
            }
            let piece = self.window.get(at, WINDOW_LEN);
            let len = piece.len();
            let begins = |bytes: &[u8]| bytes == b"WR" || bytes == b"WE";
            let found: Vec<usize> = (piece.windows(2).enumerate())
                .filter_map(|(index, bytes)| begins(bytes).then_some(index))
                .collect();
            for index in found {
                let place = at.saturating_add(index as u64);
                if self.has_mark(place) {
                    return Ok(place);
                }
            }
            // The two bytes may lie across two pieces.
            at = at.saturating_add((len as u64).max(2).saturating_sub(1));
        }
        Ok(self.found.len)
    }
}

/// Bytes of the file around the place of the walk.
struct Window<'a> {
    source: &'a dyn ReadAt,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(source: &'a dyn ReadAt) -> Self {
        Self {
            source,
            start: 0,
            bytes: Vec::new(),
        }
    }

    /// `len` bytes from `at` on, fewer at the end of the file. What cannot be read is zero.
    fn get(&mut self, at: u64, len: usize) -> &[u8] {
        let len = (self.source.len().saturating_sub(at)).min(len as u64) as usize;
        let has = |window: &Self| {
            let end = window.start.saturating_add(window.bytes.len() as u64);
            at >= window.start && at.saturating_add(len as u64) <= end
        };
        if !has(self) {
            let remaining = self.source.len().saturating_sub(at);
            let window_len = remaining.min((WINDOW_LEN as u64).max(len as u64)) as usize;
            self.bytes.resize(window_len, 0);
            self.start = at;
            read_or_zeros(self.source, &mut self.bytes, at);
        }
        let index = at.saturating_sub(self.start) as usize;
        let range = index..index.saturating_add(len);
        self.bytes.get(range).unwrap_or_default()
    }
}
