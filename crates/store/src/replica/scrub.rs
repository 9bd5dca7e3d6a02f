//! Reads every block of a store, and makes those that are damaged again from its replicas.
//!
//! A block is made again where it lies: a replica has the bytes of segments by segment and offset.
//! What is written is what the row of the block names, or nothing. A map is found by its digest.

use super::gather::SegmentPart;
use super::items::{Items, find_identity};
use super::place::{Place, data_path, read_data};
use crate::disk::{Access, LocalFile};
use crate::engine::Table;
use crate::layout;
use crate::segment::{self, read_record};
use crate::store::is_bad_or_missing;
use crate::writer::{StoreWriter, each_row};
use std::collections::BTreeMap;
use weald_format::container::HEADER_LEN;
use weald_format::replica::{DataFile, DataKind, unpack_segment};
use weald_format::store::{BlockRow, ImageState, MAP_LEN_MAX};
use weald_format::{BlockId, Digest, Error, ErrorKind, Result, SegmentNo};

/// What a scrub has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Blocks that were read.
    pub block_count: u64,
    /// Their bytes.
    pub verified_len: u64,
    /// Blocks that were made again.
    pub repaired_count: u64,
    /// Names of the images whose maps were made again.
    pub repaired_maps: Vec<String>,
    /// What cannot be read, and no replica has.
    pub damage: Vec<String>,
}

/// A damaged block: its row, and why it cannot be read.
type Damaged = (BlockId, BlockRow, Error);

impl StoreWriter {
    /// Reads every block, and every map. What is damaged is made again from the first of `places`
    /// that has it.
    ///
    /// # Errors
    /// `Io`, `Full` of this store. A place that cannot be read is told in the log.
    ///
    /// # Cost
    /// Reads all data; of places the items, and the files with damaged blocks.
    pub fn scrub(&mut self, places: &[&dyn Place]) -> Result<Scrubbed> {
        let mut scrubbed = Scrubbed::default();
        let mut damaged = self.damaged_by_segment(&mut scrubbed)?;
        for place in places {
            if damaged.is_empty() {
                break;
            }
            let repaired = self.repair_from(*place, &mut damaged, &mut scrubbed);
            if let Err(error) = repaired {
                if error.is_failed_write() {
                    return Err(error);
                }
                log::warn!("{error}: this replica is not used");
            }
        }
        self.scrub_maps(places, &mut scrubbed)?;
        for (id, _, error) in damaged.into_values().flatten() {
            scrubbed.damage.push(format!("block {id}: {error}"));
        }
        self.keep_damaged();
        Ok(scrubbed)
    }

    fn damaged_by_segment(
        &self,
        scrubbed: &mut Scrubbed,
    ) -> Result<BTreeMap<SegmentNo, Vec<Damaged>>> {
        let mut rows: BTreeMap<SegmentNo, Vec<(BlockId, BlockRow)>> = BTreeMap::new();
        each_row(self.tables(), Table::Blocks, &mut |id, value| {
            let row = BlockRow::parse(value)?;
            if row.references > 0 {
                let of_segment = rows.entry(row.location.segment).or_default();
                of_segment.push((BlockId(id), row));
            }
            Ok(())
        })?;
        let mut damaged = BTreeMap::new();
        for (number, mut of_segment) in rows {
            of_segment.sort_unstable_by_key(|(_, row)| row.location.offset);
            let opened = segment::open(&*self.store().disk, number);
            let mut bad = Vec::new();
            for (id, row) in of_segment {
                let read = match &opened {
                    Ok(object) => read_record(&**object, row.location, &row.record),
                    Err(error) => Err(error.duplicate()),
                };
                scrubbed.block_count += 1;
                match read {
                    Ok(stored) => {
                        scrubbed.verified_len += (HEADER_LEN + stored.len()) as u64;
                        self.damaged().forget(id);
                    }
                    Err(error) => bad.push((id, row, error)),
                }
            }
            if !bad.is_empty() {
                damaged.insert(number, bad);
            }
        }
        Ok(damaged)
    }

    fn repair_from(
        &self,
        place: &dyn Place,
        damaged: &mut BTreeMap<SegmentNo, Vec<Damaged>>,
        scrubbed: &mut Scrubbed,
    ) -> Result<()> {
        let shown = place.shown();
        let identity = find_identity(place)?.filter(|of| of.uuid == self.store().uuid());
        let identity = identity
            .ok_or_else(|| Error::invalid(format!("{shown}: is no replica of this store")))?;
        let items = Items::read(place, &identity)?;
        let mut files: BTreeMap<SegmentNo, Vec<DataFile>> = BTreeMap::new();
        for item in items.all() {
            for file in &item.list.files {
                if let DataKind::Segment { number, .. } = file.kind
                    && damaged.contains_key(&number)
                {
                    files.entry(number).or_default().push(*file);
                }
            }
        }
        for (number, files) in files {
            let Some(blocks) = damaged.remove(&number) else {
                continue;
            };
            let count = blocks.len();
            let left = self.repair_segment(place, (number, &files), blocks)?;
            let repaired = count - left.len();
            if repaired > 0 {
                log::warn!("{shown}: {repaired} blocks of {number:?} were made again from it");
            }
            scrubbed.repaired_count += repaired as u64;
            if !left.is_empty() {
                damaged.insert(number, left);
            }
        }
        Ok(())
    }

