//! What zlib would have written: the tokens that most streams are made of.

use super::parse::{Event, Parser};
use super::tokens::Token;
use super::trees::Coding;
use super::zlib::{Chosen, Tokenizer};
use flate2::{Compress, Compression, FlushCompress, Status};
use weald_format::recipes::Zlib;
use weald_format::{Error, ErrorKind, Result};

/// The stream that zlib's `deflate` makes of `plain` as `zlib` says, with a window of 32 KiB and
/// `memLevel` 8.
///
/// # Errors
/// `Limit` where zlib fails.
pub fn zlib_stream(plain: &[u8], zlib: Zlib) -> Result<Vec<u8>> {
    let failed = |what: String| Error::new(ErrorKind::Limit, format!("zlib: {what}"));
    if zlib.is_filtered {
        return weald_sys::deflate_filtered(plain, zlib.level).map_err(|e| failed(e.to_string()));
    }
    let mut zlib = Compress::new(Compression::new(u32::from(zlib.level)), false);
    // As `deflateBound` has it for the default parameters.
    let bound = plain
        .len()
        .saturating_add(plain.len() >> 11)
        .saturating_add(64);
    let mut stream = Vec::with_capacity(bound);
    loop {
        let taken = zlib.total_in() as usize;
        let rest = plain.get(taken..).unwrap_or(&[]);
        let status = zlib.compress_vec(rest, &mut stream, FlushCompress::Finish);
        match status.map_err(|e| failed(e.to_string()))? {
            Status::StreamEnd => return Ok(stream),
            Status::Ok | Status::BufError => stream.reserve(4096),
        }
    }
}

/// What `task` makes of the tokens of the stream that zlib makes of `plain`.
///
/// # Errors
/// `Limit` where zlib fails.
pub fn with_predicted<T>(
    plain: &[u8],
    zlib: Zlib,
    task: impl FnOnce(Predicted<'_>) -> T,
) -> Result<T> {
    if let Some(predicted) = Predicted::in_blocks(plain, zlib) {
        return Ok(task(predicted));
    }
    let stream = zlib_stream(plain, zlib)?;
    Ok(task(Predicted::of_stream(&stream)))
}

/// Where predicted tokens come from.
enum Source<'a> {
    /// A stream that zlib made, and what is left of a stored block of it.
    Stream(Parser<'a>, &'a [u8]),
    /// The choices themselves.
    Choices(Tokenizer<'a>),
    /// The same, block for block.
    Blocks(Box<Blocks<'a>>),
}

/// The tokens of the stream that zlib makes, without making it: its choices, and literals where it
/// stores a block.
struct Blocks<'a> {
    plain: &'a [u8],
    tokenizer: Tokenizer<'a>,
    /// Plain bytes before the next block.
    at: usize,
    tokens: Vec<Token>,
    taken: usize,
}

impl Blocks<'_> {
    fn next(&mut self) -> Option<Token> {
        if self.taken == self.tokens.len() {
            self.fill();
        }
        let token = self.tokens.get(self.taken).copied()?;
        self.taken = self.taken.saturating_add(1);
        Some(token)
    }

    fn fill(&mut self) {
        self.tokens.clear();
        self.taken = 0;
        let start = self.at;
        for chosen in self.tokenizer.by_ref() {
            self.at = self.at.saturating_add(chosen.token.len());
            self.tokens.push(chosen.token);
            if chosen.ends_block(self.tokens.len()) {
                break;
            }
        }
        let plain = self.plain.get(start..self.at).unwrap_or_default();
        if matches!(Coding::of(&self.tokens, plain.len()), Coding::Stored) {
            self.tokens.clear();
            let literals = plain.iter().map(|&byte| Token::literal(byte));
            self.tokens.extend(literals);
        }
    }
}

impl Source<'_> {
    fn pull(&mut self) -> Option<Chosen> {
        let (parser, stored) = match self {
            Self::Stream(parser, stored) => (parser, stored),
            Self::Choices(tokenizer) => return tokenizer.next(),
            Self::Blocks(blocks) => {
                let token = blocks.next()?;
                return Some(Chosen {
                    token,
                    is_late: false,
                });
            }
        };
        let token = loop {
            if let Some((&byte, rest)) = stored.split_first() {
                *stored = rest;
                break Token::literal(byte);
            }
            match parser.next()? {
                Event::Token(token) => break token,
                Event::Stored(bytes) => *stored = bytes,
                Event::Block { .. } => {}
                Event::End => return None,
            }
        };
        Some(Chosen {
            token,
            is_late: false,
        })
    }
}

/// The tokens that zlib chooses, by where they begin in the plain bytes.
pub struct Predicted<'a> {
    source: Source<'a>,
    next: Option<(usize, Chosen)>,
    /// Where the token after the next begins.
    end: usize,
    clean: usize,
}

impl<'a> Predicted<'a> {
    /// The tokens of `stream`.
    pub fn of_stream(stream: &'a [u8]) -> Self {
        Self::new(Source::Stream(Parser::new(stream), &[]), 0)
    }

    /// The tokens that zlib chooses in a run of plain bytes from `start` on: see
    /// [`Tokenizer::new`].
    pub fn from(plain: &'a [u8], start: usize, is_front: bool, zlib: Zlib) -> Option<Self> {
        let tokenizer = Tokenizer::new(plain, start, is_front, zlib)?;
        Some(Self::new(Source::Choices(tokenizer), start))
    }

    /// The tokens of the stream that zlib makes of `plain`; `None` for a level below 4 or over 9.
    fn in_blocks(plain: &'a [u8], zlib: Zlib) -> Option<Self> {
        let blocks = Blocks {
            plain,
            tokenizer: Tokenizer::new(plain, 0, true, zlib)?,
            at: 0,
            tokens: Vec::new(),
            taken: 0,
        };
        Some(Self::new(Source::Blocks(Box::new(blocks)), 0))
    }

    fn new(source: Source<'a>, start: usize) -> Self {
        let mut predicted = Self {
            source,
            next: None,
            end: start,
            clean: start,
        };
        predicted.advance();
        predicted
    }

    fn advance(&mut self) {
        if let Some((start, chosen)) = self.next
            && chosen.token.as_match().is_some()
        {
            self.clean = start.saturating_add(chosen.token.len());
        }
        self.next = self.source.pull().map(|chosen| {
            let start = self.end;
            self.end = start.saturating_add(chosen.token.len());
            (start, chosen)
        });
    }

    fn go_to(&mut self, at: usize) {
        while self.next.is_some_and(|(start, _)| start < at) {
            self.advance();
        }
    }

    /// The token to be expected at `at` in `plain`, which must not go back: zlib's where it has one
    /// that begins there, a literal where it has not.
    pub fn token_at(&mut self, plain: &[u8], at: usize) -> Option<Token> {
        self.chosen_at(plain, at).map(|chosen| chosen.token)
    }

    /// The same, and whether it comes late.
    pub fn chosen_at(&mut self, plain: &[u8], at: usize) -> Option<Chosen> {
        self.go_to(at);
        match self.next {
            Some((start, chosen)) if start == at => Some(chosen),
            _ => plain.get(at).map(|&byte| Chosen {
                token: Token::literal(byte),
                is_late: false,
            }),
        }
    }

    /// The last place up to `at` where zlib had nothing pending because a match ended there, or
    /// where it began; nothing if a match goes on over `at`.
    pub fn clean_before(&mut self, at: usize) -> Option<usize> {
        self.go_to(at);
        (self.clean <= at).then_some(self.clean)
    }
}
