//! What a writer finds half done when it opens the store, and how it is finished.
//!
//! By cases, of where the writer before stopped:
//! 1. While it appended blocks: the bytes behind the committed length are cut off when the segment
//!    is used again. Rows of blocks without references are the collector's.
//! 2. While it counted the references of a new image (`Adding`): they are dropped again.
//! 3. Between the last count and the rename that shows the image (`Present`, map hidden): the map
//!    is shown.
//! 4. While it dropped references (`Removing`): the rest is dropped.
//! 5. While it wrote maps anew after moving blocks: segments that are emptied still have their
//!    files, so all maps are compared with the rows before these files go.

use crate::engine::{Batch, Table, key_of};
use crate::layout;
use crate::store::read_file;
use crate::writer::StoreWriter;
use std::collections::BTreeSet;
use weald_format::store::{ImageRow, ImageState, MAP_LEN_MAX};
use weald_format::{Digest, Error, ErrorKind, Result};

impl StoreWriter {
    pub(crate) fn recover(&mut self) -> Result<()> {
        let rows = self.image_rows()?;
        self.refuse_unknown_images(&rows)?;
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
        self.remove_stale_maps(&rows)?;
        let mut emptied = Vec::new();
        self.each_segment(&mut |number, row| {
            if row.is_emptied {
                emptied.push(number);
            }
            Ok(())
        })?;
        if !emptied.is_empty() {
            self.renew_maps()?;
            self.remove_segments(&emptied)?;
        }
        Ok(())
    }

    /// A map without a row means that the metadata is older than the images, as after a partial
    /// restore: whoever goes on would give away the space of images that are there.
    fn refuse_unknown_images(&self, rows: &[(String, ImageRow)]) -> Result<()> {
        let known: BTreeSet<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
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

    /// Gives the hidden map of an image its name, if it is the one that was committed.
    fn show_map(&self, name: &str, row: &ImageRow) -> Result<()> {
        let disk = &*self.store.disk;
        let hidden = layout::hidden_map(row.image_id);
        let bytes = match read_file(disk, &hidden, MAP_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        if Digest::of(&bytes) == row.map_digest {
            disk.rename(&hidden, &layout::map(name))?;
        } else {
            disk.remove(&hidden)?;
        }
        disk.sync_dir(layout::IMAGES)
    }

    /// Removes hidden maps whose images never came to be.
    fn remove_stale_maps(&self, rows: &[(String, ImageRow)]) -> Result<()> {
        let disk = &*self.store.disk;
        let known: BTreeSet<String> = rows
            .iter()
            .map(|(_, row)| layout::hidden_map(row.image_id))
            .collect();
        for name in disk.list(layout::IMAGES)? {
            let path = format!("{}/{name}", layout::IMAGES);
            if name.starts_with('.') && name.ends_with(".map") && !known.contains(&path) {
                disk.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes the files of segments that no map names, then their rows.
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
