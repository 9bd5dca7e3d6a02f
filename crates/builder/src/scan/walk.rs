//! Visits directories: each thread takes one from the [queue](super::queue), lists it, examines its
//! entries and stores the results in its own shard.

use super::follow::{self, At};
use super::listed::Listed;
use super::options::ScanOptions;
use super::queue::{Done, Frame, Node, Task, Walk, path_of};
use super::shard::{Entry, MoreTimes, NONE, NOT_ENTERED, RawDir, Shard};
use crate::options::script::{Candidate, Script};
use crate::options::walk::{FollowLinks, MountPoints};
use crate::scan::source::{LayerSource, Origin};
use crate::threads::start;
use crate::{LeftOut, Observer, Problem};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use weald_filter::{DIR_FILE_LEN_MAX, DirRules, PathList};
use weald_format::limits::{FILE_LEN_MAX, NAME_LEN_MAX};
use weald_format::pages::check_xattrs;
use weald_format::{Attributes, Error, FileKind, Result, XattrSet};
use weald_sys::{DirBuffer, Stat};

/// Result of a walk.
pub struct Walked {
    pub origin: Origin,
    pub root_dev: u64,
    /// Entry of the root; its texts and attributes are in the first shard.
    pub root_entry: Entry,
    pub root_times: MoreTimes,
    pub shards: Vec<Shard>,
    /// Number of numbered directories; the root is 0.
    pub dir_count: u32,
    pub keeps_more_times: bool,
}

/// Walks everything below `root`, or the listed paths. The shards of the result have the numbers
/// from `first_shard` on.
///
/// # Errors
/// `Io` if the root cannot be listed; `Limit`; `Invalid` if cancelled.
pub fn walk(
    root: OwnedFd,
    options: &ScanOptions<'_>,
    (list, first_shard): (Option<&PathList>, usize),
    observer: &dyn Observer,
) -> Result<Walked> {
    let root_stat = weald_sys::stat_fd(&root).map_err(|e| Error::io("cannot be examined", e))?;
    let open_count = AtomicUsize::new(0);
    let listed = list.map(Listed::new);
    let dir = (root.as_fd(), root_stat.dev);
    let walk = Walk::new(options, dir, listed.as_ref(), &open_count, observer);
    let mut worker = Worker::new(&walk, first_shard);
    let (root_entry, root_times) = worker.root(&root_stat)?;
    let mut shards = run(worker, first_shard, observer)?;
    let dir_count = walk.outcome()?;
    drop(walk);
    if let (Some(listed), Some(shard)) = (&listed, shards.first_mut()) {
        shard.problems.extend(listed.missing());
    }
    let keeps_more_times = options.keeps_more_times();
    let origin = Origin::new(
        LayerSource::Directory(root),
        first_shard..first_shard + shards.len(),
    );
    Ok(Walked {
        origin: match options.follow {
            FollowLinks::None => origin,
            FollowLinks::Unsafe | FollowLinks::All => origin.following(),
        },
        root_dev: root_stat.dev,
        root_entry,
        root_times,
        shards,
        dir_count,
        keeps_more_times,
    })
}

/// File descriptors per worker: for its directories, and a share for waiting directories and the
/// rest of the build.
const DESCRIPTORS_PER_WORKER: u64 = 8;

/// Empties the queue with `first` and one more worker per additional thread, or as many as can be
/// started.
fn run(first: Worker<'_, '_>, first_shard: usize, observer: &dyn Observer) -> Result<Vec<Shard>> {
    let walk = first.walk;
    // A worker opens up to three directories at once. More workers than descriptors allow would
    // fail.
    let descriptors = weald_sys::open_file_limit() / DESCRIPTORS_PER_WORKER;
    let fitting = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let count = walk.options.threads.min(fitting).max(1);
    let others = (1..count).map(|index| Worker::new(walk, first_shard + index));
    std::thread::scope(|scope| {
        let spawn = |worker| start(scope, "scan", move || Worker::run(worker));
        let mut running = vec![spawn(first)?];
        // Shards are identified by position, so none may follow a missing one.
        running.extend(others.map_while(|worker| spawn(worker).ok()));
        walk.report(observer);
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().expect("a scanning thread panicked")
        };
        Ok(running.into_iter().map(join).collect())
    })
}

/// State of one thread of a walk.
struct Worker<'w, 'a> {
    walk: &'w Walk<'a>,
    shard: Shard,
    buffer: DirBuffer,
    list: Vec<u8>,
    /// Whether the thread has its own working directory, in which xattrs are listed fastest.
    can_enter_dirs: bool,
    /// Whether that working directory is the directory being examined.
    is_inside: bool,
}

