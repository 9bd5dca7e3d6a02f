//! The name column: front-coded, numbered, hexadecimal or ascending, whichever is smallest.

mod ascending;
mod hex;
mod list;

pub use list::Names;

use crate::Result;
use crate::column::{self, Column};
use crate::cursor::Cursor;
use crate::limits::NAME_LEN_MAX;
use hex::{HexNames, affixes, decode_affix, digit_of, nibble_of, put_affix, shared_len};

const FRONT: u8 = 0;
const NUMBERED: u8 = 1;
const HEX: u8 = 2;
const ASCENDING: u8 = 3;

impl Names {
    /// Decodes `count` names.
    ///
    /// # Errors
    /// `Corrupt` for an unknown tag, a short column, a name longer than `NAME_LEN_MAX`, or a name
    /// with a `/` or NUL.
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
        names.end_name();
        last = start..names.bytes.len();
    }
    Ok(names)
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
        names.end_name();
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
        names.end_name();
    }
    if feed.any(|n| n != 0) {
        Err(cursor.error("F-6.5", "padding digit: expected 0"))
    } else {
        Ok(names)
    }
}

/// Appends `names` (each at most `NAME_LEN_MAX` bytes) in the smallest of the encodings.
// trusted input: values of this program
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
pub fn encode(out: &mut Vec<u8>, names: &[&[u8]]) {
    let front = encode_front(names);
    let hex = HexNames::of(names);
    let hexadecimal = hex.as_ref().map(encode_hex);
    let ascending = hex
        .as_ref()
        .and_then(|hex| ascending::encode(hex, ASCENDING));
    let best = [encode_numbered(names), hexadecimal, ascending]
        .into_iter()
        .flatten()
        .min_by_key(Vec::len);
    match best {
        // Text compresses to about half its size; digits and packed digits hardly compress.
        Some(other) if other.len() * 2 < front.len() + front.len() / 8 => {
            out.extend_from_slice(&other)
        }
        _ => out.extend_from_slice(&front),
    }
}

// trusted input: values of this program
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

// trusted input: values of this program
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
        // The numbers start again: another directory begins.
        hex.rotate_left(123);
        assert_eq!(round_trip(&hex), ASCENDING);
        // Repeated names go to the compressor, which finds whole bytes: no ascending encoding.
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
