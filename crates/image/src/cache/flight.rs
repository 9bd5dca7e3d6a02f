//! Loads under way: who asks for what is being loaded waits for that one load.

use super::{Key, Value};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

/// Tables of loads, so that threads seldom meet at one lock.
const TABLE_COUNT: usize = 16;

/// Loads under way.
pub struct Flights {
    tables: [Mutex<HashMap<Key, Arc<Flight>>>; TABLE_COUNT],
}

/// One load.
struct Flight {
    loader: ThreadId,
    state: Mutex<State>,
    is_over: Condvar,
}

#[derive(Clone)]
enum State {
    Loading,
    Landed(Value),
    Failed,
}

/// How a request goes on.
pub enum Waited<'a> {
    /// Somebody has loaded it.
    There(Value),
    /// Somebody tried and failed.
    Failed,
    /// The caller loads it, and others wait for that.
    Own(OwnFlight<'a>),
    /// The caller is loading it already: what it loads needs itself. Only damage can be like that,
    /// and whoever meets it says so.
    InItself,
}

/// The right and the duty to load; who waits is woken when it is dropped.
pub struct OwnFlight<'a> {
    flights: &'a Flights,
    key: Key,
    flight: Arc<Flight>,
    outcome: State,
}

impl OwnFlight<'_> {
    /// Hands what was loaded to all who wait.
    pub fn land(mut self, value: Value) {
        self.outcome = State::Landed(value);
    }
}

impl Drop for OwnFlight<'_> {
    fn drop(&mut self) {
        self.flights.table(&self.key).lock().remove(&self.key);
        let outcome = std::mem::replace(&mut self.outcome, State::Failed);
        *self.flight.state.lock() = outcome;
        self.flight.is_over.notify_all();
    }
}

impl Flights {
    /// None yet.
    pub fn new() -> Self {
        Self {
            tables: std::array::from_fn(|_| Mutex::default()),
        }
    }

    fn table(&self, key: &Key) -> &Mutex<HashMap<Key, Arc<Flight>>> {
        let [first, ..] = &self.tables;
        let place = (key.mixed() >> 32) as usize % TABLE_COUNT;
        self.tables.get(place).unwrap_or(first)
    }

    /// Waits for the load of `key`, or makes it the caller's, unless `look` finds it by now.
    pub fn enter(&self, key: &Key, look: impl FnOnce() -> Option<Value>) -> Waited<'_> {
        let mut table = self.table(key).lock();
        if let Some(flight) = table.get(key).cloned() {
            drop(table);
            return flight.wait();
        }
        // What landed since the caller looked is there, or never will be.
        if let Some(value) = look() {
            return Waited::There(value);
        }
        let flight = Arc::new(Flight {
            loader: std::thread::current().id(),
            state: Mutex::new(State::Loading),
            is_over: Condvar::new(),
        });
        table.insert(*key, flight.clone());
        Waited::Own(OwnFlight {
            flights: self,
            key: *key,
            flight,
            outcome: State::Failed,
        })
    }
}

impl Flight {
    fn wait(&self) -> Waited<'static> {
        if self.loader == std::thread::current().id() {
            return Waited::InItself;
        }
        let mut state = self.state.lock();
        self.is_over
            .wait_while(&mut state, |state| matches!(state, State::Loading));
        match &*state {
            State::Landed(value) => Waited::There(value.clone()),
            State::Failed | State::Loading => Waited::Failed,
        }
    }
}
