//! The check: recounts everything that the tables contain, and reads every byte on request.

mod counts;
mod damage;
mod extents;

use crate::disk::{Access, LocalFile, LocalFiles, Object, ReadOnlyDisk};
use crate::engine::redb::verify_pages;
use crate::engine::{Table, VisitRow, number_of, sum_of_rows};
use crate::layout;
use crate::named_rows::NamedRows;
use crate::segment;
use crate::store::{ENGINE_CACHE_LEN, Store};
use crate::sync_log::{DAMAGED_LOG_HINT, REPAIRED_LOG_HINT};
use crate::volume::NEXT_VOLUME_NO;
use crate::writer::{self, StoreWriter, WriteOptions, counter};
pub(crate) use counts::{WrongNote, wrong_in_map, wrong_live_lens, wrong_notes, wrong_references};
pub(crate) use damage::why_unopened;
use damage::{RawLen, check_body, damaged_rows, unreadable_row, unreadable_table, why_damaged};
pub(crate) use extents::Extents;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::store::{
    BlockRow, ImageRow, ImageState, Location, SEGMENT_SUPERBLOCK_LEN, SegmentRow,
    check_segment_superblock,
};
use weald_format::volume::VolumeRow;
use weald_format::{BlockId, Digest, ErrorKind, Result, SegmentNo, VolumeNo};

/// A defect that the check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The image or volume that cannot be read completely, if the defect affects one.
    pub image: Option<String>,
    /// Description of the defect.
    pub what: String,
}

/// Results of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checked {
    /// Number of images.
    pub image_count: u64,
    /// Number of blocks.
    pub block_count: u64,
    /// Number of segments.
    pub segment_count: u64,
    /// Number of records of sync logs that wait for a commit.
    pub log_record_count: u64,
    /// Bytes of records that were read and compared with their digests.
    pub verified_len: u64,
    /// Defects; the check changes nothing in the store.
    pub findings: Vec<Finding>,
}

/// What a check knows of blocks.
#[derive(Debug, Default)]
pub struct BlockStates {
    blocks: BTreeMap<BlockId, BlockRow>,
    /// Unreadable blocks, each with the reason.
    damaged: BTreeMap<BlockId, String>,
    /// Bytes of records that were read and compared with their digests.
    pub verified_len: u64,
}

impl BlockStates {
    /// Why the first `end` decoded bytes of block `id` cannot be read; `None` if they can.
    pub fn why_unreadable(&self, id: BlockId, end: u64) -> Option<String> {
        match self.blocks.get(&id) {
            None => Some(format!("block {id} has no row")),
            Some(row) if row.record.raw_len < end => {
                Some(format!("a piece ends behind block {id}"))
            }
            Some(_) => self.damaged.get(&id).cloned(),
        }
    }
}

/// A segment and its length, or why it cannot be read.
type OpenedSegment = std::result::Result<(Box<dyn LocalFile>, u64), String>;

/// Contents of all tables, and the results so far.
#[derive(Default)]
struct CheckState {
    of_blocks: BlockStates,
    segments: BTreeMap<SegmentNo, SegmentRow>,
    volumes: Vec<(String, VolumeRow)>,
    /// Rows of images that can be read, and the names of the others.
    images: Vec<(String, ImageRow)>,
    damaged_images: BTreeSet<String>,
    /// Whether the references of at least one image or volume could not be counted.
    is_count_partial: bool,
    /// Whether rows of blocks cannot be read, so that segments have live bytes of no block.
    is_block_missing: bool,
    checked: Checked,
    /// Defects of files of volumes, which a check of the volume names by path.
    of_files: Vec<Finding>,
}

impl CheckState {
    fn find(&mut self, image: Option<&str>, what: impl Into<String>) {
        let finding = Finding {
            image: image.map(str::to_owned),
            what: what.into(),
        };
        self.checked.findings.push(finding);
    }
}

