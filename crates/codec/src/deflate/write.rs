//! Makes DEFLATE streams from plain bytes and corrections.

use super::bits::{BitReader, BitWriter, Bits};
use super::parse::{BlockKind, Lengths, codes};
use super::predict::{Predicted, with_predicted, zlib_stream};
use super::tokens::{END_OF_BLOCK, MATCH_LEN_MAX, MATCH_LEN_MIN, Symbol, Token};
use super::trees::{Coding, Frequencies};
use weald_format::cursor::Cursor;
use weald_format::recipes::{DeflatePart, Zlib};
use weald_format::{Error, Result};

/// Maximum tokens of one block: far more than encoders put into one.
pub const BLOCK_TOKENS_MAX: usize = 1 << 20;

fn bad(what: &'static str) -> Error {
    Error::corrupt("recipe", 0, "F-20.4", what)
}

/// One block in corrections.
pub struct Block {
    pub kind: BlockKind,
    /// Number of tokens; of a stored block the number of bytes.
    pub count: usize,
    /// Description of the codes, if it differs from the one that zlib would write.
    pub header: Option<Bits>,
}

/// Makes the stream of `len` bytes from `plain`, `zlib` and `corrections`.
///
/// # Errors
/// `Corrupt` (F-20.4) if the stream has another length; `Limit` if zlib fails.
/// # Cost
/// That of [`predict_stream`]. Memory: the stream, 4 MiB for the tokens of a block, 650 KiB; below
/// level 4 also the plain bytes once more for zlib's stream.
pub fn recreate(plain: &[u8], zlib: Zlib, corrections: &[u8], len: usize) -> Result<Vec<u8>> {
    if !(1..=9).contains(&zlib.level) {
        return Err(bad("level: expected 1 to 9"));
    }
    let stream = if corrections.is_empty() {
        predict_stream(plain, zlib, len)?
    } else {
        with_predicted(plain, zlib, |predicted| {
            apply(plain, predicted, corrections, len)
        })??
    };
    if stream.len() == len {
        Ok(stream)
    } else {
        Err(bad("the stream has another length than the recipe says"))
    }
}

/// Makes zlib's stream of `plain`. May fail if the stream is longer than `len_max`.
///
/// # Errors
/// `Corrupt` (F-20.4) for a stream that is too long; `Limit` if zlib fails.
/// # Cost
/// One run of [`Tokenizer`](super::zlib::Tokenizer), which takes three quarters of zlib's time;
/// below level 4, one run of zlib.
pub fn predict_stream(plain: &[u8], zlib: Zlib, len_max: usize) -> Result<Vec<u8>> {
    let Some(predicted) = Predicted::from(plain, 0, true, zlib) else {
        return zlib_stream(plain, zlib);
    };
    let mut writer = StreamWriter::whole(plain, predicted);
    writer.predicted_blocks(true, len_max)?;
    Ok(writer.out.finish())
}

/// Makes the `len` bytes of a stream that `part` stands for. `run` is the
/// [input](Part::input_range) of the part among the `plain_len` plain bytes.
///
/// # Errors
/// `Corrupt` (F-20.4, F-20.8) if the output has another length.
/// # Cost
/// One run of [`Tokenizer`](super::zlib::Tokenizer) over `run`. Memory: the part, 4 MiB for the
/// tokens of a block, 650 KiB.
pub fn recreate_part(
    run: &[u8],
    plain_len: u64,
    zlib: Zlib,
    part: DeflatePart,
    corrections: &[u8],
    len: usize,
) -> Result<Vec<u8>> {
    let wrong_part = || Error::corrupt("recipe", 0, "F-20.8", "part: not a part of this stream");
    let input = part.input_range(plain_len).ok_or_else(wrong_part)?;
    let at = part.start.saturating_sub(input.start) as usize;
    let end = at.saturating_add(part.len as usize);
    let sync = at.checked_sub(part.sync as usize).ok_or_else(wrong_part)?;
    if input.end.saturating_sub(input.start) != run.len() as u64 {
        return Err(wrong_part());
    }
    let predicted = Predicted::from(run, sync, input.start == 0, zlib).ok_or_else(wrong_part)?;
    let mut out = BitWriter::default();
    let carried = u32::from(part.carry)
        .checked_ilog2()
        .ok_or_else(wrong_part)?;
    out.put(
        u32::from(part.carry) & 1u32.wrapping_shl(carried).wrapping_sub(1),
        carried,
    );
    let mut writer = StreamWriter {
        plain: run,
        predicted,
        at,
        end,
        tokens: Vec::new(),
        out,
    };
    let is_last = part.end() == Some(plain_len);
    let ends = Ends {
        begins_inside: part.begins_inside,
        ends_inside: part.ends_inside,
        is_final: if part.ends_inside {
            part.is_final
        } else {
            is_last
        },
    };
    match corrections.is_empty() {
        true if part.begins_inside || part.ends_inside => return Err(wrong_part()),
        true => writer.predicted_blocks(is_last, len)?,
        false => writer.corrected_blocks(corrections, ends, len)?,
    }
    let stream = if is_last && !part.ends_inside {
        writer.out.finish()
    } else {
        writer.out.into_whole_bytes()
    };
    if stream.len() == len {
        Ok(stream)
    } else {
        Err(bad("the part has another length than the recipe says"))
    }
}

