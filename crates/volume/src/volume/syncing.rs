//! How a sync becomes durable: a record of the sync log, or a commit.
//!
//! One order: a record has all changes since the record before, so that log and tables together are
//! a prefix of the operations. A record may be written while those before it are being synced; it
//! counts as durable only after them. A commit takes the changes of all records so far. Later
//! changes belong to the next commit, and their records name the commit that they lie above. Locks
//! are taken in this order: committer, writer, logger, state. A thread that holds the first three
//! may wait for records that are under way, since those end without them.

use super::Volume;
use crate::OpenOptions;
use crate::commit::Committer;
use crate::delta::encode;
use crate::layer::Layer;
use crate::logger::{BODY_LEN_MAX, Logger, Replay, open_log, with_bug};
use crate::open_store::Writing;
use crate::options::PlantedBug;
use crate::state::{MountRecordNo, failed};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weald_format::{ErrorKind, Result};
use weald_store::{SYNCS_MAX, Store, WriteOptions, WrittenRecord};

/// Puts the changes that a crash left in the sync log of the volume `name` into its tables, as the
/// writer `writer_name`.
///
/// # Errors
/// `NotFound`; `Busy` if another process writes to the store; `Corrupt`, `Io`, `Full`.
pub fn apply_sync_log(store: &Store, name: &str, writer_name: &str) -> Result<()> {
    let options = OpenOptions {
        background: false,
        writer_name: writer_name.to_owned(),
        ..OpenOptions::default()
    };
    let writer = store.write(WriteOptions::new(writer_name))?;
    let has_sync_log = writer.volume_row(name)?.has_sync_log;
    drop(writer);
    if has_sync_log {
        Volume::open(store, name, options)?.close()
    } else {
        Ok(())
    }
}

/// The right to make changes durable, until it is dropped: [`SYNCS_MAX`] threads have it.
struct Turn<'a>(&'a Volume);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.signal.syncing.lock() -= 1;
        self.0.signal.synced.notify_all();
    }
}

/// A record of the sync log that is under way.
pub(crate) struct Record {
    /// Its number; that of the last record under way if there was nothing to write.
    number: MountRecordNo,
    written: Option<WrittenRecord>,
}

impl Volume {
    /// Makes all changes so far durable. Callers that come while [`SYNCS_MAX`] others are at it
    /// share the next record.
    ///
    /// # Errors
    /// `Io` with the first failure, now and ever after; `Full`.
    pub(super) fn sync_changes(&self) -> Result<()> {
        let wanted = self.core.state.read().sequence;
        let mut syncing = self.signal.syncing.lock();
        loop {
            if self.is_durable(wanted)? {
                return Ok(());
            }
            let is_under_way = self.core.state.read().is_being_logged(wanted);
            if !is_under_way && *syncing < SYNCS_MAX {
                break;
            }
            self.signal.synced.wait(&mut syncing);
        }
        *syncing += 1;
        drop(syncing);
        let _turn = Turn(self);
        if self.log_changes()? {
            Ok(())
        } else {
            self.commit_for_sync(wanted)
        }
    }

    /// Waits until the replicas have all changes so far for which a sync waits.
    ///
    /// # Errors
    /// `Io` with the first failure, now and ever after; `Full`.
    pub(super) fn sync_replicas(&self) -> Result<()> {
        let shared = &self.core.shared;
        if shared.synced.is_empty() {
            return Ok(());
        }
        self.commit()?;
        let commit = shared.writing.lock().writer.commit_no();
        let failure = || self.core.state.read().failure.clone();
        let must_end = || failure().is_some() || self.signal.is_closing.load(Ordering::Relaxed);
        if shared.synced.wait(commit, &must_end) {
            return Ok(());
        }
        let what = failure().unwrap_or_else(|| "the volume is closed before".to_owned());
        Err(failed(&what))
    }

    fn is_durable(&self, wanted: u64) -> Result<bool> {
        let state = self.core.state.read();
        match &state.failure {
            Some(failure) => Err(failed(failure)),
            None => Ok(state.durable >= wanted),
        }
    }

    /// Makes all changes so far durable in the sync log. Returns false if they need a commit.
    ///
    /// # Errors
    /// `Io` with the first failure.
    pub(crate) fn log_changes(&self) -> Result<bool> {
        let Some(record) = self.begin_record()? else {
            return Ok(false);
        };
        #[cfg(test)]
        self.core.hook.reach(crate::hook::Stage::Recorded);
        self.sync_record(&record)?;
        self.wait_for_record(&record)?;
        Ok(true)
    }

