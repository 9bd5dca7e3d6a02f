//! What contents become: blocks for the compressors; extents, recipes and contents on their pages.

use super::{ARM64, DEFLATE, INCOMPRESSIBLE, PAGE_CORRECTIONS_LEN_MAX, X86};
use crate::cluster::Clusters;
use crate::compress::{Behind, Compressors, Target};
use crate::earlier::Tails;
use crate::image_writer::ImageWriter;
use crate::metadata::MetadataWriter;
use crate::plan::Plan;
use crate::segment::SegmentSink;
use std::sync::Arc;
use weald_codec::CodecSpec;
use weald_format::container::RecordType;
use weald_format::directory::Category;
use weald_format::limits::{EXTENTS_PER_PAGE, ITEMS_PER_PAGE, NUMBER_MAX};
use weald_format::pages::{BaseRun, ContentPage, Extent, ExtentPage, ExtentRun, Heads, Source};
use weald_format::recipes::{Recipe, RecipePage};
use weald_format::{Error, Result};

/// Blocks to the compressors, extents to their pages.
pub struct Pages<'a> {
    pub image: &'a mut ImageWriter,
    pub metadata: &'a mut MetadataWriter,
    pub compressors: Compressors,
    pub codec: CodecSpec,
    pub x86_codec: CodecSpec,
    pub arm64_codec: CodecSpec,
    pub extents: Vec<ExtentRun>,
    /// Extents that they stand for.
    pub extent_count: usize,
    pub heads: Heads,
    pub logical_len: u64,
    pub content_lens: Vec<u64>,
    pub content_start: u64,
    pub recipes: Vec<Recipe>,
    pub corrections_len: usize,
    /// Bytes that all recipes so far make.
    pub made_len: u64,
    /// Most bytes that one of them makes.
    pub recipe_len_max: u64,
    /// Where the blocks that end streams find a history.
    pub tails: Option<Tails>,
    /// Where blocks wait to be put in order.
    pub clusters: Option<Clusters>,
}

impl SegmentSink for Pages<'_> {
    fn block(&mut self, stream: u8, block: Arc<Vec<u8>>) -> Result<()> {
        let Some(clusters) = self.clusters.as_mut().filter(|c| c.holds(stream)) else {
            return self.submit(stream, block, true);
        };
        clusters.hold(stream, &block)?;
        // One goes on for one that comes, so that compressors have work while files are read, and
        // the order in the file follows from the files alone.
        match clusters.ready()? {
            Some(ready) => self.submit(ready.stream, ready.raw, false),
            None => Ok(()),
        }
    }

    fn extent(&mut self, extent: Extent) -> Result<()> {
        self.run(ExtentRun::Own(extent), 1)
    }

    fn raw_place(&self, stream: u8, no: u64) -> Option<u64> {
        match &self.clusters {
            Some(clusters) if clusters.holds(stream) => clusters.place(stream, no),
            _ => self.image.raw_place(stream, no),
        }
    }
}

/// The two as one, where the second goes on where the first ends.
fn merged(first: &ExtentRun, second: &ExtentRun) -> Option<ExtentRun> {
    let len = first.logical_len() + second.logical_len();
    match (first, second) {
        (ExtentRun::Own(first), ExtentRun::Own(second)) => {
            let goes_on = match (first.source, second.source) {
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
            goes_on.then_some(ExtentRun::Own(Extent { len, source }))
        }
        (ExtentRun::Base(first), ExtentRun::Base(second)) => {
            let goes_on = first.base == second.base && first.start + first.len == second.start;
            goes_on.then_some(ExtentRun::Base(BaseRun { len, ..*first }))
        }
        _ => None,
    }
}

impl<'a> Pages<'a> {
    /// Pages of an image to whose streams bytes are added at `heads`, behind `logical_len` bytes of
    /// contents, of which recipes make `made_len`.
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
            codec: plan.codec,
            x86_codec: plan.x86_codec,
            arm64_codec: plan.arm64_codec,
            extents: Vec::new(),
            extent_count: 0,
            heads,
            logical_len,
            content_lens: Vec::new(),
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
    /// Hands a block to the compressors; one that may end its stream has a history perhaps.
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
        let earlier = match &self.tails {
            Some(tails) if may_be_last => tails.of(category, codec, block.len())?,
            _ => None,
        };
        self.compressors
            .submit_after(self.image, target, block, earlier)
    }

    /// Puts all that waits in order, and hands it on; `tell` hears now and then how many bytes are
    /// left, and how long the image is.
    ///
    /// # Errors
    /// Those of the spool, of the blocks before, and of `tell`.
    pub fn finish_clusters(&mut self, tell: &mut dyn FnMut(u64, u64) -> Result<()>) -> Result<()> {
        let Some(mut clusters) = self.clusters.take() else {
            return Ok(());
        };
        clusters.close()?;
        while let Some(ready) = clusters.ready()? {
            self.submit(ready.stream, ready.raw, ready.is_last)?;
            tell(clusters.waiting_len(), self.image.position())?;
        }
        clusters.each_extent(&mut |run, count| self.put_run(run, count))
    }

    /// The next piece of the logical space, which stands for `count` extents.
    pub fn run(&mut self, run: ExtentRun, count: usize) -> Result<()> {
        match &mut self.clusters {
            Some(clusters) => clusters.hold_extent(run, count),
            None => self.put_run(run, count),
        }
    }

    fn put_run(&mut self, run: ExtentRun, count: usize) -> Result<()> {
        self.logical_len += run.logical_len();
        if self.logical_len > NUMBER_MAX {
            return Err(Error::limit("more than 2^62 bytes of distinct contents"));
        }
        let merged = self.extents.last().and_then(|last| merged(last, &run));
        // Two extents that are one count once; what a base has stays as it is there.
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
        // What bases have was read a moment ago.
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

    /// Adds `recipe`, which makes what comes next in the stream of what recipes make.
    pub fn recipe(&mut self, recipe: Recipe) -> Result<()> {
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

    /// The next piece of the logical space is what recipes make from `address` on.
    pub fn made(&mut self, address: u64, len: u64) -> Result<()> {
        self.extent(Extent {
            len,
            source: Source::Stream {
                stream: DEFLATE,
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

    pub fn push(&mut self, record_type: RecordType, bytes: Vec<u8>, item_count: u64) -> Result<()> {
        let mut behind = Behind {
            compressors: &mut self.compressors,
            image: self.image,
        };
        self.metadata
            .push(&mut behind, record_type, bytes, item_count)
    }
}
