//! Writes the same tree in other blocks. Extents count raw bytes of streams, so codec and block
//! size affect only data records and the index; everything else is copied unchanged, except for
//! what the old image merely claims: its tree digest and fs-verity digests are computed.

use crate::compress::compressors::{Compressors, Dictionaries, Target};
use crate::options::{BuildOptions, block_len_of, validate_block_len, validate_codec};
use crate::pipeline::plan;
use crate::progress::{Observer, Progress, Stage};
use crate::write::image_writer::{ImageWriter, Outgoing, Sink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_codec::{CodecSpec, Encoded, FSVERITY_DIGEST_LEN};
use weald_format::container::{RecordRef, RecordType};
use weald_format::directory::{Category, Section, Stream};
use weald_format::label::Label;
use weald_format::limits::{BLOCK_LEN_MAX, ITEMS_PER_PAGE};
use weald_format::{ContentId, Digest, Error, Result};
use weald_image::Image;
use weald_io::{OutputFile, TargetKind};

/// Code, stacks, pages and caches of the reader, bytes.
const REWRITE_FIXED_LEN: u64 = 64 << 20;
/// Least time between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Changes that a rewrite makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewriteOptions {
    /// Codec of ordinary blocks. `None` keeps the codec of each block, or uses the default codec if
    /// the block length changes.
    pub codec: Option<CodecSpec>,
    /// Codec of blocks of x86 code; `None` uses that of ordinary blocks.
    pub x86_codec: Option<CodecSpec>,
    /// Codec of blocks of ARM64 code; `None` uses that of ordinary blocks.
    pub arm64_codec: Option<CodecSpec>,
    /// Raw bytes per block, 4 KiB … 64 MiB; `None` keeps the block length of each stream.
    pub block_len: Option<u64>,
    /// Worker threads; 0 = one per CPU.
    pub threads: usize,
    /// Memory that is usual, bytes.
    pub memory_len: u64,
    /// Memory that all threads may take, bytes, if that is more than `memory_len`.
    pub limit_len: u64,
    /// Highest limit if the other options need more even for one thread, bytes; 0 if the limit was
    /// asked for and stays.
    pub memory_len_max: u64,
    /// Kind of the target: a file, or a device that is written directly.
    pub target_kind: TargetKind,
    /// Label of the new image; `None` keeps that of the old one.
    pub label: Option<Label>,
}

/// Result of a rewrite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RewriteReport {
    /// Digest of the new image.
    pub image_digest: Digest,
    /// Digest of the tree, computed; a rewrite does not change the tree.
    pub tree_digest: Digest,
    /// The digest that the old image claimed.
    pub claimed_digest: Digest,
    /// Length of the old image, bytes.
    pub old_len: u64,
    /// Length of the new image, bytes.
    pub image_len: u64,
    /// Number of data blocks copied unchanged.
    pub copied_count: u64,
    /// Number of data blocks encoded again.
    pub encoded_count: u64,
}

impl RewriteOptions {
    fn validate(&self) -> Result<()> {
        self.block_len.map_or(Ok(()), validate_block_len)?;
        self.x86_codec.map_or(Ok(()), validate_codec)?;
        self.arm64_codec.map_or(Ok(()), validate_codec)?;
        self.codec.map_or(Ok(()), validate_codec)
    }

    /// Returns the change of `stream`; `None` if its blocks are copied.
    fn change(&self, stream: &Stream) -> Option<Change> {
        let block_len = match self.block_len {
            Some(wanted) => block_len_of(stream.category, wanted),
            None => stream.block_len_max,
        };
        let is_recut = block_len != stream.block_len_max;
        let if_recut = || is_recut.then(|| BuildOptions::default().codec);
        let codec = match stream.category {
            Category::Made | Category::Base => return None,
            // Incompressible data is not compressed again.
            Category::Incompressible => is_recut.then_some(CodecSpec::None),
            Category::General => self.codec.or_else(if_recut),
            Category::X86 => self.x86_codec.or(self.codec).or_else(if_recut),
            Category::Arm64 => self.arm64_codec.or(self.codec).or_else(if_recut),
        };
        codec.map(|codec| Change { codec, block_len })
    }

    /// Whether `section` is the dictionary of one of the `streams` whose blocks are encoded again:
    /// those use no dictionary.
    fn drops_dictionary(&self, section: &Section, streams: &[Stream]) -> bool {
        if section.record_type != RecordType::Dictionary {
            return false;
        }
        let stream = section.stream.checked_sub(1);
        let stream = stream.and_then(|no| streams.get(no as usize));
        stream.is_some_and(|stream| self.change(stream).is_some())
    }

