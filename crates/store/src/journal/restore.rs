//! The rows that a journal has.

use super::pack::unpack;
use super::read::{Chain, CommitEnd, Frames, TablesState};
#[cfg(test)]
use super::summed_rows::RowMap;
use super::summed_rows::SummedRows;
use crate::engine::{Change, Engine, Gap, KeyedRows, Sealer, Table};
use crate::layout;
use crate::store::Store;
use std::collections::BTreeMap;
use weald_format::journal::{JournalKind, RowSum};
use weald_format::{CommitNo, Error, Result};

/// All rows of the tables, as the journal has them.
pub(crate) struct JournalRows {
    /// The commit after which the tables had them.
    pub commit: CommitNo,
    /// Why the journal ends there, if it is damaged.
    pub damage: Option<Error>,
    /// Why rows are missing, if the file of rows is damaged.
    pub holes: Option<Error>,
    rows: SummedRows,
    /// Sum of all rows that the tables had.
    wanted: RowSum,
}

fn wrong_sum(name: &str) -> Error {
    let what = format!("{name}: the rows are not those that the tables had");
    Error::corrupt("journal", 0, "S-8.7", what)
}

impl JournalRows {
    /// Reads all rows; `None` if there is no journal. A file of rows that is damaged gives those
    /// that can be read.
    ///
    /// # Errors
    /// `Io`.
    ///
    /// # Cost
    /// About 100 bytes of memory for each row, and its length.
    pub fn read(store: &Store) -> Result<Option<Self>> {
        let Some(chain) = Chain::read(store, true)? else {
            return Ok(None);
        };
        let sealer = Sealer::new()?;
        let mut rows = Self {
            commit: chain.rows,
            damage: chain.damage,
            holes: chain.rows_damage,
            rows: SummedRows::default(),
            wanted: RowSum::default(),
        };
        rows.read_rows(store, &sealer)?;
        // One more: a file in which the chain ends has good commits, too.
        let more = chain.ends.last().map(|end| end.base);
        let more = more.filter(|base| !chain.logs.contains(base));
        for base in chain.logs.iter().copied().chain(more) {
            let name = layout::journal_log(base);
            let mut visit = |commit, sum, changes| rows.follow(commit, sum, changes, &name);
            match each_commit(store, &sealer, &name, &mut visit) {
                Ok(()) => {}
                Err(error) if error.is_unreadable() => {
                    rows.damage.get_or_insert(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Some(rows))
    }

    fn read_rows(&mut self, store: &Store, sealer: &Sealer) -> Result<()> {
        let name = layout::journal_rows(self.commit);
        let (commit, holes) = (self.commit, self.holes.as_ref().map(Error::duplicate));
        let mut visit = |of: CommitNo, sum, changes| {
            self.rows.apply(changes);
            self.wanted = sum;
            if self.rows.sum() == sum && of == commit {
                Ok(())
            } else {
                Err(wrong_sum(&name))
            }
        };
        let done = match holes {
            Some(error) => Err(error),
            None => each_commit(store, sealer, &name, &mut visit),
        };
        match done {
            Ok(()) if !self.rows.rows().is_empty() => return Ok(()),
            Ok(()) => self.holes = Some(wrong_sum(&name)),
            Err(error) if error.is_unreadable() => self.holes = Some(error),
            Err(error) => return Err(error),
        }
        self.rows = SummedRows::default();
        let mut frames = Frames::open_damaged(store, name)?;
        while let Some((_, body)) = frames.next_whole()? {
            match unpack(sealer, &body) {
                Ok(changes) => self.rows.apply(changes),
                Err(error) if error.is_unreadable() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Applies the next commit.
    fn follow(
        &mut self,
        commit: CommitNo,
        sum: RowSum,
        changes: Vec<Change>,
        name: &str,
    ) -> Result<()> {
        let before = self.rows.before(&changes);
        self.rows.apply(changes);
        let is_sum = self.rows.sum() == sum || self.holes.is_some();
        if is_sum && commit == self.commit.next() {
            (self.commit, self.wanted) = (commit, sum);
            return Ok(());
        }
        self.rows.apply(before);
        Err(wrong_sum(name))
    }

    /// Adds rows of damaged tables that the journal lacks.
    pub fn add(&mut self, table: Table, rows: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
        self.rows.add(table, rows);
    }

    /// Whether these are all rows that the tables had.
    pub fn is_all(&self) -> bool {
        self.rows.sum() == self.wanted
    }

    /// The rows.
    #[cfg(test)]
    pub fn rows(&self) -> &RowMap {
        self.rows.rows()
    }

    /// Writes all rows to empty tables.
    ///
    /// # Errors
    /// Those of the engine.
    pub fn write(self, engine: &dyn Engine) -> Result<()> {
        self.rows.write(engine)
    }
}

/// The rows of a table in a gap, as the tables had them after `commit`, by key; `None` if the
/// journal does not go on to this commit, or is damaged.
///
/// # Errors
/// `Io`, `Corrupt`.
///
/// # Cost
/// Reads the whole journal.
pub(crate) fn rows_in(
    store: &Store,
    (table, gap): (Table, &Gap),
    commit: CommitNo,
) -> Result<Option<KeyedRows>> {
    let Some(chain) = Chain::read(store, false)? else {
        return Ok(None);
    };
    let is_whole = chain.damage.is_none() && chain.rows_damage.is_none();
    if !is_whole || chain.ends.last().is_none_or(|end| end.commit != commit) {
        return Ok(None);
    }
    let sealer = Sealer::new()?;
    let mut rows = BTreeMap::new();
    let logs = chain.logs.iter().map(|base| layout::journal_log(*base));
    for name in std::iter::once(layout::journal_rows(chain.rows)).chain(logs) {
        each_commit(store, &sealer, &name, &mut |_, _, changes| {
            for change in changes {
                if change.table == table && gap.has(&change.key) {
                    match change.value {
                        Some(value) => rows.insert(change.key, value),
                        None => rows.remove(&change.key),
                    };
                }
            }
            Ok(())
        })?;
    }
    Ok(Some(rows.into_iter().collect()))
}

/// Callback that receives a commit, the sum of all rows after it, and its changes.
pub(super) type VisitCommit<'a> = dyn FnMut(CommitNo, RowSum, Vec<Change>) -> Result<()> + 'a;

/// Visits the complete commits of a file of the journal.
///
/// # Errors
/// `Corrupt`, `Io`, those of `visit`.
pub(super) fn each_commit(
    store: &Store,
    sealer: &Sealer,
    name: &str,
    visit: &mut VisitCommit<'_>,
) -> Result<()> {
    let (_, mut frames) = Frames::open(store, name.to_owned(), false)?;
    let mut changes = Vec::new();
    while let Some((header, body)) = frames.next()? {
        changes.extend(unpack(sealer, &body).map_err(|error| error.context(name))?);
        if header.is_last {
            visit(header.commit, header.sum, std::mem::take(&mut changes))?;
        }
    }
    Ok(())
}

/// Reads the newest file of rows and the commits behind it, and compares them with the tables.
/// Returns what is wrong.
///
/// # Errors
/// `Io`.
pub(super) fn verify(store: &Store, tables: TablesState) -> Result<Option<Error>> {
    let TablesState { commit, sum } = tables;
    let chain = match Chain::read(store, false) {
        Ok(Some(chain)) => chain,
        Ok(None) => {
            let what = format!("{} has no file of rows", layout::JOURNAL);
            return Ok(Some(Error::corrupt("journal", 0, "S-8.6", what)));
        }
        Err(error) if error.is_unreadable() => return Ok(Some(error)),
        Err(error) => return Err(error),
    };
    if let Some(damage) = chain.rows_damage.or(chain.damage) {
        return Ok(Some(damage));
    }
    let is_tables = |end: &CommitEnd| end.commit == commit && end.sum == sum;
    let last = chain.ends.last();
    if !last.is_some_and(is_tables) {
        let last = last.map_or(chain.rows, |end| end.commit);
        let what = if last == commit {
            format!("the rows after commit {commit} are not those of the tables")
        } else {
            format!("it ends with commit {last}, and the tables with commit {commit}")
        };
        return Ok(Some(Error::corrupt("journal", 0, "S-8.7", what)));
    }
    match verify_rows(store, chain.rows, chain.sum) {
        Ok(()) => Ok(None),
        Err(error) if error.is_unreadable() => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// As [`verify`], beside a writer, whose commits go on after `tables`. What it finds may be a
/// change of this moment.
///
/// # Errors
/// `Io`.
pub(crate) fn verify_beside(store: &Store, tables: TablesState) -> Result<Option<Error>> {
    let TablesState { commit, sum } = tables;
    let bad = |what: String| Ok(Some(Error::corrupt("journal", 0, "S-8.7", what)));
    let chain = match Chain::read(store, false) {
        Ok(Some(chain)) => chain,
        Ok(None) => return bad(format!("{} has no file of rows", layout::JOURNAL)),
        Err(error) if error.is_unreadable() => return Ok(Some(error)),
        Err(error) => return Err(error),
    };
    if let Some(damage) = chain.rows_damage.or(chain.damage) {
        return Ok(Some(damage));
    }
    let is_tables = |end: &CommitEnd| end.commit == commit && end.sum == sum;
    if !chain.ends.iter().any(is_tables) {
        return bad(format!("it has not the rows of commit {commit}"));
    }
    match verify_rows(store, chain.rows, chain.sum) {
        Ok(()) => Ok(None),
        Err(error) if error.is_unreadable() => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// Reads a file of rows, and adds them up. `followed` is the sum from which the commits go on.
fn verify_rows(store: &Store, commit: CommitNo, followed: Option<RowSum>) -> Result<()> {
    let name = layout::journal_rows(commit);
    let sealer = Sealer::new()?;
    let (superblock, mut frames) = Frames::open(store, name.clone(), false)?;
    let (mut sum, mut is_complete) = (RowSum::default(), false);
    while let Some((header, body)) = frames.next()? {
        for change in unpack(&sealer, &body).map_err(|error| error.context(&name))? {
            let value = change.value.unwrap_or_default();
            sum.add(change.table.code(), &change.key, &value);
        }
        let is_right = header.sum == sum && header.commit == commit;
        is_complete = header.is_last && is_right && frames.at == frames.len;
    }
    let is_followed = followed.is_none_or(|followed| followed == sum);
    if is_complete && is_followed && superblock.kind == JournalKind::Rows {
        Ok(())
    } else {
        Err(wrong_sum(&name))
    }
}
