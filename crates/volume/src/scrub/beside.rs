//! Scrubs a store while its volumes are open.

use super::drive::{Driven, ScrubEnd, closed, drive, now_s, take_up};
use super::names::{Users, add, unopened_images, users_in_images, users_in_volumes};
use crate::background;
use crate::open_store::OpenStore;
use crate::state::State;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use weald_format::{BlockId, ErrorKind, Result};
use weald_store::StoreWriter;
use weald_store::scrub::{Scrub, ScrubHost, ScrubReport, ScrubWish, TablesView};

/// Time between two looks at what users want.
const LOOK_TIME: Duration = Duration::from_millis(500);
/// Time after which it is written down how far it is.
const SAVE_TIME: Duration = Duration::from_secs(2);
/// Time between two looks at the policy.
const POLICY_TIME: Duration = Duration::from_secs(5);

/// The writer of an open store, between commits.
struct Host(Weak<OpenStore>);

impl ScrubHost for Host {
    fn with_writer<T>(&mut self, step: impl FnOnce(&mut StoreWriter) -> Result<T>) -> Result<T> {
        let shared = self.0.upgrade().ok_or_else(closed)?;
        let mut writing = shared.lock_writer()?;
        let done = step(&mut writing.writer);
        shared.noted(&writing, done)
    }

    fn beside<T>(&mut self, pass: impl FnOnce(&TablesView) -> Result<T>) -> Result<T> {
        let shared = self.0.upgrade().ok_or_else(closed)?;
        let view = {
            let writing = shared.lock_writer()?;
            let weak = self.0.clone();
            let is_over = move || weak.upgrade().is_none_or(|shared| shared.is_closed());
            TablesView::of(&writing.writer, writing.open.clone(), Arc::new(is_over))?
        };
        pass(&view)
    }

    fn users_of(&mut self, ids: &BTreeSet<BlockId>) -> Result<Users> {
        let mut users = self.beside(|view| users_in_volumes(view, ids))?;
        let store = self.0.upgrade().ok_or_else(closed)?.store.clone();
        add(&mut users, users_in_images(&store, ids)?);
        Ok(users)
    }

    fn unopened_images(&mut self, known: &BTreeSet<String>) -> Result<Vec<(String, String)>> {
        let store = self.0.upgrade().ok_or_else(closed)?.store.clone();
        unopened_images(&store, known)
    }

    fn is_alone(&self) -> bool {
        false
    }
}

impl Driven for Host {
    fn should_stop(&self) -> bool {
        self.0.upgrade().is_none_or(|shared| shared.is_closed())
    }

    fn is_busy(&self) -> bool {
        let shared = self.0.upgrade();
        shared.is_some_and(|shared| shared.sum_of_others(None, State::written) > 0)
    }

    fn save_time(&self) -> Duration {
        SAVE_TIME
    }

    fn save(&mut self, scrub: &Scrub) -> Result<()> {
        // This process has the writer, and commits need not wait.
        let shared = self.0.upgrade().ok_or_else(closed)?;
        scrub.save_to(&shared.store)
    }
}

/// Who performs steps in the store of open volumes.
#[cfg(test)]
pub(crate) fn host_of(shared: &Arc<OpenStore>) -> impl ScrubHost + use<> {
    Host(Arc::downgrade(shared))
}

/// Starts the thread that scrubs, until all volumes of the store are closed.
///
/// # Errors
/// `Io` if the thread does not start.
pub(crate) fn start(shared: &Arc<OpenStore>) -> Result<()> {
    let weak = Arc::downgrade(shared);
    background::start("weald-scrub", move || run(&weak))
}

fn run(weak: &Weak<OpenStore>) {
    // The wish that there is nothing more to do about.
    let mut settled: Option<ScrubWish> = None;
    let mut looked: Option<Instant> = None;
    loop {
        // Nothing of the store is held meanwhile: it may be closed.
        thread::sleep(LOOK_TIME);
        let Some(shared) = weak.upgrade().filter(|shared| !shared.is_closed()) else {
            return;
        };
        let store = shared.store.clone();
        drop(shared);
        if looked.is_none_or(|at| at.elapsed() >= POLICY_TIME) {
            looked = Some(Instant::now());
            if let Err(error) = store.begin_due_scrub(now_s()) {
                log::warn!("{}: no scrub is begun: {error}", store.shown());
            }
        }
        let wish = match store.scrub_wish() {
            Ok(Some(wish)) if settled != Some(wish) => wish,
            _ => continue,
        };
        if store.scrub_rests(&wish, now_s()).unwrap_or(false) {
            continue;
        }
        let is_followed =
            |report: ScrubReport| report.wish == wish && (report.is_done() || wish.is_paused);
        if store
            .scrub_report()
            .is_ok_and(|report| report.is_some_and(is_followed))
        {
            settled = Some(wish);
            continue;
        }
        let mut host = Host(weak.clone());
        let ended = take_up(&mut host, &wish).and_then(|mut scrub| {
            if wish.is_paused {
                return Ok(ScrubEnd::Paused);
            }
            drive(&mut host, &store, &mut scrub, &mut |_| {})
        });
        settled = match ended {
            Ok(ScrubEnd::Done(_) | ScrubEnd::Paused) => store.scrub_wish().ok().flatten(),
            Ok(ScrubEnd::Stopped | ScrubEnd::Rested) => None,
            // It is parked until somebody asks again.
            Err(error) => {
                if error.kind() != ErrorKind::Busy {
                    log::warn!("{}: is not scrubbed: {error}", store.shown());
                }
                Some(wish)
            }
        };
    }
}
