//! Snapshots that an open volume takes and removes by itself, as the property
//! `user.weald.snapshots` of its root directory says (`retention.rs`).

use super::Volume;
use crate::properties::SNAPSHOTS;
use crate::retention::{Dated, NAME_PREFIX, PolicyLooks, SnapshotPolicy, Time, name_at};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weald_format::{Error, ErrorKind, Ino, Result};
use weald_store::{Snapshot, removed_snapshot_count};

/// No snapshot is taken while more than this many are still being removed.
const REMOVALS_MAX: u64 = 2;
/// How long the removal of snapshots works at a stretch while the volume changes, and how long it
/// lets others work then.
const REMOVAL_TIME: Duration = Duration::from_millis(40);
const REMOVAL_PAUSE: Duration = Duration::from_millis(40);

/// What a look at the policy did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyStep {
    /// Nothing is due, nothing has changed since, or the volume has no policy.
    Nothing,
    /// A snapshot was taken.
    Taken,
    /// One is due, and so many are still being removed that none was taken.
    Behind(u64),
}

impl Volume {
    /// Takes the snapshot that is due by the policy of the volume at `now`, in nanoseconds since
    /// 1970, and removes those of the policy that it does not keep. Snapshots with other names than
    /// the policy gives, and those that are held, mounted or read, stay.
    ///
    /// # Errors
    /// As [`Volume::take_snapshot`] and [`Volume::remove_snapshot`].
    pub fn follow_snapshot_policy(&self, now: Time) -> Result<PolicyStep> {
        let Some(policy) = self.snapshot_policy()? else {
            return Ok(PolicyStep::Nothing);
        };
        let all = self.snapshots()?;
        let last = all
            .iter()
            .rfind(|found| found.name.starts_with(NAME_PREFIX));
        let mut step = PolicyStep::Nothing;
        if policy.is_due(last.map(|last| last.created), now) {
            let behind = self.removed_snapshots()?;
            let is_changed = {
                let commit = self.committer.lock().row.commit;
                let has_changes = self.core.state.read().dirty_since.is_some();
                has_changes || last.is_none_or(|last| last.volume.commit != commit)
            };
            if is_changed && behind > REMOVALS_MAX {
                step = PolicyStep::Behind(behind);
            } else if is_changed {
                self.take_snapshot(&name_at(now), now)?;
                step = PolicyStep::Taken;
            }
        }
        let all = self.snapshots()?;
        let own = all
            .iter()
            .filter(|found| found.name.starts_with(NAME_PREFIX));
        let own: Vec<_> = own
            .map(|found| Dated {
                name: &found.name,
                created: found.created,
                stays: !found.holds.is_empty() || self.is_snapshot_mounted(found.no),
            })
            .collect();
        for name in policy.retention().unkept(&own) {
            if let Some(found) = all.iter().find(|found| found.name == name) {
                // A later look removes it if it is read.
                self.remove_unless_read(found)?;
            }
        }
        Ok(step)
    }

    /// Number of snapshots that were removed and still have rows.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn removed_snapshots(&self) -> Result<u64> {
        let engine = self.core.shared.reader.engine();
        removed_snapshot_count(engine, self.core.tables.volume_no())
    }

    /// Removes a snapshot unless a command reads it. Returns whether it was removed.
    ///
    /// # Errors
    /// As [`Volume::remove_snapshot`].
    pub fn remove_unless_read(&self, found: &Snapshot) -> Result<bool> {
        let (store, volume_no) = (&self.core.shared.store, self.core.tables.volume_no());
        match self.remove_snapshot(&found.name) {
            Err(error)
                if error.kind() == ErrorKind::Busy
                    && store.is_snapshot_read(volume_no, found.no)? =>
            {
                Ok(false)
            }
            removed => removed.map(|()| true),
        }
    }

    fn snapshot_policy(&self) -> Result<Option<SnapshotPolicy>> {
        let state = self.core.state.read();
        let found = self.core.find_xattr(&state, Ino::ROOT, SNAPSHOTS);
        let found = found.map_err(|failure| {
            let from_errno = || Error::io("the root directory", failure.errno.into());
            failure.cause.unwrap_or_else(from_errno)
        })?;
        let text = found.and_then(|value| String::from_utf8(value).ok());
        Ok(text.and_then(|text| SnapshotPolicy::parse(&text)))
    }

    /// Looks at the policy, unless that was just done.
    pub(super) fn look_at_snapshot_policy(&self, looks: &mut PolicyLooks) {
        if self.core.options.is_read_only || !looks.is_time() {
            return;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_nanos() as Time);
        let said = match self.follow_snapshot_policy(now) {
            Ok(PolicyStep::Behind(count)) => {
                format!("no snapshot is taken by policy: {count} are still being removed")
            }
            Ok(_) => String::new(),
            Err(error) => format!("no snapshot is taken by policy: {error}"),
        };
        if looks.is_new(said.clone()) && !said.is_empty() {
            log::warn!("{}: {said}", self.core.shared.store.shown());
        }
    }

    /// Time until the removal of snapshots goes on, if there is something to remove.
    pub fn pause_of_removals(&self) -> Option<Duration> {
        let is_removing = self.may_have_removed.load(Ordering::Relaxed);
        (is_removing && !self.core.options.is_read_only).then_some(REMOVAL_PAUSE)
    }

    /// Goes on with the removal of snapshots for a while, beside changes of the volume.
    pub fn remove_snapshots_for_a_while(&self) {
        let end = Instant::now() + REMOVAL_TIME;
        // A failure is kept in the state, and every later call reports it.
        while Instant::now() < end && self.snapshot_step().unwrap_or(false) {}
    }
}
