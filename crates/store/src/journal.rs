//! The journal: every commit of the tables once more, in files beside them
//! (`docs/design/0032-journal.md`).
//!
//! 1. A commit is a frame of a file of commits. The frame is durable before the transaction of the
//!    tables is. After a crash the journal therefore has every commit that the tables have, and
//!    possibly one more, which is cut off.
//! 2. Each frame has the sum of all rows after its commit, as the tables compute it in the
//!    transaction. It says whether the journal goes with the tables.
//! 3. A file of rows has all rows as of one commit. It gets its name when it is complete and
//!    durable. Then the files that are older than it go. Files of rows and of commits therefore
//!    always lead to the last commit.
//! 4. The journal is a copy. If it cannot be written, or does not go with the tables, it is removed
//!    and made again from the tables, and the store goes on without it until then.

mod pack;
mod read;
mod restore;
mod since;
mod summed_rows;

pub(crate) use pack::{Packer, unpack};
pub(crate) use read::TablesState;
pub(crate) use restore::verify_beside;
pub(crate) use restore::{JournalRows, rows_in};
pub(crate) use since::{Asked, Since, changes_since, is_settled, last_commit};
pub(crate) use summed_rows::SummedRows;

use crate::disk::{Access, LocalFile};
use crate::engine::{Batch, Engine, ReadView, Sealer, Table};
use crate::faults::{Bug, Faults};
use crate::layout;
use crate::steps::Steps;
use crate::store::Store;
use pack::pack;
use read::{Chain, CommitEnd, Files};
use std::hash::{BuildHasher, Hasher};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weald_format::journal::{Before, FrameHeader, JournalKind, JournalSuperblock, RowSum};
use weald_format::store::Uuid;
use weald_format::{CommitNo, Digest, Error, ErrorKind, Result};

/// Commits after which a journal that could not be written is begun again.
const PAUSE: u64 = 256;
/// Free bytes of the disk below which the store needs the space of the journal for itself.
const FREE_MIN: u64 = 4 << 20;

/// The journal of a store, open for writing.
pub(crate) struct Journal {
    store: Store,
    sealer: Sealer,
    lineage: Uuid,
    steps: Steps,
    faults: Faults<Bug>,
    /// The file that receives commits; `None` while there is no journal.
    log: Option<Log>,
    /// The file of rows that is being made.
    checkpoint: Option<Checkpoint>,
    /// Whether a file of rows is complete, and the files of commits go on from it.
    is_whole: bool,
    /// Bytes of the last file of rows, and of the files of commits since then.
    rows_len: u64,
    logs_len: u64,
    /// The commit after which a journal is begun; `None` if none is.
    begins_after: Option<CommitNo>,
}

/// A file that frames are appended to.
struct Log {
    file: Box<dyn LocalFile>,
    end: End,
    /// The end of the last commit that the tables have.
    kept: End,
}

/// Length of a file, and the digest that the next frame continues.
#[derive(Debug, Clone, Copy)]
struct End {
    len: u64,
    digest: Digest,
}

/// A file of rows that is being made.
struct Checkpoint {
    log: Log,
    view: Box<dyn ReadView>,
    commit: CommitNo,
    sum: RowSum,
    /// Index of the table that is next, and the key from which on.
    table: usize,
    start: Vec<u8>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal")
            .field("has_log", &self.log.is_some())
            .field("is_whole", &self.is_whole)
            .finish_non_exhaustive()
    }
}

/// The time, in nanoseconds since 1970, as far as the clock is right.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    });
    #[cfg(test)]
    let now = now.saturating_add(CLOCK_SHIFT.get());
    now
}

#[cfg(test)]
thread_local! {
    /// How far the clock of this thread is wrong, in nanoseconds.
    pub(crate) static CLOCK_SHIFT: std::cell::Cell<i64> = const { std::cell::Cell::new(0) };
}

fn random_uuid() -> Uuid {
    let half = || std::hash::RandomState::new().build_hasher().finish();
    (u128::from(half()) << 64 | u128::from(half())).to_le_bytes()
}

impl Log {
    /// Makes the file `name`, in place of one that is there.
    fn create(store: &Store, name: &str, superblock: &JournalSuperblock) -> Result<Self> {
        store.disk.remove_if_there(name)?;
        let file = store.disk.open(name, Access::Create)?;
        let bytes = superblock.encode();
        file.write_at(&bytes, 0)?;
        let len = bytes.len() as u64;
        let digest = superblock.digest();
        Ok(Self::at(file, End { len, digest }))
    }

    fn at(file: Box<dyn LocalFile>, end: End) -> Self {
        Self {
            file,
            end,
            kept: end,
        }
    }

