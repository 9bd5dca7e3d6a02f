//! Whole builds, through the library.
#![allow(missing_docs)]

mod append;
mod base;
mod changes;
mod cluster;
mod deflate;
mod dictionary;
mod jpeg;
mod levels;
mod limits;
mod order;
mod pcm;
mod png;
mod reproducible;
mod rewrite;
mod salvage;
mod store;
mod support;
