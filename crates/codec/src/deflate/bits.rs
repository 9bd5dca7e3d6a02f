//! Bit reader and bit writer for DEFLATE streams, least significant bit first.

/// Reads bits; past the end there are none.
#[derive(Clone)]
pub struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
    held: u64,
    held_count: u32,
}

impl<'a> BitReader<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            held: 0,
            held_count: 0,
        }
    }

    /// Starts at bit `position` of `bytes`.
    pub fn at(bytes: &'a [u8], position: u64) -> Self {
        let mut reader = Self {
            at: position.wrapping_shr(3) as usize,
            ..Self::new(bytes)
        };
        let _ = reader.take((position & 7) as u32);
        reader
    }

    fn refill(&mut self) {
        while self.held_count <= 56 {
            let Some(&byte) = self.bytes.get(self.at) else {
                return;
            };
            self.held |= u64::from(byte).wrapping_shl(self.held_count);
            self.held_count = self.held_count.wrapping_add(8);
            self.at = self.at.wrapping_add(1);
        }
    }

    /// Returns the next `count` bits, at most 32, without consuming them; zeros past the end.
    pub fn peek(&mut self, count: u32) -> u32 {
        if self.held_count < count {
            self.refill();
        }
        let mask = 1u64.wrapping_shl(count).wrapping_sub(1);
        (self.held & mask) as u32
    }

    /// Consumes `count` bits, at most 32; `None` if fewer are left.
    pub fn take(&mut self, count: u32) -> Option<u32> {
        let bits = self.peek(count);
        self.held_count = self.held_count.checked_sub(count)?;
        self.held = self.held.wrapping_shr(count);
        Some(bits)
    }

    /// Skips to the next whole byte.
    pub fn align(&mut self) {
        let rest = self.held_count & 7;
        self.held = self.held.wrapping_shr(rest);
        self.held_count &= !7;
    }

    /// Consumes `len` bytes; the position must be aligned.
    pub fn take_bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let start = self.byte_position();
        let end = start.checked_add(len)?;
        let taken = self.bytes.get(start..end)?;
        (self.at, self.held, self.held_count) = (end, 0, 0);
        Some(taken)
    }

    /// Number of bits consumed so far.
    pub fn position(&self) -> u64 {
        (self.at as u64)
            .wrapping_mul(8)
            .wrapping_sub(u64::from(self.held_count))
    }

    /// Number of bytes of which at least one bit was consumed.
    pub fn byte_position(&self) -> usize {
        self.at
            .saturating_sub(self.held_count.wrapping_div(8) as usize)
    }
}

/// Writes bits.
#[derive(Default, Clone)]
pub struct BitWriter {
    bytes: Vec<u8>,
    held: u64,
    held_count: u32,
}

impl BitWriter {
    /// Appends the low `count` bits of `bits`, at most 32. The other bits must be zero.
    #[inline]
    pub fn put(&mut self, bits: u32, count: u32) {
        // Fewer than 32 bits are held.
        self.held |= u64::from(bits).wrapping_shl(self.held_count);
        self.held_count = self.held_count.wrapping_add(count);
        if self.held_count >= 32 {
            self.bytes
                .extend_from_slice(&(self.held as u32).to_le_bytes());
            self.held = self.held.wrapping_shr(32);
            self.held_count = self.held_count.wrapping_sub(32);
        }
    }

    fn flush(&mut self) {
        while self.held_count >= 8 {
            self.bytes.push(self.held as u8);
            self.held = self.held.wrapping_shr(8);
            self.held_count = self.held_count.wrapping_sub(8);
        }
    }

    /// Fills the last byte with zeros.
    pub fn align(&mut self) {
        self.flush();
        if self.held_count > 0 {
            self.bytes.push(self.held as u8);
            (self.held, self.held_count) = (0, 0);
        }
    }

    /// Appends whole bytes; the position must be aligned.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        self.flush();
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends `bits`.
    pub fn put_bits(&mut self, bits: &Bits) {
        let mut remaining = bits.count;
        for &byte in &bits.bytes {
            let count = remaining.min(8) as u32;
            self.put(
                u32::from(byte) & 1u32.wrapping_shl(count).wrapping_sub(1),
                count,
            );
            remaining = remaining.saturating_sub(8);
        }
    }

    /// Number of whole bytes written so far.
    pub fn len(&self) -> usize {
        let held = self.held_count.wrapping_shr(3);
        self.bytes.len().saturating_add(held as usize)
    }

    /// Returns the bytes; fills the last one with zeros.
    pub fn finish(mut self) -> Vec<u8> {
        self.align();
        self.bytes
    }

    /// Returns the whole bytes and drops the bits after them.
    pub fn into_whole_bytes(mut self) -> Vec<u8> {
        self.flush();
        self.bytes
    }

    /// Returns the written bits.
    pub fn into_bits(mut self) -> Bits {
        let count = (self.bytes.len() as u64)
            .wrapping_mul(8)
            .wrapping_add(u64::from(self.held_count));
        self.align();
        Bits {
            count,
            bytes: self.bytes,
        }
    }
}

/// A run of bits. Unused bits of the last byte are zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bits {
    /// Number of bits.
    pub count: u64,
    /// The bits, least significant first.
    pub bytes: Vec<u8>,
}

impl Bits {
    /// Reads the next `count` bits of `reader`, or fewer if it ends.
    pub fn read(reader: &mut BitReader<'_>, count: u64) -> Self {
        let mut writer = BitWriter::default();
        let mut remaining = count;
        while remaining > 0 {
            let step = remaining.min(8) as u32;
            let Some(bits) = reader.take(step) else {
                break;
            };
            writer.put(bits, step);
            remaining = remaining.saturating_sub(8);
        }
        writer.into_bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_come_back_as_they_were_written() {
        let mut writer = BitWriter::default();
        let values: Vec<(u32, u32)> = (0..500u32)
            .map(|i| (i.wrapping_mul(2_654_435_761), i % 33))
            .map(|(v, n)| ((u64::from(v) & ((1 << n) - 1)) as u32, n))
            .collect();
        values.iter().for_each(|&(v, n)| writer.put(v, n));
        let bits = writer.clone().into_bits();
        assert_eq!(
            bits.count,
            values.iter().map(|v| u64::from(v.1)).sum::<u64>()
        );
        let bytes = writer.finish();
        let mut reader = BitReader::new(&bytes);
        for (value, count) in values {
            assert_eq!(reader.take(count), Some(value));
        }
        assert_eq!(Bits::read(&mut BitReader::new(&bytes), bits.count), bits);
        assert_eq!(BitReader::new(&[]).take(1), None);
    }
}
