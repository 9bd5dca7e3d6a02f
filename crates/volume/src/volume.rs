//! The open volume: when it commits, and the thread that commits. `volume/admission.rs` admits
//! writes, `volume/syncing.rs` makes them durable, `volume/file_system.rs` has the operations.

use crate::cache::Blocks;
use crate::commit::Committer;
use crate::core::Core;
use crate::create::codec_spec;
use crate::layer::{ContentRange, RangeContent};
use crate::logger::{Logger, Replay};
use crate::open_store::{Committing, OpenStore, Writing};
use crate::options::OpenOptions;
use crate::parallel::Workers;
use crate::preload::{self, Preloaded};
use crate::replicate;
use crate::retention::PolicyLooks;
use crate::scrub;
use crate::signal::Signal;
use crate::state::{State, Totals, failed};
use crate::tables::Tables;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use weald_format::volume::VolumeRow;
use weald_format::{Error, ErrorKind, Result, SnapshotNo};
use weald_store::engine::Engine;
use weald_store::{Snapshot, Store};
use weald_vfs::{Ino, Nanoseconds, Outcome};

/// Longest time between two turns of the thread that commits.
const TURN: Duration = Duration::from_millis(200);

/// Longest time that rebuilding the index takes at a stretch.
const REBUILD_TIME: Duration = Duration::from_millis(100);

/// Longest time that writing blocks again takes at a stretch.
const SETTLE_TIME: Duration = Duration::from_millis(100);

/// Figures about an open volume.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Bytes of files that are no hole.
    pub logical_len: u64,
    /// Bytes of blocks that files refer to, decoded, each counted once.
    pub unique_len: u64,
    /// Bytes of names and values of extended attributes.
    pub attribute_len: u64,
    /// Logical bytes that share a block with others.
    pub shared_len: u64,
    /// Bytes that these blocks take in segments.
    pub stored_len: u64,
    /// Written bytes that are not durable yet.
    pub dirty_len: u64,
    /// Seconds since the oldest change that is not durable yet.
    pub at_risk: f64,
    /// Bytes of segments that belong to no block, and those of blocks that no file needs.
    pub dead_len: u64,
    /// Number of commits so far.
    pub commits: u64,
    /// The error of storage that made the volume read-only.
    pub failure: Option<String>,
    /// When that was.
    pub failed_at: Option<SystemTime>,
}

/// A snapshot that is open like a volume.
#[derive(Debug)]
struct OpenSnapshot {
    found: Snapshot,
    /// Whether it is open on its own, and not below its volume.
    is_entered: AtomicBool,
}

/// An open volume.
#[derive(Debug)]
pub struct Volume {
    pub(crate) core: Core,
    committer: Mutex<Committer>,
    logger: Mutex<Logger>,
    signal: Arc<Signal>,
    /// The thread that commits.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    /// Number of commits so far.
    commits: AtomicU64,
    /// The snapshot whose state it is, beside the volume itself.
    snapshot: Option<OpenSnapshot>,
    /// Whether snapshots may be on their way out.
    may_have_removed: AtomicBool,
    /// Snapshots that were removed since it was opened.
    gone_snapshots: Mutex<BTreeSet<SnapshotNo>>,
}

impl Volume {
    /// Opens the volume `name` and drops the orphans that a crash left.
    ///
    /// # Errors
    /// `NotFound`; `Busy` if another process writes to the store; `Corrupt`, `Io`.
    pub fn open(store: &Store, name: &str, options: OpenOptions) -> Result<Arc<Self>> {
        let shared = OpenStore::open(store, &options)?;
        Self::open_in(&shared, name, options)
    }

    /// Opens the volume `name` beside others of its store, as [`Volume::open`]; or the snapshot
    /// that `VOLUME@NAME` names, which is not removed as long as it is open.
    ///
    /// # Errors
    /// `NotFound`; `Busy` if the volume is open already, or needs another mode of the store;
    /// `Corrupt`, `Io`.
    pub fn open_in(shared: &Arc<OpenStore>, name: &str, options: OpenOptions) -> Result<Arc<Self>> {
        // The key of the row of a volume without a name is no name.
        let row = shared.writing.lock().writer.volume_row(name);
        match (row, weald_store::split_state(name)) {
            (Err(error), Some((volume, of))) if error.kind() == ErrorKind::NotFound => {
                Self::open_snapshot_in(shared, (volume, of), options)
            }
            (row, _) => row.and_then(|_| Self::open_row(shared, name, options)),
        }
    }

