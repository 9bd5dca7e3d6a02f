//! Writes contents: finds equal files, chooses a category, finds repeats, and fills blocks, extents
//! and content pages.

mod pages;
mod prepare;
mod recipes;
mod table;

pub use table::ContentTable;

use crate::compress::compressors::Compressors;
use crate::compress::record_history::{HISTORY_SHARE_MAX, TailHistories, history_len_max};
use crate::dedup::prepared::{Parts, Prepared, Preparing, plain_parts};
use crate::dedup::similar::{Choice, SimilarContents};
use crate::dedup::starting_images::StartingImages;
use crate::dedup::streams::{CATEGORIES, GENERAL, MADE};
use crate::options::plan::Plan;
use crate::options::{Categories, block_len_of};
use crate::scan::source::Layout;
use crate::segment::look_back::LookBack;
use crate::segment::samples::MarkList;
use crate::segment::segmenter::{SegmentSink, Segmenter};
use crate::write::image_writer::ImageWriter;
use crate::write::metadata::MetadataWriter;
use hashbrown::{HashMap, HashSet};
use pages::Pages;
use prepare::BaseContent;
use std::path::Path;
use weald_codec::{FSVERITY_DIGEST_LEN, FsVerity};
use weald_format::directory::{Category, Stream};
use weald_format::limits::{EXTENTS_PER_PAGE, ITEMS_PER_PAGE};
use weald_format::pages::{BaseRun, Extent, ExtentRun, Heads, Source};
use weald_format::{ContentId, Digest, Result};
use weald_image::Image;

/// Writes contents one after the other.
pub struct ContentWriter<'a> {
    pages: Pages<'a>,
    segmenter: Segmenter,
    table: ContentTable,
    /// Contents that recipes make, at least in part. No recipe may refer to them.
    made: HashSet<ContentId>,
    /// Bytes that the recipes of older generations make.
    made_before_len: u64,
    starting: &'a StartingImages,
    /// Chooses old contents to sample; `None` if all were sampled at the start.
    similar: Option<SimilarContents>,
    /// Contents of the base images, by digest.
    base_ids: HashMap<Digest, BaseContent>,
    base_streams: Vec<Stream>,
    /// Parts of the open content: the offset where each ends, and the stream that it goes to.
    open_parts: Parts,
    /// Bytes of the open content so far, holes included; data that recipes make counts as well.
    content_len: u64,
    categories: Categories,
    /// fs-verity digest of the open content so far, if the image keeps them.
    fsverity: Option<FsVerity>,
    hole_len: u64,
    plain_len: u64,
    base_len: u64,
    history_len_max: u64,
}

/// Result of writing all contents.
pub struct ContentSummary {
    /// Digests and ids of all contents.
    pub table: ContentTable,
    /// The streams of the image.
    pub streams: Vec<Stream>,
    /// Bytes found as repeats of earlier data.
    pub repeated_len: u64,
    /// Raw bytes stored in blocks.
    pub fresh_len: u64,
    /// Bytes in holes.
    pub hole_len: u64,
    /// Bytes of whole contents that lie in base images.
    pub base_len: u64,
    /// Bytes that recipes make.
    pub made_len: u64,
    /// Bytes of plain contents, which only recipes need, as far as they were not stored already.
    pub plain_len: u64,
}

