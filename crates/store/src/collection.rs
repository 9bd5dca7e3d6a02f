//! A collection in steps, between which the writer of the store does other things: it commits for a
//! volume, and readers find blocks in segments that the collection empties.
//!
//! The order is that of [`crate::collect`]. Rows of blocks without references go first. Then come
//! groups of segments. For each segment, the live blocks are appended elsewhere in slices, which
//! change no row; one commit then moves the rows and marks the segment as emptied. The maps that
//! name a segment of the group are rewritten, and only then its files are removed. The caller keeps
//! readers of rows out of that last step.
//!
//! Each step looks at the rows again: a block may have died, or found a new use. A segment that has
//! changed in another way is left to the next collection. So is one whose copies have lost their
//! segment.
//!
//! A *sort* is a collection of segments that the caller names, whose blocks are divided into
//! classes: all blocks of a class are copied before those of the next one, and each class begins a
//! segment. So what belongs on one tier comes to lie in segments of its own, which then move as a
//! whole.

use crate::collect::{CollectOptions, Collected, debt, suspect_maps};
use crate::engine::{Batch, Engine, Table, key_of};
use crate::faults::Bug;
use crate::layout::{self, ObjectKind};
use crate::segment::{self, read_record};
use crate::steps::Steps;
use crate::store::Store;
use crate::volume::Dead;
use crate::writer::{StoreWriter, each_row};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use weald_format::store::{BlockRow, ImageState, Location, Part, SegmentRow};
use weald_format::{BlockId, ErrorKind, Result, SegmentNo};

/// Class of the blocks that a sort names in no other one: the last.
const REST: u8 = u8::MAX;

/// What a sort does: see the head of this file.
#[derive(Debug, Clone, Default)]
pub struct Sorting {
    /// Segments to empty. Those that are missing, or were emptied meanwhile, are left out.
    pub segments: BTreeSet<SegmentNo>,
    /// Classes of blocks, below 255; all other blocks come last.
    pub classes: BTreeMap<BlockId, u8>,
}

/// A segment that is being emptied.
#[derive(Debug)]
struct Victim {
    number: SegmentNo,
    /// Its blocks, by class and offset.
    ids: BTreeMap<(u8, u64), BlockId>,
    /// Whether all live blocks can be read.
    is_verified: bool,
    /// Class and offset of the first block that was not looked at.
    next: (u8, u64),
    /// New places of its live blocks.
    copies: BTreeMap<BlockId, Location>,
}

/// A collection that is under way. Dropped before its end, it leaves copies that nothing refers to
/// and emptied segments, which the next writer or collection removes.
#[derive(Debug)]
pub struct Collection {
    options: CollectOptions,
    /// The blocks to sort, if this is a sort.
    sorting: Option<Sorting>,
    /// Class of the blocks that were copied last.
    class: Option<u8>,
    steps: Steps,
    done: Collected,
    /// Blocks without references.
    dead: VecDeque<BlockId>,
    /// Segments to empty, those first that free the most.
    victims: VecDeque<SegmentNo>,
    /// Those of the present group.
    group: VecDeque<Victim>,
    emptied: BTreeSet<SegmentNo>,
    /// Images whose maps may be damaged: nothing is copied if one is.
    suspects: Vec<String>,
}

/// Work of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextCopy {
    /// Bytes to append, and rows to change.
    Work {
        /// Bytes that the step appends at most.
        len: u64,
        /// Rows that the step changes.
        rows: u64,
    },
    /// All segments of the group are empty.
    None,
}

impl Collection {
    /// Begins a collection in the store of `writer`.
    pub fn begin(writer: &StoreWriter, options: &CollectOptions) -> Self {
        Self {
            options: *options,
            sorting: None,
            class: None,
            steps: writer.options().steps,
            done: Collected::default(),
            dead: VecDeque::new(),
            victims: VecDeque::new(),
            group: VecDeque::new(),
            emptied: BTreeSet::new(),
            suspects: Vec::new(),
        }
    }

