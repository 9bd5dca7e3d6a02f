//! Shared parts of the name encodings: affixes and hexadecimal digits.

use crate::Result;
use crate::cursor::{Cursor, put_varint};
use crate::limits::NAME_LEN_MAX;

pub(super) fn decode_affix<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    let len = cursor.count(NAME_LEN_MAX, "affix length")?;
    cursor.bytes(len)
}

pub(super) fn shared_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// The longest prefix and suffix that all names share, without bytes next to the middle part that
/// `is_inner` accepts.
// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub(super) fn affixes<'a>(
    names: &[&'a [u8]],
    is_inner: fn(u8) -> bool,
) -> Option<(&'a [u8], &'a [u8])> {
    let first = *names.first()?;
    let mut prefix = names.iter().map(|n| shared_len(first, n)).min()?;
    while prefix > 0 && is_inner(first[prefix - 1]) {
        prefix -= 1;
    }
    let tail = |n: &[u8]| {
        first[prefix..]
            .iter()
            .rev()
            .zip(n[prefix..].iter().rev())
            .take_while(|(x, y)| x == y)
            .count()
    };
    let mut suffix = names.iter().map(|n| tail(n)).min()?;
    while suffix > 0 && is_inner(first[first.len() - suffix]) {
        suffix -= 1;
    }
    Some((&first[..prefix], &first[first.len() - suffix..]))
}

pub(super) fn put_affix(out: &mut Vec<u8>, affix: &[u8]) {
    put_varint(out, affix.len() as u64);
    out.extend_from_slice(affix);
}

pub(super) const fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Hexadecimal digit of the low four bits of `nibble`.
pub(super) const fn digit_of(nibble: u8) -> u8 {
    match nibble & 15 {
        small @ 0..=9 => b'0'.wrapping_add(small),
        large => b'a'.wrapping_sub(10).wrapping_add(large),
    }
}

/// Value of a lower-case digit.
#[allow(clippy::arithmetic_side_effects)] // the caller has checked the digit
pub(super) fn nibble_of(digit: u8) -> u8 {
    if digit.is_ascii_digit() {
        digit - b'0'
    } else {
        digit - b'a' + 10
    }
}

/// Names that are hexadecimal numbers of equal length between a common prefix and suffix.
pub(super) struct HexNames<'a> {
    pub(super) prefix: &'a [u8],
    pub(super) suffix: &'a [u8],
    /// The part between prefix and suffix.
    pub(super) inner: Vec<&'a [u8]>,
    pub(super) digits: usize,
}

impl<'a> HexNames<'a> {
    // trusted input: values of this program
    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
    pub(super) fn of(names: &[&'a [u8]]) -> Option<Self> {
        let (prefix, suffix) = affixes(names, is_lower_hex)?;
        let inner: Vec<&[u8]> = names
            .iter()
            .map(|n| n.get(prefix.len()..n.len().checked_sub(suffix.len())?))
            .collect::<Option<_>>()?;
        let digits = inner.first()?.len();
        let is_number = |n: &&[u8]| n.len() == digits && n.iter().all(|&b| is_lower_hex(b));
        (digits >= 4 && inner.iter().all(is_number)).then_some(Self {
            prefix,
            suffix,
            inner,
            digits,
        })
    }

    /// The first bytes of every encoding of these names.
    pub(super) fn head(&self, tag: u8) -> Vec<u8> {
        let mut out = vec![tag];
        put_affix(&mut out, self.prefix);
        put_affix(&mut out, self.suffix);
        put_varint(&mut out, self.digits as u64);
        out
    }
}
