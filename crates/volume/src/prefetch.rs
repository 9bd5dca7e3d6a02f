//! Rows that an operation needs are read before it takes the lock of the volume, so that a slow row
//! holds up only those that need it.
//!
//! These functions fill the caches of the tables and tell no errors: under the lock the operation
//! looks again. There it finds the rows in the caches, except in the rare case that a commit
//! changed one meanwhile or that the cache had no place for it, and then it reads with the lock.
//! Rows of long ranges of files are no matter for caches: the operation keeps them ([`Kept`]). It
//! reads with the lock where the number of rows has no bound: behind the first 65,536 windows of
//! a range, and in counting the members of a new quota.

use crate::ahead::Kept;
use crate::climb::Climb;
use crate::core::Core;
use crate::properties::INHERITED;
use std::ops::Range;
use std::sync::Arc;
use weald_format::volume::{NAME_LEN_MAX, NameRow, WindowPlace};
use weald_format::{FileKind, Ino, WindowNo};

impl Core {
    /// Reads the row of an inode.
    pub fn prefetch_inode(&self, ino: Ino) {
        let _ = self.tables.inode(ino);
    }

    /// Reads the rows of the directory `dir`, of `name` in it, and of the inode of that name, which
    /// it returns.
    pub fn prefetch_name(&self, dir: Ino, name: &[u8]) -> Option<Arc<NameRow>> {
        self.prefetch_inode(dir);
        if name.len() > NAME_LEN_MAX {
            return None;
        }
        let _ = self.tables.slots(dir, self.base_cookie(name));
        let found = self.find(&self.state.read(), dir, name);
        let (_, row) = found.ok()??;
        self.prefetch_inode(row.ino);
        Some(row)
    }

    /// Reads what the removal of `name` needs.
    pub fn prefetch_removal(&self, dir: Ino, name: &[u8]) -> Option<Arc<NameRow>> {
        let row = self.prefetch_name(dir, name)?;
        if row.kind == FileKind::Directory {
            let _ = self.tables.first_names(row.ino);
        }
        Some(row)
    }

    /// Reads what a new inode in `dir` needs.
    pub fn prefetch_new(&self, dir: Ino) {
        self.prefetch_inode(dir);
        let row = self.inode(&self.state.read(), dir);
        if row.is_ok_and(|row| row.xattr_count > 0) {
            for name in INHERITED {
                self.prefetch_xattr(dir, name);
            }
        }
    }

    /// Reads what a rename needs.
    pub fn prefetch_rename(&self, (from_dir, from): (Ino, &[u8]), (to_dir, to): (Ino, &[u8])) {
        let source = self.prefetch_removal(from_dir, from);
        let target = self.prefetch_removal(to_dir, to);
        if from_dir == to_dir {
            return;
        }
        let is_dir = |row: &Arc<NameRow>| row.kind == FileKind::Directory;
        if source.as_ref().is_some_and(is_dir) {
            self.prefetch_parents(to_dir);
        }
        if target.as_ref().is_some_and(is_dir) {
            self.prefetch_parents(from_dir);
        }
    }

    /// Reads the rows of `dir` and of all directories above it.
    fn prefetch_parents(&self, dir: Ino) {
        let mut climb = Climb::new(dir);
        loop {
            self.prefetch_inode(climb.at());
            let row = self.inode(&self.state.read(), climb.at());
            let Ok(row) = row else { return };
            if row.parent == climb.at() || row.parent.is_none() || climb.step(row.parent).is_err() {
                return;
            }
        }
    }

    /// Reads the row of an inode and those of its windows in `range`. If these are many, the
    /// operation keeps the result until it has released the lock.
    pub fn prefetch_content(&self, ino: Ino, range: &Range<u64>) -> Option<Kept<'_>> {
        // The tables have no window behind the end that they know.
        let row = self.tables.inode(ino).ok()??;
        let range = range.start..range.end.min(row.size);
        if range.is_empty() {
            return None;
        }
        let window_len = self.tables.chunk_len();
        let first = WindowNo::of(range.start, window_len);
        let last = WindowNo::of(range.end - 1, window_len);
        if !self.tables.are_few(first, last) {
            // That there is nothing behind the end is known then, too.
            let is_rest = range.end == row.size;
            let last = if is_rest { WindowNo::MAX } else { last };
            return self.tables.read_ahead(ino, first, last).ok();
        }
        for window in first.through(last) {
            let _ = self.tables.window(WindowPlace { ino, window });
        }
        None
    }

    /// Reads the row of an inode and an extended attribute of it.
    pub fn prefetch_xattr(&self, ino: Ino, name: &[u8]) {
        self.prefetch_inode(ino);
        let row = self.inode(&self.state.read(), ino);
        if row.is_ok_and(|row| row.xattr_count > 0) {
            let _ = self.tables.xattr(ino, name);
        }
    }

    /// Reads the row of an inode and the names of its extended attributes.
    pub fn prefetch_xattr_names(&self, ino: Ino) {
        self.prefetch_inode(ino);
        let row = self.inode(&self.state.read(), ino);
        if row.is_ok_and(|row| row.xattr_count > 0) {
            let _ = self.tables.xattr_names(ino);
        }
    }
}
