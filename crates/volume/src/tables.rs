//! Committed rows of one volume, with caches of those that were read.
//!
//! Rows are read without the lock of the volume's state, so that a slow one holds up only those
//! that need it (`prefetch.rs`). A commit changes rows while they are read; [`Tables::committed`],
//! which runs under the lock, then makes the caches refuse what was read before.

use crate::ahead::{Kept, Shelf, WindowsAhead};
use crate::layer::{ContentRange, Layer, RangeContent, XattrChange};
use crate::options::{PlantedBug, WindowSteps};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weald_format::limits::XATTR_NAME_LEN_MAX;
use weald_format::volume::{
    ExtentsRow, InodeRow, NamePlace, NameRow, Piece, QuotaRow, WindowPlace, inode_key, split_key,
    xattr_key,
};
use weald_format::{BlockId, Cookie, Ino, Result, VolumeNo, WindowNo};
use weald_store::engine::{Engine, Table};
use weald_store::faults::Faults;
use weald_store::row_cache::{CacheSize, RowCache};

/// Memory of the inodes that are kept, bytes; that of names and that of windows of files is the
/// same.
const CACHE_LEN: u64 = 24 << 20;
/// Memory of the extended attributes that are kept, bytes.
const XATTR_CACHE_LEN: u64 = 4 << 20;
/// Names of a directory that are kept to see whether it is empty.
const FIRST_NAMES_MAX: usize = 4;

/// Names with one hash: cookie and row.
pub type Slots = Arc<Vec<(Cookie, Arc<NameRow>)>>;

/// Receives inode, name and value of an attribute.
pub type VisitXattr<'a> = dyn FnMut(Ino, &[u8], &[u8]) + 'a;

/// Receives key and value of a row.
type VisitRow<'a> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 'a;

/// Pieces of a window, if it has any.
type Window = Option<Arc<ExtentsRow>>;

/// Inode and name of an extended attribute.
type XattrPlace = (Ino, Arc<[u8]>);

/// Names of a directory that follow each other.
#[derive(Debug, Clone, Default)]
pub struct NamesPage {
    /// Cookies and rows, in order.
    pub names: Vec<(Cookie, Arc<NameRow>)>,
    /// Whether no name follows.
    pub is_last: bool,
}

/// The tables, as of the last commit.
#[derive(Debug)]
pub struct Tables {
    engine: Arc<dyn Engine>,
    volume_no: VolumeNo,
    chunk_len: u32,
    /// Inodes from here on have no row.
    next_ino: AtomicU64,
    /// Commits that changed rows so far.
    version: AtomicU64,
    inodes: RowCache<Ino, Option<Arc<InodeRow>>>,
    names: RowCache<NamePlace, Slots>,
    first_names: RowCache<Ino, Arc<NamesPage>>,
    extents: RowCache<WindowPlace, Window>,
    xattrs: RowCache<XattrPlace, XattrChange>,
    xattr_names: RowCache<Ino, Arc<Vec<Vec<u8>>>>,
    ahead: Shelf,
    windows: WindowSteps,
    faults: Faults<PlantedBug>,
}

/// Size of a cache of rows with `len_max` bytes in all.
fn rows_of(len_max: u64) -> CacheSize {
    CacheSize {
        len_max,
        usual_len: 256,
        longest_len: 256 << 10,
    }
}

fn name_len(row: &Arc<NameRow>) -> usize {
    size_of::<NameRow>() + size_of::<(Cookie, Arc<NameRow>)>() + row.name.capacity()
}

fn names_len<'a>(names: impl IntoIterator<Item = &'a (Cookie, Arc<NameRow>)>) -> usize {
    let lens = names.into_iter().map(|(_, row)| name_len(row));
    lens.sum()
}

