//! The journal of a store: each commit of its tables once more, in files of their own.
//!
//! A file has a superblock and frames. A commit has one frame or several; the last of them has the
//! sum of all rows after it. A checkpoint is a file whose only commit puts all rows.

use crate::container::record;
use crate::cursor::{Cursor, put_varint};
use crate::store::Uuid;
use crate::{CommitNo, Digest, Error, Result};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a file of the journal.
pub const JOURNAL_MAGIC: [u8; 8] = *b"\x89WJRNL\r\n";
/// First bytes of a frame.
pub const FRAME_MAGIC: [u8; 4] = *b"WJFR";
/// Version of the format of the journal.
const JOURNAL_VERSION: u32 = 1;
/// Bytes of the superblock.
pub const JOURNAL_SUPERBLOCK_LEN: usize = 128;
/// Bytes of the header of a frame.
pub const FRAME_HEADER_LEN: usize = 128;
/// Most bytes of the body of a frame: a row of 16 MiB alone, and its group.
pub const FRAME_BODY_LEN_MAX: u64 = 40 << 20;
/// In the flags of a frame: it is the last one of its commit.
const IS_LAST: u32 = 1;
/// What a file is: commits that follow each other.
const OF_COMMITS: u32 = 0;
/// What a file is: all rows.
const OF_ROWS: u32 = 1;

/// The sum of a set of rows: of the BLAKE3 digests of table, key and value of each row, taken as
/// four numbers of 64 bits, each modulo 2^64. It does not depend on the order of rows, and a change
/// of one row changes it by what the row was and is.
///
/// It finds damage and errors of programs. It is not made against somebody who chooses rows so that
/// they add up: the digests of frames are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RowSum([u64; 4]);

impl RowSum {
    /// The sum with the bytes that [`RowSum::to_bytes`] made.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let mut sum = Self::default();
        for (lane, bytes) in sum.0.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *lane = u64::from_le_bytes(*bytes);
        }
        sum
    }

    /// Its bytes.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (lane, bytes) in self.0.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *bytes = lane.to_le_bytes();
        }
        bytes
    }

    fn of_row(table: u8, key: &[u8], value: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[table]);
        hasher.update(&(key.len() as u64).to_le_bytes());
        hasher.update(key);
        hasher.update(value);
        Self::from_bytes(hasher.finalize().into())
    }

    /// Adds a row of the table with this code.
    pub fn add(&mut self, table: u8, key: &[u8], value: &[u8]) {
        let row = Self::of_row(table, key, value);
        for (lane, of_row) in self.0.iter_mut().zip(row.0) {
            *lane = lane.wrapping_add(of_row);
        }
    }

    /// Takes a row away.
    pub fn remove(&mut self, table: u8, key: &[u8], value: &[u8]) {
        let row = Self::of_row(table, key, value);
        for (lane, of_row) in self.0.iter_mut().zip(row.0) {
            *lane = lane.wrapping_sub(of_row);
        }
    }
}

record! {
    /// The superblock of a file.
    JournalRecord, JOURNAL_FIELDS, 128 {
        /// `JOURNAL_MAGIC`.
        magic: [u8; 8] = 0,
        /// Version of the format of the journal.
        version: U32 = 8,
        /// Bytes of this superblock.
        superblock_len: U32 = 12,
        /// Identity of the store.
        uuid: [u8; 16] = 16,
        /// Identity of the history that the file is part of.
        lineage: [u8; 16] = 32,
        /// 0: commits that follow each other; 1: all rows as of one commit.
        kind: U32 = 48,
        /// Zero.
        reserved: U32 = 52,
        /// The commit before the first one; of a file of rows, its only commit.
        base: U64 = 56,
        /// When the file was begun, in nanoseconds since 1970.
        time: I64 = 64,
        /// Sum of all rows before the first commit.
        sum: [u8; 32] = 72,
        /// Zero.
        more_reserved: [u8; 8] = 104,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 112,
    }
}

