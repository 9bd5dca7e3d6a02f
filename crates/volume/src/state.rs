//! Everything that operations of a volume change: its layers, and what became of them.

use crate::layer::Layer;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Instant, SystemTime};
use weald_format::volume::QuotaRow;
use weald_format::{Error, ErrorKind, Ino};

/// Number of a record of the sync log, counted from the mount on, from 1. The log itself counts the
/// records of each layer: [`weald_format::RecordNo`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct MountRecordNo(u64);

impl MountRecordNo {
    /// In front of all records.
    pub const NONE: Self = Self(0);

    /// The record after this one.
    #[must_use]
    fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// A layer that is being written to the sync log.
#[derive(Debug)]
pub struct Logging {
    layer: Arc<Layer>,
    /// Its record's number.
    number: MountRecordNo,
    /// The number of changes up to its end.
    sequence: u64,
    /// Whether the sync of its record returned.
    is_synced: bool,
}

/// Sums over a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of inodes, those without a name included.
    pub inode_count: u64,
    /// Bytes of files that are no hole.
    pub len: u64,
}

/// Everything that operations change.
#[derive(Debug)]
pub struct State {
    /// Sums over the volume, once they were counted.
    pub totals: Option<Totals>,
    /// Receives all changes.
    pub active: Layer,
    /// Layers that are being written to the sync log, oldest first.
    pub logging: VecDeque<Logging>,
    /// The last record of the sync log so far.
    newest_record: MountRecordNo,
    /// Changes that are durable in the sync log.
    pub logged: Layer,
    /// The layer that is being committed.
    pub frozen: Option<Arc<Layer>>,
    /// Whether the sync log has all of the frozen layer, so that it can receive changes above it.
    pub is_frozen_logged: bool,
    /// All quotas, by directory.
    pub quotas: BTreeMap<Ino, QuotaRow>,
    /// Lengths of sets of many attributes, by inode, so that they are counted once.
    pub xattr_set_lens: HashMap<Ino, u64>,
    /// Whether the committed row of the volume says that inodes may have flags. Until it does, an
    /// older program would take the volume, and records of the sync log have no flags.
    pub knows_flags: bool,
    /// Whether a snapshot may keep rows that change.
    pub has_snapshots: bool,
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
    /// When that was.
    pub failed_at: Option<SystemTime>,
}

/// Rows that a changed row sets if a snapshot keeps the old one: itself, the kept one, and that in
/// the list of those.
const ROWS_WITH_SNAPSHOTS: u64 = 3;

impl State {
    /// The state of a volume without changes above its tables.
    pub fn new(next_ino: Ino, quotas: BTreeMap<Ino, QuotaRow>) -> Self {
        Self {
            totals: None,
            active: Layer {
                next_ino,
                ..Layer::default()
            },
            logging: VecDeque::new(),
            newest_record: MountRecordNo::NONE,
            logged: Layer::default(),
            frozen: None,
            is_frozen_logged: false,
            quotas,
            xattr_set_lens: HashMap::new(),
            knows_flags: false,
            has_snapshots: false,
            sequence: 0,
            durable: 0,
            committed: 0,
            dirty_since: None,
            risk_since: None,
            failure: None,
            failed_at: None,
        }
    }

    /// Takes the active layer, and puts an empty one in its place.
    pub fn take_active(&mut self) -> Layer {
        let new = self.active.above();
        std::mem::replace(&mut self.active, new)
    }

    /// Makes the volume read-only for the reason `why`; the first reason stays.
    pub fn fail(&mut self, why: impl FnOnce() -> String) {
        if self.failure.is_none() {
            self.failure = Some(why());
            self.failed_at = Some(SystemTime::now());
        }
    }

    /// Seconds since the oldest change that is not durable. After a failure nothing becomes
    /// durable, so that the time grows on.
    pub fn seconds_at_risk(&self) -> f64 {
        let since = self
            .risk_since
            .or(self.dirty_since.filter(|_| self.failure.is_some()));
        let risk = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        let failed = self.failed_at.and_then(|at| at.elapsed().ok());
        risk.max(failed.map_or(0.0, |since| since.as_secs_f64()))
    }

    /// Takes the active layer for a record of the sync log. Returns it and the record's number.
    pub fn begin_logging(&mut self) -> (Arc<Layer>, MountRecordNo) {
        let layer = Arc::new(self.take_active());
        self.newest_record = self.newest_record.next();
        self.logging.push_back(Logging {
            layer: layer.clone(),
            number: self.newest_record,
            sequence: self.sequence,
            is_synced: false,
        });
        self.risk_since = None;
        (layer, self.newest_record)
    }

    /// Notes that the sync of a record returned. The changes of the records that are durable
    /// together with all before them are logged then.
    pub fn record_synced(&mut self, number: MountRecordNo) {
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
    pub fn last_record(&self) -> Option<MountRecordNo> {
        self.logging.back().map(|record| record.number)
    }

    /// Whether the record with this number is under way, or one before it.
    pub fn is_under_way(&self, number: MountRecordNo) -> bool {
        let first = self.logging.front();
        first.is_some_and(|record| record.number <= number)
    }

    /// Whether a record that is under way has the first `sequence` changes.
    pub fn is_being_logged(&self, sequence: u64) -> bool {
        let last = self.logging.back();
        last.is_some_and(|record| record.sequence >= sequence)
    }

    /// The layers that are being written to the sync log, newest first.
    pub fn logging_layers(&self) -> impl Iterator<Item = &Layer> {
        self.logging.iter().rev().map(|record| &*record.layer)
    }

    /// Adds to the totals, if they were counted.
    pub fn change_totals(&mut self, inode_count: i64, len: i64) {
        if let Some(totals) = &mut self.totals {
            totals.inode_count = totals.inode_count.saturating_add_signed(inode_count);
            totals.len = totals.len.saturating_add_signed(len);
        }
    }

    /// Whether no change waits for a commit or is within one.
    pub fn is_quiet(&self) -> bool {
        let is_changed = self.active.is_changed || self.logged.is_changed;
        let is_under_way = self.frozen.is_some() || !self.logging.is_empty();
        !is_changed && !is_under_way && self.failure.is_none()
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
        let rows = if self.has_snapshots {
            ROWS_WITH_SNAPSHOTS
        } else {
            1
        };
        layers
            .map(|layer| layer.space(rows))
            .fold(0, u64::saturating_add)
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
    pub fn has_content_at_risk(&self, ino: Ino) -> bool {
        let frozen = self.frozen.as_deref().filter(|_| !self.is_frozen_logged);
        let layers = self.logging_layers().chain([&self.active]);
        layers
            .chain(frozen)
            .any(|layer| layer.files.contains_key(&ino))
    }
}

/// The error of everything after a failure of storage.
pub fn failed(why: &str) -> Error {
    let what = format!("the volume is read-only since a commit failed: {why}");
    Error::new(ErrorKind::Io, what)
}
