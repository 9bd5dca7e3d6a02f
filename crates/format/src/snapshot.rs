//! Rows of snapshots: named states of a volume that stay.
//!
//! The rows of a volume are those of its newest state. When a commit changes a row that a snapshot
//! has, the old value is *kept*: it stays for that snapshot and for older ones which have the row
//! too. Keys begin with the number of the volume, as those of its other rows.

use crate::cursor::{Cursor, put_varint};
use crate::volume::{VolumeRow, put_time, time};
use crate::{Error, Result, SnapshotNo, VolumeNo};

/// Version of the rows of snapshots that this code writes and reads.
pub const SNAPSHOT_VERSION: u64 = 1;
/// Most bytes of a snapshot's name, and of the tag of a hold.
pub const SNAPSHOT_NAME_LEN_MAX: usize = 200;
/// Most snapshots that a volume has at a time: what a list of them takes in memory is bounded.
pub const SNAPSHOTS_MAX: usize = 1 << 16;
/// Most tags that hold one snapshot.
pub const HOLDS_MAX: usize = 64;
/// Greatest number of a snapshot. The first byte of a number in a key is 0, so that the kept rows
/// of one key follow each other: no name of an attribute, which a key may end with, has that byte.
pub const SNAPSHOT_NO_MAX: SnapshotNo = SnapshotNo((1 << 24) - 1);
/// Most bytes of the place where a removal goes on: a key.
const CURSOR_LEN_MAX: usize = 1024;
/// Most bytes of the row of a volume.
const VOLUME_ROW_LEN_MAX: usize = 1024;

fn bad(rule: &'static str, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("snapshot row", 0, rule, what)
}

/// What all snapshots of a volume share; its key is that of snapshot 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotsRow {
    /// The number that the next snapshot gets.
    pub next: SnapshotNo,
    /// The snapshot that the volume is being rolled back to.
    pub rollback: Option<SnapshotNo>,
}

impl SnapshotsRow {
    /// The value of the row.
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(8);
        put_varint(&mut out, SNAPSHOT_VERSION);
        put_varint(&mut out, self.next.0.into());
        let rollback = self.rollback.unwrap_or(SnapshotNo::NONE);
        put_varint(&mut out, rollback.0.into());
        out
    }

    /// Checks a value.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` if a newer Weald wrote it.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = versioned(bytes)?;
        let most = u64::from(SNAPSHOT_NO_MAX.0).saturating_add(1);
        let next = SnapshotNo(cursor.bounded(most, "next number of a snapshot")? as u32);
        let rollback = SnapshotNo(cursor.bounded(most, "number of a snapshot")? as u32);
        cursor.finish()?;
        let rollback = (rollback != SnapshotNo::NONE).then_some(rollback);
        if next == SnapshotNo::NONE || rollback.is_some_and(|no| no >= next) {
            return Err(bad("N-1.1", "the next number is not above the others"));
        }
        Ok(Self { next, rollback })
    }
}

/// The row of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Its name, which no other snapshot of the volume has that is not being removed.
    pub name: String,
    /// When it was taken, nanoseconds since 1970.
    pub created: i128,
    /// The row of the volume in that state.
    pub volume: VolumeRow,
    /// Tags that hold it: it cannot be removed while it has one. Sorted.
    pub holds: Vec<String>,
    /// Of a snapshot that is being removed: the part of a key in [`KeptKey`] order from which the
    /// removal goes on.
    pub removed_to: Option<Vec<u8>>,
}

impl SnapshotRow {
    /// The value of the row.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        put_varint(&mut out, SNAPSHOT_VERSION);
        put_bytes(&mut out, self.name.as_bytes());
        put_time(&mut out, self.created);
        put_bytes(&mut out, &self.volume.encode());
        put_varint(&mut out, self.holds.len() as u64);
        for tag in &self.holds {
            put_bytes(&mut out, tag.as_bytes());
        }
        out.push(self.removed_to.is_some().into());
        if let Some(at) = &self.removed_to {
            put_bytes(&mut out, at);
        }
        out
    }

    /// Checks a value.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` if a newer Weald wrote it.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = versioned(bytes)?;
        let name = text(&mut cursor)?;
        let created = time(&mut cursor)?;
        let volume = VolumeRow::parse(short(&mut cursor, VOLUME_ROW_LEN_MAX)?)?;
        let count = cursor.count(HOLDS_MAX, "number of holds")?;
        let mut holds = Vec::with_capacity(count);
        for _ in 0..count {
            holds.push(text(&mut cursor)?);
        }
        let removed_to = match cursor.byte()? {
            0 => None,
            1 => Some(short(&mut cursor, CURSOR_LEN_MAX)?.to_vec()),
            _ => return Err(bad("N-1.3", "neither there nor being removed")),
        };
        cursor.finish()?;
        if !holds.is_sorted_by(|a, b| a < b) {
            return Err(bad("N-1.4", "tags of holds are not sorted"));
        }
        Ok(Self {
            name,
            created,
            volume,
            holds,
            removed_to,
        })
    }
}

