//! The operations of an open volume, as a file system.

use super::Volume;
use crate::core::{refused, stat_of};
use crate::open_store::reserve_of;
use crate::options::PlantedBug;
use crate::options::SyncMode;
use crate::state::State;
use rustix::io::Errno;
use weald_format::{Cookie, ErrorKind};
use weald_vfs::{
    AllocateMode, FilePlace, FsCapacity, Ino, Listed, Nanoseconds, NewInode, NewStat, Outcome,
    RenameMode, Stat, WritableFs, XattrMode,
};

/// Bytes that a new inode takes about, for the number of those that the disk has room for.
const INODE_LEN: u64 = 512;

impl WritableFs for Volume {
    fn stat(&self, ino: Ino) -> Outcome<Stat> {
        self.core.prefetch_inode(ino);
        let state = self.core.state.read();
        Ok(stat_of(ino, &*self.core.inode(&state, ino)?))
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Outcome<Stat> {
        self.core.prefetch_name(dir, name);
        self.core.lookup(&self.core.state.read(), dir, name)
    }

    fn parent(&self, dir: Ino) -> Outcome<Ino> {
        self.core.prefetch_inode(dir);
        let state = self.core.state.read();
        Ok(self.core.directory(&state, dir)?.parent)
    }

    fn list(&self, dir: Ino, after: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Outcome<()> {
        let mut after = Cookie(after);
        loop {
            let entries = self.core.entries(dir, after)?;
            let Some(((last, _), _)) = entries.last() else {
                return Ok(());
            };
            after = *last;
            for ((cookie, row), stat) in &entries {
                let listed = Listed {
                    name: &row.name,
                    stat,
                    cookie: cookie.0,
                };
                if !visit(listed) {
                    return Ok(());
                }
            }
        }
    }

    fn set_stat(&self, ino: Ino, new: &NewStat, now: Nanoseconds) -> Outcome<Stat> {
        if let Some(size) = new.size {
            let old = self.stat(ino)?.size;
            self.trim(ino, size..old, now, |core, state, part| {
                let shorter = NewStat {
                    size: Some(part.start),
                    ..NewStat::default()
                };
                core.set_stat(state, ino, &shorter, now).map(drop)
            })?;
        }
        self.admit_memory()?;
        let _ahead = match new.size {
            // Of a file that becomes empty no window is looked at.
            Some(size) if size > 0 => self.core.prefetch_content(ino, &(size..u64::MAX)),
            _ => {
                self.core.prefetch_inode(ino);
                None
            }
        };
        self.change(now, |core, state| core.set_stat(state, ino, new, now))
    }

    fn create(&self, dir: Ino, name: &[u8], new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        self.admit(0)?;
        self.core.prefetch_new(dir);
        self.core.prefetch_name(dir, name);
        self.change(now, |core, state| core.create(state, dir, name, new, now))
    }

    fn create_unnamed(&self, dir: Ino, new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        self.admit(0)?;
        self.core.prefetch_new(dir);
        self.change(now, |core, state| core.create_unnamed(state, dir, new, now))
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.admit(0)?;
        self.core.prefetch_inode(ino);
        self.core.prefetch_name(dir, name);
        self.change(now, |core, state| core.link(state, ino, (dir, name), now))
    }

    fn unlink(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.admit_memory()?;
        self.core.prefetch_removal(dir, name);
        self.change(now, |core, state| core.remove(state, dir, name, false, now))
    }

    fn rmdir(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.admit_memory()?;
        self.core.prefetch_removal(dir, name);
        self.change(now, |core, state| core.remove(state, dir, name, true, now))
    }

    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Nanoseconds,
    ) -> Outcome<Option<Stat>> {
        self.admit_memory()?;
        self.core.prefetch_rename(from, to);
        self.change(now, |core, state| core.rename(state, from, to, mode, now))
    }

    fn forget(&self, ino: Ino) -> Outcome<()> {
        self.core.prefetch_inode(ino);
        let now = {
            let state = self.core.state.read();
            match self.core.inode(&state, ino) {
                Ok(row) if row.nlink == 0 => state.active.now,
                Ok(_) => return Ok(()),
                Err(failure) if failure.errno == Errno::NOENT => return Ok(()),
                Err(failure) => return Err(failure),
            }
        };
        if self.core.options.is_read_only {
            return Ok(());
        }
        self.change(now, |core, state| {
            if core.inode(state, ino)?.nlink == 0 {
                core.forget(state, ino)?;
            }
            Ok(())
        })
    }

    fn read_link(&self, ino: Ino) -> Outcome<Vec<u8>> {
        self.core.prefetch_inode(ino);
        let state = self.core.state.read();
        let row = self.core.inode(&state, ino)?;
        if row.target.is_empty() {
            Err(Errno::INVAL.into())
        } else {
            Ok(row.target.clone())
        }
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()> {
        self.core.read(ino, offset, len, out)
    }

    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], now: Nanoseconds) -> Outcome<()> {
        let segments = self.core.prepare(offset, bytes)?;
        self.admit(bytes.len() as u64)?;
        let range = offset..offset.saturating_add(bytes.len() as u64);
        let _ahead = self.core.prefetch_content(ino, &range);
        self.change(now, |core, state| {
            core.write(state, ino, offset, segments, now)
        })
    }

