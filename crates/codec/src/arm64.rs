//! The branch filter for ARM64 machine code. It turns relative targets of calls and page addresses
//! into positions in the block, so that every call of one function holds the same word. Section 23
//! of `docs/format.md` specifies it.
//!
//! The filter looks at each word alone, and the choice of words depends on bits that it does not
//! change. So the inverse meets the same words, and a reader can unfilter the front of a block
//! before the rest is decoded.
//!
//! # Source
//! The idea and the choice of instructions are those of the filter ARM64 of XZ Utils 5.4 (Lasse
//! Collin, Jia Tan, Igor Pavlov; `doc/xz-file-format.txt`, section 5.3.2): `BL` always, `ADRP`
//! within 512 MiB.

/// Length of an instruction, bytes.
pub const INSTRUCTION_LEN: usize = 4;

/// `BL`: six bits of opcode, 26 bits of distance in words.
const CALL_MASK: u32 = 0xfc00_0000;
const CALL: u32 = 0x9400_0000;
/// `ADRP`: distance in pages; its two lowest bits start at bit 29, the other nineteen at bit 5.
const PAGE_MASK: u32 = 0x9f00_0000;
const PAGE: u32 = 0x9000_0000;
/// Bits of an `ADRP` that do not belong to the distance.
const PAGE_REST_MASK: u32 = 0x9f00_001f;
/// Distances of 18 bits, sign included, are filtered. Words with longer ones are mostly not code.
const PAGE_REACH_BITS: u32 = 18;

/// Converts relative distances to absolute ones.
pub fn filter(code: &mut [u8]) {
    each_word(code, 0, u32::wrapping_add);
}

/// Undoes [`filter`] in `code`. `code` begins `position` bytes after the front of its block, a
/// multiple of [`INSTRUCTION_LEN`]. Bytes after the last whole word stay filtered: if the block
/// continues, the caller passes them again with the following bytes.
pub fn unfilter(code: &mut [u8], position: usize) {
    each_word(code, position, u32::wrapping_sub);
}

/// Undoes [`filter`] in `part`, the bytes of `block` from `start` on. `block` starts at the front
/// of the block. Words that the part only cuts are unfiltered if `block` has them whole.
pub fn unfilter_part(block: &[u8], start: usize, part: &mut [u8]) {
    let head_len = start.wrapping_neg() % INSTRUCTION_LEN;
    let (head, rest) = part.split_at_mut(head_len.min(part.len()));
    let rest_start = start.saturating_add(head.len());
    unfilter_cut(block, start, head);
    let tail_len = rest.len() % INSTRUCTION_LEN;
    let (words, tail) = rest.split_at_mut(rest.len().saturating_sub(tail_len));
    unfilter(words, rest_start);
    unfilter_cut(block, rest_start.saturating_add(words.len()), tail);
}

/// The same for bytes that lie in one word.
fn unfilter_cut(block: &[u8], start: usize, part: &mut [u8]) {
    let skipped = start % INSTRUCTION_LEN;
    let position = start.saturating_sub(skipped);
    let Some(word) = block.get(position..).and_then(|rest| rest.first_chunk()) else {
        return;
    };
    let mut word: [u8; INSTRUCTION_LEN] = *word;
    unfilter(&mut word, position);
    for (to, from) in part.iter_mut().zip(word.iter().skip(skipped)) {
        *to = *from;
    }
}

fn each_word(code: &mut [u8], position: usize, change: fn(u32, u32) -> u32) {
    let (words, _) = code.as_chunks_mut::<INSTRUCTION_LEN>();
    for (word, position) in words
        .iter_mut()
        .zip((position as u32..).step_by(INSTRUCTION_LEN))
    {
        let old = u32::from_le_bytes(*word);
        if old & CALL_MASK == CALL {
            let distance = change(old, position >> 2) & !CALL_MASK;
            *word = (CALL | distance).to_le_bytes();
        } else if old & PAGE_MASK == PAGE {
            *word = converted_page(old, position >> 12, change).to_le_bytes();
        }
    }
}

/// Changes the distance of an `ADRP` if the distance is within reach.
fn converted_page(old: u32, position: u32, change: fn(u32, u32) -> u32) -> u32 {
    let distance = old >> 29 & 3 | old >> 3 & 0x001f_fffc;
    // The sign and the bits between it and the reach must be equal.
    let is_near = sign_extended(distance) & 0x001f_ffff == distance;
    if !is_near {
        return old;
    }
    let distance = sign_extended(change(distance, position));
    old & PAGE_REST_MASK | (distance & 3) << 29 | (distance << 3 & 0x00ff_ffe0)
}

