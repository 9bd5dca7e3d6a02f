//! An image that another process makes and adds to the store of an open volume.
//!
//! The server is the writer of the store. It takes the image in slices, between commits, and counts
//! its references in steps. Blocks that are new stay for the hold although nothing refers to them.
//! An image that is not finished is undone; after a crash the next writer does that.
//!
//! Writers go first: an image takes no space that waiting changes need, and it ends with the hold
//! when the disk is full.

use super::hold::{Hold, over};
use crate::holds::IsOver;
use crate::layer::{COMMIT_SPACE, ROW_SPACE};
use crate::open_store::{OpenStore, Writing};
use crate::options::PlantedBug;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use weald_format::{Error, ErrorKind, Result};
use weald_store::faults::{Bug, Faults};
use weald_store::{Addition, BlockIndex, Imported, NewPart};

/// Bytes of the disk that the row of a new block takes, which the next commit writes.
const NEW_ROW_SPACE: u64 = 128;
/// Memory of the index that finds repeats, while images are added.
const INDEX_LEN: u64 = 64 << 20;

/// An image that is being added. Dropped before [`Adding::finish`], it is undone.
#[derive(Debug)]
pub struct Adding {
    shared: Weak<OpenStore>,
    is_over: IsOver,
    addition: Option<Addition>,
}

impl Hold {
    /// Begins an image with the name `name` in the store of the volume, for as long as the hold.
    ///
    /// # Errors
    /// `Busy` if the name is taken, the hold has ended, or the volume cannot change; `Invalid` for
    /// a name that no image can have; `Full`, `Io`.
    pub fn add_image(&self, name: &str) -> Result<Adding> {
        let mut adding = Adding {
            shared: self.shared.clone(),
            is_over: self.is_over.clone(),
            addition: None,
        };
        let engine = adding.step(0, |writing, addition| {
            *addition = Some(Addition::begin(&writing.writer, name)?);
            let writer = &writing.writer;
            Ok((!writer.has_index()).then(|| writer.engine()))
        })?;
        if let Some(engine) = engine {
            // Commits go on while the rows of all blocks are read.
            let index = BlockIndex::read(&*engine, INDEX_LEN)?;
            adding.step(0, |writing, _| {
                writing.writer.set_index(index);
                Ok(())
            })?;
        }
        Ok(adding)
    }
}

fn unfinished() -> Error {
    Error::invalid("no image is being added")
}

impl Adding {
    /// Changes the store between two commits, if the disk has room for `len` more bytes.
    fn step<T>(
        &mut self,
        len: u64,
        change: impl FnOnce(&mut Writing, &mut Option<Addition>) -> Result<T>,
    ) -> Result<T> {
        let shared = self.shared.upgrade().ok_or_else(over)?;
        let mut writing = shared.lock_writer()?;
        if self.is_over.load(Ordering::Relaxed) {
            return Err(over());
        }
        shared.refresh_free()?;
        let dirty = shared.space_of_others(None);
        let rows = COMMIT_SPACE + NEW_ROW_SPACE * writing.writer.waiting_count() as u64;
        let wanted = len.saturating_add(rows).saturating_add(dirty);
        if shared.free_len() < wanted {
            let what = "the disk of the store has no room for the image";
            return Err(Error::new(ErrorKind::Full, what));
        }
        let done = change(&mut writing, &mut self.addition);
        shared.noted(&writing, done)
    }

    /// Adds the next parts.
    ///
    /// # Errors
    /// As [`Hold::add_image`]; `Invalid` for parts that make no image.
    pub fn put(&mut self, parts: Vec<NewPart>) -> Result<()> {
        let len = parts.iter().map(|part| match part {
            NewPart::Record(record, _) => record.end() - record.offset,
            _ => 0,
        });
        self.step(len.sum(), |writing, addition| {
            let addition = addition.as_mut().ok_or_else(unfinished)?;
            for part in parts {
                let new = addition.put(&mut writing.writer, part)?;
                writing.writer.held().note(new);
            }
            Ok(())
        })
    }

    /// Lists the image, whose end was [put](Adding::put).
    ///
    /// # Errors
    /// As [`Adding::put`].
    pub fn finish(mut self) -> Result<Imported> {
        self.write_map()?;
        while self.count_some()? {}
        self.show()
    }

    /// The first step of [`Adding::finish`].
    ///
    /// # Errors
    /// As [`Adding::finish`].
    pub(crate) fn write_map(&mut self) -> Result<()> {
        let store = self.shared.upgrade().ok_or_else(over)?.store.clone();
        let addition = self.addition.as_mut().ok_or_else(unfinished)?;
        addition.write_map(&store)
    }

    /// The next steps: returns whether there are more.
    ///
    /// # Errors
    /// As [`Adding::finish`].
    pub(crate) fn count_some(&mut self) -> Result<bool> {
        let count = self.addition.as_ref().map_or(0, Addition::next_count) as u64;
        let shared = self.shared.upgrade();
        let faults = shared.map_or_else(Faults::default, |shared| shared.faults);
        self.step(count.saturating_mul(ROW_SPACE), |writing, addition| {
            let addition = addition.as_mut().ok_or_else(unfinished)?;
            let writer = &mut writing.writer;
            PlantedBug::ImageReferenceLost.plant(faults, writer, Bug::LostIncrement);
            PlantedBug::ImageBeforeData.plant(faults, writer, Bug::MetadataBeforeData);
            if faults.has(PlantedBug::ImageBeforeReferences) {
                addition.show_early(writer.store())?;
            }
            let counted = addition.count_some(writer);
            if faults.has(PlantedBug::ImageBeforeData) {
                writer.faults = Faults::default();
            }
            counted
        })
    }

    /// The last step.
    ///
    /// # Errors
    /// As [`Adding::finish`].
    pub(crate) fn show(&mut self) -> Result<Imported> {
        let imported = self.step(0, |writing, addition| {
            let addition = addition.as_mut().ok_or_else(unfinished)?;
            addition.show(writing.writer.store())
        })?;
        self.addition = None;
        Ok(imported)
    }
}

impl Drop for Adding {
    fn drop(&mut self) {
        let (Some(addition), Some(shared)) = (self.addition.take(), self.shared.upgrade()) else {
            return;
        };
        let mut writing = shared.writing.lock();
        if writing.open.is_empty() || shared.has_failed() || !writing.writer.is_usable() {
            return;
        }
        // A failure is kept in the state, and every later call reports it.
        let undone = addition.undo(&mut writing.writer);
        if let Ok(ids) = shared.noted(&writing, undone) {
            writing.writer.held().note(ids);
            let _ = shared.forget_unheld(&mut writing);
        }
    }
}
