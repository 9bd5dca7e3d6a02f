//! Compressor threads: they turn blocks into records and hand them back in the order of submission.

use crate::compress::record_history::TailHistory;
use crate::threads::Pool;
use crate::write::image_writer::{ImageWriter, Outgoing, RecordSink};
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_codec::{CodecSpec, Encoder, SharedDictionary, filter};
use weald_format::container::RecordType;
use weald_format::directory::Category;
use weald_format::{Error, Result};

/// Destination and encoding of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Its stream.
    pub stream: u8,
    /// Category of the stream, which decides whether the block is filtered.
    pub category: Category,
    /// Codec.
    pub codec: CodecSpec,
}

struct Job {
    target: Target,
    raw: Arc<Vec<u8>>,
    history: Option<Arc<TailHistory>>,
}

/// Dictionaries by stream, shared by all threads.
#[derive(Clone, Default)]
pub struct Dictionaries(Arc<BTreeMap<u8, SharedDictionary>>);

impl Dictionaries {
    /// Adds the dictionary of `stream`.
    pub fn insert(&mut self, stream: u8, dictionary: SharedDictionary) {
        Arc::make_mut(&mut self.0).insert(stream, dictionary);
    }
}

/// The pool of compressor threads. The number of blocks in flight limits its memory.
pub struct Compressors(Pool<Job, Outgoing>);

impl Compressors {
    /// Starts `threads` threads, or as many as the system allows, for blocks of up to `block_len`
    /// bytes.
    ///
    /// # Errors
    /// `Io` if the system allows none.
    pub fn start(threads: usize, block_len: u64, dictionaries: Dictionaries) -> Result<Self> {
        let worker = || {
            let (mut encoder, dictionaries) = (None, dictionaries.clone());
            move |job: Job| {
                let dictionary = dictionaries.0.get(&job.target.stream);
                compress(&mut encoder, &job, block_len, dictionary)
            }
        };
        Pool::start(threads, "compress", &worker).map(Self)
    }

    /// Waits for all blocks and goes on with `threads` threads for blocks of up to `block_len`
    /// bytes, without dictionaries.
    ///
    /// # Errors
    /// As [`Compressors::start`] and [`Compressors::submit`].
    pub fn restart(
        &mut self,
        image: &mut ImageWriter,
        threads: usize,
        block_len: u64,
    ) -> Result<()> {
        let new = Self::start(threads, block_len, Dictionaries::default())?;
        std::mem::replace(self, new).finish(image)
    }

    /// Maximum number of blocks in memory at once.
    pub const fn in_flight_max(threads: u64) -> u64 {
        Pool::<Job, Outgoing>::in_flight_max(threads)
    }

    /// Submits a block, and writes finished ones to `image` until there is room for it.
    ///
    /// # Errors
    /// Those of compressing and writing earlier blocks.
    pub fn submit(
        &mut self,
        image: &mut ImageWriter,
        target: Target,
        raw: Arc<Vec<u8>>,
    ) -> Result<()> {
        self.submit_with_history(image, target, raw, None)
    }

    /// As [`Compressors::submit`], for a block that may be encoded with `history`.
    ///
    /// # Errors
    /// As [`Compressors::submit`].
    pub fn submit_with_history(
        &mut self,
        image: &mut ImageWriter,
        target: Target,
        raw: Arc<Vec<u8>>,
        history: Option<Arc<TailHistory>>,
    ) -> Result<()> {
        let job = Job {
            target,
            raw,
            history,
        };
        self.0.submit(job, &mut |record| image.put_record(record))
    }

    /// Waits for all blocks, writes them, and ends the threads.
    ///
    /// # Errors
    /// As [`Compressors::submit`].
    pub fn finish(self, image: &mut ImageWriter) -> Result<()> {
        self.0.finish(&mut |record| image.put_record(record))
    }
}

/// Writes records behind the blocks that are still being compressed.
pub struct BehindBlocks<'a> {
    /// The blocks.
    pub compressors: &'a mut Compressors,
    /// The image.
    pub image: &'a mut ImageWriter,
}

impl RecordSink for BehindBlocks<'_> {
    fn put_record(&mut self, record: Outgoing) -> Result<()> {
        let image = &mut *self.image;
        (self.compressors.0).pass(record, &mut |record| image.put_record(record))
    }
}

/// Encodes one block on this thread, without a dictionary.
///
/// # Errors
/// `Invalid`, `Limit` of the codec.
pub fn compress_one(target: Target, raw: Vec<u8>) -> Result<Outgoing> {
    let block_len = raw.len() as u64;
    let job = Job {
        target,
        raw: Arc::new(raw),
        history: None,
    };
    compress(&mut None, &job, block_len, None)
}

fn compress(
    encoder: &mut Option<(CodecSpec, Encoder)>,
    job: &Job,
    block_len: u64,
    dictionary: Option<&SharedDictionary>,
) -> Result<Outgoing> {
    let codec = job.target.codec;
    if encoder.as_ref().is_none_or(|(spec, _)| *spec != codec) {
        *encoder = Some((codec, Encoder::new(codec, block_len)?));
    }
    let Some((_, encoder)) = encoder else {
        return Err(Error::invalid("no encoder"));
    };
    let category = job.target.category;
    let code = filter::is_filtered(category).then(|| filtered(category, &job.raw));
    let bytes = code.as_ref().unwrap_or(&job.raw);
    let mut encoded = encoder.encode_with(bytes, dictionary)?;
    if let Some(history) = &job.history {
        encoded = history.encode_if_smaller(bytes, encoded)?;
    }
    let len = job.raw.len() as u64;
    Ok(Outgoing::new(
        RecordType::Data,
        job.target.stream,
        encoded,
        len,
        len,
    ))
}

/// Returns `raw` after the filter of its category.
///
/// # Panics
/// If the filter is not reversible for `raw`: such a block must not be written.
fn filtered(category: Category, raw: &[u8]) -> Vec<u8> {
    let mut code = raw.to_vec();
    filter::filter(category, &mut code);
    let mut back = code.clone();
    filter::unfilter(category, &mut back);
    assert!(
        back == raw,
        "the filter for {} code cannot be reversed for this block",
        category.name()
    );
    code
}