/// Key of the row of a snapshot.
pub fn snapshot_key(volume_no: VolumeNo, no: SnapshotNo) -> [u8; 8] {
    let mut key = [0; 8];
    let (volume, number) = key.split_at_mut(4);
    volume.copy_from_slice(&volume_no.to_be_bytes());
    number.copy_from_slice(&no.0.to_be_bytes());
    key
}

/// Splits the key of a snapshot: volume, number.
///
/// # Errors
/// `Corrupt` if the key does not have eight bytes.
pub fn split_snapshot_key(key: &[u8]) -> Result<(VolumeNo, SnapshotNo)> {
    let key: [u8; 8] = key
        .try_into()
        .map_err(|_| bad("N-2.1", "a key does not have eight bytes"))?;
    let [a, b, c, d, e, f, g, h] = key;
    Ok((
        VolumeNo(u32::from_be_bytes([a, b, c, d])),
        SnapshotNo(u32::from_be_bytes([e, f, g, h])),
    ))
}

/// Where a kept row lies: which row of which table it was, and for which snapshot it was kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptKey {
    /// The volume.
    pub volume_no: VolumeNo,
    /// Number of the table.
    pub table: u8,
    /// The key of the row in that table, without the number of the volume.
    pub rest: Vec<u8>,
    /// The newest snapshot that has the row.
    pub no: SnapshotNo,
}

impl KeptKey {
    /// First bytes of the keys of all kept rows of a row.
    pub fn prefix(volume_no: VolumeNo, table: u8, rest: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(rest.len().saturating_add(9));
        key.extend_from_slice(&volume_no.to_be_bytes());
        key.push(table);
        key.extend_from_slice(rest);
        key
    }

    /// The key in the table of kept rows, in which the kept rows of one row follow each other.
    pub fn encode(&self) -> Vec<u8> {
        let mut key = Self::prefix(self.volume_no, self.table, &self.rest);
        key.extend_from_slice(&self.no.0.to_be_bytes());
        key
    }

    /// Splits a key of that table.
    ///
    /// # Errors
    /// `Corrupt` if it is too short.
    pub fn parse(key: &[u8]) -> Result<Self> {
        let short = || bad("N-2.2", "a key is too short");
        let (volume_no, rest) = key.split_first_chunk().ok_or_else(short)?;
        let (table, rest) = rest.split_first().ok_or_else(short)?;
        let (rest, no) = rest.split_last_chunk().ok_or_else(short)?;
        Ok(Self {
            volume_no: VolumeNo(u32::from_be_bytes(*volume_no)),
            table: *table,
            rest: rest.to_vec(),
            no: SnapshotNo(u32::from_be_bytes(*no)),
        })
    }

    /// The key in the table that lists kept rows by snapshot.
    pub fn encode_by_snapshot(&self) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.rest.len().saturating_add(9));
        key.extend_from_slice(&snapshot_key(self.volume_no, self.no));
        key.push(self.table);
        key.extend_from_slice(&self.rest);
        key
    }

    /// Splits a key of that table.
    ///
    /// # Errors
    /// `Corrupt` if it is too short.
    pub fn parse_by_snapshot(key: &[u8]) -> Result<Self> {
        let short = || bad("N-2.2", "a key is too short");
        let (front, rest) = key.split_first_chunk::<8>().ok_or_else(short)?;
        let (volume_no, no) = split_snapshot_key(front)?;
        let (table, rest) = rest.split_first().ok_or_else(short)?;
        Ok(Self {
            volume_no,
            table: *table,
            rest: rest.to_vec(),
            no,
        })
    }
}

/// The value of a kept row; `None` keeps that there was no row.
pub fn kept_value(old: Option<&[u8]>) -> Vec<u8> {
    let mut value = vec![old.is_some().into()];
    value.extend_from_slice(old.unwrap_or_default());
    value
}

