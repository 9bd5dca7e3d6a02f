//! Flags of inodes that chattr(1) sets, and the changes that they forbid.
//!
//! # Source
//! Linux: `may_create`, `may_delete` and `vfs_link` in `fs/namei.c`, `may_setattr` in `fs/attr.c`,
//! `xattr_permission` in `fs/xattr.c`, `vfs_fallocate` in `fs/open.c`. The kernel applies them to
//! file systems that keep the flags in its inodes; a FUSE server applies them itself.

use crate::core::Core;
use crate::layer::Layer;
use crate::state::State;
use rustix::io::Errno;
use weald_format::volume::InodeRow;
use weald_format::{Ino, InodeFlags};
use weald_vfs::{Nanoseconds, NewStat, Outcome};

fn forbid(is_forbidden: bool) -> Outcome<()> {
    if is_forbidden {
        Err(Errno::PERM.into())
    } else {
        Ok(())
    }
}

impl Core {
    /// EPERM for an inode that only flags can be changed of.
    ///
    /// # Errors
    /// EPERM.
    pub fn check_locks(&self, state: &State, ino: Ino) -> Outcome<()> {
        forbid(self.inode(state, ino)?.flags.has_any(InodeFlags::LOCKS))
    }

    /// Whether the directory `dir` can get a name.
    ///
    /// # Errors
    /// EPERM.
    pub fn check_addition(&self, state: &State, dir: Ino) -> Outcome<()> {
        forbid(self.inode(state, dir)?.flags.has_any(InodeFlags::IMMUTABLE))
    }

    /// Whether the directory `dir` can lose its name of `ino`, for another one too.
    ///
    /// # Errors
    /// EPERM.
    pub fn check_removal(&self, state: &State, dir: Ino, ino: Ino) -> Outcome<()> {
        self.check_locks(state, dir)?;
        self.check_locks(state, ino)
    }
}

/// Whether the content of `row` can change; `at` is where bytes are written, and nothing else
/// changes.
///
/// # Errors
/// EPERM.
pub fn check_content(row: &InodeRow, at: Option<u64>) -> Outcome<()> {
    let is_append = at == Some(row.size);
    forbid(if is_append {
        row.flags.has_any(InodeFlags::IMMUTABLE)
    } else {
        row.flags.has_any(InodeFlags::LOCKS)
    })
}

/// Whether attributes of `row` can change so at the time `now`.
///
/// # Errors
/// EPERM.
pub fn check_attributes(row: &InodeRow, new: &NewStat, now: Nanoseconds) -> Outcome<()> {
    if !row.flags.has_any(InodeFlags::LOCKS) {
        return Ok(());
    }
    let beside_flags = NewStat {
        flags: None,
        ..*new
    };
    let without_access = NewStat {
        atime: None,
        ctime: None,
        ..beside_flags
    };
    let is_of_read = new.ctime.is_some() && without_access == NewStat::default();
    if beside_flags == NewStat::default() || is_of_read {
        return Ok(());
    }
    // utimensat(2) with the present time is permitted where bytes can be added.
    let is_now = |time: Option<Nanoseconds>| time.is_none_or(|time| time == now);
    let without_times = NewStat {
        mtime: None,
        ..without_access
    };
    let is_touch = without_times == NewStat::default() && is_now(new.atime) && is_now(new.mtime);
    forbid(row.flags.has_any(InodeFlags::IMMUTABLE) || !is_touch)
}

impl Layer {
    /// Whether an inode of the layer has flags.
    ///
    /// # Cost
    /// Looks at all inodes of the layer.
    pub fn has_flags(&self) -> bool {
        let mut rows = self.inodes.values().flatten();
        rows.any(|row| !row.flags.is_empty())
    }
}