    /// Begins a sort in the store of `writer`.
    pub fn sort(writer: &StoreWriter, sorting: Sorting) -> Self {
        Self {
            sorting: Some(sorting),
            ..Self::begin(writer, &CollectOptions::default())
        }
    }

    /// Figures of the work so far.
    pub fn done(&self) -> &Collected {
        &self.done
    }

    /// Finds the blocks without references, beside the writer. `check` is called for each row. A
    /// sort leaves them to the next collection.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; those of `check`.
    /// # Cost
    /// One pass over the rows of blocks; eight bytes of memory for each that it finds.
    pub fn find_dead(&mut self, engine: &dyn Engine, check: &dyn Fn() -> Result<()>) -> Result<()> {
        if self.sorting.is_some() {
            return Ok(());
        }
        each_row(engine, Table::Blocks, &mut |id, value| {
            check()?;
            if BlockRow::parse(value)?.references == 0 {
                self.dead.push_back(BlockId(id));
            }
            Ok(())
        })
    }

    /// Number of rows of blocks without references that are left.
    pub fn dead_count(&self) -> u64 {
        self.dead.len() as u64
    }

    /// Removes the rows of some blocks without references, after `before_commit` saw them. Returns
    /// those outside of the segments to empty, whose space the caller frees.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    pub fn forget_some(
        &mut self,
        writer: &mut StoreWriter,
        count_max: usize,
        before_commit: &mut dyn FnMut(&[Dead]),
    ) -> Result<Vec<Dead>> {
        let count = count_max.min(self.dead.len());
        let ids: BTreeSet<BlockId> = self.dead.drain(..count).collect();
        let dead = writer.forget_unused(&ids, before_commit)?;
        self.done.blocks_forgotten += dead.len() as u64;
        let mut freed = dead;
        let victims: BTreeSet<SegmentNo> = self.victims.iter().copied().collect();
        freed.retain(|(_, row)| !victims.contains(&row.location.segment));
        self.done.punched_len += crate::volume::punched_len(&freed);
        Ok(freed)
    }

    /// Finds the images whose maps may be damaged or missing, beside the writer, before
    /// [`Collection::choose`]. `check` is called for each image.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; those of `check`.
    /// # Cost
    /// Reads all maps.
    pub fn find_damaged_maps(
        &mut self,
        (store, engine): (&Store, &dyn Engine),
        check: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        self.suspects = suspect_maps(store, engine, check)?;
        Ok(())
    }

    /// The first step: chooses the segments to empty, beside a damaged map only those without live
    /// blocks. From now on nothing is appended to them.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    pub fn choose(&mut self, writer: &mut StoreWriter) -> Result<()> {
        writer.refuse_after_failure(|writer| {
            // Commits waiting rows first, so that the tables have all.
            writer.commit(Batch::default())?;
            self.done.maps_damaged = writer.damaged_map_count(&self.suspects)?;
            let victims = match &self.sorting {
                Some(_) if self.done.maps_damaged > 0 => Vec::new(),
                Some(sorting) => writer.sortable(&sorting.segments)?,
                None => {
                    let chosen = writer.choose_victims(&self.options, self.done.maps_damaged)?;
                    chosen.into_iter().map(|(number, _)| number).collect()
                }
            };
            if !victims.is_empty() {
                writer.begin_new_segment();
            }
            self.victims = victims.into();
            Ok(())
        })
    }

    /// Leaves out all work that is not needed to end: segments whose rows have not moved stay.
    pub fn stop(&mut self) {
        self.dead.clear();
        self.victims.clear();
        self.group.clear();
    }

    /// Begins the next group of segments, beside the writer. Returns false at the end. `check` is
    /// called for each row of a block.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; those of `check`.
    /// # Cost
    /// One pass over the rows of blocks; about 50 bytes of memory for each block of the group.
    pub fn find_group(
        &mut self,
        engine: &dyn Engine,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<bool> {
        let count = self.victims.len().min(self.steps.segment_count);
        let numbers: Vec<SegmentNo> = self.victims.drain(..count).collect();
        if numbers.is_empty() {
            return Ok(false);
        }
        let classes = self.sorting.as_ref().map(|sorting| &sorting.classes);
        let mut blocks: BTreeMap<SegmentNo, BTreeMap<(u8, u64), BlockId>> = numbers
            .iter()
            .map(|number| (*number, BTreeMap::new()))
            .collect();
        each_row(engine, Table::Blocks, &mut |id, value| {
            check()?;
            let location = BlockRow::parse(value)?.location;
            if let Some(ids) = blocks.get_mut(&location.segment) {
                let class = classes.and_then(|classes| classes.get(&BlockId(id)));
                let class = class.copied().unwrap_or(REST);
                ids.insert((class, location.offset), BlockId(id));
            }
            Ok(())
        })?;
        self.group = numbers
            .into_iter()
            .map(|number| Victim {
                number,
                ids: blocks.remove(&number).unwrap_or_default(),
                is_verified: false,
                next: (0, 0),
                copies: BTreeMap::new(),
            })
            .collect();
        Ok(true)
    }

    /// Work of the next call of [`Collection::empty_some`].
    pub fn next_copy(&self) -> NextCopy {
        match self.group.get(self.next_victim()) {
            None => NextCopy::None,
            Some(victim) => {
                if victim.has_more() {
                    NextCopy::Work {
                        len: if victim.is_verified {
                            self.steps.copy_len
                        } else {
                            0
                        },
                        rows: u64::from(victim.is_verified),
                    }
                } else {
                    NextCopy::Work {
                        len: 0,
                        rows: victim.copies.len() as u64 + 1,
                    }
                }
            }
        }
    }

    /// The segment of the group on which the next step works. A sort copies the lowest class that
    /// is left, of whichever segment.
    fn next_victim(&self) -> usize {
        if self.sorting.is_none() {
            return 0;
        }
        let victims = self.group.iter().enumerate();
        let next = victims.filter_map(|(at, victim)| {
            let (class, _) = victim.next_block()?;
            Some((victim.is_verified, class, at))
        });
        next.min().map_or(0, |(.., at)| at)
    }

    /// Before a sort copies a block of another class: begins a segment for it.
    fn begin_class(&mut self, writer: &mut StoreWriter, class: u8) -> Result<()> {
        if self.sorting.is_none() || self.class == Some(class) {
            return Ok(());
        }
        self.class = Some(class);
        if writer.faults.has(Bug::SortedClassesMixed) {
            return Ok(());
        }
        writer.close_newest_segment()
    }

    /// Copies some live blocks of a segment, or moves the rows of all to the copies and marks the
    /// segment as emptied. `before_commit` sees the blocks whose rows are removed.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`. A segment of which a live block cannot be read stays.
    pub fn empty_some(
        &mut self,
        writer: &mut StoreWriter,
        before_commit: &mut dyn FnMut(&[Dead]),
    ) -> Result<()> {
        let at = self.next_victim();
        let next = self.group.get(at).and_then(Victim::next_block);
        if let Some((class, _)) = next {
            if self.group.get(at).is_some_and(|victim| victim.is_verified) {
                self.begin_class(writer, class)?;
            }
            let Some(victim) = self.group.get_mut(at) else {
                return Ok(());
            };
            let goes_on = if victim.is_verified {
                victim.copy_some(writer, class)?
            } else {
                victim.verify_some(writer)?
            };
            if !goes_on {
                self.done.segments_kept += 1;
                self.group.remove(at);
            }
            return Ok(());
        }
        let Some(victim) = self.group.pop_front() else {
            return Ok(());
        };
        if let Some((len, copied_len, forgotten)) = victim.finish(writer, before_commit)? {
            self.done.segments_removed += 1;
            self.done.removed_len += len;
            self.done.copied_len += copied_len;
            self.done.blocks_forgotten += forgotten;
            self.emptied.insert(victim.number);
        }
        Ok(())
    }

    /// Whether segments were emptied whose files are there.
    pub fn has_emptied(&self) -> bool {
        !self.emptied.is_empty()
    }

    /// Whether the map of the image `name` names an emptied segment. Works beside the writer.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn has_moved(&self, store: &Store, name: &str) -> Result<bool> {
        let map = match store.map(name) {
            // The image was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        let is_emptied = |part: &Part| match part {
            Part::Block { location, .. } => self.emptied.contains(&location.segment),
            Part::Inline(_) => false,
        };
        Ok(map.parts.iter().any(is_emptied))
    }

    /// Rewrites the map of the image `name`.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    pub fn renew(&self, writer: &mut StoreWriter, name: &str) -> Result<()> {
        let Some(row) = writer.image_row(name)? else {
            return Ok(());
        };
        let is_left = self.sorting.is_some() && writer.faults.has(Bug::SortedMapsStay);
        if row.state != ImageState::Present || is_left {
            return Ok(());
        }
        writer.refuse_after_failure(|writer| writer.renew_map(name, row, Some(&self.emptied)))
    }

    /// Removes the files of the emptied segments, which no map names any more. No reader may be
    /// between the row of a block and its bytes.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn remove_emptied(&mut self, writer: &mut StoreWriter) -> Result<()> {
        let numbers = std::mem::take(&mut self.emptied);
        let mut left = Vec::new();
        for number in numbers {
            // Another collection may have removed it.
            if has_segment(writer, number)? && writer.segment_row(number)?.is_emptied {
                left.push(number);
            }
        }
        if left.is_empty() {
            Ok(())
        } else {
            writer.refuse_after_failure(|writer| writer.remove_segments(&left))
        }
    }

    /// The last step: counts what is left.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn finish(&mut self, store: &Store, engine: &dyn Engine) -> Result<()> {
        let mut dead = 0;
        each_row(engine, Table::Segments, &mut |number, value| {
            dead += debt(&*store.disk, SegmentNo(number), &SegmentRow::parse(value)?)?;
            Ok(())
        })?;
        self.done.dead_len = dead;
        Ok(())
    }
}

