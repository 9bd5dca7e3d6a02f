//! Two states of a volume without what they have in common: by the rows that changed between them,
//! and not by a walk over both.
//!
//! Each row that changed after a snapshot was kept for it or for one after it, so that the lists of
//! kept rows name all inodes and names that can differ. Rows of newer inodes are in no list: they
//! are below names that are. What a comparison needs besides is the way from the root to each of
//! these. A directory knows its parent; the names of a changed file are searched for.

use crate::climb::Climb;
use parking_lot::ReentrantMutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_format::snapshot::KeptKey;
use weald_format::volume::{
    ExtentsRow, InodeRow, NamePlace, NameRow, VolumeRow, inode_key, split_key,
};
use weald_format::{
    BlockId, Cookie, Error, FileKind, Ino, Result, SnapshotNo, VolumeNo, journal::RowSum, limits,
};
use weald_store::engine::{
    Batch, BeforeCommit, Engine, ReadView, RowsWriter, Table, VisitDamage, VisitRow, key_of,
};
use weald_store::{changed_rows, snapshot};

/// Files whose names are looked for near by; of more, all names of the volume are looked at.
const NEAR_COUNT_MAX: usize = 64;
/// Inodes before a file among which its directory is looked for, and the directories that are.
const NEAR_INODES: u64 = 4096;
const NEAR_DIRS: usize = 8;

/// A state of a volume, with the names alone that lead to differences from another state.
#[derive(Debug)]
pub struct ChangedState {
    /// The tables.
    pub engine: Arc<dyn Engine>,
    /// The row of the volume in that state.
    pub row: VolumeRow,
}

/// What can differ between two states.
#[derive(Debug, Default)]
struct Changed {
    /// Inodes that differ, and the directories above them and above changed names.
    inodes: BTreeSet<Ino>,
    /// Places of names that differ.
    names: BTreeSet<NamePlace>,
    /// Directories in the place of another one: all that is below them differs.
    replaced: BTreeSet<Ino>,
}

/// Two states, the older one first.
struct Pair<'a> {
    volume_no: VolumeNo,
    states: [&'a dyn Engine; 2],
}

/// The states `names` of the volume with the row `newest`, each a snapshot or, without a name, the
/// newest state.
///
/// # Errors
/// `NotFound` if there is no such snapshot; `Io`, `Corrupt`.
/// # Cost
/// By the rows that changed between the states. If files have changed whose directory is not among
/// the 4,096 inodes before them, one pass over all names.
pub fn changed_states(
    engine: &Arc<dyn Engine>,
    newest: &VolumeRow,
    names: [Option<&str>; 2],
) -> Result<[ChangedState; 2]> {
    let volume_no = newest.volume_no;
    let mut states = Vec::with_capacity(names.len());
    for name in names {
        states.push(match name {
            Some(name) => {
                let found = snapshot(&**engine, volume_no, name)?;
                let view: Arc<dyn Engine> = Arc::new(found.view(engine.clone()));
                (Some(found.no), view, found.volume)
            }
            None => (None, engine.clone(), newest.clone()),
        });
    }
    let [left, right] = <[_; 2]>::try_from(states).map_err(|_| Error::invalid("two states"))?;
    let end = |no: Option<SnapshotNo>| no.map_or(u64::MAX, |no| no.0.into());
    let (older, newer) = if end(left.0) <= end(right.0) {
        (&left, &right)
    } else {
        (&right, &left)
    };
    let mut changed = Changed::default();
    if let Some(from) = older.0.filter(|_| older.0 != newer.0) {
        let pair = Pair {
            volume_no,
            states: [&*older.1, &*newer.1],
        };
        changed.find(&**engine, &pair, (from, newer.0))?;
    }
    let changed = Arc::new(changed);
    Ok([left, right].map(|(_, view, row)| ChangedState {
        engine: Arc::new(ChangedView {
            volume_no,
            below: view,
            changed: changed.clone(),
        }),
        row,
    }))
}

impl Pair<'_> {
    fn inode(&self, state: usize, ino: Ino) -> Result<Option<InodeRow>> {
        let Some(engine) = self.states.get(state) else {
            return Ok(None);
        };
        let value = engine.get(Table::Inodes, &inode_key(self.volume_no, ino))?;
        value.map(|value| InodeRow::parse(&value)).transpose()
    }

    /// Both values of a row, if they differ.
    fn values(&self, table: Table, key: &[u8]) -> Result<Option<[Option<Vec<u8>>; 2]>> {
        let [old, new] = self.states;
        let values = [old.get(table, key)?, new.get(table, key)?];
        let [old, new] = &values;
        Ok((old != new).then_some(values))
    }
}

