//! Records: found by section and number or by item, read, verified, decoded, cached.
//!
//! Invariant: no byte leaves this module that did not pass the digest of its reference after its last load.

use crate::block::{Block, Shelf};
use crate::cache::{ByteCache, Weigh};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use weald_codec::{Decoder, DictionaryBytes, filter, front_len};
use weald_format::container::{Codec, HEADER_LEN, RecordRef, RecordType};
use weald_format::directory::{Category, Directory, IndexPage, PageRef, Section, raw_len_max};
use weald_format::entries::EntryBlock;
use weald_format::history;
use weald_format::limits::HISTORY_LEN_MAX;
use weald_format::pages::{self, ContentPage, ExtentPage, Link, TemplatePage, TimesPage};
use weald_format::recipes::RecipePage;
use weald_format::{Attributes, Digest, Error, Result, XattrSet};
use weald_io::ReadAt;
use zerocopy::IntoBytes;

/// What a thread decodes with.
#[derive(Default)]
struct Workbench {
    decoder: Decoder,
    /// Stored bytes of a record, header included.
    stored: Vec<u8>,
}

thread_local! {
    static WORKBENCH: RefCell<Workbench> = RefCell::default();
}

/// A thread keeps a buffer for stored bytes up to this length.
const STORED_KEPT_MAX: usize = 8 << 20;

/// Spare buffers for decoded blocks: what may be on its way out of the cache while others are decoded.
const SPARE_BLOCKS: u64 = 4;

/// Least bytes for pages in a cache that is not empty: a few of the largest entry blocks (8192 names of 255 bytes take
/// about 3 MiB decoded). Without them a walk would decode a block for every few of its entries.
const PAGE_BUDGET_MIN: u64 = 8 << 20;

/// What one of four in a shard of the pages' cache may take, so that the largest entry blocks fit a shard.
const PAGE_LEN: u64 = 1 << 20;

/// Number of the dictionary of metadata records; that of stream s is s + 1.
const METADATA: u8 = 0;

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

/// Names decoded bytes in the cache: those of a block, whole or its front, or what a recipe makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BlockKey {
    stream: u8,
    no: u64,
    is_front: bool,
}