fn has_segment(writer: &StoreWriter, number: SegmentNo) -> Result<bool> {
    Ok(writer
        .tables()
        .get(Table::Segments, &key_of(number.0))?
        .is_some())
}

impl Victim {
    fn has_more(&self) -> bool {
        self.next_block().is_some()
    }

    /// Class and offset of the next block to look at.
    fn next_block(&self) -> Option<(u8, u64)> {
        let next = self.ids.range(self.next..).next();
        next.map(|(place, _)| *place)
    }

    /// Whether a sort has put a block of it into a class.
    fn is_sorted(&self) -> bool {
        let first = self.ids.keys().next();
        first.is_some_and(|(class, _)| *class < REST)
    }

    /// The row of block `id`, if the block still lies in this segment.
    fn row(&self, writer: &StoreWriter, id: BlockId) -> Result<Option<BlockRow>> {
        let row = writer.find_block_row(id)?;
        Ok(row.filter(|row| row.location.segment == self.number))
    }

    /// Verifies the next live blocks. Returns false if one cannot be read, which is noted.
    fn verify_some(&mut self, writer: &StoreWriter) -> Result<bool> {
        let file = match segment::open(&*writer.store().disk, self.number) {
            // The copy finds the same, and what has died meanwhile.
            Err(error) if error.is_unreadable() => None,
            other => Some(other?),
        };
        let mut len = 0;
        while let Some((&(class, offset), &id)) = self.ids.range(self.next..).next()
            && len < writer.options().steps.copy_len
        {
            self.next = (class, offset + 1);
            let row = self.row(writer, id)?.filter(|row| row.references > 0);
            let (Some(row), Some(file)) = (row, &file) else {
                continue;
            };
            len += row.len();
            if let Err(error) = read_record(&**file, row.location, &row.record) {
                writer.note_damaged(id, &error);
                writer.keep_damaged();
                return Ok(false);
            }
        }
        if !self.has_more() {
            (self.is_verified, self.next) = (true, (0, 0));
        }
        Ok(true)
    }

