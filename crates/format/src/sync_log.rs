//! The sync log of a volume: records of changes that are durable before the tables have them.
//!
//! The file has a superblock and two halves. A *layer* is all changes that one commit of the tables
//! takes; its number is that of the commit. The records of a layer lie in the half that its number
//! chooses, one behind the other, each at a multiple of [`ALIGN`]. Once the commit is done, they
//! are dead, and the layer after the next one takes their place.

use crate::container::{checksum, record};
use crate::cursor::{Cursor, put_varint};
use crate::limits::BLOCK_LEN_MAX;
use crate::store::Uuid;
use crate::volume::{InodeRow, NameRow, QuotaRow, put_time, split_key, time};
use crate::{BlockId, Digest, Error, Ino, RecordNo, Result, VolumeCommitNo, VolumeNo};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a sync log.
pub const SYNC_LOG_MAGIC: [u8; 8] = *b"\x89WSLOG\r\n";
/// First bytes of each of its records.
pub const DELTA_MAGIC: [u8; 8] = *b"\x89WDELTA\n";
/// Version of the sync log that this code writes and reads.
pub const SYNC_LOG_VERSION: u32 = 2;
/// Version whose records have no parity, which this code reads.
pub const SYNC_LOG_WITHOUT_PARITY: u32 = 1;
/// Where the superblock lies once more, from version 2 on.
pub const SYNC_LOG_COPY_AT: u64 = ALIGN / 2;
/// Records begin at multiples of this, bytes: disks write this much completely or not at all, or
/// damage only this much of what was there.
pub const ALIGN: u64 = 4096;
/// Most bytes of a half: a reader keeps one in memory.
pub const HALF_LEN_MAX: u64 = 256 << 20;
/// Bytes of the superblock.
pub const SYNC_LOG_SUPERBLOCK_LEN: usize = size_of::<SyncLogRecord>();
/// Bytes of the header of a record.
pub const DELTA_HEADER_LEN: usize = size_of::<DeltaRecord>();
/// Last byte of a file, as the kernel counts.
const FILE_END_MAX: u64 = i64::MAX as u64;

record! {
    /// The superblock of a sync log; the first half begins at [`ALIGN`].
    SyncLogRecord, SYNC_LOG_FIELDS, 64 {
        /// `SYNC_LOG_MAGIC`.
        magic: [u8; 8] = 0,
        /// Version of the sync log.
        version: U32 = 8,
        /// Bytes of this superblock.
        superblock_len: U32 = 12,
        /// Identity of the store.
        uuid: [u8; 16] = 16,
        /// Number of the volume.
        volume_no: U32 = 32,
        /// Zero.
        reserved: [u8; 4] = 36,
        /// Bytes of each half.
        half_len: U64 = 40,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 48,
    }
}

record! {
    /// The header of a record; its body follows.
    DeltaRecord, DELTA_FIELDS, 128 {
        /// `DELTA_MAGIC`.
        magic: [u8; 8] = 0,
        /// Identity of the store.
        uuid: [u8; 16] = 8,
        /// Number of the volume.
        volume_no: U32 = 24,
        /// Bytes of this header.
        header_len: U32 = 28,
        /// Number of the commit that takes these changes.
        layer: U64 = 32,
        /// Number of the last commit when the record was written.
        base: U64 = 40,
        /// Number of the record in its layer, from 1 on.
        sequence: U64 = 48,
        /// Number of records of the layer before, if the commit of that layer was not done.
        before: U64 = 56,
        /// Bytes of the body.
        body_len: U64 = 64,
        /// First 16 bytes of the chain of commit `base`.
        base_chain: [u8; 16] = 72,
        /// First 16 bytes of the BLAKE3 digest of the body.
        body_checksum: [u8; 16] = 88,
        /// Number of records directly before this one that may not have been durable when it was
        /// written.
        unsynced: U64 = 104,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 112,
    }
}

fn bad(rule: &'static str, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("sync log", 0, rule, what)
}

/// What the superblock of a log says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncLogShape {
    /// Bytes of each half.
    pub half_len: u64,
    /// Whether its records have parity: it has version 2.
    pub has_parity: bool,
}

