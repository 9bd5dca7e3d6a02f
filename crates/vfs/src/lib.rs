//! (being written)
#![forbid(unsafe_code)]

pub mod errno;
