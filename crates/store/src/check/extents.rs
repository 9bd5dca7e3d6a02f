//! Counts the references of volumes and of their snapshots to blocks, and compares the rows of
//! snapshots with each other.

use crate::engine::{Engine, Table, VisitRow};
use crate::volume::{extents_in, parse_extents};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weald_format::snapshot::{KeptKey, SnapshotRow, SnapshotsRow, split_snapshot_key};
use weald_format::volume::WindowPlace;
use weald_format::{BlockId, ErrorKind, Ino, Result, SnapshotNo, VolumeNo};

/// Says why a part of a block cannot be read, up to this byte; `None` if it can.
pub type WhyUnreadable<'a> = dyn Fn(BlockId, u64) -> Option<String> + 'a;

/// What was found in the rows of volumes and snapshots.
#[derive(Debug, Default)]
pub struct Extents {
    /// References to each block.
    pub references: BTreeMap<BlockId, u64>,
    /// Defects of files: volume, what.
    pub of_files: Vec<(VolumeNo, String)>,
    /// Defects of snapshots: volume, what.
    pub of_snapshots: Vec<(VolumeNo, String)>,
    /// Whether all rows could be read.
    pub is_whole: bool,
}

impl Extents {
    /// Reads all rows of volumes and snapshots that refer to blocks.
    ///
    /// # Errors
    /// `Io`.
    pub fn read(engine: &dyn Engine, why: &WhyUnreadable<'_>) -> Result<Self> {
        let mut found = Self {
            is_whole: true,
            ..Self::default()
        };
        found.of_volumes(engine, why)?;
        let names = found.of_names(engine)?;
        found.of_kept(engine, &names, why)?;
        Ok(found)
    }

    fn count(
        &mut self,
        row: &[u8],
        why: &WhyUnreadable<'_>,
        tell: &mut dyn FnMut(&mut Self, String),
    ) -> Result<()> {
        for piece in parse_extents(row)?.0 {
            *self.references.entry(piece.block).or_default() += 1;
            let end = u64::from(piece.offset) + u64::from(piece.len);
            if let Some(why) = why(piece.block, end) {
                tell(self, why);
            }
        }
        Ok(())
    }

    fn of_volumes(&mut self, engine: &dyn Engine, why: &WhyUnreadable<'_>) -> Result<()> {
        // The check of the rows of the volume reports damaged rows.
        self.is_whole &= each(engine, Table::Extents, &mut |key, value| {
            let (volume_no, WindowPlace { ino, .. }) = WindowPlace::split_key(key)?;
            self.count(value, why, &mut |found, why| {
                found
                    .of_files
                    .push((volume_no, format!("inode {ino}: {why}")));
            })?;
            Ok(ControlFlow::Continue(()))
        })?
        .is_none();
        Ok(())
    }

    /// Reads the rows of snapshots themselves. Returns their names.
    fn of_names(
        &mut self,
        engine: &dyn Engine,
    ) -> Result<BTreeMap<(VolumeNo, SnapshotNo), String>> {
        let mut names = BTreeMap::new();
        let mut next = BTreeMap::new();
        let damage = each(engine, Table::Snapshots, &mut |key, value| {
            let (volume_no, no) = split_snapshot_key(key)?;
            if no == SnapshotNo::NONE {
                let row = SnapshotsRow::parse(value)?;
                next.insert(volume_no, row.next);
                if row.rollback.is_some() {
                    let what = "a rollback is not complete".to_owned();
                    self.of_snapshots.push((volume_no, what));
                }
                return Ok(ControlFlow::Continue(()));
            }
            let row = SnapshotRow::parse(value)?;
            if row.volume.volume_no != volume_no {
                let what = format!("@{}: has the row of another volume", row.name);
                self.of_snapshots.push((volume_no, what));
            }
            if next.get(&volume_no).is_none_or(|next| no >= *next) {
                let what = format!("@{}: its number {no} could be given again", row.name);
                self.of_snapshots.push((volume_no, what));
            }
            names.insert((volume_no, no), row.name);
            Ok(ControlFlow::Continue(()))
        })?;
        self.tell_damage(damage, Table::Snapshots);
        Ok(names)
    }

    fn tell_damage(&mut self, damage: Option<Damage>, table: Table) {
        if let Some(Damage { volume_no, what }) = damage {
            self.is_whole = false;
            let what = format!("rows of snapshots, table {}: {what}", table.name());
            self.of_snapshots.push((volume_no, what));
        }
    }

    fn of_kept(
        &mut self,
        engine: &dyn Engine,
        names: &BTreeMap<(VolumeNo, SnapshotNo), String>,
        why: &WhyUnreadable<'_>,
    ) -> Result<()> {
        let (mut kept, mut listed) = (0_u64, 0_u64);
        let mut unlisted: Option<(VolumeNo, u64)> = None;
        let damage = each(engine, Table::Kept, &mut |key, value| {
            let place = KeptKey::parse(key)?;
            kept += 1;
            if engine
                .get(Table::KeptBySnapshot, &place.encode_by_snapshot())?
                .is_none()
            {
                let (_, count) = unlisted.get_or_insert((place.volume_no, 0));
                *count += 1;
            }
            let Some(row) = extents_in(Table::Kept, key, value)? else {
                return Ok(ControlFlow::Continue(()));
            };
            let ino = place
                .rest
                .first_chunk()
                .map(|ino| Ino(u64::from_be_bytes(*ino)));
            let ino = ino.unwrap_or(Ino::NONE);
            self.count(row, why, &mut |found, why| {
                // The newest snapshot that has it and that is still there.
                let of = names.range(..=(place.volume_no, place.no)).next_back();
                let of = of.filter(|((volume_no, _), _)| *volume_no == place.volume_no);
                let of = of.map_or("a snapshot", |(_, name)| name.as_str());
                let what = format!("@{of}: inode {ino}: {why}");
                found.of_snapshots.push((place.volume_no, what));
            })?;
            Ok(ControlFlow::Continue(()))
        })?;
        let is_whole = damage.is_none();
        self.tell_damage(damage, Table::Kept);
        let damage = each(engine, Table::KeptBySnapshot, &mut |_, _| {
            listed += 1;
            Ok(ControlFlow::Continue(()))
        })?;
        let is_listed = damage.is_none();
        self.tell_damage(damage, Table::KeptBySnapshot);
        match unlisted {
            Some((volume_no, count)) => {
                let what = format!("{count} rows are kept for snapshots, and not listed");
                self.of_snapshots.push((volume_no, what));
            }
            None if is_whole && is_listed && kept != listed => {
                let what = format!("{listed} rows are listed for snapshots, {kept} are kept");
                self.of_snapshots.push((VolumeNo::default(), what));
            }
            None => {}
        }
        Ok(())
    }
}

/// Damage in a table.
struct Damage {
    volume_no: VolumeNo,
    what: String,
}

/// Visits the rows of a table that can be read. Returns the first damage.
fn each(engine: &dyn Engine, table: Table, visit: &mut VisitRow<'_>) -> Result<Option<Damage>> {
    let mut damage = None;
    let read = engine.scan_readable(table, &[], visit, &mut |key, error| {
        let volume_no = key
            .first_chunk()
            .map(|no| VolumeNo(u32::from_be_bytes(*no)));
        damage.get_or_insert(Damage {
            volume_no: volume_no.unwrap_or_default(),
            what: error.to_string(),
        });
        Ok(())
    });
    match read {
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            damage.get_or_insert(Damage {
                volume_no: VolumeNo::default(),
                what: error.to_string(),
            });
        }
        other => other?,
    }
    Ok(damage)
}
