//! Replays hotness: decodes in the background what another run touched, so that it is there when it
//! is asked for.
//!
//! Invariants: no more than half of the cache is filled; a handle that is dropped leaves no thread
//! behind.

use crate::Image;
use crate::hot::{HotFile, Hotness, Place};
use crate::records::Wanted;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use weald_format::container::RecordType;
use weald_format::pages::Source;
use weald_format::{Digest, Error, FileKind, Result};

/// What to decode before anybody asks for it.
#[derive(Debug, Clone)]
pub enum PrefetchSet {
    /// All blocks, in the order in which they lie.
    All,
    /// What was touched when this was recorded. Of another image than this one, the files of the
    /// same paths.
    Hot(Hotness),
}

/// How far a prefetch has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefetchReport {
    /// Whether it has ended: everything is there, or half of the cache is full.
    pub is_over: bool,
    /// Bytes in memory of what was asked for, those included that were there before.
    pub held_len: u64,
    /// Blocks, pieces, metadata records and files that this image does not have, or that could not
    /// be read.
    pub missing_count: u64,
}

/// A prefetch under way. Dropped, it stops, and waits until it has.
pub struct PrefetchHandle {
    work: Arc<Work>,
    threads: Vec<JoinHandle<()>>,
}

impl PrefetchHandle {
    /// How far it has come.
    pub fn report(&self) -> PrefetchReport {
        PrefetchReport {
            is_over: *self.work.left.lock() == 0,
            held_len: self.work.held_len.load(Ordering::Relaxed),
            missing_count: self.work.missing_count.load(Ordering::Relaxed),
        }
    }

    /// Waits until it is over.
    pub fn wait(&self) -> PrefetchReport {
        let mut left = self.work.left.lock();
        self.work.is_over.wait_while(&mut left, |left| *left > 0);
        drop(left);
        self.report()
    }
}

impl Drop for PrefetchHandle {
    fn drop(&mut self) {
        self.work.is_stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Something to decode.
enum Task {
    Place(Arc<Image>, Place),
    File(HotFile),
}

/// What the threads share.
struct Work {
    image: Arc<Image>,
    tasks: Mutex<Box<dyn Iterator<Item = Task> + Send>>,
    is_stopped: AtomicBool,
    held_len: AtomicU64,
    held_max: u64,
    missing_count: AtomicU64,
    /// Threads at work.
    left: Mutex<usize>,
    is_over: Condvar,
}

/// Counts a thread as gone, also where it panics.
struct AtWork<'a>(&'a Work);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut left = self.0.left.lock();
        *left = left.saturating_sub(1);
        self.0.is_over.notify_all();
    }
}

