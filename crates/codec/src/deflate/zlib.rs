//! The tokens that zlib chooses at its levels 4 to 9, from any place where it has nothing pending:
//! what a part of a stream is made of, without making all that is before it.
//!
//! # Source
//! The behaviour is that of zlib 1.2 and 1.3, `deflate.c`: `deflate_slow`, `longest_match`,
//! `configuration_table`, with a window of 32 KiB and `memLevel` 8. What zlib remembers of more
//! than its window has no effect on what it chooses, so that the bytes before a place tell all that
//! matters there.
// positions lie in the plain bytes, hashes in their tables
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::places::{Before, GROUP_COUNT, Places, ROOM_LEN};
use super::tokens::{MATCH_LEN_MAX, MATCH_LEN_MIN, Token};
use weald_format::recipes::{Part, Zlib};

/// Tokens with which zlib ends a block.
pub const BLOCK_TOKENS: usize = 16_383;
/// The farthest that a match reaches back: the window without the bytes that zlib wants to see
/// ahead.
const DISTANCE_MAX: usize = WINDOW_LEN - (MATCH_LEN_MAX + MATCH_LEN_MIN + 1) as usize;
const WINDOW_LEN: usize = Part::WINDOW_LEN as usize;
/// Matches of three bytes are not worth a longer distance.
const SHORT_DISTANCE_MAX: usize = 4096;
/// Up to this length matches are dropped where the data is filtered.
const FILTERED_LEN_MAX: usize = 5;
const LEN_MIN: usize = MATCH_LEN_MIN as usize;
const LEN_MAX: usize = MATCH_LEN_MAX as usize;

/// What a level means.
struct Config {
    /// A match this long makes zlib look at a quarter of the places for a better one.
    good: usize,
    /// From this length on it looks for none.
    lazy: usize,
    /// It looks no further once it has one this long.
    nice: usize,
    /// Places that it looks at.
    chain: usize,
}

impl Config {
    fn of(level: u8) -> Option<Self> {
        let (good, lazy, nice, chain) = match level {
            4 => (4, 4, 16, 16),
            5 => (8, 16, 32, 32),
            6 => (8, 16, 128, 128),
            7 => (8, 32, 128, 256),
            8 => (32, 128, 258, 1024),
            9 => (32, 258, 258, 4096),
            _ => return None,
        };
        Some(Self {
            good,
            lazy,
            nice,
            chain,
        })
    }
}

/// A match that was found.
#[derive(Clone, Copy)]
struct Match {
    len: usize,
    start: usize,
}

const NO_MATCH: Match = Match {
    len: LEN_MIN - 1,
    start: 0,
};

impl Match {
    /// The match of at most `len_max` bytes at `at` that begins at `start`, if it is longer.
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

/// Chooses tokens. Memory: that of [`Places`].
pub struct Tokenizer<'a> {
    plain: &'a [u8],
    config: Config,
    is_filtered: bool,
    places: Places<'a>,
    at: usize,
    /// What was found at the place before `at`, where the token for that is still open.
    pending: Option<Match>,
}

impl<'a> Tokenizer<'a> {
    /// A tokenizer at `start`, where nothing is pending, in a run `plain` of a stream's plain
    /// bytes. `is_front` says whether the run begins where the stream does; else it has to begin a
    /// window before `start`. It goes on to the end of the run as if that were the end of the
    /// stream: less than [`Part::LOOKAHEAD_LEN`] before it, tokens may be others. `None` for a level
    /// below 4, where zlib keeps no account of all places, or over 9.
    pub fn new(plain: &'a [u8], start: usize, is_front: bool, zlib: Zlib) -> Option<Self> {
        // zlib takes a reference to the stream's first byte for none.
        let first = start.saturating_sub(WINDOW_LEN);
        let first = first.max(usize::from(is_front));
        Some(Self {
            plain,
            config: Config::of(zlib.level)?,
            is_filtered: zlib.is_filtered,
            places: Places::new(plain, first),
            at: start,
            pending: None,
        })
    }

