//! Makes a tree of the rows of a volume that can be read, and lists what is lost.
//!
//! 0. The changes of the sync log come first, as the next mount makes them: what it restores is not
//!    lost. Contents that only the log has stay there, and the tables count without them.
//! 1. Rows that make no sense go. A name that lies where no reader looks for it gets its place.
//! 2. Directories and files whose inode is lost get another one, of root and without times, if
//!    names or contents show what was there. Other names without an inode go.
//! 3. What no name leads to from the root gets a name in `lost+found`: its inode number behind `#`.
//!    Subtrees stay together.
//! 4. All counts are made anew: links, parents, bytes, attributes, quotas.
//!
//! Everything takes a time that grows with the number of rows, however deep the tree is.

mod quotas;

use super::logged::{Content, Logged};
use super::losses::{Loss, Names, Ranges, path_of};
use super::volumes::OldVolume;
use crate::engine::Table;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use weald_format::sync_log::DeltaTable;
use weald_format::volume::{
    ExtentsRow, InodeRow, NamePlace, NameRow, Piece, QuotaRow, WindowPlace, first_cookie,
    fold_case, inode_key, is_entry_name, split_key,
};
use weald_format::{BlockId, Cookie, FileKind, Ino, InodeFlags, WindowNo};

/// The directory of everything whose place is lost.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Inodes that records of the sync log may have made: a log is too short for more.
const LOGGED_INODES_MAX: u64 = 1 << 32;
/// Most windows of a file that are looked at for lost ones.
const WINDOWS_MAX: u64 = 1 << 24;

/// How much a file has.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    /// Bytes that are no hole.
    allocated: u64,
    /// The byte behind the last one of these.
    end: u64,
}

/// What a repair needs to know of blocks.
pub struct Blocks<'a> {
    /// Why the first bytes of a block cannot be read.
    pub why_lost: &'a dyn Fn(BlockId, u64) -> Option<String>,
    /// A block of this many bytes that cannot be read.
    pub lost_block: &'a mut dyn FnMut(u32) -> BlockId,
}

/// The rows of a volume.
struct Tree<'a> {
    volume: &'a mut OldVolume,
    logged: &'a Logged,
    inodes: BTreeMap<Ino, InodeRow>,
    names: BTreeMap<NamePlace, NameRow>,
    orphans: BTreeSet<Ino>,
    quotas: BTreeMap<Ino, QuotaRow>,
    /// What files have, from extents and the log.
    contents: BTreeMap<Ino, Extent>,
    /// The same from extents alone, as the tables count them until the next mount.
    stored: BTreeMap<Ino, Extent>,
    xattr_counts: BTreeMap<Ino, u32>,
    /// Inodes that were made anew.
    made: BTreeSet<Ino>,
    /// Losses of inodes, whose paths are known at the end.
    of_inodes: Vec<(Ino, String)>,
    /// Damaged ranges of inodes, each with the reason.
    of_ranges: Vec<(Ino, String, String)>,
    /// Losses of names: directory, name, what.
    of_names: Vec<(Ino, Vec<u8>, String)>,
    losses: Vec<Loss>,
    /// Files and directories that are in `lost+found` now.
    adopted: BTreeSet<Ino>,
}

/// Results of a repair.
#[derive(Debug, Default)]
pub struct Repaired {
    pub losses: Vec<Loss>,
    /// Number of files and directories that got a name in `lost+found`.
    pub adopted_count: u64,
    /// The body of the one record that the log gets, unless it stays as it is.
    pub log_body: Option<Vec<u8>>,
}

/// Repairs the rows of a volume.
pub fn repair(volume: &mut OldVolume, logged: &Logged, blocks: Blocks<'_>) -> Repaired {
    logged.apply(volume);
    let mut tree = Tree::of(volume, logged);
    tree.restore_names();
    tree.make_inodes();
    tree.drop_second_names();
    tree.adopt();
    tree.count_links();
    tree.count_contents(blocks);
    tree.tell_quotas();
    tree.count_quotas();
    let log_body = tree.log_body();
    if tree.count_stored() {
        tree.count_quotas();
    }
    Repaired {
        log_body,
        ..tree.finish()
    }
}

