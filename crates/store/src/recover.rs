//! Completes the operation that an earlier writer left unfinished, when a store is opened for
//! writing.
//!
//! The cases, by the operation that was interrupted:
//! 1. Appending blocks: the bytes after the committed length are truncated when the segment is used
//!    again. The collector removes rows of blocks without references.
//! 2. Counting the references of a new image (`Adding`): the counted references are dropped.
//! 3. The rename after the last count, which shows the image (`Present`, map hidden): the rename is
//!    repeated.
//! 4. Dropping references (`Removing`): the remaining references are dropped.
//! 5. Replacing an image: before the commit the new image is `Adding`, and the map of the old one
//!    has a second, reserved name, which is removed; after it, case 3 shows the new image, and the
//!    old one is released when nobody reads it.
//! 6. Rewriting maps after blocks moved: the emptied segments still have their files. All maps are
//!    compared with the rows before these files are removed.
//!
//! A map, a segment or a row that is damaged or missing is told, and costs what it belongs to; the
//! rest is completed. What could belong to it stays: hidden maps, and emptied segments, which a map
//! that is put back may name.

use crate::disk::remove_if_there;
use crate::engine::{Batch, Table, key_of};
use crate::faults::Bug;
use crate::layout::{self, ObjectKind};
use crate::named_rows::NamedRows;
use crate::writer::StoreWriter;
use std::collections::BTreeSet;
use std::fmt;
use weald_format::store::{ImageRow, ImageState};
use weald_format::{Error, ErrorKind, ImageNo, Result, SegmentNo};

impl StoreWriter {
    pub(crate) fn recover(&mut self) -> Result<()> {
        let NamedRows { rows, damaged } = self.named_rows(Table::Images, ImageRow::parse)?;
        self.refuse_unknown_images(&rows, &damaged)?;
        for (name, error) in &damaged {
            self.tell_damaged_row("image", name, error);
        }
        let mut is_complete = damaged.is_empty();
        for (name, row) in &rows {
            let done = self.refuse_after_failure(|writer| writer.recover_image(name, row));
            is_complete &= self.tell_item(format_args!("{name}"), done)?;
        }
        // What may belong to an image that is not complete stays.
        if is_complete {
            self.remove_stale_maps(&rows)?;
            match self.remove_emptied_segments() {
                // The check of the maps finds the reason.
                Err(error) if self.is_check() && !error.is_failed_write() => {}
                done => {
                    let what = format_args!("segments without live blocks stay");
                    self.tell_item(what, done)?;
                }
            }
        }
        if !self.is_check() && !self.store().keeps_changes_in_memory() && self.store().has_tiers() {
            // A tier that fails, or a damaged list of tiers, costs what lies there.
            match self.settle_tiers() {
                Err(error) if error.is_failed_write() => return Err(error),
                Err(error) => log::warn!("{error}"),
                Ok(()) => {}
            }
        }
        if is_complete && !self.is_check() && !self.store().keeps_changes_in_memory() {
            let done = self.release_replaced();
            self.tell_item(format_args!("replaced images stay"), done)?;
        }
        self.recover_volumes()
    }

    fn recover_image(&mut self, name: &str, row: &ImageRow) -> Result<()> {
        match row.state {
            ImageState::Present => self.store().show_map(name, row),
            ImageState::Adding | ImageState::Removing => {
                let removing = ImageRow {
                    state: ImageState::Removing,
                    ..*row
                };
                self.finish_removal(name, removing, None)
            }
        }
    }

    /// Removes the segments that a collection has emptied, after all maps name the new places.
    fn remove_emptied_segments(&mut self) -> Result<()> {
        let mut emptied = Vec::new();
        self.each_segment(&mut |number, row| {
            // A row that says both is damaged.
            if row.is_emptied && row.live_len == 0 {
                emptied.push(number);
            }
            Ok(())
        })?;
        if emptied.is_empty() {
            return Ok(());
        }
        self.refuse_after_failure(|writer| {
            // The old places are all that leads to the blocks of an image whose map is not renewed.
            writer.renew_maps()?;
            writer.remove_segments(&emptied)
        })
    }

