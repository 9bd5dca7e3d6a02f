//! Storing each part of a content once.
//!
//! `samples` chooses positions by their content; `match_table` finds earlier data by them;
//! `look_back` holds the earlier bytes of a stream for comparison; `segmenter` cuts new data into
//! repeats and fresh bytes, and those into blocks.

pub mod look_back;
pub mod match_table;
pub mod samples;
pub mod segmenter;
