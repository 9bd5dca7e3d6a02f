//! Second copies of what leads to everything else: superblock, footer, directory, and records near
//! the root (`docs/format.md`, section 34).

use crate::container::{
    FOOTER_LEN, FOOTER_MAGIC, Footer, FooterRecord, HEADER_LEN, RecordRef, RecordType,
    SUPERBLOCK_LEN,
};
use crate::{Digest, Error, Result};
use std::ops::Range;
use zerocopy::FromBytes;

/// Bytes of the length at the end of the copies.
pub const COPIES_TRAILER_LEN: usize = 8;
/// Offset of the directory record in the copies.
pub const COPIES_DIRECTORY_AT: usize = SUPERBLOCK_LEN + FOOTER_LEN;
/// Bytes of the offset in front of the copy of a record.
pub const COPY_OFFSET_LEN: usize = 8;

/// Parsed copies. Each part has its own digest or checksum, so that one can be used if another is
/// damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// The footer.
    pub footer: Footer,
    /// Offset of the first stored byte in the image.
    pub offset: u64,
    bytes: Vec<u8>,
    /// Offsets of copied records in the image, and where their copies lie in `bytes`.
    records: Vec<(u64, Range<usize>)>,
}

impl Copies {
    /// Encodes the stored bytes of the record: `directory` is its record with the header, `records`
    /// others with the offsets of their headers. The result has at least `len_min` bytes.
    pub fn encode(
        superblock: &[u8; SUPERBLOCK_LEN],
        footer: &FooterRecord,
        directory: &[u8],
        records: &[(u64, &[u8])],
        len_min: usize,
    ) -> Vec<u8> {
        use zerocopy::IntoBytes;
        let mut out = superblock.to_vec();
        out.extend_from_slice(footer.as_bytes());
        out.extend_from_slice(directory);
        for (offset, record) in records {
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(record);
        }
        let len = out.len().saturating_add(COPIES_TRAILER_LEN).max(len_min);
        out.resize(len.saturating_sub(COPIES_TRAILER_LEN), 0);
        out.extend_from_slice(&(len as u64).to_le_bytes());
        out
    }

    /// Bytes that [`Copies::encode`] makes of a directory record and other records of these
    /// lengths, headers included, if they are more than its minimum.
    pub fn encoded_len(directory_len: usize, record_lens: usize, record_count: usize) -> usize {
        let offsets = record_count.saturating_mul(COPY_OFFSET_LEN);
        COPIES_DIRECTORY_AT
            .saturating_add(directory_len)
            .saturating_add(record_lens)
            .saturating_add(offsets)
            .saturating_add(COPIES_TRAILER_LEN)
    }

    /// Where the stored bytes of copies that end at `end` begin, by the length that precedes it.
    pub fn start_before(end: u64, trailer: &[u8]) -> Option<u64> {
        let len = u64::from_le_bytes(trailer.try_into().ok()?);
        let start = end.checked_sub(len)?;
        (len >= (COPIES_DIRECTORY_AT + COPIES_TRAILER_LEN) as u64).then_some(start)
    }

    /// Parses copies whose stored bytes begin at `offset` of the image. They must have a whole
    /// footer and a directory whose digest the footer names; whether all bytes have the digest of
    /// the record is for the caller to compare.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: Vec<u8>, offset: u64) -> Result<Self> {
        let bad = |what: &'static str| Error::corrupt("copies", offset, "F-34.1", what);
        let footer = bytes.get(SUPERBLOCK_LEN..COPIES_DIRECTORY_AT);
        let footer = footer.ok_or_else(|| bad("too short"))?;
        let footer = Self::footer_of(footer).ok_or_else(|| bad("no footer"))?;
        let directory_len = usize::try_from(footer.directory_len).unwrap_or(usize::MAX);
        let directory_end = COPIES_DIRECTORY_AT.saturating_add(directory_len);
        let directory = bytes.get(COPIES_DIRECTORY_AT..directory_end);
        let directory = directory.ok_or_else(|| bad("the directory is longer"))?;
        if Digest::of(directory) != footer.image_digest {
            return Err(bad("the directory has another digest"));
        }
        let end = offset.saturating_add(bytes.len() as u64);
        if footer.directory_offset != end {
            return Err(bad("the footer is that of another place"));
        }
        let mut records = vec![(footer.directory_offset, COPIES_DIRECTORY_AT..directory_end)];
        let mut at = directory_end;
        while let Some((place, range)) = Self::record_at(&bytes, at) {
            at = range.end;
            records.push((place, range));
        }
        Ok(Self {
            footer,
            offset,
            bytes,
            records,
        })
    }

    /// The footer in 128 bytes that lie anywhere; its own offset is the one that it names.
    pub fn footer_of(bytes: &[u8]) -> Option<Footer> {
        if !bytes.starts_with(&FOOTER_MAGIC) {
            return None;
        }
        let claimed = FooterRecord::ref_from_bytes(bytes).ok()?;
        Footer::parse(bytes, claimed.footer_offset.get()).ok()
    }

    fn record_at(bytes: &[u8], at: usize) -> Option<(u64, Range<usize>)> {
        let start = at.checked_add(COPY_OFFSET_LEN)?;
        let offset = u64::from_le_bytes(bytes.get(at..start)?.try_into().ok()?);
        let header = bytes.get(start..start.checked_add(HEADER_LEN)?)?;
        let record = RecordRef::parse_header(header, offset).ok()?;
        let len = usize::try_from(record.stored_len).ok()?;
        let end = start.checked_add(HEADER_LEN)?.checked_add(len)?;
        let limit = bytes.len().checked_sub(COPIES_TRAILER_LEN)?;
        (offset != 0 && end <= limit).then_some((offset, start..end))
    }

    /// Offset of the first byte behind them.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.bytes.len() as u64)
    }

    /// The stored bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Copies of superblock, directory, footer and records: the offset of each in the image, and
    /// its bytes.
    pub fn parts(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let part = |range: Range<usize>| self.bytes.get(range).unwrap_or_default();
        let first = [
            (0, part(0..SUPERBLOCK_LEN)),
            (
                self.footer.footer_offset,
                part(SUPERBLOCK_LEN..COPIES_DIRECTORY_AT),
            ),
        ];
        let records = self.records.iter();
        let records = records.map(move |(offset, range)| (*offset, part(range.clone())));
        first.into_iter().chain(records)
    }

    /// The header of the record that holds these bytes if they are whole.
    pub fn record(&self, digest: Digest) -> RecordRef {
        RecordRef {
            record_type: RecordType::Copies,
            codec: crate::container::Codec::None,
            offset: self.offset.saturating_sub(HEADER_LEN as u64),
            stored_len: self.bytes.len() as u64,
            raw_len: self.bytes.len() as u64,
            digest,
        }
    }
}
