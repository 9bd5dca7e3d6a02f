//! DEFLATE streams (RFC 1951) taken apart and put together again bit for bit.
//!
//! A stream is kept as its plain bytes, the zlib level that predicts it best, and *corrections*: where its blocks end, and
//! the few tokens and code descriptions that zlib would not have chosen. `docs/design/0005-deflate.md` says why.

mod bits;
mod parse;
mod predict;
mod tokens;
mod trees;

use bits::{BitReader, BitWriter, Bits};
use parse::{BlockKind, Event, Lengths, Parser, codes};
use predict::{Predicted, zlib_stream};
use tokens::{DISTANCE_MAX, END_OF_BLOCK, MATCH_LEN_MAX, MATCH_LEN_MIN, Token};
use trees::Frequencies;
use weald_format::cursor::{Cursor, put_varint};
use weald_format::recipes::Zlib;
use weald_format::{Error, Result};

const fn default(level: u8) -> Zlib {
    Zlib {
        level,
        is_filtered: false,
    }
}

const fn filtered(level: u8) -> Zlib {
    Zlib {
        level,
        is_filtered: true,
    }
}

/// What is tried for streams of archives, in order: what most programs use comes first.
pub const ARCHIVES: &[Zlib] = &[
    default(6),
    default(9),
    default(1),
    default(5),
    default(4),
    default(7),
    default(8),
    default(3),
    default(2),
];
/// What is tried for streams of PNG: libpng at its default level makes four of five, and the rest is mostly its as well
/// (`docs/design/0009-recipes-by-kind.md`). Below 4 the strategy makes no difference to tokens.
pub const PNG: &[Zlib] = &[
    filtered(6),
    default(6),
    filtered(9),
    default(9),
    filtered(7),
    filtered(8),
    default(1),
    default(2),
    default(3),
    filtered(4),
    filtered(5),
];
/// Plain bytes that levels are compared on.
const TRIAL_LEN: usize = 128 << 10;
/// At the end of the trial zlib sees less ahead than the real stream's encoder did.
const TRIAL_TAIL_LEN: usize = 1 << 10;
/// Corrections may take this share of the stream, and this many bytes whatever its length.
const CORRECTIONS_SHARE: usize = 12;
const CORRECTIONS_LEN_MIN: usize = 48;

/// How to make a stream from its plain bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// What predicts the tokens.
    pub zlib: Zlib,
    /// What zlib would have done otherwise; empty where it would have made the very stream.
    pub corrections: Vec<u8>,
}

/// Tokens of one block: far more than encoders put there.
const BLOCK_TOKENS_MAX: usize = 1 << 20;

fn bad(what: &'static str) -> Error {
    Error::corrupt("recipe", 0, "F-20.4", what)
}

/// Plain bytes of the stream that `bytes` begin with, at most `plain_len_max`, and the bytes that the stream takes; `None`
/// where there is no stream or it holds more.
pub fn inflate(bytes: &[u8], plain_len_max: usize) -> Option<(Vec<u8>, usize)> {
    let mut parser = Parser::new(bytes);
    let mut plain: Vec<u8> = Vec::new();
    loop {
        match parser.next()? {
            Event::Block { .. } => {}
            Event::Stored(stored) => plain.extend_from_slice(stored),
            Event::Token(token) => match token.as_match() {
                None => plain.push(token.byte()),
                Some((len, distance)) => repeat(&mut plain, len as usize, distance as usize)?,
            },
            Event::End => return Some((plain, parser.stream_len())),
        }
        if plain.len() > plain_len_max {
            return None;
        }
    }
}

