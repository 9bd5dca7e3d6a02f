//! Training dictionaries.

use weald_format::limits::DICTIONARY_LEN_MAX;
use weald_sys::Training;

/// One raw metadata record to learn from.
pub type Sample = Vec<u8>;

/// A dictionary of at most `len_max` bytes trained on `samples`, or none where there is too little
/// to learn from.
///
/// # Cost
/// A few seconds for 10 MiB of samples; memory about ten times the samples.
// encodes what this program made
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
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

/// How a dictionary of contents is trained. Measured on the small forest, dictionary of 224 KiB:
/// segments of 100 to 200 bytes and runs of six make blocks of ordinary data 0.8% smaller than what
/// Zstandard chooses by itself does; fewer than 2^22 places have runs counted as one. The level
/// hardly matters but for time. `docs/design/0010-reading-in-small-pieces.md`.
const CONTENTS: Training = Training {
    segment_len: 200,
    run_len: 6,
    table_log: 22,
    level: 3,
};

/// Bytes of memory that [`train_on_contents`] takes besides samples and dictionary.
pub const CONTENTS_TRAINING_LEN: u64 = (6 << CONTENTS.table_log) + (1 << 20);

/// A dictionary of at most `len_max` bytes trained on parts of contents, which stand in a row and
/// have `lens` bytes each; none where there is too little to learn from.
///
/// # Cost
/// A second for 30 MiB of samples; memory as [`CONTENTS_TRAINING_LEN`] says.
#[allow(clippy::arithmetic_side_effects)] // lengths of what is in memory
pub fn train_on_contents(samples: &[u8], lens: &[usize], len_max: usize) -> Option<Vec<u8>> {
    let len_max = len_max.min(DICTIONARY_LEN_MAX as usize);
    if samples.len() / 4 < len_max {
        return None;
    }
    weald_sys::train_dictionary(samples, lens, len_max, CONTENTS)
}
