//! Committed rows of one volume, with a cache of those that were read.

use crate::layer::{Layer, Segment, Source};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::Result;
use weald_format::volume::{
    ExtentsRow, InodeRow, NameRow, Piece, QuotaRow, number_key, pair_key, split_key,
    split_pair_key, xattr_key,
};
use weald_store::engine::{Engine, Table};

/// Rows of one kind that the cache keeps.
const CACHED_MAX: usize = 1 << 16;

/// Names with one hash: cookie and row.
pub type Slots = Arc<Vec<(u64, Arc<NameRow>)>>;

/// Receives inode, name and value of an attribute.
pub type VisitXattr<'a> = dyn FnMut(u64, &[u8], &[u8]) + 'a;

/// Receives key and value of a row.
type VisitRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Pieces of a window, if it has any.
type Window = Option<Arc<ExtentsRow>>;

/// The tables, as of the last commit.
#[derive(Debug)]
pub struct Tables {
    engine: Arc<dyn Engine>,
    snapshot: u32,
    chunk_len: u32,
    /// Inodes from here on have no row.
    next_ino: AtomicU64,
    inodes: Mutex<HashMap<u64, Option<Arc<InodeRow>>>>,
    names: Mutex<HashMap<(u64, u64), Slots>>,
    extents: Mutex<HashMap<(u64, u64), Window>>,
}

/// Looks a row up in `cache`, or reads and keeps it.
fn cached<K: std::hash::Hash + Eq + Copy, V: Clone>(
    cache: &Mutex<HashMap<K, V>>,
    key: K,
    read: impl FnOnce() -> Result<V>,
) -> Result<V> {
    if let Some(found) = cache.lock().get(&key) {
        return Ok(found.clone());
    }
    let value = read()?;
    let mut cache = cache.lock();
    if cache.len() >= CACHED_MAX {
        cache.clear();
    }
    cache.insert(key, value.clone());
    Ok(value)
}

impl Tables {
    /// The rows of the volume `snapshot`.
    pub fn new(engine: Arc<dyn Engine>, snapshot: u32, chunk_len: u32, next_ino: u64) -> Self {
        Self {
            engine,
            snapshot,
            chunk_len,
            next_ino: AtomicU64::new(next_ino),
            inodes: Mutex::default(),
            names: Mutex::default(),
            extents: Mutex::default(),
        }
    }

    /// Length of a window.
    pub fn chunk_len(&self) -> u32 {
        self.chunk_len
    }

    /// Number in front of all keys.
    pub fn snapshot(&self) -> u32 {
        self.snapshot
    }

    /// Whether the tables can have rows of `ino`.
    pub fn may_have(&self, ino: u64) -> bool {
        ino < self.next_ino.load(Ordering::Relaxed)
    }

