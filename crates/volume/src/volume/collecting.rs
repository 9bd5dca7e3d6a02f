//! A collection in the store of an open volume.
//!
//! The server is the writer of the store. It collects in steps, between commits; passes over all
//! rows, and reading maps, are done beside them. While a hold lasts nothing is collected: a seal
//! finds blocks by the places that it was told, and an image that is being added may take blocks
//! that nothing else refers to.
//!
//! A reader of the volume finds a block by the row of the tables. So a segment may lose its file as
//! soon as the rows have moved, but not between the row and the bytes of a read: the file goes
//! under the gate.
//!
//! Writers go first: copies take no space that waiting changes need.

use super::Volume;
use super::hold::over;
use crate::layer::{COMMIT_SPACE, ROW_SPACE};
use crate::open_store::{OpenStore, Writing};
use crate::options::PlantedBug;
use parking_lot::MutexGuard;
use std::sync::{Arc, Weak};
use weald_format::{Error, ErrorKind, Result};
use weald_store::faults::{Bug, Faults};
use weald_store::{CollectOptions, Collected, Collection, Dead, NextCopy, Sorting, StoreWriter};

/// Blocks without references that one step removes.
const FORGET_COUNT: u64 = 1024;

/// Work of the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Writes blocks again of which the open volumes use a part.
    Settle,
    /// Removes images that were replaced and that nobody reads any more.
    Release,
    /// Chooses segments.
    Choose,
    /// Removes rows without references.
    Forget,
    /// Finds the blocks of the next segments.
    Find,
    /// Empties these segments.
    Empty,
    /// Rewrites the maps of these images.
    Renew(Vec<String>),
    /// Removes the files.
    Remove,
    Finish,
    Over,
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CollectStep {
    /// There is more to do.
    More,
    /// A hold lasts: nothing was done.
    Waiting,
    /// The collection is complete, or has come to the end that [`Collecting::stop`] asked for.
    Done,
}

/// A collection that is under way. If it is dropped, the next one continues.
#[derive(Debug)]
pub struct Collecting {
    shared: Weak<OpenStore>,
    collection: Collection,
    phase: Phase,
    /// The first error that did not stop the writer.
    error: Option<Error>,
    /// Keeps other collections away.
    _token: Arc<()>,
}

impl Volume {
    /// Begins a collection of the store.
    ///
    /// # Errors
    /// `Busy` while a hold or another collection lasts, or if the volume is being closed or cannot
    /// change; `Io` after a failure.
    pub fn begin_collection(&self, options: &CollectOptions) -> Result<Collecting> {
        Collecting::begin(&self.core.shared, options, options.copy_below_percent > 0)
    }
}

impl Collecting {
    /// Begins a collection of the store. With `settles`, blocks of which the open volumes use a
    /// part are written again first.
    ///
    /// # Errors
    /// As [`Volume::begin_collection`].
    pub(crate) fn begin(
        shared: &Arc<OpenStore>,
        options: &CollectOptions,
        settles: bool,
    ) -> Result<Self> {
        let mut collecting = Self::with(shared, |writer| Collection::begin(writer, options))?;
        collecting.phase = Phase::Release;
        if settles {
            collecting.phase = Phase::Settle;
            let volumes = shared.volumes();
            volumes.iter().for_each(|volume| volume.make_settling_due());
        }
        Ok(collecting)
    }

    /// Begins a sort of the store.
    ///
    /// # Errors
    /// As [`Volume::begin_collection`].
    pub(crate) fn begin_sort(shared: &Arc<OpenStore>, sorting: Sorting) -> Result<Self> {
        Self::with(shared, |writer| Collection::sort(writer, sorting))
    }

    fn with(
        shared: &Arc<OpenStore>,
        begin: impl FnOnce(&StoreWriter) -> Collection,
    ) -> Result<Self> {
        let mut writing = lock(shared)?.ok_or_else(|| {
            let what = "a volume of the store is being sealed, or an image is being added: try \
                        again when that has ended";
            Error::new(ErrorKind::Busy, what)
        })?;
        let token = writing.holds.begin_collection().ok_or_else(|| {
            let what = "the space of the store is being collected: try again when that has ended";
            Error::new(ErrorKind::Busy, what)
        })?;
        Ok(Self {
            shared: Arc::downgrade(shared),
            collection: begin(&writing.writer),
            phase: Phase::Choose,
            error: None,
            _token: token,
        })
    }
}

