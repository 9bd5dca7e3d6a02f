//! Groups the extents of a read by block, so that each block is requested once.
//!
//! A file that resembles others has an extent every few hundred bytes, and these point back and
//! forth between a few blocks. In file order, the first extent of a block would decode its front
//! and a later one the whole block, and each would cost a lookup in the index and in the cache.

use super::extent_map::ExtentMap;
use std::ops::{ControlFlow, Range};
use weald_format::Result;
use weald_format::pages::Source;

/// Bytes and extents that are grouped together: a request of the kernel has at most 1 MiB, and a
/// hostile image may have an extent for every byte of it.
const GROUPED_LEN_MAX: u64 = 1 << 20;
const PART_COUNT_MAX: usize = 4096;

/// The part of an extent that a read requests. Holes have none.
#[derive(Clone, Copy)]
pub struct ExtentPart<'a> {
    /// The stream, as the image numbers it that is read.
    pub stream: u8,
    /// The map of the image that has the bytes.
    pub owner: &'a ExtentMap,
    /// Number of the stream in that image.
    pub owner_stream: u8,
    /// Address of the first byte.
    pub address: u64,
    /// Requested bytes.
    pub len: u64,
    /// Bytes from `address` to the end of the extent.
    pub extent_len: u64,
    /// Offset of the first byte in the window.
    pub at: usize,
}

impl ExtentPart<'_> {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.len)
    }

    /// Drops the bytes before address `end`; returns whether any byte remains.
    fn skip_to(&mut self, end: u64) -> bool {
        let skipped = end.saturating_sub(self.address);
        self.address = self.address.saturating_add(skipped);
        self.len = self.len.saturating_sub(skipped);
        self.extent_len = self.extent_len.saturating_sub(skipped);
        self.at = self.at.saturating_add(skipped as usize);
        self.len > 0
    }
}

/// The first extents of a read.
pub struct Window<'a> {
    /// Bytes of the read that the window covers, holes included.
    pub len: u64,
    parts: Vec<ExtentPart<'a>>,
}

/// The parts whose first bytes one block has, or one recipe makes.
pub struct Group<'g, 'a> {
    /// The parts, all of the same stream, in the order of their addresses. The bytes that they
    /// request behind this block are in a later group.
    pub parts: &'g [ExtentPart<'a>],
    /// The stream, as the image numbers it that is read.
    pub stream: u8,
    /// The map of the image that has the bytes.
    pub owner: &'a ExtentMap,
    /// Number of the stream in that image.
    pub owner_stream: u8,
    /// Addresses from the first to the last requested byte of the block.
    pub requested: Range<u64>,
    /// End of the longest extent, in this block or behind it.
    pub extent_end: u64,
}

impl<'a> Window<'a> {
    /// The first extents of logical bytes `range` of `map`. `Part::extent_len` counts the bytes of
    /// an extent up to `seen_end`.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of extents and of the index.
    pub fn new(map: &'a ExtentMap, range: Range<u64>, seen_end: u64) -> Result<Self> {
        let (mut len, mut parts) = (0u64, Vec::new());
        let window_len = range.end.saturating_sub(range.start).min(GROUPED_LEN_MAX);
        map.each_extent(range.start..seen_end, &mut |at, extent| {
            let at = at.saturating_sub(range.start);
            if at >= window_len || parts.len() >= PART_COUNT_MAX {
                return Ok(ControlFlow::Break(()));
            }
            let here = extent.len.min(window_len.saturating_sub(at));
            len = at.saturating_add(here);
            if let Source::Stream { stream, address } = extent.source {
                let (owner, owner_stream) = map.owner_of(stream);
                parts.push(ExtentPart {
                    stream,
                    owner,
                    owner_stream,
                    address,
                    len: here,
                    extent_len: extent.len,
                    at: at as usize,
                });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Self { len, parts })
    }

    /// Bytes that extents of data cover.
    pub fn data_len(&self) -> u64 {
        let lens = self.parts.iter().map(|part| part.len);
        lens.fold(0, u64::saturating_add)
    }

    /// Visits the groups of the window.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index, and those of `visit`.
    pub fn each_group(mut self, visit: &mut dyn FnMut(Group<'_, 'a>) -> Result<()>) -> Result<()> {
        let position =
            |part: &ExtentPart<'_>| (part.owner.address(), part.owner_stream, part.address);
        self.parts.sort_unstable_by_key(position);
        let mut remaining = self.parts.into_iter().peekable();
        let mut parts: Vec<ExtentPart<'a>> = Vec::new();
        loop {
            // The bytes that the previous group left begin at the end of its block, before all
            // other parts.
            if parts.is_empty() {
                parts.extend(remaining.next());
            }
            let Some(&first) = parts.first() else {
                return Ok(());
            };
            let ExtentPart {
                owner,
                owner_stream,
                address,
                ..
            } = first;
            // Every block and recipe has at least one byte; without one the loop would not end.
            let (_, piece) = owner.piece_at(owner_stream, address)?;
            let end = piece.end.max(address.saturating_add(1));
            let is_here = |part: &ExtentPart<'_>| {
                std::ptr::eq(part.owner, owner)
                    && part.owner_stream == owner_stream
                    && part.address < end
            };
            while let Some(part) = remaining.next_if(is_here) {
                parts.push(part);
            }
            let ends = parts.iter().map(ExtentPart::end);
            let extent_ends = parts.iter().map(|p| p.address.saturating_add(p.extent_len));
            let group = Group {
                stream: first.stream,
                owner,
                owner_stream,
                requested: address..ends.max().unwrap_or(end).min(end),
                extent_end: extent_ends.max().unwrap_or(end),
                parts: &parts,
            };
            visit(group)?;
            parts.retain_mut(|part| part.skip_to(end));
        }
    }
}
