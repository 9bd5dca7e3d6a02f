//! Cuts the changes of a file into pieces, at fixed borders or by content.

use super::Committer;
use super::pieces::{cut_window, kept_piece};
use super::places::is_at;
use super::work::{At, NewPiece, Work};
use crate::core::Core;
use crate::cut::{Run, Sink};
use crate::layer::{RangeMap, Segment};
use crate::options::PlantedBug;
use crate::tables::of_piece;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::{ControlFlow, Range};
use weald_format::volume::Piece;
use weald_format::{Digest, Ino, Result};

/// Bytes that the threads of a commit hash and encode at a time.
pub(super) const ENCODED_AT_ONCE_LEN: u64 = 8 << 20;

impl Committer {
    /// Cuts the changed windows of a file into pieces.
    pub(super) fn cut_file(
        &mut self,
        core: &Core,
        work: &mut Work<'_>,
        ino: Ino,
        map: &RangeMap,
    ) -> Result<()> {
        let chunk = u64::from(core.tables.chunk_len());
        let mut windows = BTreeSet::new();
        for segment in map.all() {
            let (first, last) = (segment.range.start / chunk, (segment.range.end - 1) / chunk);
            if !segment.source.is_hole() {
                windows.extend(first..=last);
                continue;
            }
            core.tables.each_window(ino, first, &mut |window, _| {
                if window > last {
                    return ControlFlow::Break(());
                }
                windows.insert(window);
                ControlFlow::Continue(())
            })?;
        }
        let mut cuts = std::mem::take(&mut self.cuts);
        let stream = cuts.stream(core, work.rules, ino, map)?;
        let cut_start = stream.as_ref().map_or(u64::MAX, |stream| stream.start());
        // The window in which the cutting begins keeps what lies in front.
        let mut cut: BTreeMap<u64, Vec<NewPiece>> = BTreeMap::new();
        for window in windows.range(..=cut_start / chunk) {
            let window_end = window.saturating_add(1).saturating_mul(chunk);
            let range = window * chunk..window_end.min(cut_start);
            let pieces = self.cut_range(core, work, ino, (map, &range))?;
            if window_end > cut_start {
                drop(cut.insert(*window, pieces))
            } else {
                work.windows.push((ino, *window, pieces))
            }
            if work.waiting_len >= ENCODED_AT_ONCE_LEN {
                self.place_runs(core, work)?;
            }
        }
        if let Some(stream) = stream {
            let first = cut_start / chunk;
            if let btree_map::Entry::Vacant(slot) = cut.entry(first) {
                let range = first * chunk..cut_start;
                slot.insert(self.cut_range(core, work, ino, (map, &range))?);
            }
            for window in windows.range(first..) {
                cut.entry(*window).or_default();
            }
            let mut placing = Placing {
                committer: self,
                core,
                work,
                windows: cut,
            };
            cuts.cut(&stream, &mut placing)?;
            let all = placing.windows.into_iter();
            let all = all.map(|(window, pieces)| (ino, window, pieces));
            work.windows.extend(all);
        }
        self.cuts = cuts;
        Ok(())
    }

    /// Cuts the changed range of a file, a window or the beginning of one, into pieces.
    fn cut_range(
        &mut self,
        core: &Core,
        work: &mut Work<'_>,
        ino: Ino,
        (map, range): (&RangeMap, &Range<u64>),
    ) -> Result<Vec<NewPiece>> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let chunk = u64::from(core.tables.chunk_len());
        let (window, base) = (range.start / chunk, range.start);
        let old = core.tables.window(ino, window)?;
        let old: &[Piece] = old.as_ref().map_or(&[], |row| &row.0);
        let mut segments = Vec::new();
        let keep = |segments: &mut Vec<Segment>, range: Range<u64>| {
            for piece in old.iter().filter(|_| !range.is_empty()) {
                let segment = of_piece(base, piece);
                if segment.range.start < range.end && segment.range.end > range.start {
                    segments.push(segment.within(&range));
                }
            }
        };
        let mut at = range.start;
        for segment in map.within(range) {
            keep(&mut segments, at..segment.range.start);
            at = segment.range.end;
            if !segment.source.is_hole() {
                segments.push(segment);
            }
        }
        let is_kept = at == range.start;
        keep(&mut segments, at..range.end);
        if is_kept {
            Ok(segments
                .iter()
                .filter_map(|s| kept_piece(base, s))
                .collect())
        } else {
            cut_window(core, work, base, &segments)
        }
    }
}

/// Gives places to the runs of one file.
struct Placing<'a, 'w> {
    committer: &'a mut Committer,
    core: &'a Core,
    work: &'a mut Work<'w>,
    /// The pieces so far, by window.
    windows: BTreeMap<u64, Vec<NewPiece>>,
}

impl Sink for Placing<'_, '_> {
    fn push_run(&mut self, run: Run) -> Result<()> {
        let window_len = u64::from(self.core.tables.chunk_len());
        let no = self.work.add_run(run.bytes);
        for part in run.data_ranges {
            let mut start = part.start;
            while start < part.end {
                let window = start / window_len;
                let end = part.end.min((window + 1) * window_len);
                let mut offset = (start - run.range.start) as u32;
                if self.core.has_bug(PlantedBug::RunBeginsAnew) {
                    offset = (start - part.start) as u32 % 2048;
                }
                self.windows.entry(window).or_default().push(NewPiece {
                    start: (start % window_len) as u32,
                    len: (end - start) as u32,
                    at: At::Run(no, offset),
                    begins_run: true,
                });
                start = end;
            }
        }
        if self.work.waiting_len >= ENCODED_AT_ONCE_LEN {
            self.committer.place_runs(self.core, self.work)
        } else {
            Ok(())
        }
    }

    fn is_known(&mut self, bytes: &[u8]) -> bool {
        let digest = Digest::of(bytes);
        let mut run_places = self.committer.index.candidates(&digest);
        run_places.any(|place| is_at(self.core, place, bytes))
            || self.work.known.contains_key(&digest)
    }
}
