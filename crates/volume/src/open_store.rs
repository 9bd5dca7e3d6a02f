//! A store that is open for the volumes of one process: its one writer, and what they share.
//!
//! The volumes commit one after the other. A commit holds the writer from its first block to its
//! transaction, so that no other commit makes its blocks durable early, and no collection takes
//! them for unused. Locks are taken in this order: committer of a volume, writer, logger, state. A
//! thread that holds the state of one volume takes no lock of another one.
//!
//! The disk belongs to all volumes: each change is admitted against the free space less the space
//! of all changes that wait, and after a failure of storage all volumes are read-only.

use crate::holds::Holds;
use crate::layer::COMMIT_SPACE;
use crate::options::OpenOptions;
use crate::options::PlantedBug;
use crate::signal::Signal;
use crate::state::{State, failed};
use crate::synced_replicas::SyncedReplicas;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use weald_format::{BlockId, Error, ErrorKind, Result, SnapshotNo, VolumeNo};
use weald_store::faults::Faults;
use weald_store::tier::Mover;
use weald_store::{BlockReader, Dead, Store, StoreWriter, WriteOptions};

/// Most bytes of the disk that are kept free for removals and commits.
const RESERVE_MAX: u64 = 64 << 20;

/// Bytes that are kept free on a disk of `total` bytes.
pub fn reserve_of(total: u64) -> u64 {
    RESERVE_MAX.min(total / 100 * 8)
}

/// A volume that other volumes of its store ask for room.
pub trait Committing: Send + Sync {
    /// Commits all changes so far. A failure is kept in the state.
    fn commit_changes(&self);

    /// Commits all changes so far and does the next step of [`crate::Volume::settle`]. Returns
    /// whether there is more.
    fn settle_after_commit(&self) -> bool;

    /// Looks at all blocks anew in the next steps.
    fn make_settling_due(&self);
}

/// An open volume.
struct Member {
    state: Weak<RwLock<State>>,
    signal: Weak<Signal>,
    volume: Weak<dyn Committing>,
}

/// The writer and what belongs to it.
#[derive(Debug)]
pub struct Writing {
    /// The writer of the store.
    pub writer: StoreWriter,
    /// Readers of older states.
    pub holds: Holds,
    /// Numbers of the open volumes.
    pub open: BTreeSet<VolumeNo>,
    /// Snapshots that are open without their volume, and how often.
    pub open_snapshots: BTreeMap<(VolumeNo, SnapshotNo), u32>,
}

impl Writing {
    /// Whether no volume and no snapshot is open.
    pub fn is_closed(&self) -> bool {
        self.open.is_empty() && self.open_snapshots.is_empty()
    }
}

/// A store that is open for volumes.
pub struct OpenStore {
    /// The store, as its writer sees it.
    pub(crate) store: Store,
    /// Held by everything that changes the store.
    pub(crate) writing: Mutex<Writing>,
    /// Readers of blocks hold it; the space of unused blocks is freed while no thread holds it.
    pub(crate) gate: RwLock<()>,
    /// Stored bytes of blocks.
    pub(crate) reader: Arc<BlockReader>,
    /// Whether nothing can be changed, because the disk cannot be written to. A volume that is
    /// mounted read-only does not keep others from changing.
    pub(crate) is_read_only: bool,
    ignores_barriers: bool,
    /// Bytes that can still be written, as of the last look at the disk.
    free: AtomicU64,
    /// Bytes of the disk that are kept free for removals and commits.
    reserve: AtomicU64,
    /// Whether the file `reserve` may be missing: it is made when the disk has space.
    may_lack_reserve: AtomicBool,
    /// Whether blocks died since space was returned.
    has_dead: AtomicBool,
    /// Whether files were removed since the tables were compacted.
    has_removed: AtomicBool,
    /// The error of storage that made all volumes read-only.
    failure: Mutex<Option<String>>,
    members: RwLock<Vec<Member>>,
    /// Whether all volumes were closed.
    is_closed: AtomicBool,
    /// Whether a thread sends to replicas.
    sends: AtomicBool,
    /// Moves between tiers, one at a time.
    pub(crate) mover: Mutex<Option<Mover>>,
    /// Requests that wait for [`OpenStore::mover`]: what moves by itself gives way.
    pub(crate) move_requests: AtomicU64,
    /// Replicas for which a sync waits.
    pub(crate) synced: Arc<SyncedReplicas>,
    /// A deliberate bug that a simulation must find.
    pub(crate) faults: Faults<PlantedBug>,
}

impl std::fmt::Debug for OpenStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenStore").finish_non_exhaustive()
    }
}

