//! The files of a store: its superblock, segment superblocks, image maps, and rows of its tables.
//!
//! Segments hold the same records as images (`container`). Every file that names another one by
//! position also carries the store's identity, so that files of two stores are never mixed.

use crate::container::{Codec, RecordRef, RecordType, record};
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::{BlockId, CommitNo, Digest, Error, ErrorKind, ImageNo, Result, SegmentNo};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a store's superblock.
pub const STORE_MAGIC: [u8; 8] = *b"\x89WSTORE\n";
/// First bytes of every segment.
pub const SEGMENT_MAGIC: [u8; 8] = *b"\x89WSEGM\r\n";
/// First bytes of every image map.
pub const MAP_MAGIC: [u8; 8] = *b"\x89WMAP\r\n\0";
/// First bytes of the file `mark`.
pub const MARK_MAGIC: [u8; 8] = *b"\x89WMARK\r\n";
/// First bytes of every file of content digests.
pub const CONTENT_DIGESTS_MAGIC: [u8; 8] = *b"\x89WDIGST\n";
/// Version of the store's format that this code writes and reads.
pub const STORE_VERSION: u32 = 1;
/// Incompatible feature: rows of the tables lie in groups.
pub const STORE_ROW_GROUPS: u64 = 1;
/// Incompatible feature: segments may lie in other directories than the store's own.
pub const STORE_TIERS: u64 = 2;
/// Incompatible feature: volumes may have snapshots.
pub const STORE_SNAPSHOTS: u64 = 4;
/// Incompatible features of stores that this code knows.
pub const STORE_INCOMPAT_KNOWN: u64 = STORE_ROW_GROUPS | STORE_TIERS | STORE_SNAPSHOTS;
/// Bytes of a store's superblock.
pub const STORE_SUPERBLOCK_LEN: usize = size_of::<StoreRecord>();
/// Bytes of a segment's superblock.
pub const SEGMENT_SUPERBLOCK_LEN: usize = size_of::<SegmentRecord>();
/// Bytes of an image map's header.
pub const MAP_HEADER_LEN: usize = size_of::<MapRecord>();

record! {
    /// The superblock of a store: the whole file `store`. Only feature bits are ever added.
    StoreRecord, STORE_FIELDS, 96 {
        /// `STORE_MAGIC`.
        magic: [u8; 8] = 0,
        /// Version of the store's format.
        version: U32 = 8,
        /// Bytes of this superblock.
        superblock_len: U32 = 12,
        /// Random identity of the store.
        uuid: [u8; 16] = 16,
        /// Features that readers and writers may ignore.
        compat: U64 = 32,
        /// Features that readers may ignore, writers not.
        read_only_compat: U64 = 40,
        /// Features that nobody may ignore.
        incompat: U64 = 48,
        /// Bytes after which a segment is closed.
        segment_len: U64 = 56,
        /// Zero.
        reserved: [u8; 16] = 64,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 80,
    }
}

record! {
    /// The first bytes of a segment.
    SegmentRecord, SEGMENT_FIELDS, 64 {
        /// `SEGMENT_MAGIC`.
        magic: [u8; 8] = 0,
        /// Version of the store's format.
        version: U32 = 8,
        /// Bytes of this superblock.
        superblock_len: U32 = 12,
        /// Identity of the store.
        uuid: [u8; 16] = 16,
        /// Number of the segment.
        number: U64 = 32,
        /// Zero.
        reserved: [u8; 8] = 40,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 48,
    }
}

record! {
    /// The header of an image map; the parts of the image follow it.
    MapRecord, MAP_FIELDS, 192 {
        /// `MAP_MAGIC`.
        magic: [u8; 8] = 0,
        /// Version of the store's format.
        version: U32 = 8,
        /// Bytes of this header.
        header_len: U32 = 12,
        /// Identity of the store.
        uuid: [u8; 16] = 16,
        /// Number of the image in its store, never used twice.
        image_no: U64 = 32,
        /// Bytes of the image file that the map describes.
        image_len: U64 = 40,
        /// Parts of the image.
        part_count: U64 = 48,
        /// Bytes of the encoded parts.
        body_len: U64 = 56,
        /// BLAKE3-256 of the encoded parts.
        body_digest: [u8; 32] = 64,
        /// Digest of the image's directory record.
        image_digest: [u8; 32] = 96,
        /// Logical identity of the image's tree.
        tree_digest: [u8; 32] = 128,
        /// When the image came into the store: nanoseconds since 1970, 0 if that is not known.
        added: I64 = 160,
        /// Zero.
        reserved: [u8; 8] = 168,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 176,
    }
}

