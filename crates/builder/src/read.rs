//! The readers: threads that read and hash files ahead of the segmenter, handed over in order.

use crate::recode::{Recoder, Taken};
use crate::scan::{EntryNo, ScannedTree};
use crate::source::{Layout, is_cut};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use weald_format::{Digest, Result};

/// Files up to this length are read whole by a reader; longer ones are streamed by the segmenter's
/// thread, archives aside that can be taken apart only as a whole.
pub const WHOLE_LEN_MAX: u64 = 4 << 20;
/// A batch ends after this many bytes or files.
const BATCH_LEN: u64 = 1 << 20;
const BATCH_COUNT: usize = 64;
/// How often a changing file is read again before it is taken as it is.
const ATTEMPTS: usize = 3;

/// One file to read: an inode, by its first name.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// Its first name.
    pub entry: EntryNo,
    /// Bytes, when it was scanned.
    pub len: u64,
    /// It is read whole by a reader.
    pub is_whole: bool,
}

/// A file in memory.
pub struct Loaded {
    /// Where its data lies.
    pub layout: Layout,
    /// The data, without holes.
    pub data: Vec<u8>,
    /// Digest of the content.
    pub digest: Digest,
    /// What recipes can make of the data.
    pub taken: Taken,
    /// It changed under every attempt to read it.
    pub is_changed: bool,
}

/// What the readers hand over.
pub enum Handed {
    /// Read whole, or what hindered it.
    Whole(Job, Result<Loaded>),
    /// Too long for that: the receiver streams it.
    Long(Job),
}

struct State {
    next_batch: usize,
    handed_batch: usize,
    held_len: u64,
    ready: BTreeMap<usize, Vec<Handed>>,
    is_stopped: bool,
    /// A reader panicked: what it was reading will never be ready.
    is_broken: bool,
}

/// A queue of files that several threads read ahead of one receiver.
pub struct Readers<'a> {
    tree: &'a ScannedTree,
    recoder: Option<Recoder>,
    jobs: &'a [Job],
    batches: Vec<Range<usize>>,
    held_len_max: u64,
    state: Mutex<State>,
    changed: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Readers<'a> {
    /// A queue over `jobs` that holds at most about `held_len_max` bytes; a `recoder` takes them
    /// apart.
    pub fn new(
        tree: &'a ScannedTree,
        jobs: &'a [Job],
        held_len_max: u64,
        recoder: Option<Recoder>,
    ) -> Self {
        let state = State {
            next_batch: 0,
            handed_batch: 0,
            held_len: 0,
            ready: BTreeMap::new(),
            is_stopped: false,
            is_broken: false,
        };
        let batches = batches(jobs);
        Self {
            tree,
            recoder,
            jobs,
            batches,
            held_len_max,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// What a reader thread runs: reads batches until there are no more.
    pub fn work(&self) {
        let _watched = Watched(self);
        while let Some(no) = self.claim() {
            let handed = self.jobs[self.batches[no].clone()]
                .iter()
                .map(|job| self.read(*job))
                .collect();
            locked(&self.state).ready.insert(no, handed);
            self.changed.notify_all();
        }
    }

    /// The next batch, once there is room for it. Batches are claimed in order, so that the
    /// receiver's next one is always being read.
    fn claim(&self) -> Option<usize> {
        let mut state = locked(&self.state);
        loop {
            let no = state.next_batch;
            if state.is_stopped || no == self.batches.len() {
                return None;
            }
            let len = self.batch_len(no);
            if state.held_len == 0 || state.held_len + len <= self.held_len_max {
                state.next_batch += 1;
                state.held_len += len;
                return Some(no);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn batch_len(&self, no: usize) -> u64 {
        self.jobs[self.batches[no].clone()]
            .iter()
            .map(|j| if j.is_whole { j.len } else { 0 })
            .sum()
    }

    /// The next batch in order; `None` after the last, or when a reader has panicked.
    pub fn next(&self) -> Option<Vec<Handed>> {
        let mut state = locked(&self.state);
        let no = state.handed_batch;
        if no == self.batches.len() {
            return None;
        }
        loop {
            if let Some(handed) = state.ready.remove(&no) {
                state.handed_batch += 1;
                state.held_len -= self.batch_len(no);
                drop(state);
                self.changed.notify_all();
                return Some(handed);
            }
            if state.is_broken {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A guard that ends the readers when it is dropped, however the receiver comes to its end.
    pub fn stop_on_drop(&self) -> Stop<'_> {
        Stop(self)
    }

    fn read(&self, job: Job) -> Handed {
        if !job.is_whole {
            return Handed::Long(job);
        }
        match read_whole(self.tree, &job).transpose() {
            Some(Ok(mut loaded)) => {
                if let (Some(recoder), None) = (&self.recoder, &loaded.layout.runs) {
                    loaded.taken = recoder.streams(&loaded.data, &loaded.digest);
                }
                Handed::Whole(job, Ok(loaded))
            }
            Some(failed) => Handed::Whole(job, failed),
            None => Handed::Long(job),
        }
    }
}

/// Ends the readers when dropped.
pub struct Stop<'a>(&'a Readers<'a>);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).is_stopped = true;
        self.0.changed.notify_all();
    }
}

/// Tells everybody when a reader panics, so that nobody waits for it.
struct Watched<'a>(&'a Readers<'a>);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut state = locked(&self.0.state);
            (state.is_broken, state.is_stopped) = (true, true);
            drop(state);
            self.0.changed.notify_all();
        }
    }
}

fn batches(jobs: &[Job]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut len) = (0, 0);
    for (i, job) in jobs.iter().enumerate() {
        len += job.len;
        if len >= BATCH_LEN || i + 1 - start == BATCH_COUNT {
            batches.push(start..i + 1);
            (start, len) = (i + 1, 0);
        }
    }
    if start < jobs.len() {
        batches.push(start..jobs.len());
    }
    batches
}

