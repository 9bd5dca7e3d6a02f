//! A search through a tree: what is wanted, in the order of a walk, directories that are stored once searched once.
//!
//! Equal directories share a template. Where a query asks only what an entry itself says, every instance of a template holds the same
//! answers, so that the search remembers them: later instances without one are passed over, of others only the entries
//! that lead to one are read, and counting needs none. Whatever the query, what is found and its order are those of a plain walk.

use crate::path::Located;
use crate::{Query, Step, Visit, Walker};
use std::collections::HashMap;
use std::sync::Arc;
use weald_format::{FileKind, Result};
use weald_image::{Image, Inode};

/// Templates that are remembered, about 64 bytes each.
const KNOWN_COUNT_MAX: usize = 1 << 20;
/// Positions that are remembered of all of them, 8 bytes each.
const POSITIONS_MAX: usize = 1 << 21;
/// A directory whose entries lead to something in more than one of so many is read whole.
const POSITION_SHARE: u64 = 4;

/// What a search came to.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one at a time, as the steps of a walk
pub enum Found {
    /// An entry that is wanted; [`Search::path`] has its path.
    Entry(Visit),
    /// So many of them; only where they are to be counted.
    Count(u64),
}

/// How a search goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchOptions {
    /// Greatest depth below the start.
    pub depth_max: Option<usize>,
    /// Only the number of entries is asked for.
    pub is_counted: bool,
}

/// A search in progress.
pub struct Search<'a> {
    walker: Walker<'a>,
    query: &'a Query,
    options: SearchOptions,
    /// Whether instances of one template hold the same answers.
    is_shared: bool,
    known: HashMap<u64, Known>,
    position_count: usize,
    open: Vec<Open>,
}

/// What every instance of a template holds.
struct Known {
    /// Entries that are wanted, at any depth.
    count: u64,
    /// Its entries that are wanted or lead to one; `None` where they are too many to be told apart.
    positions: Option<Arc<[u64]>>,
}

/// A directory that is being read.
struct Open {
    /// Its template, where what it holds is to be remembered.
    template: Option<u64>,
    entry_count: u64,
    /// Entries read.
    read_count: u64,
    count: u64,
    positions: Option<Vec<u64>>,
}

impl Open {
    /// The entry read last is wanted `count` times, itself or in what lies below.
    fn add(&mut self, count: u64) {
        // Directories in directories, each shared: forged ones come to any number.
        self.count = self.count.saturating_add(count);
        let position = self.read_count.saturating_sub(1);
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
}

impl<'a> Search<'a> {
    /// A search for `query` from `start` on.
    pub fn new(image: &'a Image, start: Located, query: &'a Query, options: SearchOptions) -> Self {
        let is_deep = options.depth_max.is_some() || query.depth_min > 0;
        Self {
            walker: Walker::new(image, start),
            query,
            options,
            is_shared: !is_deep && query.asks_entries_alone(image.has_times_overlay()),
            known: HashMap::new(),
            position_count: 0,
            open: Vec::new(),
        }
    }

    /// The path of the entry found last.
    pub fn path(&self) -> &[u8] {
        self.walker.path()
    }

    /// What is found next, `None` at the end.
    ///
    /// # Errors
    /// What the reader reports about one directory, with its path; the search may go on behind it.
    pub fn find(&mut self) -> Result<Option<Found>> {
        loop {
            let found = match self.walker.step() {
                Ok(None) => return Ok(None),
                Ok(Some(Step::Leave)) => {
                    self.leave();
                    None
                }
                Ok(Some(Step::Enter(visit))) => self.enter(visit),
                Err(error) => {
                    // What cannot be read here may be read elsewhere, and is to be told at every place.
                    self.open.iter_mut().for_each(|open| open.template = None);
                    return Err(error);
                }
            };
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    fn enter(&mut self, visit: Visit) -> Option<Found> {
        let (inode, depth) = (&visit.inode, visit.depth);
        let is_wanted = self
            .query
            .wants(self.walker.path(), &visit.name, inode, depth);
        if let Some(parent) = self.open.last_mut() {
            parent.read_count += 1;
            parent.add(is_wanted.into());
        }
        let below = match inode.kind {
            FileKind::Directory => self.enter_directory(inode, depth),
            _ => 0,
        };
        match self.options.is_counted {
            true => Some(below.saturating_add(is_wanted.into()))
                .filter(|&count| count > 0)
                .map(Found::Count),
            false => is_wanted.then_some(Found::Entry(visit)),
        }
    }

    /// Decides how the directory that was just entered is read; how many entries were counted instead.
    fn enter_directory(&mut self, inode: &Inode, depth: usize) -> u64 {
        if self.options.depth_max.is_some_and(|max| depth >= max) {
            self.walker.skip_children();
            return 0;
        }
        let template = inode.template.map(|id| id.0).filter(|_| self.is_shared);
        let Some(known) = template.and_then(|id| self.known.get(&id)) else {
            self.open.push(Open {
                template,
                entry_count: inode.size.0,
                read_count: 0,
                count: 0,
                positions: Some(Vec::new()),
            });
            return 0;
        };
        if let Some(parent) = self.open.last_mut() {
            parent.add(known.count);
        }
        if known.count == 0 || self.options.is_counted {
            self.walker.skip_children();
            return known.count;
        }
        if let Some(positions) = &known.positions {
            self.walker.only(positions.clone());
        }
        self.open.push(Open {
            template: None,
            entry_count: inode.size.0,
            read_count: 0,
            count: 0,
            positions: None,
        });
        0
    }

    fn leave(&mut self) {
        let Some(left) = self.open.pop() else {
            return;
        };
        let Some(template) = left.template else {
            return;
        };
        if let Some(parent) = self.open.last_mut() {
            parent.add(left.count);
        }
        if self.known.len() >= KNOWN_COUNT_MAX {
            return;
        }
        let room = POSITIONS_MAX - self.position_count;
        let positions = left.positions.filter(|positions| positions.len() <= room);
        self.position_count += positions.as_ref().map_or(0, Vec::len);
        let known = Known {
            count: left.count,
            positions: positions.map(Arc::from),
        };
        self.known.insert(template, known);
    }
}
