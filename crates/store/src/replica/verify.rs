//! Reads all of a replica, and says what is wrong.

use super::items::{Items, find_identity, first_item, list_items, read_identity};
use super::place::{Place, data_path, read_data};
use super::restore::{Path, missing_data};
use super::rows::each_change;
use crate::engine::Sealer;
use crate::journal::SummedRows;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};
use weald_format::replica::{DataFile, DataKind, Item, ItemKind, ItemNo, unpack_segment};
use weald_format::store::Uuid;
use weald_format::{CommitNo, Digest, Error, Result};

/// A state of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicaState {
    /// The commit of the store.
    pub commit: CommitNo,
    /// When it was sent, in nanoseconds since 1970.
    pub time: i64,
    /// Whether all that belongs to it is there, as far as it was read.
    pub is_whole: bool,
}

/// What a replica has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// The store.
    pub uuid: Uuid,
    /// Its states, in order.
    pub states: Vec<ReplicaState>,
    /// What is wrong.
    pub findings: Vec<String>,
    /// Bytes that were read and compared with their digests.
    pub verified_len: u64,
    /// Paths of files of data that are there and damaged.
    pub damaged_files: Vec<String>,
    /// Files of data that are damaged or missing.
    pub bad_files: Vec<DataFile>,
}

/// The states of the replica at `place`, in order. Whether they are whole is not looked at: its
/// items are read alone.
///
/// # Errors
/// As [`verify_replica`].
pub fn replica_states(place: &dyn Place) -> Result<Vec<ReplicaState>> {
    let identity = find_identity(place)?.ok_or_else(|| no_replica(place))?;
    let items = Items::read(place, &identity)?;
    for bad in &items.bad {
        log::warn!("{}", bad.why);
    }
    let states = items.all().into_iter().map(|item| ReplicaState {
        commit: item.header.commit,
        time: item.header.time,
        is_whole: Path::to(&items, item).is_some(),
    });
    Ok(states.collect())
}

fn no_replica(place: &dyn Place) -> Error {
    Error::not_found(format!("{}: there is no replica here", place.shown()))
}

/// Reads all of the replica at `place`.
///
/// # Errors
/// `NotFound` if the place is no replica; `Corrupt` if the file that says so is damaged; `Io`.
///
/// # Cost
/// Reads everything. Memory for all rows of a state: about 100 bytes for each, and its length.
pub fn verify_replica(place: &dyn Place) -> Result<Verified> {
    let identity = find_identity(place)?.ok_or_else(|| no_replica(place))?;
    let damage = read_identity(place).err();
    let items = Items::read(place, &identity)?;
    let mut verified = Verified {
        uuid: identity.uuid,
        ..Verified::default()
    };
    verified
        .findings
        .extend(damage.map(|error| error.to_string()));
    let numbers: BTreeSet<ItemNo> = {
        let whole = items.all().into_iter().map(|item| item.header.number);
        whole
            .chain(items.bad.iter().map(|bad| bad.number))
            .collect()
    };
    let mut next = first_item(place)?;
    for number in numbers {
        if next < number {
            let last = number.0.saturating_sub(1);
            let first = next.0;
            verified
                .findings
                .push(format!("items are missing: {first} to {last}"));
        }
        next = number.next();
    }
    for bad in &items.bad {
        verified.findings.push(bad.why.clone());
    }
    if let [_, others @ ..] = items.last().as_slice() {
        for other in others {
            let number = other.header.number.0;
            verified
                .findings
                .push(format!("item {number} follows none that is there"));
        }
    }
    // A chain that an item with all rows begins anew is in order.
    let sealer = Sealer::new()?;
    let bad_files = verified.data(place, &items);
    let mut rows: Option<(Digest, SummedRows)> = None;
    let mut told: Option<String> = None;
    for item in items.all() {
        let header = &item.header;
        let before = items.before(item).map(|before| before.header.digest());
        let begun = match rows.take() {
            _ if header.kind == ItemKind::AllRows => Some(SummedRows::default()),
            Some((digest, rows)) if Some(digest) == before => Some(rows),
            _ => None,
        };
        let followed = begun.and_then(|rows| verified.follow(place, &sealer, item, rows));
        let is_whole = followed.as_ref().is_some_and(|rows| {
            let path = Path::to(&items, item);
            path.is_some_and(|path| {
                let is_there = path
                    .files()
                    .all(|file| !bad_files.contains_key(&file.digest.0));
                let missing = missing_data(&path, rows);
                let is_complete = missing.is_none();
                // What one state lacks, those that build on it do, too.
                if let Some(missing) = missing.filter(|missing| told.as_ref() != Some(missing)) {
                    let number = header.number.0;
                    verified.findings.push(format!("item {number}: {missing}"));
                    told = Some(missing);
                }
                is_there && is_complete
            })
        });
        verified.states.push(ReplicaState {
            commit: header.commit,
            time: header.time,
            is_whole,
        });
        rows = followed.map(|rows| (header.digest(), rows));
    }
    Ok(verified)
}

