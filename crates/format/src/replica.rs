//! Files of a replica: a place that has the commits of a store, in items, and the bytes that they
//! need, in files of data that are named by their digests.
//!
//! An item says which state of the tables it leads from, and to which; its list names the files of
//! data that came with it. The chain of items and the sums of rows tell what is missing, foreign or
//! out of order.

use crate::container::record;
use crate::cursor::{Cursor, put_varint};
use crate::journal::RowSum;
use crate::store::Uuid;
use crate::{CommitNo, Digest, Error, ImageNo, Result, SegmentNo};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of the file that says of which store a place is a replica.
pub const PLACE_MAGIC: [u8; 8] = *b"\x89WPLACE\n";
/// First bytes of an item.
pub const ITEM_MAGIC: [u8; 8] = *b"\x89WITEM\r\n";
/// Version of the format of replicas.
const REPLICA_VERSION: u32 = 1;
/// Bytes of the header of an item.
pub const ITEM_HEADER_LEN: usize = 256;
/// Most bytes of the list of an item.
pub const ITEM_LIST_LEN_MAX: u64 = 256 << 20;
/// Most bytes of a file of data.
pub const DATA_LEN_MAX: u64 = 300 << 20;
/// Kind of an item: the rows that changed.
const OF_CHANGES: u32 = 0;
/// Kind of an item: all rows.
const OF_ALL_ROWS: u32 = 1;

record! {
    /// The file that says of which store a place is a replica.
    PlaceRecord, PLACE_FIELDS, 64 {
        /// `PLACE_MAGIC`.
        magic: [u8; 8] = 0,
        /// Version of the format of replicas.
        version: U32 = 8,
        /// Bytes of this record.
        record_len: U32 = 12,
        /// Identity of the store.
        uuid: [u8; 16] = 16,
        /// Identity of the history that the items tell.
        lineage: [u8; 16] = 32,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 48,
    }
}

record! {
    /// The header of an item; its list follows it.
    ItemRecord, ITEM_FIELDS, 256 {
        /// `ITEM_MAGIC`.
        magic: [u8; 8] = 0,
        /// Version of the format of replicas.
        version: U32 = 8,
        /// Bytes of this header.
        header_len: U32 = 12,
        /// Identity of the store.
        uuid: [u8; 16] = 16,
        /// Identity of the history that the items tell.
        lineage: [u8; 16] = 32,
        /// Number of the item, from 1 on.
        number: U64 = 48,
        /// 0: the rows that changed; 1: all rows.
        kind: U32 = 56,
        /// How often another store has taken over, up to this item.
        epoch: U32 = 60,
        /// The commit from which the item leads on; 0 in the first item.
        base: U64 = 64,
        /// The commit to which it leads.
        commit: U64 = 72,
        /// When it was made, in nanoseconds since 1970.
        time: I64 = 80,
        /// Length at which the store closes segments.
        segment_len: U64 = 88,
        /// Features of the store, as in its superblock.
        incompat: U64 = 96,
        /// Bytes of the list.
        list_len: U64 = 104,
        /// Sum of all rows after the commit `base`.
        before: [u8; 32] = 112,
        /// Sum of all rows after the commit `commit`.
        after: [u8; 32] = 144,
        /// BLAKE3-256 of the header of the item before; zero in the first item.
        previous: [u8; 32] = 176,
        /// BLAKE3-256 of the list.
        list_digest: [u8; 32] = 208,
        /// First 16 bytes of the BLAKE3 digest of the bytes before.
        checksum: [u8; 16] = 240,
    }
}

const _: () = assert!(size_of::<ItemRecord>() == ITEM_HEADER_LEN);

fn bad(rule: &'static str, what: &'static str) -> Error {
    Error::corrupt("replica", 0, rule, what)
}

/// Of which store, and of which of its histories, a place is a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlaceIdentity {
    /// The store.
    pub uuid: Uuid,
    /// The history: begun anew for each replica, so that two are never mixed.
    pub lineage: Uuid,
}

impl PlaceIdentity {
    /// The bytes of its file.
    pub fn encode(&self) -> Vec<u8> {
        let record = PlaceRecord {
            magic: PLACE_MAGIC,
            version: U32::new(REPLICA_VERSION),
            record_len: U32::new(size_of::<PlaceRecord>() as u32),
            uuid: self.uuid,
            lineage: self.lineage,
            checksum: [0; 16],
        };
        record.with_checksum().as_bytes().to_vec()
    }

    /// Parses the bytes of its file.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` for a newer version.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let record = PlaceRecord::read_from_bytes(bytes)
            .map_err(|_| bad("S-9.1", "the file has another length"))?;
        if record.magic != PLACE_MAGIC {
            return Err(bad("S-9.1", "this is no replica of a store"));
        }
        if !record.has_checksum() {
            return Err(bad("S-9.1", "the file differs from its checksum"));
        }
        check_version(record.version)?;
        Ok(Self {
            uuid: record.uuid,
            lineage: record.lineage,
        })
    }
}

