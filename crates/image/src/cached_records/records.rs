//! The records of one image, found through its index pages and cached once they are decoded.
//!
//! The methods of [`CachedRecords`] are in several files: this one has the search and the pages,
//! `raw.rs` the decoding, `blocks.rs` the blocks, `extents.rs` the extents.

use super::block_key::BlockKey;
use super::partial_block::PartialBlock;
use crate::cache::block::{Block, BufferPool};
use crate::cache::counts::{CacheCounts, HitCounts};
use crate::cache::key::{CacheKey, CachedKind, CachedValue, RecordBits};
use crate::cache::shared::Tag;
use crate::cache::view::CacheView;
use crate::hotness::recorder::Recorder;
use crate::records::page::Page;
use crate::records::read::verify_record;
use crate::records::section::{FoundRecord, SectionIndex, missing};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use weald_codec::DictionaryBytes;
use weald_format::container::{RecordRef, RecordType};
use weald_format::directory::{Category, Directory, IndexPage, PageRef};
use weald_format::{Error, Result};
use weald_io::ReadAt;

/// Failed records that a check remembers at most.
const FAILURES_MAX: usize = 10_000;

/// Type and stream of a section, and the number of a record (or, for index pages, of a page) in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PageKey {
    record_type: RecordType,
    stream: u8,
    is_index: bool,
    no: u64,
    /// Set for a page that all images of a store share: then `no` and these bits come from the
    /// record, and `stream` is its codec.
    shared_bits: Option<[u64; 2]>,
}

impl CacheKey for PageKey {
    fn kind_and_no(self) -> (u32, u64) {
        let code = self.record_type as u32;
        let kind = code << 9 | u32::from(self.stream) << 1 | u32::from(self.is_index);
        (kind, self.no)
    }

    fn shared_bits(self) -> Option<[u64; 2]> {
        self.shared_bits
    }
}

impl CachedValue for Page {
    fn memory_len(&self) -> usize {
        Self::memory_len(self)
    }
}

/// For each stream of an image that refers to a base image: the owner of the stream there (its
/// records, its extent map, the image itself), and the number of the stream there.
pub type BaseStreams<T> = Vec<Option<(Arc<T>, u8)>>;

/// All records of one generation of one image.
pub struct CachedRecords {
    pub(super) source: Arc<dyn ReadAt>,
    pub(super) directory: Arc<Directory>,
    pub(super) base_streams: BaseStreams<Self>,
    sections: Vec<SectionIndex>,
    /// The dictionary of metadata records, then that of each stream.
    pub(super) dictionaries: Vec<OnceLock<Arc<DictionaryBytes>>>,
    /// The records of the same dictionaries; `None` for one that is missing.
    pub(super) dictionary_records: Vec<OnceLock<Option<RecordRef>>>,
    /// Errors of the records that could not be loaded, by offset. Set during a check, so that a
    /// damaged block costs one load, not one for each content in it.
    failures: Mutex<Option<HashMap<u64, Error>>>,
    /// Whether `failures` is set; every read asks.
    is_check: AtomicBool,
    /// [`Self::decode_whole_blocks`].
    pub(super) decodes_whole: bool,
    pages: CacheView<PageKey, Page>,
    pub(super) blocks: CacheView<BlockKey, Block>,
    /// Blocks that are decoded in steps ([`CachedRecords::is_resumable`]). They have the same
    /// [`CachedKind`] as `blocks`, so that clearing one clears both.
    pub(super) partial_blocks: CacheView<BlockKey, PartialBlock>,
    pub(super) buffer_pool: Arc<BufferPool>,
    /// Bytes of blocks that were decoded, and bytes that recipes made.
    pub(super) decoded_len: AtomicU64,
    tag: Arc<Tag>,
    /// Owner of the blocks and pages that the images of a store share, for one of these.
    pub(super) shared_tag: Option<Arc<Tag>>,
    counts: Arc<HitCounts>,
    recorder: OnceLock<Recorder>,
}

impl CachedRecords {
    /// Ends reads that wait for a server.
    pub fn stop_waiting(&self) {
        self.source.stop_waiting();
    }

