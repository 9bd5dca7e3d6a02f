//! A forest as the stream that an image is built of: no file system between.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::ops::Range;
use weald_build::stream::{
    ContentStore, LinkInfo, StreamBody, StreamEntry, StreamRoot, StreamSize, TreeSink, TreeSource,
};
use weald_forest::{Body, Content, Entry, Forest, Leaf, Totals};
use weald_format::{Attributes, ContentId, Error, FileKind, Result, XattrSet};

/// A forest on its way into an image.
pub struct ForestSource<'a> {
    forest: &'a Forest,
    totals: Totals,
    /// Numbers of contents, eight bytes each, in the order of the files that have one.
    numbers: File,
}

/// The content of a file of the forest.
struct ForestBody<'a>(&'a Content);

impl StreamBody for ForestBody<'_> {
    fn content_len(&self) -> u64 {
        self.0.len()
    }

    fn runs(&self) -> Option<Vec<Range<u64>>> {
        (self.0.data_len() != self.0.len()).then(|| self.0.runs().collect())
    }

    fn read(&self, start: u64, out: &mut [u8]) -> Result<()> {
        self.0.fill(start, out);
        Ok(())
    }
}

impl<'a> ForestSource<'a> {
    /// `forest`, which comes to `totals`.
    ///
    /// # Errors
    /// `Io` where no temporary file can be made; `Unsupported` for forests with hard links.
    pub fn new(forest: &'a Forest, totals: Totals) -> Result<Self> {
        if totals.hard_links > 0 {
            let what = "a forest with hard links can only be made in a directory, or as a stream";
            return Err(Error::new(weald_format::ErrorKind::Unsupported, what));
        }
        let numbers = weald_sys::open_dir(&std::env::temp_dir())
            .and_then(|dir| weald_sys::create_unnamed_at(dir, 0o600))
            .map_err(|e| Error::io("temporary file", e))?;
        Ok(Self {
            forest,
            totals,
            numbers,
        })
    }

    fn dir_entry<'n>(&self, level: usize, leaf: u64, name: &'n [u8]) -> StreamEntry<'n> {
        StreamEntry {
            name,
            kind: FileKind::Directory,
            attributes: self.forest.dir_attributes(),
            mtime: self.forest.dir_mtime(level, leaf).unwrap_or_default(),
            xattrs: None,
            content: None,
            target: b"",
            link: LinkInfo::Single,
        }
    }

    /// Names of the directories in that of `level` which leads to `leaf`, sorted, each with its first leaf.
    fn children(&self, level: usize, leaf: u64) -> Vec<(Vec<u8>, u64)> {
        let step = self.forest.leaves_below(level + 1);
        let end = leaf + self.forest.leaves_below(level);
        let named = |child| {
            let mut name = Vec::new();
            self.forest.dir_name(level + 1, child, &mut name);
            (name, child)
        };
        let mut children: Vec<_> = (leaf..end).step_by(step as usize).map(named).collect();
        children.sort_unstable();
        children
    }

    /// Hands over the directory of `level` that leads to `leaf`, and what lies in it; false where no more is wanted.
    fn directory(
        &self,
        level: usize,
        leaf: u64,
        walk: &mut Walk<'_>,
        sink: &mut dyn TreeSink,
    ) -> Result<bool> {
        if level == self.forest.depth() {
            return self.leaf(leaf, walk, sink);
        }
        let children = self.children(level, leaf);
        let entries: Vec<StreamEntry<'_>> = children
            .iter()
            .map(|(name, child)| self.dir_entry(level + 1, *child, name))
            .collect();
        if !sink.directory(&entries)? {
            return Ok(false);
        }
        for (_, child) in &children {
            if !self.directory(level + 1, *child, walk, sink)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn leaf(&self, number: u64, walk: &mut Walk<'_>, sink: &mut dyn TreeSink) -> Result<bool> {
        self.forest.leaf(number, &mut walk.leaf);
        let leaf = &walk.leaf;
        let xattrs: Vec<XattrSet> = leaf
            .entries
            .iter()
            .filter(|e| e.has != (false, false))
            .map(|e| self.forest.xattrs(number, e))
            .collect();
        let mut sets = xattrs.iter();
        let mut entries = Vec::with_capacity(leaf.entries.len());
        for entry in &leaf.entries {
            let xattrs = match entry.has {
                (false, false) => None,
                _ => sets.next(),
            };
            entries.push(stream_entry(leaf, entry, xattrs, &mut walk.numbers)?);
        }
        sink.directory(&entries)
    }

    /// Calls `visit` for every content, in the order of the tree.
    fn each_content(
        &self,
        level: usize,
        leaf: u64,
        buffer: &mut Leaf,
        visit: &mut dyn FnMut(&Content) -> Result<()>,
    ) -> Result<()> {
        if level == self.forest.depth() {
            self.forest.leaf(leaf, buffer);
            return buffer.entries.iter().try_for_each(|e| match &e.body {
                Body::File(content) if !content.is_empty() => visit(content),
                _ => Ok(()),
            });
        }
        for (_, child) in self.children(level, leaf) {
            self.each_content(level + 1, child, buffer, visit)?;
        }
        Ok(())
    }
}

/// What one walk over the tree keeps.
struct Walk<'n> {
    leaf: Leaf,
    numbers: BufReader<&'n File>,
}

