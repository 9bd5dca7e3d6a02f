//! A run of samples in a file, and its pieces.

use std::ops::Range;
use weald_format::recipes::Samples;

/// Length of a piece, bytes, rounded down to whole frames. A read of one byte has to decode a
/// piece.
const FLAC_PIECE_LEN: u64 = 1 << 20;
/// Shortest piece that is worth a recipe, bytes.
const FLAC_PIECE_LEN_MIN: u64 = 4 << 10;

/// Samples of one format in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleRun {
    /// Range in the file.
    pub range: Range<u64>,
    /// Number of interleaved channels.
    pub channels: usize,
    /// Format of each sample.
    pub samples: Samples,
}

impl SampleRun {
    /// Pieces of the run, in order, without a rest that is not worth a recipe.
    pub fn pieces(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let step = (self.samples.sample_len() * self.channels) as u64;
        let piece_len = FLAC_PIECE_LEN / step * step;
        let start = self.range.start;
        let end = start + self.range.end.saturating_sub(start) / step * step;
        (start..end)
            .step_by(piece_len as usize)
            .map(move |at| at..end.min(at + piece_len))
            .filter(|piece| piece.end - piece.start >= FLAC_PIECE_LEN_MIN)
    }
}
