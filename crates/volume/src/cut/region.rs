//! A range of a file whose bytes lie in many places.

use crate::core::Core;
use crate::layer::{ContentRange, RangeContent, RangeMap};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::{Ino, Result};

/// Bytes that need a place in a block.
#[derive(Debug)]
pub enum Bytes {
    /// Written bytes of a layer.
    Shared(Arc<[u8]>, Range<usize>),
    /// Bytes of several segments, or a pack.
    Own(Vec<u8>),
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Shared(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
            Self::Own(bytes) => bytes,
        }
    }
}

/// A range of a file: changes in a layer above what the tables have.
#[derive(Debug)]
pub struct Region<'a> {
    core: &'a Core,
    range: Range<u64>,
    /// Its data, in order; holes lie between them.
    data: Vec<ContentRange>,
    /// The ranges of `data`, without borders between neighbours.
    data_ranges: Vec<Range<u64>>,
}

impl<'a> Region<'a> {
    /// The bytes of `range` of the file `ino`; `map` has its changes.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn new(core: &'a Core, ino: Ino, map: &RangeMap, range: Range<u64>) -> Result<Self> {
        let mut data = Vec::new();
        let mut keep = |range: Range<u64>| -> Result<()> {
            if !range.is_empty() {
                let _ = core.tables.each_segment(ino, range, &mut |segment| {
                    data.extend(Some(segment).filter(|segment| !segment.source.is_hole()));
                    ControlFlow::Continue(())
                })?;
            }
            Ok(())
        };
        let mut at = range.start;
        let mut changed = Vec::new();
        for segment in map.within(&range) {
            keep(at..segment.range.start)?;
            at = segment.range.end;
            changed.extend(Some(segment).filter(|segment| !segment.source.is_hole()));
        }
        keep(at..range.end)?;
        data.append(&mut changed);
        data.sort_unstable_by_key(|segment| segment.range.start);
        Ok(Self {
            core,
            range,
            data,
            data_ranges: Vec::new(),
        })
    }

    /// Loses what lies before `at`: a deliberate bug.
    pub fn forget_before(&mut self, at: u64) {
        self.data.retain(|segment| segment.range.start >= at);
    }

    /// Joins neighbours.
    pub fn finish(&mut self) {
        for segment in &self.data {
            match self.data_ranges.last_mut() {
                Some(last) if last.end == segment.range.start => last.end = segment.range.end,
                _ => self.data_ranges.push(segment.range.clone()),
            }
        }
    }

    /// Its first byte.
    pub fn start(&self) -> u64 {
        self.range.start
    }

    /// The byte after its last one.
    pub fn end(&self) -> u64 {
        self.range.end
    }

    /// Ranges of data within `range`, in order.
    pub fn data_ranges(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self
            .data_ranges
            .partition_point(|part| part.end <= range.start);
        let data_ranges = self.data_ranges.get(first..).unwrap_or_default().iter();
        data_ranges
            .take_while({
                let end = range.end;
                move |part| part.start < end
            })
            .map(move |part| part.start.max(range.start)..part.end.min(range.end))
    }

    /// The segments that overlap `range`.
    fn segments(&self, range: &Range<u64>) -> &[ContentRange] {
        let first = self.data.partition_point(|s| s.range.end <= range.start);
        let last = self.data.partition_point(|s| s.range.start < range.end);
        self.data.get(first..last).unwrap_or_default()
    }

    /// Bytes of a layer that cover `range` alone, and the offset of the first one.
    fn shared(&self, range: &Range<u64>) -> Option<(&Arc<[u8]>, usize)> {
        match self.segments(range) {
            [only] if only.range.start <= range.start && only.range.end >= range.end => {
                match &only.source {
                    RangeContent::Bytes(bytes, offset) => {
                        Some((bytes, offset + (range.start - only.range.start) as usize))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Appends the bytes of `range` to `out`, holes as zeros.
    fn copy(&self, range: &Range<u64>, out: &mut Vec<u8>) -> Result<()> {
        let len = out.len() + (range.end - range.start) as usize;
        let begin = out.len() as u64;
        for segment in self.segments(range) {
            let segment = segment.within(range);
            out.resize((begin + segment.range.start - range.start) as usize, 0);
            self.core.copy_out(&[segment], out)?;
        }
        out.resize(len, 0);
        Ok(())
    }

    /// The bytes of `range`, copied to `scratch` if they do not lie together.
    ///
    /// # Errors
    /// `Io`, `Corrupt`: a block cannot be read.
    pub fn view<'b>(&'b self, range: Range<u64>, scratch: &'b mut Vec<u8>) -> Result<&'b [u8]> {
        let len = (range.end - range.start) as usize;
        if let Some((bytes, start)) = self.shared(&range) {
            return Ok(bytes.get(start..start + len).unwrap_or_default());
        }
        scratch.clear();
        self.copy(&range, scratch)?;
        Ok(scratch)
    }

    /// The bytes of `range`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`: a block cannot be read.
    pub fn bytes(&self, range: &Range<u64>) -> Result<Bytes> {
        let len = (range.end - range.start) as usize;
        if let Some((bytes, start)) = self.shared(range) {
            return Ok(Bytes::Shared(bytes.clone(), start..start + len));
        }
        let mut bytes = Vec::with_capacity(len);
        self.copy(range, &mut bytes)?;
        Ok(Bytes::Own(bytes))
    }
}
