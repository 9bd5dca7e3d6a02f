//! Salvage: rebuilds the metadata of a store from its image maps and segments.
//!
//! Maps list the blocks of an image with their digests; segments list the records that they
//! contain. Only volumes need the old tables. All rows that can be read are taken over, and what is
//! lost is listed. The old file stays as `meta.old`.

mod tables;
mod volumes;

use crate::disk::Access;
use crate::engine::{Batch, Engine, Table, key_of, number_of};
use crate::layout;
use crate::mark::Mark;
use crate::segment::{each_item, read_note};
use crate::store::{Store, create_engine, is_bad_file, read_file, write_file};
use crate::volume::NEXT_SNAPSHOT;
use crate::writer;
use std::collections::BTreeMap;
use tables::{Counters, OldTables};
use volumes::OldVolume;
use weald_format::container::{Codec, RecordRef, RecordType};
use weald_format::segment_note::SegmentItem;
use weald_format::store::{
    BlockRow, ImageMap, ImageRow, ImageState, Location, MAP_LEN_MAX, Part, SegmentRow,
};
use weald_format::{Digest, Error, ErrorKind, Result};

/// Results of a salvage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// Names of the complete images.
    pub images: Vec<String>,
    /// Names of incomplete images, each with the reason. Their maps are renamed to a name that ends
    /// in `.damaged`.
    pub damaged: Vec<(String, String)>,
    /// Names of the volumes of which nothing is lost.
    pub volumes: Vec<String>,
    /// Names of the other volumes, each with what is lost. They stay, with all that can be read.
    pub damaged_volumes: Vec<(String, Vec<String>)>,
    /// Names of volumes of which nothing can be read.
    pub lost_volumes: Vec<String>,
    /// Number of blocks that images and volumes refer to.
    pub block_count: u64,
    /// Number of segments.
    pub segment_count: u64,
}

/// Blocks, records and segments found so far.
#[derive(Default)]
struct Found {
    /// Locations of each record; the key is the digest.
    records: BTreeMap<[u8; 32], Vec<(Location, RecordRef)>>,
    segments: BTreeMap<u64, SegmentRow>,
    blocks: BTreeMap<u64, BlockRow>,
    /// The last commit that a note names.
    commit: u64,
}

/// Volumes of the old tables.
#[derive(Default)]
struct OldVolumes {
    volumes: Vec<OldVolume>,
    /// Rows of the blocks that they refer to.
    blocks: BTreeMap<u64, BlockRow>,
    counters: Counters,
}

/// The row of a block whose own row is lost: reads of it fail, and its references are counted.
fn lost_block(segment: u64, len: u64) -> BlockRow {
    BlockRow {
        location: Location {
            segment,
            offset: weald_format::store::SEGMENT_SUPERBLOCK_LEN as u64,
        },
        references: 0,
        record: RecordRef {
            record_type: RecordType::Data,
            codec: Codec::None,
            offset: 0,
            stored_len: len,
            raw_len: len,
            digest: Digest::default(),
        },
    }
}

/// Counts the references of volumes to a block, whose record is looked for if it is not where the
/// old row says.
fn count_volume(found: &mut Found, id: u64, row: &BlockRow, references: u64) {
    let locations = found.records.get(&row.record.digest.0);
    let locations = locations.into_iter().flatten();
    let locations: Vec<Location> = locations
        .filter(|(_, r)| *r == row.record)
        .map(|(l, _)| *l)
        .collect();
    let location = match locations.first() {
        Some(first) if !locations.contains(&row.location) => *first,
        _ => row.location,
    };
    for _ in 0..references {
        count(found, id, location, &row.record);
    }
}

/// Name of the new metadata file until it is complete.
const META_NEW: &str = "meta.new";
/// Name that the old metadata file gets.
const META_OLD: &str = "meta.old";

