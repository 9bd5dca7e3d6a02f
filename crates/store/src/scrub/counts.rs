//! Recounts references and live bytes on the tables of one commit.

use super::view::TablesView;
use crate::check::{Extents, wrong_in_map, wrong_live_lens, wrong_references};
use crate::engine::{Engine, Table, VisitRow, number_of};
use crate::layout;
use crate::store::is_bad_or_missing;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use weald_format::snapshot::SnapshotsRow;
use weald_format::store::{BlockRow, ImageState, MAP_LEN_MAX, SegmentRow};
use weald_format::{BlockId, Digest, ErrorKind, Result, SegmentNo, VolumeNo};

/// Something that was counted wrong: the image or volume, what, and the block that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong {
    pub of: Option<String>,
    pub what: String,
    pub blocks: Vec<BlockId>,
}

/// The result of a recount.
#[derive(Debug)]
pub(super) enum Counted {
    Wrong(Vec<Wrong>),
    /// Something was being changed, so that the count says nothing, and what.
    Inconclusive(&'static str),
}

/// Reads the rows of a table that can be read. Returns whether these are all.
fn read_rows(engine: &dyn Engine, table: Table, visit: &mut VisitRow<'_>) -> Result<bool> {
    let mut is_whole = true;
    let read = engine.scan_readable(table, &[], visit, &mut |_, _| {
        is_whole = false;
        Ok(())
    });
    match read {
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(false),
        other => other.map(|()| is_whole),
    }
}

/// Whether the rows of an image or of a volume are being changed in steps.
fn is_changing(view: &TablesView) -> Result<Option<&'static str>> {
    let images = view.images.rows.iter();
    if images
        .into_iter()
        .any(|(_, row)| row.state != ImageState::Present)
    {
        return Ok(Some("an image is being added or removed"));
    }
    let mut is_rolled_back = false;
    read_rows(view.rows(), Table::Snapshots, &mut |key, value| {
        let of = weald_format::snapshot::split_snapshot_key(key)?;
        if of.1 == weald_format::SnapshotNo::NONE {
            is_rolled_back |= SnapshotsRow::parse(value)?.rollback.is_some();
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(is_rolled_back.then_some("a volume is being rolled back"))
}

/// Counts all references, and compares them with the rows of blocks and segments.
pub(super) fn count(view: &TablesView) -> Result<Counted> {
    if let Some(why) = is_changing(view)? {
        return Ok(Counted::Inconclusive(why));
    }
    let (mut blocks, mut segments) = (BTreeMap::new(), BTreeMap::new());
    let are_blocks_whole = read_rows(view.rows(), Table::Blocks, &mut |key, value| {
        if let Some(id) = number_of(key).map(BlockId) {
            blocks.insert(id, BlockRow::parse(value)?);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    read_rows(view.rows(), Table::Segments, &mut |key, value| {
        if let Some(number) = number_of(key).map(SegmentNo) {
            segments.insert(number, SegmentRow::parse(value)?);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    let mut counting = Counting {
        blocks,
        references: BTreeMap::new(),
        wrong: Vec::new(),
        is_partial: !view.images.damaged.is_empty() || !view.volumes.damaged.is_empty(),
    };
    if !counting.count_images(view)? {
        return Ok(Counted::Inconclusive("images were changed"));
    }
    counting.count_volumes(view)?;
    let Counting {
        blocks,
        references,
        mut wrong,
        is_partial,
    } = counting;
    let mut counted = wrong_references(&blocks, &references, is_partial);
    counted.append(&mut wrong_live_lens(&blocks, &segments, !are_blocks_whole));
    wrong.extend(counted.into_iter().map(|what| Wrong {
        of: None,
        what,
        blocks: Vec::new(),
    }));
    Ok(Counted::Wrong(wrong))
}

/// A count that is under way.
struct Counting {
    blocks: BTreeMap<BlockId, BlockRow>,
    references: BTreeMap<BlockId, u64>,
    wrong: Vec<Wrong>,
    /// Whether references of something that cannot be read are not counted.
    is_partial: bool,
}

impl Counting {
    /// Counts what the maps refer to. Returns false if a map is newer than the tables.
    fn count_images(&mut self, view: &TablesView) -> Result<bool> {
        for (name, row) in &view.images.rows {
            if layout::is_replaced_key(name) {
                continue;
            }
            let map = view.store.read_object(&layout::map(name), MAP_LEN_MAX);
            let map = match map {
                Err(error) if is_bad_or_missing(&error) => {
                    self.is_partial = true;
                    continue;
                }
                other => other?,
            };
            let is_committed = Digest::of(&map) == row.map_digest;
            let Ok(map) = view.store.parse_map(name, &map) else {
                self.is_partial = true;
                continue;
            };
            if !is_committed {
                return Ok(false);
            }
            for (id, location, record) in map.blocks() {
                *self.references.entry(id).or_default() += 1;
                let why = match self.blocks.get(&id) {
                    None => Some(format!("block {id} has no row")),
                    Some(row) => wrong_in_map(id, row, location, record),
                };
                if let Some(what) = why {
                    self.wrong.push(Wrong {
                        of: Some(name.clone()),
                        what,
                        blocks: vec![id],
                    });
                }
            }
        }
        Ok(true)
    }

    /// Counts what volumes and snapshots refer to.
    fn count_volumes(&mut self, view: &TablesView) -> Result<()> {
        let lacking: RefCell<BTreeMap<BlockId, String>> = RefCell::default();
        let blocks = &self.blocks;
        let found = Extents::read(view.rows(), &|id, end| {
            let why = match blocks.get(&id) {
                None => format!("block {id} has no row"),
                Some(row) if row.record.raw_len < end => {
                    format!("a piece ends behind block {id}")
                }
                Some(_) => return None,
            };
            lacking.borrow_mut().insert(id, why);
            None
        })?;
        self.is_partial |= !found.is_whole;
        for (id, count) in found.references {
            *self.references.entry(id).or_default() += count;
        }
        for (id, what) in lacking.into_inner() {
            self.wrong.push(Wrong {
                of: None,
                what,
                blocks: vec![id],
            });
        }
        let name_of = |no: VolumeNo| {
            let mut rows = view.volumes.rows.iter();
            let found = rows.find(|(_, row)| row.volume_no == no);
            found.map(|(name, _)| name.clone())
        };
        let of_snapshots = found.of_snapshots.into_iter();
        self.wrong.extend(of_snapshots.map(|(no, what)| Wrong {
            of: name_of(no),
            what,
            blocks: Vec::new(),
        }));
        Ok(())
    }
}
