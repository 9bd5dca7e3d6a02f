//! Records: found by section and number or by item, read, verified, decoded, cached.
//!
//! Invariant: no byte leaves this module that did not pass the digest of its reference after its
//! last load.

mod blocks;
#[path = "../records/decode.rs"]
mod decoding;
mod extents;

pub use blocks::Decoded;
pub use decoding::read_whole_record;

use crate::Image;
use crate::block::{Block, Shelf};
use crate::cache::{ByteCache, CacheCounts, CacheKey, HitCounts, Room, Tag, Weigh};
use crate::growing::Growing;
use crate::recorder::{Recorder, Recording};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use weald_codec::DictionaryBytes;
use weald_format::container::{RecordRef, RecordType};
use weald_format::directory::{Category, Directory, IndexPage, PageRef, Section, raw_len_max};
use weald_format::entries::EntryBlock;
use weald_format::pages::{self, ContentPage, ExtentPage, Link, TemplatePage, TimesPage};
use weald_format::recipes::RecipePage;
use weald_format::{Attributes, Error, Result, XattrSet};
use weald_io::ReadAt;

/// Failures that are remembered at most.
const FAILURES_MAX: usize = 10_000;

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
}

impl Weigh for Page {
    fn memory_len(&self) -> usize {
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
        }
    }
}

/// Type and stream of a section, and the number of a record (or, for index pages, of a page) in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PageKey {
    record_type: RecordType,
    stream: u8,
    is_index: bool,
    no: u64,
}

impl CacheKey for PageKey {
    fn place(self) -> (u32, u64) {
        let code = self.record_type as u32;
        let kind = code << 9 | u32::from(self.stream) << 1 | u32::from(self.is_index);
        (kind, self.no)
    }
}

/// The running sums that a search in a section needs.
struct SectionIndex {
    /// Place of the section in the directory.
    section_no: usize,
    record_type: RecordType,
    stream: u8,
    /// Most raw bytes of a record.
    raw_len_max: u64,
    record_starts: Vec<u64>,
    item_starts: Vec<u64>,
}

impl SectionIndex {
    fn new(directory: &Directory, section_no: usize, section: &Section) -> Self {
        let stream = usize::try_from(section.stream)
            .ok()
            .and_then(|s| directory.streams.get(s));
        let raw_len_max = match (section.record_type, stream) {
            (RecordType::Data, Some(stream)) => stream.block_len_max,
            (other, _) => raw_len_max(other),
        };
        Self {
            section_no,
            record_type: section.record_type,
            stream: section.stream as u8,
            raw_len_max,
            record_starts: sums(section.pages.iter().map(|p| p.record_count)),
            item_starts: sums(section.pages.iter().map(|p| p.item_count)),
        }
    }
}

/// How much of a block a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Everything.
    Whole,
    /// Its first bytes, so many; what lies behind them may come with them.
    Front(u64),
}

/// Names decoded bytes in the cache: those of a block, or what a recipe makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BlockKey {
    stream: u8,
    no: u64,
    form: Form,
}

/// As what a block is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    Whole,
    Front,
    Growing,
}

impl BlockKey {
    const fn whole(stream: u8, no: u64) -> Self {
        Self {
            stream,
            no,
            form: Form::Whole,
        }
    }
}

impl CacheKey for BlockKey {
    fn place(self) -> (u32, u64) {
        let kind = u32::from(self.stream) << 2 | self.form as u32;
        (kind, self.no)
    }
}

/// A record found by one of its items.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    /// Number of the record in its section.
    pub no: u64,
    /// Its reference.
    pub record: RecordRef,
    /// First item of the record, counted from the start of the section.
    pub first_item: u64,
    /// Items of the record.
    pub item_count: u64,
}

/// For each stream of an image that one of a base image stands for: that image, and the stream
/// there.
pub type BaseStreams = Vec<Option<(Arc<Image>, u8)>>;

/// All records of one generation of one image.
pub struct Records {
    source: Arc<dyn ReadAt>,
    directory: Arc<Directory>,
    base_streams: BaseStreams,
    sections: Vec<SectionIndex>,
    /// That of metadata records, then that of each stream.
    dictionaries: Vec<OnceLock<Arc<DictionaryBytes>>>,
    /// Records that could not be loaded, by offset, while a check wants them remembered: what lies
    /// in one damaged block must not cost a load each.
    failures: Mutex<Option<HashMap<u64, Error>>>,
    pages: ByteCache<PageKey, Page>,
    blocks: ByteCache<BlockKey, Block>,
    /// In the same room; see [`Records::grows`].
    growing: ByteCache<BlockKey, Growing>,
    shelf: Arc<Shelf>,
    /// Bytes of blocks that were decoded, and that recipes made.
    decoded_len: AtomicU64,
    tag: Arc<Tag>,
    counts: Arc<HitCounts>,
    recording: Recording,
}

