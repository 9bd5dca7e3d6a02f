//! Runs recipes of all methods.

use crate::{deflate, flac, jpeg};
use weald_format::recipes::{Method, Recipe};
use weald_format::{Error, Result};

/// Makes the output of `recipe`. `plain` is the part of its content (of `plain_len` bytes) that
/// [`Recipe::input_range`] names.
///
/// # Errors
/// `Corrupt` if the output has another length than the recipe says; `Limit` if zlib fails.
/// # Cost
/// That of [`deflate::recreate`], [`deflate::recreate_part`], [`flac::decode`] or [`jpeg::decode`].
pub fn run_recipe(recipe: &Recipe, plain: &[u8], plain_len: u64) -> Result<Vec<u8>> {
    let len = recipe.len as usize;
    let corrections = &recipe.corrections;
    match (recipe.method, recipe.part) {
        (Method::Deflate(zlib), None) => deflate::recreate(plain, zlib, corrections, len),
        (Method::Deflate(zlib), Some(part)) => {
            deflate::recreate_part(plain, plain_len, zlib, part, corrections, len)
        }
        _ if !corrections.is_empty() => {
            let what =
                "corrections: expected none, because the recipe does not make a DEFLATE stream";
            Err(Error::corrupt("recipe", 0, "F-20.2", what))
        }
        (Method::Pcm(samples), _) => flac::decode(plain, samples, len),
        (Method::Jpeg, _) => jpeg::decode(plain, len),
    }
}
