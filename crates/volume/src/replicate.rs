//! Sends to the replicas of a store while its volumes are open, as often as each replica asks for.

use crate::open_store::OpenStore;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::{Error, Result};
use weald_store::faults::Faults;
use weald_store::{PlaceLocation, Role, SendOptions, Store};

/// Time between two looks at which replicas are due.
const PAUSE: Duration = Duration::from_millis(200);
/// Time after which what users have set is read again.
const SETTINGS_TIME: Duration = Duration::from_secs(2);

/// A replica.
struct Replica {
    every: Option<Duration>,
    last: Instant,
    /// Whether something is being sent: a slow place keeps the others from nothing.
    is_busy: Arc<AtomicBool>,
}

/// Starts the thread that sends, until all volumes of the store are closed.
///
/// # Errors
/// `Io` if the thread does not start.
pub(crate) fn start(shared: &Arc<OpenStore>) -> Result<()> {
    let weak = Arc::downgrade(shared);
    let spawned = thread::Builder::new()
        .name("weald-replicas".into())
        .spawn(move || run(&weak));
    spawned.map(drop).map_err(|e| Error::io("a thread", e))
}

fn run(weak: &Weak<OpenStore>) {
    let mut replicas = BTreeMap::new();
    let mut read: Option<Instant> = None;
    loop {
        thread::sleep(PAUSE);
        let Some(shared) = weak.upgrade() else { return };
        if shared.is_closed() {
            return;
        }
        let store = shared.store.clone();
        drop(shared);
        if read.is_none_or(|read| read.elapsed() >= SETTINGS_TIME) {
            read_settings(&store, &mut replicas);
            read = Some(Instant::now());
        }
        for (name, replica) in &mut replicas {
            let is_due = replica.every.is_some_and(|e| replica.last.elapsed() >= e);
            if !is_due || replica.is_busy.swap(true, Ordering::SeqCst) {
                continue;
            }
            replica.last = Instant::now();
            let (store, name) = (store.clone(), name.clone());
            let is_busy = replica.is_busy.clone();
            let weak = weak.clone();
            let sending = move || {
                send(&store, &name, &weak);
                is_busy.store(false, Ordering::SeqCst);
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

/// Reads which replicas there are, and how often they are sent to.
fn read_settings(store: &Store, replicas: &mut BTreeMap<String, Replica>) {
    let names = match store.replica_names() {
        Ok(names) => names,
        Err(error) => {
            log::warn!("{}: {error}", store.shown());
            return;
        }
    };
    replicas.retain(|name, _| names.contains(name));
    for name in names {
        let settings = match store.replica_settings(&name) {
            Ok(settings) => settings,
            Err(error) => {
                log::debug!("replica {name}: {error}");
                replicas.remove(&name);
                continue;
            }
        };
        let is_sent = settings.every_s > 0 && !settings.is_paused;
        let every = is_sent.then(|| Duration::from_secs(settings.every_s));
        let replica = replicas.entry(name).or_insert_with(|| Replica {
            every,
            last: Instant::now(),
            is_busy: Arc::default(),
        });
        replica.every = every;
    }
}

/// Sends what was committed. The writer of the store goes on meanwhile.
fn send(store: &Store, name: &str, weak: &Weak<OpenStore>) {
    // An idle store costs its places nothing.
    if store.may_have_news(name).is_ok_and(|may| !may) {
        return;
    }
    let options = SendOptions {
        writer: None,
        is_anew: false,
        has_all_rows: false,
        faults: Faults::default(),
    };
    let sent = store.replica_place(name).and_then(|place| {
        let place = PlaceLocation::parse(&place)?.open()?;
        store.send_replica(name, &*place, &options)
    });
    match sent {
        Ok(sent) => {
            store.note_replica_error(name, None);
            for what in sent.damage {
                log::warn!("replica {name}: the store cannot read what it should get: {what}");
            }
        }
        Err(error) => {
            log::warn!("replica {name}: {error}");
            if let (Ok(Role::Replaced(_)), Some(shared)) = (store.role(), weak.upgrade()) {
                shared.fail(&error);
            }
            store.note_replica_error(name, Some(&error.with_causes()));
        }
    }
}
