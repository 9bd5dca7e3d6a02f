//! What a store remembers of a replica: the file `replicas/NAME`, and the item that is on its way
//! there. They are text, which ends with its digest.

use crate::hex::{hex, unhex};
use crate::journal::TablesState;
use crate::layout;
use crate::store::{Store, is_bad_or_missing};
use std::collections::BTreeMap;
use weald_format::journal::RowSum;
use weald_format::replica::{Epoch, ItemNo, PlaceIdentity};
use weald_format::{CommitNo, Digest, Error, ErrorKind, Result, SegmentNo};

/// First line of the file.
const FIRST_LINE: &str = "weald replica 2";
/// The same of a version without epochs and syncs.
const FIRST_LINE_OLDER: &str = "weald replica 1";

/// What was sent last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LastSent {
    pub number: ItemNo,
    pub digest: Digest,
    /// The state of the tables to which it leads.
    pub commit: CommitNo,
    pub sum: RowSum,
    /// When it was sent, in nanoseconds since 1970.
    pub time: i64,
    /// Bytes of the rows of the last item with all rows, and of those since then.
    pub all_rows_len: u64,
    pub changes_len: u64,
    /// Bytes of segments that are there.
    pub segments: BTreeMap<SegmentNo, u64>,
}

impl LastSent {
    pub fn state(&self) -> TablesState {
        TablesState {
            commit: self.commit,
            sum: self.sum,
        }
    }
}

/// What a user has set for a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplicaSettings {
    /// Seconds after which a server that has the store open sends again; 0: it does not send.
    pub every_s: u64,
    /// Whether nothing is sent for the time being.
    pub is_paused: bool,
    /// What a sync of a volume does while the replica cannot be reached; `None` if it does not wait
    /// for the replica at all.
    pub sync: Option<WhenLost>,
    /// Bytes a second that the place gets at most; 0: as many as it takes.
    pub rate: u64,
}

/// What a sync does that cannot reach the replica for which it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenLost {
    /// It waits until the replica can be reached again.
    Wait,
    /// It goes on without the replica, which gets everything later.
    Degrade,
}

impl WhenLost {
    /// Its word, on command lines and in files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Degrade => "degrade",
        }
    }

    /// What this word says.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::Wait, Self::Degrade]
            .into_iter()
            .find(|when| when.word() == word)
    }
}

/// A replica, as its store knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    /// Where it lies, as the user gave it.
    pub place: String,
    pub identity: PlaceIdentity,
    /// The epoch of the items that this store sends.
    pub epoch: Epoch,
    pub settings: ReplicaSettings,
    pub last: Option<LastSent>,
}

impl Record {
    /// A replica to which nothing was sent yet, or a standby that has nothing yet. `shown` is how
    /// the user named the place.
    ///
    /// # Errors
    /// `Invalid` for a name of a place that has line breaks.
    pub(super) fn new(
        shown: &str,
        identity: PlaceIdentity,
        settings: ReplicaSettings,
    ) -> Result<Self> {
        if shown.contains('\n') {
            return Err(Error::invalid("the name of a place has no line breaks"));
        }
        Ok(Self {
            place: shown.to_owned(),
            identity,
            epoch: Epoch::default(),
            settings,
            last: None,
        })
    }

    pub(super) fn encode(&self) -> String {
        let mut text = format!(
            "{FIRST_LINE}\nplace {}\nstore {}\nlineage {}\nepoch {}\n\
             every {}\npaused {}\nsync {}\nrate {}\n",
            self.place,
            hex(&self.identity.uuid),
            hex(&self.identity.lineage),
            self.epoch,
            self.settings.every_s,
            self.settings.is_paused,
            self.settings.sync.map_or("no", WhenLost::word),
            self.settings.rate
        );
        if let Some(last) = &self.last {
            text.push_str(&format!(
                "item {} {}\ncommit {} {}\ntime {}\nrows {} {}\n",
                last.number.0,
                last.digest,
                last.commit,
                hex(&last.sum.to_bytes()),
                last.time,
                last.all_rows_len,
                last.changes_len
            ));
            for (number, len) in &last.segments {
                text.push_str(&format!("segment {} {len}\n", number.0));
            }
        }
        let digest = Digest::of(text.as_bytes());
        text.push_str(&format!("digest {digest}\n"));
        text
    }

