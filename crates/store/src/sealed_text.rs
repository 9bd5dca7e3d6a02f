//! Small text files of a store that end with the digest of the text.

use crate::disk::LocalFiles;
use weald_format::Result;
pub use weald_format::sealed_text::{sealed, unsealed};

/// Gives these files this text, one after the other, durably.
///
/// # Errors
/// `Io`, `Full`.
pub fn replace(files: &dyn LocalFiles, names: &[&str], text: &str) -> Result<()> {
    for name in names {
        let new = format!("{name}.new");
        files.write_file(&new, text.as_bytes())?;
        files.rename(&new, name)?;
        files.sync_dir("")?;
    }
    Ok(())
}
