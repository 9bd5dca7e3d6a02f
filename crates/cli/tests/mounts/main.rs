//! Many mounts in one server: start, end, reports, and hand-over to another server. Needs root and
//! `/dev/fuse`. Orphans become children of this process, which never waits for them, like a
//! careless init.
#![allow(missing_docs)]

#[cfg(feature = "exports")]
mod exports;
mod ground;
mod hand_over;
mod life_cycle;
mod owners;
mod self_mounting;
mod swaps;
mod twins;
mod users;
mod words;
