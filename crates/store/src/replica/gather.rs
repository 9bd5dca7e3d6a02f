//! The bytes that a state of the tables needs: ranges of segments, and the maps of images.

use super::place::{Place, data_path};
use super::rows::put_data;
use crate::disk::Object;
use crate::engine::{Table, number_of};
use crate::faults::{Bug, Faults};
use crate::layout;
use crate::segment::{self, read_record};
use crate::store::{Store, is_bad_or_missing};
use std::collections::{BTreeMap, BTreeSet};
use weald_format::container::RecordRef;
use weald_format::replica::{DataFile, DataKind, Lacking, pack_segment};
use weald_format::store::{BlockRow, ImageRow, ImageState, Location, MAP_LEN_MAX, SegmentRow};
use weald_format::{Digest, Error, Result, SegmentNo};

/// Bytes of a segment in one file of data, unless a record goes on behind them.
const PART_LEN: u64 = 16 << 20;
/// Bytes that are read at once where the disk cannot read all.
const PAGE_LEN: usize = 4096;

/// What has to be sent for rows.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Length of each segment whose row changed, without those of which nothing is needed.
    pub segments: BTreeMap<SegmentNo, u64>,
    /// Segments that are gone.
    pub removed: BTreeSet<SegmentNo>,
    /// Records by segment and offset.
    records: BTreeMap<SegmentNo, BTreeMap<u64, RecordRef>>,
    /// Rows of images by key.
    pub images: Vec<(String, ImageRow)>,
}