impl Store {
    /// Opens the store for [`StoreWriter::check`]: nothing of it changes. What a writer would
    /// complete of an interrupted operation is completed in memory, and damage on which a writer
    /// gives up is a finding.
    ///
    /// # Errors
    /// `Busy` while the store is being written; `Corrupt` if the tables cannot be opened; `Io`.
    pub fn write_for_check(&self, writer_name: impl Into<String>) -> Result<StoreWriter> {
        let in_memory = Self {
            disk: Arc::new(ReadOnlyDisk::new(self.disk.clone())),
            superblock: self.superblock,
        };
        let options = WriteOptions::new(writer_name);
        match in_memory.open_writer(options.clone(), true) {
            // The memory has a limit, and a writer would complete the same.
            Err(error) if error.kind() == ErrorKind::Limit && !self.disk.is_in_memory() => {
                self.open_writer(options, true)
            }
            other => other,
        }
    }
}

impl StoreWriter {
    /// Compares tables, maps, segments and sync logs with each other; with `reads_data` it also
    /// reads every record and verifies its digest. Damaged rows are findings, and the check goes
    /// on. It needs the writer's lock and changes nothing.
    ///
    /// # Errors
    /// `Io`.
    ///
    /// # Cost
    /// About 150 bytes of memory per block. Reads the tables three times, and all headers, or all
    /// bytes with `reads_data`.
    pub fn check(&self, reads_data: bool, tick: &mut dyn FnMut(&Checked)) -> Result<Checked> {
        let state = self.check_state(reads_data, tick)?;
        let mut checked = state.checked;
        checked.findings.extend(state.of_files);
        Ok(checked)
    }

    /// As [`StoreWriter::check`], without the blocks that files of volumes lack: the second result
    /// tells a check of the rows of each volume.
    ///
    /// # Errors
    /// As [`StoreWriter::check`].
    pub fn check_store(
        &self,
        reads_data: bool,
        tick: &mut dyn FnMut(&Checked),
    ) -> Result<(Checked, BlockStates)> {
        let state = self.check_state(reads_data, tick)?;
        Ok((state.checked, state.of_blocks))
    }

    fn check_state(&self, reads_data: bool, tick: &mut dyn FnMut(&Checked)) -> Result<CheckState> {
        let mut state = CheckState::default();
        self.read_images(&mut state)?;
        self.read_volumes(&mut state)?;
        for error in self.damage() {
            state.find(None, error.what());
        }
        if let Some(damage) = self.check_pages()? {
            state.find(None, damage);
        }
        self.check_journal(&mut state)?;
        self.read_rows(&mut state)?;
        state.checked.block_count = state.of_blocks.blocks.len() as u64;
        state.checked.segment_count = state.segments.len() as u64;
        self.check_sync_logs(&mut state)?;
        self.check_segments(&mut state, reads_data, tick)?;
        let mut references = BTreeMap::new();
        self.check_images(&mut state, &mut references)?;
        self.check_extents(&mut state, &mut references)?;
        let of = &state.of_blocks.blocks;
        let mut wrong = wrong_references(of, &references, state.is_count_partial);
        wrong.append(&mut wrong_live_lens(
            of,
            &state.segments,
            state.is_block_missing,
        ));
        wrong.into_iter().for_each(|what| state.find(None, what));
        self.check_counters(&mut state)?;
        self.check_files(&mut state)?;
        Ok(state)
    }

    /// Compares the journal with the tables, and the sum of the tables with their rows.
    fn check_journal(&self, state: &mut CheckState) -> Result<()> {
        let tables = self.tables_state()?;
        let is_sum = match sum_of_rows(self.tables()) {
            // What cannot be read is told elsewhere.
            Err(error) if error.is_unreadable() => true,
            sum => sum? == tables.sum,
        };
        if !is_sum {
            let shown = self.store().shown();
            state.find(
                None,
                format!(
                    "{}: the rows are not those that were written: 'weald store salvage {shown}' \
                     makes them again from the journal",
                    layout::META
                ),
            );
        }
        if let Some(error) = self.journal().verify(tables)? {
            let shown = self.store().shown();
            state.find(
                None,
                format!(
                    "{error}: the metadata is there once only, without its journal: 'weald store \
                     salvage {shown}' makes the journal again"
                ),
            );
        }
        for finding in self.store().damaged_state_files()? {
            state.find(None, finding);
        }
        Ok(())
    }

