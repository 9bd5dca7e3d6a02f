//! The dictionary of ordinary data, learned from samples of all files before any is packed: blocks
//! are small then, and what comes first in the tree says little of the rest.
//!
//! Which samples there are follows from the files in their order, never from threads or time.

use crate::contents::is_incompressible;
use crate::machine;
use crate::plan::Plan;
use crate::read::Job;
use crate::recode::can_be_taken;
use crate::scan::ScannedTree;
use hashbrown::HashSet;
use weald_codec::{CONTENT_TRAINING_MEMORY_LEN, train_on_contents};
use weald_format::Result;
use weald_format::directory::Category;
use weald_format::limits::DICTIONARY_LEN_MAX;

/// Bytes of samples that are looked for: with a quarter of them ordinary data of the small forest
/// is 0.3% larger.
const SAMPLES_LEN: u64 = 64 << 20;
/// Most bytes of one sample.
const SAMPLE_LEN: usize = 16 << 10;
/// What is read of a file to know its kind.
const FRONT_LEN: usize = 16 << 10;
/// A dictionary takes at most this share of the files (1/512), or it would not pay.
const SHARE: u64 = 512;
/// Shorter ones are not worth their record.
const DICTIONARY_LEN_MIN: u64 = 4 << 10;
/// Pieces that are told apart by a hash end, on average, after so many bytes.
const PIECE_LEN_MEAN: u32 = 512;
/// Bytes that decide where a piece ends, and at the same time the shortest.
const PIECE_LEN_MIN: usize = 32;

/// Memory that learning takes: samples, hashes of pieces that were seen, and what the trainer
/// takes.
pub const TRAINING_LEN: u64 = SAMPLES_LEN
    + SAMPLE_LEN as u64 * 2
    + SAMPLES_LEN / PIECE_LEN_MEAN as u64 * 36
    + DICTIONARY_LEN_MAX
    + CONTENT_TRAINING_MEMORY_LEN;

/// A dictionary for the files of `jobs`, `total_len` bytes in all; none where it would not pay.
/// Files that cannot be read are met again, and reported, when they are packed. `go_on` ends the
/// work early by its error.
///
/// # Errors
/// Those of `go_on`.
/// # Cost
/// Reads up to 64 MiB of the files; one or two seconds of training; [`TRAINING_LEN`] bytes.
pub fn learn(
    tree: &ScannedTree,
    jobs: &[Job],
    total_len: u64,
    plan: &Plan,
    go_on: &dyn Fn() -> Result<()>,
) -> Result<Option<Vec<u8>>> {
    let len_max = plan.dictionary_len.min(total_len / SHARE);
    if len_max < DICTIONARY_LEN_MIN {
        return Ok(None);
    }
    let step = (total_len / (SAMPLES_LEN / SAMPLE_LEN as u64)).max(SAMPLE_LEN as u64);
    // A sample for every step is one more than steps at most.
    let room = total_len.min(SAMPLES_LEN) as usize + SAMPLE_LEN;
    let (mut samples, mut lens) = (Vec::with_capacity(room), Vec::new());
    let mut seen = HashSet::new();
    // Files stand in a row; a sample is taken where every `step`-th byte lies.
    let (mut start, mut next) = (0, step / 2);
    for job in jobs {
        let end = start + job.len;
        while next < end {
            go_on()?;
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

/// The bytes of a file around `at`; nothing where it is no ordinary data.
fn read_sample(tree: &ScannedTree, job: &Job, at: u64, plan: &Plan) -> Result<Vec<u8>> {
    let file = tree.open_file(job.entry)?;
    let mut front = Vec::new();
    file.read_front(job.len.min(FRONT_LEN as u64), &mut front)?;
    let category = machine::parts(&front).first().map(|part| part.category);
    if category != Some(Category::General)
        || can_be_taken(&front, &plan.categories)
        || is_incompressible(&front)
    {
        return Ok(Vec::new());
    }
    let len = job.len.min(SAMPLE_LEN as u64);
    let mut sample = vec![0; len as usize];
    file.read_run(&mut sample, at.min(job.len - len))?;
    Ok(sample)
}

/// `bytes` without pieces that were `seen`: versions of one file would teach what is stored once
/// anyway.
fn without_repeats(bytes: &[u8], seen: &mut HashSet<u64>) -> Vec<u8> {
    let mut fresh = Vec::with_capacity(bytes.len());
    let mut start = 0;
    let mut roll = 0u64;
    for (at, &byte) in bytes.iter().enumerate() {
        // A sum of powers in which bytes older than 64 places have left by overflow.
        roll = (roll << 1).wrapping_add(u64::from(byte).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let is_end = roll >> 32 & u64::from(PIECE_LEN_MEAN - 1) == 0;
        if (is_end && at + 1 - start >= PIECE_LEN_MIN) || at + 1 == bytes.len() {
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

    /// Would catch: samples that teach what the segmenter finds by itself.
    #[test]
    fn repeats_are_left_out_wherever_they_stand() {
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
