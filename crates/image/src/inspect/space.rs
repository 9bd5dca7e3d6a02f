//! What each stage of the builder saved, read from the image itself: from the bytes that names
//! stand for to the bytes of the file.

use crate::Image;
use crate::inspect::SectionInfo;
use crate::records::Page;
use weald_format::container::RecordType;
use weald_format::directory::Category;
use weald_format::entries::EntryKind;
use weald_format::pages::Source;
use weald_format::{ContentId, Error, ErrorKind, Result};

/// From names to blocks, bytes. `named_len` − `shared_len` + `unnamed_len` − `hole_len` −
/// `made_len` − `base_len` is what the extents of all `streams` hold; less their repeats and with
/// what nothing refers to it is the raw bytes of all blocks; their stored bytes, `metadata_len` and
/// `other_len` are `image_len`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stages {
    /// Lengths of the files of all names, as a walk adds them up.
    pub named_len: u64,
    /// Of these, what is there already: equal files and hard links.
    pub shared_len: u64,
    /// Contents that no name refers to: what recipes make streams of, files of older generations.
    pub unnamed_len: u64,
    /// Holes.
    pub hole_len: u64,
    /// What recipes make.
    pub made_len: u64,
    /// What lies in base images.
    pub base_len: u64,
    /// What lies in blocks, by stream.
    pub streams: Vec<StreamStages>,
    /// Stored bytes of all records but blocks: tree, extents, recipes, index, directory.
    pub metadata_len: u64,
    /// Superblock, footers, and records that this generation does not refer to.
    pub other_len: u64,
    /// The image.
    pub image_len: u64,
}

/// One stream of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamStages {
    /// Its number.
    pub no: u64,
    /// What it holds.
    pub category: Category,
    /// Bytes that extents find in it.
    pub extent_len: u64,
    /// Of these, what an extent before has found there too.
    pub repeated_len: u64,
    /// Bytes of blocks that no extent finds: padding, files that could not be read to their end.
    pub unreferenced_len: u64,
    /// Blocks, by codec.
    pub section: SectionInfo,
}

impl Image {
    /// What each stage saved.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `Limit` where memory for it cannot be had.
    /// # Cost
    /// Reads all entries, contents and extents, no data; a bit of memory a content and 8 bytes a
    /// distinct directory.
    pub fn stages(&self) -> Result<Stages> {
        let (named_len, distinct_len) = self.named_lens()?;
        let logical_len = self.records.item_count(RecordType::Extents, 0);
        let mut stages = Stages {
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
        let used = self.used(&mut stages)?;
        let mut left = stages.image_len;
        for section in self.sections()? {
            let total = section.total();
            left = left.saturating_sub(total.stored_len);
            let is_data = section.record_type == RecordType::Data;
            let Some((no, category)) = section.stream.filter(|_| is_data) else {
                stages.metadata_len = stages.metadata_len.saturating_add(total.stored_len);
                continue;
            };
            let used = usize::try_from(no).ok().and_then(|no| used.get(no));
            let used = used.copied().unwrap_or_default();
            stages.streams.push(StreamStages {
                no,
                category,
                extent_len: used.extent_len,
                repeated_len: used.extent_len.saturating_sub(used.fresh_len),
                unreferenced_len: total.raw_len.saturating_sub(used.fresh_len),
                section,
            });
        }
        stages.other_len = left;
        Ok(stages)
    }

    /// Bytes of the files of all names, and of the contents that they refer to.
    fn named_lens(&self) -> Result<(u64, u64)> {
        let holder = self.tree.template_count();
        let mut counts: Vec<u64> = zeros(holder.saturating_add(1))?;
        let mut seen: Vec<u64> = zeros((self.summary.content_count / 64).saturating_add(1))?;
        if let Some(count) = counts.last_mut() {
            *count = 1;
        }
        let (mut named_len, mut distinct_len) = (0u64, 0u64);
        // A template holds only such with smaller ids: who refers to it has been met.
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
                            let what = format!("template {id} is not before the one that holds it");
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

    /// What extents find in each stream of blocks; what they find elsewhere goes to `stages`.
    fn used(&self, stages: &mut Stages) -> Result<Vec<Used>> {
        let mut all = vec![Used::default(); self.directory.streams.len()];
        self.each_page(RecordType::Extents, &mut |page| {
            let Page::Extents(page) = page else {
                return Ok(());
            };
            for (_, extent) in (0..page.count()).filter_map(|no| page.get(no)) {
                let elsewhere = match extent.source {
                    Source::Hole => &mut stages.hole_len,
                    Source::Stream { stream, address } => {
                        let category = self.directory.streams.get(usize::from(stream));
                        match category.map(|stream| stream.category) {
                            Some(Category::Base) => &mut stages.base_len,
                            Some(Category::Made) => &mut stages.made_len,
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

/// How much of a stream extents have found.
#[derive(Debug, Clone, Copy, Default)]
struct Used {
    extent_len: u64,
    fresh_len: u64,
    /// Behind all that was found so far: writers fill streams in the order in which they are first
    /// referred to.
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
        let what = format!("no memory for {count} numbers");
        Error::new(ErrorKind::Limit, what)
    })?;
    zeros.resize(count, 0);
    Ok(zeros)
}