impl Store {
    /// Rebuilds the metadata from maps and segments. A second writer gets `writer_name` in its
    /// error message.
    ///
    /// # Errors
    /// `Busy` if a writer has the lock; `Io`, `Full`. The old metadata then stays in place.
    ///
    /// # Cost
    /// Reads the headers of all records; about 120 bytes of memory for each.
    pub fn salvage(&self, writer_name: &str) -> Result<Salvaged> {
        let disk = &*self.disk;
        match disk.open(layout::LOCK, Access::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                disk.open(layout::LOCK, Access::CreatePrivate)?;
            }
            // The lock says what is wrong with an existing file.
            _ => {}
        }
        let _lock = crate::writer_lock::lock(self, writer_name)?;
        let mut found = Found::default();
        self.scan_segments(&mut found)?;
        let mut volumes = self.old_volumes(&found)?;
        let mut salvaged = Salvaged::default();
        let mut images = Vec::new();
        for name in self.names()? {
            match self.salvage_image(&name, &mut found) {
                Ok(row) => {
                    salvaged.images.push(name.clone());
                    images.push((name, row));
                }
                Err(error) if is_bad_file(&error) => {
                    salvaged.damaged.push((name, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        self.salvage_volumes(&mut volumes, &mut found, &mut salvaged)?;
        salvaged.block_count = found.blocks.len() as u64;
        salvaged.segment_count = found.segments.len() as u64;
        let numbers: Vec<u32> = volumes.volumes.iter().map(|v| v.row.snapshot).collect();
        self.keep_logs(&numbers)?;
        self.write_metadata(&found, &images, volumes)?;
        for (name, _) in &salvaged.damaged {
            let aside = format!("{}/.{name}.damaged", layout::IMAGES);
            disk.rename(&layout::map(name), &aside)?;
        }
        disk.sync_dir(layout::IMAGES)?;
        Ok(salvaged)
    }

    fn scan_segments(&self, found: &mut Found) -> Result<()> {
        for name in self.disk.list(layout::SEGMENTS)? {
            let Some(segment) = layout::segment_number(&name) else {
                continue;
            };
            let file = self.disk.open(&layout::segment(segment), Access::Read)?;
            let mut row = SegmentRow {
                len: weald_format::store::SEGMENT_SUPERBLOCK_LEN as u64,
                ..SegmentRow::default()
            };
            let range = (row.len, file.len()?);
            let walked = each_item(&*file, range, &mut |offset, item| {
                let location = Location { segment, offset };
                row.len = offset + item.len();
                match item {
                    SegmentItem::Block(record) => {
                        let record = RecordRef {
                            offset: 0,
                            ..record
                        };
                        let places = found.records.entry(record.digest.0).or_default();
                        places.push((location, record));
                    }
                    SegmentItem::Note { stored_len, digest } => {
                        row.notes_len += item.len();
                        let uuid = self.superblock.uuid;
                        let note = read_note(&*file, uuid, location, (stored_len, &digest));
                        if let Ok(note) = note {
                            found.commit = found.commit.max(note.commit);
                        }
                    }
                }
                Ok(())
            });
            match walked {
                // A crash or damage made the rest of the segment unreadable.
                Err(error) if error.kind() == ErrorKind::Corrupt => row.is_lost = true,
                other => other?,
            }
            found.segments.insert(segment, row);
        }
        Ok(())
    }

    /// Finds every block of an image, counts its references, and rewrites the map if blocks have
    /// moved.
    fn salvage_image(&self, name: &str, found: &mut Found) -> Result<ImageRow> {
        let bytes = read_file(&*self.disk, &layout::map(name), MAP_LEN_MAX)?;
        let mut map = self.parse_map(name, &bytes)?;
        let is_changed = locate(&mut map, found)?;
        for (id, location, record) in map.blocks() {
            count(found, id, location, record);
        }
        let new = map.encode(self.superblock.uuid);
        if is_changed {
            let hidden = layout::hidden_map(map.image_id);
            write_file(&*self.disk, &hidden, &new)?;
            self.disk.rename(&hidden, &layout::map(name))?;
        }
        Ok(ImageRow {
            image_id: map.image_id,
            map_digest: Digest::of(&new),
            state: ImageState::Present,
            counted_parts: map.parts.len() as u64,
        })
    }

    /// Reads the rows of volumes from the old tables, which alone have them.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if there are volumes and no row of any can be read.
    fn old_volumes(&self, found: &Found) -> Result<OldVolumes> {
        let names = self.volume_names()?;
        match self.read_volumes(found) {
            Ok(volumes) if !volumes.volumes.is_empty() => Ok(volumes),
            Err(error) if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                Err(error)
            }
            Ok(volumes) if names.is_empty() => Ok(volumes),
            _ if names.is_empty() => Ok(OldVolumes::default()),
            _ => {
                let shown = self.disk.shown();
                let what = format!(
                    "{shown}/{}: the rows of the volumes {} cannot be read, and nothing else has \
                     them: restore this file from a backup, or remove the files in \
                     {shown}/{} to give the volumes up and keep the images",
                    layout::META,
                    names.join(", "),
                    layout::VOLUMES
                );
                Err(Error::corrupt("store metadata", 0, "S-5.1", what))
            }
        }
    }

    fn read_volumes(&self, found: &Found) -> Result<OldVolumes> {
        let mut old = OldTables::open(self)?;
        let mut volumes = OldVolumes {
            counters: old.counters()?,
            ..OldVolumes::default()
        };
        for (key, value) in old.read(Table::Blocks, &[])? {
            if let (Some(id), Ok(row)) = (number_of(&key), BlockRow::parse(&value)) {
                volumes.blocks.insert(id, row);
            }
        }
        let is_in_segment = |row: &BlockRow| {
            let records = found.records.get(&row.record.digest.0);
            records.is_some_and(|records| records.contains(&(row.location, row.record)))
        };
        // Damage can hide that the tables are those of this store, but not that they fit.
        if !volumes.counters.names_store && !volumes.blocks.values().any(is_in_segment) {
            let what = format!("{}: belongs to another store", layout::META);
            return Err(Error::corrupt("store metadata", 0, "S-5.1", what));
        }
        volumes.volumes = OldVolume::read_all(&mut old)?;
        Ok(volumes)
    }

    /// Counts the references of volumes, and what is lost of them.
    fn salvage_volumes(
        &self,
        old: &mut OldVolumes,
        found: &mut Found,
        salvaged: &mut Salvaged,
    ) -> Result<()> {
        for (id, row) in &found.blocks {
            old.blocks.entry(*id).or_insert(*row);
        }
        let segment = found.segments.keys().next().copied().unwrap_or(1);
        for volume in &mut old.volumes {
            let losses = volume.recount(&old.blocks);
            match (volume.is_shown(), losses.is_empty()) {
                (false, _) => {}
                (_, true) => salvaged.volumes.push(volume.key.clone()),
                (_, false) => {
                    let damaged = (volume.key.clone(), losses);
                    salvaged.damaged_volumes.push(damaged);
                }
            }
        }
        for volume in &old.volumes {
            for (id, references) in volume.references() {
                let row = old.blocks.get(&id).copied();
                let row = row.unwrap_or_else(|| lost_block(segment, references.len));
                count_volume(found, id, &row, references.count);
            }
        }
        let is_found = |name: &String| old.volumes.iter().any(|volume| volume.key == *name);
        let mut lost = self.volume_names()?;
        lost.retain(|name| !is_found(name));
        salvaged.lost_volumes = lost;
        Ok(())
    }

    /// Renames the sync logs of volumes that are lost, which the next writer would remove.
    fn keep_logs(&self, volumes: &[u32]) -> Result<()> {
        for snapshot in self.sync_logs()? {
            if !volumes.contains(&snapshot) {
                let name = layout::sync_log(snapshot);
                self.disk.rename(&name, &format!("{name}.damaged"))?;
                self.disk.sync_dir(layout::VOLUMES)?;
            }
        }
        Ok(())
    }

    /// The newest commit of which anything tells.
    fn newest_commit(&self, noted: u64, known: u64) -> u64 {
        let marked = Mark::read(self).unwrap_or(0);
        noted.max(known).max(marked)
    }

    fn write_metadata(
        &self,
        found: &Found,
        images: &[(String, ImageRow)],
        old: OldVolumes,
    ) -> Result<()> {
        let disk = &*self.disk;
        match disk.remove(META_NEW) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let engine = create_engine(disk, META_NEW, self.superblock.uuid)?;
        let mut batch = Batch::default();
        for (id, row) in &found.blocks {
            batch.put(Table::Blocks, &key_of(*id), row.encode());
            if batch.0.len() >= 1 << 16 {
                engine.commit(&std::mem::take(&mut batch))?;
            }
        }
        for (number, row) in &found.segments {
            batch.put(Table::Segments, &key_of(*number), row.encode());
        }
        let mut next_image = 1;
        for (name, row) in images {
            next_image = next_image.max(row.image_id + 1);
            batch.put(Table::Images, name.as_bytes(), row.encode());
        }
        let next = |last: Option<&u64>| last.map_or(1, |last| last + 1);
        let counters = old.counters;
        let numbers = old.volumes.iter().map(|volume| volume.row.snapshot);
        let numbers = numbers.chain(self.sync_logs()?);
        let next_snapshot = numbers.map(|number| u64::from(number) + 1).max();
        let next_snapshot = next_snapshot.unwrap_or(1).max(counters.next_snapshot);
        for volume in old.volumes {
            for change in volume.into_batch().0 {
                batch.0.push(change);
                if batch.0.len() >= 1 << 16 {
                    engine.commit(&std::mem::take(&mut batch))?;
                }
            }
        }
        for (key, value) in [
            (
                writer::NEXT_BLOCK,
                next(found.blocks.keys().next_back()).max(counters.next_block),
            ),
            (
                writer::NEXT_SEGMENT,
                next(found.segments.keys().next_back()).max(counters.next_segment),
            ),
            (writer::NEXT_IMAGE, next_image),
            (NEXT_SNAPSHOT, next_snapshot),
            (
                writer::COMMIT,
                self.newest_commit(found.commit, counters.commit) + 1,
            ),
        ] {
            batch.put(Table::Counters, key, value.to_le_bytes().to_vec());
        }
        engine.commit(&batch)?;
        drop(engine);
        match disk.rename(layout::META, META_OLD) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        disk.rename(META_NEW, layout::META)?;
        disk.sync_dir("")
    }
}

/// Updates the locations in `map`. Returns whether any of them changed.
fn locate(map: &mut ImageMap, found: &Found) -> Result<bool> {
    let mut is_changed = false;
    for part in &mut map.parts {
        let Part::Block {
            id,
            location,
            record,
        } = part
        else {
            continue;
        };
        let locations = found.records.get(&record.digest.0);
        let mut locations = locations
            .into_iter()
            .flatten()
            .filter(|(_, r)| *r == *record);
        let known = found.blocks.get(id).map(|row| row.location);
        let place = match known {
            Some(place) => Some(place),
            None if locations.clone().any(|(place, _)| place == location) => Some(*location),
            None => locations.next().map(|(place, _)| *place),
        };
        let Some(place) = place else {
            let what = format!("block {id} is in no segment");
            return Err(Error::corrupt("segment", 0, "S-2.8", what));
        };
        is_changed |= place != *location;
        *location = place;
    }
    Ok(is_changed)
}

fn count(found: &mut Found, id: u64, location: Location, record: &RecordRef) {
    let row = found.blocks.entry(id).or_insert(BlockRow {
        location,
        references: 0,
        record: *record,
    });
    row.references += 1;
    if row.references == 1
        && let Some(segment) = found.segments.get_mut(&location.segment)
    {
        segment.live_len += row.len();
    }
}
