//! Notes: records of segments that belong to no image. A note says which commit made the records
//! before it durable, and which blocks they are (`docs/format.md`, section 26).
//!
//! So a segment tells whether tables are older than it is, and the rows of blocks can be made again
//! without the tables.

use crate::container::{Codec, HeaderRecord, RECORD_MAGIC, RecordRef};
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::limits::{NOTE_BLOCKS_MAX, NOTE_LEN_MAX, NUMBER_MAX};
use crate::store::{Location, Uuid};
use crate::{BlockId, CommitNo, Digest, Error, Result};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Code of a note in the place of a record type. No image has it.
pub const NOTE_CODE: u8 = 128;

/// A note of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Note {
    /// Number of the commit that made the records before it durable, if that commit succeeded.
    pub commit: CommitNo,
    /// Random number that the writer chose when it opened the store.
    pub epoch: u64,
    /// Numbers of the blocks whose records lie between the note before, or the superblock, and this
    /// note, in order.
    pub ids: Vec<BlockId>,
}

/// What begins at a place in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentItem {
    /// The record of a block.
    Block(RecordRef),
    /// A note, whose stored bytes [`Note::parse`] reads.
    Note {
        /// Bytes behind the header.
        stored_len: u64,
        /// Digest of these bytes.
        digest: Digest,
    },
}

impl SegmentItem {
    /// Bytes of header and stored bytes.
    pub fn len(&self) -> u64 {
        let stored_len = match self {
            Self::Block(record) => record.stored_len,
            Self::Note { stored_len, .. } => *stored_len,
        };
        (crate::container::HEADER_LEN as u64).saturating_add(stored_len)
    }

    /// Never: it has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Parses the header at `offset` of a segment.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(header: &[u8], offset: u64) -> Result<Self> {
        if header.get(4) != Some(&NOTE_CODE) {
            return RecordRef::parse_header(header, offset).map(Self::Block);
        }
        let bad = |rule, what: &str| Error::corrupt("note header", offset, rule, what.to_owned());
        let found =
            HeaderRecord::ref_from_bytes(header).map_err(|_| bad("F-3.1", "expected 64 bytes"))?;
        if found.magic != RECORD_MAGIC {
            return Err(bad("F-3.2", "this is not the header of a record"));
        }
        if !found.has_checksum() {
            return Err(bad("F-3.3", "checksum differs"));
        }
        let len = found.stored_len.get();
        let is_plain = found.codec == Codec::None as u8 && found.flags.get() == 0;
        if !is_plain || found.raw_len.get() != len || len > NOTE_LEN_MAX {
            return Err(bad(
                "S-7.1",
                "codec, flags or length of a note out of range",
            ));
        }
        Ok(Self::Note {
            stored_len: len,
            digest: Digest(found.digest),
        })
    }
}

impl Note {
    /// Its bytes in a segment of the store `uuid`: header and stored bytes. It begins at `place`
    /// and has at most [`NOTE_BLOCKS_MAX`] blocks.
    ///
    /// The bytes name store and place, so that a copy of a segment inside of the contents of a file
    /// has no notes.
    pub fn encode(&self, uuid: Uuid, place: Location) -> Vec<u8> {
        let mut body = uuid.to_vec();
        put_varint(&mut body, place.segment.0);
        put_varint(&mut body, place.offset);
        put_varint(&mut body, self.commit.0);
        body.extend_from_slice(&self.epoch.to_le_bytes());
        put_varint(&mut body, self.ids.len() as u64);
        let mut rest = self.ids.as_slice();
        let mut expected = BlockId::default();
        while let Some(&first) = rest.first() {
            let is_next = |(at, id): (u64, &BlockId)| first.0.checked_add(at) == Some(id.0);
            let run = (0u64..).zip(rest).take_while(|pair| is_next(*pair)).count();
            put_varint(&mut body, zigzag(first.steps_from(expected)));
            put_varint(&mut body, run as u64);
            expected = first.moved(run as i64);
            rest = rest.get(run..).unwrap_or_default();
        }
        let header = HeaderRecord {
            magic: RECORD_MAGIC,
            record_type: NOTE_CODE,
            codec: Codec::None as u8,
            flags: U16::ZERO,
            stored_len: U64::new(body.len() as u64),
            raw_len: U64::new(body.len() as u64),
            digest: Digest::of(&body).0,
            checksum: [0; 8],
        };
        let mut bytes = header.with_checksum().as_bytes().to_vec();
        bytes.append(&mut body);
        bytes
    }

