//! Hexadecimal names in ascending order. The first bits of each name are stored as the step from
//! the name before, in unary; the other bits are stored as they are.
//!
//! This is the Elias-Fano code for ascending numbers (Elias 1974, Fano 1971). For n random names it
//! takes less than half a bit per name more than the information in the names. Steps wrap around,
//! so that another directory may begin at any name.

use super::hex::{HexNames, decode_affix, digit_of, nibble_of};
use super::list::Names;
use crate::Result;
use crate::cursor::{Cursor, put_varint};
use crate::limits::NAME_LEN_MAX;
use std::collections::HashSet;

/// Maximum number of leading bits that a step covers.
const STEP_BITS_MAX: u32 = 16;

/// Bit reader, highest bit of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    /// Reads the next bit; `None` past the end.
    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.at / 8)?;
        let shift = (self.at % 8) as u32;
        let bit = byte.rotate_left(shift.saturating_add(1)) & 1;
        self.at = self.at.saturating_add(1);
        Some(bit)
    }

    /// Reads the next `count` bits as a number; `count` is at most 16.
    fn number(&mut self, count: u32) -> Option<u32> {
        let mut value = 0;
        for _ in 0..count {
            value = value << 1 | u32::from(self.next()?);
        }
        Some(value)
    }

    /// Counts the 0 bits before the next 1 bit and skips that bit.
    fn unary(&mut self) -> Option<u32> {
        let mut zeros = 0u32;
        while self.next()? == 0 {
            zeros = zeros.saturating_add(1);
        }
        Some(zeros)
    }

    /// Whether only zero padding of less than a byte is left.
    fn is_done(&mut self) -> bool {
        self.bytes.len() == self.at.div_ceil(8)
            && std::iter::from_fn(|| self.next()).all(|b| b == 0)
    }
}

/// Decodes `count` names after the tag.
pub fn decode(cursor: &mut Cursor<'_>, count: usize) -> Result<Names> {
    let prefix = decode_affix(cursor)?;
    let suffix = decode_affix(cursor)?;
    let digits = cursor.count(NAME_LEN_MAX, "hex digits")?;
    let step_bits = u32::from(cursor.byte()?);
    let bit_count = (digits as u32).saturating_mul(4);
    if step_bits > STEP_BITS_MAX.min(bit_count) {
        let what = format!("bits of steps: expected at most 16 and {bit_count}, found {step_bits}");
        return Err(cursor.error("F-6.6", what));
    }
    let steps_len = cursor.count(usize::MAX, "bytes of steps")?;
    let steps = cursor.bytes(steps_len)?;
    let rest_bits = count.saturating_mul(bit_count.saturating_sub(step_bits) as usize);
    let rest = cursor.bytes(rest_bits.div_ceil(8))?;
    let mut steps = Bits {
        bytes: steps,
        at: 0,
    };
    let mut rest = Bits { bytes: rest, at: 0 };
    let mut names = Names::default();
    let end = 1u32.checked_shl(step_bits).unwrap_or(0);
    let mut front = 0u32;
    for i in 0..count {
        let Some(step) = steps.unary().filter(|&step| step < end) else {
            let what = format!("name {i}: expected a step below {end}");
            return Err(cursor.error("F-6.6", what));
        };
        front = front.saturating_add(step) & end.saturating_sub(1);
        names.bytes.extend_from_slice(prefix);
        let mut remaining_bits = step_bits;
        for _ in 0..digits {
            let own = remaining_bits.min(4);
            remaining_bits = remaining_bits.saturating_sub(own);
            let high = front >> remaining_bits << 4u32.saturating_sub(own);
            let low = rest.number(4u32.saturating_sub(own)).unwrap_or(0);
            names.bytes.push(digit_of((high | low) as u8));
        }
        names.bytes.extend_from_slice(suffix);
        names.end_name();
    }
    if steps.is_done() && rest.is_done() {
        Ok(names)
    } else {
        Err(cursor.error("F-6.6", "spare bits: expected less than a byte, all 0"))
    }
}

/// Bit writer, highest bit of each byte first.
#[derive(Default)]
struct BitSink {
    bytes: Vec<u8>,
    filled: u32,
}

impl BitSink {
    #[allow(clippy::arithmetic_side_effects)] // trusted input: values of this program
    fn put(&mut self, bit: bool) {
        if self.filled == 0 {
            self.bytes.push(0);
        }
        if let Some(last) = self.bytes.last_mut() {
            *last |= u8::from(bit) << (7 - self.filled % 8);
        }
        self.filled = (self.filled + 1) % 8;
    }
}

/// The first `STEP_BITS_MAX` bits of a name.
#[allow(clippy::arithmetic_side_effects)] // trusted input: values of this program
fn front_of(name: &[u8]) -> u32 {
    let nibble = |i| name.get(i).map_or(0, |&b| u32::from(nibble_of(b)));
    (0..4).fold(0, |front, i| front << 4 | nibble(i))
}

/// Encodes the names if all are distinct. Repeated names, which directories share, go to the
/// compressor instead: it finds repeats of whole bytes only. `tag` is the first byte.
#[allow(clippy::arithmetic_side_effects)] // trusted input: values of this program
pub fn encode(names: &HexNames<'_>, tag: u8) -> Option<Vec<u8>> {
    let mut seen = HashSet::with_capacity(names.inner.len());
    if !names.inner.iter().all(|name| seen.insert(*name)) {
        return None;
    }
    let fronts: Vec<u32> = names.inner.iter().map(|name| front_of(name)).collect();
    let step = |bits: u32, i: usize| {
        let before = i.checked_sub(1).and_then(|i| fronts.get(i)).unwrap_or(&0);
        let own = fronts.get(i).unwrap_or(&0);
        let shift = STEP_BITS_MAX - bits;
        (own >> shift).wrapping_sub(before >> shift) & ((1 << bits) - 1)
    };
    // Each additional bit shortens every name's rest by a bit and doubles the steps.
    let cost = |&bits: &u32| {
        let steps = (0..fronts.len()).map(|i| u64::from(step(bits, i)));
        steps.sum::<u64>() + fronts.len() as u64 * u64::from(STEP_BITS_MAX - bits)
    };
    let bits = (0..=STEP_BITS_MAX).min_by_key(cost)?;
    let (mut steps, mut rest) = (BitSink::default(), BitSink::default());
    for (i, name) in names.inner.iter().enumerate() {
        (0..step(bits, i)).for_each(|_| steps.put(false));
        steps.put(true);
        let all = name.iter().map(|&b| nibble_of(b));
        let all = all.flat_map(|nibble| (0..4).rev().map(move |bit| nibble >> bit & 1 == 1));
        all.skip(bits as usize).for_each(|bit| rest.put(bit));
    }
    let mut out = names.head(tag);
    out.push(bits as u8);
    put_varint(&mut out, steps.bytes.len() as u64);
    out.extend_from_slice(&steps.bytes);
    out.extend_from_slice(&rest.bytes);
    Some(out)
}
