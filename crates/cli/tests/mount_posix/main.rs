//! The read-only cases of pjdfstest and xfstests. Every case runs on a mount and on the same tree
//! on a read-only ext4; results and errno must be equal. Needs root, `/dev/fuse` and loop devices.
#![allow(missing_docs)]

mod files;
mod handles;
mod paths;
mod permissions;
mod sides;