    /// Checks the stored bytes of a note at `place` of the store `uuid`, whose header has `digest`.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(stored: &[u8], digest: &Digest, uuid: Uuid, place: Location) -> Result<Self> {
        let mut cursor = Cursor::new(stored, "note");
        if Digest::of(stored) != *digest {
            return Err(cursor.error("F-3.15", "the stored bytes differ from their digest"));
        }
        let is_here = cursor.bytes(uuid.len())? == uuid
            && cursor.varint()? == place.segment.0
            && cursor.varint()? == place.offset;
        if !is_here {
            return Err(cursor.error("S-7.3", "the note belongs to another store or place"));
        }
        let commit = CommitNo(cursor.bounded(NUMBER_MAX, "commit")?);
        let epoch = cursor.bytes(8)?.try_into().map(u64::from_le_bytes);
        let count = cursor.count(NOTE_BLOCKS_MAX, "blocks of a note")?;
        let mut ids: Vec<BlockId> = Vec::new();
        let mut expected = 0u64;
        while ids.len() < count {
            let first = expected.wrapping_add(unzigzag(cursor.varint()?) as u64);
            let run = cursor.bounded(count.saturating_sub(ids.len()) as u64, "run of blocks")?;
            expected = first.saturating_add(run);
            if run == 0 || expected > NUMBER_MAX {
                return Err(cursor.error("S-7.2", "a run of blocks out of range"));
            }
            ids.extend((first..expected).map(BlockId));
        }
        cursor.finish()?;
        Ok(Self {
            commit,
            epoch: epoch.unwrap_or_default(),
            ids,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SegmentNo;
    use crate::container::HEADER_LEN;

    const UUID: Uuid = [9; 16];
    const PLACE: Location = Location {
        segment: SegmentNo(3),
        offset: 5000,
    };

    fn read(bytes: &[u8]) -> Result<Note> {
        let (header, stored) = bytes.split_at(HEADER_LEN);
        match SegmentItem::parse(header, 0)? {
            SegmentItem::Note { stored_len, digest } if stored_len == stored.len() as u64 => {
                Note::parse(stored, &digest, UUID, PLACE)
            }
            other => panic!("{other:?}"),
        }
    }

    fn notes() -> Vec<Note> {
        let note = |ids: &[u64]| Note {
            commit: CommitNo(300),
            epoch: 0x0123_4567_89ab_cdef,
            ids: ids.iter().copied().map(BlockId).collect(),
        };
        let most: Vec<u64> = (0..NOTE_BLOCKS_MAX as u64).collect();
        let apart: Vec<u64> = most
            .iter()
            .map(|id| (id * 0x9e37_79b9) % NUMBER_MAX)
            .collect();
        vec![
            note(&[]),
            note(&[7]),
            note(&[7, 8, 9, 3, 4, 3, 900]),
            note(&[NUMBER_MAX - 1, 0]),
            note(&most),
            note(&apart),
        ]
    }

    // Would catch an id that changes on the way, and a note that is longer than its limit.
    #[test]
    fn notes_come_back() {
        for note in notes() {
            let bytes = note.encode(UUID, PLACE);
            assert!(bytes.len() as u64 <= HEADER_LEN as u64 + NOTE_LEN_MAX);
            assert_eq!(read(&bytes).expect("a note"), note);
        }
    }

    // Would catch a changed or truncated note that is taken for another one.
    #[test]
    fn damaged_notes_are_refused() {
        let bytes = notes()[2].encode(UUID, PLACE);
        for at in 0..bytes.len() * 8 {
            // A changed record type is that of a block, whose reader compares all fields.
            if at / 8 == 4 {
                continue;
            }
            let mut bytes = bytes.clone();
            bytes[at / 8] ^= 1 << (at % 8);
            read(&bytes).expect_err("a damaged note");
        }
        for end in HEADER_LEN..bytes.len() {
            let digest = Digest::of(&bytes[HEADER_LEN..end]);
            let short = &bytes[HEADER_LEN..end];
            Note::parse(short, &digest, UUID, PLACE).expect_err("a short note");
        }
        let (header, stored) = bytes.split_at(HEADER_LEN);
        let Ok(SegmentItem::Note { digest, .. }) = SegmentItem::parse(header, 0) else {
            panic!("no note");
        };
        let other = Location {
            segment: SegmentNo(4),
            ..PLACE
        };
        Note::parse(stored, &digest, UUID, other).expect_err("a note of another segment");
        Note::parse(stored, &digest, [8; 16], PLACE).expect_err("a note of another store");
    }

    // Would catch memory that is taken for a count that a few bytes claim.
    #[test]
    fn forged_counts_are_refused() {
        for (count, runs) in [
            (
                NOTE_BLOCKS_MAX as u64 + 1,
                vec![(0, NOTE_BLOCKS_MAX as u64 + 1)],
            ),
            (5, vec![(0, 0)]),
            (5, vec![(0, 6)]),
            (5, vec![(NUMBER_MAX, 5)]),
            (2, vec![(u64::MAX, 2)]),
        ] {
            let mut body = UUID.to_vec();
            put_varint(&mut body, PLACE.segment.0);
            put_varint(&mut body, PLACE.offset);
            body.extend([1, 0, 0, 0, 0, 0, 0, 0, 0]);
            put_varint(&mut body, count);
            for (first, run) in runs {
                put_varint(&mut body, zigzag(first as i64));
                put_varint(&mut body, run);
            }
            Note::parse(&body, &Digest::of(&body), UUID, PLACE).expect_err("a forged note");
        }
    }
}