fn window_of(key: &[u8]) -> WindowPlace {
    WindowPlace::split_key(key).map_or(WindowPlace::START, |(_, place)| place)
}

fn ino_of(key: &[u8]) -> Ino {
    split_key(key).map_or(Ino::NONE, |(_, ino, _)| ino)
}

impl<'a> Tree<'a> {
    fn of(volume: &'a mut OldVolume, logged: &'a Logged) -> Self {
        let mut tree = Self {
            inodes: BTreeMap::new(),
            names: BTreeMap::new(),
            orphans: BTreeSet::new(),
            quotas: BTreeMap::new(),
            contents: BTreeMap::new(),
            stored: BTreeMap::new(),
            xattr_counts: BTreeMap::new(),
            made: BTreeSet::new(),
            of_inodes: Vec::new(),
            of_ranges: Vec::new(),
            of_names: Vec::new(),
            losses: Vec::new(),
            adopted: BTreeSet::new(),
            logged,
            volume,
        };
        for (key, value) in tree.volume.rows(Table::Inodes) {
            if let Ok(row) = InodeRow::parse(value) {
                tree.inodes.insert(ino_of(key), row);
            }
        }
        for (key, value) in tree.volume.rows(Table::Names) {
            if let (Ok((_, place)), Ok(row)) = (NamePlace::split_key(key), NameRow::parse(value)) {
                tree.names.insert(place, row);
            }
        }
        for (key, value) in tree.volume.rows(Table::Quotas) {
            if let Ok(row) = QuotaRow::parse(value) {
                tree.quotas.insert(ino_of(key), row);
            }
        }
        tree.orphans = tree
            .volume
            .rows(Table::Orphans)
            .map(|(key, _)| ino_of(key))
            .collect();
        for (key, _) in tree.volume.rows(Table::Xattrs) {
            *tree.xattr_counts.entry(ino_of(key)).or_default() += 1;
        }
        let chunk_len = tree.volume.row.chunk_len;
        let is_bad = |key: &[u8], value: &[u8]| {
            WindowPlace::split_key(key).is_err() || ExtentsRow::parse(value, chunk_len).is_err()
        };
        if let Some(rows) = tree.volume.tables.get_mut(&Table::Extents) {
            rows.retain(|key, value| !is_bad(key, value));
        }
        let add = |contents: &mut BTreeMap<Ino, Extent>, ino: Ino, range: Range<u64>| {
            let of = contents.entry(ino).or_default();
            of.allocated += range.end - range.start;
            of.end = of.end.max(range.end);
        };
        for (key, value) in tree.volume.rows(Table::Extents) {
            let WindowPlace { ino, window } = window_of(key);
            for piece in super::volumes::pieces(value) {
                let range = range_of(window, chunk_len, &piece);
                for part in logged.unchanged(ino, range.clone()) {
                    add(&mut tree.contents, ino, part);
                }
                add(&mut tree.stored, ino, range);
            }
        }
        for ino in logged.files() {
            let filled = logged.changed(ino).filter(|of| !of.1.is_hole());
            filled.for_each(|(range, _)| add(&mut tree.contents, ino, range));
        }
        tree
    }

    fn root(&self) -> Ino {
        self.volume.row.root
    }

    fn is_dir(&self, ino: Ino) -> bool {
        let row = self.inodes.get(&ino);
        row.is_some_and(|row| row.kind == FileKind::Directory)
    }

    fn cookie(&self, name: &[u8]) -> Cookie {
        let row = &self.volume.row;
        first_cookie(&row.secret, name, row.is_case_insensitive)
    }

    /// A place for a new name in `dir`; `None` if the directory has the name.
    fn free_place(&self, dir: Ino, name: &[u8]) -> Option<NamePlace> {
        let folds = self.volume.row.is_case_insensitive;
        let mut free = None;
        for cookie in self.cookie(name).slots() {
            let place = NamePlace { dir, cookie };
            match self.names.get(&place) {
                Some(row) if fold_case(&row.name, folds) == fold_case(name, folds) => return None,
                Some(_) => {}
                None => drop(free.get_or_insert(place)),
            }
        }
        free
    }

