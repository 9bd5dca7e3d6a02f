//! Visiting directories: a stack of half-visited directories shared by all threads, one shard a thread.
//!
//! A frame on the stack keeps its directory open while descriptors are plenty; otherwise it is opened again, component
//! by component from the nearest ancestor that is still open. So neither depth nor width is limited by descriptors.

use super::ScanOptions;
use super::shard::{Entry, MoreTimes, NONE, NOT_ENTERED, RawDir, Shard};
use crate::{Problem, Progress, Stage, Watch};
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;
use weald_format::{Attributes, Error, FileKind, Result};
use weald_sys::{DirBuffer, Stat};

/// Descriptors that waiting directories may keep open; the usual soft limit is 1024 for everything.
const OPEN_DIR_COUNT_MAX: usize = 400;

/// How often the calling thread reports progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// What a walk found.
pub struct Walked {
    pub root: OwnedFd,
    pub root_stat: Stat,
    /// The root entry's texts and attributes are in the first shard, its entry is this.
    pub root_entry: Entry,
    pub root_times: MoreTimes,
    pub shards: Vec<Shard>,
    /// Numbers given to directories, 0 being the root.
    pub dir_count: u32,
    pub keeps_more_times: bool,
}

/// An open directory, counted.
struct OpenDir<'a> {
    fd: OwnedFd,
    count: &'a AtomicUsize,
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

/// A directory's place in the tree.
struct Node<'a> {
    parent: Option<Arc<Node<'a>>>,
    name: Box<[u8]>,
    fd: Weak<OpenDir<'a>>,
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

/// A directory whose children are not all taken yet.
struct Frame<'a> {
    node: Arc<Node<'a>>,
    /// `None` where descriptors were scarce.
    fd: Option<Arc<OpenDir<'a>>>,
    /// Children to visit, each a length byte and a name.
    names: Vec<u8>,
    position: usize,
    /// Number of the next child.
    next_number: u32,
}

/// A child taken from a frame.
struct Task<'a> {
    parent: Option<Arc<Node<'a>>>,
    parent_fd: Option<Arc<OpenDir<'a>>>,
    name: Box<[u8]>,
    number: u32,
}

struct Queue<'a> {
    frames: Vec<Frame<'a>>,
    /// Directories being read right now.
    active: usize,
}

impl Queue<'_> {
    /// Nothing is waiting and nobody will find more.
    fn is_empty(&self) -> bool {
        self.active == 0 && self.frames.is_empty()
    }
}

/// What all threads share.
struct Walk<'a> {
    options: &'a ScanOptions<'a>,
    root: BorrowedFd<'a>,
    root_dev: u64,
    open_count: &'a AtomicUsize,
    queue: Mutex<Queue<'a>>,
    /// Signalled when a frame comes or the last directory is done.
    changed: Condvar,
    /// Signalled when the last directory is done.
    finished: Condvar,
    next_number: AtomicU32,
    is_cancelled: AtomicBool,
    is_over_limit: AtomicBool,
    entry_count: AtomicU64,
    file_len: AtomicU64,
}

/// Walks everything below `root`.
///
/// # Errors
/// `Io` where the root cannot be listed, `Limit`, `Invalid` when cancelled.
pub fn walk(root: OwnedFd, options: &ScanOptions<'_>, watch: &dyn Watch) -> Result<Walked> {
    let root_stat = weald_sys::stat_fd(&root).map_err(|e| Error::io("cannot be examined", e))?;
    let open_count = AtomicUsize::new(0);
    let walk = Walk {
        options,
        root: root.as_fd(),
        root_dev: root_stat.dev,
        open_count: &open_count,
        queue: Mutex::new(Queue {
            frames: Vec::new(),
            active: 0,
        }),
        changed: Condvar::new(),
        finished: Condvar::new(),
        next_number: AtomicU32::new(1),
        is_cancelled: AtomicBool::new(false),
        is_over_limit: AtomicBool::new(false),
        entry_count: AtomicU64::new(1),
        file_len: AtomicU64::new(0),
    };
    let mut worker = Worker::new(&walk, 0);
    let (root_entry, root_times) = worker.root(&root_stat)?;
    let shards = run(worker, watch)?;
    let dir_count = walk.next_number.load(Relaxed);
    drop(walk);
    let keeps_more_times = options.keeps_more_times();
    Ok(Walked {
        root,
        root_stat,
        root_entry,
        root_times,
        shards,
        dir_count,
        keeps_more_times,
    })
}

