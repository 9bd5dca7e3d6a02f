//! The state of an open volume: layers above tables, and how a row is found in them.

use crate::cache::Blocks;
use crate::layer::{ContentRange, Layer};
use crate::open_store::OpenStore;
use crate::options::OpenOptions;
use crate::options::PlantedBug;
use crate::state::{State, Totals, failed};
use crate::tables::Tables;
use parking_lot::RwLock;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::Instant;
use weald_format::volume::{InodeRow, WindowPlace};
use weald_format::{Error, FileKind, Result};
use weald_vfs::{Failure, Ino, Nanoseconds, Outcome, Stat};

/// The volume below its driver: state, tables, blocks.
#[derive(Debug)]
pub struct Core {
    /// The layers.
    pub state: Arc<RwLock<State>>,
    /// The store, and what the volumes share that are open in it.
    pub shared: Arc<OpenStore>,
    /// Committed rows.
    pub tables: Tables,
    /// Decoded blocks.
    pub blocks: Blocks,
    /// Options of the mount.
    pub options: OpenOptions,
    /// Key of the hash of names.
    pub secret: [u8; 16],
    /// Whether names that differ in case only are equal.
    pub is_case_insensitive: bool,
    /// Runs operations of a test beside a commit.
    #[cfg(test)]
    pub hook: crate::hook::Hook,
}

impl Core {
    /// Whether this deliberate bug is on.
    pub fn has_bug(&self, bug: PlantedBug) -> bool {
        self.options.faults.has(bug)
    }

    /// Changes the state under the lock; no other thread sees a part of the change.
    ///
    /// # Errors
    /// EROFS on a volume that cannot change, and the errors of `change`.
    pub fn change<T>(
        &self,
        now: Nanoseconds,
        change: impl FnOnce(&Self, &mut State) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut state = self.state.write();
        if state.failure.is_some() || self.options.is_read_only {
            return Err(Errno::ROFS.into());
        }
        let result = change(self, &mut state)?;
        state.sequence += 1;
        state.active.now = now;
        state.active.is_changed = true;
        if state.risk_since.is_none() {
            let since = Instant::now();
            state.risk_since = Some(since);
            state.dirty_since.get_or_insert(since);
        }
        Ok(result)
    }

