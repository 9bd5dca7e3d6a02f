//! Entries that the tree writer takes.

use weald_format::entries::EntryKind;
use weald_format::{Attributes, ContentId, Digest, Timestamp, XattrSet};

/// Content of an entry that is no directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    /// None: devices, fifos, sockets.
    None,
    /// Empty regular file.
    Empty,
    /// Regular file with a content.
    Content(ContentId, Digest),
    /// Symlink.
    Target(&'a [u8]),
}

/// How an entry shares its inode with other names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkInfo {
    /// The inode has one name.
    Single,
    /// All names of the inode are in this directory.
    Inside {
        /// Names of the inode.
        nlink: u64,
        /// Entries back to the first of them.
        back: u64,
    },
    /// The inode has names in several directories; the side table of links has the details.
    Across,
}

/// An entry for the tree writer.
#[derive(Debug, Clone, Copy)]
pub struct NewEntry<'a> {
    /// Name: 1 … 255 bytes, no slash, no NUL, not `.` or `..`; empty for the root.
    pub name: &'a [u8],
    /// Kind.
    pub kind: EntryKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// mtime, atime, ctime, btime. Only those in the writer's mask are stored.
    pub times: [Timestamp; 4],
    /// Extended attributes, if it has any.
    pub xattrs: Option<&'a XattrSet>,
    /// Content, or target of a symlink.
    pub body: Body<'a>,
    /// Hard links.
    pub link: LinkInfo,
}
