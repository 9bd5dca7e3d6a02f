//! Extracts an image, or a selection of it, into a directory of the host: content, holes, names,
//! attributes.
//!
//! One thread walks the image and makes directories; worker threads make all other inodes. Several
//! workers first decode the blocks that waiting jobs need, different ones, so that they seldom wait
//! for one another.
//!
//! Every write goes through the descriptor of a directory that this module made, or opened without
//! following symlinks. So neither an image nor another user of the target can misdirect a write.
//! Memory does not grow with the tree, except for inodes with several names (`links`).

use crate::links::{FirstName, Links, Meeting};
use crate::restore::{ACL_ACCESS, ACL_DEFAULT, NewName, Policy, Restorer, XattrPolicy};
use crate::target_dir::{Heritage, TargetDir};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use weald_filter::AttributeChoice;
use weald_format::{Error, ErrorKind, FileKind, Result};
use weald_image::{AheadReceiver, AheadSender, AheadShare, DecodeAhead, DecodeJob, DecodePlanner};
use weald_image::{Image, Inode, ahead_queue};
use weald_vfs::{Choice, Event, Located, SelectedWalk, Unmatched, Visit};

/// Innermost directories of the walk whose descriptors stay open.
const OPEN_DIR_COUNT: usize = 64;

/// Unfinished directories that the walk has left and whose descriptors stay open. Opening one again
/// takes three system calls, and most are finished a moment later.
const KEPT_DIR_COUNT: usize = 64;

/// Jobs in the queue for each thread. Neighbouring files lie in the same blocks, so that with few
/// jobs most threads wait for the same block.
const JOBS_PER_THREAD: usize = 128;

/// Jobs in the queue at most; each takes some 400 bytes from the start.
const JOBS_MAX: usize = 1 << 13;

/// Directories whose descriptors the jobs in the queue may hold.
const QUEUED_DIR_COUNT: usize = 128;

/// Descriptors that an extraction needs beside those of directories: what the process has already,
/// and those of the threads.
const OTHER_DESCRIPTOR_COUNT: usize = 256;

/// Descriptors that an extraction with up to a hundred threads has open at once.
const DESCRIPTOR_COUNT: usize =
    OPEN_DIR_COUNT + KEPT_DIR_COUNT + QUEUED_DIR_COUNT + OTHER_DESCRIPTOR_COUNT;

/// Options of an extraction.
#[derive(Debug, Clone)]
pub struct ExtractOptions {
    /// Entries of the image to extract.
    pub choice: Choice,
    /// Worker threads; at least 1 is used.
    pub thread_count: usize,
    /// Replace existing files (never directories), and give existing directories the image's
    /// attributes.
    pub overwrite: bool,
    /// Restore owners and groups. If off, set-uid and set-gid bits of files are not restored
    /// either.
    pub keeps_owner: bool,
    /// Which extended attributes to restore.
    pub xattrs: XattrPolicy,
    /// What is kept of attributes.
    pub attributes: AttributeChoice,
    /// Leave out devices, without a word.
    pub skips_devices: bool,
    /// Keep files that are damaged, with holes in place of what cannot be read. They are reported.
    pub keeps_damaged: bool,
}

/// Callbacks of an extraction, called from several threads.
pub trait ExtractObserver: Sync {
    /// Reports one path of the image that was not restored, or not completely.
    fn problem(&self, path: &[u8], error: &Error);

    /// Reports one intact path that the output format cannot hold.
    fn left_out(&self, path: &[u8], why: &Error) {
        let _ = (path, why);
    }

    /// Whether to stop. Called at every entry and every piece of content.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Reports the progress at every entry and every piece of content. It must be cheap.
    fn progress(&self, progress: &ExtractProgress) {
        let _ = progress;
    }
}

/// Progress of an extraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtractProgress {
    /// Entries made.
    pub entry_count: u64,
    /// Entries to make; known if the whole image is extracted.
    pub entry_total: Option<u64>,
    /// Bytes of content made, holes included.
    pub content_len: u64,
    /// Lower bound of the bytes of content to make: the image counts a content once, even if
    /// several files have it. Known if the whole image is extracted.
    pub content_len_min: Option<u64>,
}

