//! The frame of a tar stream: headers, data padded to blocks, the end.

use crate::pax::{BLOCK_LEN, Entry, headers};
use std::io::Write;
use weald_format::{Error, Result};

/// The blocks of zeros that end a stream, padded to the usual record of 20 blocks.
const RECORD_LEN: u64 = 20 * BLOCK_LEN as u64;

/// A tar stream being written.
pub struct TarOutput<'a> {
    output: &'a mut dyn Write,
    len: u64,
}

impl<'a> TarOutput<'a> {
    /// Writes to `output`.
    pub fn new(output: &'a mut dyn Write) -> Self {
        Self { output, len: 0 }
    }

    /// Bytes written so far.
    pub fn written_len(&self) -> u64 {
        self.len
    }

    /// Begins a member; what its size announces follows, and then [`TarOutput::pad`].
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn header(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.write(&headers(entry))
    }

    /// Writes the map of a sparse file of `len` bytes with data in `runs` (offset, length), in
    /// GNU's format 1.0, and pads it. [`map_len`] says how long it gets.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn map(&mut self, len: u64, runs: &[(u64, u64)]) -> Result<()> {
        let text = map_text(len, runs);
        self.write(text.as_bytes())?;
        self.pad(text.len() as u64)
    }

    /// Writes bytes of data.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.len += bytes.len() as u64;
        self.output
            .write_all(bytes)
            .map_err(|e| Error::io("write", e))
    }

    /// Pads what was `len` bytes long to whole blocks.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn pad(&mut self, len: u64) -> Result<()> {
        let rest = len.next_multiple_of(BLOCK_LEN as u64) - len;
        let zeros = [0; BLOCK_LEN];
        let rest = usize::try_from(rest).unwrap_or(0);
        self.write(zeros.get(..rest).unwrap_or_default())
    }

    /// Ends the stream.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn finish(&mut self) -> Result<()> {
        self.write(&[0; 2 * BLOCK_LEN])?;
        let rest = self.len.next_multiple_of(RECORD_LEN) - self.len;
        self.write(&vec![0; usize::try_from(rest).unwrap_or(0)])?;
        self.output.flush().map_err(|e| Error::io("write", e))
    }
}

/// Bytes of the map that [`TarOutput::map`] writes, with its padding.
pub fn map_len(len: u64, runs: &[(u64, u64)]) -> u64 {
    (map_text(len, runs).len() as u64).next_multiple_of(BLOCK_LEN as u64)
}

fn map_text(len: u64, runs: &[(u64, u64)]) -> String {
    // An empty run at the end, as GNU tar writes it, gives the file its length.
    let data_end = runs.last().map_or(0, |(offset, len)| offset + len);
    let end = (data_end < len).then_some((len, 0));
    let all: Vec<_> = runs.iter().copied().chain(end).collect();
    let lines = all.iter().map(|(offset, len)| format!("{offset}\n{len}\n"));
    format!("{}\n", all.len()) + &lines.collect::<String>()
}
