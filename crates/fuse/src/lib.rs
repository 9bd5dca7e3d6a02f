//! Serves an image through FUSE: translates the kernel's requests into calls of the reader, and nothing more.
//!
//! Neighbours: [`weald_image`] reads and verifies, `weald_vfs` knows the errno, `fuser` speaks the protocol.
//!
//! Invariants: a node id is an inode number, so that there is no table of inodes; nothing is ever changed, so that the
//! kernel may keep every answer; a failure is the answer to one request and never ends the session.
#![forbid(unsafe_code)]

mod attr;
mod driver;
mod faults;
mod fusermount;
mod mount;
mod options;
mod presence;
mod tree;
mod view;

pub use attr::Overrides;
pub use mount::{Busy, Mount, Unmounter, device_of, is_fuse, mount, unmount};
pub use options::{Access, MountOptions};
pub use presence::{Presence, Watch};
pub use tree::{Capacity, Features, Tree, VisitEntry};
