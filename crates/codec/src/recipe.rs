//! What recipes make, whatever their method.

use crate::{deflate, flac, jpeg};
use weald_format::recipes::{Method, Recipe};
use weald_format::{Error, Result};

/// The bytes that `recipe` makes of `plain`, the bytes of its plain content of `plain_len` that it
/// [needs](Recipe::needs).
///
/// # Errors
/// `Corrupt` where they make none of the length that it says; `Limit` where zlib fails.
/// # Cost
/// That of [`deflate::recreate`], [`deflate::recreate_part`], [`flac::decode`] or [`jpeg::decode`].
pub fn make(recipe: &Recipe, plain: &[u8], plain_len: u64) -> Result<Vec<u8>> {
    let len = recipe.len as usize;
    let corrections = &recipe.corrections;
    match (recipe.method, recipe.part) {
        (Method::Deflate(zlib), None) => deflate::recreate(plain, zlib, corrections, len),
        (Method::Deflate(zlib), Some(part)) => {
            deflate::recreate_part(plain, plain_len, zlib, part, corrections, len)
        }
        _ if !corrections.is_empty() => {
            let what = "corrections of what is no DEFLATE stream";
            Err(Error::corrupt("recipe", 0, "F-20.2", what))
        }
        (Method::Pcm(samples), _) => flac::decode(plain, samples, len),
        (Method::Jpeg, _) => jpeg::decode(plain, len),
    }
}
