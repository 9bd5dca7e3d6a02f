//! Bit reader and bit writer for FLAC streams, highest bit first.

/// Reads bits.
pub struct BitReader<'a> {
    rest: &'a [u8],
    /// The next bits, highest first. Bits below the first `count` are later bits of the stream, or
    /// zeros.
    cache: u64,
    count: u32,
}

impl<'a> BitReader<'a> {
    /// Starts at the first bit of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            cache: 0,
            count: 0,
        }
    }

    fn refill(&mut self) {
        if let Some((word, _)) = self.rest.split_first_chunk::<8>() {
            self.cache |= u64::from_be_bytes(*word).wrapping_shr(self.count);
            let taken = 63u32.wrapping_sub(self.count) / 8;
            self.rest = self.rest.get(taken as usize..).unwrap_or(&[]);
            self.count = self.count.wrapping_add(taken.wrapping_mul(8));
            return;
        }
        while self.count <= 56
            && let Some((&byte, rest)) = self.rest.split_first()
        {
            self.cache |= u64::from(byte).wrapping_shl(56u32.wrapping_sub(self.count));
            self.rest = rest;
            self.count = self.count.wrapping_add(8);
        }
    }

    /// Returns the next `count` bits, at most 32; `None` past the end.
    #[inline]
    pub fn get(&mut self, count: u32) -> Option<u32> {
        if self.count < count {
            self.refill();
            if self.count < count {
                return None;
            }
        }
        // Two shifts, because a shift by 64 does nothing.
        let value = (self.cache >> 1).wrapping_shr(63u32.wrapping_sub(count));
        self.cache = self.cache.wrapping_shl(count);
        self.count = self.count.wrapping_sub(count);
        Some(value as u32)
    }

    /// Returns the next `count` bits, at most 32, as a signed number.
    #[inline]
    pub fn get_signed(&mut self, count: u32) -> Option<i32> {
        let value = self.get(count)?;
        match count {
            0 => Some(0),
            _ => {
                let unused = 32u32.wrapping_sub(count);
                Some((value.wrapping_shl(unused) as i32).wrapping_shr(unused))
            }
        }
    }

    /// Counts the 0 bits before the next 1 bit and consumes that bit too.
    #[inline]
    pub fn unary(&mut self) -> Option<u32> {
        let mut zeros = 0u32;
        loop {
            let here = self.cache.leading_zeros();
            if here < self.count {
                let taken = here.wrapping_add(1);
                self.cache = self.cache.wrapping_shl(here).wrapping_shl(1);
                self.count = self.count.wrapping_sub(taken);
                return zeros.checked_add(here);
            }
            zeros = zeros.checked_add(self.count)?;
            (self.cache, self.count) = (0, 0);
            self.refill();
            if self.count == 0 {
                return None;
            }
        }
    }

    /// Skips to the next whole byte.
    pub fn align(&mut self) {
        let odd = self.count % 8;
        self.cache = self.cache.wrapping_shl(odd);
        self.count = self.count.wrapping_sub(odd);
    }

    /// Whether no whole byte is left.
    pub fn is_at_end(&self) -> bool {
        self.count < 8 && self.rest.is_empty()
    }
}

/// Writes bits.
#[derive(Default)]
pub struct BitWriter {
    pub bytes: Vec<u8>,
    cache: u64,
    /// Number of bits in the cache, less than 8 between calls.
    count: u32,
}

// trusted input: values of this program
#[allow(clippy::arithmetic_side_effects)]
impl BitWriter {
    /// Appends the low `count` bits of `value`, at most 32.
    #[inline]
    pub fn put(&mut self, value: u32, count: u32) {
        let mask = (1u64 << count) - 1;
        self.cache = self.cache << count | u64::from(value) & mask;
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            self.bytes.push((self.cache >> self.count) as u8);
        }
    }

    /// Appends the low `count` bits of a signed number.
    pub fn put_signed(&mut self, value: i32, count: u32) {
        self.put(value as u32, count);
    }

    /// Appends this many 0 bits and a 1 bit.
    #[inline]
    pub fn put_unary(&mut self, mut zeros: u32) {
        while zeros >= 31 {
            self.put(0, 31);
            zeros -= 31;
        }
        self.put(1, zeros + 1);
    }

    /// Fills the last byte with zeros.
    pub fn align(&mut self) {
        if self.count > 0 {
            self.put(0, 8 - self.count);
        }
    }
}
