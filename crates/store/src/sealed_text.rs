//! Small text files of a store that end with the digest of the text.

use crate::disk::LocalFiles;
use weald_format::{Digest, Result};

/// The text, which ends with a line, and its digest.
pub fn sealed(mut text: String) -> String {
    let digest = Digest::of(text.as_bytes());
    text.push_str(&format!("digest {digest}\n"));
    text
}

/// The text before its digest, if that is right.
pub fn unsealed(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (body, digest) = text.strip_suffix('\n')?.rsplit_once("\ndigest ")?;
    let body = text.get(..body.len() + 1)?;
    (Digest::from_hex(digest)? == Digest::of(body.as_bytes())).then_some(body)
}

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