/// Appends `len` bytes from `distance` back, which may reach into what is being appended.
fn repeat(plain: &mut Vec<u8>, len: usize, distance: usize) -> Option<()> {
    let start = plain.len().checked_sub(distance)?;
    let mut left = len;
    while left > 0 {
        let step = left.min(distance);
        plain.extend_from_within(start..start.checked_add(step)?);
        left = left.saturating_sub(step);
        if left > 0 && distance < len {
            // The bytes just appended repeat with the same period.
            let from = plain.len().checked_sub(distance)?;
            let step = left.min(distance);
            plain.extend_from_within(from..from.checked_add(step)?);
            left = left.saturating_sub(step);
        }
    }
    Some(())
}

/// The recipe for `stream`, whose plain bytes are `plain`, by the one of `tried` that foresees most of it; `None` where it would take
/// too many corrections.
///
/// # Cost
/// Up to one run of zlib for each that is tried over 128 KiB, mostly one, and one over everything.
pub fn analyze(stream: &[u8], plain: &[u8], tried: &[Zlib]) -> Option<Recipe> {
    let (zlib, whole) = best(stream, plain, tried)?;
    let predicted = match whole {
        Some(predicted) => predicted,
        None => zlib_stream(plain, zlib).ok()?,
    };
    if predicted == stream {
        return Some(Recipe {
            zlib,
            corrections: Vec::new(),
        });
    }
    let corrections = correct(stream, plain, &predicted)?;
    let made = apply(plain, &predicted, &corrections, stream.len()).ok()?;
    (made == stream).then_some(Recipe { zlib, corrections })
}

/// The one of `tried` whose tokens differ least from those of `stream` at its front, and where the front is all, what zlib makes.
fn best(stream: &[u8], plain: &[u8], tried: &[Zlib]) -> Option<(Zlib, Option<Vec<u8>>)> {
    let is_whole = plain.len() <= TRIAL_LEN;
    let trial = plain.get(..TRIAL_LEN).unwrap_or(plain);
    let end = match is_whole {
        true => trial.len(),
        false => trial.len().saturating_sub(TRIAL_TAIL_LEN),
    };
    let mut best = None;
    let mut most = usize::MAX;
    for &zlib in tried {
        let predicted = zlib_stream(trial, zlib).ok()?;
        let count = count_differences(stream, trial, &predicted, end, most)?;
        if count < most {
            best = Some((zlib, is_whole.then_some(predicted)));
            most = count;
        }
        if count == 0 {
            break;
        }
    }
    best
}

/// Tokens of `stream` that begin before `end` and that `predicted` does not foresee; counts no further than `most`.
fn count_differences(
    stream: &[u8],
    plain: &[u8],
    predicted: &[u8],
    end: usize,
    most: usize,
) -> Option<usize> {
    let mut parser = Parser::new(stream);
    let mut predicted = Predicted::new(predicted);
    let (mut at, mut count) = (0usize, 0usize);
    while at < end && count < most {
        match parser.next()? {
            Event::Block { .. } => {}
            Event::Stored(bytes) => at = at.saturating_add(bytes.len()),
            Event::Token(token) => {
                let is_foreseen = predicted.token_at(plain, at) == Some(token);
                count = count.saturating_add(usize::from(!is_foreseen));
                at = at.saturating_add(token.len());
            }
            Event::End => break,
        }
    }
    Some(count)
}

/// One block as corrections describe it.
struct Block {
    kind: BlockKind,
    /// Tokens; bytes of a stored block.
    count: usize,
    /// Description of the codes, where it is not the one that zlib would have written.
    header: Option<Bits>,
}