/// Which sync log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncLogId {
    /// Identity of the store.
    pub uuid: Uuid,
    /// Number of the volume.
    pub volume_no: VolumeNo,
}

impl SyncLogId {
    /// The superblock of a log whose halves have `half_len` bytes.
    pub fn encode_superblock(&self, half_len: u64) -> SyncLogRecord {
        let record = SyncLogRecord {
            magic: SYNC_LOG_MAGIC,
            version: U32::new(SYNC_LOG_VERSION),
            superblock_len: U32::new(SYNC_LOG_SUPERBLOCK_LEN as u32),
            uuid: self.uuid,
            volume_no: U32::new(self.volume_no.0),
            reserved: [0; 4],
            half_len: U64::new(half_len),
            checksum: [0; 16],
        };
        record.with_checksum()
    }

    /// Checks a superblock.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` if a newer Weald wrote it.
    pub fn check_superblock(&self, bytes: &[u8]) -> Result<SyncLogShape> {
        let record = SyncLogRecord::ref_from_bytes(bytes)
            .map_err(|_| bad("V-6.1", "shorter than its superblock"))?;
        if record.magic != SYNC_LOG_MAGIC {
            return Err(bad("V-6.1", "this is no sync log of a volume"));
        }
        if !record.has_checksum() {
            return Err(bad("V-6.1", "the checksum of the superblock differs"));
        }
        let version = record.version.get();
        let has_parity = version == SYNC_LOG_VERSION;
        if !has_parity && version != SYNC_LOG_WITHOUT_PARITY {
            return Err(Error::newer_version(
                "the sync log",
                version,
                SYNC_LOG_VERSION,
            ));
        }
        if (record.uuid, record.volume_no.get()) != (self.uuid, self.volume_no.0) {
            return Err(bad("V-6.2", "it belongs to another volume"));
        }
        let half_len = record.half_len.get();
        if half_len.is_multiple_of(ALIGN) && (ALIGN..=HALF_LEN_MAX).contains(&half_len) {
            Ok(SyncLogShape {
                half_len,
                has_parity,
            })
        } else {
            Err(bad("V-6.3", format!("a half has {half_len} bytes")))
        }
    }

    /// The header of the record `delta` with this body.
    pub fn encode_header(&self, delta: &DeltaHeader, body: &[u8]) -> DeltaRecord {
        self.encode_parsed(&DeltaHeader {
            body_len: body.len() as u64,
            body_checksum: checksum(body),
            ..*delta
        })
    }

    /// A header as it was parsed.
    pub fn encode_parsed(&self, delta: &DeltaHeader) -> DeltaRecord {
        let record = DeltaRecord {
            magic: DELTA_MAGIC,
            uuid: self.uuid,
            volume_no: U32::new(self.volume_no.0),
            header_len: U32::new(DELTA_HEADER_LEN as u32),
            layer: U64::new(delta.layer.0),
            base: U64::new(delta.base.0),
            sequence: U64::new(delta.sequence.0),
            before: U64::new(delta.before),
            body_len: U64::new(delta.body_len),
            base_chain: delta.base_chain,
            body_checksum: delta.body_checksum,
            unsynced: U64::new(delta.unsynced),
            checksum: [0; 16],
        };
        record.with_checksum()
    }

    /// The header at the front of `bytes`; `None` if there is none of this log.
    pub fn parse_header(&self, bytes: &[u8]) -> Option<DeltaHeader> {
        let (record, _) = DeltaRecord::ref_from_prefix(bytes).ok()?;
        let is_good = record.magic == DELTA_MAGIC
            && record.has_checksum()
            && (record.uuid, record.volume_no.get()) == (self.uuid, self.volume_no.0);
        is_good.then(|| DeltaHeader {
            layer: VolumeCommitNo(record.layer.get()),
            base: VolumeCommitNo(record.base.get()),
            sequence: RecordNo(record.sequence.get()),
            before: record.before.get(),
            unsynced: record.unsynced.get(),
            base_chain: record.base_chain,
            body_len: record.body_len.get(),
            body_checksum: record.body_checksum,
        })
    }
}

