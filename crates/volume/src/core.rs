//! The state of an open volume: layers above tables, and how a row is found in them.

use crate::cache::Blocks;
use crate::layer::{Layer, Segment};
use crate::options::OpenOptions;
#[cfg(any(test, feature = "planted-bugs"))]
use crate::options::PlantedBug;
use crate::tables::Tables;
use parking_lot::RwLock;
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;
use weald_format::volume::{InodeRow, QuotaRow};
use weald_format::{Error, FileKind, Result};
use weald_vfs::{Failure, Ino, Nanoseconds, Outcome, Stat};

/// A layer that is being written to the sync log.
#[derive(Debug)]
pub struct Logging {
    layer: Arc<Layer>,
    /// Its record's number, of all records of the mount.
    number: u64,
    /// The number of changes up to its end.
    sequence: u64,
    /// Whether the sync of its record returned.
    is_synced: bool,
}

/// Everything that operations change.
#[derive(Debug)]
pub struct State {
    /// Receives all changes.
    pub active: Layer,
    /// Layers that are being written to the sync log, oldest first.
    pub logging: VecDeque<Logging>,
    /// Number of records of the sync log so far.
    pub record_count: u64,
    /// Changes that are durable in the sync log.
    pub logged: Layer,
    /// The layer that is being committed.
    pub frozen: Option<Arc<Layer>>,
    /// Whether the sync log has all of the frozen layer, so that it can receive changes above it.
    pub is_frozen_logged: bool,
    /// All quotas, by directory.
    pub quotas: BTreeMap<u64, QuotaRow>,
    /// Number of changes so far.
    pub sequence: u64,
    /// Number of changes that are durable, in the sync log or in the tables.
    pub durable: u64,
    /// Number of changes that the tables have.
    pub committed: u64,
    /// When the oldest change that waits for a commit was made.
    pub dirty_since: Option<Instant>,
    /// When the oldest change that is not durable was made.
    pub risk_since: Option<Instant>,
    /// The error that made the volume read-only.
    pub failure: Option<String>,
}

impl State {
    /// The state of a volume without changes above its tables.
    pub fn new(next_ino: u64, quotas: BTreeMap<u64, QuotaRow>) -> Self {
        Self {
            active: Layer {
                next_ino,
                ..Layer::default()
            },
            logging: VecDeque::new(),
            record_count: 0,
            logged: Layer::default(),
            frozen: None,
            is_frozen_logged: false,
            quotas,
            sequence: 0,
            durable: 0,
            committed: 0,
            dirty_since: None,
            risk_since: None,
            failure: None,
        }
    }

    fn take_active(&mut self) -> Layer {
        let new = self.active.above();
        std::mem::replace(&mut self.active, new)
    }

    /// Takes the active layer for a record of the sync log. Returns it and the record's number.
    pub fn begin_logging(&mut self) -> (Arc<Layer>, u64) {
        let layer = Arc::new(self.take_active());
        self.record_count += 1;
        self.logging.push_back(Logging {
            layer: layer.clone(),
            number: self.record_count,
            sequence: self.sequence,
            is_synced: false,
        });
        self.risk_since = None;
        (layer, self.record_count)
    }

    /// Notes that the sync of a record returned. The changes of the records that are durable
    /// together with all before them are logged then.
    pub fn record_synced(&mut self, number: u64) {
        let mut records = self.logging.iter_mut();
        if let Some(record) = records.find(|record| record.number == number) {
            record.is_synced = true;
        }
        let is_synced = |record: &&Logging| record.is_synced;
        while self.logging.front().filter(is_synced).is_some()
            && let Some(record) = self.logging.pop_front()
        {
            self.logged.merge(Arc::unwrap_or_clone(record.layer));
            self.durable = self.durable.max(record.sequence);
        }
    }

    /// Takes the last record back: the sync log has no space for it. Its changes are active again.
    pub fn cancel_logging(&mut self) {
        if let Some(record) = self.logging.pop_back() {
            let newer = std::mem::replace(&mut self.active, Arc::unwrap_or_clone(record.layer));
            self.active.merge(newer);
            self.risk_since = self.dirty_since;
        }
    }

    /// The number of the last record that is under way.
    pub fn last_record(&self) -> Option<u64> {
        self.logging.back().map(|record| record.number)
    }

    /// Whether the record with this number is under way, or one before it.
    pub fn is_under_way(&self, number: u64) -> bool {
        let first = self.logging.front();
        first.is_some_and(|record| record.number <= number)
    }

    /// Whether a record that is under way has the first `sequence` changes.
    pub fn is_being_logged(&self, sequence: u64) -> bool {
        let last = self.logging.back();
        last.is_some_and(|record| record.sequence >= sequence)
    }

    /// The layers that are being written to the sync log, newest first.
    fn logging_layers(&self) -> impl Iterator<Item = &Layer> {
        self.logging.iter().rev().map(|record| &*record.layer)
    }

