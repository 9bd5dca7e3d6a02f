//! Training the metadata dictionary.

use weald_format::limits::DICTIONARY_LEN_MAX;

/// One raw metadata record to learn from.
pub type Sample = Vec<u8>;

/// A dictionary of at most `len_max` bytes trained on `samples`, or none where there is too little to learn from.
///
/// # Cost
/// A few seconds for 10 MiB of samples; memory about ten times the samples.
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)] // encodes what this program made
pub fn train_dictionary(samples: &[Sample], len_max: usize) -> Option<Vec<u8>> {
    let total: usize = samples.iter().map(Vec::len).sum();
    if samples.len() < 8 || total < len_max * 4 {
        return None;
    }
    let len_max = len_max.min(DICTIONARY_LEN_MAX as usize);
    zstd::dict::from_samples(samples, len_max)
        .ok()
        .filter(|d| !d.is_empty())
}
