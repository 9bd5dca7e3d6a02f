//! The branch filter for x86 machine code: relative addresses become places in the block, so that every call of one
//! function, and every use of one variable, holds the same four bytes. Section 21 of `docs/format.md` specifies it.
//!
//! Which operands are changed follows from bytes before them and from their last byte, which stays 00 or ff, and what was
//! looked at is stepped over: the way back meets the same operands.

/// Opcodes whose operand may be an address relative to the instruction pointer, behind a REX prefix.
const MEMORY_OPCODES: [u8; 9] = [0x03, 0x2b, 0x39, 0x3b, 0x63, 0x85, 0x89, 0x8b, 0x8d];
/// An operand reaches ±16 MiB: 24 bits and a sign.
const REACH_MASK: u32 = 0x01ff_ffff;
const SIGN_BIT: u32 = 0x0100_0000;

/// Makes relative operands absolute.
pub fn filter(code: &mut [u8]) {
    each_operand(code, u32::wrapping_add);
}

/// Undoes [`filter`].
pub fn unfilter(code: &mut [u8]) {
    each_operand(code, u32::wrapping_sub);
}

fn each_operand(code: &mut [u8], change: fn(u32, u32) -> u32) {
    let mut at = 0usize;
    while let Some(rest) = code.get_mut(at..).filter(|rest| !rest.is_empty()) {
        let Some(start) = operand_start(rest) else {
            at = at.saturating_add(1);
            continue;
        };
        let end = start.saturating_add(4);
        let Some(operand) = rest.get_mut(start..end) else {
            return;
        };
        at = at.saturating_add(end);
        change_operand(operand, at as u32, change);
    }
}

/// Where the operand begins of the instruction that `code` begins with, if it is one of those that are changed.
fn operand_start(code: &[u8]) -> Option<usize> {
    match *code {
        // call, jmp
        [0xe8 | 0xe9, ..] => Some(1),
        // call and jmp by a pointer near the instruction
        [0xff, 0x15 | 0x25, ..] => Some(2),
        // mov, lea, cmp and so on, 64 bits wide, of something near the instruction
        [0x40..=0x4f, opcode, mode, ..] if mode & 0xc7 == 5 && MEMORY_OPCODES.contains(&opcode) => {
            Some(3)
        }
        _ => None,
    }
}

fn change_operand(operand: &mut [u8], place: u32, change: fn(u32, u32) -> u32) {
    let &mut [a, b, c, high @ (0 | 0xff)] = operand else {
        return;
    };
    let changed = change(u32::from_le_bytes([a, b, c, high]), place) & REACH_MASK;
    let sign = if changed & SIGN_BIT == 0 { 0 } else { 0xff };
    let [a, b, c, _] = changed.to_le_bytes();
    operand.copy_from_slice(&[a, b, c, sign]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The example of the document: a call 0x100 behind itself, one back, a `lea`, and an operand that is too far.
    #[test]
    fn the_example_of_the_document() {
        let raw = [
            0xe8, 0x00, 0x01, 0x00, 0x00, 0xe8, 0xfb, 0xff, 0xff, 0xff, 0x48, 0x8d, 0x05, 0x02,
            0x00, 0x00, 0x00, 0xe9, 0x00, 0x00, 0x00, 0x01,
        ];
        let mut code = raw;
        filter(&mut code);
        assert_eq!(
            code,
            [
                0xe8, 0x05, 0x01, 0x00, 0x00, 0xe8, 0x05, 0x00, 0x00, 0x00, 0x48, 0x8d, 0x05, 0x13,
                0x00, 0x00, 0x00, 0xe9, 0x00, 0x00, 0x00, 0x01
            ]
        );
        unfilter(&mut code);
        assert_eq!(code, raw);
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

    proptest! {
        /// Would catch: an operand that hides or makes another on the way back. Bytes are mostly those that matter.
        #[test]
        fn anything_comes_back(raw in proptest::collection::vec(
            prop_oneof![
                Just(0xe8u8), Just(0xff), Just(0x15), Just(0x48), Just(0x8d), Just(5), Just(0), any::<u8>(),
            ],
            0..400,
        )) {
            let mut code = raw.clone();
            filter(&mut code);
            unfilter(&mut code);
            prop_assert_eq!(code, raw);
        }
    }
}
