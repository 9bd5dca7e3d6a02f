//! Gives a forest to the builder directly, without a file system.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use weald_builder::stream::{
    ContentStore, LinkInfo, StreamBody, StreamEntry, StreamRoot, StreamSize, TreeSink, TreeSource,
};
use weald_forest::{Body, Content, Entry, Forest, Leaf, NameOfInode, Totals};
use weald_format::pages::Link;
use weald_format::{Attributes, ContentId, Error, FileKind, Result, XattrSet};

/// A forest as a source of the builder.
pub struct ForestSource<'a> {
    forest: &'a Forest,
    totals: Totals,
    /// Ids of contents, eight bytes for each file, leaf by leaf. Leaves without contents are holes.
    numbers: File,
}

/// Content of a file of the forest.
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
    /// Creates a source for `forest`, whose totals are `totals`.
    ///
    /// # Errors
    /// `Io` if no temporary file can be made.
    pub fn new(forest: &'a Forest, totals: Totals) -> Result<Self> {
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

    /// Directories in the directory of `level` that contains `leaf`: names with the first leaf of
    /// each, sorted by name.
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

    /// Passes the directory of `level` that contains `leaf` to `sink`, with everything below it.
    /// Returns false if `sink` wants no more.
    fn directory(
        &self,
        level: usize,
        leaf: u64,
        drawn: &mut Drawn,
        sink: &mut dyn TreeSink,
    ) -> Result<bool> {
        if level == self.forest.depth() {
            return self.leaf(leaf, drawn, sink);
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
            if !self.directory(level + 1, *child, drawn, sink)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn leaf(&self, number: u64, drawn: &mut Drawn, sink: &mut dyn TreeSink) -> Result<bool> {
        let partner = self.draw(number, drawn);
        self.read_numbers(number, &mut drawn.leaf.contents)?;
        if let Some(partner) = partner {
            self.read_numbers(partner, &mut drawn.partner.contents)?;
        }
        let (leaf, names) = (&drawn.leaf, &drawn.names);
        // The entry with the attributes of the inode, and the leaf that has this entry.
        let file = |position: usize| match names.get(position) {
            Some(name) if name.is_in_partner => (&drawn.partner, name.file),
            Some(name) => (leaf, name.file),
            None => (leaf, position),
        };
        let set = |position| {
            let (of, file) = file(position);
            let entry = &of.leaf.entries[file];
            let has_some = entry.has_xattrs || entry.has_acl;
            has_some.then(|| self.forest.xattrs(of.number, entry))
        };
        let positions = 0..leaf.leaf.entries.len();
        let xattrs: Vec<Option<XattrSet>> = if self.has_xattrs() {
            positions.clone().map(set).collect()
        } else {
            Vec::new()
        };
        let entries = positions.map(|position| {
            let (of, file) = file(position);
            StreamEntry {
                name: leaf.leaf.name(&leaf.leaf.entries[position]),
                xattrs: xattrs.get(position).and_then(|set| set.as_ref()),
                link: names
                    .get(position)
                    .map_or(LinkInfo::Single, |n| link_info(n, position)),
                ..stream_entry(of, &of.leaf.entries[file])
            }
        });
        sink.directory(&entries.collect::<Vec<_>>())
    }

    fn has_xattrs(&self) -> bool {
        !self.forest.spec().xattrs.is_none() || !self.forest.spec().acls.is_none()
    }

    /// Generates leaf `number` and the leaf that shares inodes with it. Returns the number of the
    /// latter.
    fn draw(&self, number: u64, drawn: &mut Drawn) -> Option<u64> {
        let draw = |number, one: &mut DrawnLeaf| {
            self.forest.leaf(number, &mut one.leaf);
            one.number = number;
        };
        draw(number, &mut drawn.leaf);
        if !self.forest.has_links() {
            return None;
        }
        let partner = self.forest.partner(number);
        if let Some(partner) = partner {
            draw(partner, &mut drawn.partner);
        }
        let other = partner.map(|_| &drawn.partner.leaf);
        drawn.names = drawn.leaf.leaf.names_of_inodes(other);
        partner
    }

    /// Memory per entry of a leaf in bytes, in addition to what the plan counts for every entry.
    fn entry_len(&self) -> u64 {
        let links_len = if self.forest.has_links() {
            LINKED_LEN
        } else {
            0
        };
        let numbers_len = if self.has_contents() {
            NUMBER_LEN * 2
        } else {
            0
        };
        links_len + numbers_len as u64
    }

    fn has_contents(&self) -> bool {
        self.totals.files > self.totals.empty_files
    }

    /// Offset of the content ids of a leaf.
    fn numbers_start(&self, leaf: u64) -> u64 {
        leaf * self.forest.files_per_leaf() * NUMBER_LEN as u64
    }

    fn read_numbers(&self, leaf: u64, numbers: &mut Vec<u8>) -> Result<()> {
        numbers.clear();
        if self.has_contents() {
            numbers.resize(self.forest.files_per_leaf() as usize * NUMBER_LEN, 0);
            let start = self.numbers_start(leaf);
            self.numbers
                .read_exact_at(numbers, start)
                .map_err(temporary_file)?;
        }
        Ok(())
    }

    /// Calls `visit` for every leaf in the order of the tree, with the number of the leaf's first
    /// entry.
    fn each_leaf(
        &self,
        level: usize,
        leaf: u64,
        next_no: &mut u64,
        visit: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<()> {
        if level == self.forest.depth() {
            visit(leaf, *next_no)?;
            *next_no += self.forest.files_per_leaf();
            return Ok(());
        }
        let children = self.children(level, leaf);
        *next_no += children.len() as u64;
        for (_, child) in children {
            self.each_leaf(level + 1, child, next_no, visit)?;
        }
        Ok(())
    }

    /// First entry numbers of all leaves in the directory of `leaf`, whose own first number is
    /// `start`. All leaves have the same number of entries.
    fn leaf_starts(&self, leaf: u64, start: u64) -> HashMap<u64, u64> {
        let below = self.forest.leaves_below(self.forest.depth() - 1);
        let children = self.children(self.forest.depth() - 1, leaf / below * below);
        let rank = children.iter().position(|(_, child)| *child == leaf);
        let first = start - rank.unwrap_or_default() as u64 * self.forest.files_per_leaf();
        let starts = (first..).step_by(self.forest.files_per_leaf() as usize);
        children
            .into_iter()
            .map(|(_, child)| child)
            .zip(starts)
            .collect()
    }

    /// Passes the names of a leaf that share inodes with its partner to `sink`. `start` is the
    /// number of the leaf's first entry, `there` that of the partner's.
    fn leaf_links(
        &self,
        (start, there): (u64, u64),
        names: &[NameOfInode],
        sink: &mut dyn FnMut(&Link) -> Result<()>,
    ) -> Result<()> {
        let across = names
            .iter()
            .enumerate()
            .filter(|(_, name)| name.partner_count > 0);
        for (position, name) in across {
            let (here, there) = (
                start + name.own_first as u64,
                there + name.partner_first as u64,
            );
            sink(&Link {
                name_no: start + position as u64,
                first_no: here.min(there),
                nlink: name.own_count + name.partner_count,
            })?;
        }
        Ok(())
    }
}

/// Length of a content id in bytes.
const NUMBER_LEN: usize = 8;
/// Memory per entry of a leaf with links in bytes: the partner's entry, and the names of both.
const LINKED_LEN: u64 = 320;

/// A leaf, and the leaf that shares inodes with it.
#[derive(Default)]
struct Drawn {
    leaf: DrawnLeaf,
    partner: DrawnLeaf,
    /// Names of the inode of each entry; empty if the forest has no links.
    names: Vec<NameOfInode>,
}

#[derive(Default)]
struct DrawnLeaf {
    number: u64,
    leaf: Leaf,
    /// Ids of its contents by index of the entry; empty if the forest has no contents.
    contents: Vec<u8>,
}

fn temporary_file(error: std::io::Error) -> Error {
    Error::io("temporary file", error)
}

fn link_info(name: &NameOfInode, position: usize) -> LinkInfo {
    match (name.own_count, name.partner_count) {
        (1, 0) => LinkInfo::Single,
        (nlink, 0) => LinkInfo::Inside {
            nlink,
            back: (position - name.own_first) as u64,
        },
        _ => LinkInfo::Across,
    }
}

/// Converts `entry` to an entry of a stream, without its name.
fn stream_entry<'l>(of: &'l DrawnLeaf, entry: &Entry) -> StreamEntry<'l> {
    let start = entry.index as usize * NUMBER_LEN;
    let number = of.contents.get(start..).and_then(|rest| rest.first_chunk());
    let content = match &entry.body {
        Body::File(body) if !body.is_empty() => number,
        _ => None,
    };
    let (kind, target): (_, &[u8]) = match &entry.body {
        Body::Symlink(target) => (FileKind::Symlink, &of.leaf.text[target.clone()]),
        Body::File(_) | Body::HardLink(_) | Body::HardLinkAcross(_) => (FileKind::Regular, b""),
    };
    StreamEntry {
        name: b"",
        kind,
        attributes: Attributes {
            rdev: 0,
            ..entry.attributes
        },
        mtime: entry.mtime.unwrap_or_default(),
        xattrs: None,
        content: content.map(|number| ContentId(u64::from_le_bytes(*number))),
        target,
        link: LinkInfo::Single,
    }
}

impl TreeSource for ForestSource<'_> {
    fn size(&self) -> StreamSize {
        let Totals {
            directories,
            files,
            symlinks,
            hard_links,
            data_len,
            ..
        } = self.totals;
        let fanout = &self.forest.spec().fanout;
        StreamSize {
            entry_count: directories + files + symlinks + hard_links,
            data_len: Some(data_len),
            directory_count_max: fanout
                .iter()
                .copied()
                .max()
                .unwrap_or(0)
                .max(self.forest.spec().versions),
            depth: self.forest.depth() as u64 + 1,
            memory_len: self.forest.files_per_leaf() * self.entry_len(),
            has_no_contents: !self.has_contents(),
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
        if !self.has_contents() {
            return Ok(());
        }
        let len = self.numbers_start(self.forest.leaf_count());
        self.numbers.set_len(len).map_err(temporary_file)?;
        let (mut leaf, mut numbers) = (Leaf::default(), Vec::new());
        self.each_leaf(0, 0, &mut 2, &mut |number, _| {
            self.forest.leaf(number, &mut leaf);
            numbers.clear();
            numbers.resize(leaf.entries.len() * NUMBER_LEN, 0);
            let mut has_some = false;
            for entry in &leaf.entries {
                if let Body::File(content) = &entry.body
                    && !content.is_empty()
                {
                    let id = store.store(&ForestBody(content))?;
                    let start = entry.index as usize * NUMBER_LEN;
                    numbers[start..start + NUMBER_LEN].copy_from_slice(&id.0.to_le_bytes());
                    has_some = true;
                }
            }
            if has_some {
                let written = self
                    .numbers
                    .write_all_at(&numbers, self.numbers_start(number));
                written.map_err(temporary_file)
            } else {
                Ok(())
            }
        })
    }

    fn tree(&mut self, sink: &mut dyn TreeSink) -> Result<()> {
        self.directory(0, 0, &mut Drawn::default(), sink).map(drop)
    }

    fn links(&mut self, sink: &mut dyn FnMut(&Link) -> Result<()>) -> Result<()> {
        if self.forest.spec().hard_links_across.is_none() {
            return Ok(());
        }
        let mut drawn = Drawn::default();
        // First entry numbers of the leaves in one directory; links stay within a directory.
        let mut starts: HashMap<u64, u64> = HashMap::new();
        let mut dir = None;
        self.each_leaf(0, 0, &mut 2, &mut |leaf, start| {
            let Some(partner) = self.draw(leaf, &mut drawn) else {
                return Ok(());
            };
            let above = leaf / self.forest.leaves_below(self.forest.depth() - 1);
            if dir != Some(above) {
                dir = Some(above);
                starts = self.leaf_starts(leaf, start);
            }
            let there = starts.get(&partner).copied().unwrap_or_default();
            self.leaf_links((start, there), &drawn.names, sink)
        })
    }
}
