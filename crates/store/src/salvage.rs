//! Salvage: rebuilds the metadata of a store from its image maps and segments.
//!
//! Maps list the blocks of an image with their digests; segments list the records that they
//! contain. Salvage does not read the old metadata; it keeps the file as `meta.old`.

use crate::disk::Access;
use crate::engine::{Batch, Engine, Table, key_of};
use crate::layout;
use crate::segment::each_header;
use crate::store::{Store, create_engine, is_bad_file, open_engine, read_file, write_file};
use crate::volume::{NEXT_SNAPSHOT, each_piece};
use crate::writer;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weald_format::container::RecordRef;
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
    /// Number of blocks that images refer to.
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
}

/// Volumes of the old tables.
struct OldVolumes {
    /// All rows of volumes.
    rows: Batch,
    /// The blocks that they refer to: id, row, number of references.
    blocks: Vec<(u64, BlockRow, u64)>,
    next_block: u64,
    next_segment: u64,
}

fn read_volumes(engine: &dyn Engine) -> Result<OldVolumes> {
    let mut rows = Batch::default();
    for table in [
        Table::Volumes,
        Table::Inodes,
        Table::Names,
        Table::Extents,
        Table::Xattrs,
        Table::Orphans,
        Table::Quotas,
        Table::Log,
    ] {
        engine.scan(table, &[], &mut |key, value| {
            rows.put(table, key, value.to_vec());
            Ok(ControlFlow::Continue(()))
        })?;
    }
    if let Some(value) = engine.get(Table::Counters, NEXT_SNAPSHOT)? {
        rows.put(Table::Counters, NEXT_SNAPSHOT, value);
    }
    let mut references: BTreeMap<u64, u64> = BTreeMap::new();
    each_piece(engine, &mut |_, _, piece| {
        *references.entry(piece.block).or_default() += 1;
        Ok(())
    })?;
    let mut blocks = Vec::new();
    for (id, count) in references {
        if let Some(value) = engine.get(Table::Blocks, &key_of(id))? {
            blocks.push((id, BlockRow::parse(&value)?, count));
        }
    }
    Ok(OldVolumes {
        rows,
        blocks,
        next_block: writer::counter(engine, writer::NEXT_BLOCK)?,
        next_segment: writer::counter(engine, writer::NEXT_SEGMENT)?,
    })
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
        let _lock = writer::lock(self, writer_name)?;
        let volumes = self.old_volumes()?;
        let mut found = Found::default();
        self.scan_segments(&mut found)?;
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
        for (id, row, references) in volumes.iter().flat_map(|volumes| &volumes.blocks) {
            count_volume(&mut found, *id, row, *references);
        }
        salvaged.block_count = found.blocks.len() as u64;
        salvaged.segment_count = found.segments.len() as u64;
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
            let mut end = weald_format::store::SEGMENT_SUPERBLOCK_LEN as u64;
            let walked = each_header(&*file, file.len()?, &mut |offset, record| {
                let location = Location { segment, offset };
                found
                    .records
                    .entry(record.digest.0)
                    .or_default()
                    .push((location, record));
                end = RecordRef { offset, ..record }.end();
                Ok(())
            });
            match walked {
                // A crash or damage made the rest of the segment unreadable.
                Err(error) if error.kind() == ErrorKind::Corrupt => {}
                other => other?,
            }
            let row = SegmentRow {
                len: end,
                live_len: 0,
                is_emptied: false,
            };
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
    fn old_volumes(&self) -> Result<Option<OldVolumes>> {
        let names = self.volume_names()?;
        let opened = open_engine(&*self.disk, self.superblock.uuid, true);
        match opened.and_then(|engine| read_volumes(&engine)) {
            Ok(volumes) => Ok(Some(volumes)),
            Err(_) if names.is_empty() => Ok(None),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
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
            Err(error) => Err(error),
        }
    }

    fn write_metadata(
        &self,
        found: &Found,
        images: &[(String, ImageRow)],
        volumes: Option<OldVolumes>,
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
        let (mut next_block, mut next_segment) = (1, 1);
        if let Some(volumes) = volumes {
            (next_block, next_segment) = (volumes.next_block, volumes.next_segment);
            for change in volumes.rows.0 {
                batch.0.push(change);
                if batch.0.len() >= 1 << 16 {
                    engine.commit(&std::mem::take(&mut batch))?;
                }
            }
        }
        for (key, value) in [
            (
                writer::NEXT_BLOCK,
                next(found.blocks.keys().next_back()).max(next_block),
            ),
            (
                writer::NEXT_SEGMENT,
                next(found.segments.keys().next_back()).max(next_segment),
            ),
            (writer::NEXT_IMAGE, next_image),
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
