//! Groups whose rows are taken apart into columns of numbers, by kind of row.
//!
//! Values of one column are alike, so that a difference or a few bits are left of most of them.
//! Each column of numbers begins with a byte that names what its values are differences from.

use super::rows::{GROUP_ROWS_MAX, RAW_LEN_MAX, Rows, bad};
use crate::Result;
use crate::column::{self, Column};
use crate::container::HEADER_LEN;
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::volume::PIECES_MAX;

/// Kind of the rows of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Rows of blocks.
    Blocks = 1,
    /// Rows of inodes.
    Inodes = 2,
    /// Rows of names.
    Names = 3,
    /// Rows of extents.
    Extents = 4,
}

/// A field of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    /// Number of four bytes in a key.
    Key4,
    /// Number of eight bytes in a key.
    Key8,
    /// Cookie in a key: two columns, the hash and the slot.
    Cookie,
    /// Varint.
    Varint,
    /// Byte.
    Byte,
    /// Time: signed seconds and nanoseconds, one column in nanoseconds.
    Time,
    /// Length and as many bytes.
    Text,
    /// 32 bytes.
    Digest,
}

/// Values that a column may store its differences from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    /// The value of the row before.
    Previous,
    /// The value of this earlier column in the same row.
    Column(usize),
    /// The end of the row before: its offset and length, and `gap`, if `place` is the same in both;
    /// else `start`.
    End {
        place: usize,
        len: usize,
        gap: u64,
        start: u64,
    },
}

const PREVIOUS: &[Base] = &[Base::Previous];
const SLOT_BITS: u32 = 7;
const SECOND: i64 = 1_000_000_000;
/// References of the four columns of a piece: gap, length, block, offset.
const PIECE_BASES: [&[Base]; 4] = [
    PREVIOUS,
    PREVIOUS,
    PREVIOUS,
    &[Base::End {
        place: 2,
        len: 1,
        gap: 0,
        start: 0,
    }],
];

impl Shape {
    /// The kind with this number.
    pub(super) fn from_code(code: u8) -> Option<Self> {
        [Self::Blocks, Self::Inodes, Self::Names, Self::Extents]
            .into_iter()
            .find(|shape| *shape as u8 == code)
    }

    const fn key(self) -> &'static [Field] {
        use Field::{Cookie, Key4, Key8};
        match self {
            Self::Blocks => &[Key8],
            Self::Inodes => &[Key4, Key8],
            Self::Names => &[Key4, Key8, Cookie],
            Self::Extents => &[Key4, Key8, Key8],
        }
    }

    const fn value(self) -> &'static [Field] {
        use Field::{Byte, Digest, Text, Time, Varint as V};
        match self {
            Self::Blocks => &[V, V, V, Byte, Byte, V, V, Digest],
            Self::Inodes => &[V, V, V, V, V, V, V, Time, Time, Time, Time, V, V, V, Text],
            Self::Names => &[V, V, Text],
            Self::Extents => &[],
        }
    }

    /// Order in which columns are stored: a column stands behind those that it may refer to.
    const fn order(self) -> &'static [usize] {
        match self {
            Self::Blocks => &[0, 1, 3, 4, 5, 6, 7, 2],
            Self::Inodes => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 10, 11, 9, 13, 14, 15, 16],
            Self::Names => &[0, 1, 2, 3, 4, 5, 6],
            Self::Extents => &[0, 1, 2, 3],
        }
    }

    /// References of column `no`.
    const fn bases(self, no: usize) -> &'static [Base] {
        use Base::{Column as C, Previous};
        match (self, no) {
            (Self::Blocks, 2) => &[Base::End {
                place: 1,
                len: 6,
                gap: HEADER_LEN as u64,
                start: 64,
            }],
            (Self::Blocks, 7) => &[Previous, C(6)],
            (Self::Inodes, 8) => &[Previous, C(7)],
            (Self::Inodes, 10) => &[Previous, C(12)],
            (Self::Inodes, 11) => &[Previous, C(12), C(10)],
            (Self::Inodes, 9) => &[Previous, C(12), C(10), C(11)],
            (Self::Names, 4) => &[Previous, C(1)],
            _ => PREVIOUS,
        }
    }
}

