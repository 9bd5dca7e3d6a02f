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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    Create = 35, "create";
    Interrupt = 36, "interrupt";
    Destroy = 38, "destroy";
    Ioctl = 39, "ioctl";
    BatchForget = 42, "batch_forget";
    Fallocate = 43, "fallocate";
    Readdirplus = 44, "readdirplus";
    Rename2 = 45, "rename2";
    Lseek = 46, "lseek";
    Syncfs = 50, "syncfs";
    Tmpfile = 51, "tmpfile";
    Statx = 52, "statx";
}

/// Feature bits of `FUSE_INIT`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    /// `flags2` is valid.
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const ALLOW_IDMAP: u64 = 1 << 40;
}

/// `open_flags` of [`OpenOut`]: cached pages of the file or directory stay valid.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// `open_flags` of [`OpenOut`]: the kernel may cache the listing.
pub(crate) const FOPEN_CACHE_DIR: u32 = 1 << 3;

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
