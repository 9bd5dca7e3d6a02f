//! Splits runs of samples into pieces and encodes these as FLAC if that pays off.

use super::sample_run::SampleRun;
use super::stream::{Kind, Stream};
use super::{audio, fits};
use crate::options::Categories;
use std::ops::Range;
use weald_codec::{flac, trial_len};

/// The FLAC stream must be smaller than the result of a fast Zstandard level by this share (1/16),
/// because a strong codec gains about as much.
const FLAC_GAIN_SHARE: usize = 16;
/// Level of that Zstandard trial.
const SAMPLES_TRIAL_LEVEL: i32 = 3;
/// Memory of one thread, bytes: the growing stream, the trial with its context, and the samples
/// decoded again.
pub const PCM_MEMORY_LEN: u64 = 9 << 20;

/// Whether a file that begins with `front` may hold samples.
pub fn is_sampled(front: &[u8], categories: &Categories) -> bool {
    let is_audio = categories.pcm && audio::finder(front).is_some();
    is_audio || categories.fits && fits::is_fits(front)
}

/// Finds the runs of samples in a file of `len` bytes from its first bytes, `front`; ascending and
/// disjoint.
pub fn runs(front: &[u8], len: u64, categories: &Categories) -> Vec<SampleRun> {
    if categories.fits && fits::is_fits(front) {
        return fits::runs(front, len);
    }
    let find = audio::finder(front).filter(|_| categories.pcm);
    find.and_then(|find| find(front, len)).into_iter().collect()
}

/// Encodes `piece` of `run`, whose data is `bytes`. Returns the stream and its FLAC data; `None` if
/// that does not pay off.
///
/// # Panics
/// If the FLAC stream does not decode to `bytes`.
pub fn take(run: &SampleRun, piece: Range<usize>, bytes: &[u8]) -> Option<(Stream, Vec<u8>)> {
    let flac = flac::encode(bytes, run.channels, run.samples)?;
    let rival_len = trial_len(SAMPLES_TRIAL_LEVEL, bytes).ok()?;
    if flac.len() + flac.len() / FLAC_GAIN_SHARE >= rival_len.min(bytes.len()) {
        return None;
    }
    let made = flac::decode(&flac, run.samples, bytes.len());
    assert!(
        made.is_ok_and(|made| made == bytes),
        "a FLAC stream does not decode to its samples"
    );
    let kind = Kind::Pcm {
        channels: run.channels,
        samples: run.samples,
    };
    let stream = Stream::from_one_recipe(piece, kind, &flac, bytes);
    Some((stream, flac))
}

/// Finds the pieces of a file in memory that gain enough, with their FLAC streams.
pub fn streams(data: &[u8], categories: &Categories) -> Vec<(Stream, Option<Vec<u8>>)> {
    let mut streams = Vec::new();
    for run in runs(data, data.len() as u64, categories) {
        for piece in run.pieces() {
            let piece = piece.start as usize..piece.end as usize;
            let taken = take(&run, piece.clone(), &data[piece]);
            streams.extend(taken.map(|(stream, flac)| (stream, Some(flac))));
        }
    }
    streams
}