    /// Puts names where readers look for them. Names that no directory can have go, and names of a
    /// file that is no directory.
    fn restore_names(&mut self) {
        let root = self.root();
        let is_wrong = |tree: &Self, place: NamePlace, row: &NameRow| {
            let dir = place.dir;
            let is_in_file = tree.inodes.contains_key(&dir) && !tree.is_dir(dir);
            let hash = tree.cookie(&row.name).hash();
            !is_entry_name(&row.name) || is_in_file || hash != place.cookie.hash()
        };
        let wrong: Vec<NamePlace> = self
            .names
            .iter()
            .filter(|(place, row)| is_wrong(self, **place, row) || row.ino == root)
            .map(|(place, _)| *place)
            .collect();
        for place in wrong {
            let Some(row) = self.names.remove(&place) else {
                continue;
            };
            let can_stay = is_entry_name(&row.name) && row.ino != root;
            let can_stay =
                can_stay && (self.is_dir(place.dir) || !self.inodes.contains_key(&place.dir));
            match self.free_place(place.dir, &row.name).filter(|_| can_stay) {
                Some(place) => drop(self.names.insert(place, row)),
                None => self
                    .of_names
                    .push((place.dir, row.name, "a name".to_owned())),
            }
        }
    }

    /// Makes inodes for directories and files whose own are lost, and drops other names that lead
    /// nowhere.
    fn make_inodes(&mut self) {
        let mut kinds: BTreeMap<Ino, FileKind> = BTreeMap::new();
        for ino in self.contents.keys() {
            kinds.insert(*ino, FileKind::Regular);
        }
        for (NamePlace { dir, .. }, row) in &self.names {
            let has_rows =
                self.contents.contains_key(&row.ino) || self.xattr_counts.contains_key(&row.ino);
            if row.kind == FileKind::Directory || (row.kind == FileKind::Regular && has_rows) {
                kinds.insert(row.ino, row.kind);
            }
            kinds.insert(*dir, FileKind::Directory);
        }
        kinds.insert(self.root(), FileKind::Directory);
        kinds.retain(|ino, _| !self.inodes.contains_key(ino) && !self.orphans.contains(ino));
        for (ino, kind) in kinds {
            let end = self.contents.get(&ino).map_or(0, |of| of.end);
            self.inodes.insert(ino, new_inode(kind, end));
            self.made.insert(ino);
            let what = match kind {
                FileKind::Directory => "the attributes",
                _ => "the attributes and the length",
            };
            self.of_inodes.push((ino, what.to_owned()));
        }
        let names = std::mem::take(&mut self.names);
        for (place, mut row) in names {
            match self.inodes.get(&row.ino) {
                Some(inode) => {
                    row.kind = inode.kind;
                    self.names.insert(place, row);
                }
                None => {
                    self.of_names
                        .push((place.dir, row.name, "everything".to_owned()));
                }
            }
        }
        // Attributes of nothing.
        let inodes = &self.inodes;
        let orphans = &self.orphans;
        let mut without: BTreeSet<Ino> = BTreeSet::new();
        if let Some(rows) = self.volume.tables.get_mut(&Table::Xattrs) {
            rows.retain(|key, _| {
                let ino = ino_of(key);
                let is_kept = inodes.contains_key(&ino) || orphans.contains(&ino);
                if !is_kept {
                    without.insert(ino);
                }
                is_kept
            });
        }
        for ino in without {
            let what = format!("inode {ino}, which had attributes, and its name");
            self.losses.push(Loss::new(what));
        }
    }