/// Result of an extraction.
#[derive(Debug, Clone, Default)]
pub struct ExtractReport {
    /// Entries made.
    pub entry_count: u64,
    /// Problems reported to the observer.
    pub problem_count: u64,
    /// Devices left out because only root makes devices.
    pub device_count: u64,
    /// Names of hard-linked files that became files of their own, because the file system takes no
    /// more links.
    pub copy_count: u64,
    /// What selected nothing.
    pub unmatched: Unmatched,
}

/// Extracts the directory `root` of `image` into the directory `target`. A missing target is made
/// with its parents and has mode 0700 until its contents are complete. A new target gets the
/// attributes of the image's root; an existing one gets them only with `overwrite`.
///
/// # Errors
/// `Full` if the host has no space left; `Invalid` ("interrupted") if the observer cancels;
/// failures to open the target. Failures of single entries go to `observer`, and the extraction
/// continues.
pub fn extract(
    image: &Image,
    root: Inode,
    target: &Path,
    options: &ExtractOptions,
    observer: &dyn ExtractObserver,
) -> Result<ExtractReport> {
    let start = Located {
        path: Vec::new(),
        inode: root,
    };
    let is_whole = options.choice.is_everything() && start.inode.ino == image.root()?.ino;
    let root = open_root(&start.inode, target, options.overwrite)?;
    let state = Extraction::new(observer, totals(image, is_whole));
    let problem = |path: &[u8], error: Error| state.problem(path, error);
    let advance = |len: u64| state.advance(len);
    let policy = Policy {
        overwrite: options.overwrite,
        keeps_owner: options.keeps_owner,
        own_ids: ids_of_new_files(&root),
        xattrs: options.xattrs,
        keeps_damaged: options.keeps_damaged,
        attributes: &options.attributes,
    };
    let extractor = Extractor {
        restorer: Restorer {
            image,
            policy,
            problem: &problem,
            advance: &advance,
        },
        state: &state,
        root_fd: root
            .fd()
            .ok_or_else(|| Error::invalid("the target is not open"))?,
    };
    let (links, ahead) = (
        Links::default(),
        DecodeAhead::new(image.cache_counts().len_max),
    );
    let (sender, receiver) = ahead_queue({
        let count = options.thread_count.max(1);
        count.saturating_mul(JOBS_PER_THREAD).min(JOBS_MAX)
    });
    let queued_dirs = QueuedDirs::default();
    weald_sys::reserve_descriptors(&extractor.root_fd, DESCRIPTOR_COUNT);
    let unmatched = std::thread::scope(|scope| {
        let start_thread = || {
            let (jobs, extractor) = (receiver.clone(), &extractor);
            Builder::new().spawn_scoped(scope, move || extractor.work(&jobs))
        };
        start_thread().map_err(|e| Error::io("starting a thread", e))?;
        // If the system allows no more threads, fewer do the work.
        (1..options.thread_count)
            .map_while(|_| start_thread().ok())
            .for_each(drop);
        drop(receiver);
        let walk = SelectedWalk::new(image, start, &options.choice);
        DirWalk {
            skips_devices: options.skips_devices,
            extractor: &extractor,
            links: &links,
            jobs: sender,
            queued_dirs: &queued_dirs,
            queued_dir: None,
            // A single worker decodes when it needs a block. Selected files may need little of one.
            ahead: (options.thread_count > 1 && is_whole)
                .then(|| (&ahead, DecodePlanner::default())),
            levels: Vec::new(),
        }
        .run(walk, root)
    })?;
    state.into_report(unmatched)
}

/// The totals of an extraction, as far as the image has them.
fn totals(image: &Image, is_everything: bool) -> ExtractProgress {
    let summary = image.summary();
    ExtractProgress {
        entry_total: is_everything.then_some(summary.name_count),
        content_len_min: is_everything.then_some(summary.content_len),
        ..ExtractProgress::default()
    }
}

/// Owner and group of new files below `root`; `None` if new files inherit others.
fn ids_of_new_files(root: &TargetDir) -> Option<(u32, u32)> {
    let own = weald_sys::effective_ids();
    let group = weald_sys::stat_fd(root.fd()?).ok()?.gid;
    (group == own.1 && root.heritage == Heritage::NONE).then_some(own)
}