/// Copies the sign of a distance of [`PAGE_REACH_BITS`] bits into all bits above.
fn sign_extended(distance: u32) -> u32 {
    const SPARE: u32 = u32::BITS - PAGE_REACH_BITS;
    ((distance << SPARE).cast_signed() >> SPARE).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn filtered(words: &[u32]) -> Vec<u8> {
        let mut code = bytes(words);
        filter(&mut code);
        code
    }

    /// The example of the document: no branch, a call back, a call ahead, an `adrp` out of reach;
    /// then an `adrp` in page 3.
    #[test]
    fn the_example_of_the_document() {
        let raw = [
            0xd503_201f,
            0x97ff_ffff,
            0x9400_0002,
            0x9100_0421,
            0x9080_0000,
        ];
        let expected = [
            0xd503_201f,
            0x9400_0000,
            0x9400_0004,
            0x9100_0421,
            0x9080_0000,
        ];
        assert_eq!(filtered(&raw), bytes(&expected));
        let mut page = vec![0; 0x3000];
        page.extend(bytes(&[0x9000_0000]));
        filter(&mut page);
        assert_eq!(page[0x3000..], bytes(&[0xf000_0000]));
    }

    /// Catches: a distance that wraps at the wrong bit, and one at the end of the reach that the
    /// inverse misses.
    #[test]
    fn the_ends_of_the_reach() {
        let adrp = |distance: i32| {
            let bits = distance.cast_unsigned();
            PAGE | (bits & 3) << 29 | (bits >> 2 & 0x7_ffff) << 5
        };
        let position = 0x5000;
        for (distance, expected) in [
            (0, 5),
            (-1, 4),
            (-5, 0),
            ((1 << 17) - 1, 4 - (1 << 17)),
            ((1 << 17) - 6, (1 << 17) - 1),
            (-(1 << 17), 5 - (1 << 17)),
            (1 << 17, 1 << 17),
            (-(1 << 17) - 1, -(1 << 17) - 1),
        ] {
            let changed = converted_page(adrp(distance), position >> 12, u32::wrapping_add);
            assert_eq!(changed, adrp(expected), "{distance}");
            let back = converted_page(changed, position >> 12, u32::wrapping_sub);
            assert_eq!(back, adrp(distance), "{distance}");
        }
    }

    proptest! {
        /// Catches: a part with a cut first or last word that unfilters to other bytes than the
        /// whole.
        #[test]
        fn any_part_comes_back(
            words in proptest::collection::vec(
                prop_oneof![any::<u32>(), any::<u32>().prop_map(|w| CALL | w & !CALL_MASK)],
                0..100,
            ),
            tail in 0usize..4,
            start in 0usize..400,
            len in 0usize..400,
        ) {
            let mut raw = bytes(&words);
            raw.extend(std::iter::repeat_n(0x97, tail));
            let mut code = raw.clone();
            filter(&mut code);
            let start = start.min(raw.len());
            let len = len.min(raw.len() - start);
            let mut part = code[start..start + len].to_vec();
            let seen = (start + len + INSTRUCTION_LEN - 1).min(code.len());
            unfilter_part(&code[..seen], start, &mut part);
            prop_assert_eq!(part, &raw[start..start + len]);
        }

        /// Catches: a word that stays filtered, and a front that unfilters to other bytes than the
        /// whole.
        #[test]
        fn anything_comes_back_piece_by_piece(
            words in proptest::collection::vec(
                prop_oneof![
                    any::<u32>(),
                    any::<u32>().prop_map(|w| CALL | w & !CALL_MASK),
                    any::<u32>().prop_map(|w| PAGE | w & !PAGE_MASK),
                    any::<u32>().prop_map(|w| PAGE | w & 0x601f_ffff),
                ],
                0..3000,
            ),
            tail in proptest::collection::vec(any::<u8>(), 0..4),
            cut in 0usize..12_000,
        ) {
            let mut raw = bytes(&words);
            raw.extend(tail);
            let mut code = raw.clone();
            filter(&mut code);
            let mut whole = code.clone();
            unfilter(&mut whole, 0);
            prop_assert_eq!(&whole, &raw);
            let cut = cut.min(raw.len()) / INSTRUCTION_LEN * INSTRUCTION_LEN;
            let (front, rest) = code.split_at_mut(cut);
            unfilter(front, 0);
            unfilter(rest, front.len());
            prop_assert_eq!(code, raw);
        }
    }
}