    /// Appends copies of the next live blocks of a class. Returns false if one cannot be read,
    /// which is noted.
    fn copy_some(&mut self, writer: &mut StoreWriter, class: u8) -> Result<bool> {
        let mut file = None;
        let mut len = 0;
        while let Some((&(of, offset), &id)) = self.ids.range(self.next..).next()
            && of == class
            && len < writer.options().steps.copy_len
        {
            self.next = (of, offset + 1);
            if class == REST && writer.faults.has(Bug::SortedRestLost) && self.is_sorted() {
                continue;
            }
            let Some(row) = self.row(writer, id)?.filter(|row| row.references > 0) else {
                continue;
            };
            if file.is_none() {
                file = match segment::open(&*writer.store().disk, self.number) {
                    Err(error) if error.is_unreadable() => {
                        log::warn!("{error}");
                        return Ok(false);
                    }
                    other => Some(other?),
                };
            }
            let Some(file) = &file else { continue };
            let stored = match read_record(&**file, row.location, &row.record) {
                Err(error) if error.is_unreadable() => {
                    writer.note_damaged(id, &error);
                    writer.keep_damaged();
                    return Ok(false);
                }
                other => other?,
            };
            let location =
                writer.refuse_after_failure(|writer| writer.append(id, &row.record, &stored))?;
            self.copies.insert(id, location);
            len += row.len();
        }
        writer.refuse_after_failure(|writer| writer.commit(Batch::default()))?;
        Ok(true)
    }

