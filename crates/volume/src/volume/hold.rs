//! A state of an open volume that stays readable while the volume goes on: what a seal reads.
//!
//! A hold begins with a commit, whose state it keeps. The transaction of the tables stays until the
//! rows are copied, the blocks until the hold ends: those of the state have smaller numbers than
//! the block that comes next when it begins. If they lose their last reference meanwhile, they keep
//! rows and space; the end of the hold removes those that still have none. Newer blocks go as
//! without a hold. So nothing needs to be written for a hold, and after a crash they are blocks
//! without references as any other.
//!
//! On a full disk a hold is what a snapshot is: what it keeps is not free for writers until it
//! ends. Two holds end there instead: one whose rows are not copied yet, because the tables grow as
//! long as a transaction lasts, and one without a state, below which an image is added, because its
//! blocks are new ones.

use super::Volume;
use crate::changes::{ViewEngine, changed_states};
use crate::holds::IsOver;
use crate::open_store::{OpenStore, Writing};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use weald_format::volume::{ExtentsRow, VolumeRow, split_key};
use weald_format::{BlockId, Error, ErrorKind, Result, SnapshotNo, VolumeNo, limits};
use weald_store::engine::{Engine, ReadView, RowsWriter, Table};
use weald_store::{Dead, Snapshot, snapshot};

/// Tables whose rows belong to one volume and whose rows a seal reads.
const TABLES: [Table; 4] = [Table::Inodes, Table::Names, Table::Extents, Table::Xattrs];

/// A state of a volume, which stays readable until this is dropped or the volume is closed.
#[derive(Debug)]
pub struct Hold {
    pub(super) shared: Weak<OpenStore>,
    name: String,
    row: VolumeRow,
    view: Option<Box<dyn ReadView>>,
    /// The snapshot whose state it is, of the volume itself.
    snapshot: Option<(Weak<Volume>, SnapshotNo)>,
    pub(super) is_over: IsOver,
}

/// Numbers of blocks: a bit for each, in pages of 4096.
#[derive(Default)]
struct Ids(BTreeMap<u64, Box<[u64; 64]>>);

impl Ids {
    fn insert(&mut self, BlockId(id): BlockId) {
        let page = self.0.entry(id >> 12).or_insert_with(|| Box::new([0; 64]));
        if let Some(word) = page.get_mut((id >> 6 & 63) as usize) {
            *word |= 1 << (id & 63);
        }
    }

    fn contains(&self, BlockId(id): BlockId) -> bool {
        let page = self.0.get(&(id >> 12));
        let word = page.and_then(|page| page.get((id >> 6 & 63) as usize));
        word.is_some_and(|word| word >> (id & 63) & 1 == 1)
    }
}

impl Volume {
    /// Commits all changes and holds the state after them.
    ///
    /// # Errors
    /// As [`Volume::commit`]; `Busy` if the volume is being closed, or cannot change and has
    /// changes in its sync log.
    pub fn hold(self: &Arc<Self>) -> Result<Hold> {
        if let Some(of) = &self.snapshot {
            let name = self.committer.lock().name.clone();
            return self.hold_found(name, of.found.clone());
        }
        let mut committer = self.committer.lock();
        let mut writing = self.core.shared.writing.lock();
        self.refuse_closed(&writing)?;
        match self.core.options.is_read_only {
            false => self.commit_locked(&mut committer, &mut writing, false)?,
            true if self.core.state.read().active.is_changed => {
                let what = "the volume is mounted read-only, and a crash left changes in its log: \
                            mount it for writing first";
                return Err(Error::new(ErrorKind::Busy, what));
            }
            true => {}
        }
        let view = writing.writer.engine().read_view()?;
        Ok(Hold {
            shared: Arc::downgrade(&self.core.shared),
            name: committer.name.clone(),
            row: committer.row.clone(),
            view: Some(view),
            snapshot: None,
            is_over: begin_state(&mut writing, committer.row.volume_no, true),
        })
    }

    /// Holds the state of the snapshot `name` of this volume.
    ///
    /// # Errors
    /// `NotFound`; `Busy` if the volume is being closed; `Io`, `Corrupt`.
    pub fn hold_state_of(self: &Arc<Self>, name: &str) -> Result<Hold> {
        let engine = self.core.shared.reader.engine();
        let found = snapshot(engine, self.core.tables.volume_no(), name)?;
        let name = format!("{}@{name}", self.committer.lock().name);
        self.hold_found(name, found)
    }

