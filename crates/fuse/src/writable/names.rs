//! Requests that change names: creation with inherited groups and ACLs, links, removal, renames.

use super::{Answered, WritableDriver, ino, node, now};
use crate::acl::Acl;
use crate::answer::{Answer, record};
use crate::caller::Caller;
use crate::request::{Operation, Renaming, Request};
use crate::wire::{CreateIn, NodeId, OPEN_KILL_SUIDGID, OpenIn, init};
use rustix::fs::OFlags;
use rustix::io::Errno;
use weald_format::limits::NAME_LEN_MAX;
use weald_format::{ACL_ACCESS, ACL_DEFAULT, FileKind};
use weald_vfs::{NewInode, RenameMode, Stat};

/// The set-gid bit of a mode.
const SET_GID: u16 = 0o2000;

// Flags of renameat2(2).
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;

/// Arguments of a request for the inode that it creates.
struct Wanted<'a> {
    kind: FileKind,
    /// Permission bits before umask and default ACL.
    permissions: u16,
    umask: u32,
    rdev: u32,
    target: &'a [u8],
}

impl Wanted<'_> {
    fn of(mode: u32, umask: u32, rdev: u32) -> Result<Self, Errno> {
        Ok(Self {
            kind: kind_of(mode)?,
            permissions: (mode & 0o7777) as u16,
            umask,
            rdev,
            target: b"",
        })
    }
}

/// Kind of file of an `st_mode`.
fn kind_of(mode: u32) -> Result<FileKind, Errno> {
    match mode & 0o170_000 {
        // mknod(2) says that no type is a regular file.
        0 | 0o100_000 => Ok(FileKind::Regular),
        0o040_000 => Ok(FileKind::Directory),
        0o020_000 => Ok(FileKind::CharDevice),
        0o060_000 => Ok(FileKind::BlockDevice),
        0o010_000 => Ok(FileKind::Fifo),
        0o140_000 => Ok(FileKind::Socket),
        _ => Err(Errno::INVAL),
    }
}

/// Checks the length of a name; the kernel accepts longer ones.
fn checked(name: &[u8]) -> Result<(), Errno> {
    match name.len() {
        0 => Err(Errno::NOENT),
        len if len > NAME_LEN_MAX => Err(Errno::NAMETOOLONG),
        _ => Ok(()),
    }
}