record! {
    /// The header of a frame; the body follows it.
    FrameRecord, FRAME_FIELDS, 128 {
        /// `FRAME_MAGIC`.
        magic: [u8; 4] = 0,
        /// Bit 0: the frame is the last one of its commit.
        flags: U32 = 4,
        /// Number of the commit.
        commit: U64 = 8,
        /// Bytes of the body.
        body_len: U32 = 16,
        /// Zero.
        reserved: U32 = 20,
        /// When the commit was made, in nanoseconds since 1970.
        time: I64 = 24,
        /// In the last frame of a commit, the sum of all rows after it; zero in the others.
        sum: [u8; 32] = 32,
        /// First 16 bytes of the digest of the frame before, or of the superblock.
        before: [u8; 16] = 64,
        /// BLAKE3-256 of the bytes before and the body.
        digest: [u8; 32] = 80,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 112,
    }
}

const _: () = assert!(size_of::<JournalRecord>() == JOURNAL_SUPERBLOCK_LEN);
const _: () = assert!(size_of::<FrameRecord>() == FRAME_HEADER_LEN);

fn bad(offset: u64, rule: &'static str, what: &'static str) -> Error {
    Error::corrupt("journal", offset, rule, what)
}

/// What a file of the journal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalKind {
    /// Commits that follow each other.
    Commits,
    /// All rows as of one commit.
    Rows,
}

/// A checked superblock of a file of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalSuperblock {
    /// What the file is.
    pub kind: JournalKind,
    /// Identity of the store.
    pub uuid: Uuid,
    /// Identity of the history that the file is part of.
    pub lineage: Uuid,
    /// The commit before the first one of the file; of a file of rows, the commit that it shows.
    pub base: CommitNo,
    /// When the file was begun, in nanoseconds since 1970.
    pub time: i64,
    /// Sum of all rows after the commit `base`; of a file of rows, before its frames: zero.
    pub sum: RowSum,
}

impl JournalSuperblock {
    /// Its bytes.
    pub fn encode(&self) -> [u8; JOURNAL_SUPERBLOCK_LEN] {
        let record = JournalRecord {
            magic: JOURNAL_MAGIC,
            version: U32::new(JOURNAL_VERSION),
            superblock_len: U32::new(JOURNAL_SUPERBLOCK_LEN as u32),
            uuid: self.uuid,
            lineage: self.lineage,
            kind: U32::new(match self.kind {
                JournalKind::Commits => OF_COMMITS,
                JournalKind::Rows => OF_ROWS,
            }),
            reserved: U32::ZERO,
            base: U64::new(self.base.0),
            time: I64::new(self.time),
            sum: self.sum.to_bytes(),
            more_reserved: [0; 8],
            checksum: [0; 16],
        };
        let record = record.with_checksum();
        let mut bytes = [0; JOURNAL_SUPERBLOCK_LEN];
        bytes.copy_from_slice(record.as_bytes());
        bytes
    }

    /// Parses the first bytes of a file of the store `uuid`.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` for a newer version.
    pub fn parse(bytes: &[u8], uuid: Uuid) -> Result<Self> {
        let bytes = bytes.get(..JOURNAL_SUPERBLOCK_LEN);
        let record = bytes.and_then(|bytes| JournalRecord::read_from_bytes(bytes).ok());
        let record = record.ok_or_else(|| bad(0, "S-8.1", "the file is too short"))?;
        if record.magic != JOURNAL_MAGIC {
            return Err(bad(0, "S-8.1", "this is no file of a journal"));
        }
        if !record.has_checksum() {
            let what = "the superblock of the journal differs from its checksum";
            return Err(bad(112, "S-8.1", what));
        }
        if record.version.get() > JOURNAL_VERSION {
            let version = record.version.get();
            return Err(Error::newer_version("journal", version, JOURNAL_VERSION));
        }
        let kind = match record.kind.get() {
            OF_COMMITS => JournalKind::Commits,
            OF_ROWS => JournalKind::Rows,
            _ => return Err(bad(48, "S-8.1", "the kind of the file is unknown")),
        };
        let is_zero = record.reserved.get() == 0 && record.more_reserved == [0; 8];
        let is_len = record.superblock_len.get() == JOURNAL_SUPERBLOCK_LEN as u32;
        if !is_zero || !is_len {
            return Err(bad(52, "S-8.1", "reserved bytes are not zero"));
        }
        if record.uuid != uuid {
            return Err(bad(16, "S-8.2", "the journal belongs to another store"));
        }
        Ok(Self {
            kind,
            uuid,
            lineage: record.lineage,
            base: CommitNo(record.base.get()),
            time: record.time.get(),
            sum: RowSum::from_bytes(record.sum),
        })
    }