    /// Drops all names of a directory but one, and the names of removed files.
    fn drop_second_names(&mut self) {
        let mut kept: BTreeMap<Ino, NamePlace> = BTreeMap::new();
        let mut dropped = Vec::new();
        for (place, row) in self
            .names
            .iter()
            .filter(|(_, r)| r.kind == FileKind::Directory)
        {
            let parent = self
                .inodes
                .get(&row.ino)
                .map_or(Ino::NONE, |inode| inode.parent);
            match kept.get(&row.ino) {
                None => drop(kept.insert(row.ino, *place)),
                Some(other) if other.dir != parent && place.dir == parent => {
                    dropped.push(*other);
                    kept.insert(row.ino, *place);
                }
                Some(_) => dropped.push(*place),
            }
        }
        for place in dropped {
            if let Some(row) = self.names.remove(&place) {
                let what = "a second name of a directory".to_owned();
                self.of_names.push((place.dir, row.name, what));
            }
        }
    }

    /// Gives everything a name that no name leads to from the root.
    fn adopt(&mut self) {
        let mut children: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
        let mut above: BTreeMap<Ino, Ino> = BTreeMap::new();
        for (NamePlace { dir, .. }, row) in &self.names {
            children.entry(*dir).or_default().push(row.ino);
            above.insert(row.ino, *dir);
        }
        let mut reached: BTreeSet<Ino> = BTreeSet::new();
        reach(&children, self.root(), &mut reached);
        let mut tops: Vec<Ino> = Vec::new();
        // First what has no name, then what lies in circles or in removed directories.
        for ino in self.inodes.keys() {
            let is_removed = self.inodes.get(ino).is_some_and(|row| row.nlink == 0);
            if !above.contains_key(ino) && !is_removed && !reached.contains(ino) {
                tops.push(*ino);
                reach(&children, *ino, &mut reached);
            }
        }
        for ino in self.inodes.keys().filter(|ino| above.contains_key(ino)) {
            if reached.contains(ino) {
                continue;
            }
            let (mut at, mut walked) = (*ino, BTreeSet::new());
            while walked.insert(at)
                && let Some(dir) = above.get(&at)
            {
                at = *dir;
            }
            tops.push(at);
            reach(&children, at, &mut reached);
        }
        if !tops.is_empty() {
            self.attach(&tops);
        }
    }

    /// Moves these files and directories to `lost+found`.
    fn attach(&mut self, tops: &[Ino]) {
        let moved: BTreeSet<Ino> = tops.iter().copied().collect();
        // Directories of a circle have a name in it.
        self.names.retain(|_, row| !moved.contains(&row.ino));
        let Some(dir) = self.lost_and_found() else {
            return;
        };
        for &ino in tops {
            let Some(kind) = self.inodes.get(&ino).map(|row| row.kind) else {
                continue;
            };
            let names = (0u32..).map(|no| match no {
                0 => format!("#{ino}"),
                no => format!("#{ino}.{no}"),
            });
            let places = names.map(|name| (self.free_place(dir, name.as_bytes()), name));
            let free = places
                .take(1 << 16)
                .find_map(|(place, name)| Some((place?, name)));
            let Some((place, name)) = free else {
                continue;
            };
            let name = name.into_bytes();
            self.names.insert(place, NameRow { name, ino, kind });
            self.adopted.insert(ino);
            let what = match kind {
                FileKind::Directory => "the name and the place of the directory",
                _ => "the name and the place",
            };
            self.of_inodes.push((ino, what.to_owned()));
        }
    }

    /// The directory `lost+found`, which is made if there is none.
    fn lost_and_found(&mut self) -> Option<Ino> {
        let root = self.root();
        for no in 0u32..1 << 16 {
            let name = match no {
                0 => LOST_AND_FOUND.to_vec(),
                no => [LOST_AND_FOUND, format!(".{no}").as_bytes()].concat(),
            };
            let Some(place) = self.free_place(root, &name) else {
                let at = |cookie| NamePlace { dir: root, cookie };
                let first = self.cookie(&name);
                let found = self.names.range(at(first)..=at(first.last_slot()));
                let mut found = found.filter(|(_, row)| row.name == name);
                match found.find(|(_, row)| row.kind == FileKind::Directory) {
                    Some((_, row)) => return Some(row.ino),
                    None => continue,
                }
            };
            let row = &mut self.volume.row;
            let gap = if row.has_sync_log {
                LOGGED_INODES_MAX
            } else {
                0
            };
            let last = self.inodes.keys().next_back().copied().unwrap_or_default();
            let ino = Ino(row.next_ino.max(last.next()).0.checked_add(gap)?);
            row.next_ino = ino.next();
            let kind = FileKind::Directory;
            self.inodes.insert(ino, new_inode(kind, 0));
            self.names.insert(place, NameRow { name, ino, kind });
            return Some(ino);
        }
        None
    }

