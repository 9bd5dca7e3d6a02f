//! The check: recounts everything that the tables contain, and reads every byte on request.

use crate::disk::{Access, DiskFile};
use crate::layout;
use crate::segment::{NotedRecord, each_noted, read_record};
use crate::sync_log::DAMAGED_LOG_HINT;
use crate::writer::StoreWriter;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::container::RecordRef;
use weald_format::store::{
    BlockRow, ImageState, SEGMENT_SUPERBLOCK_LEN, SegmentRow, Uuid, check_segment_superblock,
};
use weald_format::sync_log::{DeltaItem, parse_body};
use weald_format::{Digest, Error, ErrorKind, Result};

/// A defect that the check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The image that cannot be read completely, if the defect affects one.
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

/// Contents of all tables, and the results so far.
#[derive(Default)]
struct State {
    blocks: BTreeMap<u64, BlockRow>,
    segments: BTreeMap<u64, SegmentRow>,
    /// Unreadable blocks, each with the reason.
    damaged: BTreeMap<u64, String>,
    /// Whether the references of at least one image could not be counted.
    is_map_missing: bool,
    checked: Checked,
}

impl State {
    fn find(&mut self, image: Option<&str>, what: impl Into<String>) {
        let finding = Finding {
            image: image.map(str::to_owned),
            what: what.into(),
        };
        self.checked.findings.push(finding);
    }
}

impl StoreWriter {
    /// Compares tables, maps, segments and sync logs with each other; with `reads_data` it also
    /// reads every record and verifies its digest. It needs the writer's lock and changes nothing.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if the tables cannot be read at all.
    ///
    /// # Cost
    /// About 150 bytes of memory per block. Reads all headers, or all bytes with `reads_data`.
    pub fn check(&self, reads_data: bool, tick: &mut dyn FnMut(&Checked)) -> Result<Checked> {
        let mut state = State::default();
        self.each_block(&mut |id, row| {
            state.blocks.insert(id, row);
            Ok(())
        })?;
        self.each_segment(&mut |number, row| {
            state.segments.insert(number, row);
            Ok(())
        })?;
        state.checked.block_count = state.blocks.len() as u64;
        state.checked.segment_count = state.segments.len() as u64;
        self.check_sync_logs(&mut state)?;
        self.check_segments(&mut state, reads_data, tick)?;
        let mut references = self.check_images(&mut state)?;
        self.check_extents(&mut state, &mut references)?;
        check_references(&mut state, &references);
        check_live_len(&mut state);
        self.check_files(&mut state)?;
        Ok(state.checked)
    }