    /// Whether the file is the file of rows as of `commit`.
    pub fn is_rows_of(&self, commit: CommitNo) -> bool {
        self.kind == JournalKind::Rows && self.base == commit
    }

    /// The digest that the first frame of the file continues.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.encode())
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Whether the commit ends with this frame.
    pub is_last: bool,
    /// The commit.
    pub commit: CommitNo,
    /// Bytes of the body.
    pub body_len: u32,
    /// When the commit was made, in nanoseconds since 1970, as far as the clock was right.
    pub time: i64,
    /// In the last frame of a commit: sum of all rows after it. Zero in the others.
    pub sum: RowSum,
    /// The digest that the frame continues: of the frame before, or of the superblock.
    pub before: Before,
}

/// The first bytes of the digest of what a frame continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Before([u8; 16]);

impl Before {
    /// That of the frame or the superblock with this digest.
    pub fn of(digest: &Digest) -> Self {
        let bytes = digest.0.first_chunk();
        Self(bytes.copied().unwrap_or_default())
    }
}

impl FrameHeader {
    fn record(&self, digest: Digest) -> FrameRecord {
        FrameRecord {
            magic: FRAME_MAGIC,
            flags: U32::new(if self.is_last { IS_LAST } else { 0 }),
            commit: U64::new(self.commit.0),
            body_len: U32::new(self.body_len),
            reserved: U32::ZERO,
            time: I64::new(self.time),
            sum: self.sum.to_bytes(),
            before: self.before.0,
            digest: digest.0,
            checksum: [0; 16],
        }
        .with_checksum()
    }

    /// The bytes of the frame with this header and `body`, and its digest.
    pub fn encode(&self, body: &[u8]) -> (Vec<u8>, Digest) {
        let digest = digest_of(&self.record(Digest::default()), body);
        let mut bytes = Vec::with_capacity(body.len().saturating_add(FRAME_HEADER_LEN));
        bytes.extend_from_slice(self.record(digest).as_bytes());
        bytes.extend_from_slice(body);
        (bytes, digest)
    }

    /// Parses a header, which lies at `offset`. The digest is that of the frame, if the body is
    /// what [`FrameHeader::check_body`] accepts.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8; FRAME_HEADER_LEN], offset: u64) -> Result<(Self, Digest)> {
        let record = FrameRecord::read_from_bytes(bytes);
        let record = record.map_err(|_| bad(offset, "S-8.3", "a frame is too short"))?;
        let flags = record.flags.get();
        if record.magic != FRAME_MAGIC || !record.has_checksum() {
            return Err(bad(offset, "S-8.3", "this is no frame"));
        }
        if flags & !IS_LAST != 0 || record.reserved.get() != 0 {
            return Err(bad(offset, "S-8.3", "a frame has unknown flags"));
        }
        if u64::from(record.body_len.get()) > FRAME_BODY_LEN_MAX {
            return Err(bad(offset, "S-8.3", "a frame is too long"));
        }
        let header = Self {
            is_last: flags == IS_LAST,
            commit: CommitNo(record.commit.get()),
            body_len: record.body_len.get(),
            time: record.time.get(),
            sum: RowSum::from_bytes(record.sum),
            before: Before(record.before),
        };
        Ok((header, Digest(record.digest)))
    }

    /// Checks the digest of a frame, which lies at `offset`, over its header and its body.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check_body(&self, (body, digest): (&[u8], Digest), offset: u64) -> Result<()> {
        if digest_of(&self.record(Digest::default()), body) == digest {
            return Ok(());
        }
        Err(bad(offset, "S-8.4", "a frame differs from its digest"))
    }
}

