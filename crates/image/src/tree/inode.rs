//! Inodes as callers see them.

use std::ops::ControlFlow;
use weald_format::{
    Attributes, ByteLen, ContentId, EntryIndex, FileKind, InodeNo, TemplateId, Times, XattrSetId,
};

/// An inode, as one of its names shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// `st_ino`: shared by all hard links of a file.
    pub ino: InodeNo,
    /// The number of this name. Equal to `ino`, except for the second and later names of a
    /// hard-linked file.
    pub name_no: InodeNo,
    /// Its type.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// `st_nlink` (of a directory: 2 + its sub-directories).
    pub nlink: u64,
    /// Bytes of a regular file or of the target of a symlink; entries of a directory; 0 for other
    /// types.
    pub size: ByteLen,
    /// Its times.
    pub times: Times,
    /// Extended attributes, if it has any.
    pub xattr_set: Option<XattrSetId>,
    /// The content of a non-empty regular file.
    pub content: Option<ContentId>,
    /// The template of a directory.
    pub template: Option<TemplateId>,
    /// Index of its entry, for the target of a symlink.
    pub entry: EntryIndex,
}

/// Called with the index of an entry in its directory, its name and its inode.
pub type VisitEntry<'a> = dyn FnMut(u64, &[u8], &Inode) -> ControlFlow<()> + 'a;

/// The name of an inode type in messages.
pub const fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Directory => "directory",
        FileKind::Regular => "regular file",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}