record! {
    /// The file `mark`: a commit that the tables have. It tells tables that are older.
    MarkRecord, MARK_FIELDS, 64 {
        /// `MARK_MAGIC`.
        magic: [u8; 8] = 0,
        /// Identity of the store.
        uuid: [u8; 16] = 8,
        /// Number of the commit.
        commit: U64 = 24,
        /// Zero.
        reserved: [u8; 16] = 32,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 48,
    }
}

impl MarkRecord {
    /// The mark of the store `uuid` at this commit.
    pub fn of(uuid: Uuid, commit: CommitNo) -> Self {
        let record = Self {
            magic: MARK_MAGIC,
            uuid,
            commit: U64::new(commit.0),
            reserved: [0; 16],
            checksum: [0; 16],
        };
        record.with_checksum()
    }

    /// The commit that `bytes` name; `None` if they are no mark of the store `uuid`.
    pub fn parse(bytes: &[u8], uuid: Uuid) -> Option<CommitNo> {
        let mark = Self::ref_from_bytes(bytes).ok()?;
        let is_mark = mark.magic == MARK_MAGIC && mark.has_checksum() && mark.uuid == uuid;
        is_mark.then_some(CommitNo(mark.commit.get()))
    }
}

/// Identity of a store.
pub type Uuid = [u8; 16];

/// A checked superblock of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSuperblock {
    /// Identity of the store.
    pub uuid: Uuid,
    /// Features that nobody may ignore.
    pub incompat: u64,
    /// Bytes after which a segment is closed.
    pub segment_len: u64,
}

fn newer(what: &str, version: U32) -> Error {
    Error::newer_version(what, version.get(), STORE_VERSION)
}

impl StoreSuperblock {
    /// Its bytes.
    pub fn encode(&self) -> StoreRecord {
        let record = StoreRecord {
            magic: STORE_MAGIC,
            version: U32::new(STORE_VERSION),
            superblock_len: U32::new(STORE_SUPERBLOCK_LEN as u32),
            uuid: self.uuid,
            compat: U64::ZERO,
            read_only_compat: U64::ZERO,
            incompat: U64::new(self.incompat),
            segment_len: U64::new(self.segment_len),
            reserved: [0; 16],
            checksum: [0; 16],
        };
        record.with_checksum()
    }

    /// Checks the bytes of the file `store`.
    ///
    /// # Errors
    /// `Corrupt` where they are no superblock; `Unsupported` where a newer Weald is needed.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let bad = |rule, what: &str| Error::corrupt("store superblock", 0, rule, what.to_owned());
        let record = StoreRecord::ref_from_bytes(bytes).map_err(|_| {
            bad(
                "S-1.1",
                "expected 96 bytes: this is not the superblock of a store",
            )
        })?;
        if record.magic != STORE_MAGIC {
            return Err(bad("S-1.2", "this is not the superblock of a Weald store"));
        }
        if !record.has_checksum() {
            return Err(bad("S-1.3", "checksum differs"));
        }
        if record.version.get() != STORE_VERSION {
            return Err(newer("the store", record.version));
        }
        let unknown = record.incompat.get() & !STORE_INCOMPAT_KNOWN;
        if unknown != 0 {
            let what = format!(
                "the store needs features {unknown:#x} that this Weald does not know: \
                 use a newer Weald"
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        if record.reserved != [0; 16] || record.segment_len.get() < SEGMENT_SUPERBLOCK_LEN as u64 {
            return Err(bad(
                "S-1.4",
                "reserved bytes or segment length out of range",
            ));
        }
        Ok(Self {
            uuid: record.uuid,
            incompat: record.incompat.get(),
            segment_len: record.segment_len.get(),
        })
    }
}

/// The superblock of segment `number` of the store `uuid`.
pub fn encode_segment_superblock(uuid: Uuid, number: SegmentNo) -> SegmentRecord {
    let record = SegmentRecord {
        magic: SEGMENT_MAGIC,
        version: U32::new(STORE_VERSION),
        superblock_len: U32::new(SEGMENT_SUPERBLOCK_LEN as u32),
        uuid,
        number: U64::new(number.0),
        reserved: [0; 8],
        checksum: [0; 16],
    };
    record.with_checksum()
}

/// Checks that `bytes` are the superblock of segment `number` of the store `uuid`.
///
/// # Errors
/// `Corrupt` where they are not; `Unsupported` where a newer Weald wrote them.
pub fn check_segment_superblock(bytes: &[u8], uuid: Uuid, number: SegmentNo) -> Result<()> {
    let bad = |rule, what: &str| Error::corrupt("segment superblock", 0, rule, what.to_owned());
    let record = SegmentRecord::ref_from_bytes(bytes)
        .map_err(|_| bad("S-2.1", "the segment is shorter than its superblock"))?;
    if record.magic != SEGMENT_MAGIC {
        return Err(bad("S-2.2", "this is not a segment of a store"));
    }
    if !record.has_checksum() {
        return Err(bad("S-2.3", "checksum differs"));
    }
    if record.version.get() != STORE_VERSION {
        return Err(newer("the segment", record.version));
    }
    if record.uuid == uuid && record.number.get() == number.0 {
        Ok(())
    } else {
        Err(bad(
            "S-2.4",
            "the segment belongs to another store or has another number",
        ))
    }
}

/// Where a record of a store lies: in which segment, and where its header begins there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Number of the segment.
    pub segment: SegmentNo,
    /// Offset of the record's header in it, bytes.
    pub offset: u64,
}

