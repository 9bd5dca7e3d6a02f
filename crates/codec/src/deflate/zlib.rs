//! The tokens that zlib chooses at its levels 4 to 9, from any position where it has no pending
//! match. So a part of a stream can be made without all bytes before it.
//!
//! # Source
//! The behaviour is that of zlib 1.2 and 1.3, `deflate.c`: `deflate_slow`, `longest_match`,
//! `configuration_table`, with a window of 32 KiB and `memLevel` 8. State of zlib from before its
//! window does not affect its choices, so the bytes of the window determine them.
// positions lie in the plain bytes, hashes in their tables
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::match_index::{Candidates, GROUP_POSITION_COUNT, MatchIndex, POSITION_TABLE_LEN};
use super::tokens::{MATCH_LEN_MAX, MATCH_LEN_MIN, Token};
use weald_format::recipes::{DeflatePart, Zlib};

/// Number of tokens after which zlib ends a block.
pub const BLOCK_TOKENS: usize = 16_383;
/// Maximum distance of zlib's matches: the window without the bytes that zlib needs ahead.
const ZLIB_DISTANCE_MAX: usize = WINDOW_LEN - (MATCH_LEN_MAX + MATCH_LEN_MIN + 1) as usize;
const WINDOW_LEN: usize = DeflatePart::WINDOW_LEN as usize;
/// Maximum distance of a match of three bytes; beyond it, literals are shorter.
const SHORT_DISTANCE_MAX: usize = 4096;
/// Maximum length of matches that zlib drops with the strategy for filtered data.
const FILTERED_LEN_MAX: usize = 5;
const SHORTEST_MATCH: usize = MATCH_LEN_MIN as usize;
const LONGEST_MATCH: usize = MATCH_LEN_MAX as usize;

/// Parameters of a level, as in zlib's `configuration_table`.
struct Config {
    /// `good_length`: with a match this long, zlib searches only a quarter of the chain for a
    /// better one.
    good_length: usize,
    /// `max_lazy`: with a match this long, zlib does not search for a better one.
    max_lazy: usize,
    /// `nice_length`: the search stops at a match this long.
    nice_length: usize,
    /// `max_chain`: number of positions that a search tries.
    max_chain: usize,
}

impl Config {
    fn of(level: u8) -> Option<Self> {
        let (good_length, max_lazy, nice_length, max_chain) = match level {
            4 => (4, 4, 16, 16),
            5 => (8, 16, 32, 32),
            6 => (8, 16, 128, 128),
            7 => (8, 32, 128, 256),
            8 => (32, 128, 258, 1024),
            9 => (32, 258, 258, 4096),
            _ => return None,
        };
        Some(Self {
            good_length,
            max_lazy,
            nice_length,
            max_chain,
        })
    }
}

/// A match that a search found.
#[derive(Clone, Copy)]
struct Match {
    len: usize,
    start: usize,
}

const NO_MATCH: Match = Match {
    len: SHORTEST_MATCH - 1,
    start: 0,
};

impl Match {
    /// The match at `at` with source `start`, of at most `len_max` bytes, if it is longer than this
    /// one.
    #[inline(always)]
    fn or_longer(self, plain: &[u8], at: usize, start: usize, len_max: usize) -> Self {
        let len = common_len(plain, start, at, len_max);
        if len > self.len {
            Self { len, start }
        } else {
            self
        }
    }
}

/// Chooses tokens as zlib does. Memory: that of [`MatchIndex`].
pub struct Tokenizer<'a> {
    plain: &'a [u8],
    config: Config,
    is_filtered: bool,
    index: MatchIndex<'a>,
    at: usize,
    /// Match at the position before `at`, whose token is not decided yet.
    pending: Option<Match>,
}

