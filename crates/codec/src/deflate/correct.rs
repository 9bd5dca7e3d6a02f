//! Computes corrections: the differences between a stream and zlib's stream of the same plain
//! bytes.

use super::bits::{BitReader, BitWriter, Bits};
use super::parse::{BlockKind, Event, Parser};
use super::predict::Predicted;
use super::tokens::Token;
use super::trees::Frequencies;
use super::write::{BLOCK_TOKENS_MAX, Block, block_count_max};
use super::zlib::BLOCK_TOKENS;
use weald_format::cursor::put_varint;
use weald_format::recipes::DeflatePart;

/// Corrections may take this fraction of the stream (1/12), and this many bytes in any case.
const CORRECTIONS_SHARE: usize = 12;
const CORRECTIONS_LEN_MIN: usize = 48;

/// End of a run of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Ends with a block.
    OfBlock,
    /// Ends inside a block, which may be the last of the stream.
    Inside { is_final: bool },
    /// Ends with the stream.
    OfStream,
}

/// A run of tokens and its corrections.
pub struct Cut {
    /// The part that the run makes.
    pub part: DeflatePart,
    /// Its first bit in the stream.
    first_bit: u64,
    /// Differences from zlib's stream.
    pub corrections: Vec<u8>,
    /// Whether zlib probably made the same blocks of the same tokens, so that no corrections are
    /// needed.
    pub is_probably_predicted: bool,
}

impl Cut {
    /// First byte of the stream that has bits of the run; the run may have only its upper bits.
    pub fn first_byte(&self) -> usize {
        self.first_bit.wrapping_shr(3) as usize
    }
}

/// Computes the corrections that turn the predicted tokens into `stream`, in runs of tokens. A run
/// ends with the first block end after `plain_len` plain bytes, or inside a block a quarter of that
/// later.
pub fn correct(
    stream: &[u8],
    plain: &[u8],
    mut predicted: Predicted<'_>,
    plain_len: usize,
) -> Option<Vec<Cut>> {
    let len_max = (stream.len() / CORRECTIONS_SHARE).max(CORRECTIONS_LEN_MIN);
    let mut parser = Parser::new(stream);
    let mut cuts = Vec::new();
    let mut builder = CorrectionBuilder::new(stream, 0, 0, 0);
    let mut at = 0usize;
    // Distance from `at` back to the last sync point, if a run of at least `len_min` plain bytes
    // may end at `at`.
    let sync_at = |predicted: &mut Predicted<'_>, start: usize, at: usize, len_min: usize| {
        let is_long = at.saturating_sub(start) >= len_min;
        let is_ending = plain.len().saturating_sub(at) <= plain_len / 2;
        let sync_point = if is_long && !is_ending {
            predicted.sync_point_before(at)?
        } else {
            return None;
        };
        let sync = at.saturating_sub(sync_point);
        (sync as u64 <= DeflatePart::SYNC_MAX).then_some(sync)
    };
    loop {
        match parser.next()? {
            Event::Block {
                first_bit,
                kind,
                header,
            } => {
                if let Some(sync) = sync_at(&mut predicted, builder.start, at, plain_len) {
                    let next = CorrectionBuilder::new(stream, at, sync, first_bit);
                    cuts.push(std::mem::replace(&mut builder, next).finish(at, End::OfBlock)?);
                }
                builder.begin(kind, header)?;
            }
            Event::Stored(bytes) => {
                at = at.checked_add(bytes.len())?;
                builder.blocks.last_mut()?.count = bytes.len();
            }
            Event::Token(token) => {
                builder.token(token, predicted.token_at(plain, at)?)?;
                at = at.checked_add(token.len())?;
                // A cut at the end of a block needs no description of its codes, so the run waits
                // for one.
                let len_min = plain_len.saturating_add(plain_len / 4);
                if let Some(sync) = sync_at(&mut predicted, builder.start, at, len_min) {
                    let next = builder.continue_inside(at, sync, parser.position())?;
                    let end = End::Inside {
                        is_final: parser.is_last(),
                    };
                    cuts.push(std::mem::replace(&mut builder, next).finish(at, end)?);
                }
            }
            Event::End => break,
        }
        if builder.fixes.len() > len_max {
            return None;
        }
    }
    cuts.push(builder.finish(at, End::OfStream)?);
    // Runs that zlib predicts exactly need no corrections.
    let kept = cuts.iter().filter(|c| !c.is_probably_predicted);
    let len: usize = kept.map(|c| c.corrections.len()).sum();
    (len <= len_max).then_some(cuts)
}

