//! Columns of integers. A column has one of eight encodings; the writer chooses the one that it
//! estimates to be smallest after compression.
//!
//! A column does not store its number of values: the record that holds it knows the number.

use crate::Result;
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};

const CONST: u8 = 0;
const AFFINE: u8 = 1;
const PACKED: u8 = 2;
const DELTA: u8 = 3;
const DICTIONARY: u8 = 4;
const RUNS: u8 = 5;
const PLAIN: u8 = 6;
const PLANES: u8 = 7;

/// A decoded column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// All values are equal.
    Const(u64),
    /// Value i is `base + i · step`, modulo 2^64.
    Affine {
        /// Value 0.
        base: u64,
        /// Difference between neighbours.
        step: u64,
    },
    /// Arbitrary values.
    Values(Vec<u64>),
}

impl Column {
    /// Value at `index`. Returns 0 past the end of a `Values` column; callers stay below their
    /// count.
    pub fn get(&self, index: usize) -> u64 {
        match self {
            Self::Const(value) => *value,
            Self::Affine { base, step } => base.wrapping_add(step.wrapping_mul(index as u64)),
            Self::Values(values) => values.get(index).copied().unwrap_or(0),
        }
    }

    /// Bytes of heap memory of this column.
    pub fn memory_len(&self) -> usize {
        match self {
            Self::Values(values) => values.len().saturating_mul(8),
            _ => 0,
        }
    }

    /// The first `count` values.
    pub fn iter(&self, count: usize) -> impl Iterator<Item = u64> + '_ {
        (0..count).map(|i| self.get(i))
    }

    /// Decodes a column of `count` values.
    ///
    /// # Errors
    /// `Corrupt` for an unknown tag, a short column, or a number of values that differs from
    /// `count`.
    pub fn decode(cursor: &mut Cursor<'_>, count: usize) -> Result<Self> {
        Ok(match cursor.byte()? {
            CONST => Self::Const(cursor.varint()?),
            AFFINE => Self::Affine {
                base: cursor.varint()?,
                step: unzigzag(cursor.varint()?) as u64,
            },
            PACKED => Self::Values(decode_packed(cursor, count)?),
            DELTA => Self::Values(decode_delta(cursor, count)?),
            DICTIONARY => Self::Values(decode_dictionary(cursor, count)?),
            RUNS => Self::Values(decode_runs(cursor, count)?),
            PLAIN => Self::Values(decode_plain(cursor, count)?),
            PLANES => Self::Values(decode_planes(cursor, count)?),
            tag => {
                return Err(
                    cursor.error("F-5.1", format!("column tag: expected 0 to 7, found {tag}"))
                );
            }
        })
    }
}

/// Allocates for `count` values, but never for more than the remaining bytes can describe one by
/// one.
fn values_for(cursor: &Cursor<'_>, count: usize) -> Vec<u64> {
    Vec::with_capacity(count.min(cursor.remaining().saturating_mul(8)))
}

