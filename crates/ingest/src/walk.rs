//! A listing as the source of a build. A listing has only names: all entries have one time, and no
//! inode has two names. So a directory needs no information about its entries in advance. The paths
//! are sorted depth first, and the merged runs go directly into the tree.

use crate::listing::ListingReader;
use crate::member::{DIRECTORY_DEFAULT, FILE_DEFAULT, Member, MemberKind};
use crate::members::Members;
use crate::path::{self, SEPARATOR};
use crate::sort::{MERGE_LEN, Sorted, Sorter};
use crate::source::{DECODER_SHARE, SORT_SHARE};
use std::path::{Path, PathBuf};
use weald_builder::stream::{
    ContentStore, LinkInfo, StreamEntry, StreamRoot, StreamSize, TreeSink, TreeSource, WalkSink,
    spool_dir,
};
use weald_builder::{BuildOptions, Observer, Problem};
use weald_format::{Attributes, Error, FileKind, Result, Timestamp, XattrSet};

/// Paths between two checks for an interrupt.
const CANCEL_CHECK_COUNT: u64 = 1 << 12;

/// Values of paths in the sorter.
const NAME: [u8; 1] = [0];
const DIRECTORY: [u8; 1] = [1];

/// A listing that becomes an image.
pub struct WalkSource<'a> {
    listing: ListingReader,
    dir: PathBuf,
    options: &'a BuildOptions,
    observer: &'a dyn Observer,
    sorted: Option<Sorted>,
    /// Paths kept.
    count: u64,
    problem_count: u64,
}

impl<'a> WalkSource<'a> {
    /// The paths of `listing`, for an image at `target`.
    pub fn new(
        listing: ListingReader,
        target: &Path,
        options: &'a BuildOptions,
        observer: &'a dyn Observer,
    ) -> Self {
        Self {
            listing,
            dir: spool_dir(target),
            options,
            observer,
            sorted: None,
            count: 0,
            problem_count: 0,
        }
    }

    /// Problems reported to the observer.
    pub fn problem_count(&self) -> u64 {
        self.problem_count
    }

    fn sort_len(&self) -> u64 {
        self.options.source_len() / SORT_SHARE * 2
    }
}

impl TreeSource for WalkSource<'_> {
    fn size(&self) -> StreamSize {
        let memory_len = match self.sorted {
            None => self.sort_len() + self.options.source_len() / DECODER_SHARE,
            Some(_) => MERGE_LEN,
        };
        StreamSize {
            // Directories that the listing does not name are not counted; an estimate is enough.
            entry_count: self.count,
            data_len: Some(0),
            memory_len,
            has_one_mtime: true,
            has_no_contents: true,
            ..StreamSize::default()
        }
    }

    fn root(&self) -> Result<StreamRoot> {
        Ok(StreamRoot {
            attributes: DIRECTORY_DEFAULT,
            mtime: Timestamp::default(),
            xattrs: XattrSet::new(),
        })
    }

    /// Reads and sorts all paths; a listing has no contents.
    fn contents(&mut self, _store: &mut dyn ContentStore) -> Result<()> {
        let mut sorter = Sorter::new(&self.dir, self.sort_len())?;
        let filter = Some(&self.options.filter).filter(|filter| !filter.is_empty());
        let mut member = Member::default();
        let mut path_count = 0_u64;
        let (observer, problem_count) = (self.observer, &mut self.problem_count);
        let mut tell = |path: &[u8], what| {
            *problem_count += 1;
            let path = path.to_vec();
            observer.problem(&Problem { path, what });
        };
        while self.listing.next(&mut member, &mut tell)? {
            path_count += 1;
            if path_count.is_multiple_of(CANCEL_CHECK_COUNT) && self.observer.is_cancelled() {
                return Err(Error::invalid("interrupted"));
            }
            let is_dir = member.kind == MemberKind::Entry(FileKind::Directory);
            let key = &mut member.path;
            path::make_walk_key(key)?;
            let is_excluded = |filter| {
                let path = path::path_of_walk(key);
                path::is_excluded(filter, &path, is_dir)
            };
            // Every tree has a root.
            if key.is_empty() || filter.is_some_and(is_excluded) {
                continue;
            }
            self.count += 1;
            sorter.push(key, if is_dir { &DIRECTORY } else { &NAME })?;
        }
        self.sorted = Some(sorter.finish()?);
        Ok(())
    }

    fn tree(&mut self, _sink: &mut dyn TreeSink) -> Result<()> {
        Err(Error::invalid("a listing comes as a walk"))
    }

    fn walk(&mut self, sink: &mut dyn WalkSink) -> Result<bool> {
        let Some(sorted) = &mut self.sorted else {
            return Err(Error::invalid("the tree is asked for before the contents"));
        };
        let mut walker = Walker {
            sink,
            path: Vec::new(),
            value: DIRECTORY,
            ends: Vec::new(),
            name: Vec::new(),
        };
        while let Some(next) = sorted.next()? {
            let value = match next.value {
                [value] => [*value],
                _ => return Err(crate::member::damaged(Error::invalid("no kind of path"))),
            };
            walker.take(next.key, next.common, value)?;
        }
        walker.finish()?;
        Ok(true)
    }
}