/// Lets `first` and as many workers more as there are threads empty the queue.
fn run(first: Worker<'_, '_>, watch: &dyn Watch) -> Result<Vec<Shard>> {
    let walk = first.walk;
    let others = (1..walk.options.threads.max(1)).map(|index| Worker::new(walk, index));
    let workers: Vec<_> = std::iter::once(first).chain(others).collect();
    let shards = std::thread::scope(|scope| {
        let running: Vec<_> = workers
            .into_iter()
            .map(|worker| scope.spawn(|| worker.run()))
            .collect();
        walk.report(watch);
        running
            .into_iter()
            .map(|thread| thread.join().expect("a scanning thread panicked"))
            .collect()
    });
    if walk.is_over_limit.load(Relaxed) {
        return Err(Error::limit(format!(
            "more than {} entries",
            NOT_ENTERED - 1
        )));
    }
    if walk.is_cancelled.load(Relaxed) {
        return Err(Error::invalid("interrupted"));
    }
    Ok(shards)
}

impl<'a> Walk<'a> {
    /// Reports progress and looks for cancellation until the queue is empty.
    fn report(&self, watch: &dyn Watch) {
        let mut queue = self.queue.lock();
        while !queue.is_empty() && !self.is_cancelled.load(Relaxed) {
            self.finished.wait_for(&mut queue, PROGRESS_INTERVAL);
            parking_lot::MutexGuard::unlocked(&mut queue, || {
                watch.progress(&self.progress());
                if watch.is_cancelled() {
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

    fn cancel(&self) {
        self.is_cancelled.store(true, Relaxed);
        // With the lock, so that nobody who has just looked goes to sleep after this.
        let _queue = self.queue.lock();
        self.changed.notify_all();
        self.finished.notify_all();
    }

    /// The next directory to read; waits while others may still find some. `None` when all is done.
    fn take(&self) -> Option<Task<'a>> {
        let mut queue = self.queue.lock();
        loop {
            if self.is_cancelled.load(Relaxed) {
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

    fn put(&self, frame: Frame<'a>) {
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

    /// Numbers for `count` directories; `None` where there are too many.
    fn take_numbers(&self, count: u32) -> Option<u32> {
        let next = |n: u32| n.checked_add(count).filter(|&end| end < NOT_ENTERED);
        self.next_number.fetch_update(Relaxed, Relaxed, next).ok()
    }

    /// Opens the directory that `node` stands for, from its nearest ancestor that is open.
    fn open(&self, node: &Node<'a>) -> io::Result<OwnedFd> {
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
        // The root's own node has an empty name.
        names.retain(|name| !name.is_empty());
        names.reverse();
        let path = if names.is_empty() {
            b".".to_vec()
        } else {
            names.join(&b'/')
        };
        super::open::open_dir_long(start.as_ref().map_or(self.root, |s| s.fd.as_fd()), &path)
    }
}

impl<'a> Frame<'a> {
    /// The next child, and whether it is the last.
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

/// Tells the queue that a directory is done, also when its worker panics.
struct Done<'a, 'b>(&'b Walk<'a>);

impl Drop for Done<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.cancel();
        }
        self.0.done();
    }
}

/// One thread's part of a walk.
struct Worker<'w, 'a> {
    walk: &'w Walk<'a>,
    shard: Shard,
    buffer: DirBuffer,
    list: Vec<u8>,
}

impl<'w, 'a> Worker<'w, 'a> {
    fn new(walk: &'w Walk<'a>, index: usize) -> Self {
        Self {
            walk,
            shard: Shard::new(index),
            buffer: DirBuffer::default(),
            list: Vec::new(),
        }
    }

    fn run(mut self) -> Shard {
        while let Some(task) = self.walk.take() {
            let _done = Done(self.walk);
            self.visit(task);
        }
        self.shard
    }

    /// Examines and lists the root; its children wait in the queue then.
    fn root(&mut self, stat: &Stat) -> Result<(Entry, MoreTimes)> {
        self.shard.push(b"", stat.ino);
        if self.walk.options.keeps_more_times() {
            self.shard.more_times.push(MoreTimes::default());
        }
        self.fill(self.walk.root, 0, stat, &[]);
        let entry = self.shard.entries.pop().expect("just pushed");
        let times = self.shard.more_times.pop().unwrap_or_default();
        let task = Task {
            parent: None,
            parent_fd: None,
            name: Box::default(),
            number: 0,
        };
        let failed = self.try_visit(task).err().map(|(_, error)| error);
        failed.map_or(Ok((entry, times)), |e| {
            Err(Error::io("cannot be listed", e))
        })
    }

    fn visit(&mut self, task: Task<'a>) {
        if let Err((node, error)) = self.try_visit(task) {
            let what = match error.kind() {
                io::ErrorKind::NotFound => "vanished while being scanned".to_owned(),
                _ => format!("cannot be listed: {error}"),
            };
            self.shard.problems.push(Problem {
                path: path_of(&node, b""),
                what,
            });
        }
    }

    fn try_visit(&mut self, task: Task<'a>) -> Result<(), (Arc<Node<'a>>, io::Error)> {
        let Task {
            parent,
            parent_fd,
            name,
            number,
        } = task;
        let mut node = Node {
            parent,
            name,
            fd: Weak::new(),
        };
        let opened = match &parent_fd {
            Some(parent) => weald_sys::open_dir_at(&parent.fd, &node.name),
            None => self.walk.open(&node),
        };
        // The parent may be closed now if this was its last child.
        drop(parent_fd);
        let fd = match opened {
            Ok(fd) => OpenDir::new(fd, self.walk.open_count),
            Err(error) => return Err((Arc::new(node), error)),
        };
        node.fd = Arc::downgrade(&fd);
        let node = Arc::new(node);
        match self.list(&fd.fd, &node, number) {
            Ok(Some((names, next_number))) => {
                let fd = (self.walk.open_count.load(Relaxed) <= OPEN_DIR_COUNT_MAX).then_some(fd);
                self.walk.put(Frame {
                    node,
                    fd,
                    names,
                    position: 0,
                    next_number,
                });
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => Err((node, error)),
        }
    }

    /// Lists the open directory `dir`; returns its children to visit and the number of the first, if there are any.
    fn list(
        &mut self,
        dir: &OwnedFd,
        node: &Node<'a>,
        number: u32,
    ) -> io::Result<Option<(Vec<u8>, u32)>> {
        let prefix = if self.walk.options.filter.is_empty() {
            Vec::new()
        } else {
            path_of(node, b"/")
        };
        let first = self.shard.entries.len();
        let dev = match self
            .read_names(dir, &prefix)
            .and_then(|()| weald_sys::stat_fd(dir))
        {
            Ok(stat) => stat.dev,
            Err(error) => {
                self.shard.forget(first);
                return Err(error);
            }
        };
        self.examine(dir.as_fd(), first, dev, &prefix, node);
        self.shard.settle(first);
        let children = self.number_children(first);
        let count = self.shard.entries.len() - first;
        self.shard.dirs.push(RawDir {
            number,
            first,
            count,
            dev,
        });
        self.count(first);
        Ok(children)
    }

    /// Appends all names of `dir` that are not already excluded by what getdents tells.
    fn read_names(&mut self, dir: &OwnedFd, prefix: &[u8]) -> io::Result<()> {
        let (filter, shard) = (self.walk.options.filter, &mut self.shard);
        weald_sys::read_dir(dir, &mut self.buffer, |entry| {
            let is_dir = entry.kind.map(|kind| kind == FileKind::Directory);
            let is_excluded = |is_dir| {
                !filter.is_empty() && filter.excludes(&[prefix, entry.name].concat(), is_dir)
            };
            if !is_dir.is_some_and(is_excluded) {
                // A kind that is not known yet is marked, so that the filter is asked again later.
                shard.push(entry.name, entry.ino);
                shard
                    .entries
                    .last_mut()
                    .expect("just pushed")
                    .set(Entry::OTHER_DEV, is_dir.is_none());
            }
            Ok(())
        })
    }

    /// Finds out about every entry from `first` on, in the order of inode numbers, in which disks read fastest.
    fn examine(
        &mut self,
        dir: BorrowedFd<'_>,
        first: usize,
        dev: u64,
        prefix: &[u8],
        node: &Node<'a>,
    ) {
        self.shard.entries[first..].sort_unstable_by_key(|entry| entry.ino);
        if self.walk.options.keeps_more_times() {
            self.shard
                .more_times
                .resize(self.shard.entries.len(), MoreTimes::default());
        }
        let mut name = Vec::with_capacity(256);
        for index in first..self.shard.entries.len() {
            let entry = &mut self.shard.entries[index];
            let ask_filter = entry.has(Entry::OTHER_DEV);
            entry.set(Entry::OTHER_DEV, false);
            let name_ref = entry.name;
            name.clear();
            name.extend_from_slice(name_ref.slice(&self.shard.names));
            match weald_sys::stat_at(dir, &name) {
                Ok(stat) => {
                    let is_dir = stat.kind == FileKind::Directory;
                    let filter = self.walk.options.filter;
                    if ask_filter && filter.excludes(&[prefix, &name].concat(), is_dir) {
                        continue;
                    }
                    if stat.dev != dev {
                        self.shard.entries[index].set(Entry::OTHER_DEV, true);
                        self.shard.other_devs.insert(name_ref, stat.dev);
                    }
                    if let Some(what) = self.fill(dir, index, &stat, &name) {
                        self.report(node, &name, what);
                    }
                }
                Err(error) => self.report(node, &name, describe("cannot be examined", &error)),
            }
        }
    }

    /// Fills entry `index`, called `name` in `dir`; returns what could not be read. Without its target, a symlink stays
    /// unfilled and so is left out.
    fn fill(
        &mut self,
        dir: BorrowedFd<'_>,
        index: usize,
        stat: &Stat,
        name: &[u8],
    ) -> Option<String> {
        let mut problem = None;
        let mut size = if stat.kind == FileKind::Regular {
            stat.size
        } else {
            0
        };
        let mut link = NONE;
        if stat.kind == FileKind::Symlink {
            let start = self.shard.targets.len() as u64;
            match weald_sys::read_link_at(dir, name, &mut self.shard.targets) {
                Ok(len) => size = len as u64,
                Err(error) => return Some(describe("target cannot be read", &error)),
            }
            link = self.shard.target_starts.len() as u32;
            self.shard.target_starts.push(start);
        }
        if stat.kind == FileKind::Directory && self.walk.is_foreign(stat) {
            link = NOT_ENTERED;
        }
        let xattrs = self.xattrs(dir, name).unwrap_or_else(|error| {
            problem = Some(describe("extended attributes cannot be read", &error));
            NONE
        });
        let attributes = Attributes {
            permissions: stat.permissions,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
        };
        let attributes = self.shard.intern_attributes(stat.kind, attributes);
        let entry = &mut self.shard.entries[index];
        entry.set_mtime(stat.mtime);
        entry.set(
            Entry::LINKED,
            stat.nlink > 1 && stat.kind != FileKind::Directory,
        );
        (
            entry.size,
            entry.ino,
            entry.attributes,
            entry.link,
            entry.xattrs,
        ) = (size, stat.ino, attributes, link, xattrs);
        if let Some(times) = self.shard.more_times.get_mut(index) {
            let options = self.walk.options;
            times.atime = options.keep_atime.then_some(stat.atime);
            times.ctime = options.keep_ctime.then_some(stat.ctime);
            times.btime = stat.btime.filter(|_| options.keep_btime);
        }
        problem
    }

    fn xattrs(&mut self, dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<u32> {
        if !self.walk.options.keep_xattrs {
            return Ok(NONE);
        }
        weald_sys::list_xattrs_at(dir, name, &mut self.list)?;
        if self.list.is_empty() {
            return Ok(NONE);
        }
        let set = weald_sys::read_xattrs_at(dir, name)?;
        Ok(if set.is_empty() {
            NONE
        } else {
            self.shard.intern_xattrs(set)
        })
    }

    fn report(&mut self, node: &Node<'a>, name: &[u8], what: String) {
        let mut path = path_of(node, b"/");
        path.extend_from_slice(name);
        self.shard.problems.push(Problem { path, what });
    }

    /// Numbers the directories to enter from `first` on; returns their names, each behind its length, and the first
    /// number.
    fn number_children(&mut self, first: usize) -> Option<(Vec<u8>, u32)> {
        let (attributes, names) = (&self.shard.attributes, &self.shard.names);
        let is_child = |entry: &Entry| {
            attributes[entry.attributes as usize].0 == FileKind::Directory
                && entry.link != NOT_ENTERED
        };
        let entries = &mut self.shard.entries[first..];
        let count = entries.iter().filter(|entry| is_child(entry)).count();
        if count == 0 {
            return None;
        }
        let Some(base) = u32::try_from(count)
            .ok()
            .and_then(|count| self.walk.take_numbers(count))
        else {
            self.walk.is_over_limit.store(true, Relaxed);
            self.walk.cancel();
            return None;
        };
        let mut children = Vec::new();
        for (number, entry) in (base..).zip(entries.iter_mut().filter(|entry| is_child(entry))) {
            entry.link = number;
            let name = entry.name.slice(names);
            children.push(name.len() as u8);
            children.extend_from_slice(name);
        }
        Some((children, base))
    }

    fn count(&self, first: usize) {
        let entries = &self.shard.entries[first..];
        let count = entries.len() as u64;
        let before = self.walk.entry_count.fetch_add(count, Relaxed);
        self.walk
            .file_len
            .fetch_add(entries.iter().map(|entry| entry.size).sum(), Relaxed);
        if before + count >= u64::from(NOT_ENTERED) {
            self.walk.is_over_limit.store(true, Relaxed);
            self.walk.cancel();
        }
    }
}

impl Walk<'_> {
    fn is_foreign(&self, stat: &Stat) -> bool {
        self.options.one_file_system && stat.dev != self.root_dev
    }
}

fn describe(what: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "vanished while being scanned".to_owned(),
        _ => format!("{what}: {error}"),
    }
}

/// The path of `node` relative to the root, followed by `end` unless it is the root.
fn path_of(node: &Node<'_>, end: &[u8]) -> Vec<u8> {
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
