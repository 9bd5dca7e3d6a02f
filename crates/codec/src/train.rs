//! Trains dictionaries.

use weald_format::limits::DICTIONARY_LEN_MAX;
use weald_sys::Training;

/// One raw metadata record to train on.
pub type Sample = Vec<u8>;

/// Trains a dictionary of at most `len_max` bytes on `samples`. Returns `None` if the samples are
/// too few.
///
/// # Cost
/// A few seconds for 10 MiB of samples; memory about ten times the samples.
// trusted input: values of this program
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

/// Parameters of the training on contents. Measured on the small forest with a dictionary of 224
/// KiB: segments of 100 to 200 bytes and runs of six make blocks of ordinary data 0.8% smaller than
/// the parameters that Zstandard chooses. With a table of fewer than 2^22 entries, runs share
/// entries. The level affects little but time. `docs/design/0010-reading-in-small-pieces.md`.
const CONTENTS: Training = Training {
    segment_len: 200,
    run_len: 6,
    table_log: 22,
    level: 3,
};

/// Memory that [`train_on_contents`] takes besides samples and dictionary, bytes.
pub const CONTENT_TRAINING_MEMORY_LEN: u64 = (6 << CONTENTS.table_log) + (1 << 20);

/// Trains a dictionary of at most `len_max` bytes on parts of contents. The parts stand one after
/// the other in `samples` and have `lens` bytes each. Returns `None` if the samples are too few.
///
/// # Cost
/// A second for 30 MiB of samples; memory: [`CONTENT_TRAINING_MEMORY_LEN`].
#[allow(clippy::arithmetic_side_effects)] // lengths of what is in memory
pub fn train_on_contents(samples: &[u8], lens: &[usize], len_max: usize) -> Option<Vec<u8>> {
    let len_max = len_max.min(DICTIONARY_LEN_MAX as usize);
    if samples.len() / 4 < len_max {
        return None;
    }
    weald_sys::train_dictionary(samples, lens, len_max, CONTENTS)
}
