//! Serves an image, or a file system that can change, through FUSE. The crate translates the
//! kernel's requests into calls of the reader or of a [`weald_vfs::WritableFs`].
//!
//! Neighbours: [`weald_image`] reads and verifies, `weald_vfs` maps errors to errno values,
//! `weald_sys` opens the device.
//!
//! Invariants:
//! 1. A node id is an inode number, so the crate needs no inode table.
//! 2. The tree of an image never changes, so the kernel may cache every answer. A file system that
//!    changes does so through the kernel only.
//! 3. A failure is the answer to one request. It never ends the session.
#![forbid(unsafe_code)]

mod acl;
mod answer;
mod attr;
mod block_device;
mod busy;
mod caller;
mod dead;
mod device_no;
mod driver;
mod ending;
mod faults;
mod fusermount;
mod handshake;
mod holders;
mod listing;
mod listing_cache;
mod metadata_tree;
mod mount;
mod mount_point;
mod mount_table;
mod mount_writable;
mod nodes;
mod options;
mod plan;
mod reads;
mod request;
mod seats;
mod session;
mod stats;
mod syncs;
mod trace;
mod tree;
mod verity;
mod view;
mod wire;
mod words;
mod worker;
mod writable;
mod writable_options;

pub use attr::Overrides;
pub use busy::Busy;
pub use dead::{is_dead, mount_at, path_of, take_away_dead};
pub use device_no::DeviceNo;
pub use handshake::Negotiated;
pub use holders::{
    Holder, Identity, holder, holders_elsewhere, is_mounted_here, shown_holders, users_of,
};
pub use metadata_tree::MetadataTree;
pub use mount::{
    Mount, Paused, Unmounter, abort, device_of, is_automount, is_fuse, mount, mount_detached,
    mount_on, resume, shown_source, unmount,
};
pub use mount_point::MountPoint;
pub use mount_table::{MountEntry, mount_table};
pub use mount_writable::mount_writable;
pub use options::{Access, KernelOptions, MountOptions, UrlOptions, size as parse_size};
pub use stats::{Counters, OperationCount};
pub use syncs::RUNNING_SYNCS_MAX;
pub use trace::Trace;
pub use tree::{Capacity, Features, Tree, VisitEntry};
pub use writable_options::{AccessTime, BlockUse, LiveOptions, WritableOptions};
