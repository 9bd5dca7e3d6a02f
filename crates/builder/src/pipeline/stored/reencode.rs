//! Encodes blocks of a store again if less than half of their data is used, to free the rest.
//!
//! A block holds data of many files, so a single file can keep it alive. Such a block is replaced
//! by one in which all unused bytes are zero. All addresses stay, and zeros take almost no space.
//! The images that refer to the block get a new index and therefore a new image digest; their tree
//! digests stay.

use super::trim::{FILLED_LEN_MIN, Fate, PartTable, replace_blocks};
use super::used_blocks::{Grains, used_blocks};
use crate::compress::compressors::{Target, compress_one};
use crate::options::BuildOptions;
use crate::progress::Observer;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_codec::CodecSpec;
use weald_format::container::{Codec, RecordRef};
use weald_format::directory::Category;
use weald_format::store::{ImageMap, Part};
use weald_format::{BlockId, ByteLen, Digest, Error, ErrorKind, Result};
use weald_image::{Image, OpenOptions};
use weald_store::{Incoming, Store, StoreWriter, StoredImage};

/// Memory of an encoder and of the reader of images, without blocks, bytes.
const FIXED_LEN: u64 = 48 << 20;
/// Cache of an open image, bytes.
const IMAGE_CACHE_LEN: u64 = 8 << 20;

/// Options of [`reencode`].
#[derive(Debug, Clone, Copy)]
pub struct ReencodeOptions {
    /// Share of used data below which a block is encoded again, per cent.
    pub below_percent: u64,
    /// Memory limit, bytes. Blocks that need more stay unchanged.
    pub memory_len: u64,
    /// Raw data per second, bytes; 0 = no limit.
    pub rate_max: u64,
}

impl Default for ReencodeOptions {
    fn default() -> Self {
        Self {
            below_percent: 50,
            memory_len: 128 << 20,
            rate_max: 0,
        }
    }
}

/// Result of [`reencode`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reencoded {
    /// Number of blocks encoded again.
    pub block_count: u64,
    /// Stored bytes of these blocks before.
    pub old_len: u64,
    /// Stored bytes of these blocks now.
    pub new_len: u64,
    /// Number of images with a new index.
    pub image_count: u64,
    /// Number of images left unchanged, because they are in use or have base images.
    pub skipped_count: u64,
    /// Number of blocks that need more than the memory limit.
    pub too_large_count: u64,
}

/// Use of a block of the store by all images.
#[derive(Debug, Default)]
struct Usage {
    used: Grains,
    raw_len: u64,
    stored_len: u64,
    /// Whether the block must not change: it is the history of another block, or an image that
    /// cannot change refers to it.
    is_pinned: bool,
}

/// The blocks of a store, by id.
type Usages = HashMap<BlockId, Usage>;

/// Encodes blocks of the store again, image by image. An error does not undo the finished images.
///
/// # Errors
/// `Io`, `Full`, `Corrupt`; `Invalid` if cancelled.
/// # Cost
/// Reads the metadata of all images; decodes and encodes the chosen blocks. Memory: 150 bytes per
/// block, one bit per 4 KiB of raw data, and the memory limit of the options.
pub fn reencode(
    mut writer: StoreWriter,
    options: &ReencodeOptions,
    observer: &dyn Observer,
) -> Result<(StoreWriter, Reencoded)> {
    let mut done = Reencoded::default();
    if !writer.needs_examination(options.below_percent)? {
        return Ok((writer, done));
    }
    let store = writer.store().clone();
    let usages = match usages(&store, &writer, &mut done, observer) {
        // What an image uses whose metadata cannot be read is not known. All else is collected.
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            done.skipped_count += 1;
            return Ok((writer, done));
        }
        other => other?,
    };
    let mut work = Work {
        chosen: choose(&usages, options, &mut done),
        usages,
        options: *options,
        replaced: HashMap::new(),
        done,
        since: Instant::now(),
        raw_len: 0,
    };
    for name in store.names()? {
        refuse_if_cancelled(observer)?;
        let map = store.map(&name)?;
        if !map.parts.iter().any(|part| work.is_chosen(part)) {
            continue;
        }
        let lock = match writer.lock_image(&name, "unmount it first") {
            Err(error) if error.kind() == ErrorKind::Busy => {
                work.done.skipped_count += 1;
                continue;
            }
            other => other?,
        };
        writer = work.image(writer, &name, &map, lock)?;
    }
    // Images and blocks that were skipped are examined again next time.
    if work.done.skipped_count == 0 && work.done.too_large_count == 0 {
        writer.set_examined(options.below_percent)?;
    }
    Ok((writer, work.done))
}