/// Collects the blocks of a run and their corrections.
pub struct CorrectionBuilder<'a> {
    stream: &'a [u8],
    /// Number of plain bytes before the run, distance back to the last sync point, and the first
    /// bit.
    start: usize,
    sync: usize,
    first_bit: u64,
    /// Whether the first block began in the previous run.
    begins_inside: bool,
    blocks: Vec<Block>,
    /// Tokens of the open block.
    tokens: Vec<Token>,
    /// Position of the open block's description; at most one element.
    headers: Vec<(u64, u64)>,
    fixes: Vec<u8>,
    fix_count: u64,
    /// Number of tokens since the last fix.
    gap: u64,
}

impl<'a> CorrectionBuilder<'a> {
    /// Starts a run at plain byte `start` and at `first_bit` of `stream`.
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

    /// Adds the next token of the stream; zlib's prediction for it is `predicted`.
    pub fn token(&mut self, token: Token, predicted: Token) -> Option<()> {
        if predicted != token {
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

    /// Starts the run that continues inside the open block, at plain byte `start` and at
    /// `first_bit`.
    fn continue_inside(&self, start: usize, sync: usize, first_bit: u64) -> Option<Self> {
        let mut next = Self::new(self.stream, start, sync, first_bit);
        next.begin(self.blocks.last()?.kind, *self.headers.last()?)?;
        next.begins_inside = true;
        Some(next)
    }

    /// Ends the run before plain byte `end`.
    pub fn finish(mut self, end: usize, kind: End) -> Option<Cut> {
        let is_open = matches!(kind, End::Inside { .. });
        self.end_block(is_open)?;
        let len = end.checked_sub(self.start)?;
        if self.blocks.len() > block_count_max(len) {
            return None;
        }
        let is_usual = |(i, block): (usize, &Block)| {
            let is_short = kind == End::OfStream && i.wrapping_add(1) == self.blocks.len();
            // For a stored block `count` is its bytes, not its tokens.
            let is_full = block.count == BLOCK_TOKENS || block.kind == BlockKind::Stored;
            (is_full || is_short) && block.header.is_none()
        };
        let is_probably_predicted =
            self.fix_count == 0 && self.blocks.iter().enumerate().all(is_usual);
        let bit = self.first_bit & 7;
        let mut reader = BitReader::at(self.stream, self.first_bit & !7);
        let carried = reader.take(bit as u32)? | 1u32.wrapping_shl(bit as u32);
        let mut corrections = self.encode();
        put_varint(&mut corrections, self.fix_count);
        corrections.extend_from_slice(&self.fixes);
        Some(Cut {
            part: DeflatePart {
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
            is_probably_predicted,
        })
    }

    /// Starts a block. Its description of codes lies at the bits `header`: first, count.
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

    /// Ends the open block, if there is one, or the part of it in this run if the block continues.
    fn end_block(&mut self, continues: bool) -> Option<()> {
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
            let mut usual = BitWriter::default();
            Frequencies::of(&self.tokens).describe(&mut usual);
            // Some of the block's tokens do not determine how often each symbol occurs in the whole
            // block.
            let is_part = continues || (self.begins_inside && is_first);
            if is_part || usual.into_bits() != actual {
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
