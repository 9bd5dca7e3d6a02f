//! Raw access to an image, for programs that write another image or another generation from it.

use crate::cache::block::Block;
use crate::check::{computed, content_digests};
use crate::image::Image;
use crate::read::decode_cost::DecodeCost;
use crate::records::page::Page;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::container::{HEADER_LEN, RecordRef, RecordType};
use weald_format::directory::Directory;
use weald_format::pages::{Extent, Template};
use weald_format::{Attributes, ContentId, Digest, Result, XattrSet};

impl Image {
    /// The directory: streams, sections, digests.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Visits the records of a section in order, each with the number of its items; none if there
    /// is no such section.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index pages, and those of `visit`.
    pub fn each_record(
        &self,
        record_type: RecordType,
        stream: u8,
        visit: &mut dyn FnMut(&RecordRef, u64) -> Result<()>,
    ) -> Result<()> {
        for no in 0..self.records.record_count(record_type, stream) {
            let found = self.records.record(record_type, stream, no)?;
            visit(&found.record, found.item_count)?;
        }
        Ok(())
    }

    /// The verified stored bytes of a record, without its header.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn stored(&self, record: &RecordRef) -> Result<Vec<u8>> {
        let mut bytes = self.records.read_stored(record)?;
        bytes.drain(..HEADER_LEN.min(bytes.len()));
        Ok(bytes)
    }

    /// The block of `stream` that has byte `address`, and the address of its first byte. Sequential
    /// calls prefetch the next blocks.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also if the stream is shorter.
    pub fn block_at(&self, stream: u8, address: u64) -> Result<(Arc<Block>, u64)> {
        self.contents.block_at(stream, address, u64::MAX)
    }

    /// Appends the bytes of `stream` from `address` on to `bytes`: as many of `len` as the block
    /// there has, at least one. Decodes that block no further, and prefetches nothing.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also if the stream is shorter.
    pub fn append_from_block(
        &self,
        stream: u8,
        address: u64,
        len: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        (self.contents).append_from_block(stream, address, len, bytes)
    }

    /// Bytes of a stream: of its blocks, or of the output of recipes.
    pub fn stream_len(&self, stream: u8) -> u64 {
        if self.map.is_recipe_stream(stream) {
            self.records.item_count(RecordType::Recipes, 0)
        } else {
            self.records.item_count(RecordType::Data, stream)
        }
    }

    /// The logical bytes of a content, if an image with this base image may refer to them: that is,
    /// if no base image of this one has the extents.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also if there is no such content.
    pub fn own_range_of(&self, id: ContentId) -> Result<Option<Range<u64>>> {
        let (start, len) = self.map.range_of(id)?;
        let range = start..start.saturating_add(len);
        let has_runs = self.records.has_base_runs(range.clone())?;
        Ok((!has_runs).then_some(range))
    }

    /// Visits the extents of a content in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_extent_of(
        &self,
        id: ContentId,
        visit: &mut dyn FnMut(Extent) -> Result<()>,
    ) -> Result<()> {
        let (start, len) = self.map.range_of(id)?;
        let range = start..start.saturating_add(len);
        self.map.each_extent(range, &mut |_, extent| {
            visit(extent)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The base image that has the bytes of `stream`, and the number of the stream there; `None` if
    /// this image has them.
    pub fn base_of(&self, stream: u8) -> Option<(Arc<Self>, u8)> {
        let base = self.base_streams.get(usize::from(stream))?;
        let (image, stream) = base.as_ref()?;
        let deeper = image.base_of(*stream);
        Some(deeper.unwrap_or_else(|| (image.clone(), *stream)))
    }

    /// Whether recipes of this image or of a base image make the bytes of `stream`.
    pub fn has_recipe_output(&self, stream: u8) -> bool {
        self.map.has_recipe_output(stream)
    }

    /// The digests of all contents, as they enter the tree digest, computed by `threads` threads.
    ///
    /// # Errors
    /// `Io`, `Corrupt`: the first error.
    /// # Cost
    /// Decodes every content; 32 bytes of memory each.
    pub fn content_digests(&self, threads: usize) -> Result<Vec<Digest>> {
        content_digests::digests(self, threads)
    }

    /// The digests of the contents that `is_wanted` says, by number; `None` for the others.
    ///
    /// # Errors
    /// `Io`, `Corrupt`: the first error.
    /// # Cost
    /// Decodes those contents; 32 bytes of memory for each content.
    pub fn content_digests_of(
        &self,
        is_wanted: &[bool],
        threads: usize,
    ) -> Result<Vec<Option<Digest>>> {
        content_digests::digests_of(self, is_wanted, threads)
    }

    /// The tree digest, computed from the tree and from `contents`, the digests of all contents
    /// ([`Image::content_digests`]). The one in [`Image::summary`] is what the image claims.
    ///
    /// # Errors
    /// `Io`; `Corrupt` for the first rule that the tree breaks.
    /// # Cost
    /// Reads the metadata.
    pub fn computed_tree_digest(&self, contents: &[Digest]) -> Result<Digest> {
        let contents: Vec<_> = contents.iter().copied().map(Some).collect();
        computed::compute(self, &contents)
    }

    /// The contents that the recipes for content `id` read, if recipes make any of it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn recipe_inputs_of(&self, id: ContentId) -> Result<Vec<ContentId>> {
        let mut inputs = Vec::new();
        content_digests::each_source(self, id, &mut |stream, mut range| {
            while self.map.is_recipe_stream(stream) && range.start < range.end {
                let found = self.map.recipe_at(range.start)?;
                let recipe = found.recipe()?;
                inputs.push(recipe.plain);
                range.start = found.first.saturating_add(recipe.len);
            }
            Ok(())
        })?;
        Ok(inputs)
    }

    /// The contents that recipes make, partly or entirely, in ascending order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// O(contents + extents).
    pub fn contents_from_recipes(&self) -> Result<Vec<ContentId>> {
        content_digests::contents_from_recipes(self)
    }

    /// Visits all templates in ascending order; the last one holds the root.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_template(&self, visit: &mut dyn FnMut(u64, Template) -> Result<()>) -> Result<()> {
        for id in 0..=self.tree.template_count() {
            visit(id, self.tree.template(id)?)?;
        }
        Ok(())
    }

    /// All attributes in ascending order of their numbers.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn all_attributes(&self) -> Result<Vec<Attributes>> {
        let mut all = Vec::new();
        self.records
            .each_page(RecordType::Attributes, &mut |page| {
                if let Page::Attributes(page) = page {
                    all.extend_from_slice(page);
                }
                Ok(())
            })?;
        Ok(all)
    }

    /// Visits all xattr sets in ascending order of their numbers.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_xattr_set(&self, visit: &mut dyn FnMut(&XattrSet)) -> Result<()> {
        self.records.each_page(RecordType::Xattrs, &mut |page| {
            if let Page::Xattrs(sets) = page {
                sets.iter().for_each(|set| visit(set));
            }
            Ok(())
        })
    }

    /// The dictionary of metadata records, if the image has one.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn dictionary(&self) -> Result<Option<Vec<u8>>> {
        self.dictionary_no(0)
    }

    /// The dictionary of the blocks of `stream`, if it has one.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn stream_dictionary(&self, stream: u8) -> Result<Option<Vec<u8>>> {
        self.dictionary_no(stream.saturating_add(1))
    }

    fn dictionary_no(&self, no: u8) -> Result<Option<Vec<u8>>> {
        match self.records.record_count(RecordType::Dictionary, no) {
            0 => Ok(None),
            _ => {
                let record = self.records.record(RecordType::Dictionary, no, 0)?.record;
                self.records.read_raw(&record).map(Some)
            }
        }
    }

    /// Appends the decoded bytes of record `no` of a section, before any filter is undone, to
    /// `bytes`. Uses the cache for blocks without a filter.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also if there is no such record.
    pub fn append_decoded(
        &self,
        record_type: RecordType,
        stream: u8,
        no: u64,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        let found = self.records.record(record_type, stream, no)?;
        self.records.append_history(stream, &found, bytes)
    }

    /// Whether the image has a times overlay: mtimes apart from the templates.
    pub fn has_times_overlay(&self) -> bool {
        self.records.item_count(RecordType::Times, 0) > 0
    }

    /// The verified raw bytes of a block of `stream`. Does not use the cache.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn block(&self, stream: u8, record: &RecordRef) -> Result<Vec<u8>> {
        let mut block = self.records.read_block(stream, record)?;
        Ok(std::mem::take(block.buffer()))
    }

    /// Adds a read of bytes `range` of content `id` to `cost`; bytes behind the end of the content
    /// are ignored.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index and of extents.
    pub fn add_decode_cost(
        &self,
        id: ContentId,
        range: Range<u64>,
        cost: &mut DecodeCost,
    ) -> Result<()> {
        self.map.add_decode_cost(id, range, cost)
    }

    /// The content that has byte `at` of the concatenation of all contents, and the offset in it;
    /// `None` behind the last content.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// O(log of the number of contents) lookups in the content table.
    pub fn content_at(&self, at: u64) -> Result<Option<(ContentId, u64)>> {
        if at >= self.summary().content_len {
            return Ok(None);
        }
        let (mut first, mut end) = (0, self.summary().content_count);
        while first < end {
            let middle = first.midpoint(end);
            let (start, len) = self.map.range_of(ContentId(middle))?;
            if at < start {
                end = middle;
            } else if at >= start.saturating_add(len) {
                first = middle.saturating_add(1);
            } else {
                return Ok(Some((ContentId(middle), at.saturating_sub(start))));
            }
        }
        Ok(None)
    }
}
