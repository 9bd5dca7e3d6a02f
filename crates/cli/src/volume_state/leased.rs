//! The tables of a store as a reader of a snapshot has them, who holds no writer up for long.
//!
//! Only one process has the tables open. A snapshot does not change, so that its reader can give
//! them back between two looks and go on with what a writer has made of them since: it becomes the
//! store's writer for [`LEASE`] at most, and stays away for [`PAUSE`] then. If a mount has come
//! meanwhile, its server sends the rows.

use super::mounted::MountedState;
use super::own_writer::writer_of;
use crate::named_volume::Named;
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use weald_format::journal::RowSum;
use weald_format::store::{BlockRow, Location};
use weald_format::{BlockId, Error, ErrorKind, Result};
use weald_store::StoreWriter;
use weald_store::engine::{
    Batch, BeforeCommit, Engine, ReadView, Table, VisitDamage, VisitRow, key_of,
};

/// How long a reader keeps the tables while others may want them. Opening them takes some
/// milliseconds, so that most of the time is for reading.
const LEASE: Duration = Duration::from_millis(200);
/// How long it stays away then: a writer that waits looks each 20 ms.
const PAUSE: Duration = Duration::from_millis(60);
/// How long it waits for a writer that is no mount: most commands take seconds.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(20);

/// Whoever has the tables open for the reader.
enum Tenure {
    /// Nobody.
    None,
    /// This process.
    Own(Arc<Mutex<StoreWriter>>),
    /// The server that has the store, which keeps the rows and the blocks of the state.
    Server(Box<MountedState>),
}

/// Who has the tables, since when, and how many looks are under way.
struct Lease {
    tenure: Tenure,
    since: Instant,
    look_count: usize,
    given_back: Option<Instant>,
}

impl Lease {
    /// Whether others should have their turn.
    fn is_over(&self) -> bool {
        matches!(self.tenure, Tenure::Own(_)) && self.since.elapsed() >= LEASE
    }

    fn give_back(&mut self) {
        if let Tenure::Own(writer) = &self.tenure {
            let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            // Its changes are in memory, and it holds nobody up.
            if writer.store().keeps_changes_in_memory() {
                return;
            }
            drop(writer);
            self.tenure = Tenure::None;
            self.given_back = Some(Instant::now());
        }
    }
}

/// The tables of a store, for readers of snapshots.
pub struct LeasedTables {
    named: Named,
    state: String,
    lease: Mutex<Lease>,
    /// A lease was given back.
    ended: Condvar,
    own: Weak<Self>,
}

impl std::fmt::Debug for LeasedTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the tables of {}", self.named.shown())
    }
}

