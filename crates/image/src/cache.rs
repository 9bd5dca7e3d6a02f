//! One cache for any number of images: a hard limit in bytes for everything that they keep, and one
//! load for all simultaneous requests for an item.
//!
//! The cache knows no records and no images: it keeps values of any type under keys. Its files from
//! the bottom up: `hash` and `key` name an item, `shard` holds entries and chooses the one to
//! evict, `flight` merges loads, `counts` counts hits, `budget` divides the bytes, `block` recycles
//! memory, `prefetch_pool` has the threads, `shared` is the cache, `view` its typed front.
//!
//! Invariants: the entries never exceed the limit; they count from their insertion until their
//! memory is freed; no lock is held while an item is loaded or dropped.

pub mod block;
mod budget;
pub mod counts;
mod flight;
pub mod hash;
pub mod key;
pub mod prefetch_pool;
mod shard;
pub mod shared;
#[cfg(test)]
mod tests;
pub mod view;

pub use budget::{default_cache_len, page_len_max};