    /// Cuts off the frames of a commit that the tables have not taken.
    fn cut(&mut self) -> Result<()> {
        if self.end.len != self.kept.len {
            self.file.set_len(self.kept.len)?;
            self.end = self.kept;
        }
        Ok(())
    }

    /// Appends the frames of a commit, or some of them. `sum` says that the last one ends it.
    fn append(&mut self, commit: CommitNo, bodies: &[Vec<u8>], sum: Option<RowSum>) -> Result<()> {
        for (index, body) in bodies.iter().enumerate() {
            let sum = sum.filter(|_| index + 1 == bodies.len());
            self.append_frame(commit, body, sum)?;
        }
        Ok(())
    }

    fn append_frame(&mut self, commit: CommitNo, body: &[u8], sum: Option<RowSum>) -> Result<()> {
        let body_len = u32::try_from(body.len());
        let header = FrameHeader {
            is_last: sum.is_some(),
            commit,
            body_len: body_len.map_err(|_| Error::limit("a frame of a journal"))?,
            time: now(),
            sum: sum.unwrap_or_default(),
            before: Before::of(&self.end.digest),
        };
        let (bytes, digest) = header.encode(body);
        self.file.write_at(&bytes, self.end.len)?;
        self.end.len += bytes.len() as u64;
        self.end.digest = digest;
        Ok(())
    }
}

impl Journal {
    /// Opens the journal of `store`, whose tables end with `tables`. A frame of a commit that the
    /// tables do not have is cut off.
    ///
    /// # Errors
    /// `Corrupt` if the journal has later commits than the tables; `Io`.
    pub fn open(
        store: &Store,
        tables: TablesState,
        (steps, faults): (Steps, Faults<Bug>),
        reads_anew: bool,
    ) -> Result<Self> {
        let mut journal = Self {
            steps,
            faults,
            begins_after: Some(tables.commit),
            ..Self::absent(store)?
        };
        let chain = match Chain::read(store, reads_anew) {
            Ok(Some(chain)) => chain,
            Ok(None) => return Ok(journal),
            Err(error) => {
                journal.tell_renewal(&error.to_string());
                return Ok(journal);
            }
        };
        let Some(last) = chain.last() else {
            journal.tell_renewal("it has no commits");
            return Ok(journal);
        };
        if last.commit > tables.commit.next() {
            return Err(journal.newer(last, tables));
        }
        if let Some(damage) = &chain.rows_damage {
            journal.tell_renewal(&damage.to_string());
            return Ok(journal);
        }
        journal.lineage = chain.lineage;
        let is_of_tables = |end: &&CommitEnd| end.commit == tables.commit && end.sum == tables.sum;
        // The last one: the beginning of a new file, rather than the end of the one before.
        let Some(end) = chain.ends.iter().rfind(is_of_tables) else {
            journal.tell_renewal(&match &chain.damage {
                Some(damage) => damage.to_string(),
                None if last.commit == tables.commit => "its rows are others".to_owned(),
                None => format!("it ends with commit {}", last.commit),
            });
            return Ok(journal);
        };
        match journal.go_on(*end) {
            Ok(log) => {
                journal.rows_len = chain.rows_len;
                journal.logs_len = chain.logs_len;
                journal.is_whole = true;
                journal.log = Some(log);
            }
            Err(error) => journal.tell_renewal(&error.to_string()),
        }
        Ok(journal)
    }

    /// Cuts off what lies behind `end`, and files behind it.
    fn go_on(&self, end: CommitEnd) -> Result<Log> {
        for base in Files::list(&self.store)?.logs {
            if base > end.base {
                self.store.disk.remove(&layout::journal_log(base))?;
            }
        }
        let file = self
            .store
            .disk
            .open(&layout::journal_log(end.base), Access::Write)?;
        if file.len()? != end.end {
            // Durable with the next frame.
            file.set_len(end.end)?;
        }
        let end = End {
            len: end.end,
            digest: end.digest,
        };
        Ok(Log::at(file, end))
    }

    fn newer(&self, last: CommitEnd, tables: TablesState) -> Error {
        let shown = self.store.disk.shown();
        let what = format!(
            "{shown}/{meta}: is older than the rest of the store: it ends with commit {of_tables}, \
             and {journal} has commit {commit}: put the newer file back; without it, 'weald store \
             salvage {shown}' makes the metadata again from {journal}",
            meta = layout::META,
            journal = layout::JOURNAL,
            of_tables = tables.commit,
            commit = last.commit,
        );
        Error::corrupt("store metadata", 0, "S-7.4", what)
    }

    fn shown(&self) -> String {
        format!("{}/{}", self.store.disk.shown(), layout::JOURNAL)
    }

    fn tell_renewal(&self, why: &str) {
        log::warn!("{}: {why}: it is made again", self.shown());
    }

