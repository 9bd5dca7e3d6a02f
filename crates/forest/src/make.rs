//! Makes a forest in a directory of any file system.
//!
//! Each leaf is made under a temporary name beside its final one and renamed when it is complete.
//! So a leaf with its final name is complete. Threads take leaves roughly in order, and none is
//! further ahead than [`LEAD_MAX`]. After an interruption, a bisection finds the first missing
//! leaf; all other missing leaves lie around it.

mod entries;

use crate::name_order::NameOrder;
use crate::tree::{Entry, Forest, Leaf};
use crate::verify::compare_leaf;
use crate::work::{LEAD_MAX, Progress, Queue, interleave_directories};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use weald_format::{Error, ErrorKind, Result, Timestamp};
use weald_sys::{DirBuffer, NewTimes};

/// Options of [`make()`].
#[derive(Debug, Clone, Copy)]
pub struct MakeOptions {
    /// Number of threads; 0 counts as 1.
    pub thread_count: usize,
    /// Permission bits that the process's umask clears.
    pub umask: u16,
    /// Whether to resume if the directory holds the first part of this forest.
    pub resume: bool,
}

/// Prefix of the names of incomplete leaves.
const TEMPORARY: &[u8] = b".weald-forest-";

/// Makes `forest` in the directory `target`, and that directory if it is missing.
///
/// # Errors
/// `Invalid` if the directory is not empty and [`MakeOptions::resume`] is not set, or if it holds
/// anything other than the first part of this forest; `Full` if space or inodes run out; `Io`;
/// `Busy` if the work was cancelled. After each of them, a run with `resume` continues.
pub fn make(
    forest: &Forest,
    target: &Path,
    options: &MakeOptions,
    progress: &Progress,
) -> Result<()> {
    let root = open_target(target)?;
    let maker = Maker {
        forest,
        root: &root,
        name_order: NameOrder::of(&root),
        options,
        progress,
    };
    let missing = match is_empty(&root)? {
        true => 0..0,
        false if !options.resume => {
            let what = format!(
                "{}: not empty; use --resume to continue a forest",
                target.display()
            );
            return Err(Error::invalid(what));
        }
        false => maker.missing().map_err(|e| e.context(target.display()))?,
    };
    let front = missing.clone().filter(|&n| !maker.exists(n));
    let rest = missing.end..forest.leaf_count();
    let done_count = forest.leaf_count()
        - (missing.clone().filter(|&n| !maker.exists(n)).count() as u64)
        - (rest.end - rest.start);
    progress.leaves.fetch_add(done_count, Ordering::Relaxed);
    let leaf_count = match forest.depth() {
        0 => 1,
        depth => forest.leaves_below(depth - 1),
    };
    let rest = interleave_directories(rest, leaf_count, options.thread_count as u64);
    let queue = Queue::new(front.chain(rest), progress);
    queue
        .run(
            options.thread_count,
            Worker::of_this_thread,
            |worker, number| {
                let made = maker.make_leaf(worker, number, |leaf| queue.wait_for(leaf));
                made.map_err(|e| maker.name_exhausted_resource(e).context(maker.path(number)))
            },
        )
        .and_then(|()| maker.finish())
        .map_err(|e| e.context(target.display()))
}

fn open_target(target: &Path) -> Result<OwnedFd> {
    match std::fs::create_dir(target) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::io(
                format!("{}: cannot be made", target.display()),
                e,
            ));
        }
        _ => {}
    }
    weald_sys::open_dir(target)
        .map_err(|e| Error::io(format!("{}: cannot be opened", target.display()), e))
}

/// Whether a directory is empty, apart from entries that file systems make in a new root.
fn is_empty(dir: &OwnedFd) -> Result<bool> {
    let mut is_empty = true;
    let dir = weald_sys::open_dir_at(dir, b".").map_err(io("cannot be read"))?;
    weald_sys::read_dir(&dir, &mut DirBuffer::default(), |entry| {
        is_empty &= entry.name == b"lost+found";
        Ok(())
    })
    .map_err(io("cannot be read"))?;
    Ok(is_empty)
}

fn io(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |e| Error::io(what, e)
}

/// The same for calls that make a name. Every name is drawn once. If it exists already, it is
/// another name that the file system treats as equal.
fn name_error(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Error::io(
            "the file system treats it as equal to a name that exists",
            e,
        ),
        _ => Error::io(what, e),
    }
}