impl<'a> Tokenizer<'a> {
    /// Makes a tokenizer at `start`, where nothing is pending, in the run `plain` of a stream's
    /// plain bytes. `is_front` says whether the run begins where the stream does; otherwise it must
    /// begin a window before `start`. The tokenizer treats the end of the run as the end of the
    /// stream, so the tokens in the last [`DeflatePart::LOOKAHEAD_LEN`] bytes may differ.
    /// `None` for a level below 4, where zlib does not index all positions, or above 9.
    pub fn new(plain: &'a [u8], start: usize, is_front: bool, zlib: Zlib) -> Option<Self> {
        // zlib never matches the first byte of the stream: it takes position 0 for "none".
        let first = start.saturating_sub(WINDOW_LEN);
        let first = first.max(usize::from(is_front));
        Some(Self {
            plain,
            config: Config::of(zlib.level)?,
            is_filtered: zlib.is_filtered,
            index: MatchIndex::new(plain, first),
            at: start,
            pending: None,
        })
    }

    /// Searches at the current position for a match that is better than `previous`, which is
    /// pending.
    fn find_match(&mut self, previous: Match) -> Match {
        if previous.len >= self.config.max_lazy {
            return NO_MATCH;
        }
        let search = Search {
            plain: self.plain,
            at: self.at,
            len_max: (self.plain.len() - self.at).min(LONGEST_MATCH),
            nice: self.config.nice_length,
        };
        let chain_len = if previous.len >= self.config.good_length {
            self.config.max_chain >> 2
        } else {
            self.config.max_chain
        };
        let found = search.longest(self.index.candidates_at(self.at), chain_len, previous);
        let is_short = found.len <= FILTERED_LEN_MAX
            && (self.is_filtered
                || (found.len == SHORTEST_MATCH && self.at - found.start > SHORT_DISTANCE_MAX));
        if is_short { NO_MATCH } else { found }
    }
}

/// A search for the match that zlib takes.
struct Search<'a> {
    plain: &'a [u8],
    at: usize,
    len_max: usize,
    nice: usize,
}

impl Search<'_> {
    /// The longest match among the nearest `chain_len` candidates, if it is longer than `previous`.
    #[inline(always)]
    fn longest(
        &self,
        (own, older): (Candidates<'_>, Option<Candidates<'_>>),
        chain_len: usize,
        previous: Match,
    ) -> Match {
        let mut best = previous;
        let nearest = own.nearest();
        let nearest = nearest.or_else(|| older.as_ref().and_then(Candidates::nearest));
        let Some(nearest) = nearest else {
            return best;
        };
        // zlib allows the nearest candidate to be one byte farther than the others.
        let distance = self.at - nearest;
        if distance > ZLIB_DISTANCE_MAX || best.len >= self.len_max {
            return best;
        }
        let distance_max = ZLIB_DISTANCE_MAX - usize::from(distance < ZLIB_DISTANCE_MAX);
        let own_count = own.count().min(chain_len);
        if self.scan(own, own_count, distance_max, &mut best)
            && let Some(older) = older
        {
            self.scan(older, chain_len - own_count, distance_max, &mut best);
        }
        best
    }

    /// Tries the last `count` candidates as long as they are no farther than `distance_max`.
    /// Returns whether the search continues with the candidates before them.
    #[inline(always)]
    fn scan(
        &self,
        candidates: Candidates<'_>,
        count: usize,
        distance_max: usize,
        best: &mut Match,
    ) -> bool {
        let piece = candidates.piece;
        let first = self.at.saturating_sub(piece.start + distance_max);
        let (mut end, start) = (
            candidates.run.end,
            candidates.run.end - count.min(candidates.count()),
        );
        // Until there is a match to beat. Mostly the first candidate is one.
        while best.len < SHORTEST_MATCH {
            let Some(position) = piece.position_before(end).filter(|_| end > start) else {
                return true;
            };
            if position < first {
                return false;
            }
            *best = best.or_longer(self.plain, self.at, piece.start + position, self.len_max);
            end -= 1;
        }
        loop {
            if best.len >= self.nice.min(self.len_max) {
                return false;
            }
            // Every match that is longer than the best so far has these four bytes too.
            let skipped = best.len - SHORTEST_MATCH;
            let wanted = four_at(self.plain, self.at + skipped);
            let Some(bytes) = piece.bytes_from(skipped) else {
                return false;
            };
            let found = loop {
                if end <= start {
                    return true;
                }
                // The group may contain positions of another hash; their bytes differ.
                let group = piece.group_before(end);
                if let Some(i) = group.iter().rposition(|&p| four(bytes, p) == wanted) {
                    let Some(no) = (end + i)
                        .checked_sub(GROUP_POSITION_COUNT)
                        .filter(|&no| no >= start)
                    else {
                        return true;
                    };
                    end = no;
                    break usize::from(group[i]);
                }
                if usize::from(group[GROUP_POSITION_COUNT - 1]) < first {
                    return false;
                }
                end -= GROUP_POSITION_COUNT.min(end);
            };
            if found < first {
                return false;
            }
            *best = best.or_longer(self.plain, self.at, piece.start + found, self.len_max);
        }
    }
}

