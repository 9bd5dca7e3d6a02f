//! The scanned tree: all facts about each entry, by number.

use super::shard::{Entry, MoreTimes, NONE};
use crate::options::addition::Given;
use crate::scan::source::{LayerSource, Origin};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use weald_format::{Attributes, ContentId, FileKind, Times, Timestamp, Xattr, XattrSet};

/// Number of an entry. The root is 0; the entries of each directory follow in a row, directories in
/// preorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryNo(pub u32);

/// Number of a directory in preorder; the root is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirNo(pub u32);

/// The entries of a directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dir {
    pub first: u32,
    pub count: u32,
    /// Entry of the directory in its parent.
    pub entry: u32,
    /// Index of its device.
    pub dev: u32,
}

/// Names and symlink targets of one shard.
pub(super) struct Texts {
    pub names: Vec<u8>,
    pub targets: Vec<u8>,
    pub target_starts: Vec<u64>,
}

/// Hard links: the names of each inode with several.
#[derive(Debug, Default)]
pub(super) struct LinkGroups {
    /// End of each group in `names`.
    ends: Vec<u32>,
    /// Entries, ascending within a group; groups in the order of their first entries.
    names: Vec<u32>,
    /// (entry, group), sorted.
    by_entry: Vec<(u32, u32)>,
}

impl LinkGroups {
    pub fn push(&mut self, names: impl Iterator<Item = u32>) {
        self.names.extend(names);
        self.ends.push(self.names.len() as u32);
    }

    /// Builds the index for [`LinkGroups::of`], after all groups are pushed.
    pub fn index(&mut self) {
        let groups = 0..self.count();
        self.by_entry = groups
            .flat_map(|g| self.names(g).iter().map(move |&name| (name, g)))
            .collect();
        self.by_entry.sort_unstable();
    }

    pub fn count(&self) -> u32 {
        self.ends.len() as u32
    }

    pub fn names(&self, group: u32) -> &[u32] {
        let start = group
            .checked_sub(1)
            .map_or(0, |before| self.ends[before as usize]);
        &self.names[start as usize..self.ends[group as usize] as usize]
    }

    fn of(&self, entry: u32) -> Option<u32> {
        let found = self
            .by_entry
            .binary_search_by_key(&entry, |&(name, _)| name);
        found.ok().map(|index| self.by_entry[index].1)
    }
}

/// A source tree in memory. Numbers passed to it must come from the same tree.
///
/// # Panics
/// Methods panic for numbers that the tree does not have.
pub struct ScannedTree {
    pub(super) origin: Origin,
    pub(super) entries: Vec<Entry>,
    pub(super) more_times: Vec<MoreTimes>,
    pub(super) dirs: Vec<Dir>,
    pub(super) depth: usize,
    pub(super) texts: Vec<Texts>,
    pub(super) attributes: Vec<(FileKind, Attributes)>,
    pub(super) xattr_sets: Vec<XattrSet>,
    pub(super) devs: Vec<u64>,
    pub(super) other_devs: HashMap<u32, u64>,
    pub(super) links: LinkGroups,
    /// Files whose contents are not compressed.
    pub(super) plain: HashSet<u32>,
    /// Attributes that are given for entries, by number.
    pub(super) given: HashMap<u32, Given>,
    /// The hard links in place of `links`, once equal files are linked.
    pub(super) equal_links: OnceLock<LinkGroups>,
}

impl ScannedTree {
    /// The root directory.
    pub const ROOT: EntryNo = EntryNo(0);

    fn entry(&self, entry: EntryNo) -> &Entry {
        &self.entries[entry.0 as usize]
    }

    /// Number of entries, the root included; entry numbers are below it.
    pub fn entry_count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Whether this is the tree of an image.
    pub fn is_of_image(&self) -> bool {
        self.origin.is_image()
    }

    /// The source with the files of the layer that has the entry.
    pub(super) fn source_of(&self, entry: EntryNo) -> Option<&LayerSource> {
        let layer = self.origin.layer(self.entry(entry).name.shard());
        layer.map(|layer| &layer.from)
    }

    /// Whether symlinks on the way to the entry were followed.
    pub(super) fn follows(&self, entry: EntryNo) -> bool {
        let layer = self.origin.layer(self.entry(entry).name.shard());
        layer.is_some_and(|layer| layer.follows)
    }

    /// Whether the entry is kept from the image to which the source is added.
    pub fn is_kept(&self, entry: EntryNo) -> bool {
        let image_shard = self.origin.image_shard();
        image_shard.is_some_and(|shard| self.entry(entry).name.shard() == shard)
    }

    /// Whether a layer of overlayfs lies over the image, so that kept entries can have other names
    /// and attributes than there.
    pub fn has_upper(&self) -> bool {
        self.origin.has_upper()
    }

    /// Content of a kept regular file; `None` if it is empty.
    pub fn kept_content(&self, entry: EntryNo) -> Option<ContentId> {
        let is_file = self.is_kept(entry) && self.kind(entry) == FileKind::Regular;
        let link = Some(self.entry(entry).link).filter(|&link| is_file && link != NONE);
        link.map(|id| ContentId(u64::from(id)))
    }

