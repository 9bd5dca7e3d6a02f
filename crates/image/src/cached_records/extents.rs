//! Extents: those that pages list, and those of base images to which runs in the pages refer.

use super::records::CachedRecords;
use crate::records::page::Page;
use std::ops::{ControlFlow, Range};
use weald_format::container::RecordType;
use weald_format::pages::{BaseRun, Extent, ExtentPage, Source, TakeExtent};
use weald_format::{Error, Result};

/// Called with the logical byte at which an extent begins, and the extent.
type Visit<'a> = dyn FnMut(u64, Extent) -> Result<ControlFlow<()>> + 'a;

fn bad(rule: &'static str, what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::corrupt("content", 0, rule, what)
}

impl CachedRecords {
    /// Visits the extents that cover logical bytes `range`, each cut to the range.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_extent(&self, range: Range<u64>, visit: &mut Visit<'_>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let found = self.record_of_item(RecordType::Extents, 0, at)?;
            let page = self.page(&found)?;
            let Page::Extents(page) = &*page else {
                return Err(bad("F-11.4", "no extent page"));
            };
            let in_page = at.saturating_sub(found.first_item);
            let first = page
                .find(in_page)
                .ok_or_else(|| bad("F-11.4", format!("no extent for byte {at}")))?;
            for index in first..page.count() {
                if at >= range.end {
                    break;
                }
                let Some((start, extent)) = page.get(index) else {
                    break;
                };
                let start = found.first_item.saturating_add(start);
                let cut = cut(start, extent, at..range.end);
                if visit(at, cut)?.is_break() {
                    return Ok(());
                }
                at = at.saturating_add(cut.len);
            }
        }
        Ok(())
    }

    /// Whether the extent pages of logical bytes `range` have runs of base images.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn has_base_runs(&self, range: Range<u64>) -> Result<bool> {
        let mut at = range.start;
        while at < range.end {
            let found = self.record_of_item(RecordType::Extents, 0, at)?;
            match &*self.page(&found)? {
                Page::Extents(page) if !page.has_base_runs() => {}
                _ => return Ok(true),
            }
            // Every record has at least one item; without one the loop would not end.
            let next = found.first_item.saturating_add(found.item_count);
            at = next.max(at.saturating_add(1));
        }
        Ok(false)
    }

    pub(super) fn parse_extents(&self, raw: &[u8]) -> Result<ExtentPage> {
        ExtentPage::parse_with_bases(raw, &mut |run, take| self.take_base_run(run, take))
    }

    /// Passes the extents of a run to `take`. The pages that list them must have no runs, so that a
    /// page leads to no more other pages than it has extents.
    fn take_base_run(&self, run: BaseRun, take: &mut TakeExtent<'_>) -> Result<()> {
        let no_base = || bad("F-11.2", format!("there is no base image {}", run.base));
        let streams = self.base_streams.iter().enumerate();
        let mut streams = streams.filter_map(|(no, stream)| Some((no, stream.as_ref()?)));
        // The streams of a base are consecutive and begin with its stream 0.
        let is_first = |(_, (_, stream)): &(usize, &(_, u8))| *stream == 0;
        let skipped = (0..run.base).try_for_each(|_| streams.find(is_first).map(|_| ()));
        let (first, (records, _)) = skipped
            .and_then(|()| streams.find(is_first))
            .ok_or_else(no_base)?;
        let others = streams.take_while(|(_, (_, stream))| *stream != 0);
        let streams: Vec<usize> = std::iter::once(first)
            .chain(others.map(|(no, _)| no))
            .collect();
        let range = run.start..run.start.saturating_add(run.len);
        if records.has_base_runs(range.clone())? {
            let what = "a run of a base image whose extents are in that image's own base images";
            return Err(bad("F-22.3", what));
        }
        records.each_extent(range, &mut |_, mut extent| {
            if let Source::Stream { stream, .. } = &mut extent.source {
                let here = streams.get(usize::from(*stream));
                *stream = here
                    .and_then(|no| u8::try_from(*no).ok())
                    .ok_or_else(no_base)?;
            }
            take(extent)?;
            Ok(ControlFlow::Continue(()))
        })
    }
}

/// The part of `extent`, which begins at logical `start`, that lies in `range`.
fn cut(start: u64, extent: Extent, range: Range<u64>) -> Extent {
    let skip = range.start.saturating_sub(start);
    let end = start.saturating_add(extent.len).min(range.end);
    let source = match extent.source {
        Source::Stream { stream, address } => Source::Stream {
            stream,
            address: address.saturating_add(skip),
        },
        Source::Hole => Source::Hole,
    };
    Extent {
        len: end.saturating_sub(range.start),
        source,
    }
}
