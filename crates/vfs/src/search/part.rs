//! One part of a search: some entries of a directory with everything below them, on one thread.
//!
//! A directory without sub-directories is read directly from its entry blocks; nearly all entries
//! of a typical tree are in such directories. A walker visits the others.

use super::hit::{Hit, SearchOptions};
use super::known::Known;
use crate::walk::LazyDir;
use crate::{Query, Step, Visit, Walker, shown_path};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::{Error, FileKind, Result};
use weald_image::{Image, Inode};

/// Bytes of output after which a part is handed back; the calling thread continues it. Bounds
/// memory.
const OUTPUT_PART_LEN: usize = 1 << 20;
/// Problems after which a part is handed back.
const PROBLEMS_MAX: usize = 64;
/// A directory is read completely if more than one in this many of its entries lead to a match.
const POSITION_SHARE: u64 = 4;

/// State that all parts of a search share.
pub struct Shared<'a> {
    /// The image.
    pub image: &'a Image,
    /// The conditions.
    pub query: &'a Query,
    /// The options.
    pub options: SearchOptions,
    /// Known matches of templates; `None` if instances of a template can have different matches.
    pub known: Option<Known>,
}

/// Results of a part since its last batch.
pub struct Batch<E> {
    /// Output of `write`.
    pub bytes: Vec<u8>,
    /// Number of matches.
    pub found_count: u64,
    /// The same, if matches are counted instead of written.
    pub count: u64,
    /// Errors of the reader.
    pub problems: Vec<Error>,
    /// Error of `write`.
    pub failure: Option<E>,
}

impl<E> Default for Batch<E> {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            found_count: 0,
            count: 0,
            problems: Vec::new(),
            failure: None,
        }
    }
}

impl<E> Batch<E> {
    fn is_full(&self) -> bool {
        self.bytes.len() >= OUTPUT_PART_LEN
            || self.problems.len() >= PROBLEMS_MAX
            || self.failure.is_some()
    }
}

/// A part in progress.
pub struct SearchPart<'a> {
    walker: Walker<'a>,
    /// Whether other parts search what is below the first entry.
    is_shallow: bool,
    open: Vec<Open>,
    leaf: Option<Leaf>,
    /// Matches so far.
    found_count: u64,
}

/// A directory that is being read.
#[derive(Default)]
struct Open {
    /// Its template, if its matches are to be remembered.
    template: Option<u64>,
    entry_count: u64,
    /// Entries that were read.
    read_count: u64,
    count: u64,
    positions: Option<Vec<u64>>,
}

/// A directory without sub-directories that is being read.
struct Leaf {
    dir: LazyDir,
    depth: usize,
    /// Its path, followed by the name of the current entry.
    path: Vec<u8>,
    dir_path_len: usize,
    next: u64,
    /// Positions of the entries to read; `None` for all. If there are positions, `next` counts in
    /// them.
    only: Option<Arc<[u64]>>,
}

impl Open {
    /// Adds `count` matches: the entry at `position` and everything below it.
    fn add(&mut self, position: u64, count: u64) {
        // Saturates: nested shared directories of a forged image reach any number.
        self.count = self.count.saturating_add(count);
        let Some(positions) = self.positions.as_mut().filter(|_| count > 0) else {
            return;
        };
        if positions.last() != Some(&position) {
            positions.push(position);
        }
        if positions.len() as u64 * POSITION_SHARE > self.entry_count {
            self.positions = None;
        }
    }

    fn add_to_last(&mut self, count: u64) {
        self.add(self.read_count.saturating_sub(1), count);
    }
}

impl<'a> SearchPart<'a> {
    /// A part with everything that `walker` visits; only its first entry if `is_shallow`.
    pub fn new(walker: Walker<'a>, is_shallow: bool) -> Self {
        Self {
            walker,
            is_shallow,
            open: Vec::new(),
            leaf: None,
            found_count: 0,
        }
    }