/// Opens or makes the target. Only its owner has access to a new one until its attributes are set.
fn open_root(inode: &Inode, target: &Path, overwrite: bool) -> Result<Arc<TargetDir>> {
    let fail = |e| Error::io(target.display().to_string(), e);
    let (fd, is_new) = weald_io::open_or_make_dir(target)?;
    let attributes = (is_new || overwrite).then(|| inode.clone());
    if let Some(inode) = attributes.as_ref().filter(|_| !is_new) {
        crate::restore::restrict_existing_dir(&fd, inode);
    }
    if is_new && weald_sys::get_xattr_at(&fd, b"", ACL_DEFAULT).is_ok() {
        weald_sys::remove_xattr_at(&fd, b"", ACL_DEFAULT).map_err(fail)?;
        weald_sys::remove_xattr_at(&fd, b"", ACL_ACCESS).map_err(fail)?;
    }
    let heritage = if is_new {
        Heritage::NONE
    } else {
        Heritage::of_existing(&fd)
    };
    Ok(TargetDir::root(fd, attributes, heritage))
}

/// State shared by all threads.
struct Extraction<'a> {
    observer: &'a dyn ExtractObserver,
    totals: ExtractProgress,
    fatal: Mutex<Option<Error>>,
    is_stopped: AtomicBool,
    kept_dir_count: AtomicUsize,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    entries: AtomicU64,
    content_len: AtomicU64,
    problems: AtomicU64,
    devices: AtomicU64,
    copies: AtomicU64,
}

impl<'a> Extraction<'a> {
    fn new(observer: &'a dyn ExtractObserver, totals: ExtractProgress) -> Self {
        Self {
            observer,
            totals,
            fatal: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            kept_dir_count: AtomicUsize::new(0),
            counts: Counts::default(),
        }
    }

    /// Reports a problem. A full file system ends the extraction: every further file would fail.
    fn problem(&self, path: &[u8], error: Error) {
        let is_one_file_too_large = error
            .io_source()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::FileTooLarge);
        if error.kind() == ErrorKind::Full && !is_one_file_too_large {
            return self.stop(error.context(weald_vfs::shown_path(path)));
        }
        self.counts.problems.fetch_add(1, Ordering::Relaxed);
        self.observer.problem(path, &error);
    }

    fn stop(&self, error: Error) {
        self.fatal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(error);
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        if !self.is_stopped.load(Ordering::Relaxed) && self.observer.is_cancelled() {
            self.stop(Error::invalid("interrupted"));
        }
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Keeps the descriptor of the unfinished directory `dir` open if few others are kept.
    fn keep_open(&self, dir: &TargetDir) -> Result<()> {
        if self.kept_dir_count.fetch_add(1, Ordering::Relaxed) < KEPT_DIR_COUNT {
            dir.is_kept.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.kept_dir_count.fetch_sub(1, Ordering::Relaxed);
        dir.close()
    }

    /// Counts a kept descriptor as closed: its directory is finished.
    fn release_kept(&self, dir: &TargetDir) {
        if dir.is_kept.load(Ordering::Relaxed) {
            self.kept_dir_count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Counts one more entry.
    fn done(&self) {
        self.counts.entries.fetch_add(1, Ordering::Relaxed);
        self.report_progress();
    }

    /// Counts `len` more bytes of content. An error says that the extraction ends.
    fn advance(&self, len: u64) -> Result<()> {
        self.counts.content_len.fetch_add(len, Ordering::Relaxed);
        self.report_progress();
        if self.is_stopped() {
            Err(Error::invalid("interrupted"))
        } else {
            Ok(())
        }
    }

    fn report_progress(&self) {
        self.observer.progress(&ExtractProgress {
            entry_count: self.counts.entries.load(Ordering::Relaxed),
            content_len: self.counts.content_len.load(Ordering::Relaxed),
            ..self.totals
        });
    }

    fn into_report(self, unmatched: Unmatched) -> Result<ExtractReport> {
        if let Some(error) = self
            .fatal
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)
        {
            return Err(error);
        }
        let entry_count = self.counts.entries.into_inner();
        Ok(ExtractReport {
            entry_count,
            problem_count: self.counts.problems.into_inner(),
            device_count: self.counts.devices.into_inner(),
            copy_count: self.counts.copies.into_inner(),
            unmatched,
        })
    }
}

/// An entry to make that is no directory.
struct Job<'a> {
    dir: Arc<TargetDir>,
    fd: Arc<OwnedFd>,
    name: Vec<u8>,
    what: What<'a>,
    /// What is decoded for this job meanwhile.
    _ahead: Option<AheadShare<'a>>,
    _queued_dir: Arc<QueuedDir<'a>>,
}

/// Counts the directories that jobs hold open.
#[derive(Default)]
struct QueuedDirs {
    count: Mutex<usize>,
    has_fallen: Condvar,
}

/// A directory that jobs hold open.
struct QueuedDir<'a>(&'a QueuedDirs);

