//! A depth-first walk over an image, entries in byte order of their names, in memory that the tree
//! cannot blow up.
//!
//! Invariant: memory is O(depth) small frames and at most [`FULL_FRAME_COUNT`] batches of
//! [`BATCH_COUNT`] entries, whatever the size of a directory. A tree can still be endless for all
//! practical purposes (a few kilobytes of image can name 10^9 files); stopping is up to the caller.

use crate::path::Located;
use crate::shown_path;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::{FileKind, InodeNo, Result};
use weald_image::{Image, Inode, OpenedDirectory};

/// Entries read from a directory at once.
const BATCH_COUNT: usize = 128;

/// Innermost directories that keep their batch while the walk is below them; others read it again.
const FULL_FRAME_COUNT: usize = 64;

/// One step of a walk.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one at a time; boxing would cost an allocation an entry
pub enum Step {
    /// An entry; where it is a directory, its entries follow and then a `Leave`, unless
    /// [`Walker::skip_children`] is called.
    Enter(Visit),
    /// All entries of the directory entered last and not yet left were visited.
    Leave,
}

/// One entry met by a walk; [`Walker::path`] has its path.
#[derive(Debug, Clone)]
pub struct Visit {
    /// Its name; empty for the root of the image.
    pub name: Vec<u8>,
    /// What it is.
    pub inode: Inode,
    /// 0 for where the walk started, 1 for its entries, and so on.
    pub depth: usize,
    /// Whether it is the last entry of its directory.
    pub is_last: bool,
}

/// A directory that a walk has come to, opened once it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    dir: InodeNo,
    parent: Option<OpenedDirectory>,
    opened: Option<OpenedDirectory>,
}

impl Place {
    pub(crate) fn new(dir: InodeNo, parent: Option<OpenedDirectory>) -> Self {
        Self {
            dir,
            parent,
            opened: None,
        }
    }

    pub(crate) fn open(&mut self, image: &Image) -> Result<OpenedDirectory> {
        let opened = match (self.opened, &self.parent) {
            (Some(opened), _) => opened,
            (None, Some(parent)) => image.open_directory_in(parent, self.dir)?,
            (None, None) => image.open_directory(self.dir)?,
        };
        self.opened = Some(opened);
        Ok(opened)
    }
}

struct Frame {
    place: Place,
    /// Index of the entry after those in `batch`, among those that are to be visited.
    next_index: u64,
    /// Index behind the last entry that is to be visited, where that is not the last of the
    /// directory.
    end: u64,
    /// Positions of the entries that are to be visited, in order; `None` for all up to `end`.
    only: Option<Arc<[u64]>>,
    batch: VecDeque<(Vec<u8>, Inode)>,
    is_at_end: bool,
    /// Length of the walk's path up to and including this directory.
    path_len: usize,
}

/// A walk in progress.
pub struct Walker<'a> {
    image: &'a Image,
    frames: Vec<Frame>,
    path: Vec<u8>,
    start: Option<Located>,
    /// Depth of the directory of the first frame.
    depth: usize,
}

impl<'a> Walker<'a> {
    /// A walk over `start` and, if it is a directory, everything below it. Symlinks are not
    /// followed.
    pub fn new(image: &'a Image, start: Located) -> Self {
        Self {
            image,
            frames: Vec::new(),
            path: start.path.clone(),
            start: Some(start),
            depth: 0,
        }
    }

    /// A walk over the entries `range` of the directory `dir` at `path` and everything below them;
    /// `depth` is that of the directory.
    pub(crate) fn within(
        image: &'a Image,
        dir: InodeNo,
        path: Vec<u8>,
        depth: usize,
        range: Range<u64>,
    ) -> Self {
        let mut walker = Self {
            image,
            frames: Vec::new(),
            path,
            start: None,
            depth,
        };
        walker.push_frame(dir, range);
        walker
    }

    /// The path, from the root of the image, of the entry entered last, or of the directory left
    /// last.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Leaves out what is below the directory just entered; its `Leave` is left out too.
    ///
    /// # Panics
    /// Where the last step did not enter a directory.
    pub fn skip_children(&mut self) {
        self.take_directory();
    }

    /// The same; returns the directory, for the caller to read.
    pub(crate) fn take_directory(&mut self) -> Place {
        let place = self.new_frame().place;
        self.frames.pop();
        place
    }

    /// Visits only the entries at `positions`, which ascend, of the directory just entered.
    ///
    /// # Panics
    /// Where the last step did not enter a directory.
    pub fn only(&mut self, positions: Arc<[u64]>) {
        self.new_frame().only = Some(positions);
    }

