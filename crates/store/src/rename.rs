//! Gives an image another name.

use crate::engine::{Batch, Table};
use crate::faults::Bug;
use crate::layout;
use crate::writer::StoreWriter;
use weald_format::{Error, Result};

/// What to do in [`StoreWriter::rename`] if there is an image of the new name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfTaken {
    /// Nothing: the call fails.
    Fail,
    /// It is replaced, and removed when nobody reads it. After a crash the name means either image.
    Replace,
}

impl StoreWriter {
    /// Gives the image `old` the name `new`. After a crash it has one of the two.
    ///
    /// The map is hidden before the commit that moves the row, and shown under the new name after
    /// it: [`crate::recover`] shows a hidden map under the name of its row. So for a moment readers
    /// do not find the image under `old` nor `new`; what `new` meant before, they find until then.
    /// Readers that have one of the images open go on. Replaced images that nobody reads are
    /// removed, before and after.
    ///
    /// # Errors
    /// `NotFound` if there is no such image; `Busy` if `new` is taken; `Limit` if too many replaced
    /// images are read; `Invalid` for a name that no image can have, and for the name that it has;
    /// `Corrupt`, `Io`, `Full`.
    pub fn rename(&mut self, old: &str, new: &str, if_taken: IfTaken) -> Result<()> {
        self.release_replaced()?;
        self.rename_only(old, new, if_taken)?;
        match if_taken {
            IfTaken::Replace => self.release_replaced(),
            IfTaken::Fail => Ok(()),
        }
    }

    /// As [`StoreWriter::rename`], and replaced images stay: a server removes them in steps,
    /// between the commits of its volumes.
    ///
    /// # Errors
    /// As [`StoreWriter::rename`].
    pub fn rename_only(&mut self, old: &str, new: &str, if_taken: IfTaken) -> Result<()> {
        layout::check_name(old)?;
        layout::check_name(new)?;
        if old == new {
            return Err(Error::invalid(format!("{old}: is its name already")));
        }
        let image_no = self.store().map(old)?.image_no;
        let row = self.present_row(old)?;
        let is_over = if_taken == IfTaken::Replace && self.image_row(new)?.is_some();
        let replaced = if is_over {
            Some(self.replaceable(new)?)
        } else {
            self.refuse_taken(new)?;
            None
        };
        if row.image_no != image_no {
            let what = format!("{old}: its map is not the one that was committed");
            return Err(Error::corrupt("store metadata", 0, "S-5.3", what));
        }
        self.refuse_after_failure(|writer| {
            let disk = writer.store().disk.clone();
            let (hidden, new_map) = (layout::hidden_map(row.image_no), layout::map(new));
            let mut batch = Batch::default();
            batch.remove(Table::Images, old.as_bytes());
            batch.put(Table::Images, new.as_bytes(), row.encode());
            if let Some(replaced) = &replaced {
                writer.set_aside(&mut batch, replaced)?;
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
            disk.switch(&from, &new_map)
        })
    }
}
