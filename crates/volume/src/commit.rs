//! The commit of a layer: its bytes become blocks, its rows one transaction.
//!
//! One order: append → sync of the segment → commit of the tables → only then the space of
//! what became free is used again. `files` cuts changed files into pieces and runs, `pieces` one
//! window; `places` finds or makes a place for each run; `slow` limits the time of slow codecs;
//! `again` writes pieces of sparse blocks again; `rows` adds the rows. `work` is what one commit
//! gathers.

mod again;
mod files;
mod pieces;
mod places;
mod rows;
mod slow;
mod work;

use crate::core::Core;
use crate::create::codec_spec;
use crate::cut::Cuts;
use crate::garbage::{Gathered, Settling};
use crate::index::Index;
use crate::layer::Layer;
use crate::open_store::Writing;
use crate::options::PlantedBug;
use crate::parallel::Workers;
use crate::rebuild::Rebuild;
use crate::tables::Counts;
use parking_lot::MutexGuard;
use std::collections::BTreeSet;
use weald_format::volume::{VolumeRow, WindowPlace, inode_key, xattr_key};
use weald_format::{Ino, Result, VolumeNo};
use weald_store::Dead;
use weald_store::engine::{Batch, Table};
use weald_store::faults::Bug;
use work::Work;

/// Results of a commit.
#[derive(Debug, Default)]
pub struct Done {
    /// Blocks that nothing refers to any more.
    pub dead: Vec<Dead>,
    /// Changed windows.
    pub windows: Vec<WindowPlace>,
    /// Dropped inodes, sorted.
    pub dropped: Vec<Ino>,
}

/// Everything that only commits of one volume use.
pub struct Committer {
    /// Name of the volume.
    pub name: String,
    /// Its row, as of the last commit.
    pub row: VolumeRow,
    /// Whether the quotas of layers count attributes. Those that a crash left in the log may not.
    pub counts_attributes: bool,
    /// Dropped files whose rows are not all removed yet.
    pub drops: BTreeSet<Ino>,
    /// Places of bytes that are there.
    index: Index,
    /// How far the index was rebuilt after the mount.
    rebuild: Rebuild,
    /// Files that are cut by content.
    cuts: Cuts,
    workers: Workers,
    /// Blocks that are used in part.
    pub settling: Settling,
    /// Windows of which the next commit writes pieces again.
    again: Vec<WindowPlace>,
}

impl std::fmt::Debug for Committer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Committer").finish_non_exhaustive()
    }
}

impl Committer {
    /// Prepares commits of the volume `name`.
    pub fn new(name: &str, row: VolumeRow, workers: Workers, index_len: u64) -> Self {
        Self {
            name: name.to_owned(),
            row,
            counts_attributes: false,
            drops: BTreeSet::new(),
            workers,
            rebuild: Rebuild::default(),
            cuts: Cuts::default(),
            settling: Settling::default(),
            again: Vec::new(),
            index: Index::new(index_len),
        }
    }

    /// Notes the next packed pieces in the index. Returns whether there are more.
    pub fn rebuild_step(&mut self, core: &Core) -> bool {
        // Another volume may return the space of blocks meanwhile.
        let _gate = core.shared.gate.read();
        let engine = core.shared.reader.engine();
        self.rebuild.step(core, engine, &mut self.index)
    }