/// Rows, taken apart.
struct Parts {
    columns: Vec<Vec<u64>>,
    /// Columns of the pieces of extents rows.
    pieces: [Vec<u64>; 4],
    /// Texts and digests.
    bytes: Vec<u8>,
}

fn be<const N: usize>(cursor: &mut Cursor<'_>) -> Result<[u8; N]> {
    Ok(cursor.bytes(N)?.try_into().unwrap_or([0; N]))
}

/// Appends the numbers of `fields` to `out`, and their bytes to `bytes`. `None` if the encoding is
/// not the one that [`join`] makes.
fn split(
    cursor: &mut Cursor<'_>,
    fields: &[Field],
    out: &mut Vec<u64>,
    bytes: &mut Vec<u8>,
) -> Option<()> {
    for field in fields {
        match field {
            Field::Key4 => out.push(u32::from_be_bytes(be(cursor).ok()?).into()),
            Field::Key8 => out.push(u64::from_be_bytes(be(cursor).ok()?)),
            Field::Cookie => {
                let cookie = u64::from_be_bytes(be(cursor).ok()?);
                out.extend([cookie >> SLOT_BITS, cookie & 0x7f]);
            }
            Field::Varint => out.push(cursor.varint().ok()?),
            Field::Byte => out.push(cursor.byte().ok()?.into()),
            Field::Time => {
                let seconds = unzigzag(cursor.varint().ok()?);
                let rest = cursor.bounded(999_999_999, "nanoseconds").ok()?;
                let time = seconds.checked_mul(SECOND)?.checked_add(rest as i64)?;
                out.push(time as u64);
            }
            Field::Text => {
                let len = cursor.count(RAW_LEN_MAX, "text").ok()?;
                out.push(len as u64);
                bytes.extend_from_slice(cursor.bytes(len).ok()?);
            }
            Field::Digest => bytes.extend_from_slice(cursor.bytes(32).ok()?),
        }
    }
    Some(())
}

/// Appends `fields` with these numbers and bytes to `out`.
fn join(
    fields: &[Field],
    numbers: &mut impl Iterator<Item = u64>,
    bytes: &mut Cursor<'_>,
    out: &mut Vec<u8>,
) -> Result<()> {
    for field in fields {
        if *field == Field::Digest {
            out.extend_from_slice(bytes.bytes(32)?);
            continue;
        }
        let number = numbers.next().unwrap_or_default();
        let too_large = || bad("S-6.5", "a number in a group is too large for its field");
        match field {
            Field::Key4 => {
                let number = u32::try_from(number).map_err(|_| too_large())?;
                out.extend_from_slice(&number.to_be_bytes());
            }
            Field::Key8 => out.extend_from_slice(&number.to_be_bytes()),
            Field::Cookie => {
                let slot = numbers.next().unwrap_or_default();
                if slot > 0x7f || number > u64::MAX >> SLOT_BITS {
                    return Err(too_large());
                }
                let cookie = number.wrapping_shl(SLOT_BITS) | slot;
                out.extend_from_slice(&cookie.to_be_bytes());
            }
            Field::Varint => put_varint(out, number),
            Field::Byte => out.push(u8::try_from(number).map_err(|_| too_large())?),
            Field::Time => {
                let time = number as i64;
                put_varint(out, zigzag(time.div_euclid(SECOND)));
                put_varint(out, time.rem_euclid(SECOND) as u64);
            }
            Field::Text => {
                let len = usize::try_from(number).map_err(|_| too_large())?;
                let text = bytes.bytes(len)?;
                put_varint(out, number);
                out.extend_from_slice(text);
            }
            Field::Digest => {}
        }
    }
    Ok(())
}

