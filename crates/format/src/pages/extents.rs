//! Extent pages: the extent map of the logical space.

use crate::column::{self, Column};
use crate::cursor::{Cursor, put_varint, unzigzag, zigzag};
use crate::limits::{BASES_MAX, EXTENTS_PER_PAGE, NUMBER_MAX, STREAMS_MAX};
use crate::{Error, Result};

/// Source of an extent's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Absent data that reads as zero.
    Hole,
    /// Raw bytes of a stream, starting at `address`.
    Stream {
        /// Stream number.
        stream: u8,
        /// Address in the stream, raw bytes.
        address: u64,
    },
}

/// An extent: a contiguous range of the logical space with one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in logical bytes, never 0.
    pub len: u64,
    /// Source of its bytes.
    pub source: Source,
}

/// An item of an extent page: an extent, or a reference to the extents of a base image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentRun {
    /// An extent.
    Own(Extent),
    /// A range of a base image's logical space: stands for the extents there, cut to the range.
    Base(BaseRun),
}

impl ExtentRun {
    /// Length in logical bytes, never 0.
    pub const fn logical_len(&self) -> u64 {
        match self {
            Self::Own(extent) => extent.len,
            Self::Base(run) => run.len,
        }
    }
}

/// A range of the logical space of a base image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseRun {
    /// Number of the base in the directory.
    pub base: u8,
    /// Start of the range, logical bytes.
    pub start: u64,
    /// Length of the range, logical bytes, never 0.
    pub len: u64,
}

/// Callback that takes the extents of a base run, in order.
pub type TakeExtent<'a> = dyn FnMut(Extent) -> Result<()> + 'a;

/// Callback that finds the extents of a base run. It translates their streams to the numbers in the
/// image on top.
pub type ResolveRun<'a> = dyn FnMut(BaseRun, &mut TakeExtent<'_>) -> Result<()> + 'a;

/// A page of up to `EXTENTS_PER_PAGE` extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentPage {
    /// Logical offset of each extent from the start of the page; the last element is the page's
    /// length.
    starts: Vec<u64>,
    sources: Vec<Source>,
    has_base_runs: bool,
}

/// The head of each stream: the address after all bytes that earlier extents refer to. An extent
/// that starts at the head needs no address.
pub type Heads = Vec<u64>;

/// Tag of the first base image in a page with this many streams.
const fn first_base_tag(stream_count: usize) -> u64 {
    (stream_count as u64).saturating_mul(2).saturating_add(1)
}

impl ExtentPage {
    /// Encodes consecutive extents. `heads` has the head of each stream; this moves the heads
    /// forward.
    pub fn encode(extents: &[Extent], heads: &mut Heads) -> Vec<u8> {
        let runs: Vec<_> = extents.iter().copied().map(ExtentRun::Own).collect();
        Self::encode_runs(&runs, heads)
    }

    /// Encodes consecutive extents, of which some are runs of base images.
    // trusted input: values of this program
    #[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects)]
    pub fn encode_runs(runs: &[ExtentRun], heads: &mut Heads) -> Vec<u8> {
        let mut out = Vec::new();
        put_varint(&mut out, runs.len() as u64);
        put_varint(&mut out, heads.len() as u64);
        heads.iter().for_each(|&h| put_varint(&mut out, h));
        let first_base = first_base_tag(heads.len());
        let (mut tags, mut steps) = (Vec::new(), Vec::new());
        let (mut expected, mut expected_start) = (0u64, 0u64);
        for run in runs {
            let extent = match run {
                ExtentRun::Own(extent) => extent,
                ExtentRun::Base(run) => {
                    tags.push(first_base + u64::from(run.base));
                    steps.push(zigzag(run.start.wrapping_sub(expected_start) as i64));
                    expected_start = run.start + run.len;
                    continue;
                }
            };
            let Source::Stream { stream, address } = extent.source else {
                tags.push(0);
                continue;
            };
            let head = &mut heads[usize::from(stream)];
            let fresh = *head == address;
            tags.push(1 + u64::from(stream) * 2 + u64::from(!fresh));
            let end = address + extent.len;
            *head = end.max(*head);
            if !fresh {
                steps.push(zigzag(address.wrapping_sub(expected) as i64));
                expected = end;
            }
        }
        column::encode(
            &mut out,
            &runs.iter().map(ExtentRun::logical_len).collect::<Vec<_>>(),
        );
        column::encode(&mut out, &tags);
        column::encode(&mut out, &steps);
        out
    }