/// State that a thread keeps from leaf to leaf.
struct Worker {
    /// Whether the thread has a working directory of its own.
    can_enter_dirs: bool,
    drawing: Drawing,
    /// Open directories on the path to the last leaf, with their names.
    parents: Vec<(Vec<u8>, OwnedFd)>,
}

impl Worker {
    /// Makes the state of the calling thread.
    fn of_this_thread() -> Self {
        Self {
            can_enter_dirs: weald_sys::separate_working_dir().is_ok(),
            drawing: Drawing::default(),
            parents: Vec::new(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The caller may unmount the file system of the forest next, so no thread may stay in it.
        // If this fails, the unmount fails too and reports it.
        if self.can_enter_dirs {
            let _ = weald_sys::leave_dir();
        }
    }
}

/// Buffers that are reused.
#[derive(Default)]
struct Drawing {
    leaf: Leaf,
    /// A piece of a content.
    buffer: Vec<u8>,
}

/// Directories for making a leaf.
struct LeafDir<'a> {
    number: u64,
    dir: &'a OwnedFd,
    /// The same directory, for making names: the working directory if possible, because the kernel
    /// finds it without a reference count.
    name_dir: BorrowedFd<'a>,
    /// Parent directory, in which the leaf gets its name.
    parent: &'a OwnedFd,
}

struct Maker<'a> {
    forest: &'a Forest,
    root: &'a OwnedFd,
    name_order: NameOrder,
    options: &'a MakeOptions,
    progress: &'a Progress,
}

