//! The records that the segments of a store have, also behind damaged headers, and whether the
//! blocks that something names can be read.

use super::read_past::ReadPast;
use crate::disk::{Access, Object};
use crate::layout::{self, ObjectKind};
use crate::segment::{self, read_note, read_record};
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::container::{HEADER_LEN, RECORD_MAGIC, RecordRef};
use weald_format::limits::BLOCK_LEN_MAX;
use weald_format::segment_note::SegmentItem;
use weald_format::store::{
    BlockRow, Location, SEGMENT_SUPERBLOCK_LEN, Uuid, check_segment_superblock,
};
use weald_format::{BlockId, CommitNo, Error, ErrorKind, Result, SegmentNo};

/// Bytes of a segment that are searched for a header at once.
const SEARCH_LEN: usize = 1 << 20;

/// A segment file.
#[derive(Debug, Default)]
pub struct Segment {
    /// Bytes up to the end of the last record.
    pub end: u64,
    /// Bytes of notes.
    pub notes_len: u64,
    /// Whether bytes are neither records nor notes.
    pub is_damaged: bool,
    /// Records by offset.
    pub records: BTreeMap<u64, RecordRef>,
    /// Numbers of blocks that notes give to records, with the commit, by offset.
    noted: BTreeMap<u64, (CommitNo, BlockId)>,
    /// The last commit that a note names.
    commit: CommitNo,
}

/// The segments of a store.
#[derive(Debug, Default)]
pub struct Segments {
    pub by_number: BTreeMap<SegmentNo, Segment>,
    /// Segments that cannot be opened.
    pub unreadable: BTreeSet<SegmentNo>,
    /// Locations of each record; the key is the digest.
    places: BTreeMap<[u8; 32], Vec<Location>>,
    /// Blocks by number as notes have them: commit, row.
    pub noted: BTreeMap<BlockId, (CommitNo, BlockRow)>,
    /// The last commit that a note names.
    pub commit: CommitNo,
    /// Numbers of the segments whose superblocks were written anew.
    pub renewed: Vec<SegmentNo>,
    /// Bytes of records that were read and compared with their digests.
    pub verified_len: u64,
}

impl Segments {
    /// Reads the headers of all records. A damaged superblock is written anew.
    ///
    /// # Errors
    /// `Io`.
    pub fn scan(store: &Store) -> Result<Self> {
        let mut segments = Self::default();
        for name in store.disk.list_objects(ObjectKind::Segment)? {
            let Some(number) = layout::segment_number(&name) else {
                continue;
            };
            let file = match segment::open(&*store.disk, number) {
                Err(error) if error.is_unreadable() => {
                    log::warn!("{error}");
                    segments.unreadable.insert(number);
                    continue;
                }
                other => ReadPast::new(other?),
            };
            let segment = scan(&file, (store.superblock.uuid, number))?;
            segments.commit = segments.commit.max(segment.commit);
            for (&offset, record) in &segment.records {
                let location = Location {
                    segment: number,
                    offset,
                };
                if let Some((commit, id)) = segment.noted.get(&offset).copied() {
                    let row = BlockRow {
                        location,
                        references: 0,
                        record: *record,
                    };
                    let noted = segments.noted.entry(id).or_insert((commit, row));
                    // A collection copied it.
                    if noted.0 < commit {
                        *noted = (commit, row);
                    }
                }
                segments
                    .places
                    .entry(record.digest.0)
                    .or_default()
                    .push(location);
            }
            if is_superblock_damaged(store, &file, number)? && !segment.records.is_empty() {
                segments.renewed.push(number);
            }
            segments.by_number.insert(number, segment);
        }
        Ok(segments)
    }