/// A checked header of a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeltaHeader {
    /// Number of the commit that takes these changes.
    pub layer: VolumeCommitNo,
    /// Number of the last commit when the record was written.
    pub base: VolumeCommitNo,
    /// Number of the record in its layer, from 1 on.
    pub sequence: RecordNo,
    /// Number of records of the layer before, if the commit of that layer was not done.
    pub before: u64,
    /// Number of records directly before this one that may not have been durable when it was
    /// written.
    pub unsynced: u64,
    /// First bytes of the chain of commit `base`.
    pub base_chain: [u8; 16],
    /// Bytes of the body. [`SyncLogId::encode_header`] does not use it.
    pub body_len: u64,
    /// Checksum of the body. [`SyncLogId::encode_header`] does not use it.
    pub body_checksum: [u8; 16],
}

impl DeltaHeader {
    /// Number of records of the layer that were durable when this one was written.
    pub fn synced(&self) -> u64 {
        let before = self.sequence.count_before();
        before.saturating_sub(self.unsynced)
    }

    /// The body behind this header at the front of `bytes`; `None` unless it is whole.
    pub fn body<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let len = usize::try_from(self.body_len).ok()?;
        let body = bytes.get(DELTA_HEADER_LEN..DELTA_HEADER_LEN.checked_add(len)?)?;
        (self.body_checksum == checksum::<16>(body)).then_some(body)
    }
}

/// Bytes that a record with a body of `body_len` bytes takes in a log of version 1: header, body,
/// and zeros up to the next page.
pub fn delta_len(body_len: u64) -> u64 {
    let len = body_len.saturating_add(DELTA_HEADER_LEN as u64);
    len.div_ceil(ALIGN).saturating_mul(ALIGN)
}

/// First bytes of a chain, as a header has them.
pub fn chain_start(chain: &Digest) -> [u8; 16] {
    let (start, _) = chain.0.split_first_chunk().unwrap_or((&[0; 16], &[]));
    *start
}

/// Tables of which a record has rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum DeltaTable {
    /// `inodes`.
    Inodes = 1,
    /// `names`.
    Names = 2,
    /// `xattrs`.
    Xattrs = 3,
    /// `orphans`.
    Orphans = 4,
    /// `quotas`.
    Quotas = 5,
}

impl DeltaTable {
    fn of_code(code: u8) -> Option<Self> {
        let all = [
            Self::Inodes,
            Self::Names,
            Self::Xattrs,
            Self::Orphans,
            Self::Quotas,
        ];
        all.into_iter().find(|table| *table as u8 == code)
    }

    /// Splits the key of a row of the volume `volume_no`: its inode, and what follows.
    ///
    /// # Errors
    /// `Corrupt` if the table cannot have it.
    pub fn split_key(self, volume_no: VolumeNo, key: &[u8]) -> Result<(Ino, &[u8])> {
        let (of, ino, rest) = split_key(key)?;
        let is_right = of == volume_no
            && match self {
                Self::Names => rest.len() == 8,
                Self::Xattrs => !rest.is_empty(),
                Self::Inodes | Self::Orphans | Self::Quotas => rest.is_empty(),
            };
        if is_right {
            Ok((ino, rest))
        } else {
            Err(bad("V-6.5", "a key that its table cannot have"))
        }
    }

    /// Checks key and value of a row of the volume `volume_no`.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check_row(self, volume_no: VolumeNo, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.split_key(volume_no, key)?;
        let Some(value) = value else {
            return Ok(());
        };
        match self {
            Self::Inodes => InodeRow::parse(value).map(drop),
            Self::Names => NameRow::parse(value).map(drop),
            Self::Quotas => QuotaRow::parse(value).map(drop),
            Self::Xattrs | Self::Orphans => Ok(()),
        }
    }
}