impl Tables {
    /// The rows of the volume `volume_no`.
    pub fn new(
        engine: Arc<dyn Engine>,
        volume_no: VolumeNo,
        chunk_len: u32,
        next_ino: Ino,
    ) -> Self {
        Self {
            engine,
            volume_no,
            chunk_len,
            next_ino: AtomicU64::new(next_ino.0),
            version: AtomicU64::new(0),
            inodes: RowCache::new(rows_of(CACHE_LEN), |row| {
                let row = row.as_ref();
                row.map_or(0, |row| size_of::<InodeRow>() + row.target.capacity())
            }),
            names: RowCache::new(rows_of(CACHE_LEN), |slots| names_len(&**slots)),
            first_names: RowCache::new(rows_of(CACHE_LEN / 8), |page| {
                size_of::<NamesPage>() + names_len(&page.names)
            }),
            extents: RowCache::new(rows_of(CACHE_LEN), |row| {
                let row = row.as_ref();
                row.map_or(0, |row| row.0.capacity() * size_of::<Piece>())
            }),
            xattrs: RowCache::new(rows_of(XATTR_CACHE_LEN), |value| {
                XATTR_NAME_LEN_MAX + value.as_ref().map_or(0, |value| value.len())
            }),
            xattr_names: RowCache::new(rows_of(XATTR_CACHE_LEN), |names| {
                let lens = names.iter().map(|name| size_of_val(name) + name.capacity());
                lens.sum()
            }),
            ahead: Shelf::default(),
            windows: WindowSteps::default(),
            faults: Faults::default(),
        }
    }

    /// The same rows, read in other steps, with deliberate bugs.
    #[must_use]
    pub fn in_steps(self, windows: WindowSteps, faults: Faults<PlantedBug>) -> Self {
        Self {
            windows,
            faults,
            ..self
        }
    }

    /// Whether the windows from `first` to `last` are read one by one.
    pub fn are_few(&self, first: WindowNo, last: WindowNo) -> bool {
        last.0.saturating_sub(first.0) < self.windows.kept_max
    }

