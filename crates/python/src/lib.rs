//! The compiled half of the Python package `weald`: images as objects that answer about one path or
//! one entry at a time.
//!
//! Neighbours: `image` reads, `vfs` resolves paths. `python/weald` above makes files, walks and a
//! file system for fsspec of these answers; it knows about forks and pickles, and this crate does
//! not. While an image is read, other threads of Python run.
#![forbid(unsafe_code)]

mod errors;
mod node;
mod opened;
mod process;

use pyo3::prelude::*;

/// The module `weald._weald`.
#[pymodule]
mod _weald {
    #[pymodule_export]
    use crate::node::Node;
    #[pymodule_export]
    use crate::opened::{Opened, generations};
}