    fn check_segments(
        &self,
        state: &mut State,
        reads_data: bool,
        tick: &mut dyn FnMut(&Checked),
    ) -> Result<()> {
        let mut by_segment: BTreeMap<u64, Vec<(u64, BlockRow)>> = BTreeMap::new();
        for (&id, row) in &state.blocks {
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
        state: &mut State,
        (number, row): (u64, SegmentRow),
        blocks: &[(u64, BlockRow)],
        reads_data: bool,
    ) -> Result<()> {
        let name = layout::segment(number);
        let lost = |state: &mut State, why: &str| {
            for (id, row) in blocks.iter().filter(|(_, row)| row.references > 0) {
                state
                    .damaged
                    .insert(*id, format!("{name}, byte {}: {why}", row.location.offset));
            }
        };
        let file = match self.store.disk.open(&name, Access::Read) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // After a crash a segment that received no record may have a row without a file.
                if row.len > SEGMENT_SUPERBLOCK_LEN as u64 && !row.is_emptied {
                    state.find(None, format!("{name}: the segment is missing"));
                    lost(state, "the segment is missing");
                }
                return Ok(());
            }
            other => other?,
        };
        if row.len <= SEGMENT_SUPERBLOCK_LEN as u64 && blocks.is_empty() {
            return Ok(());
        }
        let len = file.len()?;
        if len < row.len {
            state.find(
                None,
                format!("{name}: {len} bytes, {} were committed", row.len),
            );
        }
        let mut superblock = [0; SEGMENT_SUPERBLOCK_LEN];
        let read = file.read_at(&mut superblock, 0);
        let uuid = self.store.superblock.uuid;
        if let Err(error) = read.and_then(|()| check_segment_superblock(&superblock, uuid, number))
        {
            state.find(None, format!("{name}: {error}"));
        }
        let segment = (&*name, &*file, (uuid, number));
        check_blocks(state, segment, row.len.min(len), blocks, reads_data);
        Ok(())
    }

    /// Checks rows and maps of the images, and counts the references to each block in the maps.
    fn check_images(&self, state: &mut State) -> Result<BTreeMap<u64, u64>> {
        let mut references: BTreeMap<u64, u64> = BTreeMap::new();
        let mut known = BTreeSet::new();
        for (name, row) in self.image_rows()? {
            known.insert(name.clone());
            if row.state != ImageState::Present {
                state.find(None, format!("{name}: is half {:?}", row.state));
                continue;
            }
            state.checked.image_count += 1;
            let map = match self.store.map(&name) {
                Ok(map) => map,
                Err(error) => {
                    state.is_map_missing = true;
                    state.find(Some(&name), error.to_string());
                    continue;
                }
            };
            if Digest::of(&map.encode(self.store.superblock.uuid)) != row.map_digest {
                state.find(Some(&name), "its map is not the one that was committed");
            }
            for (id, location, record) in map.blocks() {
                *references.entry(id).or_default() += 1;
                let why = match state.blocks.get(&id) {
                    None => Some(format!("block {id} has no row")),
                    Some(row) if row.record != *record => Some(format!(
                        "block {id} is another one in the table than in the map"
                    )),
                    Some(row) if row.location != location => {
                        Some(format!("block {id} has moved, and the map does not say so"))
                    }
                    Some(_) => state.damaged.get(&id).cloned(),
                };
                if let Some(why) = why {
                    state.find(Some(&name), why);
                }
            }
        }
        for name in self
            .store
            .names()?
            .iter()
            .filter(|name| !known.contains(*name))
        {
            state.find(None, format!("{name}: its map has no row"));
        }
        Ok(references)
    }

    /// Counts the references to each block in the extents of volumes, and reports the blocks that
    /// cannot be read.
    fn check_extents(&self, state: &mut State, references: &mut BTreeMap<u64, u64>) -> Result<()> {
        let names = self.volume_rows()?;
        let names: BTreeMap<u32, String> = names
            .into_iter()
            .map(|(name, row)| (row.snapshot, name))
            .collect();
        self.each_piece(&mut |snapshot, ino, piece| {
            let name = names.get(&snapshot).map_or("", |name| name.as_str());
            let count = references.entry(piece.block).or_default();
            *count += 1;
            let why = match state.blocks.get(&piece.block) {
                None => Some(format!("block {} has no row", piece.block)),
                Some(row)
                    if row.record.raw_len < u64::from(piece.offset) + u64::from(piece.len) =>
                {
                    Some(format!("a piece ends behind block {}", piece.block))
                }
                Some(_) => state.damaged.get(&piece.block).cloned(),
            };
            if let Some(why) = why {
                state.find(Some(name), format!("inode {ino}: {why}"));
            }
            Ok(())
        })
    }

    /// Verifies the records of the sync logs whose changes the tables do not have.
    fn check_sync_logs(&self, state: &mut State) -> Result<()> {
        for (name, row) in self.volume_rows()? {
            let records = match self.read_sync_log(&row, &|log| log) {
                Ok(records) => records,
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    state.find(Some(&name), error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some(damage) = &records.damage {
                state.find(Some(&name), format!("{damage}: {DAMAGED_LOG_HINT}"));
            }
            for body in records.first.iter().chain(&records.second) {
                state.checked.log_record_count += 1;
                if let Err(error) = check_body(body, row.snapshot, &state.blocks) {
                    let count = state.checked.log_record_count;
                    let path = layout::sync_log(row.snapshot);
                    let what = format!("{path}: record {count}: {error}: {DAMAGED_LOG_HINT}");
                    state.find(Some(&name), what);
                }
            }
        }
        Ok(())
    }

    /// Reports files without a row.
    fn check_files(&self, state: &mut State) -> Result<()> {
        for name in self.store.disk.list(layout::SEGMENTS)? {
            let number = layout::segment_number(&name);
            if number.is_none_or(|number| !state.segments.contains_key(&number)) {
                state.find(
                    None,
                    format!("{}/{name}: no row knows this file", layout::SEGMENTS),
                );
            }
        }
        Ok(())
    }
}

/// Checks the headers in the first `end` bytes of a segment, and that each block has one.
fn check_blocks(
    state: &mut State,
    (name, file, identity): (&str, &dyn DiskFile, (Uuid, u64)),
    end: u64,
    blocks: &[(u64, BlockRow)],
    reads_data: bool,
) {
    let mut headers: BTreeMap<u64, NotedRecord> = BTreeMap::new();
    let walked = each_noted(file, identity, end, &mut |found| {
        headers.insert(found.offset, found);
        Ok(())
    });
    if let Err(error) = walked {
        state.find(None, format!("{name}: {error}"));
    }
    for (id, block) in blocks.iter().filter(|(_, block)| block.references > 0) {
        let at = block.location.offset;
        let found = headers.get(&at);
        let noted = found.and_then(|found| found.noted).map(|(_, noted)| noted);
        // Equal records have several blocks.
        let is_equal = |noted: &u64| {
            let other = state.blocks.get(noted);
            other.is_some_and(|other| other.record == block.record)
        };
        if let Some(noted) = noted.filter(|noted| noted != id && !is_equal(noted)) {
            let what = format!("{name}, byte {at}: a note calls block {id} block {noted}");
            state.find(None, what);
        }
        let why = match at.saturating_add(block.len()) > end {
            true => Some("lies behind the end of the segment".to_owned()),
            false => block_damage(file, block, found.map(|f| &f.record), reads_data),
        };
        match why {
            Some(why) => {
                state
                    .damaged
                    .insert(*id, format!("{name}, byte {at}: {why}"));
            }
            None if reads_data => state.checked.verified_len += block.len(),
            None => {}
        }
    }
}

/// Checks the changes of a record of the sync log: rows, ranges, and the blocks that it names.
fn check_body(body: &[u8], snapshot: u32, blocks: &BTreeMap<u64, BlockRow>) -> Result<()> {
    let bad = |what: String| Error::corrupt("sync log", 0, "V-6.6", what);
    parse_body(body, &mut |item| match item {
        DeltaItem::Row(table, key, value) => table.check_row(snapshot, key, value),
        DeltaItem::Block(ino, _, len, block, offset) => match blocks.get(&block) {
            None => Err(bad(format!("inode {ino}: block {block} has no row"))),
            Some(row) if row.record.raw_len < len.saturating_add(offset.into()) => Err(bad(
                format!("inode {ino}: a range ends behind block {block}"),
            )),
            Some(_) => Ok(()),
        },
        DeltaItem::Bytes(..) | DeltaItem::Hole(..) | DeltaItem::Drop(_) => Ok(()),
    })
    .map(drop)
}

fn block_damage(
    file: &dyn DiskFile,
    block: &BlockRow,
    header: Option<&RecordRef>,
    reads_data: bool,
) -> Option<String> {
    match header {
        None => Some("no record begins here".to_owned()),
        Some(header) if *header != block.record => {
            Some("another record lies here than the table says".to_owned())
        }
        Some(_) if !reads_data => None,
        Some(_) => {
            let read = read_record(file, block.location, &block.record);
            read.err().map(|error| error.to_string())
        }
    }
}

fn check_references(state: &mut State, references: &BTreeMap<u64, u64>) {
    for (id, row) in &state.blocks {
        let counted = references.get(id).copied().unwrap_or(0);
        // The missing references may be those of a map that cannot be read.
        let is_explained = state.is_map_missing && counted < row.references;
        if counted != row.references && !is_explained {
            let what = format!(
                "block {id}: the table has {} references, maps and volumes have {counted}",
                row.references
            );
            state.checked.findings.push(Finding { image: None, what });
        }
    }
}

fn check_live_len(state: &mut State) {
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    for row in state.blocks.values().filter(|row| row.references > 0) {
        *live.entry(row.location.segment).or_default() += row.len();
    }
    for (number, row) in &state.segments {
        let counted = live.get(number).copied().unwrap_or(0);
        if counted != row.live_len {
            let what = format!(
                "segment {number}: the table has {} live bytes, its blocks have {counted}",
                row.live_len
            );
            state.checked.findings.push(Finding { image: None, what });
        }
    }
}