    /// Writes the superblocks anew that are damaged.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn renew_superblocks(&self, store: &Store) -> Result<()> {
        for &number in &self.renewed {
            let file = store
                .disk
                .open(&layout::segment_file(number), Access::Write)?;
            crate::segment::write_superblock(&*file, store.superblock.uuid, number)?;
            file.sync()?;
        }
        Ok(())
    }

    /// The record whose header lies at `location`.
    pub fn record_at(&self, location: Location) -> Option<&RecordRef> {
        let segment = self.by_number.get(&location.segment)?;
        segment.records.get(&location.offset)
    }

    /// Whether `row` names a record that is there, by its header.
    pub fn has(&self, row: &BlockRow) -> bool {
        self.record_at(row.location) == Some(&row.record)
    }

    /// Whether the space of `row` is its own: its segment is not there, or no other record lies in
    /// it. When the block goes, its space is freed.
    pub fn is_own_space(&self, row: &BlockRow) -> bool {
        let Some(segment) = self.by_number.get(&row.location.segment) else {
            return true;
        };
        let start = row.location.offset;
        let end = start.saturating_add(row.len());
        let mut within = segment.records.range(start..end);
        let before = segment.records.range(..start).next_back();
        let before_end = before.map_or(0, |(at, record)| end_of(*at, record));
        within.all(|(at, record)| *at == start && *record == row.record) && before_end <= start
    }

    /// Finds where the blocks `rows` can be read, which gets the new places. Returns why the others
    /// cannot. Without `reads_data`, only headers count.
    ///
    /// # Errors
    /// `Io`.
    pub fn locate(
        &mut self,
        store: &Store,
        rows: &mut BTreeMap<BlockId, BlockRow>,
        reads_data: bool,
    ) -> Result<BTreeMap<BlockId, String>> {
        let mut lost = BTreeMap::new();
        let order: BTreeSet<(Location, BlockId)> =
            rows.iter().map(|(id, row)| (row.location, *id)).collect();
        let mut open = Open::default();
        for (_, id) in order {
            let Some(row) = rows.get_mut(&id) else {
                continue;
            };
            match self.place_of(store, row, reads_data, &mut open)? {
                Ok(location) => {
                    row.location = location;
                    self.verified_len += u64::from(reads_data) * row.len();
                }
                Err(why) => drop(lost.insert(id, why)),
            }
        }
        Ok(lost)
    }

    fn place_of(
        &self,
        store: &Store,
        row: &BlockRow,
        reads_data: bool,
        open: &mut Open,
    ) -> Result<std::result::Result<Location, String>> {
        let others = self.places.get(&row.record.digest.0).into_iter().flatten();
        let others = others.filter(|place| **place != row.location);
        let mut why = None;
        for place in [&row.location].into_iter().chain(others) {
            let here = BlockRow {
                location: *place,
                ..*row
            };
            let damage = match (self.has(&here), self.by_number.contains_key(&place.segment)) {
                (_, false) => format!("{} is missing", layout::segment(place.segment)),
                (false, _) => {
                    let (segment, at) = (layout::segment(place.segment), place.offset);
                    format!("{segment}, byte {at}: the record is not there")
                }
                (true, _) if !reads_data => return Ok(Ok(*place)),
                (true, _) => match open.read(store, &here)? {
                    None => return Ok(Ok(*place)),
                    Some(damage) => damage,
                },
            };
            why.get_or_insert(damage);
        }
        Ok(Err(why.unwrap_or_else(|| {
            "the record is in no segment".to_owned()
        })))
    }
}

/// The segment that was read last.
#[derive(Default)]
struct Open(Option<(SegmentNo, Box<dyn Object>)>);

impl Open {
    /// Why the record of `row` cannot be read; `None` if it can.
    fn read(&mut self, store: &Store, row: &BlockRow) -> Result<Option<String>> {
        let number = row.location.segment;
        let name = layout::segment(number);
        if self.0.as_ref().is_none_or(|(open, _)| *open != number) {
            match segment::open(&*store.disk, number) {
                Err(error) if error.is_unreadable() => return Ok(Some(error.to_string())),
                other => self.0 = Some((number, other?)),
            }
        }
        let Some((_, file)) = &self.0 else {
            return Ok(None);
        };
        match read_record(&**file, row.location, &row.record) {
            Ok(_) => Ok(None),
            Err(error) => Ok(Some(format!(
                "{name}, byte {}: {}",
                row.location.offset,
                error.what()
            ))),
        }
    }
}

