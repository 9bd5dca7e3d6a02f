//! The properties that a comparison reports.

/// A property in which two inodes at one path can differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Aspect {
    /// Type of the inode; if it differs, nothing else is compared.
    Kind,
    /// Permission bits.
    Mode,
    /// Owner.
    Uid,
    /// Group.
    Gid,
    /// Device number.
    Device,
    /// Length of a regular file; if it differs, the content is not compared.
    Size,
    /// Content of a regular file.
    Content,
    /// Target of a symlink.
    Target,
    /// Last change of content.
    Mtime,
    /// Last access.
    Atime,
    /// Last change of inode.
    Ctime,
    /// Birth.
    Btime,
    /// Extended attributes.
    Xattrs,
    /// The other names of the inode.
    Links,
}

impl Aspect {
    /// All aspects, in the order in which they are reported.
    pub const ALL: [Self; 14] = [
        Self::Kind,
        Self::Mode,
        Self::Uid,
        Self::Gid,
        Self::Device,
        Self::Size,
        Self::Content,
        Self::Target,
        Self::Mtime,
        Self::Atime,
        Self::Ctime,
        Self::Btime,
        Self::Xattrs,
        Self::Links,
    ];

    /// Its word in options and output.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kind => "type",
            Self::Mode => "mode",
            Self::Uid => "uid",
            Self::Gid => "gid",
            Self::Device => "device",
            Self::Size => "size",
            Self::Content => "content",
            Self::Target => "target",
            Self::Mtime => "mtime",
            Self::Atime => "atime",
            Self::Ctime => "ctime",
            Self::Btime => "btime",
            Self::Xattrs => "xattrs",
            Self::Links => "links",
        }
    }
}

/// One aspect that differs, with both values as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The aspect.
    pub aspect: Aspect,
    /// Value in the first tree.
    pub left: String,
    /// Value in the second tree.
    pub right: String,
}
