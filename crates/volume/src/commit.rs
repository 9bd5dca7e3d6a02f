//! The commit of a layer: its bytes become blocks, its rows one transaction.
//!
//! One order: append → sync of the segment → commit of the tables → only then the space of
//! what became free is used again.

use crate::core::Core;
use crate::cut::{Bytes, Cuts, Run, Sink};
use crate::index::{DEDUP_LEN_MIN, Index, Place};
use crate::layer::{Layer, RangeMap, Segment, Source};
#[cfg(any(test, feature = "planted-bugs"))]
use crate::options::PlantedBug;
use crate::parallel::{Encoders, Workers};
use crate::properties::Rules;
use crate::rebuild::Rebuild;
use crate::tables::{Counts, of_piece};
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::{ControlFlow, Range};
use weald_codec::CodecSpec;
use weald_format::container::{Codec, RecordRef, RecordType};
use weald_format::volume::{
    ExtentsRow, LogRow, Piece, VolumeRow, number_key, pair_key, split_key, xattr_key,
};
use weald_format::{Digest, Error, Result};
use weald_store::engine::{Batch, Table};
use weald_store::{Dead, StoreWriter};

/// Pieces of a window beyond which its content is read and written again.
const SCATTERED_PIECES_MAX: usize = 32;
/// Rows that one commit removes for dropped files.
const DROP_ROWS_MAX: usize = 65_000;
/// Rows that the log keeps.
const COMMIT_ROW_COUNT_MAX: u64 = 1024;
/// Bytes that the threads of a commit hash and encode at a time.
const ENCODED_AT_ONCE_LEN: u64 = 8 << 20;

/// Place of a piece of a new window.
#[derive(Debug, Clone, Copy)]
enum At {
    Block(u64, u32),
    /// In the new block with this number, at this offset.
    New(usize, u32),
    /// The place of the run with this number, and an offset from there on.
    Run(usize, u32),
}

/// A piece of a window that is to be committed.
#[derive(Debug, Clone, Copy)]
struct NewPiece {
    /// First byte, from the start of the window.
    start: u32,
    /// Length, bytes.
    len: u32,
    at: At,
    /// Whether a run begins here that must be found again after a mount.
    begins_run: bool,
}

/// A new block that waits for its encoding.
#[derive(Debug)]
struct NewBlock {
    /// Its number within the commit.
    no: usize,
    raw: Bytes,
    /// Digest of `raw`, if it is known.
    digest: Option<Digest>,
    /// How it is stored.
    rules: Rules,
    /// Digests and offsets of the runs in it.
    runs: Vec<(Digest, u32)>,
}

/// Rows, counts and bytes that one commit gathers.
#[derive(Default)]
struct Work {
    batch: Batch,
    counts: Counts,
    /// Changed windows and their pieces.
    windows: Vec<(u64, u64, Vec<NewPiece>)>,
    /// How the data of the current file is stored.
    rules: Rules,
    /// Runs that wait for a place, and their length.
    waiting: Vec<(Bytes, Rules)>,
    waiting_len: u64,
    /// Places of the runs before those.
    run_places: Vec<At>,
    /// The pack that is being filled: its number, its codec, its bytes, and the runs in it.
    pack_no: Option<usize>,
    pack_codec: Option<CodecSpec>,
    pack: Vec<u8>,
    pack_runs: Vec<(Digest, u32)>,
    /// New blocks that wait for their encoding.
    full: Vec<NewBlock>,
    /// Ids of new blocks by number; 0 until they are stored.
    ids: Vec<u64>,
    /// Runs of this commit that have a place.
    known: hashbrown::HashMap<Digest, (usize, u32)>,
    dropped: Vec<u64>,
}

impl Work {
    fn next_block(&mut self) -> usize {
        self.ids.push(0);
        self.ids.len() - 1
    }

