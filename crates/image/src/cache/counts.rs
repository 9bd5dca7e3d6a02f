//! Counters of hits and misses that many threads increment without contending for a cache line.

use serde::Serialize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Stripes of a counter; a thread always uses the same one.
const STRIPE_COUNT: usize = 16;

/// Size, use and hit count of a cache.
#[derive(Debug, Serialize, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Limit of the cache in bytes.
    pub len_max: u64,
    /// Bytes in use, those of the cache's own tables included.
    pub used_len: u64,
    /// Requests for blocks and pages that the cache could answer.
    pub hit_count: u64,
    /// Requests for blocks and pages that had to load them.
    pub miss_count: u64,
}

/// Counters in one cache line.
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
    /// Counts one hit or one miss.
    pub fn count(&self, is_hit: bool) {
        let stripe = STRIPE.with(|no| self.0.get(*no));
        let Some(stripe) = stripe else { return };
        let counter = if is_hit { &stripe.hits } else { &stripe.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns `counts` plus these hits and misses.
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
