//! The open volume: when it commits, and the thread that commits. `volume/admission.rs` admits
//! writes, `volume/syncing.rs` makes them durable, `volume/file_system.rs` has the operations.

use crate::cache::Blocks;
use crate::commit::Committer;
use crate::core::{Core, State, failed};
use crate::create::codec_spec;
use crate::layer::{Segment, Source};
use crate::logger::{Logger, Replay};
use crate::options::OpenOptions;
use crate::parallel::Workers;
use crate::preload::{self, Preloaded};
use crate::tables::Tables;
use parking_lot::{Condvar, Mutex, RwLock};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::Result;
use weald_format::volume::VolumeRow;
use weald_store::{CollectOptions, Store, StoreWriter, WriteOptions};
use weald_vfs::{Ino, Nanoseconds, Outcome};

/// Most bytes of the disk that are kept free for removals and commits.
const RESERVE_MAX: u64 = 64 << 20;
/// Longest time that rebuilding the index takes at a stretch.
const REBUILD_TIME: Duration = Duration::from_millis(100);

/// Figures about an open volume.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Bytes of files that are no hole.
    pub logical_len: u64,
    /// Bytes of the blocks that files refer to, decoded, each counted once.
    pub unique_len: u64,
    /// Logical bytes that share a block with others.
    pub shared_len: u64,
    /// Bytes that these blocks take in segments.
    pub stored_len: u64,
    /// Written bytes that are not durable yet.
    pub dirty_len: u64,
    /// Seconds since the oldest change that is not durable yet.
    pub at_risk: f64,
    /// Bytes of segments that wait to be freed.
    pub dead_len: u64,
    /// Number of commits so far.
    pub commits: u64,
    /// The error of storage that made the volume read-only.
    pub failure: Option<String>,
}

/// Wakes the thread that commits, and those that wait for a commit.
#[derive(Debug, Default)]
struct Signal {
    wake: Mutex<bool>,
    waker: Condvar,
    progress: Condvar,
    is_closing: AtomicBool,
    /// Number of syncs that make changes durable. The others wait for the end of one.
    syncing: Mutex<usize>,
    synced: Condvar,
}

/// An open volume.
#[derive(Debug)]
pub struct Volume {
    pub(crate) core: Core,
    committer: Mutex<Committer>,
    logger: Mutex<Logger>,
    store: Store,
    signal: Arc<Signal>,
    /// The thread that commits.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    /// Whether blocks died since space was returned.
    has_dead: AtomicBool,
    /// Whether files were removed since the tables were compacted.
    has_removed: AtomicBool,
    /// Number of commits so far.
    commits: AtomicU64,
}

impl Volume {
    /// Opens the volume `name` and drops the orphans that a crash left.
    ///
    /// # Errors
    /// `NotFound`; `Busy` if another process writes to the store; `Corrupt`, `Io`.
    pub fn open(store: &Store, name: &str, options: OpenOptions) -> Result<Arc<Self>> {
        let ignores_barriers = options.ignores_barriers && !options.is_read_only;
        let store = &match (options.is_read_only, ignores_barriers) {
            (true, _) => store.for_reading(),
            (_, true) => store.without_barriers(),
            _ => store.clone(),
        };
        let writer = store.write(WriteOptions::new(options.writer_name.clone()))?;
        let row = writer.volume_row(name)?;
        if ignores_barriers {
            store.mark_unsynced()?;
        }
        Self::of_writer(store, writer, (name, row), options)
    }

