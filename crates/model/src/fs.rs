//! The state of the model, and its implementation of `WritableFs`.

use crate::pages::Pages;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::{FileKind, InodeFlags};
use weald_vfs::{
    AllocateMode, FilePlace, FsCapacity, Ino, Listed, Nanoseconds, NewInode, NewStat, Outcome,
    RenameMode, Stat, WritableFs, XattrMode,
};

/// A name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub ino: Ino,
    /// Position in listings.
    pub cookie: u64,
}

/// An inode with all that it contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Attributes; `allocated` is computed when it is asked for.
    pub stat: Stat,
    /// Content of a regular file.
    pub pages: Pages,
    /// Target of a symlink.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names of a directory.
    pub names: BTreeMap<Vec<u8>, Entry>,
    /// The directory that contains this directory.
    pub parent: Ino,
}

/// All inodes. A clone shares the inodes that do not change later.
#[derive(Debug, Clone)]
pub struct ModelState {
    /// Inodes by number.
    pub inodes: BTreeMap<Ino, Arc<Inode>>,
    /// Number of the next inode.
    pub next_ino: Ino,
    /// Cookie of the next name.
    pub next_cookie: u64,
}

impl ModelState {
    /// The inode `ino`: ENOENT.
    pub fn get(&self, ino: Ino) -> Outcome<&Inode> {
        let inode = self.inodes.get(&ino).ok_or(Errno::NOENT)?;
        Ok(inode)
    }

    /// The inode `ino`, to change it: ENOENT.
    pub fn get_mut(&mut self, ino: Ino) -> Outcome<&mut Inode> {
        let inode = self.inodes.get_mut(&ino).ok_or(Errno::NOENT)?;
        Ok(Arc::make_mut(inode))
    }

    /// EPERM if `ino` has one of `flags`.
    pub fn forbid(&self, ino: Ino, flags: InodeFlags) -> Outcome<()> {
        if self.get(ino)?.stat.flags.has_any(flags) {
            Err(Errno::PERM.into())
        } else {
            Ok(())
        }
    }

    /// Attributes of `ino`.
    pub fn stat(&self, ino: Ino) -> Outcome<Stat> {
        let inode = self.get(ino)?;
        Ok(Stat {
            allocated: inode.pages.len(),
            ..inode.stat
        })
    }

    /// The directory `dir`: ENOTDIR.
    pub fn dir(&self, dir: Ino) -> Outcome<&Inode> {
        let inode = self.get(dir)?;
        match inode.stat.kind {
            FileKind::Directory => Ok(inode),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// The regular file `ino`: EISDIR, EINVAL.
    pub fn file(&self, ino: Ino) -> Outcome<&Inode> {
        let inode = self.get(ino)?;
        match inode.stat.kind {
            FileKind::Regular => Ok(inode),
            FileKind::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }
}

/// A file system in memory. Its clone is a copy of its state that does not change with it.
#[derive(Debug)]
pub struct ModelFs(Mutex<ModelState>);

impl Clone for ModelFs {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.0.lock().clone()))
    }
}

