//! Removes images from the store.
//!
//! A removal has three parts: the name goes, the references of the blocks are dropped in bounded
//! transactions, the row goes. The row says how many parts still have references, so that the next
//! writer completes what a crash interrupted.

use crate::disk::{LocalFile, remove_if_there};
use crate::engine::{Batch, Table};
use crate::faults::Bug;
use crate::import::COUNT_BATCH;
use crate::layout::{self, ObjectKind};
use crate::store::Store;
use crate::users::in_use;
use crate::writer::{Count, REMOVED, StoreWriter, counter};
use weald_format::store::{ImageMap, ImageRow, ImageState, MAP_LEN_MAX};
use weald_format::{Error, ErrorKind, ImageNo, Result};

/// An image that is removed in steps, between which the writer of the store does other things. No
/// reader can open it meanwhile.
///
/// Dropped before [`Removal::hide`], it changes nothing. After that the image is gone for readers;
/// if the last step is missing, the next writer does the rest.
#[derive(Debug)]
pub struct Removal {
    name: String,
    map: ImageMap,
    row: Option<ImageRow>,
    /// Lock that keeps readers away; forced removals may not have it.
    _lock: Vec<Box<dyn LocalFile>>,
}

impl Removal {
    /// Begins the removal of the image `name`.
    ///
    /// # Errors
    /// `NotFound` if there is no such image. `Busy` if a reader has the image open and `is_forced`
    /// is false. `Corrupt`, `Io`.
    pub fn begin(store: &Store, name: &str, is_forced: bool) -> Result<Self> {
        let map = store.map(name)?;
        let lock = match store.lock_out_readers(map.image_no)? {
            Some(lock) => lock,
            None if is_forced => Vec::new(),
            None => {
                let advice = "unmount it first, or use --force";
                return Err(in_use(&*store.disk, name, map.image_no, advice));
            }
        };
        Ok(Self {
            name: name.to_owned(),
            map,
            row: None,
            _lock: lock,
        })
    }

    /// Takes the name away, durably. Returns whether [`Removal::drop_some`] has work.
    ///
    /// # Errors
    /// `NotFound` if another command was faster; `Corrupt` if the image has no row; `Io`, `Full`.
    pub fn hide(&mut self, writer: &mut StoreWriter) -> Result<bool> {
        let shown = format!("{}:{}", writer.store().disk.shown(), self.name);
        let row = writer.image_row(&self.name)?.ok_or_else(|| {
            let what = format!("{shown}: the image has no row");
            Error::corrupt("store metadata", 0, "S-5.3", what)
        })?;
        if row.image_no != self.map.image_no || row.state != ImageState::Present {
            return Err(Error::not_found(format!(
                "{shown}: was removed or replaced"
            )));
        }
        let row = ImageRow {
            state: ImageState::Removing,
            ..row
        };
        writer.refuse_after_failure(|writer| {
            let disk = writer.store().disk.clone();
            let mut batch = Batch::default();
            batch.put(Table::Images, self.name.as_bytes(), row.encode());
            writer.commit(batch)?;
            disk.switch(&layout::map(&self.name), &layout::hidden_map(row.image_no))
        })?;
        self.row = Some(row);
        Ok(row.counted_parts > 0)
    }

    /// Drops the references of the next parts, at most `count_max`, after [`Removal::hide`].
    /// Returns whether there are more.
    ///
    /// # Errors
    /// `Io`, `Full`, `Corrupt`.
    pub fn drop_some(&mut self, writer: &mut StoreWriter, count_max: u64) -> Result<bool> {
        let row = self.row.as_mut().ok_or_else(not_hidden)?;
        let step = writer.options().steps.part_count;
        let count = count_max.min(step as u64) as usize;
        writer.refuse_after_failure(|writer| writer.drop_step(&self.name, row, &self.map, count))
    }

    /// Removes the row of the image, whose references are all dropped. [`StoreWriter::collect`]
    /// then frees the space.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn finish(&mut self, writer: &mut StoreWriter) -> Result<()> {
        let row = self.row.ok_or_else(not_hidden)?;
        if row.counted_parts > 0 {
            return Err(Error::invalid("an image still has references"));
        }
        writer.refuse_after_failure(|writer| writer.forget_image(&self.name, &row))
    }
}