    /// Makes links, parents and the orphans anew.
    fn count_links(&mut self) {
        let mut counts: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut parents: BTreeMap<Ino, Ino> = BTreeMap::from([(self.root(), self.root())]);
        let mut dir_counts: BTreeMap<Ino, u32> = BTreeMap::new();
        for (NamePlace { dir, .. }, row) in &self.names {
            *counts.entry(row.ino).or_default() += 1;
            if row.kind == FileKind::Directory {
                parents.insert(row.ino, *dir);
                *dir_counts.entry(*dir).or_default() += 1;
            }
        }
        for (ino, row) in &mut self.inodes {
            let count = counts.get(ino).copied().unwrap_or(0);
            if row.kind == FileKind::Directory {
                if let Some(parent) = parents.get(ino) {
                    row.parent = *parent;
                    row.nlink = 2 + dir_counts.get(ino).copied().unwrap_or(0);
                }
            } else {
                let is_told = self.made.contains(ino) || self.adopted.contains(ino);
                if (1..row.nlink).contains(&count) && !is_told {
                    let what = format!("{} of {} names", row.nlink - count, row.nlink);
                    self.of_inodes.push((*ino, what));
                }
                row.nlink = count;
            }
            match row.nlink {
                0 => self.orphans.insert(*ino),
                _ => self.orphans.remove(ino),
            };
        }
        let root = self.root();
        let last = self.inodes.keys().next_back().copied().unwrap_or(root);
        self.volume.row.next_ino = self.volume.row.next_ino.max(last.next());
    }

    /// Compares extents and attributes with inodes, and makes the counts anew.
    fn count_contents(&mut self, blocks: Blocks<'_>) {
        let damaged = self.damaged_ranges(blocks.why_lost);
        let mut lost_windows = Vec::new();
        for (ino, row) in &mut self.inodes {
            let of = self.contents.get(ino).copied().unwrap_or_default();
            let Extent { allocated, end } = of;
            if !self.made.contains(ino) && allocated < row.allocated && row.nlink > 0 {
                lost_windows.push((*ino, row.size, row.allocated - allocated));
            }
            row.allocated = allocated;
            if row.kind == FileKind::Regular {
                row.size = row.size.max(end);
            }
            let count = self.xattr_counts.get(ino).copied().unwrap_or(0);
            if count < row.xattr_count && row.nlink > 0 {
                let what = format!(
                    "{} of {} attributes",
                    row.xattr_count - count,
                    row.xattr_count
                );
                self.of_inodes.push((*ino, what));
            }
            row.xattr_count = count;
        }
        for (ino, size, lost_len) in lost_windows {
            let what = self.mark_lost((ino, size, lost_len), blocks.lost_block);
            self.of_inodes.push((ino, what));
        }
        for (ino, (parts, why)) in damaged {
            let mut ranges = Ranges::default();
            parts
                .iter()
                .for_each(|(start, end)| ranges.add(*start, *end));
            self.of_ranges.push((ino, ranges.text(), why));
        }
    }

