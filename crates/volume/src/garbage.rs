//! Blocks of which the files of a volume use a part: how much of each is garbage, and which windows
//! refer to those that are worth writing again.
//!
//! An overwrite leaves the rest of the old block where it is, and a block goes with its last
//! piece. So random overwrites keep blocks alive of which little is used. A pass over the rows of a
//! volume adds up the use of its blocks; a second one finds the windows that refer to sparse ones,
//! and commits write those pieces again. Blocks that images or other volumes use, too, stay.

use crate::index::BlockPlace;
use hashbrown::HashSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weald_format::store::BlockRow;
use weald_format::volume::{ExtentsRow, Piece, WindowPlace};
use weald_format::{BlockId, Result, VolumeNo, limits};
use weald_store::engine::{Engine, Table};

/// Share of a block, per cent, below which what is used of it is written again. Garbage is then at
/// most a quarter of the data.
const USED_PERCENT_MIN: u64 = 80;
/// Unused bytes of a block, decoded, that are worth writing the others again.
const UNUSED_LEN_MIN: u64 = 2048;
/// Parts of a block, as bits of a number, of which each is used or not.
const GRAIN_COUNT: u64 = 64;
/// Most blocks that one pass adds up; each takes about 100 bytes of memory.
const BLOCKS_MAX: usize = 1 << 19;
/// Rows that one step reads.
const STEP_ROWS: usize = 512;
/// Bytes that one step writes again, in whole windows.
pub const STEP_LEN: u64 = 4 << 20;
/// Dropped bytes after which a pass begins, at least, and for each row of the pass before.
const DROPPED_LEN_MIN: u64 = 128 << 10;
const DROPPED_ROW_LEN: u64 = 16;
/// Windows whose data was encoded in a hurry that are remembered.
const HASTY_WINDOWS_MAX: usize = 1 << 16;

/// Use of a block by the files of one volume.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockUse {
    /// Pieces that refer to it.
    pub count: u64,
    /// References in its row: those of images and of other volumes, too.
    pub references: u64,
    /// Bytes of the pieces, ranges that several have counted for each.
    pub len: u64,
    raw_len: u64,
    /// Bytes in its segment.
    pub stored_len: u64,
    grains: u64,
}

impl BlockUse {
    fn of(row: &BlockRow) -> Self {
        Self {
            references: row.references,
            raw_len: row.record.raw_len,
            stored_len: row.len(),
            ..Self::default()
        }
    }

    fn grain_len(&self) -> u64 {
        self.raw_len.div_ceil(GRAIN_COUNT).max(1)
    }

    fn add(&mut self, piece: &Piece) {
        self.count += 1;
        self.len = self.len.saturating_add(piece.len.into());
        let grain_len = self.grain_len();
        let first = (u64::from(piece.offset) / grain_len).min(GRAIN_COUNT - 1);
        let last = (u64::from(piece.offset) + u64::from(piece.len)).saturating_sub(1) / grain_len;
        for grain in first..=last.min(GRAIN_COUNT - 1) {
            self.grains |= 1 << grain;
        }
    }

    /// Decoded bytes that are used, each counted once. A part of which a byte is used counts in
    /// full, unless the pieces together have fewer bytes.
    pub fn used_len(&self) -> u64 {
        let grains = u64::from(self.grains.count_ones()) * self.grain_len();
        grains.min(self.len).min(self.raw_len)
    }

    /// Whether nothing else refers to it.
    pub fn is_own(&self) -> bool {
        self.references == self.count
    }

    /// Bytes of the segment that no file needs.
    pub fn unused_stored_len(&self) -> u64 {
        if !self.is_own() || self.raw_len == 0 {
            return 0;
        }
        let unused = u128::from(self.raw_len - self.used_len());
        (u128::from(self.stored_len) * unused / u128::from(self.raw_len)) as u64
    }

    fn is_sparse(&self) -> bool {
        let used = self.used_len();
        self.is_own()
            && self.raw_len - used >= UNUSED_LEN_MIN
            && used * 100 < self.raw_len * USED_PERCENT_MIN
    }
}

/// Uses by block.
pub type BlockUses = BTreeMap<BlockId, BlockUse>;

/// Adds a piece to the use of its block. A block without a row is damage, which reads report.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn add_use(engine: &dyn Engine, uses: &mut BlockUses, piece: &Piece) -> Result<()> {
    if let Some(block) = uses.get_mut(&piece.block) {
        block.add(piece);
        return Ok(());
    }
    if let Some(value) = engine.get(Table::Blocks, &piece.block.key())? {
        let mut block = BlockUse::of(&BlockRow::parse(&value)?);
        block.add(piece);
        uses.insert(piece.block, block);
    }
    Ok(())
}

#[derive(Debug, Default)]
enum Phase {
    /// No pass is under way.
    #[default]
    Idle,
    /// Adds uses up, from this window on.
    Count(WindowPlace),
    /// Writes pieces of the chosen blocks again, from this window on.
    Write(WindowPlace),
}

