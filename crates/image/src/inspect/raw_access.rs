//! What those need who write another image from this one, or another generation behind it.

use crate::Image;
use crate::block::Block;
use crate::records::Page;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::container::{HEADER_LEN, RecordRef, RecordType};
use weald_format::directory::Directory;
use weald_format::entries::EntryBlock;
use weald_format::pages::{Extent, Template};
use weald_format::{Attributes, ContentId, Digest, Result, XattrSet};

/// What is called with an entry's block and its place in it.
pub type VisitEntryBlock<'a> = dyn FnMut(&EntryBlock, usize) -> Result<()> + 'a;

impl Image {
    /// The directory: streams, sections, identity.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Visits the records of a section in order, each with the count of its items; nothing where
    /// there is no such section.
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

    /// The stored bytes of a record, verified, without its header.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn stored(&self, record: &RecordRef) -> Result<Vec<u8>> {
        let mut bytes = self.records.read_stored(record)?;
        bytes.drain(..HEADER_LEN.min(bytes.len()));
        Ok(bytes)
    }

    /// The block of `stream` that holds `address`, and the address of its first byte; blocks behind
    /// it are read ahead.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also where the stream does not reach so far.
    pub fn block_at(&self, stream: u8, address: u64) -> Result<(Arc<Block>, u64)> {
        self.contents.block_at(stream, address, u64::MAX)
    }

    /// Bytes of a stream: of its blocks, or of what recipes make.
    pub fn stream_len(&self, stream: u8) -> u64 {
        match self.contents.is_made(stream) {
            true => self.records.item_count(RecordType::Recipes, 0),
            false => self.records.item_count(RecordType::Data, stream),
        }
    }

    /// Bytes of a content, holes included.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also where there is no such content.
    pub fn content_len(&self, id: ContentId) -> Result<u64> {
        self.contents.extent_of(id).map(|(_, len)| len)
    }

    /// Where a content lies in the logical space, if an image on top of this one may refer to it
    /// there: its extents do not stand in a base image of this one.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also where there is no such content.
    pub fn own_range_of(&self, id: ContentId) -> Result<Option<Range<u64>>> {
        let (start, len) = self.contents.extent_of(id)?;
        let range = start..start.saturating_add(len);
        let has_runs = self.records.has_base_runs(range.clone())?;
        Ok((!has_runs).then_some(range))
    }

    /// Visits what a content is made of, in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_extent_of(
        &self,
        id: ContentId,
        visit: &mut dyn FnMut(Extent) -> Result<()>,
    ) -> Result<()> {
        let (start, len) = self.contents.extent_of(id)?;
        let range = start..start.saturating_add(len);
        self.contents.each_extent(range, &mut |_, extent| {
            visit(extent)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The image and the stream there that really hold `stream`, where that is one of a base image.
    pub fn base_of(&self, stream: u8) -> Option<(Arc<Self>, u8)> {
        let (image, stream) = self.contents.base_of(stream)?;
        let deeper = image.base_of(*stream);
        Some(deeper.unwrap_or_else(|| (image.clone(), *stream)))
    }

    /// Whether recipes make the bytes of `stream`, in this image or in one below it.
    pub fn is_made(&self, stream: u8) -> bool {
        self.contents.is_made_anywhere(stream)
    }

    /// The digests of all contents, as the tree digest counts them, by many threads.
    ///
    /// # Errors
    /// `Io`, `Corrupt`: the first that was met.
    /// # Cost
    /// Decodes every content; 32 bytes of memory each.
    pub fn content_digests(&self, threads: usize) -> Result<Vec<Digest>> {
        crate::content_check::digests(self, threads)
    }

    /// The contents that recipes make, in part or whole, ascending.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// O(contents + extents).
    pub fn made_contents(&self) -> Result<Vec<ContentId>> {
        crate::content_check::made(self)
    }

    /// Visits all templates by number; the last one holds the root.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_template(&self, visit: &mut dyn FnMut(u64, Template) -> Result<()>) -> Result<()> {
        for id in 0..=self.tree.template_count() {
            visit(id, self.tree.template(id)?)?;
        }
        Ok(())
    }

    /// Visits the entries of a template in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_entry_of(
        &self,
        template: &Template,
        visit: &mut VisitEntryBlock<'_>,
    ) -> Result<()> {
        let start = template.entry_start;
        let end = start.saturating_add(template.entry_count);
        self.tree.each_entry(start, end, &mut |_, block, place| {
            visit(block, place)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// All attributes by number.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn all_attributes(&self) -> Result<Vec<Attributes>> {
        let mut all = Vec::new();
        self.each_page(RecordType::Attributes, &mut |page| {
            if let Page::Attributes(page) = page {
                all.extend_from_slice(page);
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Visits all xattr sets by number.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_xattr_set(&self, visit: &mut dyn FnMut(&XattrSet)) -> Result<()> {
        self.each_page(RecordType::Xattrs, &mut |page| {
            if let Page::Xattrs(sets) = page {
                sets.iter().for_each(|set| visit(set));
            }
            Ok(())
        })
    }

    pub(crate) fn each_page(
        &self,
        record_type: RecordType,
        visit: &mut dyn FnMut(&Page) -> Result<()>,
    ) -> Result<()> {
        for no in 0..self.records.record_count(record_type, 0) {
            let found = self.records.record(record_type, 0, no)?;
            visit(&*self.records.page(&found)?)?;
        }
        Ok(())
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

    /// What a record of a section (data: of `stream`) decodes to, before any filter is undone, past
    /// the cache.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn decoded(&self, stream: u8, record: &RecordRef) -> Result<Vec<u8>> {
        let mut raw = Vec::new();
        self.records.read_raw_into(stream, record, &mut raw)?;
        Ok(raw)
    }

    /// Whether mtimes lie beside the templates.
    pub fn has_times_overlay(&self) -> bool {
        self.records.item_count(RecordType::Times, 0) > 0
    }

    /// The raw bytes of a block of `stream`, verified, past the cache.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn block(&self, stream: u8, record: &RecordRef) -> Result<Vec<u8>> {
        let mut block = self.records.read_block(stream, record)?;
        Ok(std::mem::take(block.buffer()))
    }
}