fn sums(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sum = 0u64;
    let running = values.map(|v| {
        sum = sum.saturating_add(v);
        sum
    });
    std::iter::once(0).chain(running).collect()
}

impl Records {
    /// Records of `directory` in `source`, over `base_streams`; what is decoded is kept under
    /// `tag`.
    pub fn new(
        source: Arc<dyn ReadAt>,
        directory: Arc<Directory>,
        base_streams: BaseStreams,
        tag: Arc<Tag>,
    ) -> Self {
        let sections = directory.sections.iter().enumerate();
        let sections = sections
            .map(|(no, s)| SectionIndex::new(&directory, no, s))
            .collect();
        let dictionaries = (0..=directory.streams.len()).map(|_| OnceLock::new());
        let counts = tag.cache().new_counts();
        Self {
            source,
            base_streams,
            sections,
            dictionaries: dictionaries.collect(),
            directory,
            failures: Mutex::new(None),
            pages: ByteCache::new(&tag, Room::Pages, Some(counts.clone())),
            blocks: ByteCache::new(&tag, Room::Blocks, Some(counts.clone())),
            growing: ByteCache::new(&tag, Room::Blocks, Some(counts.clone())),
            shelf: tag.cache().shelf().clone(),
            decoded_len: AtomicU64::new(0),
            tag,
            counts,
            recording: Recording::new(),
        }
    }

    /// From now on, notes what is touched.
    pub fn start_recording(&self, stream_count: usize) {
        let start = || Arc::new(Recorder::new(self, stream_count));
        self.recording.get_or_init(start);
    }

