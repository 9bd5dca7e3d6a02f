//! The names of images and volumes that readers see, which follow the rows.

use crate::disk::remove_if_there;
use crate::layout::{self, ObjectKind};
use crate::store::{Store, is_bad_or_missing};
use weald_format::store::{ImageRow, MAP_LEN_MAX};
use weald_format::{Digest, ErrorKind, Result};

impl Store {
    /// Renames the hidden map of an image to its visible name, if it is the committed map.
    pub(crate) fn show_map(&self, name: &str, row: &ImageRow) -> Result<()> {
        let disk = &*self.disk;
        let hidden = layout::hidden_map(row.image_no);
        let bytes = match self.read_object(&hidden, MAP_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let shown = match self.read_object(&layout::map(name), MAP_LEN_MAX) {
            Err(error) if is_bad_or_missing(&error) => None,
            other => Some(Digest::of(&other?)),
        };
        // A failed replacement leaves a copy of the shown map, and the copy may not be durable.
        if shown != Some(row.map_digest) && Digest::of(&bytes) == row.map_digest {
            disk.switch(&hidden, &layout::map(name))
        } else {
            remove_if_there(disk, &hidden)?;
            disk.settle(ObjectKind::Map)
        }
    }

    /// Shows the volume `name`, with a copy of its row.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub(crate) fn show_volume(&self, name: &str, row: &[u8]) -> Result<()> {
        let disk = &*self.disk;
        match disk.list(layout::VOLUMES) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                disk.make_dir(layout::VOLUMES)?;
                disk.sync_dir("")?;
            }
            other => drop(other?),
        }
        let copy = [&Digest::of(row).0, row].concat();
        disk.put(&layout::volume(name), &copy)
    }

    /// Hides the volume `name`.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn hide_volume(&self, name: &str) -> Result<()> {
        let disk = &*self.disk;
        remove_if_there(disk, &layout::volume(name))?;
        disk.settle(ObjectKind::VolumeName)
    }
}