/// A change in a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeltaItem<'a> {
    /// A row, with the key and value of its table; no value removes it.
    Row(DeltaTable, &'a [u8], Option<&'a [u8]>),
    /// Bytes of a file.
    Bytes {
        /// The file.
        ino: Ino,
        /// First byte of the range in the file.
        start: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A hole of a file.
    Hole {
        /// The file.
        ino: Ino,
        /// First byte of the range in the file.
        start: u64,
        /// Length of the range.
        len: u64,
    },
    /// A range of a file that lies in a block.
    Block {
        /// The file.
        ino: Ino,
        /// First byte of the range in the file.
        start: u64,
        /// Length of the range.
        len: u64,
        /// The block.
        block: BlockId,
        /// First byte in the decoded block.
        offset: u32,
    },
    /// An inode whose rows go.
    Drop(Ino),
}

impl DeltaItem<'_> {
    fn code(&self) -> u8 {
        match self {
            Self::Row(..) => 1,
            Self::Bytes { .. } => 2,
            Self::Hole { .. } => 3,
            Self::Block { .. } => 4,
            Self::Drop(..) => 5,
        }
    }
}

/// The beginning of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaStart {
    /// The number that the next new inode gets.
    pub next_ino: Ino,
    /// Time of the last operation, nanoseconds since 1970.
    pub now: i128,
}

/// Writes a body.
#[derive(Debug)]
pub struct DeltaBuilder(Vec<u8>);

impl DeltaBuilder {
    /// Begins a body.
    pub fn new(start: DeltaStart) -> Self {
        let mut out = Vec::new();
        put_varint(&mut out, start.next_ino.0);
        put_time(&mut out, start.now);
        Self(out)
    }

    /// Adds a change.
    pub fn push(&mut self, item: &DeltaItem<'_>) {
        let out = &mut self.0;
        out.push(item.code());
        match *item {
            DeltaItem::Row(table, key, value) => {
                out.push(table as u8);
                put_varint(out, key.len() as u64);
                out.extend_from_slice(key);
                put_varint(
                    out,
                    value.map_or(0, |value| (value.len() as u64).saturating_add(1)),
                );
                out.extend_from_slice(value.unwrap_or_default());
            }
            DeltaItem::Bytes { ino, start, bytes } => {
                put_varints(out, &[ino.0, start, bytes.len() as u64]);
                out.extend_from_slice(bytes);
            }
            DeltaItem::Hole { ino, start, len } => put_varints(out, &[ino.0, start, len]),
            DeltaItem::Block {
                ino,
                start,
                len,
                block,
                offset,
            } => {
                put_varints(out, &[ino.0, start, len, block.0, offset.into()]);
            }
            DeltaItem::Drop(ino) => put_varint(out, ino.0),
        }
    }

    /// The body.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

fn put_varints(out: &mut Vec<u8>, numbers: &[u64]) {
    for number in numbers {
        put_varint(out, *number);
    }
}

/// A range of a file.
struct FileRange {
    ino: Ino,
    start: u64,
    len: u64,
}

fn range(cursor: &mut Cursor<'_>) -> Result<FileRange> {
    let (ino, start, len) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
    let ino = Ino(ino);
    match start.checked_add(len) {
        Some(end) if len > 0 && end <= FILE_END_MAX => Ok(FileRange { ino, start, len }),
        _ => Err(bad("V-6.6", "a range is empty or too long for a file")),
    }
}

fn item<'a>(cursor: &mut Cursor<'a>) -> Result<DeltaItem<'a>> {
    Ok(match cursor.byte()? {
        1 => {
            let table = DeltaTable::of_code(cursor.byte()?);
            let table = table.ok_or_else(|| bad("V-6.5", "unknown table"))?;
            let len = cursor.count(cursor.remaining(), "key")?;
            let key = cursor.bytes(len)?;
            let len = cursor.count(cursor.remaining(), "value")?;
            let value = match len.checked_sub(1) {
                Some(len) => Some(cursor.bytes(len)?),
                None => None,
            };
            DeltaItem::Row(table, key, value)
        }
        2 => {
            let FileRange { ino, start, len } = range(cursor)?;
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let bytes = cursor.bytes(len)?;
            DeltaItem::Bytes { ino, start, bytes }
        }
        3 => {
            let FileRange { ino, start, len } = range(cursor)?;
            DeltaItem::Hole { ino, start, len }
        }
        4 => {
            let FileRange { ino, start, len } = range(cursor)?;
            let block = cursor.varint()?;
            let offset = cursor.bounded(BLOCK_LEN_MAX, "offset in a block")?;
            if len.saturating_add(offset) > BLOCK_LEN_MAX {
                return Err(bad("V-6.6", "a range ends behind its block"));
            }
            DeltaItem::Block {
                ino,
                start,
                len,
                block: BlockId(block),
                offset: offset as u32,
            }
        }
        5 => DeltaItem::Drop(Ino(cursor.varint()?)),
        _ => return Err(bad("V-6.5", "unknown kind of change")),
    })
}

