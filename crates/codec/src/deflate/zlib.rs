//! The tokens that zlib chooses at its levels 4 to 9, from any place where it has nothing pending: what a part of a stream is made
//! of, without making all that is before it.
//!
//! # Source
//! The behaviour is that of zlib 1.2 and 1.3, `deflate.c`: `deflate_slow`, `longest_match`, `configuration_table`, with a window of
//! 32 KiB and `memLevel` 8. What zlib remembers of more than its window has no effect on what it chooses, so that the bytes
//! before a place tell all that matters there.
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)] // positions lie in the plain bytes, hashes in their tables

use super::tokens::{MATCH_LEN_MAX, MATCH_LEN_MIN, Token};
use weald_format::recipes::{Part, Zlib};

/// Tokens with which zlib ends a block.
pub const BLOCK_TOKENS: usize = 16_383;
/// The farthest that a match reaches back: the window without the bytes that zlib wants to see ahead.
const DISTANCE_MAX: usize = WINDOW_LEN - (MATCH_LEN_MAX + MATCH_LEN_MIN + 1) as usize;
const WINDOW_LEN: usize = Part::WINDOW_LEN as usize;
/// Matches of three bytes are not worth a longer distance.
const SHORT_DISTANCE_MAX: usize = 4096;
/// Up to this length matches are dropped where the data is filtered.
const FILTERED_LEN_MAX: usize = 5;
const LEN_MIN: usize = MATCH_LEN_MIN as usize;
const LEN_MAX: usize = MATCH_LEN_MAX as usize;
const HASH_COUNT: usize = 1 << 15;

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

/// Chooses tokens. Memory: 192 KiB.
pub struct Tokenizer<'a> {
    plain: &'a [u8],
    config: Config,
    is_filtered: bool,
    /// Place after the last with a hash, by hash; 0 for none.
    heads: Box<[u32; HASH_COUNT]>,
    /// Distance to the place before with the same hash, by the low bits of a place; 0 for none or too far.
    steps: Box<[u16; WINDOW_LEN]>,
    at: usize,
    /// What was found at the place before `at`, where the token for that is still open.
    pending: Option<Match>,
}

impl<'a> Tokenizer<'a> {
    /// A tokenizer at `start`, where nothing is pending, in a run `plain` of a stream's plain bytes. `is_front` says whether the run
    /// begins where the stream does; else it has to begin a window before `start`. It goes on to the end of the run as if that
    /// were the end of the stream: less than [`Part::AHEAD_LEN`] before it, tokens may be others. `None` for a level below 4, where zlib keeps no
    /// account of all places, or over 9.
    pub fn new(plain: &'a [u8], start: usize, is_front: bool, zlib: Zlib) -> Option<Self> {
        let heads: Box<[u32]> = vec![0; HASH_COUNT].into();
        let steps: Box<[u16]> = vec![0; WINDOW_LEN].into();
        let mut tokenizer = Self {
            plain,
            config: Config::of(zlib.level)?,
            is_filtered: zlib.is_filtered,
            heads: heads.try_into().ok()?,
            steps: steps.try_into().ok()?,
            at: start,
            pending: None,
        };
        // zlib takes a reference to the stream's first byte for none.
        let first = start.saturating_sub(WINDOW_LEN);
        let first = first.max(usize::from(is_front));
        for at in first..start {
            tokenizer.insert(at);
        }
        Some(tokenizer)
    }

    /// Enters the place `at`; the distance to the last one with the same hash, 0 for none.
    #[inline(always)]
    fn insert(&mut self, at: usize) -> usize {
        let Some(&[a, b, c]) = self.plain.get(at..).and_then(|b| b.first_chunk()) else {
            return 0;
        };
        let hash = usize::from(a) << 10 ^ usize::from(b) << 5 ^ usize::from(c);
        let head = &mut self.heads[hash & (HASH_COUNT - 1)];
        let last = std::mem::replace(head, at as u32 + 1) as usize;
        let step = at + 1 - last;
        let step = match last == 0 || step > DISTANCE_MAX {
            true => 0,
            false => step,
        };
        self.steps[at & (WINDOW_LEN - 1)] = step as u16;
        step
    }

    /// The match that zlib takes at `at`, where the place before has `previous`; the first place to look at is `step` back.
    fn longest_match(&self, step: usize, previous: Match) -> Match {
        let (plain, at) = (self.plain, self.at);
        let len_max = (plain.len() - at).min(LEN_MAX);
        let nice = self.config.nice.min(len_max);
        let mut left = match previous.len >= self.config.good {
            true => self.config.chain >> 2,
            false => self.config.chain,
        };
        let mut best = previous;
        let mut distance = step;
        // Whatever is longer than the best so far has these three bytes, too.
        let mut end = three(plain, at + best.len - 2);
        loop {
            let start = at - distance;
            if three(plain, start + best.len - 2) == end {
                let len = common_len(plain, start, at, len_max);
                if len > best.len {
                    best = Match { len, start };
                    if len >= nice {
                        return best;
                    }
                    end = three(plain, at + best.len - 2);
                }
            }
            let step = usize::from(self.steps[start & (WINDOW_LEN - 1)]);
            distance += step;
            left -= 1;
            if step == 0 || left == 0 || distance >= DISTANCE_MAX {
                return best;
            }
        }
    }

    /// What is found at `at` if that is better than `previous`, which is still open.
    fn found(&self, step: usize, previous: Match) -> Match {
        if step == 0 || previous.len >= self.config.lazy {
            return NO_MATCH;
        }
        let found = self.longest_match(step, previous);
        let is_short = found.len <= FILTERED_LEN_MAX
            && (self.is_filtered
                || (found.len == LEN_MIN && self.at - found.start > SHORT_DISTANCE_MAX));
        match is_short {
            true => NO_MATCH,
            false => found,
        }
    }
}

/// What the tokenizer chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// The token.
    pub token: Token,
    /// Whether it is a literal at the very end that zlib puts into the open block, however full that is.
    pub is_late: bool,
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
            let step = match self.at {
                0 => 0,
                at => self.insert(at),
            };
            let found = self.found(step, self.pending.unwrap_or(NO_MATCH));
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
            for at in self.at + 1..end {
                self.insert(at);
            }
            (self.at, self.pending) = (end, None);
            let token = Token::matching(previous.len as u32, (start - previous.start) as u32);
            return Some(Chosen {
                token,
                is_late: false,
            });
        }
    }
}

/// Three bytes at `at`, zeros behind the end.
#[inline(always)]
fn three(plain: &[u8], at: usize) -> u32 {
    match plain.get(at..).and_then(|b| b.first_chunk()) {
        Some(bytes) => u32::from_le_bytes(*bytes) & 0xff_ffff,
        None => {
            let byte = |i: usize| plain.get(at + i).map_or(0, |&b| u32::from(b));
            byte(0) | byte(1) << 8 | byte(2) << 16
        }
    }
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