    /// The layers, newest first.
    pub fn layers<'a>(&self, state: &'a State) -> impl Iterator<Item = &'a Layer> {
        let hides_frozen = self.has_bug(PlantedBug::FrozenLayerIgnored);
        let frozen = state.frozen.as_deref().filter(|_| !hides_frozen);
        let newer = std::iter::once(&state.active).chain(state.logging_layers());
        newer.chain([&state.logged]).chain(frozen)
    }

    /// The row of an inode.
    ///
    /// # Errors
    /// ENOENT.
    pub fn inode(&self, state: &State, ino: Ino) -> Outcome<Arc<InodeRow>> {
        for layer in self.layers(state) {
            if let Some(row) = layer.inodes.get(&ino) {
                return row.clone().ok_or_else(|| Errno::NOENT.into());
            }
        }
        self.tables.inode(ino)?.ok_or_else(|| Errno::NOENT.into())
    }

    /// The row of an inode, to change it.
    ///
    /// # Errors
    /// ENOENT.
    pub fn inode_mut<'a>(&self, state: &'a mut State, ino: Ino) -> Outcome<&'a mut InodeRow> {
        if !state.active.inodes.contains_key(&ino) {
            let row = self.inode(state, ino)?;
            state.active.put_inode(ino, Some(row));
        }
        match state.active.inodes.get_mut(&ino) {
            Some(Some(row)) => Ok(Arc::make_mut(row)),
            _ => Err(Errno::NOENT.into()),
        }
    }

    /// Counts inodes and bytes of the volume, unless that was done. No commit is under way.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    ///
    /// # Cost
    /// Reads the rows of all inodes, beside operations.
    pub fn count_totals(&self) -> Result<Totals> {
        if let Some(totals) = self.state.read().totals {
            return Ok(totals);
        }
        let mut totals = Totals::default();
        self.tables.each_inode(&mut |_, row| {
            totals.inode_count += 1;
            totals.len = totals.len.saturating_add(row.allocated);
        })?;
        let mut state = self.state.write();
        let mut newest: BTreeMap<Ino, Option<u64>> = BTreeMap::new();
        for layer in self.layers(&state) {
            for (ino, row) in &layer.inodes {
                let len = row.as_ref().map(|row| row.allocated);
                newest.entry(*ino).or_insert(len);
            }
        }
        for (ino, new) in newest {
            if let Some(old) = self.tables.inode(ino)? {
                totals.inode_count = totals.inode_count.saturating_sub(1);
                totals.len = totals.len.saturating_sub(old.allocated);
            }
            if let Some(len) = new {
                totals.inode_count += 1;
                totals.len = totals.len.saturating_add(len);
            }
        }
        state.totals = Some(totals);
        Ok(totals)
    }

    /// The row of a directory.
    ///
    /// # Errors
    /// ENOENT, ENOTDIR.
    pub fn directory(&self, state: &State, ino: Ino) -> Outcome<Arc<InodeRow>> {
        let row = self.inode(state, ino)?;
        match row.kind {
            FileKind::Directory => Ok(row),
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    /// Visits the content of `range` of a file, holes included, in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_segment(
        &self,
        state: &State,
        ino: Ino,
        range: Range<u64>,
        visit: &mut dyn FnMut(ContentRange) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let maps = self.layers(state).filter_map(|layer| layer.files.get(&ino));
        let mut maps: Vec<_> = maps.collect();
        if self.has_bug(PlantedBug::StaleOverlay) {
            maps.reverse();
        }
        self.walk(&maps, ino, range, visit)
    }

    fn walk(
        &self,
        maps: &[&crate::layer::RangeMap],
        ino: Ino,
        range: Range<u64>,
        visit: &mut dyn FnMut(ContentRange) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        if range.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let Some((map, rest)) = maps.split_first() else {
            return self.tables.each_segment(ino, range, visit);
        };
        let mut at = range.start;
        for segment in map.within(&range) {
            let end = segment.range.end;
            if self
                .walk(rest, ino, at..segment.range.start, visit)?
                .is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
            if visit(segment).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            at = end;
        }
        self.walk(rest, ino, at..range.end, visit)
    }

    /// Number of bytes in `range` that are no hole.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn allocated(&self, state: &State, ino: Ino, range: Range<u64>) -> Result<u64> {
        let mut allocated = 0;
        let flow = self.each_segment(state, ino, range, &mut |segment| {
            if !segment.source.is_hole() {
                allocated += segment.len();
            }
            ControlFlow::Continue(())
        })?;
        debug_assert!(flow.is_continue());
        Ok(allocated)
    }

    /// Freezes the changes that the next commit takes, if there are any or `is_forced`. With
    /// `is_logged`, these are the changes that the sync log has, if it has all so far; otherwise
    /// all. Returns them, and the number of changes up to their end. No record is under way.
    ///
    /// # Errors
    /// `Io` with the first failure.
    pub fn freeze(&self, is_forced: bool, is_logged: bool) -> Result<Option<(Arc<Layer>, u64)>> {
        let mut state = self.state.write();
        if let Some(failure) = &state.failure {
            return Err(failed(failure));
        }
        if !state.active.is_changed && !state.logged.is_changed && !is_forced {
            return Ok(None);
        }
        let takes_active = !(is_logged && state.logged.is_changed);
        let had_changes = state.active.is_changed;
        let sequence = if takes_active {
            state.sequence
        } else {
            state.durable
        };
        let mut layer = std::mem::take(&mut state.logged);
        if takes_active {
            let active = state.take_active();
            if layer.is_changed {
                layer.merge(active)
            } else {
                layer = active
            }
            state.risk_since = None;
        }
        state.dirty_since = state.risk_since;
        state.is_frozen_logged = !(takes_active && had_changes);
        let layer = Arc::new(layer);
        state.frozen = Some(layer.clone());
        Ok(Some((layer, sequence)))
    }

    /// Drops the frozen layer, whose rows are in the tables now.
    pub fn thaw(&self, layer: &Layer, sequence: u64, windows: &[WindowPlace]) {
        let mut state = self.state.write();
        self.tables.committed(layer, windows);
        state.committed = sequence;
        state.knows_flags |= layer.has_flags();
        state.durable = state.durable.max(sequence);
        state.frozen = None;
    }
}

/// Failure with an errno of its own and a cause for the log.
pub fn refused(errno: Errno, cause: Error) -> Failure {
    Failure {
        errno,
        cause: Some(cause),
    }
}

/// Attributes of the inode `ino`.
pub fn stat_of(ino: Ino, row: &InodeRow) -> Stat {
    Stat {
        ino,
        kind: row.kind,
        permissions: row.permissions,
        flags: row.flags,
        uid: row.uid,
        gid: row.gid,
        nlink: row.nlink,
        rdev: row.rdev,
        size: row.size,
        allocated: row.allocated,
        atime: row.atime,
        mtime: row.mtime,
        ctime: row.ctime,
        btime: row.btime,
    }
}