    /// Begins the journal again at once, if what is left of one does not go with the tables.
    pub fn replace_left(&mut self, tables: TablesState, engine: &Arc<dyn Engine>) -> Result<()> {
        if self.log.is_none() && !Files::list(&self.store)?.is_empty() {
            self.continue_after(tables, engine);
        }
        Ok(())
    }

    /// Whether the journal leads to the last commit of the tables.
    pub fn is_whole(&self) -> bool {
        self.is_whole && self.log.is_some()
    }

    /// Adds a commit of the tables, durably. `sum` is that of all rows after it. Where the journal
    /// cannot be written, it ends, and the commit goes on.
    pub fn append(&mut self, commit: CommitNo, sum: RowSum, batch: &Batch) {
        if self.faults.has(Bug::JournalLacksCommit) && commit.0.is_multiple_of(7) {
            return;
        }
        if self.log.is_none() {
            return;
        }
        if let Err(error) = self.check_space() {
            self.give_up(commit, &error);
        }
        let Some(log) = &mut self.log else { return };
        let bodies = pack(&self.sealer, batch);
        let appended = bodies.and_then(|bodies| {
            log.cut()?;
            log.append(commit, &bodies, Some(sum))?;
            if self.faults.has(Bug::JournalUnsynced) {
                return Ok(());
            }
            log.file.sync()
        });
        if let Err(error) = appended {
            self.give_up(commit, &error);
        }
    }

    /// Keeps the journal off the last bytes of a disk.
    fn check_space(&self) -> Result<()> {
        match self.store.disk.space()?.free {
            ..FREE_MIN => Err(Error::new(ErrorKind::Full, "the disk is nearly full")),
            _ => Ok(()),
        }
    }

    /// Ends the journal: what is left of it would be older than the tables.
    fn give_up(&mut self, commit: CommitNo, error: &Error) {
        let what = error.with_causes();
        // Nothing else can be done where the disk is full, and whoever needs space is told so.
        if self.log.is_some() && error.kind() != ErrorKind::Full {
            log::warn!("{}: {what}: the store goes on without it", self.shown());
        } else {
            log::info!("{}: {what}: the store goes on without it", self.shown());
        }
        (self.log, self.checkpoint, self.is_whole) = (None, None, false);
        self.begins_after = Some(CommitNo(commit.0.saturating_add(PAUSE)));
        if let Err(error) = self.remove_before(None) {
            log::debug!("{}: {error}", self.shown());
        }
    }

    /// Removes the files that are not needed with the rows of `commit`; all without.
    fn remove_before(&self, commit: Option<CommitNo>) -> Result<()> {
        let disk = &*self.store.disk;
        let files = Files::list(&self.store)?;
        let is_old = |of: &CommitNo| commit.is_none_or(|commit| *of < commit);
        // Rows last: without them the rest is nothing.
        let logs = files.logs.iter().filter(|of| is_old(of));
        let rows = files
            .rows
            .iter()
            .filter(|of| commit.is_none_or(|commit| **of != commit));
        let names = logs.map(|base| layout::journal_log(*base));
        let names = names.chain(rows.map(|of| layout::journal_rows(*of)));
        for name in names {
            disk.remove_if_there(&name)?;
        }
        Ok(())
    }

    /// Continues after a commit, which the tables have: begins a file of rows when the files of
    /// commits are long, and makes a part of it.
    pub fn continue_after(&mut self, tables: TablesState, engine: &Arc<dyn Engine>) {
        if let Some(log) = &mut self.log {
            self.logs_len += log.end.len - log.kept.len;
            log.kept = log.end;
        }
        let is_due = match &self.log {
            None => self
                .begins_after
                .is_some_and(|after| tables.commit >= after),
            Some(_) => {
                let most = self.steps.journal_len.max(self.rows_len / 4);
                self.checkpoint.is_none() && self.logs_len > most
            }
        };
        let mut done = Ok(());
        if is_due {
            done = self.begin(tables, engine);
        }
        let done = done.and_then(|()| self.step(self.steps.journal_row_count));
        if let Err(error) = done {
            self.give_up(tables.commit, &error);
        }
    }

