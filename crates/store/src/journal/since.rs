//! What the journal says about the commits after one, for a replica. It is read beside the writer:
//! files may go meanwhile, and the last frame may be in the middle of being written.

use super::read::{Chain, Frames, TablesState};
use super::restore::each_commit;
use super::summed_rows::SummedRows;
use crate::engine::{Change, Sealer, Table};
use crate::faults::{Bug, Faults};
use crate::layout;
use crate::mark::Mark;
use crate::store::Store;
use std::collections::BTreeMap;
use weald_format::journal::RowSum;
use weald_format::{CommitNo, Error, Result};

/// The last changes of rows, by table and key.
type LastChanges = BTreeMap<(Table, Vec<u8>), Option<Vec<u8>>>;

/// The rows after a commit.
pub(crate) enum Since {
    /// Those that changed.
    Changes(LastChanges),
    /// All, because the journal does not go back to the commit that was asked for.
    AllRows(SummedRows),
}

/// What the journal has up to a commit that the tables surely have.
pub(crate) struct SinceCommit {
    pub rows: Since,
    /// The state to which they lead.
    pub state: TablesState,
}

fn no_journal(store: &Store, why: &str) -> Error {
    let shown = store.disk.shown();
    let what = format!(
        "{shown}/{}: {why}: the next command that writes to the store makes it again, if the disk \
         has space for it",
        layout::JOURNAL
    );
    Error::not_found(what)
}

/// The last commit that the tables surely have, as far as one can see beside their writer.
///
/// # Errors
/// `NotFound` if there is no journal; `Io`.
pub(crate) fn last_commit(store: &Store) -> Result<CommitNo> {
    let chain = Chain::read(store, false)?;
    let chain = chain.ok_or_else(|| no_journal(store, "there is no journal now"))?;
    Ok(settled(store, &chain))
}

/// Whether the journal alone tells what the tables have: all that it has.
pub(crate) fn is_settled(store: &Store) -> bool {
    match Chain::read(store, false) {
        Ok(Some(chain)) => {
            let is_whole = chain.damage.is_none() && chain.rows_damage.is_none();
            let last = chain.last().map(|end| end.commit);
            is_whole && last.is_some_and(|last| settled(store, &chain) == last)
        }
        _ => false,
    }
}

/// The journal may have one commit more than the tables.
fn settled(store: &Store, chain: &Chain) -> CommitNo {
    let last = chain.last().map_or(chain.rows, |end| end.commit);
    let before = CommitNo(last.0.saturating_sub(1)).max(chain.rows);
    match Mark::read(store) {
        Some(mark) if mark >= last => last,
        _ => before,
    }
}

/// What is asked of the journal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    /// A state that the tables surely had.
    pub known: Option<TablesState>,
    /// Whether all rows are wanted, instead of those that changed since then.
    pub is_all: bool,
    /// The tables, if nobody writes to them.
    pub tables: Option<TablesState>,
    pub faults: Faults<Bug>,
}

/// Reads the changes after a state, or all rows, up to the last commit that the tables surely have.
///
/// # Errors
/// `NotFound` if there is no journal; `Invalid` if the store had other rows at the commit `since`,
/// or does not have this commit; `Corrupt`, `Io`, also if files went meanwhile.
///
/// # Cost
/// Memory for the rows that it returns.
pub(crate) fn changes_since(store: &Store, asked: Asked) -> Result<SinceCommit> {
    let Asked {
        known,
        is_all,
        tables,
        faults,
    } = asked;
    let chain = Chain::read(store, false)?;
    let chain = chain.ok_or_else(|| no_journal(store, "there is no journal now"))?;
    if let Some(damage) = chain.rows_damage {
        return Err(damage);
    }
    let last = chain.last().map_or(chain.rows, |end| end.commit);
    let known_commit = known.map_or(CommitNo(0), |known| known.commit);
    let until = match tables {
        _ if faults.has(Bug::UnsureCommitSent) => last,
        Some(tables) => tables.commit,
        None => settled(store, &chain).max(known_commit.min(last)),
    };
    if known_commit > last {
        return Err(Error::invalid(format!(
            "the store ends with commit {last}, and commit {known_commit} was sent"
        )));
    }
    if until > last {
        let why = format!("ends with commit {last}, and the tables with commit {until}");
        return Err(no_journal(store, &why));
    }
    let reader = Reader {
        store,
        sealer: Sealer::new()?,
        logs: chain.logs.clone(),
        known,
        until,
    };
    match known.filter(|_| !is_all) {
        Some(known) if known.commit >= chain.rows => reader.changes(known),
        _ => reader.all_rows(chain.rows),
    }
}