    /// Tells the failure of one item, of which `what` says what it is; a check keeps it as a
    /// finding. Returns whether there is none.
    ///
    /// # Errors
    /// That of a write or a sync that the disk failed.
    pub(crate) fn tell_item(&mut self, what: fmt::Arguments<'_>, done: Result<()>) -> Result<bool> {
        match done {
            Ok(()) => return Ok(true),
            Err(error) if error.is_failed_write() => return Err(error),
            Err(error) if self.is_check() => self.add_damage(error.context(what)),
            Err(error) => log::warn!("{what}: {error}"),
        }
        Ok(false)
    }

    /// Tells the damage of a row that costs an image or a volume, and not the others. A check reads
    /// all rows again.
    pub(crate) fn tell_damaged_row(&self, kind: &str, name: &str, error: &Error) {
        if !self.is_check() {
            log::warn!("{}", self.damaged_row(kind, name, error));
        }
    }

    /// Refuses a map without a row. It means that the metadata is older than the images, for
    /// example after a partial restore. Further writes could then overwrite the space of existing
    /// images.
    fn refuse_unknown_images(
        &self,
        rows: &[(String, ImageRow)],
        damaged: &[(String, Error)],
    ) -> Result<()> {
        let names = rows.iter().map(|(name, _)| name.as_str());
        let names = names.chain(damaged.iter().map(|(name, _)| name.as_str()));
        let known: BTreeSet<&str> = names.collect();
        for name in self.store().names()? {
            if !known.contains(name.as_str()) {
                let shown = self.store().disk.shown();
                let what = format!(
                    "{shown}:{name}: the metadata does not know this image, as after a partial \
                     restore: 'weald store salvage {shown}' rebuilds the metadata"
                );
                return Err(Error::corrupt("store metadata", 0, "S-5.7", what));
            }
        }
        Ok(())
    }

    /// Removes hidden maps and content digests of images that were never committed, or are gone.
    fn remove_stale_maps(&self, rows: &[(String, ImageRow)]) -> Result<()> {
        let disk = &*self.store().disk;
        let known: BTreeSet<ImageNo> = rows.iter().map(|(_, row)| row.image_no).collect();
        let is_stale = |image_no: &ImageNo| !known.contains(image_no);
        for name in disk.list_objects(ObjectKind::Map)? {
            if let Some(image_no) = layout::hidden_map_image(&name).filter(is_stale) {
                remove_if_there(disk, &layout::hidden_map(image_no))?;
            }
            // One that no row names: the replacement was not committed.
            let is_kept = rows.iter().any(|(known, _)| *known == name);
            if layout::replaced_image(&name).is_some() && !is_kept {
                remove_if_there(disk, &layout::map(&name))?;
            }
        }
        for name in disk.list(layout::IMAGES)? {
            if let Some(image_no) = layout::digested_image(&name).filter(is_stale) {
                self.store().forget_content_digests(image_no)?;
            }
        }
        Ok(())
    }

    /// Removes the files of segments that no map refers to, then their rows.
    pub(crate) fn remove_segments(&mut self, numbers: &[SegmentNo]) -> Result<()> {
        let disk = self.store().disk.clone();
        let mut batch = Batch::default();
        for &number in numbers {
            match remove_if_there(&*disk, &layout::segment(number)) {
                // A tier that is not here may have the file. When it is back, nothing knows it.
                Err(error) if error.kind() == ErrorKind::Lost => {
                    log::info!("{error}");
                    if self.faults.has(Bug::TierStopsStore) {
                        return Err(error.of_failed_write());
                    }
                }
                done => done?,
            }
            batch.remove(Table::Segments, &key_of(number.0));
        }
        disk.settle(ObjectKind::Segment)?;
        self.commit(batch)
    }
}