/// A part of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Bytes of the image that are no record: its superblock, footers.
    Inline(Vec<u8>),
    /// A record that lies in the store.
    Block {
        /// Number of the block in the store.
        id: BlockId,
        /// Where it lay when the map was written.
        location: Location,
        /// The record. Its `offset` is not used.
        record: RecordRef,
    },
}

impl Part {
    /// Bytes of the image that it stands for.
    pub fn len(&self) -> u64 {
        match self {
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Block { record, .. } => {
                (crate::container::HEADER_LEN as u64).saturating_add(record.stored_len)
            }
        }
    }

    /// Whether it stands for no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A decoded image map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageMap {
    /// Number of the image in its store.
    pub image_no: ImageNo,
    /// Digest of the image's directory record.
    pub image_digest: Digest,
    /// Logical identity of its tree.
    pub tree_digest: Digest,
    /// When the image came into the store, in nanoseconds since 1970; 0 if that is not known.
    pub added: i64,
    /// The image's bytes, in order.
    pub parts: Vec<Part>,
}

/// Most bytes of an inline part: superblocks and footers are much smaller.
pub const INLINE_PART_LEN_MAX: usize = 4096;
/// Most bytes of an image map: 5 million records.
pub const MAP_LEN_MAX: u64 = 256 << 20;

impl ImageMap {
    /// Bytes of the image.
    pub fn image_len(&self) -> u64 {
        self.parts
            .iter()
            .map(Part::len)
            .fold(0, u64::saturating_add)
    }

