//! Salvage: rebuilds the metadata of a store from its image maps and segments.
//!
//! Maps list the blocks of an image with their digests; segments list the records that they
//! contain. Only volumes need the old tables. All rows that can be read are taken over, `tree`
//! makes a tree of them, and what is lost is listed. The old file stays as `meta.old`.
//!
//! A block that cannot be read keeps its row, so that references are counted, a writer can open the
//! store, and all works again when a missing segment is back. Such a row never names space in which
//! another record lies.

mod block_ids;
mod logged;
mod losses;
mod read_past;
mod restore;
mod segments;
mod tables;
mod tree;
mod volumes;

pub use losses::{Loss, Names, path_of};
pub use volumes::LastCommit;

use crate::damaged_blocks::DamagedBlocks;
use crate::disk::Access;
use crate::engine::{Batch, Engine, Table, key_of, number_of};
use crate::journal::{Journal, TablesState};
use crate::layout;
use crate::mark::Mark;
use crate::role::Role;
use crate::store::{Store, create_engine, is_bad_file, open_engine};
use crate::volume::NEXT_VOLUME_NO;
use crate::writer;
use logged::Logged;
use restore::Restored;
use segments::Segments;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tables::{Counters, OldTables};
use volumes::OldVolume;
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::store::{
    BlockRow, ImageMap, ImageRow, ImageState, Location, MAP_LEN_MAX, Part, SEGMENT_SUPERBLOCK_LEN,
    SegmentRow,
};
use weald_format::volume::VolumeRow;
use weald_format::{BlockId, CommitNo, Digest, Error, ErrorKind, Result, SegmentNo, VolumeNo};

/// Options of a salvage.
#[derive(Debug, Clone, Default)]
pub struct SalvageOptions {
    /// Name of this writer, for the error of a second one.
    pub writer_name: String,
    /// Do not read the data of blocks, only their headers.
    pub skips_data: bool,
}

/// An image of which something is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DamagedImage {
    /// Its name.
    pub name: String,
    /// What is wrong.
    pub what: String,
    /// What is lost, by path. A salvage of a store alone does not know it.
    pub losses: Vec<Loss>,
}

/// A volume of which something is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DamagedVolume {
    /// Its name.
    pub name: String,
    /// What is lost.
    pub losses: Vec<Loss>,
    /// Number of files and directories that got a name in `lost+found`.
    pub adopted_count: u64,
    /// Its last commit that is there, if later ones are lost.
    pub last_commit: Option<LastCommit>,
}

/// Results of a salvage.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// The commit with which the tables end, if they were made again from the journal.
    pub restored_commit: Option<CommitNo>,
    /// Names of the complete images.
    pub images: Vec<String>,
    /// The images of which blocks cannot be read. The rest of them can be read.
    pub damaged: Vec<DamagedImage>,
    /// Names of the images whose maps cannot be read, each with the reason. Their maps are renamed
    /// to a name that ends in `.damaged`.
    pub set_aside: Vec<(String, String)>,
    /// Names of the volumes of which nothing is lost.
    pub volumes: Vec<String>,
    /// The other volumes. They stay, with all that can be read.
    pub damaged_volumes: Vec<DamagedVolume>,
    /// Names of volumes of which nothing can be read.
    pub lost_volumes: Vec<String>,
    /// Number of blocks that images and volumes refer to.
    pub block_count: u64,
    /// Number of these blocks that cannot be read.
    pub lost_block_count: u64,
    /// Number of segments.
    pub segment_count: u64,
    /// Bytes of records that were read and compared with their digests.
    pub verified_len: u64,
}

/// Blocks and segments of the new tables.
#[derive(Default)]
struct Remains {
    /// Rows of blocks, and why some cannot be read.
    blocks: BTreeMap<BlockId, BlockRow>,
    lost: BTreeMap<BlockId, String>,
    next_block: BlockId,
    /// The segment that does not exist, where blocks lie of which nothing is known.
    nowhere: SegmentNo,
    nowhere_len: u64,
}

