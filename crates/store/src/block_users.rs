//! Which images and volumes use a block, for messages about damaged ones, and which segments they
//! use.

use crate::engine::Table;
use crate::store::is_bad_or_missing;
use crate::volume::parse_extents;
use crate::writer::StoreWriter;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weald_format::store::Part;
use weald_format::volume::WindowPlace;
use weald_format::{BlockId, Result, SegmentNo, VolumeNo};

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
        self.tables().scan(Table::Extents, &[], &mut |key, value| {
            let (volume_no, _) = WindowPlace::split_key(key)?;
            let has = |id: &BlockId| ids.contains(id);
            if parse_extents(value)?
                .0
                .iter()
                .any(|piece| has(&piece.block))
            {
                names.extend(volumes.get(&volume_no).cloned());
            }
            Ok(ControlFlow::Continue(()))
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
        self.tables().scan(Table::Extents, &[], &mut |key, value| {
            if WindowPlace::split_key(key)?.0 == volume.volume_no {
                ids.extend(parse_extents(value)?.0.iter().map(|piece| piece.block));
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let mut segments = BTreeSet::new();
        for id in ids {
            let row = self.find_block_row(id)?;
            segments.extend(row.map(|row| row.location.segment));
        }
        Ok(segments)
    }
}
