//! Records and constants of the FUSE protocol.
//!
//! Byte order and alignment are the machine's. Each record is declared here only, and its size is
//! asserted at compile time.
//!
//! # Source
//! `include/uapi/linux/fuse.h` of Linux 6.18, protocol 7.45.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version of the protocol; it never changes. An older kernel answers with its own minor
/// version.
pub(crate) const MAJOR: u32 = 7;
/// Newest minor version whose records this file declares; it added `FUSE_STATX`.
pub(crate) const MINOR: u32 = 39;
/// Oldest supported minor version (Linux 3.15); earlier kernels expect a shorter handshake answer.
pub(crate) const MINOR_MIN: u32 = 23;

/// The kernel's number of an inode: the inode number of the tree, but 1 for the root of the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub(crate) u64);

impl NodeId {
    pub(crate) const ROOT: Self = Self(1);
}

macro_rules! opcodes {
    ($($name:ident = $code:literal, $word:literal;)*) => {
        /// Operation of a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Opcode {
            $($name = $code,)*
        }

        impl Opcode {
            /// All known operations.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Operation with number `code`; `None` if unknown.
            pub(crate) const fn of(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Name of the operation in reports and traces.
            pub(crate) const fn word(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1, "lookup";
    Forget = 2, "forget";
    Getattr = 3, "getattr";
    Setattr = 4, "setattr";
    Readlink = 5, "readlink";
    Symlink = 6, "symlink";
    Mknod = 8, "mknod";
    Mkdir = 9, "mkdir";
    Unlink = 10, "unlink";
    Rmdir = 11, "rmdir";
    Rename = 12, "rename";
    Link = 13, "link";
    Open = 14, "open";
    Read = 15, "read";
    Write = 16, "write";
    Statfs = 17, "statfs";
    Release = 18, "release";
    Fsync = 20, "fsync";
    Setxattr = 21, "setxattr";
    Getxattr = 22, "getxattr";
    Listxattr = 23, "listxattr";
    Removexattr = 24, "removexattr";
    Flush = 25, "flush";
    Init = 26, "init";
    Opendir = 27, "opendir";
    Readdir = 28, "readdir";
    Releasedir = 29, "releasedir";
    Fsyncdir = 30, "fsyncdir";
    Access = 34, "access";
    Create = 35, "create";
    Interrupt = 36, "interrupt";
    Destroy = 38, "destroy";
    Ioctl = 39, "ioctl";
    BatchForget = 42, "batch_forget";
    Fallocate = 43, "fallocate";
    Readdirplus = 44, "readdirplus";
    Rename2 = 45, "rename2";
    Lseek = 46, "lseek";
    CopyFileRange = 47, "copy_file_range";
    Syncfs = 50, "syncfs";
    Tmpfile = 51, "tmpfile";
    Statx = 52, "statx";
}

/// Feature bits of `FUSE_INIT`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    /// `flags2` is valid.
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const ALLOW_IDMAP: u64 = 1 << 40;
}

/// `open_flags` of [`OpenOut`]: cached pages of the file or directory stay valid.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// `open_flags` of [`OpenOut`]: the kernel may cache the listing.
pub(crate) const FOPEN_CACHE_DIR: u32 = 1 << 3;

/// Code of the notification `FUSE_NOTIFY_INVAL_INODE`.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;

/// Code of the notification `FUSE_NOTIFY_INVAL_ENTRY`.
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;

/// `open_flags` of [`OpenOut`]: close(2) sends no FLUSH.
pub(crate) const FOPEN_NOFLUSH: u32 = 1 << 5;
/// `open_flags` of [`OpenIn`] and [`CreateIn`]: the truncation must clear set-uid bits.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `write_flags` of [`WriteIn`]: the kernel writes back pages of a shared mapping.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// `write_flags` of [`WriteIn`]: the write must clear set-uid bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `setxattr_flags` of [`SetxattrIn`]: the new ACL must clear the set-gid bit.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Bits of `valid` in [`SetattrIn`].
pub(crate) mod setattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// Smallest buffer for read(2) on the device, in bytes (`FUSE_MIN_READ_BUFFER`).
pub(crate) const READ_BUFFER_MIN: usize = 8192;

/// Declares records of requests and answers. Names are the kernel's, without `fuse_`.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident ($len:literal) { $($field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            pub(crate) struct $name {
                $(pub(crate) $field: $kind,)*
            }
            const _: () = assert!(size_of::<$name>() == $len);
        )*
    };
}