/// What must be told of `stream` to make it from `predicted`.
fn correct(stream: &[u8], plain: &[u8], predicted: &[u8]) -> Option<Vec<u8>> {
    let len_max = (stream.len() / CORRECTIONS_SHARE).max(CORRECTIONS_LEN_MIN);
    let mut walk = Correct {
        stream,
        blocks: Vec::new(),
        tokens: Vec::new(),
        headers: Vec::new(),
    };
    let mut parser = Parser::new(stream);
    let mut predicted = Predicted::new(predicted);
    let (mut at, mut gap, mut fix_count) = (0usize, 0u64, 0u64);
    let mut fixes = Vec::new();
    loop {
        match parser.next()? {
            Event::Block { kind, header } => walk.begin(kind, header)?,
            Event::Stored(bytes) => {
                at = at.checked_add(bytes.len())?;
                walk.blocks.last_mut()?.count = bytes.len();
            }
            Event::Token(token) => {
                if predicted.token_at(plain, at)? != token {
                    put_varint(&mut fixes, gap);
                    put_varint(&mut fixes, token.to_code());
                    fix_count = fix_count.checked_add(1)?;
                    gap = 0;
                } else {
                    gap = gap.checked_add(1)?;
                }
                at = at.checked_add(token.len())?;
                walk.tokens.push(token);
                if walk.tokens.len() > BLOCK_TOKENS_MAX {
                    return None;
                }
            }
            Event::End => break,
        }
        if fixes.len() > len_max {
            return None;
        }
    }
    walk.end_block()?;
    if walk.blocks.len() > block_count_max(plain.len()) {
        return None;
    }
    let mut corrections = walk.encode();
    put_varint(&mut corrections, fix_count);
    corrections.extend_from_slice(&fixes);
    (corrections.len() <= len_max).then_some(corrections)
}

/// The blocks of a stream on their way to corrections.
struct Correct<'a> {
    stream: &'a [u8],
    blocks: Vec<Block>,
    /// Tokens of the block that is open.
    tokens: Vec<Token>,
    /// Its header, none or one.
    headers: Vec<(u64, u64)>,
}

impl Correct<'_> {
    fn begin(&mut self, kind: BlockKind, header: (u64, u64)) -> Option<()> {
        self.end_block()?;
        self.blocks.push(Block {
            kind,
            count: 0,
            header: None,
        });
        self.headers.push(header);
        Some(())
    }

    fn end_block(&mut self) -> Option<()> {
        let Some((start, count)) = self.headers.pop() else {
            return Some(());
        };
        let block = self.blocks.last_mut()?;
        if block.kind == BlockKind::Stored {
            return Some(());
        }
        block.count = self.tokens.len();
        if block.kind == BlockKind::Dynamic {
            let mut reader = BitReader::at(self.stream, start);
            let actual = Bits::read(&mut reader, count);
            let mut foreseen = BitWriter::default();
            Frequencies::of(&self.tokens).describe(&mut foreseen);
            if foreseen.into_bits() != actual {
                block.header = Some(actual);
            }
        }
        self.tokens.clear();
        Some(())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.blocks.len() as u64);
        for block in &self.blocks {
            let flags = block.kind as u64 | u64::from(block.header.is_some()).wrapping_shl(2);
            put_varint(&mut out, (block.count as u64).wrapping_shl(3) | flags);
            if let Some(header) = &block.header {
                put_varint(&mut out, header.count);
                out.extend_from_slice(&header.bytes);
            }
        }
        out
    }
}

/// The stream of `len` bytes that `plain`, `zlib` and `corrections` make.
///
/// # Errors
/// `Corrupt` (F-20.4) where they make none of that length; `Limit` where zlib fails.
/// # Cost
/// One run of zlib, and one walk over its tokens where there are corrections. Memory: the plain bytes once more for zlib's
/// stream, 4 MiB for the tokens of a block, the stream, 256 KiB for zlib.
pub fn recreate(plain: &[u8], zlib: Zlib, corrections: &[u8], len: usize) -> Result<Vec<u8>> {
    if !(1..=9).contains(&zlib.level) {
        return Err(bad("level: expected 1 to 9"));
    }
    let predicted = zlib_stream(plain, zlib)?;
    let stream = match corrections.is_empty() {
        true => predicted,
        false => apply(plain, &predicted, corrections, len)?,
    };
    match stream.len() == len {
        true => Ok(stream),
        false => Err(bad("the stream that it makes has another length")),
    }
}

