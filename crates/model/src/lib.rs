//! A file system in memory that is right because it is simple. Tests compare the volume with it.
//!
//! Modules from bottom to top: `pages` (contents), `fs` ([`ModelFs`]), `names` and `files` (its
//! operations).
//!
//! Neighbours: `vfs` has the trait [`weald_vfs::WritableFs`]. Only tests use this crate.
#![forbid(unsafe_code)]

mod files;
mod fs;
mod names;
mod pages;
#[cfg(test)]
mod tests;

pub use fs::ModelFs;