    /// Parses the text, and returns what follows it.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        const DIGEST_LINE_LEN: usize = 7 + 64 + 1;
        let at = bytes.windows(8).position(|w| w == b"\ndigest ")? + 1;
        let (text, rest) = bytes.split_at_checked(at)?;
        let (digest, rest) = rest.split_at_checked(DIGEST_LINE_LEN)?;
        let digest = std::str::from_utf8(digest).ok()?;
        let digest = digest.strip_prefix("digest ")?.strip_suffix('\n')?;
        if Digest::from_hex(digest)? != Digest::of(text) {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        let mut lines = text.lines();
        let is_older = match lines.next()? {
            FIRST_LINE => false,
            FIRST_LINE_OLDER => true,
            _ => return None,
        };
        let mut next = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let mut record = Self {
            place: next("place")?.to_owned(),
            identity: PlaceIdentity {
                uuid: unhex(next("store")?)?,
                lineage: unhex(next("lineage")?)?,
            },
            epoch: if is_older {
                Epoch::default()
            } else {
                Epoch(next("epoch")?.parse().ok()?)
            },
            settings: ReplicaSettings {
                every_s: next("every")?.parse().ok()?,
                is_paused: next("paused")?.parse().ok()?,
                sync: if is_older {
                    None
                } else {
                    match next("sync")? {
                        "no" => None,
                        word => Some(WhenLost::of_word(word)?),
                    }
                },
                rate: if is_older {
                    0
                } else {
                    next("rate")?.parse().ok()?
                },
            },
            last: None,
        };
        let Some(item) = next("item") else {
            return Some((record, rest));
        };
        let (number, digest) = item.split_once(' ')?;
        let (commit, sum) = next("commit")?.split_once(' ')?;
        let time = next("time")?.parse().ok()?;
        let (all_rows_len, changes_len) = next("rows")?.split_once(' ')?;
        let mut last = LastSent {
            number: ItemNo(number.parse().ok()?),
            digest: Digest::from_hex(digest)?,
            commit: CommitNo(commit.parse().ok()?),
            sum: RowSum::from_bytes(unhex(sum)?),
            time,
            all_rows_len: all_rows_len.parse().ok()?,
            changes_len: changes_len.parse().ok()?,
            segments: BTreeMap::new(),
        };
        for line in lines {
            let (number, len) = line.strip_prefix("segment ")?.split_once(' ')?;
            let number = SegmentNo(number.parse().ok()?);
            last.segments.insert(number, len.parse().ok()?);
        }
        record.last = Some(last);
        Some((record, rest))
    }
}

/// Path of the record of a replica.
fn path(name: &str) -> String {
    format!("{}/{name}", layout::REPLICAS)
}

/// Path of the same record once more.
fn copy_path(name: &str) -> String {
    format!("{}/.{name}.copy", layout::REPLICAS)
}

/// Path of an item on its way, behind the record that holds when it has arrived.
fn pending_path(name: &str) -> String {
    format!("{}/.{name}.next", layout::REPLICAS)
}

/// Path of the reason why nothing could be sent.
fn error_path(name: &str) -> String {
    format!("{}/.{name}.error", layout::REPLICAS)
}

/// Path of the lock of those who send to a replica.
pub(super) fn lock_path(name: &str) -> String {
    format!("{}/.{name}.lock", layout::REPLICAS)
}

fn damaged(store: &Store, path: &str, name: &str) -> Error {
    let shown = store.disk.shown();
    let what = format!(
        "{shown}/{path}: what the store remembers of this replica is damaged: 'weald replica \
         remove {shown} --name {name}' forgets it, and 'weald replica add' begins another one, in \
         another place"
    );
    Error::corrupt("replica", 0, "S-9.8", what)
}

pub(super) fn write(store: &Store, path: &str, bytes: &[u8]) -> Result<()> {
    let disk = &*store.disk;
    match disk.make_dir(layout::REPLICAS) {
        Ok(()) => disk.sync_dir("")?,
        Err(error) if error.kind() == ErrorKind::Busy => {}
        Err(error) => return Err(error),
    }
    let new = format!("{path}.new").replacen("replicas/", "replicas/.", 1);
    disk.write_file(&new, bytes)?;
    disk.rename(&new, path)?;
    disk.sync_dir(layout::REPLICAS)
}

