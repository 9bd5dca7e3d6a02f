//! Divides a tree into parts that threads search, and joins their results.
//!
//! A part has about [`PART_NAMES`] names. The driver itself enters a directory with more names
//! below it: the directory's own entry is a part, then its entries follow in runs. When all parts
//! of such a directory are done, its matches are remembered for later instances of its template.

use super::hit::Hit;
use super::part::{Batch, SearchPart, Shared};
use crate::Walker;
use crate::path::Located;
use std::collections::{HashMap, VecDeque};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::InodeNo;
use weald_image::Inode;

/// Names of a part: enough to make the cost of passing it negligible, few enough for a short
/// output.
const PART_NAMES: u64 = 4096;
/// Most large templates that are remembered, about 64 bytes each.
const LARGE_TEMPLATE_COUNT_MAX: usize = 1 << 16;
/// Most runs that are remembered for all of them together, 24 bytes each.
const KNOWN_RUNS_MAX: usize = 1 << 18;

/// Consecutive entries of a directory that are one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryRun {
    positions: Range<u64>,
    /// Whether it is one large directory, without its entries.
    is_shallow: bool,
}

/// A job for a thread. Jobs are created in the order of a walk.
pub enum Job<'a> {
    /// A part to search, and its run in the directory above.
    Part(Box<SearchPart<'a>>, Option<EntryRun>),
    /// The following parts are in the directory of this run.
    Enter(Opened),
    /// The end of the directory that was entered last.
    Leave,
    /// A directory with this number of matches, which need not be read.
    Known(u64, Option<EntryRun>),
}

/// A finished job.
pub enum Done<'a, E> {
    Part(Batch<E>, Box<SearchPart<'a>>, Option<EntryRun>, bool),
    Enter(Opened),
    Leave,
    Known(u64, Option<EntryRun>),
}

impl<'a> Job<'a> {
    /// Runs the job.
    pub fn run<E>(
        self,
        shared: &Shared<'a>,
        write: &impl Fn(Hit<'_>, &mut Vec<u8>) -> Result<(), E>,
    ) -> Done<'a, E> {
        match self {
            Self::Part(mut part, run) => {
                let mut batch = Batch::default();
                let is_done = part.advance(shared, write, &mut batch);
                Done::Part(batch, part, run, is_done)
            }
            Self::Enter(opened) => Done::Enter(opened),
            Self::Leave => Done::Leave,
            Self::Known(count, run) => Done::Known(count, run),
        }
    }
}

/// A large directory whose results are being joined.
#[derive(Default)]
pub struct Opened {
    /// Its template, if its matches are to be remembered.
    template: Option<u64>,
    /// Its run in the directory above.
    run: Option<EntryRun>,
    count: u64,
    /// The runs that have a match.
    runs: Vec<EntryRun>,
}

/// The matches in every instance of a large template.
#[derive(Clone)]
struct Answer {
    count: u64,
    runs: Arc<[EntryRun]>,
}

/// A large directory that is being divided.
struct Frame {
    dir: InodeNo,
    depth: usize,
    path_len: usize,
    entry_count: u64,
    has_directories: bool,
    next: u64,
    /// The runs to search; `None` for the whole directory. If there are runs, `next` counts in
    /// them.
    runs: Option<Arc<[EntryRun]>>,
}

/// Divides the tree and joins the results, on one thread.
pub struct Driver<'s, 'a> {
    shared: &'s Shared<'a>,
    start: Option<Located>,
    path: Vec<u8>,
    frames: Vec<Frame>,
    ready: VecDeque<Job<'a>>,
    opened: Vec<Opened>,
    known: HashMap<u64, Answer>,
    run_count: usize,
    /// The run of the part whose result was joined last.
    taken: Option<EntryRun>,
}

impl<'s, 'a> Driver<'s, 'a> {
    /// A driver for a search that begins at `start`.
    pub fn new(shared: &'s Shared<'a>, start: Located) -> Self {
        Self {
            shared,
            path: start.path.clone(),
            start: Some(start),
            frames: Vec::new(),
            ready: VecDeque::new(),
            opened: Vec::new(),
            known: HashMap::new(),
            run_count: 0,
            taken: None,
        }
    }

