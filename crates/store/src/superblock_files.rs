//! The files `store` and `store.copy`: how they are read and written.

use crate::disk::{Access, Disk};
use crate::layout;
use weald_format::store::{STORE_SUPERBLOCK_LEN, StoreSuperblock};
use weald_format::{Error, ErrorKind, Result};
use zerocopy::IntoBytes;

/// Reads the superblock in the file `name`.
pub fn read(disk: &dyn Disk, name: &str) -> Result<StoreSuperblock> {
    let file = disk.open(name, Access::Read)?;
    // One byte more shows that the file is too long.
    let len = file.len()?.min(STORE_SUPERBLOCK_LEN as u64 + 1);
    let mut bytes = vec![0; len as usize];
    file.read_at(&mut bytes, 0)?;
    StoreSuperblock::parse(&bytes)
}

/// Whether an error says that the file is damaged or missing.
pub fn is_unusable(error: &Error) -> bool {
    use ErrorKind::{Corrupt, Invalid, Limit, NotFound};
    matches!(error.kind(), Corrupt | Invalid | Limit | NotFound) || is_short(error)
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
            return Err(if is_no_store {
                first
            } else {
                both_unusable(disk, &first)
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
    if is_new { disk.sync_dir("") } else { Ok(()) }
}