/// Appends the pieces of an extents row. Returns their number.
fn split_pieces(value: &[u8], out: &mut [Vec<u64>; 4]) -> Option<u64> {
    let mut cursor = Cursor::new(value, "extents row");
    let (mut block, mut count) = (0u64, 0u64);
    let [gaps, lens, blocks, offsets] = out;
    while cursor.remaining() > 0 {
        gaps.push(cursor.varint().ok()?);
        lens.push(cursor.varint().ok()?);
        block = block.wrapping_add(unzigzag(cursor.varint().ok()?) as u64);
        blocks.push(block);
        offsets.push(cursor.varint().ok()?);
        count = count.saturating_add(1);
    }
    Some(count)
}

fn take_apart<'a>(shape: Shape, rows: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<Parts> {
    let mut parts = Parts {
        columns: vec![Vec::new(); shape.order().len()],
        pieces: Default::default(),
        bytes: Vec::new(),
    };
    let mut numbers = Vec::new();
    for (key, value) in rows {
        numbers.clear();
        let mut cursor = Cursor::new(key, "key");
        split(&mut cursor, shape.key(), &mut numbers, &mut parts.bytes)?;
        cursor.finish().ok()?;
        if shape == Shape::Extents {
            numbers.push(split_pieces(value, &mut parts.pieces)?);
        } else {
            let mut cursor = Cursor::new(value, "value");
            split(&mut cursor, shape.value(), &mut numbers, &mut parts.bytes)?;
            cursor.finish().ok()?;
        }
        for (column, number) in parts.columns.iter_mut().zip(&numbers) {
            column.push(*number);
        }
    }
    let piece_count = parts.pieces.first().map_or(0, Vec::len);
    (piece_count <= PIECES_MAX).then_some(parts)
}

/// The number that value `row` of column `no` is a difference from.
fn base_of(base: Base, no: usize, columns: &[Vec<u64>], row: usize) -> u64 {
    let at = |no: usize, row: usize| {
        let column = columns.get(no);
        column.and_then(|column| column.get(row)).copied()
    };
    let before = row.checked_sub(1);
    match base {
        Base::Previous => before.and_then(|row| at(no, row)).unwrap_or(0),
        Base::Column(other) => at(other, row).unwrap_or(0),
        Base::End {
            place,
            len,
            gap,
            start,
        } => match before {
            Some(before) if at(place, before) == at(place, row) => {
                let end = at(no, before).unwrap_or(0);
                let len = at(len, before).unwrap_or(0);
                end.wrapping_add(len).wrapping_add(gap)
            }
            _ => start,
        },
    }
}

/// Bits that `values` take, roughly.
fn cost(values: &[u64]) -> u64 {
    let Some(first) = values.first() else {
        return 0;
    };
    if values.iter().all(|value| value == first) {
        return 0;
    }
    let bits = |value: &u64| u64::from(u64::BITS.saturating_sub(value.leading_zeros()));
    values.iter().map(bits).fold(0, u64::saturating_add)
}

/// Appends a column: what its values are differences from, and the differences.
fn put_column(out: &mut Vec<u8>, bases: &[Base], columns: &[Vec<u64>], no: usize) {
    let Some(values) = columns.get(no) else {
        return;
    };
    let mut best = (cost(values), 0u8, values.clone());
    for (index, base) in bases.iter().enumerate() {
        if best.0 == 0 {
            break;
        }
        let difference = |(row, value): (usize, &u64)| {
            let from = base_of(*base, no, columns, row);
            zigzag(value.wrapping_sub(from) as i64)
        };
        let differences: Vec<u64> = values.iter().enumerate().map(difference).collect();
        let cost = cost(&differences);
        if cost < best.0 {
            best = (cost, (index as u8).saturating_add(1), differences);
        }
    }
    out.push(best.1);
    column::encode_quickly(out, &best.2);
}