struct Reader<'a> {
    store: &'a Store,
    sealer: Sealer,
    logs: Vec<CommitNo>,
    known: Option<TablesState>,
    until: CommitNo,
}

impl Reader<'_> {
    /// Visits commits in order, from that of the first file of commits on, up to the last one that
    /// is wanted.
    fn follow(&self, visit: &mut dyn FnMut(TablesState, Vec<Change>) -> Result<()>) -> Result<()> {
        let visit = &mut |tables: TablesState, changes| {
            self.check_known(tables)?;
            visit(tables, changes)
        };
        let mut last = None;
        for &base in &self.logs {
            let name = layout::journal_log(base);
            if base > self.until {
                break;
            }
            let (superblock, _) = Frames::open(self.store, name.clone(), false)?;
            if last.is_none() {
                let (commit, sum) = (base, superblock.sum);
                visit(TablesState { commit, sum }, Vec::new())?;
            }
            last = Some(base);
            let mut each = |commit: CommitNo, sum: RowSum, changes| {
                if commit <= self.until {
                    last = Some(commit);
                    visit(TablesState { commit, sum }, changes)?;
                }
                Ok(())
            };
            let done = each_commit(self.store, &self.sealer, &name, &mut each);
            match done {
                // What lies behind may be in the middle of being written.
                Err(_) if last >= Some(self.until) => {}
                other => other?,
            }
        }
        match last {
            Some(last) if last >= self.until => Ok(()),
            _ => Err(no_journal(self.store, "changed while it was read")),
        }
    }

    /// Refuses a state that had other rows than are known.
    fn check_known(&self, tables: TablesState) -> Result<()> {
        match self.known {
            Some(known) if known.commit == tables.commit && known.sum != tables.sum => {
                Err(Error::invalid(format!(
                    "the store had other rows at commit {} than were sent",
                    known.commit
                )))
            }
            _ => Ok(()),
        }
    }

    fn changes(&self, since: TablesState) -> Result<SinceCommit> {
        let mut changes = LastChanges::new();
        let (mut state, mut is_found) = (since, false);
        self.follow(&mut |tables, of_commit| {
            is_found |= tables.commit == since.commit;
            if tables.commit > since.commit {
                state = tables;
                let of_commit = of_commit.into_iter();
                changes.extend(of_commit.map(|c| ((c.table, c.key), c.value)));
            }
            Ok(())
        })?;
        if !is_found {
            return Err(no_journal(self.store, "changed while it was read"));
        }
        Ok(SinceCommit {
            rows: Since::Changes(changes),
            state,
        })
    }

    fn all_rows(&self, commit: CommitNo) -> Result<SinceCommit> {
        let mut rows = SummedRows::default();
        let mut state = TablesState {
            commit,
            sum: RowSum::default(),
        };
        let name = layout::journal_rows(commit);
        each_commit(self.store, &self.sealer, &name, &mut |_, sum, changes| {
            rows.apply(changes);
            state.sum = sum;
            Ok(())
        })?;
        self.follow(&mut |tables, changes| {
            rows.apply(changes);
            if tables.commit > commit {
                state = tables;
            }
            Ok(())
        })?;
        if rows.sum() == state.sum {
            Ok(SinceCommit {
                rows: Since::AllRows(rows),
                state,
            })
        } else {
            let what = "the rows of the journal are not those that the tables had";
            Err(Error::corrupt("journal", 0, "S-8.7", what))
        }
    }
}
