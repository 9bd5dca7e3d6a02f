//! What a standby remembers of the replica that it follows, and how a store becomes one.
//!
//! A standby has the rows of one state of a replica, and no journal of its own: the replica has
//! all of it. [`Store::follow`] brings it to later states.

use super::epochs::refuse_replaced;
use super::items::{Items, find_identity, read_item};
use super::place::Place;
use super::record::{LastSent, Record, ReplicaSettings, write};
use super::restore::{AsOf, Path, choose};
use super::unsent::Unsent;
use crate::disk::{Disk, LocalFile};
use crate::engine::Sealer;
use crate::faults::{Bug, Faults};
use crate::layout;
use crate::role::Role;
use crate::store::{Store, is_bad_or_missing, open_engine};
use crate::users::in_use;
use crate::writer_lock;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::replica::{Epoch, PlaceIdentity};
use weald_format::store::StoreSuperblock;
use weald_format::{CommitNo, Digest, Error, ErrorKind, Result, SegmentNo};

/// What a standby knows of the replica that it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandbyStatus {
    /// Where the replica lies, as the user gave it.
    pub place: String,
    /// What the user has set.
    pub settings: ReplicaSettings,
    /// The commit whose rows it has, and when that was sent, in nanoseconds since 1970; `None`
    /// while it is between two states.
    pub commit: Option<(CommitNo, i64)>,
}

/// How a store becomes a standby.
#[derive(Debug, Clone)]
pub struct StandbyOptions {
    /// Name of the writer, for messages.
    pub writer_name: String,
    /// What the user has set.
    pub settings: ReplicaSettings,
    /// What only this store has may be lost.
    pub discards: bool,
    /// The replica may tell another history than the one that this store has sent or followed.
    /// Everything is read again, whatever is here.
    pub is_clone: bool,
    /// A deliberate bug, if a simulation must find it.
    pub faults: Faults<Bug>,
}

