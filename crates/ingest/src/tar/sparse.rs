//! Maps of sparse files, in the four formats of GNU tar.

use super::number::{TAR_BLOCK_LEN, field_number};
use crate::members::Layout;
use weald_format::limits::NUMBER_MAX;
use weald_format::{Error, Result};

/// Limit of runs per file.
const RUNS_MAX: usize = 1 << 20;
/// Bytes of a run in a header, and of each of its two numbers.
const RUN_LEN: usize = 24;
/// Offset, in a block of runs, of the flag that another block follows.
const CONTINUES_OFFSET: usize = 504;

/// Length and data runs of a sparse file.
#[derive(Debug, Clone, Default)]
pub struct Map {
    /// Length of the file.
    pub real_len: u64,
    runs: Vec<(u64, u64)>,
}

impl Map {
    /// Adds a run: offset and length.
    ///
    /// # Errors
    /// `Limit` for too many.
    pub fn push(&mut self, offset: u64, len: u64) -> Result<()> {
        if self.runs.len() == RUNS_MAX {
            return Err(Error::limit(format!(
                "a sparse file of more than {RUNS_MAX} runs"
            )));
        }
        self.runs.push((offset, len));
        Ok(())
    }

    /// The layout of a file with `data_len` bytes of data in the stream.
    ///
    /// # Errors
    /// `Invalid` for runs out of order, or with other lengths than the headers announce.
    pub fn layout(&self, data_len: u64) -> Result<Layout> {
        let wrong = |what: &str| Err(Error::invalid(format!("map of a sparse file: {what}")));
        let (mut runs, mut sum) = (Vec::<std::ops::Range<u64>>::new(), 0_u64);
        let mut end = 0;
        if self.real_len > NUMBER_MAX {
            return wrong("the file is too long");
        }
        for &(offset, len) in &self.runs {
            let Some(next) = offset.checked_add(len) else {
                return wrong("a run is too long");
            };
            if offset < end || next > self.real_len {
                return wrong("runs are out of order, or behind the end");
            }
            end = next;
            sum += len;
            match runs.last_mut() {
                _ if len == 0 => {}
                Some(last) if last.end == offset => last.end = next,
                _ => runs.push(offset..next),
            }
        }
        if sum != data_len {
            return wrong(&format!(
                "the map lists {sum} bytes of data, the member has {data_len}"
            ));
        }
        let is_dense = data_len == self.real_len;
        Ok(Layout {
            len: self.real_len,
            runs: (!is_dense).then_some(runs),
        })
    }
}

/// Adds the runs of a header's field to `map`.
///
/// # Errors
/// `Invalid`, `Limit`.
pub fn read_runs(field: &[u8], map: &mut Map) -> Result<()> {
    for run in field.chunks_exact(RUN_LEN) {
        let (offset, len) = run.split_at(RUN_LEN / 2);
        if run.iter().all(|&b| b == 0) {
            break;
        }
        map.push(field_number(offset)?, field_number(len)?)?;
    }
    Ok(())
}

/// Adds the runs of a block behind a header; returns whether another follows.
///
/// # Errors
/// As [`read_runs`].
pub fn read_block(block: &[u8; TAR_BLOCK_LEN], map: &mut Map) -> Result<bool> {
    read_runs(&block[..CONTINUES_OFFSET], map)?;
    Ok(block[CONTINUES_OFFSET] != 0)
}

/// Parser of a map of format 1.0, block by block.
pub struct Text {
    map: Map,
    /// Remaining numbers, once their count is known.
    remaining: Option<u64>,
    number: Option<u64>,
    offset: Option<u64>,
}

impl Text {
    /// A parser for a file of `real_len` bytes.
    pub fn new(real_len: u64) -> Self {
        let map = Map {
            real_len,
            runs: Vec::new(),
        };
        Self {
            map,
            remaining: None,
            number: None,
            offset: None,
        }
    }

    /// Whether the map is complete.
    pub fn is_whole(&self) -> bool {
        self.remaining == Some(0)
    }

    /// The map.
    pub fn finish(self) -> Map {
        self.map
    }

    /// Reads a block; bytes behind the map are padding.
    ///
    /// # Errors
    /// `Invalid`, `Limit`.
    pub fn read(&mut self, block: &[u8]) -> Result<()> {
        for &byte in block {
            if self.is_whole() {
                break;
            }
            match byte {
                b'0'..=b'9' => {
                    let digit = u64::from(byte - b'0');
                    let number = self.number.unwrap_or(0).checked_mul(10);
                    self.number = number.and_then(|n| n.checked_add(digit));
                    if self.number.is_none() {
                        return Err(Error::invalid("map of a sparse file: a number is too long"));
                    }
                }
                b'\n' => self.end_number()?,
                _ => return Err(Error::invalid("map of a sparse file: expected a number")),
            }
        }
        Ok(())
    }

    fn end_number(&mut self) -> Result<()> {
        let Some(number) = self.number.take() else {
            return Err(Error::invalid("map of a sparse file: expected a number"));
        };
        let Some(remaining) = self.remaining else {
            if number > RUNS_MAX as u64 {
                return Err(Error::limit(format!(
                    "a sparse file of {number} runs, at most {RUNS_MAX} are taken"
                )));
            }
            self.remaining = Some(number * 2);
            return Ok(());
        };
        self.remaining = Some(remaining.saturating_sub(1));
        match self.offset.take() {
            None => self.offset = Some(number),
            Some(offset) => self.map.push(offset, number)?,
        }
        Ok(())
    }
}