/// Result of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Gathered {
    /// Nothing is to be done.
    Nothing,
    /// The next step has more.
    More,
    /// Windows to write again.
    Windows(Vec<WindowPlace>),
}

/// Work that makes garbage of a volume go, in steps.
#[derive(Debug)]
pub struct Settling {
    phase: Phase,
    uses: BlockUses,
    /// The blocks that this pass looks at: from here on, up to where memory ended.
    first_block: BlockId,
    end_block: BlockId,
    /// Blocks that are being written again.
    chosen: HashSet<BlockId>,
    /// Bytes that were dropped from blocks that stayed, since the last pass began.
    dropped_len: u64,
    row_count: u64,
    /// Whether a pass is due in any case.
    is_due: bool,
    /// Windows whose data was encoded in a hurry, and the blocks that have it.
    hasty: BTreeSet<WindowPlace>,
    hasty_blocks: HashSet<BlockId>,
}

impl Default for Settling {
    fn default() -> Self {
        Self {
            phase: Phase::Idle,
            uses: BlockUses::new(),
            first_block: BlockId::default(),
            end_block: BlockId::MAX,
            chosen: HashSet::new(),
            dropped_len: 0,
            row_count: 0,
            // Earlier mounts left garbage.
            is_due: true,
            hasty: BTreeSet::new(),
            hasty_blocks: HashSet::new(),
        }
    }
}

impl Settling {
    /// Whether pieces of this block are to be written again, so that nothing new may refer to it.
    pub fn replaces(&self, block: BlockId) -> bool {
        self.chosen.contains(&block) || self.hasty_blocks.contains(&block)
    }

    /// Whether new data may refer to this place.
    pub fn accepts(&self, place: &BlockPlace) -> bool {
        !self.replaces(place.block)
    }

    /// Notes that a commit dropped bytes of blocks that may have others.
    pub fn note_dropped(&mut self, len: u64) {
        self.dropped_len = self.dropped_len.saturating_add(len);
    }

    /// Notes that a window has data in `block` that was encoded in a hurry.
    pub fn note_hasty(&mut self, window: WindowPlace, block: BlockId) {
        if self.hasty.len() < HASTY_WINDOWS_MAX {
            self.hasty.insert(window);
            self.hasty_blocks.insert(block);
        }
    }

    /// Whether data was encoded in a hurry.
    pub fn has_hasty(&self) -> bool {
        !self.hasty.is_empty()
    }

    /// Begins a pass with the next step, whatever was dropped.
    pub fn make_due(&mut self) {
        self.is_due = true;
    }

    /// Does the next step: `windows_max` windows at most are to be written again.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; the pass is given up then.
    pub fn next(
        &mut self,
        engine: &dyn Engine,
        (volume_no, chunk_len): (VolumeNo, u32),
        windows_max: usize,
    ) -> Result<Gathered> {
        let result = self.try_next(engine, (volume_no, chunk_len), windows_max);
        if result.is_err() {
            self.phase = Phase::Idle;
            self.uses.clear();
            self.chosen.clear();
        }
        result
    }

    fn try_next(
        &mut self,
        engine: &dyn Engine,
        (volume_no, chunk_len): (VolumeNo, u32),
        windows_max: usize,
    ) -> Result<Gathered> {
        match self.phase {
            Phase::Idle => self.begin(windows_max),
            Phase::Count(from) => {
                let uses = &mut self.uses;
                let (first, mut end) = (self.first_block, self.end_block);
                let (count, next) =
                    each_window(engine, (volume_no, chunk_len), from, &mut |_, row| {
                        for piece in &row.0 {
                            if !(first..end).contains(&piece.block) {
                                continue;
                            }
                            add_use(engine, uses, piece)?;
                            if uses.len() > BLOCKS_MAX
                                && let Some((last, _)) = uses.pop_last()
                            {
                                end = last;
                            }
                        }
                        Ok(ControlFlow::Continue(()))
                    })?;
                self.end_block = end;
                self.row_count += count;
                match next {
                    Some(next) => self.phase = Phase::Count(next),
                    None => self.choose(),
                }
                Ok(Gathered::More)
            }
            Phase::Write(from) => {
                let mut windows = Vec::new();
                let chosen = &self.chosen;
                let mut stopped = None;
                let (_, next) =
                    each_window(engine, (volume_no, chunk_len), from, &mut |window, row| {
                        if windows.len() >= windows_max {
                            stopped = Some(window);
                            return Ok(ControlFlow::Break(()));
                        }
                        if row.0.iter().any(|piece| chosen.contains(&piece.block)) {
                            windows.push(window);
                        }
                        Ok(ControlFlow::Continue(()))
                    })?;
                match stopped.or(next) {
                    Some(next) => self.phase = Phase::Write(next),
                    None => self.end_pass(),
                }
                if windows.is_empty() {
                    Ok(Gathered::More)
                } else {
                    Ok(Gathered::Windows(windows))
                }
            }
        }
    }

