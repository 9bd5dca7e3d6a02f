//! Corrections: what must be told of a stream beyond what zlib would have done.

use super::bits::{BitReader, BitWriter, Bits};
use super::make::{BLOCK_TOKENS_MAX, Block, block_count_max};
use super::parse::{BlockKind, Event, Parser};
use super::predict::Predicted;
use super::tokens::Token;
use super::trees::Frequencies;
use super::zlib::BLOCK_TOKENS;
use weald_format::cursor::put_varint;
use weald_format::recipes::Part;

/// Corrections may take this share of the stream, and this many bytes whatever its length.
const SHARE: usize = 12;
const LEN_MIN: usize = 48;

/// Where a run of tokens ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With a block.
    OfBlock,
    /// Inside one, which may be the last of the stream.
    Inside { is_final: bool },
    /// With the stream.
    OfStream,
}

/// A run of tokens, and what must be told of them.
pub struct Cut {
    /// Which they are.
    pub part: Part,
    /// Its first bit in the stream.
    first_bit: u64,
    /// What zlib would have done otherwise.
    pub corrections: Vec<u8>,
    /// Whether zlib may well have made the same blocks of the same tokens, so that they need no
    /// corrections.
    pub may_be_foreseen: bool,
}

impl Cut {
    /// The first byte of the stream that has bits of it, be it only the upper ones.
    pub fn first_byte(&self) -> usize {
        self.first_bit.wrapping_shr(3) as usize
    }
}

/// What must be told of `stream` to make it from what is `predicted`, in runs of tokens: one ends
/// with a block where it has `plain_len` plain bytes, or inside one a quarter of that later.
pub fn correct(
    stream: &[u8],
    plain: &[u8],
    mut predicted: Predicted<'_>,
    plain_len: usize,
) -> Option<Vec<Cut>> {
    let len_max = (stream.len() / SHARE).max(LEN_MIN);
    let mut parser = Parser::new(stream);
    let mut cuts = Vec::new();
    let mut walk = Correct::new(stream, 0, 0, 0);
    let mut at = 0usize;
    // How far before `at` a run may begin, if one of `len_min` plain bytes ends there.
    let sync_at = |predicted: &mut Predicted<'_>, start: usize, at: usize, len_min: usize| {
        let is_long = at.saturating_sub(start) >= len_min;
        let is_ending = plain.len().saturating_sub(at) <= plain_len / 2;
        let clean = match is_long && !is_ending {
            true => predicted.clean_before(at)?,
            false => return None,
        };
        let sync = at.saturating_sub(clean);
        (sync as u64 <= Part::SYNC_MAX).then_some(sync)
    };
    loop {
        match parser.next()? {
            Event::Block {
                first_bit,
                kind,
                header,
            } => {
                if let Some(sync) = sync_at(&mut predicted, walk.start, at, plain_len) {
                    let next = Correct::new(stream, at, sync, first_bit);
                    cuts.push(std::mem::replace(&mut walk, next).finish(at, End::OfBlock)?);
                }
                walk.begin(kind, header)?;
            }
            Event::Stored(bytes) => {
                at = at.checked_add(bytes.len())?;
                walk.blocks.last_mut()?.count = bytes.len();
            }
            Event::Token(token) => {
                walk.token(token, predicted.token_at(plain, at)?)?;
                at = at.checked_add(token.len())?;
                // The end of a block, which needs no description of its codes, is worth waiting
                // for.
                let len_min = plain_len.saturating_add(plain_len / 4);
                if let Some(sync) = sync_at(&mut predicted, walk.start, at, len_min) {
                    let next = walk.going_on(at, sync, parser.position())?;
                    let end = End::Inside {
                        is_final: parser.is_last(),
                    };
                    cuts.push(std::mem::replace(&mut walk, next).finish(at, end)?);
                }
            }
            Event::End => break,
        }
        if walk.fixes.len() > len_max {
            return None;
        }
    }
    cuts.push(walk.finish(at, End::OfStream)?);
    // Runs that are as foreseen keep none of theirs.
    let kept = cuts.iter().filter(|c| !c.may_be_foreseen);
    let len: usize = kept.map(|c| c.corrections.len()).sum();
    (len <= len_max).then_some(cuts)
}

