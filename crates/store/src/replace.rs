//! Replaces an image by another one with the same name.

use crate::disk::LocalFile;
use crate::engine::{Batch, Table};
use crate::faults::Bug;
use crate::layout;
use crate::users::in_use;
use crate::writer::StoreWriter;
use weald_format::store::{ImageMap, ImageRow, ImageState, MAP_LEN_MAX};
use weald_format::{Error, Result};

/// Lock that prevents readers from opening an image.
#[derive(Debug)]
pub struct ImageLock {
    _files: Vec<Box<dyn LocalFile>>,
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
    /// The references of the new image are counted under a hidden row. One transaction swaps the
    /// names of the two rows. Then the map is renamed, and the old image is removed like any other.
    /// The old map gets its hidden name before that. After a crash at any moment,
    /// [`crate::recover`] finds an image that is being added or removed, and completes the
    /// operation.
    pub(crate) fn replace(&mut self, name: &str, map: &ImageMap) -> Result<()> {
        let disk = self.store().disk.clone();
        let Some(old_row) = self.image_row(name)? else {
            let what = format!("{}:{name}: the image has no row", disk.shown());
            return Err(Error::corrupt("store metadata", 0, "S-5.3", what));
        };
        let bytes = self.store().read_object(&layout::map(name), MAP_LEN_MAX)?;
        let old_map = self.store().parse_map(name, &bytes)?;
        let key = layout::replaced_key(name);
        let row = self.count_hidden(&key, map, ImageState::Adding)?;
        if !self.faults.has(Bug::ReplacedMapNotKept) {
            disk.put(&layout::hidden_map(old_row.image_no), &bytes)?;
        }
        let removing = ImageRow {
            state: ImageState::Removing,
            ..old_row
        };
        let present = ImageRow {
            state: ImageState::Present,
            ..row
        };
        let mut batch = Batch::default();
        batch.put(Table::Images, key.as_bytes(), removing.encode());
        batch.put(Table::Images, name.as_bytes(), present.encode());
        self.commit(batch)?;
        disk.switch(&layout::hidden_map(map.image_no), &layout::map(name))?;
        self.finish_removal(&key, removing, Some(old_map))
    }
}
