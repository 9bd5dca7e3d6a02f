//! A mount to make.

use crate::handshake::Wishes;
use crate::mount_point::MountPoint;
use crate::options::{Access, MountOptions};
use crate::writable_options::{BlockUse, LiveOptions};
use std::ffi::OsStr;
use weald_format::ByteLen;

/// A mount to make.
pub(crate) struct Plan<'a> {
    /// Default source in `/proc/mounts`.
    pub(crate) source: &'a OsStr,
    pub(crate) point: &'a MountPoint,
    pub(crate) options: &'a MountOptions,
    /// Users that may access the mount.
    pub(crate) access: Access,
    pub(crate) is_read_only: bool,
    pub(crate) live: LiveOptions,
    /// Whether the mount has a block device.
    pub(crate) block: BlockUse,
    pub(crate) wishes: Wishes,
    pub(crate) read_ahead_len: ByteLen,
}