    /// Ranges of files that lie in lost blocks, by their start, each file with the first reason.
    fn damaged_ranges(
        &self,
        why_lost: &dyn Fn(BlockId, u64) -> Option<String>,
    ) -> BTreeMap<Ino, (BTreeMap<u64, u64>, String)> {
        let chunk_len = self.volume.row.chunk_len;
        let mut damaged: BTreeMap<Ino, (BTreeMap<u64, u64>, String)> = BTreeMap::new();
        let mut add = |ino: Ino, range: Range<u64>, why: String| {
            let of = damaged.entry(ino).or_insert_with(|| (BTreeMap::new(), why));
            of.0.insert(range.start, range.end);
        };
        for (key, value) in self.volume.rows(Table::Extents) {
            let WindowPlace { ino, window } = window_of(key);
            for piece in super::volumes::pieces(value) {
                let end = u64::from(piece.offset) + u64::from(piece.len);
                if let Some(why) = why_lost(piece.block, end) {
                    let range = range_of(window, chunk_len, &piece);
                    let parts = self.logged.unchanged(ino, range).into_iter();
                    parts.for_each(|part| add(ino, part, why.clone()));
                }
            }
        }
        for ino in self.logged.files() {
            for (range, content) in self.logged.changed(ino) {
                let Content::Block(block, offset) = content else {
                    continue;
                };
                let end = u64::from(*offset) + (range.end - range.start);
                if let Some(why) = why_lost(*block, end) {
                    add(ino, range, why);
                }
            }
        }
        damaged
    }

    /// Makes reads of lost windows fail, if it is clear which these are: holes have no window
    /// either. Returns what is lost.
    fn mark_lost(
        &mut self,
        (ino, size, lost_len): (Ino, u64, u64),
        lost_block: &mut dyn FnMut(u32) -> BlockId,
    ) -> String {
        let chunk_len = self.volume.row.chunk_len;
        let volume_no = self.volume.row.volume_no;
        let window_count = size.div_ceil(chunk_len.into());
        let mut missing = Vec::new();
        let mut missing_len = 0;
        if window_count <= WINDOWS_MAX {
            let rows = self.volume.tables.entry(Table::Extents).or_default();
            let key = |window| WindowPlace { ino, window }.key(volume_no);
            let known = rows.range(key(WindowNo::FIRST)..=key(WindowNo::MAX));
            let known: BTreeSet<_> = known.map(|(key, _)| window_of(key).window).collect();
            let windows = (0..window_count).map(WindowNo);
            for window in windows.filter(|window| !known.contains(window)) {
                let start = window.start(chunk_len);
                let whole = start..start + u64::from(chunk_len).min(size - start);
                for part in self.logged.unchanged(ino, whole) {
                    missing_len += part.end - part.start;
                    missing.push((window, part));
                }
            }
        }
        if missing_len != lost_len {
            return format!("{lost_len} bytes, which are a hole now,");
        }
        let mut ranges = Ranges::default();
        let mut rows: BTreeMap<WindowNo, Vec<Piece>> = BTreeMap::new();
        for (window, part) in missing {
            let len = (part.end - part.start) as u32;
            let start = (part.start - window.start(chunk_len)) as u32;
            let block = lost_block(len);
            ranges.add(part.start, part.end);
            rows.entry(window).or_default().push(Piece {
                start,
                len,
                block,
                offset: 0,
            });
        }
        let extents = self.volume.tables.entry(Table::Extents).or_default();
        for (window, pieces) in rows {
            let key = WindowPlace { ino, window }.key(volume_no);
            extents.insert(key, ExtentsRow(pieces).encode());
        }
        if let Some(row) = self.inodes.get_mut(&ino) {
            row.allocated += missing_len;
        }
        self.stored.entry(ino).or_default().allocated += missing_len;
        ranges.text()
    }

    /// The body of the record that the log gets: its contents, and the rows that count them.
    fn log_body(&self) -> Option<Vec<u8>> {
        let volume_no = self.volume.row.volume_no;
        let files = self.logged.files();
        let files = files.filter_map(|ino| {
            let row = self.inodes.get(&ino)?.encode();
            Some((DeltaTable::Inodes, inode_key(volume_no, ino), row))
        });
        let quotas = self.quotas.iter();
        let quotas =
            quotas.map(|(dir, row)| (DeltaTable::Quotas, inode_key(volume_no, *dir), row.encode()));
        let rows: Vec<_> = files.chain(quotas).collect();
        let rows = rows.iter();
        self.logged
            .body(rows.map(|(table, key, value)| (*table, &key[..], &value[..])))
    }

