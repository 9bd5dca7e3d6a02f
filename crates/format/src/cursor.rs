//! Reads untrusted bytes front to back, and writes the same encodings.
//!
//! A varint is LEB128: seven bits per byte, least significant first, at most ten bytes. Only the
//! shortest form is valid.

use crate::{Error, Result};

/// Read position in untrusted bytes. Every method fails with `Corrupt` instead of passing the end.
pub struct Cursor<'a> {
    rest: &'a [u8],
    record: &'static str,
}

impl<'a> Cursor<'a> {
    /// Starts at the front of `bytes`. Messages call the record `record`.
    pub fn new(bytes: &'a [u8], record: &'static str) -> Self {
        Self {
            rest: bytes,
            record,
        }
    }

    /// Makes a `Corrupt` error about this record.
    pub fn error(
        &self,
        rule: &'static str,
        what: impl Into<std::borrow::Cow<'static, str>>,
    ) -> Error {
        Error::corrupt(self.record, 0, rule, what)
    }

    /// Reads the next `len` bytes.
    ///
    /// # Errors
    /// `Corrupt` with rule F-2.1 if there are fewer.
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((head, tail)) => {
                self.rest = tail;
                Ok(head)
            }
            None => Err(self.error(
                "F-2.1",
                format!("expected {len} more bytes, found {}", self.rest.len()),
            )),
        }
    }

    /// Reads the next byte.
    ///
    /// # Errors
    /// `Corrupt` with rule F-2.1 at the end.
    pub fn byte(&mut self) -> Result<u8> {
        match self.rest.split_first() {
            Some((&first, tail)) => {
                self.rest = tail;
                Ok(first)
            }
            None => Err(self.error("F-2.1", "expected one more byte, found the end")),
        }
    }

    /// Reads the next 32 bytes as a digest.
    ///
    /// # Errors
    /// `Corrupt` with rule F-2.1 if there are fewer.
    pub fn digest(&mut self) -> Result<crate::Digest> {
        let bytes = self.bytes(32)?;
        Ok(crate::Digest(bytes.try_into().unwrap_or([0; 32])))
    }

    /// Reads the next varint.
    ///
    /// # Errors
    /// `Corrupt` with rule F-2.1 at the end, F-2.2 if longer than needed or than 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        match self.rest.split_first() {
            // Most varints have one byte.
            Some((&byte, tail)) if byte < 0x80 => {
                self.rest = tail;
                Ok(byte.into())
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        let mut shift = 0u32;
        loop {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(self.error("F-2.2", "varint exceeds 64 bits"));
            }
            value |= bits.wrapping_shl(shift);
            if byte & 0x80 == 0 {
                if byte == 0 && shift != 0 {
                    return Err(self.error("F-2.2", "varint is not the shortest"));
                }
                return Ok(value);
            }
            shift = shift.saturating_add(7);
            if shift > 63 {
                return Err(self.error("F-2.2", "varint exceeds ten bytes"));
            }
        }
    }

    /// Reads the next varint, which must be at most `max`. `name` is the name of the quantity in
    /// messages.
    ///
    /// # Errors
    /// As [`Self::varint`]; `Corrupt` with rule F-2.3 above `max`.
    pub fn bounded(&mut self, max: u64, name: &'static str) -> Result<u64> {
        let value = self.varint()?;
        if value > max {
            return Err(self.error(
                "F-2.3",
                format!("{name}: expected at most {max}, found {value}"),
            ));
        }
        Ok(value)
    }

    /// Reads the next varint as a count of items in memory, at most `max`.
    ///
    /// # Errors
    /// As [`Self::bounded`].
    pub fn count(&mut self, max: usize, name: &'static str) -> Result<usize> {
        Ok(self.bounded(max as u64, name)? as usize)
    }

    /// Number of unread bytes.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Succeeds only at the end: records have no trailing bytes.
    ///
    /// # Errors
    /// `Corrupt` if bytes are left.
    pub fn finish(self) -> Result<()> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(self.error("F-2.4", format!("expected the end, found {n} more bytes"))),
        }
    }
}

/// Appends a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value as u8 & 0x7f) | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Maps small signed numbers to small unsigned ones: 0, -1, 1, -2 … to 0, 1, 2, 3 …
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ (value & 1).wrapping_neg() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_refuse_long_forms() {
        for value in [
            0,
            1,
            127,
            128,
            300,
            u64::from(u32::MAX),
            u64::MAX - 1,
            u64::MAX,
        ] {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            let mut cursor = Cursor::new(&bytes, "test");
            assert_eq!(cursor.varint().unwrap(), value);
            cursor.finish().unwrap();
        }
        for bad in [&[0x80u8, 0x00][..], &[0xff; 10], &[0x80], &[]] {
            assert!(Cursor::new(bad, "test").varint().is_err(), "{bad:x?}");
        }
    }

    #[test]
    fn zigzag_round_trips() {
        for value in [0, 1, -1, 2, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(value)), value);
        }
        assert_eq!([zigzag(0), zigzag(-1), zigzag(1)], [0, 1, 2]);
    }
}
