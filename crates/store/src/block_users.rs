//! Which images and volumes use a block, for messages about damaged ones, and which segments they
//! use.

use crate::engine::Table;
use crate::store::is_bad_or_missing;
use crate::volume::{extents_in, parse_extents};
use crate::writer::StoreWriter;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weald_format::store::Part;
use weald_format::volume::ExtentsRow;
use weald_format::{BlockId, Error, Result, SegmentNo, VolumeNo};

impl StoreWriter {
    /// Names of the images and volumes that use one of the blocks `ids`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    ///
    /// # Cost
    /// Reads all maps, and all extents of volumes.
    pub fn users_of(&self, ids: &BTreeSet<BlockId>) -> Result<BTreeSet<String>> {
        let mut names = BTreeSet::new();
        for name in self.store().names()? {
            match self.store().map(&name) {
                Ok(map) if map.blocks().any(|(id, _, _)| ids.contains(&id)) => {
                    names.insert(name);
                }
                Ok(_) => {}
                Err(error) if is_bad_or_missing(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let volumes = self.volume_rows()?.into_iter();
        let volumes: BTreeMap<VolumeNo, String> =
            volumes.map(|(n, row)| (row.volume_no, n)).collect();
        self.each_extents(&mut |volume_no, row| {
            let mut blocks = row.0.iter().map(|piece| piece.block);
            if blocks.any(|id| ids.contains(&id)) {
                names.extend(volumes.get(&volume_no).cloned());
            }
        })?;
        Ok(names)
    }

    /// The segments in which blocks of the image or volume `name` lie.
    ///
    /// # Errors
    /// `NotFound` if there is none; `Io`, `Corrupt`.
    ///
    /// # Cost
    /// Reads the map of an image, or all extents of a volume and the rows of its blocks.
    pub fn segments_of(&self, name: &str) -> Result<BTreeSet<SegmentNo>> {
        let volumes = self.volume_rows()?;
        let Some((_, volume)) = volumes.into_iter().find(|(found, _)| found == name) else {
            let map = self.store().map(name)?;
            let parts = map.parts.iter();
            return Ok(parts
                .filter_map(|part| match part {
                    Part::Block { location, .. } => Some(location.segment),
                    Part::Inline(_) => None,
                })
                .collect());
        };
        let mut ids = BTreeSet::new();
        self.each_extents(&mut |volume_no, row| {
            if volume_no == volume.volume_no {
                ids.extend(row.0.iter().map(|piece| piece.block));
            }
        })?;
        let mut segments = BTreeSet::new();
        for id in ids {
            let row = self.find_block_row(id)?;
            segments.extend(row.map(|row| row.location.segment));
        }
        Ok(segments)
    }

    /// Visits the rows of extents of volumes, and those that their snapshots keep.
    fn each_extents(&self, visit: &mut dyn FnMut(VolumeNo, ExtentsRow)) -> Result<()> {
        for table in [Table::Extents, Table::Kept] {
            self.tables().scan(table, &[], &mut |key, value| {
                if let Some(row) = extents_in(table, key, value)? {
                    visit(volume_of(key)?, parse_extents(row)?);
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(())
    }
}

/// The volume of a key of a volume or of its snapshots.
fn volume_of(key: &[u8]) -> Result<VolumeNo> {
    let number = key.first_chunk().ok_or_else(|| {
        let what = "a key is too short";
        Error::corrupt("volume row", 0, "V-5.1", what)
    })?;
    Ok(VolumeNo(u32::from_be_bytes(*number)))
}
