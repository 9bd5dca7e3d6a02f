//! The branch filter for x86 machine code: relative addresses become places in the block, so that
//! every call of one function, and every use of one variable, holds the same four bytes. Section 21
//! of `docs/format.md` specifies it.
//!
//! Which operands are changed follows from bytes before them and from their highest bits, which
//! stay alike, and what was looked at is stepped over: the way back meets the same operands.

use std::ops::Range;

/// Whether the operand of an opcode may be an address relative to the instruction pointer, behind a
/// REX prefix.
const fn is_memory_opcode(opcode: u8) -> bool {
    matches!(
        opcode,
        0x03 | 0x2b | 0x39 | 0x3b | 0x63 | 0x85 | 0x89 | 0x8b | 0x8d
    )
}
/// Bits of an operand below its sign: it reaches ±64 MiB. Of ±16, 32, 64, 128 and 256 MiB the large
/// libraries of a toolchain are smallest with 128, the programs of a Debian with 64
/// (`docs/design/0013-programs.md`).
const REACH_BITS: u32 = 26;

/// Makes relative operands absolute.
pub fn filter(code: &mut [u8]) {
    each_operand(code, u32::wrapping_add);
}

/// Undoes [`filter`].
pub fn unfilter(code: &mut [u8]) {
    each_operand(code, u32::wrapping_sub);
}

/// Undoes [`filter`] in `part`, the bytes of `code` from `start` on, which begins at the front of
/// its block. `code` has [`FRONT_TAIL_LEN`] bytes behind the part, or ends with the block.
///
/// # Cost
/// O(the part) where instructions before it tell where one begins, as they do within a few bytes of
/// a program; O(`code`) else.
pub fn unfilter_part(code: &[u8], start: usize, part: &mut [u8]) {
    let end = start.saturating_add(part.len());
    let places = place_met(code, start)..end;
    let starts = |_: &[u8], at| likely_starts_at(code, at);
    scan(part, places, starts, |part, place| {
        unfilter_at(code, place, start, part)
    });
}

/// Puts the operand of the instruction at `place`, if it is one of those that are changed, into
/// `part` as it was, as far as it lies there; where the next instruction begins then.
fn unfilter_at(code: &[u8], place: usize, start: usize, part: &mut [u8]) -> Option<usize> {
    let rest = code.get(place..)?;
    let from = place.saturating_add(operand_start(rest)?);
    let Some(operand) = code.get(from..).and_then(|rest| rest.first_chunk()) else {
        return Some(code.len());
    };
    let end = from.saturating_add(operand.len());
    let operand = changed(*operand, end as u32, u32::wrapping_sub);
    match from.checked_sub(start) {
        Some(at) if end <= start.saturating_add(part.len()) => {
            if let Some(to) = part.get_mut(at..at.saturating_add(operand.len())) {
                to.copy_from_slice(&operand);
            }
        }
        _ => {
            for (at, byte) in (from..).zip(operand) {
                let to = at.checked_sub(start).and_then(|at| part.get_mut(at));
                to.into_iter().for_each(|to| *to = byte);
            }
        }
    }
    Some(end)
}

/// Bytes of the longest instruction up to the end of its operand.
const INSTRUCTION_LEN_MAX: usize = 7;

/// The last place, not behind `start`, that who goes through `code` from its beginning is sure to
/// come to, since none before it begins what would reach over it.
fn place_met(code: &[u8], start: usize) -> usize {
    // Behind so many places in a row where nothing begins, a place is met.
    let (mut met, mut quiet) = (start, 0usize);
    while let Some(before) = met.saturating_sub(quiet).checked_sub(1) {
        let begins = code.get(before..).and_then(operand_start);
        if begins.is_none() {
            quiet = quiet.saturating_add(1);
            if quiet == INSTRUCTION_LEN_MAX - 1 {
                return met;
            }
            continue;
        }
        // What begins there hides no place up to itself.
        (met, quiet) = (before, 0);
    }
    met
}

/// Bytes at the end of a front that [`unfilter`] may leave as they were where the code goes on:
/// those of an operand whose last byte lies behind the front.
pub const FRONT_TAIL_LEN: usize = 3;

/// Bytes looked at together.
const WINDOW_LEN: usize = 64;
/// The window and the bytes behind it that tell whether its last ones begin an instruction.
const SEEN_LEN: usize = WINDOW_LEN + 2;

fn each_operand(code: &mut [u8], change: impl Fn(u32, u32) -> u32 + Copy) {
    let all = 0..code.len();
    let starts = |code: &[u8], at| likely_starts_at(code, at);
    scan(code, all, starts, |code, place| {
        change_at(code, place, change)
    });
}

