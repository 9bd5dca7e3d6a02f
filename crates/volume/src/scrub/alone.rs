//! Scrubs a store that no server has open. The store is open for each pass over the rows alone, so
//! that a volume of it can be mounted at any time; its server then goes on.

use super::drive::{Driven, ScrubEnd, drive, take_up};
use super::names::{Users, add, unopened_images, users_in_images, users_in_volumes};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weald_format::{BlockId, Error, Result};
use weald_store::scrub::{Scrub, ScrubHost, ScrubReport, TablesView};
use weald_store::{Store, StoreWriter, WriteOptions};

/// Time after which it is written down how far it is: the store is opened for that.
const SAVE_TIME: Duration = Duration::from_secs(10);

/// A store that is opened when it is needed.
struct Host<'a> {
    store: &'a Store,
    writer_name: &'a str,
    is_over: Arc<AtomicBool>,
}

impl Host<'_> {
    fn open(&self) -> Result<StoreWriter> {
        self.store.write(WriteOptions::new(self.writer_name))
    }
}

impl ScrubHost for Host<'_> {
    fn with_writer<T>(&mut self, step: impl FnOnce(&mut StoreWriter) -> Result<T>) -> Result<T> {
        step(&mut self.open()?)
    }

    fn beside<T>(&mut self, pass: impl FnOnce(&TablesView) -> Result<T>) -> Result<T> {
        let writer = self.open()?;
        let is_over = self.is_over.clone();
        let is_over = Arc::new(move || is_over.load(Ordering::Relaxed));
        pass(&TablesView::of(&writer, BTreeSet::new(), is_over)?)
    }

    fn users_of(&mut self, ids: &BTreeSet<BlockId>) -> Result<Users> {
        let mut users = self.beside(|view| users_in_volumes(view, ids))?;
        add(&mut users, users_in_images(self.store, ids)?);
        Ok(users)
    }

    fn unopened_images(&mut self, known: &BTreeSet<String>) -> Result<Vec<(String, String)>> {
        unopened_images(self.store, known)
    }

    fn is_alone(&self) -> bool {
        true
    }
}

impl Driven for Host<'_> {
    fn should_stop(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn is_busy(&self) -> bool {
        false
    }

    fn save_time(&self) -> Duration {
        SAVE_TIME
    }

    fn save(&mut self, scrub: &Scrub) -> Result<()> {
        self.with_writer(|writer| scrub.save(writer))
    }
}

/// Performs the scrub that users want of `store`, from where it is, until it is complete, paused,
/// or `is_over` says that it has to end.
///
/// # Errors
/// `Busy` while another process has the store open for writing: the server of a volume goes on
/// then; `NotFound` if nobody wants one; `Corrupt`, `Io`.
pub fn scrub_alone(
    store: &Store,
    writer_name: &str,
    is_over: &Arc<AtomicBool>,
    tick: &mut dyn FnMut(&ScrubReport),
) -> Result<ScrubEnd> {
    let wish = store.scrub_wish()?;
    let wish = wish.ok_or_else(|| Error::not_found("no scrub was asked for"))?;
    let mut host = Host {
        store,
        writer_name,
        is_over: is_over.clone(),
    };
    let mut scrub = take_up(&mut host, &wish)?;
    if wish.is_paused {
        return Ok(ScrubEnd::Paused);
    }
    drive(&mut host, store, &mut scrub, tick)
}