    /// Opens the volume with this row, through the writer of its store.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn of_writer(
        store: &Store,
        writer: StoreWriter,
        (name, row): (&str, VolumeRow),
        options: OpenOptions,
    ) -> Result<Arc<Self>> {
        let workers = Workers::new(options.threads, codec_spec(&row)?, row.chunk_len.into())?;
        let engine = writer.engine();
        let tables = Tables::new(engine, row.snapshot, row.chunk_len, row.next_ino);
        let blocks = Blocks::new(writer.block_reader(), options.cache_len / 2);
        let replay = Replay::read(&writer, &row, &options)?.accepted(&options)?;
        let quotas = tables.quotas()?;
        let mut name_key = [0; 32];
        name_key[..16].copy_from_slice(&row.secret);
        name_key[16..].copy_from_slice(&row.secret);
        let core = Core {
            state: RwLock::new(State::new(row.next_ino, quotas)),
            tables,
            blocks,
            gate: RwLock::new(()),
            name_key,
            is_case_insensitive: row.is_case_insensitive,
            free: AtomicU64::new(0),
            reserve: AtomicU64::new(0),
            #[cfg(test)]
            hook: crate::hook::Hook::default(),
            options,
        };
        let index_len = core.options.index_len;
        let volume = Arc::new(Self {
            commits: AtomicU64::new(row.commit),
            committer: Mutex::new(Committer::new(writer, name, row, workers, index_len)),
            core,
            logger: Mutex::default(),
            store: store.clone(),
            signal: Arc::default(),
            thread: Mutex::new(None),
            has_dead: AtomicBool::new(false),
            // Earlier mounts may have removed some.
            has_removed: AtomicBool::new(true),
        });
        // Before anything else can commit.
        if let Err(error) = volume.replay(replay) {
            volume.core.fail(&error);
            return Err(error);
        }
        if !volume.core.options.is_read_only {
            volume.core.drop_orphans()?;
        }
        volume.refresh_free()?;
        if volume.core.options.background && !volume.core.options.is_read_only {
            let weak = Arc::downgrade(&volume);
            let signal = volume.signal.clone();
            let interval = volume.core.options.commit_interval;
            let spawned = thread::Builder::new()
                .name("weald-commit".into())
                .spawn(move || run(&weak, &signal, interval));
            let spawned = spawned.map_err(|e| weald_format::Error::io("a thread", e))?;
            *volume.thread.lock() = Some(spawned);
        }
        if volume.core.options.is_preloaded {
            preload::start(&volume)?;
        }
        Ok(volume)
    }

    /// Commits all changes so far.
    ///
    /// # Errors
    /// `Io` with the first failure, now and ever after.
    pub fn commit(&self) -> Result<()> {
        let wanted = self.core.state.read().sequence;
        let mut committer = self.committer.lock();
        {
            let state = self.core.state.read();
            if let Some(failure) = &state.failure {
                return Err(failed(failure));
            }
            // Another caller's commit took the changes of this one, too.
            let has_drops = state.active.is_changed && wanted == 0;
            if state.committed >= wanted && !has_drops {
                return Ok(());
            }
        }
        self.commit_locked(&mut committer, false)
    }

    fn commit_locked(&self, committer: &mut Committer, is_forced: bool) -> Result<()> {
        let Some((layer, sequence)) = self.freeze(is_forced)? else {
            return Ok(());
        };
        self.signal.progress.notify_all();
        #[cfg(test)]
        self.core.hook.reach(crate::hook::Stage::Frozen);
        let done = committer.commit(&self.core, &layer);
        let done = match done {
            Ok(done) => done,
            Err(error) => {
                self.core.fail(&error);
                self.signal.progress.notify_all();
                return Err(error);
            }
        };
        #[cfg(test)]
        self.core.hook.reach(crate::hook::Stage::Committed);
        self.core
            .thaw(&layer, sequence, &done.windows, &done.dropped);
        self.logger.lock().committed(&committer.row);
        if !done.dropped.is_empty() {
            self.has_removed.store(true, Ordering::Relaxed);
        }
        drop(layer);
        self.commits.store(committer.row.commit, Ordering::Relaxed);
        let freed = self.free(committer, &done.dead);
        let freed = freed.and_then(|()| self.refresh_free()).and_then(|()| {
            match self.core.free.load(Ordering::Relaxed) {
                0 => self.end_holds(committer),
                _ => Ok(()),
            }
        });
        if let Err(error) = freed {
            self.core.fail(&error);
            self.signal.progress.notify_all();
            return Err(error);
        }
        self.signal.progress.notify_all();
        Ok(())
    }

    fn free(&self, committer: &Committer, dead: &[weald_store::Dead]) -> Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        self.has_dead.store(true, Ordering::Relaxed);
        let _gate = self.core.gate.write();
        self.core.blocks.reader().forget_removed_rows();
        committer.writer.free(dead)
    }

    fn refresh_free(&self) -> Result<()> {
        let space = self.store.space()?;
        let reserve = reserve_of(space.total);
        let free = space.free.saturating_sub(reserve);
        self.core.free.store(free, Ordering::Relaxed);
        let reserve = reserve.min(space.free);
        self.core.reserve.store(reserve, Ordering::Relaxed);
        Ok(())
    }

    /// Commits all changes, and gives a volume that has no name yet its name.
    ///
    /// # Errors
    /// As [`Volume::commit`]; `Busy` if the name is taken.
    pub(crate) fn publish(&self, name: &str) -> Result<()> {
        self.commit()?;
        let mut committer = self.committer.lock();
        let hidden = committer.name.clone();
        committer.writer.publish_volume(&hidden, name)?;
        committer.name = name.to_owned();
        Ok(())
    }

    /// Removes the files of segments without a live block, and finishes the removal of large files.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn return_space(&self) -> Result<()> {
        let mut committer = self.committer.lock();
        while !committer.drops.is_empty() {
            self.commit_locked(&mut committer, true)?;
        }
        if committer.keeps_dead(&self.core) || !self.has_dead.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        if committer.writer.dead_segments()?.is_empty() {
            return Ok(());
        }
        let _gate = self.core.gate.write();
        self.core.blocks.close_segments();
        let options = CollectOptions {
            copy_below_percent: 0,
            ..CollectOptions::default()
        };
        let check_cancelled = &mut |_: &_| ControlFlow::Continue(());
        if let Err(error) = committer.writer.collect(&options, check_cancelled) {
            self.core.fail(&error);
            return Err(error);
        }
        self.refresh_free()
    }

    /// Notes further pieces of committed files in the dedup index. Returns whether there are more.
    pub(crate) fn rebuild_index(&self) -> bool {
        self.committer.lock().rebuild_step(&self.core)
    }

    /// Returns the space of removed names and files in the tables to the disk, if the disk is full
    /// and names were removed since the last call.
    fn compact(&self) -> Result<()> {
        let committer = self.committer.lock();
        self.refresh_free()?;
        if self.core.free.load(Ordering::Relaxed) > 0
            || !self.has_removed.swap(false, Ordering::Relaxed)
        {
            return Ok(());
        }
        if let Err(error) = committer.writer.engine().compact() {
            self.core.fail(&error);
            return Err(error);
        }
        self.refresh_free()
    }

    /// Commits the last changes and stops the thread. Later changes fail.
    ///
    /// # Errors
    /// As [`Volume::commit`].
    pub fn close(&self) -> Result<()> {
        self.signal.is_closing.store(true, Ordering::Relaxed);
        self.wake_committer();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            log::error!("the thread that commits panicked");
        }
        if self.core.options.is_read_only {
            return self.close_holds();
        }
        self.end_log()?;
        self.commit()?;
        self.close_holds()?;
        match self.core.options.ignores_barriers {
            true => self.store.sync_all(),
            false => Ok(()),
        }
    }

    /// Decoded bytes of blocks in memory.
    pub fn cached_len(&self) -> u64 {
        self.core.blocks.kept_len()
    }

    /// Figures about the volume. Reads all its extents, beside commits.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn status(&self) -> Result<Status> {
        let snapshot = self.core.tables.snapshot();
        let usage = crate::check::usage(self.core.blocks.reader(), snapshot)?;
        let state = self.core.state.read();
        Ok(Status {
            logical_len: usage.logical_len,
            unique_len: usage.unique_len,
            shared_len: usage.logical_len.saturating_sub(usage.unshared_len),
            stored_len: usage.stored_len,
            dirty_len: state.written_at_risk(),
            at_risk: state
                .risk_since
                .map_or(0.0, |since| since.elapsed().as_secs_f64()),
            dead_len: usage.dead_len,
            commits: self.commits.load(Ordering::Relaxed),
            failure: state.failure.clone(),
        })
    }

    fn wake_committer(&self) {
        *self.signal.wake.lock() = true;
        self.signal.waker.notify_all();
    }

    /// Puts content into a file that has none there: what an image has.
    pub(crate) fn put_segments(
        &self,
        ino: Ino,
        segments: Vec<Segment>,
        now: Nanoseconds,
    ) -> Outcome<()> {
        let in_memory = segments.iter().map(|segment| match segment.source {
            Source::Bytes(..) => segment.len(),
            _ => 0,
        });
        self.admit(in_memory.sum())?;
        let offset = segments.first().map_or(0, |first| first.range.start);
        self.change(now, |core, state| {
            core.write(state, ino.0, offset, segments, now)
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

/// Bytes that are kept free on a disk of `total` bytes.
fn reserve_of(total: u64) -> u64 {
    RESERVE_MAX.min(total / 100 * 8)
}

/// The thread that commits. It holds the volume only while it works for it.
fn run(weak: &Weak<Volume>, signal: &Signal, interval: Duration) {
    loop {
        let mut wake = signal.wake.lock();
        let deadline = Instant::now() + interval.min(Duration::from_millis(200));
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
        } else if since.is_none() {
            let _ = volume.return_space();
            let is_idle = || volume.core.state.read().dirty_since.is_none();
            let end = Instant::now() + REBUILD_TIME;
            while is_idle() && Instant::now() < end && volume.rebuild_index() {}
        }
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
        }
    }
}

mod adding;
mod admission;
mod collecting;
mod file_system;
mod hold;
mod removing;
mod syncing;

pub use adding::Adding;
pub use collecting::{CollectStep, Collecting};
pub use hold::Hold;
pub use removing::Removing;
#[cfg(test)]
pub(crate) use syncing::Record;
pub use syncing::apply_sync_log;

#[cfg(test)]
mod tests;
