//! What a store has that it has not sent to its replica.

use crate::engine::{Change, Engine, Table};
use crate::journal::{SummedRows, TablesState};
use crate::layout;
use crate::salvage::{Names, path_of};
use crate::store::Store;
use crate::writer::{COMMIT, known_counter};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weald_format::volume::{NamePlace, NameRow, VolumeRow, split_key};
use weald_format::{CommitNo, Ino, Result, VolumeNo};

/// Most paths of a volume that are named.
const PATHS_MAX: usize = 1000;

/// What was never sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Commits after the one that was sent last.
    pub commit_count: u64,
    /// Images that were added, changed or removed.
    pub images: BTreeSet<String>,
    /// Volumes that were changed, made or removed.
    pub volumes: BTreeMap<String, UnsentVolume>,
}

/// What was never sent of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnsentVolume {
    /// Files and directories that were made, changed or removed.
    pub inode_count: u64,
    /// Paths of those that are there, without a slash in front, as far as they are named.
    pub paths: Vec<Vec<u8>>,
    /// Whether there is a sync log, which may have more.
    pub has_log: bool,
}

impl Unsent {
    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.commit_count == 0 && self.images.is_empty() && self.volumes.is_empty()
    }

    /// The state of the tables.
    pub(super) fn of_state(engine: &dyn Engine) -> Result<TablesState> {
        Ok(TablesState {
            commit: CommitNo(known_counter(engine, COMMIT)?.unwrap_or(0)),
            sum: engine.row_sum()?,
        })
    }

    /// What sync logs may have, which are there until a volume is unmounted.
    pub(super) fn of_logs(store: &Store) -> Result<Self> {
        let mut unsent = Self::default();
        for volume_no in store.sync_logs()? {
            let name = store.volume_with(volume_no)?;
            unsent.volumes.entry(name).or_default().has_log = true;
        }
        Ok(unsent)
    }

    /// Compares the tables with those that were sent; without any, all is unsent.
    pub(super) fn of(
        store: &Store,
        engine: &dyn Engine,
        sent: Option<(CommitNo, &SummedRows)>,
    ) -> Result<Self> {
        let mut unsent = Self::of_logs(store)?;
        let none = SummedRows::default();
        let (commit, rows) = sent.unwrap_or((CommitNo(0), &none));
        let last = Self::of_state(engine)?.commit;
        unsent.commit_count = last.0.saturating_sub(commit.0).max(1);
        let mut names = BTreeMap::new();
        engine.scan(Table::Volumes, &[], &mut |key, value| {
            if let Ok(row) = VolumeRow::parse(value) {
                names.insert(row.volume_no, String::from_utf8_lossy(key).into_owned());
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let mut inodes: BTreeMap<VolumeNo, BTreeSet<Ino>> = BTreeMap::new();
        for Change { table, key, .. } in rows.differences(engine)? {
            let name = || String::from_utf8_lossy(&key).into_owned();
            match table {
                // It was replaced: what replaced it is named.
                Table::Images if layout::replaced_image(&name()).is_some() => {}
                Table::Images => {
                    unsent
                        .images
                        .insert(layout::strip_replaced(&name()).to_owned());
                }
                Table::Volumes if !layout::is_replaced_key(&name()) => {
                    unsent.volumes.entry(name()).or_default();
                }
                Table::Inodes | Table::Extents | Table::Xattrs | Table::Names => {
                    if let Ok((volume_no, ino, _)) = split_key(&key) {
                        inodes.entry(volume_no).or_default().insert(ino);
                    }
                }
                _ => {}
            }
        }
        for (volume_no, inodes) in inodes {
            let name = names.get(&volume_no).cloned();
            let name = name.unwrap_or_else(|| format!("(volume {volume_no})"));
            let volume = unsent.volumes.entry(name).or_default();
            volume.inode_count = inodes.len() as u64;
            volume.paths = paths(engine, volume_no, &inodes)?;
        }
        Ok(unsent)
    }
}

/// Paths of inodes of a volume, sorted.
fn paths(engine: &dyn Engine, volume_no: VolumeNo, inodes: &BTreeSet<Ino>) -> Result<Vec<Vec<u8>>> {
    let mut names = Names::new();
    engine.scan(Table::Names, &volume_no.to_be_bytes(), &mut |key, value| {
        let (of, place) = NamePlace::split_key(key)?;
        if of != volume_no {
            return Ok(ControlFlow::Break(()));
        }
        let row = NameRow::parse(value)?;
        names.entry(row.ino).or_insert((place.dir, row.name));
        Ok(ControlFlow::Continue(()))
    })?;
    let root = Ino::ROOT;
    let named = inodes.iter().filter_map(|ino| names.get(ino));
    let mut paths: Vec<_> = named
        .take(PATHS_MAX)
        .map(|(dir, name)| path_of(&names, root, *dir, name))
        .collect();
    paths.sort_unstable();
    Ok(paths)
}

impl Store {
    /// Name of the volume with this number, or words for it.
    fn volume_with(&self, volume_no: VolumeNo) -> Result<String> {
        for name in self.volume_names()? {
            let row = self.first_volume_row(&name).ok().flatten();
            if row.is_some_and(|row| row.volume_no == volume_no) {
                return Ok(name);
            }
        }
        Ok(format!("(volume {volume_no})"))
    }
}
