//! Byte layouts of the Weald format: records, columns, limits. This crate does no I/O.
//!
//! `docs/format.md` is normative; this crate is its first reader and writer.
//!
//! ```
//! use weald_format::Digest;
//!
//! let digest = Digest::of(b"the bytes of a block");
//! assert_eq!(Digest::from_hex(&digest.to_string()), Some(digest));
//! ```
#![forbid(unsafe_code)]
// Parsers never panic on untrusted bytes. Encoders see only values that this program made; each
// function that relies on this says so.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable
    )
)]

pub mod acl;
pub mod bucket;
pub mod column;
pub mod container;
pub mod copies;
pub mod cursor;
pub mod directory;
pub mod entries;
pub mod error;
pub mod history;
mod ids;
pub mod inode_flags;
pub mod journal;
pub mod label;
pub mod limits;
mod log_parity;
pub mod log_record;
pub mod names;
pub mod pages;
pub mod recipes;
pub mod replica;
pub mod row_group;
pub mod sealed_text;
pub mod segment_note;
pub mod snapshot;
pub mod store;
pub mod sync_log;
pub mod tree_digest;
pub mod types;
pub mod volume;

pub use acl::{ACL_ACCESS, ACL_DEFAULT, Ids, permissions_without, permissions_without_acl};
pub use error::{Error, ErrorKind, ErrorPlace, Result};
pub use ids::{
    BlockId, CommitNo, Cookie, ImageNo, Ino, RecordNo, SegmentNo, SnapshotNo, VolumeCommitNo,
    VolumeNo, WindowNo,
};
pub use inode_flags::InodeFlags;
pub use types::*;
