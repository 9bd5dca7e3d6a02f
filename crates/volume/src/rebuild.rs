//! The dedup index after a mount: pieces of committed files that lie in packs are read again, in
//! the background. Whole chunks need no reading: the store finds those by the digests in its rows.

use crate::core::Core;
use crate::index::{BlockPlace, DEDUP_LEN_MIN, Index};
use std::ops::ControlFlow;
use weald_format::volume::{ExtentsRow, Piece, WindowPlace};
use weald_format::{BlockId, Digest, Ino, Result};
use weald_store::engine::{Engine, Table};

/// Pieces that one step reads.
const STEP_COUNT: usize = 256;
/// Most decoded bytes that are read after a mount.
const REBUILD_LEN_MAX: u64 = 4 << 30;

/// How far the index was rebuilt.
#[derive(Debug)]
pub struct Rebuild {
    /// The next window; `None` at the end.
    next: Option<WindowPlace>,
    last_block: BlockId,
    read_len: u64,
    /// A run that may go on in the next window.
    open: Option<PackedRun>,
}

/// A run of packed bytes.
#[derive(Debug, Clone, Copy)]
struct PackedRun {
    place: BlockPlace,
    len: u32,
    /// The file, and the byte of it after the run.
    ino: Ino,
    end: u64,
}

impl Default for Rebuild {
    fn default() -> Self {
        Self {
            next: Some(WindowPlace::START),
            last_block: BlockId::default(),
            read_len: 0,
            open: None,
        }
    }
}

impl PackedRun {
    fn of(ino: Ino, base: u64, piece: &Piece) -> Self {
        Self {
            place: BlockPlace {
                block: piece.block,
                offset: piece.offset,
            },
            len: piece.len,
            ino,
            end: base + u64::from(piece.end()),
        }
    }

    /// Whether `next` lies directly behind it in the file and in the block.
    fn is_followed_by(&self, next: &Self) -> bool {
        self.ino == next.ino
            && self.end + u64::from(next.len) == next.end
            && self.place.block == next.place.block
            && self.place.offset.saturating_add(self.len) == next.place.offset
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
        let Some(from) = self.next.take() else {
            return Ok(());
        };
        let (volume_no, chunk_len) = (core.tables.volume_no(), core.tables.chunk_len());
        let start = from.key(volume_no);
        let mut runs: Vec<PackedRun> = Vec::new();
        let mut next = None;
        let open = &mut self.open;
        engine.scan(Table::Extents, &start, &mut |key, value| {
            let (of, place) = WindowPlace::split_key(key)?;
            if of != volume_no {
                return Ok(ControlFlow::Break(()));
            }
            if runs.len() >= STEP_COUNT {
                next = Some(place);
                return Ok(ControlFlow::Break(()));
            }
            let base = place.window.start(chunk_len);
            for piece in ExtentsRow::parse(value, chunk_len)?.0 {
                let found = PackedRun::of(place.ino, base, &piece);
                match open {
                    // A run that crosses the border of a window has a piece on both sides.
                    Some(last) if piece.start == 0 && last.is_followed_by(&found) => {
                        last.len += found.len;
                        last.end = found.end;
                    }
                    _ => runs.extend(open.replace(found)),
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        if next.is_none() {
            runs.extend(open.take());
        }
        let is_packed = |run: &PackedRun| run.len < chunk_len && run.len as usize >= DEDUP_LEN_MIN;
        for run in runs.into_iter().filter(is_packed) {
            let place = run.place;
            let block = core.blocks.get(place.block)?;
            if place.block != self.last_block {
                self.last_block = place.block;
                self.read_len += block.len() as u64;
            }
            let start = place.offset as usize;
            if let Some(bytes) = block.get(start..start + run.len as usize) {
                index.insert(&Digest::of(bytes), place);
            }
        }
        self.next = next.filter(|_| self.read_len < REBUILD_LEN_MAX);
        Ok(())
    }
}
