//! The superblock of a store, which lies in two files: `store` and `store.copy`. Either of them is
//! enough to open the store; a writer makes both whole again.
//!
//! Readers lock bytes of `store`. So a damaged file is written in place: it stays the same file. If
//! it is missing, readers lock the bytes of `store.copy`, and a removal takes those of both.

use crate::disk::{Access, LocalFile};
use crate::layout;
use crate::store::Store;
use crate::superblock_files::{is_unusable, open, read, write};
use weald_format::{ErrorKind, ImageNo, Result};

impl Store {
    /// Writes what is damaged or missing of the two files. The caller has the writer's lock.
    pub(crate) fn repair_superblock(&self) -> Result<()> {
        let disk = &*self.disk;
        // A writer before may have changed the feature bits.
        let superblock = open(disk)?;
        for (name, other) in [
            (layout::SUPERBLOCK, layout::SUPERBLOCK_COPY),
            (layout::SUPERBLOCK_COPY, layout::SUPERBLOCK),
        ] {
            let shown = disk.shown();
            let state = match read(disk, name) {
                Ok(found) if found == superblock => continue,
                Ok(_) => "is older than",
                Err(error) if error.kind() == ErrorKind::NotFound => "was missing and is",
                Err(error) if is_unusable(&error) => "was damaged and is",
                Err(error) => return Err(error),
            };
            write(disk, name, superblock)?;
            match state {
                "is older than" => {}
                // Stores of older versions have no copy.
                "was missing and is" if name == layout::SUPERBLOCK_COPY => {}
                _ if disk.is_in_memory() => log::warn!(
                    "{shown}/{name}: is damaged or missing: '{other}' is read, and the next \
                     command that writes makes it again"
                ),
                state => log::warn!("{shown}/{name}: {state} made again from '{other}'"),
            }
        }
        Ok(())
    }

    /// Opens the file on whose bytes from 2^40 on a reader takes the lock of an
    /// image.
    pub(crate) fn lock_file(&self, access: Access) -> Result<Box<dyn LocalFile>> {
        match self.disk.open(layout::SUPERBLOCK, access) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.disk.open(layout::SUPERBLOCK_COPY, access)
            }
            other => other,
        }
    }

    /// Opens all files on whose bytes readers may have the lock of an image.
    pub(crate) fn lock_files(&self) -> Result<Vec<Box<dyn LocalFile>>> {
        let mut files = Vec::new();
        for name in [layout::SUPERBLOCK, layout::SUPERBLOCK_COPY] {
            match self.disk.open(name, Access::Write) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => files.push(other?),
            }
        }
        Ok(files)
    }

    /// Locks the image with this number against readers. Returns `None` if a reader has it open.
    pub(crate) fn lock_out_readers(
        &self,
        image_no: ImageNo,
    ) -> Result<Option<Vec<Box<dyn LocalFile>>>> {
        let files = self.lock_files()?;
        for file in &files {
            if !file.try_lock(layout::image_lock(image_no), true)? {
                return Ok(None);
            }
        }
        Ok(Some(files))
    }
}