    fn begin(&mut self, windows_max: usize) -> Result<Gathered> {
        self.chosen.clear();
        if !self.hasty.is_empty() {
            let windows: Vec<WindowPlace> = self.hasty.iter().take(windows_max).copied().collect();
            return Ok(Gathered::Windows(windows));
        }
        self.hasty_blocks.clear();
        let wanted = DROPPED_LEN_MIN.max(self.row_count.saturating_mul(DROPPED_ROW_LEN));
        if !self.is_due && self.dropped_len < wanted {
            return Ok(Gathered::Nothing);
        }
        (self.is_due, self.dropped_len, self.row_count) = (false, 0, 0);
        (self.first_block, self.end_block) = (BlockId::default(), BlockId::MAX);
        self.phase = Phase::Count(WindowPlace::START);
        Ok(Gathered::More)
    }

    fn choose(&mut self) {
        let uses = std::mem::take(&mut self.uses);
        let sparse = uses.iter().filter(|(_, block)| block.is_sparse());
        self.chosen = sparse.map(|(id, _)| *id).collect();
        if self.chosen.is_empty() {
            self.end_pass()
        } else {
            self.phase = Phase::Write(WindowPlace::START)
        }
    }

    /// Ends a pass, or goes on with the blocks that did not fit into memory. The blocks stay chosen
    /// until the next step, so that the commit of the last windows does not refer to them again.
    fn end_pass(&mut self) {
        self.phase = Phase::Idle;
        if self.end_block != BlockId::MAX {
            self.first_block = self.end_block;
            self.end_block = BlockId::MAX;
            self.phase = Phase::Count(WindowPlace::START);
        }
    }

    /// Notes that a window was written again, or cannot be.
    pub fn settled(&mut self, window: WindowPlace) {
        self.hasty.remove(&window);
    }
}

/// Visits the rows of windows from `from` on, [`STEP_ROWS`] at most. Returns their number and the
/// next window, if there is one.
fn each_window(
    engine: &dyn Engine,
    (volume_no, chunk_len): (VolumeNo, u32),
    from: WindowPlace,
    visit: &mut dyn FnMut(WindowPlace, &ExtentsRow) -> Result<ControlFlow<()>>,
) -> Result<(u64, Option<WindowPlace>)> {
    let start = from.key(volume_no);
    let (mut count, mut next) = (0, None);
    engine.scan(Table::Extents, &start, &mut |key, value| {
        let (of, window) = WindowPlace::split_key(key)?;
        if of != volume_no {
            return Ok(ControlFlow::Break(()));
        }
        if count as usize >= STEP_ROWS {
            next = Some(window);
            return Ok(ControlFlow::Break(()));
        }
        count += 1;
        visit(window, &ExtentsRow::parse(value, chunk_len)?)
    })?;
    Ok((count, next))
}

/// Adds up what the pieces of a volume use.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn uses_of(
    engine: &dyn Engine,
    volume_no: VolumeNo,
    visit: &mut dyn FnMut(&Piece),
) -> Result<BlockUses> {
    let mut uses = BlockUses::new();
    let start = volume_no.to_be_bytes();
    engine.scan(Table::Extents, &start, &mut |key, value| {
        if WindowPlace::split_key(key)?.0 != volume_no {
            return Ok(ControlFlow::Break(()));
        }
        for piece in ExtentsRow::parse(value, limits::BLOCK_LEN_MAX as u32)?.0 {
            add_use(engine, &mut uses, &piece)?;
            visit(&piece);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(uses)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(raw_len: u64, pieces: &[(u32, u32)]) -> BlockUse {
        let mut block = BlockUse {
            references: pieces.len() as u64,
            raw_len,
            stored_len: raw_len + 64,
            ..BlockUse::default()
        };
        for (offset, len) in pieces {
            block.add(&Piece {
                start: 0,
                len: *len,
                block: BlockId(1),
                offset: *offset,
            });
        }
        block
    }

    // Would catch: copies that hide garbage, and small files whose block is taken for sparse.
    #[test]
    fn bytes_of_a_block_count_once() {
        let len = 128 << 10;
        let half = block(len, &[(0, 64 << 10), (0, 64 << 10)]);
        assert_eq!((half.used_len(), half.is_sparse()), (64 << 10, true));
        let files: Vec<(u32, u32)> = (0..1000).map(|no| (no * 131, 131)).collect();
        assert!(!block(len, &files).is_sparse());
        assert!(block(len, &files[..500]).is_sparse());
        let mut shared = half;
        shared.references += 1;
        assert_eq!((shared.is_sparse(), shared.unused_stored_len()), (false, 0));
        assert_eq!(half.unused_stored_len(), (64 << 10) + 32);
        assert!(!block(1000, &[(0, 10)]).is_sparse());
        assert_eq!(block(0, &[(5, 10)]).used_len(), 0);
    }
}
