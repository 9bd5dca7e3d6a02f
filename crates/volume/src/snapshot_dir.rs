//! A mounted volume with its snapshots below `.snapshots` at the root.
//!
//! The directory is in no listing, and everything in it is read-only. An inode of a snapshot has a
//! number of its own: bit 62, the number of the snapshot, and the number of the inode in the
//! volume. So a file and its older self are two files, for the kernel and for all programs.

use crate::volume::Volume;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use weald_format::{InodeFlags, SnapshotNo};
use weald_store::Snapshot;
use weald_vfs::{
    AllocateMode, FilePlace, FsCapacity, Ino, Listed, Nanoseconds, NewInode, NewStat, Outcome,
    RenameMode, Stat, WritableFs, XattrMode,
};

/// The name at the root.
const NAME: &[u8] = b".snapshots";
/// Set in the numbers of the directory and of all inodes below it.
const MARK: u64 = 1 << 62;
/// Bits of the number of an inode in its volume.
const INO_BITS: u32 = 38;
/// The directory itself.
const DIR: Ino = Ino(MARK);
/// Snapshots that stay open, the ones used last.
const OPEN_MAX: usize = 4;
/// Cookie of the directory in listings that show it: the last that programs take as positive.
const SHOWN_COOKIE: u64 = i64::MAX as u64;
/// Cookies of snapshots in a listing begin behind those of `.` and `..`.
const COOKIE_BASE: u64 = 16;

/// Where an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SnapshotPlace {
    Live,
    Dir,
    In(SnapshotNo, Ino),
}

/// A volume and its snapshots.
#[derive(Debug)]
pub struct WithSnapshots {
    volume: Arc<Volume>,
    /// Those that are open, the one used last at the end.
    open: Mutex<VecDeque<(SnapshotNo, Arc<Volume>)>>,
}

impl SnapshotPlace {
    fn of(ino: Ino) -> Self {
        if ino.0 & MARK == 0 {
            return Self::Live;
        }
        let no = SnapshotNo(((ino.0 & !MARK) >> INO_BITS) as u32);
        match no {
            SnapshotNo::NONE => Self::Dir,
            no => Self::In(no, Ino(ino.0 & ((1 << INO_BITS) - 1))),
        }
    }
}

/// The number of an inode of a snapshot.
fn ino_in(no: SnapshotNo, ino: Ino) -> Outcome<Ino> {
    if ino.0 >> INO_BITS != 0 {
        return Err(Errno::OVERFLOW.into());
    }
    Ok(Ino(MARK | u64::from(no.0) << INO_BITS | ino.0))
}

impl WithSnapshots {
    /// Shows `volume` with its snapshots.
    pub fn new(volume: Arc<Volume>) -> Self {
        Self {
            volume,
            open: Mutex::default(),
        }
    }

