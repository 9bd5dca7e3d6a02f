//! The single writer of a store: its lock, its counters, the open segment, and how changes become
//! durable.
//!
//! One order holds everywhere. The writer syncs bytes before it commits a row that refers to them.
//! It removes a file only after it commits the removal of the file's row. After a crash the store
//! therefore holds everything that was committed, and possibly files that no row refers to.
//! [`crate::recover`] completes interrupted operations.

mod appending;
mod change;
mod journaling;
mod tail;

use crate::damaged_blocks::DamagedBlocks;
use crate::disk::LocalFile;
use crate::engine::{Batch, Engine, Table, key_of};
use crate::faults::{Bug, Faults};
use crate::held_blocks::HeldBlocks;
use crate::index::{DedupIndex, NEIGHBOUR_ROW_COUNT};
use crate::journal::{Journal, TablesState, rows_in};
use crate::layout;
use crate::mark::Mark;
use crate::newest_snapshots::NewestSnapshots;
use crate::segment::{self, SegmentWriter, read_record};
use crate::steps::Steps;
use crate::store::{Store, open_engine};
use crate::undo::Undo;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::container::RecordRef;
use weald_format::store::{BlockRow, Location, SegmentRow};
use weald_format::{BlockId, CommitNo, Digest, Error, ErrorKind, ImageNo, Result, SegmentNo};

/// Appended bytes after which the writer commits. This limits the rows that wait in memory and the
/// work that a crash loses.
const COMMIT_LEN: u64 = 256 << 20;
/// Rows of blocks that wait for a commit, with the same purpose.
const COMMIT_ROWS: usize = 1 << 16;

/// Options of a writer.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// Process id and command of this writer, shown to a second writer in its error message.
    pub writer_name: String,
    /// Memory of the dedup index, in bytes.
    pub index_len: u64,
    /// Read a block that exists already and verify its digest before it counts as a duplicate. A
    /// damaged block is then stored again.
    pub verifies_duplicates: bool,
    /// Random number that tells the records of this writer from those of all others.
    pub epoch: u64,
    /// Sizes of steps, between which an open store does other things.
    pub steps: Steps,
    /// A deliberate bug, if a simulation must find it.
    pub faults: Faults<Bug>,
}

impl WriteOptions {
    /// Default options for a writer of this name.
    pub fn new(writer_name: impl Into<String>) -> Self {
        Self {
            writer_name: writer_name.into(),
            index_len: 64 << 20,
            verifies_duplicates: false,
            epoch: std::hash::RandomState::new().build_hasher().finish(),
            steps: Steps::default(),
            faults: Faults::default(),
        }
    }
}

/// Whether a reference to a block is added or dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    Up,
    Down,
}