    /// Gives a run of bytes to the threads, and returns its number; its place comes later.
    fn wait(&mut self, bytes: Bytes) -> usize {
        self.waiting_len += bytes.len() as u64;
        self.waiting.push((bytes, self.rules));
        self.run_places.len() + self.waiting.len() - 1
    }

    /// Block and offset of a place.
    fn resolve(&self, at: At) -> Result<(u64, u32)> {
        let (at, after) = match at {
            At::Run(no, after) => (self.run_places.get(no).copied(), after),
            at => (Some(at), 0),
        };
        let found = match at {
            Some(At::Block(block, offset)) => Some((block, offset + after)),
            Some(At::New(no, offset)) => {
                let id = self.ids.get(no).copied().filter(|id| *id != 0);
                id.map(|id| (id, offset + after))
            }
            _ => None,
        };
        found.ok_or_else(|| Error::invalid("a run of bytes has no place"))
    }

    /// Closes the pack that is being filled.
    fn close_pack(&mut self) {
        if let Some(no) = self.pack_no.take() {
            self.full.push(NewBlock {
                no,
                raw: Bytes::Own(std::mem::take(&mut self.pack)),
                digest: None,
                rules: Rules {
                    codec: self.pack_codec,
                    finds_repeats: true,
                    ..Rules::default()
                },
                runs: std::mem::take(&mut self.pack_runs),
            });
        }
    }
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
    /// Places of bytes that are there.
    index: Index,
    /// How far the index was rebuilt after the mount.
    rebuild: Rebuild,
    /// Files that are cut by content.
    cuts: Cuts,
    workers: Workers,
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
        workers: Workers,
        index_len: u64,
    ) -> Self {
        Self {
            writer,
            name: name.to_owned(),
            row,
            drops: BTreeSet::new(),
            workers,
            rebuild: Rebuild::default(),
            cuts: Cuts::default(),
            index: Index::new(index_len),
        }
    }

    /// Notes the next packed pieces in the index. Returns whether there are more.
    pub fn rebuild_step(&mut self, core: &Core) -> bool {
        let engine = self.writer.engine();
        self.rebuild.step(core, &*engine, &mut self.index)
    }

    /// Makes `layer` durable.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`: nothing can be committed after an error.
    pub fn commit(&mut self, core: &Core, layer: &Layer) -> Result<Done> {
        let mut work = Work::default();
        let mut files = Vec::with_capacity(layer.files.len());
        let usual = core.usual_chunking(layer)?;
        for (ino, map) in &layer.files {
            if !matches!(layer.inodes.get(ino), Some(None)) {
                files.push((core.rules(layer, *ino, usual)?, *ino, map));
            }
        }
        // Runs of several files share a pack, which has one codec.
        files.sort_by_key(|(rules, ..)| rules.codec.map(|codec| format!("{codec:?}")));
        for (rules, ino, map) in files {
            work.rules = rules;
            self.settle_file(core, &mut work, ino, map)?;
        }
        self.place_runs(core, &mut work)?;
        work.close_pack();
        self.store_blocks(&mut work)?;
        put_rows(core.tables.snapshot(), layer, &mut work.batch);
        self.put_windows(core, &mut work)?;
        self.drop_files(core, layer, &mut work)?;
        let row = self.put_log(layer, &mut work.batch);
        #[cfg(any(test, feature = "planted-bugs"))]
        self.plant(core, &mut work)?;
        #[cfg(test)]
        core.hook.reach(crate::hook::Stage::Written);
        let keep = &mut |dead: &[Dead]| core.blocks.reader().keep_removed_rows(dead);
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
                let dead = self.writer.blocks_without_references(&work.counts)?;
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
        map: &RangeMap,
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
        let mut cuts = std::mem::take(&mut self.cuts);
        let stream = cuts.stream(core, work.rules, ino, map)?;
        let cut_start = stream.as_ref().map_or(u64::MAX, |stream| stream.start());
        // The window in which the cutting begins keeps what lies in front.
        let mut cut: BTreeMap<u64, Vec<NewPiece>> = BTreeMap::new();
        for window in windows.range(..=cut_start / chunk) {
            let window_end = window.saturating_add(1).saturating_mul(chunk);
            let range = window * chunk..window_end.min(cut_start);
            let pieces = self.settle_range(core, work, ino, (map, &range))?;
            match window_end > cut_start {
                true => drop(cut.insert(*window, pieces)),
                false => work.windows.push((ino, *window, pieces)),
            }
            if work.waiting_len >= ENCODED_AT_ONCE_LEN {
                self.place_runs(core, work)?;
            }
        }
        if let Some(stream) = stream {
            let first = cut_start / chunk;
            if let btree_map::Entry::Vacant(slot) = cut.entry(first) {
                let range = first * chunk..cut_start;
                slot.insert(self.settle_range(core, work, ino, (map, &range))?);
            }
            for window in windows.range(first..) {
                cut.entry(*window).or_default();
            }
            let mut placing = Placing {
                committer: self,
                core,
                work,
                windows: cut,
            };
            cuts.cut(&stream, &mut placing)?;
            let all = placing.windows.into_iter();
            let all = all.map(|(window, pieces)| (ino, window, pieces));
            work.windows.extend(all);
        }
        self.cuts = cuts;
        Ok(())
    }

    /// Cuts the changed range of a file, a window or the beginning of one, into pieces.
    fn settle_range(
        &mut self,
        core: &Core,
        work: &mut Work,
        ino: u64,
        (map, range): (&RangeMap, &Range<u64>),
    ) -> Result<Vec<NewPiece>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let chunk = u64::from(core.tables.chunk_len());
        let (window, base) = (range.start / chunk, range.start);
        let old = core.tables.window(ino, window)?;
        let old: &[Piece] = old.as_ref().map_or(&[], |row| &row.0);
        let mut segments = Vec::new();
        let keep = |segments: &mut Vec<Segment>, range: Range<u64>| {
            for piece in old.iter().filter(|_| !range.is_empty()) {
                let segment = of_piece(base, piece);
                if segment.range.start < range.end && segment.range.end > range.start {
                    segments.push(segment.within(&range));
                }
            }
        };
        let mut at = range.start;
        for segment in map.within(range) {
            keep(&mut segments, at..segment.range.start);
            at = segment.range.end;
            if !segment.source.is_hole() {
                segments.push(segment);
            }
        }
        let is_kept = at == range.start;
        keep(&mut segments, at..range.end);
        match is_kept {
            true => Ok(segments.iter().filter_map(|s| kept(base, s)).collect()),
            false => settle_window(core, work, base, &segments),
        }
    }

    /// Finds or makes places of all runs that wait.
    fn place_runs(&mut self, core: &Core, work: &mut Work) -> Result<()> {
        let runs = std::mem::take(&mut work.waiting);
        let len = std::mem::take(&mut work.waiting_len);
        let index = &self.index;
        let found = self.workers.map(&runs, len, |_, (run, rules)| {
            let is_looked_up = rules.finds_repeats && run.len() >= DEDUP_LEN_MIN;
            let digest = is_looked_up.then(|| Digest::of(run))?;
            let mut run_places = index.candidates(&digest);
            Some((digest, run_places.find(|place| is_at(core, *place, run))))
        });
        for (run, found) in runs.into_iter().zip(found) {
            let at = self.place_run(core, work, run, found)?;
            work.run_places.push(at);
        }
        self.store_blocks(work)
    }

    /// Place of a run: a whole window becomes a block, others lie in packs.
    fn place_run(
        &mut self,
        core: &Core,
        work: &mut Work,
        (run, rules): (Bytes, Rules),
        found: Option<(Digest, Option<Place>)>,
    ) -> Result<At> {
        let chunk = core.tables.chunk_len() as usize;
        if let Some((digest, place)) = found {
            if let Some(place) = place
                && self.writer.has_block(place.block)?
            {
                return Ok(At::Block(place.block, place.offset));
            }
            if let Some((no, offset)) = work.known.get(&digest) {
                return Ok(At::New(*no, *offset));
            }
        }
        let digest = found.map(|(digest, _)| digest);
        if run.len() >= rules.chunk_len as usize {
            let no = work.next_block();
            let runs = digest.map(|digest| (digest, 0)).into_iter().collect();
            work.known.extend(digest.map(|digest| (digest, (no, 0))));
            work.full.push(NewBlock {
                no,
                raw: run,
                digest,
                rules,
                runs,
            });
            return Ok(At::New(no, 0));
        }
        let is_other = work.pack_codec != rules.codec;
        if is_other || work.pack.len() + run.len() > chunk {
            work.close_pack();
        }
        work.pack_codec = rules.codec;
        let no = match work.pack_no {
            Some(no) => no,
            None => work.next_block(),
        };
        work.pack_no = Some(no);
        let offset = work.pack.len() as u32;
        work.pack.extend_from_slice(&run);
        if let Some(digest) = digest {
            work.pack_runs.push((digest, offset));
            work.known.insert(digest, (no, offset));
        }
        Ok(At::New(no, offset))
    }

    /// Encodes and appends the new blocks that wait, in the order in which they were made.
    fn store_blocks(&mut self, work: &mut Work) -> Result<()> {
        let full = std::mem::take(&mut work.full);
        let len = full.iter().map(|block| block.raw.len() as u64).sum();
        let encoded = self.workers.map(&full, len, encode);
        for (block, encoded) in full.into_iter().zip(encoded) {
            let (record, stored) = encoded?;
            let stored = stored.as_deref().unwrap_or(&block.raw);
            let id = match block.rules.finds_repeats {
                true => self.writer.put(&record, stored)?,
                false => self.writer.put_new(&record, stored)?,
            };
            for (digest, offset) in &block.runs {
                let place = Place {
                    block: id,
                    offset: *offset,
                };
                self.index.insert(digest, place);
            }
            if let Some(slot) = work.ids.get_mut(block.no) {
                *slot = id;
            }
        }
        Ok(())
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
            for piece in new {
                let (block, offset) = work.resolve(piece.at)?;
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
        if let Some(oldest) = commit.checked_sub(COMMIT_ROW_COUNT_MAX) {
            batch.remove(Table::Log, &number_key(row.snapshot, oldest));
        }
        batch.put(Table::Volumes, self.name.as_bytes(), row.encode());
        row
    }
}