    /// The blocks of the image in order: number, place and record.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, Location, &RecordRef)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Inline(_) => None,
            Part::Block {
                id,
                location,
                record,
            } => Some((*id, *location, record)),
        })
    }

    /// The bytes of the map's file in the store `uuid`.
    pub fn encode(&self, uuid: Uuid) -> Vec<u8> {
        let mut body = Vec::new();
        let (mut last_id, mut last_segment) = (BlockId::default(), 0u64);
        for part in &self.parts {
            match part {
                Part::Inline(bytes) => {
                    body.push(0);
                    put_varint(&mut body, bytes.len() as u64);
                    body.extend_from_slice(bytes);
                }
                Part::Block {
                    id,
                    location,
                    record,
                } => {
                    body.push(1);
                    put_varint(&mut body, zigzag(id.steps_from(last_id)));
                    let step = location.segment.0.wrapping_sub(last_segment) as i64;
                    put_varint(&mut body, zigzag(step));
                    (last_id, last_segment) = (*id, location.segment.0);
                    put_varint(&mut body, location.offset);
                    body.extend([record.record_type as u8, record.codec as u8]);
                    put_varint(&mut body, record.stored_len);
                    put_varint(&mut body, record.raw_len);
                    body.extend_from_slice(&record.digest.0);
                }
            }
        }
        let header = MapRecord {
            magic: MAP_MAGIC,
            version: U32::new(STORE_VERSION),
            header_len: U32::new(MAP_HEADER_LEN as u32),
            uuid,
            image_no: U64::new(self.image_no.0),
            image_len: U64::new(self.image_len()),
            part_count: U64::new(self.parts.len() as u64),
            body_len: U64::new(body.len() as u64),
            body_digest: Digest::of(&body).0,
            image_digest: self.image_digest.0,
            tree_digest: self.tree_digest.0,
            added: I64::new(self.added),
            reserved: [0; 8],
            checksum: [0; 16],
        };
        let mut bytes = header.with_checksum().as_bytes().to_vec();
        bytes.append(&mut body);
        bytes
    }

    /// Checks the bytes of a map of the store `uuid`.
    ///
    /// # Errors
    /// `Corrupt` where they are no such map; `Unsupported` where a newer Weald wrote them.
    pub fn parse(bytes: &[u8], uuid: Uuid) -> Result<Self> {
        let bad = |rule, what: &str| Error::corrupt("image map", 0, rule, what.to_owned());
        let (head, body) = bytes
            .split_at_checked(MAP_HEADER_LEN)
            .ok_or_else(|| bad("S-3.1", "the map is shorter than its header"))?;
        let header = MapRecord::ref_from_bytes(head)
            .map_err(|_| bad("S-3.1", "the map is shorter than its header"))?;
        if header.magic != MAP_MAGIC {
            return Err(bad("S-3.2", "this is not the map of an image"));
        }
        if !header.has_checksum() {
            return Err(bad("S-3.3", "checksum differs"));
        }
        if header.version.get() != STORE_VERSION {
            return Err(newer("the image map", header.version));
        }
        if header.uuid != uuid {
            return Err(bad("S-3.4", "the map belongs to another store"));
        }
        if header.body_len.get() != body.len() as u64 || Digest::of(body).0 != header.body_digest {
            return Err(bad(
                "S-3.5",
                "the parts differ from the digest in the header",
            ));
        }
        let map = Self {
            image_no: ImageNo(header.image_no.get()),
            image_digest: Digest(header.image_digest),
            tree_digest: Digest(header.tree_digest),
            added: header.added.get(),
            parts: parse_parts(body, header.part_count.get())?,
        };
        if map.image_len() == header.image_len.get() {
            Ok(map)
        } else {
            Err(bad(
                "S-3.6",
                "the parts do not add up to the image's length",
            ))
        }
    }
}

fn parse_parts(body: &[u8], count: u64) -> Result<Vec<Part>> {
    let mut cursor = Cursor::new(body, "image map");
    // A part takes two bytes at least.
    let capacity = usize::try_from(count).unwrap_or(usize::MAX).min(body.len());
    let mut parts = Vec::with_capacity(capacity.min(1 << 16));
    let (mut id, mut segment) = (BlockId::default(), 0u64);
    for _ in 0..count {
        parts.push(match cursor.byte()? {
            0 => {
                let len = cursor.count(INLINE_PART_LEN_MAX, "inline bytes")?;
                Part::Inline(cursor.bytes(len)?.to_vec())
            }
            1 => {
                id = id.moved(unzigzag(cursor.varint()?));
                segment = segment.wrapping_add(unzigzag(cursor.varint()?) as u64);
                let location = Location {
                    segment: SegmentNo(segment),
                    offset: number(&mut cursor, "offset")?,
                };
                Part::Block {
                    id,
                    location,
                    record: parse_record(&mut cursor)?,
                }
            }
            kind => {
                return Err(cursor.error("S-3.7", format!("unknown kind of part {kind}")));
            }
        });
    }
    cursor.finish()?;
    Ok(parts)
}

fn number(cursor: &mut Cursor<'_>, name: &'static str) -> Result<u64> {
    cursor.bounded(crate::limits::NUMBER_MAX, name)
}

fn parse_record(cursor: &mut Cursor<'_>) -> Result<RecordRef> {
    let (kind, codec) = (cursor.byte()?, cursor.byte()?);
    let unknown = |what: &'static str| Error::corrupt("image map", 0, "S-3.8", what);
    Ok(RecordRef {
        record_type: RecordType::from_code(kind).ok_or_else(|| unknown("unknown record type"))?,
        codec: Codec::from_code(codec).ok_or_else(|| unknown("unknown codec"))?,
        offset: 0,
        stored_len: cursor.bounded(crate::limits::BLOCK_LEN_MAX, "stored length")?,
        raw_len: number(cursor, "raw length")?,
        digest: cursor.digest()?,
    })
}

