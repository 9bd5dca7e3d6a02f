//! Headers of archives: tar in all its dialects that have a magic number, cpio as the kernel's
//! initramfs has it, ar as linkers have it.
//!
//! Sources: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar 1.35, "Basic Tar Format";
//! Linux, Documentation/driver-api/early-userspace/buffer-format.rst; ar(5) of FreeBSD.

use std::ops::Range;

/// Length of the longest header, bytes.
pub const HEADER_LEN_MAX: u64 = 512;

const SIZE: Range<usize> = 124..136;
const CHECKSUM: Range<usize> = 148..156;
const KIND: usize = 156;
const MAGIC: Range<usize> = 257..262;
/// Longest member that is taken for one, bytes.
const MEMBER_LEN_MAX: u64 = 1 << 60;
/// Beginning of an ar archive.
const AR_START: &[u8] = b"!<arch>\n";

/// A format of archives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Tar,
    Cpio,
    Ar,
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the header and the name behind it, bytes.
    pub own_len: u64,
    /// Length of what follows, bytes.
    pub len: u64,
    /// Whether that is the content of a file; long names, attributes and targets are not.
    pub has_content: bool,
}

impl Format {
    /// The format of a file that begins with `head`.
    pub fn of(head: &[u8]) -> Option<Self> {
        let all = [Self::Tar, Self::Cpio, Self::Ar];
        all.into_iter().find(|format| {
            let first = head.get(format.first() as usize..);
            let is_begun = *format != Self::Ar || head.starts_with(AR_START);
            is_begun && first.is_some_and(|first| format.parse(first).is_some())
        })
    }

    /// Where the first header is.
    pub fn first(self) -> u64 {
        match self {
            Self::Tar | Self::Cpio => 0,
            Self::Ar => AR_START.len() as u64,
        }
    }

    /// Length of a header, without a name behind it.
    pub fn header_len(self) -> u64 {
        match self {
            Self::Tar => 512,
            Self::Cpio => 110,
            Self::Ar => 60,
        }
    }

    /// Headers begin at multiples of this.
    pub fn align(self) -> u64 {
        match self {
            Self::Tar => 512,
            Self::Cpio => 4,
            Self::Ar => 2,
        }
    }

    /// Whether a header has a checksum, so that it can be found anywhere.
    pub fn has_checksum(self) -> bool {
        self == Self::Tar
    }

    /// The header that `block` begins with.
    pub fn parse(self, block: &[u8]) -> Option<Header> {
        let block = block.get(..self.header_len() as usize)?;
        let header = match self {
            Self::Tar => parse_tar(block),
            Self::Cpio => parse_cpio(block),
            Self::Ar => parse_ar(block),
        };
        header.filter(|header| header.len <= MEMBER_LEN_MAX)
    }
}

fn parse_tar(block: &[u8]) -> Option<Header> {
    if block.get(MAGIC)? != b"ustar" {
        return None;
    }
    let announced = octal(block.get(CHECKSUM)?)?;
    let sum = |bytes: &[u8]| -> u64 { bytes.iter().map(|b| u64::from(*b)).sum() };
    let blanks = CHECKSUM.len() as u64 * u64::from(b' ');
    let total = sum(block.get(..CHECKSUM.start)?) + blanks + sum(block.get(CHECKSUM.end..)?);
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
    Some(Header {
        own_len: 512,
        len,
        has_content: matches!(kind, b'0' | 0 | b'7' | b'S'),
    })
}

fn parse_cpio(block: &[u8]) -> Option<Header> {
    if !matches!(block.get(..6)?, b"070701" | b"070702") {
        return None;
    }
    let field = |no: usize| {
        let digits = block.get(6 + 8 * no..14 + 8 * no)?;
        u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let (mode, len, name_len) = (field(1)?, field(6)?, field(11)?);
    Some(Header {
        own_len: (Format::Cpio.header_len() + name_len).next_multiple_of(4),
        len,
        has_content: mode & 0o170_000 == 0o100_000,
    })
}

fn parse_ar(block: &[u8]) -> Option<Header> {
    if block.get(58..60)? != b"`\n" {
        return None;
    }
    let digits = std::str::from_utf8(block.get(48..58)?).ok()?;
    // Tables of symbols and of long names have names of their own.
    let is_table = block.starts_with(b"/ ") || block.starts_with(b"//");
    Some(Header {
        own_len: Format::Ar.header_len(),
        len: digits.trim_ascii().parse().ok()?,
        has_content: !is_table,
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

/// A header of tar for `len` bytes.
#[cfg(test)]
pub fn header(name: &str, len: u64, kind: u8) -> Vec<u8> {
    let mut block = vec![0; 512];
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

/// An archive of contents, all of the same name.
#[cfg(test)]
pub fn archive(format: Format, contents: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    if format == Format::Ar {
        out.extend_from_slice(AR_START);
    }
    for content in contents {
        let len = content.len();
        match format {
            Format::Tar => out.extend(header("a", len as u64, b'0')),
            Format::Cpio => {
                let mut fields = [0; 13];
                (fields[1], fields[6], fields[11]) = (0o100_644, len, 2);
                let fields = fields.map(|field| format!("{field:08X}")).concat();
                out.extend(format!("070701{fields}a\0").into_bytes());
            }
            Format::Ar => {
                out.extend(format!("{:<48}{len:<10}`\n", "a.o/").into_bytes());
            }
        }
        let align = format.align() as usize;
        out.resize(out.len().next_multiple_of(align), 0);
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(align), 0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: data that is taken for a header, and a length that is read wrongly.
    #[test]
    fn a_header_has_a_checksum_and_a_length() {
        let parse = |block: &[u8]| Format::Tar.parse(block);
        let found = |len, kind| parse(&header("dir/file", len, kind));
        let of = |len, has_content| {
            Some(Header {
                own_len: 512,
                len,
                has_content,
            })
        };
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
        assert_eq!((octal(b"  17 \0"), octal(b"\0")), (Some(15), None));
        assert_eq!((octal(b"8"), octal(&[b'7'; 30])), (None, None));
    }

    // Would catch: a field of cpio or ar at another place, and a text that is taken for an archive.
    #[test]
    fn archives_say_what_they_are() {
        for (format, own_len) in [(Format::Tar, 512), (Format::Cpio, 112), (Format::Ar, 60)] {
            let bytes = archive(format, &[&[7; 1234]]);
            assert_eq!(Format::of(&bytes), Some(format));
            let header = format.parse(&bytes[format.first() as usize..]);
            let expected = Header {
                own_len,
                len: 1234,
                has_content: true,
            };
            assert_eq!(header, Some(expected), "{format:?}");
        }
        let table = archive(Format::Ar, &[b"x"]);
        let mut table = table[8..].to_vec();
        table[..2].copy_from_slice(b"//");
        assert!(
            Format::Ar
                .parse(&table)
                .is_some_and(|header| !header.has_content)
        );
        assert_eq!(
            Format::of(b"!<arch>\nno header, and some more text that ends the line`\n..."),
            None
        );
        assert_eq!(Format::of(&[b'0'; 600]), None);
    }
}