fn refuse_if_cancelled(observer: &dyn Observer) -> Result<()> {
    if observer.is_cancelled() {
        Err(Error::invalid("interrupted"))
    } else {
        Ok(())
    }
}

/// Collects the use of all blocks by all images.
fn usages(
    store: &Store,
    writer: &StoreWriter,
    done: &mut Reencoded,
    observer: &dyn Observer,
) -> Result<Usages> {
    let mut usages = Usages::new();
    let base_digests = base_digests(store)?;
    let segments = store.segment_numbers()?;
    for name in store.names()? {
        refuse_if_cancelled(observer)?;
        let map = store.map(&name)?;
        let is_free = match writer.lock_image(&name, "unmount it first") {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::Busy => false,
            Err(error) => return Err(error),
        };
        // A base image is found by its digest, so its digest must not change.
        let is_base = base_digests.contains(&map.image_digest);
        let is_whole = map
            .blocks()
            .all(|(_, place, _)| segments.contains(&place.segment));
        let can_change = is_free && !is_base && is_whole;
        if !(can_change && add_usage(store, &name, &map, &mut usages)?) {
            done.skipped_count += 1;
            for (id, ..) in map.blocks() {
                usages.entry(id).or_default().is_pinned = true;
            }
        }
    }
    Ok(usages)
}

/// Digests of the base images of all images of the store.
fn base_digests(store: &Store) -> Result<HashSet<Digest>> {
    let mut digests = HashSet::new();
    for name in store.names()? {
        let source = StoredImage::open(store.clone(), &name)?;
        let bases = weald_image::bases_of(&source).map_err(|error| error.context(&name))?;
        digests.extend(bases.iter().map(|base| base.image_digest));
    }
    Ok(digests)
}

fn open(store: &Store, name: &str) -> Result<Image> {
    let options = OpenOptions {
        cache_len: ByteLen(IMAGE_CACHE_LEN),
        prefetch_threads: 0,
        ..OpenOptions::default()
    };
    let source = StoredImage::open(store.clone(), name)?;
    Image::open(Arc::new(source), &options).map_err(|error| error.context(name))
}

/// Adds the use of blocks by the image `name`. Returns false if its blocks cannot be replaced.
fn add_usage(store: &Store, name: &str, map: &ImageMap, usages: &mut Usages) -> Result<bool> {
    let image = match open(store, name) {
        // The image has a base that is missing.
        Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(false),
        other => other?,
    };
    // Older generations use blocks too.
    if !image.directory().bases.is_empty() || image.summary().generation > 1 {
        return Ok(false);
    }
    let table = PartTable::new(map);
    let blocks = used_blocks(&image, &image.used_contents()?)?;
    for blocks in &blocks {
        for (no, (record, used)) in (0..).zip(blocks.iter()) {
            let Part::Block { id, record, .. } = table.block(record)? else {
                continue;
            };
            let usage = usages.entry(id).or_default();
            usage.used.add_all(used);
            (usage.raw_len, usage.stored_len) = (record.raw_len, record.stored_len);
            usage.is_pinned |= blocks.is_history(no) || record.codec == Codec::ZstdHistory;
        }
    }
    Ok(true)
}

/// Chooses the blocks that are worth encoding again.
fn choose(usages: &Usages, options: &ReencodeOptions, done: &mut Reencoded) -> HashSet<BlockId> {
    let mut chosen = HashSet::new();
    for (id, usage) in usages {
        let is_sparse = usage.used.used_len().saturating_mul(100)
            < usage.raw_len.saturating_mul(options.below_percent);
        if usage.is_pinned || !is_sparse || usage.stored_len < FILLED_LEN_MIN {
            continue;
        }
        // The old and the new block, each raw and stored.
        if FIXED_LEN + IMAGE_CACHE_LEN + 4 * usage.raw_len > options.memory_len {
            done.too_large_count += 1;
            continue;
        }
        chosen.insert(*id);
    }
    chosen
}