/// Goes through `places` and visits those where an instruction may begin; `visit` says where the
/// next one begins if one does there. Both closures get what is changed meanwhile, of which the
/// first tells the likely starts of the window at a place, where there is a whole window.
#[inline]
fn scan(
    bytes: &mut [u8],
    places: Range<usize>,
    starts: impl Fn(&[u8], usize) -> Option<u64>,
    mut visit: impl FnMut(&mut [u8], usize) -> Option<usize>,
) {
    let mut at = places.start;
    while at < places.end
        && let Some(mut starts) = starts(bytes, at)
    {
        let window = at;
        at = at.saturating_add(WINDOW_LEN);
        // An operand may reach past the window; what it covers is stepped over.
        let mut free = window;
        while starts != 0 {
            let place = window.saturating_add(starts.trailing_zeros() as usize);
            starts &= starts.wrapping_sub(1);
            if place >= free
                && let Some(end) = visit(bytes, place)
            {
                free = end;
            }
        }
        at = at.max(free);
    }
    while at < places.end {
        at = visit(bytes, at).unwrap_or(at.saturating_add(1));
    }
}

/// [`likely_starts`] of the window at `at`.
fn likely_starts_at(code: &[u8], at: usize) -> Option<u64> {
    let seen = code.get(at..)?.first_chunk()?;
    Some(likely_starts(seen))
}

/// A bit for each place in the window where an instruction may begin that is changed; most of these
/// do begin one. The loop has neither branches nor tables, so that the compiler makes it work on
/// many bytes at once.
fn likely_starts(seen: &[u8; SEEN_LEN]) -> u64 {
    let mut likely = [0u8; WINDOW_LEN];
    let bytes = seen.iter().zip(&seen[1..]).zip(&seen[2..]);
    for (likely, ((&first, &second), &third)) in likely.iter_mut().zip(bytes) {
        let is_call = first & 0xfe == 0xe8;
        let is_indirect = (first == 0xff) & (second & 0xcf == 0x05);
        let is_memory = (first & 0xf0 == 0x40) & (third & 0xc7 == 5);
        *likely = u8::from(is_call | is_indirect | is_memory);
    }
    let (words, _) = likely.as_chunks::<8>();
    words.iter().rev().fold(0, |bits, word| {
        // The product brings the lowest bits of the eight bytes together in the highest byte.
        let word = u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080);
        bits << 8 | word >> 56
    })
}

/// Changes the operand of the instruction at `place`, if it is one of those; where the next one
/// begins then. The code ends with an operand that it does not hold whole.
fn change_at(code: &mut [u8], place: usize, change: impl Fn(u32, u32) -> u32) -> Option<usize> {
    let rest = code.get_mut(place..)?;
    let start = operand_start(rest)?;
    let operand = rest
        .get_mut(start..)
        .and_then(|rest| rest.first_chunk_mut());
    let Some(operand) = operand else {
        return Some(code.len());
    };
    let end = place.saturating_add(start).saturating_add(4);
    *operand = changed(*operand, end as u32, change);
    Some(end)
}

/// Where the operand begins of the instruction that `code` begins with, if it is one of those that
/// are changed.
fn operand_start(code: &[u8]) -> Option<usize> {
    match *code {
        // call, jmp
        [0xe8 | 0xe9, ..] => Some(1),
        // call and jmp by a pointer near the instruction
        [0xff, 0x15 | 0x25, ..] => Some(2),
        // mov, lea, cmp and so on, 64 bits wide, of something near the instruction
        [0x40..=0x4f, opcode, mode, ..] if mode & 0xc7 == 5 && is_memory_opcode(opcode) => Some(3),
        _ => None,
    }
}

/// An operand that ends at `end`, changed if it reaches no further than it may.
fn changed(operand: [u8; 4], end: u32, change: impl Fn(u32, u32) -> u32) -> [u8; 4] {
    let value = u32::from_le_bytes(operand);
    match signed(value) == value {
        true => signed(change(value, end)).to_le_bytes(),
        false => operand,
    }
}

