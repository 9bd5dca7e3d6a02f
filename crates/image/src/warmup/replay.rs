//! Replays hotness: decodes in the background what an earlier run used, before it is requested.
//!
//! Invariants: a replay fills at most half of the cache; a dropped handle leaves no thread behind.

use crate::cached_records::block_key::Wanted;
use crate::hotness::text::{HotFile, HotItem, Hotness};
use crate::image::Image;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use weald_format::container::RecordType;
use weald_format::pages::Source;
use weald_format::{Digest, Error, FileKind, Result};

/// Selection of data to decode before they are requested.
#[derive(Debug, Clone)]
pub enum PrefetchSet {
    /// All blocks, in their order in the image.
    All,
    /// The items of this hotness. If it was recorded from another image: the files with the same
    /// paths.
    Hot(Hotness),
}

/// Progress of a prefetch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefetchReport {
    /// Whether it has ended: everything is decoded, or half of the cache is full.
    pub is_over: bool,
    /// Bytes of the decoded items, those included that were in the cache before.
    pub held_len: u64,
    /// Blocks, recipes, metadata records and files that this image does not have, or that could not
    /// be read.
    pub missing_count: u64,
}

/// A prefetch in progress. Dropping the handle stops the prefetch and waits for its threads.
pub struct PrefetchHandle {
    work: Arc<Work>,
    threads: Vec<JoinHandle<()>>,
}

impl PrefetchHandle {
    /// Progress so far.
    pub fn report(&self) -> PrefetchReport {
        PrefetchReport {
            is_over: *self.work.active_threads.lock() == 0,
            held_len: self.work.held_len.load(Ordering::Relaxed),
            missing_count: self.work.missing_count.load(Ordering::Relaxed),
        }
    }

    /// Waits until it has ended.
    pub fn wait(&self) -> PrefetchReport {
        let mut active = self.work.active_threads.lock();
        self.work
            .has_ended
            .wait_while(&mut active, |active| *active > 0);
        drop(active);
        self.report()
    }
}

impl Drop for PrefetchHandle {
    fn drop(&mut self) {
        self.work.is_stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message.
            let _ = thread.join();
        }
    }
}

/// An item or a file to decode.
enum Task {
    Item(Arc<Image>, HotItem),
    File(HotFile),
}

/// State that the threads share.
struct Work {
    image: Arc<Image>,
    tasks: Mutex<Box<dyn Iterator<Item = Task> + Send>>,
    is_stopped: AtomicBool,
    held_len: AtomicU64,
    held_max: u64,
    missing_count: AtomicU64,
    active_threads: Mutex<usize>,
    has_ended: Condvar,
}

/// Counts a thread as ended when it is dropped, also by a panic.
struct ActiveThread<'a>(&'a Work);

impl Drop for ActiveThread<'_> {
    fn drop(&mut self) {
        let mut active = self.0.active_threads.lock();
        *active = active.saturating_sub(1);
        self.0.has_ended.notify_all();
    }
}

