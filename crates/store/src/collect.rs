//! The collector frees the space of blocks that no image refers to.
//!
//! It removes segments without live blocks. It empties sparse segments: it copies their live blocks
//! into new segments, those first that free the most bytes for the bytes to copy. No live block is
//! lost, because of the order of the steps:
//! 1. Copies are appended and synced before one commit changes the rows of the blocks and marks the
//!    old segment as emptied. Until then all rows refer to the old segment, which is unchanged.
//! 2. Then the maps are rewritten. Readers with an old map still find the old segment.
//! 3. Only then the old file is removed. Readers with an old map find no file and read the map
//!    again.
//!
//! After a crash the store is in one of these states, and [`crate::recover`] continues from there.
//!
//! The steps are those of [`crate::collection`], which an open volume takes one at a time, and
//! [`crate::collect_all`] all at once. Here is what they choose and rewrite.

use crate::disk::{Access, Disk};
use crate::engine::{Batch, Engine, Table};
use crate::faults::Bug;
use crate::layout;
use crate::store::{Store, is_bad_or_missing};
use crate::writer::StoreWriter;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use weald_format::store::{
    ImageRow, ImageState, Location, MAP_LEN_MAX, Part, SEGMENT_SUPERBLOCK_LEN, SegmentRow,
};
use weald_format::{Digest, Error, ErrorKind, Result, SegmentNo};

/// Options of a collection.
#[derive(Debug, Clone, Copy)]
pub struct CollectOptions {
    /// Empty a segment if fewer than this many per cent of its bytes are live.
    pub copy_below_percent: u64,
    /// Largest number of bytes to copy; later collections copy the rest.
    pub copy_len_max: u64,
}

impl Default for CollectOptions {
    fn default() -> Self {
        Self {
            copy_below_percent: 80,
            copy_len_max: u64::MAX,
        }
    }
}

/// Results of a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// Number of removed segment files.
    pub segments_removed: u64,
    /// Total length of the removed segments, in bytes.
    pub removed_len: u64,
    /// Bytes of live blocks that were copied out of them.
    pub copied_len: u64,
    /// Number of removed blocks.
    pub blocks_forgotten: u64,
    /// Dead bytes that remain on the disk in segments that were not worth copying.
    pub dead_len: u64,
    /// Bytes of dead blocks in remaining segments whose space was freed in place.
    pub punched_len: u64,
    /// Number of segments that stay because live blocks in them cannot be read:
    /// [`StoreWriter::damaged_blocks`] has these.
    pub segments_kept: u64,
    /// Number of images whose maps are damaged or missing. Nothing is copied then, because these
    /// maps cannot follow: only what needs no copying is collected.
    pub maps_damaged: u64,
}

impl Store {
    /// Lets servers collect by themselves or not, those that have the store open included.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn pause_collection(&self, is_paused: bool) -> Result<()> {
        if is_paused {
            self.disk.write_file(layout::COLLECT_PAUSED, b"paused\n")
        } else {
            self.disk.remove_if_there(layout::COLLECT_PAUSED)
        }
    }

    /// Whether servers do not collect by themselves.
    pub fn is_collection_paused(&self) -> bool {
        self.disk.open(layout::COLLECT_PAUSED, Access::Read).is_ok()
    }
}

/// Bytes of all records of blocks in a segment.
fn blocks_len(row: &SegmentRow) -> u64 {
    row.len
        .saturating_sub(SEGMENT_SUPERBLOCK_LEN as u64)
        .saturating_sub(row.notes_len)
}

/// Bytes of a segment that belong to no live block.
pub(crate) fn dead_len(row: &SegmentRow) -> u64 {
    blocks_len(row).saturating_sub(row.live_len)
}

/// Bytes on the disk that belong to no live block of the segment: those that were freed in place do
/// not count.
///
/// # Errors
/// `Io`.
pub(crate) fn debt(disk: &dyn Disk, number: SegmentNo, row: &SegmentRow) -> Result<u64> {
    let dead = dead_len(row);
    if dead == 0 {
        return Ok(0);
    }
    let allocated = disk.allocated_len(&layout::segment_file(number))?;
    Ok(allocated.map_or(dead, |len| dead.min(len.saturating_sub(row.live_len))))
}

