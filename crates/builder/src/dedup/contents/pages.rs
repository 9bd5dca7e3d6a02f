//! Hands blocks to the compressors and collects extents, recipes and contents into pages.

use crate::compress::cluster::Clusters;
use crate::compress::compressors::{BehindBlocks, Compressors, Target};
use crate::compress::record_history::TailHistories;
use crate::dedup::streams::{ARM64, INCOMPRESSIBLE, MADE, X86};
use crate::options::SmallTree;
use crate::options::plan::Plan;
use crate::segment::segmenter::SegmentSink;
use crate::write::image_writer::{ImageWriter, Outgoing, RecordSink};
use crate::write::metadata::MetadataWriter;
use std::sync::Arc;
use weald_codec::CodecSpec;
use weald_format::container::RecordType;
use weald_format::directory::Category;
use weald_format::limits::{EXTENTS_PER_PAGE, ITEMS_PER_PAGE, NUMBER_MAX};
use weald_format::pages::{
    BaseRun, ContentPage, Extent, ExtentPage, ExtentRun, FSVERITY_LEN, Heads, Source,
};
use weald_format::recipes::{Recipe, RecipePage};
use weald_format::{Error, Result};

/// Corrections that one page of recipes may hold, bytes. The page is written once it exceeds this.
const PAGE_CORRECTIONS_LEN_MAX: usize = 1 << 20;

/// Pages of extents, recipes and contents, and the compressors that take the blocks.
pub struct Pages<'a> {
    pub image: &'a mut ImageWriter,
    pub metadata: &'a mut MetadataWriter,
    pub compressors: Compressors,
    /// What a small tree has instead, and how many threads compress its blocks.
    pub small_tree: Option<(SmallTree, usize)>,
    /// Raw bytes of a block of a compressed stream.
    pub block_len: u64,
    pub codec: CodecSpec,
    pub x86_codec: CodecSpec,
    pub arm64_codec: CodecSpec,
    pub extents: Vec<ExtentRun>,
    /// Extents that the runs in `extents` stand for.
    pub extent_count: usize,
    pub heads: Heads,
    pub logical_len: u64,
    pub content_lens: Vec<u64>,
    /// fs-verity digests of contents, if the image keeps them.
    pub fsverity: Vec<u8>,
    pub content_start: u64,
    pub recipes: Vec<Recipe>,
    pub corrections_len: usize,
    /// Bytes that all recipes so far make.
    pub made_len: u64,
    /// Longest output of a single recipe, bytes.
    pub recipe_len_max: u64,
    /// Finds histories for the last blocks of streams.
    pub tails: Option<TailHistories>,
    /// Reorders the blocks of compressed streams; `None` if they keep their order.
    pub clusters: Option<Clusters>,
}

impl SegmentSink for Pages<'_> {
    fn block(&mut self, stream: u8, block: Arc<Vec<u8>>) -> Result<()> {
        let Some(clusters) = self.clusters.as_mut().filter(|c| c.is_clustered(stream)) else {
            return self.submit(stream, block, true);
        };
        clusters.push_block(stream, &block)?;
        // Hand on one block for each block that comes, so that compressors have work while files
        // are read. The order in the image then depends on the files alone.
        match clusters.next_ready()? {
            Some(ready) => self.submit(ready.stream, ready.raw, false),
            None => Ok(()),
        }
    }

    fn extent(&mut self, extent: Extent) -> Result<()> {
        self.push_run(ExtentRun::Own(extent), 1)
    }

    fn raw_offset(&self, stream: u8, no: u64) -> Option<u64> {
        match &self.clusters {
            Some(clusters) if clusters.is_clustered(stream) => clusters.spool_offset(stream, no),
            _ => self.image.raw_offset(stream, no),
        }
    }
}

