//! Warm-up: recording the hotness of a workload, and decoding ahead by a recorded one.

mod recording;
pub mod replay;
