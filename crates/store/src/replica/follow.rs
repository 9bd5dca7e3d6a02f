//! Brings a standby to later states of the replica that it follows.
//!
//! The tables of a standby are those of one state. Which one, their commit number and the sum of
//! their rows tell; both change with the rows, in one transaction. An item that leads on from there
//! is applied as it is. Otherwise all rows of the last state are compared with the tables, which
//! also makes a standby of a store that went its own way, or whose tables are damaged.
//!
//! The order: 1. bytes of segments, and maps under their hidden names; 2. rows; 3. names that
//! readers see; 4. files that no row names go, unless a reader has an image that may need them.

use super::items::{Items, first_item, list_items, read_item};
use super::needs::{Changed, Needs};
use super::objects::{ObjectWriter, each_read};
use super::place::Place;
use super::record::{LastSent, Record};
use super::restore::{AsOf, Path, choose, unreadable};
use super::rows::each_change;
use super::settle::settle;
use super::standby::{identity_of, lock_standby, refuse_no_standby};
use super::unsent::Unsent;
use crate::damaged_blocks::DamagedBlocks;
use crate::disk::LocalFile;
use crate::engine::redb::RedbEngine;
use crate::engine::{Batch, Change, Engine, Sealer, Table};
use crate::faults::{Bug, Faults};
use crate::journal::{SummedRows, TablesState};
use crate::layout::{self, ObjectKind};
use crate::mark::Mark;
use crate::store::{Store, create_engine, open_engine};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use weald_format::replica::{Item, ItemHeader, ItemKind, ItemNo, PlaceIdentity};
use weald_format::store::BlockRow;
use weald_format::{CommitNo, Digest, Error, ErrorKind, Result};

/// Most rows that one transaction of the tables changes.
const BATCH_LEN: usize = 1 << 18;

/// How to follow.
#[derive(Debug, Clone)]
pub struct FollowOptions {
    /// Name of the writer, for messages.
    pub writer_name: String,
    /// Take a state although bytes of it are damaged or missing in the replica.
    pub accepts_damage: bool,
    /// A deliberate bug, if a simulation must find it.
    pub faults: Faults<Bug>,
}

/// What a standby has got.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Followed {
    /// Its last commit.
    pub commit: CommitNo,
    /// When that was sent, in nanoseconds since 1970.
    pub time: i64,
    /// States that were applied.
    pub state_count: u64,
    /// Bytes of files of data that were read.
    pub read_len: u64,
    /// What is not there, because the store had lost it when it was sent, or the replica has lost
    /// it.
    pub damage: Vec<String>,
}

impl Store {
    /// Brings this standby to the last state of the replica at `place`.
    ///
    /// # Errors
    /// `Invalid` if the store is no standby, or the place is another replica; `Busy` if somebody
    /// else reads or changes the tables; `Corrupt` if something is damaged or missing at the
    /// place; `Io`, `Full`. The standby then has the last state that is whole, or the next call
    /// completes it.
    ///
    /// # Cost
    /// Memory for the rows that changed, or for all rows if they have to be compared: about 100
    /// bytes for each, and its length.
    pub fn follow(&self, place: &dyn Place, options: &FollowOptions) -> Result<Followed> {
        let mut follower = Follower::open(self, place, options)?;
        follower.run()?;
        Ok(follower.done)
    }

    /// Whether the place may have states that this standby does not have. Its tables may be in use.
    ///
    /// # Errors
    /// `Corrupt` if what the standby remembers is damaged; those of the place.
    pub fn may_follow(&self, place: &dyn Place) -> Result<bool> {
        let Some(record) = self.standby_record()? else {
            return Ok(false);
        };
        let Some(last) = &record.last else {
            return Ok(true);
        };
        let mut names = list_items(place)?;
        names.retain(|(number, _)| *number >= last.number);
        Ok(names != [(last.number, last.digest)])
    }
}

