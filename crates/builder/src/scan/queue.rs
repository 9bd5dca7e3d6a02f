//! State that the threads of a walk share: the stack of half-visited directories, limits, progress.
//!
//! A frame on the stack keeps its directory open while file descriptors are plentiful. Otherwise
//! the directory is opened again later, from the nearest ancestor that is still open. Descriptors
//! therefore limit neither depth nor width.

use super::listed::Listed;
use super::options::ScanOptions;
use super::shard::NOT_ENTERED;
use crate::options::walk::{FollowLinks, MountPoints};
use crate::{LeftOut, Observer, Progress, Stage};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use weald_filter::{DirRules, ListNode};
use weald_format::{Error, Result};
use weald_sys::Stat;

/// Maximum number of descriptors for waiting directories, and maximum share of the process limit,
/// as a divisor.
const OPEN_DIR_COUNT_MAX: u64 = 400;
const OPEN_DIR_SHARE: u64 = 4;

/// Interval between two progress reports of the calling thread.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// An open directory, included in a count.
pub struct OpenDir<'a> {
    pub fd: OwnedFd,
    pub count: &'a AtomicUsize,
}

impl<'a> OpenDir<'a> {
    fn new(fd: OwnedFd, count: &'a AtomicUsize) -> Arc<Self> {
        count.fetch_add(1, Relaxed);
        Arc::new(Self { fd, count })
    }
}

impl Drop for OpenDir<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Relaxed);
    }
}

/// Position of a directory in the tree.
pub struct Node<'a> {
    pub parent: Option<Arc<Node<'a>>>,
    pub name: Box<[u8]>,
    pub fd: Weak<OpenDir<'a>>,
    /// Rules in force in the directory.
    pub rules: DirRules,
    /// The directory in the list of paths, if there is one.
    pub listed: Option<ListNode>,
    /// Device and inode number, if symlinks are followed.
    pub id: Option<(u64, u64)>,
}

impl<'a> Node<'a> {
    /// The directories above, from the next one to the root.
    pub fn above(&self) -> impl Iterator<Item = &Node<'a>> {
        std::iter::successors(self.parent.as_deref(), |node| node.parent.as_deref())
    }
}

impl Drop for Node<'_> {
    /// Drops a long chain of parents without recursion.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(mut node) = next.and_then(Arc::into_inner) {
            next = node.parent.take();
        }
    }
}

/// A directory with subdirectories that are not taken yet.
pub struct Frame<'a> {
    pub node: Arc<Node<'a>>,
    /// `None` if descriptors were scarce.
    pub fd: Option<Arc<OpenDir<'a>>>,
    /// Names of subdirectories to visit, each after a length byte.
    pub names: Vec<u8>,
    pub position: usize,
    /// Number of the next subdirectory.
    pub next_number: u32,
}

/// A subdirectory taken from a frame.
pub struct Task<'a> {
    pub parent: Option<Arc<Node<'a>>>,
    pub parent_fd: Option<Arc<OpenDir<'a>>>,
    pub name: Box<[u8]>,
    pub number: u32,
}

struct Queue<'a> {
    frames: Vec<Frame<'a>>,
    /// Number of directories being read now.
    active: usize,
}

impl Queue<'_> {
    /// Nothing is waiting, and no thread can add more.
    fn is_empty(&self) -> bool {
        self.active == 0 && self.frames.is_empty()
    }
}

/// State that all threads share.
pub struct Walk<'a> {
    pub options: &'a ScanOptions<'a>,
    pub root: BorrowedFd<'a>,
    root_dev: u64,
    /// The paths to take, unless all are taken.
    pub listed: Option<&'a Listed<'a>>,
    open_count: &'a AtomicUsize,
    open_count_max: usize,
    queue: Mutex<Queue<'a>>,
    /// Signalled when a frame comes or the last directory is done.
    changed: Condvar,
    /// Signalled when the last directory is done.
    finished: Condvar,
    next_number: AtomicU32,
    is_cancelled: AtomicBool,
    is_over_limit: AtomicBool,
    /// Error that stops all threads; `None` if the user cancelled.
    failure: Mutex<Option<Error>>,
    observer: &'a dyn Observer,
    entry_count: AtomicU64,
    file_len: AtomicU64,
}

