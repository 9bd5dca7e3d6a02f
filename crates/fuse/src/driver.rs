//! Answers the kernel's requests from a [`Tree`]. Holds no table of inodes and no open files: a
//! node id is an inode number, and the kernel is told to cache everything for ever, because nothing
//! ever changes.

use crate::attr::{extended, type_bits};
use crate::listing::Listing;
use crate::options::Access;
use crate::request::{Operation, Request};
use crate::tree::Tree;
use crate::view::View;
use crate::wire::{
    Attr, AttrOut, EntryOut, FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE, GetxattrOut, LseekOut, NodeId,
    Opcode, OpenOut, StatfsOut, StatxOut, init,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use weald_format::limits::NAME_LEN_MAX;
use weald_format::{Error, InodeNo};
use weald_image::Inode;
use zerocopy::{Immutable, IntoBytes};

/// How long the kernel may believe names, absences and attributes, in seconds: a year, the tree
/// being immutable.
const TTL: u64 = 365 * 24 * 3600;

/// Unit of the block counts of statfs(2), in bytes.
const STATFS_BLOCK_LEN: u32 = 4096;

/// `SEEK_DATA` and `SEEK_HOLE` of lseek(2) on Linux.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// The file system that the kernel talks to.
pub(crate) struct Driver<T> {
    view: View<T>,
    can_drop_open: bool,
    can_drop_opendir: bool,
    /// Whose requests alone are answered, besides root's, where others must be kept out by us.
    owner: Option<u32>,
}

/// What becomes of a request.
pub(crate) enum Answer<C> {
    /// The kernel waits for nothing.
    Nothing,
    /// It fails.
    Failed(Errno),
    /// The answer is in the buffer.
    Buffered,
    /// The answer is content, which is not copied, one chunk after the other.
    Content(Vec<C>),
}

type Answered<T> = Result<Answer<<T as Tree>::Chunk>, Errno>;

impl<T: Tree> Driver<T> {
    /// A driver for a connection on which the bits `flags` of the handshake were agreed; `owner`
    /// has mounted it.
    pub(crate) fn new(view: View<T>, flags: u64, owner: u32) -> Self {
        let keeps_out = view.shown.access == Access::OwnerAndRoot;
        Self {
            view,
            can_drop_open: flags & init::NO_OPEN_SUPPORT != 0,
            // Who comes in by a directory that the kernel opens by itself would not be seen.
            can_drop_opendir: flags & init::NO_OPENDIR_SUPPORT != 0 && !keeps_out,
            owner: keeps_out.then_some(owner),
        }
    }

    /// Answers `request`, into `out` where the answer is no content.
    pub(crate) fn answer(
        &self,
        opcode: Opcode,
        request: &Request<'_>,
        out: &mut Vec<u8>,
    ) -> Answer<T::Chunk> {
        if !self.lets_in(opcode, request.uid) {
            return Answer::Failed(Errno::ACCESS);
        }
        self.try_answer(opcode, request, out)
            .unwrap_or_else(Answer::Failed)
    }

    /// The kernel's own `allow_other` lets everybody in, so that `allow_root` is for us to hold.
    /// Reading is not asked about: who has an open file was let in when it was opened, and the
    /// kernel reads ahead for whom it likes.
    fn lets_in(&self, opcode: Opcode, uid: u32) -> bool {
        match self.owner {
            None => true,
            Some(owner) => {
                uid == 0
                    || uid == owner
                    || matches!(
                        opcode,
                        Opcode::Read
                            | Opcode::Forget
                            | Opcode::BatchForget
                            | Opcode::Release
                            | Opcode::Releasedir
                            | Opcode::Interrupt
                            | Opcode::Destroy
                    )
            }
        }
    }

    fn ttl(&self) -> u64 {
        // What the kernel remembers it tells everybody who is let in by `allow_other`.
        if self.owner.is_some() { 0 } else { TTL }
    }

    fn try_answer(&self, opcode: Opcode, request: &Request<'_>, out: &mut Vec<u8>) -> Answered<T> {
        let node = request.node;
        match request.operation {
            Operation::Lookup { name } => self.lookup(node, name, out),
            Operation::Open { flags } => self.open(flags, out),
            Operation::Read { offset, size } => {
                let read = self
                    .view
                    .inode(node)
                    .and_then(|inode| self.view.tree.read(&inode, offset, size as usize));
                let chunk = read.map_err(|error| self.failed("content", node, &error))?;
                Ok(Answer::Content(chunk))
            }
            Operation::Readdir { offset, size } => self.readdir(node, offset, size, out),
            Operation::Readdirplus { offset, size } => self.readdirplus(node, offset, size, out),
            Operation::Getxattr { name, size } => self.getxattr(node, name, size, out),
            Operation::Listxattr { size } => self.listxattr(node, size, out),
            Operation::Lseek { offset, whence } => self.lseek(node, offset, whence, out),
            Operation::Other => self.answer_plain(opcode, node, out),
        }
    }

    /// Requests that need no more than their inode.
    fn answer_plain(&self, opcode: Opcode, node: NodeId, out: &mut Vec<u8>) -> Answered<T> {
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
                let attr_valid = self.ttl();
                Ok(record(
                    out,
                    &StatxOut {
                        attr_valid,
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
            Opcode::Opendir => Ok(record(
                out,
                &OpenOut {
                    open_flags: FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR,
                    ..OpenOut::default()
                },
            )),
            Opcode::Statfs => Ok(self.statfs(out)),
            Opcode::Forget | Opcode::BatchForget => Ok(Answer::Nothing),
            Opcode::Fsync
            | Opcode::Fsyncdir
            | Opcode::Syncfs
            | Opcode::Release
            | Opcode::Releasedir
            | Opcode::Destroy => Ok(Answer::Buffered),
            Opcode::Ioctl => Err(Errno::NOTTY),
            // The kernel remembers, and does by itself from then on.
            Opcode::Flush | Opcode::Interrupt => Err(Errno::NOSYS),
            // What would change something: the kernel refuses it for us (`ro`), unless somebody
            // remounts us `rw`.
            _ => Err(Errno::ROFS),
        }
    }

    fn failed(&self, doing: &str, node: NodeId, error: &Error) -> Errno {
        self.view.answer(doing, node, error)
    }

    fn inode(&self, node: NodeId) -> Result<Inode, Errno> {
        self.view
            .inode(node)
            .map_err(|error| self.failed("attributes", node, &error))
    }

    fn attr_out(&self, attr: Attr) -> AttrOut {
        AttrOut {
            attr_valid: self.ttl(),
            attr,
            ..AttrOut::default()
        }
    }

    fn entry_out(&self, attr: Attr) -> EntryOut {
        EntryOut {
            nodeid: attr.ino,
            // Inode numbers are never given to another inode while an image is mounted: there is
            // one generation.
            generation: 0,
            entry_valid: self.ttl(),
            attr_valid: self.ttl(),
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
        // An entry with inode 0 means: there is no such name, and you may remember that.
        let attr = found.map_or(Attr::default(), |inode| self.view.attributes(&inode));
        Ok(record(out, &self.entry_out(attr)))
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

    fn readdirplus(&self, dir: NodeId, offset: u64, size: u32, out: &mut Vec<u8>) -> Answered<T> {
        let mut listing = Listing::new(out, size);
        let listed = self.view.list(dir, offset, &mut |next, name, inode| {
            let mut entry = self.entry_out(self.view.attributes(inode));
            if name == b"." || name == b".." {
                // The kernel looks these up by itself, and would count a reference for each that
                // nobody gives back.
                entry.nodeid = 0;
            }
            listing.add_with_attributes(&entry, next, type_bits(inode.kind), name)
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
        // Offsets are signed for the kernel; one below 0 lies in no file.
        if i64::try_from(offset).is_err() {
            return Err(Errno::NXIO);
        }
        let found = self.view.seek(node, offset, wants_hole);
        let found = found.map_err(|error| self.failed("map", node, &error))?;
        let offset = found.ok_or(Errno::NXIO)?;
        Ok(record(out, &LseekOut { offset }))
    }

    /// The inode number that the tree has for a node, for those who trace.
    pub(crate) fn ino(&self, node: NodeId) -> InodeNo {
        self.view.tree_ino(node)
    }
}

/// What a mount of such a tree wants of the kernel, as bits of the handshake.
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

fn record<C>(out: &mut Vec<u8>, record: &(impl IntoBytes + Immutable)) -> Answer<C> {
    bytes(out, record.as_bytes())
}

fn bytes<C>(out: &mut Vec<u8>, bytes: &[u8]) -> Answer<C> {
    out.extend_from_slice(bytes);
    Answer::Buffered
}

/// Answers a request for a value of unknown length: its length where `size` is 0, ERANGE where it
/// does not fit.
fn sized<C>(out: &mut Vec<u8>, size: u32, value: &[u8]) -> Result<Answer<C>, Errno> {
    if size == 0 {
        // A value has at most 64 KiB, a list as much: Linux allows no more.
        let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
        Ok(record(out, &GetxattrOut { size, padding: 0 }))
    } else if value.len() > size as usize {
        Err(Errno::RANGE)
    } else {
        Ok(bytes(out, value))
    }
}
