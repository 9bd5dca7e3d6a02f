//! The store below a volume: blocks with counted references, rows in tables of volumes, and the
//! names of volumes.
//!
//! The row of a volume is its existence. The file `volumes/NAME` shows the name to readers, who do
//! not open the tables; [`StoreWriter`] makes both agree when it is opened. The file has a copy of
//! the first row, which a salvage reads if the row is lost.

use crate::damaged_blocks::DamagedBlocks;
use crate::disk::Object;
use crate::engine::{Batch, Engine, Table};
use crate::held_blocks::HeldBlocks;
use crate::layout::{self, ObjectKind};
use crate::named_rows::NamedRows;
use crate::segment::{self, read_record};
use crate::store::{Store, is_bad_file};
use crate::writer::{StoreWriter, counter, each_row};
use parking_lot::Mutex;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::container::{HEADER_LEN, RecordRef};
use weald_format::snapshot::{KeptKey, parse_kept};
use weald_format::store::{BlockRow, Part, SegmentRow};
use weald_format::volume::{ExtentsRow, VolumeRow};
use weald_format::{BlockId, Digest, Error, ErrorKind, Result, SegmentNo, VolumeNo, limits};

/// Counts the numbers in front of the keys of volumes.
pub(crate) const NEXT_VOLUME_NO: &[u8] = b"next_snapshot";
/// Rows that one transaction of a removal removes.
const REMOVE_BATCH: usize = 1 << 15;
/// Number of segments that a [`BlockReader`] keeps open.
const READER_SEGMENTS_MAX: usize = 64;
/// Shortest dead range whose space is freed in place, bytes: the page size of most file systems.
const PUNCH_LEN_MIN: u64 = 4 << 10;

/// Most bytes of the copy of a row in `volumes/`, and of its digest.
const ROW_COPY_LEN_MAX: u64 = 4096;

/// A block that nothing refers to any more.
pub type Dead = (BlockId, BlockRow);

/// Reads blocks while a writer works.
#[derive(Debug)]
pub struct BlockReader {
    store: Store,
    engine: Arc<dyn Engine>,
    segments: Mutex<VecDeque<(SegmentNo, Arc<dyn Object>)>>,
    /// Rows of blocks that are gone from the tables, but whose space is not freed yet.
    removed: Mutex<BTreeMap<BlockId, BlockRow>>,
    /// Blocks that were found damaged, which the writer knows too.
    damaged: DamagedBlocks,
}

/// Bytes of dead blocks that [`StoreWriter::free`] frees.
pub(crate) fn punched_len(dead: &[Dead]) -> u64 {
    let lens = dead.iter().map(|(_, row)| row.record.stored_len);
    lens.filter(|len| *len >= PUNCH_LEN_MIN).sum()
}

/// The number of a new volume.
fn new_volume_no(next: u64) -> Result<VolumeNo> {
    let number = u32::try_from(next);
    let number = number.map_err(|_| Error::limit("the store has had 4 billion volumes"))?;
    Ok(VolumeNo(number))
}

impl BlockReader {
    /// Reads the blocks of `store` whose rows `engine` has: a copy of those of a server.
    pub fn of_rows(store: Store, engine: Arc<dyn Engine>) -> Self {
        Self {
            store,
            engine,
            segments: Mutex::default(),
            removed: Mutex::default(),
            damaged: DamagedBlocks::default(),
        }
    }

    /// Keeps the rows of blocks that a commit is about to remove, for reads that found the blocks
    /// before.
    pub fn keep_removed_rows(&self, dead: &[Dead]) {
        self.removed.lock().extend(dead.iter().copied());
    }

    /// Forgets the rows of dead blocks, before their space is freed.
    pub fn forget_removed_rows(&self) {
        self.removed.lock().clear();
    }

    fn row(&self, id: BlockId) -> Result<BlockRow> {
        if let Some(value) = self.engine.get(Table::Blocks, &id.key())? {
            return BlockRow::parse(&value);
        }
        self.removed.lock().get(&id).copied().ok_or_else(|| {
            let what = format!("block {id} has no row");
            Error::corrupt("store metadata", 0, "S-5.3", what)
        })
    }

