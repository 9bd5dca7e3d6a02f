//! Cuts files that were written in order by their content: archives at the borders of their
//! members, other files at borders that their bytes choose.
//! `docs/design/0028-cutting-by-content.md` has the reasons.
//!
//! From bottom to top: `region` (the bytes that are cut), `archive` (headers), `runs` (where the
//! borders lie), this module (which files are cut, and from where).

mod archive;
mod region;
mod runs;

pub use archive::Format;
#[cfg(test)]
pub use archive::{archive, header as tar_header};
pub use region::Bytes;
pub use runs::{CutRun, Sink};

use crate::core::Core;
use crate::layer::{RangeContent, RangeMap};
use crate::options::Chunking;
use crate::options::PlantedBug;
use crate::properties::Rules;
use archive::HEADER_LEN_MAX;
use region::Region;
use runs::{Cutter, Position, run_len_max, run_len_min};
use std::collections::BTreeMap;
use weald_format::volume::WindowPlace;
use weald_format::{Ino, Result, WindowNo};

/// Archives whose position is kept between commits.
const ARCHIVE_POSITIONS_MAX: usize = 256;

/// The end of a file that a commit cuts by content.
#[derive(Debug)]
pub struct Stream<'a> {
    region: Region<'a>,
    position: Position,
    rules: Rules,
    ino: Ino,
}

impl Stream<'_> {
    /// The first byte that is cut.
    pub fn start(&self) -> u64 {
        self.region.start()
    }
}

/// Knowledge of one mount's commits about files that are being written.
#[derive(Debug, Default)]
pub struct Cuts {
    /// Where the cutting of an archive goes on, by inode.
    positions: BTreeMap<Ino, Position>,
}

impl Cuts {
    /// The end of the file `ino` to cut by content; `None` if its rules, its content or the order
    /// of its writes exclude it. `map` has its changes.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn stream<'a>(
        &mut self,
        core: &'a Core,
        rules: Rules,
        ino: Ino,
        map: &RangeMap,
    ) -> Result<Option<Stream<'a>>> {
        if rules.chunking == Chunking::Fixed || !rules.finds_repeats {
            return Ok(None);
        }
        let old = core.tables.inode(ino)?.map_or(0, |row| row.size);
        let Some((first, end)) = written_in_order(map, old) else {
            return Ok(None);
        };
        let format = archive_format(core, ino, map)?;
        if rules.chunking == Chunking::Auto && format.is_none() {
            return Ok(None);
        }
        let position = match format {
            Some(format) => self.archive_position(core, rules, (ino, format), first)?,
            None => Position::Plain(tail_start(core, ino, first, run_len_min(rules))?),
        };
        let start = position.start();
        let whole_len = match format {
            Some(_) => rules.chunk_len.into(),
            None => run_len_max(rules),
        };
        // A file that grows by little is cut again once that much was added.
        if end - first < first - start && end - start < whole_len {
            return Ok(None);
        }
        let mut region = Region::new(core, ino, map, start..end)?;
        if core.has_bug(PlantedBug::TailOfRunLost) {
            region.forget_before(first);
        }
        region.finish();
        // A damaged tail stays where it is: it must not stop the commit.
        if let Err(error) = region.view(start..first, &mut Vec::new()) {
            log::warn!("the end of inode {ino} is not cut again: {error}");
            return Ok(None);
        }
        Ok(Some(Stream {
            region,
            position,
            rules,
            ino,
        }))
    }

    /// Where the cutting of an archive goes on whose bytes from `first` on are new.
    fn archive_position(
        &mut self,
        core: &Core,
        rules: Rules,
        (ino, format): (Ino, Format),
        first: u64,
    ) -> Result<Position> {
        if first == 0 {
            return Ok(Position::Header {
                format,
                from: 0,
                at: format.first(),
            });
        }
        let tail_len_max = 2 * u64::from(rules.chunk_len);
        if let Some(position) = self.positions.get(&ino) {
            let start = position.start();
            if start <= first && first - start <= tail_len_max {
                return Ok(*position);
            }
        }
        // The next header is found by its checksum, if it has one.
        let from = tail_start(core, ino, first, 0)?;
        let at = from.next_multiple_of(format.align());
        Ok(Position::Header { format, from, at })
    }

    /// Cuts a stream and gives its runs to `sink`, in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `sink`.
    pub fn cut(&mut self, stream: &Stream<'_>, sink: &mut dyn Sink) -> Result<()> {
        let mut cutter = Cutter::new(&stream.region, stream.rules, sink);
        let position = cutter.cut(stream.position)?;
        if matches!(position, Position::Plain(_)) {
            return Ok(());
        }
        if self.positions.len() >= ARCHIVE_POSITIONS_MAX
            && !self.positions.contains_key(&stream.ino)
        {
            self.positions.pop_first();
        }
        self.positions.insert(stream.ino, position);
        Ok(())
    }
}

/// The format of a file whose first bytes are a header of an archive.
fn archive_format(core: &Core, ino: Ino, map: &RangeMap) -> Result<Option<Format>> {
    let mut region = Region::new(core, ino, map, 0..HEADER_LEN_MAX)?;
    region.finish();
    let mut scratch = Vec::new();
    // A damaged file is no archive.
    let head = region.view(0..HEADER_LEN_MAX, &mut scratch);
    Ok(head.ok().and_then(Format::of))
}

/// The range of a file of `old` bytes that was written anew: from its first byte to the end of the
/// last written ones. `None` if nothing was written there, or if other files share it.
fn written_in_order(map: &RangeMap, old: u64) -> Option<(u64, u64)> {
    let (mut first, mut last) = (old, 0);
    for segment in map.within(&(0..old)) {
        if segment.range.start != last || first == old {
            first = segment.range.start;
        }
        last = segment.range.end;
    }
    if last != old {
        first = old;
    }
    let mut end = None;
    for segment in map.within(&(first..u64::MAX)) {
        match segment.source {
            RangeContent::Bytes(..) => end = Some(segment.range.end),
            RangeContent::Hole => {}
            RangeContent::Block(..) => return None,
        }
    }
    end.map(|end| (first, end))
}

/// The start of the run of committed bytes that ends at `end`, as the rows have it. Runs shorter
/// than `short_len` in front of it are no complete ones and belong to it.
fn tail_start(core: &Core, ino: Ino, end: u64, short_len: u64) -> Result<u64> {
    let chunk_len = core.tables.chunk_len();
    let window_len = u64::from(chunk_len);
    let mut start = end;
    // The block and the offset in it at `start`.
    let mut place = None;
    while start > 0 && end - start < window_len {
        let window = WindowNo::of(start - 1, chunk_len);
        let base = window.start(chunk_len);
        let Some(row) = core.tables.window(WindowPlace { ino, window })? else {
            break;
        };
        let before = row.0.iter().rfind(|p| base + u64::from(p.start) < start);
        let Some(piece) = before.filter(|p| base + u64::from(p.end()) >= start) else {
            break;
        };
        let len = start - base - u64::from(piece.start);
        // A run that crosses the border of a window has a piece on both sides.
        let is_same_run = start.is_multiple_of(window_len)
            && place.is_some_and(|place| place == (piece.block, u64::from(piece.offset) + len));
        if place.is_some() && !is_same_run && len >= short_len {
            break;
        }
        start -= len;
        place = Some((piece.block, piece.offset.into()));
    }
    Ok(start)
}
