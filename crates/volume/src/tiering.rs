//! Moves segments between the tiers of a store while its volumes are open.

use crate::open_store::OpenStore;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};
use weald_store::StoreWriter;
use weald_store::tier::{MoveHost, Mover, TierReport};

/// Time between two looks whether the tiers were changed.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// Time between two runs of moves.
const RUN_TIME: Duration = Duration::from_secs(10);

/// The writer of an open store, between commits.
struct Host {
    shared: Weak<OpenStore>,
}

fn closed() -> Error {
    Error::new(
        ErrorKind::Busy,
        "the volumes of the store are being unmounted",
    )
}

impl MoveHost for Host {
    fn with_writer<T>(&mut self, step: impl FnOnce(&mut StoreWriter) -> Result<T>) -> Result<T> {
        let shared = self.shared.upgrade().ok_or_else(closed)?;
        let mut writing = shared.lock_writer()?;
        let done = {
            // Whoever reads next opens the segment where it is then, so that its old file goes.
            let _gate = shared.gate.write();
            shared.reader.close_segments();
            step(&mut writing.writer)
        };
        let done = shared.noted(&writing, done)?;
        shared.refresh_free()?;
        Ok(done)
    }

    fn should_stop(&self) -> bool {
        self.shared
            .upgrade()
            .is_none_or(|shared| shared.is_closed())
    }
}

/// Starts the thread that moves, until all volumes of the store are closed.
///
/// # Errors
/// `Io` if the thread does not start.
pub(crate) fn start(shared: &Arc<OpenStore>) -> Result<()> {
    let weak = Arc::downgrade(shared);
    let spawned = thread::Builder::new()
        .name("weald-tiers".into())
        .spawn(move || run(&weak));
    spawned.map(drop).map_err(|e| Error::io("a thread", e))
}

fn run(weak: &Weak<OpenStore>) {
    let mut settings = Vec::new();
    let mut last: Option<Instant> = None;
    loop {
        // Nothing of the store is held meanwhile: it may be closed.
        thread::sleep(LOOK_TIME);
        let Some(shared) = weak.upgrade().filter(|shared| !shared.is_closed()) else {
            return;
        };
        let found = shared.store.tier_settings();
        let is_due = last.is_none_or(|last| last.elapsed() >= RUN_TIME);
        if found.is_empty() || (found == settings && !is_due) {
            continue;
        }
        settings = found;
        if let Err(error) = run_once(&shared) {
            log::warn!(
                "{}: nothing moves between tiers: {error}",
                shared.store.shown()
            );
        }
        last = Some(Instant::now());
    }
}

/// Moves what the policies of the tiers ask for.
fn run_once(shared: &Arc<OpenStore>) -> Result<TierReport> {
    let mut mover = shared.mover.lock();
    if !shared.has_settled_tiers.swap(true, Ordering::SeqCst) {
        shared.lock_writer()?.writer.settle_tiers()?;
    }
    let mover = match &mut *mover {
        Some(mover) => mover,
        none => none.insert(Mover::new(&shared.store)?),
    };
    let shared = Arc::downgrade(shared);
    mover.run(&mut Host { shared })
}

/// Moves what `name` uses to the tier `to`; without a name, what the policies ask for.
///
/// # Errors
/// `NotFound` if there is no such image, volume or tier; `Lost`, `Full`, `Io`.
pub fn move_between_tiers(
    shared: &Arc<OpenStore>,
    wanted: Option<(&str, &str)>,
) -> Result<TierReport> {
    let Some((name, to)) = wanted else {
        return run_once(shared);
    };
    let mut host = Host {
        shared: Arc::downgrade(shared),
    };
    let numbers = host.with_writer(|writer| writer.segments_of(name))?;
    Mover::new(&shared.store)?.move_all(&mut host, &numbers, to)
}