    fn hold_found(self: &Arc<Self>, name: String, found: Snapshot) -> Result<Hold> {
        let committer = self.committer.lock();
        let mut writing = self.core.shared.writing.lock();
        self.refuse_closed(&writing)?;
        let engine = writing.writer.engine();
        Ok(Hold {
            shared: Arc::downgrade(&self.core.shared),
            name,
            view: Some(Box::new(found.view(engine))),
            snapshot: Some((Arc::downgrade(self), found.no)),
            row: found.volume,
            is_over: begin_state(&mut writing, committer.row.volume_no, false),
        })
    }

    /// Holds the blocks of the store, but no state: while an image is added.
    ///
    /// # Errors
    /// `Busy` if the volume is being closed.
    pub fn hold_blocks(self: &Arc<Self>) -> Result<Hold> {
        let committer = self.committer.lock();
        let mut writing = self.core.shared.writing.lock();
        self.refuse_closed(&writing)?;
        let is_over = writing.holds.begin(committer.row.volume_no, None, true);
        keep(&mut writing);
        Ok(Hold {
            shared: Arc::downgrade(&self.core.shared),
            name: committer.name.clone(),
            row: committer.row.clone(),
            view: None,
            snapshot: None,
            is_over,
        })
    }

    fn refuse_closed(&self, writing: &Writing) -> Result<()> {
        let volume_no = self.core.tables.volume_no();
        let is_open = match &self.snapshot {
            Some(of) => writing
                .open_snapshots
                .contains_key(&(volume_no, of.found.no)),
            None => writing.open.contains(&volume_no),
        };
        if is_open { Ok(()) } else { Err(over()) }
    }

    /// Ends the holds of the store that give way to a writer who needs space.
    pub(super) fn end_yielding(&self) -> Result<()> {
        let shared = &self.core.shared;
        shared.end_yielding(&mut shared.writing.lock())
    }
}

/// Begins to hold the state that the tables have, or an older one. With `yields` it ends when a
/// writer needs space.
fn begin_state(writing: &mut Writing, volume_no: VolumeNo, yields: bool) -> IsOver {
    let below = writing.writer.next_block_id();
    let is_over = writing.holds.begin(volume_no, Some(below), yields);
    keep(writing);
    is_over
}

/// Lets the writer keep what one more hold needs.
fn keep(writing: &mut Writing) {
    let below = writing.holds.below();
    let ids = writing.writer.held().keep_below(below);
    // They go with the hold that ends next.
    writing.writer.held().note(ids);
}

impl OpenStore {
    fn end_hold(&self, reader: &IsOver) {
        let mut writing = self.writing.lock();
        writing.holds.end(reader);
        if !writing.holds.has_readers() {
            writing.writer.drop_index();
        }
        // A failure is kept in the state, and every later call reports it.
        let _ = self.forget_unheld(&mut writing);
    }

    /// Ends the holds of the volume with this number, because it is closed.
    pub(super) fn close_holds(&self, writing: &mut Writing, volume_no: VolumeNo) -> Result<()> {
        writing.holds.end_of(volume_no);
        self.forget_unheld(writing)
    }

    /// Ends the holds that give way, because a writer needs space.
    pub(super) fn end_yielding(&self, writing: &mut Writing) -> Result<()> {
        writing.holds.end_yielding();
        self.forget_unheld(writing)
    }

    /// Removes those of the blocks which stayed for holds that have ended, and that still have no
    /// reference.
    pub(super) fn forget_unheld(&self, writing: &mut Writing) -> Result<()> {
        let below = writing.holds.below();
        let ids = writing.writer.held().keep_below(below);
        if ids.is_empty() || self.has_failed() {
            return Ok(());
        }
        let keep = &mut |dead: &[Dead]| self.reader.keep_removed_rows(dead);
        let forgotten = writing.writer.forget_unused(&ids, keep);
        let freed = forgotten.and_then(|dead| self.free(writing, &dead));
        let done = freed.and_then(|()| self.refresh_free());
        if let Err(error) = &done {
            self.fail(error);
        }
        done
    }
}

