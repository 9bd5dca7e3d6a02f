//! A list of bytes that is in memory up to a limit and in a temporary file beyond it.

use std::path::PathBuf;
use weald_format::Result;
use weald_format::cursor::put_varint;
use weald_io::{ReadAt, Spool};

/// Bytes that a reader in order holds.
const SPILL_READ_LEN: u64 = 64 << 10;

/// Bytes that a reader at any place holds.
const RANDOM_READ_LEN: u64 = 4 << 10;

pub(crate) struct Spill {
    spool: Option<Spool>,
    /// The bytes behind those of the file.
    memory: Vec<u8>,
    memory_len_max: usize,
    temp_dir: PathBuf,
}

impl Spill {
    pub fn new(memory_len_max: usize, temp_dir: PathBuf) -> Self {
        Self {
            spool: None,
            memory: Vec::new(),
            memory_len_max,
            temp_dir,
        }
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// `Io`, `Full`: the temporary file.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.memory.extend_from_slice(bytes);
        if self.memory.len() <= self.memory_len_max {
            return Ok(());
        }
        let spool = match &mut self.spool {
            Some(spool) => spool,
            empty => empty.insert(Spool::create(&self.temp_dir)?),
        };
        spool.append(&self.memory)?;
        self.memory.clear();
        Ok(())
    }

    pub fn len(&self) -> u64 {
        self.file_len() + self.memory.len() as u64
    }

    fn file_len(&self) -> u64 {
        self.spool.as_ref().map_or(0, ReadAt::len)
    }

    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// `Io`: the temporary file.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let in_file = self.file_len().saturating_sub(offset).min(buf.len() as u64);
        let (head, tail) = buf.split_at_mut(in_file as usize);
        if let Some(spool) = self.spool.as_ref().filter(|_| !head.is_empty()) {
            spool.read_exact_at(head, offset)?;
        }
        let start = (offset + in_file - self.file_len().min(offset + in_file)) as usize;
        let found = self.memory.get(start..start + tail.len());
        tail.copy_from_slice(found.unwrap_or_default());
        Ok(())
    }

    /// Passes all bytes to `visit` in pieces.
    ///
    /// # Errors
    /// `Io`, and those of `visit`.
    pub fn each_piece(&self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut buffer = vec![0; SPILL_READ_LEN.min(self.len()) as usize];
        let mut at = 0;
        while at < self.len() {
            let len = (self.len() - at).min(SPILL_READ_LEN) as usize;
            let piece = buffer.get_mut(..len).unwrap_or_default();
            self.read_at(piece, at)?;
            visit(piece)?;
            at += len as u64;
        }
        Ok(())
    }
}

/// Records of a list, read in order or at any place, with one piece of the list in memory.
pub(crate) struct Numbers<'a> {
    spill: &'a Spill,
    buffer: Vec<u8>,
    /// Offset of the buffer in the list.
    start: u64,
}

impl<'a> Numbers<'a> {
    pub fn new(spill: &'a Spill) -> Self {
        Self {
            spill,
            buffer: Vec::new(),
            start: 0,
        }
    }

    /// Fills `out` with the bytes at `offset`, which are a record of the list.
    ///
    /// # Errors
    /// `Io`: the temporary file.
    pub fn get(&mut self, out: &mut [u8], offset: u64) -> Result<()> {
        let end = offset + out.len() as u64;
        if offset < self.start || end > self.start + self.buffer.len() as u64 {
            let is_in_order = offset == self.start + self.buffer.len() as u64;
            let wanted = if is_in_order {
                SPILL_READ_LEN
            } else {
                RANDOM_READ_LEN
            };
            let len = self.spill.len().saturating_sub(offset).min(wanted);
            self.buffer.resize(len as usize, 0);
            self.start = offset;
            self.spill.read_at(&mut self.buffer, offset)?;
        }
        let start = (offset - self.start) as usize;
        let found = self.buffer.get(start..start + out.len());
        if let Some(found) = found {
            out.copy_from_slice(found);
        }
        Ok(())
    }
}

/// Ascending numbers, stored as the distances between them.
pub(crate) struct Ascending {
    distances: Spill,
    last: u64,
    bytes: Vec<u8>,
}

impl Ascending {
    pub fn new(memory_len_max: usize, temp_dir: PathBuf) -> Self {
        Self {
            distances: Spill::new(memory_len_max, temp_dir),
            last: 0,
            bytes: Vec::new(),
        }
    }

    /// Adds `number`.
    ///
    /// # Errors
    /// `Io`, `Full`: the temporary file.
    ///
    /// # Panics
    /// If it is less than the last one.
    pub fn push(&mut self, number: u64) -> Result<()> {
        assert!(number >= self.last, "the numbers ascend");
        self.bytes.clear();
        put_varint(&mut self.bytes, number - self.last);
        self.last = number;
        self.distances.append(&self.bytes)
    }

    /// Reads the numbers in order.
    pub fn reader(&self) -> AscendingReader<'_> {
        AscendingReader {
            distances: Numbers::new(&self.distances),
            at: 0,
            last: 0,
        }
    }
}

/// Reads ascending numbers in order.
pub(crate) struct AscendingReader<'a> {
    distances: Numbers<'a>,
    at: u64,
    last: u64,
}

impl AscendingReader<'_> {
    /// The next number; the last one again behind it.
    ///
    /// # Errors
    /// `Io`: the temporary file.
    pub fn next(&mut self) -> Result<u64> {
        for shift in (0..u64::BITS).step_by(7) {
            let mut byte = [0];
            self.distances.get(&mut byte, self.at)?;
            self.at += 1;
            self.last += u64::from(byte[0] & 0x7f) << shift;
            if byte[0] & 0x80 == 0 {
                break;
            }
        }
        Ok(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: bytes on both sides of the end of the file that are read from the wrong place.
    #[test]
    fn numbers_come_back_in_order_and_at_any_place() {
        let temp = tempfile::tempdir().unwrap();
        for memory_len in [0, 7, 8, 1000, 1 << 20] {
            let mut spill = Spill::new(memory_len, temp.path().to_owned());
            for number in 0..30_000_u64 {
                spill.append(&(number * 3).to_le_bytes()).unwrap();
            }
            let mut numbers = Numbers::new(&spill);
            let elsewhere = [29_999_u64, 0, 12_345, 8191, 8192];
            for number in (0..30_000).chain(elsewhere) {
                let mut bytes = [0; 8];
                numbers.get(&mut bytes, number * 8).unwrap();
                assert_eq!(u64::from_le_bytes(bytes), number * 3, "{memory_len}");
            }
            let mut len = 0;
            spill
                .each_piece(&mut |piece| {
                    len += piece.len() as u64;
                    Ok(())
                })
                .unwrap();
            assert_eq!(len, spill.len());
        }
    }

    /// Would catch: a distance of several bytes that is cut, also where the file begins.
    #[test]
    fn ascending_numbers_come_back() {
        let temp = tempfile::tempdir().unwrap();
        let numbers: Vec<u64> = (0..20_000_u64).map(|n| n * n * n * n * 50).collect();
        for memory_len in [0, 7, 1000, 1 << 20] {
            let mut list = Ascending::new(memory_len, temp.path().to_owned());
            for number in &numbers {
                list.push(*number).unwrap();
            }
            for mut reader in [list.reader(), list.reader()] {
                for number in &numbers {
                    assert_eq!(reader.next().unwrap(), *number, "{memory_len}");
                }
            }
        }
    }
}
