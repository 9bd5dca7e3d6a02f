//! Makes a whole image of what is left of a damaged one.
//!
//! The contents stay where they are. The tree is read from what is left of it (`tree`), and written
//! anew (`source`) as one more generation, which only this process has in memory. The result is an
//! image like any other: it can be extracted, and be the source of another image.

mod orphans;
mod source;
mod tree;

use crate::dedup::contents::ContentTable;
use crate::options::BuildOptions;
use crate::options::plan::Plan;
use crate::pipeline::plan::TreeSize;
use crate::pipeline::stream::write_salvaged;
use crate::progress::Observer;
use crate::write::image_writer::{ImageWriter, Sink};
use crate::write::metadata::MetadataWriter;
use parking_lot::Mutex;
use source::SalvageSource;
use std::sync::Arc;
use tree::DamagedTree;
pub use tree::{Lost, TellLost};
use weald_format::container::RecordRef;
use weald_format::store::Part;
use weald_format::{Digest, Error, Result};
use weald_image::{Damaged, Image, OpenOptions, Overlay};
use weald_store::PartSink;
use zerocopy::IntoBytes;

/// What is left of a damaged image, as an image.
pub struct Salvaged {
    /// The image. Its storage is that of the damaged one, and this process.
    pub image: Arc<Image>,
    /// Whether the tree is the one that the damaged image claims, and its newest: nothing is lost.
    pub is_complete: bool,
    /// Contents that cannot be read.
    pub lost_content_count: u64,
    /// Contents without a name, which are below the directory for lost things.
    pub nameless_count: u64,
}

/// Makes an image of what is left of `damaged`. `digests` are those of its contents, `None` for
/// those that cannot be read. `tell` gets each path that is lost, or of which something is.
///
/// # Errors
/// `Limit` for a tree that takes more memory than a build may; `Invalid` ("interrupted") if
/// `observer` ends it; `Io`, `Corrupt`.
/// # Cost
/// Reads the metadata four times; memory of the new metadata, as it is stored, and of the largest
/// directory.
pub fn salvage(
    damaged: &Damaged,
    digests: &[Option<Digest>],
    tell: &TellLost<'_>,
    options: &OpenOptions,
    observer: &dyn Observer,
) -> Result<Salvaged> {
    let tree = DamagedTree::new(&damaged.image, digests);
    let nameless_count = tree.orphans().contents.len() as u64;
    let mut source = SalvageSource::new(tree, tell, observer)?;
    let (bytes, tree_digest) = write(&mut source, &damaged.image, digests, observer)?;
    let image_len = damaged.image.summary().image_len;
    let overlay = Overlay::new(damaged.source.clone(), image_len, bytes);
    let options = OpenOptions {
        generation: None,
        expected_digest: None,
        ..options.clone()
    };
    Ok(Salvaged {
        image: Arc::new(Image::open(Arc::new(overlay), &options)?),
        is_complete: tree_digest == damaged.tree_digest && damaged.behind_len == 0,
        lost_content_count: digests.iter().filter(|digest| digest.is_none()).count() as u64,
        nameless_count,
    })
}

/// The bytes of a generation with the tree of `source`, and its tree digest.
fn write(
    source: &mut SalvageSource<'_>,
    damaged: &Image,
    digests: &[Option<Digest>],
    observer: &dyn Observer,
) -> Result<(Vec<u8>, Digest)> {
    let options = BuildOptions::default().without_contents();
    let mut table = ContentTable::default();
    for digest in digests {
        // No entry refers to a content that cannot be read.
        table.insert(digest.unwrap_or_default())?;
    }
    let held = Held::default();
    let sink = Sink::Store(Arc::new(Mutex::new(held.clone())));
    let mut image = ImageWriter::resume_contents(sink, damaged);
    let mut metadata = MetadataWriter::without_dictionary(options.metadata_level);
    let check = |tree: &TreeSize| Plan::check_tree(&options, tree, table.count(), 0);
    let writers = (&mut image, &mut metadata);
    let emitted = write_salvaged(source, writers, (&table, &options, &check), observer)?;
    let directory = damaged.directory();
    let (streams, bases) = (directory.streams.clone(), directory.bases.clone());
    let name_count = emitted.summary.name_count;
    image.seal(
        &directory.label,
        emitted.tree_digest,
        name_count,
        streams,
        bases,
        false,
    )?;
    let bytes = std::mem::take(&mut *held.0.lock());
    Ok((bytes, emitted.tree_digest))
}

/// Bytes of a generation that nothing stores.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Vec<u8>>>);

impl PartSink for Held {
    fn put_inline(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.lock().extend_from_slice(bytes);
        Ok(())
    }

    fn put_record(&mut self, record: &RecordRef, stored: &[u8]) -> Result<()> {
        let mut held = self.0.lock();
        held.extend_from_slice(record.header().as_bytes());
        held.extend_from_slice(stored);
        Ok(())
    }

    fn put_part(&mut self, _: Part) -> Result<()> {
        Err(Error::invalid("a tree has no blocks"))
    }
}