impl Store {
    /// Names of the replicas, sorted.
    ///
    /// # Errors
    /// `Io`.
    pub fn replica_names(&self) -> Result<Vec<String>> {
        let mut names = match self.disk.list(layout::REPLICAS) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        // Of a record that is missing, the copy is left. That of a standby is no replica's.
        let is_standby_copy = |name: &String| layout::STANDBY_COPY.ends_with(&format!("/{name}"));
        names.retain(|name| !is_standby_copy(name));
        for name in &mut names {
            let of_copy = name
                .strip_prefix('.')
                .and_then(|name| name.strip_suffix(".copy"));
            if let Some(of_copy) = of_copy {
                *name = of_copy.to_owned();
            }
        }
        names.retain(|name| layout::check_name(name).is_ok());
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// What the store remembers of the replica `name`.
    pub(super) fn replica_record(&self, name: &str) -> Result<Record> {
        layout::check_name(name)?;
        let is_there = self.replica_names()?.iter().any(|other| other == name);
        if !is_there {
            let shown = self.disk.shown();
            let what = format!(
                "{shown}: has no replica {name:?}: 'weald replica ls {shown}' lists them, and \
                 'weald replica add {shown} PLACE --name {name}' makes one"
            );
            return Err(Error::not_found(what));
        }
        let (record, path) = self.read_replica_record(name)?;
        self.refuse_others_record(&path)?;
        Ok(record)
    }

    /// Reads the record of a replica, or its copy, and tells which of them.
    fn read_replica_record(&self, name: &str) -> Result<(Record, String)> {
        for path in [path(name), copy_path(name)] {
            let read = self.disk.read_file(&path, layout::REPLICA_RECORD_LEN_MAX);
            if let Some((record, [])) = read.as_ref().ok().and_then(|bytes| Record::parse(bytes)) {
                return Ok((record, path));
            }
            match read {
                Err(error) if !is_bad_or_missing(&error) => return Err(error),
                _ => log::debug!("{}/{path}: is damaged", self.disk.shown()),
            }
        }
        Err(damaged(self, &path(name), name))
    }

    /// What is wrong with what the store remembers of its replicas, for a check.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn damaged_replicas(&self) -> Result<Vec<Error>> {
        let mut damaged = Vec::new();
        for name in self.replica_names()? {
            match self.read_replica_record(&name) {
                Err(error) if error.kind() == ErrorKind::Corrupt => damaged.push(error),
                Err(error) => return Err(error),
                Ok(_) => {}
            }
        }
        Ok(damaged)
    }

    /// A record says where to write, and what to run: that of another user is not followed.
    pub(super) fn refuse_others_record(&self, path: &str) -> Result<()> {
        let me = rustix::process::geteuid().as_raw();
        match self.disk.owner(path)? {
            Some(owner) if owner != me => Err(Error::invalid(format!(
                "{}/{path}: belongs to user {owner}, who says with it where to write and what to \
                 run: only that user sends to this replica",
                self.disk.shown()
            ))),
            _ => Ok(()),
        }
    }

    /// Changes what a user has set for the replica `name`.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`, `Io`.
    pub fn set_replica(&self, name: &str, settings: ReplicaSettings) -> Result<()> {
        let record = self.replica_record(name)?;
        let record = Record { settings, ..record };
        self.write_replica_record(name, &record)
    }

    /// Notes why nothing could be sent, for [`crate::ReplicaStatus`]; `None` if it could.
    pub fn note_replica_error(&self, name: &str, error: Option<&str>) {
        let path = error_path(name);
        let done = match error {
            Some(error) => self.disk.write_file(&path, error.as_bytes()),
            None => self.disk.remove_if_there(&path),
        };
        if let Err(error) = done {
            log::debug!("{}/{path}: {error}", self.disk.shown());
        }
    }

