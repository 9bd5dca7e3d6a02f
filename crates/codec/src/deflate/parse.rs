//! Parses DEFLATE streams to events: blocks, tokens, stored bytes.

use super::bits::BitReader;
use super::tokens::{DISTANCE_SYMBOLS, END_OF_BLOCK, LITERAL_SYMBOLS, Token, distance_of, len_of};

/// Order of the lengths of the codes for code lengths (RFC 1951, section 3.2.7).
pub const LENGTHS_ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

/// Maximum length of a code, bits.
const CODE_LEN_MAX: u32 = 15;

/// Encoding of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Plain bytes.
    Stored = 0,
    /// Tokens in the fixed codes of the RFC.
    Fixed = 1,
    /// Tokens in codes that the block describes.
    Dynamic = 2,
}

/// Next item of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// A block begins.
    Block {
        /// Its first bit.
        first_bit: u64,
        /// Its encoding.
        kind: BlockKind,
        /// First bit and number of bits of the description of its codes, if it is dynamic.
        header: (u64, u64),
    },
    /// All bytes of a stored block.
    Stored(&'a [u8]),
    /// The next token of the block.
    Token(Token),
    /// The end of the stream.
    End,
}

/// Code lengths of a block.
#[derive(Clone)]
pub struct Lengths {
    /// For literals, end of block, and lengths.
    pub literals: Vec<u8>,
    /// For distances.
    pub distances: Vec<u8>,
}

impl Lengths {
    /// The fixed code lengths of the RFC (section 3.2.6).
    pub fn fixed() -> Self {
        let of = |symbol: usize| match symbol {
            0..=143 => 8,
            144..=255 => 9,
            256..=279 => 7,
            _ => 8,
        };
        Self {
            literals: (0..288).map(of).collect(),
            distances: vec![5; 30],
        }
    }

    /// Reads the description of a dynamic block's codes (section 3.2.7).
    pub fn read(bits: &mut BitReader<'_>) -> Option<Self> {
        let literal_count = (bits.take(5)? as usize).wrapping_add(257);
        let distance_count = (bits.take(5)? as usize).wrapping_add(1);
        let order_count = (bits.take(4)? as usize).wrapping_add(4);
        if literal_count > LITERAL_SYMBOLS || distance_count > DISTANCE_SYMBOLS {
            return None;
        }
        let mut order_lens = [0; LENGTHS_ORDER.len()];
        for &symbol in LENGTHS_ORDER.get(..order_count)? {
            *order_lens.get_mut(symbol)? = bits.take(3)? as u8;
        }
        let table = Table::new(&order_lens)?;
        let total = literal_count.wrapping_add(distance_count);
        let mut lens: Vec<u8> = Vec::with_capacity(total);
        while lens.len() < total {
            let symbol = table.symbol(bits)?;
            let (value, count) = match symbol {
                0..=15 => (symbol as u8, 1),
                16 => (*lens.last()?, bits.take(2)?.wrapping_add(3)),
                17 => (0, bits.take(3)?.wrapping_add(3)),
                _ => (0, bits.take(7)?.wrapping_add(11)),
            };
            lens.resize(lens.len().wrapping_add(count as usize), value);
        }
        let distances = lens.get(literal_count..total)?.to_vec();
        if lens.len() != total {
            return None;
        }
        lens.truncate(literal_count);
        Some(Self {
            literals: lens,
            distances,
        })
    }
}

/// A decoding table, indexed by the next bits. An entry is symbol × 16 + number of bits of its
/// code; 0 means no code.
struct Table {
    entries: Vec<u16>,
    bit_count: u32,
}

impl Table {
    /// Builds the table of the canonical code with these lengths; `None` if the code is
    /// oversubscribed.
    fn new(lens: &[u8]) -> Option<Self> {
        let bit_count = u32::from(lens.iter().copied().max()?);
        if bit_count == 0 || bit_count > CODE_LEN_MAX {
            // A block of literals needs no distance code.
            return (bit_count == 0).then(|| Self {
                entries: vec![0],
                bit_count: 0,
            });
        }
        let size = 1usize.wrapping_shl(bit_count);
        let mut entries = vec![0; size];
        for (symbol, code, len) in codes(lens)? {
            let entry = (symbol as u16).wrapping_shl(4) | u16::from(len);
            let step = 1usize.wrapping_shl(u32::from(len));
            for slot in (usize::from(code)..size).step_by(step) {
                *entries.get_mut(slot)? = entry;
            }
        }
        Some(Self { entries, bit_count })
    }

    fn symbol(&self, bits: &mut BitReader<'_>) -> Option<usize> {
        let entry = *self.entries.get(bits.peek(self.bit_count) as usize)?;
        let len = u32::from(entry & 15);
        if len == 0 {
            return None;
        }
        bits.take(len)?;
        Some(usize::from(entry.wrapping_shr(4)))
    }
}

