//! Encodes the blocks of a store again of which less than half is used, without the rest.
//!
//! A block holds the data of many files, so that it may live for the sake of one. In place of such
//! a block comes one in which everything is zero that no image uses: all addresses stay, and zeros
//! take next to no space. The images that have the block get a new index, and so a new image
//! digest; their tree digests stay.

use super::trim::{FILLED_LEN_MIN, Fate, PartTable, replace_blocks};
use super::used_blocks::{Grains, used_blocks};
use crate::compress::compressors::{Target, compress_one};
use crate::options::BuildOptions;
use crate::progress::Watch;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_codec::CodecSpec;
use weald_format::container::{Codec, RecordRef};
use weald_format::directory::Category;
use weald_format::store::{ImageMap, Part};
use weald_format::{ByteLen, Digest, Error, ErrorKind, Result};
use weald_image::{Image, OpenOptions};
use weald_store::{Incoming, Store, StoreWriter, StoredImage};

/// What an encoder and the reader of images take besides blocks, bytes.
const FIXED_LEN: u64 = 48 << 20;
/// Cache of an image that is read, bytes.
const CACHE_LEN: u64 = 8 << 20;

/// How blocks are encoded again.
#[derive(Debug, Clone, Copy)]
pub struct ReencodeOptions {
    /// Blocks are encoded again of which less than this share is used, in per cent.
    pub below_percent: u64,
    /// Memory that the work may take, bytes; larger blocks stay as they are.
    pub memory_len: u64,
    /// Bytes of raw data per second; 0: as many as it can.
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

/// What was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reencoded {
    /// Blocks that were encoded again.
    pub block_count: u64,
    /// Stored bytes of them before.
    pub old_len: u64,
    /// Stored bytes of them now.
    pub new_len: u64,
    /// Images with a new index.
    pub image_count: u64,
    /// Images that stay as they are: somebody reads them, or they lie on base images.
    pub skipped_count: u64,
    /// Blocks that need more memory than there may be.
    pub too_large_count: u64,
}

/// What all images use of a block of the store.
#[derive(Debug, Default)]
struct Usage {
    used: Grains,
    raw_len: u64,
    stored_len: u64,
    /// Another block is compressed after it, or an image has it that cannot be changed.
    is_pinned: bool,
}

/// The blocks of a store, by id.
type Usages = HashMap<u64, Usage>;

/// Encodes blocks of the store again, image by image. What was done before an error stays done.
///
/// # Errors
/// `Io`, `Full`, `Corrupt`; `Invalid` when cancelled.
/// # Cost
/// Reads the metadata of all images; decodes and encodes the blocks that are concerned. Memory: 150
/// bytes for each block, one bit for each 4 KiB of raw data, and what the options say.
pub fn reencode(
    mut writer: StoreWriter,
    options: &ReencodeOptions,
    watch: &dyn Watch,
) -> Result<(StoreWriter, Reencoded)> {
    let mut done = Reencoded::default();
    let store = writer.store().clone();
    let usages = usages(&store, &writer, &mut done, watch)?;
    let mut work = Work {
        chosen: choose(&usages, options, &mut done),
        usages,
        options: *options,
        replaced: HashMap::new(),
        done,
        since: Instant::now(),
        raw_len: 0,
    };
    if work.chosen.is_empty() {
        return Ok((writer, work.done));
    }
    for name in store.names()? {
        refuse_if_cancelled(watch)?;
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
    Ok((writer, work.done))
}

fn refuse_if_cancelled(watch: &dyn Watch) -> Result<()> {
    match watch.is_cancelled() {
        true => Err(Error::invalid("interrupted")),
        false => Ok(()),
    }
}

/// What all images use of all blocks.
fn usages(
    store: &Store,
    writer: &StoreWriter,
    done: &mut Reencoded,
    watch: &dyn Watch,
) -> Result<Usages> {
    let mut usages = Usages::new();
    let base_digests = base_digests(store)?;
    for name in store.names()? {
        refuse_if_cancelled(watch)?;
        let map = store.map(&name)?;
        let is_free = match writer.lock_image(&name, "unmount it first") {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::Busy => false,
            Err(error) => return Err(error),
        };
        // A base image is found by its digest.
        let can_change = is_free && !base_digests.contains(&map.image_digest);
        if !(can_change && add_usage(store, &name, &map, &mut usages)?) {
            done.skipped_count += 1;
            for part in &map.parts {
                if let Part::Block { id, .. } = part {
                    usages.entry(*id).or_default().is_pinned = true;
                }
            }
        }
    }
    Ok(usages)
}

/// Digests of the images that images of the store lie on.
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
        cache_len: ByteLen(CACHE_LEN),
        prefetch_threads: 0,
        ..OpenOptions::default()
    };
    let source = StoredImage::open(store.clone(), name)?;
    Image::open(Arc::new(source), &options).map_err(|error| error.context(name))
}

