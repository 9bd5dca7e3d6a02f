//! Rows of a commit: windows and the references of their pieces, dropped files, the commit itself.

use super::Committer;
use super::work::Work;
use crate::core::Core;
use crate::index::BlockPlace;
use crate::layer::Layer;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weald_format::volume::{
    ExtentsRow, LogRow, Piece, VolumeRow, commit_key, inode_key, split_key,
};
use weald_format::{BlockId, Digest, Result};
use weald_store::engine::{Batch, Table};

/// Rows that one commit removes for dropped files.
const DROP_ROWS_MAX: usize = 65_000;
/// Rows that the log keeps.
const COMMIT_ROW_COUNT_MAX: u64 = 1024;

impl Committer {
    /// Adds the rows of changed windows, and counts their references.
    pub(super) fn put_windows(&mut self, core: &Core, work: &mut Work<'_>) -> Result<()> {
        let hasty = work.hasty.iter().filter_map(|no| work.ids.get(*no));
        let hasty: BTreeSet<BlockId> = hasty.copied().collect();
        let chunk_len = core.tables.chunk_len();
        for (place, new) in &work.windows {
            let mut dropped: BTreeMap<BlockId, i64> = BTreeMap::new();
            if let Some(old) = core.tables.window(*place)? {
                for piece in &old.0 {
                    *work.counts.entry(piece.block).or_default() -= 1;
                    if !self.settling.replaces(piece.block) {
                        *dropped.entry(piece.block).or_default() += i64::from(piece.len);
                    }
                }
            }
            let mut pieces: Vec<Piece> = Vec::with_capacity(new.len());
            for piece in new {
                let BlockPlace { block, offset } = work.resolve(piece.at)?;
                // Pieces that follow each other in one block are one.
                if !piece.begins_run
                    && let Some(last) = pieces.last_mut()
                    && last.block == block
                    && last.end() == piece.start
                    && last.offset + last.len == offset
                {
                    last.len += piece.len;
                    continue;
                }
                pieces.push(Piece {
                    start: piece.start,
                    len: piece.len,
                    block,
                    offset,
                });
            }
            for piece in &pieces {
                *work.counts.entry(piece.block).or_default() += 1;
                if let Some(len) = dropped.get_mut(&piece.block) {
                    *len -= i64::from(piece.len);
                }
                if hasty.contains(&piece.block) {
                    self.settling.note_hasty(*place, piece.block);
                }
            }
            let dropped = dropped.values().filter(|len| **len > 0);
            let dropped = dropped.filter(|len| **len < i64::from(chunk_len));
            self.settling.note_dropped(dropped.sum::<i64>() as u64);
            let key = place.key(core.tables.volume_no());
            if pieces.is_empty() {
                work.batch.remove(Table::Extents, &key)
            } else {
                work.batch
                    .put(Table::Extents, &key, ExtentsRow(pieces).encode())
            }
        }
        Ok(())
    }

    /// Removes rows of dropped files, as many as one commit may.
    pub(super) fn drop_files(
        &mut self,
        core: &Core,
        layer: &Layer,
        work: &mut Work<'_>,
    ) -> Result<()> {
        self.drops.extend(&layer.drops);
        let volume_no = core.tables.volume_no();
        let engine = work.writer.engine();
        let mut removed = 0;
        let mut dropped_len = 0;
        while let Some(ino) = self.drops.first().copied() {
            if core.tables.may_have(ino) {
                for table in [Table::Extents, Table::Xattrs] {
                    let start = inode_key(volume_no, ino);
                    let batch = &mut work.batch;
                    let counts = &mut work.counts;
                    engine.scan(table, &start, &mut |key, value| {
                        let (of, number, _) = split_key(key)?;
                        if (of, number) != (volume_no, ino) || removed >= DROP_ROWS_MAX {
                            return Ok(ControlFlow::Break(()));
                        }
                        if table == Table::Extents {
                            let row = ExtentsRow::parse(value, core.tables.chunk_len())?;
                            for piece in row.0 {
                                *counts.entry(piece.block).or_default() -= 1;
                                if piece.len < core.tables.chunk_len() {
                                    dropped_len += u64::from(piece.len);
                                }
                            }
                        }
                        batch.remove(table, key);
                        removed += 1;
                        Ok(ControlFlow::Continue(()))
                    })?;
                }
            }
            work.dropped.push(ino);
            if removed >= DROP_ROWS_MAX {
                break;
            }
            work.batch
                .remove(Table::Orphans, &inode_key(volume_no, ino));
            self.drops.remove(&ino);
        }
        self.settling.note_dropped(dropped_len);
        Ok(())
    }

    /// Adds the row of the volume and that of the commit, and removes the oldest one of those.
    pub(super) fn put_log(&self, layer: &Layer, batch: &mut Batch) -> VolumeRow {
        let commit = self.row.commit.next();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.row.chain.0);
        hasher.update(&commit.0.to_le_bytes());
        for change in &batch.0 {
            let value = change.value.as_deref().unwrap_or_default();
            hasher.update(change.table.name().as_bytes());
            hasher.update(&(change.key.len() as u64).to_le_bytes());
            hasher.update(&change.key);
            hasher.update(&(value.len() as u64).to_le_bytes());
            hasher.update(&[change.value.is_some().into()]);
            hasher.update(value);
        }
        let row = VolumeRow {
            commit,
            chain: Digest(*hasher.finalize().as_bytes()),
            next_ino: layer.next_ino,
            counts_attributes: self.row.counts_attributes
                || (self.counts_attributes && !layer.quotas.is_empty()),
            has_flags: self.row.has_flags || layer.has_flags(),
            ..self.row.clone()
        };
        let log = LogRow {
            chain: row.chain,
            time: layer.now,
        };
        batch.put(Table::Log, &commit_key(row.volume_no, commit), log.encode());
        if let Some(oldest) = commit.before(COMMIT_ROW_COUNT_MAX) {
            batch.remove(Table::Log, &commit_key(row.volume_no, oldest));
        }
        batch.put(Table::Volumes, self.name.as_bytes(), row.encode());
        row
    }
}
