//! The smallest file system in memory that can change.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use weald_format::FileKind;
use weald_vfs::{
    AllocateMode, FsCapacity, Ino, Listed, Nanoseconds, NewInode, NewStat, Outcome, RenameMode,
    Stat, WritableFs, XattrMode,
};

#[derive(Clone)]
struct Inode {
    stat: Stat,
    bytes: Vec<u8>,
    target: Vec<u8>,
    names: BTreeMap<Vec<u8>, (Ino, u64)>,
    parent: Ino,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

struct State {
    inodes: BTreeMap<Ino, Inode>,
    next: u64,
    syncs: u64,
}

/// File system in memory.
pub struct Memory(Mutex<State>);

type Result<T> = std::result::Result<T, Errno>;

impl Default for Memory {
    fn default() -> Self {
        let mut state = State {
            inodes: BTreeMap::new(),
            next: 1,
            syncs: 0,
        };
        let new = NewInode {
            kind: FileKind::Directory,
            permissions: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: b"",
            xattrs: &[],
        };
        state.make(&new, Ino::ROOT, 0);
        state.inodes.get_mut(&Ino::ROOT).expect("root").stat.nlink = 2;
        Self(Mutex::new(state))
    }
}

impl State {
    fn get(&mut self, ino: Ino) -> Result<&mut Inode> {
        self.inodes.get_mut(&ino).ok_or(Errno::NOENT)
    }

    fn dir(&mut self, ino: Ino) -> Result<&mut Inode> {
        let inode = self.get(ino)?;
        match inode.stat.kind {
            FileKind::Directory => Ok(inode),
            _ => Err(Errno::NOTDIR),
        }
    }

    fn find(&mut self, dir: Ino, name: &[u8]) -> Result<Ino> {
        let entry = self.dir(dir)?.names.get(name).copied();
        entry.map(|(ino, _)| ino).ok_or(Errno::NOENT)
    }

    fn make(&mut self, new: &NewInode<'_>, parent: Ino, now: Nanoseconds) -> Ino {
        let ino = Ino(self.next);
        self.next += 1;
        let size = new.target.len() as u64;
        let stat = Stat {
            ino,
            kind: new.kind,
            permissions: new.permissions,
            uid: new.uid,
            gid: new.gid,
            nlink: 0,
            rdev: new.rdev,
            size,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let xattrs = new.xattrs.iter();
        let inode = Inode {
            stat,
            bytes: Vec::new(),
            target: new.target.to_vec(),
            names: BTreeMap::new(),
            parent,
            xattrs: xattrs.map(|(n, v)| (n.to_vec(), v.to_vec())).collect(),
        };
        self.inodes.insert(ino, inode);
        ino
    }

    fn is_alive(&mut self, dir: Ino) -> Result<()> {
        match self.dir(dir)?.stat.nlink {
            0 => Err(Errno::NOENT),
            _ => Ok(()),
        }
    }

    fn enter(&mut self, dir: Ino, name: &[u8], ino: Ino, now: Nanoseconds) -> Result<()> {
        let cookie = self.next + 3;
        self.next += 1;
        let is_dir = self.get(ino)?.stat.kind == FileKind::Directory;
        let parent = self.dir(dir)?;
        parent.names.insert(name.to_vec(), (ino, cookie));
        parent.stat.nlink += u32::from(is_dir);
        (parent.stat.mtime, parent.stat.ctime) = (now, now);
        let inode = self.get(ino)?;
        inode.stat.nlink += if is_dir { 2 } else { 1 };
        inode.stat.ctime = now;
        if is_dir {
            inode.parent = dir;
        }
        Ok(())
    }

    fn leave(&mut self, dir: Ino, name: &[u8], now: Nanoseconds) -> Result<Stat> {
        let ino = self.find(dir, name)?;
        let is_dir = self.get(ino)?.stat.kind == FileKind::Directory;
        let parent = self.dir(dir)?;
        parent.names.remove(name);
        parent.stat.nlink -= u32::from(is_dir);
        (parent.stat.mtime, parent.stat.ctime) = (now, now);
        let inode = self.get(ino)?;
        inode.stat.nlink -= if is_dir { 2 } else { 1 };
        inode.stat.ctime = now;
        Ok(inode.stat)
    }

    fn resize(&mut self, ino: Ino, size: u64) -> Result<()> {
        if size > 1 << 32 {
            return Err(Errno::FBIG);
        }
        let inode = self.get(ino)?;
        inode.bytes.resize(size as usize, 0);
        inode.stat.size = size;
        inode.stat.allocated = size;
        Ok(())
    }

    fn put(&mut self, ino: Ino, offset: u64, bytes: &[u8], now: Nanoseconds) -> Result<()> {
        let end = offset + bytes.len() as u64;
        if end > self.get(ino)?.stat.size {
            self.resize(ino, end)?;
        }
        let inode = self.get(ino)?;
        inode.bytes[offset as usize..end as usize].copy_from_slice(bytes);
        (inode.stat.mtime, inode.stat.ctime) = (now, now);
        Ok(())
    }

    fn is_below(&mut self, mut dir: Ino, ancestor: Ino) -> Result<bool> {
        while dir != Ino::ROOT {
            if dir == ancestor {
                return Ok(true);
            }
            dir = self.get(dir)?.parent;
        }
        Ok(ancestor == Ino::ROOT)
    }

    fn replace(&mut self, ino: Ino, to: (Ino, &[u8]), now: Nanoseconds) -> Result<Option<Stat>> {
        let Ok(old) = self.find(to.0, to.1) else {
            return Ok(None);
        };
        let is_dir = self.get(ino)?.stat.kind == FileKind::Directory;
        let replaced = self.get(old)?;
        match (is_dir, replaced.stat.kind == FileKind::Directory) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) if !replaced.names.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        let stat = self.leave(to.0, to.1, now)?;
        Ok((stat.nlink == 0).then_some(stat))
    }
}

impl Memory {
    /// Number of inodes, also of those without a name.
    pub fn inode_count(&self) -> usize {
        self.0.lock().inodes.len()
    }