    /// Memory that the changes take which the next commit has to write, roughly, bytes.
    pub fn cost(&self) -> u64 {
        let logging: u64 = self.logging_layers().map(|layer| layer.cost).sum();
        self.active.cost + self.logged.cost + logging
    }

    /// Bytes of the disk that the commits of all changes take at most, roughly.
    pub fn space(&self) -> u64 {
        let layers = self.logging_layers().chain(self.frozen.as_deref());
        let layers = layers.chain([&self.active, &self.logged]);
        layers.map(Layer::space).fold(0, u64::saturating_add)
    }

    /// Written bytes that the tables do not have.
    pub fn written(&self) -> u64 {
        let frozen = self.frozen.as_ref().map_or(0, |layer| layer.written);
        self.unlogged_written() + self.logged.written + frozen
    }

    fn unlogged_written(&self) -> u64 {
        let logging: u64 = self.logging_layers().map(|layer| layer.written).sum();
        self.active.written + logging
    }

    /// Written bytes that are not durable.
    pub fn written_at_risk(&self) -> u64 {
        let frozen = self.frozen.as_ref().filter(|_| !self.is_frozen_logged);
        self.unlogged_written() + frozen.map_or(0, |layer| layer.written)
    }

    /// Whether a change of the content of `ino` is not durable.
    pub fn has_content_at_risk(&self, ino: u64) -> bool {
        let frozen = self.frozen.as_deref().filter(|_| !self.is_frozen_logged);
        let layers = self.logging_layers().chain([&self.active]);
        layers
            .chain(frozen)
            .any(|layer| layer.files.contains_key(&ino))
    }
}

/// The volume below its driver: state, tables, blocks.
#[derive(Debug)]
pub struct Core {
    /// The layers.
    pub state: RwLock<State>,
    /// Committed rows.
    pub tables: Tables,
    /// Decoded blocks.
    pub blocks: Blocks,
    /// Readers of blocks hold it; the space of unused blocks is freed while no thread holds it.
    pub gate: RwLock<()>,
    /// Options of the mount.
    pub options: OpenOptions,
    /// Key of the hash of names.
    pub name_key: [u8; 32],
    /// Whether names that differ in case only are equal.
    pub is_case_insensitive: bool,
    /// Bytes that can still be written, as of the last look at the disk.
    pub free: std::sync::atomic::AtomicU64,
    /// Bytes of the disk that are kept free for removals and commits.
    pub reserve: std::sync::atomic::AtomicU64,
    /// Runs operations of a test beside a commit.
    #[cfg(test)]
    pub hook: crate::hook::Hook,
}

