//! Reader threads: they read and hash files ahead of the segmenter and hand them over in order.

use crate::dedup::prepared::{Prepared, Preparing};
use crate::read::pieces;
use crate::read::recode::{Recoded, Recoder};
use crate::scan::source::{Layout, SourceFile, is_cut};
use crate::scan::{EntryNo, ScannedTree};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use weald_format::{Digest, Result};

/// Longest file that a reader thread reads whole, bytes. The segmenter's thread streams longer
/// ones, except archives whose members can be decoded only if the archive is in memory.
pub const WHOLE_LEN_MAX: u64 = 4 << 20;
/// Longest buffer that a reader thread keeps for its next file, bytes. The data of a shorter file
/// is copied out of it, so that known contents, which are mostly short, allocate nothing.
const BUFFER_LEN_MAX: usize = 256 << 10;
/// Bytes at which a batch ends.
const READ_BATCH_LEN: u64 = 1 << 20;
const FILES_PER_BATCH: usize = 64;
/// Number of times that a changing file is read before the last result is stored.
const ATTEMPTS: usize = 3;

/// A file to read: an inode, identified by its first name.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// Its first name.
    pub entry: EntryNo,
    /// Length at the time of the scan, bytes.
    pub len: u64,
    /// Whether a reader thread reads it whole.
    pub is_whole: bool,
}

/// A file in memory.
pub struct Loaded {
    /// Data runs and holes.
    pub layout: Layout,
    /// The data, without holes; empty if the digest is that of a known content.
    pub data: Vec<u8>,
    /// Bytes of data.
    pub data_len: u64,
    /// Digest of the content.
    pub digest: Digest,
    /// Streams that recipes can make.
    pub recoded: Recoded,
    /// What is known about the data for the segmenter, if somebody looked.
    pub prepared: Option<Prepared>,
    /// Whether the file changed during every attempt to read it.
    pub is_changed: bool,
}

/// Result for one file.
pub enum ReadFile {
    /// The file was read whole, or failed.
    Whole(Job, Result<Loaded>),
    /// The file is too long for memory: the receiver streams it. If another file has its length,
    /// its digest.
    Long(Job, Option<Result<Digest>>),
}

struct ReadersState {
    next_batch: usize,
    handed_batch: usize,
    held_len: u64,
    ready: BTreeMap<usize, Vec<ReadFile>>,
    is_stopped: bool,
    /// Whether a reader panicked; its batch will never be ready.
    is_broken: bool,
}

/// What the reader threads do with files before they hand them over.
pub struct Preparation<'a> {
    /// Searches them for streams that recipes can make.
    pub recoder: Option<Recoder>,
    /// Digests of contents whose data the receiver does not need, sorted.
    pub known: &'a [Digest],
    /// How the data is prepared for the segmenter.
    pub preparing: Preparing,
    /// Number of long files of each length.
    pub long_lens: &'a HashMap<u64, u32>,
}

/// Contents of which a thread has taken marks, by the front of their digests. A later file with the
/// same content is most likely not stored again, and marking it would be in vain.
#[derive(Default)]
struct Marked(HashSet<u64>);

impl Marked {
    /// Maximum number of contents that are remembered.
    const COUNT_MAX: usize = 1 << 18;

    /// Notes that a content is marked. Returns whether it was not before.
    fn note(&mut self, digest: &Digest) -> bool {
        let mut front = [0; 8];
        front.copy_from_slice(&digest.0[..8]);
        let is_new = !self.0.contains(&u64::from_le_bytes(front));
        if is_new && self.0.len() < Self::COUNT_MAX {
            self.0.insert(u64::from_le_bytes(front));
        }
        is_new
    }
}