    /// Number of syncs so far.
    pub fn sync_count(&self) -> u64 {
        self.0.lock().syncs
    }
}

impl WritableFs for Memory {
    fn stat(&self, ino: Ino) -> Outcome<Stat> {
        Ok(self.0.lock().get(ino)?.stat)
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Outcome<Stat> {
        let mut state = self.0.lock();
        let ino = state.find(dir, name)?;
        Ok(state.get(ino)?.stat)
    }

    fn parent(&self, dir: Ino) -> Outcome<Ino> {
        Ok(self.0.lock().dir(dir)?.parent)
    }

    fn list(&self, dir: Ino, after: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Outcome<()> {
        let mut state = self.0.lock();
        let mut entries: Vec<_> = state.dir(dir)?.names.clone().into_iter().collect();
        entries.sort_by_key(|(_, (_, cookie))| *cookie);
        for (name, (ino, cookie)) in entries.iter().filter(|(_, (_, c))| *c > after) {
            let listed = Listed {
                name,
                stat: &state.get(*ino)?.stat.clone(),
                cookie: *cookie,
            };
            if !visit(listed) {
                break;
            }
        }
        Ok(())
    }

    fn set_stat(&self, ino: Ino, new: &NewStat, now: Nanoseconds) -> Outcome<Stat> {
        let mut state = self.0.lock();
        if let Some(size) = new.size {
            state.resize(ino, size)?;
        }
        let stat = &mut state.get(ino)?.stat;
        stat.permissions = new.permissions.unwrap_or(stat.permissions);
        stat.uid = new.uid.unwrap_or(stat.uid);
        stat.gid = new.gid.unwrap_or(stat.gid);
        stat.atime = new.atime.unwrap_or(stat.atime);
        stat.mtime = new.mtime.unwrap_or(stat.mtime);
        stat.ctime = new.ctime.unwrap_or(now);
        Ok(*stat)
    }

    fn create(&self, dir: Ino, name: &[u8], new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        let mut state = self.0.lock();
        state.is_alive(dir)?;
        if state.find(dir, name).is_ok() {
            return Err(Errno::EXIST.into());
        }
        let ino = state.make(new, dir, now);
        state.enter(dir, name, ino, now)?;
        Ok(state.get(ino)?.stat)
    }

    fn create_unnamed(&self, dir: Ino, new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        let mut state = self.0.lock();
        let ino = state.make(new, dir, now);
        Ok(state.get(ino)?.stat)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        let mut state = self.0.lock();
        state.is_alive(dir)?;
        if state.get(ino)?.stat.kind == FileKind::Directory {
            return Err(Errno::PERM.into());
        }
        if state.find(dir, name).is_ok() {
            return Err(Errno::EXIST.into());
        }
        state.enter(dir, name, ino, now)?;
        Ok(state.get(ino)?.stat)
    }

    fn unlink(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        let mut state = self.0.lock();
        let ino = state.find(dir, name)?;
        if state.get(ino)?.stat.kind == FileKind::Directory {
            return Err(Errno::ISDIR.into());
        }
        Ok(state.leave(dir, name, now)?)
    }

    fn rmdir(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        let mut state = self.0.lock();
        let ino = state.find(dir, name)?;
        if !state.dir(ino)?.names.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        Ok(state.leave(dir, name, now)?)
    }

    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Nanoseconds,
    ) -> Outcome<Option<Stat>> {
        let mut state = self.0.lock();
        let ino = state.find(from.0, from.1)?;
        let other = state.find(to.0, to.1).ok();
        state.is_alive(to.0)?;
        if state.get(ino)?.stat.kind == FileKind::Directory && state.is_below(to.0, ino)? {
            return Err(Errno::INVAL.into());
        }
        match mode {
            RenameMode::KeepExisting if other.is_some() => return Err(Errno::EXIST.into()),
            RenameMode::Exchange => {
                let other = other.ok_or(Errno::NOENT)?;
                state.leave(from.0, from.1, now)?;
                state.leave(to.0, to.1, now)?;
                state.enter(to.0, to.1, ino, now)?;
                state.enter(from.0, from.1, other, now)?;
                return Ok(None);
            }
            _ if other == Some(ino) => return Ok(None),
            _ => {}
        }
        let replaced = state.replace(ino, to, now)?;
        state.leave(from.0, from.1, now)?;
        state.enter(to.0, to.1, ino, now)?;
        if mode == RenameMode::LeaveWhiteout {
            let new = NewInode {
                kind: FileKind::CharDevice,
                permissions: 0,
                uid: 0,
                gid: 0,
                rdev: 0,
                target: b"",
                xattrs: &[],
            };
            let whiteout = state.make(&new, from.0, now);
            state.enter(from.0, from.1, whiteout, now)?;
        }
        Ok(replaced)
    }

    fn forget(&self, ino: Ino) -> Outcome<()> {
        let mut state = self.0.lock();
        if state.get(ino)?.stat.nlink == 0 {
            state.inodes.remove(&ino);
        }
        Ok(())
    }

    fn read_link(&self, ino: Ino) -> Outcome<Vec<u8>> {
        Ok(self.0.lock().get(ino)?.target.clone())
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()> {
        let mut state = self.0.lock();
        let bytes = &state.get(ino)?.bytes;
        let start = bytes.len().min(offset as usize);
        let end = bytes.len().min(start + len);
        out.extend_from_slice(&bytes[start..end]);
        Ok(())
    }

    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], now: Nanoseconds) -> Outcome<()> {
        Ok(self.0.lock().put(ino, offset, bytes, now)?)
    }