impl WritableDriver {
    pub(super) fn change_names(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Answered {
        let dir = request.node;
        match &request.operation {
            Operation::Mknod { fixed, name } => {
                let wanted = Wanted::of(fixed.mode, fixed.umask, fixed.rdev)?;
                let stat = self.create(request, name, &wanted)?;
                Ok(self.known(&stat, out))
            }
            Operation::Mkdir { fixed, name } => {
                let mode = fixed.mode & 0o7777 | FileKind::Directory.mode_bits();
                let wanted = Wanted::of(mode, fixed.umask, 0)?;
                let stat = self.create(request, name, &wanted)?;
                Ok(self.known(&stat, out))
            }
            Operation::Symlink { name, target } => {
                let wanted = Wanted {
                    kind: FileKind::Symlink,
                    permissions: 0o777,
                    umask: 0,
                    rdev: 0,
                    target,
                };
                let stat = self.create(request, name, &wanted)?;
                Ok(self.known(&stat, out))
            }
            // The kernel then sends MKNOD, and no RELEASE at the end: one request less for a file.
            Operation::Create { .. } if !self.policy.ignores_case => Err(Errno::NOSYS),
            Operation::Create { fixed, name } => self.create_open(request, name, *fixed, out),
            Operation::Tmpfile { fixed } => {
                let wanted = Wanted::of(fixed.mode, fixed.umask, 0)?;
                let stat = self.make(request, &wanted, |new| {
                    self.fs.create_unnamed(ino(dir), new, now())
                })?;
                let answer = self.known(&stat, out);
                self.nodes.set_unnamed(node(stat.ino));
                record::<Vec<u8>>(out, &self.opened());
                Ok(answer)
            }
            Operation::Link { from, name } => {
                checked(name)?;
                let linked = self.fs.link(ino(*from), ino(dir), name, now());
                let stat = self.check("link", *from, linked)?;
                Ok(self.known(&stat, out))
            }
            Operation::Unlink { name } => {
                checked(name)?;
                let removed = self.fs.unlink(ino(dir), name, now());
                self.removed(&self.check("removal of a name", dir, removed)?);
                Ok(Answer::Buffered)
            }
            Operation::Rmdir { name } => {
                checked(name)?;
                let removed = self.fs.rmdir(ino(dir), name, now());
                self.removed(&self.check("removal of a directory", dir, removed)?);
                Ok(Answer::Buffered)
            }
            Operation::Rename(renaming) => self.rename(dir, renaming),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Directories in whose listings `request` may have changed an entry.
    pub(super) fn changed_directories(&self, request: &Request<'_>) -> Vec<NodeId> {
        let dir = request.node;
        match &request.operation {
            Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Symlink { .. }
            | Operation::Create { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. } => vec![dir],
            Operation::Rename(renaming) if renaming.new_dir == dir => vec![dir],
            Operation::Rename(renaming) => {
                let new_dir = renaming.new_dir;
                let mut dirs = vec![dir, new_dir];
                // The entry ".." of a directory that moved.
                for (dir, name) in [(dir, renaming.old), (new_dir, renaming.new)] {
                    let moved = self.fs.lookup(ino(dir), name);
                    dirs.extend(moved.into_iter().map(|moved| node(moved.ino)));
                }
                dirs
            }
            _ => Vec::new(),
        }
    }

    /// Takes care of an inode that lost a name.
    fn removed(&self, stat: &Stat) {
        let is_unnamed = stat.nlink == 0;
        if is_unnamed && !self.nodes.set_unnamed(node(stat.ino)) {
            self.drop_inode(node(stat.ino));
        }
    }

    fn rename(&self, dir: NodeId, renaming: &Renaming<'_>) -> Answered {
        checked(renaming.old)?;
        checked(renaming.new)?;
        let mode = match renaming.flags {
            0 => RenameMode::Replace,
            RENAME_NOREPLACE => RenameMode::KeepExisting,
            RENAME_EXCHANGE => RenameMode::Exchange,
            // The kernel has checked that the destination does not exist.
            flags if flags & !RENAME_NOREPLACE == RENAME_WHITEOUT => RenameMode::LeaveWhiteout,
            _ => return Err(Errno::INVAL),
        };
        let from = (ino(dir), renaming.old);
        let to = (ino(renaming.new_dir), renaming.new);
        let renamed = self.fs.rename(from, to, mode, now());
        if let Some(replaced) = self.check("rename", dir, renamed)? {
            self.removed(&replaced);
        }
        Ok(Answer::Buffered)
    }

    fn create(
        &self,
        request: &Request<'_>,
        name: &[u8],
        wanted: &Wanted<'_>,
    ) -> Result<Stat, Errno> {
        checked(name)?;
        let dir = ino(request.node);
        self.make(request, wanted, |new| self.fs.create(dir, name, new, now()))
    }

    /// Completes an inode to create with what it inherits from its directory, and creates it.
    fn make(
        &self,
        request: &Request<'_>,
        wanted: &Wanted<'_>,
        create: impl FnOnce(&NewInode<'_>) -> weald_vfs::Outcome<Stat>,
    ) -> Result<Stat, Errno> {
        let dir = self.stat(request.node)?;
        let inherits_group = dir.permissions & SET_GID != 0;
        let mut permissions = wanted.permissions;
        if inherits_group && wanted.kind == FileKind::Directory {
            permissions |= SET_GID;
        }
        let default = match wanted.kind {
            FileKind::Symlink => None,
            _ => self.default_acl(request.node)?,
        };
        let mut access_value = None;
        match default.as_deref().and_then(Acl::parse) {
            Some(default) => {
                let (acl, inherited) = default.inherited(permissions);
                permissions = inherited;
                access_value = (!acl.is_mode()).then(|| acl.to_value());
            }
            None => permissions &= !(wanted.umask as u16 & 0o777),
        }
        let mut xattrs = Vec::new();
        if let Some(value) = &access_value {
            xattrs.push((ACL_ACCESS, value.as_slice()));
        }
        if let Some(value) = &default
            && wanted.kind == FileKind::Directory
        {
            xattrs.push((ACL_DEFAULT, value.as_slice()));
        }
        let created = create(&NewInode {
            kind: wanted.kind,
            permissions,
            uid: request.uid,
            gid: if inherits_group { dir.gid } else { request.gid },
            rdev: wanted.rdev,
            target: wanted.target,
            xattrs: &xattrs,
        });
        self.check("creation", request.node, created)
    }

    /// Default ACL of a directory.
    fn default_acl(&self, dir: NodeId) -> Result<Option<Vec<u8>>, Errno> {
        if self.nodes.facts(dir).has_no_default_acl {
            return Ok(None);
        }
        let value = self.fs.xattr(ino(dir), ACL_DEFAULT);
        match self.check("default ACL", dir, value) {
            Ok(value) => Ok(Some(value)),
            Err(Errno::NODATA) => {
                self.nodes
                    .note(dir, |facts| facts.has_no_default_acl = true);
                Ok(None)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Creates a file and opens it, in one request.
    fn create_open(
        &self,
        request: &Request<'_>,
        name: &[u8],
        fixed: CreateIn,
        out: &mut Vec<u8>,
    ) -> Answered {
        let flags = OFlags::from_bits_retain(fixed.flags);
        let wanted = Wanted::of(fixed.mode, fixed.umask, 0)?;
        let stat = match self.create(request, name, &wanted) {
            // The name has another spelling: the kernel believed that it does not exist.
            Err(Errno::EXIST) if !flags.contains(OFlags::EXCL) => {
                let found = self.fs.lookup(ino(request.node), name);
                let found = self.check("look-up", request.node, found)?;
                let opened = OpenIn {
                    flags: fixed.flags,
                    open_flags: fixed.open_flags,
                };
                self.check_open(node(found.ino), fixed.flags)?;
                self.truncate_opened((node(found.ino), request.caller), opened)?;
                self.stat(node(found.ino))?
            }
            created => created?,
        };
        let answer = self.known(&stat, out);
        record::<Vec<u8>>(out, &self.opened());
        Ok(answer)
    }

    pub(super) fn open(&self, by: (NodeId, Caller), fixed: OpenIn, out: &mut Vec<u8>) -> Answered {
        if self.flags & init::NO_OPEN_SUPPORT != 0 && !self.fs.has_flags() {
            // Opens cost no request from now on. A truncation is a SETATTR then.
            return Err(Errno::NOSYS);
        }
        self.check_open(by.0, fixed.flags)?;
        self.truncate_opened(by, fixed)?;
        Ok(record(out, &self.opened()))
    }

    /// Does what `O_TRUNC` in an open asks for.
    fn truncate_opened(&self, by: (NodeId, Caller), fixed: OpenIn) -> Result<(), Errno> {
        if !OFlags::from_bits_retain(fixed.flags).contains(OFlags::TRUNC) {
            return Ok(());
        }
        self.truncate(by, 0, fixed.open_flags & OPEN_KILL_SUIDGID != 0)
    }
}
