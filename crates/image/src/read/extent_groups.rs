//! The extents of a read in the order in which their bytes lie, so that what one block has for it
//! is asked for once.
//!
//! A file that is like others has an extent every few hundred bytes, and they lead back and forth
//! between a few blocks. Taken as they come, the first in a block would have its front decoded and
//! a later one all of it, and each would cost a look into the index and into the cache.

use crate::content::Contents;
use std::ops::{ControlFlow, Range};
use weald_format::Result;
use weald_format::pages::Source;

/// Bytes and extents that are looked at together: a request of the kernel has a mebibyte at most,
/// and an image may say of every byte of it that it lies elsewhere.
const WINDOW_LEN: u64 = 1 << 20;
const PART_COUNT_MAX: usize = 4096;

/// What a read wants of an extent. Holes have none.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// The contents that have the stream.
    pub contents: &'a Contents,
    /// The stream, one of theirs.
    pub stream: u8,
    /// Address of the first byte.
    pub address: u64,
    /// Bytes that are wanted.
    pub len: u64,
    /// Bytes that the extent goes on for, those that are wanted included.
    pub rest_len: u64,
    /// Where they stand in the window.
    pub at: usize,
}

impl Part<'_> {
    fn end(&self) -> u64 {
        self.address.saturating_add(self.len)
    }

    /// Goes on behind address `end`; whether anything is left.
    fn skip_to(&mut self, end: u64) -> bool {
        let skipped = end.saturating_sub(self.address);
        self.address = self.address.saturating_add(skipped);
        self.len = self.len.saturating_sub(skipped);
        self.rest_len = self.rest_len.saturating_sub(skipped);
        self.at = self.at.saturating_add(skipped as usize);
        self.len > 0
    }
}

/// The first bytes of a read.
pub struct Window<'a> {
    /// How many, holes included.
    pub len: u64,
    parts: Vec<Part<'a>>,
}

/// Parts of which one block, or what one recipe makes, has the first bytes.
pub struct Group<'g, 'a> {
    /// In the order of their addresses; all have the same stream. What they want behind that block
    /// comes with another group.
    pub parts: &'g [Part<'a>],
    /// Addresses from the first byte that is wanted of it to the last.
    pub wanted: Range<u64>,
    /// Where the longest of their extents ends, here or further on.
    pub rest_end: u64,
}

impl<'a> Window<'a> {
    /// The first of logical bytes `range` of `contents`; extents are told as far as they go before
    /// `seen_end`.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of extents and of the index.
    pub fn of(contents: &'a Contents, range: Range<u64>, seen_end: u64) -> Result<Self> {
        let (mut len, mut parts) = (0u64, Vec::new());
        let wanted_len = range.end.saturating_sub(range.start).min(WINDOW_LEN);
        contents.each_extent(range.start..seen_end, &mut |at, extent| {
            let at = at.saturating_sub(range.start);
            if at >= wanted_len || parts.len() >= PART_COUNT_MAX {
                return Ok(ControlFlow::Break(()));
            }
            let here = extent.len.min(wanted_len.saturating_sub(at));
            len = at.saturating_add(here);
            if let Source::Stream { stream, address } = extent.source {
                let (contents, stream) = contents.holder_of(stream);
                parts.push(Part {
                    contents,
                    stream,
                    address,
                    len: here,
                    rest_len: extent.len,
                    at: at as usize,
                });
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(Self { len, parts })
    }

    /// Visits its groups.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index, and those of `visit`.
    pub fn each_group(
        mut self,
        visit: &mut dyn FnMut(&'a Contents, u8, Group<'_, 'a>) -> Result<()>,
    ) -> Result<()> {
        // An open image stays where it is, so that its place tells it from its bases.
        let place = |part: &Part<'_>| {
            let owner = std::ptr::from_ref(part.contents).addr();
            (owner, part.stream, part.address)
        };
        self.parts.sort_unstable_by_key(place);
        let mut rest = self.parts.into_iter().peekable();
        let mut parts: Vec<Part<'a>> = Vec::new();
        loop {
            // What the group before has left begins where its block ended, and that before anything
            // else.
            if parts.is_empty() {
                parts.extend(rest.next());
            }
            let Some(&Part {
                contents,
                stream,
                address,
                ..
            }) = parts.first()
            else {
                return Ok(());
            };
            // Every record and recipe has a byte at least; without one there would be no end.
            let (_, piece) = contents.piece_at(stream, address)?;
            let end = piece.end.max(address.saturating_add(1));
            let is_here = |part: &Part<'_>| {
                std::ptr::eq(part.contents, contents) && part.stream == stream && part.address < end
            };
            while let Some(part) = rest.next_if(is_here) {
                parts.push(part);
            }
            let ends = parts.iter().map(Part::end);
            let rest_ends = parts.iter().map(|p| p.address.saturating_add(p.rest_len));
            let group = Group {
                wanted: address..ends.max().unwrap_or(end).min(end),
                rest_end: rest_ends.max().unwrap_or(end),
                parts: &parts,
            };
            visit(contents, stream, group)?;
            parts.retain_mut(|part| part.skip_to(end));
        }
    }
}
