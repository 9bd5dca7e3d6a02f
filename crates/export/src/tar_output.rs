//! Framing of a tar stream: headers, data padded to blocks, the end mark.

use crate::pax::{Entry, TAR_BLOCK_LEN, headers};
use std::io::Write;
use weald_format::{Error, Result};

/// Bytes of a tar record: 20 blocks, the default of tar. The stream is padded to whole records.
const TAR_RECORD_LEN: u64 = 20 * TAR_BLOCK_LEN as u64;

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

    /// Begins a member. The caller then writes as many bytes as its size says, and calls
    /// [`TarOutput::pad`].
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn header(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.write(&headers(entry))
    }

    /// Writes the map of a sparse file of `len` bytes with data in `runs` (offset, length), in
    /// GNU's format 1.0, and pads it. [`map_len`] returns its length.
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
            .map_err(|e| Error::io("tar stream", e))
    }

    /// Pads data of `len` bytes to whole blocks.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn pad(&mut self, len: u64) -> Result<()> {
        let padding_len = len.next_multiple_of(TAR_BLOCK_LEN as u64) - len;
        let zeros = [0; TAR_BLOCK_LEN];
        let padding_len = usize::try_from(padding_len).unwrap_or(0);
        self.write(zeros.get(..padding_len).unwrap_or_default())
    }

    /// Writes the end mark: two blocks of zeros, padded to a whole record.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn finish(&mut self) -> Result<()> {
        self.write(&[0; 2 * TAR_BLOCK_LEN])?;
        let padding_len = self.len.next_multiple_of(TAR_RECORD_LEN) - self.len;
        self.write(&vec![0; usize::try_from(padding_len).unwrap_or(0)])?;
        self.output.flush().map_err(|e| Error::io("tar stream", e))
    }
}

/// Bytes of the map that [`TarOutput::map`] writes, with its padding.
pub fn map_len(len: u64, runs: &[(u64, u64)]) -> u64 {
    (map_text(len, runs).len() as u64).next_multiple_of(TAR_BLOCK_LEN as u64)
}

fn map_text(len: u64, runs: &[(u64, u64)]) -> String {
    // An empty run at the end, as GNU tar writes it, gives the file its length.
    let data_end = runs.last().map_or(0, |(offset, len)| offset + len);
    let end = (data_end < len).then_some((len, 0));
    let all: Vec<_> = runs.iter().copied().chain(end).collect();
    let lines = all.iter().map(|(offset, len)| format!("{offset}\n{len}\n"));
    format!("{}\n", all.len()) + &lines.collect::<String>()
}