    /// Writes the records of damaged blocks of a segment. Returns those that no file has.
    fn repair_segment(
        &self,
        place: &dyn Place,
        (number, files): (SegmentNo, &[DataFile]),
        mut blocks: Vec<Damaged>,
    ) -> Result<Vec<Damaged>> {
        let mut target: Option<(Box<dyn LocalFile>, bool)> = None;
        // The last one that has a range counts.
        for file in files.iter().rev() {
            let DataKind::Segment { offset, len, .. } = file.kind else {
                continue;
            };
            let end = offset.saturating_add(len);
            let is_in = |row: &BlockRow| {
                let from = row.location.offset;
                from >= offset && from.saturating_add(row.len()) <= end
            };
            if !blocks.iter().any(|(_, row, _)| is_in(row)) {
                continue;
            }
            let part = match self.part(place, file, (offset, len)) {
                Ok(part) => part,
                Err(error) => {
                    log::warn!("{error}");
                    continue;
                }
            };
            let mut left = Vec::new();
            for (id, row, error) in blocks {
                if !is_in(&row) || read_record(&part, row.location, &row.record).is_err() {
                    left.push((id, row, error));
                    continue;
                }
                let (target, _) = match &target {
                    Some(target) => target,
                    None => target.insert(self.segment_to_repair(number)?),
                };
                let bytes = part.range(row.location.offset, row.len());
                target.write_at(bytes, row.location.offset)?;
                self.damaged().forget(id);
            }
            // With what lies between the records, such as notes.
            if let Some((target, true)) = &target {
                target.write_at(&part.bytes, part.offset)?;
            }
            blocks = left;
        }
        if let Some((target, _)) = target {
            target.sync()?;
            self.store().disk.sync_dir(layout::SEGMENTS)?;
        }
        Ok(blocks)
    }

    fn part(
        &self,
        place: &dyn Place,
        file: &DataFile,
        (offset, len): (u64, u64),
    ) -> Result<SegmentPart> {
        let packed = read_data(place, file)?;
        // The length was checked against what a file of data may have, zeros aside.
        let len_max = self.store().superblock.segment_len.saturating_mul(2);
        if len > len_max.max(weald_format::replica::DATA_LEN_MAX) {
            return Err(Error::limit("a range of a segment"));
        }
        let mut bytes = vec![0; len as usize];
        for (from, run) in unpack_segment(&packed, len)? {
            let to = bytes.get_mut(from as usize..from as usize + run.len());
            to.unwrap_or_default().copy_from_slice(run);
        }
        Ok(SegmentPart { offset, bytes })
    }

    /// The file of a segment, and whether it was missing, and is made again.
    fn segment_to_repair(&self, number: SegmentNo) -> Result<(Box<dyn LocalFile>, bool)> {
        let disk = &*self.store().disk;
        let name = layout::segment_file(number);
        let len = self.segment_row(number)?.len;
        let (file, is_new) = match disk.open(&name, Access::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Two files of one segment that differ would be worse than none.
                if let Some(why) = disk.why_missing(&name) {
                    return Err(Error::lost(why));
                }
                (disk.open(&name, Access::Create)?, true)
            }
            other => (other?, false),
        };
        if file.len()? < len {
            file.set_len(len)?;
        }
        segment::write_superblock(&*file, self.store().uuid(), number)?;
        Ok((file, is_new))
    }

    /// Makes maps again that are damaged or missing.
    fn scrub_maps(&mut self, places: &[&dyn Place], scrubbed: &mut Scrubbed) -> Result<()> {
        for (name, row) in self.image_rows()? {
            if row.state != ImageState::Present {
                continue;
            }
            let disk = self.store().disk.clone();
            let shown = layout::map(&name);
            let error = match self.store().read_object(&shown, MAP_LEN_MAX) {
                Ok(bytes) if Digest::of(&bytes) == row.map_digest => continue,
                Ok(_) => Error::corrupt("image map", 0, "S-3.5", "it differs from its digest"),
                Err(error) if is_bad_or_missing(&error) => error,
                Err(error) => return Err(error),
            };
            let path = data_path(&row.map_digest);
            let is_it = |bytes: &Vec<u8>| Digest::of(bytes) == row.map_digest;
            let found = places.iter().find_map(|place| {
                let read = place.read(&path, MAP_LEN_MAX).ok();
                read.filter(is_it)
            });
            match found {
                Some(bytes) => {
                    let hidden = layout::hidden_map(row.image_no);
                    disk.put(&hidden, &bytes)?;
                    disk.switch(&hidden, &shown)?;
                    scrubbed.repaired_maps.push(name);
                }
                None => scrubbed
                    .damage
                    .push(format!("the map of image {name}: {error}")),
            }
        }
        Ok(())
    }
}