    /// Moves the rows of all live blocks to their copies and marks the segment as emptied, in one
    /// transaction. Returns its length, the bytes that moved and the number of removed blocks;
    /// nothing if the segment has to stay.
    fn finish(
        &self,
        writer: &mut StoreWriter,
        before_commit: &mut dyn FnMut(&[Dead]),
    ) -> Result<Option<(u64, u64, u64)>> {
        if !has_segment(writer, self.number)? {
            return Ok(None);
        }
        let segment = writer.segment_row(self.number)?;
        let (mut live, mut dead, mut live_len) = (Vec::new(), Vec::new(), 0);
        for &id in self.ids.values() {
            match self.row(writer, id)? {
                Some(row) if row.references > 0 => {
                    // A block that had died and found a new use has no copy.
                    let Some(location) = self.copies.get(&id) else {
                        if writer.faults.has(Bug::SortedRestLost) && self.is_sorted() {
                            live_len += row.len();
                            continue;
                        }
                        return Ok(None);
                    };
                    if !has_segment(writer, location.segment)? {
                        return Ok(None);
                    }
                    live_len += row.len();
                    live.push((id, row, *location));
                }
                Some(row) => dead.push((id, row)),
                None => {}
            }
        }
        if segment.live_len != live_len {
            let error = writer.other_live_len(self.number, segment.live_len, live_len);
            log::warn!("{error}");
            return Ok(None);
        }
        writer.refuse_after_failure(|writer| {
            let mut batch = Batch::default();
            for (id, row) in &dead {
                writer.forget_block(&mut batch, *id, &row.record.digest);
            }
            for (id, row, location) in live {
                let mut target = writer.segment_row(location.segment)?;
                target.live_len += row.len();
                writer.set_segment(location.segment, target);
                writer.set_block(id, BlockRow { location, ..row });
            }
            let emptied = SegmentRow {
                is_emptied: true,
                live_len: 0,
                ..segment
            };
            writer.set_segment(self.number, emptied);
            before_commit(&dead);
            if writer.faults.has(Bug::SegmentRemovedEarly) {
                let disk = &*writer.store().disk;
                disk.remove_object(&layout::segment(self.number))?;
                disk.settle(ObjectKind::Segment)?;
            }
            writer.commit(batch)
        })?;
        Ok(Some((segment.len, live_len, dead.len() as u64)))
    }
}