    /// Number of threads that fit in the memory limit.
    fn threads(&self, change: &Change, observer: &dyn Observer) -> Result<usize> {
        let wanted = match self.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            threads => threads,
        };
        let needed_len = |threads: u64| {
            REWRITE_FIXED_LEN
                + threads * change.codec.context_len(change.block_len)
                + (Compressors::in_flight_max(threads) * 2 + 2) * change.block_len
                // One old block, stored and raw.
                + 2 * BLOCK_LEN_MAX.min(self.memory_len / 8)
        };
        let (len, len_max) = (self.memory_len.max(self.limit_len), self.memory_len_max);
        let Some((threads, _)) = plan::fit_threads(len, len_max, wanted as u64, &needed_len) else {
            let least = needed_len(1).div_ceil(1 << 20);
            let advice = ", or smaller blocks";
            return Err(plan::too_little(len, len_max, least, advice));
        };
        let need = needed_len(threads);
        if let Some(need) = plan::raised_len(self.memory_len, len_max, threads, need) {
            observer.memory_raised(self.memory_len, need, threads as usize);
        }
        Ok(threads as usize)
    }
}

/// Codec and length of the new blocks of a stream.
struct Change {
    codec: CodecSpec,
    block_len: u64,
}

/// Writes the tree of `image` to `target` with the codecs and block length in `options`. The tree
/// digest is computed; that of an image whose tree has the digest that it claims does not change.
///
/// # Errors
/// `Io`, `Full`, `Corrupt`, `Limit`; `Invalid` for bad options, or if the rewrite is cancelled;
/// `Busy` if `target` exists and `overwrite` is off.
/// # Cost
/// Reads the image twice: once for its tree digest, decoding everything. Encodes the blocks of
/// streams that change.
pub fn rewrite_image(
    image: &Image,
    target: &Path,
    overwrite: bool,
    options: &RewriteOptions,
    observer: &dyn Observer,
) -> Result<RewriteReport> {
    options.validate()?;
    if !overwrite {
        weald_io::refuse_existing(target)?;
    }
    let directory = image.directory();
    let tree_digest = tree_digest(image, options.threads)?;
    let out = OutputFile::create(target, options.target_kind)?;
    let mut rewrite = Rewrite::begin(image, out, observer)?;
    rewrite.count_work();
    let mut streams = directory.streams.clone();
    for section in &directory.sections {
        let no = section.stream as u8;
        let stream = streams.get_mut(usize::from(no));
        let change = match (section.record_type, stream) {
            (RecordType::Data, Some(stream)) => options.change(stream).inspect(|change| {
                stream.block_len_max = change.block_len;
            }),
            _ => None,
        };
        if options.drops_dictionary(section, &directory.streams) {
            rewrite.progress.entry_total -= section.record_count();
            continue;
        }
        match change {
            Some(change) => {
                rewrite.encode_stream(no, &change, options.threads(&change, observer)?)?
            }
            None if section.record_type == RecordType::Fsverity => rewrite.write_fsverity()?,
            None => rewrite.copy_section(section.record_type, no)?,
        }
    }
    let (copied_count, encoded_count) = (rewrite.copied_count, rewrite.encoded_count);
    let name_count = directory.name_count;
    let sealed = rewrite.writer.seal(
        options.label.as_ref().unwrap_or(&directory.label),
        tree_digest,
        name_count,
        streams,
        directory.bases.clone(),
        overwrite,
    )?;
    Ok(RewriteReport {
        image_digest: sealed.image_digest,
        tree_digest,
        claimed_digest: directory.tree_digest,
        old_len: image.summary().image_len,
        image_len: sealed.image_len,
        copied_count,
        encoded_count,
    })
}

/// Computes the tree digest of `image`.
fn tree_digest(image: &Image, threads: usize) -> Result<Digest> {
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        threads => threads,
    };
    image.computed_tree_digest(&image.content_digests(threads)?)
}

/// State of a rewrite.
struct Rewrite<'a> {
    image: &'a Image,
    writer: ImageWriter,
    observer: &'a dyn Observer,
    progress: Progress,
    last_report: Instant,
    copied_count: u64,
    encoded_count: u64,
}

