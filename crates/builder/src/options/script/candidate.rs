//! An entry as a script sees it.

use weald_format::{Attributes, FileKind, Timestamp};

/// The facts about an entry that a script gets.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Path from the root of the source.
    pub path: &'a [u8],
    /// Kind.
    pub kind: FileKind,
    /// Bytes of a regular file or a symlink's target.
    pub size: u64,
    /// The low 12 bits of its mode.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of content.
    pub mtime: Timestamp,
}

impl<'a> Candidate<'a> {
    /// The entry at `path`. `size` is used for regular files and symlinks only.
    pub fn new(
        path: &'a [u8],
        kind: FileKind,
        size: u64,
        attributes: &Attributes,
        mtime: Timestamp,
    ) -> Self {
        let has_size = matches!(kind, FileKind::Regular | FileKind::Symlink);
        Self {
            path,
            kind,
            size: if has_size { size } else { 0 },
            permissions: attributes.permissions,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime,
        }
    }
}
