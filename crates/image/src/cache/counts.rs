//! Hits and misses, counted by many threads without taking a line of memory from each other.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads that count in places of their own.
const STRIPE_COUNT: usize = 16;

/// What a cache holds and what it was good for.
#[derive(Debug, Serialize, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Bytes that the cache may keep.
    pub len_max: u64,
    /// Bytes that it keeps, with what its own tables cost.
    pub used_len: u64,
    /// Blocks and pages that were there when somebody asked for them.
    pub hit_count: u64,
    /// Blocks and pages that had to be loaded.
    pub miss_count: u64,
}

/// One line of memory.
#[derive(Default)]
#[repr(align(64))]
struct Stripe {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Counters of hits and misses.
#[derive(Default)]
pub struct HitCounts([Stripe; STRIPE_COUNT]);

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: usize = NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) % STRIPE_COUNT;
}

impl HitCounts {
    /// Counts one of them.
    pub fn count(&self, is_hit: bool) {
        let stripe = STRIPE.with(|no| self.0.get(*no));
        let Some(stripe) = stripe else { return };
        let counter = if is_hit { &stripe.hits } else { &stripe.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// `counts` with these hits and misses besides.
    pub fn add_to(&self, mut counts: CacheCounts) -> CacheCounts {
        for stripe in &self.0 {
            let (hits, misses) = (&stripe.hits, &stripe.misses);
            counts.hit_count = counts
                .hit_count
                .saturating_add(hits.load(Ordering::Relaxed));
            counts.miss_count = counts
                .miss_count
                .saturating_add(misses.load(Ordering::Relaxed));
        }
        counts
    }
}
