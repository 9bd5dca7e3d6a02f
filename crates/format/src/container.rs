//! The container: superblock, record header, footer and record reference.
//!
//! All integers are little-endian. This file declares each layout once and asserts its offsets.
//! `docs/format.md` repeats each layout as a table; a test compares the two.

use crate::{Digest, Error, Result};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of every image.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"\x89WEALD\r\n";
/// First bytes of every record header.
pub const RECORD_MAGIC: [u8; 4] = *b"WRec";
/// First bytes of every footer.
pub const FOOTER_MAGIC: [u8; 8] = *b"WEALDEND";
/// Format version that this code writes and reads.
pub const VERSION: u32 = 1;
/// Bytes of a superblock.
pub const SUPERBLOCK_LEN: usize = size_of::<SuperblockRecord>();
/// Bytes of a record header.
pub const HEADER_LEN: usize = size_of::<HeaderRecord>();
/// Bytes of a footer.
pub const FOOTER_LEN: usize = size_of::<FooterRecord>();

/// Incompatible features that this reader knows. The format defines none yet.
pub const INCOMPAT_KNOWN: u64 = 0;
/// Features that a writer must know before it appends. The format defines none yet.
pub const READ_ONLY_COMPAT_KNOWN: u64 = 0;

/// Declares a record of fixed length whose last field is its checksum.
macro_rules! record {
    ($(#[$doc:meta])* $name:ident, $table:ident, $len:literal {
        $($(#[$fdoc:meta])* $field:ident : $kind:ty = $offset:literal),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $kind),* }
        const _: () = assert!(size_of::<$name>() == $len);
        $(const _: () = assert!(std::mem::offset_of!($name, $field) == $offset);)*
        /// (field, offset, bytes) of this record; a test compares them with `docs/format.md`.
        pub const $table: &[(&str, usize, usize)] =
            &[$((stringify!($field), $offset, size_of::<$kind>())),*];
        impl $name {
            /// The bytes that its last field, `checksum`, covers.
            fn checksummed(&self) -> &[u8] {
                let end = std::mem::offset_of!(Self, checksum);
                self.as_bytes().get(..end).unwrap_or_default()
            }

            /// The record with the checksum of its other fields.
            pub(crate) fn with_checksum(mut self) -> Self {
                self.checksum = $crate::container::checksum(self.checksummed());
                self
            }

            /// Whether the checksum is that of the other fields.
            pub(crate) fn has_checksum(&self) -> bool {
                self.checksum == $crate::container::checksum(self.checksummed())
            }
        }
    };
}

record! {
    /// The superblock: bytes 0 … 63 of an image, never rewritten.
    SuperblockRecord, SUPERBLOCK_FIELDS, 64 {
        /// `SUPERBLOCK_MAGIC`.
        magic: [u8; 8] = 0,
        /// Format version.
        version: U32 = 8,
        /// Bytes of this superblock; later versions may be longer.
        superblock_len: U32 = 12,
        /// Features that readers and writers may ignore.
        compat: U64 = 16,
        /// Features that readers may ignore. Writers must know them.
        read_only_compat: U64 = 24,
        /// Features that readers and writers must know.
        incompat: U64 = 32,
        /// Zero.
        reserved: [u8; 8] = 40,
        /// First 16 bytes of the BLAKE3 digest of the preceding fields.
        checksum: [u8; 16] = 48,
    }
}

record! {
    /// The header before every record's stored bytes.
    HeaderRecord, HEADER_FIELDS, 64 {
        /// `RECORD_MAGIC`.
        magic: [u8; 4] = 0,
        /// Type of the record, see [`RecordType`].
        record_type: u8 = 4,
        /// Codec of the stored bytes, see [`Codec`].
        codec: u8 = 5,
        /// Zero.
        flags: U16 = 6,
        /// Bytes that follow this header.
        stored_len: U64 = 8,
        /// Bytes after decoding.
        raw_len: U64 = 16,
        /// BLAKE3-256 of the stored bytes.
        digest: [u8; 32] = 24,
        /// First 8 bytes of the BLAKE3 digest of the preceding fields.
        checksum: [u8; 8] = 56,
    }
}

record! {
    /// The footer: the last 128 bytes of a generation.
    FooterRecord, FOOTER_FIELDS, 128 {
        /// `FOOTER_MAGIC`.
        magic: [u8; 8] = 0,
        /// Number of this generation, from 1.
        generation: U64 = 8,
        /// Offset of the directory record's header.
        directory_offset: U64 = 16,
        /// Bytes of the directory record, header included.
        directory_len: U64 = 24,
        /// Offset of this footer.
        footer_offset: U64 = 32,
        /// Offset of the previous generation's footer; 0 if there is none.
        previous_footer: U64 = 40,
        /// BLAKE3-256 of the directory record, header included.
        image_digest: [u8; 32] = 48,
        /// Logical identity of the tree.
        tree_digest: [u8; 32] = 80,
        /// First 16 bytes of the BLAKE3 digest of the preceding fields.
        checksum: [u8; 16] = 112,
    }
}

pub(crate) use record;

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$vdoc:meta])* $variant:ident = $code:literal $text:literal),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$vdoc])* $variant = $code),* }
        impl $name {
            /// All values with their codes and names; a test compares them with `docs/format.md`.
            pub const ALL: &[(Self, u8, &str)] = &[$((Self::$variant, $code, $text)),*];
            /// Returns the value with this `code`.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)* _ => None }
            }
            /// Its name in messages and in `docs/format.md`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }
    };
}