impl Store {
    /// As [`verify_replica`], of the replica `name` of this store, which lies at `place`. What was
    /// sent last must be there.
    ///
    /// # Errors
    /// As [`verify_replica`]; `NotFound` if the store has no such replica.
    pub fn verify_replica(&self, name: &str, place: &dyn Place) -> Result<Verified> {
        let record = self.replica_record(name)?;
        let mut verified = verify_replica(place)?;
        if verified.uuid != record.identity.uuid {
            let finding = format!("{}: is a replica of another store", place.shown());
            verified.findings.push(finding);
        }
        if let Some(last) = &record.last
            && !list_items(place)?.contains(&(last.number, last.digest))
        {
            let number = last.number.0;
            let finding = format!("item {number}, which was sent last, is missing");
            verified.findings.push(finding);
        }
        Ok(verified)
    }
}

impl Verified {
    /// The last state that is whole.
    pub fn last_whole(&self) -> Option<ReplicaState> {
        self.states.iter().rfind(|state| state.is_whole).copied()
    }

    /// Reads all files of data. Returns those that are damaged or missing.
    fn data(&mut self, place: &dyn Place, items: &Items) -> BTreeMap<[u8; 32], DataFile> {
        let mut files = BTreeMap::new();
        for item in items.all() {
            files.extend(item.list.files.iter().map(|file| (file.digest.0, *file)));
        }
        files.retain(|_, file| {
            let read = read_data(place, file).and_then(|bytes| {
                if let DataKind::Segment { len, .. } = file.kind {
                    unpack_segment(&bytes, len)?;
                }
                Ok(bytes.len())
            });
            match read {
                Ok(len) => {
                    self.verified_len += len as u64;
                    false
                }
                Err(error) => {
                    if error.kind() != weald_format::ErrorKind::NotFound {
                        self.damaged_files.push(data_path(&file.digest));
                    }
                    self.bad_files.push(*file);
                    self.findings.push(format!("{}: {error}", of(file)));
                    true
                }
            }
        });
        files
    }

    /// The rows to which an item leads; `None` if it does not lead to those that it says.
    fn follow(
        &mut self,
        place: &dyn Place,
        sealer: &Sealer,
        item: &Item,
        mut rows: SummedRows,
    ) -> Option<SummedRows> {
        let done = each_change(place, sealer, item, &mut |changes| {
            rows.apply(changes);
            Ok(())
        });
        if done.is_ok() && rows.sum() == item.header.after {
            return Some(rows);
        }
        // Damaged files are told already.
        if done.is_ok() {
            let number = item.header.number.0;
            self.findings
                .push(format!("item {number} leads to other rows than it says"));
        }
        None
    }
}

/// What a file of data has.
fn of(file: &DataFile) -> String {
    match file.kind {
        DataKind::Rows => "rows".to_owned(),
        DataKind::Segment {
            number,
            offset,
            len,
        } => format!(
            "{}, bytes {offset} to {}",
            crate::layout::segment(number),
            offset.saturating_add(len)
        ),
        DataKind::Map(image_no) => format!("the map of image {image_no}"),
    }
}