    /// The volume itself.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    fn opened(&self, no: SnapshotNo) -> Outcome<Arc<Volume>> {
        {
            let mut open = self.open.lock();
            if let Some(at) = open.iter().position(|(other, _)| *other == no)
                && let Some(found) = open.remove(at)
            {
                let volume = found.1.clone();
                open.push_back(found);
                return Ok(volume);
            }
        }
        let volume = self.volume.open_snapshot_no(no)?;
        let mut open = self.open.lock();
        open.push_back((no, volume.clone()));
        if open.len() > OPEN_MAX {
            open.pop_front();
        }
        Ok(volume)
    }

    /// Reads from a snapshot. What was read of one that goes meanwhile is no answer: rows that were
    /// kept for it may be gone.
    fn read_in<T>(&self, no: SnapshotNo, read: impl FnOnce(&Volume) -> Outcome<T>) -> Outcome<T> {
        let found = self.opened(no).and_then(|volume| read(&volume));
        if self.volume.is_snapshot_gone(no) {
            self.open.lock().retain(|(other, _)| *other != no);
            return Err(Errno::STALE.into());
        }
        found
    }

    fn stat_in(
        &self,
        no: SnapshotNo,
        read: impl FnOnce(&Volume) -> Outcome<Stat>,
    ) -> Outcome<Stat> {
        let stat = self.read_in(no, read)?;
        Ok(Stat {
            ino: ino_in(no, stat.ino)?,
            ..stat
        })
    }

    /// Lists the root of the volume, with the directory at the end.
    fn list_root(&self, after: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Outcome<()> {
        let (mut goes_on, mut is_hidden) = (true, false);
        self.volume.list(Ino::ROOT, after, &mut |listed| {
            // Then the name means that entry.
            is_hidden |= listed.name == NAME;
            goes_on = visit(listed);
            goes_on
        })?;
        if goes_on && !is_hidden && after < SHOWN_COOKIE {
            let stat = self.lookup(Ino::ROOT, NAME)?;
            if stat.ino == DIR {
                let (name, cookie) = (NAME, SHOWN_COOKIE);
                visit(Listed {
                    name,
                    stat: &stat,
                    cookie,
                });
            }
        }
        Ok(())
    }

    /// Attributes of the directory.
    fn dir_stat(&self) -> Outcome<Stat> {
        let root = self.volume.stat(Ino::ROOT)?;
        let snapshots = self.volume.snapshots()?;
        let time = snapshots.last().map_or(root.btime, |newest| newest.created);
        Ok(Stat {
            ino: DIR,
            permissions: root.permissions & 0o555,
            flags: InodeFlags::NONE,
            nlink: 2_u32.saturating_add(snapshots.len() as u32),
            size: 0,
            allocated: 0,
            atime: time,
            mtime: time,
            ctime: time,
            ..root
        })
    }

    /// Attributes of the root of a snapshot, which need not be open.
    fn root_of(&self, snapshot: &Snapshot) -> Outcome<Stat> {
        let stat = self.volume.snapshot_root(snapshot)?;
        if self.volume.is_snapshot_gone(snapshot.no) {
            return Err(Errno::NOENT.into());
        }
        Ok(Stat {
            ino: ino_in(snapshot.no, stat.ino)?,
            ..stat
        })
    }

    /// Refuses a change of anything but the volume.
    fn refuse_snapshots(places: &[Ino]) -> Outcome<()> {
        if places
            .iter()
            .all(|ino| SnapshotPlace::of(*ino) == SnapshotPlace::Live)
        {
            Ok(())
        } else {
            Err(Errno::ROFS.into())
        }
    }

    /// Refuses a change of the directory's own name.
    fn refuse_name(&self, dir: Ino, name: &[u8]) -> Outcome<()> {
        Self::refuse_snapshots(&[dir])?;
        if dir == Ino::ROOT && name == NAME && self.is_shown() {
            return Err(Errno::ROFS.into());
        }
        Ok(())
    }

    /// Whether `.snapshots` is the directory of snapshots: an entry of the volume goes first.
    fn is_shown(&self) -> bool {
        let own = self.volume.lookup(Ino::ROOT, NAME);
        own.is_err_and(|failure| failure.errno == Errno::NOENT)
    }
}