impl LeasedTables {
    /// The tables of the store of `named`. `state` is what a server is asked for: the volume with
    /// the name of a snapshot.
    pub fn new(named: &Named, state: &str) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            named: Named {
                store: named.store.clone(),
                dir: named.dir.clone(),
                name: named.name.clone(),
            },
            state: state.to_owned(),
            lease: Mutex::new(Lease {
                tenure: Tenure::None,
                since: Instant::now(),
                look_count: 0,
                given_back: None,
            }),
            ended: Condvar::new(),
            own: own.clone(),
        })
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a look.
    fn enter(&self) -> Result<Arc<dyn Engine>> {
        let mut lease = self.lease();
        // A server that is gone has left the tables to others.
        if let Tenure::Server(held) = &lease.tenure
            && held.held().is_over()
        {
            lease.tenure = Tenure::None;
        }
        if matches!(lease.tenure, Tenure::None) {
            self.begin(&mut lease)?;
        }
        lease.look_count += 1;
        Ok(match &lease.tenure {
            Tenure::Own(writer) => {
                let writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
                writer.engine()
            }
            Tenure::Server(held) => held.rows(),
            Tenure::None => return Err(Error::invalid("nobody has the tables")),
        })
    }

    /// Gets the tables.
    fn begin(&self, lease: &mut Lease) -> Result<()> {
        if let Some(since) = lease.given_back.map(|at| at.elapsed()) {
            std::thread::sleep(PAUSE.saturating_sub(since));
        }
        let start = Instant::now();
        loop {
            let busy = match writer_of(&self.named) {
                Ok(writer) => {
                    lease.tenure = Tenure::Own(writer);
                    lease.since = Instant::now();
                    self.watch();
                    return Ok(());
                }
                Err(error) => as_format(&error),
            };
            if busy.kind() != ErrorKind::Busy {
                return Err(busy);
            }
            if let Some(held) =
                MountedState::find(&self.named, &self.state).map_err(|error| as_format(&error))?
            {
                lease.tenure = Tenure::Server(Box::new(held));
                return Ok(());
            }
            if start.elapsed() >= PATIENCE {
                return Err(busy);
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Gives the tables back in time, also while the reader computes.
    fn watch(&self) {
        let Some(own) = self.own.upgrade() else {
            return;
        };
        let watch = move || {
            let lease = own.lease();
            let since = lease.since;
            let goes_on = |lease: &mut Lease| {
                matches!(lease.tenure, Tenure::Own(_)) && lease.since == since && !lease.is_over()
            };
            let waited = own.ended.wait_timeout_while(lease, LEASE, goes_on);
            let (mut lease, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if lease.since == since && lease.look_count == 0 {
                lease.give_back();
            }
        };
        // Without a thread, the next look gives it back.
        let _ = std::thread::Builder::new().spawn(watch);
    }

    /// Ends a look.
    fn leave(&self) {
        let mut lease = self.lease();
        lease.look_count = lease.look_count.saturating_sub(1);
        if lease.look_count == 0 && lease.is_over() {
            lease.give_back();
        }
    }

    /// Whether this look is the only one, and others should have their turn.
    fn must_leave(&self) -> bool {
        let lease = self.lease();
        lease.look_count == 1 && lease.is_over()
    }

    /// Gives the tables back now.
    pub fn give_back(&self) {
        let mut lease = self.lease();
        if lease.look_count == 0 {
            lease.give_back();
        }
        drop(lease);
        self.ended.notify_all();
    }

    /// Where the blocks `ids` lie now.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `Busy` if another process keeps the store.
    pub fn locations(&self, ids: &[BlockId]) -> Result<Vec<Location>> {
        let found = ids.iter().map(|id| {
            let value = self.get(Table::Blocks, &key_of(id.0))?;
            let value = value.ok_or_else(|| {
                let what = format!("block {id} has no row");
                Error::corrupt("store metadata", 0, "S-5.3", what)
            })?;
            Ok(BlockRow::parse(&value)?.location)
        });
        let found = found.collect();
        self.give_back();
        found
    }
}

/// The error of a library below a context of this program.
fn as_format(error: &anyhow::Error) -> Error {
    match error.downcast_ref::<Error>() {
        Some(found) => found.duplicate(),
        None => Error::invalid(format!("{error:#}")),
    }
}

/// Rows that do not change while they are read: those of a snapshot. Others may, between two looks.
impl Engine for LeasedTables {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let engine = self.enter()?;
        let value = engine.get(table, key);
        drop(engine);
        self.leave();
        value
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        let mut start = start.to_vec();
        loop {
            let mut next = None;
            let engine = self.enter()?;
            let mut look = |key: &[u8], value: &[u8]| {
                let flow = visit(key, value)?;
                if flow.is_continue() && self.must_leave() {
                    // The key behind this one.
                    next = Some([key, &[0]].concat());
                    return Ok(ControlFlow::Break(()));
                }
                Ok(flow)
            };
            let scanned = engine.scan_readable(table, &start, &mut look, damaged);
            drop(engine);
            self.leave();
            scanned?;
            match next {
                Some(next) => start = next,
                None => return Ok(()),
            }
        }
    }

    fn commit_after(&self, _: &Batch, _: &mut BeforeCommit<'_>) -> Result<()> {
        Err(Error::invalid("a snapshot does not change"))
    }

    fn row_sum(&self) -> Result<RowSum> {
        Err(Error::invalid("tables that others change have no sum"))
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        Err(Error::invalid("tables that others change have no views"))
    }
}
