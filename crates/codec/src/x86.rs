//! The branch filter for x86 machine code. It turns relative addresses into positions in the block,
//! so that every call of one function, and every use of one variable, holds the same four bytes.
//! Section 21 of `docs/format.md` specifies it.
//!
//! The choice of operands depends only on bytes before them and on their highest bits, which the
//! filter does not change. The scan steps over each operand that it looked at. So the inverse meets
//! the same operands.

use std::ops::Range;

/// Whether the operand of an opcode after a REX prefix may be an address relative to the
/// instruction pointer.
const fn is_memory_opcode(opcode: u8) -> bool {
    matches!(
        opcode,
        0x03 | 0x2b | 0x39 | 0x3b | 0x63 | 0x85 | 0x89 | 0x8b | 0x8d
    )
}
/// Bits of an operand below its sign: it reaches ±64 MiB. Of ±16, 32, 64, 128 and 256 MiB, 128
/// makes the large libraries of a toolchain smallest, and 64 the programs of a Debian system
/// (`docs/design/0013-programs.md`).
const REACH_BITS: u32 = 26;

/// Converts relative operands to absolute ones.
pub fn filter(code: &mut [u8]) {
    each_operand(code, u32::wrapping_add);
}

/// Undoes [`filter`].
pub fn unfilter(code: &mut [u8]) {
    each_operand(code, u32::wrapping_sub);
}

/// Undoes [`filter`] in `part`, the bytes of the block `code` from `start` on. `code` starts at the
/// front of the block. It has [`FRONT_TAIL_LEN`] bytes after the part, or ends with the block.
///
/// # Cost
/// O(length of the part) if instructions before it show where an instruction begins; in programs
/// they do within a few bytes. O(length of `code`) otherwise.
pub fn unfilter_part(code: &[u8], start: usize, part: &mut [u8]) {
    let end = start.saturating_add(part.len());
    let positions = certain_position(code, start)..end;
    let starts = |_: &[u8], at| likely_starts_at(code, at);
    scan(part, positions, starts, |part, position| {
        unfilter_at(code, position, start, part)
    });
}

