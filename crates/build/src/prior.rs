//! What is there already when a build appends to an image: its contents, its streams, its directories.
//!
//! Nothing of that is stored as an index: digests and samples are taken anew from the bytes, all of which pass their digests on
//! the way, so that a new generation never builds on damage.

use crate::plan::Plan;
use crate::read::WHOLE_LEN_MAX;
use std::path::Path;
use std::sync::Arc;
use weald_format::directory::{Category, Stream};
use weald_format::{ByteLen, ContentId, Digest, Error, Result};
use weald_image::{Image, OpenOptions};

/// Bytes of memory that a content of the image takes: its digest three times, its number in a table.
const CONTENT_LEN: u64 = 112;
/// Bytes of memory that a directory of the image takes: its key and its number in a table.
const TEMPLATE_LEN: u64 = 96;

/// The image that is appended to, and what its contents are.
pub struct Prior {
    /// The last generation.
    pub image: Arc<Image>,
    /// Digest of every content.
    pub digests: Vec<Digest>,
    /// The same, sorted.
    pub known: Arc<[Digest]>,
    /// Contents that recipes make, ascending.
    pub made: Vec<ContentId>,
    /// Lengths of contents that are not read whole.
    pub long_lens: Vec<u64>,
}

/// Opens the image at `path` to append to it, with a cache that fits a budget of `memory_len` bytes.
///
/// # Errors
/// `NotFound`, `Io`, `Corrupt`; `Unsupported` where its streams are not laid out as this program does.
pub fn open(path: &Path, memory_len: u64, threads: usize) -> Result<Arc<Image>> {
    let options = OpenOptions {
        cache_len: ByteLen(cache_len(memory_len)),
        prefetch_threads: threads,
        ..OpenOptions::default()
    };
    let image = Image::open_path(path, 0, &options)?;
    let found: Vec<Category> = image.directory().streams.iter().map(category).collect();
    match found == crate::contents::CATEGORIES {
        true => Ok(Arc::new(image)),
        false => Err(Error::new(
            weald_format::ErrorKind::Unsupported,
            format!(
                "{}: its streams are not those that this program appends to",
                path.display()
            ),
        )),
    }
}

fn category(stream: &Stream) -> Category {
    stream.category
}

fn cache_len(memory_len: u64) -> u64 {
    (memory_len / 8).max(32 << 20)
}

/// Bytes of memory that appending to `image` takes besides what the build itself does.
pub fn memory_len(image: &Image, memory_len: u64) -> u64 {
    let summary = image.summary();
    // Tables grow with the cache as `OpenOptions` has it; 4 MiB of them are outside of it.
    cache_len(memory_len)
        + (4 << 20)
        + summary.content_count * CONTENT_LEN
        + summary.template_count * TEMPLATE_LEN
}

impl Prior {
    /// Takes the digests of all contents of `image`, which is the one at `path`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Decodes the image once.
    pub fn read(image: Arc<Image>, path: &Path, memory_len: u64, plan: &Plan) -> Result<Self> {
        // Nothing else needs memory yet, and with a larger cache fewer blocks are decoded twice.
        let options = OpenOptions {
            cache_len: ByteLen(memory_len / 2),
            expected_digest: Some(image.summary().image_digest),
            ..OpenOptions::default()
        };
        let digests = Image::open_path(path, 0, &options)?.content_digests(plan.threads)?;
        let mut known = digests.clone();
        known.sort_unstable();
        let mut long_lens = Vec::new();
        for id in (0..image.summary().content_count).map(ContentId) {
            let len = image.content_len(id)?;
            if len > WHOLE_LEN_MAX {
                long_lens.push(len);
            }
        }
        Ok(Self {
            long_lens,
            made: image.made_contents()?,
            known: known.into(),
            digests,
            image,
        })
    }
}