/// Where the tables of a standby are, by the items.
enum Position {
    /// At the last one.
    Last,
    /// Before this one.
    Before(Box<Item>),
    /// Nowhere: all rows have to be compared.
    Unknown,
}

/// A standby while it is changed.
pub(super) struct Follower<'a> {
    pub(super) store: &'a Store,
    pub(super) place: &'a dyn Place,
    pub(super) identity: PlaceIdentity,
    options: &'a FollowOptions,
    sealer: Sealer,
    pub record: Record,
    /// The tables; `None` if they are damaged.
    pub(super) engine: Option<RedbEngine>,
    lock: Arc<dyn LocalFile>,
    pub done: Followed,
}

impl<'a> Follower<'a> {
    pub fn open(
        store: &'a Store,
        place: &'a dyn Place,
        options: &'a FollowOptions,
    ) -> Result<Self> {
        let (lock, is_left) = lock_standby(store, &options.writer_name)?;
        refuse_no_standby(store)?;
        store.refuse_tiers_away()?;
        let record = store.standby_record()?;
        let record = record.ok_or_else(|| Error::invalid("the store is no standby"))?;
        let identity = identity_of(place)?;
        if identity != record.identity {
            let shown = place.shown();
            return Err(Error::invalid(if identity.uuid == record.identity.uuid {
                format!(
                    "{shown}: tells another history than this standby follows: 'weald replica \
                     follow {shown} {} --as-clone' follows it all the same",
                    store.shown()
                )
            } else {
                format!("{shown}: is a replica of another store")
            }));
        }
        // What makes a store a standby may have been interrupted.
        if record.last.is_none() {
            store.refuse_readers()?;
            store.drop_own_history()?;
        }
        let engine = match open_engine(&*store.disk, store.uuid(), is_left) {
            Ok(mut engine) => {
                engine.mark_when_closed(lock.clone());
                Some(engine)
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                log::warn!("{error}: the tables are made anew from the replica");
                None
            }
            Err(error) => return Err(error),
        };
        let last = record.last.as_ref();
        let done = Followed {
            commit: last.map(|last| last.commit).unwrap_or_default(),
            time: last.map(|last| last.time).unwrap_or_default(),
            ..Followed::default()
        };
        Ok(Self {
            store,
            place,
            identity,
            options,
            sealer: Sealer::new()?,
            record,
            engine,
            lock,
            done,
        })
    }

    /// Applies all states that there are.
    pub fn run(&mut self) -> Result<()> {
        let mut is_settled = false;
        loop {
            match self.position()? {
                // A call that was interrupted may have left names and files.
                Position::Last if !is_settled => return self.settle_names().map(drop),
                Position::Last => return Ok(()),
                Position::Before(item) => self.apply_item(&item)?,
                Position::Unknown => self.compare()?,
            }
            is_settled = true;
        }
    }