    /// Reads block `id`: its record and its stored bytes, whose digest is verified.
    ///
    /// # Errors
    /// `Corrupt`; `Lost` if its segment is missing; `Io`.
    pub fn read(&self, id: BlockId) -> Result<(RecordRef, Vec<u8>)> {
        let row = self.row(id)?;
        let file = self.segment(row.location.segment)?;
        match read_record(&*file, row.location, &row.record) {
            Err(error) => {
                if error.kind() == ErrorKind::Corrupt {
                    self.damaged.note(id, error.what());
                }
                Err(error)
            }
            Ok(stored) => Ok((row.record, stored)),
        }
    }

    /// Block `id` as a part of an image.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn part(&self, id: BlockId) -> Result<Part> {
        let row = self.row(id)?;
        Ok(Part::Block {
            id,
            location: row.location,
            record: row.record,
        })
    }

    fn segment(&self, number: SegmentNo) -> Result<Arc<dyn Object>> {
        let mut open = self.segments.lock();
        if let Some((_, file)) = open.iter().find(|(no, _)| *no == number) {
            return Ok(file.clone());
        }
        let file = crate::segment::open(&*self.store.disk, number)?;
        let file = Arc::<dyn Object>::from(file);
        open.push_back((number, file.clone()));
        if open.len() > READER_SEGMENTS_MAX {
            open.pop_front();
        }
        Ok(file)
    }

    /// Bytes of segments on the disk that belong to no live block. Those that were freed in place
    /// do not count.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn dead_len(&self) -> Result<u64> {
        Ok(self.garbage_and_total()?.0)
    }

    /// As [`BlockReader::dead_len`], and the bytes of all segments.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn garbage_and_total(&self) -> Result<(u64, u64)> {
        let (mut dead, mut total) = (0, 0);
        each_row(&*self.engine, Table::Segments, &mut |number, value| {
            let row = SegmentRow::parse(value)?;
            dead += crate::collect::debt(&*self.store.disk, SegmentNo(number), &row)?;
            total += row.len;
            Ok(())
        })?;
        Ok((dead, total))
    }

    /// The tables.
    pub fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// The tables, for a reader that outlives this one.
    pub fn shared_engine(&self) -> Arc<dyn Engine> {
        self.engine.clone()
    }

    /// Closes all segments, some of which may have been removed.
    pub fn close_segments(&self) {
        self.segments.lock().clear();
    }
}

impl Store {
    /// Names of the volumes, sorted.
    ///
    /// # Errors
    /// `Io`.
    pub fn volume_names(&self) -> Result<Vec<String>> {
        let mut names = match self.disk.list_objects(ObjectKind::VolumeName) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        names.retain(|name| layout::check_name(name).is_ok());
        names.sort_unstable();
        Ok(names)
    }

    /// The row of a volume as it was when the volume was made; `None` if the file in `volumes/` has
    /// none, as that of an older version, or is damaged.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn first_volume_row(&self, name: &str) -> Result<Option<VolumeRow>> {
        let copy = match self.read_object(&layout::volume(name), ROW_COPY_LEN_MAX) {
            Err(error) if is_bad_file(&error) => return Ok(None),
            other => other?,
        };
        Ok(copy.split_first_chunk().and_then(|(digest, row)| {
            let is_whole = Digest::of(row).0 == *digest;
            VolumeRow::parse(row).ok().filter(|_| is_whole)
        }))
    }

    /// Numbers of the volumes that have a sync log.
    pub(crate) fn sync_logs(&self) -> Result<Vec<VolumeNo>> {
        let names = match self.disk.list(layout::VOLUMES) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let numbers = names.iter().map(|name| layout::sync_log_number(name));
        Ok(numbers.flatten().collect())
    }

    /// Total and free space of the disk.
    ///
    /// # Errors
    /// `Io`.
    pub fn space(&self) -> Result<crate::disk::DiskSpace> {
        self.disk.space()
    }
}

impl Store {
    /// Space for data: that of the disk, and of the tiers that are here.
    ///
    /// # Errors
    /// `Io`.
    pub fn capacity(&self) -> Result<crate::disk::DiskSpace> {
        self.disk.capacity()
    }