    /// Reads the rows of the windows from `first` to `last` of a file, or the first of them, for an
    /// operation that takes the lock then. [`Tables::each_segment`] uses them as long as the result
    /// exists and nothing is committed.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read_ahead(&self, ino: Ino, first: WindowNo, last: WindowNo) -> Result<Kept<'_>> {
        let mut ahead = WindowsAhead {
            first,
            end: last.next(),
            version: self.version(),
            rows: Vec::new(),
        };
        self.each_window(WindowPlace { ino, window: first }, &mut |window, row| {
            if window > last {
                return ControlFlow::Break(());
            }
            if ahead.rows.len() == self.windows.ahead_max {
                if !self.faults.has(PlantedBug::WindowsAheadCut) {
                    ahead.end = window;
                }
                return ControlFlow::Break(());
            }
            ahead.rows.push((window, row));
            ControlFlow::Continue(())
        })?;
        Ok(self.ahead.keep(ino, ahead))
    }

    /// Length of a window.
    pub fn chunk_len(&self) -> u32 {
        self.chunk_len
    }

    /// Number in front of all keys.
    pub fn volume_no(&self) -> VolumeNo {
        self.volume_no
    }

    /// Whether the tables can have rows of `ino`.
    pub fn may_have(&self, ino: Ino) -> bool {
        ino.0 < self.next_ino.load(Ordering::Relaxed)
    }

    /// Row of an inode.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn inode(&self, ino: Ino) -> Result<Option<Arc<InodeRow>>> {
        if !self.may_have(ino) {
            return Ok(None);
        }
        self.inodes.get_or_read(&ino, || {
            let value = self
                .engine
                .get(Table::Inodes, &inode_key(self.volume_no, ino))?;
            let row = value.map(|value| InodeRow::parse(&value)).transpose()?;
            Ok(row.map(Arc::new))
        })
    }

    /// Names in `dir` with the hash of the cookie `base`, which is the first one with it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn slots(&self, dir: Ino, base: Cookie) -> Result<Slots> {
        if !self.may_have(dir) {
            return Ok(Slots::default());
        }
        let place = NamePlace { dir, cookie: base };
        self.names.get_or_read(&place, || {
            let mut slots = Vec::new();
            self.each_name(dir, base, &mut |cookie, row| {
                if cookie > base.last_slot() {
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
        dir: Ino,
        first: Cookie,
        visit: &mut dyn FnMut(Cookie, Arc<NameRow>) -> ControlFlow<()>,
    ) -> Result<()> {
        if !self.may_have(dir) {
            return Ok(());
        }
        let first = NamePlace { dir, cookie: first };
        let start = first.key(self.volume_no);
        self.engine.scan(Table::Names, &start, &mut |key, value| {
            let (volume_no, place) = NamePlace::split_key(key)?;
            if (volume_no, place.dir) != (self.volume_no, dir) {
                return Ok(ControlFlow::Break(()));
            }
            Ok(visit(place.cookie, Arc::new(NameRow::parse(value)?)))
        })
    }

    /// Up to `count` names in `dir` from the cookie `first` on.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn names_page(&self, dir: Ino, first: Cookie, count: usize) -> Result<NamesPage> {
        let mut page = NamesPage {
            names: Vec::new(),
            is_last: true,
        };
        self.each_name(dir, first, &mut |cookie, row| {
            if page.names.len() == count {
                page.is_last = false;
                return ControlFlow::Break(());
            }
            page.names.push((cookie, row));
            ControlFlow::Continue(())
        })?;
        Ok(page)
    }

    /// The first names in `dir`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn first_names(&self, dir: Ino) -> Result<Arc<NamesPage>> {
        self.first_names.get_or_read(&dir, || {
            Ok(Arc::new(self.names_page(
                dir,
                Cookie::START,
                FIRST_NAMES_MAX,
            )?))
        })
    }

    /// Number of commits that changed rows so far. Rows that were read while it stayed the same
    /// belong to one state.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Value of an attribute.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Option<Arc<[u8]>>> {
        if !self.may_have(ino) {
            return Ok(None);
        }
        self.xattrs.get_or_read(&(ino, name.into()), || {
            let key = xattr_key(self.volume_no, ino, name);
            let value = self.engine.get(Table::Xattrs, &key)?;
            Ok(value.map(Arc::from))
        })
    }

    /// Names of the attributes of `ino`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn xattr_names(&self, ino: Ino) -> Result<Arc<Vec<Vec<u8>>>> {
        if !self.may_have(ino) {
            return Ok(Arc::default());
        }
        self.xattr_names.get_or_read(&ino, || {
            let mut names = Vec::new();
            self.each_xattr(ino, &mut |name, _| names.push(name.to_vec()))?;
            Ok(Arc::new(names))
        })
    }

    /// Visits names and values of the attributes of `ino`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_xattr(&self, ino: Ino, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()> {
        if !self.may_have(ino) {
            return Ok(());
        }
        let start = inode_key(self.volume_no, ino);
        self.engine.scan(Table::Xattrs, &start, &mut |key, value| {
            let (volume_no, of, name) = split_key(key)?;
            if (volume_no, of) != (self.volume_no, ino) {
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
    pub fn each_inode(&self, visit: &mut dyn FnMut(Ino, &InodeRow)) -> Result<()> {
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
        let start = self.volume_no.to_be_bytes();
        self.engine.scan(table, &start, &mut |key, value| {
            if split_key(key)?.0 != self.volume_no {
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
    pub fn orphans(&self) -> Result<Vec<Ino>> {
        let mut orphans = Vec::new();
        let start = inode_key(self.volume_no, Ino::NONE);
        self.engine.scan(Table::Orphans, &start, &mut |key, _| {
            let (volume_no, ino, _) = split_key(key)?;
            if volume_no != self.volume_no {
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
    pub fn quotas(&self) -> Result<BTreeMap<Ino, QuotaRow>> {
        let mut quotas = BTreeMap::new();
        let start = inode_key(self.volume_no, Ino::NONE);
        self.engine.scan(Table::Quotas, &start, &mut |key, value| {
            let (volume_no, dir, _) = split_key(key)?;
            if volume_no != self.volume_no {
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
    pub fn window(&self, place: WindowPlace) -> Result<Option<Arc<ExtentsRow>>> {
        if !self.may_have(place.ino) {
            return Ok(None);
        }
        self.extents.get_or_read(&place, || {
            let key = place.key(self.volume_no);
            let value = self.engine.get(Table::Extents, &key)?;
            let row = value.map(|value| ExtentsRow::parse(&value, self.chunk_len));
            Ok(row.transpose()?.map(Arc::new))
        })
    }

    /// Visits the rows of the window `first` of a file and of those behind it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_window(
        &self,
        first: WindowPlace,
        visit: &mut dyn FnMut(WindowNo, ExtentsRow) -> ControlFlow<()>,
    ) -> Result<()> {
        if !self.may_have(first.ino) {
            return Ok(());
        }
        let start = first.key(self.volume_no);
        self.engine.scan(Table::Extents, &start, &mut |key, value| {
            let (volume_no, place) = WindowPlace::split_key(key)?;
            if (volume_no, place.ino) != (self.volume_no, first.ino) {
                return Ok(ControlFlow::Break(()));
            }
            Ok(visit(
                place.window,
                ExtentsRow::parse(value, self.chunk_len)?,
            ))
        })
    }

    /// Visits the pieces of all files.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn each_piece(&self, visit: &mut dyn FnMut(&Piece)) -> Result<()> {
        let start = self.volume_no.to_be_bytes();
        self.engine.scan(Table::Extents, &start, &mut |key, value| {
            if split_key(key)?.0 != self.volume_no {
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
        ino: Ino,
        range: Range<u64>,
        visit: &mut dyn FnMut(ContentRange) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let len = self.chunk_len;
        let first = WindowNo::of(range.start, len);
        let last = WindowNo::of(range.end - 1, len);
        let mut at = range.start;
        let mut flow = ControlFlow::Continue(());
        let mut next = first;
        if let Some(ahead) = self.ahead.find(ino, first, self.version()) {
            for (window, row) in ahead.rows_from(first) {
                if *window > last || flow.is_break() {
                    break;
                }
                flow = each_piece(row, window.start(len), &range, &mut at, visit);
            }
            next = ahead.end;
        }
        if next > last || flow.is_break() {
            // Nothing is left to read.
        } else if self.are_few(next, last) {
            for window in next.through(last) {
                if let Some(row) = self.window(WindowPlace { ino, window })?
                    && flow.is_continue()
                {
                    flow = each_piece(&row, window.start(len), &range, &mut at, visit);
                }
            }
        } else {
            let next = WindowPlace { ino, window: next };
            self.each_window(next, &mut |window, row| {
                if window > last {
                    return ControlFlow::Break(());
                }
                flow = each_piece(&row, window.start(len), &range, &mut at, visit);
                flow
            })?;
        }
        if flow.is_continue() && at < range.end {
            flow = visit(ContentRange {
                range: at..range.end,
                source: RangeContent::Hole,
            });
        }
        Ok(flow)
    }

    /// Takes over what the commit of `layer` changed, and forgets `windows`. Nothing else reads
    /// the layers meanwhile.
    pub fn committed(&self, layer: &Layer, windows: &[WindowPlace]) {
        self.version.fetch_add(1, Ordering::AcqRel);
        for (ino, row) in &layer.inodes {
            self.inodes.put(*ino, row.clone());
        }
        let mut last_dir = None;
        for place in layer.names.keys() {
            self.names.forget(&NamePlace {
                cookie: place.cookie.first_slot(),
                ..*place
            });
            if last_dir.replace(place.dir) != Some(place.dir) {
                self.first_names.forget(&place.dir);
            }
        }
        for window in windows {
            self.extents.forget(window);
        }
        for (ino, name) in layer.xattrs.keys() {
            self.xattrs.forget(&(*ino, name.as_slice().into()));
            self.xattr_names.forget(ino);
        }
        self.next_ino.store(layer.next_ino.0, Ordering::Release);
    }
}

fn each_piece(
    row: &ExtentsRow,
    base: u64,
    range: &Range<u64>,
    at: &mut u64,
    visit: &mut dyn FnMut(ContentRange) -> ControlFlow<()>,
) -> ControlFlow<()> {
    for piece in &row.0 {
        let segment = of_piece(base, piece);
        if segment.range.end <= range.start || segment.range.start >= range.end {
            continue;
        }
        let segment = segment.within(range);
        if segment.range.start > *at {
            visit(ContentRange {
                range: *at..segment.range.start,
                source: RangeContent::Hole,
            })?;
        }
        *at = segment.range.end;
        visit(segment)?;
    }
    ControlFlow::Continue(())
}

/// The range of a file that `piece` of the window at `base` stands for.
pub fn of_piece(base: u64, piece: &Piece) -> ContentRange {
    ContentRange {
        range: base + u64::from(piece.start)..base + u64::from(piece.end()),
        source: RangeContent::Block(piece.block, piece.offset),
    }
}

/// Counts of references that change, by block.
pub type Counts = BTreeMap<BlockId, i64>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::put_rows;
    use std::sync::OnceLock;
    use weald_format::journal::RowSum;
    use weald_format::{FileKind, InodeFlags};
    use weald_store::engine::memory::MemoryEngine;
    use weald_store::engine::{
        Batch, BeforeCommit, ReadView, VisitDamage, VisitRow as VisitEngineRow,
    };

    const VOLUME: u32 = 1;
    const WINDOW_LEN: u32 = 4096;
    const WINDOW: WindowPlace = WindowPlace {
        ino: Ino(5),
        window: WindowNo::FIRST,
    };
    const NAME: NamePlace = NamePlace {
        dir: Ino(5),
        cookie: Cookie(128),
    };

    /// Tables in memory in which a commit ends after each row was read, before the reader has it.
    #[derive(Debug, Default)]
    struct Overtaken {
        rows: MemoryEngine,
        tables: OnceLock<Arc<Tables>>,
    }

    impl Overtaken {
        fn overtake(&self) {
            let Some(tables) = self.tables.get() else {
                return;
            };
            let new = layer(2);
            self.rows.commit(&batch(&new, 2)).expect("a commit");
            tables.committed(&new, &[WINDOW]);
        }
    }

    impl Engine for Overtaken {
        fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
            let value = self.rows.get(table, key);
            self.overtake();
            value
        }

        fn scan_readable(
            &self,
            table: Table,
            start: &[u8],
            visit: &mut VisitEngineRow<'_>,
            damaged: &mut VisitDamage<'_>,
        ) -> Result<()> {
            self.rows.scan_readable(table, start, visit, damaged)?;
            self.overtake();
            Ok(())
        }

        fn commit_after(&self, batch: &Batch, before: &mut BeforeCommit<'_>) -> Result<()> {
            self.rows.commit_after(batch, before)
        }

        fn row_sum(&self) -> Result<RowSum> {
            self.rows.row_sum()
        }

        fn compact(&self) -> Result<()> {
            Ok(())
        }

        fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
            unreachable!("nothing takes one")
        }
    }

    /// Rows of inode 5 that have `n` everywhere.
    fn layer(n: u64) -> Layer {
        let mut layer = Layer {
            next_ino: Ino(100),
            ..Layer::default()
        };
        let row = InodeRow {
            kind: FileKind::Regular,
            permissions: 0o644,
            flags: InodeFlags::NONE,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size: n,
            allocated: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            btime: 0,
            parent: Ino::NONE,
            quota: Ino::NONE,
            xattr_count: 1,
            target: Vec::new(),
        };
        layer.put_inode(Ino(5), Some(Arc::new(row)));
        let name = NameRow {
            name: b"name".to_vec(),
            ino: Ino(n),
            kind: FileKind::Regular,
        };
        layer.put_name(NAME, Some(Arc::new(name)));
        let value: Vec<u8> = n.to_le_bytes().into();
        layer.put_xattr(Ino(5), b"user.a", Some(value.into()));
        // An attribute that only the older state has.
        layer.put_xattr(Ino(5), b"user.b", (n == 1).then(|| [1].as_slice().into()));
        layer
    }

    fn batch(layer: &Layer, n: u64) -> Batch {
        let mut batch = Batch::default();
        put_rows(VolumeNo(VOLUME), layer, &mut batch);
        let piece = Piece {
            start: 0,
            len: 100,
            block: BlockId(n),
            offset: 0,
        };
        let row = ExtentsRow(vec![piece]);
        batch.put(Table::Extents, &WINDOW.key(VolumeNo(VOLUME)), row.encode());
        batch
    }

    type Look = fn(&Tables) -> u64;

    /// Would catch: a row that a commit changes while it is read, and that stays in a cache.
    #[test]
    fn rows_that_a_commit_overtakes_are_read_again() {
        let looks: [(&str, Look); 6] = [
            ("inode", |t| {
                t.inode(Ino(5)).expect("read").expect("a row").size
            }),
            ("slots", |t| {
                t.slots(NAME.dir, NAME.cookie).expect("read")[0].1.ino.0
            }),
            ("first names", |t| {
                t.first_names(Ino(5)).expect("read").names[0].1.ino.0
            }),
            ("window", |t| {
                t.window(WINDOW).expect("read").expect("a row").0[0].block.0
            }),
            ("xattr", |t| {
                let value = t.xattr(Ino(5), b"user.a").expect("read").expect("a value");
                value[0].into()
            }),
            ("xattr names", |t| {
                3 - t.xattr_names(Ino(5)).expect("read").len() as u64
            }),
        ];
        for (name, look) in looks {
            let engine = Arc::new(Overtaken::default());
            let old = layer(1);
            engine.rows.commit(&batch(&old, 1)).expect("a commit");
            let tables = Arc::new(Tables::new(
                engine.clone(),
                VolumeNo(VOLUME),
                WINDOW_LEN,
                Ino(100),
            ));
            assert!(engine.tables.set(tables.clone()).is_ok());
            assert_eq!(look(&tables), 1, "{name}: the rows before the commit");
            assert_eq!(look(&tables), 2, "{name}: an old row stayed");
        }
    }
}