    /// Searches until the end, or until `batch` is full; returns whether the end was reached.
    pub fn advance<E>(
        &mut self,
        shared: &Shared<'a>,
        write: &impl Fn(Hit<'_>, &mut Vec<u8>) -> Result<(), E>,
        batch: &mut Batch<E>,
    ) -> bool {
        let before = self.found_count;
        let is_done = loop {
            if batch.is_full() {
                break false;
            }
            if let Some(mut leaf) = self.leaf.take() {
                match self.read_leaf(&mut leaf, shared, write, batch) {
                    Ok(true) => self.leave(shared),
                    Ok(false) => self.leaf = Some(leaf),
                    Err(error) => {
                        leaf.path.truncate(leaf.dir_path_len);
                        self.note(error.context(shown_path(&leaf.path)), batch);
                        self.leave(shared);
                    }
                }
                continue;
            }
            match self.walker.step() {
                Ok(None) => break true,
                Ok(Some(Step::Leave)) => self.leave(shared),
                Ok(Some(Step::Enter(visit))) => self.enter(&visit, shared, write, batch),
                Err(error) => self.note(error, batch),
            }
        };
        batch.found_count = self.found_count - before;
        if shared.options.is_counted {
            batch.count = batch.found_count;
        }
        is_done
    }

    fn note<E>(&mut self, error: Error, batch: &mut Batch<E>) {
        // An error may occur in one instance only, and must be reported for every instance.
        self.open.iter_mut().for_each(|open| open.template = None);
        batch.problems.push(error);
    }

    fn enter<E>(
        &mut self,
        visit: &Visit,
        shared: &Shared<'a>,
        write: &impl Fn(Hit<'_>, &mut Vec<u8>) -> Result<(), E>,
        batch: &mut Batch<E>,
    ) {
        let (inode, depth) = (&visit.inode, visit.depth);
        let path = self.walker.path();
        let is_wanted = shared.query.wants(path, &visit.name, inode, depth);
        if is_wanted && !shared.options.is_counted {
            batch.failure = write(Hit { path, inode, depth }, &mut batch.bytes).err();
        }
        self.found_count = self.found_count.saturating_add(is_wanted.into());
        if let Some(parent) = self.open.last_mut() {
            parent.read_count += 1;
            parent.add_to_last(is_wanted.into());
        }
        if inode.kind == FileKind::Directory {
            self.enter_directory(inode, depth, shared);
        }
    }

    /// Decides how the directory that was just entered is read.
    fn enter_directory(&mut self, inode: &Inode, depth: usize, shared: &Shared<'a>) {
        let is_too_deep = shared.options.depth_max.is_some_and(|max| depth >= max);
        if self.is_shallow || is_too_deep {
            return self.walker.skip_children();
        }
        let template = inode.template.map(|id| id.0);
        let known = shared.known.as_ref().zip(template);
        let Some(answer) = known.and_then(|(known, id)| known.get(id)) else {
            self.open.push(Open {
                template: known.and(template),
                entry_count: inode.size.0,
                positions: known.map(|_| Vec::new()),
                ..Open::default()
            });
            return self.read_below(inode, depth, None);
        };
        if let Some(parent) = self.open.last_mut() {
            parent.add_to_last(answer.count);
        }
        if shared.options.is_counted {
            self.found_count = self.found_count.saturating_add(answer.count);
        }
        if answer.count == 0 || shared.options.is_counted {
            return self.walker.skip_children();
        }
        self.open.push(Open::default());
        self.read_below(inode, depth, answer.positions);
    }

    /// Reads the directory that was just entered, or only its entries at the positions `only`.
    fn read_below(&mut self, inode: &Inode, depth: usize, only: Option<Arc<[u64]>>) {
        // A directory has two links of its own, and one for each sub-directory.
        if inode.nlink > 2 {
            if let Some(only) = only {
                self.walker.only(only);
            }
            return;
        }
        let dir = self.walker.take_directory();
        let mut path = self.walker.path().to_vec();
        let dir_path_len = path.len();
        if !path.is_empty() {
            path.push(b'/');
        }
        self.leaf = Some(Leaf {
            dir,
            depth: depth + 1,
            path,
            dir_path_len,
            next: 0,
            only,
        });
    }

    /// Reads `leaf` until its end, or until `batch` is full; returns whether the end was reached.
    fn read_leaf<E>(
        &mut self,
        leaf: &mut Leaf,
        shared: &Shared<'a>,
        write: &impl Fn(Hit<'_>, &mut Vec<u8>) -> Result<(), E>,
        batch: &mut Batch<E>,
    ) -> Result<bool> {
        while let Some(row) = leaf.next_row() {
            let name_at = match leaf.dir_path_len {
                0 => 0,
                len => len + 1,
            };
            let is_path_asked = !shared.query.paths.is_empty();
            let is_counted = shared.options.is_counted;
            let (found_count, open) = (&mut self.found_count, self.open.last_mut());
            let mut open = open.filter(|open| open.template.is_some());
            let (path, depth) = (&mut leaf.path, leaf.depth);
            let dir = leaf.dir.open(shared.image)?;
            let mut end = row.start;
            shared
                .image
                .read_opened(&dir, row.start, &mut |at, name, inode| {
                    if end == row.end || batch.is_full() {
                        return ControlFlow::Break(());
                    }
                    end = at + 1;
                    path.truncate(name_at);
                    if is_path_asked {
                        path.extend_from_slice(name);
                    }
                    if !shared.query.wants(path, name, inode, depth) {
                        return ControlFlow::Continue(());
                    }
                    *found_count = found_count.saturating_add(1);
                    if let Some(open) = open.as_deref_mut() {
                        open.add(at, 1);
                    }
                    if !is_counted {
                        path.truncate(name_at);
                        path.extend_from_slice(name);
                        let hit = Hit { path, inode, depth };
                        batch.failure = write(hit, &mut batch.bytes).err();
                    }
                    ControlFlow::Continue(())
                })?;
            let is_cut = end < row.end && batch.is_full();
            leaf.next = match (is_cut, &leaf.only) {
                (true, _) => leaf.next + (end - row.start),
                (false, Some(_)) => leaf.next + (row.end - row.start),
                (false, None) => u64::MAX,
            };
            if is_cut {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn leave(&mut self, shared: &Shared<'a>) {
        let Some(closed) = self.open.pop() else {
            return;
        };
        let (Some(template), Some(known)) = (closed.template, &shared.known) else {
            return;
        };
        if let Some(parent) = self.open.last_mut() {
            parent.add_to_last(closed.count);
        }
        known.insert(template, closed.count, closed.positions);
    }
}

impl Leaf {
    /// The next adjacent positions to read; `None` at the end.
    fn next_row(&self) -> Option<Range<u64>> {
        let Some(only) = &self.only else {
            return (self.next < u64::MAX).then_some(self.next..u64::MAX);
        };
        let remaining = only.get(self.next as usize..)?;
        let row = remaining.chunk_by(|a, b| a + 1 == *b).next()?;
        Some(*row.first()?..row.last()? + 1)
    }
}