/// Symbol, code (first bit lowest) and length of every symbol in a canonical code (section 3.2.2).
pub fn codes(lens: &[u8]) -> Option<Vec<(usize, u16, u8)>> {
    let mut counts = [0u32; 16];
    for &len in lens.iter().filter(|&&l| l > 0) {
        let count = counts.get_mut(usize::from(len))?;
        *count = count.wrapping_add(1);
    }
    let mut next = [0u32; 16];
    let mut code = 0u32;
    for len in 1..16usize {
        code = code
            .wrapping_add(*counts.get(len.wrapping_sub(1))?)
            .wrapping_mul(2);
        *next.get_mut(len)? = code;
        let end = code.wrapping_add(*counts.get(len)?);
        if end > 1u32.wrapping_shl(len as u32) {
            return None;
        }
    }
    let mut all = Vec::with_capacity(lens.len());
    for (symbol, &len) in lens.iter().enumerate().filter(|(_, l)| **l > 0) {
        let code = next.get_mut(usize::from(len))?;
        let shift = 16u32.wrapping_sub(u32::from(len));
        all.push((
            symbol,
            (*code as u16).reverse_bits().wrapping_shr(shift),
            len,
        ));
        *code = code.wrapping_add(1);
    }
    Some(all)
}

enum ParserState {
    Between,
    Coded { literals: Table, distances: Table },
    Stored(usize),
    Ended,
}

/// Parses a stream. `None` means that the bytes are not a DEFLATE stream.
pub struct Parser<'a> {
    bits: BitReader<'a>,
    state: ParserState,
    is_last: bool,
    plain_len: u64,
}

impl<'a> Parser<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            bits: BitReader::new(bytes),
            state: ParserState::Between,
            is_last: false,
            plain_len: 0,
        }
    }

    /// Number of consumed bits.
    pub fn position(&self) -> u64 {
        self.bits.position()
    }

    /// Whether the current block is the last.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// Number of consumed bytes; the last one may be consumed only in part.
    pub fn stream_len(&self) -> usize {
        self.bits.position().div_ceil(8) as usize
    }

    /// Returns the next event.
    pub fn next(&mut self) -> Option<Event<'a>> {
        loop {
            match &self.state {
                ParserState::Ended => return Some(Event::End),
                ParserState::Between if self.is_last => self.state = ParserState::Ended,
                ParserState::Between => return self.begin_block(),
                &ParserState::Stored(len) => {
                    self.state = ParserState::Between;
                    self.plain_len = self.plain_len.wrapping_add(len as u64);
                    return self.bits.take_bytes(len).map(Event::Stored);
                }
                ParserState::Coded {
                    literals,
                    distances,
                } => match read_token(&mut self.bits, literals, distances)? {
                    None => self.state = ParserState::Between,
                    Some(token) => {
                        let reach = token.as_match().map_or(0, |(_, distance)| distance);
                        if u64::from(reach) > self.plain_len {
                            return None;
                        }
                        self.plain_len = self.plain_len.wrapping_add(token.len() as u64);
                        return Some(Event::Token(token));
                    }
                },
            }
        }
    }

    fn begin_block(&mut self) -> Option<Event<'a>> {
        let first_bit = self.bits.position();
        self.is_last = self.bits.take(1)? == 1;
        let kind = match self.bits.take(2)? {
            0 => BlockKind::Stored,
            1 => BlockKind::Fixed,
            2 => BlockKind::Dynamic,
            _ => return None,
        };
        let start = self.bits.position();
        let lengths = match kind {
            BlockKind::Stored => {
                self.bits.align();
                let len = self.bits.take(16)?;
                if self.bits.take(16)? != len ^ 0xffff {
                    return None;
                }
                self.state = ParserState::Stored(len as usize);
                return Some(Event::Block {
                    first_bit,
                    kind,
                    header: (0, 0),
                });
            }
            BlockKind::Fixed => Lengths::fixed(),
            BlockKind::Dynamic => Lengths::read(&mut self.bits)?,
        };
        let header_len = self.bits.position().wrapping_sub(start);
        self.state = ParserState::Coded {
            literals: Table::new(&lengths.literals)?,
            distances: Table::new(&lengths.distances)?,
        };
        Some(Event::Block {
            first_bit,
            kind,
            header: (start, header_len),
        })
    }
}

/// Reads the next token of a block; the inner `None` is the end of the block.
fn read_token(
    bits: &mut BitReader<'_>,
    literals: &Table,
    distances: &Table,
) -> Option<Option<Token>> {
    let symbol = literals.symbol(bits)?;
    if symbol < END_OF_BLOCK {
        return Some(Some(Token::literal(symbol as u8)));
    }
    if symbol == END_OF_BLOCK {
        return Some(None);
    }
    let (base, extra) = len_of(symbol)?;
    let len = base.wrapping_add(bits.take(extra)?);
    let (base, extra) = distance_of(distances.symbol(bits)?)?;
    let distance = base.wrapping_add(bits.take(extra)?);
    Some(Some(Token::matching(len, distance)))
}