/// Adds what the image `name` uses; returns whether its blocks can be replaced.
fn add_usage(store: &Store, name: &str, map: &ImageMap, usages: &mut Usages) -> Result<bool> {
    let image = match open(store, name) {
        // Of an image on a base that is not there.
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

/// The blocks that are worth it.
fn choose(usages: &Usages, options: &ReencodeOptions, done: &mut Reencoded) -> HashSet<u64> {
    let mut chosen = HashSet::new();
    for (id, usage) in usages {
        let is_sparse = usage.used.used_len().saturating_mul(100)
            < usage.raw_len.saturating_mul(options.below_percent);
        if usage.is_pinned || !is_sparse || usage.stored_len < FILLED_LEN_MIN {
            continue;
        }
        // The block and its stored bytes, old and new.
        if FIXED_LEN + CACHE_LEN + 4 * usage.raw_len > options.memory_len {
            done.too_large_count += 1;
            continue;
        }
        chosen.insert(*id);
    }
    chosen
}

struct Work {
    usages: Usages,
    chosen: HashSet<u64>,
    options: ReencodeOptions,
    /// New blocks by the old one's id.
    replaced: HashMap<u64, Part>,
    done: Reencoded,
    since: Instant,
    raw_len: u64,
}

impl Work {
    fn is_chosen(&self, part: &Part) -> bool {
        matches!(part, Part::Block { id, .. } if self.chosen.contains(id))
    }

    /// Gives the image `name`, which `lock` keeps from being read, new blocks for those chosen.
    fn image(
        &mut self,
        writer: StoreWriter,
        name: &str,
        map: &ImageMap,
        lock: weald_store::ImageLock,
    ) -> Result<StoreWriter> {
        // The lock is this process's own, and the image is read past it.
        let store = writer.store().clone();
        let source = StoredImage::open_locked(store, map, &lock);
        let image = Image::open(Arc::new(source), &OpenOptions::default())?;
        let incoming = Arc::new(Mutex::new(Incoming::over(writer, name, lock)));
        let mut fresh = Vec::new();
        let sealed = replace_blocks(&image, map, &incoming, &mut |stream, _, record, part| {
            let Part::Block { id, .. } = part else {
                return Ok(Fate::Stays);
            };
            if !self.chosen.contains(id) {
                return Ok(Fate::Stays);
            }
            if let Some(other) = self.replaced.get(id) {
                return Ok(Fate::Other(other.clone()));
            }
            let fate = self.block(&image, stream, record, *id)?;
            if let Fate::New(outgoing) = &fate {
                fresh.push((*id, outgoing.digest));
            }
            Ok(fate)
        })?;
        let mut incoming = Arc::into_inner(incoming)
            .map(Mutex::into_inner)
            .ok_or_else(|| Error::invalid("the image is still being written"))?;
        for (id, digest) in fresh {
            if let Some(part) = incoming.part_of(&digest) {
                self.replaced.insert(id, part);
            }
        }
        incoming.publish(sealed.image_digest, image.summary().tree_digest)?;
        self.done.image_count += 1;
        Ok(incoming.into_writer())
    }

    fn block(&mut self, image: &Image, stream: u8, record: &RecordRef, id: u64) -> Result<Fate> {
        let Some(usage) = self.usages.get(&id) else {
            return Ok(Fate::Stays);
        };
        let mut raw = image.block(stream, record)?;
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
        // Where nothing is gained, nothing changes.
        if new_len >= record.stored_len / 4 * 3 {
            self.chosen.remove(&id);
            return Ok(Fate::Stays);
        }
        self.done.block_count += 1;
        self.done.old_len += record.stored_len;
        self.done.new_len += new_len;
        Ok(Fate::New(outgoing))
    }

    /// Waits until `len` more bytes are within the rate.
    fn slow_down(&mut self, len: u64) {
        self.raw_len += len;
        if self.options.rate_max == 0 {
            return;
        }
        let due = Duration::from_secs_f64(self.raw_len as f64 / self.options.rate_max as f64);
        std::thread::sleep(due.saturating_sub(self.since.elapsed()));
    }
}

/// The codec of a default build; what no codec makes smaller has holes of zeros now.
fn codec_of(category: Category) -> CodecSpec {
    let default = BuildOptions::default();
    match category {
        Category::Incompressible => CodecSpec::Zstd(1),
        Category::X86 => default.x86_codec.unwrap_or(default.codec),
        Category::Arm64 => default.arm64_codec.unwrap_or(default.codec),
        _ => default.codec,
    }
}