    /// Parses a page of an image without bases.
    ///
    /// # Errors
    /// `Corrupt`, also for empty extents and unknown streams.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        Self::parse_with_bases(bytes, &mut |run, _| {
            let what = format!("extent source: there is no base image {}", run.base);
            Err(Error::corrupt("extent page", 0, "F-11.2", what))
        })
    }

    /// Parses a page; `resolve` finds the extents of base images.
    ///
    /// # Errors
    /// As [`ExtentPage::parse`], and the errors of `resolve`.
    /// # Cost
    /// Takes at most `EXTENTS_PER_PAGE` extents, even if runs stand for more.
    pub fn parse_with_bases(bytes: &[u8], resolve: &mut ResolveRun<'_>) -> Result<Self> {
        let mut cursor = Cursor::new(bytes, "extent page");
        let count = cursor.count(EXTENTS_PER_PAGE, "extent count")?;
        let stream_count = cursor.count(STREAMS_MAX, "stream count")?;
        let mut heads: Heads = (0..stream_count)
            .map(|_| cursor.bounded(NUMBER_MAX, "stream head"))
            .collect::<Result<_>>()?;
        let first_base = first_base_tag(stream_count);
        let lens = Column::decode(&mut cursor, count)?;
        let tags = Column::decode(&mut cursor, count)?;
        let step_count = tags
            .iter(count)
            .filter(|&t| has_step(t, first_base))
            .count();
        let mut page = Self {
            starts: vec![0],
            sources: Vec::with_capacity(count),
            has_base_runs: false,
        };
        let mut runs = RunDecoder {
            heads: &mut heads,
            first_base,
            steps: Column::decode(&mut cursor, step_count)?,
            step_index: 0,
            expected: 0,
            expected_start: 0,
        };
        for i in 0..count {
            let (len, tag) = (lens.get(i), tags.get(i));
            if len == 0 || page.logical_len().saturating_add(len) > NUMBER_MAX {
                return Err(cursor.error("F-11.1", format!("extent length {len}: out of range")));
            }
            let run = runs.next(tag, len);
            match run.map_err(|(rule, what)| cursor.error(rule, what))? {
                ExtentRun::Own(extent) => page.push(extent)?,
                ExtentRun::Base(run) => page.take_run(run, resolve)?,
            }
        }
        cursor.finish()?;
        Ok(page)
    }

    /// Appends an extent whose range was checked.
    fn push(&mut self, extent: Extent) -> Result<()> {
        if self.count() >= EXTENTS_PER_PAGE {
            let what = format!(
                "extents, those of base images included: expected at most {EXTENTS_PER_PAGE}"
            );
            return Err(Error::corrupt("extent page", 0, "F-11.6", what));
        }
        self.starts
            .push(self.logical_len().saturating_add(extent.len));
        self.sources.push(extent.source);
        Ok(())
    }

    fn take_run(&mut self, run: BaseRun, resolve: &mut ResolveRun<'_>) -> Result<()> {
        self.has_base_runs = true;
        let end = self.logical_len().saturating_add(run.len);
        resolve(run, &mut |extent| self.push(extent))?;
        if self.logical_len() == end {
            Ok(())
        } else {
            let what = format!(
                "run of a base image: expected extents of {} bytes in all",
                run.len
            );
            Err(Error::corrupt("extent page", 0, "F-11.6", what))
        }
    }

    /// Whether some of its extents come from a base image.
    pub const fn has_base_runs(&self) -> bool {
        self.has_base_runs
    }

    /// Extents in the page.
    pub fn count(&self) -> usize {
        self.sources.len()
    }

    /// Logical bytes of the page.
    pub fn logical_len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Index of the extent that holds logical byte `offset` of the page.
    pub fn find(&self, offset: u64) -> Option<usize> {
        let index = self
            .starts
            .partition_point(|&s| s <= offset)
            .checked_sub(1)?;
        (index < self.count()).then_some(index)
    }

    /// Logical start (from the start of the page) and extent at `index`.
    pub fn get(&self, index: usize) -> Option<(u64, Extent)> {
        let &source = self.sources.get(index)?;
        let &start = self.starts.get(index)?;
        let &end = self.starts.get(index.checked_add(1)?)?;
        Some((
            start,
            Extent {
                len: end.saturating_sub(start),
                source,
            },
        ))
    }

    /// Bytes of heap memory of the page.
    pub fn memory_len(&self) -> usize {
        self.count()
            .saturating_mul(size_of::<Source>().saturating_add(8))
    }
}

/// Whether a step follows for this tag: the extent does not start at the stream's head.
const fn has_step(tag: u64, first_base: u64) -> bool {
    (tag != 0 && tag & 1 == 0) || tag >= first_base
}

/// Decodes the tags of a page, one after the other, to extents and base runs.
struct RunDecoder<'a> {
    heads: &'a mut Heads,
    first_base: u64,
    steps: Column,
    step_index: usize,
    /// End of the last extent with a step, and end of the last base run.
    expected: u64,
    expected_start: u64,
}

