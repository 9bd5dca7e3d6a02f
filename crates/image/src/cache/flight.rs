//! Loads in progress: a request for an item that another thread is loading waits for that load.

use super::key::{Key, Value};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

/// Tables of loads, so that two threads seldom need the same lock.
const TABLE_COUNT: usize = 16;

/// All loads in progress.
pub struct Flights {
    tables: [Mutex<HashMap<Key, Arc<Flight>>>; TABLE_COUNT],
}

/// One load.
struct Flight {
    loader: ThreadId,
    state: Mutex<FlightState>,
    has_ended: Condvar,
}

#[derive(Clone)]
enum FlightState {
    Loading,
    Loaded(Value),
    Failed,
}

/// How a request proceeds.
pub enum Entered<'a> {
    /// The item is loaded.
    Loaded(Value),
    /// Another thread tried to load the item and failed.
    Failed,
    /// The caller must load the item; other requests wait for it.
    Own(OwnFlight<'a>),
    /// The calling thread is loading the item already, so that the item needs itself. This happens
    /// only in a damaged image; the caller reports it.
    InItself,
}

/// The duty to load an item. Dropping it wakes the waiting requests.
pub struct OwnFlight<'a> {
    flights: &'a Flights,
    key: Key,
    flight: Arc<Flight>,
    outcome: FlightState,
}

impl OwnFlight<'_> {
    /// Hands the loaded value to all waiting requests.
    pub fn publish_to_waiters(mut self, value: Value) {
        self.outcome = FlightState::Loaded(value);
    }
}

impl Drop for OwnFlight<'_> {
    fn drop(&mut self) {
        self.flights.table(&self.key).lock().remove(&self.key);
        let outcome = std::mem::replace(&mut self.outcome, FlightState::Failed);
        *self.flight.state.lock() = outcome;
        self.flight.has_ended.notify_all();
    }
}

impl Flights {
    /// No loads.
    pub fn new() -> Self {
        Self {
            tables: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn table(&self, key: &Key) -> &Mutex<HashMap<Key, Arc<Flight>>> {
        let [first, ..] = &self.tables;
        let index = (key.mixed() >> 32) as usize % TABLE_COUNT;
        self.tables.get(index).unwrap_or(first)
    }

    /// Waits for the load of `key` if there is one. Otherwise returns what `lookup` finds in the
    /// cache by now, or makes the load the caller's duty.
    pub fn enter(&self, key: &Key, lookup: impl FnOnce() -> Option<Value>) -> Entered<'_> {
        let mut table = self.table(key).lock();
        if let Some(flight) = table.get(key).cloned() {
            drop(table);
            return flight.wait();
        }
        // A load that ended since the caller's last lookup is in the cache, or did not fit.
        if let Some(value) = lookup() {
            return Entered::Loaded(value);
        }
        let flight = Arc::new(Flight {
            loader: std::thread::current().id(),
            state: Mutex::new(FlightState::Loading),
            has_ended: Condvar::new(),
        });
        table.insert(*key, flight.clone());
        Entered::Own(OwnFlight {
            flights: self,
            key: *key,
            flight,
            outcome: FlightState::Failed,
        })
    }
}

impl Flight {
    fn wait(&self) -> Entered<'static> {
        if self.loader == std::thread::current().id() {
            return Entered::InItself;
        }
        let mut state = self.state.lock();
        self.has_ended
            .wait_while(&mut state, |state| matches!(state, FlightState::Loading));
        match &*state {
            FlightState::Loaded(value) => Entered::Loaded(value.clone()),
            FlightState::Failed | FlightState::Loading => Entered::Failed,
        }
    }
}