/// Maximum blocks of a stream of this many plain bytes. In small blocks, building codes takes
/// longer than anything else.
pub fn block_count_max(plain_len: usize) -> usize {
    plain_len.wrapping_shr(8).saturating_add(16)
}

/// Makes the stream of at most `len` bytes from `plain`, predicted tokens and corrections.
fn apply(
    plain: &[u8],
    predicted: Predicted<'_>,
    corrections: &[u8],
    len: usize,
) -> Result<Vec<u8>> {
    let mut writer = StreamWriter::whole(plain, predicted);
    let ends = Ends {
        begins_inside: false,
        ends_inside: false,
        is_final: true,
    };
    writer.corrected_blocks(corrections, ends, len)?;
    Ok(writer.out.finish())
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
            "block: more tokens than plain bytes, or codes that its kind does not have",
        ));
    }
    let header = if has_header {
        // The longest description: 14 bits, 19 lengths of 3 bits, 316 symbols of at most 14
        // bits.
        let bit_count = cursor.bounded(14 + 19 * 3 + 316 * 14, "bits of a description")?;
        let bytes = cursor.bytes(bit_count.div_ceil(8) as usize)?.to_vec();
        Some(Bits {
            count: bit_count,
            bytes,
        })
    } else {
        None
    };
    Ok(Block {
        kind,
        count,
        header,
    })
}

/// Fixes (replaced tokens) that were not applied yet.
struct Fixes<'a> {
    /// Number of fixes, the next one included.
    count: u64,
    /// Number of tokens before the next fix.
    gap: u64,
    cursor: Cursor<'a>,
}

impl Fixes<'_> {
    fn read_gap(&mut self) -> Result<()> {
        if self.count > 0 {
            self.gap = self.cursor.varint()?;
        }
        Ok(())
    }

    /// Code of the next token if it is a fix.
    fn next(&mut self) -> Result<Option<u64>> {
        if self.count == 0 || self.gap > 0 {
            self.gap = self.gap.saturating_sub(1);
            return Ok(None);
        }
        let code = self.cursor.varint()?;
        self.count = self.count.saturating_sub(1);
        self.read_gap()?;
        Ok(Some(code))
    }
}

/// Ends of a run of blocks.
#[derive(Clone, Copy)]
struct Ends {
    /// The first block began in the previous part.
    begins_inside: bool,
    /// The last block continues in the next part.
    ends_inside: bool,
    /// The last block is the last of the stream.
    is_final: bool,
}

/// Writes blocks.
struct StreamWriter<'a> {
    plain: &'a [u8],
    predicted: Predicted<'a>,
    /// Position of the next plain byte, and the end of the plain bytes.
    at: usize,
    end: usize,
    tokens: Vec<Token>,
    out: BitWriter,
}

