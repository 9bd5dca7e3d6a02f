//! Stored bytes of an image by section and codec.

use crate::image::Image;
use std::collections::BTreeMap;
use weald_format::Result;
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::directory::Category;

/// Records of one section and one codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// Number of records.
    pub record_count: u64,
    /// Bytes after decoding.
    pub raw_len: u64,
    /// Bytes in the image, headers included.
    pub stored_len: u64,
}

/// One section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SectionInfo {
    /// Type of its records.
    pub record_type: RecordType,
    /// Number and category of the stream, for a data section and for the dictionary of the stream's
    /// blocks.
    pub stream: Option<(u64, Category)>,
    /// Number of items: bytes for data and extents; entries, templates and so on for the others.
    pub item_count: u64,
    /// Its records, by codec.
    pub by_codec: BTreeMap<Codec, Share>,
}

impl SectionInfo {
    /// The sum over all codecs.
    pub fn total(&self) -> Share {
        self.by_codec
            .values()
            .fold(Share::default(), |sum, s| Share {
                record_count: sum.record_count.saturating_add(s.record_count),
                raw_len: sum.raw_len.saturating_add(s.raw_len),
                stored_len: sum.stored_len.saturating_add(s.stored_len),
            })
    }
}

/// The recipes of one method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecipeShare {
    /// Number of recipes.
    pub recipe_count: u64,
    /// Bytes of their output.
    pub made_len: u64,
    /// Bytes of their input. Input that several recipes share counts for each.
    pub plain_len: u64,
}

impl Share {
    fn add(&mut self, record: &RecordRef) {
        self.record_count = self.record_count.saturating_add(1);
        self.raw_len = self.raw_len.saturating_add(record.raw_len);
        self.stored_len = self
            .stored_len
            .saturating_add(record.stored_len)
            .saturating_add(HEADER_LEN as u64);
    }
}

impl Image {
    /// Whether at least nine tenths of the bytes in blocks are incompressible data; false if all
    /// blocks are in base images.
    pub fn is_mostly_incompressible(&self) -> bool {
        self.records.are_mostly_incompressible()
    }

    /// The recipes of the image, by the name of their method.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads all recipe pages, and the content pages of their input.
    pub fn recipe_shares(&self) -> Result<BTreeMap<&'static str, RecipeShare>> {
        let mut shares: BTreeMap<_, RecipeShare> = BTreeMap::new();
        let end = self.records.item_count(RecordType::Recipes, 0);
        let mut at = 0u64;
        while at < end {
            let found = self.map.recipe_at(at)?;
            let recipe = found.recipe()?;
            let (_, plain_len) = self.map.range_of(recipe.plain)?;
            let share = shares.entry(recipe.method.name()).or_default();
            share.recipe_count = share.recipe_count.saturating_add(1);
            share.made_len = share.made_len.saturating_add(recipe.len);
            share.plain_len = share.plain_len.saturating_add(recipe.plain_len(plain_len));
            // Every recipe makes at least one byte.
            at = found.first.saturating_add(recipe.len.max(1));
        }
        Ok(shares)
    }

    /// Every section, in the order of the directory, with the bytes of its records. The index pages
    /// (if there are any) and the directory come last, as sections of their own.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads all index pages: 0.05 bytes for each entry, 12 bytes for each MiB of data.
    pub fn sections(&self) -> Result<Vec<SectionInfo>> {
        let mut sections = Vec::new();
        let mut index = Share::default();
        for section in &self.directory.sections {
            let stream_no = match section.record_type {
                RecordType::Data => Some(section.stream),
                // Dictionary 0 is that of metadata.
                RecordType::Dictionary => section.stream.checked_sub(1),
                _ => None,
            };
            let category_of = |no: u64| {
                let stream = self.directory.streams.get(usize::try_from(no).ok()?)?;
                Some((no, stream.category))
            };
            let mut info = SectionInfo {
                record_type: section.record_type,
                stream: stream_no.and_then(category_of),
                item_count: section.item_count(),
                by_codec: BTreeMap::new(),
            };
            let pages = section.pages.iter().filter(|p| !p.is_direct());
            pages.for_each(|p| index.add(&p.record));
            self.records
                .each_ref(section.record_type, section.stream as u8, &mut |record| {
                    info.by_codec.entry(record.codec).or_default().add(record);
                    Ok(())
                })?;
            sections.push(info);
        }
        let own = |record_type, share: Share| SectionInfo {
            record_type,
            stream: None,
            item_count: share.record_count,
            by_codec: BTreeMap::from([(Codec::None, share)]),
        };
        // A small image has no index pages.
        if index.record_count > 0 {
            sections.push(own(RecordType::Index, index));
        }
        let len = self.footer.directory_len;
        let directory = Share {
            record_count: 1,
            raw_len: self.directory.encode().len() as u64,
            stored_len: len,
        };
        sections.push(own(RecordType::Directory, directory));
        Ok(sections)
    }
}