/// Joins two runs into one if the second continues the first.
fn merged(first: &ExtentRun, second: &ExtentRun) -> Option<ExtentRun> {
    let len = first.logical_len() + second.logical_len();
    match (first, second) {
        (ExtentRun::Own(first), ExtentRun::Own(second)) => {
            let is_contiguous = match (first.source, second.source) {
                (Source::Hole, Source::Hole) => true,
                (
                    Source::Stream { stream: a, address },
                    Source::Stream {
                        stream: b,
                        address: next,
                    },
                ) => a == b && address + first.len == next,
                _ => false,
            };
            let source = first.source;
            is_contiguous.then_some(ExtentRun::Own(Extent { len, source }))
        }
        (ExtentRun::Base(first), ExtentRun::Base(second)) => {
            let is_contiguous =
                first.base == second.base && first.start + first.len == second.start;
            is_contiguous.then_some(ExtentRun::Base(BaseRun { len, ..*first }))
        }
        _ => None,
    }
}

impl<'a> Pages<'a> {
    /// Creates pages for an image whose streams grow from `heads` on. The image already has
    /// `logical_len` bytes of contents, and recipes make `made_len` bytes.
    pub fn new(
        image: &'a mut ImageWriter,
        metadata: &'a mut MetadataWriter,
        compressors: Compressors,
        plan: &Plan,
        heads: Heads,
        (logical_len, made_len): (u64, u64),
    ) -> Self {
        Self {
            image,
            metadata,
            compressors,
            small_tree: plan.small_tree,
            block_len: plan.block_len,
            codec: plan.codec,
            x86_codec: plan.x86_codec,
            arm64_codec: plan.arm64_codec,
            extents: Vec::new(),
            extent_count: 0,
            heads,
            logical_len,
            content_lens: Vec::new(),
            fsverity: Vec::new(),
            content_start: logical_len,
            recipes: Vec::new(),
            corrections_len: 0,
            made_len,
            recipe_len_max: 0,
            tails: None,
            clusters: None,
        }
    }
}

