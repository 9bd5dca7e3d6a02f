//! Reading file contents: from a file offset to bytes.
//!
//! `extent_map` finds where bytes lie, without decoding; `extent_groups` sorts the extents of a
//! read by block; `access_pattern` detects sequential readers and `decode_goal` says how much of a
//! block a reader needs; `prefetch` plans what to decode before it is requested; `contents` reads;
//! `decode_cost` computes what a read would decode; `decode_ahead` plans for programs that read
//! everything.

pub mod access_pattern;
pub mod contents;
pub mod decode_ahead;
pub mod decode_cost;
pub mod decode_goal;
pub mod extent_groups;
pub mod extent_map;
pub mod prefetch;
