//! Types that all crates share: newtypes for numbers, attributes, times, digests.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// Inode number: dense, 64-bit, in preorder; the root directory is 1. Hard links share the
    /// number of their first name.
    InodeNo
);
number!(
    /// Index of a template (one distinct directory) in the image, 0-based. Children come before
    /// parents.
    TemplateId
);
number!(
    /// Index of a content (one distinct non-empty file body) in the image, 0-based.
    ContentId
);
number!(
    /// Index of an xattr set in the image, 0-based.
    XattrSetId
);
number!(
    /// Index of an entry in the concatenation of all templates' entry lists, 0-based.
    EntryIndex
);
number!(
    /// Sequence number of a block within its stream, 0-based.
    BlockNo
);
number!(
    /// Byte offset. The context names the point that it counts from.
    ByteOffset
);
number!(
    /// Length in bytes.
    ByteLen
);

/// The inode number of the root directory.
pub const ROOT_INODE: InodeNo = InodeNo(1);

/// A BLAKE3-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Computes the digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Parses 64 hexadecimal digits of either case.
    pub fn from_hex(text: &str) -> Option<Self> {
        blake3::Hash::from_hex(text)
            .ok()
            .map(|h| Self(*h.as_bytes()))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// POSIX file type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// Directory.
    Directory,
    /// Regular file.
    Regular,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
}

impl FileKind {
    /// The `S_IFMT` bits of `st_mode` for this kind (values of POSIX on Linux).
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Directory => 0o040_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The kind that the `S_IFMT` bits of `st_mode` name.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o040_000 => Self::Directory,
            0o100_000 => Self::Regular,
            0o120_000 => Self::Symlink,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// Whether inodes of this kind carry a device number.
    pub const fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }
}

/// Permission bits, owner and device number. Many inodes share one set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Attributes {
    /// The low 12 bits of `st_mode`: permissions, set-uid, set-gid, sticky.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number as (major << 32 | minor); 0 unless the inode is a device.
    pub rdev: u64,
}

/// A point in time: seconds since 1970-01-01 UTC and nanoseconds (0 … 999,999,999) after that
/// second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Whole seconds, negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, below 10^9.
    pub nanoseconds: u32,
}

/// The times of an inode. An image always keeps mtime, and the others only on request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Times {
    /// Time of the last change of the content.
    pub mtime: Timestamp,
    /// Time of the last access.
    pub atime: Option<Timestamp>,
    /// Time of the last change of the inode.
    pub ctime: Option<Timestamp>,
    /// Birth time.
    pub btime: Option<Timestamp>,
}

/// One extended attribute: full name (with namespace prefix) and value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xattr {
    /// Full name, such as `user.comment` or `security.capability`.
    pub name: Vec<u8>,
    /// Value, any bytes.
    pub value: Vec<u8>,
}

/// The extended attributes of an inode, sorted by name, names distinct.
pub type XattrSet = Vec<Xattr>;