    /// Opens the volume whose row has the key `key`.
    ///
    /// # Errors
    /// As [`Volume::open_in`].
    pub(crate) fn open_row(
        shared: &Arc<OpenStore>,
        key: &str,
        options: OpenOptions,
    ) -> Result<Arc<Self>> {
        let (volume, replay) = {
            let mut writing = shared.writing.lock();
            let row = writing.writer.keyed_volume_row(key)?;
            let volume_no = row.volume_no;
            writing.writer.refuse_rollback(volume_no)?;
            shared.enter(&mut writing, volume_no, &options)?;
            let read = Self::read(shared, &writing, (key, row), options);
            if read.is_err() {
                shared.give_up(&mut writing, volume_no);
            }
            read?
        };
        volume.begin(replay)?;
        Ok(volume)
    }

    /// The volume as its tables have it, and the changes above in its sync log.
    fn read(
        shared: &Arc<OpenStore>,
        writing: &Writing,
        (name, row): (&str, VolumeRow),
        options: OpenOptions,
    ) -> Result<(Arc<Self>, Replay)> {
        let engine = writing.writer.engine();
        #[cfg(test)]
        let engine = match &options.gate {
            Some(gate) => gate.before(engine),
            None => engine,
        };
        let replay = Replay::read(&writing.writer, &row, &options)?.accepted(&options)?;
        let has_snapshots = match weald_store::snapshots(&*engine, row.volume_no) {
            // Commits find out.
            Err(error) if error.kind() == ErrorKind::Corrupt => true,
            found => !found?.is_empty(),
        };
        let volume = Self::with_rows(shared, (name, row), engine, (options, None))?;
        volume.core.state.write().has_snapshots = has_snapshots;
        // A volume that does not change takes no space.
        if !volume.core.options.is_read_only {
            let weak: Weak<Self> = Arc::downgrade(&volume);
            shared.add_member(&volume.core.state, &volume.signal, weak);
        }
        Ok((volume, replay))
    }

    /// The volume as `engine` has it, or the snapshot `found` of it.
    fn with_rows(
        shared: &Arc<OpenStore>,
        (name, row): (&str, VolumeRow),
        engine: Arc<dyn Engine>,
        (options, found): (OpenOptions, Option<Snapshot>),
    ) -> Result<Arc<Self>> {
        let workers = Workers::new(options.threads, codec_spec(&row)?, row.chunk_len.into())?;
        let tables = Tables::new(engine, row.volume_no, row.chunk_len, row.next_ino);
        let tables = tables.in_steps(options.windows, options.faults);
        let blocks = Blocks::new(shared.reader.clone(), options.cache_len / 2);
        let mut state = State::new(row.next_ino, tables.quotas()?);
        state.knows_flags = row.has_flags;
        let core = Core {
            state: Arc::new(RwLock::new(state)),
            shared: shared.clone(),
            tables,
            blocks,
            secret: row.secret,
            is_case_insensitive: row.is_case_insensitive,
            #[cfg(test)]
            hook: crate::hook::Hook::default(),
            options,
        };
        let index_len = core.options.index_len;
        Ok(Arc::new(Self {
            commits: AtomicU64::new(row.commit.0),
            snapshot: found.map(|found| OpenSnapshot {
                found,
                is_entered: AtomicBool::new(false),
            }),
            may_have_removed: AtomicBool::new(true),
            gone_snapshots: Mutex::default(),
            committer: Mutex::new(Committer::new(name, row, workers, index_len)),
            core,
            logger: Mutex::default(),
            signal: Arc::default(),
            thread: Mutex::new(None),
        }))
    }