fn digest_of(record: &FrameRecord, body: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(record.as_bytes().get(..80).unwrap_or_default());
    hasher.update(body);
    Digest(hasher.finalize().into())
}

/// Rows of one table in the body of a frame, as the store packs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameGroup<'a> {
    /// Code of the table.
    pub table: u8,
    /// Whether the rows with these keys are removed; they have no values then.
    pub is_removal: bool,
    /// The packed rows.
    pub stored: &'a [u8],
}

impl FrameGroup<'_> {
    /// Appends it to a body.
    pub fn put(&self, body: &mut Vec<u8>) {
        body.push(self.table);
        body.push(self.is_removal.into());
        put_varint(body, self.stored.len() as u64);
        body.extend_from_slice(self.stored);
    }
}

/// The groups of a body, in order.
///
/// # Errors
/// `Corrupt`.
pub fn frame_groups(body: &[u8]) -> Result<Vec<FrameGroup<'_>>> {
    let mut cursor = Cursor::new(body, "journal");
    let mut groups = Vec::new();
    while cursor.remaining() > 0 {
        let table = cursor.byte()?;
        let is_removal = match cursor.byte()? {
            0 => false,
            1 => true,
            _ => return Err(bad(0, "S-8.5", "the kind of a group is unknown")),
        };
        let len = cursor.count(FRAME_BODY_LEN_MAX as usize, "length of a group")?;
        let stored = cursor.bytes(len)?;
        groups.push(FrameGroup {
            table,
            is_removal,
            stored,
        });
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> JournalSuperblock {
        JournalSuperblock {
            kind: JournalKind::Commits,
            uuid: [7; 16],
            lineage: [9; 16],
            base: CommitNo(300),
            time: -5,
            sum: RowSum([1, u64::MAX, 3, 4]),
        }
    }

    // Would catch a field that is not covered by the checksum.
    #[test]
    fn no_flipped_bit_of_a_superblock_is_accepted() {
        let bytes = superblock().encode();
        let parsed = JournalSuperblock::parse(&bytes, [7; 16]);
        assert_eq!(parsed.expect("a superblock"), superblock());
        JournalSuperblock::parse(&bytes, [8; 16]).expect_err("another store");
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            JournalSuperblock::parse(&bytes, [7; 16]).expect_err("damage");
        }
    }

    // Would catch a field of a frame that its digest does not cover.
    #[test]
    fn no_flipped_bit_of_a_frame_is_accepted() {
        let mut body = Vec::new();
        let group = FrameGroup {
            table: 3,
            is_removal: true,
            stored: b"rows",
        };
        group.put(&mut body);
        assert_eq!(frame_groups(&body).expect("a body"), [group]);
        let header = FrameHeader {
            is_last: true,
            commit: CommitNo(301),
            body_len: body.len() as u32,
            time: 12,
            sum: RowSum([5; 4]),
            before: Before::of(&superblock().digest()),
        };
        let (bytes, _) = header.encode(&body);
        let is_accepted = |bytes: &[u8]| {
            let (head, body) = bytes.split_first_chunk().expect("a header");
            let Ok((header, digest)) = FrameHeader::parse(head, 128) else {
                return false;
            };
            body.len() == header.body_len as usize && header.check_body((body, digest), 128).is_ok()
        };
        assert!(is_accepted(&bytes));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_accepted(&bytes), "bit {bit}");
        }
    }

    // Would catch a sum that depends on the order of rows, or that mixes key and value.
    #[test]
    fn a_sum_of_rows_follows_their_changes() {
        let mut sum = RowSum::default();
        sum.add(1, b"a", b"bc");
        sum.add(2, b"a", b"bc");
        let mut other = RowSum::default();
        other.add(2, b"a", b"bc");
        other.add(1, b"ab", b"c");
        assert_ne!(sum, other);
        other.remove(1, b"ab", b"c");
        other.add(1, b"a", b"bc");
        assert_eq!(sum, other);
        assert_eq!(RowSum::from_bytes(sum.to_bytes()), sum);
    }
}