    /// What is found at the place that the tokenizer is at if that is better than `previous`, which
    /// is still open.
    fn found(&mut self, previous: Match) -> Match {
        if previous.len >= self.config.lazy {
            return NO_MATCH;
        }
        let search = Search {
            plain: self.plain,
            at: self.at,
            len_max: (self.plain.len() - self.at).min(LEN_MAX),
            nice: self.config.nice,
        };
        let left = match previous.len >= self.config.good {
            true => self.config.chain >> 2,
            false => self.config.chain,
        };
        let found = search.longest(self.places.before(self.at), left, previous);
        let is_short = found.len <= FILTERED_LEN_MAX
            && (self.is_filtered
                || (found.len == LEN_MIN && self.at - found.start > SHORT_DISTANCE_MAX));
        match is_short {
            true => NO_MATCH,
            false => found,
        }
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
    /// The longest match of the first `left` places, nearest first, if it is longer than
    /// `previous`.
    #[inline(always)]
    fn longest(
        &self,
        (own, older): (Before<'_>, Option<Before<'_>>),
        left: usize,
        previous: Match,
    ) -> Match {
        let mut best = previous;
        let nearest = own.nearest();
        let nearest = nearest.or_else(|| older.as_ref().and_then(Before::nearest));
        let Some(nearest) = nearest else {
            return best;
        };
        // zlib allows the nearest place to be one byte farther than the others.
        let distance = self.at - nearest;
        if distance > DISTANCE_MAX || best.len >= self.len_max {
            return best;
        }
        let distance_max = DISTANCE_MAX - usize::from(distance < DISTANCE_MAX);
        let own_count = own.count().min(left);
        if self.scan(own, own_count, distance_max, &mut best)
            && let Some(older) = older
        {
            self.scan(older, left - own_count, distance_max, &mut best);
        }
        best
    }

    /// Goes through the last `count` of `before`, as long as they are no farther than
    /// `distance_max`; whether to go on with those before them.
    #[inline(always)]
    fn scan(
        &self,
        before: Before<'_>,
        count: usize,
        distance_max: usize,
        best: &mut Match,
    ) -> bool {
        let stretch = before.stretch;
        let first = self.at.saturating_sub(stretch.start + distance_max);
        let (mut end, start) = (before.run.end, before.run.end - count.min(before.count()));
        // Until there is something to be better than, which is mostly the first.
        while best.len < LEN_MIN {
            let Some(place) = stretch.place_before(end).filter(|_| end > start) else {
                return true;
            };
            if place < first {
                return false;
            }
            *best = best.or_longer(self.plain, self.at, stretch.start + place, self.len_max);
            end -= 1;
        }
        loop {
            if best.len >= self.nice.min(self.len_max) {
                return false;
            }
            // Whatever is longer than the best so far has these four bytes, too.
            let skipped = best.len - LEN_MIN;
            let wanted = four_at(self.plain, self.at + skipped);
            let Some(bytes) = stretch.bytes_behind(skipped) else {
                return false;
            };
            let found = loop {
                if end <= start {
                    return true;
                }
                // Places of another hash may be among them, and have other bytes.
                let group = stretch.places_before(end);
                if let Some(i) = group.iter().rposition(|&p| four(bytes, p) == wanted) {
                    let Some(no) = (end + i).checked_sub(GROUP_COUNT).filter(|&no| no >= start)
                    else {
                        return true;
                    };
                    end = no;
                    break usize::from(group[i]);
                }
                if usize::from(group[GROUP_COUNT - 1]) < first {
                    return false;
                }
                end -= GROUP_COUNT.min(end);
            };
            if found < first {
                return false;
            }
            *best = best.or_longer(self.plain, self.at, stretch.start + found, self.len_max);
        }
    }
}

/// What the tokenizer chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// The token.
    pub token: Token,
    /// Whether it is a literal at the very end that zlib puts into the open block, however full
    /// that is.
    pub is_late: bool,
}

impl Chosen {
    /// Whether zlib ends a block with it, the last of so many tokens.
    pub fn ends_block(self, token_count: usize) -> bool {
        token_count >= BLOCK_TOKENS && !self.is_late
    }
}

impl Iterator for Tokenizer<'_> {
    type Item = Chosen;

    fn next(&mut self) -> Option<Chosen> {
        let plain = self.plain;
        let literal = |at: usize, is_late| {
            let token = Token::literal(plain[at]);
            Some(Chosen { token, is_late })
        };
        loop {
            if self.at >= plain.len() {
                self.pending.take()?;
                return literal(self.at - 1, true);
            }
            let found = self.found(self.pending.unwrap_or(NO_MATCH));
            let Some(previous) = self.pending else {
                self.pending = Some(found);
                self.at += 1;
                continue;
            };
            if previous.len < LEN_MIN || found.len > previous.len {
                self.pending = Some(found);
                self.at += 1;
                return literal(self.at - 2, false);
            }
            let start = self.at - 1;
            let end = start + previous.len;
            (self.at, self.pending) = (end, None);
            let token = Token::matching(previous.len as u32, (start - previous.start) as u32);
            return Some(Chosen {
                token,
                is_late: false,
            });
        }
    }
}

/// The four bytes that `bytes` have for a place.
#[inline(always)]
fn four(bytes: &[u8; ROOM_LEN + 3], place: u16) -> u32 {
    let at = usize::from(place);
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The four bytes of `plain` at `at`, zeros behind its end.
#[inline(always)]
fn four_at(plain: &[u8], at: usize) -> u32 {
    if let Some(bytes) = plain.get(at..).and_then(|b| b.first_chunk()) {
        return u32::from_le_bytes(*bytes);
    }
    let rest = plain.get(at..).unwrap_or_default();
    let each = rest.iter().enumerate();
    each.fold(0, |four, (i, &byte)| four | u32::from(byte) << (8 * i))
}

/// Bytes that are the same from `a` and from `b` on, at most `max`, which lie in `plain`.
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
