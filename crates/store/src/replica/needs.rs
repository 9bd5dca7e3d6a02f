//! What the rows of a state need that a standby does not have, and the files that have it.

use super::gather::needs_map;
use super::restore::{Block, Path, unreadable};
use crate::disk::Access;
use crate::engine::{Change, Engine, Table, key_of, number_of};
use crate::faults::{Bug, Faults};
use crate::journal::SummedRows;
use crate::layout;
use crate::store::{Store, is_bad_or_missing};
use std::collections::{BTreeMap, BTreeSet};
use weald_format::replica::{DataFile, DataKind, ItemHeader};
use weald_format::store::{
    BlockRow, ImageRow, MAP_LEN_MAX, SEGMENT_SUPERBLOCK_LEN, SegmentRow, check_segment_superblock,
};
use weald_format::{BlockId, Digest, Result, SegmentNo};

/// Rows that change, and where what they need is.
pub(super) struct Changed<'a> {
    pub header: ItemHeader,
    pub changes: Vec<Change>,
    pub path: Path<'a>,
    /// All rows, if these were compared: files of data may be needed or not.
    pub all: Option<SummedRows>,
}

/// What changed rows need.
#[derive(Default)]
pub(super) struct Needs {
    /// Lengths of the segments whose rows changed.
    pub lens: BTreeMap<SegmentNo, u64>,
    /// Blocks that are new, or that lie elsewhere; also those that nothing refers to, because new
    /// contents may become them.
    pub blocks: Vec<Block>,
    images: Vec<(String, ImageRow)>,
    /// Blocks whose places are needed no more.
    pub dead: Vec<Block>,
}

impl Needs {
    fn add_image(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let row = ImageRow::parse(value)?;
        if needs_map(&row) {
            let name = String::from_utf8_lossy(key).into_owned();
            self.images.push((name, row));
        }
        Ok(())
    }
}

impl<'p> Changed<'p> {
    /// What changed rows need that is not known to be here.
    pub fn needs(
        &self,
        store: &Store,
        engine: Option<&dyn Engine>,
        faults: Faults<Bug>,
    ) -> Result<Needs> {
        let mut needs = Needs::default();
        // Maps may be damaged, or those of another history.
        if let Some(rows) = &self.all
            && store.own_lens()?.is_some()
        {
            for ((table, key), value) in rows.rows() {
                if *table == Table::Images {
                    needs.add_image(key, value)?;
                }
            }
        }
        for Change { table, key, value } in &self.changes {
            let old = match (engine, table) {
                (Some(engine), Table::Blocks) => engine.get(Table::Blocks, key).ok().flatten(),
                _ => None,
            };
            let old = old.and_then(|value| BlockRow::parse(&value).ok());
            let Some(value) = value else {
                let id = BlockId(number_of(key).unwrap_or_default());
                needs.dead.extend(old.map(|old| (id, old)));
                continue;
            };
            match table {
                Table::Segments => {
                    let row = SegmentRow::parse(value)?;
                    // A segment is in the tables before its file is made.
                    let is_empty = row.len <= SEGMENT_SUPERBLOCK_LEN as u64;
                    if let Some(number) = number_of(key)
                        && !row.is_emptied
                        && !is_empty
                    {
                        needs.lens.insert(SegmentNo(number), row.len);
                    }
                }
                Table::Blocks => {
                    let row = BlockRow::parse(value)?;
                    let id = BlockId(number_of(key).unwrap_or_default());
                    let moved = old.filter(|old| old.location != row.location);
                    needs.dead.extend(moved.map(|old| (id, old)));
                    // A block that nothing referred to may be nowhere.
                    let is_here = old.is_some_and(|old| {
                        let is_same = old.record == row.record || faults.has(Bug::OwnBlockKept);
                        old.location == row.location && is_same && old.references > 0
                    });
                    if !is_here {
                        needs.blocks.push((id, row));
                    }
                }
                Table::Images => needs.add_image(key, value)?,
                _ => {}
            }
        }
        Ok(needs)
    }

