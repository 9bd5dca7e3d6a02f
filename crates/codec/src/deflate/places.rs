//! Where in a window the same three bytes stand: for each place those before it that have its hash,
//! nearest last, in one run of memory. A search that goes through them waits for none of them, as
//! it would for links of a chain.
//!
//! Plain bytes are taken in stretches of a window's length. The places of one are sorted by hash
//! when the first of them is asked for, and those of the stretch before are kept: no match reaches
//! farther.
// places lie in their stretch, hashes in their tables
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::tokens::{MATCH_LEN_MAX, MATCH_LEN_MIN};
use std::ops::Range;
use weald_format::recipes::Part;

/// Places of a stretch, as many as a window has.
pub const STRETCH_LEN: usize = Part::WINDOW_LEN as usize;
/// Room for as many bytes as 16 bits can count: whatever a place is, it is known to lie inside.
/// Half of it is never touched.
pub const ROOM_LEN: usize = 1 << 16;
/// Bytes behind a stretch that are looked at from its last place.
const AHEAD_LEN: usize = MATCH_LEN_MAX as usize + 4;
/// Places that are handed out at once.
pub const GROUP_COUNT: usize = 8;
const HASH_COUNT: usize = 1 << 15;
const HASH_LEN: usize = MATCH_LEN_MIN as usize;

/// zlib's hash of three bytes, with `memLevel` 8.
#[inline(always)]
fn hash_of(a: u8, b: u8, c: u8) -> usize {
    (usize::from(a) << 10 ^ usize::from(b) << 5 ^ usize::from(c)) & (HASH_COUNT - 1)
}

/// The places of one stretch.
pub struct Stretch {
    /// The first place.
    pub start: usize,
    /// The bytes from there on, those ahead included; zeros where there are none.
    bytes: Box<[u8; ROOM_LEN + AHEAD_LEN]>,
    /// Places, counted from `start`: by hash, those of one hash in order.
    sorted: Box<[u16; ROOM_LEN + GROUP_COUNT]>,
    /// Where those of each hash begin, counted as if `sorted` began behind its first group; they
    /// end where the next begin.
    starts: Box<[u16; HASH_COUNT + 1]>,
    /// Where each place stands in `sorted`.
    ranks: Box<[u16; STRETCH_LEN]>,
}

/// A table of zeros, made where it stays.
fn zeros<T: Copy + Default, const N: usize>() -> Box<[T; N]> {
    let table: Box<[T]> = vec![T::default(); N].into();
    match table.try_into() {
        Ok(table) => table,
        Err(_) => Box::new([T::default(); N]),
    }
}

impl Stretch {
    /// One without places.
    fn empty() -> Self {
        Self {
            start: 0,
            bytes: zeros(),
            sorted: zeros(),
            starts: zeros(),
            ranks: zeros(),
        }
    }

    /// Takes the places of `plain` from `start` on, but for `skipped` ones.
    fn fill(&mut self, plain: &[u8], start: usize, skipped: usize) {
        let bytes = plain.get(start..).unwrap_or_default();
        let len = bytes.len().min(STRETCH_LEN + AHEAD_LEN);
        self.bytes[..len].copy_from_slice(&bytes[..len]);
        self.bytes[len..STRETCH_LEN + AHEAD_LEN].fill(0);
        // A place near the end has no three bytes, and no hash.
        let count = (len + 1).saturating_sub(HASH_LEN).min(STRETCH_LEN);
        self.start = start;
        self.starts.fill(0);
        let skipped = skipped.min(count);
        let hashes = self.bytes[skipped..].windows(HASH_LEN);
        for (rank, bytes) in self.ranks[skipped..count].iter_mut().zip(hashes) {
            let hash = hash_of(bytes[0], bytes[1], bytes[2]);
            *rank = hash as u16;
            self.starts[hash + 1] += 1;
        }
        let mut sum = 0;
        for start in self.starts.iter_mut().skip(1) {
            sum += std::mem::replace(start, sum);
        }
        // What is where those of a hash begin becomes where they end, which is where those of the
        // next begin.
        for (at, rank) in self.ranks[..count].iter_mut().enumerate().skip(skipped) {
            let end = &mut self.starts[usize::from(*rank & (HASH_COUNT - 1) as u16) + 1];
            *rank = *end;
            self.sorted[usize::from(*end) + GROUP_COUNT] = at as u16;
            *end += 1;
        }
    }

