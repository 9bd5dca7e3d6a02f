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

/// How far it is from a place to the last one before it with the same hash, from there to the one before, and so on: four times 16
/// bits, the first lowest; [`FAR`] where there is none, or none that matters. Several, so that a search need not wait for each before it
/// can load the next.
#[derive(Clone, Copy)]
struct Steps(u64);

/// Farther than any match.
const FAR: u16 = u16::MAX;
const NO_STEPS: Steps = Steps(u64::MAX);

impl Steps {
    fn is_none(self) -> bool {
        self.0 as u16 == FAR
    }

    /// Those of a place `step` behind the one that has these.
    #[inline(always)]
    fn behind(self, step: usize) -> Self {
        Self(self.0 << 16 | step as u64)
    }

    /// How far the places are that they lead to, from `back` on.
    #[inline(always)]
    fn distances(self, back: usize) -> [usize; 4] {
        let step = |no: u32| (self.0 >> (16 * no)) as usize & 0xffff;
        let first = back + step(0);
        let second = first + step(1);
        [
            first,
            second,
            second + step(2),
            second + (step(2) + step(3)),
        ]
    }
}

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
    /// The match of at most `len_max` bytes at `at` that begins `distance` before, if it is longer.
    #[inline(always)]
    fn or_longer(self, plain: &[u8], at: usize, distance: usize, len_max: usize) -> Self {
        let start = at - distance;
        let len = common_len(plain, start, at, len_max);
        if len > self.len {
            Self { len, start }
        } else {
            self
        }
    }
}

/// Chooses tokens. Memory: 384 KiB.
pub struct Tokenizer<'a> {
    plain: &'a [u8],
    config: Config,
    is_filtered: bool,
    /// Place after the last with a hash, by hash; 0 for none.
    heads: Box<[u32; HASH_COUNT]>,
    /// By the low bits of a place.
    steps: Box<[Steps; WINDOW_LEN]>,
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
        let steps: Box<[Steps]> = vec![NO_STEPS; WINDOW_LEN].into();
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

    /// Enters the place `at`; the steps from there.
    #[inline(always)]
    fn insert(&mut self, at: usize) -> Steps {
        let Some(&[a, b, c]) = self.plain.get(at..).and_then(|b| b.first_chunk()) else {
            return NO_STEPS;
        };
        let hash = usize::from(a) << 10 ^ usize::from(b) << 5 ^ usize::from(c);
        let head = &mut self.heads[hash & (HASH_COUNT - 1)];
        let last = std::mem::replace(head, at as u32 + 1) as usize;
        let step = at + 1 - last;
        let steps = match last == 0 || step > DISTANCE_MAX {
            true => NO_STEPS,
            false => self.steps_at(last - 1).behind(step),
        };
        self.steps[at & (WINDOW_LEN - 1)] = steps;
        steps
    }

    /// The steps from a place that is in the window.
    #[inline(always)]
    fn steps_at(&self, at: usize) -> Steps {
        self.steps[at & (WINDOW_LEN - 1)]
    }

    /// The match that zlib takes at `at`, where the place before has `previous` and the `steps` are these.
    fn longest_match(&self, mut steps: Steps, previous: Match) -> Match {
        let (plain, at) = (self.plain, self.at);
        let len_max = (plain.len() - at).min(LEN_MAX);
        let nice = self.config.nice.min(len_max);
        let mut left = match previous.len >= self.config.good {
            true => self.config.chain >> 2,
            false => self.config.chain,
        };
        let mut best = previous;
        // How far back the place is that the steps are from. Only the first step of all may be as long as any.
        let mut back = 0;
        let mut distance_max = DISTANCE_MAX;
        while best.len < len_max {
            let distances = steps.distances(back);
            let next = distances[3];
            if next < DISTANCE_MAX
                && left > distances.len()
                && best.len >= LEN_MIN
                && let Some(window) = window_to(plain, at + best.len - 3)
            {
                // Asked for before anybody looks at what these are.
                steps = self.steps_at(at - next);
                // Whatever is longer than the best so far has these four bytes, too.
                let is_promising =
                    distances.map(|distance| four(window, distance) == four(window, 0));
                (back, left, distance_max) = (next, left - distances.len(), DISTANCE_MAX - 1);
                if is_promising == [false; 4] {
                    continue;
                }
                for distance in distances {
                    best = best.or_longer(plain, at, distance, len_max);
                    if best.len >= nice {
                        return best;
                    }
                }
                continue;
            }
            for distance in distances {
                if distance > distance_max {
                    return best;
                }
                if plain[at - distance + best.len] == plain[at + best.len] {
                    best = best.or_longer(plain, at, distance, len_max);
                    if best.len >= nice {
                        return best;
                    }
                }
                left -= 1;
                if left == 0 {
                    return best;
                }
                distance_max = DISTANCE_MAX - 1;
            }
            back = next;
            steps = self.steps_at(at - next);
        }
        best
    }

    /// What is found at `at` if that is better than `previous`, which is still open.
    fn found(&self, steps: Steps, previous: Match) -> Match {
        if steps.is_none() || previous.len >= self.config.lazy {
            return NO_MATCH;
        }
        let found = self.longest_match(steps, previous);
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
            let steps = match self.at {
                0 => NO_STEPS,
                at => self.insert(at),
            };
            let found = self.found(steps, self.pending.unwrap_or(NO_MATCH));
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

/// A window and the four bytes from `at` on; `None` where either is not there. Of an array of known length the compiler checks no place.
#[inline(always)]
fn window_to(plain: &[u8], at: usize) -> Option<&[u8; WINDOW_LEN + 4]> {
    plain.get(at.checked_sub(WINDOW_LEN)?..)?.first_chunk()
}

/// The four bytes so far before the last four of `window`.
#[inline(always)]
fn four(window: &[u8; WINDOW_LEN + 4], distance: usize) -> u32 {
    let at = WINDOW_LEN - (distance & (WINDOW_LEN - 1));
    u32::from_le_bytes([window[at], window[at + 1], window[at + 2], window[at + 3]])
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
