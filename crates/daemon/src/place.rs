//! Where a mount is, in words that all commands share.

use std::path::PathBuf;
use weald_fuse::{Holder, Identity, holders_elsewhere, is_mounted_here, shown_holders};

/// Where a mount of a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountPlace {
    /// In our mount namespace, on this directory.
    Here(PathBuf),
    /// In other mount namespaces only, in which these processes are.
    Elsewhere(Vec<Holder>),
    /// In no namespace that we can see; a process may have a file of it open.
    Nowhere,
    /// The kernel has no mount any more: the server closes what it had mounted.
    Closing,
}

impl MountPlace {
    /// The place of the mount `what`. `is_over` says whether the kernel has ended its connection.
    pub fn of(what: &Identity, is_over: bool) -> Self {
        if is_over {
            return Self::Closing;
        }
        if is_mounted_here(what) {
            return Self::Here(what.dir.clone());
        }
        match holders_elsewhere(what) {
            holders if holders.is_empty() => Self::Nowhere,
            holders => Self::Elsewhere(holders),
        }
    }

    /// What is so, after the name of an image or a volume; `server` is the process that serves it.
    pub fn describe(&self, server: u32) -> String {
        match self {
            Self::Here(dir) => format!("is mounted on {} by process {server}", dir.display()),
            Self::Elsewhere(holders) => format!(
                "is mounted in another mount namespace, such as a container, by {}, and served by \
                 process {server}",
                shown_holders(holders)
            ),
            Self::Nowhere => format!(
                "is unmounted, but still in use, by an open file perhaps, and served by process \
                 {server}"
            ),
            Self::Closing => format!("is being closed by process {server}"),
        }
    }
}
