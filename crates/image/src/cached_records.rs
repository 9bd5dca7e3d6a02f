//! Records found, decoded and cached: metadata pages, and blocks of file contents.
//!
//! `block_key` names a block in the cache; `partial_block` is a block that is decoded in steps;
//! `records` finds records and caches pages; `raw` decodes them with their dictionary or history;
//! `blocks` and `extents` give the blocks and the extents of contents.

pub mod block_key;
pub mod blocks;
mod extents;
pub mod partial_block;
mod raw;
pub mod records;
