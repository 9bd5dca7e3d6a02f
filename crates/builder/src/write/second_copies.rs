//! Second copies of superblock, footer, directory and records near the root, which a generation has
//! in front of its directory (`docs/design/0038-images-that-survive.md`).

use std::collections::BTreeMap;
use weald_format::container::{Footer, HEADER_LEN, RecordRef, RecordType, SuperblockRecord};
use weald_format::copies::{COPY_OFFSET_LEN, Copies};
use weald_format::limits::BLOCK_LEN_MAX;
use zerocopy::IntoBytes;

/// Bytes of a generation from which on it has second copies. They would be a large part of a
/// smaller one.
const GENERATION_LEN_MIN: u64 = 256 << 10;
/// Bytes of the copies at least, with their header: a page of memory, which a disk replaces whole.
const COPIES_LEN_MIN: u64 = 4096;
/// Bytes up to which copies are filled up with zeros within their share, so that one damaged place
/// does not reach from a copy to its original.
const APART_LEN: u64 = 64 << 10;
/// Share of a generation that its copies may take, as a divisor.
const SHARE: u64 = 1000;
/// Index pages that are kept for copies, bytes.
const PAGES_LEN_MAX: usize = 16 << 20;

/// Types of which the record that was written last is copied, the most important first. The last
/// ones lead to the root and to what is near it.
const NEAR_ROOT: [RecordType; 7] = [
    RecordType::Dictionary,
    RecordType::Templates,
    RecordType::Entries,
    RecordType::Attributes,
    RecordType::Xattrs,
    RecordType::Contents,
    RecordType::Extents,
];

/// A record, with its header.
type Kept = (u64, Vec<u8>);

/// Keeps the records that get a second copy.
#[derive(Default)]
pub struct SecondCopies {
    last: BTreeMap<RecordType, Kept>,
    pages: Vec<Kept>,
    pages_len: usize,
}

impl SecondCopies {
    /// Notes a record that was written.
    /// `stream` is that of a block, and 0 for others.
    pub fn note(&mut self, reference: &RecordRef, stream: u8, stored: &[u8]) {
        let is_page = reference.record_type == RecordType::Index;
        // Of dictionaries only that of metadata, whose stream is 0.
        let is_near = NEAR_ROOT.contains(&reference.record_type) && stream == 0;
        if !is_page && !is_near {
            return;
        }
        let mut bytes = Vec::with_capacity(HEADER_LEN + stored.len());
        bytes.extend_from_slice(reference.header().as_bytes());
        bytes.extend_from_slice(stored);
        if !is_page {
            self.last
                .insert(reference.record_type, (reference.offset, bytes));
        } else if self.pages_len + bytes.len() <= PAGES_LEN_MAX {
            self.pages_len += bytes.len();
            self.pages.push((reference.offset, bytes));
        }
    }

    /// The stored bytes of the copies for a generation that began at `start` and has reached
    /// `position`, where the header of the copies goes; `None` for a small one. `directory` is
    /// the directory's record with its header, and `footer` makes the footer for the offset of the
    /// directory.
    ///
    /// # Panics
    /// If the result does not parse as it was written.
    pub fn encode(
        &self,
        (start, position): (u64, u64),
        directory: &[u8],
        footer: &dyn Fn(u64) -> Footer,
    ) -> Option<Vec<u8>> {
        if position - start < GENERATION_LEN_MIN {
            return None;
        }
        let share = (position - start) / SHARE;
        let header_len = HEADER_LEN as u64;
        let room = share.max(COPIES_LEN_MIN) - header_len;
        let mut chosen: Vec<(u64, &[u8])> = Vec::new();
        let mut len = Copies::encoded_len(directory.len(), 0, 0);
        let near = NEAR_ROOT.iter().filter_map(|t| self.last.get(t));
        for (offset, bytes) in self.pages.iter().chain(near) {
            let with_this = len + bytes.len() + COPY_OFFSET_LEN;
            if with_this as u64 <= room {
                len = with_this;
                chosen.push((*offset, bytes));
            }
        }
        let len_min = room.min(APART_LEN) as usize;
        if len as u64 > BLOCK_LEN_MAX {
            return None;
        }
        let directory_at = position + header_len + len.max(len_min) as u64;
        let mut superblock = [0; 64];
        superblock.copy_from_slice(SuperblockRecord::current().as_bytes());
        let footer = footer(directory_at).encode();
        let bytes = Copies::encode(&superblock, &footer, directory, &chosen, len_min);
        let parsed = Copies::parse(bytes.clone(), position + header_len);
        assert!(
            parsed.is_ok(),
            "second copies do not parse as they were written"
        );
        Some(bytes)
    }
}