impl BlockKey {
    const fn whole(stream: u8, no: u64) -> Self {
        Self {
            stream,
            no,
            is_front: false,
        }
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

/// All records of one generation of one image.
pub struct Records {
    source: Arc<dyn ReadAt>,
    directory: Arc<Directory>,
    sections: Vec<SectionIndex>,
    /// That of metadata records, then that of each stream.
    dictionaries: Vec<OnceLock<Arc<DictionaryBytes>>>,
    /// Records that could not be loaded, by offset, while a check wants them remembered: what lies in one damaged block
    /// must not cost a load each.
    failures: Mutex<Option<HashMap<u64, Error>>>,
    pages: ByteCache<PageKey, Page>,
    blocks: ByteCache<BlockKey, Block>,
    shelf: Arc<Shelf>,
    /// Bytes of blocks that were decoded, and that recipes made.
    decoded_len: AtomicU64,
    /// Whether a block was asked for since [`Records::rest`] looked last.
    is_busy: AtomicBool,
}

/// The number of the dictionary that a record of codec `zstd-dictionary` needs.
fn dictionary_no(stream: u8, record: &RecordRef) -> u8 {
    match record.record_type {
        RecordType::Data => stream.saturating_add(1),
        _ => METADATA,
    }
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
    /// Records of `directory` in `source`, with caches of `cache_len` bytes together: a quarter for pages, but at least
    /// [`PAGE_BUDGET_MIN`], which small caches exceed by that; 0 keeps nothing.
    pub fn new(source: Arc<dyn ReadAt>, directory: Arc<Directory>, cache_len: u64) -> Self {
        let sections = directory.sections.iter().enumerate();
        let sections = sections
            .map(|(no, s)| SectionIndex::new(&directory, no, s))
            .collect();
        let block_len = directory
            .streams
            .iter()
            .map(|s| s.block_len_max)
            .max()
            .unwrap_or(1 << 20);
        let quarter = cache_len / 4;
        let page_budget = match cache_len {
            0 => 0,
            _ => quarter.max(PAGE_BUDGET_MIN),
        };
        let dictionaries = (0..=directory.streams.len()).map(|_| OnceLock::new());
        Self {
            source,
            sections,
            dictionaries: dictionaries.collect(),
            directory,
            failures: Mutex::new(None),
            pages: ByteCache::new(page_budget, PAGE_LEN),
            blocks: ByteCache::new(cache_len.saturating_sub(quarter), block_len),
            shelf: Shelf::new(block_len.saturating_mul(SPARE_BLOCKS).min(cache_len / 8) as usize),
            decoded_len: AtomicU64::new(0),
            is_busy: AtomicBool::new(false),
        }
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

    /// Reads, verifies and decodes a record.
    ///
    /// # Errors
    /// As [`Records::read_stored`], and `Corrupt` where it does not decode.
    pub fn read_raw(&self, record: &RecordRef) -> Result<Vec<u8>> {
        let mut raw = Vec::new();
        self.read_raw_into(0, record, &mut raw)?;
        Ok(raw)
    }

    /// Reads, verifies and decodes a record of a section (data: of `stream`), before any filter is undone.
    ///
    /// # Errors
    /// As [`Records::read_raw`].
    pub fn read_raw_into(&self, stream: u8, record: &RecordRef, raw: &mut Vec<u8>) -> Result<()> {
        self.read_front_into(stream, record, usize::MAX, raw)
    }

    /// The digest is that of all stored bytes, however few are decoded.
    fn read_front_into(
        &self,
        stream: u8,
        record: &RecordRef,
        wanted: usize,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        let dictionary = match record.codec {
            Codec::ZstdDictionary => Some(self.dictionary(dictionary_no(stream, record))?),
            Codec::ZstdHistory => return self.read_after_history(stream, record, raw),
            _ => None,
        };
        WORKBENCH.with_borrow_mut(|bench| {
            read_record_into(&*self.source, record, &mut bench.stored)?;
            let stored = bench.stored.get(HEADER_LEN..).unwrap_or(&[]);
            let raw_len = record.raw_len as usize;
            let decoded = bench.decoder.decode_front_into(
                record.codec,
                stored,
                raw_len,
                wanted,
                dictionary.as_ref(),
                raw,
            );
            if bench.stored.capacity() > STORED_KEPT_MAX {
                bench.stored = Vec::new();
            }
            decoded.map_err(|e| e.at_offset(record.offset))
        })
    }

    /// A record of codec `zstd-history`: other records of its section are decoded before it. They have no history of their own,
    /// so that this ends.
    fn read_after_history(&self, stream: u8, record: &RecordRef, raw: &mut Vec<u8>) -> Result<()> {
        let whole = self.read_stored(record)?;
        let stored = whole.get(HEADER_LEN..).unwrap_or(&[]);
        let at_record = |e: Error| e.at_offset(record.offset);
        let (numbers, frame) = history::parse(stored).map_err(at_record)?;
        let before = self
            .history_refs(stream, record.record_type, &numbers)
            .map_err(at_record)?;
        let (mut all, mut one) = (Vec::new(), Vec::new());
        for reference in &before {
            self.read_raw_into(stream, reference, &mut one)?;
            all.extend_from_slice(&one);
        }
        Decoder::decode_after(frame, &all, record.raw_len as usize, raw).map_err(at_record)
    }

    /// Raw bytes that are decoded before this record of a section (data: of `stream`), each time that it is.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn history_len(&self, stream: u8, record: &RecordRef) -> Result<u64> {
        if record.codec != Codec::ZstdHistory {
            return Ok(0);
        }
        let whole = self.read_stored(record)?;
        let at_record = |e: Error| e.at_offset(record.offset);
        let (numbers, _) =
            history::parse(whole.get(HEADER_LEN..).unwrap_or(&[])).map_err(at_record)?;
        let before = self.history_refs(stream, record.record_type, &numbers);
        let lens = before.map_err(at_record)?.into_iter().map(|r| r.raw_len);
        Ok(lens.fold(0, u64::saturating_add))
    }

    /// The records with these numbers, if they can be a history together.
    fn history_refs(
        &self,
        stream: u8,
        record_type: RecordType,
        numbers: &[u64],
    ) -> Result<Vec<RecordRef>> {
        let (mut refs, mut len) = (Vec::with_capacity(numbers.len()), 0u64);
        for &no in numbers {
            if no >= self.record_count(record_type, stream) {
                return Err(history::bad(format!("history: there is no record {no}")));
            }
            let record = self.record(record_type, stream, no)?.record;
            len = len.saturating_add(record.raw_len);
            if record.codec == Codec::ZstdHistory || len > HISTORY_LEN_MAX {
                let what = format!(
                    "history: expected {HISTORY_LEN_MAX} bytes at most, of records that need no history"
                );
                return Err(history::bad(what));
            }
            refs.push(record);
        }
        Ok(refs)
    }

    /// Reads and verifies a record: its header and stored bytes.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read_stored(&self, record: &RecordRef) -> Result<Vec<u8>> {
        read_whole_record(&*self.source, record)
    }

    /// The dictionary `no`: that of metadata records, or the one of a stream.
    fn dictionary(&self, no: u8) -> Result<Arc<DictionaryBytes>> {
        let (rule, form_rule) = match no {
            METADATA => ("F-3.12", "F-3.12"),
            _ => ("F-24.1", "F-24.2"),
        };
        let place = self.dictionaries.get(usize::from(no));
        if let Some(dictionary) = place.and_then(OnceLock::get) {
            return Ok(dictionary.clone());
        }
        let bad = |offset, what| Error::corrupt("dictionary", offset, rule, what);
        if self.record_count(RecordType::Dictionary, no) == 0 {
            return Err(bad(0, "a record needs a dictionary, and there is none"));
        }
        let record = self.record(RecordType::Dictionary, no, 0)?.record;
        let needs_itself = matches!(record.codec, Codec::ZstdDictionary | Codec::ZstdHistory);
        if needs_itself || self.record_count(RecordType::Dictionary, no) != 1 {
            let what = "expected one dictionary that needs none";
            return Err(bad(record.offset, what));
        }
        let bytes = self.read_raw(&record)?;
        let dictionary = DictionaryBytes::new(&bytes).map_err(|e| {
            let cause = e.at_offset(record.offset);
            Error::corrupt("dictionary", record.offset, form_rule, cause.to_string())
        })?;
        let dictionary = Arc::new(dictionary);
        Ok(match place {
            Some(place) => place.get_or_init(|| dictionary).clone(),
            None => dictionary,
        })
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
            let raw = self.read_raw(&page.record)?;
            let count = page.record_count as usize;
            let parsed = IndexPage::parse(&raw, record_type, count, page.item_count);
            let parsed = parsed.map_err(|e| e.at_offset(page.record.offset))?;
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
                let page = ExtentPage::parse(&raw)?;
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

    /// A block of a stream, decoded as far as `wanted` or further. Who comes back for what lies behind a front gets the
    /// whole block: decoding never costs more than that and one front.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn block(&self, stream: u8, found: &Found, wanted: Wanted) -> Result<Arc<Block>> {
        self.touch();
        let whole = BlockKey::whole(stream, found.no);
        if let Some(block) = self.blocks.get(&whole) {
            return Ok(block);
        }
        let front = BlockKey {
            is_front: true,
            ..whole
        };
        let record = &found.record;
        // Who checks wants to know of every byte that it decodes to what it should.
        let is_check = || self.failures.lock().is_some();
        if let Wanted::Front(len) = wanted
            && self.front_lens(stream, record, len).0 < record.raw_len
            && !is_check()
        {
            let load = || self.remembering(record, || self.read_front(stream, record, len));
            let block = self.blocks.get_or_load(&front, load)?;
            if block.len() as u64 >= len.min(record.raw_len) {
                return Ok(block);
            }
        }
        let load = || self.remembering(record, || self.read_block(stream, record));
        let block = self.blocks.get_or_load(&whole, load)?;
        self.blocks.remove(&front);
        Ok(block)
    }

    /// Bytes that are decoded for the first `wanted` bytes of a block of `stream`, and how many of them can be used then.
    pub fn front_lens(&self, stream: u8, record: &RecordRef, wanted: u64) -> (u64, u64) {
        let raw_len = usize::try_from(record.raw_len).unwrap_or(usize::MAX);
        let tail = filter::front_tail_len(self.category(stream));
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        let len = front_len(record.codec, raw_len, wanted.saturating_add(tail));
        let sure = match len < raw_len {
            true => len.saturating_sub(tail),
            false => len,
        };
        (len as u64, sure as u64)
    }

    fn category(&self, stream: u8) -> Category {
        let stream = self.directory.streams.get(usize::from(stream));
        stream.map_or(Category::General, |s| s.category)
    }

    /// Reads, verifies and decodes a block of `stream`, and undoes the filter of its category.
    ///
    /// # Errors
    /// As [`Records::read_raw`].
    pub fn read_block(&self, stream: u8, record: &RecordRef) -> Result<Block> {
        self.read_front(stream, record, record.raw_len)
    }

    /// The same for its first `wanted` bytes at least.
    fn read_front(&self, stream: u8, record: &RecordRef, wanted: u64) -> Result<Block> {
        let (len, sure_len) = self.front_lens(stream, record, wanted);
        let mut block = self.shelf.block(len as usize);
        self.read_front_into(stream, record, len as usize, block.buffer())?;
        let bytes = block.buffer();
        self.count_decoded(bytes.len());
        filter::unfilter(self.category(stream), bytes);
        // Where a front could not be had, these are all bytes, and all are sure.
        if (bytes.len() as u64) < record.raw_len {
            bytes.truncate(sure_len as usize);
        }
        Ok(block)
    }

    fn count_decoded(&self, len: usize) {
        self.decoded_len.fetch_add(len as u64, Ordering::Relaxed);
    }

    /// Bytes of blocks that were decoded so far, and that recipes made.
    pub fn decoded_len(&self) -> u64 {
        self.decoded_len.load(Ordering::Relaxed)
    }

    /// What recipe `no` of `stream` makes, from the cache of blocks or by `make`.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn made(
        &self,
        stream: u8,
        no: u64,
        make: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Arc<Block>> {
        self.touch();
        self.blocks.get_or_load(&BlockKey::whole(stream, no), || {
            let made = make()?;
            self.count_decoded(made.len());
            Ok(Block::from(made))
        })
    }

    /// The stream whose bytes recipes make, if the image has one.
    pub fn deflate_stream(&self) -> Option<u8> {
        let mut streams = self.directory.streams.iter();
        let no = streams.position(|s| s.category == Category::Made)?;
        u8::try_from(no).ok()
    }

    /// Whether all of block `no` of a stream is in memory.
    pub fn has_block(&self, stream: u8, no: u64) -> bool {
        self.blocks.contains(&BlockKey::whole(stream, no))
    }

    /// Drops every cached page and block.
    pub fn drop_caches(&self) {
        self.pages.clear();
        self.drop_blocks();
    }

    fn drop_blocks(&self) {
        self.blocks.clear();
        self.shelf.clear();
    }

    fn touch(&self) {
        // Only the first of many writes, so that threads do not take the line from each other.
        if !self.is_busy.load(Ordering::Relaxed) {
            self.is_busy.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the memory of blocks back if none was asked for since the last call. What was read from them is mostly in the
    /// kernel's page cache by then.
    pub fn rest(&self) {
        if !self.is_busy.swap(false, Ordering::Relaxed) {
            self.drop_blocks();
        }
    }
}

/// Header and stored bytes of a record, both verified.
pub fn read_whole_record(source: &dyn ReadAt, record: &RecordRef) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_record_into(source, record, &mut bytes)?;
    Ok(bytes)
}

/// The same into a buffer, whose old bytes go.
fn read_record_into(source: &dyn ReadAt, record: &RecordRef, bytes: &mut Vec<u8>) -> Result<()> {
    let name = record.record_type.name();
    if record.end() > source.len() {
        let what = format!(
            "record ends at {}, the image at {}: truncated?",
            record.end(),
            source.len()
        );
        return Err(Error::corrupt(name, record.offset, "F-3.13", what));
    }
    bytes.resize((record.stored_len as usize).saturating_add(HEADER_LEN), 0);
    source.read_exact_at(bytes, record.offset)?;
    let (header, stored) = bytes.split_at_checked(HEADER_LEN).unwrap_or((&[], &[]));
    if header != record.header().as_bytes() {
        return Err(Error::corrupt(
            name,
            record.offset,
            "F-3.14",
            "record header differs from its reference",
        ));
    }
    let digest = Digest::of(stored);
    if digest != record.digest {
        let what = format!("digest: expected {}, found {digest}", record.digest);
        return Err(Error::corrupt(name, record.offset, "F-3.15", what));
    }
    Ok(())
}
