//! One server process for many mounts: its requests, how clients find it, and how its mounts move
//! to a new process.
//!
//! Neighbours: `fuse` serves each mount, `image` reads, and `cli` has the command line. This crate
//! never prints.
//!
//! The modules; each uses only those above it here:
//!
//! 1. `report` and `prometheus` say what a server does, `message` is the protocol, `byte_frames`
//!    are its long answers, `volume_options` are the words of `-o` for volumes.
//! 2. `runtime_dir` is the directory of the sockets; `mount_lock` waits for the end of a mount.
//!    `place` says where a mount is, `pulse` whether a server works.
//! 3. `opened_request` is a request with open files, `served` one mount.
//! 4. `client` sends requests, `mount_server` those about one mount, `held_volume` that of a seal.
//! 5. `shared` has the mounts of a server, `remembered` keeps their list; `hand_over/give` passes
//!    them on; `hold` keeps a state of a volume for a seal; `beside` mounts a volume whose store is
//!    open.
//! 6. `connection` answers one client, `server` accepts clients, `hand_over` starts a server with
//!    the mounts of another.
//!
//! Invariants:
//! 1. Sockets are created and removed only under the lock of their [`RuntimeDir`], so that no
//!    server removes the socket of another.
//! 2. A mount is in the list from its success to its end. Its lock ends last, when
//!    the server has released the mount.
//! 3. No lock is held while an image is opened, mounted, paused or closed. One that blocks does not
//!    block the others.
//! 4. During a hand-over at most one process reads requests of the kernel, and this process also
//!    answers them.
//! 5. A client opens the image and the mount point, and the server uses these descriptors. Paths in
//!    a request serve only for display, for the search for base images, and for opening the files
//!    again in a hand-over. The image digest and the mount id must then be unchanged.
#![forbid(unsafe_code)]

mod beside;
mod byte_frames;
mod client;
mod connection;
mod followed;
mod hand_over;
mod held_volume;
mod hold_server;
mod message;
mod mount_lock;
mod mount_server;
mod opened_request;
mod place;
mod prometheus;
mod pulse;
mod remembered;
mod report;
mod runtime_dir;
mod served;
mod server;
mod shared;
mod snapshot_work;
mod store_change;
mod store_owner;
mod store_request;
mod volume_mount;
mod volume_options;

pub use client::{Started, attach, join, mount, reports, space_reports};
pub use hand_over::{start_lasting, take_over};
pub use held_volume::{HeldVolume, ImageSender};
pub use message::{MountRequest, PROTOCOL, Prefetch};
pub use mount_lock::StoreLock;
pub use mount_server::MountServer;
pub use opened_request::OpenedRequest;
pub use place::MountPlace;
pub use prometheus::prometheus;
pub use pulse::{Pulse, PulseWatch};
pub use report::{
    CacheReport, MountReport, OperationReport, Quantile, ServerReport, VolumeProperties,
    VolumeReport,
};
pub use runtime_dir::RuntimeDir;
pub use server::Server;
pub use shared::{ServerOptions, log_to};
pub use snapshot_work::{SnapshotReport, SnapshotSpaceReport, SnapshotWork, work_alone};
pub use store_owner::path_belongs_to_root_alone;
pub use store_request::{
    collect, commit, move_tiers, remove_image, rename_image, work_on_snapshots,
};
pub use volume_mount::is_volume;
pub use volume_options::VolumeMountOptions;