    /// The next job; `None` if there are no more.
    pub fn next_job(&mut self) -> Option<Job<'a>> {
        if let Some(start) = self.start.take() {
            self.begin(start);
        }
        while self.ready.is_empty() && !self.frames.is_empty() {
            self.divide();
        }
        self.ready.pop_front()
    }

    fn begin(&mut self, start: Located) {
        let inode = start.inode.clone();
        let is_large = self.is_large(&inode);
        let walker = Walker::new(self.shared.image, start);
        let part = Box::new(SearchPart::new(walker, is_large));
        self.ready.push_back(Job::Part(part, None));
        if is_large {
            self.descend(&inode, 0, None);
        }
    }

    /// Whether `inode` is a directory with more names below than a part has. An unreadable
    /// directory counts as small; the part that reads it reports the error.
    fn is_large(&self, inode: &Inode) -> bool {
        self.names_below(inode) > PART_NAMES
    }

    fn names_below(&self, inode: &Inode) -> u64 {
        self.shared.image.names_below(inode).unwrap_or(0)
    }

    /// Enters the large directory `inode` at `self.path`.
    fn descend(&mut self, inode: &Inode, depth: usize, run: Option<EntryRun>) {
        if self
            .shared
            .options
            .depth_max
            .is_some_and(|max| depth >= max)
        {
            return;
        }
        let template = inode.template.filter(|_| self.shared.known.is_some());
        let template = template.map(|id| id.0);
        let answer = template.and_then(|id| self.known.get(&id).cloned());
        match &answer {
            Some(answer) if answer.count == 0 => return,
            Some(answer) if self.shared.options.is_counted => {
                self.ready.push_back(Job::Known(answer.count, run));
                return;
            }
            _ => {}
        }
        let opened = Opened {
            template: template.filter(|_| answer.is_none()),
            run,
            ..Opened::default()
        };
        self.ready.push_back(Job::Enter(opened));
        self.frames.push(Frame {
            dir: inode.ino,
            depth,
            path_len: self.path.len(),
            entry_count: inode.size.0,
            // A directory has two links of its own, and one for each sub-directory.
            has_directories: inode.nlink > 2,
            next: 0,
            runs: answer.map(|answer| answer.runs),
        });
    }

    /// Creates the next jobs of the innermost directory.
    fn divide(&mut self) {
        let Some(frame) = self.frames.last() else {
            return;
        };
        let (depth, path_len) = (frame.depth, frame.path_len);
        self.path.truncate(path_len);
        let (run, large) = match &frame.runs {
            Some(runs) => (runs.get(frame.next as usize).cloned(), None),
            None => self.next_run(frame),
        };
        let Some(run) = run else {
            self.frames.pop();
            self.ready.push_back(Job::Leave);
            return;
        };
        let (image, dir) = (self.shared.image, frame.dir);
        let next = match frame.runs {
            Some(_) => frame.next + 1,
            None => run.positions.end,
        };
        let walker = Walker::within(image, dir, self.path.clone(), depth, run.positions.clone());
        let part = Box::new(SearchPart::new(walker, run.is_shallow));
        self.ready.push_back(Job::Part(part, Some(run.clone())));
        if let Some(frame) = self.frames.last_mut() {
            frame.next = next;
        }
        if !run.is_shallow {
            return;
        }
        let large = large.or_else(|| self.entry(dir, run.positions.start));
        if let Some((name, inode)) = large {
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            self.descend(&inode, depth + 1, Some(run));
        }
    }

    /// The next run of `frame`, and the large directory that it is, if it is one.
    fn next_run(&self, frame: &Frame) -> (Option<EntryRun>, Option<(Vec<u8>, Inode)>) {
        let start = frame.next;
        let run = |end, is_shallow| {
            let positions = start..end;
            (start < end).then_some(EntryRun {
                positions,
                is_shallow,
            })
        };
        if !frame.has_directories {
            let end = start.saturating_add(PART_NAMES).min(frame.entry_count);
            return (run(end, false), None);
        }
        let (mut end, mut weight, mut large) = (start, 0_u64, None);
        let image = self.shared.image;
        let read = image.read_dir(frame.dir, start, &mut |index, name, inode| {
            let below = self.names_below(inode);
            if below > PART_NAMES {
                if index == start {
                    large = Some((name.to_vec(), inode.clone()));
                    end = index + 1;
                }
                return ControlFlow::Break(());
            }
            end = index + 1;
            weight += 1 + below;
            if weight < PART_NAMES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        if read.is_err() && large.is_none() {
            // The part that reads the rest meets the same error and reports it.
            return (run(u64::MAX, false), None);
        }
        (run(end, large.is_some()), large)
    }

    fn entry(&self, dir: InodeNo, position: u64) -> Option<(Vec<u8>, Inode)> {
        let mut entry = None;
        let read = self
            .shared
            .image
            .read_dir(dir, position, &mut |_, name, inode| {
                entry = Some((name.to_vec(), inode.clone()));
                ControlFlow::Break(())
            });
        entry.filter(|_| read.is_ok())
    }

    /// Joins a finished job, in order. Returns its results, and the part if it is not at its end.
    pub fn take<E>(&mut self, done: Done<'a, E>) -> (Batch<E>, Option<Box<SearchPart<'a>>>) {
        let mut batch = Batch::default();
        match done {
            Done::Part(batch, part, run, is_done) => {
                self.taken = run;
                self.add(&batch);
                return (batch, (!is_done).then_some(part));
            }
            Done::Enter(opened) => self.opened.push(opened),
            Done::Leave => self.leave(),
            Done::Known(count, run) => {
                self.taken = run;
                self.add_found(count);
                batch.count = count;
            }
        }
        (batch, None)
    }

    /// Adds the results of the part that was joined last.
    pub fn add<E>(&mut self, batch: &Batch<E>) {
        if !batch.problems.is_empty() {
            // An error may occur in one instance only, and must be reported for every instance.
            let opened = self.opened.iter_mut();
            opened.for_each(|opened| opened.template = None);
        }
        self.add_found(batch.found_count);
    }

    /// Adds `count` matches in the run `self.taken`.
    fn add_found(&mut self, count: u64) {
        let Some(parent) = self.opened.last_mut().filter(|_| count > 0) else {
            return;
        };
        parent.count = parent.count.saturating_add(count);
        if let Some(run) = self.taken.clone()
            && parent.template.is_some()
            && parent.runs.last() != Some(&run)
        {
            parent.runs.push(run);
        }
    }

    fn leave(&mut self) {
        let Some(closed) = self.opened.pop() else {
            return;
        };
        self.taken = closed.run;
        self.add_found(closed.count);
        let free_count = KNOWN_RUNS_MAX - self.run_count;
        if let Some(template) = closed.template
            && self.known.len() < LARGE_TEMPLATE_COUNT_MAX
            && closed.runs.len() <= free_count
        {
            // Several instances may have been started before the first was finished.
            self.known.entry(template).or_insert_with(|| {
                self.run_count += closed.runs.len();
                Answer {
                    count: closed.count,
                    runs: Arc::from(closed.runs),
                }
            });
        }
    }
}
