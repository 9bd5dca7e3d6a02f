//! Index of earlier positions by the hash of three bytes, in place of zlib's hash chains. For each
//! position it has the earlier positions with the same hash, nearest last, in one run of memory. A
//! search reads them in sequence; with linked chains it would wait for each link.
//!
//! The index covers the plain bytes in pieces of a window's length. It sorts the positions of a
//! piece by hash when a search enters the piece. It keeps the piece before, because no match
//! reaches farther.
// positions lie in their piece, hashes in their tables
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::tokens::{MATCH_LEN_MAX, MATCH_LEN_MIN};
use std::ops::Range;
use weald_format::recipes::DeflatePart;

/// Number of positions in a piece: as many as a window has.
pub const INDEXED_LEN: usize = DeflatePart::WINDOW_LEN as usize;
/// Length of tables that 16-bit positions index: every such position lies inside, so that no bounds
/// check is needed. Half of the table is never touched.
pub const POSITION_TABLE_LEN: usize = 1 << 16;
/// Bytes after a piece that a search at its last position compares.
const COMPARED_AHEAD_LEN: usize = MATCH_LEN_MAX as usize + 4;
/// Number of positions that a search reads at once.
pub const GROUP_POSITION_COUNT: usize = 8;
const HASH_COUNT: usize = 1 << 15;
const HASH_LEN: usize = MATCH_LEN_MIN as usize;

/// zlib's hash of three bytes, with `memLevel` 8.
#[inline(always)]
fn hash_of(a: u8, b: u8, c: u8) -> usize {
    (usize::from(a) << 10 ^ usize::from(b) << 5 ^ usize::from(c)) & (HASH_COUNT - 1)
}

/// The positions of one piece.
pub struct IndexedPiece {
    /// First position.
    pub start: usize,
    /// The plain bytes of the piece and the bytes after it; zeros behind their end.
    bytes: Box<[u8; POSITION_TABLE_LEN + COMPARED_AHEAD_LEN]>,
    /// Positions relative to `start`, sorted by hash; those of one hash ascend.
    sorted: Box<[u16; POSITION_TABLE_LEN + GROUP_POSITION_COUNT]>,
    /// Start of each hash's positions in `sorted`, not counting the first group there. They end
    /// where those of the next hash start.
    starts: Box<[u16; HASH_COUNT + 1]>,
    /// Index of each position in `sorted`.
    ranks: Box<[u16; INDEXED_LEN]>,
}

/// Allocates a table of zeros directly on the heap.
fn zeros<T: Copy + Default, const N: usize>() -> Box<[T; N]> {
    let table: Box<[T]> = vec![T::default(); N].into();
    match table.try_into() {
        Ok(table) => table,
        Err(_) => Box::new([T::default(); N]),
    }
}

impl IndexedPiece {
    /// A piece without positions.
    fn empty() -> Self {
        Self {
            start: 0,
            bytes: zeros(),
            sorted: zeros(),
            starts: zeros(),
            ranks: zeros(),
        }
    }

    /// Indexes the positions of `plain` from `start` on, except the first `skipped` ones.
    fn fill(&mut self, plain: &[u8], start: usize, skipped: usize) {
        let bytes = plain.get(start..).unwrap_or_default();
        let len = bytes.len().min(INDEXED_LEN + COMPARED_AHEAD_LEN);
        self.bytes[..len].copy_from_slice(&bytes[..len]);
        self.bytes[len..INDEXED_LEN + COMPARED_AHEAD_LEN].fill(0);
        // A position near the end has no three bytes, so it has no hash.
        let count = (len + 1).saturating_sub(HASH_LEN).min(INDEXED_LEN);
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
        // Each start of a hash's positions moves to their end while they are filled in. That is the
        // start of the next hash.
        let ranks = &mut self.ranks[skipped..count];
        for rank in ranks.iter_mut() {
            let end = &mut self.starts[usize::from(*rank & (HASH_COUNT - 1) as u16) + 1];
            *rank = *end;
            *end += 1;
        }
        // In a loop of its own: the processor would not start the next read of `starts` before it
        // knows where this write goes.
        for (at, rank) in (skipped..).zip(ranks.iter()) {
            self.sorted[usize::from(*rank) + GROUP_POSITION_COUNT] = at as u16;
        }
    }

    /// The bytes at this offset from each position; available up to [`MATCH_LEN_MAX`].
    #[inline(always)]
    pub fn bytes_from(&self, offset: usize) -> Option<&[u8; POSITION_TABLE_LEN + 3]> {
        self.bytes.get(offset..)?.first_chunk()
    }

    /// The group of positions before index `end`. Some may have other hashes; at the front some are
    /// missing.
    #[inline(always)]
    pub fn group_before(&self, end: usize) -> &[u16; GROUP_POSITION_COUNT] {
        let index = self.sorted.get(end..).and_then(|p| p.first_chunk());
        index.unwrap_or(&[0; GROUP_POSITION_COUNT])
    }

    /// The position before index `end`.
    #[inline(always)]
    pub fn position_before(&self, end: usize) -> Option<usize> {
        let index = end + GROUP_POSITION_COUNT - 1;
        self.sorted.get(index).map(|&p| usize::from(p))
    }
}

/// Earlier positions of one piece with the same hash, the nearest last.
pub struct Candidates<'a> {
    /// The piece.
    pub piece: &'a IndexedPiece,
    /// Range of their indexes.
    pub run: Range<usize>,
}

impl Candidates<'_> {
    /// Number of positions.
    pub fn count(&self) -> usize {
        self.run.len()
    }

    /// The nearest position.
    pub fn nearest(&self) -> Option<usize> {
        let position = self.piece.position_before(self.run.end)?;
        (!self.run.is_empty()).then_some(self.piece.start + position)
    }
}

/// The positions of the last two pieces.
pub struct MatchIndex<'a> {
    plain: &'a [u8],
    /// The piece of the position that was asked for last.
    own: IndexedPiece,
    /// The piece before, if there is one.
    older: Option<IndexedPiece>,
}

impl<'a> MatchIndex<'a> {
    /// Indexes `plain` from `first` on. Memory: 458 KiB, and 192 KiB that are never touched; half
    /// of that for up to a window of plain bytes.
    pub fn new(plain: &'a [u8], first: usize) -> Self {
        let mut index = Self {
            plain,
            own: IndexedPiece::empty(),
            older: None,
        };
        // Pieces begin at multiples of the window from the front of the plain bytes.
        let start = first / INDEXED_LEN * INDEXED_LEN;
        index.own.fill(plain, start, first - start);
        index
    }

    /// The positions before `at` with its hash: in its piece, and in the piece before if there is
    /// one. `at` must not decrease from call to call.
    #[inline(always)]
    pub fn candidates_at(&mut self, at: usize) -> (Candidates<'_>, Option<Candidates<'_>>) {
        while at - self.own.start >= INDEXED_LEN {
            let next = self.older.take().unwrap_or_else(IndexedPiece::empty);
            let own = std::mem::replace(&mut self.own, next);
            self.own.fill(self.plain, own.start + INDEXED_LEN, 0);
            self.older = Some(own);
        }
        let own = &self.own;
        let offset = at - own.start;
        let none = Candidates {
            piece: own,
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
        // A position before the first has rank 0, so there is nothing before it.
        let run = usize::from(own.starts[hash])..usize::from(own.ranks[offset]);
        let older = self.older.as_ref().map(|piece| Candidates {
            piece,
            run: usize::from(piece.starts[hash])..usize::from(piece.starts[hash + 1]),
        });
        (Candidates { piece: own, run }, older)
    }
}