impl OpenStore {
    /// Fails if a commit of `rows` rows and `len` bytes takes space that waiting changes need. Only
    /// rows may take from the reserve.
    fn admit_copy(&self, len: u64, rows: u64) -> Result<()> {
        let has_room = match len {
            0 => self.removable_rows()? >= rows,
            _ => {
                self.refresh_free()?;
                let dirty = self.space_of_others(None);
                let rows = COMMIT_SPACE.saturating_add(rows.saturating_mul(ROW_SPACE));
                let wanted = len.saturating_add(rows).saturating_add(dirty);
                self.free_len() >= wanted
            }
        };
        if has_room {
            Ok(())
        } else {
            let what = "the disk of the store has no room for copies: what needs none is done";
            Err(Error::new(ErrorKind::Full, what))
        }
    }
}

impl Collecting {
    /// Figures of the work so far.
    pub fn done(&self) -> &Collected {
        self.collection.done()
    }

    /// Leaves out the work that is not needed for an end.
    pub fn stop(&mut self) {
        self.collection.stop();
        self.phase = match self.phase {
            Phase::Settle | Phase::Release | Phase::Choose | Phase::Forget | Phase::Find => {
                Phase::Finish
            }
            ref phase => phase.clone(),
        };
    }

    /// Does the next step.
    ///
    /// # Errors
    /// `Busy` if the volume was closed; `Io`, `Full`, `Corrupt`. An error that did not stop the
    /// writer comes at the end, after all that can be done.
    pub fn step(&mut self) -> Result<CollectStep> {
        let shared = self.shared.upgrade().ok_or_else(over)?;
        match self.try_step(&shared) {
            Ok(CollectStep::Done) => match self.error.take() {
                Some(error) => Err(error),
                None => Ok(CollectStep::Done),
            },
            Err(error) if self.may_end(&shared) => {
                let is_first = self.error.is_none();
                self.error.get_or_insert(error);
                self.stop();
                // Without a new map, an image needs the files of the emptied segments. A second
                // error is that of a disk that lists no names.
                if self.phase != Phase::Empty || !is_first {
                    self.phase = Phase::Finish;
                }
                Ok(CollectStep::More)
            }
            other => other,
        }
    }

    /// Whether a step that failed may be followed by those that end the collection.
    fn may_end(&self, shared: &OpenStore) -> bool {
        shared.lock_writer().is_ok() && self.phase != Phase::Finish
    }

    fn try_step(&mut self, shared: &Arc<OpenStore>) -> Result<CollectStep> {
        let engine = shared.reader.engine();
        // A pass over all rows must not keep the store open for long after its volumes.
        let check = || {
            if shared.is_closed() {
                Err(over())
            } else {
                Ok(())
            }
        };
        match &mut self.phase {
            Phase::Settle => {
                if lock(shared)?.is_none() {
                    return Ok(CollectStep::Waiting);
                }
                let volumes = shared.volumes();
                if !volumes.iter().any(|volume| volume.settle_after_commit()) {
                    self.phase = Phase::Release;
                }
            }
            Phase::Release => {
                if lock(shared)?.is_none() {
                    return Ok(CollectStep::Waiting);
                }
                self.phase = Phase::Choose;
                shared.release_replaced()?;
            }
            Phase::Choose => {
                let tables = (&shared.store, engine);
                self.collection.find_damaged_maps(tables, &check)?;
                let Some(mut writing) = lock(shared)? else {
                    return Ok(CollectStep::Waiting);
                };
                shared.removable_rows()?;
                let chosen = self.collection.choose(&mut writing.writer);
                shared.noted(&writing, chosen)?;
                drop(writing);
                self.collection.find_dead(engine, &check)?;
                self.phase = Phase::Forget;
            }
            Phase::Forget if self.collection.dead_count() == 0 => self.phase = Phase::Find,
            Phase::Forget => return self.forget(shared),
            Phase::Find => {
                self.phase = if self.collection.find_group(engine, &check)? {
                    Phase::Empty
                } else {
                    Phase::Finish
                };
            }
            Phase::Empty if self.collection.next_copy() == NextCopy::None => {
                self.phase = if self.collection.has_emptied() {
                    Phase::Renew(shared.store.names_of_maps()?)
                } else {
                    Phase::Find
                };
            }
            Phase::Empty => return self.empty(shared),
            Phase::Renew(names) => {
                let Some(name) = names.pop() else {
                    self.phase = Phase::Remove;
                    return Ok(CollectStep::More);
                };
                if !is_renewed(&self.collection, shared, &name)? {
                    names.push(name);
                    return Ok(CollectStep::Waiting);
                }
            }
            Phase::Remove => return self.remove(shared),
            Phase::Finish => {
                self.collection.finish(&shared.store, engine)?;
                self.phase = Phase::Over;
            }
            Phase::Over => return Ok(CollectStep::Done),
        }
        Ok(CollectStep::More)
    }

