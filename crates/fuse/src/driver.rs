//! Answers the kernel's requests from a [`Tree`].
//!
//! The driver holds no inode table and no open files, because a node id is an inode number. The
//! tree never changes, so every answer tells the kernel to cache it. Of a tree that follows a name,
//! this holds for all but the root: the kernel asks for its entries and attributes each time.

use crate::answer::{Admission, Answer, Answers, bytes, record, sized};
use crate::attr::{extended, type_bits};
use crate::listing::Listing;
use crate::options::Access;
use crate::request::{Operation, Request};
use crate::tree::Tree;
use crate::verity;
use crate::view::View;
use crate::wire::{
    Attr, AttrOut, EntryOut, FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE, LseekOut, NodeId, Opcode, OpenOut,
    READ_BUFFER_MIN, StatfsOut, StatxOut, init,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use weald_format::limits::NAME_LEN_MAX;
use weald_format::{Error, FileKind, InodeNo};
use weald_image::Inode;

/// How long the kernel may cache names, negative lookups and attributes, in seconds. The tree is
/// immutable; a year stands for ever.
const CACHE_TTL: u64 = 365 * 24 * 3600;

/// Bytes of a worker's request buffer. The largest request to a read-only mount carries a name; the
/// buffer also holds a SETXATTR of 64 KiB, which the kernel sends after a remount with `rw`.
const REQUEST_LEN_MAX: usize = READ_BUFFER_MIN + (80 << 10);

/// Unit of the block counts of statfs(2), in bytes.
const STATFS_BLOCK_LEN: u32 = 4096;

/// `SEEK_DATA` and `SEEK_HOLE` of lseek(2) on Linux.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// Read-only file system: one `Driver` answers all requests of a mount.
pub(crate) struct Driver<T> {
    view: View<T>,
    can_drop_open: bool,
    can_drop_opendir: bool,
    admission: Admission,
}

type Answered<T> = Result<Answer<<T as Tree>::Chunk>, Errno>;

impl<T: Tree> Driver<T> {
    /// Creates the driver of a connection. `flags` are the negotiated bits of `FUSE_INIT`; `owner`
    /// is the user id of the process that mounted.
    pub(crate) fn new(view: View<T>, flags: u64, owner: u32) -> Self {
        let admission = Admission::new(view.shown.access, owner);
        Self {
            can_drop_open: flags & init::NO_OPEN_SUPPORT != 0,
            // The driver checks users in OPENDIR, so the kernel must keep sending that request.
            // That of a root that changes begins a listing.
            can_drop_opendir: flags & init::NO_OPENDIR_SUPPORT != 0
                && !admission.is_checked()
                && !view.tree.is_followed(),
            view,
            admission,
        }
    }

    fn ttl(&self) -> u64 {
        // The kernel would serve its caches to every user, also to those that `allow_root`
        // excludes.
        if self.admission.is_checked() {
            0
        } else {
            CACHE_TTL
        }
    }

    /// How long the kernel may keep the attributes of `node`, or the names in it.
    fn ttl_of(&self, node: NodeId) -> u64 {
        if self.is_changing(node) {
            0
        } else {
            self.ttl()
        }
    }

    /// Whether `node` shows other entries from one request to the next.
    fn is_changing(&self, node: NodeId) -> bool {
        node == NodeId::ROOT && self.view.tree.is_followed()
    }

    /// The directory of a listing that the kernel has opened with the number `handle`.
    fn listed_dir(&self, dir: NodeId, handle: u64) -> NodeId {
        if self.is_changing(dir) {
            NodeId(handle)
        } else {
            dir
        }
    }

    fn try_answer(&self, opcode: Opcode, request: &Request<'_>, out: &mut Vec<u8>) -> Answered<T> {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => self.lookup(node, name, out),
            Operation::Open { fixed } => self.open(fixed.flags, out),
            Operation::Read { offset, size } => {
                let read = self
                    .view
                    .inode(node)
                    .and_then(|inode| self.view.tree.read(&inode, offset, size as usize));
                let chunk = read.map_err(|error| self.failed("content", node, &error))?;
                Ok(Answer::Content(chunk))
            }
            Operation::Readdir {
                handle,
                offset,
                size,
            } => self.readdir(self.listed_dir(node, handle), offset, size, out),
            Operation::Readdirplus {
                handle,
                offset,
                size,
            } => self.readdirplus((node, handle), offset, size, out),
            Operation::Releasedir { handle } => {
                if self.is_changing(node) {
                    self.view.tree.end_listing(InodeNo(handle));
                }
                Ok(Answer::Buffered)
            }
            Operation::Forget { count } => {
                self.view.tree.forget(self.view.tree_ino(node), count);
                Ok(Answer::NoReply)
            }
            Operation::BatchForget { ref nodes } => {
                for one in nodes {
                    let ino = self.view.tree_ino(NodeId(one.nodeid));
                    self.view.tree.forget(ino, one.nlookup);
                }
                Ok(Answer::NoReply)
            }
            Operation::Getxattr { name, size } => self.getxattr(node, name, size, out),
            Operation::Listxattr { size } => self.listxattr(node, size, out),
            Operation::Lseek { offset, whence } => self.lseek(node, offset, whence, out),
            Operation::Ioctl {
                command, out_len, ..
            } => self.ioctl(node, command, out_len, out),
            _ => self.answer_simple(opcode, node, out),
        }
    }

    /// Answers requests that carry no arguments beyond their inode.
    fn answer_simple(&self, opcode: Opcode, node: NodeId, out: &mut Vec<u8>) -> Answered<T> {
        match opcode {
            Opcode::Getattr => {
                let inode = self.inode(node)?;
                let attr = self.view.attributes(&inode);
                Ok(record(out, &self.attr_out(attr)))
            }
            Opcode::Statx if !self.view.features.has_btimes => Err(Errno::NOSYS),
            Opcode::Statx => {
                let inode = self.inode(node)?;
                let stat = extended(&inode, &self.view.attributes(&inode));
                Ok(record(
                    out,
                    &StatxOut {
                        attr_valid: self.ttl_of(node),
                        stat,
                        ..StatxOut::default()
                    },
                ))
            }
            Opcode::Readlink => {
                let target = self.view.inode(node);
                let target = target.and_then(|inode| self.view.tree.read_link(&inode));
                let target = target.map_err(|error| self.failed("link target", node, &error))?;
                Ok(bytes(out, &target))
            }
            Opcode::Opendir if self.can_drop_opendir => Err(Errno::NOSYS),
            Opcode::Opendir if self.is_changing(node) => Ok(record(
                out,
                &OpenOut {
                    fh: self.view.tree.begin_listing().0,
                    ..OpenOut::default()
                },
            )),
            Opcode::Opendir => Ok(record(
                out,
                &OpenOut {
                    open_flags: FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR,
                    ..OpenOut::default()
                },
            )),
            Opcode::Statfs => Ok(self.statfs(out)),
            Opcode::Forget | Opcode::BatchForget => Ok(Answer::NoReply),
            Opcode::Fsync
            | Opcode::Fsyncdir
            | Opcode::Syncfs
            | Opcode::Release
            | Opcode::Releasedir
            | Opcode::Destroy => Ok(Answer::Buffered),
            // The kernel remembers ENOSYS and no longer sends these requests.
            Opcode::Flush | Opcode::Interrupt => Err(Errno::NOSYS),
            // Requests that write: the kernel refuses them itself (`ro`), except after a remount
            // with `rw`.
            _ => Err(Errno::ROFS),
        }
    }

    fn failed(&self, part: &str, node: NodeId, error: &Error) -> Errno {
        self.view.answer(part, node, error)
    }

    fn inode(&self, node: NodeId) -> Result<Inode, Errno> {
        self.view
            .inode(node)
            .map_err(|error| self.failed("attributes", node, &error))
    }

    fn attr_out(&self, attr: Attr) -> AttrOut {
        AttrOut {
            attr_valid: self.ttl_of(NodeId(attr.ino)),
            attr,
            ..AttrOut::default()
        }
    }

    /// The answer that names an entry of `dir`.
    fn entry_out(&self, dir: NodeId, attr: Attr) -> EntryOut {
        EntryOut {
            nodeid: attr.ino,
            // A mounted image never reuses an inode number, so one generation is enough.
            generation: 0,
            entry_valid: self.ttl_of(dir),
            attr_valid: self.ttl_of(NodeId(attr.ino)),
            attr,
            ..EntryOut::default()
        }
    }

    fn lookup(&self, dir: NodeId, name: &[u8], out: &mut Vec<u8>) -> Answered<T> {
        if name.len() > NAME_LEN_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let found = self.view.find(dir, name);
        let found = found.map_err(|error| self.failed("look-up in directory", dir, &error))?;
        // Inode 0 is a negative entry: the kernel caches that the name does not exist.
        if let Some(inode) = found.as_ref().filter(|_| matches!(name, b"." | b"..")) {
            // A look-up in the tree has counted.
            self.view.tree.remember(inode.ino);
        }
        let attr = found.map_or(Attr::default(), |inode| self.view.attributes(&inode));
        Ok(record(out, &self.entry_out(dir, attr)))
    }

    fn open(&self, flags: u32, out: &mut Vec<u8>) -> Answered<T> {
        let wanted = OFlags::from_bits_retain(flags);
        if wanted.intersects(OFlags::WRONLY | OFlags::RDWR) {
            return Err(Errno::ROFS);
        }
        if self.can_drop_open {
            return Err(Errno::NOSYS);
        }
        Ok(record(
            out,
            &OpenOut {
                open_flags: FOPEN_KEEP_CACHE,
                ..OpenOut::default()
            },
        ))
    }

    fn readdir(&self, dir: NodeId, offset: u64, size: u32, out: &mut Vec<u8>) -> Answered<T> {
        let mut listing = Listing::new(out, size);
        let listed = self.view.list(dir, offset, &mut |next, name, inode| {
            let node = self.view.node_id(inode.ino);
            listing.add(node, next, type_bits(inode.kind), name)
        });
        listed.map_err(|error| self.failed("listing", dir, &error))?;
        Ok(Answer::Buffered)
    }

    fn readdirplus(
        &self,
        (node, handle): (NodeId, u64),
        offset: u64,
        size: u32,
        out: &mut Vec<u8>,
    ) -> Answered<T> {
        let dir = self.listed_dir(node, handle);
        let mut listing = Listing::new(out, size);
        let listed = self.view.list(dir, offset, &mut |next, name, inode| {
            let mut entry = self.entry_out(node, self.view.attributes(inode));
            let is_dots = name == b"." || name == b"..";
            if is_dots {
                // The kernel resolves these names itself. With a node id it would count a lookup
                // that no FORGET balances.
                entry.nodeid = 0;
            }
            let is_full = listing.add_with_attributes(&entry, next, type_bits(inode.kind), name);
            if !is_full && !is_dots {
                self.view.tree.remember(inode.ino);
            }
            is_full
        });
        listed.map_err(|error| self.failed("listing", dir, &error))?;
        Ok(Answer::Buffered)
    }

    fn statfs(&self, out: &mut Vec<u8>) -> Answer<T::Chunk> {
        let capacity = self.view.tree.capacity();
        record(
            out,
            &StatfsOut {
                blocks: capacity.content_len.div_ceil(STATFS_BLOCK_LEN.into()),
                files: capacity.name_count,
                bsize: STATFS_BLOCK_LEN,
                namelen: NAME_LEN_MAX as u32,
                frsize: STATFS_BLOCK_LEN,
                ..StatfsOut::default()
            },
        )
    }

    fn getxattr(&self, node: NodeId, name: &[u8], size: u32, out: &mut Vec<u8>) -> Answered<T> {
        if !self.view.features.has_xattrs {
            return Err(Errno::NOSYS);
        }
        let value = self.view.xattr_value(node, name);
        let value = value.map_err(|error| self.failed("extended attributes", node, &error))?;
        sized(out, size, &value.ok_or(Errno::NODATA)?)
    }

    fn listxattr(&self, node: NodeId, size: u32, out: &mut Vec<u8>) -> Answered<T> {
        if !self.view.features.has_xattrs {
            return Err(Errno::NOSYS);
        }
        let names = self.view.xattr_names(node);
        let names = names.map_err(|error| self.failed("extended attributes", node, &error))?;
        sized(out, size, &names)
    }

    fn lseek(&self, node: NodeId, offset: u64, whence: u32, out: &mut Vec<u8>) -> Answered<T> {
        let wants_hole = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return Err(Errno::INVAL),
        };
        // The kernel's offsets are signed; a negative one lies in no file.
        if i64::try_from(offset).is_err() {
            return Err(Errno::NXIO);
        }
        let found = self.view.seek(node, offset, wants_hole);
        let found = found.map_err(|error| self.failed("map", node, &error))?;
        let offset = found.ok_or(Errno::NXIO)?;
        Ok(record(out, &LseekOut { offset }))
    }

    fn ioctl(&self, node: NodeId, command: u32, out_len: u32, out: &mut Vec<u8>) -> Answered<T> {
        if command != verity::MEASURE {
            return Err(Errno::NOTTY);
        }
        let inode = self.inode(node)?;
        if inode.kind != FileKind::Regular {
            return Err(Errno::NOTTY);
        }
        let failed = |error| self.failed("content", node, &error);
        verity::measure(&self.view.tree, &inode, out_len, out, failed)?;
        Ok(Answer::Buffered)
    }
}