    /// The frame of the directory just entered.
    fn new_frame(&mut self) -> &mut Frame {
        let path_len = self.path.len();
        let last = self.frames.last_mut();
        last.filter(|frame| frame.path_len == path_len && frame.is_new())
            .expect("a directory was entered last")
    }

    /// The next step, `None` at the end.
    ///
    /// # Errors
    /// What the reader reports about one directory, with its path; the walk may go on, and then
    /// leaves this directory.
    ///
    /// # Cost
    /// One read of [`BATCH_COUNT`] entries now and then.
    pub fn step(&mut self) -> Result<Option<Step>> {
        if let Some(start) = self.start.take() {
            let name = start
                .path
                .rsplit(|&b| b == b'/')
                .next()
                .unwrap_or_default()
                .to_vec();
            return Ok(Some(self.enter(name, start.inode, true)));
        }
        let Some(frame) = self.frames.last_mut() else {
            return Ok(None);
        };
        self.path.truncate(frame.path_len);
        if frame.batch.is_empty() && !frame.is_at_end {
            let filled = frame.fill(self.image);
            filled.map_err(|error| error.context(shown_path(&self.path)))?;
        }
        let Some((name, inode)) = frame.batch.pop_front() else {
            self.frames.pop();
            return Ok(Some(Step::Leave));
        };
        let is_last = frame.batch.is_empty() && frame.is_at_end;
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&name);
        Ok(Some(self.enter(name, inode, is_last)))
    }

    fn enter(&mut self, name: Vec<u8>, inode: Inode, is_last: bool) -> Step {
        let depth = self.depth + self.frames.len();
        if inode.kind == FileKind::Directory {
            self.push_frame(inode.ino, 0..u64::MAX);
        }
        Step::Enter(Visit {
            name,
            inode,
            depth,
            is_last,
        })
    }

    fn push_frame(&mut self, dir: InodeNo, range: Range<u64>) {
        if let Some(index) = self.frames.len().checked_sub(FULL_FRAME_COUNT)
            && let Some(frame) = self.frames.get_mut(index)
        {
            frame.forget_batch();
        }
        let path_len = self.path.len();
        let parent = self.frames.last().and_then(|frame| frame.place.opened);
        self.frames.push(Frame {
            place: Place::new(dir, parent),
            next_index: range.start,
            end: range.end,
            only: None,
            batch: VecDeque::new(),
            is_at_end: false,
            path_len,
        });
    }
}

impl Frame {
    /// Reads the next batch; on failure the directory counts as read to its end.
    fn fill(&mut self, image: &Image) -> Result<()> {
        self.is_at_end = true;
        if let Some(only) = self.only.clone() {
            return self.fill_only(image, &only);
        }
        let dir = self.place.open(image)?;
        let (batch, end) = (&mut self.batch, self.end);
        let mut is_cut = false;
        image.read_opened(&dir, self.next_index, &mut |index, name, inode| {
            if index >= end {
                return ControlFlow::Break(());
            }
            if batch.len() == BATCH_COUNT {
                is_cut = true;
                return ControlFlow::Break(());
            }
            batch.push_back((name.to_vec(), inode.clone()));
            ControlFlow::Continue(())
        })?;
        self.next_index += self.batch.len() as u64;
        self.is_at_end = !is_cut;
        Ok(())
    }

    /// The same for the entries at `only` alone: those that stand in a row are read together.
    fn fill_only(&mut self, image: &Image, only: &[u64]) -> Result<()> {
        let rest = &only[(self.next_index as usize).min(only.len())..];
        let wanted = &rest[..rest.len().min(BATCH_COUNT)];
        let dir = self.place.open(image)?;
        for row in wanted.chunk_by(|a, b| a + 1 == *b) {
            let mut left = row.len();
            image.read_opened(&dir, row[0], &mut |_, name, inode| {
                self.batch.push_back((name.to_vec(), inode.clone()));
                left -= 1;
                match left {
                    0 => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            })?;
        }
        self.next_index += wanted.len() as u64;
        self.is_at_end = wanted.len() == rest.len();
        Ok(())
    }

    fn is_new(&self) -> bool {
        self.next_index == 0 && self.batch.is_empty() && !self.is_at_end
    }

    fn forget_batch(&mut self) {
        if !self.batch.is_empty() {
            self.next_index -= self.batch.len() as u64;
            self.is_at_end = false;
            self.batch = VecDeque::new();
        }
    }
}
