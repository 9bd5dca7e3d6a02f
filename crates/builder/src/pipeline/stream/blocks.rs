//! Builds an image of a tree whose data lies in encoded blocks already, such as a volume. No block
//! is encoded again: the blocks become the data records of one stream, in the order of their first
//! use, and the extents of contents point into them.

use super::contents::Stored;
use super::reporter::ProgressReporter;
use super::rules::{KNOWN_SHARE, Rules};
use super::source::TreeSource;
use super::tree::write_tree;
use super::{seal, tree_size};
use crate::dedup::contents::{ContentSummary, ContentTable};
use crate::dedup::streams::{CATEGORIES, GENERAL};
use crate::options::plan::Plan;
use crate::options::{BuildOptions, block_len_of};
use crate::pipeline::plan::{self, TreeSize};
use crate::progress::{Observer, Report, Stage};
use crate::write::image_writer::{ImageWriter, Outgoing, Sink};
use crate::write::metadata::MetadataWriter;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use weald_codec::Encoded;
use weald_format::container::{RecordRef, RecordType};
use weald_format::directory::{Category, Stream};
use weald_format::limits::{EXTENTS_PER_PAGE, ITEMS_PER_PAGE, NUMBER_MAX};
use weald_format::pages::{ContentPage, Extent, ExtentPage, Heads, Source};
use weald_format::store::Part;
use weald_format::{BlockId, ContentId, Digest, Error, Result};
use weald_store::{Imported, Incoming, PartSink, StoreWriter};

/// A range of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockExtent {
    /// Length, bytes; never 0.
    pub len: u64,
    /// The block and the first byte in it, decoded; `None` for a hole.
    pub block: Option<(BlockId, u64)>,
}

/// An encoded block.
#[derive(Debug, Clone)]
pub enum EncodedBlock {
    /// A block of the store that the image goes to.
    Stored(Part),
    /// Record and stored bytes.
    Bytes(RecordRef, Vec<u8>),
}

/// Takes contents that lie in blocks.
pub trait BlockSink {
    /// The content with this digest, if the image has it.
    fn find(&self, digest: &Digest) -> Option<ContentId>;

    /// Adds a content that the image does not have.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`; those of the callback that returns blocks; `Invalid` if the build was
    /// interrupted.
    fn add(&mut self, digest: Digest, extents: &[BlockExtent]) -> Result<ContentId>;

    /// Counts a file of `len` bytes, whose content was added or found.
    ///
    /// # Errors
    /// `Invalid` if the build was interrupted.
    fn count(&mut self, len: u64, is_repeat: bool) -> Result<()>;
}

/// A tree whose contents lie in blocks. [`TreeSource::contents`] is not called.
pub trait BlockTree: TreeSource {
    /// Hands over every content, as [`TreeSource::contents`] does.
    ///
    /// # Errors
    /// Its own, and those of `sink`.
    fn block_contents(&mut self, sink: &mut dyn BlockSink) -> Result<()>;
}

/// Callback that returns the block with a number.
pub type GetBlock<'a> = dyn FnMut(BlockId) -> Result<EncodedBlock> + 'a;

/// The file of a new image.
#[derive(Debug, Clone, Copy)]
pub struct FileTarget<'a> {
    /// Its path.
    pub path: &'a Path,
    /// Whether it may replace another file.
    pub overwrite: bool,
    /// Whether the structure of the image is checked before the file gets its name. A pipe cannot
    /// be read back, and is not checked.
    pub is_verified: bool,
}

/// Builds an image of `source` at `target`, of blocks that `blocks` returns.
///
/// # Errors
/// As [`super::build_stream`]; `Corrupt` if the image that was written is damaged.
/// # Cost
/// Copies each block that the tree uses, as it is stored.
pub fn build_of_blocks(
    source: &mut dyn BlockTree,
    blocks: &mut GetBlock<'_>,
    target: FileTarget<'_>,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    if !target.overwrite {
        weald_io::refuse_existing(target.path)?;
    }
    let out = options.new_output(target.path)?;
    let end = End {
        overwrite: target.overwrite,
        is_verified: target.is_verified,
    };
    let built = build(source, blocks, Sink::File(out), end, options, observer);
    built.map(|(report, _)| report)
}

/// How a build ends.
#[derive(Debug, Clone, Copy, Default)]
struct End {
    overwrite: bool,
    is_verified: bool,
}