impl Salvaged {
    /// Adds a loss of the volume `name`, which may have been complete so far.
    pub fn add_loss(&mut self, name: &str, loss: Loss) {
        self.volumes.retain(|whole| whole != name);
        let damaged = &mut self.damaged_volumes;
        match damaged.iter_mut().find(|volume| volume.name == name) {
            Some(volume) => volume.losses.push(loss),
            None => damaged.push(DamagedVolume {
                name: name.to_owned(),
                losses: vec![loss],
                ..DamagedVolume::default()
            }),
        }
    }

    fn add_lost_snapshots(&mut self, name: &str, snapshots: &[String]) {
        if snapshots.is_empty() {
            return;
        }
        let names: Vec<String> = snapshots.iter().map(|name| format!("@{name}")).collect();
        let loss = Loss {
            why: format!(
                "{} is damaged, and {} cannot make its rows again",
                layout::META,
                layout::JOURNAL
            ),
            ..Loss::new(format!("its snapshots {}", names.join(", ")))
        };
        self.add_loss(name, loss);
    }

    /// Number of images and volumes of which something is lost.
    pub fn damaged_count(&self) -> usize {
        let image_count = self.damaged.len() + self.set_aside.len();
        image_count + self.damaged_volumes.len() + self.lost_volumes.len()
    }
}

impl Remains {
    /// A place in no segment for a record of `len` bytes.
    fn no_place(&mut self, len: u64) -> Location {
        let offset = self.nowhere_len;
        self.nowhere_len += HEADER_LEN as u64 + len;
        Location {
            segment: self.nowhere,
            offset,
        }
    }