    /// Begins a file of rows, and a file of the commits after it.
    fn begin(&mut self, tables: TablesState, engine: &Arc<dyn Engine>) -> Result<()> {
        self.check_space()?;
        let disk = &*self.store.disk;
        match disk.make_dir(layout::JOURNAL) {
            Ok(()) => disk.sync_dir("")?,
            Err(error) if error.kind() == ErrorKind::Busy => {}
            Err(error) => return Err(error),
        }
        let superblock = JournalSuperblock {
            kind: JournalKind::Rows,
            uuid: self.store.superblock.uuid,
            lineage: self.lineage,
            base: tables.commit,
            time: now(),
            sum: RowSum::default(),
        };
        self.checkpoint = Some(Checkpoint {
            log: Log::create(&self.store, layout::JOURNAL_NEW, &superblock)?,
            view: engine.clone().read_view()?,
            commit: tables.commit,
            sum: tables.sum,
            table: 0,
            start: Vec::new(),
        });
        let superblock = JournalSuperblock {
            kind: JournalKind::Commits,
            sum: tables.sum,
            ..superblock
        };
        let name = layout::journal_log(tables.commit);
        let log = Log::create(&self.store, &name, &superblock)?;
        log.file.sync()?;
        disk.sync_dir(layout::JOURNAL)?;
        self.logs_len += log.end.len;
        self.log = Some(log);
        Ok(())
    }

    /// Makes a part of the file of rows that is under way, of about `count` rows.
    fn step(&mut self, count: usize) -> Result<()> {
        let Some(checkpoint) = &mut self.checkpoint else {
            return Ok(());
        };
        let is_done = checkpoint.step(&self.sealer, count, self.faults)?;
        self.check_space()?;
        let Some(checkpoint) = self.checkpoint.as_mut().filter(|_| is_done) else {
            return Ok(());
        };
        let disk = &*self.store.disk;
        checkpoint.log.file.sync()?;
        let (commit, len) = (checkpoint.commit, checkpoint.log.end.len);
        disk.rename(layout::JOURNAL_NEW, &layout::journal_rows(commit))?;
        disk.sync_dir(layout::JOURNAL)?;
        self.checkpoint = None;
        self.is_whole = true;
        self.rows_len = len;
        self.logs_len = self.log.as_ref().map_or(0, |log| log.end.len);
        self.remove_before(Some(commit))
    }

    /// No journal, and none is begun: of a check.
    pub fn absent(store: &Store) -> Result<Self> {
        Ok(Self {
            store: store.clone(),
            sealer: Sealer::new()?,
            lineage: random_uuid(),
            steps: Steps::default(),
            faults: Faults::default(),
            log: None,
            checkpoint: None,
            is_whole: false,
            rows_len: 0,
            logs_len: 0,
            begins_after: None,
        })
    }

    /// Makes the whole journal anew, of tables that were made again.
    ///
    /// # Errors
    /// `Io`, `Full`.
    pub fn renew(store: &Store, tables: TablesState, engine: &Arc<dyn Engine>) -> Result<()> {
        let mut journal = Self::absent(store)?;
        journal.remove_before(None)?;
        journal.begin(tables, engine)?;
        journal.step(usize::MAX)
    }

    /// Makes the file of rows that is under way to its end.
    pub fn finish(&mut self) {
        while let Some(checkpoint) = &self.checkpoint {
            let commit = checkpoint.commit;
            if let Err(error) = self.step(usize::MAX) {
                self.give_up(commit, &error);
            }
        }
    }

    /// Why the journal does not go with the tables, of a check; `None` if it does, if there is none
    /// yet, or if it is being made.
    ///
    /// # Errors
    /// `Io`.
    pub fn verify(&self, tables: TablesState) -> Result<Option<Error>> {
        let is_being_made = self.checkpoint.is_some() && !self.is_whole;
        if is_being_made || Files::list(&self.store)?.is_empty() {
            return Ok(None);
        }
        restore::verify(&self.store, tables)
    }
}

impl Checkpoint {
    /// Adds about `count` rows. Returns whether all are there.
    fn step(&mut self, sealer: &Sealer, count: usize, faults: Faults<Bug>) -> Result<bool> {
        let mut left = count;
        let mut packer = Packer::new(sealer);
        let mut bodies = Vec::new();
        while let Some(&table) = Table::ALL.get(self.table) {
            let mut last = None;
            let mut visit = |key: &[u8], value: &[u8]| {
                if left == 0 {
                    return Ok(ControlFlow::Break(()));
                }
                left -= 1;
                if !(faults.has(Bug::CheckpointLacksRow) && left.is_multiple_of(13)) {
                    packer.push(table, key, Some(value))?;
                }
                last = Some(key.to_vec());
                bodies.append(&mut packer.take_full());
                Ok(ControlFlow::Continue(()))
            };
            self.view.scan(table, &self.start, &mut visit)?;
            if left == 0 {
                if let Some(mut key) = last {
                    // The next key that there can be.
                    key.push(0);
                    self.start = key;
                }
                break;
            }
            self.start.clear();
            self.table += 1;
        }
        let is_done = self.table >= Table::ALL.len();
        bodies.append(&mut packer.finish()?);
        let sum = is_done.then_some(self.sum);
        self.log.append(self.commit, &bodies, sum)?;
        Ok(is_done)
    }
}
