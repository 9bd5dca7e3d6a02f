//! A walk over the selected entries and the directories above them, each directory before its
//! entries.
//!
//! A directory that is not selected appears only if an entry below it is: `**/x` yields no empty
//! directories.

use std::collections::VecDeque;
use weald_format::{FileKind, Result};
use weald_image::Image;
use weald_vfs::{Follow, Scope, Selection, Step, Visit, Walker, resolve};

/// One step of a [`SelectedWalk`].
#[allow(clippy::large_enum_variant)] // one at a time; boxing would cost an allocation an entry
pub(crate) enum Event {
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
}

/// A walk in progress.
pub(crate) struct SelectedWalk<'a> {
    walker: Walker<'a>,
    selection: &'a Selection,
    levels: Vec<Level>,
    /// Entries to return before the next step of the walker, with the lengths of their paths.
    ready: VecDeque<(usize, Visit)>,
    /// Length of the path of the entry returned last.
    path_len: usize,
    /// Levels from this one on (0-based) lie in a directory that the caller skipped.
    skipped_from: Option<usize>,
    hits: Vec<bool>,
}

impl<'a> SelectedWalk<'a> {
    /// A walk from the root of `image`.
    pub(crate) fn new(image: &'a Image, selection: &'a Selection) -> Result<Self> {
        Ok(Self {
            walker: Walker::new(image, resolve(image, b"", Follow::No)?),
            selection,
            levels: Vec::new(),
            ready: VecDeque::new(),
            path_len: 0,
            skipped_from: None,
            hits: vec![false; selection.pattern_count()],
        })
    }

    /// The path, from the root of the image, of the entry returned last; after an error, of the
    /// directory that cannot be read.
    pub(crate) fn path(&self) -> &[u8] {
        self.walker.path().get(..self.path_len).unwrap_or_default()
    }

    /// Indices of the patterns without a match so far.
    pub(crate) fn unmatched(&self) -> Vec<usize> {
        let misses = self.hits.iter().enumerate().filter(|(_, is_hit)| !**is_hit);
        misses.map(|(index, _)| index).collect()
    }

    /// Skips the directory returned last: the walk returns neither its entries nor its `Leave`.
    pub(crate) fn skip_dir(&mut self) {
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
    pub(crate) fn next(&mut self) -> Result<Option<Event>> {
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
        let hits = &mut self.hits;
        let mut hit = |index: usize| {
            if let Some(is_hit) = hits.get_mut(index) {
                *is_hit = true;
            }
        };
        let scope = match self.levels.last() {
            Some(level) => self.selection.child(&level.scope, &visit.name, &mut hit),
            None => self.selection.root(&mut hit),
        };
        let is_wanted = scope.is_wanted();
        let is_outside = self.skipped_from.is_some() || !scope.may_hold_wanted();
        if is_dir && is_outside {
            self.walker.skip_children();
        }
        if is_outside || !(is_dir || is_wanted) {
            return;
        }
        let path_len = self.path_len;
        if is_wanted {
            self.queue_pending();
        }
        if is_dir {
            let pending = (!is_wanted).then(|| visit.clone());
            self.levels.push(Level {
                scope,
                pending,
                path_len,
            });
        }
        if is_wanted {
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
        level.pending.is_none() && !is_skipped
    }
}