    /// The records of `directory` in `source`; the entries in the cache belong to `tag`, and blocks
    /// to `shared_tag` if the image is in a store.
    pub fn new(
        source: Arc<dyn ReadAt>,
        directory: Arc<Directory>,
        base_streams: BaseStreams<Self>,
        tag: Arc<Tag>,
        shared_tag: Option<Arc<Tag>>,
    ) -> Self {
        let sections = directory.sections.iter().enumerate();
        let sections = sections
            .map(|(no, s)| SectionIndex::new(&directory, no, s))
            .collect();
        let dictionaries = (0..=directory.streams.len()).map(|_| OnceLock::new());
        let dictionary_records = (0..=directory.streams.len()).map(|_| OnceLock::new());
        let counts = tag.cache().new_counts();
        Self {
            source,
            base_streams,
            sections,
            dictionaries: dictionaries.collect(),
            dictionary_records: dictionary_records.collect(),
            directory,
            failures: Mutex::new(None),
            is_check: AtomicBool::new(false),
            decodes_whole: false,
            pages: CacheView::new(&tag, CachedKind::Page, Some(counts.clone()))
                .sharing(shared_tag.clone()),
            blocks: CacheView::new(&tag, CachedKind::Block, Some(counts.clone()))
                .sharing(shared_tag.clone()),
            partial_blocks: CacheView::new(&tag, CachedKind::Block, Some(counts.clone()))
                .sharing(shared_tag.clone()),
            buffer_pool: tag.cache().buffer_pool().clone(),
            decoded_len: AtomicU64::new(0),
            tag,
            shared_tag,
            counts,
            recorder: OnceLock::new(),
        }
    }

    /// Sets whether blocks are decoded as a whole for whichever byte is requested, if the cache has
    /// room for several of their size.
    pub fn decode_whole_blocks(&mut self, decodes_whole: bool) {
        self.decodes_whole = decodes_whole;
    }

    /// Whether blocks are decoded as a whole.
    pub fn decodes_whole_blocks(&self) -> bool {
        self.decodes_whole
    }

    /// Whether every block is decoded as a whole for whichever byte is requested, by a check too.
    pub fn decodes_everything(&self) -> bool {
        self.decodes_whole || self.is_check()
    }

    /// Starts to record which blocks and records are used.
    pub fn start_recording(&self) {
        self.recorder.get_or_init(|| {
            let streams = (0..=u8::MAX).take(self.directory.streams.len());
            let block_counts = streams.map(|no| self.record_count(RecordType::Data, no));
            Recorder::new(block_counts, |record_type| {
                self.record_count(record_type, 0)
            })
        });
    }