/// Reads a file until it holds still, at most [`ATTEMPTS`] times; `None` where it has grown too
/// long to be held.
fn read_whole(tree: &ScannedTree, job: &Job) -> Result<Option<Loaded>> {
    let mut attempt = read_once(tree, job);
    for _ in 1..ATTEMPTS {
        let is_settled = match &attempt {
            Ok(loaded) => !loaded.as_ref().is_some_and(|l| l.is_changed),
            Err(error) => !is_cut(error),
        };
        if is_settled {
            break;
        }
        attempt = read_once(tree, job);
    }
    attempt
}

fn read_once(tree: &ScannedTree, job: &Job) -> Result<Option<Loaded>> {
    let file = tree.open_file(job.entry)?;
    let mut layout = file.layout()?;
    let data_len = layout.data_len();
    if data_len > WHOLE_LEN_MAX.max(job.len) {
        return Ok(None);
    }
    let mut data = Vec::with_capacity(data_len as usize + 1);
    match &layout.runs {
        None => {
            file.read_front(data_len, &mut data)?;
            layout.len = data.len() as u64;
        }
        Some(runs) => {
            for run in runs {
                let start = data.len();
                data.resize(start + (run.end - run.start) as usize, 0);
                file.read_run(&mut data[start..], run.start)?;
            }
        }
    }
    // A file may end before its size without any other sign of a change, as those of sysfs do.
    let is_changed = data.len() as u64 != data_len || !tree.is_unchanged(job.entry, &file)?;
    let mut hasher = layout.hasher();
    hasher.update(&data);
    Ok(Some(Loaded {
        layout,
        data,
        digest: hasher.finish(),
        taken: Taken::default(),
        is_changed,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::filter::Filter;
    use crate::scan::{ScanOptions, scan};
    use std::panic::AssertUnwindSafe;

    /// Would catch: a build that waits for ever for a reader, or a reader for a receiver, that
    /// panicked.
    #[test]
    fn a_panic_on_either_side_ends_both() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("file"), [1; 100]).unwrap();
        let filter = Filter::new();
        let options = ScanOptions {
            threads: 1,
            filter: &filter,
            script: None,
            left_out: &[],
            one_file_system: false,
            keep_xattrs: false,
            keep_atime: false,
            keep_ctime: false,
            keep_btime: false,
        };
        let tree = scan(temp.path(), &options, &Silent).unwrap();
        let jobs = |entry| {
            vec![
                Job {
                    entry: EntryNo(entry),
                    len: WHOLE_LEN_MAX,
                    is_whole: true,
                };
                9
            ]
        };
        for (entry, receiver_panics) in [(1, true), (77, false)] {
            let jobs = jobs(entry);
            let readers = Readers::new(&tree, &jobs, 1, None);
            // Nothing of it is looked at afterwards.
            let ended = std::panic::catch_unwind(AssertUnwindSafe(|| {
                std::thread::scope(|scope| {
                    let _stop = readers.stop_on_drop();
                    scope.spawn(|| readers.work());
                    while readers.next().is_some() {
                        assert!(!receiver_panics, "on purpose");
                    }
                });
            }));
            assert!(ended.is_err());
        }
    }
}
