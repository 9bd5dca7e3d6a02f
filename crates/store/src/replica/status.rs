//! How far a replica is.

use super::record::{LastSent, ReplicaSettings};
use crate::journal::last_commit;
use crate::layout::{self, ObjectKind};
use crate::mark::Mark;
use crate::store::{Store, is_bad_or_missing};
use weald_format::store::SEGMENT_SUPERBLOCK_LEN;
use weald_format::{CommitNo, Result};

/// What a store knows of one of its replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Its name.
    pub name: String,
    /// Where it lies, as the user gave it.
    pub place: String,
    /// The last commit that it has, and when that was sent, in nanoseconds since 1970.
    pub sent: Option<(CommitNo, i64)>,
    /// Commits of the store that it does not have; `None` if the journal does not tell.
    pub behind: Option<u64>,
    /// Bytes of segments that it does not have.
    pub behind_len: u64,
    /// What the user has set.
    pub settings: ReplicaSettings,
    /// Why the last attempt of a server to send failed; `None` if it did not.
    pub error: Option<String>,
    /// Whether an item is on its way, which a sending that was interrupted left.
    pub has_pending: bool,
}

impl Store {
    /// Where the replica `name` lies, as the user gave it.
    ///
    /// # Errors
    /// As [`Store::replica_status`].
    pub fn replica_place(&self, name: &str) -> Result<String> {
        Ok(self.replica_record(name)?.place)
    }

    /// What the user has set for the replica `name`.
    ///
    /// # Errors
    /// As [`Store::replica_status`].
    pub fn replica_settings(&self, name: &str) -> Result<ReplicaSettings> {
        Ok(self.replica_record(name)?.settings)
    }

    /// Whether there may be something to send to the replica `name`, as far as that is known
    /// without a look at the journal or the place.
    ///
    /// # Errors
    /// As [`Store::replica_status`].
    pub fn may_have_news(&self, name: &str) -> Result<bool> {
        let record = self.replica_record(name)?;
        let last = record.last.map(|last| last.commit);
        let is_sent = last.is_some() && Mark::read(self) == last;
        Ok(!is_sent || self.pending_item(name)?.is_some())
    }

    /// What the store knows of the replica `name`. The place is not asked.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if what the store remembers is damaged; `Io`.
    ///
    /// # Cost
    /// Reads the commits of the journal.
    pub fn replica_status(&self, name: &str) -> Result<ReplicaStatus> {
        let record = self.replica_record(name)?;
        let behind_len = self.unsent_len(record.last.as_ref())?;
        let sent = record.last.map(|last| (last.commit, last.time));
        let last = last_commit(self).ok();
        Ok(ReplicaStatus {
            name: name.to_owned(),
            place: record.place,
            sent,
            behind: last.map(|last| {
                let sent = sent.map_or(0, |(commit, _)| commit.0);
                last.0.saturating_sub(sent)
            }),
            behind_len,
            settings: record.settings,
            error: self.replica_error(name),
            has_pending: self.pending_item(name)?.is_some(),
        })
    }

    /// Bytes of segments that were not sent.
    fn unsent_len(&self, last: Option<&LastSent>) -> Result<u64> {
        let mut len = 0;
        for name in self.disk.list_objects(ObjectKind::Segment)? {
            let Some(number) = layout::segment_number(&name) else {
                continue;
            };
            let file = match self.disk.open_object(&layout::segment(number)) {
                Err(error) if is_bad_or_missing(&error) => continue,
                other => other?,
            };
            let sent = last.and_then(|last| last.segments.get(&number));
            // One that was made just now has no bytes of blocks.
            let begin = sent.copied().unwrap_or(SEGMENT_SUPERBLOCK_LEN as u64);
            len += file.len()?.saturating_sub(begin);
        }
        Ok(len)
    }
}