    /// The notes, if somebody wants them.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recording.get().map(|recorder| &**recorder)
    }

    /// The base images whose streams there are.
    pub fn bases(&self) -> Vec<Arc<Image>> {
        let mut bases: Vec<Arc<Image>> = Vec::new();
        for (image, _) in self.base_streams.iter().flatten() {
            if !bases.iter().any(|known| Arc::ptr_eq(known, image)) {
                bases.push(image.clone());
            }
        }
        bases
    }

    /// Where what is decoded is kept.
    pub fn tag(&self) -> &Arc<Tag> {
        &self.tag
    }

    /// Hits and misses of these records, and how full their cache is.
    pub fn cache_counts(&self) -> CacheCounts {
        let whole = self.tag.cache().counts();
        self.counts.add_to(CacheCounts {
            hit_count: 0,
            miss_count: 0,
            ..whole
        })
    }

    fn index(&self, record_type: RecordType, stream: u8) -> Option<&SectionIndex> {
        self.sections
            .iter()
            .find(|s| s.record_type == record_type && s.stream == stream)
    }

    fn page_refs(&self, index: &SectionIndex) -> &[PageRef] {
        self.directory
            .sections
            .get(index.section_no)
            .map_or(&[], |s| &s.pages)
    }

    /// Items of a section; 0 where there is none.
    pub fn item_count(&self, record_type: RecordType, stream: u8) -> u64 {
        self.index(record_type, stream)
            .and_then(|s| s.item_starts.last().copied())
            .unwrap_or(0)
    }

    /// Records of a section; 0 where there is none.
    pub fn record_count(&self, record_type: RecordType, stream: u8) -> u64 {
        self.index(record_type, stream)
            .and_then(|s| s.record_starts.last().copied())
            .unwrap_or(0)
    }

    fn index_page(&self, index: &SectionIndex, page_no: usize) -> Result<Arc<Page>> {
        let record_type = index.record_type;
        let key = PageKey {
            record_type,
            stream: index.stream,
            is_index: true,
            no: page_no as u64,
        };
        let page = self.page_refs(index).get(page_no).ok_or_else(|| {
            Error::corrupt("directory", 0, "F-7.9", format!("no index page {page_no}"))
        })?;
        self.pages.get_or_load(&key, || {
            let parsed = match page.is_direct() {
                true => IndexPage::single(page.record, page.item_count),
                false => {
                    let raw = self.read_raw(&page.record)?;
                    let count = page.record_count as usize;
                    let parsed = IndexPage::parse(&raw, record_type, count, page.item_count);
                    parsed.map_err(|e| e.at_offset(page.record.offset))?
                }
            };
            match parsed.refs.iter().find(|r| r.raw_len > index.raw_len_max) {
                None => Ok(Page::Index(parsed)),
                Some(r) => {
                    let what = format!(
                        "raw length {} exceeds the stream's {}",
                        r.raw_len, index.raw_len_max
                    );
                    Err(Error::corrupt(
                        "index page",
                        page.record.offset,
                        "F-7.13",
                        what,
                    ))
                }
            }
        })
    }

    fn missing(record_type: RecordType, what: &str, no: u64) -> Error {
        let rule = match record_type {
            RecordType::Dictionary => "F-3.12",
            RecordType::Templates => "F-9.2",
            RecordType::Entries => "F-9.8",
            RecordType::Contents => "F-10.2",
            RecordType::Extents => "F-11.4",
            RecordType::Data | RecordType::Recipes => "F-11.5",
            RecordType::Attributes => "F-12.2",
            RecordType::Xattrs => "F-13.2",
            RecordType::Links => "F-14.2",
            RecordType::Times => "F-15.2",
            RecordType::Index | RecordType::Directory => "F-7.9",
        };
        Error::corrupt(
            "directory",
            0,
            rule,
            format!("no {} {what} {no}", record_type.name()),
        )
    }

    /// Finds record `no` of a section.
    ///
    /// # Errors
    /// `Corrupt` where there is no such record.
    pub fn record(&self, record_type: RecordType, stream: u8, no: u64) -> Result<Found> {
        let index = self.index(record_type, stream);
        let index = index.ok_or_else(|| Self::missing(record_type, "record", no))?;
        self.find(index, &index.record_starts, no, |_, offset| {
            Some(offset as usize)
        })
    }

    /// Finds the record that holds item `item` of a section.
    ///
    /// # Errors
    /// `Corrupt` where there is no such item.
    pub fn record_of_item(&self, record_type: RecordType, stream: u8, item: u64) -> Result<Found> {
        let index = self.index(record_type, stream);
        let index = index.ok_or_else(|| Self::missing(record_type, "item", item))?;
        self.find(index, &index.item_starts, item, |page, offset| {
            page.item_starts
                .partition_point(|&s| s <= offset)
                .checked_sub(1)
        })
    }

    fn find(
        &self,
        index: &SectionIndex,
        starts: &[u64],
        wanted: u64,
        nth: impl Fn(&IndexPage, u64) -> Option<usize>,
    ) -> Result<Found> {
        let missing = || Self::missing(index.record_type, "record or item", wanted);
        if starts.last().is_none_or(|&end| wanted >= end) {
            return Err(missing());
        }
        let page_no = starts
            .partition_point(|&s| s <= wanted)
            .checked_sub(1)
            .ok_or_else(missing)?;
        let page = self.index_page(index, page_no)?;
        let Page::Index(page) = &*page else {
            return Err(missing());
        };
        let offset = wanted.saturating_sub(starts.get(page_no).copied().unwrap_or(0));
        let nth = nth(page, offset).ok_or_else(missing)?;
        let record = *page.refs.get(nth).ok_or_else(missing)?;
        let start = page.item_starts.get(nth).copied().unwrap_or(0);
        let end = page
            .item_starts
            .get(nth.saturating_add(1))
            .copied()
            .unwrap_or(start);
        let record_start = index.record_starts.get(page_no).copied().unwrap_or(0);
        let item_start = index.item_starts.get(page_no).copied().unwrap_or(0);
        Ok(Found {
            no: record_start.saturating_add(nth as u64),
            record,
            first_item: item_start.saturating_add(start),
            item_count: end.saturating_sub(start),
        })
    }

    /// Visits the references of a section in order; nothing where there is no such section.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the index pages, and those of `visit`.
    pub fn each_ref(
        &self,
        record_type: RecordType,
        stream: u8,
        visit: &mut dyn FnMut(&RecordRef) -> Result<()>,
    ) -> Result<()> {
        let Some(index) = self.index(record_type, stream) else {
            return Ok(());
        };
        for page_no in 0..self.page_refs(index).len() {
            if let Page::Index(page) = &*self.index_page(index, page_no)? {
                page.refs.iter().try_for_each(&mut *visit)?;
            }
        }
        Ok(())
    }

    /// Reads and verifies a record without decoding it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn verify(&self, record: &RecordRef) -> Result<()> {
        self.remembering(record, || {
            read_whole_record(&*self.source, record).map(|_| ())
        })
    }

    /// From now on (`true`), remembers which records failed, and fails at once for those.
    pub fn remember_failures(&self, remember: bool) {
        *self.failures.lock() = remember.then(HashMap::new);
    }

    /// Whether this record is remembered as failed.
    pub fn has_failed(&self, record: &RecordRef) -> bool {
        self.failures
            .lock()
            .as_ref()
            .is_some_and(|f| f.contains_key(&record.offset))
    }

    fn remembering<T>(&self, record: &RecordRef, load: impl FnOnce() -> Result<T>) -> Result<T> {
        if let Some(known) = self
            .failures
            .lock()
            .as_ref()
            .and_then(|f| f.get(&record.offset))
        {
            return Err(known.duplicate());
        }
        let result = load();
        if let (Err(error), Some(failures)) = (&result, &mut *self.failures.lock())
            && failures.len() < FAILURES_MAX
        {
            failures.insert(record.offset, error.duplicate());
        }
        result
    }

    /// The parsed metadata record that was found.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn page(&self, found: &Found) -> Result<Arc<Page>> {
        if let Some(recorder) = self.recorder() {
            recorder.page(found.record.record_type, found.no);
        }
        self.page_unseen(found)
    }

    /// The same for who only wants it to be there.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn page_unseen(&self, found: &Found) -> Result<Arc<Page>> {
        let record = &found.record;
        let key = PageKey {
            record_type: record.record_type,
            stream: 0,
            is_index: false,
            no: found.no,
        };
        self.pages.get_or_load(&key, || {
            self.remembering(record, || {
                self.load_page(found)
                    .map_err(|e| e.at_offset(record.offset))
            })
        })
    }

    fn load_page(&self, found: &Found) -> Result<Page> {
        let raw = self.read_raw(&found.record)?;
        let (page, items) = match found.record.record_type {
            RecordType::Entries => {
                let page = EntryBlock::parse(&raw)?;
                let count = page.count();
                (Page::Entries(Box::new(page)), count as u64)
            }
            RecordType::Templates => {
                let page = TemplatePage::parse(&raw)?;
                let count = page.count();
                (Page::Templates(page), count as u64)
            }
            RecordType::Contents => {
                let page = ContentPage::parse(&raw)?;
                let count = page.count();
                (Page::Contents(page), count as u64)
            }
            RecordType::Extents => {
                let page = self.parse_extents(&raw)?;
                let len = page.logical_len();
                (Page::Extents(page), len)
            }
            RecordType::Recipes => {
                let page = RecipePage::parse(&raw)?;
                let len = page.made_len();
                (Page::Recipes(page), len)
            }
            RecordType::Attributes => {
                let items = pages::parse_attributes(&raw)?;
                let count = items.len();
                (Page::Attributes(items), count as u64)
            }
            RecordType::Xattrs => {
                let sets: Vec<_> = pages::parse_xattrs(&raw)?
                    .into_iter()
                    .map(Arc::new)
                    .collect();
                let count = sets.len();
                (Page::Xattrs(sets), count as u64)
            }
            RecordType::Links => (Page::Links(pages::parse_links(&raw)?), found.item_count),
            RecordType::Times => {
                let page = TimesPage::parse(&raw)?;
                let count = page.count();
                (Page::Times(page), count as u64)
            }
            other => return Err(Self::missing(other, "page of type", found.no)),
        };
        if items != found.item_count {
            let what = format!(
                "items: expected {} as the index says, found {items}",
                found.item_count
            );
            return Err(Error::corrupt(
                found.record.record_type.name(),
                0,
                "F-7.9",
                what,
            ));
        }
        Ok(page)
    }

    /// The base image and the stream there that `stream` stands for.
    pub fn base_of(&self, stream: u8) -> Option<&(Arc<Image>, u8)> {
        self.base_streams.get(usize::from(stream))?.as_ref()
    }

    /// The stream whose bytes recipes make, if the image has one.
    pub fn deflate_stream(&self) -> Option<u8> {
        let mut streams = self.directory.streams.iter();
        let no = streams.position(|s| s.category == Category::Made)?;
        u8::try_from(no).ok()
    }

    /// Whether nine tenths of the bytes in blocks at least are data that no codec makes smaller;
    /// false where base images have all of them.
    pub fn are_mostly_incompressible(&self) -> bool {
        let (mut plain_len, mut len) = (0u64, 0u64);
        for (no, stream) in (0..=u8::MAX).zip(&self.directory.streams) {
            let here = self.item_count(RecordType::Data, no);
            len = len.saturating_add(here);
            if stream.category == Category::Incompressible {
                plain_len = plain_len.saturating_add(here);
            }
        }
        len > 0 && plain_len >= len.saturating_sub(len / 10)
    }

    /// Memory for `len` bytes put together from blocks, that of a block which is gone where there
    /// is one.
    pub fn room(&self, len: usize) -> Block {
        self.shelf.room(len)
    }

    /// The same with `len` bytes of any value, no more than a block has.
    pub fn blank(&self, len: usize) -> Block {
        self.shelf.block(len)
    }

    /// Drops every cached page and block.
    pub fn drop_caches(&self) {
        self.pages.clear();
        self.blocks.clear();
        self.shelf.clear();
    }

    /// Gives the memory of blocks back that nobody asked for since the last call. What was read
    /// from them is mostly in the kernel's page cache by then.
    pub fn rest(&self) {
        self.tag.rest();
    }
}