impl Changed {
    fn find(
        &mut self,
        engine: &dyn Engine,
        pair: &Pair<'_>,
        between: (SnapshotNo, Option<SnapshotNo>),
    ) -> Result<()> {
        let mut dirs = BTreeSet::new();
        // Names by directory and text, which may move to another place.
        let mut names: [BTreeMap<(Ino, Vec<u8>), NameRow>; 2] = Default::default();
        // Names of each inode of the newer state that are known so far.
        let mut found: BTreeMap<Ino, u64> = BTreeMap::new();
        changed_rows(engine, pair.volume_no, between, &mut |key: &KeptKey| {
            let Some(table) = Table::from_code(key.table) else {
                return Ok(());
            };
            let row = [&pair.volume_no.to_be_bytes()[..], &key.rest].concat();
            let Some(values) = pair.values(table, &row)? else {
                return Ok(());
            };
            if table != Table::Names {
                self.inodes.insert(split_key(&row)?.1);
                return Ok(());
            }
            let (_, place) = NamePlace::split_key(&row)?;
            if !self.names.insert(place) {
                return Ok(());
            }
            dirs.insert(place.dir);
            for (state, value) in values.iter().enumerate() {
                let Some(value) = value else { continue };
                let name = NameRow::parse(value)?;
                if state == 1 {
                    *found.entry(name.ino).or_default() += 1;
                }
                if let Some(names) = names.get_mut(state) {
                    names.insert((place.dir, name.name.clone()), name);
                }
            }
            Ok(())
        })?;
        let [old, new] = &names;
        for (place, old) in old {
            let is_dir = |row: &&NameRow| row.kind == FileKind::Directory && row.ino != old.ino;
            if let Some(new) = new.get(place).filter(is_dir)
                && old.kind == FileKind::Directory
            {
                self.replaced.extend([old.ino, new.ino]);
            }
        }
        let mut unnamed = BTreeMap::new();
        for ino in &self.inodes {
            let rows = [pair.inode(0, *ino)?, pair.inode(1, *ino)?];
            let is_dir = |row: &InodeRow| row.kind == FileKind::Directory;
            if rows.iter().flatten().any(is_dir) {
                dirs.insert(*ino);
            } else if let [_, Some(row)] = &rows {
                let known = found.get(ino).copied().unwrap_or(0);
                let missing = u64::from(row.nlink).saturating_sub(known);
                if missing > 0 {
                    unnamed.insert(*ino, missing);
                }
            }
        }
        self.name(pair, unnamed, &mut dirs)?;
        for dir in dirs {
            for state in 0..2 {
                self.climb(pair, state, dir)?;
            }
        }
        Ok(())
    }

    /// Finds the names of files in the newer state, and adds their directories to `dirs`.
    fn name(
        &self,
        pair: &Pair<'_>,
        mut unnamed: BTreeMap<Ino, u64>,
        dirs: &mut BTreeSet<Ino>,
    ) -> Result<()> {
        let [_, newer] = pair.states;
        let mut looked = BTreeSet::new();
        let mut seen = |place: NamePlace, ino: Ino, unnamed: &mut BTreeMap<Ino, u64>| {
            if let Some(missing) = unnamed.get_mut(&ino)
                && !self.names.contains(&place)
            {
                dirs.insert(place.dir);
                *missing -= 1;
                if *missing == 0 {
                    unnamed.remove(&ino);
                }
            }
        };
        if unnamed.len() <= NEAR_COUNT_MAX {
            for ino in unnamed.keys().copied().collect::<Vec<_>>() {
                if !unnamed.contains_key(&ino) {
                    continue;
                }
                for dir in dirs_before(newer, pair.volume_no, ino)? {
                    if looked.insert(dir) {
                        each_name(newer, (pair.volume_no, Some(dir)), &mut |place, row| {
                            seen(place, row.ino, &mut unnamed);
                            !unnamed.is_empty()
                        })?;
                    }
                }
            }
        }
        if !unnamed.is_empty() {
            each_name(newer, (pair.volume_no, None), &mut |place, row| {
                if !looked.contains(&place.dir) {
                    seen(place, row.ino, &mut unnamed);
                }
                !unnamed.is_empty()
            })?;
        }
        Ok(())
    }

