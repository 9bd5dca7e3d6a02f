//! Answers the kernel's requests from a [`WritableFs`].
//!
//! A node id is an inode number, and inode 1 is the root on both sides. The driver holds no open
//! files: it tells the kernel to send no OPEN, no OPENDIR and no FLUSH. It counts the kernel's
//! references ([`Nodes`]), so that an unlinked file stays while it is open.
//!
//! **Caches.** All changes pass through the kernel, which keeps its own caches right. So it may
//! keep names, attributes and pages until memory is short, and short listings ([`ListingCache`]).
//!
//! **Writes.** Every write(2) arrives before it returns: no write-back cache
//! (`docs/design/0025-volume.md`).

mod attributes;
mod flags;
mod names;

use crate::answer::{Admission, Answer, Answers, bytes, record, sized};
use crate::attr::{type_bits, writable_attributes, writable_statx};
use crate::caller::{Caller, is_trusted};
use crate::faults::Faults;
use crate::listing::Listing;
use crate::listing_cache::ListingCache;
use crate::nodes::Nodes;
use crate::request::{Operation, Request};
use crate::wire::{
    AttrOut, EntryOut, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, LseekOut, NodeId, Opcode, OpenOut,
    READ_BUFFER_MIN, StatfsOut, StatxOut, WriteOut, init,
};
use crate::writable_options::{AccessTime, SharedOptions, WritableOptions};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use weald_format::InodeNo;
use weald_format::limits::NAME_LEN_MAX;
use weald_vfs::{AllocateMode, FilePlace, Ino, Nanoseconds, Outcome, Stat, WritableFs};

/// How long the kernel may cache names, negative look-ups and attributes, in seconds. The kernel is
/// the only writer; a year stands for ever.
const CACHE_TTL: u64 = 365 * 24 * 3600;
/// The same, where they change without a request.
const CHANGING_TTL: u64 = 1;

/// Most bytes of one write: 256 pages, the kernel's default limit.
pub(crate) const WRITE_LEN_MAX: u32 = 1 << 20;

/// Unit of the block counts of statfs(2), in bytes.
const STATFS_BLOCK_LEN: u64 = 4096;

/// Largest answer to COPY_FILE_RANGE: its length has 32 bits.
const COPY_LEN_MAX: u64 = 1 << 30;

/// Answer behind the last entry of a listing that the kernel must not cache: too short for an
/// entry, and not empty. The kernel reads no entry from it, and does not complete its cache.
const END_OF_LISTING: [u8; 8] = [0; 8];

const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

// Modes of fallocate(2).
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;
const COLLAPSE_RANGE: u32 = 0x08;
const ZERO_RANGE: u32 = 0x10;
const INSERT_RANGE: u32 = 0x20;

/// How a [`WritableDriver`] shows its file system.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    /// Users that may access the mount.
    pub(crate) admission: Admission,
    /// What a remount changes.
    pub(crate) live: Arc<SharedOptions>,
    /// Several spellings name one entry, so that the kernel must not cache names.
    pub(crate) ignores_case: bool,
    /// Requests for extended attributes are refused, and the kernel sends no more of them.
    pub(crate) hides_xattrs: bool,
    /// Access lists cannot be read or set, and the kernel does not ask for them.
    pub(crate) hides_acls: bool,
    /// Names, attributes and contents may change without a request.
    pub(crate) changes_elsewhere: bool,
}

/// Driver of a file system that can change: one answers all requests of a mount.
pub(crate) struct WritableDriver {
    fs: Arc<dyn WritableFs>,
    policy: Policy,
    /// Negotiated bits of `FUSE_INIT`.
    flags: u64,
    nodes: Nodes,
    faults: Faults,
}

/// Contents go into the output buffer, never into chunks.
type Answered = Result<Answer<Vec<u8>>, Errno>;

