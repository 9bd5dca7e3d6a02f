//! Cuts the content of one window into pieces.

use super::work::{At, NewPiece, Work};
use crate::core::Core;
use crate::cut::Bytes;
use crate::layer::{ContentRange, RangeContent};
use weald_format::Result;

/// Number of pieces of a window beyond which its content is read and written again.
const SCATTERED_PIECES_MAX: usize = 32;

/// The piece of the window at `base` that stays as it is.
pub(super) fn kept_piece(base: u64, segment: &ContentRange) -> Option<NewPiece> {
    let RangeContent::Block(id, offset) = segment.source else {
        return None;
    };
    Some(NewPiece {
        start: (segment.range.start - base) as u32,
        len: segment.len() as u32,
        at: At::Block(id, offset),
        begins_run: true,
    })
}

/// Makes pieces of the content of one window, which starts at `base`.
pub(super) fn cut_window(
    core: &Core,
    work: &mut Work<'_>,
    base: u64,
    segments: &[ContentRange],
) -> Result<Vec<NewPiece>> {
    let is_bytes = |segment: &ContentRange| matches!(segment.source, RangeContent::Bytes(..));
    let mut joined = group(segments, |a, b| is_bytes(a) && is_bytes(b));
    let chunk = work.rules.chunk_len;
    let chunks = core.tables.chunk_len() / chunk;
    if joined.len() > SCATTERED_PIECES_MAX.max(2 * chunks as usize) {
        joined = group(segments, |_, _| true);
    }
    let mut pieces = Vec::with_capacity(joined.len());
    for run in joined {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        let start = (first.range.start - base) as u32;
        let len = (last.range.end - first.range.start) as u32;
        if let (RangeContent::Block(id, offset), 1) = (&first.source, run.len()) {
            pieces.push(NewPiece {
                start,
                len,
                at: At::Block(*id, *offset),
                begins_run: false,
            });
            continue;
        }
        let (bytes, from) = match (&first.source, run.len()) {
            (RangeContent::Bytes(shared, offset), 1) => (shared.clone(), *offset),
            _ => {
                let mut bytes = Vec::with_capacity(len as usize);
                core.copy_out(run, &mut bytes)?;
                (bytes.into(), 0)
            }
        };
        let mut done = 0;
        while done < len {
            let free_len = chunk - (start + done) % chunk;
            let part = free_len.min(len - done);
            let range = from + done as usize..from + (done + part) as usize;
            let at = At::Run(work.add_run(Bytes::Shared(bytes.clone(), range)), 0);
            pieces.push(NewPiece {
                start: start + done,
                len: part,
                at,
                begins_run: false,
            });
            done += part;
        }
    }
    Ok(pieces)
}

/// Splits segments into runs without a gap whose neighbours `fit` together.
fn group(
    segments: &[ContentRange],
    fit: impl Fn(&ContentRange, &ContentRange) -> bool,
) -> Vec<&[ContentRange]> {
    segments
        .chunk_by(|a, b| a.range.end == b.range.start && fit(a, b))
        .collect()
}