    fn forget(&mut self, shared: &OpenStore) -> Result<CollectStep> {
        let Some(mut writing) = lock(shared)? else {
            return Ok(CollectStep::Waiting);
        };
        let count = shared.removable_rows()?.min(FORGET_COUNT) as usize;
        let keep = &mut |dead: &[Dead]| shared.reader.keep_removed_rows(dead);
        let forgotten = self
            .collection
            .forget_some(&mut writing.writer, count, keep);
        let dead = shared.noted(&writing, forgotten)?;
        let freed = shared.free(&writing, &dead);
        freed.and_then(|()| shared.refresh_free())?;
        Ok(CollectStep::More)
    }

    fn empty(&mut self, shared: &OpenStore) -> Result<CollectStep> {
        let Some(mut writing) = lock(shared)? else {
            return Ok(CollectStep::Waiting);
        };
        if let NextCopy::Work { len, rows } = self.collection.next_copy() {
            shared.admit_copy(len, rows)?;
        }
        let (faults, writer) = (shared.faults, &mut writing.writer);
        PlantedBug::SegmentRemovedEarly.plant(faults, writer, Bug::SegmentRemovedEarly);
        PlantedBug::MovedBeforeData.plant(faults, writer, Bug::MetadataBeforeData);
        let keep = &mut |dead: &[Dead]| shared.reader.keep_removed_rows(dead);
        let emptied = self.collection.empty_some(writer, keep);
        if faults.has(PlantedBug::MovedBeforeData) {
            writer.faults = Faults::default();
        }
        shared.noted(&writing, emptied)?;
        Ok(CollectStep::More)
    }

    fn remove(&mut self, shared: &OpenStore) -> Result<CollectStep> {
        let Some(mut writing) = lock(shared)? else {
            return Ok(CollectStep::Waiting);
        };
        let removed = {
            let _gate = shared.gate.write();
            shared.reader.close_segments();
            shared.reader.forget_removed_rows();
            self.collection.remove_emptied(&mut writing.writer)
        };
        shared.noted(&writing, removed)?;
        shared.refresh_free()?;
        self.phase = Phase::Find;
        Ok(CollectStep::More)
    }
}

/// The right to change the store between two commits, unless a hold lasts.
fn lock(shared: &OpenStore) -> Result<Option<MutexGuard<'_, Writing>>> {
    let writing = shared.lock_writer()?;
    if shared.faults.has(PlantedBug::HeldBlocksMoved) {
        return Ok(Some(writing));
    }
    let is_held = writing.holds.has_readers();
    Ok((!is_held).then_some(writing))
}

/// Rewrites the map of the image `name`, if it names an emptied segment. Returns false while a hold
/// lasts.
fn is_renewed(collection: &Collection, shared: &OpenStore, name: &str) -> Result<bool> {
    if shared.faults.has(PlantedBug::MapsNotRenewed) {
        return Ok(true);
    }
    if !collection.has_moved(&shared.store, name)? {
        return Ok(true);
    }
    let Some(mut writing) = lock(shared)? else {
        return Ok(false);
    };
    let renewed = collection.renew(&mut writing.writer, name);
    shared.noted(&writing, renewed)?;
    Ok(true)
}