impl<'a> ContentWriter<'a> {
    /// Creates a writer that follows `plan`. `total_len` is the approximate input length in bytes,
    /// if known. `starting` is the image that is appended to and the base images. Spools go to
    /// `spool_dir`.
    ///
    /// # Errors
    /// `Io` if no thread can be started; `Io`, `Corrupt` from the images in `starting`.
    pub fn new(
        image: &'a mut ImageWriter,
        metadata: &'a mut MetadataWriter,
        plan: &Plan,
        total_len: Option<u64>,
        spool_dir: &Path,
        starting: &'a StartingImages,
        dictionary: Option<Vec<u8>>,
    ) -> Result<Self> {
        let dictionaries = prepare::dictionaries(image, plan, starting, dictionary)?;
        let mut look_backs = prepare::look_backs(image, plan, spool_dir, starting)?;
        let clusters = prepare::clusters(plan, total_len, spool_dir, &mut look_backs)?;
        let mut table = ContentTable::default();
        let mut made = HashSet::new();
        let (mut logical_len, mut made_len) = (0, 0);
        if let Some(indexed) = &starting.appended {
            for digest in &indexed.digests {
                table.insert(*digest)?;
            }
            made.extend(indexed.made.iter().copied());
            logical_len = indexed.image.summary().content_len;
            made_len = indexed.image.stream_len(MADE);
        }
        // The first extent of a base's stream is stored relative to address 0.
        let own = look_backs.iter().take(CATEGORIES.len());
        let mut heads: Heads = own.map(LookBack::front_len).collect();
        heads[usize::from(MADE)] = made_len;
        let base_streams = starting.base_streams();
        heads.resize(heads.len() + base_streams.len(), 0);
        let compressors = Compressors::start(plan.threads, plan.block_len, dictionaries)?;
        let lens = (logical_len, made_len);
        let mut pages = Pages::new(image, metadata, compressors, plan, heads, lens);
        pages.clusters = clusters;
        if starting.appended.is_some() {
            pages.small_tree = None;
        }
        let appended = starting.appended.as_ref().map(|indexed| &*indexed.image);
        let keeps_fsverity = plan.keep_fsverity || appended.is_some_and(Image::keeps_fsverity);
        if let (Some(old), true) = (appended, keeps_fsverity) {
            prepare::add_fsverity(&mut pages, old)?;
        }
        let small = pages.small_tree.map(|(small, _)| small);
        let small = small.filter(|small| {
            starting.bases.is_empty() && total_len.is_some_and(|len| len <= small.len_max)
        });
        let match_len_min = small.map_or(plan.match_len_min, |small| small.match_len_min);
        let mut segmenter = Segmenter::new(look_backs, match_len_min, plan.table_len, total_len);
        // No block is being compressed yet, so the samples may use the memory of those blocks.
        let idle_len = Compressors::in_flight_max(plan.threads as u64) * plan.block_len * 2;
        let on_demand = starting.appended.as_ref();
        let on_demand = on_demand.filter(|indexed| indexed.is_sampled_on_demand);
        let similar = on_demand
            .zip(total_len)
            .map(|(indexed, total_len)| SimilarContents::new(&indexed.image, total_len));
        if similar.is_none() {
            segmenter.insert_image_samples(plan.threads, idle_len)?;
        }
        Ok(Self {
            pages,
            segmenter,
            table,
            made,
            made_before_len: made_len,
            starting,
            similar,
            base_ids: prepare::base_ids(starting),
            base_streams,
            open_parts: Vec::new(),
            content_len: 0,
            fsverity: keeps_fsverity.then(FsVerity::new),
            categories: plan.categories,
            hole_len: 0,
            plain_len: 0,
            base_len: 0,
            history_len_max: history_len_max(plan.memory_len),
        })
    }

    /// Finds the content with this digest, in this image or in a base image. In the second case the
    /// image gets a new content that refers to the base.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the base image; as [`ContentWriter::data`].
    pub fn find(&mut self, digest: &Digest) -> Result<Option<ContentId>> {
        if let Some(id) = self.table.find(digest) {
            return Ok(Some(id));
        }
        let Some(found) = self.base_ids.get(digest).copied() else {
            return Ok(None);
        };
        let starting = self.starting;
        let Some(indexed) = starting.bases.get(found.no) else {
            return Ok(None);
        };
        let (mut len, mut count, mut is_made) = (0, 0, false);
        indexed.image.each_extent_of(found.id, &mut |extent| {
            len += extent.len;
            count += 1;
            if let Source::Stream { stream, .. } = extent.source {
                is_made |= indexed.image.has_recipe_output(stream);
            }
            Ok(())
        })?;
        let range = indexed.image.own_range_of(found.id)?;
        match range.filter(|_| count <= EXTENTS_PER_PAGE) {
            Some(range) => {
                let run = BaseRun {
                    base: found.no as u8,
                    start: range.start,
                    len,
                };
                self.pages.push_run(ExtentRun::Base(run), count)?;
            }
            None => indexed.image.each_extent_of(found.id, &mut |mut extent| {
                if let Source::Stream { stream, .. } = &mut extent.source {
                    *stream += found.first_stream as u8;
                }
                self.pages.extent(extent)
            })?,
        }
        self.base_len += len;
        let kept = match &self.fsverity {
            Some(_) => Some(indexed.image.fsverity_of(found.id)?),
            None => None,
        };
        let id = self.end_with_fsverity(len, *digest, kept)?;
        if is_made {
            self.made.insert(id);
        }
        Ok(Some(id))
    }

