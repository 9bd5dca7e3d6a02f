//! What the disks of one simulated machine share, and the time that they take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a disk takes for a call, in nanoseconds of the clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct Latency {
    /// Of each call.
    pub call_ns: u64,
    /// Of each call that makes something durable, besides.
    pub sync_ns: u64,
    /// Of each byte that is read or written, besides.
    pub byte_ns: u64,
}

/// What the disks of one machine share: the power and the clock.
#[derive(Debug, Default)]
pub struct Machine {
    pub is_off: AtomicBool,
    now_ns: AtomicU64,
}

impl Machine {
    pub fn at(now_ns: u64) -> Arc<Self> {
        Arc::new(Self {
            is_off: AtomicBool::new(false),
            now_ns: AtomicU64::new(now_ns),
        })
    }

    pub fn is_off(&self) -> bool {
        self.is_off.load(Ordering::SeqCst)
    }

    pub fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    pub fn wait(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::SeqCst);
    }
}
