//! Finds pieces of data that resemble each other, and an order in which they are adjacent.

use crate::segment::match_table::GEAR;

/// Bits by which each byte shifts the hash, so that it covers the last 21 bytes. Data with
/// differences every few dozen bytes has no longer strings in common.
const FEATURE_SHIFT: u32 = 3;
/// The fraction of positions that is sampled is 1 / 2^`SAMPLE_BITS`.
const SAMPLE_BITS: u32 = 7;
/// Maximum number of features of a piece: its smallest hashes. Pieces that share strings share
/// features (Broder 1997).
pub const FEATURES_MAX: usize = 64;
/// Number of earlier pieces examined per feature, newest first.
const CANDIDATES_MAX: usize = 16;
/// A piece is placed next to another if they share at least 1 / `SHARED_FEATURES_MIN` of its
/// features.
const SHARED_FEATURES_MIN: usize = 10;

/// Hash of a string in a piece, and the number of the piece.
pub type Feature = (u32, u32);

/// Adds the features of piece `no` to `features`. `scratch` is a reusable buffer.
///
/// # Cost
/// About 1 ns per byte.
pub fn take_features(piece: &[u8], no: u32, scratch: &mut Vec<u32>, features: &mut Vec<Feature>) {
    scratch.clear();
    let mut hash = 0u64;
    for &byte in piece {
        hash = (hash << FEATURE_SHIFT).wrapping_add(GEAR[usize::from(byte)]);
        if hash >> (64 - SAMPLE_BITS) == 0 {
            // The top bits of a sampled hash are zero: mix the hash, so that other bits decide
            // which hashes are the smallest.
            scratch.push((hash.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32);
        }
    }
    scratch.sort_unstable();
    scratch.dedup();
    scratch.truncate(FEATURES_MAX);
    features.extend(scratch.iter().map(|&hash| (hash, no)));
}

/// Returns the order of `count` pieces. `features` are sorted by piece. Each piece follows the
/// earlier piece that it resembles most, or the pieces placed behind that one; pieces without such
/// a piece keep the order of their numbers.
///
/// # Cost
/// O(features · (log features + candidates)).
pub fn order(features: Vec<Feature>, count: u32) -> Vec<u32> {
    let parents = parents(features, count);
    // Children of each piece, ascending, as linked lists: first child, next sibling.
    let (mut first, mut next) = (
        vec![NO_PIECE; count as usize],
        vec![NO_PIECE; count as usize],
    );
    for (no, &parent) in (0..count).zip(&parents).rev() {
        if parent != NO_PIECE {
            next[no as usize] = std::mem::replace(&mut first[parent as usize], no);
        }
    }
    let mut order = Vec::with_capacity(count as usize);
    let mut open = Vec::new();
    for root in (0..count).filter(|&no| parents[no as usize] == NO_PIECE) {
        let mut no = root;
        loop {
            order.push(no);
            // A root has no siblings: its `next` is never set.
            if next[no as usize] != NO_PIECE {
                open.push(next[no as usize]);
            }
            no = match first[no as usize] {
                NO_PIECE => match open.pop() {
                    Some(sibling) => sibling,
                    None => break,
                },
                child => child,
            };
        }
    }
    order
}

/// No piece.
const NO_PIECE: u32 = u32::MAX;

/// For each piece, the earlier piece that shares most features with it, if these are enough.
fn parents(features: Vec<Feature>, count: u32) -> Vec<u32> {
    let links = linked(features);
    let mut parents = vec![NO_PIECE; count as usize];
    let mut shared = vec![0u16; count as usize];
    let mut candidates = Vec::new();
    for own in links.chunk_by(|a, b| a.1 == b.1) {
        for &(earlier, _) in own {
            let mut next = earlier;
            for _ in 0..CANDIDATES_MAX {
                let Some(&(earlier, candidate)) = links.get(next as usize) else {
                    break;
                };
                next = earlier;
                let count = &mut shared[candidate as usize];
                *count += 1;
                if *count == 1 {
                    candidates.push(candidate);
                }
            }
        }
        let best = candidates
            .iter()
            .copied()
            .max_by_key(|&candidate| (shared[candidate as usize], candidate));
        if let (Some(best), Some(&(_, no))) = (best, own.first())
            && usize::from(shared[best as usize]) * SHARED_FEATURES_MIN >= own.len()
        {
            parents[no as usize] = best;
        }
        for candidate in candidates.drain(..) {
            shared[candidate as usize] = 0;
        }
    }
    parents
}

/// No earlier feature has this hash. A window has fewer features: `WINDOW_COUNT_MAX` sees to it.
const NO_FEATURE: u32 = u32::MAX;

/// Replaces the hash of each feature by the index of the newest earlier feature with that hash. The
/// lists take the place of the hashes, because the memory plan counts no more.
fn linked(mut features: Vec<Feature>) -> Vec<(u32, u32)> {
    let hashes = features.iter().map(|feature| feature.0);
    let mut by_hash: Vec<(u32, u32)> = hashes.zip(0..).collect();
    by_hash.sort_unstable();
    let mut last = None;
    for (hash, index) in by_hash {
        let earlier = last.filter(|&(last_hash, _)| last_hash == hash);
        features[index as usize].0 = earlier.map_or(NO_FEATURE, |(_, earlier)| earlier);
        last = Some((hash, index));
    }
    features
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_testkit::Rng;

    fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
        (0..len).map(|_| rng.next_u64() as u8).collect()
    }

    /// Copies `piece` and changes one byte in every `distance`.
    fn edited(piece: &[u8], distance: usize) -> Vec<u8> {
        let mut piece = piece.to_vec();
        piece.iter_mut().step_by(distance).for_each(|b| *b ^= 0x55);
        piece
    }

    fn order_of(pieces: &[Vec<u8>]) -> Vec<u32> {
        let (mut features, mut scratch) = (Vec::new(), Vec::new());
        for (no, piece) in (0..).zip(pieces) {
            take_features(piece, no, &mut scratch, &mut features);
        }
        order(features, pieces.len() as u32)
    }

    /// Would catch: pieces lost, duplicated, or left between unrelated ones.
    #[test]
    fn each_piece_follows_a_similar_one_and_others_keep_their_order() {
        let mut rng = Rng::new(5);
        let [a, b, c] = [(); 3].map(|()| noise(&mut rng, 64 << 10));
        let tree = vec![
            a.clone(),
            b.clone(),
            noise(&mut rng, 64 << 10),
            edited(&a, 100),
            edited(&b, 90),
            c.clone(),
            edited(&edited(&a, 100), 131),
            edited(&b, 70),
        ];
        assert_eq!(order_of(&tree), [0, 3, 6, 1, 4, 7, 2, 5]);
    }

    /// Would catch: an invalid order, or endless work, if all pieces are equal, empty or without
    /// features.
    #[test]
    fn degenerate_pieces_are_ordered_too() {
        let mut pieces = vec![vec![0; 10_000]; 50];
        pieces.extend(vec![vec![]; 3]);
        pieces.extend((0..50).map(|i| vec![i; 40]));
        let mut found = order_of(&pieces);
        found.sort_unstable();
        assert!(found.into_iter().eq(0..pieces.len() as u32));
        assert!(order(Vec::new(), 0).is_empty());
    }
}
