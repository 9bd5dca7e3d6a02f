//! A depth-first walk over an image in bounded memory, entries in byte order of their names.
//!
//! Invariant: memory is O(depth) small frames and at most [`FULL_FRAME_COUNT`] batches of
//! [`BATCH_COUNT`] entries, whatever the size of a directory. A tree can still be practically
//! endless (a few kilobytes of image can name 10^9 files); the caller decides when to stop.

use crate::path::Located;
use crate::shown_path;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::{FileKind, InodeNo, Result};
use weald_image::{Image, Inode, OpenedDirectory};

/// Entries that are read from a directory at a time.
const BATCH_COUNT: usize = 128;

/// Innermost directories that keep their batch while the walk is below them; outer ones read theirs
/// again.
const FULL_FRAME_COUNT: usize = 64;

/// One step of a walk.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // a box would cost an allocation for each entry
pub enum Step {
    /// An entry. After a directory, its entries follow and then a `Leave`, unless
    /// [`Walker::skip_children`] is called.
    Enter(Visit),
    /// The end of the innermost directory that was entered and not yet left.
    Leave,
}

/// One entry of a walk; [`Walker::path`] has its path.
#[derive(Debug, Clone)]
pub struct Visit {
    /// Its name; empty for the root of the image.
    pub name: Vec<u8>,
    /// Its inode.
    pub inode: Inode,
    /// 0 for the start of the walk, 1 for its entries, and so on.
    pub depth: usize,
    /// Whether it is the last entry of its directory.
    pub is_last: bool,
}

/// A directory of a walk, opened on its first read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LazyDir {
    dir: InodeNo,
    parent: Option<OpenedDirectory>,
    opened: Option<OpenedDirectory>,
}

impl LazyDir {
    pub(crate) fn new(dir: InodeNo, parent: Option<OpenedDirectory>) -> Self {
        Self {
            dir,
            parent,
            opened: None,
        }
    }

    /// The directory, if it was read already.
    pub(crate) fn opened(&self) -> Option<OpenedDirectory> {
        self.opened
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
    dir: LazyDir,
    /// Index of the entry after those in `batch`; counts in `only` if there is one.
    next_index: u64,
    /// End of the indices to visit; larger than any index for the whole directory.
    end: u64,
    /// Indices of the entries to visit, ascending; `None` for all up to `end`.
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
    /// A walk over `start` and, if it is a directory, everything below it. The walk does not follow
    /// symlinks.
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

    /// The path from the root of the image: of the last entry that was entered, or of the directory
    /// that was left after it.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Skips everything below the directory that was just entered, and its `Leave`.
    ///
    /// # Panics
    /// If the last step did not enter a directory.
    pub fn skip_children(&mut self) {
        self.take_directory();
    }

    /// The same; returns the directory, which the caller reads.
    pub(crate) fn take_directory(&mut self) -> LazyDir {
        let dir = self.new_frame().dir;
        self.frames.pop();
        dir
    }

    /// Restricts the directory that was just entered to the entries at the ascending `positions`.
    ///
    /// # Panics
    /// If the last step did not enter a directory.
    pub fn only(&mut self, positions: Arc<[u64]>) {
        self.new_frame().only = Some(positions);
    }

    /// The frame of the directory that was just entered.
    fn new_frame(&mut self) -> &mut Frame {
        let path_len = self.path.len();
        let last = self.frames.last_mut();
        last.filter(|frame| frame.path_len == path_len && frame.is_new())
            .expect("a directory was entered last")
    }

    /// The next step, `None` at the end.
    ///
    /// # Errors
    /// Errors of the reader about one directory, with its path. If the walk continues, it leaves
    /// this directory.
    ///
    /// # Cost
    /// One read of [`BATCH_COUNT`] entries for that many steps.
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
            frame.drop_batch();
        }
        let path_len = self.path.len();
        let parent = self.frames.last().and_then(|frame| frame.dir.opened);
        self.frames.push(Frame {
            dir: LazyDir::new(dir, parent),
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
        let dir = self.dir.open(image)?;
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

    /// The same for the entries at `only`; adjacent ones are read together.
    fn fill_only(&mut self, image: &Image, only: &[u64]) -> Result<()> {
        let remaining = &only[(self.next_index as usize).min(only.len())..];
        let wanted = &remaining[..remaining.len().min(BATCH_COUNT)];
        let dir = self.dir.open(image)?;
        for row in wanted.chunk_by(|a, b| a + 1 == *b) {
            let mut missing_count = row.len();
            image.read_opened(&dir, row[0], &mut |_, name, inode| {
                self.batch.push_back((name.to_vec(), inode.clone()));
                missing_count -= 1;
                match missing_count {
                    0 => ControlFlow::Break(()),
                    _ => ControlFlow::Continue(()),
                }
            })?;
        }
        self.next_index += wanted.len() as u64;
        self.is_at_end = wanted.len() == remaining.len();
        Ok(())
    }

    fn is_new(&self) -> bool {
        self.next_index == 0 && self.batch.is_empty() && !self.is_at_end
    }

    fn drop_batch(&mut self) {
        if !self.batch.is_empty() {
            self.next_index -= self.batch.len() as u64;
            self.is_at_end = false;
            self.batch = VecDeque::new();
        }
    }
}