/// A store, open for writing.
///
/// What it does is in the files of its changes (`addition.rs`, `collection.rs`, `remove.rs`,
/// `volume.rs` and others), which see it by these doors:
/// 1. Every change is one call of `refuse_after_failure`. Within it, in any order: `put_block` or
///    `put_new_block` for bytes, `count` for references, `set_segment` and `forget_block` for rows.
///    These rows wait; `block_row` and `segment_row` see them, `tables` does not.
/// 2. `commit` makes them durable with the rows of its batch, as often as the change needs. Each
///    state between two commits is one from which `recover` can go on.
/// 3. Objects that rows name (maps) are put before the commit that names them; objects that no row
///    names any more are removed after it. Locations of blocks that are moved change with the
///    commit; their old places stay until all maps are renewed.
/// 4. Reading needs no change: `tables`, `engine`, `store`, `block_reader`.
#[derive(Debug)]
pub struct StoreWriter {
    store: Store,
    engine: Arc<dyn Engine>,
    options: WriteOptions,
    mark: Mark,
    /// The commits once more.
    journal: Journal,
    /// The writer's lock, held until the writer is dropped.
    _lock: Arc<dyn LocalFile>,
    index: Option<DedupIndex>,
    /// Rows of blocks near the last hit: blocks that were stored together are usually requested
    /// together.
    near: BTreeMap<BlockId, BlockRow>,
    segment: Option<SegmentWriter>,
    /// Rows that wait for the next commit, here and in the next field.
    blocks: BTreeMap<BlockId, BlockRow>,
    segments: BTreeMap<SegmentNo, SegmentRow>,
    appended_len: u64,
    next_block: BlockId,
    next_segment: SegmentNo,
    /// A segment that is on its way to another tier.
    pub(crate) moving: std::sync::Weak<()>,
    pub(crate) newest_snapshots: NewestSnapshots,
    pub(crate) held: HeldBlocks,
    next_image: u64,
    /// The last commit of the tables.
    commit_no: CommitNo,
    /// The epoch in the tables: of the writer that appended last.
    epoch: Option<u64>,
    /// Segments with a lower number receive no more records, because the collector empties them.
    resume_from: SegmentNo,
    /// A deliberate bug, which may come and go.
    pub faults: Faults<Bug>,
    /// Whether this writer only checks.
    is_check: bool,
    /// Damage that a check found when it opened the store.
    damage: Vec<Error>,
    is_dead: bool,
    undo: Undo,
    /// Blocks that were found damaged.
    damaged: DamagedBlocks,
    /// Segments whose absence was logged.
    missing: Mutex<BTreeSet<SegmentNo>>,
    /// The segment that a repeat was found in last, and the length of its file; 0 if it is missing.
    seen: Mutex<Option<(SegmentNo, u64)>>,
}

/// The blocks of a store by digest, to find repeats.
#[derive(Debug)]
pub struct BlockIndex(DedupIndex);

impl BlockIndex {
    /// Reads the rows of all blocks into an index of about `memory_len` bytes at most.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read(engine: &dyn Engine, memory_len: u64) -> Result<Self> {
        let mut index = DedupIndex::new(memory_len);
        each_row(engine, Table::Blocks, &mut |id, value| {
            index.insert(&BlockRow::parse(value)?.record.digest, BlockId(id));
            Ok(())
        })?;
        Ok(Self(index))
    }
}

pub(crate) const NEXT_BLOCK: &[u8] = b"next_block";
/// Numbers that are tried for a new image, of which all but one may be taken by what is no map.
const IMAGE_NOS_TRIED_MAX: u32 = 1000;
pub(crate) const NEXT_SEGMENT: &[u8] = b"next_segment";
pub(crate) const NEXT_IMAGE: &[u8] = b"next_image";
pub(crate) use crate::engine::COMMIT;
/// The epoch of the writer that appended last.
pub(crate) const EPOCH: &[u8] = b"epoch";

/// Counts removed images.
pub(crate) const REMOVED: &[u8] = b"removed";
/// The count of removed images when all blocks were last examined for re-encoding, times 256, plus
/// the share in per cent below which blocks were encoded again.
const EXAMINED: &[u8] = b"examined";

pub(crate) fn counter(engine: &dyn Engine, key: &[u8]) -> Result<u64> {
    Ok(known_counter(engine, key)?.unwrap_or(1))
}

/// As [`counter`]; `None` for a counter that the tables do not have.
pub(crate) fn known_counter(engine: &dyn Engine, key: &[u8]) -> Result<Option<u64>> {
    let Some(value) = engine.get(Table::Counters, key)? else {
        return Ok(None);
    };
    let bytes = value.as_slice().try_into().map_err(|_| {
        let what = "a counter has not eight bytes";
        Error::corrupt("store metadata", 0, "S-5.2", what)
    })?;
    Ok(Some(u64::from_le_bytes(bytes)))
}

impl Store {
    /// Opens the store for writing and completes the operation that an earlier writer left
    /// unfinished.
    ///
    /// # Errors
    /// `Busy` if another writer has the lock; the message gives its process id and command.
    /// `Corrupt` if the metadata is missing, damaged or older than the images; `Io`, `Full`.
    pub fn write(&self, options: WriteOptions) -> Result<StoreWriter> {
        self.open_writer(options, false)
    }

