//! Reads a metadata image in order before the kernel walks it, which would read it in thousands of
//! small pieces.

use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use weald_codec::FsVerity;
use weald_format::{Error, Result};

/// Bytes of a read.
const READ_LEN: usize = 1 << 20;

/// Share of the memory that metadata may take in the page cache before a program asks for them.
const MEMORY_SHARE: u64 = 4;

/// Reads the `len` bytes of `file` into the page cache, as far as they fit into a quarter of the
/// memory. `shown` names the file in errors.
///
/// # Errors
/// `Io`.
pub fn read_ahead(file: &File, len: u64, shown: &str) -> Result<()> {
    let len = len.min(weald_sys::memory_len() / MEMORY_SHARE);
    read(file, len, shown, |_| {})
}

/// Returns the fs-verity digest of the `len` bytes of `file`.
///
/// # Errors
/// `Io`.
pub fn digest(file: &File, len: u64, shown: &str) -> Result<[u8; 32]> {
    let mut verity = FsVerity::new();
    read(file, len, shown, |bytes| verity.update(bytes))?;
    Ok(verity.finish())
}

fn read(file: &File, len: u64, shown: &str, mut take: impl FnMut(&[u8])) -> Result<()> {
    // Doubles the window of readahead; without it the reads work as well.
    let _ = fadvise(file, 0, NonZeroU64::new(len), Advice::Sequential);
    let mut buffer = vec![0; READ_LEN];
    let mut offset = 0;
    while offset < len {
        let wanted = (len - offset).min(READ_LEN as u64) as usize;
        let part = buffer.get_mut(..wanted).unwrap_or_default();
        file.read_exact_at(part, offset)
            .map_err(|error| Error::io(shown.to_owned(), error))?;
        take(part);
        offset += wanted as u64;
    }
    Ok(())
}
