//! The readers: threads that read and hash files ahead of the segmenter, handed over in order.

use crate::scan::{EntryNo, ScannedTree};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use weald_format::tree_digest::ContentHasher;
use weald_format::{Digest, Error, Result};

/// Files up to this length are read whole by a reader; longer ones are streamed by the segmenter's thread.
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
}

/// The layout of a file: where its data lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Bytes, holes included.
    pub len: u64,
    /// Data runs, where the file has holes; `None` where it is dense.
    pub runs: Option<Vec<Range<u64>>>,
}

impl Layout {
    /// The layout of an open file.
    ///
    /// # Errors
    /// `Io`.
    pub fn of(file: &File) -> Result<Self> {
        let stat = weald_sys::stat_fd(file).map_err(|e| Error::io("cannot be examined", e))?;
        let len = stat.size;
        if stat.blocks.saturating_mul(512) >= len {
            return Ok(Self { len, runs: None });
        }
        let runs = weald_sys::data_runs(file, len).map_err(|e| Error::io("cannot be searched for holes", e))?;
        let is_dense = runs.len() == 1 && runs.first() == Some(&(0..len));
        Ok(Self { len, runs: (!is_dense).then_some(runs) })
    }

    /// Bytes of data.
    pub fn data_len(&self) -> u64 {
        self.runs.as_ref().map_or(self.len, |runs| runs.iter().map(|r| r.end - r.start).sum())
    }

    /// The hasher for contents of this layout.
    pub fn hasher(&self) -> ContentHasher {
        match &self.runs {
            None => ContentHasher::dense(),
            Some(runs) => {
                let runs: Vec<(u64, u64)> = runs.iter().map(|r| (r.start, r.end - r.start)).collect();
                ContentHasher::sparse(self.len, &runs)
            }
        }
    }
}

/// A file in memory.
pub struct Loaded {
    /// Where its data lies.
    pub layout: Layout,
    /// The data, without holes.
    pub data: Vec<u8>,
    /// Digest of the content.
    pub digest: Digest,
    /// It changed under every attempt to read it.
    pub is_changed: bool,
}

/// What the readers hand over.
pub enum Handed {
    /// Read whole.
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
}

/// A queue of files that several threads read ahead of one receiver.
pub struct Readers<'a> {
    tree: &'a ScannedTree,
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
    /// A queue over `jobs` that holds at most about `held_len_max` bytes.
    pub fn new(tree: &'a ScannedTree, jobs: &'a [Job], held_len_max: u64) -> Self {
        let state =
            State { next_batch: 0, handed_batch: 0, held_len: 0, ready: BTreeMap::new(), is_stopped: false };
        let batches = batches(jobs);
        Self { tree, jobs, batches, held_len_max, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// What a reader thread runs: reads batches until there are no more.
    pub fn work(&self) {
        while let Some((no, len)) = self.claim() {
            let handed = self.jobs[self.batches[no].clone()].iter().map(|job| self.read(*job)).collect();
            let mut state = locked(&self.state);
            state.ready.insert(no, handed);
            drop(state);
            let _ = len;
            self.changed.notify_all();
        }
    }

    /// The next batch, once there is room for it. Batches are claimed in order, so that the receiver's next one is
    /// always being read.
    fn claim(&self) -> Option<(usize, u64)> {
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
                return Some((no, len));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn batch_len(&self, no: usize) -> u64 {
        self.jobs[self.batches[no].clone()].iter().map(|j| if j.len > WHOLE_LEN_MAX { 0 } else { j.len }).sum()
    }

    /// The next batch in order; `None` after the last.
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
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the readers early.
    pub fn stop(&self) {
        locked(&self.state).is_stopped = true;
        self.changed.notify_all();
    }

    fn read(&self, job: Job) -> Handed {
        match job.len > WHOLE_LEN_MAX {
            true => Handed::Long(job),
            false => Handed::Whole(job, read_whole(self.tree, job.entry)),
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

fn read_whole(tree: &ScannedTree, entry: EntryNo) -> Result<Loaded> {
    let mut loaded = read_once(tree, entry)?;
    for _ in 1..ATTEMPTS {
        if !loaded.is_changed {
            break;
        }
        loaded = read_once(tree, entry)?;
    }
    Ok(loaded)
}

fn read_once(tree: &ScannedTree, entry: EntryNo) -> Result<Loaded> {
    let mut file = tree.open_file(entry)?;
    let mut layout = Layout::of(&file)?;
    // It may have grown past what may be held; the rest is then missing, and `is_changed` says so.
    let data_len = layout.data_len().min(WHOLE_LEN_MAX);
    let mut data = Vec::with_capacity(data_len as usize + 1);
    match &layout.runs {
        None => {
            let read = (&mut file).take(data_len).read_to_end(&mut data);
            read.map_err(|e| Error::io("cannot be read", e))?;
            layout.len = data.len() as u64;
        }
        Some(runs) => {
            for run in runs {
                let start = data.len();
                data.resize(start + (run.end - run.start).min(WHOLE_LEN_MAX) as usize, 0);
                let read = file.read_exact_at(&mut data[start..], run.start);
                read.map_err(|e| Error::io("cannot be read", e))?;
            }
        }
    }
    let is_changed = !tree.is_unchanged(entry, &file)?;
    let mut hasher = layout.hasher();
    hasher.update(&data);
    Ok(Loaded { layout, data, digest: hasher.finish(), is_changed })
}