fn not_hidden() -> Error {
    Error::invalid("an image still has its name")
}

impl StoreWriter {
    /// Removes the image `name`. [`StoreWriter::collect`] then frees its space.
    ///
    /// # Errors
    /// `NotFound` if there is no such image. `Busy` if a reader has the image open and `is_forced`
    /// is false; with `is_forced` its readers get errors as soon as the space is freed. `Corrupt`,
    /// `Io`, `Full`.
    pub fn remove(&mut self, name: &str, is_forced: bool) -> Result<()> {
        let mut removal = Removal::begin(self.store(), name, is_forced)?;
        removal.hide(self)?;
        self.refuse_after_failure(|writer| match removal.row {
            Some(row) => writer.finish_removal(name, row, Some(removal.map)),
            None => Ok(()),
        })
    }

    /// Drops the references that the image of `row` still has, hides its map and removes its row.
    /// The call also completes an interrupted removal: the row says how many parts still have
    /// references.
    pub(crate) fn finish_removal(
        &mut self,
        name: &str,
        mut row: ImageRow,
        map: Option<ImageMap>,
    ) -> Result<()> {
        let disk = self.store().disk.clone();
        let hidden = layout::hidden_map(row.image_no);
        let is_shown = match self.store().map(name) {
            _ if layout::is_replaced_key(name) => false,
            Ok(map) => map.image_no == row.image_no,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if is_shown {
            disk.switch(&layout::map(name), &hidden)?;
        } else {
            // The switch may be done, but not durable.
            disk.settle(ObjectKind::Map)?;
        }
        if row.counted_parts > 0 {
            let map = match map {
                Some(map) => map,
                None => match self.store().read_object(&hidden, MAP_LEN_MAX) {
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        let what = format!("{}/{hidden}: the map is missing", disk.shown());
                        return Err(Error::lost(what));
                    }
                    other => self.store().parse_map(name, &other?)?,
                },
            };
            while self.drop_step(name, &mut row, &map, COUNT_BATCH)? {}
        }
        self.forget_image(name, &row)
    }

    /// Removes the row of an image without references, and its hidden map.
    fn forget_image(&mut self, name: &str, row: &ImageRow) -> Result<()> {
        let removed = counter(self.tables(), REMOVED)?.saturating_add(1);
        let mut batch = Batch::default();
        batch.remove(Table::Images, name.as_bytes());
        batch.put(Table::Counters, REMOVED, removed.to_le_bytes().to_vec());
        self.commit(batch)?;
        self.remove_hidden_map(row.image_no)
    }

    /// Removes the hidden map of an image without a row, and its digests of contents.
    pub(crate) fn remove_hidden_map(&self, image_no: ImageNo) -> Result<()> {
        self.store().forget_content_digests(image_no)?;
        remove_if_there(&*self.store().disk, &layout::hidden_map(image_no))
    }

    /// Drops the references of the last counted parts of `map`, at most `count_max`, in one
    /// transaction with the row that says so. Returns whether there are more.
    fn drop_step(
        &mut self,
        name: &str,
        row: &mut ImageRow,
        map: &ImageMap,
        count_max: usize,
    ) -> Result<bool> {
        let end = usize::try_from(row.counted_parts).unwrap_or(usize::MAX);
        let start = end.saturating_sub(count_max);
        let parts = map.parts.get(start..end).ok_or_else(|| {
            let what = format!("{name}: more parts are counted than the map has");
            Error::corrupt("store metadata", 0, "S-5.6", what)
        })?;
        let skips = self.faults.has(Bug::LostDecrement);
        // The bug skips the first two parts: the superblock and one record.
        self.count_parts(if skips { &parts[2..] } else { parts }, Count::Down)?;
        row.counted_parts = start as u64;
        let mut batch = Batch::default();
        if self.faults.has(Bug::RemovalNotNoted) {
            self.commit(batch)?;
            return Ok(start > 0);
        }
        batch.put(Table::Images, name.as_bytes(), row.encode());
        self.commit(batch)?;
        Ok(start > 0)
    }
}