/// Gives places to the runs of one file.
struct Placing<'a> {
    committer: &'a mut Committer,
    core: &'a Core,
    work: &'a mut Work,
    /// The pieces so far, by window.
    windows: BTreeMap<u64, Vec<NewPiece>>,
}

impl Sink for Placing<'_> {
    fn push_run(&mut self, run: Run) -> Result<()> {
        let window_len = u64::from(self.core.tables.chunk_len());
        let no = self.work.wait(run.bytes);
        for part in run.data_ranges {
            let mut start = part.start;
            while start < part.end {
                let window = start / window_len;
                let end = part.end.min((window + 1) * window_len);
                #[allow(unused_mut, reason = "a planted bug changes it")]
                let mut offset = (start - run.range.start) as u32;
                #[cfg(any(test, feature = "planted-bugs"))]
                if self.core.has_bug(PlantedBug::RunBeginsAnew) {
                    offset = (start - part.start) as u32 % 2048;
                }
                self.windows.entry(window).or_default().push(NewPiece {
                    start: (start % window_len) as u32,
                    len: (end - start) as u32,
                    at: At::Run(no, offset),
                    begins_run: true,
                });
                start = end;
            }
        }
        match self.work.waiting_len >= ENCODED_AT_ONCE_LEN {
            true => self.committer.place_runs(self.core, self.work),
            false => Ok(()),
        }
    }

    fn is_known(&mut self, bytes: &[u8]) -> bool {
        let digest = Digest::of(bytes);
        let mut run_places = self.committer.index.candidates(&digest);
        run_places.any(|place| is_at(self.core, place, bytes))
            || self.work.known.contains_key(&digest)
    }
}

