//! Where the borders of runs lie.

use super::archive::Format;
use super::region::{Bytes, Region};
use crate::options::Chunking;
use crate::properties::Rules;
use fastcdc::v2020::FastCDC;
use std::ops::Range;
use weald_format::Result;

/// Contents of members with fewer bytes lie with the headers around them.
const CONTENT_LEN_MIN: u64 = 64;
/// Aligned zeros of this many bytes, which writers of files leave out.
const HOLE_LEN: u64 = 4096;

/// Longest run whose border the content chooses. Files up to this length are not cut.
pub fn run_len_max(rules: Rules) -> u64 {
    u64::from(rules.chunk_len / 2)
}

/// Shortest run whose border the content chooses.
pub fn run_len_min(rules: Rules) -> u64 {
    u64::from(rules.chunk_len / 32)
}

/// A run of bytes that is looked for, and stored, as a whole.
#[derive(Debug)]
pub struct CutRun {
    /// Where it lies in the file.
    pub range: Range<u64>,
    /// Its bytes.
    pub bytes: Bytes,
    /// Its parts that are no holes of the file.
    pub data_ranges: Vec<Range<u64>>,
}

/// Takes the runs of a file.
pub trait Sink {
    /// Takes the next run.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Full`.
    fn push_run(&mut self, run: CutRun) -> Result<()>;

    /// Whether the same bytes have a place already.
    fn is_known(&mut self, bytes: &[u8]) -> bool;
}

/// Where the cutting of a file stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// At this byte of a file that is no archive.
    Plain(u64),
    /// In front of a header of an archive. Bytes from `from` on belong to the run of this header.
    Header { format: Format, from: u64, at: u64 },
    /// In the content of a member. The last run begins at `from`.
    Content {
        format: Format,
        start: u64,
        len: u64,
        from: u64,
        /// How the file that is equal was cut.
        chunking: Chunking,
    },
}

impl Position {
    /// The first byte that is to be cut.
    pub fn start(self) -> u64 {
        match self {
            Self::Plain(from) | Self::Header { from, .. } | Self::Content { from, .. } => from,
        }
    }
}

/// Cuts a region.
pub struct Cutter<'a> {
    region: &'a Region<'a>,
    rules: Rules,
    sink: &'a mut dyn Sink,
    scratch: Vec<u8>,
}

impl<'a> Cutter<'a> {
    /// Gives the runs of `region` to `sink`.
    pub fn new(region: &'a Region<'a>, rules: Rules, sink: &'a mut dyn Sink) -> Self {
        Self {
            region,
            rules,
            sink,
            scratch: Vec::new(),
        }
    }

    /// Cuts the region, which begins at `position`. Returns where its last run, which may be
    /// incomplete, begins.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of the sink.
    pub fn cut(&mut self, position: Position) -> Result<Position> {
        let end = self.region.end();
        let mut position = position;
        loop {
            position = match position {
                Position::Plain(from) => return self.cut_file(from).map(Position::Plain),
                Position::Header { format, from, at } => {
                    match self.cut_headers(format, from, at)? {
                        next @ Position::Header { .. } => return Ok(next),
                        next => next,
                    }
                }
                Position::Content {
                    format,
                    start,
                    len,
                    from,
                    chunking,
                } => {
                    let content_end = start.saturating_add(len);
                    let usual = std::mem::replace(&mut self.rules.chunking, chunking);
                    let from = self.cut_member(start, from..content_end.min(end), len)?;
                    self.rules.chunking = usual;
                    if content_end > end {
                        return Ok(Position::Content {
                            format,
                            start,
                            len,
                            from,
                            chunking,
                        });
                    }
                    let at = content_end.next_multiple_of(format.align());
                    let from = content_end;
                    Position::Header { format, from, at }
                }
            };
        }
    }

    /// Gives the bytes of `range` away as one run, or as several if they are too many.
    fn push_run(&mut self, range: Range<u64>) -> Result<()> {
        let chunk_len = u64::from(self.rules.chunk_len);
        let mut at = range.start;
        while at < range.end {
            let run = at..range.end.min(at + chunk_len);
            at = run.end;
            let data_ranges: Vec<_> = self.region.data_ranges(run.clone()).collect();
            let bytes = if data_ranges.is_empty() {
                continue;
            } else {
                self.region.bytes(&run)?
            };
            self.sink.push_run(CutRun {
                range: run,
                bytes,
                data_ranges,
            })?;
        }
        Ok(())
    }

    /// Gives the data in `range` away, without the holes.
    fn push_data(&mut self, range: Range<u64>) -> Result<()> {
        let region = self.region;
        region
            .data_ranges(range)
            .try_for_each(|part| self.push_run(part))
    }

    /// Passes over headers until one whose content is cut. Headers that follow each other, with the
    /// padding in front of them, are one run.
    fn cut_headers(&mut self, format: Format, from: u64, at: u64) -> Result<Position> {
        let end = self.region.end();
        let (align, header_len) = (format.align(), format.header_len());
        let (mut from, mut at) = (from, at.max(from.next_multiple_of(align)));
        while at.saturating_add(header_len) <= end {
            if at - from >= u64::from(self.rules.chunk_len) {
                self.push_data(from..at)?;
                from = at;
            }
            let Some(data) = self.region.data_ranges(at..end).next() else {
                break;
            };
            if data.start >= at + header_len {
                at = data.start / align * align;
                self.push_data(from..at)?;
                from = at;
                continue;
            }
            let block = self.region.view(at..at + header_len, &mut self.scratch)?;
            let Some(header) = format.parse(block) else {
                if format.has_checksum() {
                    at += align
                } else {
                    // Nothing says where the next header is.
                    at = end
                }
                continue;
            };
            let start = at.saturating_add(header.own_len);
            if start > end {
                break;
            }
            if header.has_content && header.len >= CONTENT_LEN_MIN {
                self.push_data(from..start)?;
                return Ok(Position::Content {
                    format,
                    start,
                    len: header.len,
                    from: start,
                    chunking: self.chunking_of(start, header.len)?,
                });
            }
            at = start.saturating_add(header.len).next_multiple_of(align);
        }
        self.push_data(from..end)?;
        Ok(Position::Header { format, from, at })
    }