fn end_of(offset: u64, record: &RecordRef) -> u64 {
    RecordRef { offset, ..*record }.end()
}

fn is_superblock_damaged(store: &Store, file: &ReadPast, number: SegmentNo) -> Result<bool> {
    let mut superblock = [0; SEGMENT_SUPERBLOCK_LEN];
    if file.len()? < superblock.len() as u64 {
        return Ok(true);
    }
    file.read_at(&mut superblock, 0)?;
    match check_segment_superblock(&superblock, store.superblock.uuid, number) {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            // A segment of another store is no damage of this one.
            Ok(error.place().is_none_or(|place| place.rule != "S-2.4"))
        }
        other => other.map(|()| false),
    }
}

/// Walks over the records of a segment, and past damaged headers to the next one.
fn scan(file: &ReadPast, (uuid, number): (Uuid, SegmentNo)) -> Result<Segment> {
    let len = file.len()?;
    let mut at = SEGMENT_SUPERBLOCK_LEN as u64;
    let mut segment = Segment {
        end: at,
        ..Segment::default()
    };
    // Records since the last note or the last damage, which a note may be about.
    let mut waiting: Vec<u64> = Vec::new();
    let mut is_whole = true;
    while at.saturating_add(HEADER_LEN as u64) <= len {
        let mut header = [0; HEADER_LEN];
        file.read_at(&mut header, at)?;
        let item = match parsed(&header, at, len) {
            Some(item) => item,
            None => {
                segment.is_damaged = true;
                is_whole = false;
                match next_item(file, at + 1, len)? {
                    Some((found, item)) => {
                        at = found;
                        item
                    }
                    None => break,
                }
            }
        };
        match &item {
            SegmentItem::Block(record) => {
                let record = RecordRef {
                    offset: 0,
                    ..*record
                };
                segment.records.insert(at, record);
                waiting.push(at);
            }
            SegmentItem::Note { stored_len, digest } => {
                segment.notes_len += item.len();
                let place = Location {
                    segment: number,
                    offset: at,
                };
                if let Ok(note) = read_note(file.file(), uuid, place, (*stored_len, digest)) {
                    segment.commit = segment.commit.max(note.commit);
                    let is_known = is_whole && note.ids.len() == waiting.len();
                    for (at, id) in waiting.iter().zip(note.ids).filter(|_| is_known) {
                        segment.noted.insert(*at, (note.commit, id));
                    }
                }
                waiting.clear();
                is_whole = true;
            }
        }
        at += item.len();
        segment.end = at;
    }
    Ok(segment)
}

fn parsed(header: &[u8], at: u64, len: u64) -> Option<SegmentItem> {
    let item = SegmentItem::parse(header, at).ok()?;
    let is_within = item.len() <= BLOCK_LEN_MAX * 2 && at.saturating_add(item.len()) <= len;
    is_within.then_some(item)
}

/// The first header from byte `start` on.
fn next_item(file: &ReadPast, start: u64, len: u64) -> Result<Option<(u64, SegmentItem)>> {
    let mut at = start;
    let mut bytes = vec![0; SEARCH_LEN];
    while at.saturating_add(HEADER_LEN as u64) <= len {
        let count = (len - at).min(SEARCH_LEN as u64) as usize;
        let bytes = bytes.get_mut(..count).ok_or_else(too_long)?;
        file.read_at(bytes, at)?;
        let starts = bytes.windows(HEADER_LEN).enumerate();
        let mut starts = starts.filter(|(_, bytes)| bytes.starts_with(&RECORD_MAGIC));
        let found = starts.find_map(|(no, bytes)| {
            let at = at + no as u64;
            Some((at, parsed(bytes, at, len)?))
        });
        if found.is_some() {
            return Ok(found);
        }
        at += (count - HEADER_LEN + 1) as u64;
    }
    Ok(None)
}

fn too_long() -> Error {
    Error::invalid("a buffer that is too short")
}