/// A queue of files that several reader threads fill and one receiver empties.
pub struct Readers<'a> {
    tree: &'a ScannedTree,
    preparation: Preparation<'a>,
    marked: Mutex<Marked>,
    jobs: &'a [Job],
    batches: Vec<Range<usize>>,
    held_len_max: u64,
    state: Mutex<ReadersState>,
    changed: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Readers<'a> {
    /// Creates a queue over `jobs` with about `held_len_max` bytes of files at most.
    pub fn new(
        tree: &'a ScannedTree,
        jobs: &'a [Job],
        held_len_max: u64,
        preparation: Preparation<'a>,
    ) -> Self {
        let state = ReadersState {
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
            preparation,
            marked: Mutex::default(),
            jobs,
            batches,
            held_len_max,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Body of a reader thread: reads batches until there are none left.
    pub fn work(&self) {
        let _guard = PanicGuard(self);
        let mut buffer = Vec::new();
        while let Some(no) = self.claim() {
            let handed = self.jobs[self.batches[no].clone()]
                .iter()
                .map(|job| self.read(*job, &mut buffer))
                .collect();
            locked(&self.state).ready.insert(no, handed);
            self.changed.notify_all();
        }
    }

    /// Claims the next batch when there is room for it (backpressure). Batches are claimed in
    /// order, so that a thread is always reading the batch that the receiver needs next.
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
            .map(|j| if j.is_whole { j.len } else { READ_BATCH_LEN })
            .sum()
    }

    /// Returns the next batch in order; `None` after the last one, or if a reader panicked.
    pub fn next(&self) -> Option<Vec<ReadFile>> {
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

    /// Returns a guard that stops the readers when it is dropped, however the receiver ends.
    pub fn stop_on_drop(&self) -> Stop<'_> {
        Stop(self)
    }

    fn read(&self, job: Job, buffer: &mut Vec<u8>) -> ReadFile {
        if !job.is_whole {
            let has_twin = (self.preparation.long_lens.get(&job.len)).is_some_and(|&n| n > 1);
            return ReadFile::Long(job, has_twin.then(|| self.hash(&job)));
        }
        match read_whole(self.tree, &job, buffer).transpose() {
            Some(Ok(mut loaded)) => {
                let is_known = self.preparation.known.binary_search(&loaded.digest).is_ok();
                if buffer.capacity() > BUFFER_LEN_MAX {
                    loaded.data = std::mem::take(buffer);
                } else if !is_known {
                    loaded.data = buffer.clone();
                }
                if is_known {
                    loaded.data = Vec::new();
                    return ReadFile::Whole(job, Ok(loaded));
                }
                if self.tree.is_plain(job.entry) {
                    let preparing = &self.preparation.preparing;
                    loaded.prepared = Some(preparing.prepare_plain(&loaded.data));
                    return ReadFile::Whole(job, Ok(loaded));
                }
                if let (Some(recoder), None) = (&self.preparation.recoder, &loaded.layout.runs) {
                    loaded.recoded = recoder.streams(&loaded.data, &loaded.digest);
                }
                let preparing = &self.preparation.preparing;
                // Of data that recipes make in part, the segmenter gets the rest in pieces.
                if loaded.recoded.streams.is_empty() {
                    let is_new = locked(&self.marked).note(&loaded.digest);
                    loaded.prepared = is_new.then(|| preparing.prepare(&loaded.data));
                }
                for plain in loaded.recoded.plains.iter_mut().flatten() {
                    plain.prepared = Some(preparing.prepare(&plain.bytes));
                }
                ReadFile::Whole(job, Ok(loaded))
            }
            Some(failed) => ReadFile::Whole(job, failed),
            None => ReadFile::Long(job, None),
        }
    }

    /// Digest of a long file.
    fn hash(&self, job: &Job) -> Result<Digest> {
        let file = self.tree.open_file(job.entry)?;
        let is_over = || locked(&self.state).is_stopped;
        pieces::digest_of(&file, &file.layout()?, &is_over)
    }
}

