//! Tokens of DEFLATE: literals and matches, and the symbols for them (RFC 1951, section 3.2.5).

/// Minimum and maximum length of a match, bytes.
pub const MATCH_LEN_MIN: u32 = 3;
/// See [`MATCH_LEN_MIN`].
pub const MATCH_LEN_MAX: u32 = 258;
/// Maximum distance of a match, bytes.
pub const DISTANCE_MAX: u32 = 32_768;
/// Number of symbols for literals, the end of a block, and lengths.
pub const LITERAL_SYMBOLS: usize = 286;
/// Number of symbols for distances.
pub const DISTANCE_SYMBOLS: usize = 30;
/// The symbol that ends a block.
pub const END_OF_BLOCK: usize = 256;

const LEN_BASES: [u32; 29] = [
    3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131,
    163, 195, 227, 258,
];
const LEN_EXTRA: [u32; 29] = [
    0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0,
];
const DISTANCE_BASES: [u32; 30] = [
    1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 1537,
    2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577,
];
const DISTANCE_EXTRA: [u32; 30] = [
    0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13,
    13,
];

/// A literal byte, or a match of a length and a distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token(u32);

impl Token {
    /// A literal.
    pub fn literal(byte: u8) -> Self {
        Self(u32::from(byte))
    }

    /// A match of `len` bytes (3 … 258) at `distance` (1 … 32768).
    pub fn matching(len: u32, distance: u32) -> Self {
        Self(len.wrapping_shl(16) | distance.wrapping_sub(1))
    }

    /// The byte of a literal.
    pub fn byte(self) -> u8 {
        self.0 as u8
    }

    /// Length and distance of a match; `None` for a literal.
    pub fn as_match(self) -> Option<(u32, u32)> {
        let len = self.0.wrapping_shr(16);
        (len > 0).then_some((len, (self.0 & 0xffff).wrapping_add(1)))
    }

    /// Number of plain bytes of the token.
    pub fn len(self) -> usize {
        self.0.wrapping_shr(16).max(1) as usize
    }

    /// Its symbols: the one of the literal or length, and for a match the one of the distance.
    pub fn symbols(self) -> (Symbol, Option<Symbol>) {
        match self.as_match() {
            None => (Symbol::plain(self.0), None),
            Some((len, distance)) => {
                let mut symbol = Symbol::of_len(len);
                symbol.code = symbol.code.wrapping_add(END_OF_BLOCK).wrapping_add(1);
                (symbol, Some(Symbol::of_distance(distance)))
            }
        }
    }

    /// Code of the token in corrections. 0 is a literal; the plain bytes have its byte.
    pub fn to_code(self) -> u64 {
        match self.as_match() {
            None => 0,
            Some((len, distance)) => {
                let len = u64::from(len.saturating_sub(MATCH_LEN_MIN));
                let distance = u64::from(distance.saturating_sub(1));
                (len | distance.wrapping_shl(8)).wrapping_add(1)
            }
        }
    }

    /// Returns the match with this `code`, which is not 0.
    pub fn from_code(code: u64) -> Option<Self> {
        let code = code.checked_sub(1)?;
        let len = (code & 0xff).wrapping_add(u64::from(MATCH_LEN_MIN)) as u32;
        let distance = u32::try_from(code.wrapping_shr(8)).ok()?.checked_add(1)?;
        let is_valid = len <= MATCH_LEN_MAX && distance <= DISTANCE_MAX;
        is_valid.then(|| Self::matching(len, distance))
    }
}

/// A symbol and the extra bits after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// The symbol.
    pub code: usize,
    /// Number of extra bits.
    pub extra_count: u32,
    /// Value of the extra bits.
    pub extra: u32,
}

impl Symbol {
    /// A symbol without extra bits.
    pub fn plain(code: u32) -> Self {
        Self {
            code: code as usize,
            extra_count: 0,
            extra: 0,
        }
    }

    /// Symbol of a length: one symbol each up to 10, then four symbols for each number of extra
    /// bits.
    fn of_len(len: u32) -> Self {
        let value = len.saturating_sub(MATCH_LEN_MIN);
        if len >= MATCH_LEN_MAX || value < 8 {
            let code = if len >= MATCH_LEN_MAX { 28 } else { value };
            return Self::plain(code);
        }
        let extra_count = value.ilog2().saturating_sub(2);
        let code = value
            .wrapping_shr(extra_count)
            .wrapping_add(extra_count.wrapping_mul(4));
        Self::with_extra(code, value, extra_count)
    }

    /// Symbol of a distance: one symbol each up to 4, then two symbols for each number of extra
    /// bits.
    pub fn of_distance(distance: u32) -> Self {
        let value = distance.saturating_sub(1);
        if value < 4 {
            return Self::plain(value);
        }
        let extra_count = value.ilog2().saturating_sub(1);
        let code = value
            .wrapping_shr(extra_count)
            .wrapping_add(extra_count.wrapping_mul(2));
        Self::with_extra(code, value, extra_count)
    }

    fn with_extra(code: u32, value: u32, extra_count: u32) -> Self {
        let mask = 1u32.wrapping_shl(extra_count).wrapping_sub(1);
        Self {
            code: code as usize,
            extra_count,
            extra: value & mask,
        }
    }
}

/// Base length and number of extra bits of `symbol` (257 …).
pub fn len_of(symbol: usize) -> Option<(u32, u32)> {
    let index = symbol.checked_sub(END_OF_BLOCK)?.checked_sub(1)?;
    Some((*LEN_BASES.get(index)?, *LEN_EXTRA.get(index)?))
}

/// Base distance and number of extra bits of `symbol`.
pub fn distance_of(symbol: usize) -> Option<(u32, u32)> {
    Some((*DISTANCE_BASES.get(symbol)?, *DISTANCE_EXTRA.get(symbol)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_distance_has_the_symbol_that_stands_for_it() {
        for len in MATCH_LEN_MIN..=MATCH_LEN_MAX {
            for distance in [1, 2, 5, 24_576, 24_577, DISTANCE_MAX, 1 + len * 100] {
                let token = Token::matching(len, distance);
                assert_eq!(token.as_match(), Some((len, distance)));
                assert_eq!(token.len(), len as usize);
                let (l, d) = token.symbols();
                let d = d.unwrap();
                let (base, count) = len_of(l.code).unwrap();
                assert_eq!((base + l.extra, count), (len, l.extra_count));
                let (base, count) = distance_of(d.code).unwrap();
                assert_eq!((base + d.extra, count), (distance, d.extra_count));
                assert!(l.extra < 1 << l.extra_count && d.extra < 1 << d.extra_count);
            }
        }
        assert_eq!(Token::literal(255).symbols().0.code, 255);
        assert_eq!((len_of(256), distance_of(30)), (None, None));
    }
}
