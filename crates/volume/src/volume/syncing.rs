//! How a sync becomes durable: a record of the sync log, or a commit.
//!
//! One order: a record has all changes since the record before, so that log and tables together
//! are a prefix of the operations. A commit takes the changes of all records so far; those that
//! come meanwhile belong to the next one, and their records name the commit that they lie above.
//! Locks are taken in this order: committer, logger, state.

use super::Volume;
use crate::OpenOptions;
use crate::commit::Committer;
use crate::core::failed;
use crate::delta::encode;
use crate::layer::Layer;
use crate::logger::{BODY_LEN_MAX, Logger, Replay, open_log, with_bug};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weald_format::{ErrorKind, Result};
use weald_store::{Store, WriteOptions};

/// Puts the changes that a crash left in the sync log of the volume `name` into its tables.
///
/// # Errors
/// `NotFound`; `Busy` if another process writes to the store; `Corrupt`, `Io`, `Full`.
pub fn settle(store: &Store, name: &str) -> Result<()> {
    let options = OpenOptions {
        background: false,
        ..OpenOptions::default()
    };
    let writer = store.write(WriteOptions::new(options.who.clone()))?;
    let has_sync_log = writer.volume_row(name)?.has_sync_log;
    drop(writer);
    match has_sync_log {
        true => Volume::open(store, name, options)?.close(),
        false => Ok(()),
    }
}

/// A sync that others wait for, until it is dropped.
struct Leading<'a>(&'a Volume);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        *self.0.signal.is_led.lock() = false;
        self.0.signal.led.notify_all();
    }
}

impl Volume {
    /// Makes all changes so far durable. Callers that come meanwhile share the next record.
    ///
    /// # Errors
    /// `Io` with the first failure, now and ever after; `Full`.
    pub(super) fn sync_changes(&self) -> Result<()> {
        let wanted = self.core.state.read().sequence;
        loop {
            let mut is_led = self.signal.is_led.lock();
            if self.is_durable(wanted)? {
                return Ok(());
            }
            if !*is_led {
                *is_led = true;
                break;
            }
            self.signal.led.wait(&mut is_led);
        }
        let _leading = Leading(self);
        match self.log_changes()? {
            true => Ok(()),
            false => self.commit_for_sync(wanted),
        }
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
        let mut logger = self.logger.lock();
        let is_done = self.log_with(&mut logger)?;
        let is_nearly_full = |log: &weald_store::SyncLog| log.is_nearly_full();
        if is_done && logger.log.as_ref().is_some_and(is_nearly_full) {
            self.wake_committer();
        }
        Ok(is_done)
    }

    /// As [`Volume::log_changes`], under the lock.
    fn log_with(&self, logger: &mut Logger) -> Result<bool> {
        let Some(log) = &mut logger.log else {
            return Ok(false);
        };
        let (layer, sequence) = {
            let mut state = self.core.state.write();
            if let Some(failure) = &state.failure {
                return Err(failed(failure));
            }
            if state.frozen.is_some() && !state.is_frozen_logged {
                return Ok(false);
            }
            if !state.active.is_changed {
                state.durable = state.sequence;
                return Ok(true);
            }
            // Rows take less than their cost.
            let is_large = state.active.cost > 2 * BODY_LEN_MAX;
            if is_large || state.active.written > log.room().min(BODY_LEN_MAX) {
                return Ok(false);
            }
            state.begin_logging()
        };
        #[cfg(test)]
        self.core.hook.reach(crate::hook::Stage::Logging);
        let body = self.encoded(&layer);
        drop(layer);
        if body.len() as u64 > log.room().min(BODY_LEN_MAX) {
            self.core.state.write().cancel_logging();
            return Ok(false);
        }
        match log.append(&body) {
            Ok(()) => {
                self.core.state.write().end_logging(sequence);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::Full => {
                self.core.state.write().cancel_logging();
                logger.end();
                Ok(false)
            }
            Err(error) => {
                self.core.fail(&error);
                self.signal.progress.notify_all();
                Err(error)
            }
        }
    }

    fn encoded(&self, layer: &Layer) -> Vec<u8> {
        encode(
            layer,
            self.core.tables.snapshot(),
            #[cfg(any(test, feature = "planted-bugs"))]
            self.core.options.bug,
        )
    }

    /// Freezes the changes for a commit. If the log is in use, it gets the last of them first, so
    /// that it can receive the changes that come beside the commit.
    pub(super) fn freeze(&self, is_forced: bool) -> Result<Option<(Arc<Layer>, u64)>> {
        let mut logger = self.logger.lock();
        let is_in_use = self.core.state.read().logged.is_changed;
        let is_logged = is_in_use && self.log_with(&mut logger)?;
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
        if let Err(error) = self.prepare_log(&mut committer) {
            self.core.fail(&error);
            return Err(error);
        }
        self.commit_locked(&mut committer, false)
    }

    /// Opens or makes the log, if syncs are frequent and there is room. The next commit announces
    /// it.
    fn prepare_log(&self, committer: &mut Committer) -> Result<()> {
        let options = &self.core.options;
        let mut logger = self.logger.lock();
        logger.syncs += 1;
        let is_unused = options.log_len == 0 || options.ignores_barriers;
        if is_unused || logger.is_off || logger.log.is_some() {
            return Ok(());
        }
        let snapshot = committer.row.snapshot;
        let mut log = open_log(&committer.writer, snapshot, options)?;
        if log.is_none() && logger.syncs > options.syncs_without_log {
            if self.core.free.load(Ordering::Relaxed) < options.log_len.saturating_mul(2) {
                logger.is_off = true;
                return Ok(());
            }
            let made = committer
                .writer
                .create_sync_log(snapshot, options.log_len / 2);
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
        self.logger.lock().end();
        if !committer.row.has_sync_log || self.core.state.read().failure.is_some() {
            return Ok(());
        }
        committer.row.has_sync_log = false;
        self.commit_locked(&mut committer, true)
    }

    /// Commits the changes that a crash left in the log, and begins to use the log.
    pub(super) fn replay(&self, replay: Replay) -> Result<()> {
        let mut committer = self.committer.lock();
        if replay.damage.is_some() {
            committer.row.has_sync_log = false;
        }
        for layer in replay.layers {
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
                self.commit_locked(&mut committer, true)?;
            }
        }
        let options = &self.core.options;
        let is_used = options.log_len > 0 && !options.ignores_barriers && !options.is_read_only;
        if committer.row.has_sync_log && is_used {
            let log = open_log(&committer.writer, committer.row.snapshot, options)?;
            let mut logger = self.logger.lock();
            logger.prepared = log;
            logger.committed(&committer.row);
        }
        Ok(())
    }
}