codes! {
    /// Type of a record: the kind of data that it holds.
    RecordType {
        /// A block of content.
        Data = 1 "data",
        /// The zstd dictionary of metadata records.
        Dictionary = 2 "dictionary",
        /// A block of entries.
        Entries = 3 "entries",
        /// A page of templates.
        Templates = 4 "templates",
        /// A page of contents.
        Contents = 5 "contents",
        /// A page of extents.
        Extents = 6 "extents",
        /// A page of attributes.
        Attributes = 7 "attributes",
        /// A page of xattr sets.
        Xattrs = 8 "xattrs",
        /// A page of the hard-link side table.
        Links = 9 "links",
        /// A page of the times overlay.
        Times = 10 "times",
        /// A page of record references.
        Index = 11 "index",
        /// The directory of a generation.
        Directory = 12 "directory",
        /// A page of recipes.
        Recipes = 13 "recipes",
        /// A page of fs-verity digests.
        Fsverity = 14 "fsverity",
        /// Second copies of superblock, footer, directory and records near the root.
        Copies = 15 "copies",
    }
}

codes! {
    /// Codec of a record: the encoding of its stored bytes.
    Codec {
        /// No compression.
        None = 0 "none",
        /// LZ4 block, no frame.
        Lz4 = 1 "lz4",
        /// One Zstandard frame.
        Zstd = 2 "zstd",
        /// One Zstandard frame that needs the image's metadata dictionary.
        ZstdDictionary = 3 "zstd-dictionary",
        /// One xz stream without integrity check.
        Xz = 4 "xz",
        /// One Brotli stream.
        Brotli = 5 "brotli",
        /// One Zstandard frame whose history is the raw bytes of other records.
        ZstdHistory = 6 "zstd-history",
    }
}

/// Record reference: position of a record and the digest of its stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRef {
    /// Type of the record.
    pub record_type: RecordType,
    /// Codec of its stored bytes.
    pub codec: Codec,
    /// Absolute offset of its header, bytes.
    pub offset: u64,
    /// Stored bytes, without the header.
    pub stored_len: u64,
    /// Bytes after decoding.
    pub raw_len: u64,
    /// Digest of the stored bytes.
    pub digest: Digest,
}

/// The first `N` bytes of the BLAKE3 digest of `bytes`.
pub(crate) fn checksum<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let digest = blake3::hash(bytes);
    let mut out = [0; N];
    out.copy_from_slice(digest.as_bytes().get(..N).unwrap_or(&[0; N]));
    out
}

impl RecordRef {
    /// Builds the header that stands before the stored bytes.
    pub fn header(&self) -> HeaderRecord {
        let header = HeaderRecord {
            magic: RECORD_MAGIC,
            record_type: self.record_type as u8,
            codec: self.codec as u8,
            flags: U16::ZERO,
            stored_len: U64::new(self.stored_len),
            raw_len: U64::new(self.raw_len),
            digest: self.digest.0,
            checksum: [0; 8],
        };
        header.with_checksum()
    }