impl QueuedDirs {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until jobs may hold one more directory open.
    fn wait_for_room(&self) -> Arc<QueuedDir<'_>> {
        let is_full = |count: &mut usize| *count >= QUEUED_DIR_COUNT;
        let count = self.has_fallen.wait_while(self.lock(), is_full);
        *count.unwrap_or_else(PoisonError::into_inner) += 1;
        Arc::new(QueuedDir(self))
    }
}

impl Drop for QueuedDir<'_> {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.has_fallen.notify_one();
    }
}

// Only those in the queue exist; a box would cost an allocation per file.
#[allow(clippy::large_enum_variant)]
enum What<'a> {
    /// An inode, with an obligation if it has further names.
    Make(Inode, Option<FirstName<'a>>),
    /// A hard link of an inode to this path.
    Link(Box<[u8]>, Inode),
}

/// Makes inodes; shared by the threads.
struct Extractor<'a> {
    restorer: Restorer<'a>,
    state: &'a Extraction<'a>,
    root_fd: Arc<OwnedFd>,
}

impl Extractor<'_> {
    /// Decodes and makes what is queued until the walk ends.
    fn work(&self, jobs: &AheadReceiver<Job<'_>>) {
        while let Some(job) = jobs.next(|decode| self.decode(decode)) {
            self.work_on(job);
        }
    }

    fn decode(&self, job: &DecodeJob) {
        if !self.state.is_stopped() {
            self.restorer.image.decode_ahead(job);
        }
    }

    fn work_on(&self, job: Job<'_>) {
        let Job {
            dir,
            fd,
            name,
            what,
            _ahead,
            _queued_dir,
        } = job;
        if !self.state.is_stopped() {
            let place = NewName {
                dir: &dir,
                fd: &fd,
                name: &name,
            };
            let is_device = matches!(&what, What::Make(inode, _) if inode.kind.is_device());
            match self.make(&place, what) {
                Ok(()) => self.state.done(),
                Err(error) if is_device && needs_root(&error) => {
                    self.state.counts.devices.fetch_add(1, Ordering::Relaxed);
                }
                // Incomplete because the extraction ends.
                Err(_) if self.state.is_stopped() => {}
                Err(error) => self.state.problem(&dir.path_of(&name), error),
            }
        }
        self.release(dir, fd);
    }

    fn make(&self, place: &NewName<'_>, what: What<'_>) -> Result<()> {
        match what {
            What::Make(inode, promise) => {
                self.restorer.make(place, &inode)?;
                if let Some(promise) = promise {
                    promise.made(&place.dir.path_of(place.name));
                }
                Ok(())
            }
            What::Link(first, inode) => match self.link(place, &first) {
                Err(error) if is_without_links(&error) => {
                    self.restorer.make(place, &inode)?;
                    self.state.counts.copies.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
                linked => linked,
            },
        }
    }

    fn link(&self, place: &NewName<'_>, first: &[u8]) -> Result<()> {
        crate::restore::check_name(place.name)?;
        let (dirs, name) = match first.iter().rposition(|&b| b == b'/') {
            Some(slash) => (
                first.get(..slash).unwrap_or_default(),
                first.get(slash + 1..).unwrap_or_default(),
            ),
            None => (&[][..], first),
        };
        let fail = |e| Error::io(format!("link to {}", weald_vfs::shown(first)), e);
        let dir = open_below(&self.root_fd, dirs).map_err(fail)?;
        self.restorer.create(place, |new_name| {
            weald_sys::link_at(&dir, name, place.fd, new_name)
        })
    }

    /// Drops a reference to a directory. Without further references the directory is complete and
    /// gets its attributes, and so do its parents.
    fn release(&self, mut dir: Arc<TargetDir>, mut fd: Arc<OwnedFd>) {
        while let Some(complete) = Arc::into_inner(dir) {
            self.state.release_kept(&complete);
            // Before the mode of this directory can deny the way to its parent.
            let parent_fd = complete.parent().map(|parent| parent.fd_from_child(&fd));
            if let Some(inode) = &complete.attributes
                && !self.state.is_stopped()
            {
                self.restorer
                    .finish_dir(&fd, inode, &|| complete.path_of(b""));
            }
            match (complete.into_parent(), parent_fd) {
                (Some(parent), Some(Ok(parent_fd))) => (dir, fd) = (parent, parent_fd),
                (parent, Some(Err(error))) => return self.report_unfinished(parent, error),
                _ => return,
            }
        }
    }

    /// Reports that a directory cannot be finished, and drops its parents without recursion.
    fn report_unfinished(&self, mut dir: Option<Arc<TargetDir>>, error: Error) {
        if let Some(dir) = &dir {
            self.state.problem(&dir.path_of(b""), error);
        }
        while let Some(complete) = dir.and_then(Arc::into_inner) {
            dir = complete.into_parent();
        }
    }
}

