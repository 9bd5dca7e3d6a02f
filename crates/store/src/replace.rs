//! Replaces an image by another one with the same name.
//!
//! Readers of the old image go on. It keeps its blocks, under a reserved name that the collector
//! and the check see as that of any other image, until a writer finds that nobody has it locked.

use crate::disk::LocalFile;
use crate::engine::{Batch, Table};
use crate::faults::Bug;
use crate::layout;
use crate::users::in_use;
use crate::writer::StoreWriter;
use weald_format::store::{ImageMap, ImageRow, ImageState, MAP_LEN_MAX};
use weald_format::{Error, ErrorKind, Result};

/// Lock that prevents readers from opening an image.
#[derive(Debug)]
pub struct ImageLock {
    _files: Vec<Box<dyn LocalFile>>,
}

/// An image that another one is about to replace.
#[derive(Debug)]
pub(crate) struct Replaceable {
    /// Its row.
    pub row: ImageRow,
    /// Bytes of its map.
    pub map: Vec<u8>,
}

impl StoreWriter {
    /// Prevents readers from opening the image `name` until the result is dropped. If a reader has
    /// the image open, the error contains `advice`, which tells the user what to do.
    ///
    /// # Errors
    /// `NotFound` if there is no such image; `Busy` if a reader has it open; `Io`, `Corrupt`.
    pub fn lock_image(&self, name: &str, advice: &str) -> Result<ImageLock> {
        let map = self.store().map(name)?;
        match self.store().lock_out_readers(map.image_no)? {
            Some(files) => Ok(ImageLock { _files: files }),
            None => Err(in_use(&*self.store().disk, name, map.image_no, advice)),
        }
    }

    /// Lists the image of `map`, whose blocks are stored, as `name` instead of the existing image.
    ///
    /// The references of the new image are counted under a hidden row. One transaction gives its
    /// row the name, and the row of the old image its reserved name. The old map has that name
    /// before, so that readers of the old image find it. Then the new map is renamed. The caller
    /// releases the old image. After a crash at any moment, [`crate::recover`] finds an image that
    /// is being added, or one that is to be shown, and completes the operation.
    pub(crate) fn replace(&mut self, name: &str, map: &ImageMap) -> Result<()> {
        let disk = self.store().disk.clone();
        let old = self.replaceable(name)?;
        let key = layout::replaced_key(name);
        let row = self.count_hidden(&key, map, ImageState::Adding)?;
        let present = ImageRow {
            state: ImageState::Present,
            ..row
        };
        let mut batch = Batch::default();
        batch.remove(Table::Images, key.as_bytes());
        batch.put(Table::Images, name.as_bytes(), present.encode());
        self.set_aside(&mut batch, &old)?;
        self.commit(batch)?;
        disk.switch(&layout::hidden_map(map.image_no), &layout::map(name))
    }

    /// The image `name`, which another one replaces.
    ///
    /// # Errors
    /// `NotFound` if it is being removed; `Limit` if too many replaced images are read; `Corrupt`,
    /// `Io`.
    pub(crate) fn replaceable(&self, name: &str) -> Result<Replaceable> {
        let shown = self.store().disk.shown();
        if self.replaced_images()?.len() >= layout::REPLACED_COUNT_MAX {
            let what = format!(
                "{shown}:{name}: {} replaced images of this store are still being read: unmount \
                 some of them first",
                layout::REPLACED_COUNT_MAX
            );
            return Err(Error::new(ErrorKind::Limit, what));
        }
        let row = self.present_row(name)?;
        let bytes = self.store().read_object(&layout::map(name), MAP_LEN_MAX)?;
        self.store().parse_map(name, &bytes)?;
        Ok(Replaceable { row, map: bytes })
    }

    /// Gives the map of a replaced image its reserved name, and does so with its row in `batch`.
    pub(crate) fn set_aside(&self, batch: &mut Batch, old: &Replaceable) -> Result<()> {
        let name = layout::replaced_name(old.row.image_no);
        if !self.faults.has(Bug::ReplacedMapNotKept) {
            self.store().disk.put(&layout::map(&name), &old.map)?;
        }
        batch.put(Table::Images, name.as_bytes(), old.row.encode());
        Ok(())
    }

    /// Reserved names of the images that were replaced while they were read.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn replaced_images(&self) -> Result<Vec<String>> {
        let rows = self.named_rows(Table::Images, ImageRow::parse)?.rows;
        let is_kept = |(name, row): &(String, ImageRow)| {
            layout::replaced_image(name).is_some() && row.state == ImageState::Present
        };
        let kept = rows.into_iter().filter(is_kept);
        Ok(kept.map(|(name, _)| name).collect())
    }

    /// Removes the replaced images that nobody reads any more. One that cannot be removed stays,
    /// and is told.
    ///
    /// # Errors
    /// `Io`, `Full` of writes that fail.
    ///
    /// # Cost
    /// A pass over the rows of images; that of the removals.
    pub fn release_replaced(&mut self) -> Result<()> {
        for name in self.replaced_images()? {
            let is_early = self.faults.has(Bug::ReplacedReleasedEarly);
            match self.remove(&name, is_early) {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                done => drop(self.tell_item(format_args!("a replaced image stays"), done)?),
            }
        }
        Ok(())
    }

    /// The row of the image `name`, which is not on its way.
    pub(crate) fn present_row(&self, name: &str) -> Result<ImageRow> {
        let shown = || format!("{}:{name}", self.store().disk.shown());
        match self.image_row(name)? {
            Some(row) if row.state == ImageState::Present => Ok(row),
            Some(_) => Err(Error::not_found(format!("{}: is being removed", shown()))),
            None => {
                let what = format!("{}: the image has no row", shown());
                Err(Error::corrupt("store metadata", 0, "S-5.3", what))
            }
        }
    }
}