/// Blocks of a stream of so many plain bytes: describing codes takes longer than anything else in small blocks.
fn block_count_max(plain_len: usize) -> usize {
    plain_len.wrapping_shr(8).saturating_add(16)
}

fn apply(plain: &[u8], predicted: &[u8], corrections: &[u8], len: usize) -> Result<Vec<u8>> {
    let mut cursor = Cursor::new(corrections, "recipe");
    let block_count = cursor.count(block_count_max(plain.len()), "block count")?;
    let blocks = (0..block_count)
        .map(|_| parse_block(&mut cursor, plain.len()))
        .collect::<Result<Vec<_>>>()?;
    let mut apply = Apply {
        plain,
        predicted: Predicted::new(predicted),
        fix_count: cursor.varint()?,
        gap: 0,
        fixes: cursor,
        at: 0,
        tokens: Vec::new(),
        out: BitWriter::default(),
    };
    apply.read_gap()?;
    for (no, block) in blocks.iter().enumerate() {
        apply.block(block, no.wrapping_add(1) == blocks.len())?;
        if apply.out.len() > len {
            return Err(bad("the stream that it makes is longer than announced"));
        }
    }
    if apply.at != plain.len() || apply.fix_count != 0 {
        return Err(bad("blocks and plain bytes do not end together"));
    }
    apply.fixes.finish()?;
    Ok(apply.out.finish())
}

fn parse_block(cursor: &mut Cursor<'_>, plain_len: usize) -> Result<Block> {
    let word = cursor.varint()?;
    let kind = match word & 3 {
        0 => BlockKind::Stored,
        1 => BlockKind::Fixed,
        2 => BlockKind::Dynamic,
        _ => return Err(bad("block kind: expected 0 to 2, found 3")),
    };
    let count = usize::try_from(word.wrapping_shr(3)).unwrap_or(usize::MAX);
    let has_header = word & 4 != 0;
    if count > plain_len.min(BLOCK_TOKENS_MAX) || (has_header && kind != BlockKind::Dynamic) {
        return Err(bad(
            "block of more tokens than plain bytes, or with codes that it cannot have",
        ));
    }
    let header = match has_header {
        false => None,
        true => {
            // The longest description: 14 bits, 19 lengths of 3, 316 symbols of at most 14 bits.
            let bit_count = cursor.bounded(14 + 19 * 3 + 316 * 14, "bits of a description")?;
            let bytes = cursor.bytes(bit_count.div_ceil(8) as usize)?.to_vec();
            Some(Bits {
                count: bit_count,
                bytes,
            })
        }
    };
    Ok(Block {
        kind,
        count,
        header,
    })
}

/// A stream being made.
struct Apply<'a> {
    plain: &'a [u8],
    predicted: Predicted<'a>,
    /// Fixes that are left, the one that `gap` leads to included.
    fix_count: u64,
    /// Tokens before the next fix.
    gap: u64,
    fixes: Cursor<'a>,
    at: usize,
    tokens: Vec<Token>,
    out: BitWriter,
}