    /// As [`StoreWriter::free`].
    pub(crate) fn free(&self, dead: &[Dead]) -> Result<()> {
        let mut by_segment: BTreeMap<SegmentNo, Vec<&BlockRow>> = BTreeMap::new();
        for (_, row) in dead
            .iter()
            .filter(|(_, row)| row.record.stored_len >= PUNCH_LEN_MIN)
        {
            by_segment
                .entry(row.location.segment)
                .or_default()
                .push(row);
        }
        for (number, rows) in by_segment {
            // A file that is gone, or that cannot be opened, has no space to free.
            let file = match segment::open_file(&*self.disk, number) {
                Err(error) if is_bad_file(&error) => {
                    log::debug!("no space is freed: {error}");
                    continue;
                }
                other => other?,
            };
            for row in rows {
                let start = row.location.offset + HEADER_LEN as u64;
                file.punch(start, row.record.stored_len)?;
            }
        }
        Ok(())
    }
}

impl StoreWriter {
    /// A reader of blocks beside this writer.
    pub fn block_reader(&self) -> BlockReader {
        BlockReader {
            damaged: self.damaged().clone(),
            ..BlockReader::of_rows(self.store().clone(), self.engine())
        }
    }

    /// Returns the id of the block with this record: an existing one, or a new one without
    /// references, which becomes durable with the next commit.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    pub fn put(&mut self, record: &RecordRef, stored: &[u8]) -> Result<BlockId> {
        self.refuse_after_failure(|writer| writer.put_block(record, stored))
    }

    /// As [`StoreWriter::put`], but always a new block, without a search.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn put_new(&mut self, record: &RecordRef, stored: &[u8]) -> Result<BlockId> {
        self.refuse_after_failure(|writer| writer.put_new_block(record, stored))
    }

    /// The blocks that stay without a reference.
    pub fn held(&mut self) -> &mut HeldBlocks {
        &mut self.held
    }

    /// Whether block `id` exists, changes that wait for a commit included.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn has_block(&self, id: BlockId) -> Result<bool> {
        self.find_block_row(id).map(|row| row.is_some())
    }

    /// Changes the numbers of references, increments first, and commits them with `batch`, and with
    /// what snapshots keep of the rows that `batch` changes. The rows of blocks without a reference
    /// are removed, after `before_commit` saw them, but for those that [stay](StoreWriter::held).
    /// Returns what was removed; [`StoreWriter::free`] frees the space afterwards.
    ///
    /// # Errors
    /// `Io`, `Full`; `Corrupt` if a block would have less than no reference.
    pub fn commit_counts(
        &mut self,
        counts: &BTreeMap<BlockId, i64>,
        mut batch: Batch,
        before_commit: &mut dyn FnMut(&[Dead]),
    ) -> Result<Vec<Dead>> {
        self.refuse_after_failure(|writer| {
            let kept = writer.keep_rows(&mut batch)?;
            let mut counts = Cow::Borrowed(counts);
            for (id, count) in kept {
                *counts.to_mut().entry(id).or_default() += count;
            }
            for (&id, &change) in counts.iter().filter(|(_, change)| **change > 0) {
                writer.count_by(id, change)?;
            }
            let (mut dead, mut held) = (Vec::new(), Vec::new());
            for (&id, &change) in counts.iter().filter(|(_, change)| **change <= 0) {
                let row = writer.count_by(id, change)?;
                match row.references {
                    0 if writer.held().has(id) => held.push(id),
                    0 => {
                        writer.forget_block(&mut batch, id, &row.record.digest);
                        dead.push((id, row));
                    }
                    _ => {}
                }
            }
            before_commit(&dead);
            writer.commit(batch)?;
            writer.held().note(held);
            Ok(dead)
        })
    }

    /// Removes the rows of those of the blocks `ids` that exist and have no reference, after
    /// `before_commit` saw them. Returns them; [`StoreWriter::free`] frees their space afterwards.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    pub fn forget_unused(
        &mut self,
        ids: &BTreeSet<BlockId>,
        before_commit: &mut dyn FnMut(&[Dead]),
    ) -> Result<Vec<Dead>> {
        self.refuse_after_failure(|writer| {
            let mut batch = Batch::default();
            let mut dead = Vec::new();
            for &id in ids {
                let Some(row) = writer.find_block_row(id)? else {
                    continue;
                };
                if row.references == 0 {
                    writer.forget_block(&mut batch, id, &row.record.digest);
                    dead.push((id, row));
                }
            }
            before_commit(&dead);
            writer.commit(batch)?;
            Ok(dead)
        })
    }

    /// The blocks that would have no reference after these changes, for deliberate bugs.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn blocks_without_references(&self, counts: &BTreeMap<BlockId, i64>) -> Result<Vec<Dead>> {
        let mut dead = Vec::new();
        for (&id, &change) in counts {
            let row = self.block_row(id)?;
            if change < 0 && row.references.checked_add_signed(change) == Some(0) {
                dead.push((id, row));
            }
        }
        Ok(dead)
    }

    /// Frees the space of blocks whose rows are gone. Their headers remain.
    ///
    /// # Errors
    /// `Io`, of the disk: a segment that is missing or damaged keeps its space.
    pub fn free(&self, dead: &[Dead]) -> Result<()> {
        self.store().free(dead)
    }

    /// Numbers of segments without a live block, except the one that receives records.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn dead_segments(&self) -> Result<Vec<SegmentNo>> {
        let mut dead = Vec::new();
        let newest = self.newest_segment();
        self.each_segment(&mut |number, row| {
            if row.live_len == 0 && number < newest {
                dead.push(number);
            }
            Ok(())
        })?;
        Ok(dead)
    }

    /// Rows of all volumes by name, without those that are being removed. Those that cannot be read
    /// are left out: a writer tells them when it opens the store.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if the table cannot be read.
    pub fn volume_rows(&self) -> Result<Vec<(String, VolumeRow)>> {
        let mut rows = self.all_volume_rows()?.rows;
        rows.retain(|(name, _)| !layout::is_replaced_key(name));
        Ok(rows)
    }

    fn all_volume_rows(&self) -> Result<NamedRows<VolumeRow>> {
        self.named_rows(Table::Volumes, VolumeRow::parse)
    }

    /// The row of the volume `name`.
    ///
    /// # Errors
    /// `NotFound` if there is no such volume; `Io`, `Corrupt`.
    pub fn volume_row(&self, name: &str) -> Result<VolumeRow> {
        layout::check_name(name)?;
        self.keyed_volume_row(name)
    }

    /// As [`StoreWriter::volume_row`], for a volume that may have no name yet: the key of its row.
    ///
    /// # Errors
    /// As [`StoreWriter::volume_row`].
    pub fn keyed_volume_row(&self, name: &str) -> Result<VolumeRow> {
        match self.tables().get(Table::Volumes, name.as_bytes())? {
            Some(value) => VolumeRow::parse(&value),
            None => {
                let what = format!("{}:{name}: no such volume", self.store().disk.shown());
                Err(Error::not_found(what))
            }
        }
    }

    /// Creates the volume `name` with the rows of `first`, which gets the volume's number.
    ///
    /// # Errors
    /// `Busy` if an image or a volume has this name; `Invalid` for a name that none can have; `Io`,
    /// `Full`.
    pub fn create_volume(
        &mut self,
        name: &str,
        mut row: VolumeRow,
        first: &dyn Fn(VolumeNo) -> Batch,
    ) -> Result<()> {
        layout::check_name(name)?;
        self.refuse_taken(name)?;
        self.refuse_after_failure(|writer| {
            let number = counter(writer.tables(), NEXT_VOLUME_NO)?;
            row.volume_no = new_volume_no(number)?;
            writer.store().show_volume(name, &row.encode())?;
            let mut batch = first(row.volume_no);
            let next = (number + 1).to_le_bytes().to_vec();
            batch.put(Table::Counters, NEXT_VOLUME_NO, next);
            batch.put(Table::Volumes, name.as_bytes(), row.encode());
            writer.commit(batch)
        })
    }

    /// Creates a volume without a name, whose files are to come: as [`StoreWriter::create_volume`]
    /// for `name`, but only [`StoreWriter::publish_volume`] gives it the name. After a crash before
    /// that, the next writer removes it. Returns the key of its row, and the row.
    ///
    /// # Errors
    /// As [`StoreWriter::create_volume`].
    pub fn create_hidden_volume(
        &mut self,
        name: &str,
        mut row: VolumeRow,
        first: &dyn Fn(VolumeNo) -> Batch,
    ) -> Result<(String, VolumeRow)> {
        layout::check_name(name)?;
        self.refuse_taken(name)?;
        self.refuse_after_failure(|writer| {
            let number = counter(writer.tables(), NEXT_VOLUME_NO)?;
            row.volume_no = new_volume_no(number)?;
            let hidden = layout::replaced_key(&row.volume_no.to_string());
            let mut batch = first(row.volume_no);
            let next = (number + 1).to_le_bytes().to_vec();
            batch.put(Table::Counters, NEXT_VOLUME_NO, next);
            batch.put(Table::Volumes, hidden.as_bytes(), row.encode());
            writer.commit(batch)?;
            Ok((hidden, row))
        })
    }

    /// Gives the volume with the row `hidden` its name.
    ///
    /// # Errors
    /// `Busy` if the name is taken; `Io`, `Full`, `Corrupt`.
    pub fn publish_volume(&mut self, hidden: &str, name: &str) -> Result<()> {
        self.refuse_taken(name)?;
        let value = self.tables().get(Table::Volumes, hidden.as_bytes())?;
        let value = value.ok_or_else(|| Error::not_found(format!("{name}: no such volume")))?;
        self.refuse_after_failure(|writer| {
            writer.store().show_volume(name, &value)?;
            let mut batch = Batch::default();
            batch.remove(Table::Volumes, hidden.as_bytes());
            batch.put(Table::Volumes, name.as_bytes(), value);
            writer.commit(batch)
        })
    }

    /// Makes the file in `volumes/`, with a copy of the row for a salvage.
    /// Removes the volume `name` and drops its references. [`StoreWriter::collect`] then frees the
    /// space. After a crash the next writer completes the removal.
    ///
    /// # Errors
    /// `NotFound` if there is no such volume; `Io`, `Full`, `Corrupt`.
    pub fn remove_volume(&mut self, name: &str) -> Result<()> {
        let row = self.volume_row(name)?;
        self.refuse_after_failure(|writer| {
            let hidden = layout::replaced_key(&row.volume_no.to_string());
            let mut batch = Batch::default();
            batch.remove(Table::Volumes, name.as_bytes());
            batch.put(Table::Volumes, hidden.as_bytes(), row.encode());
            writer.commit(batch)?;
            writer.store().hide_volume(name)?;
            writer.finish_volume_removal(&hidden, row.volume_no)
        })
    }

    /// Removes a volume that never got its name.
    pub(crate) fn remove_hidden_volume(&mut self, hidden: &str, volume_no: VolumeNo) -> Result<()> {
        self.refuse_after_failure(|writer| writer.finish_volume_removal(hidden, volume_no))
    }

    fn finish_volume_removal(&mut self, hidden: &str, volume_no: VolumeNo) -> Result<()> {
        loop {
            let mut batch = Batch::default();
            let mut counts = BTreeMap::new();
            for table in Table::OF_VOLUMES.into_iter().chain(Table::OF_SNAPSHOTS) {
                self.take_rows(table, volume_no, &mut batch, &mut counts)?;
            }
            if batch.0.is_empty() {
                break;
            }
            for (id, count) in counts {
                let row = self.count_by(id, count)?;
                if row.references == 0 {
                    self.forget_block(&mut batch, id, &row.record.digest);
                }
            }
            self.commit(batch)?;
        }
        self.remove_sync_log(volume_no)?;
        let mut batch = Batch::default();
        batch.remove(Table::Volumes, hidden.as_bytes());
        self.commit(batch)
    }

    /// Adds the removal of the next rows of `table` to `batch`, and the references of extents to
    /// `counts`.
    fn take_rows(
        &self,
        table: Table,
        volume_no: VolumeNo,
        batch: &mut Batch,
        counts: &mut BTreeMap<BlockId, i64>,
    ) -> Result<()> {
        if batch.0.len() >= REMOVE_BATCH {
            return Ok(());
        }
        self.tables()
            .scan(table, &volume_no.to_be_bytes(), &mut |key, value| {
                let is_of = key.starts_with(&volume_no.to_be_bytes());
                if !is_of || batch.0.len() >= REMOVE_BATCH {
                    return Ok(ControlFlow::Break(()));
                }
                if let Some(row) = extents_in(table, key, value)? {
                    for piece in parse_extents(row)?.0 {
                        *counts.entry(piece.block).or_default() -= 1;
                    }
                }
                batch.remove(table, key);
                Ok(ControlFlow::Continue(()))
            })
    }

    /// Whether the volume of a file in `volumes`, which has no row of this name, had one: then the
    /// tables are damaged. A crash leaves the file of a volume that was being made or removed.
    fn was_committed(&self, name: &str, rows: &[(String, VolumeRow)]) -> Result<bool> {
        let Some(first) = self.store().first_volume_row(name)? else {
            let file = self.store().disk.open_object(&layout::volume(name));
            return match file.and_then(|file| file.is_empty()) {
                // That of an older version is empty.
                Ok(is_empty) => Ok(!is_empty),
                Err(error) if is_bad_file(&error) => Ok(true),
                Err(error) => Err(error),
            };
        };
        let has_hidden = |(key, row): &(String, VolumeRow)| {
            row.volume_no == first.volume_no && layout::is_replaced_key(key)
        };
        let next = counter(self.tables(), NEXT_VOLUME_NO)?;
        Ok(u64::from(first.volume_no) < next && !rows.iter().any(has_hidden))
    }

    /// Makes the files in `volumes` agree with the rows, and completes removals.
    pub(crate) fn recover_volumes(&mut self) -> Result<()> {
        let NamedRows { rows, damaged } = self.all_volume_rows()?;
        let shown: BTreeSet<String> = self.store().volume_names()?.into_iter().collect();
        let known = rows.iter().map(|(name, _)| name);
        let known: BTreeSet<&String> = known.chain(damaged.iter().map(|(name, _)| name)).collect();
        let mut is_lost = !damaged.is_empty();
        for (name, error) in &damaged {
            self.tell_damaged_row("volume", name, error);
        }
        for name in shown.iter().filter(|name| !known.contains(name)) {
            if self.was_committed(name, &rows)? {
                is_lost = true;
                let what = format!("the table has no row with the name in {}/", layout::VOLUMES);
                let error = Error::corrupt("store metadata", 0, "V-1.5", what);
                self.tell_damaged_row("volume", name, &error);
            } else {
                self.store().hide_volume(name)?;
            }
        }
        // A volume whose row is lost may have a log, which a salvage needs.
        for volume_no in self.store().sync_logs()? {
            if !is_lost && !rows.iter().any(|(_, row)| row.volume_no == volume_no) {
                self.remove_sync_log(volume_no)?;
            }
        }
        let done = self.recover_rollbacks(&rows);
        self.tell_item(format_args!("a rollback is not completed"), done)?;
        for (name, row) in &rows {
            if layout::is_replaced_key(name) {
                let done = self.refuse_after_failure(|writer| {
                    writer.finish_volume_removal(name, row.volume_no)
                });
                self.tell_item(format_args!("a volume is not removed"), done)?;
            } else if !shown.contains(name) {
                // It is there before the row.
                let file = layout::volume(name);
                let what = format!("{file}: is missing, so that nobody finds the volume");
                let error = Error::corrupt("store", 0, "S-5.8", what);
                if self.is_check() {
                    self.add_damage(error);
                } else {
                    log::warn!("{error}: it is made again");
                }
                self.store().show_volume(name, &row.encode())?;
            }
        }
        Ok(())
    }
}

/// The row of extents in a row of a volume or of its snapshots, if it is one.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn extents_in<'a>(
    table: Table,
    key: &[u8],
    value: &'a [u8],
) -> Result<Option<&'a [u8]>> {
    if table == Table::Extents {
        return Ok(Some(value));
    }
    if table == Table::Kept && KeptKey::parse(key)?.table == Table::Extents.code() {
        return parse_kept(value);
    }
    Ok(None)
}

pub(crate) fn parse_extents(value: &[u8]) -> Result<ExtentsRow> {
    ExtentsRow::parse(value, limits::BLOCK_LEN_MAX as u32)
}
