//! Many mounts of one server: how it begins and ends, what it tells, how another takes its mounts
//! over. Runs as root, needs `/dev/fuse`. Orphans become children of this process, which never
//! waits for them, as under a careless init.
#![allow(missing_docs)]

#[cfg(feature = "exports")]
mod exports;
mod ground;
mod hand_over;
mod lives;
mod swaps;
mod users;
mod words;