/// Stops the readers when it is dropped.
pub struct Stop<'a>(&'a Readers<'a>);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).is_stopped = true;
        self.0.changed.notify_all();
    }
}

/// Wakes all waiting threads if a reader panics.
struct PanicGuard<'a>(&'a Readers<'a>);

impl Drop for PanicGuard<'_> {
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
        if len >= READ_BATCH_LEN || i + 1 - start == FILES_PER_BATCH {
            batches.push(start..i + 1);
            (start, len) = (i + 1, 0);
        }
    }
    if start < jobs.len() {
        batches.push(start..jobs.len());
    }
    batches
}

/// Reads a file until it no longer changes, at most [`ATTEMPTS`] times; `None` if it has become too
/// long for memory.
fn read_whole(tree: &ScannedTree, job: &Job, buffer: &mut Vec<u8>) -> Result<Option<Loaded>> {
    let mut attempt = read_once(tree, job, buffer);
    for _ in 1..ATTEMPTS {
        let is_final = match &attempt {
            Ok(loaded) => !loaded.as_ref().is_some_and(|l| l.is_changed),
            Err(error) => !is_cut(error),
        };
        if is_final {
            break;
        }
        attempt = read_once(tree, job, buffer);
    }
    attempt
}

/// Reads a file into `data`. The result has no data.
fn read_once(tree: &ScannedTree, job: &Job, data: &mut Vec<u8>) -> Result<Option<Loaded>> {
    let file = tree.open_file(job.entry)?;
    let len_max = WHOLE_LEN_MAX.max(job.len);
    data.clear();
    let whole = file.read_whole(WHOLE_LEN_MAX, data)?;
    let is_read = whole.is_some();
    let mut layout = match whole {
        Some(layout) => layout,
        None => file.layout()?,
    };
    let data_len = layout.data_len();
    if data_len > len_max {
        return Ok(None);
    }
    if !is_read {
        read_runs(&file, &layout, data)?;
    }
    if layout.runs.is_none() {
        layout.len = data.len() as u64;
    }
    // A file can end before its reported size without any other change; files of sysfs do.
    let is_changed = data.len() as u64 != data_len || !tree.is_unchanged(job.entry, &file)?;
    Ok(Some(Loaded {
        digest: layout.digest_of(data),
        layout,
        data: Vec::new(),
        data_len: data.len() as u64,
        recoded: Recoded::default(),
        prepared: None,
        is_changed,
    }))
}

/// Appends the data of a file, without holes, to `data`.
fn read_runs(file: &SourceFile, layout: &Layout, data: &mut Vec<u8>) -> Result<()> {
    let Some(runs) = &layout.runs else {
        return file.read_front(layout.len, data);
    };
    for run in runs {
        let start = data.len();
        data.resize(start + (run.end - run.start) as usize, 0);
        file.read_run(&mut data[start..], run.start)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::options::Categories;
    use crate::options::walk::{FollowLinks, MountPoints};
    use crate::scan::{ScanOptions, scan};
    use std::panic::AssertUnwindSafe;
    use weald_filter::Filter;

    /// Would catch: a build that waits forever for a reader that panicked, or a reader that waits
    /// for such a receiver.
    #[test]
    fn a_panic_on_either_side_ends_both() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::write(temp.path().join("file"), [1; 100]).unwrap();
        let filter = Filter::new();
        let options = ScanOptions {
            threads: 1,
            filter: &filter,
            script: None,
            omitted_inodes: &[],
            additions: &[],
            mount_points: MountPoints::Entered,
            follow: FollowLinks::None,
            splits_links: false,
            prune_empty_dirs: false,
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
            let preparation = Preparation {
                recoder: None,
                known: &[],
                preparing: Preparing {
                    categories: Categories::none(),
                    rule: None,
                },
                long_lens: &HashMap::new(),
            };
            let readers = Readers::new(&tree, &jobs, 1, preparation);
            // Nothing uses the queue after the panic.
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
