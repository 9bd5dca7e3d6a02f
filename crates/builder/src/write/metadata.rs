//! Compresses and writes metadata records. It collects the first records to train a dictionary.

use crate::compress::record_history::{HistorySource, PageHistories};
use crate::threads::Pool;
use crate::write::image_writer::{Outgoing, RecordSink};
use std::sync::Arc;
use weald_codec::{CodecSpec, Encoded, Encoder, train_dictionary};
use weald_format::Result;
use weald_format::container::RecordType;
use weald_format::entries::{EntryBlock, EntryBlockBuilder};
use weald_format::limits::PAGE_LEN_MAX;
use weald_image::Image;

/// Raw metadata held back for training before anything is written, bytes; a third of it at fast
/// levels.
const UNTRAINED_LEN_MAX: usize = 12 << 20;
/// Largest dictionary, bytes: the default of the zstd tool, about three times a level 1 cache.
const DICTIONARY_LEN: usize = 112 << 10;

/// If a cheap encoder saves less than 1 / `GAIN_SHARE_MIN` of a record, its result is kept: the
/// record has no structure to exploit.
const GAIN_SHARE_MIN: usize = 16;
/// Smaller records always get the full level, which takes no time, bytes.
const CHEAP_LEN_MIN: usize = 16 << 10;
/// Highest level that detects incompressible data quickly itself.
const CHEAP_LEVEL_MAX: i32 = 6;
/// Raw metadata that one thread encodes, bytes: starting others would take longer.
const ALONE_LEN_MAX: usize = 1 << 20;
/// Memory of an encoder thread, bytes: contexts at the highest level, and the records that it and
/// the queue hold.
pub const THREAD_LEN: u64 = 20 << 20;

/// A raw record.
struct Raw {
    record_type: RecordType,
    bytes: Vec<u8>,
    /// Where bytes of different kinds meet.
    borders: Vec<usize>,
    item_count: u64,
}

impl Raw {
    fn of_block(mut block: EntryBlockBuilder, mask: u8) -> Self {
        let count = block.count();
        let (bytes, borders) = block.encode_with_borders(mask);
        let parsed = EntryBlock::parse(&bytes);
        assert!(
            parsed.is_ok_and(|b| b.count() == count),
            "an entry block does not parse as it was written"
        );
        Self {
            record_type: RecordType::Entries,
            bytes,
            borders,
            item_count: count as u64,
        }
    }

    fn outgoing(&self, encoded: Encoded) -> Outgoing {
        let raw_len = self.bytes.len() as u64;
        Outgoing::new(self.record_type, 0, encoded, raw_len, self.item_count)
    }
}

/// Work for the encoder threads.
enum Job {
    Raw(Arc<Raw>),
    Block(Box<EntryBlockBuilder>, u8),
}

impl Job {
    fn raw(self) -> Arc<Raw> {
        match self {
            Self::Raw(raw) => raw,
            Self::Block(block, mask) => Arc::new(Raw::of_block(*block, mask)),
        }
    }
}

/// Encodes raw records, each at the level that pays off.
struct PageEncoder {
    /// `None` if the full encoder is as cheap.
    cheap: Option<Encoder>,
    full: Encoder,
}

impl PageEncoder {
    fn new(level: i32, dictionary: Option<&[u8]>) -> Result<Self> {
        let encoder = |level| match dictionary {
            Some(dictionary) => Encoder::with_dictionary(level, dictionary),
            None => Encoder::new(CodecSpec::Zstd(level), PAGE_LEN_MAX),
        };
        let cheap = if level > CHEAP_LEVEL_MAX {
            Some(encoder(1)?)
        } else {
            None
        };
        let full = encoder(level)?;
        Ok(Self { cheap, full })
    }

    fn encode(&mut self, raw: &Raw) -> Result<Encoded> {
        let bytes = &raw.bytes;
        if let Some(cheap) = &mut self.cheap
            && bytes.len() >= CHEAP_LEN_MIN
        {
            let encoded = cheap.encode(bytes)?;
            if !has_order(bytes.len(), &encoded) {
                return Ok(encoded);
            }
        }
        self.full.encode_in_parts(bytes, &raw.borders)
    }
}

/// Whether `encoded` is enough smaller than `raw_len` for a higher level to pay off.
fn has_order(raw_len: usize, encoded: &Encoded) -> bool {
    encoded.stored.len() < raw_len - raw_len / GAIN_SHARE_MIN
}