impl Work {
    fn run(&self) {
        let _active = ActiveThread(self);
        while !self.is_enough() {
            let Some(task) = self.tasks.lock().next() else {
                return;
            };
            let done = match task {
                Task::Item(image, item) => self.item(&image, item),
                Task::File(file) => self.file(&file),
            };
            if done.is_err() {
                // A reader meets the failure again and reports it.
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

    fn item(&self, image: &Image, item: HotItem) -> Result<()> {
        match item {
            HotItem::Page(
                RecordType::Data | RecordType::Index | RecordType::Directory | RecordType::Copies,
                _,
            ) => {
                return Err(Error::not_found("no page"));
            }
            HotItem::Page(record_type, no) => {
                let found = image.records.record(record_type, 0, no)?;
                let page = image.records.page_unrecorded(&found)?;
                self.hold(page.memory_len());
            }
            HotItem::Block { stream, no, len } => {
                let found = image.records.record(RecordType::Data, stream, no)?;
                let wanted = Wanted::Front(len);
                self.hold(image.records.decoded(stream, &found, wanted)?.len());
            }
            HotItem::Made { stream, address } if image.map.is_recipe_stream(stream) => {
                self.hold(image.contents.load(stream, address, 1)?);
            }
            HotItem::Made { .. } => return Err(Error::not_found("no recipes")),
        }
        Ok(())
    }

    /// Decodes the recorded ranges of the file with the same path, if there is one.
    fn file(&self, file: &HotFile) -> Result<()> {
        let missing = || Error::not_found("no such file");
        let mut inode = self.image.root()?;
        for name in file.path.split(|&b| b == b'/') {
            inode = self.image.lookup(inode.ino, name)?.ok_or_else(missing)?;
        }
        let Some(content) = inode.content.filter(|_| inode.kind == FileKind::Regular) else {
            return Err(missing());
        };
        let map = &self.image.map;
        let (start, len) = map.range_of(content)?;
        for range in &file.ranges {
            let at = |offset: u64| start.saturating_add(offset.min(len));
            map.each_extent(at(range.start)..at(range.end), &mut |_, extent| {
                if let Source::Stream { stream, address } = extent.source {
                    let end = address.saturating_add(extent.len);
                    self.range_of(stream, address..end)?;
                }
                Ok(if self.is_enough() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            })?;
        }
        Ok(())
    }

    fn range_of(&self, stream: u8, range: Range<u64>) -> Result<()> {
        self.image.contents.load_range(stream, range, &mut |len| {
            self.hold(len);
            self.is_enough()
        })
    }
}

impl Image {
    /// Decodes what `what` selects into the cache, in threads of its own, until half of the cache
    /// is full. Skips what is missing or damaged.
    ///
    /// # Errors
    /// `Io` if a thread could not be started.
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
            active_threads: Mutex::new(thread_count),
            has_ended: Condvar::new(),
        });
        // Dropping the handle on a later failure stops the threads that were started.
        let mut handle = PrefetchHandle {
            work,
            threads: Vec::new(),
        };
        for no in 0..thread_count {
            let work = handle.work.clone();
            let thread = std::thread::Builder::new()
                .name(format!("warmup-{no}"))
                .spawn(move || work.run());
            match thread {
                Ok(thread) => handle.threads.push(thread),
                Err(e) if no == 0 => return Err(Error::io("start a prefetch thread", e)),
                // Fewer threads do the work.
                Err(_) => drop(ActiveThread(&handle.work)),
            }
        }
        Ok(handle)
    }

    fn all_blocks(self: Arc<Self>) -> impl Iterator<Item = Task> + Send {
        let streams = 0..u8::try_from(self.directory.streams.len()).unwrap_or(u8::MAX);
        streams.flat_map(move |stream| {
            let image = self.clone();
            let count = if image.map.is_base_stream(stream) {
                // A base image has many more blocks than this image uses of it.
                0
            } else {
                image.records.record_count(RecordType::Data, stream)
            };
            (0..count).map(move |no| {
                let len = u64::MAX;
                Task::Item(image.clone(), HotItem::Block { stream, no, len })
            })
        })
    }

    fn hot_tasks(self: Arc<Self>, hotness: Hotness) -> Box<dyn Iterator<Item = Task> + Send> {
        if hotness.image_digest() != Some(self.summary.image_digest) {
            return Box::new(hotness.files.into_iter().map(Task::File));
        }
        let mut images: HashMap<Digest, Arc<Self>> = HashMap::new();
        images.insert(self.summary.image_digest, self.clone());
        let mut waiting = self.bases();
        while let Some(image) = waiting.pop() {
            let digest = image.summary.image_digest;
            if images.insert(digest, image.clone()).is_none() {
                waiting.append(&mut image.bases());
            }
        }
        let items = hotness.images.into_iter().filter_map(move |hot| {
            let image = images.get(&hot.digest)?.clone();
            let items = hot.items.into_iter();
            Some(items.map(move |item| Task::Item(image.clone(), item)))
        });
        Box::new(items.flatten())
    }
}