impl ModelFs {
    /// An empty file system, whose root has these permissions and belongs to user and group 0.
    pub fn new(permissions: u16, now: Nanoseconds) -> Self {
        let stat = Stat {
            ino: Ino::ROOT,
            kind: FileKind::Directory,
            permissions,
            flags: InodeFlags::NONE,
            uid: 0,
            gid: 0,
            nlink: 2,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let root = Inode {
            stat,
            pages: Pages::default(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            names: BTreeMap::new(),
            parent: Ino::ROOT,
        };
        Self(Mutex::new(ModelState {
            inodes: BTreeMap::from([(Ino::ROOT, Arc::new(root))]),
            next_ino: Ino::ROOT.next(),
            next_cookie: 3,
        }))
    }

    /// Drops every inode without a name, as a remount does.
    pub fn drop_orphans(&self) {
        let mut state = self.0.lock();
        state.inodes.retain(|_, inode| inode.stat.nlink > 0);
    }

    /// Number of the next inode.
    pub fn next_ino(&self) -> Ino {
        self.0.lock().next_ino
    }

    /// Gives the next inode this number: the volume had newer inodes, which a rollback removed.
    pub fn set_next_ino(&self, next: Ino) {
        self.0.lock().next_ino = next;
    }

    /// Numbers of all inodes, those without a name included.
    pub fn inos(&self) -> Vec<Ino> {
        self.0.lock().inodes.keys().copied().collect()
    }
}

impl WritableFs for ModelFs {
    fn stat(&self, ino: Ino) -> Outcome<Stat> {
        self.0.lock().stat(ino)
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Outcome<Stat> {
        let state = self.0.lock();
        state.stat(state.entry(dir, name)?.ino)
    }

    fn parent(&self, dir: Ino) -> Outcome<Ino> {
        Ok(self.0.lock().dir(dir)?.parent)
    }

    fn list(&self, dir: Ino, after: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Outcome<()> {
        // The visitor may call the file system, so that it runs without the lock.
        let state = self.0.lock().clone();
        let names = &state.dir(dir)?.names;
        let mut entries: Vec<_> = names.iter().filter(|(_, e)| e.cookie > after).collect();
        entries.sort_by_key(|(_, entry)| entry.cookie);
        for (name, entry) in entries {
            let listed = Listed {
                name,
                stat: &state.stat(entry.ino)?,
                cookie: entry.cookie,
            };
            if !visit(listed) {
                break;
            }
        }
        Ok(())
    }

    fn set_stat(&self, ino: Ino, new: &NewStat, now: Nanoseconds) -> Outcome<Stat> {
        self.0.lock().set_stat(ino, new, now)
    }

    fn create(&self, dir: Ino, name: &[u8], new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        self.0.lock().create(dir, name, new, now)
    }

    fn create_unnamed(&self, dir: Ino, new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        let mut state = self.0.lock();
        if state.dir(dir)?.stat.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        state.forbid(dir, InodeFlags::IMMUTABLE)?;
        let ino = state.add(dir, 0, new, now);
        state.stat(ino)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.0.lock().link(ino, dir, name, now)
    }

    fn unlink(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.0.lock().unlink(dir, name, now)
    }

    fn rmdir(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.0.lock().rmdir(dir, name, now)
    }

    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Nanoseconds,
    ) -> Outcome<Option<Stat>> {
        self.0.lock().rename(from, to, mode, now)
    }

    fn forget(&self, ino: Ino) -> Outcome<()> {
        let mut state = self.0.lock();
        if state.get(ino).is_ok_and(|inode| inode.stat.nlink == 0) {
            state.inodes.remove(&ino);
        }
        Ok(())
    }

    fn read_link(&self, ino: Ino) -> Outcome<Vec<u8>> {
        let state = self.0.lock();
        let inode = state.get(ino)?;
        match inode.stat.kind {
            FileKind::Symlink => Ok(inode.target.clone()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()> {
        let state = self.0.lock();
        let file = state.file(ino)?;
        let end = offset.saturating_add(len as u64).min(file.stat.size);
        if offset < end {
            file.pages.read(offset..end, out);
        }
        Ok(())
    }

    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], now: Nanoseconds) -> Outcome<()> {
        self.0.lock().write(ino, offset, bytes, now)
    }

    fn allocate(
        &self,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<()> {
        self.0.lock().allocate(ino, mode, (offset, len), now)
    }

    fn copy_range(
        &self,
        from: FilePlace,
        to: FilePlace,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<u64> {
        self.0.lock().copy_range(from, to, len, now)
    }

    fn seek(&self, ino: Ino, offset: u64, wants_hole: bool) -> Outcome<u64> {
        let state = self.0.lock();
        let file = state.file(ino)?;
        let size = file.stat.size;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        match file.pages.seek(offset, wants_hole) {
            Some(found) if found < size => Ok(found),
            _ if wants_hole => Ok(size),
            _ => Err(Errno::NXIO.into()),
        }
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Outcome<Vec<u8>> {
        let state = self.0.lock();
        let value = state.get(ino)?.xattrs.get(name).ok_or(Errno::NODATA)?;
        Ok(value.clone())
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
        self.0.lock().set_xattr(ino, (name, value), mode, now)
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8], now: Nanoseconds) -> Outcome<()> {
        let mut state = self.0.lock();
        if !state.get(ino)?.xattrs.contains_key(name) {
            return Err(Errno::NODATA.into());
        }
        state.forbid(ino, InodeFlags::LOCKS)?;
        let inode = state.get_mut(ino)?;
        inode.xattrs.remove(name);
        inode.stat.ctime = now;
        Ok(())
    }

    fn sync(&self) -> Outcome<()> {
        Ok(())
    }

    fn capacity(&self) -> Outcome<FsCapacity> {
        let state = self.0.lock();
        let used: u64 = state.inodes.values().map(|inode| inode.pages.len()).sum();
        let total = 1 << 40;
        Ok(FsCapacity {
            total,
            free: total.saturating_sub(used),
            inodes: state.inodes.len() as u64,
            inodes_free: total.saturating_sub(used) / 512,
        })
    }
}