/// Whether the system call needs root (`EPERM`, not `EACCES`).
fn needs_root(error: &Error) -> bool {
    let errno = error.io_source().and_then(std::io::Error::raw_os_error);
    /// `EPERM` of Linux.
    const NOT_PERMITTED: i32 = 1;
    errno == Some(NOT_PERMITTED)
}

/// Whether a hard link failed because the file system has none, or no more for this inode.
fn is_without_links(error: &Error) -> bool {
    let kind = error.io_source().map(std::io::Error::kind);
    needs_root(error)
        || matches!(
            kind,
            Some(
                std::io::ErrorKind::TooManyLinks
                    | std::io::ErrorKind::Unsupported
                    | std::io::ErrorKind::CrossesDevices
            )
        )
}

/// Opens the directory `path` below `root` (`O_PATH`), without following symlinks.
fn open_below(root: &Arc<OwnedFd>, path: &[u8]) -> std::io::Result<Arc<OwnedFd>> {
    if path.is_empty() {
        return Ok(Arc::clone(root));
    }
    if path.len() < 4096
        && let Ok(fd) = weald_sys::open_beneath(root, path)
    {
        return Ok(Arc::new(fd));
    }
    // The path is longer than PATH_MAX, or the kernel has no openat2.
    let mut dir = Arc::clone(root);
    for name in path.split(|&b| b == b'/') {
        dir = Arc::new(weald_sys::open_dir_at(&dir, name)?);
    }
    Ok(dir)
}

