//! Operations on names.

use crate::fs::{Entry, Inode, ModelState};
use crate::pages::Pages;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::limits::NAME_LEN_MAX;
use weald_format::{FileKind, InodeFlags};
use weald_vfs::{Ino, Nanoseconds, NewInode, Outcome, RenameMode, Stat};

impl ModelState {
    /// The entry `name` of `dir`: ENOENT, ENOTDIR.
    pub fn entry(&self, dir: Ino, name: &[u8]) -> Outcome<Entry> {
        let dir = self.dir(dir)?;
        if name.len() > NAME_LEN_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let entry = dir.names.get(name).ok_or(Errno::NOENT)?;
        Ok(*entry)
    }

    fn is_dir(&self, ino: Ino) -> Outcome<bool> {
        Ok(self.get(ino)?.stat.kind == FileKind::Directory)
    }

    /// Adds an inode whose parent, if it is a directory, is `dir`.
    pub fn add(&mut self, dir: Ino, nlink: u32, new: &NewInode<'_>, now: Nanoseconds) -> Ino {
        let ino = self.next_ino;
        self.next_ino = ino.next();
        let xattrs = new.xattrs.iter().map(|(n, v)| (n.to_vec(), v.to_vec()));
        let is_device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let stat = Stat {
            ino,
            kind: new.kind,
            permissions: new.permissions & 0o7777,
            flags: InodeFlags::NONE,
            uid: new.uid,
            gid: new.gid,
            nlink,
            rdev: if is_device { new.rdev } else { 0 },
            size: new.target.len() as u64,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let inode = Inode {
            stat,
            pages: Pages::default(),
            target: new.target.to_vec(),
            xattrs: xattrs.collect(),
            names: BTreeMap::new(),
            parent: dir,
        };
        self.inodes.insert(ino, Arc::new(inode));
        ino
    }

    /// Checks that `name` can be created in `dir`.
    fn check_new(&self, dir: Ino, name: &[u8]) -> Outcome<()> {
        if self.dir(dir)?.stat.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        match self.entry(dir, name) {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(failure) if failure.errno == Errno::NOENT => {
                self.forbid(dir, InodeFlags::IMMUTABLE)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Checks that flags let `dir` lose its name of `ino`.
    fn check_loss(&self, dir: Ino, ino: Ino) -> Outcome<()> {
        self.forbid(dir, InodeFlags::LOCKS)?;
        self.forbid(ino, InodeFlags::LOCKS)
    }

    /// Makes `name` in `dir` lead to `ino`; a name that exists keeps its cookie.
    fn set_name(&mut self, dir: Ino, name: &[u8], ino: Ino, now: Nanoseconds) -> Outcome<()> {
        let next_cookie = self.next_cookie;
        let is_dir = self.is_dir(ino)?;
        let inode = self.get_mut(dir)?;
        let new = Entry {
            ino,
            cookie: next_cookie,
        };
        inode.names.entry(name.to_vec()).or_insert(new).ino = ino;
        inode.stat.nlink += u32::from(is_dir);
        inode.stat.mtime = now;
        inode.stat.ctime = now;
        self.next_cookie += 1;
        if is_dir {
            self.get_mut(ino)?.parent = dir;
        }
        Ok(())
    }

    /// Takes `name` out of `dir`, whose entry leads to `ino`.
    fn take_name(&mut self, dir: Ino, name: &[u8], ino: Ino, now: Nanoseconds) -> Outcome<()> {
        let is_dir = self.is_dir(ino)?;
        let inode = self.get_mut(dir)?;
        inode.names.remove(name);
        inode.stat.nlink -= u32::from(is_dir);
        inode.stat.mtime = now;
        inode.stat.ctime = now;
        Ok(())
    }

    /// Counts one name less for `ino`.
    fn drop_link(&mut self, ino: Ino, now: Nanoseconds) -> Outcome<Stat> {
        let stat = &mut self.get_mut(ino)?.stat;
        stat.ctime = now;
        stat.nlink = match stat.kind {
            FileKind::Directory => 0,
            _ => stat.nlink - 1,
        };
        self.stat(ino)
    }

    /// As `WritableFs::create`.
    pub fn create(
        &mut self,
        dir: Ino,
        name: &[u8],
        new: &NewInode<'_>,
        now: Nanoseconds,
    ) -> Outcome<Stat> {
        self.check_new(dir, name)?;
        let nlink = if new.kind == FileKind::Directory {
            2
        } else {
            1
        };
        let ino = self.add(dir, nlink, new, now);
        self.set_name(dir, name, ino, now)?;
        self.stat(ino)
    }

    /// As `WritableFs::link`.
    pub fn link(&mut self, ino: Ino, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        if self.is_dir(ino)? {
            return Err(Errno::PERM.into());
        }
        self.check_new(dir, name)?;
        self.forbid(ino, InodeFlags::LOCKS)?;
        self.set_name(dir, name, ino, now)?;
        let stat = &mut self.get_mut(ino)?.stat;
        stat.nlink += 1;
        stat.ctime = now;
        self.stat(ino)
    }

    /// As `WritableFs::unlink`.
    pub fn unlink(&mut self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        let ino = self.entry(dir, name)?.ino;
        self.check_loss(dir, ino)?;
        if self.is_dir(ino)? {
            return Err(Errno::ISDIR.into());
        }
        self.take_name(dir, name, ino, now)?;
        self.drop_link(ino, now)
    }

    /// As `WritableFs::rmdir`.
    pub fn rmdir(&mut self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        let ino = self.entry(dir, name)?.ino;
        self.check_loss(dir, ino)?;
        if !self.dir(ino)?.names.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        self.take_name(dir, name, ino, now)?;
        self.drop_link(ino, now)
    }

    /// Whether `dir` is `ancestor` or lies below it.
    fn is_below(&self, dir: Ino, ancestor: Ino) -> Outcome<bool> {
        let mut at = dir;
        while at != ancestor {
            if at == Ino::ROOT {
                return Ok(false);
            }
            at = self.dir(at)?.parent;
        }
        Ok(true)
    }

    /// Checks that a rename may replace `target`.
    fn check_replaced(&self, target: Ino, by_dir: bool) -> Outcome<()> {
        match (by_dir, self.is_dir(target)?) {
            (true, false) => Err(Errno::NOTDIR.into()),
            (false, true) => Err(Errno::ISDIR.into()),
            _ if !self.get(target)?.names.is_empty() => Err(Errno::NOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    /// As `WritableFs::rename`.
    pub fn rename(
        &mut self,
        (from_dir, from): (Ino, &[u8]),
        (to_dir, to): (Ino, &[u8]),
        mode: RenameMode,
        now: Nanoseconds,
    ) -> Outcome<Option<Stat>> {
        let moved = self.entry(from_dir, from)?.ino;
        let is_dir = self.is_dir(moved)?;
        if self.dir(to_dir)?.stat.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        let target = match self.entry(to_dir, to) {
            Ok(entry) => Some(entry.ino),
            Err(failure) if failure.errno == Errno::NOENT => None,
            Err(failure) => return Err(failure),
        };
        match (target, mode) {
            (Some(_), RenameMode::KeepExisting) => return Err(Errno::EXIST.into()),
            (None, RenameMode::Exchange) => return Err(Errno::NOENT.into()),
            _ => {}
        }
        if is_dir && self.is_below(to_dir, moved)? {
            return Err(Errno::INVAL.into());
        }
        if target == Some(moved) {
            return Ok(None);
        }
        self.check_loss(from_dir, moved)?;
        match target {
            Some(target) => self.check_loss(to_dir, target)?,
            None => self.forbid(to_dir, InodeFlags::IMMUTABLE)?,
        }
        if let (RenameMode::Exchange, Some(target)) = (mode, target) {
            if self.is_dir(target)? && self.is_below(from_dir, target)? {
                return Err(Errno::INVAL.into());
            }
            self.take_name_keeping_cookie(from_dir, moved, now)?;
            self.take_name_keeping_cookie(to_dir, target, now)?;
            self.set_name(from_dir, from, target, now)?;
            self.set_name(to_dir, to, moved, now)?;
            self.get_mut(moved)?.stat.ctime = now;
            self.get_mut(target)?.stat.ctime = now;
            return Ok(None);
        }
        let mut replaced = None;
        if let Some(target) = target {
            self.check_replaced(target, is_dir)?;
            self.take_name(to_dir, to, target, now)?;
            let stat = self.drop_link(target, now)?;
            replaced = (stat.nlink == 0).then_some(stat);
        }
        self.take_name(from_dir, from, moved, now)?;
        if mode == RenameMode::LeaveWhiteout {
            self.leave_whiteout((from_dir, from), moved, now)?;
        }
        self.set_name(to_dir, to, moved, now)?;
        self.get_mut(moved)?.stat.ctime = now;
        Ok(replaced)
    }

    /// Counts a directory less in `dir`, whose name for `ino` gets another inode.
    fn take_name_keeping_cookie(&mut self, dir: Ino, ino: Ino, now: Nanoseconds) -> Outcome<()> {
        let is_dir = self.is_dir(ino)?;
        let stat = &mut self.get_mut(dir)?.stat;
        stat.nlink -= u32::from(is_dir);
        stat.mtime = now;
        stat.ctime = now;
        Ok(())
    }

    fn leave_whiteout(
        &mut self,
        (dir, name): (Ino, &[u8]),
        moved: Ino,
        now: Nanoseconds,
    ) -> Outcome<()> {
        let owner = self.stat(moved)?;
        let whiteout = NewInode {
            kind: FileKind::CharDevice,
            permissions: 0,
            uid: owner.uid,
            gid: owner.gid,
            rdev: 0,
            target: &[],
            xattrs: &[],
        };
        let ino = self.add(dir, 1, &whiteout, now);
        self.set_name(dir, name, ino, now)
    }
}