impl Pages<'_> {
    /// Hands a block to the compressors. A block that may be the last of its stream may get a
    /// history.
    fn submit(&mut self, stream: u8, block: Arc<Vec<u8>>, may_be_last: bool) -> Result<()> {
        let (category, codec) = match stream {
            INCOMPRESSIBLE => (Category::Incompressible, CodecSpec::None),
            X86 => (Category::X86, self.x86_codec),
            ARM64 => (Category::Arm64, self.arm64_codec),
            _ => (Category::General, self.codec),
        };
        let target = Target {
            stream,
            category,
            codec,
        };
        let history = match &self.tails {
            Some(tails) if may_be_last => tails.history_for(category, codec, block.len())?,
            _ => None,
        };
        self.compressors
            .submit_with_history(self.image, target, block, history)
    }

    /// Hands all waiting blocks on in their final order. After each block `on_progress` is called
    /// with the bytes that still wait and the length of the image.
    ///
    /// # Errors
    /// Those of the spool, of earlier blocks, and of `on_progress`.
    pub fn finish_clusters(
        &mut self,
        on_progress: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        let Some(mut clusters) = self.clusters.take() else {
            return Ok(());
        };
        let small = self.small_tree;
        let (len, block_len) = small.map_or((0, 0), |(s, _)| (s.len_max, s.block_len));
        let is_small = clusters.close(len, block_len)?;
        if let Some((small, threads)) = small.filter(|_| is_small) {
            (self.codec, self.x86_codec) = (small.codec, small.codec);
            self.arm64_codec = small.codec;
            self.block_len = small.block_len;
            self.compressors
                .restart(self.image, threads, small.block_len)?;
        }
        while let Some(ready) = clusters.next_ready()? {
            self.submit(ready.stream, ready.raw, ready.is_last)?;
            on_progress(clusters.waiting_len(), self.image.position())?;
        }
        clusters.each_extent(&mut |run, count| self.put_run(run, count))
    }

    /// Adds the next piece of the logical space, which stands for `count` extents.
    pub fn push_run(&mut self, run: ExtentRun, count: usize) -> Result<()> {
        match &mut self.clusters {
            Some(clusters) => clusters.push_extent(run, count),
            None => self.put_run(run, count),
        }
    }

    fn put_run(&mut self, run: ExtentRun, count: usize) -> Result<()> {
        self.logical_len += run.logical_len();
        if self.logical_len > NUMBER_MAX {
            return Err(Error::limit("more than 2^62 bytes of distinct contents"));
        }
        let merged = self.extents.last().and_then(|last| merged(last, &run));
        // Two own extents that are merged count as one. The extents of a base run are never merged.
        let added = match merged {
            Some(ExtentRun::Own(_)) => 0,
            _ => count,
        };
        if self.extent_count + added > EXTENTS_PER_PAGE {
            self.write_extents()?;
        } else if let (Some(merged), Some(last)) = (merged, self.extents.last_mut()) {
            *last = merged;
            self.extent_count += added;
            return Ok(());
        }
        self.extent_count += count;
        self.extents.push(run);
        Ok(())
    }

    pub fn write_extents(&mut self) -> Result<()> {
        let extents = std::mem::take(&mut self.extents);
        self.extent_count = 0;
        if extents.is_empty() {
            return Ok(());
        }
        let len = extents.iter().map(ExtentRun::logical_len).sum();
        let bytes = ExtentPage::encode_runs(&extents, &mut self.heads);
        // The runs of bases were read from the base a moment ago; only the rest is parsed here.
        let parsed = ExtentPage::parse_with_bases(&bytes, &mut |run, take| {
            let source = Source::Hole;
            take(Extent {
                len: run.len,
                source,
            })
        });
        assert!(
            parsed.is_ok_and(|p| p.logical_len() == len),
            "an extent page does not parse as it was written"
        );
        self.push(RecordType::Extents, bytes, len)
    }

    /// Adds `recipe`, which makes the next bytes of the stream of recipes.
    pub fn push_recipe(&mut self, recipe: Recipe) -> Result<()> {
        let len = recipe.len;
        self.corrections_len += recipe.corrections.len();
        self.recipes.push(recipe);
        self.made_len += len;
        self.recipe_len_max = self.recipe_len_max.max(len);
        let is_full = self.recipes.len() == ITEMS_PER_PAGE;
        if is_full || self.corrections_len > PAGE_CORRECTIONS_LEN_MAX {
            self.write_recipes()?;
        }
        Ok(())
    }

    /// The next `len` bytes of the logical space are the data that recipes make from `address` on.
    pub fn push_made(&mut self, address: u64, len: u64) -> Result<()> {
        self.extent(Extent {
            len,
            source: Source::Stream {
                stream: MADE,
                address,
            },
        })
    }

    pub fn write_recipes(&mut self) -> Result<()> {
        let recipes = std::mem::take(&mut self.recipes);
        if recipes.is_empty() {
            return Ok(());
        }
        self.corrections_len = 0;
        let bytes = RecipePage::encode(&recipes);
        let parsed = RecipePage::parse(&bytes);
        let len = recipes.iter().map(|r| r.len).sum();
        assert!(
            parsed.is_ok_and(|p| p.recipes() == recipes),
            "a recipe page does not parse as it was written"
        );
        self.push(RecordType::Recipes, bytes, len)
    }

    pub fn write_contents(&mut self) -> Result<()> {
        let lens = std::mem::take(&mut self.content_lens);
        if lens.is_empty() {
            return Ok(());
        }
        let bytes = ContentPage::encode(self.content_start, &lens);
        self.content_start += lens.iter().sum::<u64>();
        self.push(RecordType::Contents, bytes, lens.len() as u64)
    }

    /// Adds the fs-verity digest of the next content.
    pub fn push_fsverity(&mut self, digest: &[u8; FSVERITY_LEN]) -> Result<()> {
        self.fsverity.extend_from_slice(digest);
        if self.fsverity.len() == ITEMS_PER_PAGE * FSVERITY_LEN {
            self.write_fsverity()
        } else {
            Ok(())
        }
    }

    /// Writes the page of fs-verity digests. The dictionary of metadata learns nothing from them.
    pub fn write_fsverity(&mut self) -> Result<()> {
        let stored = std::mem::take(&mut self.fsverity);
        if stored.is_empty() {
            return Ok(());
        }
        let mut behind = BehindBlocks {
            compressors: &mut self.compressors,
            image: self.image,
        };
        behind.put_record(Outgoing::fsverity_page(stored))
    }

    pub fn push(&mut self, record_type: RecordType, bytes: Vec<u8>, item_count: u64) -> Result<()> {
        let mut behind = BehindBlocks {
            compressors: &mut self.compressors,
            image: self.image,
        };
        self.metadata
            .push(&mut behind, record_type, bytes, item_count)
    }
}