/// Compresses and writes metadata records.
///
/// At first the calling thread encodes everything, so that records keep their order among those of
/// contents. After [`MetadataWriter::encode_with`] only metadata comes. Then several threads encode
/// it, and records still keep the order in which they were pushed.
pub struct MetadataWriter {
    level: i32,
    held: Vec<Arc<Raw>>,
    held_len: usize,
    /// Whether records are no longer held back.
    is_released: bool,
    /// Encoder of the calling thread; `None` while the pool encodes.
    encoder: Option<PageEncoder>,
    dictionary: Option<Vec<u8>>,
    /// Finds histories in other images, for records of every type.
    page_histories: Option<PageHistories>,
    threads: usize,
    pool: Option<Pool<Job, Outgoing>>,
}

impl MetadataWriter {
    /// Creates a writer at zstd `level`.
    pub fn new(level: i32) -> Self {
        Self {
            level,
            held: Vec::new(),
            held_len: 0,
            is_released: false,
            encoder: None,
            dictionary: None,
            page_histories: None,
            threads: 1,
            pool: None,
        }
    }

    /// Creates a writer at zstd `level` that appends to `image`. It uses the image's dictionary, or
    /// none if the image has none.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from the image; `Invalid` if zstd rejects the dictionary.
    pub fn appending_to(level: i32, image: &Arc<Image>) -> Result<Self> {
        let dictionary = image.dictionary()?;
        Ok(Self {
            is_released: true,
            encoder: Some(PageEncoder::new(level, dictionary.as_deref())?),
            dictionary,
            page_histories: Some(PageHistories::new(vec![HistorySource {
                image: image.clone(),
                stream: 0,
                base_stream: None,
            }])),
            ..Self::new(level)
        })
    }

    /// Creates a writer at zstd `level` that trains no dictionary.
    pub fn without_dictionary(level: i32) -> Self {
        Self {
            is_released: true,
            ..Self::new(level)
        }
    }

    /// Creates a writer at zstd `level` for an image with base images. `places` lists each base
    /// once.
    pub fn with_bases(level: i32, sections: Vec<HistorySource>) -> Self {
        Self {
            page_histories: (!sections.is_empty()).then(|| PageHistories::new(sections)),
            ..Self::new(level)
        }
    }

    /// Lets `threads` threads encode from now on, because only metadata will come. If records use
    /// those of other images as a history, one thread stays: each record depends on the result of
    /// the one before.
    pub fn encode_with(&mut self, threads: usize) {
        if self.page_histories.is_none() {
            self.threads = threads;
        }
    }

    /// Takes a raw record with `item_count` items.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`.
    pub fn push(
        &mut self,
        sink: &mut dyn RecordSink,
        record_type: RecordType,
        bytes: Vec<u8>,
        item_count: u64,
    ) -> Result<()> {
        assert!(
            bytes.len() as u64 <= PAGE_LEN_MAX,
            "{record_type:?} record of {} bytes",
            bytes.len()
        );
        let raw = Raw {
            record_type,
            bytes,
            borders: Vec::new(),
            item_count,
        };
        self.put(sink, Job::Raw(Arc::new(raw)))
    }

    /// Takes a block of entries that carry the times in `mask`.
    ///
    /// # Errors
    /// As [`MetadataWriter::push`].
    pub fn push_block(
        &mut self,
        sink: &mut dyn RecordSink,
        block: EntryBlockBuilder,
        mask: u8,
    ) -> Result<()> {
        self.put(sink, Job::Block(Box::new(block), mask))
    }

    fn put(&mut self, sink: &mut dyn RecordSink, job: Job) -> Result<()> {
        if self.is_released {
            let dictionary = self.dictionary.as_deref();
            if self.threads > 1 {
                let pool = match &mut self.pool {
                    Some(pool) => pool,
                    slot => slot.insert(pool(self.threads, self.level, dictionary)?),
                };
                return pool.submit(job, &mut |record| sink.put_record(record));
            }
            let encoder = match &mut self.encoder {
                Some(encoder) => encoder,
                slot => slot.insert(PageEncoder::new(self.level, dictionary)?),
            };
            let raw = job.raw();
            let mut encoded = encoder.encode(&raw)?;
            if let Some(histories) = &mut self.page_histories {
                encoded = histories.encode_if_smaller(
                    raw.record_type,
                    &raw.bytes,
                    self.level,
                    encoded,
                )?;
            }
            return sink.put_record(raw.outgoing(encoded));
        }
        let raw = job.raw();
        self.held_len += raw.bytes.len();
        self.held.push(raw);
        let is_fast = self.level <= CHEAP_LEVEL_MAX;
        if self.held_len >= UNTRAINED_LEN_MAX / if is_fast { 3 } else { 1 } {
            self.release(sink)?;
        }
        Ok(())
    }

