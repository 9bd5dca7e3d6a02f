//! One server for many mounts: what clients ask of it, how they find it, how another process takes
//! its mounts over.
//!
//! Neighbours: `fuse` serves each mount, `image` reads; `cli` has the words. It never prints.
//!
//! Invariants:
//! 1. A socket is made and taken away only under the lock of its [`Place`], so that no server takes
//!    away another's.
//! 2. A mount is in the list exactly from its success to its end; its presence ends last, when
//!    nothing of it is held any more.
//! 3. No lock is held while an image is opened, mounted, paused or closed: one that hangs holds up
//!    nobody else.
//! 4. While mounts are handed over, one process at most reads requests of the kernel, and it is the
//!    one that will answer.
//! 5. A client opens the image and the mount point, and the server uses what was opened: paths of
//!    a request are only shown, searched for base images, and opened again in a take-over, where
//!    the image digest and the mount's number must be what they were.
#![forbid(unsafe_code)]

mod client;
mod hand_over;
mod message;
mod opened_request;
mod place;
mod presence;
mod prometheus;
mod report;
mod served;
mod server;

pub use client::{Started, attach, mount, reports};
pub use hand_over::{start_lasting, take_over};
pub use message::{MountRequest, PROTOCOL, Prefetch};
pub use opened_request::OpenedRequest;
pub use place::{Place, default_dir};
pub use presence::Watch;
pub use prometheus::prometheus;
pub use report::{CacheReport, MountReport, OperationReport, Quantile, ServerReport};
pub use server::{Server, ServerOptions, log_to};
