//! The operations of a file system that can change. The volume implements them, the model of the
//! tests implements them, and the FUSE driver translates requests into them.
//!
//! The caller does what needs the identity of a process: it checks permissions (the kernel does
//! that for FUSE), applies the umask and inherits groups and default ACLs. The file system keeps
//! names, attributes and contents. Time is an argument, so that a run can be repeated exactly.
//!
//! # Source
//! POSIX.1-2024 for every operation that it has; the manual pages of Linux for the others.

use rustix::io::Errno;
use weald_format::{Error, FileKind, Ino, InodeFlags};

/// A time since 1970-01-01 in UTC, in nanoseconds; negative before it.
pub type Nanoseconds = i128;

/// The failure of an operation.
#[derive(Debug)]
pub struct Failure {
    /// The error number that the caller of the system call gets.
    pub errno: Errno,
    /// Details for the log, if the error is not simply the answer to the call.
    pub cause: Option<Error>,
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self { errno, cause: None }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            errno: crate::errno::errno(error.kind()),
            cause: Some(error),
        }
    }
}

/// Outcome of an operation.
pub type Outcome<T> = std::result::Result<T, Failure>;

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub ino: Ino,
    /// Kind of file.
    pub kind: FileKind,
    /// The low twelve bits of the mode.
    pub permissions: u16,
    /// What chattr(1) has set.
    pub flags: InodeFlags,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Number of names; 0 for a removed file that is still open.
    pub nlink: u32,
    /// Device number of a device node, else 0.
    pub rdev: u32,
    /// Length in bytes. A symlink has the length of its target.
    pub size: u64,
    /// Bytes that are no hole.
    pub allocated: u64,
    /// Last access.
    pub atime: Nanoseconds,
    /// Last change of the content.
    pub mtime: Nanoseconds,
    /// Last change of content or attributes.
    pub ctime: Nanoseconds,
    /// Creation.
    pub btime: Nanoseconds,
}

/// A byte of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilePlace {
    /// The file.
    pub ino: Ino,
    /// Bytes of the file in front of it.
    pub offset: u64,
}

impl FilePlace {
    /// The byte of `ino` behind `offset` others.
    pub const fn new(ino: Ino, offset: u64) -> Self {
        Self { ino, offset }
    }
}

/// An inode to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewInode<'a> {
    /// Kind of file.
    pub kind: FileKind,
    /// The low twelve bits of the mode, final.
    pub permissions: u16,
    /// User id of the owner.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Device number of a device node, else 0.
    pub rdev: u32,
    /// Target of a symlink, else empty.
    pub target: &'a [u8],
    /// Extended attributes from the beginning on: the ACLs that it inherits.
    pub xattrs: &'a [(&'a [u8], &'a [u8])],
}

/// A change of attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NewStat {
    /// The low twelve bits of the mode.
    pub permissions: Option<u16>,
    /// What chattr(1) sets. A change of nothing else is made whatever the flags forbid.
    pub flags: Option<InodeFlags>,
    /// User id of the owner.
    pub uid: Option<u32>,
    /// Group id.
    pub gid: Option<u32>,
    /// Length in bytes: cuts the content or extends it with a hole.
    pub size: Option<u64>,
    /// Last access. A change of nothing else that gives the old ctime is that of a read, which no
    /// flag forbids.
    pub atime: Option<Nanoseconds>,
    /// Last change of the content.
    pub mtime: Option<Nanoseconds>,
    /// Last change of content or attributes; without it, the time of the call.
    pub ctime: Option<Nanoseconds>,
}

/// Treatment of an existing destination by a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails with EEXIST.
    KeepExisting,
    /// Exchanges both names.
    Exchange,
    /// Replaces it and leaves a whiteout (a character device 0:0) at the old name.
    LeaveWhiteout,
}

/// Operation of fallocate(2) on a range. None of them reserves space: a file system that shares and
/// compresses its data does not know what a later write takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Makes the range a hole and leaves the length as it is.
    PunchHole,
    /// Makes the range read as zeros; the flag says whether the length stays.
    Zero {
        /// Whether the length stays as it is.
        keeps_size: bool,
    },
    /// Removes the range; the bytes behind it move towards the beginning.
    Collapse,
    /// Inserts a hole; the bytes behind it move towards the end.
    Insert,
}

/// Treatment of an existing value by setxattr(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Sets the value in any case.
    Set,
    /// Fails with EEXIST if the attribute exists.
    Create,
    /// Fails with ENODATA if the attribute does not exist.
    Replace,
}

/// A directory entry of a listing.
#[derive(Debug, Clone, Copy)]
pub struct Listed<'a> {
    /// Name; never `.` or `..`.
    pub name: &'a [u8],
    /// Attributes of the inode.
    pub stat: &'a Stat,
    /// Position after this entry, at which a listing can continue. It stays valid while names come
    /// and go, and over remounts. Always at least 3.
    pub cookie: u64,
}

/// Figures for statfs(2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsCapacity {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that can still be written.
    pub free: u64,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of inodes that can still be created.
    pub inodes_free: u64,
}

/// A file system that can change. All methods may be called by any number of threads; each takes
/// effect at one moment between its call and its return.
///
/// Names are 1 to 255 bytes without `/` and zero bytes, and never `.` or `..`; the caller checks
/// that. An inode with [`InodeFlags::LOCKS`] refuses changes with EPERM, as chattr(1) says.
/// Every method fails with EIO, or with the errno of its cause, if storage fails; with EROFS
/// on a file system that became read-only; with ENOENT or ESTALE if an inode does not exist.
pub trait WritableFs: Send + Sync {
    /// Attributes of an inode.
    fn stat(&self, ino: Ino) -> Outcome<Stat>;