    /// The state of the tables; `None` if they are damaged.
    fn state(&mut self) -> Result<Option<TablesState>> {
        let Some(engine) = &self.engine else {
            return Ok(None);
        };
        match Unsent::of_state(engine) {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.give_tables_up(&error);
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    fn give_tables_up(&mut self, error: &Error) {
        log::warn!("{error}: the tables are made anew from the replica");
        self.engine = None;
    }

    fn position(&mut self) -> Result<Position> {
        let state = self.state()?;
        let trusts = self.options.faults.has(Bug::RowsBeforeIgnored);
        let last = self.record.last.as_ref();
        let at = last.filter(|last| trusts || Some(last.state()) == state);
        let Some((at, digest)) = at.map(|last| (last.number, last.digest)) else {
            return Ok(Position::Unknown);
        };
        let first = first_item(self.place)?;
        let mut names = list_items(self.place)?;
        names.retain(|(number, _)| *number >= first);
        // Another one of its number may be of a store that has taken over.
        let of_number = |number| names.iter().filter(move |(of, _)| *of == number);
        for (number, other) in of_number(at).filter(|(_, other)| *other != digest) {
            if self
                .read_item(*number, other)?
                .is_some_and(|item| item.header.epoch > self.record.epoch)
            {
                return Ok(Position::Unknown);
            }
        }
        let mut next: Option<Item> = None;
        for (number, digest_of) in of_number(at.next()) {
            let Some(item) = self.read_item(*number, digest_of)? else {
                continue;
            };
            let is_later = next
                .as_ref()
                .is_none_or(|other| item.header.epoch > other.header.epoch);
            if item.header.previous == digest && is_later {
                next = Some(item);
            }
        }
        Ok(match next {
            Some(item) => Position::Before(Box::new(item)),
            None if names.iter().any(|(number, _)| *number > at) => Position::Unknown,
            None => Position::Last,
        })
    }

    /// Reads an item; `None` if it is damaged or gone.
    fn read_item(&self, number: ItemNo, digest: &Digest) -> Result<Option<Item>> {
        match read_item(self.place, &self.identity, (number, digest)) {
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                log::warn!("{error}");
                Ok(None)
            }
            other => other.map(Some),
        }
    }

    /// Applies the item that follows the state of the tables.
    fn apply_item(&mut self, item: &Item) -> Result<()> {
        let state = self.state()?;
        let header = item.header;
        let path = Path(VecDeque::from([item]));
        if header.kind == ItemKind::AllRows {
            let rows = path.rows(self.place, &self.sealer)?;
            return self.apply_rows(path, header, rows);
        }
        let begins = TablesState {
            commit: header.base,
            sum: header.before,
        };
        if state != Some(begins) && !self.options.faults.has(Bug::RowsBeforeIgnored) {
            log::warn!(
                "{}: item {} leads on from other rows than {} has: all rows are compared",
                self.place.shown(),
                header.number.0,
                self.store.shown()
            );
            return self.compare();
        }
        let mut changes = Vec::new();
        each_change(self.place, &self.sealer, item, &mut |more| {
            changes.extend(more);
            Ok(())
        })?;
        let changed = Changed {
            header,
            changes,
            path,
            all: None,
        };
        match self.apply(changed) {
            // What it needs may have come with an earlier item, and be gone here.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                log::info!("{error}: all rows are compared");
                self.compare()
            }
            other => other,
        }
    }

    /// Compares all rows of the last state with the tables.
    fn compare(&mut self) -> Result<()> {
        let items = Items::read_all(self.place, &self.identity)?;
        let shown = self.place.shown();
        let last = choose(&items, AsOf::Last);
        let last = last.ok_or_else(|| Error::not_found(format!("{shown}: has no states")))?;
        let later = items.bad.iter().find(|bad| bad.number > last.header.number);
        if let Some(bad) = later {
            let what = format!(
                "a later state is lost: {}: 'weald replica verify --repair' of the store that \
                 sends makes it again",
                bad.why
            );
            let is_accepted = self.options.accepts_damage;
            self.damaged(is_accepted, Error::corrupt("replica", 0, "S-9.6", what))?;
        }
        let header = last.header;
        let path = Path::to(&items, last).ok_or_else(|| {
            let what = format!(
                "{shown}: an item between the last one with all rows and item {} is missing or \
                 damaged: 'weald replica verify --repair' of the store that sends makes it again",
                header.number.0
            );
            Error::corrupt("replica", 0, "S-9.6", what)
        })?;
        let rows = path.rows(self.place, &self.sealer)?;
        self.apply_rows(path, header, rows)
    }