/// Names of images whose maps are damaged or missing, or are not those that were committed. Works
/// beside the writer, whose changes of this moment look alike; calls `check` for each image.
///
/// # Errors
/// `Io`, `Corrupt` of the table of images; those of `check`.
pub(crate) fn suspect_maps(
    store: &Store,
    engine: &dyn Engine,
    check: &dyn Fn() -> Result<()>,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    engine.scan(Table::Images, &[], &mut |key, value| {
        if ImageRow::parse(value)?.state == ImageState::Present {
            names.push(String::from_utf8_lossy(key).into_owned());
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let mut suspects = Vec::new();
    for name in names {
        check()?;
        if why_bad_map(store, engine, &name)?.is_some() {
            suspects.push(name);
        }
    }
    Ok(suspects)
}

/// Why the map of the image `name` cannot follow when blocks move; `None` if it can, or if there is
/// no such image.
pub(crate) fn why_bad_map(
    store: &Store,
    engine: &dyn Engine,
    name: &str,
) -> Result<Option<String>> {
    let Some(value) = engine.get(Table::Images, name.as_bytes())? else {
        return Ok(None);
    };
    let row = ImageRow::parse(&value)?;
    if row.state != ImageState::Present {
        return Ok(None);
    }
    let shown = store.shown();
    match store.map(name) {
        Ok(map) if Digest::of(&map.encode(store.uuid())) == row.map_digest => Ok(None),
        Ok(_) => Ok(Some(format!(
            "{shown}:{name}: its map is not the one that was committed"
        ))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Some(format!(
            "{shown}:{name}: the map of this image is missing"
        ))),
        Err(error) if is_bad_or_missing(&error) => Ok(Some(error.what().to_owned())),
        Err(error) => Err(error),
    }
}

impl StoreWriter {
    /// Whether segment `number` lies on another machine.
    pub(crate) fn is_far(&self, number: SegmentNo) -> bool {
        self.store().disk.is_far(&layout::segment_file(number))
    }

    /// Number of those of the images `suspects` whose maps cannot follow when blocks move; each is
    /// told.
    pub(crate) fn damaged_map_count(&self, suspects: &[String]) -> Result<u64> {
        if self.faults.has(Bug::MissingMapIgnored) {
            return Ok(0);
        }
        let mut count = 0;
        for name in suspects {
            if let Some(why) = why_bad_map(self.store(), self.tables(), name)? {
                log::warn!("{why}");
                count += 1;
            }
        }
        Ok(count)
    }

    /// Returns the segments to empty, those first that free the most bytes for the bytes to copy.
    /// Beside damaged maps only those without live blocks, which need no copying.
    pub(crate) fn choose_victims(
        &self,
        options: &CollectOptions,
        maps_damaged: u64,
    ) -> Result<Vec<(SegmentNo, SegmentRow)>> {
        let mut victims = Vec::new();
        let copy_below_percent = match maps_damaged {
            0 => options.copy_below_percent,
            _ => 0,
        };
        self.each_segment(&mut |number, row| {
            // A damaged map may name what another collection has emptied.
            if maps_damaged > 0 && row.is_emptied {
                return Ok(());
            }
            let is_sparse = u128::from(row.live_len) * 100
                < u128::from(blocks_len(&row)) * u128::from(copy_below_percent);
            // A segment without any record was left by a crash and is removed too.
            if row.live_len == 0 || is_sparse {
                victims.push((number, row));
            }
            Ok(())
        })?;
        // The live blocks of a missing segment stay where they are, until it is back or they die.
        let mut is_copied = Ok(());
        victims.retain(|(number, row)| match row.live_len {
            0 => true,
            // Reading another machine would keep the writer.
            _ if self.is_far(*number) => false,
            _ => match self.is_missing(*number) {
                Ok(is_missing) => !is_missing,
                Err(error) => {
                    is_copied = Err(error);
                    false
                }
            },
        });
        is_copied?;
        // Live bytes to copy per 1000 dead bytes.
        let cost =
            |row: &SegmentRow| u128::from(row.live_len) * 1000 / u128::from(dead_len(row).max(1));
        victims.sort_by_key(|(number, row)| (cost(row), *number));
        let mut copied = 0u64;
        victims.retain(|(_, row)| {
            copied = copied.saturating_add(row.live_len);
            row.live_len == 0 || copied <= options.copy_len_max
        });
        Ok(victims)
    }

    /// Those of the segments `wanted` that have live blocks and can be emptied.
    pub(crate) fn sortable(&self, wanted: &BTreeSet<SegmentNo>) -> Result<Vec<SegmentNo>> {
        let mut found = Vec::new();
        for &number in wanted {
            let row = self.find_segment_row(number)?;
            let is_live = row.is_some_and(|row| row.live_len > 0 && !row.is_emptied);
            if is_live && !self.is_far(number) && !self.is_missing(number)? {
                found.push(number);
            }
        }
        Ok(found)
    }

    /// The error of a segment that cannot be emptied, because its row is wrong.
    pub(crate) fn other_live_len(&self, number: SegmentNo, counted: u64, live_len: u64) -> Error {
        let what = format!(
            "{}: segment {number} stays: {counted} live bytes, and its blocks have {live_len}",
            self.store().disk.shown()
        );
        Error::corrupt("store metadata", 0, "S-5.5", what)
    }

    /// Rewrites the maps that refer to an old location of a block.
    pub(crate) fn renew_maps(&mut self) -> Result<()> {
        for (name, row) in self.image_rows()? {
            if row.state == ImageState::Present {
                self.renew_map(&name, row, None)?;
            }
        }
        Ok(())
    }

    /// Rewrites the map of one image, for blocks that lay in the segments `emptied`; `None` for
    /// all segments.
    pub(crate) fn renew_map(
        &mut self,
        name: &str,
        row: ImageRow,
        emptied: Option<&BTreeSet<SegmentNo>>,
    ) -> Result<()> {
        let disk = self.store().disk.clone();
        let bytes = self.store().read_object(&layout::map(name), MAP_LEN_MAX)?;
        let mut map = self.store().parse_map(name, &bytes)?;
        let mut is_changed = false;
        for part in &mut map.parts {
            if let Part::Block { id, location, .. } = part
                && emptied.is_none_or(|numbers| numbers.contains(&location.segment))
            {
                let found: Location = self.block_row(*id)?.location;
                is_changed |= found != *location;
                *location = found;
            }
        }
        if !is_changed {
            return Ok(());
        }
        let bytes = map.encode(self.store().uuid());
        let hidden = layout::hidden_map(row.image_no);
        disk.put(&hidden, &bytes)?;
        let mut batch = Batch::default();
        let row = ImageRow {
            map_digest: Digest::of(&bytes),
            ..row
        };
        batch.put(Table::Images, name.as_bytes(), row.encode());
        self.commit(batch)?;
        disk.switch(&hidden, &layout::map(name))
    }
}
