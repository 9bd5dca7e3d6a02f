//! Trains the dictionary of ordinary data from samples of all files, before any file is compressed.
//! Blocks are small then, and the first files of the tree are not typical of the rest.
//!
//! The samples follow from the files in their order, never from threads or time.

use crate::compress::entropy::is_incompressible;
use crate::compress::instruction_set;
use crate::options::plan::Plan;
use crate::read::readers::Job;
use crate::read::recode::is_recodable;
use crate::scan::ScannedTree;
use hashbrown::HashSet;
use weald_codec::{CONTENT_TRAINING_MEMORY_LEN, train_on_contents};
use weald_format::Result;
use weald_format::directory::Category;
use weald_format::limits::DICTIONARY_LEN_MAX;

/// Total length of the samples, bytes. With a quarter of it, ordinary data of the small forest
/// becomes 0.3% larger.
const SAMPLES_LEN: u64 = 64 << 20;
/// Longest sample, bytes.
const SAMPLE_LEN: usize = 16 << 10;
/// Bytes read at the front of a file to detect its kind.
const SAMPLED_FRONT_LEN: usize = 16 << 10;
/// A dictionary takes at most this share of the files (1/512); a longer one does not pay off.
const DICTIONARY_SHARE: u64 = 512;
/// Shortest dictionary that is worth a record, bytes.
const DICTIONARY_LEN_MIN: u64 = 4 << 10;
/// Average length of the content-defined pieces that are compared for repeats, bytes.
const SAMPLE_PIECE_LEN_MEAN: u32 = 512;
/// Shortest piece, bytes. The rolling hash that ends pieces covers as many bytes.
const SAMPLE_PIECE_LEN_MIN: usize = 32;

/// Memory of training, bytes: samples, hashes of seen pieces, and the memory of the trainer.
pub const TRAINING_LEN: u64 = SAMPLES_LEN
    + SAMPLE_LEN as u64 * 2
    + SAMPLES_LEN / SAMPLE_PIECE_LEN_MEAN as u64 * 36
    + DICTIONARY_LEN_MAX
    + CONTENT_TRAINING_MEMORY_LEN;

/// Trains a dictionary for the files of `jobs`, `total_len` bytes in all; `None` if it would not
/// pay off. If a file cannot be read now, the pipeline reports that when it reads the file again.
/// `check_cancelled` is called for each sample and ends the training by its error.
///
/// # Errors
/// Those of `check_cancelled`.
/// # Cost
/// Reads up to 64 MiB of the files; one or two seconds of training; [`TRAINING_LEN`] bytes of
/// memory.
pub fn learn(
    tree: &ScannedTree,
    jobs: &[Job],
    total_len: u64,
    plan: &Plan,
    check_cancelled: &dyn Fn() -> Result<()>,
) -> Result<Option<Vec<u8>>> {
    let len_max = plan.dictionary_len.min(total_len / DICTIONARY_SHARE);
    if len_max < DICTIONARY_LEN_MIN {
        return Ok(None);
    }
    let step = (total_len / (SAMPLES_LEN / SAMPLE_LEN as u64)).max(SAMPLE_LEN as u64);
    // At most one sample per step, and one more.
    let capacity = total_len.min(SAMPLES_LEN) as usize + SAMPLE_LEN;
    let (mut samples, mut lens) = (Vec::with_capacity(capacity), Vec::new());
    let mut seen = HashSet::new();
    // The files are treated as one sequence; a sample is taken around every `step`-th byte.
    let (mut start, mut next) = (0, step / 2);
    for job in jobs {
        let end = start + job.len;
        while next < end {
            check_cancelled()?;
            let sample = read_sample(tree, job, next - start, plan).unwrap_or_default();
            let fresh = without_repeats(&sample, &mut seen);
            if !fresh.is_empty() {
                samples.extend_from_slice(&fresh);
                lens.push(fresh.len());
            }
            next += step;
        }
        start = end;
    }
    Ok(train_on_contents(&samples, &lens, len_max as usize))
}

/// Reads the bytes of a file around `at`; empty if the file is not ordinary data.
fn read_sample(tree: &ScannedTree, job: &Job, at: u64, plan: &Plan) -> Result<Vec<u8>> {
    let file = tree.open_file(job.entry)?;
    let mut front = Vec::new();
    file.read_front(job.len.min(SAMPLED_FRONT_LEN as u64), &mut front)?;
    let category = instruction_set::detect_parts(&front)
        .first()
        .map(|part| part.category);
    if category != Some(Category::General)
        || is_recodable(&front, &plan.categories)
        || is_incompressible(&front)
    {
        return Ok(Vec::new());
    }
    let len = job.len.min(SAMPLE_LEN as u64);
    let mut sample = vec![0; len as usize];
    file.read_run(&mut sample, at.min(job.len - len))?;
    Ok(sample)
}

/// Removes pieces that were `seen`. Repeats are stored only once, so the dictionary need not cover
/// them.
fn without_repeats(bytes: &[u8], seen: &mut HashSet<u64>) -> Vec<u8> {
    let mut fresh = Vec::with_capacity(bytes.len());
    let mut start = 0;
    let mut roll = 0u64;
    for (at, &byte) in bytes.iter().enumerate() {
        // A sum of powers: bytes older than 64 positions have left it by overflow.
        roll = (roll << 1).wrapping_add(u64::from(byte).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let is_end = roll >> 32 & u64::from(SAMPLE_PIECE_LEN_MEAN - 1) == 0;
        if (is_end && at + 1 - start >= SAMPLE_PIECE_LEN_MIN) || at + 1 == bytes.len() {
            let piece = &bytes[start..=at];
            let digest = blake3::hash(piece);
            let mut hash = [0; 8];
            hash.copy_from_slice(&digest.as_bytes()[..8]);
            if seen.insert(u64::from_le_bytes(hash)) {
                fresh.extend_from_slice(piece);
            }
            start = at + 1;
        }
    }
    fresh
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: samples that teach repeats, which the segmenter finds itself.
    #[test]
    fn repeats_are_left_out_of_samples_at_any_offset() {
        let mut noise = vec![0; 40_000];
        blake3::Hasher::new().finalize_xof().fill(&mut noise);
        let mut seen = HashSet::new();
        assert_eq!(without_repeats(&noise, &mut seen), noise);
        assert_eq!(without_repeats(&noise, &mut seen), b"");
        let shifted = [b"something new in front", &noise[100..]].concat();
        let fresh = without_repeats(&shifted, &mut seen);
        assert!(!fresh.is_empty() && fresh.len() < 8000, "{}", fresh.len());
    }
}
