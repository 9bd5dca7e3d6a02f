//! Blocks of metadata: up to 8 KiB, each behind its length.

use super::codec::Codec;
use super::failure::damaged;
use super::superblock::Superblock;
use weald_format::Result;
use weald_io::{FileSource, ReadAt};

/// Bytes of a block of metadata at most.
pub const BLOCK_LEN: usize = 8192;
const HEADER_LEN: u64 = 2;
/// Marks a block that is not compressed.
const PLAIN: u16 = 1 << 15;
/// Blocks that are kept: 1 MiB, so that inodes, directories and tables do not displace each other.
const KEPT_COUNT: u64 = 128;

struct Kept {
    at: u64,
    /// Offset of the next block.
    next: u64,
    bytes: Vec<u8>,
}

/// Where a reader stands in metadata.
#[derive(Debug, Clone, Copy)]
pub struct MetadataCursor {
    /// Offset of the block in the image.
    pub block: u64,
    /// Offset in the block.
    pub at: usize,
}

/// Reads metadata of an image, and keeps what was decoded last.
pub struct MetadataBlocks {
    file: FileSource,
    codec: Codec,
    end: u64,
    kept: Vec<Option<Kept>>,
}

impl MetadataBlocks {
    /// No blocks yet.
    pub fn new(file: FileSource, superblock: &Superblock) -> Self {
        Self {
            file,
            codec: superblock.codec,
            end: superblock.end,
            kept: (0..KEPT_COUNT).map(|_| None).collect(),
        }
    }

    /// Count of the blocks from `start` to `end`, as far as they follow each other.
    pub fn count(&self, start: u64, end: u64) -> u64 {
        let (mut at, mut count) = (start, 0);
        // The heads of blocks that lie together are read at once.
        let (mut window, mut window_start) = (Vec::new(), 0);
        while at.saturating_add(HEADER_LEN) <= end {
            let offset = at.saturating_sub(window_start) as usize;
            let found = window.get(offset..offset.saturating_add(2));
            let found = found.and_then(|head: &[u8]| head.try_into().ok());
            let Some(head) = found else {
                let len = end.saturating_sub(at).min(1 << 20);
                window = vec![0; len as usize];
                window_start = at;
                if self.file.read_exact_at(&mut window, at).is_err() {
                    return count;
                }
                continue;
            };
            at = at.saturating_add(HEADER_LEN + stored_len(u16::from_le_bytes(head)));
            count += 1;
        }
        count
    }

    /// Fills `out` with bytes of the image at `at`, which are not metadata.
    ///
    /// # Errors
    /// `Io`; `Invalid` for bytes outside of the image.
    pub fn read_plain(&self, at: u64, out: &mut [u8], what: &str) -> Result<()> {
        let end = at.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.end) {
            return Err(damaged(format!("{what}: they lie outside of it")));
        }
        self.file.read_exact_at(out, at)
    }

    /// Fills `out` from `cursor` on, and moves it.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damaged blocks, and for fewer bytes than that.
    pub fn read(&mut self, cursor: &mut MetadataCursor, out: &mut [u8], what: &str) -> Result<()> {
        let mut rest = out;
        while !rest.is_empty() {
            let kept = self.block(cursor.block, what)?;
            let there = kept.bytes.get(cursor.at..).unwrap_or_default();
            if there.is_empty() {
                // Only a whole block is followed by another one.
                if kept.bytes.len() != BLOCK_LEN || cursor.at != BLOCK_LEN {
                    return Err(damaged(format!("{what}: its metadata end before")));
                }
                (cursor.block, cursor.at) = (kept.next, 0);
                continue;
            }
            let len = there.len().min(rest.len());
            let (head, tail) = std::mem::take(&mut rest).split_at_mut(len);
            head.copy_from_slice(there.get(..len).unwrap_or_default());
            cursor.at += len;
            rest = tail;
        }
        Ok(())
    }

    fn block(&mut self, at: u64, what: &str) -> Result<&Kept> {
        // Blocks of 8 KiB often have their offsets at similar distances.
        let slot = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % KEPT_COUNT;
        let is_kept = |kept: &Option<Kept>| kept.as_ref().is_some_and(|kept| kept.at == at);
        if !self.kept.get(slot as usize).is_some_and(is_kept) {
            let read = self.read_block(at, what)?;
            if let Some(slot) = self.kept.get_mut(slot as usize) {
                *slot = Some(read);
            }
        }
        let kept = self.kept.get(slot as usize).and_then(Option::as_ref);
        kept.ok_or_else(|| damaged("no block"))
    }

    fn read_block(&self, at: u64, what: &str) -> Result<Kept> {
        let mut head = [0; HEADER_LEN as usize];
        self.read_plain(at, &mut head, what)?;
        let head = u16::from_le_bytes(head);
        let stored_len = stored_len(head);
        if stored_len > BLOCK_LEN as u64 {
            return Err(damaged(format!("{what}: metadata of {stored_len} bytes")));
        }
        let mut stored = vec![0; stored_len as usize];
        self.read_plain(at + HEADER_LEN, &mut stored, what)?;
        let bytes = if head & PLAIN == 0 {
            let mut bytes = vec![0; BLOCK_LEN];
            let len = self.codec.decode(&stored, &mut bytes)?;
            bytes.truncate(len);
            bytes
        } else {
            stored
        };
        let next = at + HEADER_LEN + stored_len;
        Ok(Kept { at, next, bytes })
    }
}

/// Bytes of a block with this header.
fn stored_len(head: u16) -> u64 {
    match head & !PLAIN {
        0 => PLAIN.into(),
        len => len.into(),
    }
}
