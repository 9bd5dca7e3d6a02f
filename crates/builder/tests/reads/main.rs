//! How images are read: what is decoded, ahead of readers, kept and shared.
#![allow(missing_docs)]

mod ahead;
mod cost;
mod growing;
mod hot_start;
mod shared_cache;
mod through;
