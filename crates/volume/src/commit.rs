//! The commit of a layer: its bytes become blocks, its rows one transaction.
//!
//! One order: append → sync of the segment → commit of the tables → only then the space of
//! what became free is used again.

use crate::core::Core;
use crate::index::{Index, Place};
use crate::layer::{Layer, Segment, Source};
#[cfg(any(test, feature = "planted-bugs"))]
use crate::options::PlantedBug;
use crate::properties::Rules;
use crate::tables::{Counts, of_piece};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use weald_codec::{CodecSpec, Encoder};
use weald_format::container::{RecordRef, RecordType};
use weald_format::volume::{
    ExtentsRow, LogRow, Piece, VolumeRow, number_key, pair_key, split_key, xattr_key,
};
use weald_format::{Digest, Error, Result};
use weald_store::engine::{Batch, Table};
use weald_store::{Dead, StoreWriter};

/// Pieces of a window beyond which its content is read and written again.
const PIECES_MAX: usize = 32;
/// Rows that one commit removes for dropped files.
const DROP_ROWS_MAX: usize = 65_000;
/// Rows that the log keeps.
const LOG_LEN: u64 = 1024;
/// Shorter runs of bytes are not looked up in the index.
const DEDUP_LEN_MIN: usize = 64;

/// Place of a piece of a new window.
#[derive(Debug, Clone, Copy)]
enum At {
    Block(u64, u32),
    /// In the pack with this number, at this offset.
    Pack(usize, u32),
}

type NewPiece = (u32, u32, At);

/// Rows, counts and bytes that one commit gathers.
#[derive(Default)]
struct Work {
    batch: Batch,
    counts: Counts,
    /// Changed windows and their pieces.
    windows: Vec<(u64, u64, Vec<NewPiece>)>,
    /// How the data of the current file is stored.
    rules: Rules,
    /// Bytes of the pack that is being filled, its codec, and the runs in it.
    pack: Vec<u8>,
    pack_codec: Option<CodecSpec>,
    runs: Vec<(Digest, u32)>,
    /// Digests of the runs of the pack that is being filled.
    open_runs: hashbrown::HashMap<Digest, u32>,
    /// Blocks of the full packs.
    packs: Vec<u64>,
    dropped: Vec<u64>,
}

/// Results of a commit.
#[derive(Debug, Default)]
pub struct Done {
    /// Blocks that nothing refers to any more.
    pub dead: Vec<Dead>,
    /// Changed windows.
    pub windows: Vec<(u64, u64)>,
    /// Dropped inodes, sorted.
    pub dropped: Vec<u64>,
}

/// Everything that only commits use.
pub struct Committer {
    /// The store.
    pub writer: StoreWriter,
    /// Name of the volume.
    pub name: String,
    /// Its row, as of the last commit.
    pub row: VolumeRow,
    /// Dropped files whose rows are not all removed yet.
    pub drops: BTreeSet<u64>,
    encoder: Encoder,
    /// Encoders of files whose properties name a codec.
    encoders: Vec<(CodecSpec, Encoder)>,
    index: Index,
}

impl std::fmt::Debug for Committer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Committer").finish_non_exhaustive()
    }
}

impl Committer {
    /// Prepares commits to `writer`.
    pub fn new(
        writer: StoreWriter,
        name: &str,
        row: VolumeRow,
        encoder: Encoder,
        index_len: u64,
    ) -> Self {
        Self {
            writer,
            name: name.to_owned(),
            row,
            drops: BTreeSet::new(),
            encoder,
            encoders: Vec::new(),
            index: Index::new(index_len),
        }
    }

    /// Makes `layer` durable.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`: nothing can be committed after an error.
    pub fn commit(&mut self, core: &Core, layer: &Layer) -> Result<Done> {
        let mut work = Work::default();
        let mut files = Vec::with_capacity(layer.files.len());
        for (ino, map) in &layer.files {
            if !matches!(layer.inodes.get(ino), Some(None)) {
                files.push((core.rules(layer, *ino)?, *ino, map));
            }
        }
        // Runs of several files share a pack, which has one codec.
        files.sort_by_key(|(rules, ..)| rules.codec.map(|codec| format!("{codec:?}")));
        for (rules, ino, map) in files {
            work.rules = rules;
            self.settle_file(core, &mut work, ino, map)?;
        }
        self.flush_pack(&mut work)?;
        put_rows(core, layer, &mut work.batch);
        self.put_windows(core, &mut work)?;
        self.drop_files(core, layer, &mut work)?;
        let row = self.put_log(layer, &mut work.batch);
        #[cfg(any(test, feature = "planted-bugs"))]
        self.plant(core, &mut work)?;
        #[cfg(test)]
        core.hook.reach(crate::hook::Stage::Written);
        let keep = &mut |dead: &[Dead]| core.blocks.reader().keep_dying(dead);
        let dead = self.writer.commit_counts(&work.counts, work.batch, keep)?;
        self.row = row;
        work.dropped.sort_unstable();
        Ok(Done {
            dead,
            windows: work
                .windows
                .iter()
                .map(|(ino, no, _)| (*ino, *no))
                .collect(),
            dropped: work.dropped,
        })
    }

