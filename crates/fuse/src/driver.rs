//! Answers the kernel's requests from a [`Tree`]. Holds no table of inodes and no open files: a node id is an inode
//! number, and the kernel is told to cache everything for ever, because nothing ever changes.

use crate::attr::file_type;
use crate::tree::Tree;
use crate::view::View;
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode,
    OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyBmap, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use weald_format::limits::NAME_LEN_MAX;

/// How long the kernel may believe names, absences and attributes: a year, the tree being immutable.
const TTL: Duration = Duration::from_secs(365 * 24 * 3600);

/// Inode numbers are never given to another inode while an image is mounted, so that there is one generation.
const GENERATION: Generation = Generation(0);

/// Unit of the block counts of statfs(2), in bytes.
const STATFS_BLOCK_LEN: u32 = 4096;

/// Most bytes that one request carries: 256 pages, which is what the kernel allows by default
/// (`/proc/sys/fs/fuse/max_pages_limit`).
pub(crate) const REQUEST_LEN_MAX: u32 = 1 << 20;

/// Requests that the kernel may have under way without anybody waiting (read-ahead). Enough to keep every worker busy
/// with the next blocks of several sequential readers; each holds at most `REQUEST_LEN_MAX` of page cache.
const BACKGROUND_COUNT_MAX: u16 = 64;

/// The file system that the kernel talks to.
pub(crate) struct Driver<T> {
    view: View<T>,
    can_drop_open: bool,
    can_drop_opendir: bool,
}

impl<T: Tree> Driver<T> {
    pub(crate) fn new(view: View<T>) -> Self {
        Self {
            view,
            can_drop_open: false,
            can_drop_opendir: false,
        }
    }

    fn answer(&self, doing: &str, ino: INodeNo, error: &weald_format::Error) -> Errno {
        self.view.answer(doing, ino, error)
    }

    fn wanted_capabilities(&self) -> InitFlags {
        let mut wanted = InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        if self.view.features.has_acls && !self.view.shown.overrides.is_active() {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        if self.view.shown.is_shared {
            wanted |= InitFlags::FUSE_ALLOW_IDMAP;
        }
        wanted
    }
}

/// Answers a request for a value of unknown length: its length where `size` is 0, ERANGE where it does not fit.
fn reply_sized(reply: ReplyXattr, size: u32, value: &[u8]) {
    if size == 0 {
        // A value has at most 64 KiB, a list as much: Linux allows no more.
        reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX));
    } else if value.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}

/// Requests that would change something: the kernel refuses them for us (`ro`), unless somebody remounts us `rw`.
macro_rules! read_only {
    ($($name:ident($($kind:ty),*) -> $reply:ty;)*) => {
        $(fn $name(&self, _: &Request, $(_: $kind,)* reply: $reply) {
            reply.error(Errno::EROFS);
        })*
    };
}

/// Requests without meaning here; the kernel remembers ENOSYS and does by itself from then on.
macro_rules! left_to_kernel {
    ($($name:ident($($kind:ty),*) -> $reply:ty;)*) => {
        $(fn $name(&self, _: &Request, $(_: $kind,)* reply: $reply) {
            reply.error(Errno::ENOSYS);
        })*
    };
}