impl Work {
    fn run(&self) {
        let _at_work = AtWork(self);
        while !self.is_enough() {
            let Some(task) = self.tasks.lock().next() else {
                return;
            };
            let done = match task {
                Task::Place(image, place) => self.place(&image, place),
                Task::File(file) => self.file(&file),
            };
            if done.is_err() {
                // Who reads it is told why.
                self.missing_count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn is_enough(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
            || self.held_len.load(Ordering::Relaxed) >= self.held_max
    }

    fn hold(&self, len: usize) {
        self.held_len.fetch_add(len as u64, Ordering::Relaxed);
    }

    fn place(&self, image: &Image, place: Place) -> Result<()> {
        match place {
            Place::Page(RecordType::Data | RecordType::Index | RecordType::Directory, _) => {
                return Err(Error::not_found("no page"));
            }
            Place::Page(record_type, no) => {
                let found = image.records.record(record_type, 0, no)?;
                let page = image.records.page_unseen(&found)?;
                self.hold(crate::cache::Weigh::memory_len(&*page));
            }
            Place::Block { stream, no, len } => {
                let found = image.records.record(RecordType::Data, stream, no)?;
                let wanted = Wanted::Front(len);
                self.hold(image.records.decoded(stream, &found, wanted)?.len());
            }
            Place::Made { stream, address } if image.contents.is_made(stream) => {
                self.hold(image.contents.load(stream, address, 1)?);
            }
            Place::Made { .. } => return Err(Error::not_found("no recipes")),
        }
        Ok(())
    }

    /// The file of the same path, if there is one: what was read of it.
    fn file(&self, file: &HotFile) -> Result<()> {
        let missing = || Error::not_found("no such file");
        let mut inode = self.image.root()?;
        for name in file.path.split(|&b| b == b'/') {
            inode = self.image.lookup(inode.ino, name)?.ok_or_else(missing)?;
        }
        let Some(content) = inode.content.filter(|_| inode.kind == FileKind::Regular) else {
            return Err(missing());
        };
        let contents = &self.image.contents;
        let (start, len) = contents.extent_of(content)?;
        for range in &file.ranges {
            let at = |offset: u64| start.saturating_add(offset.min(len));
            contents.each_extent(at(range.start)..at(range.end), &mut |_, extent| {
                if let Source::Stream { stream, address } = extent.source {
                    let end = address.saturating_add(extent.len);
                    self.run_of(stream, address..end)?;
                }
                Ok(match self.is_enough() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                })
            })?;
        }
        Ok(())
    }

    fn run_of(&self, stream: u8, run: Range<u64>) -> Result<()> {
        self.image.contents.each_piece(stream, run, &mut |len| {
            self.hold(len);
            self.is_enough()
        })
    }
}

impl Image {
    /// Decodes into the cache, by threads of its own, what `what` says, until half of the cache is
    /// full. What is missing or damaged is passed over.
    ///
    /// # Errors
    /// `Io` where no thread could be started.
    pub fn prefetch(self: &Arc<Self>, what: PrefetchSet) -> Result<PrefetchHandle> {
        let tasks: Box<dyn Iterator<Item = Task> + Send> = match what {
            PrefetchSet::All => Box::new(self.clone().all_blocks()),
            PrefetchSet::Hot(hotness) => self.clone().hot_tasks(hotness),
        };
        let cache = self.records.tag().cache();
        let thread_count = cache.thread_count().max(1);
        let work = Arc::new(Work {
            image: self.clone(),
            tasks: Mutex::new(tasks),
            is_stopped: AtomicBool::new(false),
            held_len: AtomicU64::new(0),
            held_max: cache.counts().len_max / 2,
            missing_count: AtomicU64::new(0),
            left: Mutex::new(thread_count),
            is_over: Condvar::new(),
        });
        // Whatever goes wrong from here on, what was started is stopped.
        let mut handle = PrefetchHandle {
            work,
            threads: Vec::new(),
        };
        for no in 0..thread_count {
            let work = handle.work.clone();
            let thread = std::thread::Builder::new()
                .name(format!("warm-{no}"))
                .spawn(move || work.run())
                .map_err(|e| Error::io("start a thread that reads ahead", e))?;
            handle.threads.push(thread);
        }
        Ok(handle)
    }

    fn all_blocks(self: Arc<Self>) -> impl Iterator<Item = Task> + Send {
        let streams = 0..u8::try_from(self.directory.streams.len()).unwrap_or(u8::MAX);
        streams.flat_map(move |stream| {
            let image = self.clone();
            let count = match image.contents.base_of(stream) {
                // Those of base images are many more than this image has of them.
                Some(_) => 0,
                None => image.records.record_count(RecordType::Data, stream),
            };
            (0..count).map(move |no| {
                let len = u64::MAX;
                Task::Place(image.clone(), Place::Block { stream, no, len })
            })
        })
    }

    fn hot_tasks(self: Arc<Self>, hotness: Hotness) -> Box<dyn Iterator<Item = Task> + Send> {
        if hotness.image_digest() != Some(self.summary.image_digest) {
            return Box::new(hotness.files.into_iter().map(Task::File));
        }
        let mut images: HashMap<Digest, Arc<Self>> = HashMap::new();
        images.insert(self.summary.image_digest, self.clone());
        let mut waiting = self.records.bases();
        while let Some(image) = waiting.pop() {
            let digest = image.summary.image_digest;
            if images.insert(digest, image.clone()).is_none() {
                waiting.append(&mut image.records.bases());
            }
        }
        let places = hotness.images.into_iter().filter_map(move |hot| {
            let image = images.get(&hot.digest)?.clone();
            let places = hot.places.into_iter();
            Some(places.map(move |place| Task::Place(image.clone(), place)))
        });
        Box::new(places.flatten())
    }
}
