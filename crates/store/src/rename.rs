//! Gives an image another name.

use crate::engine::{Batch, Table};
use crate::faults::Bug;
use crate::layout;
use crate::writer::StoreWriter;
use weald_format::store::{ImageMap, ImageRow, ImageState, MAP_LEN_MAX};
use weald_format::{Error, Result};

/// What to do in [`StoreWriter::rename`] if there is an image of the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfTaken {
    /// Nothing: the call fails.
    Fail,
    /// It is removed. After a crash the name means either image.
    Replace,
}

impl StoreWriter {
    /// Gives the image `old` the name `new`. After a crash it has one of the two.
    ///
    /// The map is hidden before the commit that moves the row, and shown under the new name after
    /// it: [`crate::recover`] shows a hidden map under the name of its row. So for a moment readers
    /// do not find the image under `old` nor `new`; what `new` meant before, they find until then.
    ///
    /// # Errors
    /// `NotFound` if there is no such image; `Busy` if `new` is taken, or a reader has one of the
    /// images open, which looks it up by its name when blocks have moved; `Invalid` for a name that
    /// no image can have, and for the name that it has; `Corrupt`, `Io`, `Full`.
    pub fn rename(&mut self, old: &str, new: &str, if_taken: IfTaken) -> Result<()> {
        layout::check_name(new)?;
        if old == new {
            return Err(Error::invalid(format!("{old}: is its name already")));
        }
        let _lock = self.lock_image(old, "unmount it first")?;
        let row = self.present_row(old)?;
        let is_over = if_taken == IfTaken::Replace && self.image_row(new)?.is_some();
        let mut replaced = None;
        let mut _replaced_lock = None;
        if is_over {
            _replaced_lock = Some(self.lock_image(new, "unmount it first")?);
            let bytes = self.store().read_object(&layout::map(new), MAP_LEN_MAX)?;
            let map = self.store().parse_map(new, &bytes)?;
            let removing = ImageRow {
                state: ImageState::Removing,
                ..self.present_row(new)?
            };
            replaced = Some((removing, map, bytes));
        } else {
            self.refuse_taken(new)?;
        }
        self.refuse_after_failure(|writer| {
            let disk = writer.store().disk.clone();
            let (hidden, new_map) = (layout::hidden_map(row.image_no), layout::map(new));
            let key = layout::replaced_key(new);
            let mut batch = Batch::default();
            batch.remove(Table::Images, old.as_bytes());
            batch.put(Table::Images, new.as_bytes(), row.encode());
            if let Some((removing, _, bytes)) = &replaced {
                disk.put(&layout::hidden_map(removing.image_no), bytes)?;
                batch.put(Table::Images, key.as_bytes(), removing.encode());
            }
            if !writer.faults.has(Bug::RenamedMapNotHidden) {
                disk.switch(&layout::map(old), &hidden)?;
            }
            // After an error the row may be there under either name: the next writer looks.
            writer.commit(batch)?;
            let from = if writer.faults.has(Bug::RenamedMapNotHidden) {
                layout::map(old)
            } else {
                hidden
            };
            disk.switch(&from, &new_map)?;
            let finish = |(removing, map, _): (ImageRow, ImageMap, Vec<u8>)| {
                writer.finish_removal(&key, removing, Some(map))
            };
            replaced.map_or(Ok(()), finish)
        })
    }

    /// The row of the image `name`, which is not on its way.
    fn present_row(&self, name: &str) -> Result<ImageRow> {
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
