//! The model of a volume of a run, and the states of it that a crash may leave.

use super::Verdict;
use crate::hook::Stage;
use crate::properties::CHUNKING;
use crate::simulation::perform::{Answer, Difference, Resolver, compare_with_unnamed};
use crate::simulation::steps::{Beside, Op};
use crate::volume::Record;
use crate::{Chunking, Volume, VolumeOptions};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::container::RecordRef;
use weald_model::ModelFs;
use weald_store::simulated_disk::SimDisk;
use weald_vfs::{Ino, Outcome, WritableFs, XattrMode};

/// The model and what it was before.
pub struct World {
    pub model: ModelFs,
    /// The model after each operation since the last one that is known to be durable.
    pub states: Vec<ModelFs>,
    /// Number of states before the first of these.
    pub first: usize,
    pub now: i128,
    /// Whether the disk may be full.
    pub is_limited: bool,
    pub trace: Arc<Mutex<Vec<String>>>,
    /// The first difference that an operation beside a commit found.
    pub beside: Verdict,
    /// A record of the log that was written while another one was being synced, and the number of
    /// states that it makes durable.
    pub ahead: Option<(Record, usize)>,
    /// Images in the store, with their records.
    pub images: BTreeMap<String, Vec<RecordRef>>,
    /// Snapshots of the volume.
    pub snapshots: BTreeMap<String, ModelFs>,
    /// A snapshot that may be there, because a failure came while it was taken or removed.
    pub doubtful_snapshot: Option<(String, ModelFs)>,
    /// An image that may be in the store, because a failure came while it was added.
    pub doubtful: Option<(String, Vec<RecordRef>)>,
    /// An image that has one of two names, because a failure came while it was renamed.
    pub renaming: Option<Renaming>,
}

/// A rename of which nobody knows yet whether it was done.
#[derive(Debug, Clone)]
pub struct Renaming {
    pub old: String,
    pub new: String,
    /// The image.
    pub records: Vec<RecordRef>,
    /// The image that had the new name.
    pub replaced: Option<Vec<RecordRef>>,
}

impl World {
    pub fn new(options: &VolumeOptions, trace: Arc<Mutex<Vec<String>>>) -> Self {
        let model = ModelFs::new(0o755, 0);
        if options.chunking != Chunking::Auto {
            let word = options.chunking.word().as_bytes();
            let set = model.set_xattr(Ino::ROOT, CHUNKING, word, XattrMode::Set, 0);
            set.expect("an attribute of the model");
        }
        Self {
            states: vec![model.clone()],
            first: 0,
            model,
            now: 0,
            is_limited: false,
            trace,
            beside: Ok(()),
            ahead: None,
            images: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            doubtful_snapshot: None,
            doubtful: None,
            renaming: None,
        }
    }

    pub fn note(&self, what: impl Into<String>) {
        self.trace.lock().push(what.into());
    }

    /// Performs `op` on both sides. `may_fail` says whether the disk failed.
    pub fn perform(&mut self, volume: &Volume, op: Op, may_fail: impl Fn() -> bool) -> Verdict {
        self.now += 1;
        let resolver = Resolver::new(&self.model);
        let found = resolver.perform(volume, op, self.now);
        let shown = |outcome: &Outcome<Answer>| match outcome {
            Ok(Answer::Bytes(bytes)) => format!("{} bytes", bytes.len()),
            Ok(Answer::Stat(stat)) => format!("inode {}, {} bytes", stat.ino.0, stat.size),
            Ok(answer) => format!("{answer:?}"),
            Err(failure) => format!("{:?}", failure.errno),
        };
        self.note(format!("{op:?} -> {}", shown(&found)));
        if let Err(failure) = &found
            && (failure.errno == Errno::NOSPC && self.is_limited
                || matches!(failure.errno, Errno::IO | Errno::ROFS | Errno::NOSPC) && may_fail())
        {
            return Ok(());
        }
        let wanted = resolver.perform(&self.model, op, self.now);
        let is_equal = match (&found, &wanted) {
            (Ok(found), Ok(wanted)) => found == wanted,
            (Err(found), Err(wanted)) => found.errno == wanted.errno,
            _ => false,
        };
        if !is_equal {
            return Err(format!("{op:?}: found {found:?}, not {wanted:?}"));
        }
        if wanted.is_ok() {
            self.states.push(self.model.clone());
        }
        Ok(())
    }

    /// Number of states so far.
    pub fn count(&self) -> usize {
        self.first + self.states.len()
    }

    /// The last of the first `count` states is durable.
    pub fn synced(&mut self, count: usize) {
        let obsolete = (count - 1).saturating_sub(self.first);
        self.states.drain(..obsolete);
        self.first += obsolete;
    }