    /// Takes over what a crash left, and starts the threads.
    fn begin(self: &Arc<Self>, replay: Replay) -> Result<()> {
        // Before anything else can commit.
        if let Err(error) = self.replay(replay) {
            self.fail_alone(&error);
            return Err(error);
        }
        let options = &self.core.options;
        if !options.is_read_only {
            self.core.drop_orphans()?;
        }
        let shared = &self.core.shared;
        shared.refresh_free()?;
        if !options.is_read_only {
            shared.renew_reserve(&shared.writing.lock());
        }
        if options.background && !options.is_read_only {
            let weak = Arc::downgrade(self);
            let signal = self.signal.clone();
            let interval = options.commit_interval;
            let spawned = thread::Builder::new()
                .name("weald-commit".into())
                .spawn(move || run(&weak, &signal, interval));
            let spawned = spawned.map_err(|e| Error::io("a thread", e))?;
            *self.thread.lock() = Some(spawned);
            if shared.begins_to_send() {
                replicate::start(shared)?;
                shared.begin_tier_moves()?;
                scrub::start(shared)?;
                shared.begin_idle_collections()?;
            }
        }
        if options.is_preloaded {
            preload::start(self)?;
        }
        Ok(())
    }

    /// Commits all changes so far of this volume and of the others of its store that are open.
    ///
    /// # Errors
    /// As [`Volume::commit`]. An error of another volume is that volume's.
    pub fn commit_store(&self) -> Result<()> {
        self.core.shared.commit_others(&self.core.state);
        self.commit()
    }

    /// Commits all changes so far.
    ///
    /// # Errors
    /// `Io` with the first failure, now and ever after.
    pub fn commit(&self) -> Result<()> {
        // It shows the changes of its log, which only a mount for writing takes into the tables.
        if self.core.options.is_read_only {
            return Ok(());
        }
        let wanted = self.core.state.read().sequence;
        let mut committer = self.committer.lock();
        {
            let state = self.core.state.read();
            // Another caller's commit took the changes of this one, too. After a failure, nothing
            // is lost by it.
            let has_drops = state.active.is_changed && wanted == 0;
            if state.committed >= wanted && !has_drops {
                return Ok(());
            }
            if let Some(failure) = &state.failure {
                return Err(failed(failure));
            }
        }
        let mut writing = self.core.shared.writing.lock();
        self.commit_locked(&mut committer, &mut writing, false)
    }

    fn commit_locked(
        &self,
        committer: &mut Committer,
        writing: &mut MutexGuard<'_, Writing>,
        is_forced: bool,
    ) -> Result<()> {
        let shared = &self.core.shared;
        let Some((layer, sequence)) = self.freeze(is_forced)? else {
            return Ok(());
        };
        self.signal.progress.notify_all();
        #[cfg(test)]
        self.core.hook.reach(crate::hook::Stage::Frozen);
        // Until the layer goes, its space counts twice: other volumes must not take it meanwhile.
        let prepared = shared.prepare_commit();
        let is_prepared = prepared.is_ok();
        let done = prepared.and_then(|()| committer.commit(&self.core, writing, &layer));
        let done = match done {
            // Rows or blocks of this volume are damaged or lost. Blocks without references are all
            // that was written.
            Err(error) if is_prepared && error.is_unreadable() && writing.writer.is_usable() => {
                self.fail_alone(&error);
                return Err(error);
            }
            done => done.and_then(|done| shared.refresh_free().map(|()| done)),
        };
        let done = match done {
            Ok(done) => done,
            Err(error) => {
                shared.fail(&error);
                return Err(error);
            }
        };
        #[cfg(test)]
        self.core.hook.reach(crate::hook::Stage::Committed);
        self.core.thaw(&layer, sequence, &done.windows);
        self.logger.lock().committed(&committer.row);
        if !done.dropped.is_empty() {
            shared.note_removed();
        }
        drop(layer);
        self.commits
            .store(committer.row.commit.0, Ordering::Relaxed);
        let freed = shared.free(writing, &done.dead);
        let freed = freed.and_then(|()| shared.refresh_free());
        let freed = freed.and_then(|()| match shared.free_len() {
            0 => shared.end_yielding(writing),
            _ => Ok(()),
        });
        shared.renew_reserve(writing);
        if let Err(error) = freed {
            shared.fail(&error);
            return Err(error);
        }
        self.signal.progress.notify_all();
        Ok(())
    }

