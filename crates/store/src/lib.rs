//! The store keeps each block of many images once.
//!
//! Modules from bottom to top: [`disk`] (files, and their state after a crash) → [`engine`]
//! (tables) → `segment` (records in files) → `store` (the view of readers) and `image` (an
//! image that is read like a file) → `writer` (the single writer) → `incoming`, `import`,
//! `addition`, `remove`, `replace`, `collect`, `check`, `sync_log` → `tail`, `recover` and
//! `salvage`.
//! `docs/design/0023-store.md` gives the reasons for this design, `docs/format.md` the layout of
//! the files.
//!
//! Neighbours: `format` declares the bytes, `io` has `ReadAt`, and the image reader opens an image
//! that this crate finds. This crate decodes no block.
//!
//! An image of a store is opened as `STORE:NAME` by the crate `weald-image`. The store itself:
//!
//! ```
//! use weald_store::StoreLocation;
//!
//! # fn main() -> weald_format::Result<()> {
//! # let dir = tempfile::tempdir().expect("a directory");
//! # let path = dir.path().join("store");
//! # weald_store::StoreLocation::from(&*path).create([7; 16], 1 << 26)?;
//! let store = StoreLocation::from(&*path).open()?;
//! for name in store.names()? {
//!     println!("{}:{name}", path.display());
//! }
//! # assert!(store.names()?.is_empty());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod addition;
mod barriers;
mod block_users;
mod check;
mod collect;
mod collect_all;
mod collection;
mod content_digests;
mod damaged_blocks;
pub mod disk;
pub mod engine;
mod far_objects;
pub mod faults;
mod held_blocks;
mod hex;
mod image;
mod import;
mod incoming;
mod index;
mod journal;
mod layout;
mod location;
mod lock_holders;
mod mark;
mod name;
mod named_rows;
mod newest_snapshots;
mod recover;
mod remove;
mod rename;
mod replace;
mod replica;
mod reserve;
mod role;
pub mod row_cache;
mod salvage;
pub mod scrub;
mod sealed_text;
mod segment;
mod shown;
#[cfg(any(test, feature = "planted-bugs"))]
pub mod simulated_disk;
#[cfg(test)]
mod simulation;
mod snapshot;
mod state_files;
mod steps;
mod store;
mod superblock;
mod superblock_files;
mod sync_log;
pub mod tier;
mod undo;
mod users;
mod volume;
mod writer;
mod writer_lock;

pub use addition::{Addition, NewPart, PartsParser, PartsWriter};
pub use check::{BlockStates, Checked, CheckedLog, Finding};
pub use collect::{CollectOptions, Collected};
pub use collection::{Collection, NextCopy, Sorting};
pub use held_blocks::HeldBlocks;
pub use image::{FindBlocks, StoredImage};
pub use import::read_parts;
pub use incoming::{Imported, Incoming, PartSink, PartsInMemory};
pub use layout::{LOCK as LOCK_FILE, ObjectKind, ObjectName, check_name};
pub use location::StoreLocation;
pub use name::{find, is_store, split, split_state};
pub use remove::Removal;
pub use rename::IfTaken;
pub use replace::ImageLock;
pub use replica::{
    AsOf, BucketObjects, BucketPlace, DirPlace, FollowOptions, Followed, Place, PlaceLocation,
    PromoteOptions, Promoted, Pruned, Receiving, ReplicaSettings, ReplicaState, ReplicaStatus,
    RestoredStore, Scrubbed, SendOptions, Sent, StandbyOptions, StandbyStatus, Unsent,
    UnsentVolume, Verified, WhenLost, receive, replica_states, restore_store, verify_replica,
};
pub use role::Role;
pub use salvage::{
    DamagedImage, DamagedVolume, LastCommit, Loss, Names, SalvageOptions, Salvaged, path_of,
};
pub use snapshot::{
    Snapshot, SnapshotLock, SnapshotSpace, SnapshotSpaces, SnapshotStep, SnapshotView,
    changed_rows, check_snapshot_name, removed_snapshot_count, snapshot, snapshots,
};
pub use steps::Steps;
pub use store::{ImageInfo, SEGMENT_LEN_DEFAULT, Store, StoreInfo};
pub use sync_log::{DAMAGED_LOG_HINT, SYNCS_MAX, SyncLog, SyncLogRecords, WrittenRecord};
pub use volume::{BlockReader, Dead};
pub use writer::{BlockIndex, StoreWriter, WriteOptions};
pub use writer_lock::READER_OF_VOLUME;
