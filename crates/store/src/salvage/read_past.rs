//! A file of which what cannot be read is zeros: a walk over records takes it for damage, and goes
//! on behind it.

use crate::disk::Object;
use std::cell::Cell;
use weald_format::{Error, Result};

/// Bytes that are given up at once: a block of most disks and file systems.
const PART_LEN: usize = 4 << 10;
/// Parts that are given up one by one. A disk may take long to say that it cannot read; the rest of
/// a file with more is zeros as a whole.
const PARTS_MAX: u64 = 1 << 10;

/// Reads a file past what the disk cannot read.
pub struct ReadPast {
    file: Box<dyn Object>,
    given_up: Cell<u64>,
}

impl ReadPast {
    /// Reads `file`.
    pub fn new(file: Box<dyn Object>) -> Self {
        Self {
            file,
            given_up: Cell::new(0),
        }
    }

    /// The file itself.
    pub fn file(&self) -> &dyn Object {
        &*self.file
    }

    /// Length of the file, in bytes.
    ///
    /// # Errors
    /// `Io`.
    pub fn len(&self) -> Result<u64> {
        self.file.len()
    }

    /// Fills `buf` from byte `offset` on, with zeros for what cannot be read.
    ///
    /// # Errors
    /// Those that are not about reading.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self.file.read_at(buf, offset) {
            Err(error) if error.is_unreadable() => self.read_parts(buf, offset, error),
            other => other,
        }
    }

    fn read_parts(&self, buf: &mut [u8], offset: u64, first: Error) -> Result<()> {
        if self.given_up.get() == 0 {
            log::warn!("{first}: read past it");
        }
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let len = PART_LEN - (at % PART_LEN as u64) as usize;
            let (part, behind) = rest.split_at_mut(len.min(rest.len()));
            let is_over = self.given_up.get() >= PARTS_MAX;
            if is_over || self.file.read_at(part, at).is_err() {
                part.fill(0);
                self.given_up.set(self.given_up.get().saturating_add(1));
            }
            at += part.len() as u64;
            rest = behind;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of ones, of which some parts cannot be read.
    #[derive(Debug)]
    struct Bad(Vec<u64>);

    impl Object for Bad {
        fn len(&self) -> Result<u64> {
            Ok(100 << 20)
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
            let parts = offset / 4096..(offset + buf.len() as u64).div_ceil(4096);
            if self.0.iter().any(|bad| parts.contains(bad)) {
                return Err(Error::io("bad", std::io::Error::other("bad")));
            }
            buf.fill(1);
            Ok(())
        }
    }

    /// Would catch: bytes beside a bad part that are lost, and a dead disk that is asked for each
    /// of its parts.
    #[test]
    fn only_what_cannot_be_read_is_zeros() {
        let file = ReadPast::new(Box::new(Bad(vec![2, 3])));
        let mut bytes = vec![7; 20_000];
        file.read_at(&mut bytes, 100).expect("read");
        let ones = |range: std::ops::Range<usize>| bytes[range].iter().all(|byte| *byte == 1);
        assert!(ones(0..8192 - 100) && ones(16384 - 100..20_000));
        assert!(bytes[8192 - 100..16384 - 100].iter().all(|byte| *byte == 0));
        let file = ReadPast::new(Box::new(Bad((0..1 << 20).collect())));
        let mut bytes = vec![7; 64 << 20];
        file.read_at(&mut bytes, 0).expect("read");
        assert!(bytes.iter().all(|byte| *byte == 0));
        assert_eq!(file.given_up.get(), 64 << 8);
    }
}