    /// Writes a record while another one is not durable, and may sync it before that one.
    pub fn begin_record(&mut self, volume: &Volume, disk: &SimDisk) -> Verdict {
        if self.ahead.is_some() {
            return Ok(());
        }
        let record = match volume.begin_record() {
            Ok(record) => record,
            Err(_) if disk.fault_count() > 0 => return Ok(()),
            Err(error) => return Err(format!("record: {error}")),
        };
        self.note(format!("record ahead: {}", record.is_some()));
        self.ahead = record.map(|record| (record, self.count()));
        let is_first = self.now % 3 == 0;
        if let Some((record, _)) = self.ahead.as_ref().filter(|_| is_first)
            && let Err(error) = volume.sync_record(record)
            && disk.fault_count() == 0
        {
            return Err(format!("sync of a record: {error}"));
        }
        Ok(())
    }

    /// Syncs the record that was written ahead.
    pub fn end_record(&mut self, volume: &Volume) -> Option<(Result<(), String>, usize)> {
        let (record, count) = self.ahead.take()?;
        let synced = volume.sync_record(&record);
        let done = synced.and_then(|()| volume.wait_for_record(&record));
        self.note(format!("end of the record ahead: {}", done.is_ok()));
        Some((done.map_err(|error| error.to_string()), count))
    }

    /// Runs the operations of a moment of a commit or of a sync, in the same thread.
    pub fn reach(
        &mut self,
        volume: &Volume,
        stage: Stage,
        beside: &[(Stage, Beside)],
        disk: &SimDisk,
    ) {
        for (_, beside) in beside.iter().filter(|(at, _)| *at == stage) {
            if self.is_limited || !has_room(volume) {
                break;
            }
            self.note(format!("at {stage:?}: {beside:?}"));
            let verdict = match *beside {
                Beside::Do(op) => self.perform(volume, op, || disk.fault_count() > 0),
                Beside::Fail(fault) => {
                    self.note(format!("fail: {fault:?}"));
                    return disk.fail_after(0, fault);
                }
                Beside::DoOther(_) | Beside::SyncOther | Beside::CommitOther => Ok(()),
                Beside::Sync if stage == Stage::Recorded => self.begin_record(volume, disk),
                Beside::Sync => match volume.log_changes() {
                    Ok(is_done) => {
                        self.note(format!("sync: {is_done}"));
                        if is_done {
                            self.synced(self.count());
                        }
                        Ok(())
                    }
                    Err(_) if disk.fault_count() > 0 => Ok(()),
                    Err(error) => Err(format!("sync: {error}")),
                },
            };
            if self.beside.is_ok() {
                self.beside = verdict;
            }
        }
        let live = compare_with_unnamed(volume, &self.model);
        if let Err(Difference::Differs(what)) = live
            && self.beside.is_ok()
        {
            self.beside = Err(format!("at {stage:?}: {what}"));
        }
    }
}

impl World {
    /// As [`World::reach`], for a moment of a commit or of a sync of the other volume.
    pub fn reach_from_other(
        &mut self,
        volume: &Volume,
        stage: Stage,
        beside: &[(Stage, Beside)],
        disk: &SimDisk,
    ) {
        let is_for_us = |beside: &Beside| {
            matches!(
                beside,
                Beside::DoOther(_) | Beside::SyncOther | Beside::CommitOther
            )
        };
        let beside = beside
            .iter()
            .filter(|(at, it)| *at == stage && is_for_us(it));
        for (_, beside) in beside {
            if self.is_limited || !has_room(volume) {
                break;
            }
            self.note(format!("at {stage:?}: {beside:?}"));
            let states = self.count();
            let done = match *beside {
                Beside::DoOther(op) => {
                    let verdict = self.perform(volume, op, || disk.fault_count() > 0);
                    self.beside = std::mem::replace(&mut self.beside, Ok(())).and(verdict);
                    continue;
                }
                Beside::SyncOther => volume.log_changes(),
                // Only a planted bug lets it have the writer in the middle of a commit.
                _ if volume.core.shared.writing.try_lock().is_some() => {
                    let done = volume.commit().and_then(|()| volume.return_space());
                    done.map(|()| true)
                }
                _ => Ok(false),
            };
            match done {
                Ok(true) => self.synced(states),
                Ok(false) => {}
                Err(_) if disk.fault_count() > 0 => {}
                Err(error) => self.beside = Err(format!("{beside:?}: {error}")),
            }
        }
        let live = compare_with_unnamed(volume, &self.model);
        if let Err(Difference::Differs(what)) = live
            && self.beside.is_ok()
        {
            self.beside = Err(format!("other volume at {stage:?}: {what}"));
        }
    }
}

/// Whether an operation waits for no commit: it does with a full memory.
fn has_room(volume: &Volume) -> bool {
    volume.core.state.read().cost() + (20 << 10) < volume.layer_max()
}