fn check_version(version: U32) -> Result<()> {
    match version.get() {
        REPLICA_VERSION => Ok(()),
        newer => Err(Error::newer_version("replica", newer, REPLICA_VERSION)),
    }
}

/// Number of an item of a replica, from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ItemNo(pub u64);

impl ItemNo {
    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// How often another store has taken over from the one that sends to a replica: 0 at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl std::fmt::Display for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Which rows an item has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    /// Those that changed since the item before.
    Changes,
    /// All.
    AllRows,
}

/// The header of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemHeader {
    /// Of which replica it is.
    pub place: PlaceIdentity,
    /// Its number.
    pub number: ItemNo,
    /// Which of the stores that took over has sent it.
    pub epoch: Epoch,
    /// Which rows it has.
    pub kind: ItemKind,
    /// The commit from which it leads on.
    pub base: CommitNo,
    /// The commit to which it leads.
    pub commit: CommitNo,
    /// When it was made, in nanoseconds since 1970, as far as the clock was right.
    pub time: i64,
    /// Length at which the store closes segments, in bytes.
    pub segment_len: u64,
    /// Features of the store.
    pub incompat: u64,
    /// Sum of all rows after `base`.
    pub before: RowSum,
    /// Sum of all rows after `commit`.
    pub after: RowSum,
    /// The item before, by [`ItemHeader::digest`]; zero in the first one.
    pub previous: Digest,
    /// BLAKE3-256 of the list, and its length in bytes.
    pub list_digest: Digest,
    /// Length of the list in bytes.
    pub list_len: u64,
}

impl ItemHeader {
    /// Its bytes.
    pub fn encode(&self) -> [u8; ITEM_HEADER_LEN] {
        let record = ItemRecord {
            magic: ITEM_MAGIC,
            version: U32::new(REPLICA_VERSION),
            header_len: U32::new(ITEM_HEADER_LEN as u32),
            uuid: self.place.uuid,
            lineage: self.place.lineage,
            number: U64::new(self.number.0),
            kind: U32::new(match self.kind {
                ItemKind::Changes => OF_CHANGES,
                ItemKind::AllRows => OF_ALL_ROWS,
            }),
            epoch: U32::new(self.epoch.0),
            base: U64::new(self.base.0),
            commit: U64::new(self.commit.0),
            time: I64::new(self.time),
            segment_len: U64::new(self.segment_len),
            incompat: U64::new(self.incompat),
            list_len: U64::new(self.list_len),
            before: self.before.to_bytes(),
            after: self.after.to_bytes(),
            previous: self.previous.0,
            list_digest: self.list_digest.0,
            checksum: [0; 16],
        };
        let mut bytes = [0; ITEM_HEADER_LEN];
        bytes.copy_from_slice(record.with_checksum().as_bytes());
        bytes
    }

    /// The identity of the item: of its header, which names the digest of its list.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.encode())
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let record = ItemRecord::read_from_bytes(bytes)
            .map_err(|_| bad("S-9.2", "the item is shorter than its header"))?;
        if record.magic != ITEM_MAGIC {
            return Err(bad("S-9.2", "this is no item of a replica"));
        }
        if !record.has_checksum() {
            return Err(bad("S-9.2", "the header differs from its checksum"));
        }
        check_version(record.version)?;
        let is_len = record.header_len.get() == ITEM_HEADER_LEN as u32;
        if !is_len {
            return Err(bad("S-9.2", "the header has another length"));
        }
        Ok(Self {
            place: PlaceIdentity {
                uuid: record.uuid,
                lineage: record.lineage,
            },
            number: ItemNo(record.number.get()),
            epoch: Epoch(record.epoch.get()),
            kind: match record.kind.get() {
                OF_CHANGES => ItemKind::Changes,
                OF_ALL_ROWS => ItemKind::AllRows,
                _ => return Err(bad("S-9.2", "the kind of the item is unknown")),
            },
            base: CommitNo(record.base.get()),
            commit: CommitNo(record.commit.get()),
            time: record.time.get(),
            segment_len: record.segment_len.get(),
            incompat: record.incompat.get(),
            before: RowSum::from_bytes(record.before),
            after: RowSum::from_bytes(record.after),
            previous: Digest(record.previous),
            list_digest: Digest(record.list_digest),
            list_len: record.list_len.get(),
        })
    }
}

/// What a file of data is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataKind {
    /// Rows: bodies of frames of the journal, each behind its length.
    Rows,
    /// Bytes of a segment.
    Segment {
        /// The segment.
        number: SegmentNo,
        /// Where they begin.
        offset: u64,
        /// How many there are, those that are left out as zeros included.
        len: u64,
    },
    /// The map of an image.
    Map(ImageNo),
}

