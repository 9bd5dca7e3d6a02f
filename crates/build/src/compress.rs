//! The compressors: threads that turn blocks into records, in any order, handed back in the order of submission.

use crate::earlier::TailHistory;
use crate::image_writer::{ImageWriter, Outgoing, RecordSink};
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use weald_codec::{CodecSpec, Encoder, SharedDictionary, filter};
use weald_format::container::RecordType;
use weald_format::directory::Category;
use weald_format::{Error, Result};

/// Where a block goes and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Its stream.
    pub stream: u8,
    /// What the stream holds: decides whether the block is filtered.
    pub category: Category,
    /// How it is encoded.
    pub codec: CodecSpec,
}

struct Job {
    no: u64,
    target: Target,
    raw: Arc<Vec<u8>>,
    earlier: Option<Arc<TailHistory>>,
}

/// Dictionaries by stream, shared by all threads.
#[derive(Clone, Default)]
pub struct Dictionaries(Arc<BTreeMap<u8, SharedDictionary>>);

impl Dictionaries {
    /// Adds that of `stream`.
    pub fn insert(&mut self, stream: u8, dictionary: SharedDictionary) {
        Arc::make_mut(&mut self.0).insert(stream, dictionary);
    }
}

/// The pool. Blocks in flight are limited, so that memory is.
pub struct Compressors {
    jobs: Sender<Job>,
    done: Receiver<(u64, Result<Outgoing>)>,
    submitted: u64,
    written: u64,
    waiting: BTreeMap<u64, Outgoing>,
    in_flight_max: u64,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Compressors {
    /// Starts `threads` threads, or as many as can be had, for blocks of up to `block_len` bytes.
    ///
    /// # Errors
    /// `Io` where not one can be had.
    pub fn start(threads: usize, block_len: u64, dictionaries: Dictionaries) -> Result<Self> {
        let (jobs, receiver) = bounded::<Job>(threads);
        let (sender, done) = unbounded();
        let spawn = |n: usize| {
            let (receiver, sender) = (receiver.clone(), sender.clone());
            let dictionaries = dictionaries.clone();
            let run = move || work(&receiver, &sender, block_len, &dictionaries);
            let thread = std::thread::Builder::new()
                .name(format!("compress-{n}"))
                .spawn(run);
            thread.map_err(|e| Error::io("starting a thread", e))
        };
        let mut started = vec![spawn(0)?];
        started.extend((1..threads).map_while(|n| spawn(n).ok()));
        Ok(Self {
            jobs,
            done,
            submitted: 0,
            written: 0,
            waiting: BTreeMap::new(),
            in_flight_max: threads as u64 * 2 + 1,
            threads: started,
        })
    }

    /// Blocks that may be in memory at once.
    pub const fn in_flight_max(threads: u64) -> u64 {
        threads * 2 + 1
    }

    /// Hands a block over; writes finished ones to `image` until there is room for it.
    ///
    /// # Errors
    /// Those of compressing and writing the blocks before.
    pub fn submit(
        &mut self,
        image: &mut ImageWriter,
        target: Target,
        raw: Arc<Vec<u8>>,
    ) -> Result<()> {
        self.submit_after(image, target, raw, None)
    }

    /// The same for a block that may be encoded after what was there `earlier`.
    ///
    /// # Errors
    /// As [`Compressors::submit`].
    pub fn submit_after(
        &mut self,
        image: &mut ImageWriter,
        target: Target,
        raw: Arc<Vec<u8>>,
        earlier: Option<Arc<TailHistory>>,
    ) -> Result<()> {
        while let Ok((no, outgoing)) = self.done.try_recv() {
            self.take(image, no, outgoing)?;
        }
        while self.submitted - self.written >= self.in_flight_max {
            self.wait(image)?;
        }
        let job = Job {
            no: self.submitted,
            target,
            raw,
            earlier,
        };
        self.jobs
            .send(job)
            .map_err(|_| Error::invalid("the compressors have stopped"))?;
        self.submitted += 1;
        Ok(())
    }

    /// Passes a record that is encoded already on, behind the blocks before it: where it stands does not depend on how fast
    /// they are.
    ///
    /// # Errors
    /// As [`Compressors::submit`].
    fn pass(&mut self, image: &mut ImageWriter, record: Outgoing) -> Result<()> {
        let no = self.submitted;
        self.submitted += 1;
        self.take(image, no, Ok(record))?;
        while self.submitted - self.written > self.in_flight_max {
            self.wait(image)?;
        }
        Ok(())
    }

    fn wait(&mut self, image: &mut ImageWriter) -> Result<()> {
        let (no, outgoing) = self
            .done
            .recv()
            .map_err(|_| Error::invalid("the compressors have stopped"))?;
        self.take(image, no, outgoing)
    }

    fn take(&mut self, image: &mut ImageWriter, no: u64, outgoing: Result<Outgoing>) -> Result<()> {
        self.waiting.insert(no, outgoing?);
        while let Some(next) = self.waiting.remove(&self.written) {
            image.write(&next)?;
            self.written += 1;
        }
        Ok(())
    }

    /// Waits for all blocks and writes them; the threads end.
    ///
    /// # Errors
    /// As [`Compressors::submit`].
    pub fn finish(mut self, image: &mut ImageWriter) -> Result<()> {
        while self.written < self.submitted {
            self.wait(image)?;
        }
        drop(self.jobs);
        for thread in self.threads {
            thread
                .join()
                .map_err(|_| Error::invalid("a compressor panicked"))?;
        }
        Ok(())
    }
}

/// An image, behind the blocks that are on their way to it.
pub struct Behind<'a> {
    /// The blocks.
    pub compressors: &'a mut Compressors,
    /// The image.
    pub image: &'a mut ImageWriter,
}

impl RecordSink for Behind<'_> {
    fn put_record(&mut self, record: Outgoing) -> Result<()> {
        self.compressors.pass(self.image, record)
    }
}

fn work(
    jobs: &Receiver<Job>,
    done: &Sender<(u64, Result<Outgoing>)>,
    block_len: u64,
    dictionaries: &Dictionaries,
) {
    let mut encoder: Option<(CodecSpec, Encoder)> = None;
    while let Ok(job) = jobs.recv() {
        // A panic must not leave the others waiting for this block.
        let compressed = catch_unwind(AssertUnwindSafe(|| {
            let dictionary = dictionaries.0.get(&job.target.stream);
            compress(&mut encoder, &job, block_len, dictionary)
        }));
        let outgoing = compressed.unwrap_or_else(|_| Err(Error::invalid("a compressor panicked")));
        if done.send((job.no, outgoing)).is_err() {
            return;
        }
    }
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
    if let Some(earlier) = &job.earlier {
        encoded = earlier.smaller(bytes, encoded)?;
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

/// `raw` after the filter of its category.
///
/// # Panics
/// If the filter cannot be undone: a block that does not come back must not be written.
fn filtered(category: Category, raw: &[u8]) -> Vec<u8> {
    let mut code = raw.to_vec();
    filter::filter(category, &mut code);
    let mut back = code.clone();
    filter::unfilter(category, &mut back);
    assert!(
        back == raw,
        "the filter for {} code does not come back",
        category.name()
    );
    code
}
