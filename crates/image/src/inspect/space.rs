//! Space usage: what each step of the builder saved, from the bytes of all named files to the bytes
//! of the image. Computed from the image itself.

use super::sections::SectionInfo;
use crate::image::Image;
use crate::records::page::Page;
use weald_format::container::RecordType;
use weald_format::directory::Category;
use weald_format::entries::EntryKind;
use weald_format::pages::Source;
use weald_format::{ContentId, Error, ErrorKind, Result};

/// Space usage of an image; all lengths are in bytes.
///
/// `named_len` − `shared_len` + `unnamed_len` − `hole_len` − `made_len` − `base_len` is the
/// sum of `extent_len` over all `streams`. For each stream, `extent_len` − `repeated_len` +
/// `unreferenced_len` is the raw length of its blocks. The stored bytes of all blocks,
/// `metadata_len` and `other_len` add up to `image_len`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceUsage {
    /// Lengths of the files of all names, as a walk adds them up.
    pub named_len: u64,
    /// The part of `named_len` in equal files and hard links, each stored once.
    pub shared_len: u64,
    /// Contents to which no name refers: the input of recipes, files of older generations.
    pub unnamed_len: u64,
    /// Holes.
    pub hole_len: u64,
    /// Output of recipes.
    pub made_len: u64,
    /// Data in base images.
    pub base_len: u64,
    /// Data in blocks, by stream.
    pub streams: Vec<StreamUsage>,
    /// Stored bytes of all records except blocks: tree, extents, recipes, index, directory.
    pub metadata_len: u64,
    /// Superblock, footers, and records to which this generation does not refer.
    pub other_len: u64,
    /// The whole image.
    pub image_len: u64,
}

/// Space usage of one stream of blocks; all lengths are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamUsage {
    /// Its number.
    pub no: u64,
    /// Category of its data.
    pub category: Category,
    /// Sum of the lengths of all extents that refer to it.
    pub extent_len: u64,
    /// The part of `extent_len` to which an earlier extent refers too.
    pub repeated_len: u64,
    /// Bytes of blocks to which no extent refers: padding, files that could not be read to the end.
    pub unreferenced_len: u64,
    /// Blocks, by codec.
    pub section: SectionInfo,
}

impl Image {
    /// Space usage of the image.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `Limit` if there is not enough memory.
    /// # Cost
    /// Reads all entries, contents and extents, but no data; takes one bit of memory for each
    /// content and 8 bytes for each distinct directory.
    pub fn space_usage(&self) -> Result<SpaceUsage> {
        let (named_len, distinct_len) = self.named_lens()?;
        let logical_len = self.records.item_count(RecordType::Extents, 0);
        let mut usage = SpaceUsage {
            named_len,
            shared_len: named_len.saturating_sub(distinct_len),
            unnamed_len: logical_len.saturating_sub(distinct_len),
            hole_len: 0,
            made_len: 0,
            base_len: 0,
            streams: Vec::new(),
            metadata_len: 0,
            other_len: 0,
            image_len: self.summary.image_len,
        };
        let used = self.used(&mut usage)?;
        let mut other_len = usage.image_len;
        for section in self.sections()? {
            let total = section.total();
            other_len = other_len.saturating_sub(total.stored_len);
            let is_data = section.record_type == RecordType::Data;
            let Some((no, category)) = section.stream.filter(|_| is_data) else {
                usage.metadata_len = usage.metadata_len.saturating_add(total.stored_len);
                continue;
            };
            let used = usize::try_from(no).ok().and_then(|no| used.get(no));
            let used = used.copied().unwrap_or_default();
            usage.streams.push(StreamUsage {
                no,
                category,
                extent_len: used.extent_len,
                repeated_len: used.extent_len.saturating_sub(used.fresh_len),
                unreferenced_len: total.raw_len.saturating_sub(used.fresh_len),
                section,
            });
        }
        usage.other_len = other_len;
        Ok(usage)
    }

