//! Entries that are laid over a source.

use std::path::PathBuf;
use weald_format::{Attributes, FileKind, Timestamp};

/// What is said about one path of the tree. What is `None` stays as it is there, or gets the usual
/// value if nothing is there.
#[derive(Debug, Clone, Default)]
pub struct Addition {
    /// Path from the root of the tree, without empty names, `.` and `..`; empty for the root.
    pub path: Vec<u8>,
    /// Kind; another one replaces what is there.
    pub kind: Option<FileKind>,
    /// Attributes and mtime.
    pub given: Given,
    /// Device number.
    pub rdev: Option<u64>,
    /// Target of a symlink.
    pub target: Option<Vec<u8>>,
    /// File of the host with the contents of a regular file.
    pub contents: Option<PathBuf>,
    /// Length that the contents must have, bytes.
    pub size: Option<u64>,
    /// Where it is said, for messages.
    pub place: String,
}

/// Attributes that are given for an entry, whatever the source and the rules say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Given {
    /// Permissions.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// mtime.
    pub mtime: Option<Timestamp>,
}

impl Given {
    /// Takes what `later` gives.
    pub fn merge(&mut self, later: &Self) {
        *self = Self {
            permissions: later.permissions.or(self.permissions),
            uid: later.uid.or(self.uid),
            gid: later.gid.or(self.gid),
            mtime: later.mtime.or(self.mtime),
        };
    }

    /// The attributes of an entry that would have `attributes` otherwise.
    pub fn attributes_of(&self, attributes: Attributes) -> Attributes {
        Attributes {
            permissions: self.permissions.unwrap_or(attributes.permissions),
            uid: self.uid.unwrap_or(attributes.uid),
            gid: self.gid.unwrap_or(attributes.gid),
            ..attributes
        }
    }
}
