//! Hotness: which files, blocks and records a workload used.
//!
//! `text` is the file format, `recorder` the notes that reads take.

pub mod recorder;
pub mod text;
