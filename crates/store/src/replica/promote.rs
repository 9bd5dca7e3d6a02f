//! Makes a standby take the place of the store that it follows.

use super::epochs::take_over;
use super::follow::{FollowOptions, Followed, Follower};
use super::items::Items;
use super::place::{Place, item_path};
use super::record::{LastSent, Record};
use super::restore::Path;
use super::standby::{lock_standby, refuse_no_standby};
use crate::engine::{Engine, Table, number_of};
use crate::faults::Bug;
use crate::journal::now;
use crate::layout;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use weald_format::replica::{DataKind, Epoch, Item, ItemHeader, ItemKind, ItemList};
use weald_format::store::Uuid;
use weald_format::{Digest, Error, ErrorKind, Result, SegmentNo};

/// How a standby is promoted.
#[derive(Debug, Clone)]
pub struct PromoteOptions {
    /// How it takes the last states first.
    pub follow: FollowOptions,
    /// The name that the replica gets, to which the store then sends.
    pub name: String,
    /// A random identity of this promotion.
    pub id: Uuid,
    /// Which store it is, in messages of the one that is replaced.
    pub text: String,
}

/// A standby that was promoted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promoted {
    /// What it has.
    pub followed: Followed,
    /// Its epoch; `None` if no replica knows of it.
    pub epoch: Option<Epoch>,
}

impl Store {
    /// Makes this standby take the place of the store that sends to the replica at `place`: it
    /// takes the last states, and then sends to the replica itself. The other store is refused at
    /// its next sending, and is read-only then.
    ///
    /// # Errors
    /// As [`Store::follow`]; `Busy` if the store has another replica of this name, or other stores
    /// are promoted at the same time. The store then still is a standby.
    pub fn promote(&self, place: &dyn Place, options: &PromoteOptions) -> Result<Promoted> {
        layout::check_name(&options.name)?;
        let faults = options.follow.faults;
        let mut follower = Follower::open(self, place, &options.follow)?;
        let names = self.replica_names()?;
        if names.contains(&options.name) {
            let of = self.replica_record(&options.name)?;
            if of.identity != follower.record.identity {
                let what = format!("has another replica {:?}: give --name", options.name);
                return Err(Error::new(
                    ErrorKind::Busy,
                    format!("{}: {what}", self.disk.shown()),
                ));
            }
        }
        if faults.has(Bug::EpochPutLate) {
            follower.run()?;
        }
        let after = follower.record.epoch;
        let epoch = take_over(place, after, options.id, &options.text)?;
        if !faults.has(Bug::EpochPutLate) {
            follower.run()?;
        }
        let record = Record {
            epoch,
            last: follower.begin_epoch(epoch)?,
            ..follower.record.clone()
        };
        self.write_replica_record(&options.name, &record)?;
        self.end_standby()?;
        Ok(Promoted {
            followed: follower.done,
            epoch: Some(epoch),
        })
    }

    /// Makes a store of its own of this standby, which knows no replica. The other store goes on.
    ///
    /// # Errors
    /// `Invalid` if the store is no standby, or between two states; `Busy`, `Io`.
    pub fn end_following(&self, writer_name: &str) -> Result<Promoted> {
        let (_lock, _) = lock_standby(self, writer_name)?;
        refuse_no_standby(self)?;
        let last = self.standby_record()?.and_then(|record| record.last);
        let last = last.ok_or_else(|| {
            let what = "is between two states: 'weald replica follow' first";
            Error::invalid(format!("{}: {what}", self.disk.shown()))
        })?;
        self.end_standby()?;
        Ok(Promoted {
            followed: Followed {
                commit: last.commit,
                time: last.time,
                ..Followed::default()
            },
            epoch: None,
        })
    }
}

impl Follower<'_> {
    /// Puts an item without changes, from which on nothing counts that the other store sends.
    /// Returns what the place has then.
    fn begin_epoch(&self, epoch: Epoch) -> Result<Option<LastSent>> {
        let Some(last) = self.last_sent()? else {
            return Ok(None);
        };
        let header = ItemHeader {
            place: self.identity,
            number: last.number.next(),
            epoch,
            kind: ItemKind::Changes,
            base: last.commit,
            commit: last.commit,
            time: now(),
            segment_len: self.store.superblock.segment_len,
            incompat: self.store.features_elsewhere()?,
            before: last.sum,
            after: last.sum,
            previous: last.digest,
            list_digest: Digest([0; 32]),
            list_len: 0,
        };
        let item = Item::new(header, ItemList::default());
        let (number, digest) = (item.header.number, item.header.digest());
        self.place
            .put(&item_path(number, &digest), &item.encode())?;
        Ok(Some(LastSent {
            number,
            digest,
            time: item.header.time,
            ..last
        }))
    }

    /// What the place has of the state of the tables, as a store that sends remembers it.
    fn last_sent(&self) -> Result<Option<LastSent>> {
        let Some(last) = &self.record.last else {
            return Ok(None);
        };
        let items = Items::read_all(self.place, &self.identity)?;
        let item = items.all().into_iter().find(|item| {
            let header = &item.header;
            header.number == last.number && header.digest() == last.digest
        });
        let path = item.and_then(|item| Path::to(&items, item));
        let path = path.ok_or_else(|| {
            let what = "the items of the last state cannot be read";
            Error::corrupt(
                "replica",
                0,
                "S-9.6",
                format!("{}: {what}", self.place.shown()),
            )
        })?;
        let mut rows = BTreeSet::new();
        if let Some(engine) = &self.engine {
            engine.scan(Table::Segments, &[], &mut |key, _| {
                rows.extend(number_of(key).map(SegmentNo));
                Ok(ControlFlow::Continue(()))
            })?;
        }
        let mut sent = LastSent {
            segments: BTreeMap::new(),
            ..last.clone()
        };
        for item in &path.0 {
            let of_rows = |file: &&weald_format::replica::DataFile| file.kind == DataKind::Rows;
            let files = item.list.files.iter();
            let rows_len: u64 = files.clone().filter(of_rows).map(|f| f.file_len).sum();
            match item.header.kind {
                ItemKind::AllRows => {
                    (sent.all_rows_len, sent.changes_len) = (rows_len, 0);
                    sent.segments.clear();
                }
                ItemKind::Changes => sent.changes_len += rows_len,
            }
            for file in files {
                if let DataKind::Segment {
                    number,
                    offset,
                    len,
                } = file.kind
                    && rows.contains(&number)
                {
                    let end = sent.segments.entry(number).or_default();
                    *end = offset.saturating_add(len).max(*end);
                }
            }
        }
        Ok(Some(sent))
    }
}