    fn allocate(
        &self,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<()> {
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = offset.checked_add(len);
        let end = end.filter(|end| *end <= crate::content::SIZE_MAX);
        let range = offset..end.ok_or(Errno::FBIG)?;
        match mode {
            AllocateMode::PunchHole | AllocateMode::Zero { .. } => {
                let end = range.end.min(self.stat(ino)?.size);
                self.trim(ino, offset..end, now, |core, state, part| {
                    core.allocate(state, ino, AllocateMode::PunchHole, part, now)
                })?;
                self.admit_memory()?;
            }
            AllocateMode::Collapse | AllocateMode::Insert => self.admit_memory()?,
        }
        let tail = match mode {
            AllocateMode::Collapse | AllocateMode::Insert => range.start..u64::MAX,
            _ => range.clone(),
        };
        let _ahead = self.core.prefetch_content(ino, &tail);
        let moves_blocks = matches!(mode, AllocateMode::Collapse | AllocateMode::Insert);
        let _commit = moves_blocks.then(|| self.committer.lock());
        self.change(now, |core, state| {
            core.allocate(state, ino, mode, range, now)
        })
    }

    fn copy_range(
        &self,
        from: FilePlace,
        to: FilePlace,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<u64> {
        self.admit(0)?;
        // A commit that runs beside this call may drop a block that the copy is about to share: it
        // writes windows of many pieces anew. So the call waits for it.
        let read = || {
            [from, to].map(|place| {
                let range = place.offset..place.offset.saturating_add(len);
                self.core.prefetch_content(place.ino, &range)
            })
        };
        let before = (self.core.tables.version(), read());
        let _commit = self.committer.lock();
        // Rows that a commit has changed meanwhile are read again, while no other one can.
        let _ahead = match before {
            (version, ahead) if version == self.core.tables.version() => ahead,
            _ => read(),
        };
        self.change(now, |core, state| {
            core.copy_range(state, from, to, len, now)
        })
    }

    fn seek(&self, ino: Ino, offset: u64, wants_hole: bool) -> Outcome<u64> {
        let _ahead = self.core.prefetch_content(ino, &(offset..u64::MAX));
        let state = self.core.state.read();
        self.core.seek(&state, ino, offset, wants_hole)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Outcome<Vec<u8>> {
        self.core.prefetch_xattr(ino, name);
        self.core.xattr(&self.core.state.read(), ino, name)
    }

    fn xattr_names(&self, ino: Ino) -> Outcome<Vec<Vec<u8>>> {
        self.core.prefetch_xattr_names(ino);
        self.core.xattr_names(&self.core.state.read(), ino)
    }

    fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now: Nanoseconds,
    ) -> Outcome<()> {
        self.admit(value.len() as u64)?;
        self.core.prefetch_xattr(ino, name);
        self.change(now, |core, state| {
            core.set_xattr(state, ino, (name, value), mode, now)
        })
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8], now: Nanoseconds) -> Outcome<()> {
        self.admit_memory()?;
        self.core.prefetch_xattr(ino, name);
        self.change(now, |core, state| core.remove_xattr(state, ino, name, now))
    }

    fn sync(&self) -> Outcome<()> {
        if self.core.has_bug(PlantedBug::SyncReturnsEarly) {
            return Ok(());
        }
        let is_ignored = self.core.options.sync_mode == SyncMode::Ignore;
        if self.core.options.is_read_only || is_ignored {
            return Ok(());
        }
        let synced = self.sync_changes().and_then(|()| self.sync_replicas());
        synced.map_err(|error| {
            let errno = match error.kind() {
                ErrorKind::Full => Errno::NOSPC,
                _ => Errno::IO,
            };
            refused(errno, error)
        })
    }

    fn sync_inode(&self, ino: Ino) -> Outcome<()> {
        if self.core.options.sync_mode == SyncMode::Data {
            let state = self.core.state.read();
            if !state.has_content_at_risk(ino) && state.failure.is_none() {
                return Ok(());
            }
        }
        self.sync()
    }

    fn has_flags(&self) -> bool {
        self.core.state.read().knows_flags
    }

    fn capacity(&self) -> Outcome<FsCapacity> {
        let shared = &self.core.shared;
        let space = shared.store.capacity()?;
        let others = shared.sum_of_others(Some(&self.core.state), State::written);
        let totals = self.totals();
        let state = self.core.state.read();
        let taken = state.written() + others + reserve_of(space.total);
        let free = space.free.saturating_sub(taken);
        Ok(FsCapacity {
            // Other data of the disk is no part of the volume.
            total: free.saturating_add(totals.len),
            free,
            inodes: totals.inode_count,
            inodes_free: free / INODE_LEN,
        })
    }

    fn capacity_at(&self, ino: Ino) -> Outcome<FsCapacity> {
        let capacity = self.capacity()?;
        let state = self.core.state.read();
        self.core.capacity_in(&state, ino, capacity)
    }
}
