//! A walk over the chosen entries and the directories above them, each directory before its
//! entries.
//!
//! A directory that is not selected appears only if an entry below it is: `**/x` yields no empty
//! directories.

use crate::path::Located;
use crate::selection::Reason;
use crate::{Choice, Scope, Step, Visit, Walker};
use std::collections::{HashSet, VecDeque};
use weald_format::{FileKind, Result};
use weald_image::Image;

/// One step of a [`SelectedWalk`].
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one at a time; boxing would cost an allocation an entry
pub enum Event {
    /// An entry to make; [`SelectedWalk::path`] has its path.
    Enter(Visit),
    /// The innermost open directory is complete.
    Leave,
}

/// An open directory of the walk.
struct Level {
    scope: Scope,
    /// Its entry, until the walk has returned it.
    pending: Option<Visit>,
    path_len: usize,
    /// Whether the walk passes it over, because its path has too few names.
    is_dropped: bool,
}

/// What selected nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Indices of patterns.
    pub patterns: Vec<usize>,
    /// Numbers of listed paths, ascending.
    pub listed: Vec<usize>,
}

/// A walk in progress.
pub struct SelectedWalk<'a> {
    walker: Walker<'a>,
    choice: &'a Choice,
    levels: Vec<Level>,
    /// Entries to return before the next step of the walker, with the lengths of their paths.
    ready: VecDeque<(usize, Visit)>,
    /// Length of the path of the entry returned last.
    path_len: usize,
    /// Levels from this one on (0-based) lie in a directory that the caller skipped.
    skipped_from: Option<usize>,
    hits: Vec<bool>,
    listed: HashSet<usize>,
}

impl<'a> SelectedWalk<'a> {
    /// A walk from `start`. Patterns, lists and depths count from the start, rules from where its
    /// path does.
    pub fn new(image: &'a Image, start: Located, choice: &'a Choice) -> Self {
        Self {
            walker: Walker::new(image, start),
            choice,
            levels: Vec::new(),
            ready: VecDeque::new(),
            path_len: 0,
            skipped_from: None,
            hits: vec![false; choice.selection.pattern_count()],
            listed: HashSet::new(),
        }
    }

    /// The path, from the root of the image, of the entry returned last; after an error, of the
    /// directory that cannot be read.
    pub fn path(&self) -> &[u8] {
        self.walker.path().get(..self.path_len).unwrap_or_default()
    }

    /// The same without its dropped names.
    pub fn shortened_path(&self) -> &[u8] {
        let mut path = self.path();
        for _ in 0..self.choice.dropped_names {
            let slash = path.iter().position(|&byte| byte == b'/');
            path = slash.map_or(&[], |at| path.get(at + 1..).unwrap_or_default());
        }
        path
    }

    /// The patterns and listed paths without a match so far.
    pub fn unmatched(&self) -> Unmatched {
        let misses = self.hits.iter().enumerate().filter(|(_, is_hit)| !**is_hit);
        let listed = self.choice.selection.list_nos();
        let mut listed: Vec<usize> = listed.filter(|no| !self.listed.contains(no)).collect();
        listed.sort_unstable();
        Unmatched {
            patterns: misses.map(|(index, _)| index).collect(),
            listed,
        }
    }

    /// Skips the directory returned last: the walk returns neither its entries nor its `Leave`.
    pub fn skip_dir(&mut self) {
        // Each returned directory has a level; the last one is that with its path.
        let index = self
            .levels
            .iter()
            .rposition(|level| level.path_len == self.path_len);
        self.ready.clear();
        self.skipped_from = index;
    }

    /// The next entry to make or directory to finish; `None` at the end.
    ///
    /// # Errors
    /// Those of the reader for one directory. The walk may continue.
    pub fn step(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some((path_len, visit)) = self.ready.pop_front() {
                self.path_len = path_len;
                return Ok(Some(Event::Enter(visit)));
            }
            let step = self.walker.step();
            self.path_len = self.walker.path().len();
            match step? {
                None => return Ok(None),
                Some(Step::Enter(visit)) => self.enter(visit),
                Some(Step::Leave) => {
                    if self.leave() {
                        return Ok(Some(Event::Leave));
                    }
                }
            }
        }
    }

    fn enter(&mut self, visit: Visit) {
        let is_dir = visit.inode.kind == FileKind::Directory;
        let (hits, listed) = (&mut self.hits, &mut self.listed);
        let mut hit = |reason: Reason| match reason {
            Reason::Pattern(index) => {
                if let Some(is_hit) = hits.get_mut(index) {
                    *is_hit = true;
                }
            }
            Reason::Listed(path_no) => drop(listed.insert(path_no)),
        };
        let scope = match self.levels.last() {
            Some(level) => {
                let selection = &self.choice.selection;
                selection.child(&level.scope, &visit.name, &mut hit)
            }
            None => self.choice.selection.root(&mut hit),
        };
        let path = self.walker.path();
        let is_kept = self.choice.keeps(path, visit.depth, is_dir);
        let is_wanted = scope.is_wanted();
        let is_outside = self.skipped_from.is_some() || !is_kept || !scope.may_hold_wanted();
        if is_dir && is_outside {
            self.walker.skip_children();
        }
        if is_outside || !(is_dir || is_wanted) {
            return;
        }
        let path_len = self.path_len;
        let is_dropped = (1..=self.choice.dropped_names).contains(&visit.depth);
        if is_wanted && !is_dropped {
            self.queue_pending();
        }
        if is_dir {
            let pending = (!is_wanted && !is_dropped).then(|| visit.clone());
            self.levels.push(Level {
                scope,
                pending,
                path_len,
                is_dropped,
            });
        }
        if is_wanted && !is_dropped {
            self.ready.push_back((path_len, visit));
        }
    }

    fn queue_pending(&mut self) {
        for level in &mut self.levels {
            if let Some(visit) = level.pending.take() {
                self.ready.push_back((level.path_len, visit));
            }
        }
    }

    /// Leaves a directory. Returns whether the walk has returned it to the caller.
    fn leave(&mut self) -> bool {
        let Some(level) = self.levels.pop() else {
            return false;
        };
        let is_skipped = self
            .skipped_from
            .is_some_and(|from| self.levels.len() >= from);
        if self.skipped_from == Some(self.levels.len()) {
            self.skipped_from = None;
        }
        level.pending.is_none() && !level.is_dropped && !is_skipped
    }
}