    /// The bytes so far behind each place, which are there up to [`MATCH_LEN_MAX`].
    #[inline(always)]
    pub fn bytes_behind(&self, offset: usize) -> Option<&[u8; ROOM_LEN + 3]> {
        self.bytes.get(offset..)?.first_chunk()
    }

    /// The places that stand before `end`, which may be of other hashes, or none at all at the
    /// front.
    #[inline(always)]
    pub fn places_before(&self, end: usize) -> &[u16; GROUP_COUNT] {
        let places = self.sorted.get(end..).and_then(|p| p.first_chunk());
        places.unwrap_or(&[0; GROUP_COUNT])
    }

    /// The place that stands before `end`.
    #[inline(always)]
    pub fn place_before(&self, end: usize) -> Option<usize> {
        let index = end + GROUP_COUNT - 1;
        self.sorted.get(index).map(|&p| usize::from(p))
    }
}

/// Where the places of a stretch stand that have one hash, the nearest last.
pub struct Before<'a> {
    /// The stretch.
    pub stretch: &'a Stretch,
    /// Where they stand.
    pub run: Range<usize>,
}

impl Before<'_> {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.run.len()
    }

    /// The last of them.
    pub fn nearest(&self) -> Option<usize> {
        let place = self.stretch.place_before(self.run.end)?;
        (!self.run.is_empty()).then_some(self.stretch.start + place)
    }
}

/// The places of the last two stretches.
pub struct Places<'a> {
    plain: &'a [u8],
    /// That of the place which was asked for last.
    own: Stretch,
    /// The one before, once there is one.
    older: Option<Stretch>,
}

impl<'a> Places<'a> {
    /// Those of `plain` from `first` on. Memory: 458 KiB, and 192 KiB that hold nothing; half of
    /// that for up to a window of plain bytes.
    pub fn new(plain: &'a [u8], first: usize) -> Self {
        let mut places = Self {
            plain,
            own: Stretch::empty(),
            older: None,
        };
        // Stretches begin at whole windows from the front of the plain bytes.
        let start = first / STRETCH_LEN * STRETCH_LEN;
        places.own.fill(plain, start, first - start);
        places
    }

    /// The places before `at` that have its hash, in its stretch and in the one before, if there is
    /// one; `at` must not go back.
    #[inline(always)]
    pub fn before(&mut self, at: usize) -> (Before<'_>, Option<Before<'_>>) {
        while at - self.own.start >= STRETCH_LEN {
            let next = self.older.take().unwrap_or_else(Stretch::empty);
            let own = std::mem::replace(&mut self.own, next);
            self.own.fill(self.plain, own.start + STRETCH_LEN, 0);
            self.older = Some(own);
        }
        let own = &self.own;
        let offset = at - own.start;
        let none = Before {
            stretch: own,
            run: 0..0,
        };
        if at + HASH_LEN > self.plain.len() {
            return (none, None);
        }
        let hash = hash_of(
            own.bytes[offset],
            own.bytes[offset + 1],
            own.bytes[offset + 2],
        );
        // A place before the first has rank 0, and nothing before it.
        let run = usize::from(own.starts[hash])..usize::from(own.ranks[offset]);
        let older = self.older.as_ref().map(|stretch| Before {
            stretch,
            run: usize::from(stretch.starts[hash])..usize::from(stretch.starts[hash + 1]),
        });
        (Before { stretch: own, run }, older)
    }
}