    /// Prepares for a new content of `len` bytes at `path` in the tree, which is added next:
    /// samples the old contents that it may repeat in part.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the image that the build continues.
    /// # Cost
    /// Decodes those old contents.
    pub fn expect(&mut self, path: &[u8], len: u64) -> Result<()> {
        let (Some(similar), Some(indexed)) = (&mut self.similar, &self.starting.appended) else {
            return Ok(());
        };
        let ids = match similar.choose(indexed, path, len)? {
            Choice::All => return self.segmenter.insert_all_samples(),
            Choice::Contents(ids) => ids,
        };
        for id in ids {
            indexed
                .image
                .each_extent_of(id, &mut |extent| match extent.source {
                    Source::Stream { stream, address } if stream != MADE => {
                        (self.segmenter).insert_samples_of(stream, address, extent.len)
                    }
                    _ => Ok(()),
                })?;
        }
        Ok(())
    }

    /// Length of the image so far, bytes.
    pub fn written_len(&self) -> u64 {
        self.pages.image.position()
    }

    /// Begins a content. `probe` is the front of its data; entropy and category are taken from it.
    pub fn begin(&mut self, probe: &[u8]) {
        self.open_parts = self.preparing().parts(probe);
    }

    /// Begins a content that is not to be compressed.
    pub fn begin_plain(&mut self) {
        self.open_parts = plain_parts();
    }

    /// Adds data to the open content.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`.
    pub fn data(&mut self, bytes: &[u8]) -> Result<()> {
        self.data_with(bytes, 0, None)
    }

    /// As [`ContentWriter::data`], for data with these `marks` by [`ContentWriter::preparing`],
    /// if somebody looked for them.
    ///
    /// # Errors
    /// As [`ContentWriter::data`].
    pub fn marked_data(&mut self, bytes: &[u8], marks: Option<&MarkList>) -> Result<()> {
        self.data_with(bytes, 0, marks)
    }

    /// As [`ContentWriter::data`], for data that begins at `start` of bytes with these `marks`.
    fn data_with(
        &mut self,
        mut bytes: &[u8],
        mut start: usize,
        marks: Option<&MarkList>,
    ) -> Result<()> {
        self.update_fsverity(bytes);
        while !bytes.is_empty() {
            let at = self.content_len;
            let part = self.open_parts.iter().find(|part| at < part.0);
            let &(end, stream) = part.unwrap_or(&(u64::MAX, GENERAL));
            let (here, after) = bytes.split_at((bytes.len() as u64).min(end - at) as usize);
            self.segmenter.set_file_offset(at);
            let marked = marks.map(|marks| marks.within(start..start + here.len()));
            (self.segmenter).push(&mut self.pages, stream, here, marked)?;
            self.content_len += here.len() as u64;
            start += here.len();
            bytes = after;
        }
        Ok(())
    }

    fn update_fsverity(&mut self, bytes: &[u8]) {
        if let Some(state) = &mut self.fsverity {
            state.update(bytes);
        }
    }

    /// Adds a hole to the open content.
    ///
    /// # Errors
    /// As [`ContentWriter::data`].
    pub fn hole(&mut self, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        if let Some(state) = &mut self.fsverity {
            state.update_zeros(len);
        }
        self.hole_len += len;
        self.content_len += len;
        self.pages.extent(Extent {
            len,
            source: Source::Hole,
        })
    }

    /// Ends the open content, which has `len` bytes and is not in the image yet.
    ///
    /// # Errors
    /// As [`ContentWriter::data`].
    pub fn end(&mut self, len: u64, digest: Digest) -> Result<ContentId> {
        let fsverity = self.fsverity.as_mut().map(std::mem::take);
        self.end_with_fsverity(len, digest, fsverity.map(FsVerity::finish))
    }

