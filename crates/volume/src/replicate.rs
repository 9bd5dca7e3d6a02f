//! Sends to the replicas of a store while its volumes are open, as often as each replica asks for.

use crate::background;
use crate::open_store::OpenStore;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::{CommitNo, Error, Result};
use weald_store::faults::Faults;
use weald_store::{Place, PlaceLocation, Role, SendOptions, Store};

/// Time after which an idle store asks a place whether another store has taken over.
const LOOK_TIME: Duration = Duration::from_secs(20);
/// Time without a sending after which a place is closed.
const IDLE_TIME: Duration = Duration::from_secs(5);
/// Time after which a replica that failed is tried again for syncs that wait.
const RETRY_TIME: Duration = Duration::from_secs(1);
/// Time after which what users have set is read again.
const SETTINGS_TIME: Duration = Duration::from_secs(2);

/// A replica.
struct Replica {
    every: Option<Duration>,
    last: Instant,
    /// When the place was asked last.
    looked: Instant,
    /// Whether something is being sent: a slow place keeps the others from nothing.
    is_busy: Arc<AtomicBool>,
    /// Whether the last try failed.
    failed: Arc<AtomicBool>,
    /// The place of a replica for which syncs wait, as long as it can be reached.
    place: Arc<Mutex<Option<Box<dyn Place>>>>,
}

impl Replica {
    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }
}

/// Starts the thread that sends, until all volumes of the store are closed.
///
/// # Errors
/// `Io` if the thread does not start.
pub(crate) fn start(shared: &Arc<OpenStore>) -> Result<()> {
    // Before the first sync.
    read_settings(shared, &mut BTreeMap::new());
    let weak = Arc::downgrade(shared);
    background::start("weald-replicas", move || run(&weak))
}

fn run(weak: &Weak<OpenStore>) {
    let mut replicas = BTreeMap::new();
    let mut read: Option<Instant> = None;
    loop {
        let synced = match weak.upgrade() {
            Some(shared) if !shared.is_closed() => shared.synced.clone(),
            _ => return,
        };
        // Nothing of the store is held meanwhile: it may be closed.
        synced.wait_for_news();
        let Some(shared) = weak.upgrade() else { return };
        if shared.is_closed() {
            return;
        }
        if read.is_none_or(|read| read.elapsed() >= SETTINGS_TIME) {
            read_settings(&shared, &mut replicas);
            read = Some(Instant::now());
        }
        let store = shared.store.clone();
        drop(shared);
        for (name, replica) in &mut replicas {
            let elapsed = replica.last.elapsed();
            let is_asked = synced.is_wanted(name);
            // One that failed is not tried all the time.
            let is_asked = is_asked && (!replica.has_failed() || elapsed >= RETRY_TIME);
            // Its disk can be unmounted.
            if elapsed >= IDLE_TIME
                && let Some(mut place) = replica.place.try_lock()
                && !place.as_ref().is_some_and(|place| place.stays_open())
            {
                *place = None;
            }
            let is_due = is_asked || replica.every.is_some_and(|every| elapsed >= every);
            if !is_due || replica.is_busy.swap(true, Ordering::SeqCst) {
                continue;
            }
            replica.last = Instant::now();
            let looks = replica.looked.elapsed() >= LOOK_TIME;
            if looks {
                replica.looked = Instant::now();
            }
            let sending = Sending {
                store: store.clone(),
                name: name.clone(),
                weak: weak.clone(),
                is_asked,
                looks,
                place: replica.place.clone(),
            };
            let (is_busy, has_failed) = (replica.is_busy.clone(), replica.failed.clone());
            let synced = synced.clone();
            let sending = move || {
                // An idle store costs its places nothing.
                let is_needed = sending.is_asked || sending.may_have_news();
                let sent = is_needed.then(|| sending.run());
                if !is_needed && sending.looks {
                    sending.look();
                }
                if let Some(sent) = sent {
                    has_failed.store(sent.is_none(), Ordering::SeqCst);
                }
                is_busy.store(false, Ordering::SeqCst);
                // It wakes the thread that may send again.
                if let Some(sent) = sent {
                    synced.end(&sending.name, sent);
                }
            };
            let spawned = thread::Builder::new()
                .name("weald-send".into())
                .spawn(sending);
            if let Err(error) = spawned {
                log::warn!("nothing is sent to a replica: {error}");
                replica.is_busy.store(false, Ordering::SeqCst);
            }
        }
    }
}

