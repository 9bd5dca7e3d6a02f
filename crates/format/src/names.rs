//! The name column: front-coded, numbered, or hexadecimal, whichever is smallest.

mod ascending;

use crate::Result;
use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint};
use crate::limits::NAME_LEN_MAX;

const FRONT: u8 = 0;
const NUMBERED: u8 = 1;
const HEX: u8 = 2;
const ASCENDING: u8 = 3;

/// Decoded names, one after the other in one buffer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Names {
    /// Name `index`; empty behind the end.
    pub fn get(&self, index: usize) -> &[u8] {
        let end = self.ends.get(index).copied().unwrap_or(0) as usize;
        let start = match index.checked_sub(1) {
            Some(before) => self.ends.get(before).copied().unwrap_or(0) as usize,
            None => 0,
        };
        self.bytes.get(start..end).unwrap_or(&[])
    }

    /// How many names there are.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of memory behind the names.
    pub fn memory_len(&self) -> usize {
        self.bytes
            .len()
            .saturating_add(self.ends.len().saturating_mul(4))
    }

    /// The strings that lie one after the other in `bytes` with these lengths.
    pub fn from_lens(bytes: &[u8], lens: &[usize]) -> Self {
        let mut end = 0u32;
        let ends = lens.iter().map(|&len| {
            end = end.saturating_add(len as u32);
            end
        });
        Self {
            ends: ends.collect(),
            bytes: bytes.to_vec(),
        }
    }

    fn close(&mut self) {
        self.ends.push(self.bytes.len() as u32);
    }

    /// Decodes `count` names.
    ///
    /// # Errors
    /// `Corrupt` for an unknown tag, a short column, or a name over `NAME_LEN_MAX` or with a `/` or
    /// NUL in it.
    pub fn decode(cursor: &mut Cursor<'_>, count: usize) -> Result<Self> {
        let names = match cursor.byte()? {
            FRONT => decode_front(cursor, count)?,
            NUMBERED => decode_numbered(cursor, count)?,
            HEX => decode_hex(cursor, count)?,
            ASCENDING => ascending::decode(cursor, count)?,
            tag => {
                return Err(
                    cursor.error("F-6.1", format!("name tag: expected 0 to 3, found {tag}"))
                );
            }
        };
        if names.bytes.iter().any(|&b| b == b'/' || b == 0) {
            return Err(cursor.error("F-6.2", "name: expected no slash and no NUL byte"));
        }
        let long = (0..count).find(|&i| names.get(i).len() > NAME_LEN_MAX);
        match long {
            Some(i) => Err(cursor.error("F-6.2", format!("name {i}: expected at most 255 bytes"))),
            None => Ok(names),
        }
    }
}

fn decode_front(cursor: &mut Cursor<'_>, count: usize) -> Result<Names> {
    let shared = Column::decode(cursor, count)?;
    let added = Column::decode(cursor, count)?;
    let mut names = Names::default();
    let mut last = 0usize..0usize;
    for i in 0..count {
        let (shared, added) = (shared.get(i), added.get(i));
        if shared > last.len() as u64 || shared.saturating_add(added) > NAME_LEN_MAX as u64 {
            return Err(cursor.error(
                "F-6.3",
                format!("name {i}: shares {shared} and adds {added} bytes"),
            ));
        }
        let start = names.bytes.len();
        let shared_end = last.start.saturating_add(shared as usize);
        names.bytes.extend_from_within(last.start..shared_end);
        names.bytes.extend_from_slice(cursor.bytes(added as usize)?);
        names.close();
        last = start..names.bytes.len();
    }
    Ok(names)
}

fn decode_affix<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8]> {
    let len = cursor.count(NAME_LEN_MAX, "affix length")?;
    cursor.bytes(len)
}

fn decode_numbered(cursor: &mut Cursor<'_>, count: usize) -> Result<Names> {
    let prefix = decode_affix(cursor)?;
    let suffix = decode_affix(cursor)?;
    let width = usize::from(cursor.byte()?);
    if width > 20 {
        return Err(cursor.error(
            "F-6.4",
            format!("digits: expected at most 20, found {width}"),
        ));
    }
    let values = Column::decode(cursor, count)?;
    let mut names = Names::default();
    for value in values.iter(count) {
        names.bytes.extend_from_slice(prefix);
        let digits = format!("{value:0width$}");
        names.bytes.extend_from_slice(digits.as_bytes());
        names.bytes.extend_from_slice(suffix);
        names.close();
    }
    Ok(names)
}

