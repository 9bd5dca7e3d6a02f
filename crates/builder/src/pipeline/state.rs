//! The state of a build between its stages.

use crate::options::BuildOptions;
use crate::order::arrange;
use crate::progress::{Observer, Progress, Stage};
use crate::read::readers::{Job, WHOLE_LEN_MAX};
use crate::scan::{EntryNo, ScannedTree};
use crate::write::emit::{FileState, Previous};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use weald_format::limits::NUMBER_MAX;
use weald_format::{Error, FileKind, Result};
use weald_image::Image;

/// Least time between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The state of a build between its stages.
pub struct Build<'a> {
    pub(super) tree: &'a ScannedTree,
    pub(super) options: &'a BuildOptions,
    pub(super) observer: &'a dyn Observer,
    pub(super) states: Vec<FileState>,
    pub(super) omitted: Vec<u32>,
    /// The image that the build appends to.
    pub(super) old: Option<&'a Image>,
    /// Entries kept from `old`, because their files cannot be read.
    pub(super) previous: HashMap<u32, Previous>,
    pub(super) jobs: Vec<Job>,
    pub(super) job_count: u64,
    pub(super) file_len: u64,
    /// Bytes of the files kept from the old generation, each inode once.
    pub(super) kept_len: u64,
    pub(super) dedup_len: u64,
    pub(super) done_count: u64,
    pub(super) done_len: u64,
    pub(super) last_report: Instant,
}

/// The error for files that no image holds together. It names the longest one, without which the
/// others may fit.
fn too_long_together(tree: &ScannedTree, longest: Option<&Job>) -> Error {
    let mut what = "the files have more than 2^62 bytes in total, holes included".to_owned();
    if let Some(job) = longest {
        let path = tree.path_of(job.entry);
        let path = String::from_utf8_lossy(&path);
        what += &format!("; the longest, of {} bytes, is {path}", job.len);
    }
    Error::limit(what)
}

impl<'a> Build<'a> {
    pub fn new(
        tree: &'a ScannedTree,
        options: &'a BuildOptions,
        threads: usize,
        observer: &'a dyn Observer,
    ) -> Result<Self> {
        let mut states = vec![FileState::EMPTY; tree.entry_count() as usize];
        for entry in (0..tree.entry_count()).map(EntryNo) {
            if let Some(id) = tree.kept_content(entry) {
                states[entry.0 as usize] = FileState::content(id);
            }
        }
        let jobs = (0..tree.entry_count()).map(EntryNo);
        let jobs = jobs.filter_map(|entry| job(tree, entry));
        let (kept, jobs): (Vec<Job>, Vec<Job>) = jobs.partition(|job| tree.is_kept(job.entry));
        let sum = |jobs: &[Job]| {
            jobs.iter()
                .fold(0u64, |sum, job| sum.saturating_add(job.len))
        };
        let jobs = arrange(tree, jobs, options, threads, observer)?;
        let (file_len, kept_len) = (sum(&jobs), sum(&kept));
        if file_len.saturating_add(kept_len) > NUMBER_MAX {
            let longest = jobs.iter().chain(&kept).max_by_key(|job| job.len);
            return Err(too_long_together(tree, longest));
        }
        Ok(Self {
            tree,
            options,
            observer,
            states,
            omitted: Vec::new(),
            old: None,
            previous: HashMap::new(),
            file_len,
            kept_len,
            job_count: jobs.len() as u64,
            jobs,
            dedup_len: 0,
            done_count: 0,
            done_len: 0,
            last_report: Instant::now(),
        })
    }

    pub(super) fn report_progress(&mut self, stage: Stage, written_len: u64, is_due: bool) {
        self.report_stage_progress(stage, (self.done_len, self.file_len), written_len, is_due);
    }

    /// Reports progress of a stage whose input is not the files. `read` is (bytes done, bytes in
    /// total).
    pub(super) fn report_stage_progress(
        &mut self,
        stage: Stage,
        read: (u64, u64),
        written_len: u64,
        is_due: bool,
    ) {
        if is_due || self.last_report.elapsed() >= PROGRESS_INTERVAL {
            self.last_report = Instant::now();
            self.observer.progress(&Progress {
                stage,
                entry_count: self.done_count,
                entry_total: self.job_count,
                read_len: read.0,
                read_total: read.1,
                written_len,
            });
        }
    }

    pub(super) fn check_cancelled(&self) -> Result<()> {
        if self.observer.is_cancelled() {
            Err(interrupted())
        } else {
            Ok(())
        }
    }
}

/// Returns the job for `entry`, if it is the first name of a regular file that is not empty.
fn job(tree: &ScannedTree, entry: EntryNo) -> Option<Job> {
    let len = tree.size(entry);
    let is_first = || {
        tree.link_group(entry)
            .is_none_or(|g| tree.link_names(g).next() == Some(entry))
    };
    let is_read = tree.kind(entry) == FileKind::Regular && len > 0;
    (is_read && is_first()).then_some(Job {
        entry,
        len,
        is_whole: len <= WHOLE_LEN_MAX,
    })
}

pub fn interrupted() -> Error {
    Error::invalid("interrupted")
}
