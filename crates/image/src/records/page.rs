//! Parsed metadata records.

use super::section::missing;
use std::sync::Arc;
use weald_format::container::RecordType;
use weald_format::directory::IndexPage;
use weald_format::entries::EntryBlock;
use weald_format::pages::{
    self, ContentPage, ExtentPage, FSVERITY_LEN, Link, TemplatePage, TimesPage,
};
use weald_format::recipes::RecipePage;
use weald_format::{Attributes, Error, Result, XattrSet};

/// A parsed metadata record.
pub enum Page {
    /// References.
    Index(IndexPage),
    /// Entries.
    Entries(Box<EntryBlock>),
    /// Templates.
    Templates(TemplatePage),
    /// Contents.
    Contents(ContentPage),
    /// Extents.
    Extents(ExtentPage),
    /// Recipes.
    Recipes(RecipePage),
    /// Attributes.
    Attributes(Vec<Attributes>),
    /// Xattr sets.
    Xattrs(Vec<Arc<XattrSet>>),
    /// Hard links.
    Links(Vec<Link>),
    /// Times overlay.
    Times(TimesPage),
    /// fs-verity digests.
    Fsverity(Vec<[u8; FSVERITY_LEN]>),
}

impl Page {
    /// Bytes of memory behind the page.
    pub fn memory_len(&self) -> usize {
        match self {
            Self::Index(p) => p.memory_len(),
            Self::Entries(p) => p.memory_len(),
            Self::Templates(p) => p.memory_len(),
            Self::Contents(p) => p.memory_len(),
            Self::Extents(p) => p.memory_len(),
            Self::Recipes(p) => p.memory_len(),
            Self::Attributes(p) => p.len().saturating_mul(size_of::<Attributes>()),
            Self::Xattrs(p) => p
                .iter()
                .map(|s| pages::xattr_set_len(s).saturating_add(64))
                .sum(),
            Self::Links(p) => p.len().saturating_mul(size_of::<Link>()),
            Self::Times(p) => p.memory_len(),
            Self::Fsverity(p) => p.len().saturating_mul(FSVERITY_LEN),
        }
    }

    /// Items of the record of type `record_type` with these raw bytes, as its section counts them,
    /// without the index.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are no such page, and for pages that cannot be counted alone: of
    /// links, whose items depend on the page before, and of extents that refer to base images.
    pub fn count_items(record_type: RecordType, raw: &[u8]) -> Result<u64> {
        let count = match record_type {
            RecordType::Entries => EntryBlock::parse(raw)?.count(),
            RecordType::Templates => TemplatePage::parse(raw)?.count(),
            RecordType::Contents => ContentPage::parse(raw)?.count(),
            RecordType::Attributes => pages::parse_attributes(raw)?.len(),
            RecordType::Xattrs => pages::parse_xattrs(raw)?.len(),
            RecordType::Times => TimesPage::parse(raw)?.count(),
            RecordType::Fsverity => pages::parse_fsverity(raw)?.len(),
            RecordType::Extents => return Ok(ExtentPage::parse(raw)?.logical_len()),
            RecordType::Recipes => return Ok(RecipePage::parse(raw)?.made_len()),
            other => return Err(missing(other, "page of type", 0)),
        };
        Ok(count as u64)
    }

    /// Parses the raw bytes of record `no` of type `record_type`, which has `item_count` items;
    /// `parse_extents` parses an extent page, which may refer to base images.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are no such page or the count differs.
    pub fn parse(
        record_type: RecordType,
        no: u64,
        item_count: u64,
        raw: &[u8],
        parse_extents: impl FnOnce(&[u8]) -> Result<ExtentPage>,
    ) -> Result<Self> {
        let (page, items) = match record_type {
            RecordType::Entries => {
                let page = EntryBlock::parse(raw)?;
                let count = page.count();
                (Self::Entries(Box::new(page)), count as u64)
            }
            RecordType::Templates => {
                let page = TemplatePage::parse(raw)?;
                let count = page.count();
                (Self::Templates(page), count as u64)
            }
            RecordType::Contents => {
                let page = ContentPage::parse(raw)?;
                let count = page.count();
                (Self::Contents(page), count as u64)
            }
            RecordType::Extents => {
                let page = parse_extents(raw)?;
                let len = page.logical_len();
                (Self::Extents(page), len)
            }
            RecordType::Recipes => {
                let page = RecipePage::parse(raw)?;
                let len = page.made_len();
                (Self::Recipes(page), len)
            }
            RecordType::Attributes => {
                let items = pages::parse_attributes(raw)?;
                let count = items.len();
                (Self::Attributes(items), count as u64)
            }
            RecordType::Xattrs => {
                let sets: Vec<_> = pages::parse_xattrs(raw)?
                    .into_iter()
                    .map(Arc::new)
                    .collect();
                let count = sets.len();
                (Self::Xattrs(sets), count as u64)
            }
            RecordType::Links => (Self::Links(pages::parse_links(raw)?), item_count),
            RecordType::Times => {
                let page = TimesPage::parse(raw)?;
                let count = page.count();
                (Self::Times(page), count as u64)
            }
            RecordType::Fsverity => {
                let digests = pages::parse_fsverity(raw)?;
                let count = digests.len();
                (Self::Fsverity(digests), count as u64)
            }
            other => return Err(missing(other, "page of type", no)),
        };
        if items != item_count {
            let what = format!(
                "items: expected {} according to the index, found {items}",
                item_count
            );
            return Err(Error::corrupt(record_type.name(), 0, "F-7.9", what));
        }
        Ok(page)
    }
}
