//! How far a replica is.

use super::record::ReplicaSettings;
use crate::journal::last_commit;
use crate::mark::Mark;
use crate::store::Store;
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
            settings: record.settings,
            error: self.replica_error(name),
            has_pending: self.pending_item(name)?.is_some(),
        })
    }
}