    /// Counts what the tables have until the next mount. Returns whether that is anything else.
    fn count_stored(&mut self) -> bool {
        for ino in self.logged.files() {
            let Some(row) = self.inodes.get_mut(&ino) else {
                continue;
            };
            let Extent { allocated, end } = self.stored.get(&ino).copied().unwrap_or_default();
            row.allocated = allocated;
            if row.kind == FileKind::Regular {
                row.size = row.size.max(end);
            }
        }
        self.logged.files().next().is_some()
    }

    /// Writes the rows, and names what is lost.
    fn finish(self) -> Repaired {
        let volume_no = self.volume.row.volume_no;
        let root = self.root();
        let mut names = Names::new();
        // The other names of files with several.
        let mut more: BTreeMap<Ino, Vec<(Ino, &[u8])>> = BTreeMap::new();
        for (NamePlace { dir, .. }, row) in &self.names {
            match names.entry(row.ino) {
                Entry::Vacant(entry) => drop(entry.insert((*dir, row.name.clone()))),
                Entry::Occupied(_) => more.entry(row.ino).or_default().push((*dir, &row.name)),
            }
        }
        let mut losses = self.losses;
        for (dir, name, what) in self.of_names {
            losses.push(Loss::of(path_of(&names, root, dir, &name), what));
        }
        let of_inodes = self.of_inodes.into_iter();
        let of_inodes = of_inodes.map(|(ino, what)| (ino, what, String::new()));
        for (ino, what, why) in of_inodes.chain(self.of_ranges) {
            let path = match names.get(&ino) {
                _ if ino == root => Some(Vec::new()),
                Some((dir, name)) => Some(path_of(&names, root, *dir, name)),
                // It was removed, and nobody can miss it.
                None => continue,
            };
            for (dir, name) in more.get(&ino).into_iter().flatten() {
                losses.push(Loss {
                    path: Some(path_of(&names, root, *dir, name)),
                    what: what.clone(),
                    why: why.clone(),
                });
            }
            losses.push(Loss { path, what, why });
        }
        // The row may be the first one of the volume.
        let is_flagged = |row: &InodeRow| !row.flags.is_empty();
        self.volume.row.has_flags |= self.inodes.values().any(is_flagged);
        let tables = &mut self.volume.tables;
        let inodes = self.inodes.iter();
        let inodes = inodes.map(|(ino, row)| (inode_key(volume_no, *ino), row.encode()));
        tables.insert(Table::Inodes, inodes.collect());
        let names = self.names.iter();
        let names = names.map(|(place, row)| (place.key(volume_no), row.encode()));
        tables.insert(Table::Names, names.collect());
        let orphans = self.orphans.iter();
        let orphans = orphans.map(|ino| (inode_key(volume_no, *ino), Vec::new()));
        tables.insert(Table::Orphans, orphans.collect());
        let quotas = self.quotas.iter();
        let quotas = quotas.map(|(dir, row)| (inode_key(volume_no, *dir), row.encode()));
        tables.insert(Table::Quotas, quotas.collect());
        Repaired {
            losses,
            adopted_count: self.adopted.len() as u64,
            log_body: None,
        }
    }
}

/// The bytes of its file that a piece of a window has.
fn range_of(window: WindowNo, chunk_len: u32, piece: &Piece) -> Range<u64> {
    let start = window.start(chunk_len);
    start.saturating_add(piece.start.into())..start.saturating_add(piece.end().into())
}

/// Adds everything below `from` to `reached`.
fn reach(children: &BTreeMap<Ino, Vec<Ino>>, from: Ino, reached: &mut BTreeSet<Ino>) {
    let mut waiting = vec![from];
    while let Some(ino) = waiting.pop() {
        if reached.insert(ino) {
            waiting.extend(children.get(&ino).into_iter().flatten());
        }
    }
}

/// An inode of root, without times and links.
fn new_inode(kind: FileKind, size: u64) -> InodeRow {
    InodeRow {
        kind,
        permissions: 0o700,
        flags: InodeFlags::NONE,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size,
        allocated: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        btime: 0,
        parent: Ino::NONE,
        quota: Ino::NONE,
        xattr_count: 0,
        target: Vec::new(),
    }
}