/// The piece of the window at `base` that stays as it is.
fn kept(base: u64, segment: &Segment) -> Option<NewPiece> {
    let Source::Block(id, offset) = segment.source else {
        return None;
    };
    Some(NewPiece {
        start: (segment.range.start - base) as u32,
        len: segment.len() as u32,
        at: At::Block(id, offset),
        begins_run: true,
    })
}

/// Makes pieces of the content of one window, which starts at `base`.
fn settle_window(
    core: &Core,
    work: &mut Work,
    base: u64,
    segments: &[Segment],
) -> Result<Vec<NewPiece>> {
    let is_bytes = |segment: &Segment| matches!(segment.source, Source::Bytes(..));
    let mut joined = group(segments, |a, b| is_bytes(a) && is_bytes(b));
    let chunk = work.rules.chunk_len;
    let chunks = core.tables.chunk_len() / chunk;
    if joined.len() > SCATTERED_PIECES_MAX.max(2 * chunks as usize) {
        joined = group(segments, |_, _| true);
    }
    let mut pieces = Vec::with_capacity(joined.len());
    for run in joined {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        let start = (first.range.start - base) as u32;
        let len = (last.range.end - first.range.start) as u32;
        if let (Source::Block(id, offset), 1) = (&first.source, run.len()) {
            pieces.push(NewPiece {
                start,
                len,
                at: At::Block(*id, *offset),
                begins_run: false,
            });
            continue;
        }
        let (bytes, from) = match (&first.source, run.len()) {
            (Source::Bytes(shared, offset), 1) => (shared.clone(), *offset),
            _ => {
                let mut bytes = Vec::with_capacity(len as usize);
                core.copy_out(run, &mut bytes)?;
                (bytes.into(), 0)
            }
        };
        let mut done = 0;
        while done < len {
            let free_len = chunk - (start + done) % chunk;
            let part = free_len.min(len - done);
            let range = from + done as usize..from + (done + part) as usize;
            let at = At::Run(work.wait(Bytes::Shared(bytes.clone(), range)), 0);
            pieces.push(NewPiece {
                start: start + done,
                len: part,
                at,
                begins_run: false,
            });
            done += part;
        }
    }
    Ok(pieces)
}

