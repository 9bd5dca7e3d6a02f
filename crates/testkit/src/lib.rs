//! What tests of all rooms share: trees that have everything, a comparison of trees, seeded
//! randomness, the real binary, a ground to mount images on.
//!
//! Neighbours: it stands on `sys` only and knows nothing of images, so that what it finds does not
//! rest on the code under test. It needs root (devices, owners, trusted xattrs), and rsync(1) for
//! [`compare`](compare::compare).
#![forbid(unsafe_code)]

pub mod command;
pub mod compare;
pub mod jpeg;
pub mod mounts;
pub mod rng;
pub mod torture;

pub use compare::{CompareOptions, compare};
pub use rng::Rng;
