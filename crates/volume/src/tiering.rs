//! Moves segments between the tiers of a store while its volumes are open.

use crate::background;
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
    /// Whether it ends when somebody asks for a move.
    gives_way: bool,
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
        self.shared.upgrade().is_none_or(|shared| {
            let is_asked = shared.move_requests.load(Ordering::SeqCst) > 0;
            shared.is_closed() || (self.gives_way && is_asked)
        })
    }
}

/// Starts the thread that moves, until all volumes of the store are closed.
///
/// # Errors
/// `Io` if the thread does not start.
pub(crate) fn start(shared: &Arc<OpenStore>) -> Result<()> {
    let weak = Arc::downgrade(shared);
    background::start("weald-tiers", move || run(&weak))
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
        if let Err(error) = run_once(&shared, true) {
            log::warn!(
                "{}: nothing moves between tiers: {error}",
                shared.store.shown()
            );
        }
        last = Some(Instant::now());
    }
}

/// Moves what the policies of the tiers ask for.
fn run_once(shared: &Arc<OpenStore>, gives_way: bool) -> Result<TierReport> {
    let mut mover = shared.mover.lock();
    let mover = match &mut *mover {
        Some(mover) => mover,
        none => none.insert(Mover::new(&shared.store)?),
    };
    if !gives_way {
        mover.settle_again();
    }
    let shared = Arc::downgrade(shared);
    mover.run(&mut Host { shared, gives_way })
}

/// Moves what `name` uses to the tier `to`; without a name, what the policies ask for.
///
/// # Errors
/// `NotFound` if there is no such image, volume or tier; `Lost`, `Full`, `Io`.
pub fn move_between_tiers(
    shared: &Arc<OpenStore>,
    wanted: Option<(&str, &str)>,
) -> Result<TierReport> {
    shared.move_requests.fetch_add(1, Ordering::SeqCst);
    let done = move_now(shared, wanted);
    shared.move_requests.fetch_sub(1, Ordering::SeqCst);
    done
}

fn move_now(shared: &Arc<OpenStore>, wanted: Option<(&str, &str)>) -> Result<TierReport> {
    let Some((name, to)) = wanted else {
        return run_once(shared, false);
    };
    // One at a time.
    let _mover = shared.mover.lock();
    let mut host = Host {
        shared: Arc::downgrade(shared),
        gives_way: false,
    };
    let numbers = host.with_writer(|writer| writer.segments_of(name))?;
    Mover::new(&shared.store)?.move_all(&mut host, &numbers, to)
}