struct Work {
    usages: Usages,
    chosen: HashSet<BlockId>,
    options: ReencodeOptions,
    /// New blocks by the id of the old ones.
    replaced: HashMap<BlockId, Part>,
    done: Reencoded,
    since: Instant,
    raw_len: u64,
}

impl Work {
    fn is_chosen(&self, part: &Part) -> bool {
        matches!(part, Part::Block { id, .. } if self.chosen.contains(id))
    }

    /// Replaces the chosen blocks of the image `name`. Its `lock` keeps readers out.
    fn image(
        &mut self,
        writer: StoreWriter,
        name: &str,
        map: &ImageMap,
        lock: weald_store::ImageLock,
    ) -> Result<StoreWriter> {
        // This process holds the lock, so it opens the image in spite of it.
        let store = writer.store().clone();
        let source = StoredImage::open_locked(store, map, &lock);
        let image = Image::open(Arc::new(source), &OpenOptions::default())?;
        let incoming = Arc::new(Mutex::new(Incoming::over(writer, name, lock)));
        let (mut fresh, mut has_changed) = (Vec::new(), false);
        let sealed = replace_blocks(&image, map, &incoming, &mut |stream, _, record, part| {
            let Part::Block { id, .. } = part else {
                return Ok(Fate::Stays);
            };
            if !self.chosen.contains(id) {
                return Ok(Fate::Stays);
            }
            if let Some(other) = self.replaced.get(id) {
                has_changed = true;
                return Ok(Fate::Other(other.clone()));
            }
            let fate = self.block(&image, stream, record, *id)?;
            if let Fate::New(outgoing) = &fate {
                has_changed = true;
                fresh.push((*id, outgoing.digest));
            }
            Ok(fate)
        })?;
        let mut incoming = Arc::into_inner(incoming)
            .map(Mutex::into_inner)
            .ok_or_else(|| Error::invalid("the image is still being written"))?;
        if !has_changed {
            return Ok(incoming.into_writer());
        }
        for (id, digest) in fresh {
            if let Some(part) = incoming.part_of(&digest) {
                self.replaced.insert(id, part);
            }
        }
        incoming.publish(sealed.image_digest, image.summary().tree_digest)?;
        self.done.image_count += 1;
        Ok(incoming.into_writer())
    }

    fn block(
        &mut self,
        image: &Image,
        stream: u8,
        record: &RecordRef,
        id: BlockId,
    ) -> Result<Fate> {
        let Some(usage) = self.usages.get(&id) else {
            return Ok(Fate::Stays);
        };
        let mut raw = match image.block(stream, record) {
            // A damaged block stays, for a salvage or a backup.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.chosen.remove(&id);
                self.done.skipped_count += 1;
                return Ok(Fate::Stays);
            }
            other => other?,
        };
        usage.used.clear_unused(&mut raw);
        self.slow_down(raw.len() as u64);
        let streams = &image.directory().streams;
        let category = streams.get(usize::from(stream)).map(|s| s.category);
        let category = category.unwrap_or(Category::General);
        let target = Target {
            stream,
            category,
            codec: codec_of(category),
        };
        let outgoing = compress_one(target, raw)?;
        let new_len = outgoing.encoded.stored.len() as u64;
        // Keep the old block if the new one saves less than a quarter.
        if new_len >= record.stored_len / 4 * 3 {
            self.chosen.remove(&id);
            return Ok(Fate::Stays);
        }
        self.done.block_count += 1;
        self.done.old_len += record.stored_len;
        self.done.new_len += new_len;
        Ok(Fate::New(outgoing))
    }

    /// Waits until `len` more bytes are within the rate limit.
    fn slow_down(&mut self, len: u64) {
        self.raw_len += len;
        if self.options.rate_max == 0 {
            return;
        }
        let due = Duration::from_secs_f64(self.raw_len as f64 / self.options.rate_max as f64);
        std::thread::sleep(due.saturating_sub(self.since.elapsed()));
    }
}

/// Codec of a default build. Incompressible data is compressed now, because it has runs of zeros.
fn codec_of(category: Category) -> CodecSpec {
    let default = BuildOptions::default();
    match category {
        Category::Incompressible => CodecSpec::Zstd(1),
        Category::X86 => default.x86_codec.unwrap_or(default.codec),
        Category::Arm64 => default.arm64_codec.unwrap_or(default.codec),
        _ => default.codec,
    }
}