/// Builds an image of `source` as `name` in the store of `writer`, to which the blocks belong.
/// Returns the digests of all contents too, for [`weald_image::Image::check_structure`].
///
/// # Errors
/// As [`super::build_stream`]; `Busy` if the name is taken.
/// # Cost
/// Copies no block.
pub fn build_of_own_blocks(
    source: &mut dyn BlockTree,
    blocks: &mut GetBlock<'_>,
    (writer, name): (StoreWriter, &str),
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<(Report, Imported, Digests)> {
    let incoming = Arc::new(Mutex::new(Incoming::new(writer, name)?));
    let sink = Sink::Store(incoming.clone());
    let end = End::default();
    let (report, digests) = build(source, blocks, sink, end, options, observer)?;
    let mut incoming = incoming.lock();
    let imported = incoming.publish(report.image_digest, report.tree_digest)?;
    // The image is complete and listed. Without its digests, the next build computes them.
    let _ = incoming.writer().put_content_digests(name, &digests);
    Ok((report, imported, digests))
}

/// Hands the parts of an image of `source` to `sink`, which belongs to the store of the blocks.
/// Returns the digests of all contents too, for [`weald_image::Image::check_structure`].
///
/// # Errors
/// As [`super::build_stream`], and those of `sink`.
/// # Cost
/// Copies no block.
pub fn build_of_parts(
    source: &mut dyn BlockTree,
    blocks: &mut GetBlock<'_>,
    sink: impl PartSink + 'static,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<(Report, Digests)> {
    let sink = Sink::Store(Arc::new(Mutex::new(sink)));
    build(source, blocks, sink, End::default(), options, observer)
}

/// Digests of all contents, by number.
pub type Digests = Vec<Option<Digest>>;

fn build(
    source: &mut dyn BlockTree,
    blocks: &mut GetBlock<'_>,
    sink: Sink,
    end: End,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<(Report, Digests)> {
    let options = &options.without_contents();
    options.validate()?;
    let size = source.size();
    let cpu_count = std::thread::available_parallelism().map_or(1, |n| n.get());
    let plan = Plan::new(options, cpu_count, &tree_size(&size), size.memory_len)?;
    plan.report_raised_limit(observer);
    let mut image = ImageWriter::begin(sink)?;
    let mut metadata = MetadataWriter::new(options.metadata_level);
    let mut reporter = ProgressReporter::new(observer, &size);
    let mut taken = Taken {
        image: &mut image,
        metadata: &mut metadata,
        blocks,
        reporter: &mut reporter,
        table: ContentTable::default(),
        addresses: HashMap::new(),
        front: 0,
        block_len_max: 0,
        extents: Vec::new(),
        heads: vec![0; CATEGORIES.len()],
        content_lens: Vec::new(),
        content_start: 0,
        logical_len: 0,
        hole_len: 0,
        lens: (0, 0),
    };
    source.block_contents(&mut taken)?;
    let stored = taken.finish()?;
    let table = &stored.contents.table;
    let digests = (0..table.count()).map(|id| Some(table.digest(ContentId(id))));
    let digests: Digests = digests.collect();
    if end.is_verified {
        image.verify_at_end(digests.clone());
    }
    reporter.begin(Stage::Tree, 0);
    let check = |tree: &TreeSize| Plan::check_tree(options, tree, table.count(), size.memory_len);
    check(&tree_size(&size))?;
    let held_len = size.memory_len
        + table.count() * plan::CONTENT_MEMORY_LEN
        + options.memory_len / KNOWN_SHARE;
    let threads = plan.metadata_threads(&tree_size(&size), held_len);
    metadata.encode_with(threads);
    let emitted = write_tree(
        source,
        (&mut image, &mut metadata),
        &Rules::new(table, options, &check),
        threads,
        &mut reporter,
    )?;
    Ok((
        seal(
            image,
            stored,
            &emitted,
            (&options.label.clone().unwrap_or_default(), end.overwrite),
        )?,
        digests,
    ))
}

/// Contents and blocks so far.
struct Taken<'a, 't> {
    image: &'a mut ImageWriter,
    metadata: &'a mut MetadataWriter,
    blocks: &'a mut GetBlock<'t>,
    reporter: &'a mut ProgressReporter<'t>,
    table: ContentTable,
    /// Address of each block in the stream, by its number.
    addresses: HashMap<BlockId, (u64, u64)>,
    /// Address of the next block.
    front: u64,
    block_len_max: u64,
    extents: Vec<Extent>,
    heads: Heads,
    content_lens: Vec<u64>,
    content_start: u64,
    /// Length of all contents so far.
    logical_len: u64,
    hole_len: u64,
    /// Length of all files, and of those whose content the image had.
    lens: (u64, u64),
}

impl BlockSink for Taken<'_, '_> {
    fn find(&self, digest: &Digest) -> Option<ContentId> {
        self.table.find(digest)
    }

    fn add(&mut self, digest: Digest, extents: &[BlockExtent]) -> Result<ContentId> {
        let mut len = 0u64;
        for extent in extents {
            len = len.saturating_add(extent.len);
            if self.logical_len.saturating_add(len) > NUMBER_MAX {
                let what = "the files have more than 2^62 bytes together, holes included";
                return Err(Error::limit(what));
            }
            let source = match extent.block {
                None => {
                    self.hole_len += extent.len;
                    Source::Hole
                }
                Some((block, offset)) => Source::Stream {
                    stream: GENERAL,
                    address: self.address_of(block, offset, extent.len)?,
                },
            };
            self.extent(extent.len, source)?;
        }
        let id = self.table.insert(digest)?;
        self.logical_len += len;
        self.content_lens.push(len);
        if self.content_lens.len() == ITEMS_PER_PAGE {
            self.write_contents()?;
        }
        Ok(id)
    }

    fn count(&mut self, len: u64, is_repeat: bool) -> Result<()> {
        self.lens.0 = self.lens.0.saturating_add(len);
        if is_repeat {
            self.lens.1 = self.lens.1.saturating_add(len);
        }
        self.reporter.advance(1, len, self.image.position())
    }
}

impl Taken<'_, '_> {
    /// The address of a range of a block, which is written when it is used first.
    fn address_of(&mut self, block: BlockId, offset: u64, len: u64) -> Result<u64> {
        let (start, raw_len) = match self.addresses.get(&block) {
            Some(known) => *known,
            None => {
                let placed = (self.front, self.write_block(block)?);
                self.addresses.insert(block, placed);
                self.front += placed.1;
                placed
            }
        };
        if offset.checked_add(len).is_some_and(|end| end <= raw_len) {
            Ok(start + offset)
        } else {
            let what = format!("a piece of a file ends behind block {block}");
            Err(Error::corrupt("extents row", 0, "V-4.3", what))
        }
    }

    fn write_block(&mut self, block: BlockId) -> Result<u64> {
        let raw_len = match (self.blocks)(block)? {
            EncodedBlock::Stored(Part::Inline(_)) => {
                return Err(Error::invalid("a block is no block"));
            }
            EncodedBlock::Stored(part @ Part::Block { record, .. }) => {
                let raw_len = record.raw_len;
                self.image.write_stored(part, &record, GENERAL, raw_len)?;
                raw_len
            }
            EncodedBlock::Bytes(record, stored) => {
                let encoded = Encoded {
                    codec: record.codec,
                    stored,
                };
                self.image.write(&Outgoing {
                    record_type: RecordType::Data,
                    stream: GENERAL,
                    encoded,
                    digest: record.digest,
                    raw_len: record.raw_len,
                    item_count: record.raw_len,
                })?;
                record.raw_len
            }
        };
        self.block_len_max = self.block_len_max.max(raw_len);
        Ok(raw_len)
    }

    fn extent(&mut self, len: u64, source: Source) -> Result<()> {
        if let Some(last) = self.extents.last_mut() {
            let is_next = match (last.source, source) {
                (Source::Hole, Source::Hole) => true,
                (Source::Stream { address: at, .. }, Source::Stream { address, .. }) => {
                    at + last.len == address
                }
                _ => false,
            };
            if is_next {
                last.len += len;
                return Ok(());
            }
        }
        if self.extents.len() == EXTENTS_PER_PAGE {
            self.write_extents()?;
        }
        self.extents.push(Extent { len, source });
        Ok(())
    }

    fn write_extents(&mut self) -> Result<()> {
        let extents = std::mem::take(&mut self.extents);
        if extents.is_empty() {
            return Ok(());
        }
        let len = extents.iter().map(|extent| extent.len).sum();
        let bytes = ExtentPage::encode(&extents, &mut self.heads);
        let parsed = ExtentPage::parse(&bytes);
        assert!(
            parsed.is_ok_and(|page| page.logical_len() == len),
            "an extent page does not parse as it was written"
        );
        self.metadata
            .push(self.image, RecordType::Extents, bytes, len)
    }

    fn write_contents(&mut self) -> Result<()> {
        let lens = std::mem::take(&mut self.content_lens);
        if lens.is_empty() {
            return Ok(());
        }
        let bytes = ContentPage::encode(self.content_start, &lens);
        self.content_start += lens.iter().sum::<u64>();
        self.metadata
            .push(self.image, RecordType::Contents, bytes, lens.len() as u64)
    }

    fn finish(mut self) -> Result<Stored> {
        self.write_extents()?;
        self.write_contents()?;
        let stream = |category| {
            let block_len_max = match category {
                Category::Made => 0,
                _ => block_len_of(category, BuildOptions::default().block_len),
            };
            Stream {
                category,
                block_len_max,
            }
        };
        let mut streams: Vec<Stream> = CATEGORIES.map(stream).into();
        if let Some(general) = streams.first_mut() {
            general.block_len_max = general.block_len_max.max(self.block_len_max);
        }
        Ok(Stored {
            contents: ContentSummary {
                table: self.table,
                streams,
                repeated_len: 0,
                fresh_len: self.front,
                hole_len: self.hole_len,
                base_len: 0,
                made_len: 0,
                plain_len: 0,
            },
            file_len: self.lens.0,
            dedup_len: self.lens.1,
        })
    }
}