    /// Files with bytes of segments that have to be read, in order.
    pub fn wanted_segments(
        &self,
        store: &Store,
        needs: &Needs,
        faults: Faults<Bug>,
    ) -> Result<Vec<&'p DataFile>> {
        let mut files: Vec<(&DataFile, (SegmentNo, u64, u64))> = Vec::new();
        for file in self.path.files() {
            if let DataKind::Segment {
                number,
                offset,
                len,
            } = file.kind
            {
                files.push((file, (number, offset, offset.saturating_add(len))));
            }
        }
        let Some(rows) = &self.all else {
            files.retain(|(_, (number, ..))| needs.lens.contains_key(number));
            return Ok(files.into_iter().map(|(file, _)| file).collect());
        };
        files.retain(|(_, (number, ..))| rows.has(Table::Segments, &key_of(number.0)));
        let mut is_wanted = vec![false; files.len()];
        let mut of_segment: BTreeMap<SegmentNo, Vec<usize>> = BTreeMap::new();
        for (index, (_, (number, ..))) in files.iter().enumerate() {
            of_segment.entry(*number).or_default().push(index);
        }
        let blocks = needs.blocks.iter().map(|(_, row)| row.location.segment);
        let segments: BTreeSet<SegmentNo> = blocks.chain(needs.lens.keys().copied()).collect();
        for number in segments {
            if has_segment(store, number)? {
                continue;
            }
            for &index in of_segment.get(&number).into_iter().flatten() {
                if let Some(wanted) = is_wanted.get_mut(index) {
                    *wanted = true;
                }
            }
        }
        // Other bytes than those of the replica may look alike.
        if let Some(own) = store.own_lens()?
            && !faults.has(Bug::OwnBlockKept)
        {
            for ((_, (number, _, end)), wanted) in files.iter().zip(&mut is_wanted) {
                *wanted |= own.get(number).is_none_or(|len| end > len);
            }
        }
        for ((_, row), _) in unreadable(&*store.disk, needs.blocks.clone()) {
            let (from, to) = (row.location.offset, row.location.offset + row.len());
            let of = of_segment.get(&row.location.segment).into_iter().flatten();
            for &index in of {
                if let Some((_, (_, offset, end))) = files.get(index)
                    && *offset < to
                    && from < *end
                    && let Some(wanted) = is_wanted.get_mut(index)
                {
                    *wanted = true;
                }
            }
        }
        // What is written again must not hide what came later.
        for indices in of_segment.values() {
            for (at, &index) in indices.iter().enumerate() {
                if is_wanted.get(index) != Some(&true) {
                    continue;
                }
                let Some(&(_, (_, from, to))) = files.get(index) else {
                    continue;
                };
                for &later in indices.iter().skip(at + 1) {
                    if let Some((_, (_, offset, end))) = files.get(later)
                        && *offset < to
                        && from < *end
                        && let Some(wanted) = is_wanted.get_mut(later)
                    {
                        *wanted = true;
                    }
                }
            }
        }
        let wanted = files.into_iter().zip(is_wanted);
        Ok(wanted
            .filter(|(_, is)| *is)
            .map(|((file, _), _)| file)
            .collect())
    }

    /// Files with maps that have to be read, and the images whose maps are nowhere.
    pub fn wanted_maps(
        &self,
        store: &Store,
        needs: &Needs,
    ) -> Result<(Vec<&'p DataFile>, Vec<String>)> {
        let (mut wanted, mut missing) = (Vec::new(), Vec::new());
        let mut by_digest = BTreeMap::new();
        for file in self.path.files() {
            if let DataKind::Map(image_no) = file.kind {
                by_digest.insert((file.digest.0, image_no), file);
            }
        }
        for (key, row) in &needs.images {
            let name = layout::strip_replaced(key);
            let is_here = |object| match store.read_object(&object, MAP_LEN_MAX) {
                Ok(bytes) => Ok(Digest::of(&bytes) == row.map_digest),
                Err(error) if is_bad_or_missing(&error) => Ok(false),
                Err(error) => Err(error),
            };
            if is_here(layout::map(name))? {
                continue;
            }
            // A hidden one that an interrupted call has left may not be durable.
            match by_digest.get(&(row.map_digest.0, row.image_no)) {
                Some(file) => wanted.push(*file),
                None if is_here(layout::hidden_map(row.image_no))? => {}
                None => missing.push(name.to_owned()),
            }
        }
        Ok((wanted, missing))
    }
}

/// Whether the file of a segment is here. What an interrupted call has written to it is durable
/// then.
fn has_segment(store: &Store, number: SegmentNo) -> Result<bool> {
    let name = layout::segment_file(number);
    let file = match store.disk.open(&name, Access::Write) {
        Err(error) if is_bad_or_missing(&error) => return Ok(false),
        other => other?,
    };
    file.read_anew()?;
    let mut superblock = [0; SEGMENT_SUPERBLOCK_LEN];
    let read = file.read_at(&mut superblock, 0);
    let uuid = store.uuid();
    let checked = read.and_then(|()| check_segment_superblock(&superblock, uuid, number));
    Ok(checked.is_ok())
}