/// A file of data that an item names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFile {
    /// What it is for.
    pub kind: DataKind,
    /// BLAKE3-256 of the file, which is its name.
    pub digest: Digest,
    /// Bytes of the file.
    pub file_len: u64,
}

/// A range of a segment that the store itself could not read when the item was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lacking {
    /// The segment.
    pub number: SegmentNo,
    /// Where the range begins.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// What belongs to an item.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ItemList {
    /// Its files of data. Those of an item with all rows are all that its state needs.
    pub files: Vec<DataFile>,
    /// What the store could not read.
    pub lacking: Vec<Lacking>,
}

const ROWS_CODE: u8 = 0;
const SEGMENT_CODE: u8 = 1;
const MAP_CODE: u8 = 2;

impl ItemList {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, self.files.len() as u64);
        for file in &self.files {
            match file.kind {
                DataKind::Rows => out.push(ROWS_CODE),
                DataKind::Segment {
                    number,
                    offset,
                    len,
                } => {
                    out.push(SEGMENT_CODE);
                    put_varint(&mut out, number.0);
                    put_varint(&mut out, offset);
                    put_varint(&mut out, len);
                }
                DataKind::Map(image_no) => {
                    out.push(MAP_CODE);
                    put_varint(&mut out, image_no.0);
                }
            }
            put_varint(&mut out, file.file_len);
            out.extend_from_slice(&file.digest.0);
        }
        put_varint(&mut out, self.lacking.len() as u64);
        for lacking in &self.lacking {
            put_varint(&mut out, lacking.number.0);
            put_varint(&mut out, lacking.offset);
            put_varint(&mut out, lacking.len);
        }
        out
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "replica");
        let mut list = Self::default();
        // A file takes 35 bytes at least, and a range three.
        let count = cursor.count(bytes.len() / 34, "number of files")?;
        for _ in 0..count {
            let kind = match cursor.byte()? {
                ROWS_CODE => DataKind::Rows,
                SEGMENT_CODE => DataKind::Segment {
                    number: SegmentNo(number(&mut cursor, "segment")?),
                    offset: number(&mut cursor, "offset")?,
                    len: number(&mut cursor, "length")?,
                },
                MAP_CODE => DataKind::Map(ImageNo(number(&mut cursor, "image")?)),
                _ => return Err(bad("S-9.3", "the kind of a file is unknown")),
            };
            let file_len = cursor.bounded(DATA_LEN_MAX, "length of a file")?;
            let digest = cursor.digest()?;
            list.files.push(DataFile {
                kind,
                digest,
                file_len,
            });
        }
        let count = cursor.count(bytes.len() / 3, "number of ranges")?;
        for _ in 0..count {
            list.lacking.push(Lacking {
                number: SegmentNo(number(&mut cursor, "segment")?),
                offset: number(&mut cursor, "offset")?,
                len: number(&mut cursor, "length")?,
            });
        }
        cursor.finish()?;
        Ok(list)
    }
}

fn number(cursor: &mut Cursor<'_>, name: &'static str) -> Result<u64> {
    cursor.bounded(crate::limits::NUMBER_MAX, name)
}

/// An item of a replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// Its header.
    pub header: ItemHeader,
    /// What belongs to it.
    pub list: ItemList,
}

impl Item {
    /// An item with this list, whose length and digest the header gets.
    pub fn new(mut header: ItemHeader, list: ItemList) -> Self {
        let bytes = list.encode();
        header.list_digest = Digest::of(&bytes);
        header.list_len = bytes.len() as u64;
        Self { header, list }
    }

    /// The bytes of its file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.header.encode().to_vec();
        bytes.extend(self.list.encode());
        bytes
    }

    /// Parses the bytes of its file.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` for a newer version.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let (head, list) = bytes
            .split_at_checked(ITEM_HEADER_LEN)
            .ok_or_else(|| bad("S-9.2", "the item is shorter than its header"))?;
        let header = ItemHeader::parse(head)?;
        if list.len() as u64 != header.list_len || Digest::of(list) != header.list_digest {
            return Err(bad("S-9.3", "the list differs from its digest"));
        }
        let list = ItemList::parse(list)?;
        Ok(Self { header, list })
    }
}

/// The file of data with bytes of a segment: zeros at page boundaries, which are those that the
/// store has freed, are left out.
#[must_use]
pub fn pack_segment(bytes: &[u8]) -> Vec<u8> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (index, page) in bytes.chunks(PAGE_LEN).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        let from = index.saturating_mul(PAGE_LEN);
        let to = from.saturating_add(page.len());
        match runs.last_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => runs.push((from, to)),
        }
    }
    let mut out = Vec::with_capacity(bytes.len().saturating_add(32));
    put_varint(&mut out, runs.len() as u64);
    for (from, to) in &runs {
        put_varint(&mut out, *from as u64);
        put_varint(&mut out, to.saturating_sub(*from) as u64);
    }
    for (from, to) in runs {
        out.extend_from_slice(bytes.get(from..to).unwrap_or_default());
    }
    out
}