    #[cfg(any(test, feature = "planted-bugs"))]
    fn plant(&mut self, core: &Core, work: &mut Work) -> Result<()> {
        let first = |counts: &Counts, is_up: bool| {
            let mut hits = counts.iter().filter(|(_, change)| (**change > 0) == is_up);
            hits.next().map(|(id, _)| *id)
        };
        match core.options.bug {
            Some(PlantedBug::LostIncrement) => {
                if let Some(id) = first(&work.counts, true) {
                    work.counts.entry(id).and_modify(|change| *change -= 1);
                }
            }
            Some(PlantedBug::LostDecrement) => {
                if let Some(id) = first(&work.counts, false) {
                    work.counts.entry(id).and_modify(|change| *change += 1);
                }
            }
            Some(PlantedBug::FreedBeforeCommit) => {
                let dead = self.writer.would_die(&work.counts)?;
                self.writer.free(&dead)?;
            }
            Some(PlantedBug::MetadataBeforeData) => self.writer.skips_sync = true,
            _ => {}
        }
        Ok(())
    }

    /// Cuts the changed windows of a file into pieces.
    fn settle_file(
        &mut self,
        core: &Core,
        work: &mut Work,
        ino: u64,
        map: &crate::layer::RangeMap,
    ) -> Result<()> {
        let chunk = u64::from(core.tables.chunk_len());
        let mut windows = BTreeSet::new();
        for segment in map.all() {
            let (first, last) = (segment.range.start / chunk, (segment.range.end - 1) / chunk);
            if !segment.source.is_hole() {
                windows.extend(first..=last);
                continue;
            }
            core.tables.each_window(ino, first, &mut |window, _| {
                if window > last {
                    return ControlFlow::Break(());
                }
                windows.insert(window);
                ControlFlow::Continue(())
            })?;
        }
        for window in windows {
            let range = window * chunk..window.saturating_add(1).saturating_mul(chunk);
            let mut segments = Vec::new();
            let old = core.tables.window(ino, window)?;
            let old: &[Piece] = old.as_ref().map_or(&[], |row| &row.0);
            let mut at = range.start;
            let keep = |segments: &mut Vec<Segment>, range: std::ops::Range<u64>| {
                for piece in old.iter().filter(|_| !range.is_empty()) {
                    let segment = of_piece(window * chunk, piece);
                    if segment.range.start < range.end && segment.range.end > range.start {
                        segments.push(segment.within(&range));
                    }
                }
            };
            for segment in map.within(&range) {
                keep(&mut segments, at..segment.range.start);
                at = segment.range.end;
                if !segment.source.is_hole() {
                    segments.push(segment);
                }
            }
            keep(&mut segments, at..range.end);
            let pieces = self.settle_window(core, work, range.start, &segments)?;
            work.windows.push((ino, window, pieces));
        }
        Ok(())
    }

