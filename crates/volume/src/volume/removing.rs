//! The removal of an image from the store of an open volume.
//!
//! The server is the writer of the store. It drops the references of the image in steps, between
//! commits. The blocks keep their rows and their space, so that neither a hold nor an image that is
//! being added loses one; a collection frees them.

use super::Volume;
use super::hold::over;
use crate::commit::Committer;
use crate::layer::ROW_SPACE;
#[cfg(any(test, feature = "planted-bugs"))]
use crate::options::PlantedBug;
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use weald_format::{Error, ErrorKind, Result};
use weald_store::Removal;

/// Bytes of the disk that a commit of few rows may take.
pub(super) const COMMIT_SPACE: u64 = 256 << 10;

/// An image that is being removed. Readers see it until [`Removing::hide`] returns. If this is
/// dropped after that, the next writer of the store completes the removal.
#[derive(Debug)]
pub struct Removing {
    volume: Weak<Volume>,
    removal: Removal,
}

impl Volume {
    /// Begins the removal of the image `name` of the store.
    ///
    /// # Errors
    /// `NotFound` if there is no such image. `Busy` if a reader has the image open and `is_forced`
    /// is false, or if the volume is being closed or cannot change. `Corrupt`, `Io`.
    pub fn begin_removal(self: &Arc<Self>, name: &str, is_forced: bool) -> Result<Removing> {
        drop(self.lock_writer()?);
        Ok(Removing {
            volume: Arc::downgrade(self),
            removal: Removal::begin(&self.store, name, is_forced)?,
        })
    }

    /// The right to change the store between two commits.
    ///
    /// # Errors
    /// `Busy` if the volume is being closed or cannot change; `Io` after a failure.
    pub(super) fn lock_writer(&self) -> Result<MutexGuard<'_, Committer>> {
        let committer = self.committer.lock();
        if committer.holds.is_closed {
            return Err(over());
        }
        if let Some(failure) = &self.core.state.read().failure {
            return Err(crate::core::failed(failure));
        }
        if self.core.options.is_read_only {
            let what = "the volume is mounted read-only, and so is its store";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(committer)
    }

    /// Number of rows that one commit may change so that the waiting changes still fit on the
    /// disk. It may take from the reserve, as other removals do.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub(super) fn removable_rows(&self) -> Result<u64> {
        self.refresh_free()?;
        let dirty = self.core.state.read().space();
        let reserve = self.core.reserve.load(Ordering::Relaxed) / 2;
        let room = self.core.free.load(Ordering::Relaxed) + reserve;
        let room = room.saturating_sub(dirty.saturating_add(COMMIT_SPACE));
        match room / ROW_SPACE {
            0 => {
                let what = "the disk of the store has no room for the rows of the removal";
                Err(Error::new(ErrorKind::Full, what))
            }
            count => Ok(count),
        }
    }
}

impl Removing {
    fn step<T>(
        &mut self,
        change: impl FnOnce(&mut Committer, &mut Removal, u64) -> Result<T>,
    ) -> Result<T> {
        let volume = self.volume.upgrade().ok_or_else(over)?;
        let mut committer = volume.lock_writer()?;
        let count_max = volume.removable_rows()?;
        #[cfg(any(test, feature = "planted-bugs"))]
        {
            let is_planted = volume.core.has_bug(PlantedBug::RemovalNotNoted);
            committer.writer.skips_progress = is_planted;
        }
        let done = change(&mut committer, &mut self.removal, count_max);
        volume.noted(&committer, done)
    }

    /// Removes the image. If the volume is closed after readers have lost the image, the next
    /// writer of the store does the rest.
    ///
    /// # Errors
    /// `NotFound` if another command was faster; `Busy` if the volume was closed; `Full`, `Io`,
    /// `Corrupt`.
    pub fn finish(mut self) -> Result<()> {
        let volume = self.volume.clone();
        let has_references = self.hide()?;
        let rest = match has_references {
            true => self.drop_all(),
            false => Ok(()),
        };
        let is_closed = || {
            let volume = volume.upgrade();
            volume.is_none_or(|volume| volume.committer.lock().holds.is_closed)
        };
        match rest.and_then(|()| self.forget()) {
            Err(error) if error.kind() == ErrorKind::Busy && is_closed() => Ok(()),
            done => done,
        }
    }

    fn drop_all(&mut self) -> Result<()> {
        while self.drop_some()? {}
        Ok(())
    }

    /// The first step of [`Removing::finish`]: takes the name away. Returns whether the image has
    /// references.
    ///
    /// # Errors
    /// As [`Removing::finish`].
    pub(crate) fn hide(&mut self) -> Result<bool> {
        self.step(|committer, removal, _| removal.hide(&mut committer.writer))
    }

    /// The next steps: drops references. Returns whether there are more.
    ///
    /// # Errors
    /// As [`Removing::finish`].
    pub(crate) fn drop_some(&mut self) -> Result<bool> {
        self.step(|committer, removal, max| removal.drop_some(&mut committer.writer, max))
    }

    /// The last step.
    ///
    /// # Errors
    /// As [`Removing::finish`].
    pub(crate) fn forget(&mut self) -> Result<()> {
        self.step(|committer, removal, _| removal.finish(&mut committer.writer))
    }
}