/// The rule that is broken, and the message.
type Broken = (&'static str, String);

impl RunDecoder<'_> {
    fn step(&mut self) -> u64 {
        let step = unzigzag(self.steps.get(self.step_index)) as u64;
        self.step_index = self.step_index.saturating_add(1);
        step
    }

    /// Decodes the next `len` bytes with this `tag`.
    fn next(&mut self, tag: u64, len: u64) -> std::result::Result<ExtentRun, Broken> {
        let in_range = |at: u64| {
            if at.saturating_add(len) > NUMBER_MAX {
                Err(("F-11.3", "extent address out of range".to_owned()))
            } else {
                Ok(at)
            }
        };
        if tag == 0 {
            let source = Source::Hole;
            return Ok(ExtentRun::Own(Extent { len, source }));
        }
        if let Some(base) = tag.checked_sub(self.first_base) {
            let start = self.expected_start.wrapping_add(self.step());
            self.expected_start = start.wrapping_add(len);
            let base = u8::try_from(base).ok();
            let base = base.filter(|b| usize::from(*b) < BASES_MAX);
            let base =
                base.ok_or_else(|| ("F-11.2", format!("extent source {tag}: no such base")))?;
            let start = in_range(start)?;
            return Ok(ExtentRun::Base(BaseRun { base, start, len }));
        }
        let stream = tag.saturating_sub(1) / 2;
        let no_stream = || ("F-11.2", format!("extent source {tag}: no such stream"));
        let stream = u8::try_from(stream).map_err(|_| no_stream())?;
        let stepped = if has_step(tag, self.first_base) {
            Some(self.expected.wrapping_add(self.step()))
        } else {
            None
        };
        let head = self.heads.get_mut(usize::from(stream));
        let head = head.ok_or_else(no_stream)?;
        let address = stepped.unwrap_or(*head);
        let end = address.wrapping_add(len);
        if stepped.is_some() {
            self.expected = end;
        }
        *head = end.max(*head);
        let address = in_range(address)?;
        let source = Source::Stream { stream, address };
        Ok(ExtentRun::Own(Extent { len, source }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::damage::check_damaged;

    #[test]
    fn extents_round_trip() {
        let at = |stream, address, len| Extent {
            len,
            source: Source::Stream { stream, address },
        };
        let hole = Extent {
            len: 1 << 41,
            source: Source::Hole,
        };
        let extents = vec![
            at(0, 100, 10),
            at(1, 0, 7),
            at(0, 110, 5),
            at(0, 3, 9),
            at(0, 12, 9),
            hole,
            at(0, 115, 1),
            at(1, 9, 4),
            at(1, 13, 2),
        ];
        let mut heads = vec![100, 0];
        let bytes = ExtentPage::encode(&extents, &mut heads);
        // An extent two bytes beyond the head moves the head. The next extent starts at the head
        // and needs no address.
        assert_eq!(heads, [116, 15]);
        let page = ExtentPage::parse(&bytes).unwrap();
        assert_eq!(
            (0..9).map(|i| page.get(i).unwrap().1).collect::<Vec<_>>(),
            extents
        );
        assert_eq!(page.find(17), Some(2));
        assert_eq!(page.find(page.logical_len()), None);
        check_damaged(&bytes, ExtentPage::parse);
    }

    #[test]
    fn runs_of_base_images_become_their_extents() {
        let at = |stream, address, len| Extent {
            len,
            source: Source::Stream { stream, address },
        };
        let run = |base, start, len| BaseRun { base, start, len };
        let runs = [
            ExtentRun::Own(at(0, 0, 10)),
            ExtentRun::Base(run(0, 1000, 50)),
            ExtentRun::Base(run(1, 7, 20)),
            ExtentRun::Own(at(1, 3, 5)),
            ExtentRun::Base(run(0, 1050, 4)),
        ];
        let bytes = ExtentPage::encode_runs(&runs, &mut vec![0, 0]);
        // Each run resolves to two extents, the second of which is a hole. The test records the
        // requests.
        let resolve = |asked: &mut Vec<BaseRun>, bytes: &[u8]| {
            ExtentPage::parse_with_bases(bytes, &mut |run, take| {
                asked.push(run);
                take(at(1, run.start, 1))?;
                let source = Source::Hole;
                take(Extent {
                    len: run.len - 1,
                    source,
                })
            })
        };
        let mut asked = Vec::new();
        let page = resolve(&mut asked, &bytes).unwrap();
        assert_eq!(asked, [run(0, 1000, 50), run(1, 7, 20), run(0, 1050, 4)]);
        assert!(page.has_base_runs() && page.logical_len() == 89);
        assert_eq!(page.count(), 8);
        assert_eq!(page.get(6), Some((85, at(1, 1050, 1))));
        for len in 0..bytes.len() {
            assert!(resolve(&mut Vec::new(), &bytes[..len]).is_err(), "{len}");
        }
        let rule = |bytes: &[u8]| ExtentPage::parse(bytes).unwrap_err().to_string();
        assert!(rule(&bytes).contains("F-11.2"));
        // More extents than a page may have, then fewer bytes than the run says.
        let endless = ExtentPage::parse_with_bases(&bytes, &mut |run, take| loop {
            take(at(0, run.start, 1))?;
        });
        assert!(endless.unwrap_err().to_string().contains("F-11.6"));
        let short = ExtentPage::parse_with_bases(&bytes, &mut |_, take| take(at(0, 0, 1)));
        assert!(short.unwrap_err().to_string().contains("F-11.6"));
    }
}