    /// Makes this volume read-only, but no other one.
    fn fail_alone(&self, error: &Error) {
        let why = error.with_causes();
        log::error!("the volume became read-only: {why}");
        let mut state = self.core.state.write();
        state.fail(|| why);
        drop(state);
        self.signal.wake_waiting();
    }

    /// Commits all changes, and gives a volume that has no name yet its name.
    ///
    /// # Errors
    /// As [`Volume::commit`]; `Busy` if the name is taken.
    pub(crate) fn publish(&self, name: &str) -> Result<()> {
        self.commit()?;
        let mut committer = self.committer.lock();
        let mut writing = self.core.shared.writing.lock();
        let hidden = committer.name.clone();
        writing.writer.publish_volume(&hidden, name)?;
        committer.name = name.to_owned();
        Ok(())
    }

    /// Removes the files of segments without a live block, and finishes the removal of large files.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn return_space(&self) -> Result<()> {
        let mut committer = self.committer.lock();
        let mut writing = self.core.shared.writing.lock();
        while !committer.drops.is_empty() {
            self.commit_locked(&mut committer, &mut writing, true)?;
        }
        let shared = &self.core.shared;
        shared.return_space(&mut writing)
    }

    /// Notes further pieces of committed files in the dedup index. Returns whether there are more.
    pub(crate) fn rebuild_index(&self) -> bool {
        self.committer.lock().rebuild_step(&self.core)
    }

    /// Commits the last changes and stops the thread. Later changes fail.
    ///
    /// # Errors
    /// As [`Volume::commit`].
    pub fn close(&self) -> Result<()> {
        if let Some(of) = &self.snapshot {
            self.close_snapshot(of);
            return Ok(());
        }
        self.signal.is_closing.store(true, Ordering::Relaxed);
        self.signal.wake_committer();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            log::error!("the thread that commits panicked");
        }
        if !self.core.options.is_read_only {
            self.end_log()?;
            self.commit()?;
        }
        let (shared, volume_no) = (&self.core.shared, self.core.tables.volume_no());
        let mut writing = shared.writing.lock();
        shared.close_holds(&mut writing, volume_no)?;
        shared.leave(&mut writing, volume_no)?;
        drop(writing);
        if shared.is_closed() {
            // A move that is under way ends now: the disks can be unmounted then.
            *shared.mover.lock() = None;
        }
        Ok(())
    }

    /// The store of the volume, for further volumes of it.
    pub fn store(&self) -> &Arc<OpenStore> {
        &self.core.shared
    }

    /// Decoded bytes of blocks in memory.
    pub fn cached_len(&self) -> u64 {
        self.core.blocks.kept_len()
    }

    /// Sums over the volume; zeros if its tables are damaged.
    pub(crate) fn totals(&self) -> Totals {
        if let Some(totals) = self.core.state.read().totals {
            return totals;
        }
        // Commits change the tables meanwhile.
        let _committer = self.committer.lock();
        self.core.count_totals().unwrap_or_default()
    }

    /// Figures about the volume. Reads all its extents, beside commits.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn status(&self) -> Result<Status> {
        let volume_no = self.core.tables.volume_no();
        let usage = crate::check::usage(self.core.blocks.reader(), volume_no)?;
        let state = self.core.state.read();
        Ok(Status {
            logical_len: usage.logical_len,
            unique_len: usage.unique_len,
            attribute_len: usage.attribute_len,
            shared_len: usage.logical_len.saturating_sub(usage.unshared_len),
            stored_len: usage.stored_len,
            dirty_len: state.written_at_risk(),
            at_risk: state.seconds_at_risk(),
            dead_len: usage.dead_len,
            commits: self.commits.load(Ordering::Relaxed),
            failure: state.failure.clone(),
            failed_at: state.failed_at,
        })
    }

    /// Puts content into a file that has none there: what an image has.
    pub(crate) fn put_segments(
        &self,
        ino: Ino,
        segments: Vec<ContentRange>,
        now: Nanoseconds,
    ) -> Outcome<()> {
        let in_memory = segments.iter().map(|segment| match segment.source {
            RangeContent::Bytes(..) => segment.len(),
            _ => 0,
        });
        self.admit(in_memory.sum())?;
        let offset = segments.first().map_or(0, |first| first.range.start);
        self.change(now, |core, state| {
            core.write(state, ino, offset, segments, now)
        })
    }

    fn change<T>(
        &self,
        now: Nanoseconds,
        change: impl FnOnce(&Core, &mut State) -> Outcome<T>,
    ) -> Outcome<T> {
        self.core.change(now, change)
    }
}

