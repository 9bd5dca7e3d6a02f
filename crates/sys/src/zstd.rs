//! What Zstandard does and no safe wrapper lets one ask for: a dictionary trained with parameters
//! of one's own.
//!
//! Zstandard itself is portable, and so is this module.

use std::ffi::{c_int, c_uint};
use zstd::zstd_safe::zstd_sys as z;

/// How a dictionary is trained. What stands in many samples is found by counting runs of a few
/// bytes, and segments with the most frequent of them make the dictionary (Liao, Petri, Moffat and
/// Wirth 2016, as Zstandard's `fastCover` does it).
#[derive(Debug, Clone, Copy)]
pub struct Training {
    /// Bytes of a segment.
    pub segment_len: u32,
    /// Bytes of the runs that are counted, 6 or 8.
    pub run_len: u32,
    /// Runs are counted in 2^`table_log` places, at most 31; six bytes each.
    pub table_log: u32,
    /// Level of the frames that the dictionary's tables of symbols are made for.
    pub level: i32,
}

/// A dictionary of at most `len_max` bytes for what is like `samples`, which stand in a row and
/// have `lens` bytes each. None where Zstandard finds too little to learn, lacks memory, or `lens`
/// are not those of `samples`.
///
/// # Cost
/// About a second for 30 MiB; memory: `len_max`, 6 bytes for each of the counts, and less than a
/// mebibyte.
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
    // SAFETY: `dictionary` has `len_max` bytes, `lens` has `count` lengths whose sum is the length
    // of `samples`; Zstandard reads and writes them in this call only.
    let made_len = unsafe {
        z::ZDICT_trainFromBuffer_fastCover(
            dictionary.as_mut_ptr().cast(),
            dictionary.len(),
            samples.as_ptr().cast(),
            lens.as_ptr(),
            count,
            parameters,
        )
    };
    // SAFETY: it looks at the number alone.
    let is_error = unsafe { z::ZDICT_isError(made_len) } != 0;
    if is_error || made_len == 0 {
        return None;
    }
    dictionary.truncate(made_len);
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

    /// Would catch: lengths or pointers that are mixed up, so that what the samples share is not in
    /// the dictionary.
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

    /// Would catch: reading past the samples where a caller counts wrong, and a dictionary of
    /// nothing.
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