    /// The recorder, if recording was started.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get()
    }

    /// The owner of the entries in the cache.
    pub fn tag(&self) -> &Arc<Tag> {
        &self.tag
    }

    /// Hits and misses of these records, and limit and use of the whole cache.
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

    /// Items of a section; 0 if there is no such section.
    pub fn item_count(&self, record_type: RecordType, stream: u8) -> u64 {
        self.index(record_type, stream)
            .and_then(|s| s.item_starts.last().copied())
            .unwrap_or(0)
    }

    /// Records of a section; 0 if there is no such section.
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
            shared_bits: None,
        };
        let page = self.page_refs(index).get(page_no).ok_or_else(|| {
            Error::corrupt("directory", 0, "F-7.9", format!("no index page {page_no}"))
        })?;
        self.pages.get_or_load(&key, || {
            let parsed = if page.is_direct() {
                IndexPage::single(page.record, page.item_count)
            } else {
                let raw = self.read_raw(&page.record)?;
                let count = page.record_count as usize;
                let parsed = IndexPage::parse(&raw, record_type, count, page.item_count);
                parsed.map_err(|e| e.at_offset(page.record.offset))?
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

    /// Finds record `no` of a section.
    ///
    /// # Errors
    /// `Corrupt` if there is no such record; `Io`.
    /// # Cost
    /// A cached lookup of one index page.
    pub fn record(&self, record_type: RecordType, stream: u8, no: u64) -> Result<FoundRecord> {
        let index = self.index(record_type, stream);
        let index = index.ok_or_else(|| missing(record_type, "record", no))?;
        self.find(index, &index.record_starts, no, |_, offset| {
            Some(offset as usize)
        })
    }

    /// Finds the record that holds item `item` of a section.
    ///
    /// # Errors
    /// `Corrupt` if there is no such item; `Io`.
    /// # Cost
    /// A cached lookup of one index page.
    pub fn record_of_item(
        &self,
        record_type: RecordType,
        stream: u8,
        item: u64,
    ) -> Result<FoundRecord> {
        let index = self.index(record_type, stream);
        let index = index.ok_or_else(|| missing(record_type, "item", item))?;
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
    ) -> Result<FoundRecord> {
        let not_found = || missing(index.record_type, "record or item", wanted);
        if starts.last().is_none_or(|&end| wanted >= end) {
            return Err(not_found());
        }
        let page_no = starts
            .partition_point(|&s| s <= wanted)
            .checked_sub(1)
            .ok_or_else(not_found)?;
        let page = self.index_page(index, page_no)?;
        let Page::Index(page) = &*page else {
            return Err(not_found());
        };
        let offset = wanted.saturating_sub(starts.get(page_no).copied().unwrap_or(0));
        let nth = nth(page, offset).ok_or_else(not_found)?;
        let record = *page.refs.get(nth).ok_or_else(not_found)?;
        let start = page.item_starts.get(nth).copied().unwrap_or(0);
        let end = page
            .item_starts
            .get(nth.saturating_add(1))
            .copied()
            .unwrap_or(start);
        let record_start = index.record_starts.get(page_no).copied().unwrap_or(0);
        let item_start = index.item_starts.get(page_no).copied().unwrap_or(0);
        Ok(FoundRecord {
            no: record_start.saturating_add(nth as u64),
            record,
            first_item: item_start.saturating_add(start),
            item_count: end.saturating_sub(start),
        })
    }

    /// Visits the references of a section in order; none if there is no such section.
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
        self.remembering(record, || verify_record(&*self.source, record))
    }

    /// From now on (`true`), remembers which records failed and fails for them without a load.
    pub fn remember_failures(&self, remember: bool) {
        *self.failures.lock() = remember.then(HashMap::new);
        self.is_check.store(remember, Ordering::Relaxed);
    }

    /// Whether a load of this record failed since failures are remembered.
    pub fn has_failed(&self, record: &RecordRef) -> bool {
        self.failures
            .lock()
            .as_ref()
            .is_some_and(|f| f.contains_key(&record.offset))
    }

    /// Whether failures are remembered: during a check.
    pub(super) fn is_check(&self) -> bool {
        self.is_check.load(Ordering::Relaxed)
    }

    /// Calls `load`, unless the record is remembered as failed; remembers a new failure.
    pub(super) fn remembering<T>(
        &self,
        record: &RecordRef,
        load: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
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

    /// The parsed metadata record `found`; the recorder notes it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn page(&self, found: &FoundRecord) -> Result<Arc<Page>> {
        if let Some(recorder) = self.recorder() {
            recorder.page(found.record.record_type, found.no);
        }
        self.page_unrecorded(found)
    }

    /// The same for a prefetch, which the recorder does not note.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn page_unrecorded(&self, found: &FoundRecord) -> Result<Arc<Page>> {
        let record = &found.record;
        let key = self.page_key(found);
        self.pages.get_or_load(&key, || {
            self.remembering(record, || {
                let raw = self.read_raw(record)?;
                let extents = |raw: &[u8]| self.parse_extents(raw);
                Page::parse(
                    record.record_type,
                    found.no,
                    found.item_count,
                    &raw,
                    extents,
                )
                .map_err(|e| e.at_offset(record.offset))
            })
        })
    }

    /// The key of a page. Images of a store name a page by what it is parsed from and the items
    /// that it must have; extents that refer to base images are those of one image.
    fn page_key(&self, found: &FoundRecord) -> PageKey {
        let record = &found.record;
        let record_type = record.record_type;
        let has_base_runs = record_type == RecordType::Extents && !self.directory.bases.is_empty();
        let bits = if has_base_runs {
            None
        } else {
            self.shared_bits(0, record)
        };
        let own = PageKey {
            record_type,
            stream: 0,
            is_index: false,
            no: found.no,
            shared_bits: None,
        };
        bits.map_or(
            own,
            |RecordBits {
                 no,
                 more: [first, second],
             }| PageKey {
                stream: record.codec as u8,
                no,
                // Of one record, every count gives another key; other records differ in other bits.
                shared_bits: Some([first ^ found.item_count, second]),
                ..own
            },
        )
    }

    /// Visits the metadata records of a type in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_page(
        &self,
        record_type: RecordType,
        visit: &mut dyn FnMut(&Page) -> Result<()>,
    ) -> Result<()> {
        for no in 0..self.record_count(record_type, 0) {
            let found = self.record(record_type, 0, no)?;
            visit(&*self.page(&found)?)?;
        }
        Ok(())
    }

    /// The records that own `stream`, if that is a stream of a base image, and its number there.
    pub(super) fn base_of(&self, stream: u8) -> Option<&(Arc<Self>, u8)> {
        self.base_streams.get(usize::from(stream))?.as_ref()
    }

    /// Number of the stream whose bytes recipes make, if the image has one.
    pub fn recipe_stream(&self) -> Option<u8> {
        let mut streams = self.directory.streams.iter();
        let no = streams.position(|s| s.category == Category::Made)?;
        u8::try_from(no).ok()
    }

    /// Whether at least nine tenths of the bytes in blocks are incompressible data; false if all
    /// blocks are in base images.
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

    /// A block without bytes for a copy of `len` bytes, with recycled memory if there is some.
    pub fn empty_block(&self, len: usize) -> Block {
        self.buffer_pool.empty_block(len)
    }

    /// A block of `len` bytes with arbitrary values; `len` is no more than the size of a block.
    pub fn blank_block(&self, len: usize) -> Block {
        self.buffer_pool.block(len)
    }

    /// Removes every cached page and block.
    pub fn drop_caches(&self) {
        self.pages.clear();
        self.blocks.clear();
        self.buffer_pool.clear();
    }

    /// Evicts the blocks that were not requested since the last call. By then the kernel's page
    /// cache has most of what was read from them.
    pub fn evict_idle_blocks(&self) {
        let tags = [&self.tag].into_iter().chain(&self.shared_tag);
        tags.for_each(|tag| tag.evict_idle_blocks());
    }
}
