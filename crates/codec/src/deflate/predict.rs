//! Predicts the tokens of a stream: those that zlib would choose. Most streams consist of them.

use super::parse::{Event, Parser};
use super::tokens::Token;
use super::trees::Coding;
use super::zlib::{Choice, Tokenizer};
use flate2::{Compress, Compression, FlushCompress, Status};
use weald_format::recipes::Zlib;
use weald_format::{Error, ErrorKind, Result};

/// Compresses `plain` with zlib's `deflate` and the parameters `zlib`, a window of 32 KiB and
/// `memLevel` 8.
///
/// # Errors
/// `Limit` if zlib fails.
pub fn zlib_stream(plain: &[u8], zlib: Zlib) -> Result<Vec<u8>> {
    let failed = |what: String| Error::new(ErrorKind::Limit, format!("zlib: {what}"));
    if zlib.is_filtered {
        return weald_sys::deflate_filtered(plain, zlib.level).map_err(|e| failed(e.to_string()));
    }
    let mut zlib = Compress::new(Compression::new(u32::from(zlib.level)), false);
    // The bound of `deflateBound` for the default parameters.
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

/// Runs `task` on the predicted tokens of `plain`.
///
/// # Errors
/// `Limit` if zlib fails.
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

/// Source of predicted tokens.
enum Predictions<'a> {
    /// A stream that zlib made, and the unread bytes of its current stored block.
    Stream(Parser<'a>, &'a [u8]),
    /// The choices of zlib's match search.
    Choices(Tokenizer<'a>),
    /// These choices, grouped into blocks.
    Blocks(Box<Blocks<'a>>),
}

/// The tokens of zlib's stream without the stream itself: zlib's choices, and literals for each
/// block that zlib stores.
struct Blocks<'a> {
    plain: &'a [u8],
    tokenizer: Tokenizer<'a>,
    /// Number of plain bytes before the next block.
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
        for choice in self.tokenizer.by_ref() {
            self.at = self.at.saturating_add(choice.token.len());
            self.tokens.push(choice.token);
            if choice.ends_block(self.tokens.len()) {
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

impl Predictions<'_> {
    fn next_choice(&mut self) -> Option<Choice> {
        let (parser, stored) = match self {
            Self::Stream(parser, stored) => (parser, stored),
            Self::Choices(tokenizer) => return tokenizer.next(),
            Self::Blocks(blocks) => {
                let token = blocks.next()?;
                return Some(Choice {
                    token,
                    is_trailing: false,
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
        Some(Choice {
            token,
            is_trailing: false,
        })
    }
}

/// The tokens that zlib chooses, indexed by their start in the plain bytes.
pub struct Predicted<'a> {
    source: Predictions<'a>,
    next: Option<(usize, Choice)>,
    /// Start of the token after `next`.
    end: usize,
    sync_point: usize,
}

impl<'a> Predicted<'a> {
    /// Reads the tokens of `stream`.
    pub fn of_stream(stream: &'a [u8]) -> Self {
        Self::new(Predictions::Stream(Parser::new(stream), &[]), 0)
    }

    /// Predicts the tokens that zlib chooses in a run of plain bytes from `start` on: see
    /// [`Tokenizer::new`].
    pub fn from(plain: &'a [u8], start: usize, is_front: bool, zlib: Zlib) -> Option<Self> {
        let tokenizer = Tokenizer::new(plain, start, is_front, zlib)?;
        Some(Self::new(Predictions::Choices(tokenizer), start))
    }

    /// Predicts the tokens of zlib's stream for `plain`; `None` for a level below 4 or above 9.
    fn in_blocks(plain: &'a [u8], zlib: Zlib) -> Option<Self> {
        let blocks = Blocks {
            plain,
            tokenizer: Tokenizer::new(plain, 0, true, zlib)?,
            at: 0,
            tokens: Vec::new(),
            taken: 0,
        };
        Some(Self::new(Predictions::Blocks(Box::new(blocks)), 0))
    }

    fn new(source: Predictions<'a>, start: usize) -> Self {
        let mut predicted = Self {
            source,
            next: None,
            end: start,
            sync_point: start,
        };
        predicted.advance();
        predicted
    }

    fn advance(&mut self) {
        if let Some((start, choice)) = self.next
            && choice.token.as_match().is_some()
        {
            self.sync_point = start.saturating_add(choice.token.len());
        }
        self.next = self.source.next_choice().map(|choice| {
            let start = self.end;
            self.end = start.saturating_add(choice.token.len());
            (start, choice)
        });
    }

    fn skip_to(&mut self, at: usize) {
        while self.next.is_some_and(|(start, _)| start < at) {
            self.advance();
        }
    }

    /// The expected token at `at` in `plain`: zlib's token if one begins there, else a literal.
    /// `at` must not decrease from call to call.
    pub fn token_at(&mut self, plain: &[u8], at: usize) -> Option<Token> {
        self.choice_at(plain, at).map(|choice| choice.token)
    }

    /// The same with the flag of [`Choice`].
    pub fn choice_at(&mut self, plain: &[u8], at: usize) -> Option<Choice> {
        self.skip_to(at);
        match self.next {
            Some((start, choice)) if start == at => Some(choice),
            _ => plain.get(at).map(|&byte| Choice {
                token: Token::literal(byte),
                is_trailing: false,
            }),
        }
    }

    /// The last position up to `at` where zlib had no pending match, because a match ended there or
    /// the run began there. `None` if a match reaches over `at`.
    pub fn sync_point_before(&mut self, at: usize) -> Option<usize> {
        self.skip_to(at);
        (self.sync_point <= at).then_some(self.sync_point)
    }
}