impl<'a> StreamWriter<'a> {
    /// Makes a whole stream.
    fn whole(plain: &'a [u8], predicted: Predicted<'a>) -> Self {
        Self {
            plain,
            predicted,
            at: 0,
            end: plain.len(),
            tokens: Vec::new(),
            out: BitWriter::default(),
        }
    }

    /// Writes blocks as corrections describe them.
    fn corrected_blocks(&mut self, corrections: &[u8], ends: Ends, len: usize) -> Result<()> {
        let plain_len = self.end.saturating_sub(self.at);
        let mut cursor = Cursor::new(corrections, "recipe");
        let block_count = cursor.count(block_count_max(plain_len), "block count")?;
        let blocks = (0..block_count)
            .map(|_| parse_block(&mut cursor, plain_len))
            .collect::<Result<Vec<_>>>()?;
        let mut fixes = Fixes {
            count: cursor.varint()?,
            gap: 0,
            cursor,
        };
        fixes.read_gap()?;
        for (no, block) in blocks.iter().enumerate() {
            let is_last = no.wrapping_add(1) == blocks.len();
            let ends = Ends {
                begins_inside: ends.begins_inside && no == 0,
                ends_inside: ends.ends_inside && is_last,
                is_final: ends.is_final && is_last,
            };
            self.corrected_block(block, &mut fixes, ends)?;
            self.check_len(len)?;
        }
        if self.at != self.end || fixes.count != 0 {
            return Err(bad("blocks: expected them to end with the plain bytes"));
        }
        fixes.cursor.finish()
    }

    fn check_len(&self, len: usize) -> Result<()> {
        if self.out.len() > len {
            Err(bad("the stream is longer than the recipe says"))
        } else {
            Ok(())
        }
    }

    fn corrected_block(&mut self, block: &Block, fixes: &mut Fixes<'_>, ends: Ends) -> Result<()> {
        let is_part = ends.begins_inside || ends.ends_inside;
        if is_part && block.kind != BlockKind::Fixed && block.header.is_none() {
            return Err(bad("part of a block: expected a description of its codes"));
        }
        if block.kind == BlockKind::Stored {
            return self.stored(block.count, ends.is_final);
        }
        self.tokens.clear();
        for _ in 0..block.count {
            let token = match fixes.next()? {
                Some(0) => self.plain.get(self.at).copied().map(Token::literal),
                Some(code) => Token::from_code(code),
                None => self.predicted.token_at(self.plain, self.at),
            };
            let token = token.ok_or_else(|| bad("token: invalid code, or past the plain bytes"))?;
            self.take(token)?;
        }
        if !ends.begins_inside {
            self.begin(block.kind, ends.is_final);
        }
        let lengths = match (block.kind, &block.header) {
            (BlockKind::Fixed, _) => Lengths::fixed(),
            (_, None) => Frequencies::of(&self.tokens).describe(&mut self.out),
            (_, Some(header)) => {
                if !ends.begins_inside {
                    self.out.put_bits(header);
                }
                Lengths::read(&mut BitReader::new(&header.bytes))
                    .ok_or_else(|| bad("description of codes: invalid"))?
            }
        };
        self.coded(&lengths, !ends.ends_inside)
    }

    /// Writes blocks as zlib ends and encodes them.
    fn predicted_blocks(&mut self, is_last: bool, len: usize) -> Result<()> {
        self.tokens.clear();
        let mut start = self.at;
        while self.at < self.end {
            let choice = self.predicted.choice_at(self.plain, self.at);
            let choice = choice.ok_or_else(|| bad("token: past the plain bytes"))?;
            self.take(choice.token)?;
            if choice.ends_block(self.tokens.len()) {
                self.predicted_block(start, false)?;
                self.check_len(len)?;
                self.tokens.clear();
                start = self.at;
            }
        }
        match (is_last, self.tokens.is_empty()) {
            (true, _) => self.predicted_block(start, true),
            (false, true) => Ok(()),
            (false, false) => Err(bad("part: ends inside a block without corrections")),
        }
    }