impl<'a> Walk<'a> {
    /// Creates the state of a walk of `root`.
    pub fn new(
        options: &'a ScanOptions<'a>,
        (root, root_dev): (BorrowedFd<'a>, u64),
        listed: Option<&'a Listed<'a>>,
        open_count: &'a AtomicUsize,
        observer: &'a dyn Observer,
    ) -> Self {
        let open_count_max = weald_sys::open_file_limit() / OPEN_DIR_SHARE;
        Self {
            options,
            root,
            root_dev,
            listed,
            open_count,
            open_count_max: open_count_max.min(OPEN_DIR_COUNT_MAX) as usize,
            queue: Mutex::new(Queue {
                frames: Vec::new(),
                active: 0,
            }),
            changed: Condvar::new(),
            finished: Condvar::new(),
            next_number: AtomicU32::new(1),
            is_cancelled: AtomicBool::new(false),
            is_over_limit: AtomicBool::new(false),
            failure: Mutex::new(None),
            observer,
            entry_count: AtomicU64::new(1),
            file_len: AtomicU64::new(0),
        }
    }

    /// The directory `node` in the list of paths.
    pub fn node_of(&self, node: &Node<'a>) -> Option<ListNode> {
        let list = self.listed?.list;
        match &node.parent {
            None => Some(ListNode::ROOT),
            Some(parent) => list.child(parent.listed?, &node.name),
        }
    }

    /// Returns the result of the walk: the number of numbered directories.
    ///
    /// # Errors
    /// `Limit`; `Invalid` if cancelled; the error passed to [`Walk::fail`].
    pub fn outcome(&self) -> Result<u32> {
        if let Some(error) = self.failure.lock().take() {
            return Err(error);
        }
        if self.is_over_limit.load(Relaxed) {
            return Err(Error::limit(format!(
                "more than {} entries",
                NOT_ENTERED - 1
            )));
        }
        if self.is_cancelled() {
            Err(Error::invalid("interrupted"))
        } else {
            Ok(self.next_number.load(Relaxed))
        }
    }

    /// Reports progress and checks for cancellation until the queue is empty, but at least once.
    pub fn report(&self, observer: &dyn Observer) {
        if observer.is_cancelled() {
            self.cancel();
        }
        let mut queue = self.queue.lock();
        while !queue.is_empty() && !self.is_cancelled() {
            self.finished.wait_for(&mut queue, PROGRESS_INTERVAL);
            parking_lot::MutexGuard::unlocked(&mut queue, || {
                observer.progress(&self.progress());
                if observer.is_cancelled() {
                    self.cancel();
                }
            });
        }
    }

    fn progress(&self) -> Progress {
        Progress {
            stage: Stage::Scan,
            entry_count: self.entry_count.load(Relaxed),
            entry_total: 0,
            read_len: self.file_len.load(Relaxed),
            read_total: 0,
            written_len: 0,
        }
    }

    /// Whether all threads have to stop.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Relaxed)
    }

    /// Whether to stop; checks the caller's observer too, because [`Walk::report`] may not run yet.
    pub fn is_stopped(&self) -> bool {
        self.is_cancelled() || self.observer.is_cancelled()
    }