impl Core {
    /// Whether this deliberate bug is on.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn has_bug(&self, bug: PlantedBug) -> bool {
        self.options.bug == Some(bug)
    }

    /// Changes the state under the lock; no other thread sees a part of the change.
    ///
    /// # Errors
    /// EROFS on a volume that cannot change, and the errors of `change`.
    pub fn change<T>(
        &self,
        now: Nanoseconds,
        change: impl FnOnce(&Self, &mut State) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut state = self.state.write();
        if state.failure.is_some() || self.options.is_read_only {
            return Err(Errno::ROFS.into());
        }
        let result = change(self, &mut state)?;
        state.sequence += 1;
        state.active.now = now;
        state.active.is_changed = true;
        if state.risk_since.is_none() {
            let since = Instant::now();
            state.risk_since = Some(since);
            state.dirty_since.get_or_insert(since);
        }
        Ok(result)
    }

    /// The layers, newest first.
    pub fn layers<'a>(&self, state: &'a State) -> impl Iterator<Item = &'a Layer> {
        #[cfg(any(test, feature = "planted-bugs"))]
        let hides_frozen = self.has_bug(PlantedBug::FrozenLayerIgnored);
        #[cfg(not(any(test, feature = "planted-bugs")))]
        let hides_frozen = false;
        let frozen = state.frozen.as_deref().filter(|_| !hides_frozen);
        let newer = std::iter::once(&state.active).chain(state.logging_layers());
        newer.chain([&state.logged]).chain(frozen)
    }

    /// The row of an inode.
    ///
    /// # Errors
    /// ENOENT.
    pub fn inode(&self, state: &State, ino: u64) -> Outcome<Arc<InodeRow>> {
        for layer in self.layers(state) {
            if let Some(row) = layer.inodes.get(&ino) {
                return row.clone().ok_or_else(|| Errno::NOENT.into());
            }
        }
        self.tables.inode(ino)?.ok_or_else(|| Errno::NOENT.into())
    }

    /// The row of an inode, to change it.
    ///
    /// # Errors
    /// ENOENT.
    pub fn inode_mut<'a>(&self, state: &'a mut State, ino: u64) -> Outcome<&'a mut InodeRow> {
        if !state.active.inodes.contains_key(&ino) {
            let row = self.inode(state, ino)?;
            state.active.put_inode(ino, Some(row));
        }
        match state.active.inodes.get_mut(&ino) {
            Some(Some(row)) => Ok(Arc::make_mut(row)),
            _ => Err(Errno::NOENT.into()),
        }
    }

    /// The row of a directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn directory(&self, state: &State, ino: u64) -> Outcome<Arc<InodeRow>> {
        let row = self.inode(state, ino)?;
        match row.kind {
            FileKind::Directory => Ok(row),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Visits the content of `range` of a file, holes included, in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_segment(
        &self,
        state: &State,
        ino: u64,
        range: Range<u64>,
        visit: &mut dyn FnMut(Segment) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let maps = self.layers(state).filter_map(|layer| layer.files.get(&ino));
        #[allow(unused_mut, reason = "a planted bug changes the order")]
        let mut maps: Vec<_> = maps.collect();
        #[cfg(any(test, feature = "planted-bugs"))]
        if self.has_bug(PlantedBug::StaleOverlay) {
            maps.reverse();
        }
        self.walk(&maps, ino, range, visit)
    }

    fn walk(
        &self,
        maps: &[&crate::layer::RangeMap],
        ino: u64,
        range: Range<u64>,
        visit: &mut dyn FnMut(Segment) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        if range.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let Some((map, rest)) = maps.split_first() else {
            return self.tables.each_segment(ino, range, visit);
        };
        let mut at = range.start;
        for segment in map.within(&range) {
            let end = segment.range.end;
            if self
                .walk(rest, ino, at..segment.range.start, visit)?
                .is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            if visit(segment).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            at = end;
        }
        self.walk(rest, ino, at..range.end, visit)
    }

    /// Number of bytes in `range` that are no hole.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn allocated(&self, state: &State, ino: u64, range: Range<u64>) -> Result<u64> {
        let mut allocated = 0;
        let flow = self.each_segment(state, ino, range, &mut |segment| {
            if !segment.source.is_hole() {
                allocated += segment.len();
            }
            ControlFlow::Continue(())
        })?;
        debug_assert!(flow.is_continue());
        Ok(allocated)
    }

    /// Freezes the changes that the next commit takes, if there are any or `is_forced`. With
    /// `is_logged`, these are the changes that the sync log has, if it has all so far; otherwise
    /// all. Returns them, and the number of changes up to their end. No record is under way.
    ///
    /// # Errors
    /// `Io` with the first failure.
    pub fn freeze(&self, is_forced: bool, is_logged: bool) -> Result<Option<(Arc<Layer>, u64)>> {
        let mut state = self.state.write();
        if let Some(failure) = &state.failure {
            return Err(failed(failure));
        }
        if !state.active.is_changed && !state.logged.is_changed && !is_forced {
            return Ok(None);
        }
        let takes_active = !(is_logged && state.logged.is_changed);
        let had_changes = state.active.is_changed;
        let sequence = match takes_active {
            true => state.sequence,
            false => state.durable,
        };
        let mut layer = std::mem::take(&mut state.logged);
        if takes_active {
            let active = state.take_active();
            match layer.is_changed {
                true => layer.merge(active),
                false => layer = active,
            }
            state.risk_since = None;
        }
        state.dirty_since = state.risk_since;
        state.is_frozen_logged = !(takes_active && had_changes);
        let layer = Arc::new(layer);
        state.frozen = Some(layer.clone());
        Ok(Some((layer, sequence)))
    }

    /// Drops the frozen layer, whose rows are in the tables now.
    pub fn thaw(&self, layer: &Layer, sequence: u64, windows: &[(u64, u64)], dropped: &[u64]) {
        let mut state = self.state.write();
        self.tables.committed(layer, windows, dropped);
        state.committed = sequence;
        state.durable = state.durable.max(sequence);
        state.frozen = None;
    }

    /// Makes the volume read-only, because storage failed.
    pub fn fail(&self, error: &Error) {
        let mut state = self.state.write();
        if state.failure.is_none() {
            log::error!("the volume became read-only: {error}");
            state.failure = Some(error.to_string());
        }
    }
}

/// The error of everything after a failure of storage.
pub fn failed(why: &str) -> Error {
    let what = format!("the volume is read-only since a commit failed: {why}");
    Error::new(weald_format::ErrorKind::Io, what)
}

/// Failure with an errno of its own and a cause for the log.
pub fn refused(errno: Errno, cause: Error) -> Failure {
    Failure {
        errno,
        cause: Some(cause),
    }
}

/// Attributes of the inode `ino`.
pub fn stat_of(ino: u64, row: &InodeRow) -> Stat {
    Stat {
        ino: Ino(ino),
        kind: row.kind,
        permissions: row.permissions,
        uid: row.uid,
        gid: row.gid,
        nlink: row.nlink,
        rdev: row.rdev,
        size: row.size,
        allocated: row.allocated,
        atime: row.atime,
        mtime: row.mtime,
        ctime: row.ctime,
        btime: row.btime,
    }
}