    fn allocate(
        &self,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<()> {
        let mut state = self.0.lock();
        let size = state.get(ino)?.stat.size;
        let end = offset + len;
        let (kept, zeroed) = match mode {
            AllocateMode::Extend => (false, false),
            AllocateMode::KeepSize => (true, false),
            AllocateMode::PunchHole => (true, true),
            AllocateMode::Zero { keeps_size } => (keeps_size, true),
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        if !kept && end > size {
            state.resize(ino, end)?;
        }
        if zeroed {
            let bytes = &mut state.get(ino)?.bytes;
            let end = bytes.len().min(end as usize);
            bytes[end.min(offset as usize)..end].fill(0);
        }
        let stat = &mut state.get(ino)?.stat;
        (stat.mtime, stat.ctime) = (now, now);
        Ok(())
    }

    fn copy_range(
        &self,
        from: (Ino, u64),
        to: (Ino, u64),
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<u64> {
        let mut bytes = Vec::new();
        self.read(from.0, from.1, len as usize, &mut bytes)?;
        self.write(to.0, to.1, &bytes, now)?;
        Ok(bytes.len() as u64)
    }

    fn seek(&self, ino: Ino, offset: u64, wants_hole: bool) -> Outcome<u64> {
        let size = self.0.lock().get(ino)?.stat.size;
        match (offset < size, wants_hole) {
            (false, _) => Err(Errno::NXIO.into()),
            (true, true) => Ok(size),
            (true, false) => Ok(offset),
        }
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Outcome<Vec<u8>> {
        let mut state = self.0.lock();
        let value = state.get(ino)?.xattrs.get(name).cloned();
        Ok(value.ok_or(Errno::NODATA)?)
    }

    fn xattr_names(&self, ino: Ino) -> Outcome<Vec<Vec<u8>>> {
        Ok(self.0.lock().get(ino)?.xattrs.keys().cloned().collect())
    }

    fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now: Nanoseconds,
    ) -> Outcome<()> {
        let mut state = self.0.lock();
        let inode = state.get(ino)?;
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::EXIST.into()),
            (XattrMode::Replace, false) => return Err(Errno::NODATA.into()),
            _ => {}
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        inode.stat.ctime = now;
        Ok(())
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8], now: Nanoseconds) -> Outcome<()> {
        let mut state = self.0.lock();
        let inode = state.get(ino)?;
        inode.xattrs.remove(name).ok_or(Errno::NODATA)?;
        inode.stat.ctime = now;
        Ok(())
    }

    fn sync(&self) -> Outcome<()> {
        self.0.lock().syncs += 1;
        Ok(())
    }

    fn capacity(&self) -> Outcome<FsCapacity> {
        Ok(FsCapacity {
            total: 1 << 36,
            free: 1 << 35,
            inodes: self.inode_count() as u64,
        })
    }
}