impl<'a> Rewrite<'a> {
    /// Begins the new image in `out`.
    fn begin(image: &'a Image, out: OutputFile, observer: &'a dyn Observer) -> Result<Self> {
        Ok(Self {
            image,
            writer: ImageWriter::begin(Sink::File(out))?,
            observer,
            progress: Progress {
                stage: Stage::Write,
                entry_count: 0,
                entry_total: 0,
                read_len: 0,
                read_total: 0,
                written_len: 0,
            },
            last_report: Instant::now(),
            copied_count: 0,
            encoded_count: 0,
        })
    }

    fn count_work(&mut self) {
        for section in &self.image.directory().sections {
            self.progress.entry_total += section.record_count();
            if section.record_type == RecordType::Data {
                self.progress.read_total += section.item_count();
            }
        }
        self.observer.progress(&self.progress);
    }

    /// Counts a finished record with `len` bytes of data, reports progress, and fails if the
    /// rewrite was cancelled.
    fn record_done(&mut self, len: u64) -> Result<()> {
        self.progress.entry_count += 1;
        self.progress.read_len += len;
        self.progress.written_len = self.writer.position();
        if self.last_report.elapsed() >= PROGRESS_INTERVAL {
            self.last_report = Instant::now();
            self.observer.progress(&self.progress);
        }
        if self.observer.is_cancelled() {
            Err(Error::invalid("interrupted"))
        } else {
            Ok(())
        }
    }

    fn copy_section(&mut self, record_type: RecordType, stream: u8) -> Result<()> {
        let image = self.image;
        image.each_record(record_type, stream, &mut |record, item_count| {
            self.writer
                .write(&copy(image, record, stream, item_count)?)?;
            let is_data = record_type == RecordType::Data;
            self.copied_count += u64::from(is_data);
            self.record_done(if is_data { record.raw_len } else { 0 })
        })
    }

    /// Writes the fs-verity digests of all contents. They are computed: those that the image keeps
    /// are claims.
    fn write_fsverity(&mut self) -> Result<()> {
        let content_count = self.image.summary().content_count;
        let mut page = Vec::new();
        for id in 0..content_count {
            page.extend_from_slice(&self.image.fsverity_of(ContentId(id))?);
            if page.len() == ITEMS_PER_PAGE * FSVERITY_DIGEST_LEN || id + 1 == content_count {
                let record = Outgoing::fsverity_page(std::mem::take(&mut page));
                self.writer.write(&record)?;
                self.record_done(0)?;
            }
        }
        Ok(())
    }

    fn encode_stream(&mut self, stream: u8, change: &Change, threads: usize) -> Result<()> {
        let image = self.image;
        let block_len = change.block_len as usize;
        let mut compressors =
            Compressors::start(threads, change.block_len, Dictionaries::default())?;
        let mut block = Vec::with_capacity(block_len);
        image.each_record(RecordType::Data, stream, &mut |record, _| {
            let raw = image.block(stream, record)?;
            let mut rest = raw.as_slice();
            while !rest.is_empty() {
                let (head, tail) = rest.split_at(rest.len().min(block_len - block.len()));
                block.extend_from_slice(head);
                rest = tail;
                if block.len() == block_len {
                    let full = std::mem::replace(&mut block, Vec::with_capacity(block_len));
                    self.submit(&mut compressors, stream, change.codec, full)?;
                }
            }
            self.record_done(record.raw_len)
        })?;
        if !block.is_empty() {
            self.submit(&mut compressors, stream, change.codec, block)?;
        }
        compressors.finish(&mut self.writer)
    }

    fn submit(
        &mut self,
        compressors: &mut Compressors,
        stream: u8,
        codec: CodecSpec,
        block: Vec<u8>,
    ) -> Result<()> {
        self.encoded_count += 1;
        let streams = &self.image.directory().streams;
        let category = streams
            .get(usize::from(stream))
            .map_or(Category::General, |s| s.category);
        let target = Target {
            stream,
            category,
            codec,
        };
        compressors.submit(&mut self.writer, target, Arc::new(block))
    }
}

/// Copies a stored record for another image.
fn copy(image: &Image, record: &RecordRef, stream: u8, item_count: u64) -> Result<Outgoing> {
    let encoded = Encoded {
        codec: record.codec,
        stored: image.stored(record)?,
    };
    Ok(Outgoing {
        record_type: record.record_type,
        stream,
        encoded,
        digest: record.digest,
        raw_len: record.raw_len,
        item_count,
    })
}