/// Bits of `FUSE_INIT` that a writable mount requests. Locks (flock(2), POSIX) stay in the kernel,
/// since all users of the mount go through it.
pub(crate) fn wanted_flags(allows_others: bool, options: &WritableOptions) -> u64 {
    let has_acls = !options.hides_acls;
    let mut wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::MAX_PAGES
        | init::INIT_EXT
        | init::EXPORT_SUPPORT
        | init::DO_READDIRPLUS
        | init::READDIRPLUS_AUTO
        | init::PARALLEL_DIROPS
        | init::CACHE_SYMLINKS
        | init::NO_OPEN_SUPPORT
        | init::NO_OPENDIR_SUPPORT
        | init::DONT_MASK
        | init::HANDLE_KILLPRIV_V2
        | init::SETXATTR_EXT;
    if options.changes_elsewhere {
        // Each open asks, and drops what the kernel has of the file.
        wanted &= !(init::CACHE_SYMLINKS | init::NO_OPEN_SUPPORT | init::NO_OPENDIR_SUPPORT);
        wanted |= init::AUTO_INVAL_DATA;
    }
    if has_acls {
        wanted |= init::POSIX_ACL;
    }
    // Without access lists in the kernel, ids could not be mapped in them.
    if allows_others && has_acls {
        wanted |= init::ALLOW_IDMAP;
    }
    wanted
}

/// The clock of the machine.
fn now() -> Nanoseconds {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_nanos() as i128,
        Err(error) => -(error.duration().as_nanos() as i128),
    }
}

const fn ino(node: NodeId) -> Ino {
    Ino(node.0)
}

const fn node(ino: Ino) -> NodeId {
    NodeId(ino.0)
}

impl WritableDriver {
    pub(crate) fn new(fs: Arc<dyn WritableFs>, flags: u64, policy: Policy) -> Self {
        let nodes = Nodes::new();
        // The kernel has the root from the start, and never forgets it.
        nodes.add(NodeId::ROOT);
        Self {
            fs,
            policy,
            flags,
            nodes,
            faults: Faults::default(),
        }
    }

    /// The errno of a failed operation. Logs its cause once for each place.
    fn check<T>(&self, part: &str, node: NodeId, outcome: Outcome<T>) -> Result<T, Errno> {
        outcome.map_err(|failure| {
            if let Some(cause) = &failure.cause {
                self.faults.answer(part, InodeNo(node.0), cause);
            }
            failure.errno
        })
    }

    fn stat(&self, node: NodeId) -> Result<Stat, Errno> {
        self.check("attributes", node, self.fs.stat(ino(node)))
    }

    fn attr_ttl(&self) -> u64 {
        // The kernel would serve its caches to every user, also to those that `allow_root`
        // excludes.
        if self.policy.admission.is_checked() {
            0
        } else if self.policy.changes_elsewhere {
            CHANGING_TTL
        } else {
            CACHE_TTL
        }
    }

    fn entry_ttl(&self) -> u64 {
        if self.policy.ignores_case {
            0
        } else {
            self.attr_ttl()
        }
    }

    /// Whether directories are opened without a request. With `allow_root`, the driver checks the
    /// user of each.
    fn can_drop_opendir(&self) -> bool {
        self.flags & init::NO_OPENDIR_SUPPORT != 0 && !self.policy.admission.is_checked()
    }

