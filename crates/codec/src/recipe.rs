//! What recipes make, whatever their method.

use crate::{deflate, flac};
use weald_format::recipes::Method;
use weald_format::{Error, Result};

/// The `len` bytes that `method` makes of `plain`, with `corrections` where the method has any.
///
/// # Errors
/// `Corrupt` where they make none of that length; `Limit` where zlib fails.
/// # Cost
/// That of [`deflate::recreate`] or [`flac::decode`].
pub fn make(method: Method, plain: &[u8], corrections: &[u8], len: usize) -> Result<Vec<u8>> {
    match method {
        Method::Deflate(zlib) => deflate::recreate(plain, zlib, corrections, len),
        _ if !corrections.is_empty() => {
            let what = "corrections of what is no DEFLATE stream";
            Err(Error::corrupt("recipe", 0, "F-20.2", what))
        }
        Method::Pcm(samples) => flac::decode(plain, samples, len),
    }
}