/// `value` with its sign in all bits above [`REACH_BITS`].
const fn signed(value: u32) -> u32 {
    const ABOVE: u32 = u32::BITS - 1 - REACH_BITS;
    ((value << ABOVE).cast_signed() >> ABOVE).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of the document: a call 0x100 behind itself, one back, a `lea`, and an operand
    /// that is too far.
    #[test]
    fn the_example_of_the_document() {
        let raw = [
            0xe8, 0x00, 0x01, 0x00, 0x00, 0xe8, 0xfb, 0xff, 0xff, 0xff, 0x48, 0x8d, 0x05, 0x02,
            0x00, 0x00, 0x00, 0xe9, 0x00, 0x00, 0x00, 0x04,
        ];
        let mut code = raw;
        filter(&mut code);
        assert_eq!(
            code,
            [
                0xe8, 0x05, 0x01, 0x00, 0x00, 0xe8, 0x05, 0x00, 0x00, 0x00, 0x48, 0x8d, 0x05, 0x13,
                0x00, 0x00, 0x00, 0xe9, 0x00, 0x00, 0x00, 0x04
            ]
        );
        unfilter(&mut code);
        assert_eq!(code, raw);
    }

    /// What the document says, place by place.
    fn each_operand_slowly(code: &mut [u8], change: impl Fn(u32, u32) -> u32 + Copy) {
        let mut at = 0;
        while at < code.len() {
            at = change_at(code, at, change).unwrap_or(at + 1);
        }
    }

    /// Would catch: an instruction that is overlooked, or met twice, where two windows meet.
    #[test]
    fn windows_change_nothing() {
        let raw = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for from in 0..WINDOW_LEN {
            let part = &raw[raw.len() / 2 + from..][..100_000 + 3 * from];
            let (mut fast, mut slow) = (part.to_vec(), part.to_vec());
            filter(&mut fast);
            each_operand_slowly(&mut slow, u32::wrapping_add);
            assert!(fast == slow);
        }
    }

    /// Would catch: a filter that is not undone on real code, or that changes nothing.
    #[test]
    fn real_code_comes_back() {
        let raw = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut code = raw.clone();
        filter(&mut code);
        assert!(code != raw);
        unfilter(&mut code);
        assert!(code == raw);
    }

    /// Of this program the piece of `len` bytes in which the filter changes most: wherever the
    /// linker puts code.
    fn code_of_this_program(len: usize) -> Vec<u8> {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let changes = |piece: &&[u8]| {
            let mut code = piece.to_vec();
            filter(&mut code);
            code.iter().zip(*piece).filter(|(a, b)| a != b).count()
        };
        let pieces = program.chunks_exact(len);
        pieces.max_by_key(changes).unwrap().to_vec()
    }

    /// Would catch: a front that is put back in another way than the same bytes of the whole.
    #[test]
    fn fronts_are_put_back_but_for_their_last_bytes() {
        let raw = code_of_this_program(20_000);
        let mut code = raw.to_vec();
        filter(&mut code);
        let mut tails = 0;
        for len in (0..raw.len()).step_by(7).chain(raw.len() - 200..raw.len()) {
            let mut front = code[..len].to_vec();
            unfilter(&mut front);
            let sure = len.saturating_sub(FRONT_TAIL_LEN);
            assert!(front[..sure] == raw[..sure], "{len}");
            tails += usize::from(front != raw[..len]);
        }
        assert!(tails > 0, "no front ends in an operand");
    }

    fn part_of(code: &[u8], start: usize, len: usize) -> Vec<u8> {
        let mut part = code[start..start + len].to_vec();
        let seen = (start + len + FRONT_TAIL_LEN).min(code.len());
        unfilter_part(&code[..seen], start, &mut part);
        part
    }

    /// Would catch: a part that is put back in another way than the same bytes of the whole.
    #[test]
    fn parts_are_put_back_like_the_whole() {
        let raw = code_of_this_program(40_000);
        let mut code = raw.to_vec();
        filter(&mut code);
        for start in (0..raw.len() - 3000).step_by(11) {
            let len = 1 + start % 3000;
            assert!(
                part_of(&code, start, len) == raw[start..start + len],
                "{start}"
            );
        }
        assert!(part_of(&code, 0, code.len()) == raw);
    }

    proptest! {
        /// Would catch: a part that begins in the middle of what a scan from the beginning steps
        /// over. Bytes are mostly those that matter.
        #[test]
        fn any_part_comes_back(
            raw in proptest::collection::vec(
                prop_oneof![
                    Just(0xe8u8), Just(0xff), Just(0x15), Just(0x48), Just(0x8d), Just(5), Just(0), any::<u8>(),
                ],
                0..400,
            ),
            start in 0usize..400,
            len in 0usize..400,
        ) {
            let mut code = raw.clone();
            filter(&mut code);
            let start = start.min(raw.len());
            let len = len.min(raw.len() - start);
            prop_assert_eq!(part_of(&code, start, len), &raw[start..start + len]);
        }

        /// Would catch: an operand that hides or makes another on the way back. Bytes are mostly
        /// those that matter.
        #[test]
        fn anything_comes_back(raw in proptest::collection::vec(
            prop_oneof![
                Just(0xe8u8), Just(0xff), Just(0x15), Just(0x48), Just(0x8d), Just(5), Just(0), any::<u8>(),
            ],
            0..400,
        )) {
            let mut code = raw.clone();
            filter(&mut code);
            let mut slow = raw.clone();
            each_operand_slowly(&mut slow, u32::wrapping_add);
            prop_assert_eq!(&code, &slow);
            unfilter(&mut code);
            prop_assert_eq!(code, raw);
        }
    }
}