impl Apply<'_> {
    fn read_gap(&mut self) -> Result<()> {
        if self.fix_count > 0 {
            self.gap = self.fixes.varint()?;
        }
        Ok(())
    }

    fn block(&mut self, block: &Block, is_last: bool) -> Result<()> {
        self.out.put(u32::from(is_last), 1);
        self.out.put(block.kind as u32, 2);
        if block.kind == BlockKind::Stored {
            return self.stored(block.count);
        }
        self.tokens.clear();
        for _ in 0..block.count {
            let token = self.token()?;
            self.tokens.push(token);
        }
        let lengths = match (block.kind, &block.header) {
            (BlockKind::Fixed, _) => Lengths::fixed(),
            (_, None) => Frequencies::of(&self.tokens).describe(&mut self.out),
            (_, Some(header)) => {
                self.out.put_bits(header);
                Lengths::read(&mut BitReader::new(&header.bytes))
                    .ok_or_else(|| bad("a description of codes that is none"))?
            }
        };
        write_tokens(&mut self.out, &self.tokens, &lengths)
            .ok_or_else(|| bad("a token without a code"))
    }

    fn stored(&mut self, len: usize) -> Result<()> {
        let end = self.at.saturating_add(len);
        let stored = self.plain.get(self.at..end).filter(|_| len <= 0xffff);
        let stored = stored.ok_or_else(|| bad("a stored block that is too long"))?;
        self.out.align();
        self.out.put(len as u32, 16);
        self.out.put(!(len as u32) & 0xffff, 16);
        self.out.put_bytes(stored);
        self.at = end;
        Ok(())
    }

    /// The next token: a fix where one is due, else what was predicted.
    fn token(&mut self) -> Result<Token> {
        let predicted = self.predicted.token_at(self.plain, self.at);
        let literal = self.plain.get(self.at).copied().map(Token::literal);
        let is_fixed = self.fix_count > 0 && self.gap == 0;
        let token = if is_fixed {
            let code = self.fixes.varint()?;
            self.fix_count = self.fix_count.saturating_sub(1);
            self.read_gap()?;
            match code {
                0 => literal,
                _ => Token::from_code(code),
            }
        } else {
            self.gap = self.gap.saturating_sub(u64::from(self.fix_count > 0));
            predicted
        };
        let token = token.ok_or_else(|| bad("a token that is none, or behind the plain bytes"))?;
        let end = self.at.saturating_add(token.len());
        let reach = token
            .as_match()
            .map_or(0, |(_, distance)| distance as usize);
        if end > self.plain.len() || reach > self.at {
            return Err(bad("a match that reaches out of the plain bytes"));
        }
        self.at = end;
        Ok(token)
    }
}

/// Appends tokens and the end of their block; `None` where one has no code.
fn write_tokens(out: &mut BitWriter, tokens: &[Token], lengths: &Lengths) -> Option<()> {
    let table = |lens: &[u8]| -> Option<Vec<(u32, u32)>> {
        let mut table = vec![(0, 0); lens.len()];
        for (symbol, code, len) in codes(lens)? {
            *table.get_mut(symbol)? = (u32::from(code), u32::from(len));
        }
        Some(table)
    };
    let literals = table(&lengths.literals)?;
    let distances = table(&lengths.distances)?;
    let coded =
        |table: &[(u32, u32)], symbol: usize| table.get(symbol).copied().filter(|c| c.1 > 0);
    for token in tokens {
        let (symbol, distance) = token.symbols();
        let (code, len) = coded(&literals, symbol.code)?;
        out.put(code, len);
        out.put(symbol.extra, symbol.extra_count);
        if let Some(symbol) = distance {
            let (code, len) = coded(&distances, symbol.code)?;
            out.put(code, len);
            out.put(symbol.extra, symbol.extra_count);
        }
    }
    let (code, len) = coded(&literals, END_OF_BLOCK)?;
    out.put(code, len);
    Some(())
}

impl Token {
    /// How corrections name it: 0 is a literal, whose byte the plain bytes tell.
    fn to_code(self) -> u64 {
        match self.as_match() {
            None => 0,
            Some((len, distance)) => {
                let len = u64::from(len.saturating_sub(MATCH_LEN_MIN));
                let distance = u64::from(distance.saturating_sub(1));
                (len | distance.wrapping_shl(8)).wrapping_add(1)
            }
        }
    }

    /// The match that `code`, not 0, stands for.
    fn from_code(code: u64) -> Option<Self> {
        let code = code.checked_sub(1)?;
        let len = (code & 0xff).wrapping_add(u64::from(MATCH_LEN_MIN)) as u32;
        let distance = u32::try_from(code.wrapping_shr(8)).ok()?.checked_add(1)?;
        let is_valid = len <= MATCH_LEN_MAX && distance <= DISTANCE_MAX;
        is_valid.then(|| Self::matching(len, distance))
    }
}

#[cfg(test)]
mod tests;
