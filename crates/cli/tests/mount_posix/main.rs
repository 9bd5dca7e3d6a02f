//! What the read-only cases of pjdfstest and xfstests ask of a file system: every row is asked of a
//! mount and of the same tree on ext4, mounted read-only, and both must say the same, errno
//! included. Runs as root, needs `/dev/fuse` and loop devices.
#![allow(missing_docs)]

mod files;
mod handles;
mod paths;
mod permissions;
mod sides;
