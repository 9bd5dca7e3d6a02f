//! Operations on contents and attributes.

use crate::fs::ModelState;
use crate::pages::PAGE_LEN;
use rustix::io::Errno;
use weald_format::InodeFlags;
use weald_format::limits::{
    FILE_LEN_MAX, XATTR_NAME_LEN_MAX, XATTR_SET_LEN_MAX, XATTR_VALUE_LEN_MAX,
};
use weald_format::pages::{XATTR_SET_LEN_MIN, xattr_len};
use weald_vfs::{AllocateMode, FilePlace, Ino, Nanoseconds, NewStat, Outcome, Stat, XattrMode};

/// The end of a range in a file: EFBIG.
fn end_of(offset: u64, len: u64) -> Outcome<u64> {
    let end = offset.checked_add(len).filter(|end| *end <= FILE_LEN_MAX);
    Ok(end.ok_or(Errno::FBIG)?)
}

impl ModelState {
    fn touch(&mut self, ino: Ino, now: Nanoseconds) -> Outcome<()> {
        let stat = &mut self.get_mut(ino)?.stat;
        stat.mtime = now;
        stat.ctime = now;
        Ok(())
    }

    fn set_size(&mut self, ino: Ino, size: u64) -> Outcome<()> {
        let inode = self.get_mut(ino)?;
        inode
            .pages
            .clear(size..FILE_LEN_MAX.next_multiple_of(PAGE_LEN));
        inode.stat.size = size;
        Ok(())
    }

    /// Checks that flags permit a change of attributes.
    fn check_new_stat(&self, ino: Ino, new: &NewStat, now: Nanoseconds) -> Outcome<()> {
        let flags = self.get(ino)?.stat.flags;
        let times = [new.atime, new.mtime];
        let sets_times = times.iter().flatten().any(|time| *time != now);
        let touches = times.iter().any(Option::is_some);
        let changes = new.permissions.is_some() || new.uid.is_some() || new.gid.is_some();
        let is_read = new.ctime.is_some() && new.mtime.is_none() && !changes && new.size.is_none();
        if is_read {
            return Ok(());
        }
        let is_locked = changes || sets_times || new.size.is_some();
        if is_locked && flags.has_any(InodeFlags::LOCKS) {
            return Err(Errno::PERM.into());
        }
        if (touches || new.ctime.is_some()) && flags.has_any(InodeFlags::IMMUTABLE) {
            Err(Errno::PERM.into())
        } else {
            Ok(())
        }
    }

    /// Checks that flags permit a change of the content; `at` is where bytes are written.
    fn check_write(&self, ino: Ino, at: Option<u64>) -> Outcome<()> {
        let stat = self.get(ino)?.stat;
        if at == Some(stat.size) {
            self.forbid(ino, InodeFlags::IMMUTABLE)
        } else {
            self.forbid(ino, InodeFlags::LOCKS)
        }
    }

    /// As `WritableFs::set_stat`.
    pub fn set_stat(&mut self, ino: Ino, new: &NewStat, now: Nanoseconds) -> Outcome<Stat> {
        if new.size.is_some() {
            self.file(ino)?;
        }
        self.check_new_stat(ino, new, now)?;
        if let Some(size) = new.size {
            end_of(size, 0)?;
            self.set_size(ino, size)?;
            self.touch(ino, now)?;
        }
        let stat = &mut self.get_mut(ino)?.stat;
        if let Some(permissions) = new.permissions {
            stat.permissions = permissions & 0o7777;
        }
        stat.flags = new.flags.unwrap_or(stat.flags);
        stat.uid = new.uid.unwrap_or(stat.uid);
        stat.gid = new.gid.unwrap_or(stat.gid);
        stat.atime = new.atime.unwrap_or(stat.atime);
        stat.mtime = new.mtime.unwrap_or(stat.mtime);
        stat.ctime = new.ctime.unwrap_or(now);
        self.stat(ino)
    }