    fn try_answer(&self, opcode: Opcode, request: &Request<'_>, out: &mut Vec<u8>) -> Answered {
        let node = request.node;
        let by = (node, request.caller);
        match &request.operation {
            Operation::Lookup { name } => self.lookup(request, name, out),
            Operation::Open { fixed } => self.open(by, *fixed, out),
            Operation::Read { offset, size } => self.read(node, *offset, *size, out),
            Operation::Write {
                offset,
                flags,
                bytes,
            } => self.write(by, *offset, *flags, bytes, out),
            Operation::Readdir { offset, size, .. } => self.list(node, *offset, *size, false, out),
            Operation::Readdirplus { offset, size, .. } => {
                self.list(node, *offset, *size, true, out)
            }
            Operation::Getxattr { .. }
            | Operation::Listxattr { .. }
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. }
                if self.policy.hides_xattrs =>
            {
                Err(Errno::NOSYS)
            }
            Operation::Getxattr { name, .. } | Operation::Removexattr { name }
                if self.hides(name) =>
            {
                Err(Errno::OPNOTSUPP)
            }
            Operation::Getxattr { name, size } => self.getxattr(node, name, *size, out),
            Operation::Listxattr { size } => self.listxattr(by, *size, out),
            Operation::Setxattr { body } => self.setxattr(node, body),
            Operation::Removexattr { name } => self.removexattr(node, name),
            Operation::Setattr { fixed } => self.setattr(by, fixed, out),
            Operation::Lseek { offset, whence } => self.lseek(node, *offset, *whence, out),
            Operation::Fallocate { fixed } => {
                self.allocate(node, fixed.mode, fixed.offset, fixed.length)
            }
            Operation::CopyFileRange { fixed } => {
                let to = NodeId(fixed.nodeid_out);
                self.nodes.change(to);
                let from = FilePlace::new(ino(node), fixed.off_in);
                let to = FilePlace::new(ino(to), fixed.off_out);
                let len = fixed.len.min(COPY_LEN_MAX);
                let copied = self.fs.copy_range(from, to, len, now());
                let copied = self.check("copy of a range", node, copied)?;
                Ok(written(copied, out))
            }
            Operation::Forget { count } => {
                self.forget(node, *count);
                Ok(Answer::NoReply)
            }
            Operation::BatchForget { nodes } => {
                for one in nodes {
                    self.forget(NodeId(one.nodeid), one.nlookup);
                }
                Ok(Answer::NoReply)
            }
            Operation::Ioctl { command, input, .. } => self.ioctl(by, *command, input, out),
            Operation::Other => self.answer_simple(opcode, node, out),
            _ => self.change_names(request, out),
        }
    }

    /// Answers requests that carry no arguments beyond their inode.
    fn answer_simple(&self, opcode: Opcode, node: NodeId, out: &mut Vec<u8>) -> Answered {
        match opcode {
            Opcode::Getattr => {
                let stat = self.stat(node)?;
                Ok(self.attributes(&stat, out))
            }
            Opcode::Statx => {
                let stat = self.stat(node)?;
                let answer = StatxOut {
                    attr_valid: self.attr_ttl(),
                    stat: writable_statx(&self.shown(&stat)),
                    ..StatxOut::default()
                };
                Ok(record(out, &answer))
            }
            Opcode::Readlink => {
                let target = self.fs.read_link(ino(node));
                let target = self.check("link target", node, target)?;
                self.note_access(node);
                Ok(bytes(out, &target))
            }
            // The kernel then sends no RELEASEDIR either.
            Opcode::Opendir if self.can_drop_opendir() => Err(Errno::NOSYS),
            // No flag: the kernel caches no listing of a directory that is opened by a request.
            Opcode::Opendir => Ok(record(out, &OpenOut::default())),
            Opcode::Statfs => self.statfs(node, out),
            Opcode::Fsync | Opcode::Fsyncdir => {
                self.check("sync", node, self.fs.sync_inode(ino(node)))?;
                Ok(Answer::Buffered)
            }
            Opcode::Syncfs | Opcode::Destroy => {
                self.check("sync", node, self.fs.sync())?;
                Ok(Answer::Buffered)
            }
            Opcode::Release | Opcode::Releasedir => Ok(Answer::Buffered),
            // The kernel remembers ENOSYS and no longer sends these requests.
            _ => Err(Errno::NOSYS),
        }
    }

    /// Whether `name` is an access list on a mount that has none.
    fn hides(&self, name: &[u8]) -> bool {
        self.policy.hides_acls
            && (name == weald_format::ACL_ACCESS || name == weald_format::ACL_DEFAULT)
    }

    /// Whether the options `sync` and `dirsync` want the change to be durable before the answer.
    /// The kernel itself sends FSYNC after a write.
    fn must_be_durable(&self, operation: &Operation<'_>) -> bool {
        let live = self.policy.live.get();
        match operation {
            Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Symlink { .. }
            | Operation::Create { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename(_) => live.is_sync || live.is_dirsync,
            Operation::Setattr { .. }
            | Operation::Setxattr { .. }
            | Operation::Removexattr { .. }
            | Operation::Fallocate { .. }
            | Operation::Ioctl { .. }
            | Operation::CopyFileRange { .. } => live.is_sync,
            _ => false,
        }
    }

    /// Answers with attributes.
    fn attributes(&self, stat: &Stat, out: &mut Vec<u8>) -> Answer<Vec<u8>> {
        let answer = AttrOut {
            attr_valid: self.attr_ttl(),
            attr: writable_attributes(&self.shown(stat)),
            ..AttrOut::default()
        };
        record(out, &answer)
    }

    fn entry(&self, stat: &Stat) -> EntryOut {
        EntryOut {
            nodeid: stat.ino.0,
            // Inode numbers are never used again, so one generation is enough.
            generation: 0,
            entry_valid: self.entry_ttl(),
            attr_valid: self.attr_ttl(),
            attr: writable_attributes(&self.shown(stat)),
            ..EntryOut::default()
        }
    }

    /// As [`Self::entry`], for a name in `dir`.
    fn entry_in(&self, dir: NodeId, stat: &Stat) -> EntryOut {
        EntryOut {
            entry_valid: self.entry_ttl_in(dir),
            ..self.entry(stat)
        }
    }

    fn entry_ttl_in(&self, dir: NodeId) -> u64 {
        if self.fs.has_changing_names(ino(dir)) {
            0
        } else {
            self.entry_ttl()
        }
    }

    /// Answers with an inode, to which the kernel gets a reference.
    fn known(&self, stat: &Stat, out: &mut Vec<u8>) -> Answer<Vec<u8>> {
        self.nodes.add(node(stat.ino));
        record(out, &self.entry(stat))
    }

    fn forget(&self, node: NodeId, count: u64) {
        if self.nodes.forget(node, count) {
            self.drop_inode(node);
        }
    }

    fn drop_inode(&self, node: NodeId) {
        if let Err(errno) = self.check("removal", node, self.fs.forget(ino(node))) {
            log::warn!(
                "inode {}, which has no name, was not dropped: {errno}",
                node.0
            );
        }
    }

    /// Whether this look-up is the last of a rename that changes only the case of a name. Linux
    /// ends such a rename by itself if it finds the inode under the new name, and passes it on if
    /// it finds none.
    fn only_changes_case(&self, request: &Request<'_>, name: &[u8], found: &Stat) -> bool {
        let Some(call) = request.caller.rename_call() else {
            return false;
        };
        let is_source = || {
            let old = self.fs.lookup(ino(request.node), &call.old);
            old.is_ok_and(|old| old.ino == found.ino)
        };
        call.new == name && call.old != name && is_source()
    }

    fn lookup(&self, request: &Request<'_>, name: &[u8], out: &mut Vec<u8>) -> Answered {
        let dir = request.node;
        if name.len() > NAME_LEN_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let found = match name {
            // The kernel looks up these names to open file handles (`FUSE_EXPORT_SUPPORT`). It does
            // so only for inodes that it does not hold: one without a name is on its way out.
            b"." => match self.stat(dir) {
                Ok(stat) if stat.nlink == 0 => Err(Errno::STALE),
                found => found,
            },
            b".." => {
                let parent = self.check("parent", dir, self.fs.parent(ino(dir)));
                parent.and_then(|parent| self.stat(node(parent)))
            }
            _ => {
                let found = self.check("look-up", dir, self.fs.lookup(ino(dir), name));
                let hides = |found: &Stat| {
                    self.policy.ignores_case && self.only_changes_case(request, name, found)
                };
                match found {
                    Ok(stat) if hides(&stat) => Err(Errno::NOENT),
                    found => found,
                }
            }
        };
        match found {
            Ok(stat) => {
                self.nodes.add(node(stat.ino));
                Ok(record(out, &self.entry_in(dir, &stat)))
            }
            Err(Errno::NOENT) if matches!(name, b"." | b"..") => Err(Errno::STALE),
            // Node 0 is a negative entry: the kernel caches that the name does not exist.
            Err(Errno::NOENT) => {
                let entry_valid = self.entry_ttl_in(dir);
                Ok(record(
                    out,
                    &EntryOut {
                        entry_valid,
                        ..EntryOut::default()
                    },
                ))
            }
            Err(errno) => Err(errno),
        }
    }

    fn opened(&self) -> OpenOut {
        let keeps = if self.policy.changes_elsewhere {
            0
        } else {
            FOPEN_KEEP_CACHE
        };
        OpenOut {
            open_flags: keeps | FOPEN_NOFLUSH,
            ..OpenOut::default()
        }
    }

    fn read(&self, node: NodeId, offset: u64, size: u32, out: &mut Vec<u8>) -> Answered {
        let read = self.fs.read(ino(node), offset, size as usize, out);
        self.check("content", node, read)?;
        self.note_access(node);
        Ok(Answer::Buffered)
    }

    fn list(
        &self,
        dir: NodeId,
        offset: u64,
        size: u32,
        has_attributes: bool,
        out: &mut Vec<u8>,
    ) -> Answered {
        let mut listing = Listing::new(out, size);
        self.list_dots(dir, offset, has_attributes, &mut listing)?;
        let after = if offset > 2 { offset } else { 0 };
        let listed = self.fs.list(ino(dir), after, &mut |listed| {
            let (stat, name) = (listed.stat, listed.name);
            let kind = type_bits(stat.kind);
            let is_full = if has_attributes {
                let entry = self.entry_in(dir, stat);
                listing.add_with_attributes(&entry, listed.cookie, kind, name)
            } else {
                listing.add(node(stat.ino), listed.cookie, kind, name)
            };
            if has_attributes && !is_full {
                self.nodes.add(node(stat.ino));
            }
            !is_full
        });
        let listed = self.check("listing", dir, listed);
        let extent = listing.extent();
        if extent.is_none() {
            // A failure behind the first entry is the answer to the next request, which starts
            // there.
            listed?;
        }
        let changes = self.fs.has_changing_names(ino(dir));
        if self.can_drop_opendir() && (changes || !self.may_be_cached(dir, offset, extent)) {
            out.extend_from_slice(&END_OF_LISTING);
        }
        if !self.policy.live.get().skips_directories {
            self.note_access(dir);
        }
        Ok(Answer::Buffered)
    }

    /// Adds "." and ".." to a listing from `offset`.
    fn list_dots(
        &self,
        dir: NodeId,
        offset: u64,
        has_attributes: bool,
        listing: &mut Listing<'_>,
    ) -> Result<(), Errno> {
        for (at, name) in [(0, &b"."[..]), (1, b"..")] {
            if offset > at {
                continue;
            }
            let stat = match at {
                0 => self.stat(dir)?,
                _ => {
                    let parent = self.check("parent", dir, self.fs.parent(ino(dir)))?;
                    self.stat(node(parent))?
                }
            };
            // The kernel resolves these names itself. With a node id it would count a reference
            // that no FORGET balances.
            let entry = EntryOut {
                nodeid: 0,
                ..self.entry(&stat)
            };
            let kind = type_bits(stat.kind);
            if has_attributes {
                listing.add_with_attributes(&entry, at + 1, kind, name)
            } else {
                listing.add(node(stat.ino), at + 1, kind, name)
            };
        }
        Ok(())
    }

    /// Notes an answer to a listing from `offset`: where its entries end and the bytes that they
    /// take. False for an answer without entries that must not complete the kernel's cache.
    fn may_be_cached(&self, dir: NodeId, offset: u64, extent: Option<(u64, usize)>) -> bool {
        let Some((next, len)) = extent else {
            // With `strictatime`, every listing changes the access time.
            return self.policy.live.get().access_time != AccessTime::Always
                && self
                    .nodes
                    .with_listing_cache(dir, |cache| cache.complete(offset));
        };
        self.nodes.with_listing_cache(dir, |cache| {
            cache.fill(offset, next, len);
            true
        });
        true
    }

    fn statfs(&self, node: NodeId, out: &mut Vec<u8>) -> Answered {
        let capacity = self.check("figures", node, self.fs.capacity_at(ino(node)))?;
        let answer = StatfsOut {
            blocks: capacity.total / STATFS_BLOCK_LEN,
            bfree: capacity.free / STATFS_BLOCK_LEN,
            bavail: capacity.free / STATFS_BLOCK_LEN,
            files: capacity.inodes.saturating_add(capacity.inodes_free),
            ffree: capacity.inodes_free,
            bsize: STATFS_BLOCK_LEN as u32,
            namelen: NAME_LEN_MAX as u32,
            frsize: STATFS_BLOCK_LEN as u32,
            ..StatfsOut::default()
        };
        Ok(record(out, &answer))
    }

    fn lseek(&self, node: NodeId, offset: u64, whence: u32, out: &mut Vec<u8>) -> Answered {
        let wants_hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return Err(Errno::INVAL),
        };
        // The kernel's offsets are signed; a negative one lies in no file.
        if i64::try_from(offset).is_err() {
            return Err(Errno::NXIO);
        }
        let found = self.fs.seek(ino(node), offset, wants_hole);
        let offset = self.check("map", node, found)?;
        Ok(record(out, &LseekOut { offset }))
    }

    /// Answers EOPNOTSUPP to a reservation of space, which posix_fallocate(3) then makes by writes.
    fn allocate(&self, node: NodeId, mode: u32, offset: u64, len: u64) -> Answered {
        let mode = match mode {
            mode if mode == PUNCH_HOLE | KEEP_SIZE => AllocateMode::PunchHole,
            mode if mode & !KEEP_SIZE == ZERO_RANGE => AllocateMode::Zero {
                keeps_size: mode & KEEP_SIZE != 0,
            },
            COLLAPSE_RANGE => AllocateMode::Collapse,
            INSERT_RANGE => AllocateMode::Insert,
            _ => return Err(Errno::OPNOTSUPP),
        };
        self.nodes.change(node);
        let done = self.fs.allocate(ino(node), mode, offset, len, now());
        self.check("allocation", node, done)?;
        Ok(Answer::Buffered)
    }

    fn getxattr(&self, node: NodeId, name: &[u8], size: u32, out: &mut Vec<u8>) -> Answered {
        let value = self.fs.xattr(ino(node), name);
        let value = self.check("extended attribute", node, value);
        let value = self.found_xattr(name, value)?;
        sized(out, size, &value)
    }

    fn listxattr(
        &self,
        (node, caller): (NodeId, Caller),
        size: u32,
        out: &mut Vec<u8>,
    ) -> Answered {
        let names = self.fs.xattr_names(ino(node));
        let mut names = self.check("extended attributes", node, names)?;
        if names.iter().any(|name| is_trusted(name)) && !caller.sees_trusted() {
            names.retain(|name| !is_trusted(name));
        }
        names.retain(|name| !self.hides(name));
        let mut list = Vec::new();
        for name in names {
            list.extend_from_slice(&name);
            list.push(0);
        }
        sized(out, size, &list)
    }
}