    /// Row of an inode.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn inode(&self, ino: u64) -> Result<Option<Arc<InodeRow>>> {
        if !self.may_have(ino) {
            return Ok(None);
        }
        cached(&self.inodes, ino, || {
            let value = self
                .engine
                .get(Table::Inodes, &number_key(self.snapshot, ino))?;
            let row = value.map(|value| InodeRow::parse(&value)).transpose()?;
            Ok(row.map(Arc::new))
        })
    }

    /// Names in `dir` whose cookies are `base` to `base + 127`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn slots(&self, dir: u64, base: u64) -> Result<Slots> {
        if !self.may_have(dir) {
            return Ok(Slots::default());
        }
        cached(&self.names, (dir, base), || {
            let mut slots = Vec::new();
            self.each_name(dir, base, &mut |cookie, row| {
                if cookie > base | 127 {
                    return ControlFlow::Break(());
                }
                slots.push((cookie, row));
                ControlFlow::Continue(())
            })?;
            Ok(Arc::new(slots))
        })
    }

    /// Visits the names in `dir` from the cookie `first` on.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_name(
        &self,
        dir: u64,
        first: u64,
        visit: &mut dyn FnMut(u64, Arc<NameRow>) -> ControlFlow<()>,
    ) -> Result<()> {
        if !self.may_have(dir) {
            return Ok(());
        }
        let start = pair_key(self.snapshot, dir, first);
        self.engine.scan(Table::Names, &start, &mut |key, value| {
            let (snapshot, of, cookie) = split_pair_key(key)?;
            if (snapshot, of) != (self.snapshot, dir) {
                return Ok(ControlFlow::Break(()));
            }
            Ok(visit(cookie, Arc::new(NameRow::parse(value)?)))
        })
    }

    /// Value of an attribute.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn xattr(&self, ino: u64, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if !self.may_have(ino) {
            return Ok(None);
        }
        self.engine
            .get(Table::Xattrs, &xattr_key(self.snapshot, ino, name))
    }

    /// Names of the attributes of `ino`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn xattr_names(&self, ino: u64) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.each_xattr(ino, &mut |name, _| names.push(name.to_vec()))?;
        Ok(names)
    }

    /// Visits names and values of the attributes of `ino`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_xattr(&self, ino: u64, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        if !self.may_have(ino) {
            return Ok(());
        }
        let start = number_key(self.snapshot, ino);
        self.engine.scan(Table::Xattrs, &start, &mut |key, value| {
            let (snapshot, of, name) = split_key(key)?;
            if (snapshot, of) != (self.snapshot, ino) {
                return Ok(ControlFlow::Break(()));
            }
            visit(name, value);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Visits all inodes.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_inode(&self, visit: &mut dyn FnMut(u64, &InodeRow)) -> Result<()> {
        self.each_row(Table::Inodes, &mut |key, value| {
            visit(split_key(key)?.1, &InodeRow::parse(value)?);
            Ok(())
        })
    }

    /// Visits the attributes of all inodes: inode, name, value.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_xattr_of_all(&self, visit: &mut VisitXattr<'_>) -> Result<()> {
        self.each_row(Table::Xattrs, &mut |key, value| {
            let (_, ino, name) = split_key(key)?;
            visit(ino, name, value);
            Ok(())
        })
    }

    /// Visits all rows of the volume in a table.
    fn each_row(&self, table: Table, visit: &mut VisitRow<'_>) -> Result<()> {
        let start = self.snapshot.to_be_bytes();
        self.engine.scan(table, &start, &mut |key, value| {
            if split_key(key)?.0 != self.snapshot {
                return Ok(ControlFlow::Break(()));
            }
            visit(key, value)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Orphans.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn orphans(&self) -> Result<Vec<u64>> {
        let mut orphans = Vec::new();
        let start = number_key(self.snapshot, 0);
        self.engine.scan(Table::Orphans, &start, &mut |key, _| {
            let (snapshot, ino, _) = split_key(key)?;
            if snapshot != self.snapshot {
                return Ok(ControlFlow::Break(()));
            }
            orphans.push(ino);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(orphans)
    }

    /// Quotas by directory.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn quotas(&self) -> Result<BTreeMap<u64, QuotaRow>> {
        let mut quotas = BTreeMap::new();
        let start = number_key(self.snapshot, 0);
        self.engine.scan(Table::Quotas, &start, &mut |key, value| {
            let (snapshot, dir, _) = split_key(key)?;
            if snapshot != self.snapshot {
                return Ok(ControlFlow::Break(()));
            }
            quotas.insert(dir, QuotaRow::parse(value)?);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(quotas)
    }

    /// Pieces of one window.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn window(&self, ino: u64, window: u64) -> Result<Option<Arc<ExtentsRow>>> {
        if !self.may_have(ino) {
            return Ok(None);
        }
        cached(&self.extents, (ino, window), || {
            let key = pair_key(self.snapshot, ino, window);
            let value = self.engine.get(Table::Extents, &key)?;
            let row = value.map(|value| ExtentsRow::parse(&value, self.chunk_len));
            Ok(row.transpose()?.map(Arc::new))
        })
    }

    /// Visits the rows of the windows `first` and behind it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_window(
        &self,
        ino: u64,
        first: u64,
        visit: &mut dyn FnMut(u64, ExtentsRow) -> ControlFlow<()>,
    ) -> Result<()> {
        if !self.may_have(ino) {
            return Ok(());
        }
        let start = pair_key(self.snapshot, ino, first);
        self.engine.scan(Table::Extents, &start, &mut |key, value| {
            let (snapshot, of, window) = split_pair_key(key)?;
            if (snapshot, of) != (self.snapshot, ino) {
                return Ok(ControlFlow::Break(()));
            }
            Ok(visit(window, ExtentsRow::parse(value, self.chunk_len)?))
        })
    }

    /// Visits the pieces of all files.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_piece(&self, visit: &mut dyn FnMut(&Piece)) -> Result<()> {
        let start = self.snapshot.to_be_bytes();
        self.engine.scan(Table::Extents, &start, &mut |key, value| {
            if split_key(key)?.0 != self.snapshot {
                return Ok(ControlFlow::Break(()));
            }
            let row = ExtentsRow::parse(value, self.chunk_len)?;
            row.0.iter().for_each(&mut *visit);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Visits the content of `range`, holes included.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_segment(
        &self,
        ino: u64,
        range: Range<u64>,
        visit: &mut dyn FnMut(Segment) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let chunk = u64::from(self.chunk_len);
        let (first, last) = (range.start / chunk, (range.end - 1) / chunk);
        let mut at = range.start;
        let mut flow = ControlFlow::Continue(());
        if first == last {
            if let Some(row) = self.window(ino, first)? {
                flow = each_piece(&row, first * chunk, &range, &mut at, visit);
            }
        } else {
            self.each_window(ino, first, &mut |window, row| {
                if window > last {
                    return ControlFlow::Break(());
                }
                flow = each_piece(&row, window * chunk, &range, &mut at, visit);
                flow
            })?;
        }
        if flow.is_continue() && at < range.end {
            flow = visit(Segment {
                range: at..range.end,
                source: Source::Hole,
            });
        }
        Ok(flow)
    }

    /// Forgets cached rows that the commit of `layer` and of `windows` changed.
    pub fn committed(&self, layer: &Layer, windows: &[(u64, u64)], dropped: &[u64]) {
        let mut inodes = self.inodes.lock();
        for (ino, row) in &layer.inodes {
            if inodes.len() < CACHED_MAX || inodes.contains_key(ino) {
                inodes.insert(*ino, row.clone());
            }
        }
        let mut names = self.names.lock();
        for (dir, cookie) in layer.names.keys() {
            names.remove(&(*dir, cookie & !127));
        }
        let mut extents = self.extents.lock();
        for window in windows {
            extents.remove(window);
        }
        if !dropped.is_empty() {
            extents.retain(|(ino, _), _| dropped.binary_search(ino).is_err());
        }
        self.next_ino.store(layer.next_ino, Ordering::Relaxed);
    }
}

fn each_piece(
    row: &ExtentsRow,
    base: u64,
    range: &Range<u64>,
    at: &mut u64,
    visit: &mut dyn FnMut(Segment) -> ControlFlow<()>,
) -> ControlFlow<()> {
    for piece in &row.0 {
        let segment = of_piece(base, piece);
        if segment.range.end <= range.start || segment.range.start >= range.end {
            continue;
        }
        let segment = segment.within(range);
        if segment.range.start > *at {
            visit(Segment {
                range: *at..segment.range.start,
                source: Source::Hole,
            })?;
        }
        *at = segment.range.end;
        visit(segment)?;
    }
    ControlFlow::Continue(())
}

/// The range of a file that `piece` of the window at `base` stands for.
pub fn of_piece(base: u64, piece: &Piece) -> Segment {
    Segment {
        range: base + u64::from(piece.start)..base + u64::from(piece.end()),
        source: Source::Block(piece.block, piece.offset),
    }
}

/// Counts of references that change, by block.
pub type Counts = BTreeMap<u64, i64>;