    /// A row of a block with `len` bytes of which nothing is known: reads of it fail, and its
    /// references are counted.
    fn unknown_row(&mut self, len: u64) -> BlockRow {
        BlockRow {
            location: self.no_place(len),
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

    fn new_id(&mut self) -> BlockId {
        let id = self.next_block;
        self.next_block = id.next();
        id
    }

    /// Why the first `end` decoded bytes of a block cannot be read.
    fn why_lost(&self, id: BlockId, end: u64) -> Option<String> {
        match self.blocks.get(&id) {
            None => Some(format!("block {id} is not known")),
            Some(row) if row.record.raw_len < end => Some(format!("block {id} is another one")),
            Some(_) => self.lost.get(&id).cloned(),
        }
    }

    fn count(&mut self, id: BlockId, references: u64) {
        if let Some(row) = self.blocks.get_mut(&id) {
            row.references += references;
        }
    }

    /// Rows of the segments that are there, and of those that blocks name.
    fn segment_rows(&self, segments: &Segments) -> BTreeMap<SegmentNo, SegmentRow> {
        let there = segments.by_number.iter();
        let mut rows: BTreeMap<SegmentNo, SegmentRow> = there
            .map(|(number, segment)| {
                let row = SegmentRow {
                    len: segment.end,
                    notes_len: segment.notes_len,
                    is_lost: segment.is_damaged,
                    ..SegmentRow::default()
                };
                (*number, row)
            })
            .collect();
        for row in self.blocks.values().filter(|row| row.references > 0) {
            let number = row.location.segment;
            let segment = rows.entry(number).or_insert(SegmentRow {
                len: SEGMENT_SUPERBLOCK_LEN as u64,
                is_lost: true,
                ..SegmentRow::default()
            });
            segment.live_len += row.len();
            segment.len = segment.len.max(row.location.offset + row.len());
        }
        rows
    }
}

/// Volumes of the old tables.
#[derive(Default)]
struct OldVolumes {
    volumes: Vec<OldVolume>,
    /// All rows of blocks.
    blocks: BTreeMap<BlockId, BlockRow>,
    counters: Counters,
}

impl Store {
    /// Rebuilds the metadata from maps and segments, and the rows of volumes from the old tables.
    ///
    /// # Errors
    /// `Busy` if a writer has the lock; `Io`, `Full`. The old metadata then stays in place.
    ///
    /// # Cost
    /// Reads all data that images and volumes refer to; with `skips_data`, the headers of all
    /// records. About 200 bytes of memory for each record and each row of volumes.
    pub fn salvage(&self, options: &SalvageOptions) -> Result<Salvaged> {
        let disk = &*self.disk;
        match disk.open(layout::LOCK, Access::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                disk.open(layout::LOCK, Access::CreatePrivate)?;
            }
            // The lock says what is wrong with an existing file.
            _ => {}
        }
        let _lock = crate::writer_lock::lock(self, &options.writer_name)?;
        if self.role()? == Role::Standby {
            let what = "is a standby: 'weald replica follow' makes it whole again";
            return Err(Error::invalid(format!("{}: {what}", disk.shown())));
        }
        self.refuse_tiers_away()?;
        let mut segments = Segments::scan(self)?;
        let restored = self.restore_tables(&segments)?;
        let restored_commit = restored.map(|restored| restored.commit);
        let is_whole = match &restored {
            Some(restored) => !restored.lacks_rows,
            None => self.has_whole_tables()?,
        };
        let mut old = self.old_volumes(&segments, is_whole)?;
        let mut salvaged = Salvaged {
            restored_commit,
            ..Salvaged::default()
        };
        let mut found = Remains::default();
        let images = self.blocks_of_images(&mut found, &mut salvaged)?;
        let last_segment = segments.by_number.keys().next_back().copied();
        let last_segment = last_segment.max(segments.unreadable.last().copied());
        let named = found.blocks.values().chain(old.blocks.values());
        let last_segment = named
            .map(|row| row.location.segment)
            .chain(last_segment)
            .max();
        found.nowhere = last_segment
            .unwrap_or_default()
            .next()
            .max(old.counters.next_segment);
        found.nowhere_len = SEGMENT_SUPERBLOCK_LEN as u64;
        blocks_of_volumes(&segments, &mut old, &mut found);
        found.lost = segments.locate(self, &mut found.blocks, !options.skips_data)?;
        for (id, why) in &mut found.lost {
            let row = found.blocks.get(id);
            if row.is_some_and(|row| row.location.segment == found.nowhere) {
                *why = format!("the row of block {id} is lost");
            }
        }
        for id in found.lost.keys().copied().collect::<Vec<_>>() {
            if let Some(row) = found.blocks.get(&id).copied()
                && !segments.is_own_space(&row)
            {
                let location = found.no_place(row.record.stored_len);
                found.blocks.insert(id, BlockRow { location, ..row });
            }
        }
        let missing = match restored {
            Some(Restored {
                lacks_rows: true, ..
            }) => Some(Loss {
                why: format!("{} and {} are damaged", layout::META, layout::JOURNAL),
                ..Loss::new("what no other row tells of".to_owned())
            }),
            Some(Restored {
                lacks_commits: true,
                commit,
                ..
            }) => Some(Loss {
                why: format!("{} is damaged behind it", layout::JOURNAL),
                ..Loss::new(format!(
                    "its changes after commit {commit} of the store, if there were any"
                ))
            }),
            _ => self.missing_commits(&segments, &old.counters),
        };
        let logs = old.volumes.iter();
        let logs = logs.map(|volume| Logged::read(self, volume));
        let logs = logs.collect::<Result<Vec<_>>>()?;
        let new_logs = salvage_volumes((&mut old, &logs), &mut found, missing, &mut salvaged);
        for volume in old.volumes.iter().filter(|volume| volume.is_shown()) {
            salvaged.add_lost_snapshots(&volume.key, &volume.lost_snapshots);
        }
        let is_there = |name: &String| old.volumes.iter().any(|volume| volume.key == *name);
        salvaged.lost_volumes = self.volume_names()?;
        salvaged.lost_volumes.retain(|name| !is_there(name));
        let mut rows = Vec::new();
        for name in images {
            let row = self.salvage_image(&name, &mut found, &mut salvaged)?;
            rows.push((name, row));
        }
        found.blocks.retain(|_, row| row.references > 0);
        salvaged.block_count = found.blocks.len() as u64;
        let lost = found.lost.keys().filter(|id| found.blocks.contains_key(id));
        salvaged.lost_block_count = lost.count() as u64;
        salvaged.segment_count = segments.by_number.len() as u64;
        salvaged.verified_len = segments.verified_len;
        segments.renew_superblocks(self)?;
        let damaged = DamagedBlocks::default();
        for (id, why) in found
            .lost
            .iter()
            .filter(|(id, _)| found.blocks.contains_key(id))
        {
            damaged.note(*id, why);
        }
        let numbers: Vec<VolumeNo> = old.volumes.iter().map(|v| v.row.volume_no).collect();
        self.keep_logs(&numbers)?;
        self.write_metadata((&found, &segments), &rows, old)?;
        // The damaged tables stay; those that the journal gave are none that anybody needs.
        if restored_commit.is_none() {
            match disk.rename(layout::META, layout::META_OLD) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        disk.rename(layout::META_NEW, layout::META)?;
        disk.sync_dir("")?;
        self.renew_journal()?;
        for (row, body) in &new_logs {
            self.replace_sync_log(row, body)?;
        }
        for (name, _) in &salvaged.set_aside {
            disk.switch(&layout::map(name), &layout::damaged_map(name))?;
        }
        damaged.write(self)?;
        for name in &salvaged.lost_volumes {
            disk.switch(&layout::volume(name), &layout::damaged_volume(name))?;
        }
        Ok(salvaged)
    }

    fn read_map(&self, name: &str) -> Result<ImageMap> {
        let bytes = self.read_object(&layout::map(name), MAP_LEN_MAX)?;
        self.parse_map(name, &bytes)
    }

    /// Adds the blocks that maps name. Returns the images whose maps can be read.
    fn blocks_of_images(
        &self,
        found: &mut Remains,
        salvaged: &mut Salvaged,
    ) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut shown = BTreeSet::new();
        let mut found_names = self.names_of_maps()?;
        found_names.sort_by_key(|name| layout::replaced_image(name).is_some());
        for name in found_names {
            match self.read_map(&name) {
                // Its replacement was not committed.
                Ok(map) if !shown.insert(map.image_no) => {}
                Ok(map) => {
                    for (id, location, record) in map.blocks() {
                        found.blocks.entry(id).or_insert(BlockRow {
                            location,
                            references: 0,
                            record: *record,
                        });
                    }
                    names.push(name);
                }
                Err(error) if is_bad_file(&error) => {
                    salvaged.set_aside.push((name, error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(names)
    }

    /// Counts the references of an image, and rewrites its map if blocks have moved.
    fn salvage_image(
        &self,
        name: &str,
        found: &mut Remains,
        salvaged: &mut Salvaged,
    ) -> Result<ImageRow> {
        let mut map = self.read_map(name)?;
        let (mut is_changed, mut lost_count, mut why) = (false, 0u64, String::new());
        for part in &mut map.parts {
            let Part::Block { id, location, .. } = part else {
                continue;
            };
            found.count(*id, 1);
            if let Some(row) = found.blocks.get(id) {
                is_changed |= row.location != *location;
                *location = row.location;
            }
            if let Some(reason) = found.lost.get(id) {
                lost_count += 1;
                why.clone_from(reason);
            }
        }
        match lost_count {
            // Nobody finds it by a name.
            _ if layout::replaced_image(name).is_some() => {}
            0 => salvaged.images.push(name.to_owned()),
            _ => {
                let of = map.blocks().count();
                let what = format!("{lost_count} of {of} blocks cannot be read: {why}");
                salvaged.damaged.push(DamagedImage {
                    name: name.to_owned(),
                    what,
                    losses: Vec::new(),
                });
            }
        }
        let new = map.encode(self.superblock.uuid);
        if is_changed {
            let hidden = layout::hidden_map(map.image_no);
            self.disk.put(&hidden, &new)?;
            self.disk.switch(&hidden, &layout::map(name))?;
        }
        Ok(ImageRow {
            image_no: map.image_no,
            map_digest: Digest::of(&new),
            state: ImageState::Present,
            counted_parts: map.parts.len() as u64,
        })
    }

    /// Reads the rows of volumes from the old tables, which alone have them.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if there are volumes and no row of any can be read.
    fn old_volumes(&self, segments: &Segments, is_whole: bool) -> Result<OldVolumes> {
        let names = self.volume_names()?;
        match self.read_volumes(segments, is_whole) {
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

    fn read_volumes(&self, segments: &Segments, is_whole: bool) -> Result<OldVolumes> {
        let mut old = OldTables::open(self)?;
        let mut volumes = OldVolumes {
            counters: old.counters()?,
            ..OldVolumes::default()
        };
        for (key, value) in old.read(Table::Blocks, &[])? {
            if let (Some(id), Ok(row)) = (number_of(&key), BlockRow::parse(&value)) {
                volumes.blocks.insert(BlockId(id), row);
            }
        }
        // Damage can hide that the tables are those of this store, but not that they fit.
        if !volumes.counters.names_store && !volumes.blocks.values().any(|row| segments.has(row)) {
            let what = format!("{}: belongs to another store", layout::META);
            return Err(Error::corrupt("store metadata", 0, "S-5.1", what));
        }
        volumes.volumes = OldVolume::read_all(self, &mut old, is_whole)?;
        Ok(volumes)
    }

    /// Renames the sync logs of volumes that are lost, which the next writer would remove.
    fn keep_logs(&self, volumes: &[VolumeNo]) -> Result<()> {
        for volume_no in self.sync_logs()? {
            if !volumes.contains(&volume_no) {
                let name = layout::sync_log(volume_no);
                self.disk.rename(&name, &format!("{name}.damaged"))?;
                self.disk.sync_dir(layout::VOLUMES)?;
            }
        }
        Ok(())
    }

    /// What is lost if the tables are older than the rest of the store. A note of the next commit
    /// may be one of a commit that did not succeed.
    fn missing_commits(&self, segments: &Segments, counters: &Counters) -> Option<Loss> {
        let known = counters.commit;
        let marked = Mark::read(self).unwrap_or_default();
        let is_older = marked > known || segments.commit > known.next();
        // Tables without the number may be damaged just there.
        let newest = marked.max(segments.commit);
        (is_older && known > CommitNo::default()).then(|| Loss {
            why: format!("{} ends with commit {known}", layout::META),
            ..Loss::new(format!(
                "its changes in the commits of the store up to {newest}"
            ))
        })
    }

    /// The newest commit of which anything tells.
    fn newest_commit(&self, noted: CommitNo, known: CommitNo) -> CommitNo {
        let marked = Mark::read(self).unwrap_or_default();
        noted.max(known).max(marked)
    }

    fn write_metadata(
        &self,
        (found, segments): (&Remains, &Segments),
        images: &[(String, ImageRow)],
        old: OldVolumes,
    ) -> Result<()> {
        let disk = &*self.disk;
        disk.remove_if_there(layout::META_NEW)?;
        let engine = create_engine(disk, layout::META_NEW, self.superblock.uuid)?;
        let mut batch = Batch::default();
        for (id, row) in &found.blocks {
            batch.put(Table::Blocks, &id.key(), row.encode());
            if batch.0.len() >= 1 << 16 {
                engine.commit(&std::mem::take(&mut batch))?;
            }
        }
        for (number, row) in found.segment_rows(segments) {
            batch.put(Table::Segments, &key_of(number.0), row.encode());
        }
        let mut next_image = 1;
        for (name, row) in images {
            next_image = next_image.max(row.image_no.0.saturating_add(1));
            batch.put(Table::Images, name.as_bytes(), row.encode());
        }
        let counters = old.counters;
        let numbers = old.volumes.iter().map(|volume| volume.row.volume_no);
        let numbers = numbers.chain(self.sync_logs()?);
        let next_volume_no = numbers.map(|number| u64::from(number) + 1).max();
        let next_volume_no = next_volume_no.unwrap_or(1).max(counters.next_volume_no);
        for volume in old.volumes {
            for change in volume.into_batch().0 {
                batch.0.push(change);
                if batch.0.len() >= 1 << 16 {
                    engine.commit(&std::mem::take(&mut batch))?;
                }
            }
        }
        // The next segment is a new one: nothing is appended to one whose end may be wrong.
        for (key, value) in [
            (writer::NEXT_BLOCK, found.next_block.0),
            (writer::NEXT_SEGMENT, found.nowhere.next().next().0),
            (writer::NEXT_IMAGE, next_image),
            (NEXT_VOLUME_NO, next_volume_no),
            (
                writer::COMMIT,
                self.newest_commit(segments.commit, counters.commit)
                    .next()
                    .0,
            ),
        ] {
            batch.put(Table::Counters, key, value.to_le_bytes().to_vec());
        }
        engine.commit(&batch)
    }

    /// Makes the journal of the new tables.
    fn renew_journal(&self) -> Result<()> {
        let engine = open_engine(&*self.disk, self.superblock.uuid, false)?;
        let commit = writer::known_counter(&engine, writer::COMMIT)?;
        let tables = TablesState {
            commit: CommitNo(commit.unwrap_or(0)),
            sum: engine.row_sum()?,
        };
        let engine: Arc<dyn Engine> = Arc::new(engine);
        match Journal::renew(self, tables, &engine) {
            Err(error) if error.is_failed_write() => Err(error),
            // The next writer makes it.
            Err(error) => {
                log::warn!("{}/{}: {error}", self.disk.shown(), layout::JOURNAL);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

/// Adds the blocks that volumes refer to: from their rows, from the order of records, or as lost.
fn blocks_of_volumes(segments: &Segments, old: &mut OldVolumes, found: &mut Remains) {
    let mut known = block_ids::between(segments, &old.blocks, old.counters.next_block);
    let noted = segments.noted.iter();
    known.extend(noted.map(|(id, (_, row))| (*id, *row)));
    let ids = found
        .blocks
        .keys()
        .chain(old.blocks.keys())
        .chain(known.keys());
    let next = ids.max().map_or(BlockId(1), |last| last.next());
    found.next_block = next.max(old.counters.next_block);
    for volume in &mut old.volumes {
        let mut renamed = BTreeMap::new();
        for (id, references) in volume.references() {
            let row = old.blocks.get(&id).or_else(|| known.get(&id));
            // Those of the old tables are counted again.
            let row = row.map(|row| BlockRow {
                references: 0,
                ..*row
            });
            match (found.blocks.get(&id), row) {
                // Tables that are older than the maps: the number was given away again.
                (Some(of_map), Some(row)) if of_map.record != row.record => {
                    let new = found.new_id();
                    renamed.insert(id, new);
                    found.blocks.insert(new, row);
                }
                (Some(_), _) => {}
                (None, Some(row)) => drop(found.blocks.insert(id, row)),
                (None, None) => {
                    found.next_block = found.next_block.max(id.next());
                    let row = found.unknown_row(references.len);
                    found.blocks.insert(id, row);
                }
            }
        }
        volume.rename_blocks(&renamed);
    }
}

/// Repairs volumes, and counts their references. Returns the logs that get another record: the row
/// of the volume, and the body of the record.
fn salvage_volumes(
    (old, logs): (&mut OldVolumes, &[Logged]),
    found: &mut Remains,
    missing: Option<Loss>,
    salvaged: &mut Salvaged,
) -> Vec<(VolumeRow, Vec<u8>)> {
    let mut new_logs = Vec::new();
    for (volume, logged) in old.volumes.iter_mut().zip(logs) {
        // One that is being made or removed goes.
        if volume.is_shown() {
            let mut unknown = Vec::new();
            let first = found.next_block;
            let mut repaired = tree::repair(
                volume,
                logged,
                tree::Blocks {
                    why_lost: &|id, end| found.why_lost(id, end),
                    lost_block: &mut |len| {
                        unknown.push(len);
                        first.moved(unknown.len() as i64 - 1)
                    },
                },
            );
            for len in unknown {
                let id = found.new_id();
                let row = found.unknown_row(len.into());
                found.blocks.insert(id, row);
                found.lost.insert(id, "its row is lost".to_owned());
            }
            let body = repaired.log_body.take();
            new_logs.extend(body.map(|body| (volume.row.clone(), body)));
            let last_commit = missing.as_ref().and_then(|_| volume.last_commit());
            repaired.losses.extend(missing.clone());
            if repaired.losses.is_empty() {
                salvaged.volumes.push(volume.key.clone())
            } else {
                salvaged.damaged_volumes.push(DamagedVolume {
                    name: volume.key.clone(),
                    losses: repaired.losses,
                    adopted_count: repaired.adopted_count,
                    last_commit,
                })
            }
        }
        for (id, references) in volume.references() {
            found.count(id, references.count);
        }
    }
    new_logs
}