    fn end_with_fsverity(
        &mut self,
        len: u64,
        digest: Digest,
        fsverity: Option<[u8; FSVERITY_DIGEST_LEN]>,
    ) -> Result<ContentId> {
        if let Some(fsverity) = fsverity {
            self.pages.push_fsverity(&fsverity)?;
        }
        self.content_len = 0;
        let id = self.table.insert(digest)?;
        self.pages.content_lens.push(len);
        if self.pages.content_lens.len() == ITEMS_PER_PAGE {
            self.pages.write_contents()?;
        }
        Ok(id)
    }

    /// How readers can prepare data for [`ContentWriter::add`] ahead.
    pub fn preparing(&self) -> Preparing {
        Preparing {
            categories: self.categories,
            rule: self.segmenter.rule(),
        }
    }

    /// Begins a content with all its data. Returns the marks of the data, if they are known.
    fn begin_prepared(&mut self, data: &[u8], prepared: Option<Prepared>) -> Option<MarkList> {
        let Some(prepared) = prepared else {
            self.begin(data);
            return None;
        };
        self.open_parts = prepared.parts;
        prepared.marks
    }

    /// Adds a content whose data is in memory, unless the image or a base has it already.
    /// `prepared` is what somebody found out about its data.
    ///
    /// # Errors
    /// As [`ContentWriter::data`].
    pub fn add(
        &mut self,
        layout: &Layout,
        data: &[u8],
        prepared: Option<Prepared>,
        digest: Digest,
    ) -> Result<ContentId> {
        if let Some(id) = self.find(&digest)? {
            return Ok(id);
        }
        let marks = self.begin_prepared(data, prepared);
        let marks = marks.as_ref();
        let Some(runs) = &layout.runs else {
            self.data_with(data, 0, marks)?;
            return self.end(layout.len, digest);
        };
        let (mut rest, mut at) = (data, 0);
        for run in runs {
            self.hole(run.start - at)?;
            let start = data.len() - rest.len();
            let (here, after) = rest.split_at((run.end - run.start) as usize);
            self.data_with(here, start, marks)?;
            (rest, at) = (after, run.end);
        }
        self.hole(layout.len - at)?;
        self.end(layout.len, digest)
    }

    /// Writes everything that is still buffered. `old` are the streams of the generation before.
    /// `on_progress` is called after each block with the bytes that still wait for compression and
    /// the length of the image.
    ///
    /// # Errors
    /// As [`ContentWriter::data`], and the errors of `on_progress`.
    pub fn finish(
        mut self,
        old: &[Stream],
        on_progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<ContentSummary> {
        let fresh_len = self.segmenter.fresh_len();
        self.segmenter.close();
        let sections = self.starting.tail_sections();
        if !sections.is_empty() {
            let hits = std::mem::take(&mut self.segmenter.hits);
            let share_max = match self.similar {
                Some(_) => HISTORY_SHARE_MAX,
                None => u64::MAX,
            };
            let len_max = self.history_len_max;
            let tails = TailHistories::new(sections, hits, len_max, share_max);
            self.pages.tails = Some(tails);
        }
        self.segmenter.finish(&mut self.pages)?;
        self.pages.finish_clusters(on_progress)?;
        self.pages.write_extents()?;
        self.pages.write_contents()?;
        self.pages.write_fsverity()?;
        self.pages.write_recipes()?;
        let made_len = self.pages.made_len - self.made_before_len;
        let recipe_len_max = self.pages.recipe_len_max;
        self.pages.compressors.finish(self.pages.image)?;
        let block_len = self.pages.block_len;
        let stream = |category| {
            let old = old.iter().find(|s| s.category == category);
            let len = match category {
                Category::Made => recipe_len_max,
                _ => block_len_of(category, block_len),
            };
            Stream {
                category,
                block_len_max: old.map_or(len, |s| s.block_len_max.max(len)),
            }
        };
        Ok(ContentSummary {
            table: self.table,
            streams: CATEGORIES
                .map(stream)
                .into_iter()
                .chain(self.base_streams)
                .collect(),
            base_len: self.base_len,
            repeated_len: self.segmenter.repeated_len,
            fresh_len,
            hole_len: self.hole_len,
            made_len,
            plain_len: self.plain_len,
        })
    }
}