/// Reads column `no` of `count` values into `columns`.
fn take_column(
    cursor: &mut Cursor<'_>,
    bases: &[Base],
    columns: &mut [Vec<u64>],
    no: usize,
    count: usize,
) -> Result<()> {
    let tag = cursor.byte()?;
    let base = match usize::from(tag).checked_sub(1) {
        None => None,
        Some(index) => Some(*bases.get(index).ok_or_else(|| {
            bad(
                "S-6.5",
                "a column refers to something that its kind does not know",
            )
        })?),
    };
    let stored = Column::decode(cursor, count)?;
    for (row, number) in stored.iter(count).enumerate() {
        let value = match base {
            None => number,
            Some(base) => base_of(base, no, columns, row).wrapping_add(unzigzag(number) as u64),
        };
        if let Some(column) = columns.get_mut(no) {
            column.push(value);
        }
    }
    Ok(())
}

/// The bytes of a group behind its layout; `None` if a row is not of this kind.
pub(super) fn encode<'a>(
    shape: Shape,
    rows: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    out: &mut Vec<u8>,
) -> Option<()> {
    let parts = take_apart(shape, rows)?;
    let count = parts.columns.first().map_or(0, Vec::len);
    put_varint(out, count as u64);
    for &no in shape.order() {
        put_column(out, shape.bases(no), &parts.columns, no);
    }
    if shape == Shape::Extents {
        for (no, bases) in PIECE_BASES.iter().enumerate() {
            put_column(out, bases, &parts.pieces, no);
        }
    }
    out.extend_from_slice(&parts.bytes);
    Some(())
}

/// Parses what [`encode`] made.
pub(super) fn parse(shape: Shape, cursor: &mut Cursor<'_>) -> Result<Rows> {
    let count = cursor.count(GROUP_ROWS_MAX, "rows of a group")?;
    if count == 0 {
        return Err(bad("S-6.2", "a group has no row"));
    }
    let mut columns = vec![Vec::new(); shape.order().len()];
    for &no in shape.order() {
        take_column(cursor, shape.bases(no), &mut columns, no, count)?;
    }
    let mut pieces: [Vec<u64>; 4] = Default::default();
    if shape == Shape::Extents {
        let counts = columns.get(3).into_iter().flatten();
        let total = counts.fold(0u64, |sum, count| sum.saturating_add(*count));
        if total > PIECES_MAX as u64 {
            return Err(bad("S-6.2", "the rows of a group have too many pieces"));
        }
        for (no, bases) in PIECE_BASES.iter().enumerate() {
            take_column(cursor, bases, &mut pieces, no, total as usize)?;
        }
    }
    let mut bytes = Cursor::new(cursor.bytes(cursor.remaining())?, "row group");
    let rows = put_together(shape, count, &columns, &pieces, &mut bytes)?;
    bytes.finish()?;
    Ok(rows)
}

fn put_together(
    shape: Shape,
    count: usize,
    columns: &[Vec<u64>],
    pieces: &[Vec<u64>; 4],
    bytes: &mut Cursor<'_>,
) -> Result<Rows> {
    let mut rows = Rows::default();
    let (mut key, mut value) = (Vec::new(), Vec::new());
    let mut piece = 0usize;
    for row in 0..count {
        let mut numbers = columns
            .iter()
            .map(|column| column.get(row).copied().unwrap_or_default());
        key.clear();
        value.clear();
        join(shape.key(), &mut numbers, bytes, &mut key)?;
        if shape == Shape::Extents {
            let end = piece.saturating_add(numbers.next().unwrap_or_default() as usize);
            put_pieces(pieces, piece..end, &mut value);
            piece = end;
        } else {
            join(shape.value(), &mut numbers, bytes, &mut value)?;
        }
        rows.push(&key, &value)?;
    }
    Ok(rows)
}

fn put_pieces(pieces: &[Vec<u64>; 4], range: std::ops::Range<usize>, out: &mut Vec<u8>) {
    let [gaps, lens, blocks, offsets] = pieces;
    let mut last = 0u64;
    for piece in range {
        let at = |column: &Vec<u64>| column.get(piece).copied().unwrap_or_default();
        put_varint(out, at(gaps));
        put_varint(out, at(lens));
        put_varint(out, zigzag(at(blocks).wrapping_sub(last) as i64));
        put_varint(out, at(offsets));
        last = at(blocks);
    }
}