/// The row of a block: where it lies, what it is, how often maps name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRow {
    /// Where its header begins.
    pub location: Location,
    /// Parts of image maps that name it.
    pub references: u64,
    /// The record. Its `offset` is not used.
    pub record: RecordRef,
}

impl BlockRow {
    /// Bytes that it takes in its segment, header included.
    pub fn len(&self) -> u64 {
        (crate::container::HEADER_LEN as u64).saturating_add(self.record.stored_len)
    }

    /// Never: a block has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The value of the row in table `blocks`.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(56);
        put_varint(&mut out, self.location.segment.0);
        put_varint(&mut out, self.location.offset);
        put_varint(&mut out, self.references);
        out.extend([self.record.record_type as u8, self.record.codec as u8]);
        put_varint(&mut out, self.record.stored_len);
        put_varint(&mut out, self.record.raw_len);
        out.extend_from_slice(&self.record.digest.0);
        out
    }

    /// Checks a value of table `blocks`.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "block row");
        let location = Location {
            segment: SegmentNo(number(&mut cursor, "segment")?),
            offset: number(&mut cursor, "offset")?,
        };
        let references = number(&mut cursor, "references")?;
        let record = parse_record(&mut cursor)?;
        cursor.finish()?;
        Ok(Self {
            location,
            references,
            record,
        })
    }
}

/// The row of a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentRow {
    /// Bytes of it that are committed; what lies behind is left from a crash.
    pub len: u64,
    /// Bytes of blocks that something refers to, headers included.
    pub live_len: u64,
    /// Whether nothing in it is needed any more: its file goes.
    pub is_emptied: bool,
    /// Whether its file was missing when the tables were made again. Its length is then not known.
    pub is_lost: bool,
    /// Bytes of its notes, headers included.
    pub notes_len: u64,
}

const SEGMENT_EMPTIED: u8 = 1;
const SEGMENT_LOST: u8 = 2;

impl SegmentRow {
    /// The value of the row in table `segments`.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        put_varint(&mut out, self.len);
        put_varint(&mut out, self.live_len);
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        out.push(flag(self.is_emptied, SEGMENT_EMPTIED) | flag(self.is_lost, SEGMENT_LOST));
        if self.notes_len > 0 {
            put_varint(&mut out, self.notes_len);
        }
        out
    }

    /// Checks a value of table `segments`.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "segment row");
        let (len, live_len) = (
            number(&mut cursor, "length")?,
            number(&mut cursor, "live length")?,
        );
        let flags = match cursor.byte()? {
            flags if flags <= SEGMENT_EMPTIED | SEGMENT_LOST => flags,
            other => return Err(cursor.error("S-4.1", format!("flag: found {other}"))),
        };
        let row = Self {
            len,
            live_len,
            is_emptied: flags & SEGMENT_EMPTIED != 0,
            is_lost: flags & SEGMENT_LOST != 0,
            notes_len: match cursor.remaining() {
                0 => 0,
                _ => number(&mut cursor, "length of notes")?,
            },
        };
        cursor.finish()?;
        Ok(row)
    }
}

/// Where an image is on its way into the store or out of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageState {
    /// Its references are being counted; readers do not see it yet.
    Adding,
    /// Readers see it.
    Present,
    /// Its references are being dropped; readers see it no more.
    Removing,
}

/// The row of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRow {
    /// Number of the image, never used twice.
    pub image_no: ImageNo,
    /// BLAKE3-256 of its map's file as it was last written.
    pub map_digest: Digest,
    /// Where it is on its way.
    pub state: ImageState,
    /// How many of the map's first parts have their references counted.
    pub counted_parts: u64,
}

impl ImageRow {
    /// The value of the row in table `images`.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        put_varint(&mut out, self.image_no.0);
        out.extend_from_slice(&self.map_digest.0);
        out.push(match self.state {
            ImageState::Adding => 0,
            ImageState::Present => 1,
            ImageState::Removing => 2,
        });
        put_varint(&mut out, self.counted_parts);
        out
    }

    /// Checks a value of table `images`.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "image row");
        let row = Self {
            image_no: ImageNo(number(&mut cursor, "image number")?),
            map_digest: cursor.digest()?,
            state: match cursor.byte()? {
                0 => ImageState::Adding,
                1 => ImageState::Present,
                2 => ImageState::Removing,
                other => return Err(cursor.error("S-4.1", format!("state: found {other}"))),
            },
            counted_parts: number(&mut cursor, "counted parts")?,
        };
        cursor.finish()?;
        Ok(row)
    }
}
