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
//! 5. Rewriting maps after blocks moved: the emptied segments still have their files. All maps are
//!    compared with the rows before these files are removed.

use crate::engine::{Batch, Table, key_of};
use crate::layout;
use crate::store::{is_bad_file, read_file};
use crate::writer::StoreWriter;
use std::collections::BTreeSet;
use weald_format::store::{ImageRow, ImageState, MAP_LEN_MAX};
use weald_format::{Digest, Error, ErrorKind, Result};

impl StoreWriter {
    pub(crate) fn recover(&mut self) -> Result<()> {
        let found = self.named_rows(Table::Images, ImageRow::parse)?;
        let (rows, damaged) = (found.rows, found.damaged);
        self.refuse_unknown_images(&rows, &damaged)?;
        for (name, error) in &damaged {
            self.tell_damaged_row("image", name, error);
        }
        for (name, row) in &rows {
            match row.state {
                ImageState::Present => self.show_map(name, row)?,
                ImageState::Adding | ImageState::Removing => {
                    self.finish_removal(
                        name,
                        ImageRow {
                            state: ImageState::Removing,
                            ..*row
                        },
                        None,
                    )?;
                }
            }
        }
        // What belongs to an image without a readable row stays.
        if !damaged.is_empty() {
            return self.recover_volumes();
        }
        self.remove_stale_maps(&rows)?;
        let mut emptied = Vec::new();
        self.each_segment(&mut |number, row| {
            // A row that says both is damaged.
            if row.is_emptied && row.live_len == 0 {
                emptied.push(number);
            }
            Ok(())
        })?;
        if !emptied.is_empty() {
            match self.renew_maps() {
                // The old places are all that leads to the blocks of this image.
                Err(error) if is_bad_file(&error) || error.kind() == ErrorKind::NotFound => {
                    if !self.is_check {
                        log::warn!("segments without live blocks stay: {error}");
                    }
                }
                renewed => {
                    renewed?;
                    self.remove_segments(&emptied)?;
                }
            }
        }
        self.recover_volumes()
    }

    /// Tells the damage of a row that costs an image or a volume, and not the others. A check reads
    /// all rows again.
    pub(crate) fn tell_damaged_row(&self, kind: &str, name: &str, error: &Error) {
        if !self.is_check {
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
        for name in self.store.names()? {
            if !known.contains(name.as_str()) {
                let shown = self.store.disk.shown();
                let what = format!(
                    "{shown}:{name}: the metadata does not know this image, as after a partial \
                     restore: 'weald store salvage {shown}' rebuilds the metadata"
                );
                return Err(Error::corrupt("store metadata", 0, "S-5.7", what));
            }
        }
        Ok(())
    }

    /// Renames the hidden map of an image to its visible name, if it is the committed map.
    fn show_map(&self, name: &str, row: &ImageRow) -> Result<()> {
        let disk = &*self.store.disk;
        let hidden = layout::hidden_map(row.image_id);
        let bytes = match read_file(disk, &hidden, MAP_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let shown = match read_file(disk, &layout::map(name), MAP_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            other => Some(Digest::of(&other?)),
        };
        // A failed replacement leaves a copy of the shown map, and the copy may not be durable.
        if shown != Some(row.map_digest) && Digest::of(&bytes) == row.map_digest {
            disk.rename(&hidden, &layout::map(name))?;
        } else {
            disk.remove(&hidden)?;
        }
        disk.sync_dir(layout::IMAGES)
    }

    /// Removes hidden maps and content digests of images that were never committed, or are gone.
    fn remove_stale_maps(&self, rows: &[(String, ImageRow)]) -> Result<()> {
        let disk = &*self.store.disk;
        let known: BTreeSet<String> = rows
            .iter()
            .flat_map(|(_, row)| {
                let id = row.image_id;
                [layout::hidden_map(id), layout::content_digests(id)]
            })
            .collect();
        for name in disk.list(layout::IMAGES)? {
            let path = format!("{}/{name}", layout::IMAGES);
            let is_ours = name.ends_with(".map") || name.ends_with(".digests");
            if name.starts_with('.') && is_ours && !known.contains(&path) {
                disk.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the files of segments that no map refers to, then their rows.
    pub(crate) fn remove_segments(&mut self, numbers: &[u64]) -> Result<()> {
        let disk = self.store.disk.clone();
        let mut batch = Batch::default();
        for &number in numbers {
            match disk.remove(&layout::segment(number)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            batch.remove(Table::Segments, &key_of(number));
        }
        disk.sync_dir(layout::SEGMENTS)?;
        self.commit(batch)
    }
}