/// Visits the changes of a body in order.
///
/// # Errors
/// `Corrupt`, and the errors of `visit`.
pub fn parse_body(
    body: &[u8],
    visit: &mut dyn FnMut(DeltaItem<'_>) -> Result<()>,
) -> Result<DeltaStart> {
    let mut cursor = Cursor::new(body, "sync log");
    let start = DeltaStart {
        next_ino: Ino(cursor.varint()?),
        now: time(&mut cursor)?,
    };
    while cursor.remaining() > 0 {
        visit(item(&mut cursor)?)?;
    }
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: SyncLogId = SyncLogId {
        uuid: [7; 16],
        volume_no: VolumeNo(3),
    };

    // Would catch: a change that is read as another one.
    #[test]
    fn a_body_is_read_as_it_was_written() {
        let items = [
            DeltaItem::Row(DeltaTable::Names, b"key", Some(b"value")),
            DeltaItem::Row(DeltaTable::Orphans, b"k", Some(b"")),
            DeltaItem::Row(DeltaTable::Xattrs, b"", None),
            DeltaItem::Bytes {
                ino: Ino(4),
                start: 1 << 40,
                bytes: b"bytes",
            },
            DeltaItem::Hole {
                ino: Ino(5),
                start: 0,
                len: i64::MAX as u64,
            },
            DeltaItem::Block {
                ino: Ino(6),
                start: 7,
                len: 8,
                block: BlockId(u64::MAX),
                offset: 9,
            },
            DeltaItem::Drop(Ino(u64::MAX)),
        ];
        let start = DeltaStart {
            next_ino: Ino(300),
            now: -5,
        };
        let mut builder = DeltaBuilder::new(start);
        items.iter().for_each(|item| builder.push(item));
        let body = builder.finish();
        let mut found = 0;
        let parsed = parse_body(&body, &mut |item| {
            assert_eq!(item, items[found]);
            found += 1;
            Ok(())
        });
        assert_eq!((parsed.unwrap(), found), (start, items.len()));
        for end in 0..body.len() {
            let _no_panic = parse_body(&body[..end], &mut |_| Ok(()));
        }
    }

    // Would catch: a record that counts although bytes of it are others.
    #[test]
    fn every_byte_of_a_record_counts() {
        let header = DeltaHeader {
            layer: VolumeCommitNo(9),
            base: VolumeCommitNo(8),
            sequence: RecordNo(1),
            before: 0,
            unsynced: 0,
            base_chain: [5; 16],
            ..DeltaHeader::default()
        };
        let mut bytes = ID.encode_header(&header, b"body").as_bytes().to_vec();
        bytes.extend_from_slice(b"body");
        let parsed = ID.parse_header(&bytes).expect("a header");
        assert_eq!(
            (parsed.layer, parsed.sequence),
            (VolumeCommitNo(9), RecordNo(1))
        );
        assert_eq!(parsed.body(&bytes), Some(&b"body"[..]));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            let parsed = ID.parse_header(&other);
            assert_eq!(parsed.and_then(|header| header.body(&other)), None, "{at}");
        }
        let other = SyncLogId {
            volume_no: VolumeNo(4),
            ..ID
        };
        assert_eq!(other.parse_header(&bytes), None);
    }
}
