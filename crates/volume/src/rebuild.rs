//! The dedup index after a mount: pieces of committed files that lie in packs are read again, in
//! the background. Whole chunks need no reading: the store finds those by the digests in its rows.

use crate::core::Core;
use crate::index::{DEDUP_LEN_MIN, Index, Place};
use std::ops::ControlFlow;
use weald_format::volume::{ExtentsRow, Piece, pair_key, split_pair_key};
use weald_format::{Digest, Result};
use weald_store::engine::{Engine, Table};

/// Pieces that one step reads.
const STEP_COUNT: usize = 256;
/// Most decoded bytes that are read after a mount.
const READ_LEN_MAX: u64 = 4 << 30;

/// How far the index was rebuilt.
#[derive(Debug)]
pub struct Rebuild {
    /// The next inode and window; `None` at the end.
    next: Option<(u64, u64)>,
    last_block: u64,
    read_len: u64,
}

impl Default for Rebuild {
    fn default() -> Self {
        Self {
            next: Some((0, 0)),
            last_block: 0,
            read_len: 0,
        }
    }
}

impl Rebuild {
    /// Notes the next packed pieces in the index. Returns whether there are more. A failure ends
    /// the rebuilding: the index is advisory.
    pub fn step(&mut self, core: &Core, engine: &dyn Engine, index: &mut Index) -> bool {
        if let Err(error) = self.try_step(core, engine, index) {
            log::warn!("the dedup index was not rebuilt completely: {error}");
            self.next = None;
        }
        self.next.is_some()
    }

    fn try_step(&mut self, core: &Core, engine: &dyn Engine, index: &mut Index) -> Result<()> {
        let Some((ino, window)) = self.next.take() else {
            return Ok(());
        };
        let (snapshot, chunk_len) = (core.tables.snapshot(), core.tables.chunk_len());
        let start = pair_key(snapshot, ino, window);
        let mut pieces: Vec<Piece> = Vec::new();
        let mut next = None;
        engine.scan(Table::Extents, &start, &mut |key, value| {
            let (of, ino, window) = split_pair_key(key)?;
            if of != snapshot {
                return Ok(ControlFlow::Break(()));
            }
            if pieces.len() >= STEP_COUNT {
                next = Some((ino, window));
                return Ok(ControlFlow::Break(()));
            }
            let is_packed =
                |piece: &Piece| piece.len < chunk_len && piece.len as usize >= DEDUP_LEN_MIN;
            let row = ExtentsRow::parse(value, chunk_len)?;
            pieces.extend(row.0.into_iter().filter(is_packed));
            Ok(ControlFlow::Continue(()))
        })?;
        for piece in pieces {
            let block = core.blocks.get(piece.block)?;
            if piece.block != self.last_block {
                self.last_block = piece.block;
                self.read_len += block.len() as u64;
            }
            let start = piece.offset as usize;
            if let Some(bytes) = block.get(start..start + piece.len as usize) {
                let place = Place {
                    block: piece.block,
                    offset: piece.offset,
                };
                index.insert(&Digest::of(bytes), place);
            }
        }
        self.next = next.filter(|_| self.read_len < READ_LEN_MAX);
        Ok(())
    }
}