fn decode_hex(cursor: &mut Cursor<'_>, count: usize) -> Result<Names> {
    let prefix = decode_affix(cursor)?;
    let suffix = decode_affix(cursor)?;
    let digits = cursor.count(NAME_LEN_MAX, "hex digits")?;
    let shared = Column::decode(cursor, count)?;
    let added: usize = shared
        .iter(count)
        .map(|s| digits.saturating_sub(s as usize))
        .sum();
    if shared.iter(count).any(|s| s > digits as u64) {
        return Err(cursor.error("F-6.5", format!("shared digits: expected at most {digits}")));
    }
    let packed = cursor.bytes(added.div_ceil(2))?;
    let mut feed = packed.iter().flat_map(|b| [b >> 4, b & 15]);
    let mut current = vec![b'0'; digits];
    let mut names = Names::default();
    for s in shared.iter(count) {
        for digit in current.iter_mut().skip(s as usize) {
            *digit = digit_of(feed.next().unwrap_or(0));
        }
        names.bytes.extend_from_slice(prefix);
        names.bytes.extend_from_slice(&current);
        names.bytes.extend_from_slice(suffix);
        names.close();
    }
    match feed.any(|n| n != 0) {
        true => Err(cursor.error("F-6.5", "padding digit: expected 0")),
        false => Ok(names),
    }
}

/// Appends `names` (each at most `NAME_LEN_MAX` bytes) in the smallest of the encodings.
// encodes what this program made
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub fn encode(out: &mut Vec<u8>, names: &[&[u8]]) {
    let front = encode_front(names);
    let hex = HexNames::of(names);
    let hexadecimal = hex.as_ref().map(encode_hex);
    let ascending = hex.as_ref().and_then(ascending::encode);
    let best = [encode_numbered(names), hexadecimal, ascending]
        .into_iter()
        .flatten()
        .min_by_key(Vec::len);
    match best {
        // Text compresses to about half; digits and packed digits hardly at all.
        Some(other) if other.len() * 2 < front.len() + front.len() / 8 => {
            out.extend_from_slice(&other)
        }
        _ => out.extend_from_slice(&front),
    }
}

fn shared_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

// encodes what this program made
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn encode_front(names: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![FRONT];
    let (mut shared, mut added, mut text) = (Vec::new(), Vec::new(), Vec::new());
    let mut last: &[u8] = &[];
    for name in names {
        let common = shared_len(last, name);
        shared.push(common as u64);
        added.push((name.len() - common) as u64);
        text.extend_from_slice(&name[common..]);
        last = name;
    }
    column::encode(&mut out, &shared);
    column::encode(&mut out, &added);
    out.extend_from_slice(&text);
    out
}

/// The longest prefix and suffix that all names share, cut back so that they do not take bytes that
/// `is_inner` accepts.
// encodes what this program made
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn affixes<'a>(names: &[&'a [u8]], is_inner: fn(u8) -> bool) -> Option<(&'a [u8], &'a [u8])> {
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

fn put_affix(out: &mut Vec<u8>, affix: &[u8]) {
    put_varint(out, affix.len() as u64);
    out.extend_from_slice(affix);
}

fn encode_numbered(names: &[&[u8]]) -> Option<Vec<u8>> {
    let (prefix, suffix) = affixes(names, |b| b.is_ascii_digit())?;
    let inner = |n: &'_ &[u8]| -> Option<(usize, u64)> {
        let digits = n.get(prefix.len()..n.len().checked_sub(suffix.len())?)?;
        let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        let value = std::str::from_utf8(digits)
            .ok()
            .filter(|_| plain)?
            .parse()
            .ok()?;
        Some((digits.len(), value))
    };
    let parsed: Vec<(usize, u64)> = names.iter().map(inner).collect::<Option<_>>()?;
    let width = parsed.first()?.0;
    let padded = parsed.iter().all(|(len, _)| *len == width);
    let minimal = |(len, value): &(usize, u64)| value.to_string().len() == *len;
    if width > 20 || (!padded && !parsed.iter().all(minimal)) {
        return None;
    }
    let mut out = vec![NUMBERED];
    put_affix(&mut out, prefix);
    put_affix(&mut out, suffix);
    out.push(if padded { width as u8 } else { 0 });
    column::encode(&mut out, &parsed.iter().map(|p| p.1).collect::<Vec<_>>());
    Some(out)
}

const fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// The digit for the low four bits of `nibble`.
const fn digit_of(nibble: u8) -> u8 {
    match nibble & 15 {
        small @ 0..=9 => b'0'.wrapping_add(small),
        large => b'a'.wrapping_sub(10).wrapping_add(large),
    }
}

/// The value of a lower-case digit.
#[allow(clippy::arithmetic_side_effects)] // of digits that were looked at
fn nibble_of(digit: u8) -> u8 {
    match digit.is_ascii_digit() {
        true => digit - b'0',
        false => digit - b'a' + 10,
    }
}

/// Names that are hexadecimal numbers of one length between a common prefix and suffix.
struct HexNames<'a> {
    prefix: &'a [u8],
    suffix: &'a [u8],
    /// What lies between.
    inner: Vec<&'a [u8]>,
    digits: usize,
}

impl<'a> HexNames<'a> {
    // encodes what this program made
    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
    fn of(names: &[&'a [u8]]) -> Option<Self> {
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

    /// What every encoding of them begins with.
    fn head(&self, tag: u8) -> Vec<u8> {
        let mut out = vec![tag];
        put_affix(&mut out, self.prefix);
        put_affix(&mut out, self.suffix);
        put_varint(&mut out, self.digits as u64);
        out
    }
}

// encodes what this program made
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
fn encode_hex(names: &HexNames<'_>) -> Vec<u8> {
    let (mut shared, mut nibbles) = (Vec::new(), Vec::new());
    let mut last: &[u8] = &[];
    for name in &names.inner {
        let common = shared_len(last, name);
        shared.push(common as u64);
        nibbles.extend(name[common..].iter().map(|&b| nibble_of(b)));
        last = name;
    }
    let mut out = names.head(HEX);
    column::encode(&mut out, &shared);
    out.extend(
        nibbles
            .chunks(2)
            .map(|pair| (pair[0] << 4) | pair.get(1).copied().unwrap_or(0)),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(names: &[Vec<u8>]) -> u8 {
        let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
        let mut bytes = Vec::new();
        encode(&mut bytes, &names);
        let mut cursor = Cursor::new(&bytes, "test");
        let decoded = Names::decode(&mut cursor, names.len()).unwrap();
        cursor.finish().unwrap();
        for (i, name) in names.iter().enumerate() {
            assert_eq!(decoded.get(i), *name);
        }
        for len in 0..bytes.len() {
            assert!(Names::decode(&mut Cursor::new(&bytes[..len], "test"), names.len()).is_err());
        }
        bytes[0]
    }

    #[test]
    fn names_of_every_shape_round_trip() {
        let padded: Vec<Vec<u8>> = (0..1000)
            .map(|i| format!("file{i:04}.txt").into_bytes())
            .collect();
        assert_eq!(round_trip(&padded), NUMBERED);
        let mut bare: Vec<Vec<u8>> = (0..1000).map(|i| format!("{i}").into_bytes()).collect();
        bare.sort();
        round_trip(&bare);
        let mut hex: Vec<Vec<u8>> = (0..500u128)
            .map(|i| {
                format!(
                    "{:032x}",
                    i.wrapping_mul(0x9E3779B97F4A7C15F39CC0605CEDC834 | 1)
                )
                .into_bytes()
            })
            .collect();
        assert_eq!(round_trip(&hex), HEX);
        hex.sort();
        assert_eq!(round_trip(&hex), ASCENDING);
        // Another directory begins.
        hex.rotate_left(123);
        assert_eq!(round_trip(&hex), ASCENDING);
        // What is there twice is shared by the frame around it.
        hex.extend_from_within(..250);
        assert_eq!(round_trip(&hex), HEX);
        let odd: Vec<Vec<u8>> = vec![
            vec![],
            b"-rf".to_vec(),
            b"a\nb".to_vec(),
            vec![0xff; 255],
            vec![0xff, 0xfe],
            b"007".to_vec(),
        ];
        assert_eq!(round_trip(&odd), FRONT);
        round_trip(&[
            b"01".to_vec(),
            b"1".to_vec(),
            b"99999999999999999999999".to_vec(),
        ]);
    }
}