/// Makes a walk of the sorted paths.
struct Walker<'s> {
    sink: &'s mut dyn WalkSink,
    /// The last path; empty at the beginning. It is passed on when the next path shows whether it
    /// has entries.
    path: Vec<u8>,
    value: [u8; 1],
    /// Ends of the open directories in that path, without the root.
    ends: Vec<usize>,
    name: Vec<u8>,
}

impl Walker<'_> {
    /// Adds the next path, which shares `common` bytes with the last.
    fn take(&mut self, key: &[u8], common: usize, value: [u8; 1]) -> Result<()> {
        if common == key.len() && common == self.path.len() {
            // The last member of a path counts.
            self.value = value;
            return Ok(());
        }
        if !self.path.is_empty() {
            if common == self.path.len() && key.get(common) == Some(&SEPARATOR) {
                // Not a longer name: no byte of a name is as low as the separator.
                self.enter(common)
            } else {
                self.end_path()?
            }
        }
        // A directory is above the path if the separator follows its end in the path.
        while let Some(&end) = self.ends.last()
            && (end > common || key.get(end) != Some(&SEPARATOR))
        {
            self.leave()?;
        }
        self.path.truncate(common);
        self.path
            .extend_from_slice(key.get(common..).unwrap_or_default());
        self.value = value;
        // Directories that the listing does not name.
        let from = self.ends.last().map_or(0, |end| end + 1);
        let suffix = key.get(from..).unwrap_or_default();
        for (at, _) in suffix.iter().enumerate().filter(|(_, b)| **b == SEPARATOR) {
            self.enter(from + at);
        }
        Ok(())
    }

    fn enter(&mut self, end: usize) {
        self.ends.push(end);
        self.sink.enter();
    }

    /// Ends the last path, which has no entries.
    fn end_path(&mut self) -> Result<()> {
        if self.value == DIRECTORY {
            self.enter(self.path.len());
            return self.leave();
        }
        let start = self.ends.last().map_or(0, |end| end + 1);
        self.put_name(start, self.path.len());
        let entry = entry(&self.name, FileKind::Regular, FILE_DEFAULT);
        self.sink.entry(&entry)
    }

    fn put_name(&mut self, start: usize, end: usize) {
        self.name.clear();
        let name = self.path.get(start..end).unwrap_or_default();
        path::put_name(name, &mut self.name);
    }

    fn leave(&mut self) -> Result<()> {
        let Some(end) = self.ends.pop() else {
            return Ok(());
        };
        let start = self.ends.last().map_or(0, |end| end + 1);
        self.put_name(start, end);
        let entry = entry(&self.name, FileKind::Directory, DIRECTORY_DEFAULT);
        self.sink.leave(&entry)
    }

    fn finish(mut self) -> Result<()> {
        if !self.path.is_empty() {
            self.end_path()?;
        }
        while !self.ends.is_empty() {
            self.leave()?;
        }
        Ok(())
    }
}

fn entry(name: &[u8], kind: FileKind, attributes: Attributes) -> StreamEntry<'_> {
    StreamEntry {
        name,
        kind,
        attributes,
        mtime: Timestamp::default(),
        xattrs: None,
        content: None,
        target: &[],
        link: LinkInfo::Single,
    }
}