records! {
    /// Header of every request.
    InHeader (40) {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }

    /// Header of every answer; `error` is 0 or a negative errno.
    OutHeader (16) {
        len: u32,
        error: i32,
        unique: u64,
    }

    /// `FUSE_NOTIFY_INVAL_INODE`, which the server sends unasked: the kernel drops cached pages of
    /// an inode. A length of 0 means all from the offset.
    InvalInodeOut (24) {
        ino: u64,
        offset: i64,
        length: i64,
    }

    /// `FUSE_NOTIFY_INVAL_ENTRY`: the kernel drops what it knows of a name in a directory. The name
    /// and a zero byte follow.
    InvalEntryOut (16) {
        parent: u64,
        namelen: u32,
        flags: u32,
    }

    /// Arguments of `RELEASE` and `RELEASEDIR`.
    ReleaseIn (24) {
        fh: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }

    /// `INIT`, the first request; older kernels send only the first four fields.
    InitIn (64) {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 11],
    }

    /// Answer to `INIT`.
    InitOut (64) {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }

    /// Attributes of an inode.
    Attr (88) {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }

    /// Answer to `LOOKUP`: an inode and its attributes.
    EntryOut (128) {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }

    /// Answer to `GETATTR`: attributes and their lifetime in the kernel's cache.
    AttrOut (104) {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: Attr,
    }

    /// Timestamp of statx(2).
    SxTime (16) {
        tv_sec: i64,
        tv_nsec: u32,
        reserved: i32,
    }

    /// Attributes of statx(2).
    Statx (256) {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: SxTime,
        btime: SxTime,
        ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }

    /// Answer to `STATX`.
    StatxOut (288) {
        attr_valid: u64,
        attr_valid_nsec: u32,
        flags: u32,
        spare: [u64; 2],
        stat: Statx,
    }

    /// Arguments of `FORGET`.
    ForgetIn (8) {
        nlookup: u64,
    }

    /// Arguments of `BATCH_FORGET`; `count` records [`ForgetOne`] follow.
    BatchForgetIn (8) {
        count: u32,
        dummy: u32,
    }

    /// One inode of `BATCH_FORGET`.
    ForgetOne (16) {
        nodeid: u64,
        nlookup: u64,
    }

    /// Arguments of `SETATTR`.
    SetattrIn (88) {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }

    /// Arguments of `MKNOD`; a name follows.
    MknodIn (16) {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }

    /// Arguments of `MKDIR`; a name follows.
    MkdirIn (8) {
        mode: u32,
        umask: u32,
    }

    /// Arguments of `RENAME`; the old and the new name follow.
    RenameIn (8) {
        newdir: u64,
    }

    /// Arguments of `RENAME2`; the old and the new name follow.
    Rename2In (16) {
        newdir: u64,
        flags: u32,
        padding: u32,
    }

    /// Arguments of `LINK`; the new name follows.
    LinkIn (8) {
        oldnodeid: u64,
    }

    /// Arguments of `CREATE` and `TMPFILE`; a name follows.
    CreateIn (16) {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }

    /// Arguments of `WRITE`; the bytes follow.
    WriteIn (40) {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }

    /// Answer to `WRITE` and `COPY_FILE_RANGE`.
    WriteOut (8) {
        size: u32,
        padding: u32,
    }

    /// Arguments of `SETXATTR`; a name and a value follow.
    SetxattrIn (16) {
        size: u32,
        flags: u32,
        setxattr_flags: u32,
        padding: u32,
    }

    /// Arguments of `SETXATTR` without `SETXATTR_EXT`.
    SetxattrCompatIn (8) {
        size: u32,
        flags: u32,
    }

    /// Arguments of `FALLOCATE`.
    FallocateIn (32) {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }

    /// Arguments of `COPY_FILE_RANGE`; the source is the node of the header.
    CopyFileRangeIn (56) {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }

    /// Arguments of `OPEN` and `OPENDIR`.
    OpenIn (8) {
        flags: u32,
        open_flags: u32,
    }

    /// Answer to `OPEN` and `OPENDIR`.
    OpenOut (16) {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }

    /// Arguments of `READ`, `READDIR` and `READDIRPLUS`.
    ReadIn (40) {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }

    /// Directory entry of a listing; its name follows.
    Dirent (24) {
        ino: u64,
        off: u64,
        namelen: u32,
        kind: u32,
    }

    /// Directory entry with attributes; its name follows.
    Direntplus (152) {
        entry: EntryOut,
        dirent: Dirent,
    }

    /// Answer to `STATFS`.
    StatfsOut (80) {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }

    /// Arguments of `GETXATTR`, where a name follows, and of `LISTXATTR`.
    GetxattrIn (8) {
        size: u32,
        padding: u32,
    }

    /// Answer to `GETXATTR` and `LISTXATTR` with `size` 0: the length of the value.
    GetxattrOut (8) {
        size: u32,
        padding: u32,
    }

    /// Arguments of `LSEEK`.
    LseekIn (24) {
        fh: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }

    /// Answer to `LSEEK`.
    LseekOut (8) {
        offset: u64,
    }

    /// Arguments of `IOCTL`.
    IoctlIn (32) {
        fh: u64,
        flags: u32,
        cmd: u32,
        arg: u64,
        in_size: u32,
        out_size: u32,
    }

    /// Answer to `IOCTL`; the bytes for the caller follow.
    IoctlOut (16) {
        result: u32,
        flags: u32,
        in_iovs: u32,
        out_iovs: u32,
    }
}