    /// What is wrong with the pages of the tables, which no reader verifies; `None` if nothing is.
    ///
    /// # Errors
    /// `Io`.
    pub fn check_pages(&self) -> Result<Option<String>> {
        let disk = ReadOnlyDisk::new(self.store().disk.clone());
        let file = disk.open(layout::META, Access::Write)?;
        let shown = format!("{}/{}", self.store().shown(), layout::META);
        match verify_pages(Arc::from(file), &shown, ENGINE_CACHE_LEN) {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Some(error.what().to_owned())),
            other => other.map(|()| None),
        }
    }

    /// Reads the rows of blocks, segments and volumes.
    fn read_rows(&self, state: &mut CheckState) -> Result<()> {
        let mut blocks = BTreeMap::new();
        let is_whole = self.each_readable(state, Table::Blocks, &mut |key, value| {
            if let Some(id) = number_of(key).map(BlockId) {
                blocks.insert(id, BlockRow::parse(value)?);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        state.of_blocks.blocks = blocks;
        state.is_block_missing = !is_whole;
        let mut segments = BTreeMap::new();
        self.each_readable(state, Table::Segments, &mut |key, value| {
            if let Some(number) = number_of(key).map(SegmentNo) {
                segments.insert(number, SegmentRow::parse(value)?);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        state.segments = segments;
        Ok(())
    }

    /// The rows of a table whose keys are names; none of a table that cannot be read.
    fn readable_rows<R>(
        &self,
        state: &mut CheckState,
        table: Table,
        parse: fn(&[u8]) -> Result<R>,
    ) -> Result<NamedRows<R>> {
        match self.named_rows(table, parse) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                state.is_count_partial = true;
                state.find(None, unreadable_table(table, &error));
                Ok(NamedRows {
                    rows: Vec::new(),
                    damaged: Vec::new(),
                })
            }
            other => other,
        }
    }

    /// Reads the rows of images.
    fn read_images(&self, state: &mut CheckState) -> Result<()> {
        let found = self.readable_rows(state, Table::Images, ImageRow::parse)?;
        for (name, error) in found.damaged {
            state.is_count_partial = true;
            state.find(Some(&name), unreadable_row(Table::Images, &error));
            state.damaged_images.insert(name);
        }
        state.images = found.rows;
        Ok(())
    }

    /// Reads the rows of volumes.
    fn read_volumes(&self, state: &mut CheckState) -> Result<()> {
        let found = self.readable_rows(state, Table::Volumes, VolumeRow::parse)?;
        let mut damaged = BTreeSet::new();
        for (name, error) in found.damaged {
            state.is_count_partial = true;
            state.find(Some(&name), unreadable_row(Table::Volumes, &error));
            damaged.insert(name);
        }
        let mut volumes = found.rows;
        volumes.retain(|(name, _)| !layout::is_replaced_key(name));
        let shown: BTreeSet<String> = self.store().volume_names()?.into_iter().collect();
        for (name, _) in volumes.iter().filter(|(name, _)| !shown.contains(name)) {
            state.find(Some(name), "the file in volumes/ that shows it is missing");
        }
        for name in shown.iter().filter(|name| !damaged.contains(*name)) {
            if !volumes.iter().any(|(known, _)| known == name) {
                state.is_count_partial = true;
                state.find(Some(name), "the volume has no row");
            }
        }
        state.volumes = volumes;
        Ok(())
    }

    /// Visits the rows of a table that can be read; the others are findings. Returns whether there
    /// are none.
    fn each_readable(
        &self,
        state: &mut CheckState,
        table: Table,
        visit: &mut VisitRow<'_>,
    ) -> Result<bool> {
        let (mut damage, mut unparsed) = (Vec::new(), Vec::new());
        let read = self.tables().scan_readable(
            table,
            &[],
            &mut |key, value| match visit(key, value) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    unparsed.push((key.to_vec(), error));
                    Ok(ControlFlow::Continue(()))
                }
                other => other,
            },
            &mut |key, error| {
                damage.push((key.to_vec(), error));
                Ok(())
            },
        );
        damage.append(&mut unparsed);
        for (key, error) in &damage {
            let what = damaged_rows(table, key, error, &state.volumes);
            state.find(None, what);
        }
        match read {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                state.find(None, unreadable_table(table, &error));
                Ok(false)
            }
            other => other.map(|()| damage.is_empty()),
        }
    }

    /// Checks that numbers are not given away twice.
    fn check_counters(&self, state: &mut CheckState) -> Result<()> {
        let last_image = state.images.iter().map(|(_, row)| row.image_no).max();
        let last_volume = state
            .volumes
            .iter()
            .map(|(_, row)| row.volume_no.into())
            .max();
        let last = [
            (
                writer::NEXT_BLOCK,
                state.of_blocks.blocks.keys().next_back().map(|id| id.0),
            ),
            (
                writer::NEXT_SEGMENT,
                state.segments.keys().next_back().map(|number| number.0),
            ),
            (writer::NEXT_IMAGE, last_image.map(|number| number.0)),
            (NEXT_VOLUME_NO, last_volume),
        ];
        for (key, last) in last {
            let name = String::from_utf8_lossy(key).into_owned();
            match counter(self.tables(), key) {
                Ok(next) if last.is_none_or(|last| last < next) => {}
                Ok(next) => state.find(None, format!("counter {name}: {next} is in use already")),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    state.find(None, format!("counter {name}: {error}"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What a check of these blocks finds; with `reads_data` it reads each record and verifies its
    /// digest, otherwise only its header.
    ///
    /// # Errors
    /// `Io`.
    pub fn check_blocks(&self, ids: &BTreeSet<BlockId>, reads_data: bool) -> Result<BlockStates> {
        let mut states = BlockStates::default();
        let mut by_place: BTreeMap<Location, BlockId> = BTreeMap::new();
        for &id in ids {
            match self.find_block_row(id) {
                Ok(Some(row)) => {
                    by_place.insert(row.location, id);
                    states.blocks.insert(id, row);
                }
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                Err(error) => return Err(error),
            }
        }
        let mut open: Option<(SegmentNo, OpenedSegment)> = None;
        for (Location { segment, offset }, id) in by_place {
            let name = layout::segment_file(segment);
            if open.as_ref().is_none_or(|(number, _)| *number != segment) {
                open = Some((segment, self.open_to_check(segment)?));
            }
            let (Some(row), Some((_, opened))) = (states.blocks.get(&id), &open) else {
                continue;
            };
            let (file, len) = match opened {
                Ok((file, len)) => (&**file, *len),
                Err(why) => {
                    states.damaged.insert(id, format!("{name}: {why}"));
                    continue;
                }
            };
            match why_damaged(file, len, row, reads_data) {
                Some(why) => {
                    let why = format!("{name}, byte {offset}: {why}");
                    states.damaged.insert(id, why);
                }
                None if reads_data => states.verified_len += row.len(),
                None => {}
            }
        }
        Ok(states)
    }

    /// Opens a segment. `Io` if the caller may not open it.
    fn open_to_check(&self, number: SegmentNo) -> Result<OpenedSegment> {
        let opened = segment::open_unnoted(&*self.store().disk, number);
        match opened.and_then(|file| file.len().map(|len| (file, len))) {
            Ok(opened) => Ok(Ok(opened)),
            Err(error) => why_unopened(error).map(Err),
        }
    }

    fn check_segments(
        &self,
        state: &mut CheckState,
        reads_data: bool,
        tick: &mut dyn FnMut(&Checked),
    ) -> Result<()> {
        let mut by_segment: BTreeMap<SegmentNo, Vec<(BlockId, BlockRow)>> = BTreeMap::new();
        for (&id, row) in &state.of_blocks.blocks {
            by_segment
                .entry(row.location.segment)
                .or_default()
                .push((id, *row));
        }
        for number in by_segment
            .keys()
            .filter(|number| !state.segments.contains_key(number))
        {
            let what = format!("blocks lie in segment {number}, which has no row");
            state.checked.findings.push(Finding { image: None, what });
        }
        for (number, row) in state.segments.clone() {
            let blocks = by_segment.remove(&number).unwrap_or_default();
            self.check_segment(state, (number, row), &blocks, reads_data)?;
            tick(&state.checked);
        }
        Ok(())
    }

    fn check_segment(
        &self,
        state: &mut CheckState,
        (number, row): (SegmentNo, SegmentRow),
        blocks: &[(BlockId, BlockRow)],
        reads_data: bool,
    ) -> Result<()> {
        let name = layout::segment_file(number);
        let lost = |state: &mut CheckState, why: &str| {
            for (id, row) in blocks.iter().filter(|(_, row)| row.references > 0) {
                state
                    .of_blocks
                    .damaged
                    .insert(*id, format!("{name}, byte {}: {why}", row.location.offset));
            }
        };
        let (file, len) = match self.open_to_check(number)? {
            Ok(opened) => opened,
            Err(why) => {
                // After a crash a segment that received no record may have a row without a file.
                let is_needed = row.live_len > 0 && !row.is_emptied;
                if row.len > SEGMENT_SUPERBLOCK_LEN as u64 && is_needed {
                    state.find(None, format!("{name}: {why}"));
                    lost(state, &why);
                }
                return Ok(());
            }
        };
        if row.len <= SEGMENT_SUPERBLOCK_LEN as u64 && blocks.is_empty() {
            return Ok(());
        }
        // All of it would be fetched.
        if !reads_data && self.is_far(number) {
            if let Err(error) = file.confirm() {
                state.find(None, format!("{name}: {error}"));
                lost(state, &error.to_string());
            }
            return Ok(());
        }
        if len < row.len && row.live_len > 0 {
            state.find(
                None,
                format!("{name}: {len} bytes, {} were committed", row.len),
            );
        }
        let mut superblock = [0; SEGMENT_SUPERBLOCK_LEN];
        let read = file.read_at(&mut superblock, 0);
        let uuid = self.store().superblock.uuid;
        if let Err(error) = read.and_then(|()| check_segment_superblock(&superblock, uuid, number))
        {
            state.find(None, format!("{name}: {error}"));
        }
        let end = row.len.min(len);
        let of = &state.of_blocks.blocks;
        let wrong = wrong_notes((&*file, (uuid, number)), end, blocks, &|id| {
            Ok(of.get(&id).copied())
        })?;
        for wrong in wrong {
            state.find(None, wrong.what(number));
        }
        check_blocks(state, (&name, &*file), end, blocks, reads_data);
        Ok(())
    }

    /// Checks rows and maps of the images, and counts the references to each block in the maps.
    fn check_images(
        &self,
        state: &mut CheckState,
        references: &mut BTreeMap<BlockId, u64>,
    ) -> Result<()> {
        let mut known = std::mem::take(&mut state.damaged_images);
        for (name, row) in std::mem::take(&mut state.images) {
            known.insert(name.clone());
            if row.state != ImageState::Present {
                state.find(None, format!("{name}: is half {:?}", row.state));
                continue;
            }
            state.checked.image_count += 1;
            let map = match self.store().map(&name) {
                Ok(map) => map,
                Err(error) => {
                    state.is_count_partial = true;
                    state.find(Some(&name), error.to_string());
                    continue;
                }
            };
            if Digest::of(&map.encode(self.store().superblock.uuid)) != row.map_digest {
                state.find(Some(&name), "its map is not the one that was committed");
            }
            let mut without_row: Vec<BlockId> = Vec::new();
            for (id, location, record) in map.blocks() {
                *references.entry(id).or_default() += 1;
                let Some(row) = state.of_blocks.blocks.get(&id) else {
                    without_row.push(id);
                    continue;
                };
                let why = wrong_in_map(id, row, location, record)
                    .or_else(|| state.of_blocks.damaged.get(&id).cloned());
                if let Some(why) = why {
                    state.find(Some(&name), why);
                }
            }
            if let Some(first) = without_row.first() {
                let what = match without_row.len() {
                    1 => format!("block {first} has no row"),
                    count => format!("{count} blocks have no row, the first is block {first}"),
                };
                state.find(Some(&name), what);
            }
        }
        for name in self
            .store()
            .names_of_maps()?
            .iter()
            .filter(|name| !known.contains(*name))
        {
            state.is_count_partial = true;
            state.find(Some(name), "its map has no row");
        }
        Ok(())
    }

    /// Counts the references to each block of volumes and their snapshots, and finds the blocks
    /// that cannot be read.
    fn check_extents(
        &self,
        state: &mut CheckState,
        references: &mut BTreeMap<BlockId, u64>,
    ) -> Result<()> {
        let names: BTreeMap<VolumeNo, String> = state
            .volumes
            .iter()
            .map(|(name, row)| (row.volume_no, name.clone()))
            .collect();
        let of_blocks = &state.of_blocks;
        let found = Extents::read(self.tables(), &|id, end| of_blocks.why_unreadable(id, end))?;
        for (id, count) in found.references {
            *references.entry(id).or_default() += count;
        }
        state.is_count_partial |= !found.is_whole;
        let finding = |(volume_no, what)| Finding {
            image: Some(names.get(&volume_no).cloned().unwrap_or_default()),
            what,
        };
        state.of_files = found.of_files.into_iter().map(finding).collect();
        let of_snapshots = found.of_snapshots.into_iter().map(finding);
        state.checked.findings.extend(of_snapshots);
        Ok(())
    }

    /// Verifies the records of the sync logs whose changes the tables do not have.
    fn check_sync_logs(&self, state: &mut CheckState) -> Result<()> {
        for (name, row) in state.volumes.clone() {
            let blocks = &state.of_blocks.blocks;
            let raw_len = |id: BlockId| Ok(blocks.get(&id).map(|row| row.record.raw_len));
            match self.check_log(&row, &raw_len) {
                Ok(log) => {
                    state.checked.log_record_count += log.record_count;
                    for what in log.findings() {
                        state.find(Some(&name), what);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    state.find(Some(&name), error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Verifies the records of the sync log of the volume with this row whose changes the tables do
    /// not have.
    ///
    /// # Errors
    /// `Unsupported`, `Io`.
    pub fn check_sync_log(&self, row: &VolumeRow) -> Result<CheckedLog> {
        self.check_log(row, &|id| match self.find_block_row(id) {
            Ok(row) => Ok(row.map(|row| row.record.raw_len)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(None),
            Err(error) => Err(error),
        })
    }

    fn check_log(&self, row: &VolumeRow, raw_len: &RawLen<'_>) -> Result<CheckedLog> {
        let records = self.read_sync_log(row, &|log| log)?;
        let damage = records.damage.iter();
        let damage = damage.map(|what| format!("{what}: {DAMAGED_LOG_HINT}"));
        let repaired = records.repaired.iter();
        let repaired = repaired.map(|what| format!("{what}: {REPAIRED_LOG_HINT}"));
        let mut checked = CheckedLog {
            record_count: 0,
            lost: damage.collect(),
            repaired: repaired.collect(),
        };
        for body in records.first.iter().chain(&records.second) {
            checked.record_count += 1;
            match check_body(body, row.volume_no, raw_len) {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let path = layout::sync_log(row.volume_no);
                    let no = checked.record_count;
                    let what = format!("{path}: record {no}: {error}: {DAMAGED_LOG_HINT}");
                    checked.lost.push(what);
                }
                other => other?,
            }
        }
        Ok(checked)
    }

    /// Reports files without a row.
    fn check_files(&self, state: &mut CheckState) -> Result<()> {
        // A standby keeps them for readers.
        let is_standby = self.store().role()? == crate::role::Role::Standby;
        let disk = &*self.store().disk;
        for name in disk.list(layout::SEGMENTS)? {
            let number = layout::segment_number(&name);
            // The next writer removes what a tier has kept.
            let is_away = || !disk.is_at_home(&format!("{}/{name}", layout::SEGMENTS));
            let may_stay = |number| is_standby || state.segments.contains_key(&number) || is_away();
            if !number.is_some_and(may_stay) {
                state.find(
                    None,
                    format!("{}/{name}: no row knows this file", layout::SEGMENTS),
                );
            }
        }
        Ok(())
    }
}

/// What a check finds of a sync log, each with what to do about it.
#[derive(Debug, Default)]
pub struct CheckedLog {
    /// Records whose changes the tables do not have.
    pub record_count: u64,
    /// Damage that costs synced changes.
    pub lost: Vec<String>,
    /// Damage that costs nothing.
    pub repaired: Vec<String>,
}

impl CheckedLog {
    /// All that is wrong.
    pub fn findings(self) -> impl Iterator<Item = String> {
        self.lost.into_iter().chain(self.repaired)
    }
}

/// Checks that each block in use begins with its header in the first `end` bytes of a segment. What
/// lies between them belongs to nobody.
fn check_blocks(
    state: &mut CheckState,
    (name, file): (&str, &dyn Object),
    end: u64,
    blocks: &[(BlockId, BlockRow)],
    reads_data: bool,
) {
    for (id, block) in blocks.iter().filter(|(_, block)| block.references > 0) {
        match why_damaged(file, end, block, reads_data) {
            Some(why) => {
                let at = block.location.offset;
                let why = format!("{name}, byte {at}: {why}");
                state.of_blocks.damaged.insert(*id, why);
            }
            None if reads_data => state.checked.verified_len += block.len(),
            None => {}
        }
    }
}
