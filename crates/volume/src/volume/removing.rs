//! The removal of an image from the store of an open volume.
//!
//! The server is the writer of the store. It drops the references of the image in steps, between
//! commits. The blocks keep their rows and their space, so that neither a hold nor an image that is
//! being added loses one; a collection frees them.

use super::Volume;
use super::hold::over;
use crate::layer::{COMMIT_SPACE, ROW_SPACE};
use crate::open_store::{OpenStore, Writing};
use crate::options::PlantedBug;
use parking_lot::MutexGuard;
use std::sync::{Arc, Weak};
use weald_format::{Error, ErrorKind, Result};
use weald_image::Member;
use weald_store::Removal;
use weald_store::faults::Bug;

/// An image that is being removed. Readers see it until [`Removing::hide`] returns. If this is
/// dropped after that, the next writer of the store completes the removal.
#[derive(Debug)]
pub struct Removing {
    shared: Weak<OpenStore>,
    removal: Removal,
    /// The image, unless the removal is forced or nobody can tell what it is: it stays if another
    /// one needs it.
    member: Option<Member>,
}

impl Volume {
    /// Begins the removal of the image `name` of the store.
    ///
    /// # Errors
    /// `NotFound` if there is no such image. `Busy` if a reader has the image open and `is_forced`
    /// is false, or if the volume is being closed or cannot change. `Corrupt`, `Io`.
    pub fn begin_removal(&self, name: &str, is_forced: bool) -> Result<Removing> {
        let shared = &self.core.shared;
        drop(shared.lock_writer()?);
        // Behind the beginning no reader opens the image.
        let member = if is_forced {
            None
        } else {
            Member::read(&shared.store, name)?
        };
        Ok(Removing {
            shared: Arc::downgrade(shared),
            removal: Removal::begin(&shared.store, name, is_forced)?,
            member,
        })
    }
}

impl OpenStore {
    /// The right to change the store between two commits.
    ///
    /// # Errors
    /// `Busy` if all volumes are closed or the store cannot change; `Io` after a failure.
    pub(crate) fn lock_writer(&self) -> Result<MutexGuard<'_, Writing>> {
        let writing = self.writing.lock();
        if writing.is_closed() {
            return Err(over());
        }
        self.refuse_failed()?;
        if self.is_read_only {
            let what = "the disk of the store could not be written to when its volume was mounted";
            return Err(Error::new(ErrorKind::Busy, what));
        }
        Ok(writing)
    }

    /// Number of rows that one commit may change so that the waiting changes still fit on the
    /// disk. It may take from the reserve, as other removals do.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub(super) fn removable_rows(&self) -> Result<u64> {
        self.prepare_commit()?;
        self.refresh_free()?;
        let dirty = self.space_of_others(None);
        let room = self.free_len() + self.reserve_len() / 2;
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

impl OpenStore {
    /// Removes the images that were replaced and that nobody reads any more, between commits.
    ///
    /// # Errors
    /// As [`Removing::finish`].
    pub(super) fn release_replaced(self: &Arc<Self>) -> Result<()> {
        let names = self.lock_writer()?.writer.replaced_images()?;
        for name in names {
            let removal = match Removal::begin(&self.store, &name, false) {
                Err(error) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::NotFound) => {
                    continue;
                }
                other => other?,
            };
            let removing = Removing {
                shared: Arc::downgrade(self),
                removal,
                member: None,
            };
            removing.finish()?;
        }
        Ok(())
    }
}

impl Removing {
    fn step<T>(
        &mut self,
        change: impl FnOnce(&mut Writing, &mut Removal, u64) -> Result<T>,
    ) -> Result<T> {
        let shared = self.shared.upgrade().ok_or_else(over)?;
        let mut writing = shared.lock_writer()?;
        let count_max = shared.removable_rows()?;
        let writer = &mut writing.writer;
        PlantedBug::RemovalNotNoted.plant(shared.faults, writer, Bug::RemovalNotNoted);
        let done = change(&mut writing, &mut self.removal, count_max);
        shared.noted(&writing, done)
    }

    /// Removes the image. If the volume is closed after readers have lost the image, the next
    /// writer of the store does the rest.
    ///
    /// # Errors
    /// `NotFound` if another command was faster; `Busy` if the volume was closed, or if another
    /// image has this one as base image; `Full`, `Io`, `Corrupt`.
    pub fn finish(mut self) -> Result<()> {
        let shared = self.shared.clone();
        let has_references = self.hide()?;
        let rest = if has_references {
            self.drop_all()
        } else {
            Ok(())
        };
        let is_closed = || {
            let shared = shared.upgrade();
            shared.is_none_or(|shared| shared.writing.lock().open.is_empty())
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
        let (shared, member) = (self.shared.clone(), self.member.clone());
        self.step(|writing, removal, _| {
            // Under the lock: an image that came since the client looked counts.
            if let (Some(member), Some(shared)) = (member, shared.upgrade()) {
                member.refuse_if_needed(&shared.store)?;
            }
            removal.hide(&mut writing.writer)
        })
    }

    /// The next steps: drops references. Returns whether there are more.
    ///
    /// # Errors
    /// As [`Removing::finish`].
    pub(crate) fn drop_some(&mut self) -> Result<bool> {
        self.step(|writing, removal, max| removal.drop_some(&mut writing.writer, max))
    }

    /// The last step.
    ///
    /// # Errors
    /// As [`Removing::finish`].
    pub(crate) fn forget(&mut self) -> Result<()> {
        self.step(|writing, removal, _| removal.finish(&mut writing.writer))
    }
}