    /// The header and the stored bytes behind it.
    pub fn with_header(&self, stored: &[u8]) -> Vec<u8> {
        [self.header().as_bytes(), stored].concat()
    }

    /// Offset of the first byte after the record. Saturates for forged references.
    pub fn end(&self) -> u64 {
        self.offset
            .saturating_add(HEADER_LEN as u64)
            .saturating_add(self.stored_len)
    }

    /// Parses the header at `offset`. A walk over the records without an index uses this.
    ///
    /// # Errors
    /// `Corrupt` if magic, checksum, type or codec are wrong.
    pub fn parse_header(bytes: &[u8], offset: u64) -> Result<Self> {
        let bad = |rule, what: String| Error::corrupt("record header", offset, rule, what);
        let header = HeaderRecord::ref_from_bytes(bytes)
            .map_err(|_| bad("F-3.1", format!("expected 64 bytes, found {}", bytes.len())))?;
        if header.magic != RECORD_MAGIC {
            return Err(bad(
                "F-3.2",
                format!(
                    "expected magic {RECORD_MAGIC:02x?}, found {:02x?}",
                    header.magic
                ),
            ));
        }
        if !header.has_checksum() {
            return Err(bad("F-3.3", "checksum differs".into()));
        }
        let record_type = RecordType::from_code(header.record_type).ok_or_else(|| {
            bad(
                "F-3.4",
                format!("unknown record type {}", header.record_type),
            )
        })?;
        let codec = Codec::from_code(header.codec)
            .ok_or_else(|| bad("F-3.5", format!("unknown codec {}", header.codec)))?;
        if header.flags.get() != 0 {
            return Err(bad(
                "F-3.6",
                format!("flags: expected 0, found {:#x}", header.flags.get()),
            ));
        }
        Ok(Self {
            record_type,
            codec,
            offset,
            stored_len: header.stored_len.get(),
            raw_len: header.raw_len.get(),
            digest: Digest(header.digest),
        })
    }
}

impl SuperblockRecord {
    /// Builds the superblock that this version writes.
    pub fn current() -> Self {
        let record = Self {
            magic: SUPERBLOCK_MAGIC,
            version: U32::new(VERSION),
            superblock_len: U32::new(SUPERBLOCK_LEN as u32),
            compat: U64::ZERO,
            read_only_compat: U64::ZERO,
            incompat: U64::ZERO,
            reserved: [0; 8],
            checksum: [0; 16],
        };
        record.with_checksum()
    }

    /// Parses the first 64 bytes of a file.
    ///
    /// # Errors
    /// `Corrupt` if they are not a superblock, `Unsupported` if the image needs a newer Weald.
    pub fn parse(bytes: &[u8]) -> Result<&Self> {
        let bad = |rule, what: String| Error::corrupt("superblock", 0, rule, what);
        let record = Self::ref_from_bytes(bytes)
            .map_err(|_| bad("F-3.7", format!("expected 64 bytes, found {}", bytes.len())))?;
        if record.magic != SUPERBLOCK_MAGIC {
            return Err(bad(
                "F-3.8",
                format!("not a Weald image: magic is {:02x?}", record.magic),
            ));
        }
        if !record.has_checksum() {
            return Err(bad("F-3.9", "checksum differs".into()));
        }
        if record.version.get() != VERSION || record.superblock_len.get() as usize != SUPERBLOCK_LEN
        {
            return Err(Error::newer_version("image", record.version.get(), VERSION));
        }
        let unknown = record.incompat.get() & !INCOMPAT_KNOWN;
        if unknown != 0 {
            let what = format!(
                "image needs features {unknown:#x} that this Weald does not know: use a newer Weald"
            );
            return Err(Error::new(crate::ErrorKind::Unsupported, what));
        }
        if record.reserved != [0; 8] {
            return Err(bad("F-3.10", "reserved bytes: expected 0".into()));
        }
        Ok(record)
    }
}

/// A parsed and checked footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// Number of this generation, from 1.
    pub generation: u64,
    /// Offset of the directory record's header.
    pub directory_offset: u64,
    /// Bytes of the directory record, header included.
    pub directory_len: u64,
    /// Offset of this footer.
    pub footer_offset: u64,
    /// Offset of the previous generation's footer, if there is one.
    pub previous_footer: Option<u64>,
    /// Digest of the directory record, header included.
    pub image_digest: Digest,
    /// Logical identity of the tree.
    pub tree_digest: Digest,
}

