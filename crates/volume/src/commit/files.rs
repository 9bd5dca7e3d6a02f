//! Cuts the changes of a file into pieces, at fixed borders or by content.

use super::Committer;
use super::pieces::{cut_window, kept_piece};
use super::places::is_at;
use super::work::{At, NewPiece, Work};
use crate::core::Core;
use crate::cut::{CutRun, Sink};
use crate::layer::{ContentRange, RangeMap};
use crate::options::PlantedBug;
use crate::tables::of_piece;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::ops::{ControlFlow, Range};
use weald_format::volume::{Piece, WindowPlace};
use weald_format::{Digest, Ino, Result, WindowNo};

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
        let chunk_len = core.tables.chunk_len();
        let mut windows = BTreeSet::new();
        for segment in map.all() {
            let first = WindowNo::of(segment.range.start, chunk_len);
            let last = WindowNo::of(segment.range.end - 1, chunk_len);
            if !segment.source.is_hole() {
                windows.extend(first.through(last));
                continue;
            }
            let first = WindowPlace { ino, window: first };
            core.tables.each_window(first, &mut |window, _| {
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
        let mut cut: BTreeMap<WindowNo, Vec<NewPiece>> = BTreeMap::new();
        for &window in windows.range(..=WindowNo::of(cut_start, chunk_len)) {
            let window_end = window.next().start(chunk_len);
            let range = window.start(chunk_len)..window_end.min(cut_start);
            let pieces = self.cut_range(core, work, ino, (map, &range))?;
            if window_end > cut_start {
                drop(cut.insert(window, pieces))
            } else {
                work.windows.push((WindowPlace { ino, window }, pieces))
            }
            if work.waiting_len >= ENCODED_AT_ONCE_LEN {
                self.place_runs(core, work)?;
            }
        }
        if let Some(stream) = stream {
            let first = WindowNo::of(cut_start, chunk_len);
            if let btree_map::Entry::Vacant(slot) = cut.entry(first) {
                let range = first.start(chunk_len)..cut_start;
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
            let all = all.map(|(window, pieces)| (WindowPlace { ino, window }, pieces));
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
        let base = range.start;
        let window = WindowNo::of(base, core.tables.chunk_len());
        let old = core.tables.window(WindowPlace { ino, window })?;
        let old: &[Piece] = old.as_ref().map_or(&[], |row| &row.0);
        let mut segments = Vec::new();
        let keep = |segments: &mut Vec<ContentRange>, range: Range<u64>| {
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
    windows: BTreeMap<WindowNo, Vec<NewPiece>>,
}

impl Sink for Placing<'_, '_> {
    fn push_run(&mut self, run: CutRun) -> Result<()> {
        let window_len = self.core.tables.chunk_len();
        let no = self.work.add_run(run.bytes);
        for part in run.data_ranges {
            let mut start = part.start;
            while start < part.end {
                let window = WindowNo::of(start, window_len);
                let end = part.end.min(window.next().start(window_len));
                let mut offset = (start - run.range.start) as u32;
                if self.core.has_bug(PlantedBug::RunBeginsAnew) {
                    offset = (start - part.start) as u32 % 2048;
                }
                self.windows.entry(window).or_default().push(NewPiece {
                    start: (start - window.start(window_len)) as u32,
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
