//! Runs of samples in files, cut into pieces that become FLAC streams where that pays.

use super::{Kind, Stream, audio, fits};
use crate::options::Categories;
use std::ops::Range;
use weald_codec::{flac, trial_len};
use weald_format::recipes::Samples;

/// Samples of one kind in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Where they lie.
    pub range: Range<u64>,
    /// How many lie in turn.
    pub channels: usize,
    /// How each lies.
    pub samples: Samples,
}

/// Bytes of a piece, less what makes whole samples: a read of one byte has to decode a piece.
const PIECE_LEN: u64 = 1 << 20;
/// Shorter pieces are not worth what a recipe takes.
const PIECE_LEN_MIN: u64 = 4 << 10;
/// The FLAC stream must be smaller than what a quick Zstandard makes of the samples by this share
/// (1/16): a strong codec comes that much lower.
const GAIN_SHARE: usize = 16;
/// The level of that.
const TRIAL_LEVEL: i32 = 3;
/// What one thread needs for a piece: the stream as it grows, the trial and its context, and the
/// samples decoded again.
pub const MEMORY_LEN: u64 = 9 << 20;

impl Run {
    /// The run cut into pieces, in order; a rest that is not worth it is left out.
    pub fn pieces(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let step = (self.samples.sample_len() * self.channels) as u64;
        let piece_len = PIECE_LEN / step * step;
        let start = self.range.start;
        let end = start + self.range.end.saturating_sub(start) / step * step;
        (start..end)
            .step_by(piece_len as usize)
            .map(move |at| at..end.min(at + piece_len))
            .filter(|piece| piece.end - piece.start >= PIECE_LEN_MIN)
    }
}

/// Whether a file that begins with `front` may hold samples.
pub fn is_sampled(front: &[u8], categories: &Categories) -> bool {
    let is_audio = categories.pcm && audio::finder(front).is_some();
    is_audio || categories.fits && fits::is_fits(front)
}

/// The runs of samples in a file that is `len` bytes long, of which `front` is there to be looked
/// at; in order, apart.
pub fn runs(front: &[u8], len: u64, categories: &Categories) -> Vec<Run> {
    if categories.fits && fits::is_fits(front) {
        return fits::runs(front, len);
    }
    let find = audio::finder(front).filter(|_| categories.pcm);
    find.and_then(|find| find(front, len)).into_iter().collect()
}

/// How to make `piece` of `run`, which holds `bytes`, and the FLAC stream; `None` where that would
/// not pay.
///
/// # Panics
/// If the stream does not decode to the piece.
pub fn take(run: &Run, piece: Range<usize>, bytes: &[u8]) -> Option<(Stream, Vec<u8>)> {
    let flac = flac::encode(bytes, run.channels, run.samples)?;
    let rival_len = trial_len(TRIAL_LEVEL, bytes).ok()?;
    if flac.len() + flac.len() / GAIN_SHARE >= rival_len.min(bytes.len()) {
        return None;
    }
    let made = flac::decode(&flac, run.samples, bytes.len());
    assert!(
        made.is_ok_and(|made| made == bytes),
        "a FLAC stream does not decode to what was encoded"
    );
    let kind = Kind::Pcm {
        channels: run.channels,
        samples: run.samples,
    };
    let stream = Stream::of_one(piece, kind, &flac, bytes);
    Some((stream, flac))
}

/// The pieces of a file in memory that are worth it, and their FLAC streams.
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