/// Answers with the number of bytes of a write.
fn written(len: u64, out: &mut Vec<u8>) -> Answer<Vec<u8>> {
    // The length of a request and of a copy has 32 bits.
    let size = len as u32;
    record(out, &WriteOut { size, padding: 0 })
}

impl Answers for WritableDriver {
    type Chunk = Vec<u8>;

    const REQUEST_LEN_MAX: usize = WRITE_LEN_MAX as usize + READ_BUFFER_MIN;
    const ANSWER_LEN_KEPT: usize = WRITE_LEN_MAX as usize + READ_BUFFER_MIN;

    fn begin_thread(&self) {
        // The kernel may need this thread to free memory: dirty pages of a file of this mount, or
        // of a file system on a loop device above it. So the thread must not wait for that itself.
        if let Err(errno) = rustix::process::configure_io_flusher_behavior(true) {
            log::debug!("the thread is not marked as one that writes back pages: {errno}");
        }
    }

    fn is_sync(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Fsync | Opcode::Fsyncdir | Opcode::Syncfs)
    }

    fn answer(&self, opcode: Opcode, request: &Request<'_>, out: &mut Vec<u8>) -> Answer<Vec<u8>> {
        if !self.policy.admission.admits(opcode, request.uid) {
            return Answer::Failed(Errno::ACCESS);
        }
        let answered = self.try_answer(opcode, request, out);
        let synced = answered.and_then(|answer| {
            if self.must_be_durable(&request.operation) {
                self.check("sync", request.node, self.fs.sync())?;
            }
            Ok(answer)
        });
        synced.unwrap_or_else(Answer::Failed)
    }

    fn outdated_listings(&self, request: &Request<'_>) -> Vec<NodeId> {
        let mut dirs = self.changed_directories(request);
        dirs.retain(|&dir| self.nodes.with_listing_cache(dir, ListingCache::change));
        dirs
    }

    fn ino(&self, node: NodeId) -> InodeNo {
        InodeNo(node.0)
    }
}

impl Drop for WritableDriver {
    /// The mount is gone: what the kernel kept open is dropped, and everything becomes durable.
    fn drop(&mut self) {
        for node in self.nodes.clear() {
            self.drop_inode(node);
        }
        if let Err(errno) = self.check("sync", NodeId::ROOT, self.fs.sync()) {
            log::error!("the last sync of the mount failed: {errno}");
        }
    }
}