/// The thread that commits. It holds the volume only while it works for it.
fn run(weak: &Weak<Volume>, signal: &Signal, interval: Duration) {
    let mut policy = PolicyLooks::default();
    let mut pause = TURN;
    loop {
        let mut wake = signal.wake.lock();
        let deadline = Instant::now() + interval.min(pause);
        while !*wake && Instant::now() < deadline {
            signal.waker.wait_until(&mut wake, deadline);
        }
        let is_woken = std::mem::take(&mut *wake);
        drop(wake);
        if signal.is_closing.load(Ordering::Relaxed) {
            return;
        }
        let Some(volume) = weak.upgrade() else { return };
        let since = volume.core.state.read().dirty_since;
        // Failures are kept in the state, and every later call reports them.
        if is_woken || since.is_some_and(|since| since.elapsed() >= interval) {
            let _ = volume.commit();
            volume.remove_snapshots_for_a_while();
        } else if since.is_some() {
            volume.remove_snapshots_for_a_while();
        } else {
            let is_idle = || volume.core.state.read().dirty_since.is_none();
            while is_idle() && volume.snapshot_step().unwrap_or(false) {}
            let _ = volume.return_space();
            // The first df does not wait for it then.
            let _ = volume.totals();
            let end = Instant::now() + REBUILD_TIME;
            while is_idle() && Instant::now() < end && volume.rebuild_index() {}
            let end = Instant::now() + SETTLE_TIME;
            while is_idle() && Instant::now() < end && volume.settle_some().unwrap_or(false) {}
        }
        volume.look_at_snapshot_policy(&mut policy);
        pause = volume.pause_of_removals().unwrap_or(TURN);
    }
}

impl Committing for Volume {
    fn commit_changes(&self) {
        // A failure is kept in the state, and every later call reports it.
        let _ = self.commit();
    }

    fn settle_after_commit(&self) -> bool {
        // As above; a volume that is being changed settles later.
        self.commit().is_ok() && self.settle_some().unwrap_or(false)
    }

    fn make_settling_due(&self) {
        self.committer.lock().settling.make_due();
    }
}

impl Preloaded for Volume {
    fn open_core(&self) -> Option<&Core> {
        let is_closing = self.signal.is_closing.load(Ordering::Relaxed);
        (!is_closing).then_some(&self.core)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            log::error!("the last changes of a volume are lost: {error}");
            let shared = &self.core.shared;
            shared.give_up(&mut shared.writing.lock(), self.core.tables.volume_no());
        }
    }
}

mod adding;
mod admission;
mod collecting;
mod file_system;
mod hold;
mod idle_collection;
mod removing;
mod renaming;
mod settling;
mod snapshot_policy;
mod snapshots;
mod syncing;
mod tiering;

pub use adding::Adding;
pub use collecting::{CollectStep, Collecting};
pub use hold::Hold;
pub use removing::Removing;
pub use settling::{Settled, settle_all};
pub use snapshot_policy::PolicyStep;
#[cfg(test)]
pub(crate) use syncing::Record;
pub use syncing::apply_sync_log;
pub use tiering::{TierMove, look_for_pins, move_alone, move_between_tiers};

#[cfg(test)]
mod tests;