impl Footer {
    /// Encodes the footer.
    pub fn encode(&self) -> FooterRecord {
        let record = FooterRecord {
            magic: FOOTER_MAGIC,
            generation: U64::new(self.generation),
            directory_offset: U64::new(self.directory_offset),
            directory_len: U64::new(self.directory_len),
            footer_offset: U64::new(self.footer_offset),
            previous_footer: U64::new(self.previous_footer.unwrap_or(0)),
            image_digest: self.image_digest.0,
            tree_digest: self.tree_digest.0,
            checksum: [0; 16],
        };
        record.with_checksum()
    }

    /// Parses the 128 bytes that were read at `offset`.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a footer, or if an offset in it contradicts its own position.
    pub fn parse(bytes: &[u8], offset: u64) -> Result<Self> {
        let bad = |rule, what: String| Error::corrupt("footer", offset, rule, what);
        let record = FooterRecord::ref_from_bytes(bytes).map_err(|_| {
            bad(
                "F-4.1",
                format!("expected 128 bytes, found {}", bytes.len()),
            )
        })?;
        if record.magic != FOOTER_MAGIC {
            let what = "no footer at the end: the image is truncated or was never finished; \
                        'weald recover' cuts off what an interrupted append left";
            return Err(bad("F-4.2", what.to_owned()));
        }
        if !record.has_checksum() {
            return Err(bad("F-4.3", "checksum differs".into()));
        }
        let footer = Self {
            generation: record.generation.get(),
            directory_offset: record.directory_offset.get(),
            directory_len: record.directory_len.get(),
            footer_offset: record.footer_offset.get(),
            previous_footer: Some(record.previous_footer.get()).filter(|&o| o != 0),
            image_digest: Digest(record.image_digest),
            tree_digest: Digest(record.tree_digest),
        };
        let end = footer.directory_offset.checked_add(footer.directory_len);
        let ordered = footer.footer_offset == offset
            && footer.directory_offset >= SUPERBLOCK_LEN as u64
            && footer.directory_len > HEADER_LEN as u64
            && end == Some(offset)
            && footer
                .previous_footer
                .is_none_or(|p| p < footer.directory_offset)
            && footer.generation > 0;
        if ordered {
            Ok(footer)
        } else {
            Err(bad(
                "F-4.4",
                format!("offsets contradict the position of the footer: {footer:?}"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footer() -> Footer {
        Footer {
            generation: 1,
            directory_offset: 64,
            directory_len: 100,
            footer_offset: 164,
            previous_footer: None,
            image_digest: Digest::of(b"i"),
            tree_digest: Digest::of(b"t"),
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let superblock = SuperblockRecord::current();
        let reference = RecordRef {
            record_type: RecordType::Data,
            codec: Codec::Zstd,
            offset: 64,
            stored_len: 5,
            raw_len: 9,
            digest: Digest::of(b"x"),
        };
        let (header, foot) = (reference.header(), footer().encode());
        assert_eq!(
            RecordRef::parse_header(header.as_bytes(), 64).unwrap(),
            reference
        );
        assert_eq!(Footer::parse(foot.as_bytes(), 164).unwrap(), footer());
        SuperblockRecord::parse(superblock.as_bytes()).unwrap();
        let flips = |bytes: &[u8], parse: &dyn Fn(&[u8]) -> bool| {
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(!parse(&bad), "bit {bit}");
            }
        };
        flips(superblock.as_bytes(), &|b| {
            SuperblockRecord::parse(b).is_ok()
        });
        flips(header.as_bytes(), &|b| {
            RecordRef::parse_header(b, 64).is_ok()
        });
        flips(foot.as_bytes(), &|b| Footer::parse(b, 164).is_ok());
    }

    #[test]
    fn newer_images_are_refused_with_advice() {
        let mut record = SuperblockRecord::current();
        record.incompat = U64::new(1 << 40);
        let record = record.with_checksum();
        let error = SuperblockRecord::parse(record.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
        assert!(error.to_string().contains("newer Weald"), "{error}");
    }
}
