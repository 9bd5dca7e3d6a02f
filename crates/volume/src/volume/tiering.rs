//! Moves segments between the tiers of a store while its volumes are open.

use super::collecting::{CollectStep, Collecting};
use crate::background;
use crate::open_store::OpenStore;
use crate::pins::{VolumePart, blocks_of, pin_all};
use crate::state::State;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::{Error, ErrorKind, Result};
use weald_store::engine::Engine;
use weald_store::tier::{MoveHost, Mover, OwnWriter, Pins, TierReport};
use weald_store::{Sorting, Store, StoreWriter};

/// Time between two looks whether the tiers were changed.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// Time between two runs of moves.
const RUN_TIME: Duration = Duration::from_secs(10);
/// How long a user's request waits for a collection that is under way.
const WAIT_TIME: Duration = Duration::from_secs(30);
/// Time between two looks whether it has ended.
const WAIT_STEP_TIME: Duration = Duration::from_millis(50);
/// How long a sort sleeps for each time unit that it worked, while volumes change.
const SLEEP_FACTOR: u32 = 4;
/// Longest pause between two steps of a sort.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// What a user wants on a tier now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierMove {
    /// The image or volume.
    pub name: String,
    /// The tier.
    pub to: String,
    /// What of it; `None` for all segments that it uses.
    pub part: Option<VolumePart>,
}

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

impl Host {
    fn shared(&self) -> Result<Arc<OpenStore>> {
        self.shared.upgrade().ok_or_else(closed)
    }

    /// Begins a sort; nothing if a hold or a collection lasts.
    fn begin_sort(&self, sorting: &Sorting) -> Result<Option<Collecting>> {
        let begun = Instant::now();
        loop {
            match Collecting::begin_sort(&self.shared()?, sorting.clone()) {
                Err(error) if error.kind() == ErrorKind::Busy => {}
                other => return other.map(Some),
            }
            if self.gives_way || begun.elapsed() >= WAIT_TIME || self.should_stop() {
                return Ok(None);
            }
            thread::sleep(WAIT_STEP_TIME);
        }
    }
}

impl MoveHost for Host {
    fn with_writer<T>(&mut self, step: impl FnOnce(&mut StoreWriter) -> Result<T>) -> Result<T> {
        let shared = self.shared()?;
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

    fn rows(&mut self) -> Result<Arc<dyn Engine>> {
        Ok(self.shared()?.reader.shared_engine())
    }

    fn pin_all(&mut self, engine: &Arc<dyn Engine>, pins: &mut Pins) -> Result<()> {
        let check = || {
            if self.should_stop() {
                Err(closed())
            } else {
                Ok(())
            }
        };
        pin_all(engine, pins, &check)
    }

    fn sort(&mut self, sorting: Sorting) -> Result<bool> {
        let Some(mut collecting) = self.begin_sort(&sorting)? else {
            return Ok(false);
        };
        loop {
            let begun = Instant::now();
            match collecting.step()? {
                CollectStep::Done => return Ok(true),
                // A seal has begun. The next collection continues.
                CollectStep::Waiting => return Ok(false),
                CollectStep::More => {}
            }
            let shared = self.shared()?;
            if self.should_stop() {
                collecting.stop();
            } else if self.gives_way && shared.sum_of_others(None, State::written) > 0 {
                thread::sleep((begun.elapsed() * SLEEP_FACTOR).min(PAUSE_MAX));
            }
        }
    }

    fn should_stop(&self) -> bool {
        self.shared.upgrade().is_none_or(|shared| {
            let is_asked = shared.move_requests.load(Ordering::SeqCst) > 0;
            shared.is_closed() || (self.gives_way && is_asked)
        })
    }
}

impl OpenStore {
    /// Starts the thread that moves, until all volumes of the store are closed.
    ///
    /// # Errors
    /// `Io` if the thread does not start.
    pub(super) fn begin_tier_moves(self: &Arc<Self>) -> Result<()> {
        let weak = Arc::downgrade(self);
        background::start("weald-tiers", move || run(&weak))
    }
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
        match run_once(&shared, true) {
            // A user's request goes first, or the store is being closed.
            Err(error) if error.kind() == ErrorKind::Busy => {}
            Err(error) => {
                let shown = shared.store.shown();
                log::warn!("{shown}: nothing moves between tiers: {error}");
            }
            Ok(_) => {}
        }
        last = Some(Instant::now());
    }
}

