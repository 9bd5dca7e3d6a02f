//! What zlib would have written: the tokens that most streams are made of.

use super::parse::{Event, Parser};
use super::tokens::Token;
use flate2::{Compress, Compression, FlushCompress, Status};
use weald_format::recipes::Zlib;
use weald_format::{Error, ErrorKind, Result};

/// The stream that zlib's `deflate` makes of `plain` as `zlib` says, with a window of 32 KiB and `memLevel` 8.
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

/// The tokens of a stream that zlib made, by where they begin in the plain bytes.
pub struct Predicted<'a> {
    parser: Parser<'a>,
    stored: &'a [u8],
    next: Option<(usize, Token)>,
    /// Where the token after the next begins.
    end: usize,
}

impl<'a> Predicted<'a> {
    /// The tokens of `stream`.
    pub fn new(stream: &'a [u8]) -> Self {
        let mut predicted = Self {
            parser: Parser::new(stream),
            stored: &[],
            next: None,
            end: 0,
        };
        predicted.advance();
        predicted
    }

    fn advance(&mut self) {
        self.next = self.pull().map(|token| {
            let start = self.end;
            self.end = start.saturating_add(token.len());
            (start, token)
        });
    }

    fn pull(&mut self) -> Option<Token> {
        loop {
            if let Some((&byte, rest)) = self.stored.split_first() {
                self.stored = rest;
                return Some(Token::literal(byte));
            }
            match self.parser.next()? {
                Event::Token(token) => return Some(token),
                Event::Stored(bytes) => self.stored = bytes,
                Event::Block { .. } => {}
                Event::End => return None,
            }
        }
    }

    /// The token to be expected at `at` in `plain`, which must not go back: zlib's where it has one that begins there, a
    /// literal where it has not.
    pub fn token_at(&mut self, plain: &[u8], at: usize) -> Option<Token> {
        while self.next.is_some_and(|(start, _)| start < at) {
            self.advance();
        }
        match self.next {
            Some((start, token)) if start == at => Some(token),
            _ => plain.get(at).copied().map(Token::literal),
        }
    }
}