    /// Writes everything that is still held back or in the pool, and ends the threads.
    ///
    /// # Errors
    /// As [`MetadataWriter::push`].
    pub fn finish(&mut self, sink: &mut dyn RecordSink) -> Result<()> {
        if !self.is_released {
            self.release(sink)?;
        }
        match self.pool.take() {
            Some(pool) => pool.finish(&mut |record| sink.put_record(record)),
            None => Ok(()),
        }
    }

    /// Encodes the held records with and without a dictionary, keeps the smaller result, and writes
    /// it.
    fn release(&mut self, sink: &mut dyn RecordSink) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        let (mut best, plain) = self.encode_all(&held, None)?;
        if let Some(histories) = &mut self.page_histories {
            for (raw, record) in held.iter().zip(&mut best) {
                let encoded = record.encoded.clone();
                let encoded = histories.encode_if_smaller(
                    raw.record_type,
                    &raw.bytes,
                    self.level,
                    encoded,
                )?;
                *record = raw.outgoing(encoded);
            }
        }
        (self.is_released, self.encoder) = (true, plain);
        let samples = held.iter().zip(&best).filter(|(raw, record)| {
            raw.record_type == RecordType::Entries && has_order(raw.bytes.len(), &record.encoded)
        });
        let samples: Vec<Vec<u8>> = samples.map(|(raw, _)| raw.bytes.clone()).collect();
        // A dictionary longer than 1/16 of its training data does not pay off.
        let len_max = (self.held_len / 16).clamp(1 << 10, DICTIONARY_LEN);
        if let Some(dictionary) = train_dictionary(&samples, len_max) {
            let (records, encoder) = self.encode_all(&held, Some(&dictionary))?;
            let stored =
                Encoder::new(CodecSpec::Zstd(self.level), PAGE_LEN_MAX)?.encode(&dictionary)?;
            if total_len(&records) + stored.stored.len() < total_len(&best) {
                let raw_len = dictionary.len() as u64;
                sink.put_record(Outgoing::new(RecordType::Dictionary, 0, stored, raw_len, 1))?;
                best = records;
                (self.encoder, self.dictionary) = (encoder, Some(dictionary));
            }
        }
        best.into_iter()
            .try_for_each(|record| sink.put_record(record))
    }

    /// Encodes all of `held`. Also returns the encoder, unless the pool encoded.
    fn encode_all(
        &self,
        held: &[Arc<Raw>],
        dictionary: Option<&[u8]>,
    ) -> Result<(Vec<Outgoing>, Option<PageEncoder>)> {
        let mut records = Vec::with_capacity(held.len());
        if self.threads > 1 && self.held_len > ALONE_LEN_MAX {
            let mut take = |record| {
                records.push(record);
                Ok(())
            };
            let mut pool = pool(self.threads, self.level, dictionary)?;
            for raw in held {
                pool.submit(Job::Raw(raw.clone()), &mut take)?;
            }
            pool.finish(&mut take)?;
            return Ok((records, None));
        }
        let mut encoder = PageEncoder::new(self.level, dictionary)?;
        for raw in held {
            records.push(raw.outgoing(encoder.encode(raw)?));
        }
        Ok((records, Some(encoder)))
    }
}

/// Starts threads that encode at `level`, with `dictionary` if there is one.
fn pool(threads: usize, level: i32, dictionary: Option<&[u8]>) -> Result<Pool<Job, Outgoing>> {
    let dictionary: Option<Arc<[u8]>> = dictionary.map(Arc::from);
    let worker = || {
        let (mut encoder, dictionary) = (None, dictionary.clone());
        move |job: Job| {
            let encoder = match &mut encoder {
                Some(encoder) => encoder,
                slot => slot.insert(PageEncoder::new(level, dictionary.as_deref())?),
            };
            let raw = job.raw();
            Ok(raw.outgoing(encoder.encode(&raw)?))
        }
    };
    Pool::start(threads, "metadata", &worker)
}

fn total_len(records: &[Outgoing]) -> usize {
    records.iter().map(|r| r.encoded.stored.len()).sum()
}