    /// Writes all changes so far to the sync log. Returns nothing if they need a commit.
    ///
    /// # Errors
    /// `Io` with the first failure.
    pub(crate) fn begin_record(&self) -> Result<Option<Record>> {
        let mut logger = self.logger.lock();
        let record = self.write_record(&mut logger)?;
        let is_nearly_full = |log: &weald_store::SyncLog| log.is_nearly_full();
        if record.is_some() && logger.log.as_ref().is_some_and(is_nearly_full) {
            self.signal.wake_committer();
        }
        Ok(record)
    }

    /// As [`Volume::begin_record`], under the lock.
    fn write_record(&self, logger: &mut Logger) -> Result<Option<Record>> {
        let Some(log) = &mut logger.log else {
            return Ok(None);
        };
        let (unsynced, layer, number) = {
            let mut state = self.core.state.write();
            if let Some(failure) = &state.failure {
                return Err(failed(failure));
            }
            if state.frozen.is_some() && !state.is_frozen_logged {
                return Ok(None);
            }
            if !state.active.is_changed {
                if state.logging.is_empty() {
                    state.durable = state.sequence;
                }
                let number = state.last_record().unwrap_or(MountRecordNo::NONE);
                let written = None;
                return Ok(Some(Record { number, written }));
            }
            // Rows take less than their cost.
            let is_large = state.active.cost > 2 * BODY_LEN_MAX;
            if is_large || state.active.written > log.free_len().min(BODY_LEN_MAX) {
                return Ok(None);
            }
            if !state.knows_flags && state.active.has_flags() {
                return Ok(None);
            }
            let unsynced = state.logging.len() as u64;
            let (layer, number) = state.begin_logging();
            (unsynced, layer, number)
        };
        #[cfg(test)]
        self.core.hook.reach(crate::hook::Stage::Logging);
        let body = self.encoded(&layer);
        drop(layer);
        if body.len() as u64 > log.free_len().min(BODY_LEN_MAX) {
            self.take_back();
            return Ok(None);
        }
        match log.append(&body, unsynced) {
            Ok(written) => Ok(Some(Record {
                number,
                written: Some(written),
            })),
            Err(error) if error.kind() == ErrorKind::Full => {
                self.take_back();
                logger.end();
                Ok(None)
            }
            Err(error) => {
                self.core.shared.fail(&error);
                Err(error)
            }
        }
    }

    /// Makes the changes of the last record active again. Threads that wait for it commit them.
    fn take_back(&self) {
        self.core.state.write().cancel_logging();
        self.signal.notify_synced();
    }

    /// Syncs a record.
    ///
    /// # Errors
    /// `Io` with the first failure.
    pub(crate) fn sync_record(&self, record: &Record) -> Result<()> {
        let Some(written) = &record.written else {
            return Ok(());
        };
        if let Err(error) = written.sync() {
            self.core.shared.fail(&error);
            return Err(error);
        }
        if self.core.has_bug(PlantedBug::LogAheadAcknowledged) {
            return Ok(());
        }
        let mut state = self.core.state.write();
        // After a failure nothing becomes durable: the changes of an earlier record are lost.
        if let Some(failure) = &state.failure {
            return Err(failed(failure));
        }
        state.record_synced(record.number);
        drop(state);
        self.signal.notify_synced();
        Ok(())
    }

    /// Waits until a synced record is durable together with all before it.
    ///
    /// # Errors
    /// `Io` with the first failure.
    pub(crate) fn wait_for_record(&self, record: &Record) -> Result<()> {
        if self.core.has_bug(PlantedBug::LogAheadAcknowledged) {
            self.core.state.write().record_synced(record.number);
            return Ok(());
        }
        let mut syncing = self.signal.syncing.lock();
        loop {
            {
                let state = self.core.state.read();
                if let Some(failure) = &state.failure {
                    return Err(failed(failure));
                }
                if !state.is_under_way(record.number) {
                    return Ok(());
                }
            }
            self.signal.synced.wait(&mut syncing);
        }
    }

    fn encoded(&self, layer: &Layer) -> Vec<u8> {
        encode(
            layer,
            self.core.tables.volume_no(),
            self.core.options.faults,
        )
    }

    /// Freezes the changes for a commit. If the log is in use, it gets the last of them first, so
    /// that it can receive the changes that come beside the commit.
    pub(super) fn freeze(&self, is_forced: bool) -> Result<Option<(Arc<Layer>, u64)>> {
        let mut logger = self.logger.lock();
        let last = self.core.state.read().last_record();
        if let Some(number) = last {
            let written = None;
            self.wait_for_record(&Record { number, written })?;
        }
        let is_in_use = self.core.state.read().logged.is_changed;
        let record = if is_in_use {
            self.write_record(&mut logger)?
        } else {
            None
        };
        if let Some(record) = &record {
            self.sync_record(record)?;
            self.wait_for_record(record)?;
        }
        let is_logged = record.is_some();
        let frozen = self.core.freeze(is_forced, is_logged)?;
        if frozen.is_some()
            && let Some(log) = &mut logger.log
        {
            log.next_layer();
        }
        Ok(frozen)
    }

