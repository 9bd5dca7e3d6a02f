//! A stream as the source of a build. The builder first asks for contents: the stream is read and
//! its tree assembled. Then the tree is read back directory by directory.

use crate::assemble::{Tree, assemble};
use crate::blocks::BlockReader;
use crate::gather::{GatherOptions, gather};
use crate::member::{self, Record, StoredEntry, WEAK};
use crate::members::Members;
use std::path::{Path, PathBuf};
use weald_builder::stream::{
    ContentStore, LinkInfo, StreamEntry, StreamRoot, StreamSize, TreeSink, TreeSource,
    build_stream, spool_dir,
};
use weald_builder::{BuildOptions, Observer, Report};
use weald_format::pages::Link;
use weald_format::{Error, Result};

/// Shares of the memory, as divisors: sorter, known directories, tables of contents.
pub const SORT_SHARE: u64 = 10;
pub const DIRS_SHARE: u64 = 64;
pub const CONTENTS_SHARE: u64 = 10;
/// Share of the table of excluded members.
const EXCLUDED_SHARE: u64 = 64;
/// Share of the decoder of a compressed stream.
pub const DECODER_SHARE: u64 = 16;

/// A stream that becomes an image.
pub struct IngestSource<'a> {
    members: Box<dyn Members>,
    dir: PathBuf,
    options: &'a BuildOptions,
    observer: &'a dyn Observer,
    tree: Option<Tree>,
    has_one_mtime: bool,
    problem_count: u64,
}

/// Builds the image `target` of the tree of `members`.
///
/// # Errors
/// As [`crate::build_from_stream`].
pub fn build_members(
    members: Box<dyn Members>,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    observer: &dyn Observer,
) -> Result<Report> {
    let mut source = IngestSource::new(members, target, options, observer);
    let report = build_stream(&mut source, target, overwrite, options, observer)?;
    Ok(Report {
        problem_count: source.problem_count,
        ..report
    })
}

impl<'a> IngestSource<'a> {
    /// The stream of `members`, for an image at `target`.
    pub fn new(
        members: Box<dyn Members>,
        target: &Path,
        options: &'a BuildOptions,
        observer: &'a dyn Observer,
    ) -> Self {
        Self {
            members,
            dir: spool_dir(target),
            options,
            observer,
            tree: None,
            has_one_mtime: false,
            problem_count: 0,
        }
    }

    /// Problems reported to the observer.
    pub fn problem_count(&self) -> u64 {
        self.problem_count
    }

    fn share(&self, share: u64) -> u64 {
        self.options.source_len() / share
    }

    /// Bytes of memory for the sorter.
    fn sort_len(&self) -> u64 {
        if self.members.has_contents() {
            self.share(SORT_SHARE)
        } else {
            self.share(SORT_SHARE) + self.share(CONTENTS_SHARE)
        }
    }

    /// Bytes for the table of excluded members.
    fn excluded_len(&self) -> u64 {
        if self.options.filter.is_empty() {
            0
        } else {
            self.share(EXCLUDED_SHARE)
        }
    }

    fn contents_len(&self) -> u64 {
        if self.members.has_contents() {
            self.share(CONTENTS_SHARE)
        } else {
            0
        }
    }
}

impl TreeSource for IngestSource<'_> {
    fn size(&self) -> StreamSize {
        match &self.tree {
            None => StreamSize {
                memory_len: self.sort_len()
                    + self.contents_len()
                    + self.share(DIRS_SHARE)
                    + self.excluded_len()
                    + self.share(DECODER_SHARE),
                has_no_contents: !self.members.has_contents(),
                ..StreamSize::default()
            },
            Some(tree) => StreamSize {
                entry_count: tree.entry_count,
                directory_count_max: tree.directory_count_max,
                depth: tree.depth,
                memory_len: tree.links.memory_len(),
                has_one_mtime: self.has_one_mtime,
                has_no_contents: !self.members.has_contents(),
                ..StreamSize::default()
            },
        }
    }

    fn root(&self) -> Result<StreamRoot> {
        let record = self.tree.as_ref().map_or(&WEAK[..], |tree| &tree.root);
        let root = member::parse(record)?;
        Ok(StreamRoot {
            attributes: root.attributes,
            mtime: root.mtime,
            xattrs: root.xattrs,
        })
    }

    fn contents(&mut self, store: &mut dyn ContentStore) -> Result<()> {
        let options = GatherOptions {
            dir: &self.dir,
            filter: &self.options.filter,
            keep_xattrs: self.options.keep_xattrs,
            sort_len: self.sort_len(),
            dirs_len: self.share(DIRS_SHARE),
            contents_len: self.contents_len(),
            excluded_len: self.excluded_len(),
            observer: self.observer,
        };
        let gathered = gather(self.members.as_mut(), store, &options)?;
        self.has_one_mtime = gathered.has_one_mtime;
        self.problem_count = gathered.problem_count;
        let sorted = gathered.sorter.finish()?;
        let tree = assemble(sorted, &gathered.texts, &self.dir, options.sort_len)?;
        self.tree = Some(tree);
        Ok(())
    }

    fn tree(&mut self, sink: &mut dyn TreeSink) -> Result<()> {
        send_tree(self.tree.as_ref(), sink)
    }

    fn links(&mut self, sink: &mut dyn FnMut(&Link) -> Result<()>) -> Result<()> {
        send_links(self.tree.as_ref(), sink)
    }
}

/// Hands the hard links of `tree` between directories to `sink`.
///
/// # Errors
/// Those of `sink`.
pub fn send_links(tree: Option<&Tree>, sink: &mut dyn FnMut(&Link) -> Result<()>) -> Result<()> {
    let mut across = tree.into_iter().flat_map(|tree| tree.links.across());
    across.try_for_each(|link| sink(&link))
}

/// Hands `tree`, which the contents give, to `sink`, directory by directory.
///
/// # Errors
/// `Invalid` without a tree; `Io`, and those of `sink`.
pub fn send_tree(tree: Option<&Tree>, sink: &mut dyn TreeSink) -> Result<()> {
    let Some(tree) = tree else {
        return Err(Error::invalid("the tree is asked for before the contents"));
    };
    let mut blocks = BlockReader::new(&tree.blocks);
    let mut linked = tree.links.names().iter().peekable();
    // The root is the first name.
    let mut name_no = 1;
    while let Some(block) = blocks.next()? {
        let mut stored = Vec::with_capacity(block.len());
        for (_, record) in &block {
            name_no += 1;
            let link = linked.next_if(|link| link.name_no() == name_no);
            let info = link.map_or(LinkInfo::Single, |link| link.info());
            let record = match (link, member::kind_of_record(record)?) {
                (Some(link), Record::Link(_)) => tree.links.body(link),
                _ => record,
            };
            stored.push((member::parse(record)?, info));
        }
        let names = block.iter().map(|(name, _)| *name);
        let entries: Vec<StreamEntry<'_>> = names
            .zip(&stored)
            .map(|(name, (stored, link))| entry(name, stored, *link))
            .collect();
        if !sink.directory(&entries)? {
            break;
        }
    }
    Ok(())
}

fn entry<'e>(name: &'e [u8], stored: &'e StoredEntry<'_>, link: LinkInfo) -> StreamEntry<'e> {
    StreamEntry {
        name,
        kind: stored.kind,
        attributes: stored.attributes,
        mtime: stored.mtime,
        xattrs: Some(&stored.xattrs).filter(|set| !set.is_empty()),
        content: stored.content,
        target: stored.target,
        link,
    }
}
