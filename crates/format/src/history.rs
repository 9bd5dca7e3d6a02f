//! The list of records that a record of codec `zstd-history` goes on behind.

use crate::cursor::{Cursor, put_varint};
use crate::limits::{HISTORY_COUNT_MAX, NUMBER_MAX};
use crate::{Error, Result};

/// The rule that a list of records breaks.
pub const RULE: &str = "F-25.1";

/// The bytes that stand before the frame of a record whose history are the records with these `numbers`.
pub fn encode(numbers: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, numbers.len() as u64);
    numbers.iter().for_each(|&no| put_varint(&mut out, no));
    out
}

/// The numbers, and the frame behind them.
///
/// # Errors
/// `Corrupt`.
pub fn parse(stored: &[u8]) -> Result<(Vec<u64>, &[u8])> {
    let mut cursor = Cursor::new(stored, "stored bytes");
    let count = cursor.count(HISTORY_COUNT_MAX, "records of the history")?;
    let mut numbers: Vec<u64> = Vec::with_capacity(count);
    for _ in 0..count {
        let no = cursor.bounded(NUMBER_MAX, "record number")?;
        if numbers.last().is_some_and(|&last| last >= no) {
            return Err(cursor.error(RULE, "numbers of the history: expected them to ascend"));
        }
        numbers.push(no);
    }
    match numbers.is_empty() {
        true => Err(cursor.error(RULE, "history: expected at least one record")),
        false => Ok((numbers, cursor.bytes(cursor.remaining())?)),
    }
}

/// What is wrong with a history that is not its list.
pub fn bad(what: impl Into<String>) -> Error {
    Error::corrupt("stored bytes", 0, RULE, what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_back_and_forged_ones_are_refused() {
        let mut bytes = encode(&[3, 300, 301]);
        bytes.extend_from_slice(b"frame");
        assert_eq!(parse(&bytes).unwrap(), (vec![3, 300, 301], &b"frame"[..]));
        let rule = |bytes: &[u8]| parse(bytes).unwrap_err().to_string();
        assert!(rule(&encode(&[])).contains("F-25.1"), "no record");
        assert!(rule(&encode(&[5, 5])).contains("F-25.1"), "twice the same");
        assert!(rule(&encode(&[5, 4])).contains("F-25.1"), "descending");
        assert!(rule(&[65]).contains("F-2.3"), "too many");
        assert!(rule(&[2, 1]).contains("F-2.1"), "cut off");
    }
}