    /// Bytes of the files of all names, and of the distinct contents to which they refer.
    fn named_lens(&self) -> Result<(u64, u64)> {
        let holder = self.tree.template_count();
        let mut counts: Vec<u64> = zeros(holder.saturating_add(1))?;
        let mut seen: Vec<u64> = zeros((self.summary.content_count / 64).saturating_add(1))?;
        if let Some(count) = counts.last_mut() {
            *count = 1;
        }
        let (mut named_len, mut distinct_len) = (0u64, 0u64);
        // A template refers only to smaller ids: all that refer to this one are counted.
        while let Some(count) = counts.pop() {
            if count == 0 {
                continue;
            }
            let template = self.tree.template(counts.len() as u64)?;
            self.each_entry_of(&template, &mut |block, place| {
                let id = block.body(place);
                match block.kind(place) {
                    EntryKind::Directory => {
                        let below = usize::try_from(id).ok().and_then(|id| counts.get_mut(id));
                        let below = below.ok_or_else(|| {
                            let what =
                                format!("template {id} does not precede the one that holds it");
                            Error::corrupt("template", 0, "F-9.4", what)
                        })?;
                        *below = below.saturating_add(count);
                    }
                    EntryKind::File => {
                        let len = self.content_len(ContentId(id))?;
                        named_len = named_len.saturating_add(len.saturating_mul(count));
                        let word = usize::try_from(id / 64).ok();
                        let word = word.and_then(|word| seen.get_mut(word));
                        let bit = 1u64.wrapping_shl((id % 64) as u32);
                        if let Some(word) = word.filter(|word| **word & bit == 0) {
                            *word |= bit;
                            distinct_len = distinct_len.saturating_add(len);
                        }
                    }
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok((named_len, distinct_len))
    }

    /// Bytes of extents in each stream of blocks; adds holes, recipes and base images to `usage`.
    fn used(&self, usage: &mut SpaceUsage) -> Result<Vec<Used>> {
        let mut all = vec![Used::default(); self.directory.streams.len()];
        self.records.each_page(RecordType::Extents, &mut |page| {
            let Page::Extents(page) = page else {
                return Ok(());
            };
            for (_, extent) in (0..page.count()).filter_map(|no| page.get(no)) {
                let elsewhere = match extent.source {
                    Source::Hole => &mut usage.hole_len,
                    Source::Stream { stream, address } => {
                        let category = self.directory.streams.get(usize::from(stream));
                        match category.map(|stream| stream.category) {
                            Some(Category::Base) => &mut usage.base_len,
                            Some(Category::Made) => &mut usage.made_len,
                            _ => {
                                if let Some(used) = all.get_mut(usize::from(stream)) {
                                    used.add(address, extent.len);
                                }
                                continue;
                            }
                        }
                    }
                };
                *elsewhere = elsewhere.saturating_add(extent.len);
            }
            Ok(())
        })?;
        Ok(all)
    }
}

/// Bytes of a stream to which the extents so far refer.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    extent_len: u64,
    fresh_len: u64,
    /// End of these bytes. Writers fill a stream in the order of the first references to it.
    head: u64,
}

impl Used {
    fn add(&mut self, address: u64, len: u64) {
        let end = address.saturating_add(len);
        let fresh_len = end.saturating_sub(self.head.max(address));
        self.extent_len = self.extent_len.saturating_add(len);
        self.fresh_len = self.fresh_len.saturating_add(fresh_len);
        self.head = self.head.max(end);
    }
}

fn zeros(count: u64) -> Result<Vec<u64>> {
    let mut zeros = Vec::new();
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    zeros.try_reserve_exact(count).map_err(|_| {
        let what = format!("not enough memory for {count} numbers");
        Error::new(ErrorKind::Limit, what)
    })?;
    zeros.resize(count, 0);
    Ok(zeros)
}
