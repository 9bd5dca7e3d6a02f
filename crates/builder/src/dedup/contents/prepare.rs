//! Prepares the writer of contents: dictionaries, look-back data, clusters and the contents of base
//! images.

use super::pages::Pages;
use crate::compress::cluster::Clusters;
use crate::compress::compressors::Dictionaries;
use crate::dedup::starting_images::StartingImages;
use crate::dedup::streams::{ARM64, CATEGORIES, GENERAL, INCOMPRESSIBLE, MADE, WINDOW_SHARES, X86};
use crate::options::block_len_of;
use crate::options::plan::Plan;
use crate::segment::look_back::LookBack;
use crate::write::image_writer::{ImageWriter, Outgoing};
use hashbrown::HashMap;
use std::path::Path;
use std::sync::Arc;
use weald_codec::arm64::INSTRUCTION_LEN;
use weald_codec::{CodecSpec, Encoder, SharedDictionary};
use weald_format::container::RecordType;
use weald_format::directory::Category;
use weald_format::{ContentId, Digest, Result};
use weald_image::Image;

/// Location of a content in a base image.
#[derive(Debug, Clone, Copy)]
pub struct BaseContent {
    /// Index of the base image.
    pub no: usize,
    /// Number in the new image of the first stream of that base image.
    pub first_stream: usize,
    pub id: ContentId,
}

/// Prepares the dictionaries of all streams for the encoders. An appended image keeps its own;
/// otherwise the new dictionary of ordinary data is written.
pub fn dictionaries(
    image: &mut ImageWriter,
    plan: &Plan,
    starting: &StartingImages,
    mut new: Option<Vec<u8>>,
) -> Result<Dictionaries> {
    let mut dictionaries = Dictionaries::default();
    let streams = [
        (GENERAL, plan.codec),
        (X86, plan.x86_codec),
        (ARM64, plan.arm64_codec),
    ];
    for (stream, codec) in streams {
        let old = match &starting.appended {
            Some(indexed) => indexed.image.stream_dictionary(stream)?,
            None => None,
        };
        let is_new = old.is_none();
        let bytes = old.or_else(|| new.take().filter(|_| stream == GENERAL));
        let (Some(bytes), Some(level)) = (bytes, codec.dictionary_level()) else {
            continue;
        };
        if is_new {
            let raw_len = bytes.len() as u64;
            let stored = Encoder::new(CodecSpec::Zstd(19), raw_len)?.encode(&bytes)?;
            let no = stream + 1;
            let record = Outgoing::new(RecordType::Dictionary, no, stored, raw_len, 1);
            image.write(&record)?;
        }
        dictionaries.insert(stream, SharedDictionary::new(level, &bytes)?);
    }
    Ok(dictionaries)
}

/// Creates the look-back data of each stream, which new data is compared with: first the image's
/// own streams, then those of its bases.
pub fn look_backs(
    image: &mut ImageWriter,
    plan: &Plan,
    spool_dir: &Path,
    starting: &StartingImages,
) -> Result<Vec<LookBack>> {
    let look_back = |category, share| {
        let block_len = block_len_of(category, plan.block_len);
        let mut look_back = LookBack::new(block_len, plan.window_len / share, spool_dir);
        // With clusters, their spool has the threads, and all of the queue.
        if plan.cluster_len == 0 {
            look_back.write_behind(plan.spool_writers, share);
        }
        look_back
    };
    let mut look_backs: Vec<LookBack> = CATEGORIES
        .into_iter()
        .zip(WINDOW_SHARES)
        .map(|(category, share)| look_back(category, share))
        .collect();
    look_backs[usize::from(ARM64)].align(INSTRUCTION_LEN as u64);
    // The segmenter reads blocks that are stored uncompressed back from the output: they need no
    // spool.
    if let Some(output) = image.reader()?.map(Arc::new) {
        if plan.codec == CodecSpec::None {
            look_backs[usize::from(GENERAL)].read_back_from(output.clone());
        }
        look_backs[usize::from(INCOMPRESSIBLE)].read_back_from(output);
    }
    if let Some(indexed) = &starting.appended {
        for (stream, look_back) in (0..).zip(&mut look_backs) {
            if stream != MADE {
                look_back.begin_with(&indexed.image, stream, indexed.is_sampled_on_demand);
            }
        }
    }
    for (image, stream) in starting.streams_elsewhere() {
        let mut look_back = look_back(Category::Base, u64::MAX);
        if !image.has_recipe_output(stream) {
            look_back.begin_with(&image, stream, false);
        }
        look_backs.push(look_back);
    }
    Ok(look_backs)
}

/// Creates the clusters, which reorder the blocks of compressed streams; `None` if the plan has no
/// clustering.
pub fn clusters(
    plan: &Plan,
    total_len: Option<u64>,
    spool_dir: &Path,
    look_backs: &mut [LookBack],
) -> Result<Option<Clusters>> {
    if plan.cluster_len == 0 {
        return Ok(None);
    }
    let codecs = [
        (GENERAL, plan.codec),
        (X86, plan.x86_codec),
        (ARM64, plan.arm64_codec),
    ];
    let is_compressed = |(_, codec): &(u8, CodecSpec)| *codec != CodecSpec::None;
    let front = |(no, _): (u8, CodecSpec)| (no, look_backs[usize::from(no)].front_len());
    let held: Vec<(u8, u64)> = codecs
        .into_iter()
        .filter(is_compressed)
        .map(front)
        .collect();
    if held.is_empty() {
        return Ok(None);
    }
    let clusters = Clusters::new(plan, total_len, &held, spool_dir)?;
    let reader = Arc::new(clusters.reader());
    for (no, _) in held {
        look_backs[usize::from(no)].read_back_from(reader.clone());
    }
    Ok(Some(clusters))
}

/// Adds the fs-verity digests of the contents of `old`. Those that it keeps are claims, so that a
/// forged image would give the new one wrong digests.
///
/// # Cost
/// Decodes all contents of `old`.
pub fn add_fsverity(pages: &mut Pages<'_>, old: &Image) -> Result<()> {
    for id in (0..old.summary().content_count).map(ContentId) {
        pages.push_fsverity(&old.fsverity_of(id)?)?;
    }
    Ok(())
}

/// Locations of the contents of all base images, by digest.
pub fn base_ids(starting: &StartingImages) -> HashMap<Digest, BaseContent> {
    let mut found = HashMap::new();
    let mut first_stream = CATEGORIES.len();
    for (no, indexed) in starting.bases.iter().enumerate() {
        for (id, digest) in (0..).map(ContentId).zip(&indexed.digests) {
            let content = BaseContent {
                no,
                first_stream,
                id,
            };
            found.entry(*digest).or_insert(content);
        }
        first_stream += indexed.image.directory().streams.len();
    }
    found
}
