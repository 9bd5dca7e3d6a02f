//! Replicas for which a sync waits.
//!
//! A sync commits, and then asks for a sending; it returns when a sending has succeeded that began
//! with this commit or a later one. Syncs that come while one is under way share the next one. A
//! replica that cannot be reached, and need not be waited for, is alone: syncs pass it until a
//! sending succeeds again.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::time::Duration;
use weald_format::CommitNo;
use weald_store::{ReplicaSettings, WhenLost};

/// Time between two looks at whether a sync must give up.
const PAUSE: Duration = Duration::from_millis(200);

/// Replicas for which a sync waits, by name.
#[derive(Debug, Default)]
pub(crate) struct SyncedReplicas {
    replicas: Mutex<BTreeMap<String, Synced>>,
    /// Signalled when something is asked for, and when a try has ended.
    changed: Condvar,
}

#[derive(Debug, Clone, Copy)]
struct Synced {
    when_lost: WhenLost,
    /// The last commit that it has, as far as this process knows.
    sent: CommitNo,
    /// The last commit that a sync waits for.
    wanted: CommitNo,
    /// Whether syncs pass it.
    is_alone: bool,
}

impl SyncedReplicas {
    /// Takes over what users have set for the replica `name`; `None` if it is gone.
    pub fn set(&self, name: &str, settings: Option<ReplicaSettings>) {
        let when_lost = settings.filter(|s| !s.is_paused).and_then(|s| s.sync);
        let mut replicas = self.replicas.lock();
        match when_lost {
            None => drop(replicas.remove(name)),
            Some(when_lost) => {
                let new = Synced {
                    when_lost,
                    sent: CommitNo(0),
                    wanted: CommitNo(0),
                    is_alone: false,
                };
                replicas.entry(name.to_owned()).or_insert(new).when_lost = when_lost;
            }
        }
        self.changed.notify_all();
    }

    /// Whether no sync waits for a replica.
    pub fn is_empty(&self) -> bool {
        self.replicas.lock().is_empty()
    }

    /// Whether a sync waits for the replica `name`, or would if it could be reached.
    pub fn is_wanted(&self, name: &str) -> bool {
        let replicas = self.replicas.lock();
        replicas
            .get(name)
            .is_some_and(|synced| synced.wanted > synced.sent)
    }

    /// Waits until a sync asks for something, a try has ended, or a moment has passed.
    pub fn wait_for_news(&self) {
        self.changed.wait_for(&mut self.replicas.lock(), PAUSE);
    }

    /// A try to send to the replica `name` has ended: with this commit, or without success.
    pub fn end(&self, name: &str, sent: Option<CommitNo>) {
        let mut replicas = self.replicas.lock();
        if let Some(synced) = replicas.get_mut(name) {
            let was_alone = synced.is_alone;
            match sent {
                Some(sent) => {
                    synced.sent = sent.max(synced.sent);
                    synced.is_alone = false;
                }
                None => synced.is_alone = synced.when_lost == WhenLost::Degrade,
            }
            if was_alone != synced.is_alone {
                let what = if synced.is_alone {
                    "cannot be reached: syncs do not wait for it"
                } else {
                    "has everything again: syncs wait for it"
                };
                log::warn!("replica {name}: {what}");
            }
        }
        drop(replicas);
        self.changed.notify_all();
    }

    /// Waits until all replicas have `commit` or are alone. Returns false if `must_end` says so
    /// before.
    pub fn wait(&self, commit: CommitNo, must_end: &dyn Fn() -> bool) -> bool {
        let mut replicas = self.replicas.lock();
        for synced in replicas.values_mut() {
            synced.wanted = commit.max(synced.wanted);
        }
        self.changed.notify_all();
        let has = |synced: &Synced| synced.sent >= commit || synced.is_alone;
        while !replicas.values().all(has) {
            self.changed.wait_for(&mut replicas, PAUSE);
            if must_end() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn settings(sync: Option<WhenLost>) -> Option<ReplicaSettings> {
        Some(ReplicaSettings {
            sync,
            ..ReplicaSettings::default()
        })
    }

    // Would catch a sync that returns before its commit was sent, and one that waits for a replica
    // that is alone.
    #[test]
    fn a_sync_waits_for_its_commit() {
        let replicas = Arc::new(SyncedReplicas::default());
        assert!(replicas.wait(CommitNo(1), &|| false));
        replicas.set("a", settings(Some(WhenLost::Wait)));
        replicas.set("b", settings(Some(WhenLost::Degrade)));
        let of_thread = replicas.clone();
        let waiting = std::thread::spawn(move || of_thread.wait(CommitNo(5), &|| false));
        while !replicas.is_wanted("a") || !replicas.is_wanted("b") {
            replicas.wait_for_news();
        }
        for (name, sent) in [("a", Some(CommitNo(4))), ("a", None), ("b", None)] {
            assert!(!waiting.is_finished(), "{name} {sent:?}");
            replicas.end(name, sent);
        }
        assert!(!waiting.is_finished());
        replicas.end("a", Some(CommitNo(5)));
        assert!(waiting.join().expect("no panic"));
        // One that waits for ever ends with its volume.
        assert!(!replicas.wait(CommitNo(6), &|| true));
        replicas.set("a", None);
        replicas.end("b", Some(CommitNo(7)));
        assert!(replicas.wait(CommitNo(7), &|| false));
        assert!(!replicas.wait(CommitNo(8), &|| true));
    }
}