    /// Writes the block of the tokens since plain byte `start` in its shortest encoding.
    fn predicted_block(&mut self, start: usize, is_final: bool) -> Result<()> {
        let plain_len = self.at.saturating_sub(start);
        match Coding::of(&self.tokens, plain_len) {
            Coding::Stored => {
                self.at = start;
                self.stored(plain_len, is_final)
            }
            Coding::Fixed => {
                self.begin(BlockKind::Fixed, is_final);
                self.coded(&Lengths::fixed(), true)
            }
            Coding::Dynamic(lengths, header) => {
                self.begin(BlockKind::Dynamic, is_final);
                self.out.put_bits(&header);
                self.coded(&lengths, true)
            }
        }
    }

    /// Appends `token` at the next plain byte.
    fn take(&mut self, token: Token) -> Result<()> {
        let end = self.at.saturating_add(token.len());
        let reach = token
            .as_match()
            .map_or(0, |(_, distance)| distance as usize);
        if end > self.end || reach > self.at {
            return Err(bad("match: reaches outside the plain bytes"));
        }
        self.at = end;
        self.tokens.push(token);
        Ok(())
    }

    fn begin(&mut self, kind: BlockKind, is_final: bool) {
        self.out.put(u32::from(is_final), 1);
        self.out.put(kind as u32, 2);
    }

    fn stored(&mut self, len: usize, is_final: bool) -> Result<()> {
        let end = self.at.saturating_add(len);
        let stored = self.plain.get(self.at..end);
        let stored = stored.filter(|_| len <= 0xffff && end <= self.end);
        let stored = stored.ok_or_else(|| bad("stored block: too long"))?;
        self.begin(BlockKind::Stored, is_final);
        self.out.align();
        self.out.put(len as u32, 16);
        self.out.put(!(len as u32) & 0xffff, 16);
        self.out.put_bytes(stored);
        self.at = end;
        Ok(())
    }

    fn coded(&mut self, lengths: &Lengths, has_end: bool) -> Result<()> {
        write_tokens(&mut self.out, &self.tokens, lengths, has_end)
            .ok_or_else(|| bad("token: its symbol has no code"))
    }
}

/// Appends tokens and, if `has_end`, the end of their block; `None` if a token has no code.
pub fn write_tokens(
    out: &mut BitWriter,
    tokens: &[Token],
    lengths: &Lengths,
    has_end: bool,
) -> Option<()> {
    let table = |lens: &[u8]| -> Option<Vec<Word>> {
        let mut table = vec![Word::default(); lens.len()];
        for (symbol, code, len) in codes(lens)? {
            let (bits, count) = (u32::from(code), u32::from(len));
            *table.get_mut(symbol)? = Word { bits, count };
        }
        Some(table)
    };
    let literals = table(&lengths.literals)?;
    let distances = table(&lengths.distances)?;
    // Code and extra bits of each length.
    let word_of_len = |len| Word::of(&literals, Token::matching(len, 1).symbols().0);
    let lens: Vec<_> = (0..=MATCH_LEN_MAX)
        .map(|len| word_of_len(len.max(MATCH_LEN_MIN)))
        .collect();
    for token in tokens {
        let Some((len, distance)) = token.as_match() else {
            let literal = literals.get(usize::from(token.byte())).copied();
            let literal = literal.filter(|word| word.count > 0)?;
            out.put(literal.bits, literal.count);
            continue;
        };
        let len = lens.get(len as usize).copied().flatten()?;
        out.put(len.bits, len.count);
        let distance = Word::of(&distances, Symbol::of_distance(distance))?;
        out.put(distance.bits, distance.count);
    }
    if has_end {
        let end = Word::of(&literals, Symbol::plain(END_OF_BLOCK as u32))?;
        out.put(end.bits, end.count);
    }
    Some(())
}

/// Bits that are written at once.
#[derive(Clone, Copy, Default)]
struct Word {
    bits: u32,
    count: u32,
}

impl Word {
    /// The code of `symbol` and its extra bits, at most 28 bits; `None` if it has no code.
    fn of(table: &[Self], symbol: Symbol) -> Option<Self> {
        let code = table.get(symbol.code).filter(|word| word.count > 0)?;
        Some(Self {
            bits: code.bits | symbol.extra.wrapping_shl(code.count),
            count: code.count.wrapping_add(symbol.extra_count),
        })
    }
}
