//! Sends what a store has committed to a replica.
//!
//! The order makes any interruption harmless: 1. files of data are put, which are named by their
//! digests; 2. the item that names them is noted in the store; 3. the item is put; 4. the store
//! notes that it is there. After an interruption the same item is put again, so that there is never
//! another one of its number.
//!
//! A store is read beside its writer, which may free space meanwhile. If something that the rows
//! need cannot be read, and the writer has gone on, a later state is sent instead. If it has not,
//! the store itself is damaged: the rest is sent, and the item says what it lacks.

use super::epochs::refuse_replaced;
use super::gather::{Gatherer, Wanted};
use super::items::{find_identity, list_items, read_identity, read_item};
use super::place::{DATA, IDENTITY, Place, item_path};
use super::record::{LastSent, Record, ReplicaSettings, lock_path};
use super::rows::RowsSender;
use super::throttled::Throttled;
use crate::disk::{Access, LocalFile};
use crate::engine::{Sealer, Table};
use crate::faults::{Bug, Faults};
use crate::journal::{Asked, Since, TablesState, changes_since, is_settled, last_commit, now};
use crate::mark::Mark;
use crate::store::Store;
use crate::writer::WriteOptions;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::journal::RowSum;
use weald_format::replica::{
    DataFile, DataKind, Item, ItemHeader, ItemKind, ItemList, ItemNo, Lacking, PlaceIdentity,
};
use weald_format::store::{SEGMENT_SUPERBLOCK_LEN, Uuid};
use weald_format::{CommitNo, Digest, Error, ErrorKind, Result, SegmentNo};

/// How often a later state is tried, while the writer frees what is to be sent.
const TRIES: usize = 8;
/// Bytes of changed rows after which all rows are sent again, if they are not more.
const CHANGES_LEN: u64 = 1 << 20;

/// How to send.
#[derive(Debug, Clone)]
pub struct SendOptions {
    /// A writer, which opens the tables for a moment if nobody else does and the journal alone does
    /// not tell what they have. Without one, that is then an error.
    pub writer: Option<WriteOptions>,
    /// Send everything that the store has, also what was sent before: the place has lost some of
    /// it.
    pub is_anew: bool,
    /// Send all rows, also those that were sent before, so that earlier items can go.
    pub has_all_rows: bool,
    /// A deliberate bug, if a simulation must find it.
    pub faults: Faults<Bug>,
}

/// What was sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sent {
    /// The last commit that the replica has.
    pub commit: CommitNo,
    /// Whether there was something to send.
    pub is_new: bool,
    /// Whether all rows were sent.
    pub has_all_rows: bool,
    /// Bytes of files that were put.
    pub sent_len: u64,
    /// What the store could not read itself.
    pub damage: Vec<String>,
}

/// One sending.
struct Sending<'a> {
    store: &'a Store,
    place: &'a dyn Place,
    record: Record,
    /// The tables, if nobody writes to the store.
    tables: Option<TablesState>,
    is_anew: bool,
    has_all_rows: bool,
    faults: Faults<Bug>,
}

/// What an attempt has put.
struct Attempt {
    item: Item,
    last: LastSent,
    sent_len: u64,
    damage: Vec<String>,
}