    /// Stops all threads with `error`, unless there is an earlier error.
    pub fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.cancel();
    }

    /// Reports what is left out as the user asked.
    pub fn leave_out(&self, path: &[u8], why: LeftOut<'_>) {
        self.observer.left_out(path, why);
    }

    /// Stops all threads because there are too many entries.
    pub fn fail_too_many(&self) {
        self.is_over_limit.store(true, Relaxed);
        self.cancel();
    }

    /// Counts entries and the bytes of their files.
    pub fn count(&self, count: u64, file_len: u64) {
        let before = self.entry_count.fetch_add(count, Relaxed);
        self.file_len.fetch_add(file_len, Relaxed);
        if before + count >= u64::from(NOT_ENTERED) {
            self.fail_too_many();
        }
    }

    /// Includes an open directory in the count.
    pub fn count_open(&self, fd: OwnedFd) -> Arc<OpenDir<'a>> {
        OpenDir::new(fd, self.open_count)
    }

    /// Returns `fd` if descriptors are plentiful.
    pub fn keep_open(&self, fd: Arc<OpenDir<'a>>) -> Option<Arc<OpenDir<'a>>> {
        (self.open_count.load(Relaxed) <= self.open_count_max).then_some(fd)
    }

    /// What becomes of a directory if it is on another file system.
    pub fn mount_point(&self, stat: &Stat) -> MountPoints {
        if stat.dev == self.root_dev {
            MountPoints::Entered
        } else {
            self.options.mount_points
        }
    }

    fn cancel(&self) {
        self.is_cancelled.store(true, Relaxed);
        // Under the lock, so that a thread that has just checked the flag cannot miss the signal.
        let _queue = self.queue.lock();
        self.changed.notify_all();
        self.finished.notify_all();
    }

    /// Returns the next directory to read; waits while other threads may add some. `None` at the
    /// end.
    pub fn take(&self) -> Option<Task<'a>> {
        let mut queue = self.queue.lock();
        loop {
            if self.is_cancelled() {
                return None;
            }
            if let Some(frame) = queue.frames.last_mut() {
                let (task, is_last) = frame.take();
                if is_last {
                    queue.frames.pop();
                }
                queue.active += 1;
                return Some(task);
            }
            if queue.is_empty() {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }

    /// Queues the subdirectories of a directory.
    pub fn put(&self, frame: Frame<'a>) {
        self.queue.lock().frames.push(frame);
        self.changed.notify_all();
    }

    fn done(&self) {
        let mut queue = self.queue.lock();
        queue.active -= 1;
        if queue.is_empty() {
            self.changed.notify_all();
            self.finished.notify_all();
        }
    }

    /// Reserves numbers for `count` directories; `None` if there are too many.
    pub fn reserve_numbers(&self, count: u32) -> Option<u32> {
        let next = |n: u32| n.checked_add(count).filter(|&end| end < NOT_ENTERED);
        self.next_number.fetch_update(Relaxed, Relaxed, next).ok()
    }

    /// Opens the directory of `node` from its nearest open ancestor.
    pub fn open(&self, node: &Node<'a>) -> io::Result<OwnedFd> {
        let mut names: Vec<&[u8]> = vec![&node.name];
        let mut start = None;
        let mut above = node.parent.as_ref();
        while let Some(node) = above {
            start = node.fd.upgrade();
            if start.is_some() {
                break;
            }
            names.push(&node.name);
            above = node.parent.as_ref();
        }
        // The node of the root has an empty name.
        names.retain(|name| !name.is_empty());
        names.reverse();
        if self.options.follow != FollowLinks::None {
            let start = start.as_ref().map_or(self.root, |s| s.fd.as_fd());
            return super::open::open_dir_followed(start, &names);
        }
        let path = if names.is_empty() {
            b".".to_vec()
        } else {
            names.join(&b'/')
        };
        super::open::open_dir_long(start.as_ref().map_or(self.root, |s| s.fd.as_fd()), &path)
    }
}

impl<'a> Frame<'a> {
    /// Takes the next subdirectory; the flag tells whether it is the last one.
    fn take(&mut self) -> (Task<'a>, bool) {
        let start = self.position + 1;
        let end = start + usize::from(self.names[self.position]);
        let task = Task {
            parent: Some(self.node.clone()),
            parent_fd: self.fd.clone(),
            name: self.names[start..end].into(),
            number: self.next_number,
        };
        self.position = end;
        self.next_number += 1;
        (task, end == self.names.len())
    }
}

/// Marks a directory as done when it is dropped, also if the worker panics.
pub struct Done<'a, 'b>(pub &'b Walk<'a>);

impl Drop for Done<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
        self.0.done();
    }
}

/// Path of `node` relative to the root, followed by `end` unless it is the root.
pub fn path_of(node: &Node<'_>, end: &[u8]) -> Vec<u8> {
    let nodes = std::iter::successors(Some(node), |node| node.parent.as_deref());
    let mut names: Vec<&[u8]> = nodes
        .map(|node| &*node.name)
        .filter(|name| !name.is_empty())
        .collect();
    names.reverse();
    let mut path = names.join(&b'/');
    if !path.is_empty() {
        path.extend_from_slice(end);
    }
    path
}
