//! The history of a record of codec `zstd-history`: the list of records whose raw bytes its frame
//! may refer back to.

use crate::cursor::{Cursor, put_varint};
use crate::limits::{HISTORY_COUNT_MAX, NUMBER_MAX, STREAMS_MAX};
use crate::{Error, Result};

/// Rule that a wrong history breaks.
pub const RULE: &str = "F-25.1";

/// The records that a frame refers back to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    /// Stream of category `base` whose section in the base image holds these records; `None` for
    /// the record's own section.
    pub base_stream: Option<u8>,
    /// Numbers of these records in that section, ascending.
    pub numbers: Vec<u64>,
}

impl History {
    /// Encodes the list that stands before the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.numbers.len() as u64);
        let base_code = self
            .base_stream
            .map_or(0, |s| u64::from(s).saturating_add(1));
        put_varint(&mut out, base_code);
        self.numbers.iter().for_each(|&no| put_varint(&mut out, no));
        out
    }

    /// Parses the list; returns it and the frame after it. The caller checks that the records
    /// exist.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(stored: &[u8]) -> Result<(Self, &[u8])> {
        let mut cursor = Cursor::new(stored, "stored bytes");
        let count = cursor.count(HISTORY_COUNT_MAX, "records of the history")?;
        let base_code = cursor.bounded(STREAMS_MAX as u64, "stream of the history")?;
        let base_stream = base_code.checked_sub(1).and_then(|s| u8::try_from(s).ok());
        let mut numbers: Vec<u64> = Vec::with_capacity(count);
        for _ in 0..count {
            let no = cursor.bounded(NUMBER_MAX, "record number")?;
            if numbers.last().is_some_and(|&last| last >= no) {
                return Err(
                    cursor.error(RULE, "numbers of the history: expected ascending numbers")
                );
            }
            numbers.push(no);
        }
        let history = Self {
            base_stream,
            numbers,
        };
        if history.numbers.is_empty() {
            Err(cursor.error(RULE, "history: expected at least one record"))
        } else {
            Ok((history, cursor.bytes(cursor.remaining())?))
        }
    }
}

/// Makes the error for a history whose records do not match its list.
pub fn bad(what: impl Into<String>) -> Error {
    Error::corrupt("stored bytes", 0, RULE, what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_and_forged_ones_are_refused() {
        let encode = |base_stream, numbers: &[u64]| {
            let numbers = numbers.to_vec();
            History {
                base_stream,
                numbers,
            }
            .encode()
        };
        for base_stream in [None, Some(0), Some(63)] {
            let mut bytes = encode(base_stream, &[3, 300, 301]);
            bytes.extend_from_slice(b"frame");
            let (history, frame) = History::parse(&bytes).unwrap();
            assert_eq!(history.base_stream, base_stream);
            assert_eq!(
                (&*history.numbers, frame),
                (&[3, 300, 301][..], &b"frame"[..])
            );
        }
        let rule = |bytes: &[u8]| History::parse(bytes).unwrap_err().to_string();
        assert!(rule(&encode(None, &[])).contains("F-25.1"), "no record");
        assert!(
            rule(&encode(None, &[5, 5])).contains("F-25.1"),
            "twice the same"
        );
        assert!(
            rule(&encode(None, &[5, 4])).contains("F-25.1"),
            "descending"
        );
        assert!(rule(&[65]).contains("F-2.3"), "too many");
        assert!(rule(&[1, 65]).contains("F-2.3"), "no such stream");
        assert!(rule(&[2, 0, 1]).contains("F-2.1"), "cut off");
    }
}
