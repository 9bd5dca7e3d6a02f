//! Orders files by similarity with nilsimsa digests and a chain through them.
//!
//! # Source
//! Damiani, De Capitani di Vimercati, Paraboschi and Samarati, "An Open Digest-based Technique for
//! Spam Detection" (2004): which triples of each five bytes are counted, and that a bit tells which
//! buckets are fuller than the average. The table that selects buckets is our own, so digests
//! differ from those of other programs.

use super::mix::mixed;

/// 256 buckets, one bit each.
pub type Digest = [u64; 4];

/// Largest group that is chained by comparing all pairs, items.
const CHAINED_COUNT_MAX: usize = 64;

/// A permutation of the bytes (Fisher-Yates with the generator of SplitMix64).
const TABLE: [u8; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        table[at] = at as u8;
        at += 1;
    }
    while at > 1 {
        let other = (mixed(at as u64) % at as u64) as usize;
        at -= 1;
        (table[at], table[other]) = (table[other], table[at]);
    }
    table
};

fn bucket(a: u8, b: u8, c: u8, no: u8) -> usize {
    let of = |byte: u8| TABLE[usize::from(byte)];
    let mixed = of(a.wrapping_add(no)) ^ of(b).wrapping_mul(2 * no + 1);
    usize::from(mixed.wrapping_add(of(c ^ of(no))))
}

/// Digest of `data`. Changed, moved or added bytes affect few of its bits.
///
/// # Cost
/// Eight counts per byte.
pub fn digest(data: &[u8]) -> Digest {
    let mut counts = [0u32; 256];
    for window in data.windows(5) {
        let &[e, d, c, b, a] = window else { continue };
        let triples = [
            (a, b, c),
            (a, b, d),
            (a, c, d),
            (a, b, e),
            (a, c, e),
            (a, d, e),
            (e, b, a),
            (e, d, a),
        ];
        for ((a, b, c), no) in triples.into_iter().zip(0..) {
            counts[bucket(a, b, c, no)] += 1;
        }
    }
    let average = counts.iter().sum::<u32>() / 256;
    let mut digest = Digest::default();
    for (at, _) in counts.iter().enumerate().filter(|(_, c)| **c > average) {
        digest[at / 64] |= 1 << (at % 64);
    }
    digest
}

/// Bits in which two digests differ.
fn distance(a: &Digest, b: &Digest) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a ^ b).count_ones()).sum()
}

/// Makes similar items adjacent. A group is split by which of two distant items each item is nearer
/// to; the half nearer to the item before the group comes first. In a small group each item is
/// followed by the nearest remaining one. Equal items keep their order.
///
/// # Cost
/// O(n log² n), and 64 comparisons per item.
pub fn chain<T>(items: &mut [(Digest, T)]) {
    let mut last: Option<Digest> = None;
    let mut waiting = vec![(0, items.len())];
    while let Some((start, end)) = waiting.pop() {
        let group = &mut items[start..end];
        if group.len() <= CHAINED_COUNT_MAX {
            for at in 0..group.len() {
                let from = last.unwrap_or(group[at].0);
                let nearest = (at..group.len()).min_by_key(|&i| distance(&from, &group[i].0));
                group[at..=nearest.unwrap_or(at)].rotate_right(1);
                last = Some(group[at].0);
            }
            continue;
        }
        let farthest = |from: Digest| {
            let items = group.iter().rev();
            items
                .max_by_key(|i| distance(&from, &i.0))
                .map_or(from, |i| i.0)
        };
        let mut far = farthest(group[0].0);
        let mut near = farthest(far);
        if last.is_some_and(|last| distance(&last, &near) > distance(&last, &far)) {
            (near, far) = (far, near);
        }
        let side = |digest: &Digest| {
            distance(digest, &near).cast_signed() - distance(digest, &far).cast_signed()
        };
        group.sort_by_cached_key(|item| side(&item.0));
        // Split where the gap between neighbours is largest. Each side gets at least an eighth of
        // the group; otherwise there could be as many splits as items.
        let (eighth, half) = (group.len() / 8, group.len() / 2);
        let gap = |at: usize| side(&group[at].0) - side(&group[at - 1].0);
        let cut = (eighth.max(1)..group.len() - eighth)
            .max_by_key(|&at| (gap(at), std::cmp::Reverse(at.abs_diff(half))));
        let middle = start + cut.unwrap_or(half);
        waiting.push((middle, end));
        waiting.push((start, middle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text of words from a vocabulary of forty.
    fn text(seed: u64, len: usize) -> Vec<u8> {
        let random = crate::order::mix::mixed;
        let words = (0..len as u64 / 6).map(|n| random(seed << 32 | n) % 40);
        let letter =
            move |word: u64, n: u64| b'a' + (random(seed << 16 | word << 4 | n) % 26) as u8;
        words
            .flat_map(|word| (0..5).map(move |n| letter(word, n)).chain([b' ']))
            .collect()
    }

    /// Would catch: a digest that changes as a whole, or that is equal for all data.
    #[test]
    fn similar_data_has_similar_digests() {
        let one = text(1, 20_000);
        let moved = [b"#!/bin/sh\n".as_slice(), &one[3000..], &one[..2500]].concat();
        let near = distance(&digest(&one), &digest(&moved));
        let far = distance(&digest(&one), &digest(&text(2, 20_000)));
        assert!(near < 30 && far > 3 * near.max(20), "{near} {far}");
        assert_eq!(digest(b"abcd"), [0; 4]);
        assert_eq!(digest(&one), digest(&one));
    }

    #[test]
    fn the_table_is_a_permutation() {
        let mut seen = TABLE;
        seen.sort_unstable();
        assert!(seen.iter().zip(0..=255).all(|(a, b)| *a == b));
    }

    /// Would catch: items lost or duplicated, families split up, and groups that never become
    /// smaller.
    #[test]
    fn similar_items_become_adjacent() {
        for (families, each) in [(10, 7), (40, 30), (1, 1000), (1000, 1)] {
            let mut items: Vec<(Digest, usize)> = (0..families * each)
                .map(|no| {
                    let family = crate::order::mix::mixed((no % families) as u64);
                    let mut digest = [1, 2, 3, 4].map(|n| crate::order::mix::mixed(family ^ n));
                    digest[no % 4] ^= 1 << (no / families % 64);
                    (digest, no)
                })
                .collect();
            let before = items.clone();
            chain(&mut items);
            let breaks = items
                .windows(2)
                .filter(|w| w[0].1 % families != w[1].1 % families);
            // A split may divide a family that is far from both ends.
            assert!(breaks.count() < 2 * families, "{families} of {each}");
            items.sort_unstable_by_key(|item| item.1);
            assert!(items == before);
        }
        let mut same = vec![([7; 4], 0); 5000];
        same.iter_mut().zip(0..).for_each(|(item, no)| item.1 = no);
        chain(&mut same);
        assert!(same.is_sorted_by_key(|item| item.1));
    }
}