fn is_missing(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// Of which store a place is a replica.
///
/// # Errors
/// `NotFound` if it is none; `Corrupt`, `Io`.
pub(super) fn identity_of(place: &dyn Place) -> Result<PlaceIdentity> {
    let what = || Error::not_found(format!("{}: there is no replica here", place.shown()));
    find_identity(place)?.ok_or_else(what)
}

impl Store {
    /// Makes an empty standby on `disk` of the replica at `place`, which `shown` names. Its
    /// directory must be missing or empty. [`Store::follow`] then fills it.
    ///
    /// # Errors
    /// `NotFound` if the place is no replica, or nothing was sent to it; `Busy` if the directory is
    /// not empty; `Corrupt`, `Io`, `Full`.
    pub fn create_standby(
        place: &dyn Place,
        disk: Arc<dyn Disk>,
        (shown, settings): (&str, ReplicaSettings),
    ) -> Result<Self> {
        let identity = identity_of(place)?;
        let items = Items::read_all(place, &identity)?;
        let last = choose(&items, AsOf::Last).ok_or_else(|| {
            let what = "nothing was sent to this replica yet";
            Error::not_found(format!("{}: {what}", place.shown()))
        })?;
        let superblock = StoreSuperblock {
            uuid: identity.uuid,
            incompat: last.header.incompat,
            segment_len: last.header.segment_len,
        };
        let record = Record::new(shown, identity, settings)?;
        let of_disk = disk.clone();
        Self::create_filled(disk, superblock, |_, _| {
            let store = Self {
                disk: of_disk,
                superblock,
            };
            store.write_standby_record(&record)
        })
    }

    /// Makes this store a standby of the replica at `place`, which `shown` names. [`Store::follow`]
    /// then brings it to the state of the replica; what it has already is not read again.
    ///
    /// What only this store has is lost. If there is any, and the options do not allow it, nothing
    /// is changed, and it is returned.
    ///
    /// # Errors
    /// `Invalid` if the place is a replica of another store, or of another history; `Busy` if
    /// somebody writes to the store; those of the place.
    pub fn become_standby(
        &self,
        place: &dyn Place,
        shown: &str,
        options: &StandbyOptions,
    ) -> Result<Unsent> {
        let (lock, is_left) = lock_standby(self, &options.writer_name)?;
        let identity = identity_of(place)?;
        if identity.uuid != self.uuid() {
            let what = "is a replica of another store";
            return Err(Error::invalid(format!("{}: {what}", place.shown())));
        }
        let known = match self.role()? {
            Role::Standby => self.standby_record()?.map(|record| (None, record)),
            Role::Primary | Role::Replaced(_) => self.record_of(&identity)?,
        };
        let is_same = known
            .as_ref()
            .is_some_and(|(_, record)| record.identity == identity);
        if !is_same && !options.is_clone {
            return Err(Error::invalid(format!(
                "{}: tells another history than {} has sent or followed: with --as-clone it \
                 becomes a standby of it all the same, and loses what only it has",
                place.shown(),
                self.disk.shown()
            )));
        }
        let was_standby = self.role()? == Role::Standby;
        if !was_standby {
            self.refuse_readers()?;
        }
        let mut unsent = Unsent::default();
        if !was_standby && !options.discards {
            let last = known.as_ref().and_then(|(_, record)| record.last.as_ref());
            let engine = open_engine(&*self.disk, self.uuid(), is_left)?;
            unsent = self.unsent(place, &identity, last, &engine)?;
            if !unsent.is_empty() {
                return Ok(unsent);
            }
        }
        let (epoch, last) = match &known {
            Some((None, record)) if is_same && !options.is_clone => {
                (record.epoch, record.last.clone())
            }
            Some((None, record)) if is_same => (record.epoch, None),
            Some((_, record)) if options.faults.has(Bug::RowsBeforeIgnored) => {
                (record.epoch, record.last.clone())
            }
            _ => (Epoch::default(), None),
        };
        let record = Record {
            epoch,
            last,
            ..Record::new(shown, identity, options.settings)?
        };
        if !was_standby || options.is_clone {
            let common = known.as_ref().filter(|_| is_same && !options.is_clone);
            let common = common.and_then(|(_, record)| record.last.as_ref());
            self.write_own_lens(common.map(|last| &last.segments))?;
        }
        self.write_standby_record(&record)?;
        self.drop_own_history()?;
        if let Some((Some(name), _)) = known {
            self.remove_replica(&name)?;
        }
        drop(lock);
        Ok(unsent)
    }

    /// Refuses to go on while a reader has an image open, of which other bytes may come to lie in
    /// the same places.
    pub(super) fn refuse_readers(&self) -> Result<()> {
        for name in self.names_of_maps()? {
            let image_no = match self.map(&name) {
                Ok(map) => map.image_no,
                Err(error) if is_bad_or_missing(&error) => continue,
                Err(error) => return Err(error),
            };
            if self.lock_out_readers(image_no)?.is_none() {
                return Err(in_use(&*self.disk, &name, image_no, "unmount it first"));
            }
        }
        Ok(())
    }

    /// The replica of this store with this identity.
    fn record_of(&self, identity: &PlaceIdentity) -> Result<Option<(Option<String>, Record)>> {
        for name in self.replica_names()? {
            match self.replica_record(&name) {
                Ok(record) if record.identity == *identity => {
                    return Ok(Some((Some(name), record)));
                }
                Err(error) if error.kind() != ErrorKind::Corrupt => return Err(error),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Removes what says of a primary what it has done, and of its images what a standby does not
    /// know of them.
    pub(super) fn drop_own_history(&self) -> Result<()> {
        let disk = &*self.disk;
        let journal = match disk.list(layout::JOURNAL) {
            Err(error) if is_missing(&error) => Vec::new(),
            other => other?,
        };
        for name in journal {
            disk.remove_if_there(&format!("{}/{name}", layout::JOURNAL))?;
        }
        // Segments of a standby are written anew: what a scrub has read of them is not known.
        let scrub = [layout::SCRUB, layout::SCRUB_REPORT];
        for name in [layout::MARK, layout::DAMAGED, layout::UNSYNCED]
            .into_iter()
            .chain(scrub)
        {
            disk.remove_if_there(name)?;
        }
        for volume_no in self.sync_logs()? {
            disk.remove_if_there(&layout::sync_log(volume_no))?;
        }
        for name in disk.list(layout::IMAGES)? {
            if let Some(image_no) = layout::digested_image(&name) {
                self.forget_content_digests(image_no)?;
            }
        }
        disk.remove_if_there(layout::REPLACED)?;
        for dir in [layout::JOURNAL, layout::VOLUMES, layout::REPLICAS, ""] {
            match disk.sync_dir(dir) {
                Err(error) if is_missing(&error) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// What the standby remembers; `None` if the store is none.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged, with its copy; `Io`.
    pub(super) fn standby_record(&self) -> Result<Option<Record>> {
        if self.role()? != Role::Standby {
            return Ok(None);
        }
        for path in [layout::STANDBY, layout::STANDBY_COPY] {
            let read = self.disk.read_file(path, layout::REPLICA_RECORD_LEN_MAX);
            if let Some((record, [])) = read.as_ref().ok().and_then(|bytes| Record::parse(bytes)) {
                self.refuse_others_record(path)?;
                return Ok(Some(record));
            }
            match read {
                Err(error) if !is_bad_or_missing(&error) => return Err(error),
                _ => log::debug!("{}/{path}: is damaged", self.disk.shown()),
            }
        }
        let shown = self.disk.shown();
        let what = format!(
            "{shown}/{}: what the standby remembers of its replica is damaged: 'weald replica \
             follow PLACE {shown} --as-clone' writes it again",
            layout::STANDBY
        );
        Err(Error::corrupt("replica", 0, "S-9.8", what))
    }

    /// Notes that the segments have bytes of a history of their own behind these lengths.
    fn write_own_lens(&self, lens: Option<&BTreeMap<SegmentNo, u64>>) -> Result<()> {
        let lens = lens.into_iter().flatten();
        let lines = lens.map(|(number, len)| format!("{} {len}\n", number.0));
        let mut text: String = lines.collect();
        text.push_str(&format!("digest {}\n", Digest::of(text.as_bytes())));
        write(self, layout::STANDBY_OWN, text.as_bytes())
    }

    /// How many bytes of each segment are those of the replica, if some may be others. Of what is
    /// damaged, none are.
    pub(super) fn own_lens(&self) -> Result<Option<BTreeMap<SegmentNo, u64>>> {
        let bytes = match self
            .disk
            .read_file(layout::STANDBY_OWN, layout::REPLICA_RECORD_LEN_MAX)
        {
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) if is_bad_or_missing(&error) => return Ok(Some(BTreeMap::new())),
            other => other?,
        };
        let text = String::from_utf8_lossy(&bytes);
        let (lines, digest) = text.rsplit_once("digest ").unwrap_or_default();
        if Digest::from_hex(digest.trim_end()) != Some(Digest::of(lines.as_bytes())) {
            return Ok(Some(BTreeMap::new()));
        }
        let lens = lines.lines().filter_map(|line| {
            let (number, len) = line.split_once(' ')?;
            Some((SegmentNo(number.parse().ok()?), len.parse().ok()?))
        });
        Ok(Some(lens.collect()))
    }

    /// All bytes are those of the replica.
    pub(super) fn forget_own_lens(&self) -> Result<()> {
        self.disk.remove_if_there(layout::STANDBY_OWN)
    }

    pub(super) fn write_standby_record(&self, record: &Record) -> Result<()> {
        let text = record.encode();
        write(self, layout::STANDBY, text.as_bytes())?;
        write(self, layout::STANDBY_COPY, text.as_bytes())
    }

    /// The store is none any more. Its writer's lock is held.
    pub(super) fn end_standby(&self) -> Result<()> {
        self.forget_own_lens()?;
        // As long as the first one is there, it is one.
        self.disk.remove_if_there(layout::STANDBY_COPY)?;
        self.disk.sync_dir(layout::REPLICAS)?;
        self.disk.remove_if_there(layout::STANDBY)?;
        self.disk.sync_dir(layout::REPLICAS)
    }

    /// What the standby knows of its replica; `None` if the store is no standby.
    ///
    /// # Errors
    /// `Corrupt` if it is damaged; `Io`.
    pub fn standby_status(&self) -> Result<Option<StandbyStatus>> {
        let record = self.standby_record()?;
        Ok(record.map(|record| StandbyStatus {
            place: record.place,
            settings: record.settings,
            commit: record.last.map(|last| (last.commit, last.time)),
        }))
    }

    /// Compares what is at the place with what the store has sent to its replica `name`, and notes
    /// if another store has taken over.
    ///
    /// # Errors
    /// `Invalid` if one has; those of the place.
    pub fn refuse_if_replaced(&self, name: &str, place: &dyn Place) -> Result<()> {
        refuse_replaced(self, place, &self.replica_record(name)?)
    }

    /// What only this store has, as far as the tables tell.
    fn unsent(
        &self,
        place: &dyn Place,
        identity: &PlaceIdentity,
        last: Option<&LastSent>,
        engine: &dyn crate::engine::Engine,
    ) -> Result<Unsent> {
        let Some(last) = last else {
            return Unsent::of(self, engine, None);
        };
        let unchanged = Unsent::of_state(engine)? == last.state();
        if unchanged {
            return Unsent::of_logs(self);
        }
        let items = Items::read_all(place, identity)?;
        let item = read_item(place, identity, (last.number, &last.digest))?;
        let path = Path::to(&items, &item);
        let path = path.ok_or_else(|| {
            let what = "the state that was sent last cannot be compared any more";
            Error::not_found(format!("{}: {what}", place.shown()))
        })?;
        let rows = path.rows(place, &Sealer::new()?)?;
        Unsent::of(self, engine, Some((last.commit, &rows)))
    }
}

/// Locks a store for one that changes it as a whole.
///
/// # Errors
/// `Busy` if a volume of it is mounted, or somebody else changes it.
pub(super) fn lock_standby(store: &Store, writer_name: &str) -> Result<(Arc<dyn LocalFile>, bool)> {
    writer_lock::lock(store, writer_name).map_err(|error| {
        if error.kind() != ErrorKind::Busy || store.role().ok() != Some(Role::Standby) {
            return error;
        }
        let what = "is in use: a volume of it is mounted, which follows by itself, or another \
                    process follows just now";
        Error::new(ErrorKind::Busy, format!("{}: {what}", store.shown()))
    })
}

/// Refuses a store that is no standby.
pub(super) fn refuse_no_standby(store: &Store) -> Result<()> {
    if store.role()? == Role::Standby {
        return Ok(());
    }
    let shown = store.disk.shown();
    let what =
        format!("{shown}: is no standby: 'weald replica follow PLACE {shown}' makes a store one");
    Err(Error::invalid(what))
}