    /// Adds `dir` and the directories above it in a state.
    fn climb(&mut self, pair: &Pair<'_>, state: usize, dir: Ino) -> Result<()> {
        let mut climb = Climb::new(dir);
        while let Some(row) = pair.inode(state, climb.at())? {
            self.inodes.insert(climb.at());
            if row.parent == Ino::NONE || row.parent == climb.at() {
                break;
            }
            climb.step(row.parent)?;
        }
        Ok(())
    }
}

/// The directories among the inodes just before `ino`, nearest first.
fn dirs_before(engine: &dyn Engine, volume_no: VolumeNo, ino: Ino) -> Result<Vec<Ino>> {
    let mut dirs = Vec::new();
    let start = inode_key(volume_no, Ino(ino.0.saturating_sub(NEAR_INODES)));
    engine.scan(Table::Inodes, &start, &mut |key, value| {
        let (of, at, _) = split_key(key)?;
        if of != volume_no || at >= ino {
            return Ok(ControlFlow::Break(()));
        }
        if InodeRow::parse(value)?.kind == FileKind::Directory {
            dirs.push(at);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    dirs.reverse();
    dirs.truncate(NEAR_DIRS);
    Ok(dirs)
}

/// Callback that visits a name; it returns whether to go on.
type VisitName<'a> = dyn FnMut(NamePlace, NameRow) -> bool + 'a;

/// Visits the names of a directory, or of all.
fn each_name(
    engine: &dyn Engine,
    (volume_no, dir): (VolumeNo, Option<Ino>),
    visit: &mut VisitName<'_>,
) -> Result<()> {
    let first = NamePlace {
        dir: dir.unwrap_or(Ino::NONE),
        cookie: Cookie(0),
    };
    engine.scan(Table::Names, &first.key(volume_no), &mut |key, value| {
        let (of, place) = NamePlace::split_key(key)?;
        let is_over = of != volume_no || dir.is_some_and(|dir| dir != place.dir);
        if is_over || !visit(place, NameRow::parse(value)?) {
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// The tables of a state, whose directories have the names alone that lead to differences.
#[derive(Debug)]
struct ChangedView {
    volume_no: VolumeNo,
    below: Arc<dyn Engine>,
    changed: Arc<Changed>,
}

impl ChangedView {
    /// Whether all below `dir` differs.
    fn is_replaced(&self, dir: Ino) -> Result<bool> {
        let mut climb = Climb::new(dir);
        while !self.changed.replaced.is_empty() {
            if self.changed.replaced.contains(&climb.at()) {
                return Ok(true);
            }
            let key = inode_key(self.volume_no, climb.at());
            let Some(value) = self.below.get(Table::Inodes, &key)? else {
                break;
            };
            let parent = InodeRow::parse(&value)?.parent;
            if parent == Ino::NONE || parent == climb.at() {
                break;
            }
            climb.step(parent)?;
        }
        Ok(false)
    }
}

impl Engine for ChangedView {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.below.get(table, key)
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        damaged: &mut VisitDamage<'_>,
    ) -> Result<()> {
        if table != Table::Names {
            return self.below.scan_readable(table, start, visit, damaged);
        }
        let mut last = None;
        let mut filter = |key: &[u8], value: &[u8]| {
            let (of, place) = NamePlace::split_key(key)?;
            if of != self.volume_no {
                return visit(key, value);
            }
            let is_replaced = match last {
                Some((dir, is_replaced)) if dir == place.dir => is_replaced,
                _ => {
                    let is_replaced = self.is_replaced(place.dir)?;
                    last = Some((place.dir, is_replaced));
                    is_replaced
                }
            };
            let is_shown = is_replaced
                || self.changed.names.contains(&place)
                || self.changed.inodes.contains(&NameRow::parse(value)?.ino);
            if is_shown {
                visit(key, value)
            } else {
                Ok(ControlFlow::Continue(()))
            }
        };
        self.below.scan_readable(table, start, &mut filter, damaged)
    }

    fn commit_after(&self, _: &Batch, _: &mut BeforeCommit<'_>) -> Result<()> {
        Err(Error::invalid("a part of a state does not change"))
    }

    fn row_sum(&self) -> Result<RowSum> {
        self.below.row_sum()
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        Err(Error::invalid("a part of a state has no views"))
    }
}

/// The tables as a view has them. Who visits rows may look at others meanwhile.
#[derive(Debug)]
pub(crate) struct ViewEngine(ReentrantMutex<Box<dyn ReadView>>);

impl ViewEngine {
    /// The tables of `view`.
    pub(crate) fn new(view: Box<dyn ReadView>) -> Self {
        Self(ReentrantMutex::new(view))
    }
}

impl Engine for ViewEngine {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.0.lock().row(table, key)
    }

    fn scan_readable(
        &self,
        table: Table,
        start: &[u8],
        visit: &mut VisitRow<'_>,
        _: &mut VisitDamage<'_>,
    ) -> Result<()> {
        self.0.lock().scan(table, start, visit)
    }

    fn commit_after(&self, _: &Batch, _: &mut BeforeCommit<'_>) -> Result<()> {
        Err(Error::invalid("a view does not change"))
    }

    fn row_sum(&self) -> Result<RowSum> {
        Err(Error::invalid("a view has no sum"))
    }

    fn compact(&self) -> Result<()> {
        Ok(())
    }

    fn read_view(self: Arc<Self>) -> Result<Box<dyn ReadView>> {
        Err(Error::invalid("a view has no views"))
    }
}

/// Rows of a state by table and key.
type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

impl ChangedState {
    /// Hands the rows of the state over as a file that [`weald_store::engine::RowsFile`] opens:
    /// those of what can differ, of the way to it, and of its blocks. `name` is that of the volume
    /// in the file.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; those of `put`.
    pub fn copy_rows(&self, name: &str, put: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let volume_no = self.row.volume_no;
        let (mut names, mut inos) = (Rows::new(), BTreeSet::from([self.row.root]));
        let mut dirs = vec![self.row.root];
        while let Some(dir) = dirs.pop() {
            each_name(&*self.engine, (volume_no, Some(dir)), &mut |place, row| {
                if inos.insert(row.ino) && row.kind == FileKind::Directory {
                    dirs.push(row.ino);
                }
                names.insert(place.key(volume_no), row.encode());
                true
            })?;
        }
        let (mut inodes, mut extents, mut xattrs) = (Rows::new(), Rows::new(), Rows::new());
        let mut blocks = BTreeSet::new();
        for ino in inos {
            let of_table = [
                (Table::Inodes, &mut inodes),
                (Table::Extents, &mut extents),
                (Table::Xattrs, &mut xattrs),
            ];
            for (table, rows) in of_table {
                let start = inode_key(volume_no, ino);
                self.engine.scan(table, &start, &mut |key, value| {
                    let (of, at, _) = split_key(key)?;
                    if (of, at) != (volume_no, ino) {
                        return Ok(ControlFlow::Break(()));
                    }
                    rows.insert(key.to_vec(), value.to_vec());
                    Ok(ControlFlow::Continue(()))
                })?;
            }
        }
        for value in extents.values() {
            let row = ExtentsRow::parse(value, limits::BLOCK_LEN_MAX as u32)?;
            blocks.extend(row.0.iter().map(|piece| piece.block));
        }
        let mut writer = RowsWriter::new(put);
        for table in Table::ALL {
            let rows = match table {
                Table::Volumes => {
                    writer.row(table, name.as_bytes(), &self.row.encode())?;
                    continue;
                }
                Table::Blocks => {
                    self.copy_blocks(&blocks, &mut writer)?;
                    continue;
                }
                Table::Inodes => &inodes,
                Table::Names => &names,
                Table::Extents => &extents,
                Table::Xattrs => &xattrs,
                _ => continue,
            };
            for (key, value) in rows {
                writer.row(table, key, value)?;
            }
        }
        writer.finish()
    }

    fn copy_blocks(&self, ids: &BTreeSet<BlockId>, writer: &mut RowsWriter<'_>) -> Result<()> {
        for id in ids {
            let key = key_of(id.0);
            if let Some(value) = self.engine.get(Table::Blocks, &key)? {
                writer.row(Table::Blocks, &key, &value)?;
            }
        }
        Ok(())
    }
}