impl<T: Tree> Filesystem for Driver<T> {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let has = config.capabilities();
        for flag in self.wanted_capabilities().iter() {
            if config.add_capabilities(flag).is_err() {
                log::info!("this kernel lacks {flag:?}");
            }
        }
        self.can_drop_open = has.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.can_drop_opendir = has.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        let invalid = |nearest| std::io::Error::other(format!("kernel limit {nearest}"));
        config.set_max_write(REQUEST_LEN_MAX).map_err(invalid)?;
        config
            .set_max_background(BACKGROUND_COUNT_MAX)
            .map_err(|n| invalid(n.into()))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name.len() > NAME_LEN_MAX {
            return reply.error(Errno::ENAMETOOLONG);
        }
        match self.view.find(dir, name.as_bytes()) {
            Ok(Some(inode)) => reply.entry(&TTL, &self.view.attributes(&inode), GENERATION),
            Ok(None) => reply.entry(&TTL, &absent(), GENERATION),
            Err(error) => reply.error(self.answer("look-up in directory", dir, &error)),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.view.inode(ino) {
            Ok(inode) => reply.attr(&TTL, &self.view.attributes(&inode)),
            Err(error) => reply.error(self.answer("attributes", ino, &error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self
            .view
            .inode(ino)
            .and_then(|inode| self.view.tree.read_link(&inode))
        {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(self.answer("link target", ino, &error)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            reply.error(Errno::EROFS);
        } else if self.can_drop_open {
            reply.error(Errno::ENOSYS);
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self
            .view
            .inode(ino)
            .and_then(|inode| self.view.tree.read(&inode, offset, size as usize))
        {
            Ok(chunk) => reply.data(&chunk),
            Err(error) => reply.error(self.answer("content", ino, &error)),
        }
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.can_drop_opendir {
            return reply.error(Errno::ENOSYS);
        }
        let flags = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR;
        reply.opened(FileHandle(0), flags);
    }

    fn readdir(
        &self,
        _: &Request,
        dir: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.view.list(dir, offset, &mut |next, name, inode| {
            let ino = self.view.kernel_ino(inode.ino);
            reply.add(ino, next, file_type(inode.kind), OsStr::from_bytes(name))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.answer("listing", dir, &error)),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        dir: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.view.list(dir, offset, &mut |next, name, inode| {
            let attr = self.view.attributes(inode);
            reply.add(
                attr.ino,
                next,
                OsStr::from_bytes(name),
                &TTL,
                &attr,
                GENERATION,
            )
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(self.answer("listing", dir, &error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let capacity = self.view.tree.capacity();
        let blocks = capacity.content_len.div_ceil(STATFS_BLOCK_LEN.into());
        let name_len = NAME_LEN_MAX as u32;
        let block_len = STATFS_BLOCK_LEN;
        reply.statfs(
            blocks,
            0,
            0,
            capacity.name_count,
            0,
            block_len,
            name_len,
            block_len,
        );
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !self.view.features.has_xattrs {
            return reply.error(Errno::ENOSYS);
        }
        match self.view.xattr_value(ino, name.as_bytes()) {
            Ok(Some(value)) => reply_sized(reply, size, &value),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(error) => reply.error(self.answer("extended attributes", ino, &error)),
        }
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        if !self.view.features.has_xattrs {
            return reply.error(Errno::ENOSYS);
        }
        match self.view.xattr_names(ino) {
            Ok(names) => reply_sized(reply, size, &names),
            Err(error) => reply.error(self.answer("extended attributes", ino, &error)),
        }
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let wants_hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        match self.view.seek(ino, offset, wants_hole) {
            Ok(Some(found)) => reply.offset(i64::try_from(found).unwrap_or(i64::MAX)),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(error) => reply.error(self.answer("map", ino, &error)),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(Errno::EROFS);
    }

    read_only! {
        mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry;
        mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry;
        unlink(INodeNo, &OsStr) -> ReplyEmpty;
        rmdir(INodeNo, &OsStr) -> ReplyEmpty;
        symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty;
        link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        write(INodeNo, FileHandle, u64, &[u8], WriteFlags, OpenFlags, Option<LockOwner>) -> ReplyWrite;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty;
        create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate;
        fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty;
    }

    left_to_kernel! {
        access(INodeNo, AccessFlags) -> ReplyEmpty;
        flush(INodeNo, FileHandle, LockOwner) -> ReplyEmpty;
        getlk(INodeNo, FileHandle, LockOwner, u64, u64, i32, u32) -> ReplyLock;
        setlk(INodeNo, FileHandle, LockOwner, u64, u64, i32, u32, bool) -> ReplyEmpty;
        bmap(INodeNo, u32, u64) -> ReplyBmap;
        poll(INodeNo, FileHandle, PollNotifier, PollEvents, PollFlags) -> ReplyPoll;
        copy_file_range(
            INodeNo, FileHandle, u64, INodeNo, FileHandle, u64, u64, CopyFileRangeFlags
        ) -> ReplyWrite;
    }
}

/// `SEEK_DATA` and `SEEK_HOLE` of lseek(2) on Linux.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// What the kernel takes for "there is no such name, and you may remember that": an entry with inode 0.
fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}