/// A token that zlib chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The token.
    pub token: Token,
    /// Whether the token is a literal at the very end. zlib puts it into the open block even if
    /// that is full.
    pub is_trailing: bool,
}

impl Choice {
    /// Whether zlib ends a block with this token, the last of `token_count` tokens.
    pub fn ends_block(self, token_count: usize) -> bool {
        token_count >= BLOCK_TOKENS && !self.is_trailing
    }
}

impl Iterator for Tokenizer<'_> {
    type Item = Choice;

    fn next(&mut self) -> Option<Choice> {
        let plain = self.plain;
        let literal = |at: usize, is_trailing| {
            let token = Token::literal(plain[at]);
            Some(Choice { token, is_trailing })
        };
        loop {
            if self.at >= plain.len() {
                self.pending.take()?;
                return literal(self.at - 1, true);
            }
            let found = self.find_match(self.pending.unwrap_or(NO_MATCH));
            let Some(previous) = self.pending else {
                self.pending = Some(found);
                self.at += 1;
                continue;
            };
            if previous.len < SHORTEST_MATCH || found.len > previous.len {
                self.pending = Some(found);
                self.at += 1;
                return literal(self.at - 2, false);
            }
            let start = self.at - 1;
            let end = start + previous.len;
            (self.at, self.pending) = (end, None);
            let token = Token::matching(previous.len as u32, (start - previous.start) as u32);
            return Some(Choice {
                token,
                is_trailing: false,
            });
        }
    }
}

/// The four bytes of `bytes` at a position.
#[inline(always)]
fn four(bytes: &[u8; POSITION_TABLE_LEN + 3], position: u16) -> u32 {
    let at = usize::from(position);
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The four bytes of `plain` at `at`; zeros past its end.
#[inline(always)]
fn four_at(plain: &[u8], at: usize) -> u32 {
    if let Some(bytes) = plain.get(at..).and_then(|b| b.first_chunk()) {
        return u32::from_le_bytes(*bytes);
    }
    let rest = plain.get(at..).unwrap_or_default();
    let each = rest.iter().enumerate();
    each.fold(0, |four, (i, &byte)| four | u32::from(byte) << (8 * i))
}

/// Number of equal bytes from `a` and from `b` on, at most `max`. Both ranges lie in `plain`.
#[inline(always)]
fn common_len(plain: &[u8], a: usize, b: usize, max: usize) -> usize {
    let (a, b) = (&plain[a..a + max], &plain[b..b + max]);
    let (eights, rest) = a.as_chunks::<8>();
    let (others, other_rest) = b.as_chunks::<8>();
    for (i, (x, y)) in eights.iter().zip(others).enumerate() {
        let differ = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if differ != 0 {
            return i * 8 + (differ.trailing_zeros() / 8) as usize;
        }
    }
    let same = rest.iter().zip(other_rest).take_while(|(x, y)| x == y);
    eights.len() * 8 + same.count()
}