/// Bytes of which all must be zero to be left out.
const PAGE_LEN: usize = 4096;

/// A run of bytes: where it begins, and the bytes.
pub type ByteRun<'a> = (u64, &'a [u8]);

/// The runs of bytes in a file of data of `len` bytes of a segment. The bytes between are zero.
///
/// # Errors
/// `Corrupt`.
pub fn unpack_segment(file: &[u8], len: u64) -> Result<Vec<ByteRun<'_>>> {
    let mut cursor = Cursor::new(file, "replica");
    let count = cursor.count(file.len(), "number of runs")?;
    let mut places = Vec::new();
    let mut end = 0u64;
    for _ in 0..count {
        let from = cursor.bounded(len, "offset of a run")?;
        let run_len = cursor.bounded(len, "length of a run")?;
        if from < end || from.saturating_add(run_len) > len {
            return Err(bad("S-9.4", "runs overlap, or lie behind the end"));
        }
        end = from.saturating_add(run_len);
        places.push((from, run_len));
    }
    let mut runs = Vec::new();
    for (from, run_len) in places {
        runs.push((from, cursor.bytes(run_len as usize)?));
    }
    cursor.finish()?;
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item() -> Item {
        let header = ItemHeader {
            place: PlaceIdentity {
                uuid: [3; 16],
                lineage: [4; 16],
            },
            number: ItemNo(5),
            epoch: Epoch(3),
            kind: ItemKind::Changes,
            base: CommitNo(6),
            commit: CommitNo(9),
            time: -1,
            segment_len: 4096,
            incompat: 1,
            before: RowSum::from_bytes([7; 32]),
            after: RowSum::from_bytes([8; 32]),
            previous: Digest([9; 32]),
            list_digest: Digest::default(),
            list_len: 0,
        };
        let file = |kind| DataFile {
            kind,
            digest: Digest([1; 32]),
            file_len: 77,
        };
        let list = ItemList {
            files: vec![
                file(DataKind::Rows),
                file(DataKind::Map(ImageNo(300))),
                file(DataKind::Segment {
                    number: SegmentNo(2),
                    offset: 1 << 40,
                    len: 12,
                }),
            ],
            lacking: vec![Lacking {
                number: SegmentNo(2),
                offset: 3,
                len: 4,
            }],
        };
        Item::new(header, list)
    }

    // Would catch a byte of an item or of the file of a place that no digest covers.
    #[test]
    fn no_flipped_bit_is_accepted() {
        let item = item();
        let place = item.header.place;
        assert_eq!(Item::parse(&item.encode()).expect("an item"), item);
        assert_eq!(PlaceIdentity::parse(&place.encode()).expect("one"), place);
        for (bytes, is_item) in [(item.encode(), true), (place.encode(), false)] {
            for bit in 0..bytes.len() * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let is_refused = if is_item {
                    Item::parse(&bytes).is_err()
                } else {
                    PlaceIdentity::parse(&bytes).is_err()
                };
                assert!(is_refused, "bit {bit}");
            }
            for len in 0..bytes.len() {
                let cut = bytes.get(..len).expect("a part");
                assert!(Item::parse(cut).is_err() && PlaceIdentity::parse(cut).is_err());
            }
        }
    }

    // Would catch zeros that are left out at the wrong place, and a run that a forged file puts
    // behind the end.
    #[test]
    fn bytes_of_segments_come_back() {
        let mut bytes = vec![0; 5 * PAGE_LEN + 100];
        bytes[PAGE_LEN + 5] = 1;
        bytes[2 * PAGE_LEN] = 2;
        bytes[5 * PAGE_LEN + 99] = 3;
        let file = pack_segment(&bytes);
        assert!(file.len() < 2 * PAGE_LEN + 100 + 32);
        let mut found = vec![0; bytes.len()];
        for (from, run) in unpack_segment(&file, bytes.len() as u64).expect("runs") {
            found[from as usize..][..run.len()].copy_from_slice(run);
        }
        assert_eq!(found, bytes);
        unpack_segment(&file, bytes.len() as u64 - 1).expect_err("a shorter range");
        assert_eq!(unpack_segment(&pack_segment(&[]), 0).expect("none"), []);
        for len in 0..file.len() {
            let cut = file.get(..len).expect("a part");
            unpack_segment(cut, bytes.len() as u64).expect_err("a part of a file");
        }
    }
}