    /// Looks for windows that the next commit writes again. Returns whether that commit or another
    /// look is worth it, and whether the commit is.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn find_garbage(&mut self, core: &Core) -> Result<(bool, bool)> {
        let windows_max = self.windows_at_once(core)?;
        let volume = (core.tables.volume_no(), core.tables.chunk_len());
        let engine = core.shared.reader.engine();
        match self.settling.next(engine, volume, windows_max)? {
            Gathered::Nothing => Ok((false, false)),
            Gathered::More => Ok((true, false)),
            Gathered::Windows(windows) => {
                self.again = windows;
                Ok((true, true))
            }
        }
    }

    /// Makes `layer` durable. The writer is held from the first block to the transaction.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`: nothing can be committed after an error.
    pub fn commit(
        &mut self,
        core: &Core,
        writing: &mut MutexGuard<'_, Writing>,
        layer: &Layer,
    ) -> Result<Done> {
        let mut work = Work::new(&mut writing.writer);
        work.usual_codec = codec_spec(&self.row)?;
        let mut files = Vec::with_capacity(layer.files.len());
        let usual = core.usual_chunking(layer)?;
        for (ino, map) in &layer.files {
            if !matches!(layer.inodes.get(ino), Some(None)) {
                files.push((core.rules(layer, *ino, usual)?, *ino, map));
            }
        }
        // Runs of several files share a pack, which has one codec.
        files.sort_by_key(|(rules, ..)| rules.codec.map(|codec| format!("{codec:?}")));
        for (rules, ino, map) in files {
            work.rules = rules;
            self.cut_file(core, &mut work, ino, map)?;
        }
        self.write_again(core, &mut work, layer, usual)?;
        self.place_runs(core, &mut work)?;
        work.close_pack();
        self.store_blocks(core, &mut work)?;
        put_rows(core.tables.volume_no(), layer, &mut work.batch);
        self.put_windows(core, &mut work)?;
        self.drop_files(core, layer, &mut work)?;
        let row = self.put_log(layer, &mut work.batch);
        plant(core, &mut work)?;
        let Work {
            counts,
            batch,
            windows,
            mut dropped,
            ..
        } = work;
        #[cfg(test)]
        if core.has_bug(PlantedBug::WriterReleased) {
            MutexGuard::unlocked(writing, || core.hook.reach(crate::hook::Stage::Written))
        } else {
            core.hook.reach(crate::hook::Stage::Written)
        }
        let keep = &mut |dead: &[Dead]| core.shared.reader.keep_removed_rows(dead);
        core.shared.plant_holds(writing, core.tables.volume_no());
        let dead = writing.writer.commit_counts(&counts, batch, keep)?;
        self.row = row;
        dropped.sort_unstable();
        let windows = windows.iter().map(|(place, _)| *place);
        Ok(Done {
            dead,
            windows: windows.collect(),
            dropped,
        })
    }
}

/// Makes the deliberate bugs of a commit.
fn plant(core: &Core, work: &mut Work<'_>) -> Result<()> {
    let first = |counts: &Counts, is_up: bool| {
        let mut hits = counts.iter().filter(|(_, change)| (**change > 0) == is_up);
        hits.next().map(|(id, _)| *id)
    };
    if core.has_bug(PlantedBug::LostIncrement)
        && let Some(id) = first(&work.counts, true)
    {
        work.counts.entry(id).and_modify(|change| *change -= 1);
    }
    if core.has_bug(PlantedBug::LostDecrement)
        && let Some(id) = first(&work.counts, false)
    {
        work.counts.entry(id).and_modify(|change| *change += 1);
    }
    if core.has_bug(PlantedBug::FreedBeforeCommit) {
        let dead = work.writer.blocks_without_references(&work.counts)?;
        work.writer.free(&dead)?;
    }
    let faults = core.options.faults;
    PlantedBug::MetadataBeforeData.plant(faults, work.writer, Bug::MetadataBeforeData);
    Ok(())
}

/// Adds the rows of a layer.
pub fn put_rows(volume_no: VolumeNo, layer: &Layer, batch: &mut Batch) {
    let mut set = |table, key: Vec<u8>, value: Option<Vec<u8>>| match value {
        Some(value) => batch.put(table, &key, value),
        None => batch.remove(table, &key),
    };
    for (ino, row) in &layer.inodes {
        let value = row.as_ref().map(|row| row.encode());
        set(Table::Inodes, inode_key(volume_no, *ino), value);
    }
    for (place, row) in &layer.names {
        let value = row.as_ref().map(|row| row.encode());
        set(Table::Names, place.key(volume_no), value);
    }
    for ((ino, name), value) in &layer.xattrs {
        if !matches!(layer.inodes.get(ino), Some(None)) {
            let value = value.as_ref().map(|value| value.to_vec());
            set(Table::Xattrs, xattr_key(volume_no, *ino, name), value);
        }
    }
    for (ino, is_orphan) in &layer.orphans {
        let value = is_orphan.then(Vec::new);
        set(Table::Orphans, inode_key(volume_no, *ino), value);
    }
    for (dir, row) in &layer.quotas {
        let value = row.map(|row| row.encode());
        set(Table::Quotas, inode_key(volume_no, *dir), value);
    }
}