impl Store {
    /// Makes `place` a replica of this store, with the name `name`. `shown` is how the user named
    /// the place; `lineage` must be random.
    ///
    /// # Errors
    /// `Busy` if the name is taken, or the place is a replica already; `Invalid` for a name that no
    /// replica can have; those of the place.
    pub fn add_replica(
        &self,
        name: &str,
        place: &dyn Place,
        (shown, lineage): (&str, Uuid),
        settings: ReplicaSettings,
    ) -> Result<()> {
        crate::layout::check_name(name)?;
        // Its copy would be the file by which a store is a standby.
        if name == "standby" {
            let what = "a replica cannot be called standby: choose another name (--name)";
            return Err(Error::invalid(what));
        }
        if self.replica_names()?.iter().any(|other| other == name) {
            let what = format!(
                "{}: has a replica {name:?} already: another --name, or 'weald replica remove'",
                self.shown()
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let identity = PlaceIdentity {
            uuid: self.uuid(),
            lineage,
        };
        let record = Record::new(shown, identity, settings)?;
        if let Some(other) = read_identity(place)? {
            let of = if other.uuid == self.uuid() {
                "this store already: another one needs a place of its own"
            } else {
                "another store"
            };
            let what = format!("{}: is a replica of {of}", place.shown());
            return Err(Error::new(ErrorKind::Busy, what));
        }
        place.prepare()?;
        place.put(IDENTITY, &identity.encode())?;
        self.write_replica_record(name, &record)
    }

    /// Sends what was committed since the last time to the replica `name`, which lies at `place`.
    ///
    /// # Errors
    /// `Invalid` if the place is another one than was sent to, or the store is older than the
    /// replica; `NotFound` if the store has no such replica; `Busy` if another process sends to it;
    /// those of the place. What was there stays.
    ///
    /// # Cost
    /// Memory for all rows that are sent: about 100 bytes for each, and its length.
    pub fn send_replica(
        &self,
        name: &str,
        place: &dyn Place,
        options: &SendOptions,
    ) -> Result<Sent> {
        let faults = options.faults;
        let record = self.replica_record(name)?;
        let throttled;
        let place = match record.settings.rate {
            0 => place,
            rate => {
                throttled = Throttled::new(place, rate);
                &throttled
            }
        };
        let _lock = self.lock_replica(name)?;
        check_identity(place, &record, options.is_anew)?;
        self.refuse_role()?;
        refuse_replaced(self, place, &record)?;
        let record = self.complete_pending(name, place, record)?;
        if !faults.has(Bug::OlderStoreSends) {
            check_items(self, place, &record, options.is_anew)?;
        }
        let mut sending = Sending {
            store: self,
            place,
            record,
            tables: None,
            is_anew: options.is_anew,
            has_all_rows: options.has_all_rows,
            faults,
        };
        let Some(attempt) = sending.attempts(options)? else {
            return Ok(Sent {
                commit: sending.record.last.map_or(CommitNo(0), |last| last.commit),
                ..Sent::default()
            });
        };
        let bytes = attempt.item.encode();
        let (number, digest) = (attempt.last.number, attempt.last.digest);
        let sent = Sent {
            commit: attempt.last.commit,
            is_new: true,
            has_all_rows: attempt.item.header.kind == ItemKind::AllRows,
            sent_len: attempt.sent_len + bytes.len() as u64,
            damage: attempt.damage,
        };
        let next = Record {
            last: Some(attempt.last),
            // They may have been changed meanwhile.
            settings: self.replica_record(name)?.settings,
            ..sending.record
        };
        if !faults.has(Bug::ItemNotNoted) {
            self.put_pending_item(name, &next, &bytes)?;
        }
        place.put(&item_path(number, &digest), &bytes)?;
        if !faults.has(Bug::EpochNotReadAgain) {
            refuse_replaced(self, place, &next)?;
        }
        self.settle_pending_item(name, &next)?;
        Ok(sent)
    }

    /// Puts the item that an interrupted sending has left. Returns the record that holds then.
    pub(super) fn complete_pending(
        &self,
        name: &str,
        place: &dyn Place,
        record: Record,
    ) -> Result<Record> {
        let Some((next, item)) = self.pending_item(name)? else {
            return Ok(record);
        };
        let last = next.last.as_ref();
        let last = last.ok_or_else(|| Error::invalid("an item without a number"))?;
        let sent = record.last.as_ref().map(|last| last.number);
        if Some(last.number) <= sent {
            self.settle_pending_item(name, &record)?;
            return Ok(record);
        }
        place.put(&item_path(last.number, &last.digest), &item)?;
        refuse_replaced(self, place, &next)?;
        self.settle_pending_item(name, &next)?;
        Ok(next)
    }

    /// Keeps other processes from sending to the same replica.
    pub(super) fn lock_replica(&self, name: &str) -> Result<Box<dyn LocalFile>> {
        let path = lock_path(name);
        let file = match self.disk.open(&path, Access::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                match self.disk.open(&path, Access::CreatePrivate) {
                    Err(error) if error.kind() == ErrorKind::Busy => {
                        self.disk.open(&path, Access::Write)
                    }
                    other => other,
                }
            }
            other => other,
        }?;
        if file.try_lock(0, true)? {
            return Ok(file);
        }
        let what = format!("replica {name:?}: another process is sending to it");
        Err(Error::new(ErrorKind::Busy, what))
    }

    /// The state of the tables, if the journal does not tell it and nobody writes to the store:
    /// what an earlier writer left unfinished is completed, and there is a journal then.
    fn settled_tables(&self, options: Option<&WriteOptions>) -> Result<Option<TablesState>> {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        let Some(options) = options.filter(|_| !is_settled(self)) else {
            return Ok(None);
        };
        let denied = |error: &Error| {
            let cause = error.io_source().map(std::io::Error::kind);
            matches!(cause, Some(PermissionDenied | ReadOnlyFilesystem))
        };
        match self.write(options.clone()) {
            Ok(mut writer) => {
                writer.begin_journal()?;
                Ok(Some(writer.tables_state()?))
            }
            Err(error) if error.kind() == ErrorKind::Busy || denied(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Refuses a place that is not this replica. One that is sent everything again gets a new file in
/// place of a damaged one.
fn check_identity(place: &dyn Place, record: &Record, is_anew: bool) -> Result<()> {
    let shown = place.shown();
    let found = match read_identity(place) {
        Err(error) if error.kind() == ErrorKind::Corrupt && is_anew => {
            if find_identity(place)? != Some(record.identity) {
                return Err(error);
            }
            return place.put(IDENTITY, &record.identity.encode());
        }
        other => other?,
    };
    match found {
        Some(found) if found == record.identity => Ok(()),
        Some(found) if found.uuid == record.identity.uuid => Err(Error::invalid(format!(
            "{shown}: is another replica of this store, or of a copy of it"
        ))),
        Some(_) => Err(Error::invalid(format!(
            "{shown}: is a replica of another store"
        ))),
        None => Err(Error::invalid(format!(
            "{shown}: is empty, or not mounted: what was sent is not there; 'weald replica remove' \
             and 'add' begin a new replica"
        ))),
    }
}

/// Refuses a place that does not end with the item that was sent last. One that may be sent
/// everything again may have lost it.
fn check_items(store: &Store, place: &dyn Place, record: &Record, may_lack: bool) -> Result<()> {
    let items = list_items(place)?;
    let shown = place.shown();
    let last = record.last.as_ref().map(|last| (last.number, last.digest));
    let is_later = |(number, _): &&(ItemNo, Digest)| Some(*number) > last.map(|(last, _)| last);
    // An item of a store that this one has replaced may arrive late.
    let is_of_other = |(number, digest): &(ItemNo, Digest)| {
        let item = read_item(place, &record.identity, (*number, digest));
        item.is_ok_and(|item| item.header.epoch < record.epoch)
    };
    if items.iter().filter(is_later).any(|item| !is_of_other(item)) {
        return Err(Error::invalid(format!(
            "{shown}: has later items than {store} has sent: the store was put back from an older \
             copy, or another copy of it sends to this place; 'weald replica restore' brings back \
             what the replica has, and 'weald replica remove' and 'add' begin a new replica in \
             another place",
            store = store.shown()
        )));
    }
    match last {
        Some(last) if !items.contains(&last) && !may_lack => Err(Error::invalid(format!(
            "{shown}: item {}, which was sent last, is missing: 'weald replica send --anew' sends \
             everything again",
            last.0.0
        ))),
        _ => Ok(()),
    }
}

impl Sending<'_> {
    /// Puts the data of the newest state that can be read. Returns `None` if the replica has it.
    fn attempts(&mut self, options: &SendOptions) -> Result<Option<Attempt>> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.tables = self.store.settled_tables(options.writer.as_ref())?;
            if self.store.is_unsynced() {
                let what = "a volume of it is mounted with barrier=ignore, so that nobody knows \
                            what a power cut would leave: nothing is sent until it is unmounted";
                return Err(Error::invalid(format!("{}: {what}", self.store.shown())));
            }
            let (state, damage, attempt) = match self.attempt() {
                Ok(None) => return Ok(None),
                Ok(Some(attempt)) if attempt.damage.is_empty() => return Ok(Some(attempt)),
                Ok(Some(attempt)) if self.faults.has(Bug::MovedDataIgnored) => {
                    let (list, damage) = (attempt.item.list, Vec::new());
                    let list = ItemList {
                        lacking: Vec::new(),
                        ..list
                    };
                    return Ok(Some(Attempt {
                        item: Item::new(attempt.item.header, list),
                        damage,
                        ..attempt
                    }));
                }
                Ok(Some(attempt)) => (Some(attempt.last.commit), None, Some(attempt)),
                // Files of the journal go when others take their place.
                Err(error) if is_of_reading(&error) => (None, Some(error), None),
                Err(error) => return Err(error),
            };
            let has_moved = match (self.tables, state) {
                // Nobody writes: a second look sees the same.
                (Some(_), _) => false,
                // The journal may have paused, and the tables gone on.
                (None, Some(commit)) => {
                    Mark::read(self.store).is_some_and(|mark| mark > commit)
                        || last_commit(self.store).is_ok_and(|last| last > commit)
                }
                (None, None) => true,
            };
            if has_moved && tries < TRIES {
                continue;
            }
            return match (attempt, damage) {
                (_, Some(error)) => Err(error),
                // What is missing may be needed by no row any more.
                (Some(_), None) if has_moved => Err(Error::new(
                    ErrorKind::Busy,
                    format!(
                        "{}: changes while it is sent, or has no journal now: try again later",
                        self.store.shown()
                    ),
                )),
                (attempt, None) => Ok(attempt),
            };
        }
    }

    fn attempt(&self) -> Result<Option<Attempt>> {
        let last = self.record.last.as_ref();
        let since = last.map(LastSent::state);
        let is_due = last.is_some_and(|last| {
            last.changes_len > CHANGES_LEN && last.changes_len > last.all_rows_len
        });
        let asked = Asked {
            known: since,
            is_all: is_due || self.is_anew || self.has_all_rows,
            tables: self.tables,
            faults: self.faults,
        };
        let found = changes_since(self.store, asked);
        let found = found.map_err(|error| self.explain(error))?;
        let state = found.state;
        let is_sent = since.is_some_and(|since| since.commit >= state.commit);
        if is_sent && !self.is_anew && !self.has_all_rows {
            return Ok(None);
        }
        let sealer = Sealer::new()?;
        let is_all = matches!(found.rows, Since::AllRows(_));
        let mut carried = Carried::default();
        if is_all && !self.is_anew {
            carried = self.carried()?;
        }
        // Where earlier files cannot be named, everything is sent.
        let there = match (is_all, last) {
            (true, _) if !carried.is_complete => BTreeMap::new(),
            (_, last) => last.map_or(BTreeMap::new(), |last| last.segments.clone()),
        };
        let mut rows = RowsSender::new(self.place, &sealer);
        let mut wanted = Wanted::default();
        let mut add = |table: Table, key: &[u8], value: Option<&[u8]>| {
            rows.push(table, key, value)?;
            wanted.add(table, (key, value), &there)
        };
        match &found.rows {
            Since::Changes(changes) => {
                for ((table, key), value) in changes {
                    add(*table, key, value.as_deref())?;
                }
            }
            Since::AllRows(all) => {
                for ((table, key), value) in all.rows() {
                    add(*table, key, Some(value))?;
                }
            }
        }
        let rows = rows.finish()?;
        let rows_len = rows.iter().map(|file| file.file_len).sum::<u64>();
        let mut gatherer = Gatherer {
            store: self.store,
            place: self.place,
            faults: self.faults,
            there: carried.maps.clone(),
            files: rows,
            lacking: Vec::new(),
            damage: Vec::new(),
            sent_len: rows_len,
        };
        if is_all {
            let names = self.place.list(DATA)?;
            let digests = names.iter().filter_map(|name| Digest::from_hex(name));
            gatherer.there.extend(digests.map(|digest| digest.0));
        }
        let segments = self.send_data(&wanted, &there, &mut gatherer)?;
        let segments = if is_all {
            segments
        } else {
            merged(&there, segments, &wanted.removed)
        };
        carried.files.retain(|file| match file.kind {
            DataKind::Segment { number, .. } => segments.contains_key(&number),
            DataKind::Map(_) | DataKind::Rows => false,
        });
        let mut list = ItemList {
            files: gatherer.files,
            lacking: gatherer.lacking,
        };
        list.files.append(&mut carried.files);
        carried
            .lacking
            .retain(|lacking| segments.contains_key(&lacking.number));
        list.lacking.append(&mut carried.lacking);
        let previous = last.map_or((ItemNo(0), Digest([0; 32])), |last| {
            (last.number, last.digest)
        });
        let before = since.unwrap_or(TablesState {
            commit: CommitNo(0),
            sum: RowSum::default(),
        });
        let header = ItemHeader {
            place: self.record.identity,
            number: previous.0.next(),
            epoch: self.record.epoch,
            kind: if is_all {
                ItemKind::AllRows
            } else {
                ItemKind::Changes
            },
            base: before.commit,
            commit: state.commit,
            time: now(),
            segment_len: self.store.superblock.segment_len,
            incompat: self.store.features_elsewhere()?,
            before: before.sum,
            after: state.sum,
            previous: previous.1,
            list_digest: Digest([0; 32]),
            list_len: 0,
        };
        let item = Item::new(header, list);
        let last = LastSent {
            number: item.header.number,
            digest: item.header.digest(),
            commit: state.commit,
            sum: state.sum,
            time: item.header.time,
            all_rows_len: match (is_all, last) {
                (false, Some(last)) => last.all_rows_len,
                _ => rows_len,
            },
            changes_len: match (is_all, last) {
                (false, Some(last)) => last.changes_len + rows_len,
                _ => 0,
            },
            segments,
        };
        Ok(Some(Attempt {
            item,
            last,
            sent_len: gatherer.sent_len,
            damage: gatherer.damage,
        }))
    }

    /// Says what a store that is older than its replica means.
    fn explain(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Invalid {
            return error;
        }
        let what = format!(
            "{error}: {} was put back from an older copy: 'weald replica restore' brings back what \
             {} has, and 'weald replica remove' and 'add' begin a new replica in another place",
            self.store.shown(),
            self.place.shown()
        );
        Error::invalid(what)
    }

    /// Sends segments and maps. Returns the bytes that are there of each segment whose row changed.
    fn send_data(
        &self,
        wanted: &Wanted,
        there: &BTreeMap<SegmentNo, u64>,
        gatherer: &mut Gatherer<'_>,
    ) -> Result<BTreeMap<SegmentNo, u64>> {
        let mut segments = BTreeMap::new();
        for (&number, &len) in &wanted.segments {
            let from = there.get(&number).copied().unwrap_or(0);
            // A segment is in the tables before its file is made.
            if len <= SEGMENT_SUPERBLOCK_LEN as u64 {
                continue;
            }
            if len > from {
                gatherer.segment(number, (from, len), wanted.records(number))?;
            }
            segments.insert(number, len.max(from));
        }
        for (key, row) in &wanted.images {
            gatherer.map(key, row)?;
        }
        Ok(segments)
    }

    /// The files of earlier items, back to the last one with all rows.
    fn carried(&self) -> Result<Carried> {
        let mut carried = Carried::default();
        let Some(last) = &self.record.last else {
            return Ok(carried);
        };
        let (mut number, mut digest) = (last.number, last.digest);
        loop {
            let item = match read_item(self.place, &self.record.identity, (number, &digest)) {
                Ok(item) => item,
                // It may be read another time.
                Err(error) if error.kind() == ErrorKind::Io => return Err(error),
                Err(error) => {
                    log::warn!("{error}: everything is sent again");
                    return Ok(Carried::default());
                }
            };
            for file in &item.list.files {
                if let DataKind::Map(_) = file.kind {
                    carried.maps.insert(file.digest.0);
                }
            }
            carried.files.extend(item.list.files);
            carried.lacking.extend(item.list.lacking);
            if item.header.kind == ItemKind::AllRows {
                carried.is_complete = true;
                return Ok(carried);
            }
            (number, digest) = (ItemNo(number.0.saturating_sub(1)), item.header.previous);
        }
    }
}

/// Files of earlier items.
#[derive(Debug, Default)]
struct Carried {
    files: Vec<DataFile>,
    /// What the store could not read then.
    lacking: Vec<Lacking>,
    /// Digests of maps.
    maps: BTreeSet<[u8; 32]>,
    /// Whether these are all.
    is_complete: bool,
}

/// Bytes that are there of each segment.
fn merged(
    there: &BTreeMap<SegmentNo, u64>,
    new: BTreeMap<SegmentNo, u64>,
    removed: &BTreeSet<SegmentNo>,
) -> BTreeMap<SegmentNo, u64> {
    let mut segments = there.clone();
    segments.extend(new);
    segments.retain(|number, _| !removed.contains(number));
    segments
}

/// Whether an error is one of the store's files, which may be others a moment later.
fn is_of_reading(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Lost
    ) && !error.is_failed_write()
}