    /// Finds `name` in `dir`: ENOENT, ENOTDIR.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Outcome<Stat>;

    /// The directory that contains the directory `dir`; the root is its own parent.
    fn parent(&self, dir: Ino) -> Outcome<Ino>;

    /// Visits the entries of `dir` after the one with the cookie `after` (0: from the beginning),
    /// until `visit` returns false. An entry that exists during the whole listing is visited
    /// exactly once.
    fn list(&self, dir: Ino, after: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Outcome<()>;

    /// Changes attributes: EFBIG, EISDIR for the size of a directory, EINVAL.
    fn set_stat(&self, ino: Ino, new: &NewStat, now: Nanoseconds) -> Outcome<Stat>;

    /// Creates `name` in `dir`: EEXIST, ENOTDIR, ENOENT if `dir` was removed, ENOSPC, EDQUOT.
    fn create(&self, dir: Ino, name: &[u8], new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat>;

    /// Creates a regular file without a name. It is dropped like a removed file unless
    /// [`WritableFs::link`] gives it a name. `dir` is the directory whose properties it inherits.
    fn create_unnamed(&self, dir: Ino, new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat>;

    /// Gives `ino` another name: EEXIST, EPERM for a directory, EMLINK.
    fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat>;

    /// Removes a name that is no directory: ENOENT, EISDIR. Returns the inode, which stays until
    /// [`WritableFs::forget`] if this was its last name.
    fn unlink(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat>;

    /// Removes an empty directory: ENOENT, ENOTDIR, ENOTEMPTY. Returns the inode like `unlink`.
    fn rmdir(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat>;

    /// Renames as renameat2(2) does: ENOENT, EEXIST, ENOTDIR, EISDIR, ENOTEMPTY, EINVAL if a
    /// directory would become its own descendant, EXDEV between directories with different quotas.
    /// Returns the inode whose name was replaced, if it has no name now.
    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Nanoseconds,
    ) -> Outcome<Option<Stat>>;

    /// The caller does not know the inode any more (its last open file and cached name are gone).
    /// An inode without a name is dropped now.
    fn forget(&self, ino: Ino) -> Outcome<()>;

    /// Target of a symlink: EINVAL.
    fn read_link(&self, ino: Ino) -> Outcome<Vec<u8>>;

    /// Appends the bytes at `offset .. offset + len` to `out`, fewer at the end of the file.
    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()>;

    /// Writes all of `bytes` at `offset`, or nothing: EFBIG, ENOSPC, EDQUOT. Sets mtime and ctime.
    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], now: Nanoseconds) -> Outcome<()>;

    /// Does what fallocate(2) does: EFBIG, ENOSPC, EINVAL, EOPNOTSUPP.
    fn allocate(
        &self,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<()>;

    /// Copies up to `len` bytes as copy_file_range(2) does; the copy shares its blocks with the
    /// original. Returns the number of bytes; 0 at the end of the source. EINVAL if the ranges
    /// overlap in one file.
    fn copy_range(
        &self,
        from: FilePlace,
        to: FilePlace,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<u64>;

    /// The first byte at or behind `offset` that is data, or in a hole. The end of the file counts
    /// as a hole. ENXIO if there is none, or `offset` lies behind the end.
    fn seek(&self, ino: Ino, offset: u64, wants_hole: bool) -> Outcome<u64>;

    /// Value of the extended attribute `name`: ENODATA.
    fn xattr(&self, ino: Ino, name: &[u8]) -> Outcome<Vec<u8>>;

    /// Names of the extended attributes, sorted.
    fn xattr_names(&self, ino: Ino) -> Outcome<Vec<Vec<u8>>>;

    /// Sets an extended attribute and the ctime: EEXIST, ENODATA, E2BIG, ENOSPC.
    fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now: Nanoseconds,
    ) -> Outcome<()>;

    /// Removes an extended attribute and sets the ctime: ENODATA.
    fn remove_xattr(&self, ino: Ino, name: &[u8], now: Nanoseconds) -> Outcome<()>;

    /// Makes everything that was done before the call durable. An earlier failure of storage is
    /// reported by this and every later call.
    fn sync(&self) -> Outcome<()>;

    /// Makes the inode's data and the metadata that leads to it durable, as fsync(2) does. May do
    /// as much as [`WritableFs::sync`].
    fn sync_inode(&self, ino: Ino) -> Outcome<()> {
        let _ = ino;
        self.sync()
    }

    /// Whether an inode may have had flags when the file system was opened. If so, each open of a
    /// file should be asked for; else the first write is refused.
    fn has_flags(&self) -> bool {
        false
    }

    /// Whether names in `dir` come and go without a call of these functions, so that nobody may
    /// remember them.
    fn has_changing_names(&self, dir: Ino) -> bool {
        let _ = dir;
        false
    }

    /// Figures for statfs(2).
    fn capacity(&self) -> Outcome<FsCapacity>;

    /// Figures for statfs(2) of an inode, for which quotas may leave less.
    fn capacity_at(&self, ino: Ino) -> Outcome<FsCapacity> {
        let _ = ino;
        self.capacity()
    }
}