/// Restores the operand of the instruction at `position` if it is filtered, as far as it lies in
/// `part`. Returns the start of the next instruction then.
fn unfilter_at(code: &[u8], position: usize, start: usize, part: &mut [u8]) -> Option<usize> {
    let rest = code.get(position..)?;
    let from = position.saturating_add(operand_start(rest)?);
    let Some(operand) = code.get(from..).and_then(|rest| rest.first_chunk()) else {
        return Some(code.len());
    };
    let end = from.saturating_add(operand.len());
    let operand = converted(*operand, end as u32, u32::wrapping_sub);
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

/// Maximum length of an instruction up to the end of its operand, bytes.
const INSTRUCTION_LEN_MAX: usize = 7;

/// The last position up to `start` that a scan from the front of `code` certainly visits: no
/// instruction before it reaches over it.
fn certain_position(code: &[u8], start: usize) -> usize {
    // After this many positions in a row without an instruction, the scan certainly visits the next
    // position.
    let (mut certain, mut quiet) = (start, 0usize);
    while let Some(before) = certain.saturating_sub(quiet).checked_sub(1) {
        let begins = code.get(before..).and_then(operand_start);
        if begins.is_none() {
            quiet = quiet.saturating_add(1);
            if quiet == INSTRUCTION_LEN_MAX - 1 {
                return certain;
            }
            continue;
        }
        // This instruction hides no position before itself.
        (certain, quiet) = (before, 0);
    }
    certain
}

/// Bytes at the end of a front that [`unfilter`] may leave filtered if the code continues: those of
/// an operand whose last byte lies after the front.
pub const FRONT_TAIL_LEN: usize = 3;

/// Bytes that one step of the scan looks at together.
const SCAN_LEN: usize = 64;
/// Those bytes and the following ones that decide whether the last ones begin an instruction.
const SCAN_INPUT_LEN: usize = SCAN_LEN + 2;

fn each_operand(code: &mut [u8], change: impl Fn(u32, u32) -> u32 + Copy) {
    let all = 0..code.len();
    let starts = |code: &[u8], at| likely_starts_at(code, at);
    scan(code, all, starts, |code, position| {
        change_at(code, position, change)
    });
}

/// Goes through `positions` and visits those where an instruction may begin. `visit` returns the
/// start of the next instruction if one begins there. Both closures get the bytes that earlier
/// visits may have changed. `starts` returns the likely starts of the window at a position if a
/// whole window is left.
#[inline]
fn scan(
    bytes: &mut [u8],
    positions: Range<usize>,
    starts: impl Fn(&[u8], usize) -> Option<u64>,
    mut visit: impl FnMut(&mut [u8], usize) -> Option<usize>,
) {
    let mut at = positions.start;
    while at < positions.end
        && let Some(mut starts) = starts(bytes, at)
    {
        let window = at;
        at = at.saturating_add(SCAN_LEN);
        // An operand may reach past the window. The scan skips the positions that it covers.
        let mut free = window;
        while starts != 0 {
            let position = window.saturating_add(starts.trailing_zeros() as usize);
            starts &= starts.wrapping_sub(1);
            if position >= free
                && let Some(end) = visit(bytes, position)
            {
                free = end;
            }
        }
        at = at.max(free);
    }
    while at < positions.end {
        at = visit(bytes, at).unwrap_or(at.saturating_add(1));
    }
}

/// [`likely_starts`] of the window at `at`.
fn likely_starts_at(code: &[u8], at: usize) -> Option<u64> {
    let input = code.get(at..)?.first_chunk()?;
    Some(likely_starts(input))
}

/// One bit for each position in the window where a filtered instruction may begin; most of them do
/// begin one.
///
/// Eight positions at a time, in words of 64 bits: the compiler does not vectorize a loop over
/// bytes here when it optimizes the whole program.
fn likely_starts(input: &[u8; SCAN_INPUT_LEN]) -> u64 {
    let mut likely = 0;
    for at in (0..SCAN_LEN).step_by(8).rev() {
        likely = likely << 8 | likely_starts_of_eight(input.get(at..).unwrap_or(&[]));
    }
    likely
}

/// The same for eight positions, from ten bytes.
#[inline(always)]
fn likely_starts_of_eight(input: &[u8]) -> u64 {
    let word = |at: usize| {
        let bytes = input.get(at..).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    };
    let (first, second, third) = (word(0), word(1), word(2));
    // Zero in the bytes of positions that begin such an instruction.
    let call = first & each(0xfe) ^ each(0xe8);
    let indirect = !first | (second & each(0xcf) ^ each(0x05));
    let memory = (first & each(0xf0) ^ each(0x40)) | (third & each(0xc7) ^ each(0x05));
    // The highest bit of each byte says whether it is other than zero.
    let differs = |word: u64| (word & each(0x7f)).wrapping_add(each(0x7f)) | word;
    let likely = !(differs(call) & differs(indirect) & differs(memory)) & each(0x80);
    // The product gathers the eight bits in the highest byte.
    (likely >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// A word of eight times `byte`.
const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Changes the operand of the instruction at `position` if it is filtered. Returns the start of the
/// next instruction then. A cut operand at the end of the code stays as it is.
fn change_at(code: &mut [u8], position: usize, change: impl Fn(u32, u32) -> u32) -> Option<usize> {
    let rest = code.get_mut(position..)?;
    let start = operand_start(rest)?;
    let operand = rest
        .get_mut(start..)
        .and_then(|rest| rest.first_chunk_mut());
    let Some(operand) = operand else {
        return Some(code.len());
    };
    let end = position.saturating_add(start).saturating_add(4);
    *operand = converted(*operand, end as u32, change);
    Some(end)
}

/// Start of the operand of the instruction at the front of `code`, if that instruction is filtered.
fn operand_start(code: &[u8]) -> Option<usize> {
    match *code {
        // call, jmp
        [0xe8 | 0xe9, ..] => Some(1),
        // call and jmp through a pointer near the instruction
        [0xff, 0x15 | 0x25, ..] => Some(2),
        // 64-bit mov, lea, cmp and so on with an operand near the instruction
        [0x40..=0x4f, opcode, mode, ..] if mode & 0xc7 == 5 && is_memory_opcode(opcode) => Some(3),
        _ => None,
    }
}

/// Changes an operand that ends at `end`, unless it is out of the filter's reach.
fn converted(operand: [u8; 4], end: u32, change: impl Fn(u32, u32) -> u32) -> [u8; 4] {
    let value = u32::from_le_bytes(operand);
    if sign_extended(value) == value {
        sign_extended(change(value, end)).to_le_bytes()
    } else {
        operand
    }
}

/// Copies the sign of `value` into all bits above [`REACH_BITS`].
const fn sign_extended(value: u32) -> u32 {
    const ABOVE: u32 = u32::BITS - 1 - REACH_BITS;
    ((value << ABOVE).cast_signed() >> ABOVE).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of the document: a call 0x100 ahead, one back, a `lea`, and an operand out of
    /// reach.
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

    /// Applies the document's rule position by position.
    fn each_operand_slowly(code: &mut [u8], change: impl Fn(u32, u32) -> u32 + Copy) {
        let mut at = 0;
        while at < code.len() {
            at = change_at(code, at, change).unwrap_or(at + 1);
        }
    }

    /// Catches: an instruction that is missed, or met twice, where two windows meet.
    #[test]
    fn windows_change_nothing() {
        let raw = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        for from in 0..SCAN_LEN {
            let part = &raw[raw.len() / 2 + from..][..100_000 + 3 * from];
            let (mut fast, mut slow) = (part.to_vec(), part.to_vec());
            filter(&mut fast);
            each_operand_slowly(&mut slow, u32::wrapping_add);
            assert!(fast == slow);
        }
    }

    /// Catches: a filter whose inverse fails on real code, or a filter that changes nothing.
    #[test]
    fn real_code_comes_back() {
        let raw = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut code = raw.clone();
        filter(&mut code);
        assert!(code != raw);
        unfilter(&mut code);
        assert!(code == raw);
    }

    /// The piece of `len` bytes of this program in which the filter changes most bytes. The linker
    /// may put code anywhere.
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

    /// Catches: a front that unfilters to other bytes than the whole.
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
        let input = (start + len + FRONT_TAIL_LEN).min(code.len());
        unfilter_part(&code[..input], start, &mut part);
        part
    }

    /// Catches: a part that unfilters to other bytes than the whole.
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
        /// Catches: a part that begins inside an operand that a scan from the front steps over.
        /// Most of the bytes are opcodes that matter.
        #[test]
        fn any_part_comes_back(
            raw in proptest::collection::vec(
                prop_oneof![
                    Just(0xe8u8), Just(0xff), Just(0x15), Just(0x48), Just(0x8d), Just(5), Just(0),
                    any::<u8>(),
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

        /// Catches: an operand that hides or creates another for the inverse. Most of the bytes are
        /// opcodes that matter.
        #[test]
        fn anything_comes_back(raw in proptest::collection::vec(
            prop_oneof![
                Just(0xe8u8), Just(0xff), Just(0x15), Just(0x48), Just(0x8d), Just(5), Just(0),
                any::<u8>(),
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
