//! A part of an archive.

use std::io::Read;
use std::sync::Arc;
use weald_io::{FileSource, ReadAt};

/// A part of the archive, read in order.
pub struct Stretch {
    pub file: Arc<FileSource>,
    pub at: u64,
    pub end: u64,
}

impl Read for Stretch {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let len = self.end.saturating_sub(self.at).min(out.len() as u64);
        let part = out.get_mut(..len as usize).unwrap_or_default();
        let read = self.file.read_exact_at(part, self.at);
        read.map_err(std::io::Error::other)?;
        self.at += len;
        Ok(len as usize)
    }
}
