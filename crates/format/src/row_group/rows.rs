//! Rows in ascending order of keys, in memory.

use crate::{Error, Result};
use std::ops::Range;

/// Most bytes of keys and values in a group of several rows. It bounds what one lookup decodes.
pub const GROUP_LEN_MAX: usize = 32 << 10;
/// Most rows of a group.
pub const GROUP_ROWS_MAX: usize = 4096;
/// Most bytes of a group before compression. A row may be longer than [`GROUP_LEN_MAX`]; it is then
/// a group of its own.
pub const RAW_LEN_MAX: usize = 16 << 20;
pub(super) fn bad(rule: &'static str, what: &'static str) -> Error {
    Error::corrupt("row group", 0, rule, what)
}

/// Ends of a row's key and value in [`Rows::bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ends {
    key: u32,
    value: u32,
}

/// Rows in ascending order of keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rows {
    /// Key and value of each row, one after the other.
    bytes: Vec<u8>,
    ends: Vec<Ends>,
}

impl Rows {
    /// No rows, and room for `count` with `len` bytes.
    pub(super) fn with_capacity(count: usize, len: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(len),
            ends: Vec::with_capacity(count),
        }
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of all keys and values.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the keys and values of the rows in `range`.
    pub fn len_of(&self, range: &Range<usize>) -> usize {
        let end = self.start(range.end);
        end.saturating_sub(self.start(range.start))
    }

    /// First byte of row `index`.
    fn start(&self, index: usize) -> usize {
        let before = index.checked_sub(1).and_then(|i| self.ends.get(i));
        before.map_or(0, |ends| ends.value as usize)
    }

    /// Key and value of row `index`; `None` past the end.
    pub fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let ends = self.ends.get(index)?;
        let key = self.bytes.get(self.start(index)..ends.key as usize)?;
        Some((key, self.bytes.get(ends.key as usize..ends.value as usize)?))
    }

    /// All rows in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.within(0..self.count())
    }

    /// The rows in `range`, in order.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = (&[u8], &[u8])> {
        range.map_while(|index| self.get(index))
    }

    /// Index of the first row whose key is not below `key`.
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = low.midpoint(high);
            match self.get(middle) {
                Some((at, _)) if at < key => low = middle.saturating_add(1),
                _ => high = middle,
            }
        }
        low
    }

    /// Value of `key`.
    pub fn find(&self, key: &[u8]) -> Option<&[u8]> {
        let (found, value) = self.get(self.lower_bound(key))?;
        (found == key).then_some(value)
    }

    /// The last key.
    pub fn last_key(&self) -> Option<&[u8]> {
        let last = self.count().checked_sub(1)?;
        self.get(last).map(|(key, _)| key)
    }

    /// Appends a row.
    ///
    /// # Errors
    /// `Corrupt` if the key is not above the last one, or the rows have more than
    /// [`u32::MAX`] bytes.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.last_key().is_some_and(|last| last >= key) {
            return Err(bad("S-6.3", "the keys of a group do not ascend"));
        }
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        let long = |_| bad("S-6.2", "the rows of a group are too long");
        self.ends.push(Ends {
            key: u32::try_from(key_end).map_err(long)?,
            value: u32::try_from(self.bytes.len()).map_err(long)?,
        });
        Ok(())
    }
}