impl WritableFs for WithSnapshots {
    fn stat(&self, ino: Ino) -> Outcome<Stat> {
        match SnapshotPlace::of(ino) {
            SnapshotPlace::Live => self.volume.stat(ino),
            SnapshotPlace::Dir => self.dir_stat(),
            SnapshotPlace::In(no, ino) => self.stat_in(no, |volume| volume.stat(ino)),
        }
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Outcome<Stat> {
        match SnapshotPlace::of(dir) {
            SnapshotPlace::Live => match self.volume.lookup(dir, name) {
                Err(failure)
                    if failure.errno == Errno::NOENT && dir == Ino::ROOT && name == NAME =>
                {
                    self.dir_stat()
                }
                found => found,
            },
            SnapshotPlace::Dir => {
                let snapshots = self.volume.snapshots()?;
                let mut found = snapshots.iter();
                let found = found.find(|snapshot| snapshot.name.as_bytes() == name);
                self.root_of(found.ok_or(Errno::NOENT)?)
            }
            SnapshotPlace::In(no, dir) => self.stat_in(no, |volume| volume.lookup(dir, name)),
        }
    }

    fn parent(&self, dir: Ino) -> Outcome<Ino> {
        match SnapshotPlace::of(dir) {
            SnapshotPlace::Live => self.volume.parent(dir),
            SnapshotPlace::Dir => Ok(Ino::ROOT),
            SnapshotPlace::In(_, Ino::ROOT) => Ok(DIR),
            SnapshotPlace::In(no, dir) => {
                ino_in(no, self.read_in(no, |volume| volume.parent(dir))?)
            }
        }
    }

    fn list(&self, dir: Ino, after: u64, visit: &mut dyn FnMut(Listed<'_>) -> bool) -> Outcome<()> {
        match SnapshotPlace::of(dir) {
            SnapshotPlace::Live if dir == Ino::ROOT && self.volume.core.options.shows_snapshots => {
                self.list_root(after, visit)
            }
            SnapshotPlace::Live => self.volume.list(dir, after, visit),
            SnapshotPlace::Dir => {
                for snapshot in self.volume.snapshots()? {
                    let cookie = COOKIE_BASE.saturating_add(snapshot.no.0.into());
                    if cookie <= after {
                        continue;
                    }
                    let stat = match self.root_of(&snapshot) {
                        // It was removed meanwhile.
                        Err(failure) if failure.errno == Errno::NOENT => continue,
                        stat => stat?,
                    };
                    let listed = Listed {
                        name: snapshot.name.as_bytes(),
                        stat: &stat,
                        cookie,
                    };
                    if !visit(listed) {
                        break;
                    }
                }
                Ok(())
            }
            SnapshotPlace::In(no, dir) => self.read_in(no, |volume| {
                let mut wrong = Ok(());
                volume.list(dir, after, &mut |listed| {
                    let stat = match ino_in(no, listed.stat.ino) {
                        Ok(ino) => Stat {
                            ino,
                            ..*listed.stat
                        },
                        Err(failure) => {
                            wrong = Err(failure);
                            return false;
                        }
                    };
                    visit(Listed {
                        stat: &stat,
                        ..listed
                    })
                })?;
                wrong
            }),
        }
    }

    fn set_stat(&self, ino: Ino, new: &NewStat, now: Nanoseconds) -> Outcome<Stat> {
        Self::refuse_snapshots(&[ino])?;
        self.volume.set_stat(ino, new, now)
    }

    fn create(&self, dir: Ino, name: &[u8], new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        self.refuse_name(dir, name)?;
        self.volume.create(dir, name, new, now)
    }

    fn create_unnamed(&self, dir: Ino, new: &NewInode<'_>, now: Nanoseconds) -> Outcome<Stat> {
        Self::refuse_snapshots(&[dir])?;
        self.volume.create_unnamed(dir, new, now)
    }

    fn link(&self, ino: Ino, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.refuse_name(dir, name)?;
        if SnapshotPlace::of(ino) != SnapshotPlace::Live {
            return Err(Errno::XDEV.into());
        }
        self.volume.link(ino, dir, name, now)
    }

    fn unlink(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.refuse_name(dir, name)?;
        self.volume.unlink(dir, name, now)
    }

    fn rmdir(&self, dir: Ino, name: &[u8], now: Nanoseconds) -> Outcome<Stat> {
        self.refuse_name(dir, name)?;
        self.volume.rmdir(dir, name, now)
    }

    fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        mode: RenameMode,
        now: Nanoseconds,
    ) -> Outcome<Option<Stat>> {
        self.refuse_name(from.0, from.1)?;
        self.refuse_name(to.0, to.1)?;
        self.volume.rename(from, to, mode, now)
    }

    fn forget(&self, ino: Ino) -> Outcome<()> {
        match SnapshotPlace::of(ino) {
            SnapshotPlace::Live => self.volume.forget(ino),
            _ => Ok(()),
        }
    }

    fn read_link(&self, ino: Ino) -> Outcome<Vec<u8>> {
        match SnapshotPlace::of(ino) {
            SnapshotPlace::Live => self.volume.read_link(ino),
            SnapshotPlace::Dir => Err(Errno::INVAL.into()),
            SnapshotPlace::In(no, ino) => self.read_in(no, |volume| volume.read_link(ino)),
        }
    }

    fn read(&self, ino: Ino, offset: u64, len: usize, out: &mut Vec<u8>) -> Outcome<()> {
        match SnapshotPlace::of(ino) {
            SnapshotPlace::Live => self.volume.read(ino, offset, len, out),
            SnapshotPlace::Dir => Err(Errno::ISDIR.into()),
            SnapshotPlace::In(no, ino) => {
                self.read_in(no, |volume| volume.read(ino, offset, len, out))
            }
        }
    }

    fn write(&self, ino: Ino, offset: u64, bytes: &[u8], now: Nanoseconds) -> Outcome<()> {
        Self::refuse_snapshots(&[ino])?;
        self.volume.write(ino, offset, bytes, now)
    }

    fn allocate(
        &self,
        ino: Ino,
        mode: AllocateMode,
        offset: u64,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<()> {
        Self::refuse_snapshots(&[ino])?;
        self.volume.allocate(ino, mode, offset, len, now)
    }

    fn copy_range(
        &self,
        from: FilePlace,
        to: FilePlace,
        len: u64,
        now: Nanoseconds,
    ) -> Outcome<u64> {
        Self::refuse_snapshots(&[to.ino])?;
        if SnapshotPlace::of(from.ino) != SnapshotPlace::Live {
            // The kernel copies the bytes then, and a commit finds that they are there.
            return Err(Errno::XDEV.into());
        }
        self.volume.copy_range(from, to, len, now)
    }

    fn seek(&self, ino: Ino, offset: u64, wants_hole: bool) -> Outcome<u64> {
        match SnapshotPlace::of(ino) {
            SnapshotPlace::Live => self.volume.seek(ino, offset, wants_hole),
            SnapshotPlace::Dir => Err(Errno::ISDIR.into()),
            SnapshotPlace::In(no, ino) => {
                self.read_in(no, |volume| volume.seek(ino, offset, wants_hole))
            }
        }
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Outcome<Vec<u8>> {
        match SnapshotPlace::of(ino) {
            SnapshotPlace::Live => self.volume.xattr(ino, name),
            SnapshotPlace::Dir => Err(Errno::NODATA.into()),
            SnapshotPlace::In(no, ino) => self.read_in(no, |volume| volume.xattr(ino, name)),
        }
    }

    fn xattr_names(&self, ino: Ino) -> Outcome<Vec<Vec<u8>>> {
        match SnapshotPlace::of(ino) {
            SnapshotPlace::Live => self.volume.xattr_names(ino),
            SnapshotPlace::Dir => Ok(Vec::new()),
            SnapshotPlace::In(no, ino) => self.read_in(no, |volume| volume.xattr_names(ino)),
        }
    }

    fn set_xattr(
        &self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now: Nanoseconds,
    ) -> Outcome<()> {
        Self::refuse_snapshots(&[ino])?;
        self.volume.set_xattr(ino, name, value, mode, now)
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8], now: Nanoseconds) -> Outcome<()> {
        Self::refuse_snapshots(&[ino])?;
        self.volume.remove_xattr(ino, name, now)
    }

    fn sync(&self) -> Outcome<()> {
        self.volume.sync()
    }

    fn sync_inode(&self, ino: Ino) -> Outcome<()> {
        match SnapshotPlace::of(ino) {
            SnapshotPlace::Live => self.volume.sync_inode(ino),
            _ => Ok(()),
        }
    }

    fn has_flags(&self) -> bool {
        self.volume.has_flags()
    }

    fn has_changing_names(&self, dir: Ino) -> bool {
        SnapshotPlace::of(dir) == SnapshotPlace::Dir
    }

    fn capacity(&self) -> Outcome<FsCapacity> {
        self.volume.capacity()
    }

    fn capacity_at(&self, ino: Ino) -> Outcome<FsCapacity> {
        match SnapshotPlace::of(ino) {
            SnapshotPlace::Live => self.volume.capacity_at(ino),
            _ => self.volume.capacity(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Would catch: inodes of two snapshots, or of a snapshot and the volume, with one number.
    #[test]
    fn numbers_come_apart_again() {
        let last = Ino((1 << INO_BITS) - 1);
        for (no, ino) in [(1, Ino::ROOT), (1, last), ((1 << 24) - 1, last)] {
            let no = SnapshotNo(no);
            let number = ino_in(no, ino).expect("a number");
            assert_eq!(SnapshotPlace::of(number), SnapshotPlace::In(no, ino));
            assert!(i64::try_from(number.0).is_ok());
        }
        assert_eq!(SnapshotPlace::of(DIR), SnapshotPlace::Dir);
        assert_eq!(SnapshotPlace::of(Ino::ROOT), SnapshotPlace::Live);
        assert!(ino_in(SnapshotNo(1), Ino(1 << INO_BITS)).is_err());
    }
}