    /// Makes pieces of the content of one window, which starts at `base`.
    fn settle_window(
        &mut self,
        core: &Core,
        work: &mut Work,
        base: u64,
        segments: &[Segment],
    ) -> Result<Vec<NewPiece>> {
        let is_bytes = |segment: &Segment| matches!(segment.source, Source::Bytes(..));
        let mut joined = group(segments, |a, b| is_bytes(a) && is_bytes(b));
        let chunks = core.tables.chunk_len() / work.rules.chunk_len;
        if joined.len() > PIECES_MAX.max(2 * chunks as usize) {
            joined = group(segments, |_, _| true);
        }
        let mut pieces = Vec::with_capacity(joined.len());
        let mut bytes = Vec::new();
        for run in joined {
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                continue;
            };
            let start = (first.range.start - base) as u32;
            let len = (last.range.end - first.range.start) as u32;
            let run: &[u8] = match (&first.source, run.len()) {
                (Source::Block(id, offset), 1) => {
                    pieces.push((start, len, At::Block(*id, *offset)));
                    continue;
                }
                (Source::Bytes(shared, offset), 1) => {
                    let part = shared.get(*offset..offset + len as usize);
                    part.unwrap_or(&[])
                }
                _ => {
                    bytes.clear();
                    core.copy_out(run, &mut bytes)?;
                    &bytes
                }
            };
            let (mut start, mut rest) = (start, run);
            while !rest.is_empty() {
                let room = work.rules.chunk_len - start % work.rules.chunk_len;
                let (part, others) = rest.split_at(rest.len().min(room as usize));
                pieces.push((start, part.len() as u32, self.store_run(core, work, part)?));
                (start, rest) = (start + part.len() as u32, others);
            }
        }
        Ok(pieces)
    }

    /// Finds or stores a run of bytes: a whole window as one block, others in packs.
    fn store_run(&mut self, core: &Core, work: &mut Work, bytes: &[u8]) -> Result<At> {
        let chunk = core.tables.chunk_len() as usize;
        let is_looked_up = work.rules.finds_repeats && bytes.len() >= DEDUP_LEN_MIN;
        let digest = match is_looked_up {
            true => Digest::of(bytes),
            false => Digest::default(),
        };
        if is_looked_up {
            if let Some(place) = self.index.get(&digest)
                && self.writer.has_block(place.block)?
            {
                return Ok(At::Block(place.block, place.offset));
            }
            if let Some(offset) = work.open_runs.get(&digest) {
                return Ok(At::Pack(work.packs.len(), *offset));
            }
        }
        if bytes.len() >= work.rules.chunk_len as usize {
            let block = self.store_block(bytes, work.rules.codec, is_looked_up)?;
            if is_looked_up {
                self.index.insert(digest, Place { block, offset: 0 });
            }
            return Ok(At::Block(block, 0));
        }
        let is_other = work.pack_codec != work.rules.codec;
        if is_other || work.pack.len() + bytes.len() > chunk {
            self.flush_pack(work)?;
        }
        work.pack_codec = work.rules.codec;
        let offset = work.pack.len() as u32;
        work.pack.extend_from_slice(bytes);
        if is_looked_up {
            work.runs.push((digest, offset));
            work.open_runs.insert(digest, offset);
        }
        Ok(At::Pack(work.packs.len(), offset))
    }

    fn flush_pack(&mut self, work: &mut Work) -> Result<()> {
        if work.pack.is_empty() {
            return Ok(());
        }
        let block = self.store_block(&work.pack, work.pack_codec, true)?;
        for (digest, offset) in work.runs.drain(..) {
            self.index.insert(digest, Place { block, offset });
        }
        work.open_runs.clear();
        work.pack.clear();
        work.packs.push(block);
        Ok(())
    }

    fn store_block(
        &mut self,
        raw: &[u8],
        codec: Option<CodecSpec>,
        finds_repeats: bool,
    ) -> Result<u64> {
        let encoded = match codec {
            None => self.encoder.encode(raw)?,
            Some(codec) => {
                let known = self.encoders.iter().position(|(of, _)| *of == codec);
                let at = match known {
                    Some(at) => at,
                    None => {
                        let encoder = Encoder::new(codec, self.row.chunk_len.into())?;
                        self.encoders.push((codec, encoder));
                        self.encoders.len() - 1
                    }
                };
                self.encoders[at].1.encode(raw)?
            }
        };
        let stored: &[u8] = match encoded.codec {
            weald_format::container::Codec::None => raw,
            _ => &encoded.stored,
        };
        let record = RecordRef {
            record_type: RecordType::Data,
            codec: encoded.codec,
            offset: 0,
            stored_len: stored.len() as u64,
            raw_len: raw.len() as u64,
            digest: Digest::of(stored),
        };
        match finds_repeats {
            true => self.writer.put(&record, stored),
            false => self.writer.put_new(&record, stored),
        }
    }

    /// Adds the rows of changed windows, and counts their references.
    fn put_windows(&self, core: &Core, work: &mut Work) -> Result<()> {
        for (ino, window, new) in &work.windows {
            if let Some(old) = core.tables.window(*ino, *window)? {
                for piece in &old.0 {
                    *work.counts.entry(piece.block).or_default() -= 1;
                }
            }
            let mut pieces: Vec<Piece> = Vec::with_capacity(new.len());
            for (start, len, at) in new {
                let (block, offset) = match at {
                    At::Block(block, offset) => (*block, *offset),
                    At::Pack(no, offset) => {
                        let block = work.packs.get(*no).copied();
                        (
                            block.ok_or_else(|| Error::invalid("a pack is missing"))?,
                            *offset,
                        )
                    }
                };
                // Pieces that follow each other in one block are one.
                if let Some(last) = pieces.last_mut()
                    && last.block == block
                    && last.end() == *start
                    && last.offset + last.len == offset
                {
                    last.len += len;
                    continue;
                }
                pieces.push(Piece {
                    start: *start,
                    len: *len,
                    block,
                    offset,
                });
            }
            for piece in &pieces {
                *work.counts.entry(piece.block).or_default() += 1;
            }
            let key = pair_key(core.tables.snapshot(), *ino, *window);
            match pieces.is_empty() {
                true => work.batch.remove(Table::Extents, &key),
                false => work
                    .batch
                    .put(Table::Extents, &key, ExtentsRow(pieces).encode()),
            }
        }
        Ok(())
    }

    /// Removes rows of dropped files, as many as one commit may.
    fn drop_files(&mut self, core: &Core, layer: &Layer, work: &mut Work) -> Result<()> {
        self.drops.extend(&layer.drops);
        let snapshot = core.tables.snapshot();
        let engine = self.writer.engine();
        let mut removed = 0;
        while let Some(ino) = self.drops.first().copied() {
            if core.tables.may_have(ino) {
                for table in [Table::Extents, Table::Xattrs] {
                    let start = number_key(snapshot, ino);
                    let batch = &mut work.batch;
                    let counts = &mut work.counts;
                    engine.scan(table, &start, &mut |key, value| {
                        let (of, number, _) = split_key(key)?;
                        if (of, number) != (snapshot, ino) || removed >= DROP_ROWS_MAX {
                            return Ok(ControlFlow::Break(()));
                        }
                        if table == Table::Extents {
                            let row = ExtentsRow::parse(value, core.tables.chunk_len())?;
                            for piece in row.0 {
                                *counts.entry(piece.block).or_default() -= 1;
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
                .remove(Table::Orphans, &number_key(snapshot, ino));
            self.drops.remove(&ino);
        }
        Ok(())
    }

    fn put_log(&self, layer: &Layer, batch: &mut Batch) -> VolumeRow {
        let commit = self.row.commit + 1;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.row.chain.0);
        hasher.update(&commit.to_le_bytes());
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
            ..self.row.clone()
        };
        let log = LogRow {
            chain: row.chain,
            time: layer.now,
        };
        batch.put(Table::Log, &number_key(row.snapshot, commit), log.encode());
        if let Some(oldest) = commit.checked_sub(LOG_LEN) {
            batch.remove(Table::Log, &number_key(row.snapshot, oldest));
        }
        batch.put(Table::Volumes, self.name.as_bytes(), row.encode());
        row
    }
}

/// Splits segments into runs without a gap whose neighbours `fit` together.
fn group(segments: &[Segment], fit: impl Fn(&Segment, &Segment) -> bool) -> Vec<&[Segment]> {
    segments
        .chunk_by(|a, b| a.range.end == b.range.start && fit(a, b))
        .collect()
}

fn put_rows(core: &Core, layer: &Layer, batch: &mut Batch) {
    let snapshot = core.tables.snapshot();
    let mut set = |table, key: Vec<u8>, value: Option<Vec<u8>>| match value {
        Some(value) => batch.put(table, &key, value),
        None => batch.remove(table, &key),
    };
    for (ino, row) in &layer.inodes {
        let value = row.as_ref().map(|row| row.encode());
        set(Table::Inodes, number_key(snapshot, *ino), value);
    }
    for ((dir, cookie), row) in &layer.names {
        let value = row.as_ref().map(|row| row.encode());
        set(Table::Names, pair_key(snapshot, *dir, *cookie), value);
    }
    for ((ino, name), value) in &layer.xattrs {
        if !matches!(layer.inodes.get(ino), Some(None)) {
            let value = value.as_ref().map(|value| value.to_vec());
            set(Table::Xattrs, xattr_key(snapshot, *ino, name), value);
        }
    }
    for (ino, is_orphan) in &layer.orphans {
        let value = is_orphan.then(Vec::new);
        set(Table::Orphans, number_key(snapshot, *ino), value);
    }
    for (dir, row) in &layer.quotas {
        let value = row.map(|row| row.encode());
        set(Table::Quotas, number_key(snapshot, *dir), value);
    }
}