impl<T: Tree> Answers for Driver<T> {
    type Chunk = T::Chunk;

    const REQUEST_LEN_MAX: usize = REQUEST_LEN_MAX;
    const ANSWER_LEN_KEPT: usize = 256 << 10;

    fn answer(&self, opcode: Opcode, request: &Request<'_>, out: &mut Vec<u8>) -> Answer<T::Chunk> {
        if !self.admission.admits(opcode, request.uid) {
            return Answer::Failed(Errno::ACCESS);
        }
        self.try_answer(opcode, request, out)
            .unwrap_or_else(Answer::Failed)
    }

    fn abandon(&self) {
        self.view.tree.stop_waiting();
    }

    fn ino(&self, node: NodeId) -> InodeNo {
        self.view.tree_ino(node)
    }
}

/// Bits of `FUSE_INIT` that a mount of this tree requests.
pub(crate) fn wanted_flags<T: Tree>(view: &View<T>) -> u64 {
    let mut wanted = init::ASYNC_READ
        | init::BIG_WRITES
        | init::MAX_PAGES
        | init::INIT_EXT
        | init::EXPORT_SUPPORT
        | init::DO_READDIRPLUS
        | init::PARALLEL_DIROPS
        | init::CACHE_SYMLINKS
        | init::NO_OPEN_SUPPORT
        | init::NO_OPENDIR_SUPPORT;
    if view.features.has_acls && !view.shown.overrides.is_active() {
        wanted |= init::POSIX_ACL;
    }
    if view.shown.access == Access::Everybody {
        wanted |= init::ALLOW_IDMAP;
    }
    wanted
}
