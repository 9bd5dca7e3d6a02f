//! The assembled tree in a temporary file: one block per directory, in the order in which the tree
//! is written.
//!
//! A block has the count of entries and the length of the entries in bytes. For each entry follow
//! the length of the name, the name, the length of the record and the record.

use crate::member::damaged;
use std::path::Path;
use weald_format::cursor::{Cursor, put_varint};
use weald_format::{Error, Result};
use weald_io::{ReadAt, Spool};

/// Bytes written or read at once.
const TREE_PIECE_LEN: usize = 256 << 10;

/// Writes blocks.
pub struct BlockWriter {
    spool: Spool,
    pending: Vec<u8>,
}

impl BlockWriter {
    /// A writer of blocks into a temporary file in `dir`.
    ///
    /// # Errors
    /// `Io`.
    pub fn new(dir: &Path) -> Result<Self> {
        Ok(Self {
            spool: Spool::create(dir)?,
            pending: Vec::with_capacity(TREE_PIECE_LEN),
        })
    }

    /// Adds a block of `count` entries.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn push(&mut self, count: u64, entries: &[u8]) -> Result<()> {
        put_varint(&mut self.pending, count);
        put_varint(&mut self.pending, entries.len() as u64);
        self.pending.extend_from_slice(entries);
        if self.pending.len() >= TREE_PIECE_LEN {
            self.spool.append(&self.pending)?;
            self.pending.clear();
        }
        Ok(())
    }

    /// The file with all blocks.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn finish(mut self) -> Result<Spool> {
        self.spool.append(&self.pending)?;
        Ok(self.spool)
    }
}

/// Appends an entry to the entries of a block.
pub fn put_entry(out: &mut Vec<u8>, name: &[u8], record: &[u8]) {
    out.push(name.len() as u8);
    crate::path::put_name(name, out);
    put_varint(out, record.len() as u64);
    out.extend_from_slice(record);
}

/// Name and record of an entry.
pub type Named<'b> = (&'b [u8], &'b [u8]);

/// Reads blocks in order.
pub struct BlockReader<'a> {
    spool: &'a Spool,
    /// Offset in the file of the end of `piece`.
    offset: u64,
    piece: Vec<u8>,
    at: usize,
}

impl<'a> BlockReader<'a> {
    /// A reader of the blocks of `spool`.
    pub fn new(spool: &'a Spool) -> Self {
        Self {
            spool,
            offset: 0,
            piece: Vec::new(),
            at: 0,
        }
    }

    /// The next block: its entries by name and record.
    ///
    /// # Errors
    /// `Io`.
    pub fn next(&mut self) -> Result<Option<Vec<Named<'_>>>> {
        // Two numbers of at most ten bytes each.
        self.fill_to(20)?;
        if self.at == self.piece.len() {
            return Ok(None);
        }
        let mut cursor = Cursor::new(&self.piece[self.at..], "temporary block");
        let before = cursor.remaining();
        let count = cursor.varint().map_err(damaged)?;
        let len = cursor.varint().map_err(damaged)? as usize;
        self.at += before - cursor.remaining();
        self.fill_to(len)?;
        let bytes = self.piece.get(self.at..self.at + len);
        let bytes = bytes.ok_or_else(|| damaged(Error::invalid("a block is cut short")))?;
        self.at += len;
        let mut cursor = Cursor::new(bytes, "temporary block");
        let mut entries = Vec::with_capacity(count.min(bytes.len() as u64) as usize);
        while cursor.remaining() > 0 {
            let (name, record) = entry(&mut cursor).map_err(damaged)?;
            entries.push((name, record));
        }
        Ok(Some(entries))
    }

    fn fill_to(&mut self, len: usize) -> Result<()> {
        if self.piece.len() - self.at >= len || self.offset == self.spool.len() {
            return Ok(());
        }
        self.piece.drain(..self.at);
        self.at = 0;
        let start = self.piece.len();
        let remaining = self.spool.len() - self.offset;
        let len = remaining.min(len.saturating_sub(start).max(TREE_PIECE_LEN) as u64);
        self.piece.resize(start + len as usize, 0);
        self.spool
            .read_exact_at(&mut self.piece[start..], self.offset)?;
        self.offset += len;
        Ok(())
    }
}

fn entry<'b>(cursor: &mut Cursor<'b>) -> Result<Named<'b>> {
    let len = cursor.byte()?;
    let name = cursor.bytes(len.into())?;
    let len = cursor.varint()?;
    Ok((name, cursor.bytes(len as usize)?))
}
