//! Removes images from the store.

use crate::disk::Access;
use crate::engine::{Batch, Table};
use crate::import::COUNT_BATCH;
use crate::layout;
use crate::store::read_file;
use crate::writer::{Count, REMOVED, StoreWriter, counter};
use weald_format::store::{ImageMap, ImageRow, ImageState, MAP_LEN_MAX};
use weald_format::{Error, ErrorKind, Result};

impl StoreWriter {
    /// Removes the image `name`. [`StoreWriter::collect`] then frees its space.
    ///
    /// # Errors
    /// `NotFound` if there is no such image. `Busy` if a reader has the image open and `is_forced`
    /// is false; with `is_forced` its readers get errors as soon as the space is freed. `Corrupt`,
    /// `Io`, `Full`.
    pub fn remove(&mut self, name: &str, is_forced: bool) -> Result<()> {
        let map = self.store.map(name)?;
        let Some(row) = self.image_row(name)? else {
            let what = format!("{}:{name}: the image has no row", self.store.disk.shown());
            return Err(Error::corrupt("store metadata", 0, "S-5.3", what));
        };
        let lock = self.store.lock_file(Access::Write)?;
        if !is_forced && !lock.try_lock(layout::IMAGE_LOCKS + row.image_id, true)? {
            let what = format!(
                "{}:{name}: is in use: unmount it first, or use --force",
                self.store.disk.shown()
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        self.refuse_after_failure(|writer| {
            let removing = ImageRow {
                state: ImageState::Removing,
                ..row
            };
            let mut batch = Batch::default();
            batch.put(Table::Images, name.as_bytes(), removing.encode());
            writer.commit(batch)?;
            writer.finish_removal(name, removing, Some(map))
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
        let disk = self.store.disk.clone();
        let hidden = layout::hidden_map(row.image_id);
        let is_shown = match self.store.map(name) {
            _ if layout::is_replaced_key(name) => false,
            Ok(map) => map.image_id == row.image_id,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if is_shown {
            disk.rename(&layout::map(name), &hidden)?;
        }
        // This is also needed if the name is gone already, because an earlier sync may have failed.
        disk.sync_dir(layout::IMAGES)?;
        if row.counted_parts > 0 {
            let map = match map {
                Some(map) => map,
                None => {
                    let bytes = read_file(&*disk, &hidden, MAP_LEN_MAX)?;
                    self.store.parse_map(name, &bytes)?
                }
            };
            self.drop_references(name, &mut row, &map)?;
        }
        let removed = counter(&*self.engine, REMOVED)?.saturating_add(1);
        let mut batch = Batch::default();
        batch.remove(Table::Images, name.as_bytes());
        batch.put(Table::Counters, REMOVED, removed.to_le_bytes().to_vec());
        self.commit(batch)?;
        self.remove_hidden_map(row.image_id)
    }

    /// Removes the hidden map of an image without a row, and its digests of contents.
    pub(crate) fn remove_hidden_map(&self, image_id: u64) -> Result<()> {
        for file in [
            layout::content_digests(image_id),
            layout::hidden_map(image_id),
        ] {
            match self.store.disk.remove(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn drop_references(&mut self, name: &str, row: &mut ImageRow, map: &ImageMap) -> Result<()> {
        while row.counted_parts > 0 {
            let end = usize::try_from(row.counted_parts).unwrap_or(usize::MAX);
            let start = end.saturating_sub(COUNT_BATCH);
            let parts = map.parts.get(start..end).ok_or_else(|| {
                let what = format!("{name}: more parts are counted than the map has");
                Error::corrupt("store metadata", 0, "S-5.6", what)
            })?;
            #[cfg(test)]
            let skips = self.has_bug(crate::writer::Bug::LostDecrement);
            #[cfg(not(test))]
            let skips = false;
            // The bug skips the first two parts: the superblock and one record.
            self.count_parts(if skips { &parts[2..] } else { parts }, Count::Down)?;
            row.counted_parts = start as u64;
            let mut batch = Batch::default();
            batch.put(Table::Images, name.as_bytes(), row.encode());
            self.commit(batch)?;
        }
        Ok(())
    }
}