    fn commit_for_sync(&self, wanted: u64) -> Result<()> {
        let mut committer = self.committer.lock();
        if self.is_durable(wanted)? {
            return Ok(());
        }
        let mut writing = self.core.shared.writing.lock();
        if let Err(error) = self.prepare_log(&mut committer, &writing) {
            self.core.shared.fail(&error);
            return Err(error);
        }
        self.commit_locked(&mut committer, &mut writing, false)
    }

    /// Opens or makes the log, if syncs are frequent and there is room. The next commit announces
    /// it.
    fn prepare_log(&self, committer: &mut Committer, writing: &Writing) -> Result<()> {
        let shared = &self.core.shared;
        let options = &self.core.options;
        let mut logger = self.logger.lock();
        logger.syncs += 1;
        let is_unused = options.log_len == 0 || options.ignores_barriers;
        if is_unused || logger.is_off || logger.log.is_some() {
            return Ok(());
        }
        let volume_no = committer.row.volume_no;
        let mut log = open_log(&writing.writer, volume_no, options)?;
        if log.is_none() && logger.syncs > options.syncs_without_log {
            let wanted = options.log_len.saturating_mul(2);
            if shared.free_len() < wanted {
                logger.is_off = true;
                return Ok(());
            }
            // Changes of other volumes have this space, and soon they have taken it.
            let others = shared.space_of_others(Some(&self.core.state));
            if shared.free_len() < wanted.saturating_add(others) {
                return Ok(());
            }
            shared.take_free(options.log_len);
            let writer = &writing.writer;
            let made = writer.create_sync_log(volume_no, options.log_len / 2);
            log = match made {
                Err(error) if error.kind() == ErrorKind::Full => {
                    logger.is_off = true;
                    None
                }
                made => Some(with_bug(made?, options)),
            };
        }
        if log.is_some() {
            committer.row.has_sync_log = true;
            logger.prepared = log;
        }
        Ok(())
    }

    /// Commits all changes; the row then says that the log is empty, so that an older Weald can
    /// open the volume.
    pub(super) fn end_log(&self) -> Result<()> {
        let mut committer = self.committer.lock();
        let mut writing = self.core.shared.writing.lock();
        self.logger.lock().end();
        if !committer.row.has_sync_log || self.core.state.read().failure.is_some() {
            return Ok(());
        }
        committer.row.has_sync_log = false;
        self.commit_locked(&mut committer, &mut writing, true)
    }

    /// Makes the quotas of a volume of an older version count attributes, too.
    fn count_attributes(
        &self,
        committer: &mut Committer,
        writing: &mut MutexGuard<'_, Writing>,
    ) -> Result<()> {
        committer.counts_attributes = true;
        if committer.row.counts_attributes || self.core.state.read().quotas.is_empty() {
            return Ok(());
        }
        committer.row.counts_attributes = true;
        self.core.recount()?;
        self.commit_locked(committer, writing, true)
    }

    /// Commits the changes that a crash left in the log, and begins to use the log.
    pub(super) fn replay(&self, replay: Replay) -> Result<()> {
        let mut committer = self.committer.lock();
        let mut writing = self.core.shared.writing.lock();
        if replay.damage.is_some() {
            committer.row.has_sync_log = false;
        }
        for layer in replay.layers {
            if self.core.options.is_read_only && self.core.has_bug(PlantedBug::LogHiddenReadOnly) {
                break;
            }
            if layer.is_changed {
                let mut state = self.core.state.write();
                for (dir, row) in &layer.quotas {
                    match row {
                        Some(row) => state.quotas.insert(*dir, *row),
                        None => state.quotas.remove(dir),
                    };
                }
                state.active.merge(layer);
            }
            if !self.core.options.is_read_only {
                self.commit_locked(&mut committer, &mut writing, true)?;
            }
        }
        if !self.core.options.is_read_only {
            self.count_attributes(&mut committer, &mut writing)?;
        }
        let options = &self.core.options;
        let is_used = options.log_len > 0 && !options.ignores_barriers && !options.is_read_only;
        if committer.row.has_sync_log && is_used {
            let log = open_log(&writing.writer, committer.row.volume_no, options)?;
            let mut logger = self.logger.lock();
            logger.prepared = log;
            logger.committed(&committer.row);
        }
        Ok(())
    }
}
