//! Truncates the tail that an interrupted append left after the last complete generation.

use std::path::Path;
use weald_format::Result;
use weald_image::{Generation, last_whole_generation};
use weald_io::{FileSource, ReadAt};

/// Result of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// The last complete generation.
    pub generation: Generation,
    /// Bytes behind it, which are cut off.
    pub tail_len: u64,
}

/// Truncates the image at `path` to its last complete generation; with `dry_run` it only reports
/// the result.
///
/// # Errors
/// `NotFound`, `Io`, `Unsupported`; `Corrupt` if no generation is complete; `Busy` while another
/// process appends to the image.
/// # Cost
/// Reads 64 bytes per record.
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
