//! Volumes: trees that can change, in a store, which lose nothing that was synced.
//!
//! Modules from bottom to top: `options`, `layer` (changes in memory), `state` (all layers),
//! `ahead`, `tables` (committed rows), `cache` (decoded blocks) → `open_store` (parts that the
//! volumes of a store share) → `core` (how a row is found) → `climb` (walks along parents),
//! `properties`, `quotas` → `namespace`, `content`, `xattr` (operations), `trim` → `index`,
//! `parallel`, `cut` (where runs begin), `rebuild`, `garbage` (blocks that are used in part),
//! `commit` (a layer becomes durable), `delta` and `logger` (the sync log) → `create`, `check`
//! → `preload`, `volume` → `import` (of an image). `reader` reads the tables alone.
//! `docs/design/0025-volume.md` has the reasons, `docs/format.md` the rows.
//!
//! Neighbours: `vfs` has the trait [`weald_vfs::WritableFs`], `store` the blocks and tables, `fuse`
//! mounts it.
#![forbid(unsafe_code)]

mod ahead;
mod background;
mod cache;
mod changes;
mod check;
mod climb;
mod commit;
mod content;
mod core;
mod create;
mod cut;
mod delta;
mod flags;
mod followed;
mod garbage;
mod holds;
#[cfg(test)]
mod hook;
mod import;
mod index;
mod layer;
mod logger;
mod namespace;
mod open_store;
mod options;
mod parallel;
mod part;
mod pins;
mod prefetch;
mod preload;
pub mod properties;
mod quotas;
mod reader;
mod rebuild;
mod replicate;
pub mod retention;
mod salvage;
mod scrub;
mod signal;
#[cfg(test)]
mod simulation;
mod snapshot_dir;
mod state;
mod synced_replicas;
mod tables;
#[cfg(test)]
mod tests;
mod trim;
mod volume;
mod xattr;

pub use check::{CheckOptions, Finding, Report, StoreReport, check, check_store};
pub use create::{VolumeInfo, create, list, remove};
pub use followed::{FollowedStore, FollowedVolume};
pub use import::{ImportObserver, ImportSource, VolumeImport, create_from};
pub use index::BlockPlace;
pub use open_store::OpenStore;
pub use options::PlantedBug;
pub use options::{CHUNK_LEN_MAX, CHUNK_LEN_MIN, Chunking, OpenOptions, SyncMode};
pub use options::{VolumeOptions, WindowSteps};
pub use part::{Levels, ShownPath};
pub use pins::{VolumePart, blocks_of, pin_all};
pub use reader::{FileExtent, VolumeReader, volume_row};
pub use salvage::salvage_store;
pub use scrub::{ScrubEnd, scrub_alone};
pub use snapshot_dir::WithSnapshots;
pub use volume::{
    Adding, CollectStep, Collecting, Hold, PolicyStep, Removing, Settled, Status, TierMove, Volume,
    apply_sync_log, look_for_pins, move_alone, move_between_tiers, settle_all,
};