    /// As `WritableFs::write`.
    pub fn write(&mut self, ino: Ino, offset: u64, bytes: &[u8], now: Nanoseconds) -> Outcome<()> {
        let end = end_of(offset, bytes.len() as u64)?;
        self.file(ino)?;
        self.check_write(ino, Some(offset))?;
        let inode = self.get_mut(ino)?;
        inode.pages.write(offset, bytes);
        if !bytes.is_empty() {
            inode.stat.size = inode.stat.size.max(end);
        }
        self.touch(ino, now)
    }

    /// As `WritableFs::allocate`.
    pub fn allocate(
        &mut self,
        ino: Ino,
        mode: AllocateMode,
        (offset, len): (u64, u64),
        now: Nanoseconds,
    ) -> Outcome<()> {
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = end_of(offset, len)?;
        let size = self.file(ino)?.stat.size;
        self.check_write(ino, None)?;
        let is_aligned = offset % PAGE_LEN == 0 && len % PAGE_LEN == 0;
        let inode = self.get_mut(ino)?;
        match mode {
            AllocateMode::PunchHole | AllocateMode::Zero { keeps_size: true } => {
                inode.pages.clear(offset..end);
            }
            AllocateMode::Zero { keeps_size: false } => {
                inode.pages.clear(offset..end);
                inode.stat.size = size.max(end);
            }
            AllocateMode::Collapse => {
                if !is_aligned || end >= size {
                    return Err(Errno::INVAL.into());
                }
                inode.pages.clear(offset..end);
                inode
                    .pages
                    .shift(end / PAGE_LEN, -((len / PAGE_LEN) as i64));
                inode.stat.size = size - len;
            }
            AllocateMode::Insert => {
                if !is_aligned || offset >= size {
                    return Err(Errno::INVAL.into());
                }
                let size = end_of(size, len)?;
                inode
                    .pages
                    .shift(offset / PAGE_LEN, (len / PAGE_LEN) as i64);
                inode.stat.size = size;
            }
        }
        self.touch(ino, now)
    }

    /// As `WritableFs::copy_range`.
    pub fn copy_range(
        &mut self,
        from: FilePlace,
        to: FilePlace,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<u64> {
        let size = self.file(from.ino)?.stat.size;
        self.file(to.ino)?;
        self.check_write(to.ino, Some(to.offset))?;
        let len = len.min(size.saturating_sub(from.offset));
        if len == 0 {
            return Ok(0);
        }
        let from_end = end_of(from.offset, len)?;
        let to_end = end_of(to.offset, len)?;
        if from.ino == to.ino && from.offset < to_end && to.offset < from_end {
            return Err(Errno::INVAL.into());
        }
        let source = self.file(from.ino)?.pages.clone();
        let inode = self.get_mut(to.ino)?;
        inode.pages.copy(&source, from.offset..from_end, to.offset);
        inode.stat.size = inode.stat.size.max(to_end);
        self.touch(to.ino, now)?;
        Ok(len)
    }

    /// As `WritableFs::set_xattr`.
    pub fn set_xattr(
        &mut self,
        ino: Ino,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
        now: Nanoseconds,
    ) -> Outcome<()> {
        if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX {
            return Err(Errno::RANGE.into());
        }
        if value.len() > XATTR_VALUE_LEN_MAX {
            return Err(Errno::TOOBIG.into());
        }
        self.forbid(ino, InodeFlags::LOCKS)?;
        let inode = self.get_mut(ino)?;
        match (mode, inode.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::EXIST.into()),
            (XattrMode::Replace, false) => return Err(Errno::NODATA.into()),
            _ => {}
        }
        let others = inode.xattrs.iter().filter(|(other, _)| *other != name);
        let others: usize = others.map(|(n, v)| xattr_len(n.len(), v.len())).sum();
        let len = XATTR_SET_LEN_MIN + others + xattr_len(name.len(), value.len());
        if len > XATTR_SET_LEN_MAX {
            return Err(Errno::NOSPC.into());
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        inode.stat.ctime = now;
        Ok(())
    }
}