impl<'w, 'a> Worker<'w, 'a> {
    fn new(walk: &'w Walk<'a>, index: usize) -> Self {
        Self {
            walk,
            shard: Shard::new(index),
            buffer: DirBuffer::default(),
            list: Vec::new(),
            can_enter_dirs: false,
            is_inside: false,
        }
    }

    fn run(mut self) -> Shard {
        self.can_enter_dirs =
            self.walk.options.keep_xattrs && weald_sys::separate_working_dir().is_ok();
        while let Some(task) = self.walk.take() {
            let _done = Done(self.walk);
            self.visit(task);
        }
        self.shard
    }

    /// Examines and lists the root and queues its subdirectories.
    fn root(&mut self, stat: &Stat) -> Result<(Entry, MoreTimes)> {
        self.shard.push(b"", stat.ino);
        if self.walk.options.keeps_more_times() {
            self.shard.more_times.push(MoreTimes::default());
        }
        self.fill(&At::name(self.walk.root, &[]), 0, stat);
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
            rules: DirRules::default(),
            listed: None,
            id: None,
        };
        node.listed = self.walk.node_of(&node);
        let follows = self.walk.options.follow != FollowLinks::None;
        let opened = match &parent_fd {
            Some(parent) if follows => weald_sys::open_dir_followed_at(&parent.fd, &node.name),
            Some(parent) => weald_sys::open_dir_at(&parent.fd, &node.name),
            None => self.walk.open(&node),
        };
        // The last child of a directory releases it, so that its descriptor can be closed.
        drop(parent_fd);
        let fd = match opened {
            Ok(fd) => self.walk.count_open(fd),
            Err(error) => return Err((Arc::new(node), error)),
        };
        node.fd = Arc::downgrade(&fd);
        if follows {
            node.id = match weald_sys::stat_fd(&fd.fd) {
                Ok(stat) => Some((stat.dev, stat.ino)),
                Err(error) => return Err((Arc::new(node), error)),
            };
            if let Some(error) = follow::cycle(&node) {
                self.walk.fail(error);
                return Ok(());
            }
        }
        match self.rules(&fd.fd, &node) {
            Ok(rules) => node.rules = rules,
            Err(error) => {
                self.walk.fail(error);
                return Ok(());
            }
        }
        let node = Arc::new(node);
        match self.list(&fd.fd, &node, number) {
            Ok(Some((names, next_number))) => {
                let fd = self.walk.keep_open(fd);
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

    /// Returns the rules in force in the open directory `dir`.
    fn rules(&self, dir: &OwnedFd, node: &Node<'a>) -> Result<DirRules> {
        let filter = self.walk.options.filter;
        if !filter.asks_dirs() {
            return Ok(DirRules::default());
        }
        let above = node.parent.as_ref().map(|parent| parent.rules.clone());
        let path = path_of(node, b"");
        filter.below(&above.unwrap_or_default(), &path, &mut |name| {
            read_rules(dir, name).map_err(|e| Error::io("filter file", e))
        })
    }

    /// Lists the open directory `dir`. Returns the names of its subdirectories and the number of
    /// the first one, if there are any.
    fn list(
        &mut self,
        dir: &OwnedFd,
        node: &Node<'a>,
        number: u32,
    ) -> io::Result<Option<(Vec<u8>, u32)>> {
        let asks_script = self.walk.options.script.is_some_and(Script::wants_entries);
        let prefix = if self.walk.options.filter.is_empty() && !asks_script {
            Vec::new()
        } else {
            path_of(node, b"/")
        };
        let first = self.shard.entries.len();
        let mut too_long = Vec::new();
        let dev = match self
            .read_names(dir, &prefix, node, &mut too_long)
            .and_then(|()| weald_sys::stat_fd(dir))
        {
            Ok(stat) => stat.dev,
            Err(error) => {
                self.shard.forget(first);
                return Err(error);
            }
        };
        for name in too_long {
            let len = name.len();
            let what = format!("left out: a name of {len} bytes, at most {NAME_LEN_MAX}");
            self.report(node, &name, what);
        }
        self.examine(dir.as_fd(), first, dev, &prefix, node);
        self.shard.sort_and_dedup(first);
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

    /// Appends the names of `dir`, except those that are not listed, those that the filter excludes
    /// by the file type from getdents, and those that are `too_long` for an image.
    fn read_names(
        &mut self,
        dir: &OwnedFd,
        prefix: &[u8],
        node: &Node<'a>,
        too_long: &mut Vec<Vec<u8>>,
    ) -> io::Result<()> {
        let (walk, shard) = (self.walk, &mut self.shard);
        let (filter, listed, rules) = (walk.options.filter, walk.listed, &node.rules);
        let follow = walk.options.follow;
        weald_sys::read_dir(dir, &mut self.buffer, |entry| {
            if listed.is_some_and(|listed| !listed.takes(node.listed, entry.name)) {
                return Ok(());
            }
            // What a symlink leads to can be a directory.
            let kind = entry
                .kind
                .filter(|&kind| kind != FileKind::Symlink || follow == FollowLinks::None);
            let is_dir = kind.map(|kind| kind == FileKind::Directory);
            if let Some(is_dir) = is_dir.filter(|_| !filter.is_empty()) {
                let path = [prefix, entry.name].concat();
                if let Some(rule) = filter.excluding(rules, &path, is_dir) {
                    walk.leave_out(&path, LeftOut::Rule(rule));
                    return Ok(());
                }
            }
            if entry.name.len() > NAME_LEN_MAX {
                too_long.push(entry.name.to_vec());
            } else {
                // Mark entries of unknown type: the filter is asked again when the type is known.
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

    /// Examines all entries from `first` on in the order of inode numbers, which is the fastest
    /// order on disks.
    fn examine(
        &mut self,
        dir: BorrowedFd<'_>,
        first: usize,
        dev: u64,
        prefix: &[u8],
        node: &Node<'a>,
    ) {
        let is_empty = self.shard.entries.len() == first;
        self.is_inside = self.can_enter_dirs && !is_empty && weald_sys::enter_dir(dir).is_ok();
        self.shard.entries[first..].sort_unstable_by_key(|entry| entry.ino);
        if self.walk.options.keeps_more_times() {
            self.shard
                .more_times
                .resize(self.shard.entries.len(), MoreTimes::default());
        }
        let mut name = Vec::with_capacity(256);
        for index in first..self.shard.entries.len() {
            if self.walk.is_cancelled() {
                return;
            }
            let entry = &mut self.shard.entries[index];
            let ask_filter = entry.has(Entry::OTHER_DEV);
            entry.set(Entry::OTHER_DEV, false);
            let name_ref = entry.name;
            name.clear();
            name.extend_from_slice(name_ref.slice(&self.shard.names));
            let found = weald_sys::stat_at(dir, &name)
                .map_err(|error| describe("cannot be examined", &error))
                .and_then(|stat| follow::lead(self.walk.options.follow, dir, &name, stat, node));
            match found {
                Ok((stat, followed)) => {
                    let is_dir = stat.kind == FileKind::Directory;
                    let ScanOptions {
                        filter,
                        omitted_inodes,
                        ..
                    } = *self.walk.options;
                    let path = || [prefix, &name].concat();
                    if ask_filter && let Some(rule) = filter.excluding(&node.rules, &path(), is_dir)
                    {
                        self.walk.leave_out(&path(), LeftOut::Rule(rule));
                        continue;
                    }
                    if omitted_inodes.contains(&(stat.dev, stat.ino)) {
                        let path = [path_of(node, b"/"), name.clone()].concat();
                        self.walk.leave_out(&path, LeftOut::Image);
                        continue;
                    }
                    let attributes = attributes_of(&stat);
                    let options = self.walk.options;
                    let (kind, size, walk) = (stat.kind, stat.size, self.walk);
                    let is_cancelled = &|| walk.is_stopped();
                    match options.is_kept(path, kind, size, &attributes, stat.mtime, is_cancelled) {
                        Ok(true) => {}
                        Ok(false) => {
                            self.walk.leave_out(&path(), LeftOut::Script);
                            continue;
                        }
                        Err(error) => return self.walk.fail(error),
                    }
                    if is_dir && self.walk.mount_point(&stat) == MountPoints::LeftOut {
                        let path = [path_of(node, b"/"), name.clone()].concat();
                        self.walk.leave_out(&path, LeftOut::MountPoint);
                        continue;
                    }
                    if stat.dev != dev {
                        self.shard.entries[index].set(Entry::OTHER_DEV, true);
                        self.shard.other_devs.insert(name_ref, stat.dev);
                    }
                    let path = path();
                    let at = At {
                        dir,
                        name: &name,
                        followed: followed.as_ref(),
                        path: &path,
                    };
                    if let Some(what) = self.fill(&at, index, &stat) {
                        self.report(node, &name, what);
                    }
                }
                Err(what) => self.report(node, &name, what),
            }
        }
    }

    /// Fills entry `index`, which is `at` its place. Returns the problem if something could not be
    /// read. A symlink whose target cannot be read, and a file that no image can hold, stays
    /// unfilled and is dropped later.
    fn fill(&mut self, at: &At<'_>, index: usize, stat: &Stat) -> Option<String> {
        let mut problem = None;
        let mut size = if stat.kind == FileKind::Regular {
            stat.size
        } else {
            0
        };
        if size > FILE_LEN_MAX {
            return Some(format!(
                "left out: {size} bytes long, holes included, and a file has at most \
                 {FILE_LEN_MAX} (2^60)"
            ));
        }
        let mut link = NONE;
        if stat.kind == FileKind::Symlink {
            let start = self.shard.targets.len() as u64;
            match weald_sys::read_link_at(at.dir, at.name, &mut self.shard.targets) {
                Ok(len) => size = len as u64,
                Err(error) => return Some(describe("target cannot be read", &error)),
            }
            link = self.shard.target_starts.len() as u32;
            self.shard.target_starts.push(start);
        }
        let mount_point = self.walk.mount_point(stat);
        if stat.kind == FileKind::Directory && mount_point != MountPoints::Entered {
            link = NOT_ENTERED;
        }
        let mut xattrs = self.xattrs(at).unwrap_or_else(|error| {
            problem = Some(describe("extended attributes cannot be read", &error));
            XattrSet::new()
        });
        let mut attributes = attributes_of(stat);
        if !self.walk.options.keep_xattrs && stat.kind != FileKind::Symlink {
            attributes.permissions = at.permissions_without_acl(stat.permissions);
        }
        let candidate = Candidate::new(at.path, stat.kind, size, &attributes, stat.mtime);
        let (walk, changed) = (self.walk, (&mut attributes, &mut xattrs));
        match walk
            .options
            .change(&candidate, changed, &|| walk.is_stopped())
        {
            Ok(is_plain) => self.shard.set_plain(index, is_plain),
            Err(error) => {
                walk.fail(error);
                return None;
            }
        }
        let xattrs = if xattrs.is_empty() {
            NONE
        } else {
            self.shard.intern_xattrs(xattrs)
        };
        let attributes = self.shard.intern_attributes(stat.kind, attributes);
        let entry = &mut self.shard.entries[index];
        entry.set_mtime(stat.mtime);
        entry.set(
            Entry::LINKED,
            stat.nlink > 1 && stat.kind != FileKind::Directory && !self.walk.options.splits_links,
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

    fn xattrs(&mut self, at: &At<'_>) -> io::Result<XattrSet> {
        if !self.walk.options.keep_xattrs {
            return Ok(XattrSet::new());
        }
        if at.followed.is_some() {
            self.list.clear();
        } else if self.is_inside {
            weald_sys::list_xattrs_here(at.name, &mut self.list)?
        } else {
            weald_sys::list_xattrs_at(at.dir, at.name, &mut self.list)?
        }
        let set = match at.followed {
            Some(file) => weald_sys::read_xattrs_fd(file)?,
            None if self.list.is_empty() => return Ok(XattrSet::new()),
            None => weald_sys::read_xattrs_at(at.dir, at.name)?,
        };
        check_xattrs(&set).map_err(io::Error::other)?;
        Ok(set)
    }

    fn report(&mut self, node: &Node<'a>, name: &[u8], what: String) {
        let mut path = path_of(node, b"/");
        path.extend_from_slice(name);
        self.shard.problems.push(Problem { path, what });
    }

    /// Numbers the directories to enter from entry `first` on. Returns their names, each after a
    /// length byte, and the first number.
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
            .and_then(|count| self.walk.reserve_numbers(count))
        else {
            self.walk.fail_too_many();
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
        self.walk.count(
            entries.len() as u64,
            entries
                .iter()
                .map(|entry| entry.size)
                .fold(0, u64::saturating_add),
        );
    }
}

/// Returns the content of the regular file `name` in `dir`, if there is one.
pub fn read_rules(dir: impl AsFd, name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let file = match weald_sys::open_file_at(dir, name) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if weald_sys::stat_fd(&file)?.kind != FileKind::Regular {
        return Ok(None);
    }
    let mut text = Vec::new();
    file.take(DIR_FILE_LEN_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > DIR_FILE_LEN_MAX {
        Err(io::Error::other(format!(
            "longer than {DIR_FILE_LEN_MAX} bytes"
        )))
    } else {
        Ok(Some(text))
    }
}

fn attributes_of(stat: &Stat) -> Attributes {
    Attributes {
        permissions: stat.permissions,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
    }
}

fn describe(what: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "vanished while being scanned".to_owned(),
        _ => format!("{what}: {error}"),
    }
}
