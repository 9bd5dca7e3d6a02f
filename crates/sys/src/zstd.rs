//! The training function of Zstandard with explicit parameters; safe wrappers do not offer it.
//!
//! Zstandard is portable, and so is this module.

use std::ffi::{c_int, c_uint};
use zstd::zstd_safe::zstd_sys as z;

/// Parameters of a training. The algorithm counts runs of a few bytes to find what many samples
/// share, and builds the dictionary from the segments with the most frequent runs (Liao, Petri,
/// Moffat and Wirth 2016; Zstandard's `fastCover`).
#[derive(Debug, Clone, Copy)]
pub struct Training {
    /// Length of a segment, bytes.
    pub segment_len: u32,
    /// Length of the counted runs, bytes: 6 or 8.
    pub run_len: u32,
    /// The table of counts has 2^`table_log` entries of six bytes; at most 31.
    pub table_log: u32,
    /// Compression level for which the dictionary's entropy tables are made.
    pub level: i32,
}

/// Trains a dictionary of at most `len_max` bytes. The samples stand one after the other in
/// `samples` and have `lens` bytes each. `None` if Zstandard finds too little to learn or lacks
/// memory, or if `lens` do not add up to the length of `samples`.
///
/// # Cost
/// About a second for 30 MiB; memory: `len_max`, 6 bytes for each count, and less than a mebibyte.
/// # Source
/// `zdict.h`, `ZDICT_trainFromBuffer_fastCover`.
pub fn train_dictionary(
    samples: &[u8],
    lens: &[usize],
    len_max: usize,
    training: Training,
) -> Option<Vec<u8>> {
    let len = lens
        .iter()
        .try_fold(0usize, |sum, &len| sum.checked_add(len));
    if len != Some(samples.len()) {
        return None;
    }
    let count = c_uint::try_from(lens.len()).ok()?;
    let parameters = z::ZDICT_fastCover_params_t {
        k: training.segment_len,
        d: training.run_len,
        f: training.table_log,
        steps: 0,
        nbThreads: 1,
        splitPoint: 1.0,
        accel: 1,
        shrinkDict: 0,
        shrinkDictMaxRegression: 0,
        zParams: z::ZDICT_params_t {
            compressionLevel: training.level as c_int,
            notificationLevel: 0,
            dictID: 0,
        },
    };
    let mut dictionary: Vec<u8> = vec![0; len_max];
    // SAFETY: `dictionary` has `len_max` bytes, and `lens` has `count` lengths whose sum is the
    // length of `samples`. Zstandard reads and writes them in this call only.
    let trained_len = unsafe {
        z::ZDICT_trainFromBuffer_fastCover(
            dictionary.as_mut_ptr().cast(),
            dictionary.len(),
            samples.as_ptr().cast(),
            lens.as_ptr(),
            count,
            parameters,
        )
    };
    // SAFETY: the function inspects only the number.
    let is_error = unsafe { z::ZDICT_isError(trained_len) } != 0;
    if is_error || trained_len == 0 {
        return None;
    }
    dictionary.truncate(trained_len);
    Some(dictionary)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAINING: Training = Training {
        segment_len: 200,
        run_len: 8,
        table_log: 16,
        level: 3,
    };

    /// Catches: mixed-up lengths or pointers, so that the dictionary lacks what the samples share.
    #[test]
    fn a_dictionary_has_what_samples_share() {
        let shared: Vec<u8> = (0..400u32).flat_map(|n| (n * n).to_le_bytes()).collect();
        let mut samples = Vec::new();
        let mut lens = Vec::new();
        for no in 0..200u32 {
            let own: Vec<u8> = (0..300u32)
                .map(|n| (n * 7919 + no * 104_729).to_le_bytes()[1])
                .collect();
            samples.extend_from_slice(&own);
            samples.extend_from_slice(&shared);
            lens.push(own.len() + shared.len());
        }
        let dictionary = train_dictionary(&samples, &lens, 4096, TRAINING).expect("a dictionary");
        assert!(dictionary.len() <= 4096);
        let found = shared.windows(64).step_by(64);
        let found = found.filter(|piece| dictionary.windows(64).any(|there| there == *piece));
        assert!(found.count() >= 10);
    }

    /// Catches: reading past the samples if a caller passes wrong lengths, and an empty dictionary.
    #[test]
    fn wrong_lengths_and_too_little_are_refused() {
        let samples = vec![7; 1000];
        assert!(train_dictionary(&samples, &[1001], 512, TRAINING).is_none());
        assert!(train_dictionary(&samples, &[usize::MAX, 1001], 512, TRAINING).is_none());
        assert!(train_dictionary(&samples, &[999], 512, TRAINING).is_none());
        assert!(train_dictionary(&[], &[], 512, TRAINING).is_none());
        assert!(train_dictionary(&samples, &[1000], 0, TRAINING).is_none());
    }
}
