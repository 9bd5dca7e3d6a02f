//! Shared code of the tests of all crates: trees with every feature, a comparison of trees, seeded
//! random numbers, a load for crashes, a reader of metrics, the real binary, a directory for
//! mounts, servers of objects and a slow link to them.
//!
//! Neighbours: it depends on `sys` only and knows nothing about images. So its findings do not rely
//! on the code under test. It needs root (devices, owners, trusted xattrs), and rsync(1) for
//! [`compare`](compare::compare).
#![forbid(unsafe_code)]

pub mod command;
pub mod compare;
pub mod crash_load;
pub mod exposition;
pub mod jpeg;
pub mod link;
pub mod mounts;
pub mod oci;
mod program;
pub mod rng;
pub mod servers;
pub mod torture;

pub use compare::{CompareOptions, compare};
pub use rng::Rng;