/// The row that a kept row has.
///
/// # Errors
/// `Corrupt`.
pub fn parse_kept(value: &[u8]) -> Result<Option<&[u8]>> {
    match value.split_first() {
        Some((0, [])) => Ok(None),
        Some((1, row)) => Ok(Some(row)),
        _ => Err(bad("N-2.3", "a kept row is neither there nor missing")),
    }
}

fn versioned(bytes: &[u8]) -> Result<Cursor<'_>> {
    let mut cursor = Cursor::new(bytes, "snapshot row");
    let version = cursor.varint()?;
    if version != SNAPSHOT_VERSION {
        return Err(Error::newer_version(
            "the snapshot",
            version,
            SNAPSHOT_VERSION,
        ));
    }
    Ok(cursor)
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn short<'a>(cursor: &mut Cursor<'a>, max: usize) -> Result<&'a [u8]> {
    let len = cursor.bounded(max as u64, "length")? as usize;
    cursor.bytes(len)
}

fn text(cursor: &mut Cursor<'_>) -> Result<String> {
    let bytes = short(cursor, SNAPSHOT_NAME_LEN_MAX)?;
    let text = std::str::from_utf8(bytes).map_err(|_| bad("N-1.2", "a name is no UTF-8"))?;
    if text.is_empty() {
        return Err(bad("N-1.2", "a name is empty"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::Codec;
    use crate::{Digest, Ino, VolumeCommitNo};

    fn row() -> SnapshotRow {
        SnapshotRow {
            name: "before-upgrade".to_owned(),
            created: 1_700_000_000_123_456_789,
            volume: VolumeRow {
                volume_no: VolumeNo(9),
                root: Ino(1),
                next_ino: Ino(77),
                secret: [7; 16],
                chunk_len: 131_072,
                codec: Codec::Zstd,
                level: 3,
                is_case_insensitive: false,
                created: 5,
                commit: VolumeCommitNo(12),
                chain: Digest::of(b"x"),
                has_sync_log: false,
                counts_attributes: true,
                has_flags: false,
            },
            holds: vec!["a".to_owned(), "b".to_owned()],
            removed_to: Some(b"key".to_vec()),
        }
    }

    // Would catch: a field that is written in another order than it is read, or not at all.
    #[test]
    fn rows_come_back_and_every_shorter_value_is_refused() {
        let plain = SnapshotRow {
            holds: Vec::new(),
            removed_to: None,
            ..row()
        };
        for row in [row(), plain] {
            let bytes = row.encode();
            assert_eq!(SnapshotRow::parse(&bytes).unwrap(), row);
            for len in 0..bytes.len() {
                assert!(SnapshotRow::parse(&bytes[..len]).is_err(), "{len}");
            }
        }
        for rollback in [None, Some(SnapshotNo(3))] {
            let row = SnapshotsRow {
                next: SnapshotNo(4),
                rollback,
            };
            assert_eq!(SnapshotsRow::parse(&row.encode()).unwrap(), row);
        }
        for wrong in [[1, 0, 0], [1, 3, 3], [2, 3, 0]] {
            assert!(SnapshotsRow::parse(&wrong).is_err(), "{wrong:?}");
        }
    }

    // Would catch: kept rows of one row with those of another one in between.
    #[test]
    fn kept_rows_of_a_row_follow_each_other() {
        let key = |rest: &[u8], no| KeptKey {
            volume_no: VolumeNo(1),
            table: 7,
            rest: rest.to_vec(),
            no: SnapshotNo(no),
        };
        let keys = [
            key(b"a", 1),
            key(b"a", 2),
            key(b"a", SNAPSHOT_NO_MAX.0),
            key(b"a\x01", 1),
            key(b"ab", 1),
            key(b"b", 1),
        ];
        let encoded: Vec<_> = keys.iter().map(KeptKey::encode).collect();
        assert!(encoded.is_sorted());
        for (key, bytes) in keys.iter().zip(&encoded) {
            assert_eq!(KeptKey::parse(bytes).unwrap(), *key);
            let listed = key.encode_by_snapshot();
            assert_eq!(KeptKey::parse_by_snapshot(&listed).unwrap(), *key);
        }
        for value in [None, Some(&b""[..]), Some(b"row")] {
            assert_eq!(parse_kept(&kept_value(value)).unwrap(), value);
        }
        for wrong in [&b""[..], b"\x00row", b"\x02"] {
            assert!(parse_kept(wrong).is_err());
        }
    }
}