fn decode_packed(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u64>> {
    let min = cursor.varint()?;
    let width = u32::from(cursor.byte()?);
    if width == 0 || width > 64 {
        return Err(cursor.error(
            "F-5.3",
            format!("packed width: expected 1 to 64, found {width}"),
        ));
    }
    let bits = (count as u64).saturating_mul(u64::from(width));
    let bytes = cursor.bytes(bits.div_ceil(8) as usize)?;
    let mut values = Vec::with_capacity(count);
    let mut feed = bytes.iter();
    let (mut pending, mut pending_bits) = (0u128, 0u32);
    let mask = u128::MAX.wrapping_shr(128u32.wrapping_sub(width));
    for _ in 0..count {
        while pending_bits < width {
            pending |= u128::from(feed.next().copied().unwrap_or(0)).wrapping_shl(pending_bits);
            pending_bits = pending_bits.saturating_add(8);
        }
        values.push(min.wrapping_add((pending & mask) as u64));
        pending = pending.wrapping_shr(width);
        pending_bits = pending_bits.saturating_sub(width);
    }
    if pending != 0 {
        return Err(cursor.error("F-5.3", "padding bits: expected 0"));
    }
    Ok(values)
}

fn decode_delta(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u64>> {
    let mut values = values_for(cursor, count);
    let mut last = 0u64;
    for _ in 0..count {
        last = last.wrapping_add(unzigzag(cursor.varint()?) as u64);
        values.push(last);
    }
    Ok(values)
}

fn decode_dictionary(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u64>> {
    let distinct = decode_distinct(cursor, 256)?;
    let indexes = cursor.bytes(count)?;
    let values = indexes
        .iter()
        .map(|&i| distinct.get(usize::from(i)).copied());
    match values.collect() {
        Some(values) => Ok(values),
        None => Err(cursor.error("F-5.5", "dictionary index past the end")),
    }
}

fn decode_distinct(cursor: &mut Cursor<'_>, max: usize) -> Result<Vec<u64>> {
    let count = cursor.count(max, "distinct values")?;
    decode_plain(cursor, count)
}

fn decode_runs(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u64>> {
    let mut values = Vec::with_capacity(count);
    while values.len() < count {
        let run = cursor.varint()?;
        let remaining = count.saturating_sub(values.len());
        if run == 0 || run > remaining as u64 {
            return Err(cursor.error(
                "F-5.6",
                format!("run: expected 1 to {remaining}, found {run}"),
            ));
        }
        let value = cursor.varint()?;
        values.resize(values.len().saturating_add(run as usize), value);
    }
    Ok(values)
}

fn decode_plain(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u64>> {
    let mut values = values_for(cursor, count);
    for _ in 0..count {
        values.push(cursor.varint()?);
    }
    Ok(values)
}

fn decode_planes(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<u64>> {
    let min = cursor.varint()?;
    let width = usize::from(cursor.byte()?);
    if width == 0 || width > 8 {
        return Err(cursor.error(
            "F-5.8",
            format!("plane count: expected 1 to 8, found {width}"),
        ));
    }
    let mut values = vec![
        0u64;
        if cursor.remaining() >= count.saturating_mul(width) {
            count
        } else {
            0
        }
    ];
    for plane in 0..width {
        let bytes = cursor.bytes(count)?;
        let shift = (plane as u32).saturating_mul(8);
        for (value, &byte) in values.iter_mut().zip(bytes) {
            *value |= u64::from(byte).wrapping_shl(shift);
        }
    }
    values.iter_mut().for_each(|v| *v = v.wrapping_add(min));
    Ok(values)
}

/// Appends `values` as a column in the encoding that is estimated to be smallest after compression.
///
/// # Cost
/// O(n) for constant and affine columns, seven trial encodings otherwise.
pub fn encode(out: &mut Vec<u8>, values: &[u64]) {
    let first = values.first().copied().unwrap_or(0);
    let step = values.get(1).map_or(0, |v| v.wrapping_sub(first));
    if values
        .windows(2)
        .all(|w| matches!(w, [a, b] if b.wrapping_sub(*a) == step))
    {
        out.push(if step == 0 { CONST } else { AFFINE });
        put_varint(out, first);
        if step != 0 {
            put_varint(out, zigzag(step as i64));
        }
        return;
    }
    let (min, range) = span(values);
    // If all values are below 128, the plain encoding has the same bytes as byte planes and a
    // shorter head. If all offsets from the least value need 8 bits, byte planes have the same
    // bytes as the packed encoding.
    let is_plain = min.saturating_add(range) < 0x80;
    let is_plane = u64::BITS.saturating_sub(range.leading_zeros()) == 8;
    let candidates = [
        encode_runs(values),
        encode_dictionary(values),
        Some(encode_delta(values)),
        Some(encode_plain(values)),
        (!is_plain).then(|| encode_planes(values)),
        (!is_plane).then(|| encode_packed(values)),
    ];
    let best = candidates
        .into_iter()
        .flatten()
        .min_by_key(|bytes| estimate_bits(bytes));
    out.extend_from_slice(&best.unwrap_or_default());
}

/// Appends `values` as a column, in an encoding that is chosen by their range and their runs.
///
/// # Cost
/// O(n), a few passes.
pub fn encode_quickly(out: &mut Vec<u8>, values: &[u64]) {
    let first = values.first().copied().unwrap_or(0);
    let step = values.get(1).map_or(0, |v| v.wrapping_sub(first));
    let is_affine = |w: &[u64]| matches!(w, [a, b] if b.wrapping_sub(*a) == step);
    if values.windows(2).all(is_affine) {
        return encode(out, values);
    }
    let runs = values.chunk_by(|a, b| a == b).count();
    let (min, range) = span(values);
    let width = u64::BITS.saturating_sub(range.leading_zeros());
    let bytes = if runs.saturating_mul(4) < values.len() {
        encode_runs(values)
    } else if min.saturating_add(range) < 0x80 {
        Some(encode_plain(values))
    } else {
        let varint_len = |v: &u64| u64::from(70u32.saturating_sub(v.leading_zeros())) / 7;
        let plain_len = values.iter().map(varint_len).fold(0, u64::saturating_add);
        let planes_len = u64::from(width.div_ceil(8)).saturating_mul(values.len() as u64);
        match width % 8 {
            _ if plain_len < planes_len => Some(encode_plain(values)),
            1..=5 => Some(encode_packed(values)),
            _ => Some(encode_planes(values)),
        }
    };
    out.extend_from_slice(&bytes.unwrap_or_else(|| encode_plain(values)));
}

/// Estimates the size of `bytes`, in bits, after zstd: an ideal order-0 code, plus a few bits per
/// distinct byte for its table.
// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn estimate_bits(bytes: &[u8]) -> u64 {
    // Four tables in turn, because two increments of the same counter in a row stall the processor.
    let mut turns = [[0u32; 256]; 4];
    for four in bytes.chunks(4) {
        for (counts, &byte) in turns.iter_mut().zip(four) {
            counts[usize::from(byte)] += 1;
        }
    }
    let mut counts = turns[0];
    for turn in &turns[1..] {
        counts.iter_mut().zip(turn).for_each(|(a, b)| *a += b);
    }
    let total = bytes.len() as f64;
    let entropy: f64 = counts
        .iter()
        .filter(|&&c| c > 0)
        .map(|&c| f64::from(c) * (total / f64::from(c)).log2())
        .sum();
    let table = counts.iter().filter(|&&c| c > 0).count() as u64 * 4;
    // zstd stores data that uses most byte values without a code, so there is no table.
    ((entropy as u64).saturating_add(table)).min(bytes.len() as u64 * 8) + 16
}

/// The least value, and the difference between the greatest and the least.
fn span(values: &[u64]) -> (u64, u64) {
    let min = values.iter().copied().min().unwrap_or(0);
    let max = values.iter().copied().max().unwrap_or(0);
    (min, max.saturating_sub(min))
}

// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn encode_packed(values: &[u64]) -> Vec<u8> {
    let (min, range) = span(values);
    let width = (64 - range.leading_zeros()).max(1);
    let mut out = vec![PACKED];
    put_varint(&mut out, min);
    out.push(width as u8);
    let (mut pending, mut pending_bits) = (0u128, 0u32);
    for value in values {
        pending |= u128::from(value - min) << pending_bits;
        pending_bits += width;
        while pending_bits >= 8 {
            out.push(pending as u8);
            pending >>= 8;
            pending_bits -= 8;
        }
    }
    if pending_bits > 0 {
        out.push(pending as u8);
    }
    out
}

// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn encode_planes(values: &[u64]) -> Vec<u8> {
    let (min, range) = span(values);
    let width = (64 - range.leading_zeros()).div_ceil(8).max(1);
    let mut out = vec![PLANES];
    put_varint(&mut out, min);
    out.push(width as u8);
    for plane in 0..width {
        out.extend(values.iter().map(|v| ((v - min) >> (plane * 8)) as u8));
    }
    out
}

fn encode_delta(values: &[u64]) -> Vec<u8> {
    let mut out = vec![DELTA];
    let mut last = 0u64;
    for &value in values {
        put_varint(&mut out, zigzag(value.wrapping_sub(last) as i64));
        last = value;
    }
    out
}

fn encode_plain(values: &[u64]) -> Vec<u8> {
    let mut out = vec![PLAIN];
    values.iter().for_each(|&v| put_varint(&mut out, v));
    out
}

// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn encode_dictionary(values: &[u64]) -> Option<Vec<u8>> {
    let (min, range) = span(values);
    let mut distinct = Vec::new();
    let mut indexes = [0u8; 256];
    // Mostly, all values lie close to each other; then no sort is needed.
    if range < 256 {
        let mut seen = [false; 256];
        values.iter().for_each(|v| seen[(v - min) as usize] = true);
        for (offset, _) in seen.iter().enumerate().filter(|(_, seen)| **seen) {
            indexes[offset] = distinct.len() as u8;
            distinct.push(min + offset as u64);
        }
    } else {
        distinct.extend_from_slice(values);
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() > 256 {
            return None;
        }
    }
    let mut out = vec![DICTIONARY];
    put_varint(&mut out, distinct.len() as u64);
    distinct.iter().for_each(|&v| put_varint(&mut out, v));
    if range < 256 {
        out.extend(values.iter().map(|v| indexes[(v - min) as usize]))
    } else {
        let index = |v| distinct.binary_search(v).unwrap_or(0) as u8;
        out.extend(values.iter().map(index));
    }
    Some(out)
}

// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn encode_runs(values: &[u64]) -> Option<Vec<u8>> {
    let mut out = vec![RUNS];
    for run in values.chunk_by(|a, b| a == b) {
        put_varint(&mut out, run.len() as u64);
        put_varint(&mut out, run.first().copied().unwrap_or(0));
        if out.len() > values.len() * 2 {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(values: &[u64]) -> u8 {
        let mut bytes = Vec::new();
        encode(&mut bytes, values);
        let mut cursor = Cursor::new(&bytes, "test");
        let column = Column::decode(&mut cursor, values.len()).unwrap();
        cursor.finish().unwrap();
        assert_eq!(column.iter(values.len()).collect::<Vec<_>>(), values);
        for len in 0..bytes.len() {
            let mut cursor = Cursor::new(&bytes[..len], "test");
            assert!(
                Column::decode(&mut cursor, values.len()).is_err(),
                "prefix of {len} bytes"
            );
        }
        bytes[0]
    }

    #[test]
    fn every_shape_round_trips_and_every_prefix_is_refused() {
        assert_eq!(round_trip(&[7; 1000]), CONST);
        assert_eq!(
            round_trip(&(0..1000).map(|i| 5 + i * 3).collect::<Vec<_>>()),
            AFFINE
        );
        assert_eq!(
            round_trip(&(0..1000).map(|i| u64::MAX - i).collect::<Vec<_>>()),
            AFFINE
        );
        let runs: Vec<u64> = (0..1000).map(|i| i / 300 * 7919).collect();
        round_trip(&runs);
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            state >> 33
        };
        round_trip(&(0..1000).map(|_| random() % 3).collect::<Vec<_>>());
        round_trip(&(0..1000).map(|_| random() % 100_000).collect::<Vec<_>>());
        round_trip(
            &(0..1000)
                .map(|_| random().wrapping_mul(random()))
                .collect::<Vec<_>>(),
        );
        let mut sum = 0;
        round_trip(
            &(0..1000)
                .map(|_| {
                    sum += random() % 9;
                    sum
                })
                .collect::<Vec<_>>(),
        );
        round_trip(&[u64::MAX, 0, u64::MAX]);
        round_trip(&[3, 3, 4]);
    }

    #[test]
    fn every_encoding_decodes_what_it_encodes() {
        let values: Vec<u64> = vec![5, 9, 1 << 40, 5, 5, 77, 0];
        let all = [
            encode_runs(&values).unwrap_or_default(),
            encode_dictionary(&values).unwrap(),
            encode_delta(&values),
            encode_plain(&values),
            encode_planes(&values),
            encode_packed(&values),
        ];
        for bytes in all.iter().filter(|b| !b.is_empty()) {
            let column = Column::decode(&mut Cursor::new(bytes, "test"), values.len()).unwrap();
            assert_eq!(
                column.iter(values.len()).collect::<Vec<_>>(),
                values,
                "tag {}",
                bytes[0]
            );
        }
    }
}
