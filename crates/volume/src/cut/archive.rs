//! Headers of archives: tar, in all its dialects that have a magic number.
//!
//! Source: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar 1.35, "Basic Tar Format".

use std::ops::Range;

/// Length of a header, and of the unit that members are padded to.
pub const HEADER_LEN: u64 = 512;

const SIZE: Range<usize> = 124..136;
const CHECKSUM: Range<usize> = 148..156;
const KIND: usize = 156;
const MAGIC: Range<usize> = 257..262;
/// Longest member that is taken for one.
const MEMBER_LEN_MAX: u64 = 1 << 60;

/// A header: the length of what follows it, and whether that is the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of what follows, bytes.
    pub len: u64,
    /// Whether that is the content of a file; long names and attributes are not.
    pub has_content: bool,
}

/// The header that `block` is, if its checksum is right.
pub fn parse(block: &[u8]) -> Option<Header> {
    if block.get(MAGIC)? != b"ustar" || block.len() < HEADER_LEN as usize {
        return None;
    }
    let announced = octal(block.get(CHECKSUM)?)?;
    let sum = |range: Range<usize>| -> u64 { block[range].iter().map(|b| u64::from(*b)).sum() };
    let blanks = CHECKSUM.len() as u64 * u64::from(b' ');
    let total = sum(0..CHECKSUM.start) + blanks + sum(CHECKSUM.end..HEADER_LEN as usize);
    if announced != total {
        return None;
    }
    let size = block.get(SIZE)?;
    let len = match size.first()? {
        // Base 256, for what eleven digits cannot say.
        0x80 => u64::from_be_bytes(size.get(4..)?.try_into().ok()?),
        _ => octal(size)?,
    };
    let kind = block.get(KIND)?;
    // Links and devices may announce a length, but nothing follows them.
    let len = match kind {
        b'1'..=b'6' => 0,
        _ => len,
    };
    (len <= MEMBER_LEN_MAX).then_some(Header {
        len,
        has_content: matches!(kind, b'0' | 0 | b'7' | b'S'),
    })
}

fn octal(field: &[u8]) -> Option<u64> {
    let digits = field.trim_ascii_start();
    let end = digits.iter().position(|b| !(b'0'..=b'7').contains(b));
    let digits = digits.get(..end.unwrap_or(digits.len()))?;
    if digits.is_empty() {
        return None;
    }
    let add = |sum: u64, b: &u8| sum.checked_mul(8)?.checked_add(u64::from(b - b'0'));
    digits.iter().try_fold(0, add)
}

/// A header of ustar for a file of `len` bytes.
#[cfg(test)]
pub fn header(name: &str, len: u64, kind: u8) -> Vec<u8> {
    let mut block = vec![0; HEADER_LEN as usize];
    let mut put =
        |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    for (at, mode_or_owner) in [(100, "0000644"), (108, "0000000"), (116, "0000000")] {
        put(at, mode_or_owner);
    }
    put(SIZE.start, &format!("{len:011o}\0"));
    put(136, "00000000000\0        ");
    put(MAGIC.start, "ustar\x0000");
    block[KIND] = kind;
    let sum: u64 = block.iter().map(|b| u64::from(*b)).sum();
    block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: data that is taken for a header, and a length that is read wrongly.
    #[test]
    fn a_header_has_a_checksum_and_a_length() {
        let found = |len, kind| parse(&header("dir/file", len, kind));
        let of = |len, has_content| Some(Header { len, has_content });
        assert_eq!(found(0o1234567, b'0'), of(0o1234567, true));
        assert_eq!(found(20, b'x'), of(20, false));
        assert_eq!(found(20, b'5'), of(0, false));
        let mut block = header("a", 7, b'0');
        assert_eq!(parse(&block[..511]), None);
        block[3] ^= 1;
        assert_eq!(parse(&block), None);
        block[3] ^= 1;
        assert_eq!(parse(&block), of(7, true));
        assert_eq!(parse(&[0; 512]), None);
        assert_eq!(
            (octal(b"  17 \0"), octal(b"\0"), octal(b"8")),
            (Some(15), None, None)
        );
        assert_eq!(octal(&[b'7'; 30]), None);
    }
}