/// Reads which replicas there are, how often they are sent to, and for which syncs wait.
fn read_settings(shared: &OpenStore, replicas: &mut BTreeMap<String, Replica>) {
    let store = &shared.store;
    let names = match store.replica_names() {
        Ok(names) => names,
        Err(error) => {
            log::warn!("{}: {error}", store.shown());
            return;
        }
    };
    replicas.retain(|name, _| {
        let is_there = names.contains(name);
        if !is_there {
            shared.synced.set(name, None);
        }
        is_there
    });
    for name in names {
        let settings = match store.replica_settings(&name) {
            Ok(settings) => settings,
            Err(error) => {
                log::debug!("replica {name}: {error}");
                shared.synced.set(&name, None);
                replicas.remove(&name);
                continue;
            }
        };
        shared.synced.set(&name, Some(settings));
        let is_sent = settings.every_s > 0 && !settings.is_paused;
        let every = is_sent.then(|| Duration::from_secs(settings.every_s));
        let replica = replicas.entry(name).or_insert_with(|| Replica {
            every,
            last: Instant::now(),
            looked: Instant::now(),
            is_busy: Arc::default(),
            failed: Arc::default(),
            place: Arc::default(),
        });
        replica.every = every;
    }
}

/// A sending of what was committed. The writer of the store goes on meanwhile.
struct Sending {
    store: Store,
    name: String,
    weak: Weak<OpenStore>,
    /// Whether a sync waits for it.
    is_asked: bool,
    /// Whether the place is asked although there is nothing to send.
    looks: bool,
    place: Arc<Mutex<Option<Box<dyn Place>>>>,
}

impl Sending {
    fn may_have_news(&self) -> bool {
        self.store.may_have_news(&self.name).unwrap_or(true)
    }

    /// Returns the commit that the replica has then; `None` after an error.
    fn run(&self) -> Option<CommitNo> {
        let Self { store, name, .. } = self;
        let options = SendOptions {
            writer: None,
            is_anew: false,
            has_all_rows: false,
            faults: Faults::default(),
        };
        match self.with_place(|place| store.send_replica(name, place, &options)) {
            Ok(sent) => {
                store.note_replica_error(name, None);
                for what in sent.damage {
                    log::warn!("replica {name}: the store cannot read what it should get: {what}");
                }
                Some(sent.commit)
            }
            Err(error) => {
                log::warn!("replica {name}: {error}");
                self.end_if_replaced(&error);
                store.note_replica_error(name, Some(&error.with_causes()));
                None
            }
        }
    }

    /// Does `work` in the place, which stays open if that is worth it.
    fn with_place<T>(&self, work: impl FnOnce(&dyn Place) -> Result<T>) -> Result<T> {
        let mut kept = self.place.lock();
        let place = match kept.take() {
            Some(place) => place,
            None => PlaceLocation::parse(&self.store.replica_place(&self.name)?)?.open()?,
        };
        let done = work(&*place);
        let keeps = self.is_asked || place.stays_open();
        *kept = Some(place).filter(|_| keeps && done.is_ok());
        done
    }

    /// Looks whether another store has taken over.
    fn look(&self) {
        let looked = self.with_place(|place| self.store.refuse_if_replaced(&self.name, place));
        if let Err(error) = looked {
            log::debug!("replica {}: {error}", self.name);
            self.end_if_replaced(&error);
        }
    }

    /// Makes all volumes read-only if another store has taken over.
    fn end_if_replaced(&self, error: &Error) {
        if let (Ok(Role::Replaced(_)), Some(shared)) = (self.store.role(), self.weak.upgrade()) {
            shared.fail(error);
        }
    }
}
