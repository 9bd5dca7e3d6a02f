//! Signals that wake the thread that commits a volume, and those that wait for it.

use parking_lot::{Condvar, Mutex};
use std::sync::atomic::AtomicBool;

/// Wakes the thread that commits, and those that wait for a commit.
#[derive(Debug, Default)]
pub struct Signal {
    /// Whether the thread that commits has work.
    pub wake: Mutex<bool>,
    /// Wakes that thread.
    pub waker: Condvar,
    /// Wakes those that wait for memory.
    pub progress: Condvar,
    /// Whether the volume is being closed.
    pub is_closing: AtomicBool,
    /// Number of syncs that make changes durable. The others wait for the end of one.
    pub syncing: Mutex<usize>,
    /// Wakes those that wait for a sync.
    pub synced: Condvar,
}

impl Signal {
    /// Wakes the thread that commits.
    pub fn wake_committer(&self) {
        *self.wake.lock() = true;
        self.waker.notify_all();
    }

    /// Wakes all that wait, after a failure.
    pub fn wake_waiting(&self) {
        self.progress.notify_all();
        self.notify_synced();
    }

    /// Wakes the threads that wait for records.
    pub fn notify_synced(&self) {
        // A thread that has seen the old state waits by now.
        drop(self.syncing.lock());
        self.synced.notify_all();
    }
}