    /// Cutting of a member of `len` bytes from `start` on: as of an equal file if its first run is
    /// known, else by the rules.
    fn chunking_of(&mut self, start: u64, len: u64) -> Result<Chunking> {
        let usual = self.rules.chunking;
        let end = self.region.end().min(start.saturating_add(len));
        // Both ways are the same for short ones.
        if len <= run_len_max(self.rules) || start >= end {
            return Ok(usual);
        }
        let chunk_end = end.min(start + u64::from(self.rules.chunk_len));
        let (part_end, is_zero) = self.end_of_equal_kind(start, start..chunk_end)?;
        if is_zero {
            return Ok(usual);
        }
        let border = self.content_border(start..part_end)?;
        let mut ways = [(Chunking::Content, border), (Chunking::Auto, part_end)];
        // The usual way is tried first.
        ways.sort_by_key(|(way, _)| *way != usual);
        for (way, run_end) in ways {
            let bytes = self.region.view(start..run_end, &mut self.scratch)?;
            if self.sink.is_known(bytes) {
                return Ok(way);
            }
        }
        Ok(usual)
    }

    /// Cuts the content of a member as the file itself would be cut. It has `len` bytes from
    /// `start` on, of which `range` is cut. Returns the start of the last run.
    fn cut_member(&mut self, start: u64, range: Range<u64>, len: u64) -> Result<u64> {
        let mut last = range.start;
        let mut at = range.start;
        while at < range.end {
            let (part_end, is_zero) = self.end_of_equal_kind(start, at..range.end)?;
            if is_zero {
                // A file has a hole here. The archive may have a part of one.
                self.push_data(at..part_end)?;
                last = part_end;
            } else {
                last = self.cut_part(start, at..part_end, len)?
            }
            at = part_end;
        }
        Ok(last)
    }

    /// The end of the aligned blocks of zeros, or of data, that `range` begins with.
    fn end_of_equal_kind(&mut self, start: u64, range: Range<u64>) -> Result<(u64, bool)> {
        let mut at = range.start;
        let mut is_zero = None;
        while at < range.end {
            let next = start + ((at - start) / HOLE_LEN + 1) * HOLE_LEN;
            let block = at..next.min(range.end);
            // Writers of files leave whole blocks out only.
            let is_whole = (at - start).is_multiple_of(HOLE_LEN) && next <= range.end;
            let data = self.region.data_ranges(at..range.end).next();
            let data_start = data.map_or(range.end, |part| part.start);
            let (is_hole, block_end) = if data_start >= block.end {
                // No file has as many blocks as a hole may have.
                let last = start + (data_start - start) / HOLE_LEN * HOLE_LEN;
                (true, last.max(block.end))
            } else {
                let bytes = self.region.view(block.clone(), &mut self.scratch)?;
                let is_hole = is_whole && bytes.iter().all(|byte| *byte == 0);
                (is_hole, block.end)
            };
            if *is_zero.get_or_insert(is_hole) != is_hole {
                break;
            }
            at = block_end;
        }
        Ok((at, is_zero.unwrap_or(false)))
    }

    /// Cuts a file that is no archive, from the byte `from` on.
    fn cut_file(&mut self, from: u64) -> Result<u64> {
        let end = self.region.end();
        let region = self.region;
        let mut last = from;
        for part in region.data_ranges(from..end) {
            last = self.cut_part(0, part, end)?;
        }
        Ok(last)
    }

    /// Cuts bytes without a hole of a file that begins at `start` and has `len` bytes. Returns the
    /// start of the last run.
    fn cut_part(&mut self, start: u64, part: Range<u64>, len: u64) -> Result<u64> {
        let mut at = part.start;
        loop {
            let run_end = match self.rules.chunking {
                Chunking::Content if len <= run_len_max(self.rules) => part.end,
                Chunking::Content => self.content_border(at..part.end)?,
                _ => {
                    let chunk_len = u64::from(self.rules.chunk_len);
                    let border = start + ((at - start) / chunk_len + 1) * chunk_len;
                    border.min(part.end)
                }
            };
            self.push_run(at..run_end)?;
            if run_end >= part.end {
                return Ok(at);
            }
            at = run_end;
        }
    }

    /// The end of the run that `range` begins with.
    fn content_border(&mut self, range: Range<u64>) -> Result<u64> {
        let len_max = run_len_max(self.rules);
        let candidates = range.start..range.end.min(range.start + len_max);
        let bytes = self.region.view(candidates, &mut self.scratch)?;
        let (len_min, len_usual) = (run_len_min(self.rules), self.rules.chunk_len / 8);
        let cutter = FastCDC::new(
            bytes,
            len_min as usize,
            len_usual as usize,
            len_max as usize,
        );
        let (_, end) = cutter.cut(0, bytes.len());
        Ok(range.start + end as u64)
    }
}