    /// As [`Store::write`]; a check keeps the damage on which a writer gives up, and only reads.
    pub(crate) fn open_writer(&self, options: WriteOptions, is_check: bool) -> Result<StoreWriter> {
        #[cfg(feature = "planted-bugs")]
        log::trace!("this program has planted bugs");
        let (lock, is_left) = crate::writer_lock::lock(self, &options.writer_name)?;
        if self.keeps_changes_in_memory() {
            self.refuse_between_states()?;
        } else {
            self.refuse_role()?;
        }
        self.sync_leftovers()?;
        let mut engine = open_engine(&*self.disk, self.superblock.uuid, is_left)?;
        engine.mark_when_closed(lock.clone());
        // Tables of older versions do not count commits.
        let commit_no = CommitNo(known_counter(&engine, COMMIT)?.unwrap_or(0));
        let tables = TablesState {
            commit: commit_no,
            sum: engine.row_sum()?,
        };
        let mut damage = Vec::new();
        let journal = Journal::open(self, tables, (options.steps, options.faults), is_left);
        let journal = match journal {
            // A check says below what is wrong with the journal, and makes none.
            Err(error) if is_check && error.kind() == ErrorKind::Corrupt => {
                damage.push(error);
                Journal::absent(self)?
            }
            Ok(journal) if is_check && !journal.is_whole() => Journal::absent(self)?,
            other => other?,
        };
        if !is_check {
            let store = self.clone();
            engine.repair_from(Box::new(move |table, gap, commit| {
                let commit = commit.try_into().ok().map(u64::from_le_bytes)?;
                let rows = rows_in(&store, (table, gap), CommitNo(commit));
                rows.unwrap_or_else(|error| {
                    log::debug!("{}: {error}", store.shown());
                    None
                })
            }));
        }
        let mut writer = StoreWriter {
            next_block: BlockId(counter(&engine, NEXT_BLOCK)?),
            next_segment: SegmentNo(counter(&engine, NEXT_SEGMENT)?),
            moving: std::sync::Weak::new(),
            newest_snapshots: NewestSnapshots::new(),
            held: HeldBlocks::default(),
            next_image: counter(&engine, NEXT_IMAGE)?,
            commit_no,
            epoch: known_counter(&engine, EPOCH)?,
            mark: Mark::new(self),
            journal,
            store: self.clone(),
            engine: Arc::new(engine),
            _lock: lock,
            index: None,
            near: BTreeMap::new(),
            segment: None,
            blocks: BTreeMap::new(),
            segments: BTreeMap::new(),
            appended_len: 0,
            resume_from: SegmentNo::default(),
            faults: options.faults,
            options,
            is_check,
            damage,
            is_dead: false,
            undo: Undo::default(),
            damaged: DamagedBlocks::read(self),
            missing: Mutex::default(),
            seen: Mutex::default(),
        };
        writer.settle_tails()?;
        match writer.recover() {
            // A check tells it and goes on.
            Err(error) if is_check && error.kind() == ErrorKind::Corrupt => {
                writer.damage.push(error);
            }
            other => other?,
        }
        if !is_check && !writer.store.keeps_changes_in_memory() {
            let tables = writer.tables_state()?;
            let engine = writer.engine.clone();
            writer.journal.replace_left(tables, &engine)?;
        }
        Ok(writer)
    }
}