/// The blocks of a stream on their way to corrections.
pub struct Correct<'a> {
    stream: &'a [u8],
    /// Plain bytes before them, how far before that zlib has nothing pending, and the first bit.
    start: usize,
    sync: usize,
    first_bit: u64,
    /// Whether the first block began before.
    begins_inside: bool,
    blocks: Vec<Block>,
    /// Tokens of the block that is open.
    tokens: Vec<Token>,
    /// Its header, none or one.
    headers: Vec<(u64, u64)>,
    fixes: Vec<u8>,
    fix_count: u64,
    /// Tokens since the last fix.
    gap: u64,
}

impl<'a> Correct<'a> {
    /// A run that begins at plain byte `start` and at `first_bit` of `stream`.
    pub fn new(stream: &'a [u8], start: usize, sync: usize, first_bit: u64) -> Self {
        Self {
            stream,
            start,
            sync,
            first_bit,
            begins_inside: false,
            blocks: Vec::new(),
            tokens: Vec::new(),
            headers: Vec::new(),
            fixes: Vec::new(),
            fix_count: 0,
            gap: 0,
        }
    }

    /// The next token of the stream, where `foreseen` was to be expected.
    pub fn token(&mut self, token: Token, foreseen: Token) -> Option<()> {
        if foreseen != token {
            put_varint(&mut self.fixes, self.gap);
            put_varint(&mut self.fixes, token.to_code());
            self.fix_count = self.fix_count.checked_add(1)?;
            self.gap = 0;
        } else {
            self.gap = self.gap.checked_add(1)?;
        }
        self.tokens.push(token);
        (self.tokens.len() <= BLOCK_TOKENS_MAX).then_some(())
    }

    /// A run that goes on inside the block that is open, at plain byte `start` and at `first_bit`.
    fn going_on(&self, start: usize, sync: usize, first_bit: u64) -> Option<Self> {
        let mut next = Self::new(self.stream, start, sync, first_bit);
        next.begin(self.blocks.last()?.kind, *self.headers.last()?)?;
        next.begins_inside = true;
        Some(next)
    }

    /// Ends the run in front of plain byte `end`.
    pub fn finish(mut self, end: usize, kind: End) -> Option<Cut> {
        let is_open = matches!(kind, End::Inside { .. });
        self.end_block(is_open)?;
        let len = end.checked_sub(self.start)?;
        if self.blocks.len() > block_count_max(len) {
            return None;
        }
        let is_usual = |(i, block): (usize, &Block)| {
            let is_short = kind == End::OfStream && i.wrapping_add(1) == self.blocks.len();
            // A stored block tells its bytes, not its tokens.
            let is_full = block.count == BLOCK_TOKENS || block.kind == BlockKind::Stored;
            (is_full || is_short) && block.header.is_none()
        };
        let may_be_foreseen = self.fix_count == 0 && self.blocks.iter().enumerate().all(is_usual);
        let bit = self.first_bit & 7;
        let mut reader = BitReader::at(self.stream, self.first_bit & !7);
        let carried = reader.take(bit as u32)? | 1u32.wrapping_shl(bit as u32);
        let mut corrections = self.encode();
        put_varint(&mut corrections, self.fix_count);
        corrections.extend_from_slice(&self.fixes);
        Some(Cut {
            part: Part {
                start: self.start as u64,
                len: len as u64,
                sync: self.sync as u64,
                carry: u8::try_from(carried).ok()?,
                begins_inside: self.begins_inside,
                ends_inside: is_open,
                is_final: kind == End::Inside { is_final: true },
            },
            first_bit: self.first_bit,
            corrections,
            may_be_foreseen,
        })
    }

    /// A block begins, whose description of codes lies at the bits `header`: first, count.
    pub fn begin(&mut self, kind: BlockKind, header: (u64, u64)) -> Option<()> {
        self.end_block(false)?;
        self.blocks.push(Block {
            kind,
            count: 0,
            header: None,
        });
        self.headers.push(header);
        Some(())
    }

    /// Ends the block that is open, if one is, or the part of it that is here where it goes on.
    fn end_block(&mut self, goes_on: bool) -> Option<()> {
        let Some((start, count)) = self.headers.pop() else {
            return Some(());
        };
        let is_first = self.blocks.len() == 1;
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
            // Part of the tokens does not tell how often each occurs in the block.
            let is_part = goes_on || (self.begins_inside && is_first);
            if is_part || foreseen.into_bits() != actual {
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