/// The thread of the walk: makes directories and queues jobs for all other entries.
struct DirWalk<'a, 'b> {
    /// Devices are left out.
    skips_devices: bool,
    extractor: &'a Extractor<'a>,
    links: &'b Links,
    jobs: AheadSender<Job<'b>>,
    queued_dirs: &'b QueuedDirs,
    /// The directory of the job that was queued last, and its descriptor.
    queued_dir: Option<(Arc<OwnedFd>, Arc<QueuedDir<'b>>)>,
    /// Plans what the workers decode before they make files.
    ahead: Option<(&'b DecodeAhead, DecodePlanner)>,
    /// Open directories of the walk. The descriptor of the last one is always open.
    levels: Vec<Arc<TargetDir>>,
}

impl<'b> DirWalk<'_, 'b> {
    fn run(mut self, mut walk: SelectedWalk<'_>, root: Arc<TargetDir>) -> Result<Unmatched> {
        let mut root = Some(root);
        while !self.extractor.state.is_stopped() {
            match walk.step() {
                Ok(None) => break,
                Ok(Some(Event::Leave)) => self.leave(),
                Ok(Some(Event::Enter(visit))) => match root.take() {
                    Some(root) => {
                        self.levels.push(root);
                        self.extractor.state.done();
                    }
                    None => self.enter(visit, &mut walk),
                },
                Err(error) => self.extractor.state.problem(walk.path(), error),
            }
        }
        while !self.levels.is_empty() {
            self.leave();
        }
        Ok(walk.unmatched())
    }

    fn enter(&mut self, visit: Visit, walk: &mut SelectedWalk<'_>) {
        let is_dir = visit.inode.kind == FileKind::Directory;
        let entered = if is_dir {
            self.enter_dir(visit)
        } else {
            self.queue_job(visit)
        };
        if let Err(error) = entered {
            self.extractor.state.problem(walk.path(), error);
            if is_dir {
                walk.skip_dir();
            }
        }
    }

    fn current(&self) -> Result<(Arc<TargetDir>, Arc<OwnedFd>)> {
        let dir = self
            .levels
            .last()
            .and_then(|dir| Some((Arc::clone(dir), dir.fd()?)));
        dir.ok_or_else(|| Error::invalid("the parent directory is not open"))
    }

    fn enter_dir(&mut self, visit: Visit) -> Result<()> {
        let (parent, parent_fd) = self.current()?;
        let place = NewName {
            dir: &parent,
            fd: &parent_fd,
            name: &visit.name,
        };
        let (fd, is_new) = self.extractor.restorer.make_dir(&place)?;
        let keeps_attributes = !is_new && !self.extractor.restorer.policy.overwrite;
        if !is_new && !keeps_attributes {
            crate::restore::restrict_existing_dir(&fd, &visit.inode);
        }
        let attributes = (!keeps_attributes).then_some(visit.inode);
        let heritage = if is_new {
            Heritage::NONE
        } else {
            Heritage::of_existing(&fd)
        };
        let dir = TargetDir::child(&parent, &visit.name, fd, attributes, heritage);
        if let Some(index) = self.levels.len().checked_sub(OPEN_DIR_COUNT)
            && let Some(far) = self.levels.get(index)
        {
            far.close()?;
        }
        self.levels.push(dir);
        self.extractor.state.done();
        Ok(())
    }

    fn queue_job(&mut self, visit: Visit) -> Result<()> {
        let (dir, fd) = self.current()?;
        let Visit { name, inode, .. } = visit;
        if inode.kind.is_device() && self.skips_devices {
            return Ok(());
        }
        let what = if inode.nlink < 2 {
            What::Make(inode, None)
        } else {
            match self.links.meet(inode.ino, inode.nlink) {
                Meeting::First(promise) => What::Make(inode, Some(promise)),
                Meeting::Further(path) => What::Link(path, inode),
            }
        };
        let (mut planned, mut share) = (Vec::new(), None);
        if let (What::Make(inode, _), Some((ahead, planner))) = (&what, &mut self.ahead)
            && inode.kind == FileKind::Regular
        {
            let (image, len_max) = (self.extractor.restorer.image, ahead.len_max_of_file());
            // The job of the file meets the same error and reports it.
            let _ = image.plan_decoding(inode, planner, len_max, &mut |job| planned.push(job));
            share = Some(ahead.wait_for(&planned));
        }
        let job = Job {
            _queued_dir: self.queued_dir_of(&fd),
            dir,
            fd,
            name,
            what,
            _ahead: share,
        };
        // The threads end only after this sender is dropped.
        if self.jobs.send(planned, job) {
            Ok(())
        } else {
            Err(Error::invalid("no thread is left"))
        }
    }

    /// The count of the directory `fd` for its jobs; waits while those of too many are open.
    fn queued_dir_of(&mut self, fd: &Arc<OwnedFd>) -> Arc<QueuedDir<'b>> {
        if let Some((last, queued_dir)) = &self.queued_dir
            && Arc::ptr_eq(last, fd)
        {
            return Arc::clone(queued_dir);
        }
        // Before the wait: no job may be left that holds it.
        self.queued_dir = None;
        let queued_dir = self.queued_dirs.wait_for_room();
        self.queued_dir = Some((Arc::clone(fd), Arc::clone(&queued_dir)));
        queued_dir
    }

    fn leave(&mut self) {
        let Some(dir) = self.levels.pop() else { return };
        let Some(fd) = dir.fd() else { return };
        if let Some(parent) = self.levels.last() {
            match parent.fd_from_child(&fd) {
                Ok(parent_fd) => parent.set_fd(&parent_fd),
                Err(error) => self.extractor.state.stop(error),
            }
        }
        // A thread still makes entries of the directory and will finish it. If all such descriptors
        // stayed open, those of a deep tree would add up.
        if Arc::strong_count(&dir) > 1
            && let Err(error) = self.extractor.state.keep_open(&dir)
        {
            self.extractor.state.stop(error);
        }
        self.extractor.release(dir, fd);
    }
}