impl StoreWriter {
    /// Whether blocks may be used less since [`StoreWriter::set_examined`] with this share or a
    /// larger one: whether an image was removed.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn needs_examination(&self, below_percent: u64) -> Result<bool> {
        let (removed, examined) = (
            counter(&*self.engine, REMOVED)?,
            counter(&*self.engine, EXAMINED)?,
        );
        Ok(examined >> 8 < removed || examined & 0xff < below_percent)
    }

    /// Notes that all blocks were examined, and those used by less than a share encoded again.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn set_examined(&mut self, below_percent: u64) -> Result<()> {
        let removed = counter(&*self.engine, REMOVED)?;
        let examined = removed << 8 | below_percent.min(0xff);
        let mut batch = Batch::default();
        batch.put(Table::Counters, EXAMINED, examined.to_le_bytes().to_vec());
        self.refuse_after_failure(|writer| writer.commit(batch))
    }

    /// The store, as readers see it.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The tables, for readers beside this writer.
    pub fn engine(&self) -> Arc<dyn Engine> {
        self.engine.clone()
    }

    /// The tables as of the last commit, without the rows that wait.
    pub(crate) fn tables(&self) -> &dyn Engine {
        &*self.engine
    }

    /// The last commit of the tables.
    pub fn commit_no(&self) -> CommitNo {
        self.commit_no
    }

    /// The segment that receives records.
    #[cfg(test)]
    pub(crate) fn open_segment_no(&self) -> Option<SegmentNo> {
        self.segment.as_ref().map(SegmentWriter::number)
    }

    /// The options.
    pub(crate) fn options(&self) -> &WriteOptions {
        &self.options
    }

    /// From now on as with [`WriteOptions::verifies_duplicates`].
    pub(crate) fn verify_duplicates(&mut self) {
        self.options.verifies_duplicates = true;
    }

    /// Whether this writer only checks.
    pub(crate) fn is_check(&self) -> bool {
        self.is_check
    }

    /// Damage that a check has found since it opened the store.
    pub(crate) fn damage(&self) -> &[Error] {
        &self.damage
    }

    /// Adds to the damage that a check has found.
    pub(crate) fn add_damage(&mut self, error: Error) {
        self.damage.push(error);
    }

    /// The journal.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// The notes about damaged blocks.
    pub(crate) fn damaged(&self) -> &DamagedBlocks {
        &self.damaged
    }

    /// Notes that block `id` cannot be read: content that is written again does not become this
    /// block, unless it can be read then.
    pub(crate) fn note_damaged(&self, id: BlockId, error: &Error) {
        let error = error.duplicate().context(self.store.disk.shown());
        self.damaged.note(id, error.what());
    }

    /// Keeps the numbers of damaged blocks for the next writers.
    pub(crate) fn keep_damaged(&self) {
        let is_known = |id: BlockId| self.block_row(id).is_ok();
        self.damaged.retain(&is_known);
        // Without the file, less is verified.
        if let Err(error) = self.damaged.write(&self.store) {
            log::debug!("{}: {error}", self.store.disk.shown());
        }
    }

    /// Numbers of blocks that were found damaged, each with the reason.
    pub fn damaged_blocks(&self) -> BTreeMap<BlockId, String> {
        self.damaged.blocks()
    }

    /// Whether the file of segment `number` is missing or cannot be opened, which is logged once.
    ///
    /// # Errors
    /// Those that are not about this file.
    pub(crate) fn is_missing(&self, number: SegmentNo) -> Result<bool> {
        match segment::open(&*self.store.disk, number) {
            Err(error) if error.is_unreadable() => {
                if self.missing.lock().insert(number) {
                    log::warn!("{error}");
                }
                Ok(true)
            }
            Err(error) => Err(error),
            Ok(_) => Ok(false),
        }
    }

    /// Returns the row of block `id`, which something refers to, uncommitted changes included.
    ///
    /// # Errors
    /// `Corrupt` if it has none; `Io`.
    pub(crate) fn block_row(&self, id: BlockId) -> Result<BlockRow> {
        self.find_block_row(id)?.ok_or_else(|| {
            let what = format!("block {id} has no row");
            Error::corrupt("store metadata", 0, "S-5.3", what)
        })
    }

    /// As [`StoreWriter::block_row`]; `None` for a block that does not exist.
    pub(crate) fn find_block_row(&self, id: BlockId) -> Result<Option<BlockRow>> {
        if let Some(row) = self.blocks.get(&id) {
            return Ok(Some(*row));
        }
        let value = self.engine.get(Table::Blocks, &id.key())?;
        value.map(|value| BlockRow::parse(&value)).transpose()
    }

    /// The segment that was made last; before the first one, none has this number.
    pub(crate) fn newest_segment(&self) -> SegmentNo {
        SegmentNo(self.next_segment.0.saturating_sub(1))
    }

    pub(crate) fn segment_row(&self, number: SegmentNo) -> Result<SegmentRow> {
        self.find_segment_row(number)?.ok_or_else(|| {
            let what = format!("segment {number} has no row");
            Error::corrupt("store metadata", 0, "S-5.3", what)
        })
    }

    /// As [`StoreWriter::segment_row`]; `None` for a segment without a row.
    pub(crate) fn find_segment_row(&self, number: SegmentNo) -> Result<Option<SegmentRow>> {
        if let Some(row) = self.segments.get(&number) {
            return Ok(Some(*row));
        }
        let value = self.engine.get(Table::Segments, &key_of(number.0))?;
        value.map(|value| SegmentRow::parse(&value)).transpose()
    }

    /// The id that the next new block will get.
    pub fn next_block_id(&self) -> BlockId {
        self.next_block
    }

    /// Returns a number for a new image. One in whose place something else than a map lies is
    /// passed over. If all that are tried have something there, as below a directory that is a
    /// symlink, writing the map says so.
    pub(crate) fn take_image_no(&mut self) -> ImageNo {
        let mut image_no = ImageNo(self.next_image);
        for _ in 0..IMAGE_NOS_TRIED_MAX {
            image_no = ImageNo(self.next_image);
            self.next_image += 1;
            let there = self.store.disk.open_object(&layout::hidden_map(image_no));
            if !there.is_err_and(|error| error.kind() == ErrorKind::Invalid) {
                break;
            }
        }
        image_no
    }

    /// Returns the id of the block with this record: an existing block, or a new one without
    /// references.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    pub(crate) fn put_block(&mut self, record: &RecordRef, stored: &[u8]) -> Result<BlockId> {
        let record = RecordRef {
            offset: 0,
            ..*record
        };
        match self.find(&record)? {
            Some(id) => Ok(id),
            None => self.put_new_block(&record, stored),
        }
    }

    /// Appends this record as a new block without references.
    ///
    /// # Errors
    /// As [`StoreWriter::put_block`].
    pub(crate) fn put_new_block(&mut self, record: &RecordRef, stored: &[u8]) -> Result<BlockId> {
        let record = RecordRef {
            offset: 0,
            ..*record
        };
        let id = self.next_block;
        // A note may name it, also if this fails.
        self.next_block = id.next();
        let location = self.append(id, &record, stored)?;
        self.set_block(
            id,
            BlockRow {
                location,
                references: 0,
                record,
            },
        );
        if let Some(index) = &mut self.index {
            index.insert(&record.digest, id);
        }
        if self.appended_len >= COMMIT_LEN || self.blocks.len() >= COMMIT_ROWS {
            self.commit(Batch::default())?;
        }
        Ok(id)
    }

    /// Number of rows that the next commit writes.
    pub fn waiting_count(&self) -> usize {
        self.blocks.len().saturating_add(self.segments.len())
    }

    /// Whether the index of blocks is in memory.
    pub fn has_index(&self) -> bool {
        self.index.is_some()
    }

    /// Takes an index of blocks that was read beside this writer. Blocks that are newer than it are
    /// not found as repeats.
    pub fn set_index(&mut self, index: BlockIndex) {
        self.index.get_or_insert(index.0);
    }

    /// Gives the memory of the index of blocks back. The next new record reads it again.
    pub fn drop_index(&mut self) {
        self.index = None;
        self.near.clear();
    }

    /// Finds an existing block that is exactly this record, if the index lists it.
    fn find(&mut self, record: &RecordRef) -> Result<Option<BlockId>> {
        if self.index.is_none() {
            self.index = Some(self.build_index()?);
        }
        let near = self.near.iter().find(|(_, row)| row.record == *record);
        let mut ids: Vec<BlockId> = near.map(|(&id, _)| id).into_iter().collect();
        ids.extend(
            self.index
                .iter()
                .flat_map(|index| index.candidates(&record.digest)),
        );
        for id in ids {
            let row = match self.find_block_row(id) {
                Ok(Some(row)) => row,
                Ok(None) => continue,
                // A row that cannot be read is that of another block, as far as this one goes.
                Err(error) if error.kind() == ErrorKind::Corrupt => continue,
                Err(error) => return Err(error),
            };
            if row.record == *record && self.is_readable(id, &row)? {
                self.load_neighbours(id)?;
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    fn is_readable(&self, id: BlockId, row: &BlockRow) -> Result<bool> {
        if self.is_unwritten(row.location) {
            return Ok(true);
        }
        if !self.options.verifies_duplicates && !self.damaged.has(id) {
            return self.is_there(row);
        }
        let file = segment::open(&*self.store.disk, row.location.segment);
        match file.and_then(|file| read_record(&*file, row.location, &row.record)) {
            Ok(_) => {
                self.damaged.forget(id);
                Ok(true)
            }
            // Also where the disk cannot read it: the block is stored again.
            Err(error) => {
                log::warn!(
                    "{}: a block is stored again: {error}",
                    self.store.disk.shown()
                );
                Ok(false)
            }
        }
    }

    /// Whether the file of the segment has the place of a block. Looks again only for other
    /// segments than the last one, since repeats follow each other.
    fn is_there(&self, row: &BlockRow) -> Result<bool> {
        let number = row.location.segment;
        if self.segment.as_ref().is_some_and(|s| s.number() == number) {
            return Ok(true);
        }
        let mut seen = self.seen.lock();
        let len = match seen.filter(|(last, _)| *last == number) {
            Some((_, len)) => len,
            None => {
                let disk = &*self.store.disk;
                let file = segment::open(disk, number);
                match file.and_then(|file| file.len()) {
                    Ok(len) => len,
                    Err(_) => {
                        self.is_missing(number)?;
                        0
                    }
                }
            }
        };
        *seen = Some((number, len));
        Ok(row.location.offset.saturating_add(row.len()) <= len)
    }

    /// Whether the record may still be in the buffer of the open segment.
    pub(crate) fn is_unwritten(&self, location: Location) -> bool {
        self.segment
            .as_ref()
            .is_some_and(|segment| segment.is_unwritten(location))
    }

    /// Loads the rows near a hit. They replace entries that the index dropped.
    fn load_neighbours(&mut self, id: BlockId) -> Result<()> {
        let is_sampled = self.index.as_ref().is_some_and(DedupIndex::is_sampled);
        if !is_sampled || self.near.contains_key(&id.next()) {
            return Ok(());
        }
        let mut near = BTreeMap::new();
        let first = BlockId(id.0.saturating_sub(NEIGHBOUR_ROW_COUNT / 4));
        self.engine
            .scan(Table::Blocks, &first.key(), &mut |key, value| {
                match crate::engine::number_of(key).map(BlockId) {
                    Some(at) if at.0 <= id.0.saturating_add(NEIGHBOUR_ROW_COUNT) => {
                        near.insert(at, BlockRow::parse(value)?)
                    }
                    _ => return Ok(ControlFlow::Break(())),
                };
                Ok(ControlFlow::Continue(()))
            })?;
        self.near = near;
        Ok(())
    }

    fn build_index(&self) -> Result<DedupIndex> {
        BlockIndex::read(&*self.engine, self.options.index_len).map(|index| index.0)
    }

    /// Visits the rows of all committed segments, in order of number.
    pub(crate) fn each_segment(
        &self,
        visit: &mut dyn FnMut(SegmentNo, SegmentRow) -> Result<()>,
    ) -> Result<()> {
        each_row(&*self.engine, Table::Segments, &mut |no, value| {
            visit(SegmentNo(no), SegmentRow::parse(value)?)
        })
    }

    /// Adds or drops a reference to block `id` and updates the live bytes of its segment.
    pub(crate) fn count(&mut self, id: BlockId, count: Count) -> Result<()> {
        let change = match count {
            Count::Up => 1,
            Count::Down => -1,
        };
        self.count_by(id, change).map(drop)
    }

    /// Changes the number of references to block `id` and updates the live bytes of its segment.
    /// Returns the new row.
    pub(crate) fn count_by(&mut self, id: BlockId, change: i64) -> Result<BlockRow> {
        let mut row = self.block_row(id)?;
        // A segment that was lost may have no row.
        let mut segment = self.find_segment_row(row.location.segment)?;
        let wrong = || {
            let what = format!("references of block {id} and live bytes of its segment disagree");
            Error::corrupt("store metadata", 0, "S-5.5", what)
        };
        let before = row.references;
        row.references = before.checked_add_signed(change).ok_or_else(wrong)?;
        if let Some(segment) = &mut segment {
            if before == 0 && row.references > 0 {
                segment.live_len += row.len();
            } else if before > 0 && row.references == 0 {
                segment.live_len = segment.live_len.checked_sub(row.len()).ok_or_else(wrong)?;
            }
            self.set_segment(row.location.segment, *segment);
        }
        self.set_block(id, row);
        Ok(row)
    }

    /// Removes the row of block `id`.
    pub(crate) fn forget_block(&mut self, batch: &mut Batch, id: BlockId, digest: &Digest) {
        if let Some(before) = self.blocks.remove(&id) {
            self.undo.blocks.entry(id).or_insert(Some(before));
        }
        self.near.remove(&id);
        batch.remove(Table::Blocks, &id.key());
        if let Some(index) = &mut self.index {
            index.remove(digest, id);
        }
    }

    /// Stops appending to the existing segments, because the collector may empty them.
    pub(crate) fn begin_new_segment(&mut self) {
        self.segment = None;
        self.resume_from = self.next_segment;
    }

    /// Makes changes durable: syncs the appended bytes first, then commits all waiting rows and
    /// `batch` in one transaction.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub(crate) fn commit(&mut self, mut batch: Batch) -> Result<()> {
        self.put_note()?;
        if let Some(segment) = &mut self.segment {
            if self.faults.has(Bug::MetadataBeforeData) {
                segment.write_out()?
            } else {
                segment.sync(&*self.store.disk)?
            }
        }
        for (id, row) in &self.blocks {
            batch.put(Table::Blocks, &id.key(), row.encode());
        }
        for (number, row) in &self.segments {
            batch.put(Table::Segments, &key_of(number.0), row.encode());
        }
        for (key, next) in [
            (NEXT_BLOCK, self.next_block.0),
            (NEXT_SEGMENT, self.next_segment.0),
            (NEXT_IMAGE, self.next_image),
        ] {
            batch.put(Table::Counters, key, next.to_le_bytes().to_vec());
        }
        let commit_no = self.commit_no.next();
        batch.put(Table::Counters, COMMIT, commit_no.0.to_le_bytes().to_vec());
        if let Some(epoch) = self.epoch {
            batch.put(Table::Counters, EPOCH, epoch.to_le_bytes().to_vec());
        }
        if self.faults.has(Bug::MarkBeforeCommit) {
            self.mark.set(commit_no);
        }
        let mut tables = self.tables_state()?;
        let journal = &mut self.journal;
        self.engine.commit_after(&batch, &mut |sum| {
            tables.sum = sum;
            journal.append(commit_no, sum, &batch);
            Ok(())
        })?;
        tables.commit = commit_no;
        self.commit_no = commit_no;
        self.mark.set(commit_no);
        self.journal.continue_after(tables, &self.engine);
        self.blocks.clear();
        self.segments.clear();
        self.undo.clear();
        self.appended_len = 0;
        Ok(())
    }
}

impl Drop for StoreWriter {
    fn drop(&mut self) {
        if self.is_usable() && !std::thread::panicking() {
            self.journal.finish();
        }
    }
}

/// Visits the rows of a table with numeric keys.
pub(crate) fn each_row(
    engine: &dyn Engine,
    table: Table,
    visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    engine.scan(table, &[], &mut |key, value| {
        let Some(number) = crate::engine::number_of(key) else {
            let what = format!("a key of table {} has not eight bytes", table.name());
            return Err(Error::corrupt("store metadata", 0, "S-5.2", what));
        };
        visit(number, value)?;
        Ok(ControlFlow::Continue(()))
    })
}
