//! What an interrupted append has left behind the last whole generation is cut off.

use std::path::Path;
use weald_format::Result;
use weald_image::{Generation, last_whole_generation};
use weald_io::{FileSource, ReadAt};

/// What was found, and what was cut off or would be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// The last whole generation.
    pub generation: Generation,
    /// Bytes behind it.
    pub tail_len: u64,
}

/// Cuts the image at `path` back to its last whole generation; with `dry_run`, only says what would
/// be cut off.
///
/// # Errors
/// `NotFound`, `Io`, `Unsupported`; `Corrupt` where no generation is whole; `Busy` while somebody
/// appends to it.
/// # Cost
/// 64 bytes read a record.
pub fn recover_image(path: &Path, dry_run: bool) -> Result<Recovered> {
    let recovered = FileSource::open(path, 0).and_then(|source| {
        let generation = last_whole_generation(&source)?;
        let tail_len = source.len().saturating_sub(generation.image_len);
        Ok(Recovered {
            generation,
            tail_len,
        })
    });
    let recovered = recovered.map_err(|e| e.context(path.display()))?;
    if recovered.tail_len > 0 && !dry_run {
        let len = recovered.generation.image_len;
        weald_io::truncate(path, len, len + recovered.tail_len)?;
    }
    Ok(recovered)
}
