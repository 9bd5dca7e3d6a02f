//! The superblock of a store, which lies in two files: `store` and `store.copy`. Either of them is
//! enough to open the store; a writer makes both whole again.
//!
//! Readers lock bytes of `store`. So a damaged file is written in place: it stays the same file. If
//! it is missing, readers lock the bytes of `store.copy`, and a removal takes those of both.

use crate::disk::{Access, Disk, DiskFile};
use crate::layout;
use crate::store::{Store, is_bad_file, read_file};
use weald_format::store::{STORE_SUPERBLOCK_LEN, StoreSuperblock};
use weald_format::{Error, ErrorKind, Result};
use zerocopy::IntoBytes;

fn read(disk: &dyn Disk, name: &str) -> Result<StoreSuperblock> {
    let bytes = read_file(disk, name, STORE_SUPERBLOCK_LEN as u64 * 16)?;
    StoreSuperblock::parse(&bytes)
}

/// Whether an error says that the file is damaged or missing.
fn is_unusable(error: &Error) -> bool {
    is_bad_file(error) || error.kind() == ErrorKind::NotFound || is_short(error)
}

fn is_short(error: &Error) -> bool {
    let cause = error.io_source().map(std::io::Error::kind);
    cause == Some(std::io::ErrorKind::UnexpectedEof)
}

/// Reads the superblock from either file.
pub fn open(disk: &dyn Disk) -> Result<StoreSuperblock> {
    let shown = disk.shown();
    let first = match read(disk, layout::SUPERBLOCK) {
        Err(error) if is_unusable(&error) => error,
        other => return other.map_err(|error| error.context(shown)),
    };
    let copy = match read(disk, layout::SUPERBLOCK_COPY) {
        Err(error) if is_unusable(&error) => {
            let is_no_store = [&first, &error].map(Error::kind) == [ErrorKind::NotFound; 2];
            return Err(match is_no_store {
                true => first,
                false => both_unusable(disk, &first),
            });
        }
        other => other?,
    };
    log::debug!("{shown}/{}: {first}: its copy is read", layout::SUPERBLOCK);
    Ok(copy)
}

fn both_unusable(disk: &dyn Disk, error: &Error) -> Error {
    let (shown, first, copy) = (disk.shown(), layout::SUPERBLOCK, layout::SUPERBLOCK_COPY);
    let what = format!(
        "{shown}: the store cannot be opened: its file '{first}' is damaged or missing, and so is \
         the copy '{copy}': put one of them back from a backup"
    );
    let rule = error.place().map_or("S-1.1", |place| place.rule);
    Error::corrupt("store superblock", 0, rule, what)
}

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
                state => log::warn!("{shown}/{name}: {state} made again from '{other}'"),
            }
        }
        Ok(())
    }

    /// Opens the file on whose bytes from [`layout::IMAGE_LOCKS`] on a reader takes the lock of an
    /// image.
    pub(crate) fn lock_file(&self, access: Access) -> Result<Box<dyn DiskFile>> {
        match self.disk.open(layout::SUPERBLOCK, access) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.disk.open(layout::SUPERBLOCK_COPY, access)
            }
            other => other,
        }
    }

    /// Opens all files on whose bytes readers may have the lock of an image.
    pub(crate) fn lock_files(&self) -> Result<Vec<Box<dyn DiskFile>>> {
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
    pub(crate) fn lock_out_readers(&self, image_id: u64) -> Result<Option<Vec<Box<dyn DiskFile>>>> {
        let files = self.lock_files()?;
        for file in &files {
            if !file.try_lock(layout::IMAGE_LOCKS + image_id, true)? {
                return Ok(None);
            }
        }
        Ok(Some(files))
    }
}

/// Gives the file `name` these 96 bytes, in place.
pub fn write(disk: &dyn Disk, name: &str, superblock: StoreSuperblock) -> Result<()> {
    let (file, is_new) = match disk.open(name, Access::Write) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            (disk.open(name, Access::Create)?, true)
        }
        other => (other?, false),
    };
    file.write_at(superblock.encode().as_bytes(), 0)?;
    file.set_len(STORE_SUPERBLOCK_LEN as u64)?;
    file.sync()?;
    match is_new {
        true => disk.sync_dir(""),
        false => Ok(()),
    }
}