impl Wanted {
    /// Adds a row that changed. `there` has the bytes of each segment that the place has.
    pub fn add(
        &mut self,
        table: Table,
        (key, value): (&[u8], Option<&[u8]>),
        there: &BTreeMap<SegmentNo, u64>,
    ) -> Result<()> {
        match (table, value) {
            (Table::Blocks, Some(value)) => {
                let BlockRow {
                    location, record, ..
                } = BlockRow::parse(value)?;
                if location.offset >= there.get(&location.segment).copied().unwrap_or(0) {
                    let of_segment = self.records.entry(location.segment).or_default();
                    of_segment.insert(location.offset, record);
                }
            }
            (Table::Segments, value) => {
                let number = number_of(key).map(SegmentNo).ok_or_else(|| {
                    let what = "a key of table segments has not eight bytes";
                    Error::corrupt("store metadata", 0, "S-5.2", what)
                })?;
                match value.map(SegmentRow::parse).transpose()? {
                    // Its blocks lie elsewhere, and a writer that opens the store says so in maps.
                    Some(row) if row.is_emptied => {}
                    Some(row) => drop(self.segments.insert(number, row.len)),
                    None => drop(self.removed.insert(number)),
                }
            }
            (Table::Images, Some(value)) => {
                let name = String::from_utf8_lossy(key).into_owned();
                let row = ImageRow::parse(value)?;
                if needs_map(&row) {
                    self.images.push((name, row));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Records that have to be sent, by segment and offset.
    pub fn records(&self, number: SegmentNo) -> &BTreeMap<u64, RecordRef> {
        const NONE: &BTreeMap<u64, RecordRef> = &BTreeMap::new();
        self.records.get(&number).unwrap_or(NONE)
    }
}

/// Whether an image needs its map: to be shown, or to drop the references that it has.
pub(super) fn needs_map(row: &ImageRow) -> bool {
    row.state == ImageState::Present || row.counted_parts > 0
}

/// Bytes of a segment in memory.
#[derive(Debug)]
pub(super) struct SegmentPart {
    pub offset: u64,
    pub bytes: Vec<u8>,
}

impl SegmentPart {
    /// Bytes of the segment; none if they are not all in this part.
    pub fn range(&self, offset: u64, len: u64) -> &[u8] {
        let from = offset.checked_sub(self.offset).map(|from| from as usize);
        let range = from.and_then(|from| Some(from..from.checked_add(len as usize)?));
        range
            .and_then(|range| self.bytes.get(range))
            .unwrap_or_default()
    }
}

impl Object for SegmentPart {
    fn len(&self) -> Result<u64> {
        Ok(self.offset + self.bytes.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let bytes = self.range(offset, buf.len() as u64);
        if bytes.len() == buf.len() {
            buf.copy_from_slice(bytes);
            return Ok(());
        }
        let what = "a record goes on behind its segment";
        Err(Error::corrupt("segment", offset, "S-2.5", what))
    }
}

/// Sends bytes, and collects what the store cannot read itself.
#[derive(Debug)]
pub(super) struct Gatherer<'a> {
    pub store: &'a Store,
    pub place: &'a dyn Place,
    pub faults: Faults<Bug>,
    /// Digests of files that need not be put again.
    pub there: BTreeSet<[u8; 32]>,
    pub files: Vec<DataFile>,
    pub lacking: Vec<Lacking>,
    /// What cannot be read, for messages.
    pub damage: Vec<String>,
    /// Bytes that were put.
    pub sent_len: u64,
}

impl Gatherer<'_> {
    fn put(&mut self, kind: DataKind, bytes: &[u8]) -> Result<()> {
        let digest = Digest::of(bytes);
        let is_there =
            self.there.contains(&digest.0) && self.place.is_there(&data_path(&digest))?;
        let file = if is_there {
            DataFile {
                kind,
                digest,
                file_len: bytes.len() as u64,
            }
        } else {
            self.sent_len += bytes.len() as u64;
            match put_data(self.place, kind, bytes) {
                Err(_) if self.faults.has(Bug::DataUnacknowledged) => return Ok(()),
                done => done?,
            }
        };
        self.files.push(file);
        Ok(())
    }

    fn lacks(&mut self, number: SegmentNo, (offset, len): (u64, u64), error: &Error) {
        self.lacking.push(Lacking {
            number,
            offset,
            len,
        });
        self.damage.push(format!(
            "{}, bytes {offset} to {}: {error}",
            layout::segment(number),
            offset.saturating_add(len)
        ));
    }

    /// Sends the bytes `from..to` of a segment. Each record in `records` must be whole.
    ///
    /// # Errors
    /// Those of the place.
    pub fn segment(
        &mut self,
        number: SegmentNo,
        (from, to): (u64, u64),
        records: &BTreeMap<u64, RecordRef>,
    ) -> Result<()> {
        let object = match segment::open(&*self.store.disk, number) {
            Err(error) if is_bad_or_missing(&error) => {
                self.lacks(number, (from, to.saturating_sub(from)), &error);
                return Ok(());
            }
            other => other?,
        };
        let mut at = from;
        while at < to {
            let mut end = at.saturating_add(PART_LEN).min(to);
            // No record is divided: each part can be verified alone.
            for (offset, record) in records.range(at..end).rev().take(1) {
                let record_end = offset.saturating_add(record_len(record));
                end = end.max(record_end).min(to);
            }
            let part = SegmentPart {
                offset: at,
                bytes: read_range(&*object, at, end)?,
            };
            for (offset, record) in records.range(at..end) {
                let location = Location {
                    segment: number,
                    offset: *offset,
                };
                if let Err(error) = read_record(&part, location, record) {
                    self.lacks(number, (*offset, record_len(record)), &error);
                }
            }
            let kind = DataKind::Segment {
                number,
                offset: at,
                len: end - at,
            };
            self.put(kind, &pack_segment(&part.bytes))?;
            at = end;
        }
        Ok(())
    }

    /// Sends the map that belongs to the row of an image. Returns whether it is there.
    ///
    /// # Errors
    /// Those of the place.
    pub fn map(&mut self, key: &str, row: &ImageRow) -> Result<bool> {
        if self.faults.has(Bug::ReplicaLacksMap) && row.image_no.0.is_multiple_of(3) {
            return Ok(true);
        }
        let name = layout::strip_replaced(key);
        let mut error = None;
        // In later tables than these the image may have another name.
        let usual = [layout::map(name), layout::hidden_map(row.image_no)];
        let others = std::iter::once_with(|| self.store.names_of_maps().unwrap_or_default());
        let others = others.flatten().map(|other| layout::map(&other));
        for object in usual.into_iter().chain(others) {
            match self.store.read_object(&object, MAP_LEN_MAX) {
                Ok(bytes) if Digest::of(&bytes) == row.map_digest => {
                    self.put(DataKind::Map(row.image_no), &bytes)?;
                    return Ok(true);
                }
                Ok(_) => {}
                Err(other) if is_bad_or_missing(&other) => error = error.or(Some(other)),
                Err(other) => return Err(other),
            }
        }
        let what = match error {
            Some(error) => format!("the map of image {name}: {error}"),
            None => format!("the map of image {name} is not the one that the tables name"),
        };
        self.damage.push(what);
        Ok(false)
    }
}

fn record_len(record: &RecordRef) -> u64 {
    (weald_format::container::HEADER_LEN as u64).saturating_add(record.stored_len)
}

/// Reads a range; what cannot be read is zero.
pub(super) fn read_range(object: &dyn Object, from: u64, to: u64) -> Result<Vec<u8>> {
    let len = usize::try_from(to - from).map_err(|_| Error::limit("a range of a segment"))?;
    let mut bytes = vec![0; len];
    match object.read_at(&mut bytes, from) {
        Err(error) if error.is_unreadable() => {
            for (index, page) in bytes.chunks_mut(PAGE_LEN).enumerate() {
                let offset = from + (index * PAGE_LEN) as u64;
                match object.read_at(page, offset) {
                    Err(error) if error.is_unreadable() => page.fill(0),
                    other => other?,
                }
            }
        }
        other => other?,
    }
    Ok(bytes)
}