    fn apply_rows(&mut self, path: Path<'_>, header: ItemHeader, rows: SummedRows) -> Result<()> {
        let changes = match &self.engine {
            None => Err(Error::corrupt("store metadata", 0, "S-5.1", "no tables")),
            Some(engine) => rows.differences(engine),
        };
        let changes = match changes {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                if self.engine.is_some() {
                    self.give_tables_up(&error);
                }
                rows.as_changes()
            }
            other => other?,
        };
        self.apply(Changed {
            header,
            changes,
            path,
            all: Some(rows),
        })
    }

    /// As [`settle`].
    fn settle_names(&self) -> Result<bool> {
        match &self.engine {
            Some(engine) => settle(self.store, engine),
            None => Ok(true),
        }
    }

    /// Makes rows and what they need those of a state.
    fn apply(&mut self, changed: Changed<'_>) -> Result<()> {
        let engine = self.engine.as_ref().map(|engine| engine as &dyn Engine);
        let needs = changed.needs(self.store, engine, self.options.faults)?;
        self.write_objects(&changed, &needs)?;
        let Changed {
            header,
            mut changes,
            all,
            path,
        } = changed;
        self.store.add_features(header.incompat)?;
        // The commit number comes last: until it is there, the state is none.
        changes.sort_by_key(|change| change.table == Table::Counters);
        let is_whole = changes.len() <= BATCH_LEN && self.engine.is_some();
        if !is_whole && self.record.last.is_some() {
            self.record.last = None;
            self.store.write_standby_record(&self.record)?;
        }
        if Mark::read(self.store).is_some_and(|mark| mark > header.commit) {
            self.store.disk.remove_if_there(layout::MARK)?;
            self.store.disk.sync_dir("")?;
        }
        // Another history may have blocks of its own in the places of these.
        let dead = if all.is_none() {
            needs.dead
        } else {
            Vec::new()
        };
        self.commit(changes, all, &header)?;
        let has_reader = self.settle_names()?;
        if !has_reader {
            self.store.free(&dead)?;
        }
        Mark::new(self.store).set(header.commit);
        let lacking = path.lacking().map(|lacking| {
            let (offset, end) = (lacking.offset, lacking.offset.saturating_add(lacking.len));
            let shown = layout::segment(lacking.number);
            format!("{shown}, bytes {offset} to {end}: the store itself had lost them")
        });
        self.done.damage.extend(lacking);
        self.record.epoch = header.epoch.max(self.record.epoch);
        self.record.last = Some(LastSent {
            number: header.number,
            digest: header.digest(),
            commit: header.commit,
            sum: header.after,
            time: header.time,
            all_rows_len: 0,
            changes_len: 0,
            segments: BTreeMap::new(),
        });
        self.store.write_standby_record(&self.record)?;
        self.store.forget_own_lens()?;
        self.done.commit = header.commit;
        self.done.time = header.time;
        self.done.state_count += 1;
        Ok(())
    }

    /// Whether a state is taken although something of it is lost. What an item alone lacks may be
    /// elsewhere.
    fn accepts_damage(&self, changed: &Changed<'_>) -> bool {
        self.options.accepts_damage && changed.all.is_some()
    }

    /// Tells damage, or refuses it.
    fn damaged(&mut self, is_accepted: bool, error: Error) -> Result<()> {
        if !is_accepted || !is_lost(&error) {
            return Err(error);
        }
        self.done.damage.push(error.to_string());
        Ok(())
    }

    fn write_objects(&mut self, changed: &Changed<'_>, needs: &Needs) -> Result<()> {
        let store = self.store;
        let mut wanted = changed.wanted_segments(store, needs, self.options.faults)?;
        let (maps, missing) = changed.wanted_maps(store, needs)?;
        wanted.extend(maps);
        for name in missing {
            let what = format!(
                "{}: the map of image {name} is not there",
                self.place.shown()
            );
            let is_accepted = self.accepts_damage(changed);
            self.damaged(is_accepted, Error::corrupt("replica", 0, "S-9.5", what))?;
        }
        let mut writer = ObjectWriter::new(&*store.disk, &needs.lens);
        let (mut read_len, mut failed) = (0, Vec::new());
        let accepts_damage = self.accepts_damage(changed);
        each_read(self.place, &wanted, &mut |file, read| {
            let done = read.and_then(|bytes| {
                read_len += bytes.len() as u64;
                writer.write(file, &bytes)
            });
            match done {
                Err(error) if accepts_damage && is_lost(&error) => {
                    failed.push(error.to_string());
                    Ok(())
                }
                other => other,
            }
        })?;
        store.disk.settle(ObjectKind::Map)?;
        self.done.read_len += read_len;
        self.done.damage.append(&mut failed);
        for number in needs.lens.keys() {
            writer.settle_len(*number)?;
        }
        if !self.options.faults.has(Bug::FollowsRowsFirst) {
            writer.finish()?;
        }
        let lacking: Vec<_> = changed.path.lacking().copied().collect();
        let bad = unreadable(&*store.disk, needs.blocks.clone());
        let is_known = |row: &BlockRow| {
            lacking.iter().any(|lacking| {
                let (from, end) = (row.location.offset, row.location.offset + row.len());
                lacking.number == row.location.segment
                    && from < lacking.offset.saturating_add(lacking.len)
                    && lacking.offset < end
            })
        };
        let count = bad.len();
        let lost = bad.iter().filter(|((_, row), _)| !is_known(row));
        let lost = lost.max_by_key(|(_, error)| error.kind() == ErrorKind::Io);
        if let Some((_, error)) = lost {
            // This disk fails.
            if error.kind() == ErrorKind::Io {
                return Err(error.duplicate());
            }
            let what = format!(
                "{}: {count} blocks of commit {} cannot be read: {error}",
                self.place.shown(),
                changed.header.commit
            );
            self.damaged(accepts_damage, Error::corrupt("replica", 0, "S-9.5", what))?;
        }
        // New contents must not become one of these.
        let damaged = DamagedBlocks::read(store);
        for ((id, _), error) in &bad {
            damaged.note(*id, error.what());
        }
        damaged.write(store)
    }

    /// Makes the rows those of the state.
    fn commit(
        &mut self,
        changes: Vec<Change>,
        all: Option<SummedRows>,
        header: &ItemHeader,
    ) -> Result<()> {
        let done = match &self.engine {
            None => None,
            Some(engine) => Some(commit_all(engine, changes, header, self.options.faults)),
        };
        match done {
            Some(Err(error)) if error.kind() == ErrorKind::Corrupt => self.give_tables_up(&error),
            Some(other) => return other,
            None => {}
        }
        let Some(rows) = all else {
            return Err(Error::corrupt("store metadata", 0, "S-5.1", "no tables"));
        };
        let disk = &*self.store.disk;
        disk.remove_if_there(layout::META_NEW)?;
        let engine = create_engine(disk, layout::META_NEW, self.store.uuid())?;
        rows.write(&engine)?;
        drop(engine);
        disk.rename(layout::META_NEW, layout::META)?;
        disk.sync_dir("")?;
        let mut engine = open_engine(disk, self.store.uuid(), false)?;
        engine.mark_when_closed(self.lock.clone());
        self.engine = Some(engine);
        Ok(())
    }
}

/// Whether something is not there, or not what it was. What only cannot be reached may come back.
fn is_lost(error: &Error) -> bool {
    use ErrorKind::{Corrupt, Lost, NotFound};
    matches!(error.kind(), Corrupt | Lost | NotFound) && !error.is_failed_write()
}

/// Changes rows. The last transaction is rolled back if the rows would not be those of the state.
fn commit_all(
    engine: &dyn Engine,
    changes: Vec<Change>,
    header: &ItemHeader,
    faults: Faults<Bug>,
) -> Result<()> {
    let mut left = changes.into_iter().peekable();
    loop {
        let batch = Batch(left.by_ref().take(BATCH_LEN).collect());
        let is_last = left.peek().is_none();
        engine.commit_after(&batch, &mut |sum| {
            if !is_last || sum == header.after || faults.has(Bug::RowsBeforeIgnored) {
                return Ok(());
            }
            let what = format!("item {} leads to other rows than it says", header.number.0);
            Err(Error::corrupt("replica", 0, "S-9.7", what))
        })?;
        if is_last {
            return Ok(());
        }
    }
}