/// Moves what users and the policies of the tiers ask for.
fn run_once(shared: &Arc<OpenStore>, gives_way: bool) -> Result<TierReport> {
    let mut mover = shared.mover.lock();
    let mover = match &mut *mover {
        Some(mover) => mover,
        none => none.insert(Mover::new(&shared.store)?),
    };
    if !gives_way {
        mover.settle_again();
        commit_all(shared);
    }
    let shared = Arc::downgrade(shared);
    mover.run(&mut Host { shared, gives_way })
}

/// Puts the changes of all volumes into the tables: what users want is read there.
fn commit_all(shared: &OpenStore) {
    let volumes = shared.volumes();
    volumes.iter().for_each(|volume| volume.commit_changes());
}

/// Moves what `wanted` names; without it, what users and the policies ask for.
///
/// # Errors
/// `NotFound` if there is no such image, volume, path or tier; `Invalid` for a part of an image;
/// `Lost`, `Full`, `Io`.
pub fn move_between_tiers(
    shared: &Arc<OpenStore>,
    wanted: Option<&TierMove>,
) -> Result<TierReport> {
    shared.move_requests.fetch_add(1, Ordering::SeqCst);
    let done = move_now(shared, wanted);
    shared.move_requests.fetch_sub(1, Ordering::SeqCst);
    done
}

fn move_now(shared: &Arc<OpenStore>, wanted: Option<&TierMove>) -> Result<TierReport> {
    let Some(wanted) = wanted else {
        return run_once(shared, false);
    };
    // One at a time.
    let _mover = shared.mover.lock();
    commit_all(shared);
    let mut host = Host {
        shared: Arc::downgrade(shared),
        gives_way: false,
    };
    move_wanted(&shared.store, &mut host, wanted)
}

/// Moves in a store of which no volume is open.
///
/// # Errors
/// As [`move_between_tiers`].
pub fn move_alone(
    writer: &mut StoreWriter,
    wanted: Option<&TierMove>,
    should_stop: impl Fn() -> bool,
) -> Result<TierReport> {
    let store = writer.store().clone();
    let mut host = OwnWriter {
        writer,
        pin_all: &|engine, pins| pin_all(engine, pins, &|| Ok(())),
        should_stop,
    };
    match wanted {
        Some(wanted) => move_wanted(&store, &mut host, wanted),
        None => {
            let mut mover = Mover::new(&store)?;
            mover.settle_again();
            mover.run(&mut host)
        }
    }
}

/// Finds what users want on a tier, in a store of which no volume is open.
///
/// # Errors
/// `Io`, `Full`, `Corrupt`.
/// # Cost
/// As [`pin_all`].
pub fn look_for_pins(mover: &mut Mover, writer: &mut StoreWriter) -> Result<()> {
    let mut host = OwnWriter {
        writer,
        pin_all: &|engine, pins| pin_all(engine, pins, &|| Ok(())),
        should_stop: || false,
    };
    mover.look_for_pins(&mut host, true).map(drop)
}

fn move_wanted(store: &Store, host: &mut impl MoveHost, wanted: &TierMove) -> Result<TierReport> {
    let TierMove { name, to, part } = wanted;
    let mut mover = Mover::new(store)?;
    let Some(part) = part else {
        let numbers = host.with_writer(|writer| writer.segments_of(name))?;
        return mover.move_all(host, &numbers, to);
    };
    let row = host.with_writer(|writer| match writer.volume_row(name) {
        Err(error) if error.kind() == ErrorKind::NotFound && store.names()?.contains(name) => Err(
            Error::invalid(format!("{name}: is an image, which moves as a whole")),
        ),
        other => other,
    })?;
    let blocks = blocks_of(&host.rows()?, &row, part)?;
    mover.move_blocks(host, &blocks, to)
}
