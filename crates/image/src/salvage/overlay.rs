//! Storage that shows bytes made anew in front of, and behind, the bytes of a damaged image.

use std::sync::Arc;
use weald_format::container::{SUPERBLOCK_LEN, SuperblockRecord};
use weald_format::copies::Copies;
use weald_format::{Error, Result};
use weald_io::ReadAt;
use zerocopy::IntoBytes;

/// The bytes of a damaged image with a whole superblock, and more bytes behind them.
pub struct Overlay {
    inner: Arc<dyn ReadAt>,
    /// Offset of the first byte of `tail`. Bytes between the end of `inner` and here are zero.
    tail_at: u64,
    tail: Vec<u8>,
}

impl Overlay {
    /// The bytes of `inner` up to `tail_at`, and `tail` behind them.
    pub fn new(inner: Arc<dyn ReadAt>, tail_at: u64, tail: Vec<u8>) -> Self {
        Self {
            inner,
            tail_at,
            tail,
        }
    }

    /// Copies the part of `bytes`, which lie at `at`, that `buf` asks for.
    fn copy_over(buf: &mut [u8], offset: u64, bytes: &[u8], at: u64) {
        let end = offset.saturating_add(buf.len() as u64);
        let bytes_end = at.saturating_add(bytes.len() as u64);
        let (start, stop) = (offset.max(at), end.min(bytes_end));
        if start >= stop {
            return;
        }
        let index = |place: u64, base: u64| place.saturating_sub(base) as usize;
        let from = bytes.get(index(start, at)..index(stop, at));
        let to = buf.get_mut(index(start, offset)..index(stop, offset));
        if let (Some(from), Some(to)) = (from, to) {
            to.copy_from_slice(from);
        }
    }
}

impl ReadAt for Overlay {
    fn len(&self) -> u64 {
        self.tail_at.saturating_add(self.tail.len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let end = offset.saturating_add(buf.len() as u64);
        if end > self.len() {
            let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return Err(Error::io(format!("read of bytes {offset} to {end}"), eof));
        }
        let inner_end = self.inner.len().min(self.tail_at);
        let inner_len = inner_end.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (front, rest) = buf.split_at_mut(inner_len);
        if !front.is_empty() {
            self.inner.read_exact_at(front, offset)?;
        }
        rest.fill(0);
        if offset < SUPERBLOCK_LEN as u64 {
            Self::copy_over(buf, offset, SuperblockRecord::current().as_bytes(), 0);
        }
        Self::copy_over(buf, offset, &self.tail, self.tail_at);
        Ok(())
    }

    fn read_again_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        if offset < SUPERBLOCK_LEN as u64 || offset >= self.tail_at {
            return Ok(false);
        }
        self.inner.read_again_at(buf, offset)
    }

    fn stop_waiting(&self) {
        self.inner.stop_waiting();
    }
}

/// A damaged file with all second copies that are left in it.
pub struct WithCopies {
    inner: Arc<dyn ReadAt>,
    copies: Vec<Copies>,
}

impl WithCopies {
    /// `inner` with `copies`.
    pub fn new(inner: Arc<dyn ReadAt>, copies: Vec<Copies>) -> Self {
        Self { inner, copies }
    }
}

impl ReadAt for WithCopies {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.inner.read_exact_at(buf, offset)
    }

    fn read_again_at(&self, buf: &mut [u8], offset: u64) -> Result<bool> {
        for copies in &self.copies {
            for (start, bytes) in copies.parts() {
                let at = offset.checked_sub(start);
                let at = at.and_then(|at| usize::try_from(at).ok());
                let part = at.and_then(|at| bytes.get(at..at.checked_add(buf.len())?));
                if let Some(part) = part {
                    buf.copy_from_slice(part);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn stop_waiting(&self) {
        self.inner.stop_waiting();
    }
}