    /// Number of the file of an added regular file.
    pub(super) fn file_no(&self, entry: EntryNo) -> Option<usize> {
        Some(self.entry(entry).link as usize).filter(|&no| no != NONE as usize)
    }

    /// Whether the contents of a file are not compressed.
    pub fn is_plain(&self, entry: EntryNo) -> bool {
        self.plain.contains(&entry.0)
    }

    /// The attributes that are given for an entry, whatever the rules say.
    pub fn given(&self, entry: EntryNo) -> Given {
        self.given.get(&entry.0).copied().unwrap_or_default()
    }

    /// Gives attributes to the entry at `path`, under all its names, if there is one.
    pub(super) fn give(&mut self, path: &[u8], given: &Given) {
        let mut entry = Self::ROOT;
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            let Some(found) = self.dir(entry).and_then(|dir| self.find(dir, name)) else {
                return;
            };
            entry = found;
        }
        let names = match self.link_group(entry) {
            Some(group) => self.link_names(group).collect(),
            None => vec![entry],
        };
        for name in names {
            self.given.entry(name.0).or_default().merge(given);
        }
    }

    /// The entry `name` of a directory.
    fn find(&self, dir: DirNo, name: &[u8]) -> Option<EntryNo> {
        let Dir { first, count, .. } = self.dirs[dir.0 as usize];
        let (mut from, mut to) = (first, first + count);
        while from < to {
            let middle = from + (to - from) / 2;
            match self.name(EntryNo(middle)).cmp(name) {
                Ordering::Less => from = middle + 1,
                Ordering::Greater => to = middle,
                Ordering::Equal => return Some(EntryNo(middle)),
            }
        }
        None
    }

    /// Number of directories, the root included; directory numbers are below it.
    pub fn dir_count(&self) -> u32 {
        self.dirs.len() as u32
    }

    /// Maximum number of nested directories, the root included.
    pub fn depth(&self) -> u64 {
        self.depth as u64
    }

    /// Entries of a directory, sorted by the bytes of their names.
    pub fn entries_of(
        &self,
        dir: DirNo,
    ) -> impl ExactSizeIterator<Item = EntryNo> + DoubleEndedIterator + use<> {
        let Dir { first, count, .. } = self.dirs[dir.0 as usize];
        (first..first + count).map(EntryNo)
    }

    /// Entry of a directory in its parent.
    pub fn entry_of_dir(&self, dir: DirNo) -> EntryNo {
        EntryNo(self.dirs[dir.0 as usize].entry)
    }

    /// Directory that holds an entry; for the root, the root itself.
    ///
    /// # Cost
    /// O(log of the number of directories).
    pub fn dir_of(&self, entry: EntryNo) -> DirNo {
        // Of several directories that begin at this entry, all but the last are empty.
        let after = self.dirs.partition_point(|dir| dir.first <= entry.0);
        DirNo(after.saturating_sub(1) as u32)
    }

    /// Directory number of an entry; `None` if it is no directory.
    pub fn dir(&self, entry: EntryNo) -> Option<DirNo> {
        (self.kind(entry) == FileKind::Directory).then(|| DirNo(self.entry(entry).link))
    }

    /// Name, without a slash; empty for the root.
    pub fn name(&self, entry: EntryNo) -> &[u8] {
        let name = self.entry(entry).name;
        name.slice(&self.texts[name.shard()].names)
    }

    /// Kind.
    pub fn kind(&self, entry: EntryNo) -> FileKind {
        self.attributes[self.attributes_no(entry) as usize].0
    }

    /// Index of kind and attributes in [`ScannedTree::attribute_list`].
    pub fn attributes_no(&self, entry: EntryNo) -> u32 {
        self.entry(entry).attributes
    }

    /// Distinct pairs of kind and attributes, in the order of first occurrence.
    pub fn attribute_list(&self) -> &[(FileKind, Attributes)] {
        &self.attributes
    }

    /// Permissions, owner, device.
    pub fn attributes(&self, entry: EntryNo) -> &Attributes {
        &self.attributes[self.attributes_no(entry) as usize].1
    }

    /// Length of a regular file or of a symlink's target, bytes; 0 for others.
    pub fn size(&self, entry: EntryNo) -> u64 {
        self.entry(entry).size
    }

    /// Last change of content.
    pub fn mtime(&self, entry: EntryNo) -> Timestamp {
        self.entry(entry).mtime()
    }

    /// All times that the scan was asked to keep.
    pub fn times(&self, entry: EntryNo) -> Times {
        let more = self
            .more_times
            .get(entry.0 as usize)
            .copied()
            .unwrap_or_default();
        Times {
            mtime: self.mtime(entry),
            atime: more.atime,
            ctime: more.ctime,
            btime: more.btime,
        }
    }

    /// Target of a symlink.
    pub fn target(&self, entry: EntryNo) -> Option<&[u8]> {
        if self.kind(entry) != FileKind::Symlink {
            return None;
        }
        let Entry {
            name, size, link, ..
        } = *self.entry(entry);
        let texts = &self.texts[name.shard()];
        let start = texts.target_starts[link as usize] as usize;
        Some(&texts.targets[start..start + size as usize])
    }

    /// Index of the xattr set in [`ScannedTree::xattr_sets`]; `None` without xattrs.
    pub fn xattrs_no(&self, entry: EntryNo) -> Option<u32> {
        Some(self.entry(entry).xattrs).filter(|&number| number != NONE)
    }

    /// Distinct xattr sets, none empty, in the order of first occurrence.
    pub fn xattr_sets(&self) -> &[XattrSet] {
        &self.xattr_sets
    }

    /// Memory that the distinct xattr sets take, bytes.
    ///
    /// # Cost
    /// O(number of xattrs in them).
    pub fn xattrs_memory_len(&self) -> u64 {
        // Each name and value is an allocation of its own: a header, and 8 bytes lost to rounding.
        const ALLOCATION_LEN: usize = 16;
        let xattr =
            |x: &Xattr| size_of::<Xattr>() + x.name.len() + x.value.len() + 2 * ALLOCATION_LEN;
        let set = |s: &XattrSet| {
            size_of::<XattrSet>() + ALLOCATION_LEN + s.iter().map(xattr).sum::<usize>()
        };
        self.xattr_sets.iter().map(|s| set(s) as u64).sum()
    }

    /// Hard-link group of an entry, if the tree has several names of its inode. Groups are numbered
    /// from 0 in the order of their first names. All names of a group have the same state.
    ///
    /// # Cost
    /// O(log of the number of such names).
    pub fn link_group(&self, entry: EntryNo) -> Option<u32> {
        if self.equal_links.get().is_none() && !self.entry(entry).has(Entry::LINKED) {
            return None;
        }
        self.links().of(entry.0)
    }

    fn links(&self) -> &LinkGroups {
        self.equal_links.get().unwrap_or(&self.links)
    }

    /// Makes these the hard links: groups of at least two names each, ascending, and the groups
    /// ascending by their first names.
    ///
    /// # Panics
    /// If it is called twice.
    pub fn link_equal(&self, groups: &[Vec<EntryNo>]) {
        let mut links = LinkGroups::default();
        for group in groups {
            links.push(group.iter().map(|name| name.0));
        }
        links.index();
        assert!(self.equal_links.set(links).is_ok(), "linked twice");
    }

    /// Number of inodes with several names in the tree.
    pub fn link_group_count(&self) -> u32 {
        self.links().count()
    }

    /// Names of a hard-linked inode, ascending, at least two.
    pub fn link_names(
        &self,
        group: u32,
    ) -> impl ExactSizeIterator<Item = EntryNo> + DoubleEndedIterator + '_ {
        self.links().names(group).iter().map(|&name| EntryNo(name))
    }

    /// Device (major << 32 | minor) and inode number in the source. They are not reproducible, but
    /// useful for ordering reads.
    pub fn source_inode(&self, entry: EntryNo) -> (u64, u64) {
        let own = self.other_devs.get(&entry.0).copied();
        let dev =
            own.unwrap_or_else(|| self.devs[self.dirs[self.dir_of(entry).0 as usize].dev as usize]);
        (dev, self.entry(entry).ino)
    }

    /// Entries from an entry up to the root: the entry first, the root excluded.
    pub fn way_up(&self, entry: EntryNo) -> impl Iterator<Item = EntryNo> {
        let up = |&entry: &EntryNo| Some(self.entry_of_dir(self.dir_of(entry)));
        std::iter::successors(Some(entry), up).take_while(|&entry| entry != Self::ROOT)
    }

    /// Path relative to the root of the source that has the entry, without a leading slash; empty
    /// for the root.
    ///
    /// # Cost
    /// O(depth · log of the number of directories).
    pub fn path_of(&self, entry: EntryNo) -> Vec<u8> {
        let path = self.tree_path_of(entry);
        let layer = self.origin.layer(self.entry(entry).name.shard());
        match layer.map_or(0, |layer| layer.at_len) {
            0 => path,
            at_len => path.get(at_len..).unwrap_or_default().to_vec(),
        }
    }

    /// The path of a source's file as a message shows it: with that of the source, if there are
    /// several.
    pub fn shown_path_of(&self, entry: EntryNo) -> Vec<u8> {
        let layer = self.origin.layer(self.entry(entry).name.shard());
        let shown = layer.map(|layer| layer.shown.as_slice());
        [shown.unwrap_or_default(), &*self.path_of(entry)].concat()
    }

    /// The path from the root of this tree, without a leading slash; the root's is empty. It
    /// differs from [`ScannedTree::path_of`] where the source was added below a path.
    ///
    /// # Cost
    /// As [`ScannedTree::path_of`].
    pub fn tree_path_of(&self, entry: EntryNo) -> Vec<u8> {
        let mut names: Vec<&[u8]> = self.way_up(entry).map(|entry| self.name(entry)).collect();
        names.reverse();
        names.join(&b'/')
    }
}