/// Whether the bytes at `place` are `run`. A block that cannot be read is no duplicate.
fn is_at(core: &Core, place: Place, run: &[u8]) -> bool {
    let Ok(block) = core.blocks.get(place.block) else {
        return false;
    };
    let start = place.offset as usize;
    let end = start.saturating_add(run.len());
    block.get(start..end).is_some_and(|bytes| bytes == run)
}

/// Record of a new block, and its stored bytes unless they are the raw ones.
fn encode(encoders: &mut Encoders, block: &NewBlock) -> Result<(RecordRef, Option<Vec<u8>>)> {
    let encoded = encoders.of(block.rules.codec)?.encode(&block.raw)?;
    let (stored, digest) = match encoded.codec {
        Codec::None => (None, block.digest),
        _ => (Some(encoded.stored), None),
    };
    let bytes = stored.as_deref().unwrap_or(&block.raw);
    let record = RecordRef {
        record_type: RecordType::Data,
        codec: encoded.codec,
        offset: 0,
        stored_len: bytes.len() as u64,
        raw_len: block.raw.len() as u64,
        digest: digest.unwrap_or_else(|| Digest::of(bytes)),
    };
    Ok((record, stored))
}

/// Splits segments into runs without a gap whose neighbours `fit` together.
fn group(segments: &[Segment], fit: impl Fn(&Segment, &Segment) -> bool) -> Vec<&[Segment]> {
    segments
        .chunk_by(|a, b| a.range.end == b.range.start && fit(a, b))
        .collect()
}

/// Adds the rows of a layer.
pub fn put_rows(snapshot: u32, layer: &Layer, batch: &mut Batch) {
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