impl Hold {
    /// Hands the rows of the state over, once, as a file that [`weald_store::engine::RowsFile`]
    /// opens. It has the row of the volume, its rows, and those of its blocks.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `Busy` if the hold ends meanwhile; those of `put`.
    /// # Cost
    /// Reads the tables once. A bit of memory for each block, more if the blocks of the volume lie
    /// far apart.
    pub fn copy_rows(&mut self, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let taken = self.view.take();
        let view = taken.ok_or_else(|| Error::invalid("the rows were copied already"))?;
        // A reader of the tables must not outlive the volume for long: it keeps the store open.
        let is_over = self.is_over.clone();
        let mut checked = |bytes: &[u8]| {
            if is_over.load(Ordering::Relaxed) {
                Err(over())
            } else {
                put(bytes)
            }
        };
        let mut rows = RowsWriter::new(&mut checked);
        let mut ids = Ids::default();
        self.each_extent(&*view, &mut |block| ids.insert(block))?;
        for table in Table::ALL {
            match table {
                Table::Volumes => {
                    rows.row(table, self.name.as_bytes(), &self.row.encode())?;
                }
                Table::Blocks => view.scan(table, &[], &mut |key, value| {
                    let id = weald_store::engine::number_of(key);
                    if id.is_some_and(|id| ids.contains(BlockId(id))) {
                        rows.row(table, key, value)?;
                    }
                    Ok(ControlFlow::Continue(()))
                })?,
                table if TABLES.contains(&table) => {
                    let start = self.row.volume_no.to_be_bytes();
                    view.scan(table, &start, &mut |key, value| {
                        if split_key(key)?.0 != self.row.volume_no {
                            return Ok(ControlFlow::Break(()));
                        }
                        rows.row(table, key, value)?;
                        Ok(ControlFlow::Continue(()))
                    })?;
                }
                _ => {}
            }
        }
        rows.finish()?;
        drop(view);
        self.stay()?;
        // Rows that were kept for a snapshot go with it.
        if let Some((volume, no)) = &self.snapshot
            && volume
                .upgrade()
                .is_none_or(|volume| volume.is_snapshot_gone(*no))
        {
            let what = "the snapshot was removed meanwhile";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(())
    }

    /// Hands over, in place of [`Hold::copy_rows`], the rows of two states of the volume that
    /// differ between them, each state as a file of its own. A name is that of a snapshot; without
    /// one it is the state of this hold.
    ///
    /// # Errors
    /// As [`Hold::copy_rows`]; `NotFound` if there is no such snapshot.
    /// # Cost
    /// As [`VolumeReader::open_changed`](crate::VolumeReader::open_changed).
    pub fn copy_changes(
        &mut self,
        names: [Option<&str>; 2],
        put: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let taken = self.view.take();
        let view = taken.ok_or_else(|| Error::invalid("the rows were copied already"))?;
        let engine: Arc<dyn Engine> = Arc::new(ViewEngine::new(view));
        let states = changed_states(&engine, &self.row, names)?;
        for (no, state) in states.iter().enumerate() {
            let is_over = self.is_over.clone();
            state.copy_rows(&self.name, &mut |bytes| {
                if is_over.load(Ordering::Relaxed) {
                    return Err(over());
                }
                put(no, bytes)
            })?;
        }
        drop((states, engine));
        self.stay()
    }

    /// From now on, the hold lasts on a full disk.
    fn stay(&self) -> Result<()> {
        if let Some(shared) = self.shared.upgrade() {
            shared.writing.lock().holds.stay(&self.is_over);
        }
        self.refuse_over()
    }

    fn each_extent(&self, view: &dyn ReadView, visit: &mut dyn FnMut(BlockId)) -> Result<()> {
        let start = self.row.volume_no.to_be_bytes();
        view.scan(Table::Extents, &start, &mut |key, value| {
            if split_key(key)?.0 != self.row.volume_no {
                return Ok(ControlFlow::Break(()));
            }
            let row = ExtentsRow::parse(value, limits::BLOCK_LEN_MAX as u32)?;
            row.0.iter().for_each(|piece| visit(piece.block));
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Whether the hold has ended, so that blocks of the state may be gone: the volume was closed,
    /// or, without a copy of the rows, the disk is full.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Fails if the hold has ended.
    ///
    /// # Errors
    /// `Busy`.
    pub fn refuse_over(&self) -> Result<()> {
        if self.is_over() { Err(over()) } else { Ok(()) }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // The tables give pages of the view back with the commit that follows.
        self.view = None;
        if let Some(shared) = self.shared.upgrade() {
            shared.end_hold(&self.is_over);
        }
    }
}

pub(super) fn over() -> Error {
    let what = "the volume was unmounted meanwhile, or its disk is full";
    Error::new(ErrorKind::Busy, what)
}