impl OpenStore {
    /// Opens `store` for volumes that are opened with these options.
    ///
    /// # Errors
    /// `Busy` if another process writes to the store; `Corrupt`, `Io`.
    pub fn open(store: &Store, options: &OpenOptions) -> Result<Arc<Self>> {
        let ignores_barriers = options.ignores_barriers && !options.is_read_only;
        let store = match (options.is_read_only, ignores_barriers) {
            (true, _) => store.for_reading(),
            (_, true) => store.without_barriers(),
            _ => store.clone(),
        };
        if !options.is_read_only {
            // What takes the space may be in the volume.
            store.release_reserve()?;
        }
        let usual = WriteOptions::new(options.writer_name.clone());
        let epoch = options.epoch.unwrap_or(usual.epoch);
        let writer = store.write(WriteOptions {
            epoch,
            steps: options.steps,
            faults: options.faults.map(PlantedBug::of_snapshots),
            ..usual
        })?;
        Ok(Self::of_writer(&store, writer, options))
    }

    /// The store of `writer`.
    pub(crate) fn of_writer(
        store: &Store,
        writer: StoreWriter,
        options: &OpenOptions,
    ) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            reader: Arc::new(writer.block_reader()),
            writing: Mutex::new(Writing {
                writer,
                holds: Holds::default(),
                open: BTreeSet::new(),
                open_snapshots: BTreeMap::new(),
            }),
            gate: RwLock::new(()),
            // A seal puts the sync log into tables that stay in memory.
            is_read_only: options.is_read_only && store.keeps_changes_in_memory(),
            ignores_barriers: options.ignores_barriers && !options.is_read_only,
            free: AtomicU64::new(0),
            reserve: AtomicU64::new(0),
            may_lack_reserve: AtomicBool::new(true),
            has_dead: AtomicBool::new(false),
            // Earlier mounts may have removed some.
            has_removed: AtomicBool::new(true),
            failure: Mutex::default(),
            members: RwLock::default(),
            is_closed: AtomicBool::new(false),
            sends: AtomicBool::new(false),
            mover: Mutex::default(),
            move_requests: AtomicU64::new(0),
            synced: Arc::default(),
            faults: options.faults,
        })
    }

    /// Refuses options that do not fit those of the volumes that are open.
    ///
    /// # Errors
    /// `Busy`.
    pub fn accept(&self, options: &OpenOptions) -> Result<()> {
        let shown = self.store.shown();
        if self.is_read_only && !options.is_read_only {
            let what = format!(
                "{shown}: a volume of it is mounted while the disk could not be written to: \
                 unmount that first"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        if !options.is_read_only && options.ignores_barriers != self.ignores_barriers {
            let word = if self.ignores_barriers {
                "ignore"
            } else {
                "honour"
            };
            let what = format!(
                "{shown}: another volume of it is mounted with barrier={word}, which holds for \
                 the whole store: mount this one with barrier={word}, too, or unmount the other \
                 one first"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        match &*self.failure.lock() {
            Some(failure) => Err(failed(failure)),
            None => Ok(()),
        }
    }

    /// Notes that the volume with this number is being opened.
    ///
    /// # Errors
    /// `Busy` if it is open already; those of [`OpenStore::accept`]; `Io`, `Full`.
    pub(crate) fn enter(
        &self,
        writing: &mut Writing,
        volume_no: VolumeNo,
        options: &OpenOptions,
    ) -> Result<()> {
        self.accept(options)?;
        if writing.open.contains(&volume_no) {
            let pid = std::process::id();
            let what = format!("the volume is open already, in process {pid}: unmount it first");
            return Err(Error::new(ErrorKind::Busy, what));
        }
        if self.ignores_barriers && !options.is_read_only {
            self.store.mark_unsynced()?;
        }
        writing.open.insert(volume_no);
        self.is_closed.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Notes that the volume with this number is closed, and syncs what was not synced. A call for
    /// a volume that is not open does nothing.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn leave(&self, writing: &mut Writing, volume_no: VolumeNo) -> Result<()> {
        if !self.give_up(writing, volume_no) || !self.ignores_barriers {
            return Ok(());
        }
        if writing.is_closed() {
            self.store.sync_all()
        } else {
            // The other volumes go on without syncs.
            self.store.mark_unsynced()
        }
    }

    /// Notes that the volume with this number is closed. Returns false if it was not open.
    pub(crate) fn give_up(&self, writing: &mut Writing, volume_no: VolumeNo) -> bool {
        let was_open = writing.open.remove(&volume_no);
        self.is_closed.store(writing.is_closed(), Ordering::Relaxed);
        was_open
    }

    /// Notes that a snapshot is open, which is not removed meanwhile.
    ///
    /// # Errors
    /// Those of [`OpenStore::accept`].
    pub(crate) fn enter_snapshot(
        &self,
        writing: &mut Writing,
        of: (VolumeNo, SnapshotNo),
        options: &OpenOptions,
    ) -> Result<()> {
        self.accept(options)?;
        *writing.open_snapshots.entry(of).or_default() += 1;
        self.is_closed.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Notes that a snapshot is closed.
    pub(crate) fn leave_snapshot(&self, writing: &mut Writing, of: (VolumeNo, SnapshotNo)) {
        if let Some(count) = writing.open_snapshots.get_mut(&of) {
            *count -= 1;
            if *count == 0 {
                writing.open_snapshots.remove(&of);
            }
        }
        self.is_closed.store(writing.is_closed(), Ordering::Relaxed);
    }

    /// Adds a volume to those that share free space and failures.
    pub(crate) fn add_member(
        &self,
        state: &Arc<RwLock<State>>,
        signal: &Arc<Signal>,
        volume: Weak<dyn Committing>,
    ) {
        let mut members = self.members.write();
        members.retain(|member| member.state.strong_count() > 0);
        members.push(Member {
            state: Arc::downgrade(state),
            signal: Arc::downgrade(signal),
            volume,
        });
        drop(members);
        // A failure of this moment is noted here, or by the thread that saw it.
        if let Some(failure) = &*self.failure.lock() {
            state.write().fail(|| failure.clone());
        }
    }

    /// Makes all volumes read-only, because storage failed.
    pub(crate) fn fail(&self, error: &Error) {
        let why = {
            let mut failure = self.failure.lock();
            if failure.is_none() {
                log::error!("the volume became read-only: {}", error.with_causes());
            }
            failure.get_or_insert_with(|| error.with_causes()).clone()
        };
        for member in &*self.members.read() {
            if let Some(state) = member.state.upgrade() {
                state.write().fail(|| why.clone());
            }
            if let Some(signal) = member.signal.upgrade() {
                signal.wake_waiting();
            }
        }
    }

    /// The outcome of a change of the store, whose failure may be one of storage.
    pub(crate) fn noted<T>(&self, writing: &Writing, done: Result<T>) -> Result<T> {
        if let Err(error) = &done
            && !writing.writer.is_usable()
        {
            self.fail(error);
        }
        done
    }

    /// Fails if storage failed.
    ///
    /// # Errors
    /// `Io` with the first failure.
    pub(crate) fn refuse_failed(&self) -> Result<()> {
        match &*self.failure.lock() {
            Some(failure) => Err(failed(failure)),
            None => Ok(()),
        }
    }

    /// Whether storage failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.lock().is_some()
    }

    /// Whether all volumes were closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether a thread has to be started that sends to the replicas of the store: not where writes
    /// are not synced, so that nobody knows what the disk has.
    pub(crate) fn begins_to_send(&self) -> bool {
        !self.ignores_barriers && !self.sends.swap(true, Ordering::SeqCst)
    }

    /// Bytes that can still be written, as of the last look at the disk.
    pub(crate) fn free_len(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Bytes of the disk that are kept free for removals and commits.
    pub(crate) fn reserve_len(&self) -> u64 {
        self.reserve.load(Ordering::Relaxed)
    }

    /// Looks at the disk.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn refresh_free(&self) -> Result<()> {
        let space = self.store.capacity()?;
        let reserve = reserve_of(space.total);
        let free = space.free.saturating_sub(reserve);
        self.free.store(free, Ordering::Relaxed);
        let reserve = reserve.min(space.free);
        self.reserve.store(reserve, Ordering::Relaxed);
        Ok(())
    }

    /// Lets the next commit use the file `reserve` if other data has filled the disk.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn prepare_commit(&self) -> Result<()> {
        if self.store.release_reserve()? {
            self.may_lack_reserve.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes the file `reserve` if it is missing and there is space, after a look at the disk.
    pub(crate) fn renew_reserve(&self, writing: &Writing) {
        let is_possible = !self.is_read_only && self.free_len() > 0;
        if is_possible && self.may_lack_reserve.load(Ordering::Relaxed) {
            let is_there = writing.writer.renew_reserve();
            self.may_lack_reserve.store(!is_there, Ordering::Relaxed);
        }
    }

    /// Takes `len` bytes out of the free space before they are written beside a commit.
    pub(crate) fn take_free(&self, len: u64) {
        let take = |free: u64| Some(free.saturating_sub(len));
        // The function always gives a value.
        let _ = self
            .free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
    }

    /// Adds `figure` up, of all open volumes but the one with the state `except`.
    pub(crate) fn sum_of_others(
        &self,
        except: Option<&Arc<RwLock<State>>>,
        figure: impl Fn(&State) -> u64,
    ) -> u64 {
        let members = self.members.read();
        let mut sum = 0u64;
        for member in &*members {
            let is_excepted = |except: &Arc<RwLock<State>>| {
                std::ptr::eq(Arc::as_ptr(except), member.state.as_ptr())
            };
            if except.is_some_and(is_excepted) {
                continue;
            }
            if let Some(state) = member.state.upgrade() {
                sum = sum.saturating_add(figure(&state.read()));
            }
        }
        sum
    }

    /// Bytes of the disk that the commits of all changes take at most, but for those of the volume
    /// with the state `except`.
    pub(crate) fn space_of_others(&self, except: Option<&Arc<RwLock<State>>>) -> u64 {
        // The reserve has room for the rows of one commit, not for those of each volume.
        self.sum_of_others(except, |state| match state.space() {
            0 => 0,
            space => space.saturating_add(COMMIT_SPACE),
        })
    }

    /// Commits the changes of all volumes but the one with this state. The caller holds no lock.
    pub(crate) fn commit_others(&self, except: &Arc<RwLock<State>>) {
        for volume in self.others(except) {
            volume.commit_changes();
        }
    }

    /// The open volumes. The caller holds no lock.
    pub(crate) fn volumes(&self) -> Vec<Arc<dyn Committing>> {
        let members = self.members.read();
        let volumes = members.iter().filter_map(|member| member.volume.upgrade());
        volumes.collect()
    }

    fn others(&self, except: &Arc<RwLock<State>>) -> Vec<Arc<dyn Committing>> {
        let members = self.members.read();
        let others = members
            .iter()
            .filter(|member| !std::ptr::eq(Arc::as_ptr(except), member.state.as_ptr()));
        others
            .filter_map(|member| member.volume.upgrade())
            .collect()
    }

    /// Wakes the threads that commit the other volumes.
    pub(crate) fn wake_others(&self, except: &Arc<RwLock<State>>) {
        for member in &*self.members.read() {
            let is_other = !std::ptr::eq(Arc::as_ptr(except), member.state.as_ptr());
            if let Some(signal) = member.signal.upgrade().filter(|_| is_other) {
                signal.wake_committer();
            }
        }
    }

    /// Frees the space of blocks whose rows are gone.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn free(&self, writing: &Writing, dead: &[Dead]) -> Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        self.has_dead.store(true, Ordering::Relaxed);
        let _gate = self.gate.write();
        self.reader.forget_removed_rows();
        writing.writer.free(dead)
    }

    /// Notes that blocks died.
    pub(crate) fn note_dead(&self) {
        self.has_dead.store(true, Ordering::Relaxed);
    }

    /// Notes that files were removed.
    pub(crate) fn note_removed(&self) {
        self.has_removed.store(true, Ordering::Relaxed);
    }

    /// Makes the deliberate bugs of holds, before a commit of the volume with this number.
    pub(crate) fn plant_holds(&self, writing: &mut Writing, volume_no: VolumeNo) {
        let (all, first) = (writing.holds.below(), BlockId::default());
        let below = if self.faults.has(PlantedBug::HeldBlocksFreed) {
            first
        } else if self.faults.has(PlantedBug::HoldOfOthersIgnored) {
            writing.holds.below_of(volume_no)
        } else if self.faults.has(PlantedBug::NewestHeldFreed) {
            BlockId(all.0.saturating_sub(1))
        } else {
            return;
        };
        // What stayed so far goes with the last hold.
        let ids = writing.writer.held().keep_below(below);
        writing.writer.held().note(ids);
    }

    /// Removes the files of segments without a live block.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub(crate) fn return_space(&self, writing: &mut Writing) -> Result<()> {
        if writing.holds.has_readers() || !self.has_dead.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        if writing.writer.dead_segments()?.is_empty() {
            return Ok(());
        }
        let _gate = self.gate.write();
        self.reader.close_segments();
        let options = weald_store::CollectOptions {
            copy_below_percent: 0,
            ..weald_store::CollectOptions::default()
        };
        let check_cancelled = &mut |_: &_| std::ops::ControlFlow::Continue(());
        let collected = writing.writer.collect(&options, check_cancelled);
        self.noted(writing, collected)?;
        self.refresh_free()
    }

    /// Returns the space of removed names and files in the tables to the disk, if the disk is full
    /// and names were removed since the last call.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn compact(&self) -> Result<()> {
        let writing = self.writing.lock();
        self.refresh_free()?;
        if self.free_len() > 0 || !self.has_removed.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        if let Err(error) = writing.writer.engine().compact() {
            self.fail(&error);
            return Err(error);
        }
        self.refresh_free()
    }
}