impl Maker<'_> {
    /// Path of leaf `number` for messages.
    fn path(&self, number: u64) -> String {
        String::from_utf8_lossy(&self.path_bytes(number)).into_owned()
    }

    fn path_bytes(&self, number: u64) -> Vec<u8> {
        let mut path = Vec::new();
        for level in 1..=self.forest.depth() {
            if level > 1 {
                path.push(b'/');
            }
            self.forest.dir_name(level, number, &mut path);
        }
        path
    }

    fn exists(&self, number: u64) -> bool {
        // A forest of one directory has no temporary name, so it is made again.
        let path = self.path_bytes(number);
        !path.is_empty() && weald_sys::open_beneath(self.root, &path).is_ok()
    }

    /// Range of leaves around the first missing one: all before it exist, none after it does.
    fn missing(&self) -> Result<std::ops::Range<u64>> {
        let count = self.forest.leaf_count();
        let (mut done_count, mut first_missing) = (0, count);
        while done_count < first_missing {
            let middle = done_count + (first_missing - done_count) / 2;
            if self.exists(middle) {
                done_count = middle + 1
            } else {
                first_missing = middle
            }
        }
        let range = first_missing.saturating_sub(LEAD_MAX)..count.min(first_missing + LEAD_MAX);
        self.check_front(first_missing)?;
        range.clone().try_for_each(|n| self.remove_temporary(n))?;
        Ok(range)
    }

    /// Refuses a directory that holds something else. The first leaf and the last one before the
    /// missing ones must match.
    fn check_front(&self, first_missing: u64) -> Result<()> {
        self.check_names()?;
        for number in [0, first_missing.saturating_sub(1)] {
            if first_missing == 0 || !self.exists(number) {
                continue;
            }
            let mut found = None;
            let mut report = |difference| {
                found.get_or_insert(difference);
            };
            compare_leaf(
                self.forest,
                self.root,
                number,
                &mut Leaf::default(),
                &mut report,
            )?;
            if let Some(difference) = found {
                let what = format!("holds another forest: {difference}");
                return Err(Error::invalid(what));
            }
        }
        Ok(())
    }

    /// Refuses top-level names that do not belong to this forest.
    fn check_names(&self) -> Result<()> {
        let step = match self.forest.depth() {
            0 => return Ok(()),
            _ => self.forest.leaves_below(1) as usize,
        };
        let mut names: Vec<Vec<u8>> = (0..self.forest.leaf_count())
            .step_by(step)
            .map(|leaf| {
                let mut name = Vec::new();
                self.forest.dir_name(1, leaf, &mut name);
                name
            })
            .collect();
        names.sort_unstable();
        let mut foreign = None;
        let dir = weald_sys::open_dir_at(self.root, b".").map_err(io("cannot be read"))?;
        weald_sys::read_dir(&dir, &mut DirBuffer::default(), |entry| {
            let is_ours = names
                .binary_search_by(|n| n.as_slice().cmp(entry.name))
                .is_ok()
                || entry.name.starts_with(TEMPORARY)
                || entry.name == b"lost+found";
            if !is_ours {
                foreign.get_or_insert_with(|| entry.name.escape_ascii().to_string());
            }
            Ok(())
        })
        .map_err(io("cannot be read"))?;
        match foreign {
            None => Ok(()),
            Some(name) => Err(Error::invalid(format!(
                "holds {name}, which is not part of this forest"
            ))),
        }
    }

    /// Removes an incomplete leaf `number` of an interrupted run.
    fn remove_temporary(&self, number: u64) -> Result<()> {
        let mut path = self.path_bytes(number);
        let parent_len = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
        path.truncate(parent_len);
        let Ok(parent) =
            weald_sys::open_beneath(self.root, if path.is_empty() { b"." } else { &path })
        else {
            return Ok(());
        };
        let name = temporary(number);
        let dir = match weald_sys::open_dir_at(&parent, &name) {
            Ok(dir) => dir,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::io("an incomplete leaf cannot be opened", e)),
        };
        clear(&dir)?;
        weald_sys::remove_dir_at(&parent, &name).map_err(io("an incomplete leaf cannot be removed"))
    }

    /// Adds to a `Full` error whether space or inodes ran out.
    fn name_exhausted_resource(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Full {
            return error;
        }
        let no_inode = weald_sys::free_inode_count(self.root).is_ok_and(|count| count == 0);
        let what = if no_inode {
            "no inode is left; --resume continues"
        } else {
            "no space is left; --resume continues"
        };
        error.context(what)
    }

    /// Opens (and makes) the parent directory of leaf `number`.
    fn parent<'w>(
        &'w self,
        worker: &'w mut Vec<(Vec<u8>, OwnedFd)>,
        number: u64,
    ) -> Result<&'w OwnedFd> {
        let depth = self.forest.depth();
        for level in 1..depth.max(1) {
            let mut name = Vec::new();
            self.forest.dir_name(level, number, &mut name);
            if worker
                .get(level - 1)
                .is_some_and(|(known, _)| *known == name)
            {
                continue;
            }
            worker.truncate(level - 1);
            let above = worker.last().map_or(self.root, |(_, fd)| fd);
            match weald_sys::make_dir_at(above, &name, 0o755) {
                Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(Error::io("cannot be made", e));
                }
                _ => {}
            }
            let fd = weald_sys::open_dir_at(above, &name).map_err(io("cannot be opened"))?;
            worker.push((name, fd));
        }
        Ok(worker.last().map_or(self.root, |(_, fd)| fd))
    }

    fn make_leaf(
        &self,
        worker: &mut Worker,
        number: u64,
        wait_for: impl Fn(u64) -> Result<()>,
    ) -> Result<()> {
        let depth = self.forest.depth();
        let parent = self.parent(&mut worker.parents, number)?;
        let temporary_name = match depth {
            // Nothing is renamed: the leaf of an interrupted run is made again.
            0 => {
                clear(parent)?;
                None
            }
            _ => {
                let temporary_name = temporary(number);
                weald_sys::make_dir_at(parent, &temporary_name, 0o755)
                    .map_err(io("cannot be made"))?;
                Some(temporary_name)
            }
        };
        let dir = weald_sys::open_dir_at(parent, temporary_name.as_deref().unwrap_or(b"."))
            .map_err(io("cannot be opened"))?;
        let is_inside = worker.can_enter_dirs && weald_sys::enter_dir(&dir).is_ok();
        let place = LeafDir {
            number,
            dir: &dir,
            name_dir: if is_inside {
                weald_sys::WORKING_DIR
            } else {
                dir.as_fd()
            },
            parent,
        };
        let Drawing { leaf, buffer } = &mut worker.drawing;
        let (bytes, has_links) = match self.name_order {
            NameOrder::Drawn => self.make_drawn(&place, leaf, buffer)?,
            order => self.make_ordered(&place, order, leaf, buffer)?,
        };
        if has_links {
            self.forest.leaf(number, leaf);
            self.make_links(&place, leaf, &wait_for)?;
        }
        if let Some(temporary_name) = temporary_name {
            self.set_dir(&dir, self.forest.dir_mtime(depth, number))?;
            let mut name = Vec::new();
            self.forest.dir_name(depth, number, &mut name);
            weald_sys::rename_new_at(parent, &temporary_name, parent, &name)
                .map_err(name_error("cannot be given its name"))?;
        }
        self.progress.add(self.forest.files_per_leaf(), bytes);
        Ok(())
    }

    /// Makes the entries of a leaf in the order of drawing, except hard links. It draws them one by
    /// one: a whole leaf would evict the kernel's data from the processor's cache. Returns the
    /// number of bytes written and whether there are hard links.
    fn make_drawn(
        &self,
        place: &LeafDir,
        one: &mut Leaf,
        buffer: &mut Vec<u8>,
    ) -> Result<(u64, bool)> {
        let (mut bytes, mut has_links) = (0, false);
        let entries = self.forest.entries(place.number);
        for index in 0..self.forest.files_per_leaf() {
            entries.draw(index, one);
            let entry = &one.entries[0];
            has_links |= entry.is_hard_link();
            bytes += self.make_entry(place, one, entry, buffer)?;
        }
        Ok((bytes, has_links))
    }

    /// The same in another order.
    fn make_ordered(
        &self,
        place: &LeafDir,
        order: NameOrder,
        leaf: &mut Leaf,
        buffer: &mut Vec<u8>,
    ) -> Result<(u64, bool)> {
        self.forest.leaf(place.number, leaf);
        let bytes = order
            .entries(leaf)
            .into_iter()
            .map(|entry| self.make_entry(place, leaf, entry, buffer))
            .sum::<Result<u64>>()?;
        Ok((bytes, leaf.entries.iter().any(Entry::is_hard_link)))
    }

    fn set_dir(&self, dir: &OwnedFd, mtime: Option<Timestamp>) -> Result<()> {
        let attributes = self.forest.dir_attributes();
        if !self.forest.spec().owners.is_empty() {
            weald_sys::chown_at(dir, b"", attributes.uid, attributes.gid)
                .map_err(io("cannot be given its owner"))?;
        }
        // Reading the mode is cheaper than a change that changes nothing.
        let is_right =
            weald_sys::stat_fd(dir).is_ok_and(|s| s.permissions == attributes.permissions);
        if !is_right {
            weald_sys::chmod_fd(dir, attributes.permissions)
                .map_err(io("cannot be given its mode"))?;
        }
        match mtime {
            Some(mtime) => {
                weald_sys::set_times_fd(dir, times(mtime)).map_err(io("cannot be given its time"))
            }
            None => Ok(()),
        }
    }

    /// Sets the attributes of the directories above the leaves, which making the leaves changed.
    fn finish(&self) -> Result<()> {
        for level in (0..self.forest.depth().max(1)).rev() {
            let step = self.forest.leaves_below(level) as usize;
            for number in (0..self.forest.leaf_count()).step_by(step) {
                let mut path = Vec::new();
                for level in 1..=level {
                    self.forest.dir_name(level, number, &mut path);
                    path.push(b'/');
                }
                path.push(b'.');
                let dir = weald_sys::open_beneath(self.root, &path)
                    .and_then(|dir| weald_sys::open_dir_at(&dir, b"."))
                    .map_err(io("cannot be opened"))?;
                self.set_dir(&dir, self.forest.dir_mtime(level, number))?;
            }
        }
        Ok(())
    }
}

fn times(mtime: Timestamp) -> NewTimes {
    NewTimes {
        mtime: Some(mtime),
        atime: None,
    }
}

fn temporary(number: u64) -> Vec<u8> {
    [TEMPORARY, number.to_string().as_bytes()].concat()
}

/// Removes all files of a leaf.
fn clear(dir: &impl AsFd) -> Result<()> {
    let mut names = Vec::new();
    let open = weald_sys::open_dir_at(dir, b".").map_err(io("cannot be read"))?;
    weald_sys::read_dir(&open, &mut DirBuffer::default(), |entry| {
        if entry.name != b"lost+found" {
            names.push(entry.name.to_vec());
        }
        Ok(())
    })
    .map_err(io("cannot be read"))?;
    names
        .iter()
        .try_for_each(|name| weald_sys::remove_file_at(dir, name))
        .map_err(io("an incomplete leaf cannot be removed"))
}