fn stream_entry<'l>(
    leaf: &'l Leaf,
    entry: &Entry,
    xattrs: Option<&'l XattrSet>,
    numbers: &mut impl Read,
) -> Result<StreamEntry<'l>> {
    let mut content = None;
    let (kind, target): (_, &[u8]) = match &entry.body {
        Body::Symlink(target) => (FileKind::Symlink, &leaf.text[target.clone()]),
        Body::File(body) => {
            if !body.is_empty() {
                let mut number = [0; 8];
                numbers
                    .read_exact(&mut number)
                    .map_err(|e| Error::io("temporary file", e))?;
                content = Some(ContentId(u64::from_le_bytes(number)));
            }
            (FileKind::Regular, b"")
        }
        // There are none: the forest was counted.
        Body::HardLink(_) | Body::HardLinkAcross(_) => (FileKind::Regular, b""),
    };
    Ok(StreamEntry {
        name: leaf.name(entry),
        kind,
        attributes: Attributes {
            rdev: 0,
            ..entry.attributes
        },
        mtime: entry.mtime.unwrap_or_default(),
        xattrs,
        content,
        target,
        link: LinkInfo::Single,
    })
}

impl TreeSource for ForestSource<'_> {
    fn size(&self) -> StreamSize {
        let Totals {
            directories,
            files,
            symlinks,
            data_len,
            ..
        } = self.totals;
        let fanout = &self.forest.spec().fanout;
        StreamSize {
            entry_count: directories + files + symlinks,
            data_len,
            directory_count_max: fanout
                .iter()
                .copied()
                .max()
                .unwrap_or(0)
                .max(self.forest.spec().versions),
            depth: self.forest.depth() as u64 + 1,
            ..StreamSize::default()
        }
    }

    fn root(&self) -> Result<StreamRoot> {
        Ok(StreamRoot {
            attributes: self.forest.dir_attributes(),
            mtime: self.forest.dir_mtime(0, 0).unwrap_or_default(),
            xattrs: XattrSet::new(),
        })
    }

    fn contents(&mut self, store: &mut dyn ContentStore) -> Result<()> {
        if self.totals.files == self.totals.empty_files {
            return Ok(());
        }
        let io = |e| Error::io("temporary file", e);
        let mut numbers = BufWriter::new(&self.numbers);
        self.each_content(0, 0, &mut Leaf::default(), &mut |content| {
            let id = store.store(&ForestBody(content))?;
            numbers.write_all(&id.0.to_le_bytes()).map_err(io)
        })?;
        numbers.flush().map_err(io)
    }

    fn tree(&mut self, sink: &mut dyn TreeSink) -> Result<()> {
        let mut numbers = &self.numbers;
        numbers
            .rewind()
            .map_err(|e| Error::io("temporary file", e))?;
        let mut walk = Walk {
            leaf: Leaf::default(),
            numbers: BufReader::new(&self.numbers),
        };
        self.directory(0, 0, &mut walk, sink).map(drop)
    }
}