    pub(super) fn replica_error(&self, name: &str) -> Option<String> {
        let bytes = self.disk.read_file(&error_path(name), 1 << 16).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn write_replica_record(&self, name: &str, record: &Record) -> Result<()> {
        // In place of the other only when one of them is right.
        let text = record.encode();
        write(self, &copy_path(name), text.as_bytes())?;
        write(self, &path(name), text.as_bytes())
    }

    /// The item on its way to a replica, and the record that holds when it is there.
    pub(super) fn pending_item(&self, name: &str) -> Result<Option<(Record, Vec<u8>)>> {
        let path = pending_path(name);
        let bytes = match self.disk.read_file(&path, layout::REPLICA_RECORD_LEN_MAX) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        match Record::parse(&bytes) {
            Some((record, item)) => Ok(Some((record, item.to_vec()))),
            None => Err(damaged(self, &path, name)),
        }
    }

    /// Notes an item that goes to a replica, durably.
    pub(super) fn put_pending_item(&self, name: &str, record: &Record, item: &[u8]) -> Result<()> {
        let mut bytes = record.encode().into_bytes();
        bytes.extend_from_slice(item);
        write(self, &pending_path(name), &bytes)
    }

    /// The item on its way has arrived.
    pub(super) fn settle_pending_item(&self, name: &str, record: &Record) -> Result<()> {
        self.write_replica_record(name, record)?;
        self.disk.remove_if_there(&pending_path(name))
    }

    /// Forgets a replica; its files stay where they are.
    ///
    /// # Errors
    /// `NotFound`, `Io`.
    pub fn remove_replica(&self, name: &str) -> Result<()> {
        layout::check_name(name)?;
        // The copy alone would be a replica, too.
        let copy = self.disk.remove(&copy_path(name));
        match (self.disk.remove(&path(name)), copy) {
            (Err(error), Ok(())) if error.kind() == ErrorKind::NotFound => {}
            (Err(error), _) if error.kind() == ErrorKind::NotFound => {
                self.replica_record(name).map(drop)?;
            }
            (Ok(()), Err(error)) if error.kind() == ErrorKind::NotFound => {}
            (removed, copy) => removed.and(copy)?,
        }
        self.disk.remove_if_there(&pending_path(name))?;
        self.disk.remove_if_there(&lock_path(name))?;
        self.disk.remove_if_there(&error_path(name))?;
        self.disk.sync_dir(layout::REPLICAS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch a damaged record that is taken for another state of the replica.
    #[test]
    fn no_damaged_record_is_accepted() {
        let record = Record {
            place: "/a place".to_owned(),
            identity: PlaceIdentity {
                uuid: [1; 16],
                lineage: [0xab; 16],
            },
            epoch: Epoch(2),
            settings: ReplicaSettings {
                every_s: 10,
                is_paused: true,
                sync: Some(WhenLost::Degrade),
                rate: 12,
            },
            last: Some(LastSent {
                number: ItemNo(7),
                digest: Digest([3; 32]),
                commit: CommitNo(99),
                sum: RowSum::from_bytes([5; 32]),
                time: -4,
                all_rows_len: 1,
                changes_len: 2,
                segments: [(SegmentNo(1), 4096), (SegmentNo(9), 1)].into(),
            }),
        };
        for record in [
            Record {
                last: None,
                ..record.clone()
            },
            record,
        ] {
            let text = record.encode();
            let (text, _) = text.split_once("digest ").expect("a digest");
            let older = text.replace(FIRST_LINE, FIRST_LINE_OLDER);
            let older = older
                .replace("epoch 2\n", "")
                .replace("sync degrade\nrate 12\n", "");
            let older = format!("{older}digest {}\n", Digest::of(older.as_bytes()));
            let (parsed, _) = Record::parse(older.as_bytes()).expect("a record");
            assert_eq!((parsed.epoch, parsed.settings.sync), (Epoch(0), None));
            assert_eq!((&parsed.place, &parsed.last), (&record.place, &record.last));
            let mut bytes = record.encode().into_bytes();
            bytes.extend(b"item");
            let (parsed, rest) = Record::parse(&bytes).expect("a record");
            assert_eq!((parsed, rest), (record, &b"item"[..]));
            for at in 0..bytes.len() - 4 {
                let mut bytes = bytes.clone();
                bytes[at] ^= 1;
                assert!(Record::parse(&bytes).is_none(), "byte {at}");
            }
        }
    }
}
