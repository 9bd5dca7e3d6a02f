//! Puts the shards of a walk into one order: directories in preorder, names in byte order;
//! attributes, xattr sets and hard-link groups by first occurrence. The result does not show which
//! thread found an entry.

use super::intern::Interner;
use super::shard::{Entry, MoreTimes, NONE, NOT_ENTERED, RawDir, Shard};
use super::tree::{Dir, LinkGroups, ScannedTree, Texts};
use super::walk::Walked;
use crate::Problem;
use crate::scan::source::{IMAGE_DEV, Origin};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::OnceLock;
use weald_format::limits::DEPTH_MAX;
use weald_format::{Error, FileKind, Result};

/// Location of a directory in the shards.
#[derive(Clone, Copy)]
pub struct DirLocation {
    pub shard: u32,
    /// Index in the shard's `dirs`, or [`NONE`] if the directory could not be listed.
    pub index: u32,
}

impl DirLocation {
    /// Whether it could not be listed, which was reported.
    pub fn is_unlisted(self) -> bool {
        self.index == NONE
    }
}

/// Numbers values in the order of first occurrence, and maps the numbers of each shard to these.
struct Merger<T> {
    /// For each shard: final number by local number, [`NONE`] until seen.
    maps: Vec<Vec<u32>>,
    distinct: Interner<T>,
}

impl<T: Eq + Hash> Merger<T> {
    fn new(lens: impl Iterator<Item = usize>) -> Self {
        Self {
            maps: lens.map(|len| vec![NONE; len]).collect(),
            distinct: Interner::default(),
        }
    }

    /// Returns the final number of value `local` of `shard`. `take` is called only for the first
    /// occurrence, so it may move the value.
    fn number(&mut self, shard: usize, local: u32, take: impl FnOnce(usize) -> T) -> u32 {
        let known = &mut self.maps[shard][local as usize];
        if *known == NONE {
            *known = self.distinct.intern(take(local as usize));
        }
        *known
    }
}

/// A name of an inode with several names; sorting makes the names of an inode adjacent. The kind is
/// included because an inode number may be freed and used again during the walk.
type Linked = (u64, u64, FileKind, EntryIndex);

/// Index of an entry in the final order.
type EntryIndex = u32;

struct Assembler {
    shards: Vec<Shard>,
    /// Index of the shard of an image to which a directory is added.
    image_shard: Option<usize>,
    found: Vec<DirLocation>,
    attributes: Merger<(FileKind, weald_format::Attributes)>,
    xattrs: Merger<weald_format::XattrSet>,
    entries: Vec<Entry>,
    more_times: Vec<MoreTimes>,
    dirs: Vec<Dir>,
    /// Maximum number of nested directories, the root included.
    depth: usize,
    devs: Vec<u64>,
    other_devs: HashMap<u32, u64>,
    plain: HashSet<u32>,
    /// All names of inodes with several names.
    linked: Vec<Linked>,
}

/// Builds the tree of a walk. Also returns the problems of all shards, unordered.
///
/// # Errors
/// `Limit` for more than 2^32 - 2 entries, or for a depth that readers refuse.
pub fn assemble(walked: Walked) -> Result<(ScannedTree, Vec<Problem>)> {
    let Walked {
        origin,
        root_dev,
        root_entry,
        root_times,
        shards,
        dir_count,
        keeps_more_times,
    } = walked;
    let count: usize = 1 + shards
        .iter()
        .map(|shard| shard.entries.len())
        .sum::<usize>();
    if count >= NOT_ENTERED as usize {
        return Err(Error::limit(format!(
            "{count} entries: at most {} can be kept",
            NOT_ENTERED - 1
        )));
    }
    let mut assembler = Assembler {
        found: find_dirs(&shards, dir_count),
        attributes: Merger::new(shards.iter().map(|shard| shard.attributes.len())),
        xattrs: Merger::new(shards.iter().map(|shard| shard.xattr_sets.values.len())),
        shards,
        image_shard: origin.image_shard(),
        entries: Vec::with_capacity(count),
        more_times: Vec::with_capacity(if keeps_more_times { count } else { 0 }),
        dirs: Vec::with_capacity(dir_count as usize + 1),
        depth: 1,
        devs: Vec::new(),
        other_devs: HashMap::new(),
        plain: HashSet::new(),
        linked: Vec::new(),
    };
    assembler.push(root_entry, root_dev, keeps_more_times.then_some(root_times));
    assembler.arrange()?;
    let problems = assembler
        .shards
        .iter_mut()
        .flat_map(|shard| std::mem::take(&mut shard.problems))
        .collect();
    Ok((assembler.finish(origin), problems))
}

/// Locates each directory; a later shard overrides earlier ones.
pub fn find_dirs(shards: &[Shard], dir_count: u32) -> Vec<DirLocation> {
    let mut found = vec![
        DirLocation {
            shard: 0,
            index: NONE
        };
        dir_count as usize
    ];
    for (shard_index, shard) in shards.iter().enumerate() {
        for (index, dir) in shard.dirs.iter().enumerate() {
            found[dir.number as usize] = DirLocation {
                shard: shard_index as u32,
                index: index as u32,
            };
        }
    }
    found
}

impl Assembler {
    /// Lays out all directories in preorder, beginning with the root, which is entry 0.
    fn arrange(&mut self) -> Result<()> {
        self.enter(0, 0);
        // Directories on the current path, each with the entry to examine next.
        let mut stack = vec![(0, self.dirs[0].first)];
        while let Some((dir, next)) = stack.last_mut() {
            let end = self.dirs[*dir].first + self.dirs[*dir].count;
            let is_dir = |entry: &Entry| {
                self.attributes.distinct.values[entry.attributes as usize].0 == FileKind::Directory
            };
            let child = (*next..end).find(|&index| is_dir(&self.entries[index as usize]));
            *next = child.map_or(end, |index| index + 1);
            match child {
                Some(index) => {
                    let child = self.enter(self.entries[index as usize].link, index);
                    stack.push((child, self.dirs[child].first));
                    self.depth = self.depth.max(stack.len());
                }
                None => {
                    stack.pop();
                }
            }
        }
        // The template that holds the root counts too.
        if self.depth < DEPTH_MAX {
            Ok(())
        } else {
            Err(Error::limit(format!(
                "directories nested {} deep: fewer than {DEPTH_MAX} levels can be kept",
                self.depth
            )))
        }
    }

    /// Appends directory `number`, which entry `index` names, and its entries. Returns its final
    /// number.
    fn enter(&mut self, number: u32, index: u32) -> usize {
        let dir_no = self.dirs.len();
        let first = self.entries.len() as u32;
        self.entries[index as usize].link = dir_no as u32;
        let parent_dev = self.dev_no(self.dir_dev(number, index));
        self.dirs.push(Dir {
            first,
            count: 0,
            entry: index,
            dev: parent_dev,
        });
        if number != NOT_ENTERED {
            let found = self.found[number as usize];
            let shard = found.shard as usize;
            let RawDir {
                first, count, dev, ..
            } = self.shards[shard].dirs[found.index as usize];
            for raw in first..first + count {
                let entry = self.shards[shard].entries[raw];
                let times = self.shards[shard].more_times.get(raw).copied();
                if !self.is_unlisted(&entry) {
                    self.push(entry, dev, times);
                }
            }
        }
        self.dirs[dir_no].count = self.entries.len() as u32 - first;
        dir_no
    }

    fn dir_dev(&self, number: u32, index: u32) -> u64 {
        if number == NOT_ENTERED {
            return self.other_devs.get(&index).copied().unwrap_or(0);
        }
        let found = self.found[number as usize];
        self.shards[found.shard as usize].dirs[found.index as usize].dev
    }

    fn dev_no(&mut self, dev: u64) -> u32 {
        let known = self.devs.iter().rposition(|&known| known == dev);
        known.unwrap_or_else(|| {
            self.devs.push(dev);
            self.devs.len() - 1
        }) as u32
    }

    /// Whether `entry` is a directory that could not be listed, which was reported.
    fn is_unlisted(&self, entry: &Entry) -> bool {
        let kind = self.shards[entry.name.shard()].attributes[entry.attributes as usize].0;
        kind == FileKind::Directory
            && entry.link != NOT_ENTERED
            && self.found[entry.link as usize].is_unlisted()
    }

    fn push(&mut self, mut entry: Entry, dir_dev: u64, times: Option<MoreTimes>) {
        let index = self.entries.len() as u32;
        let shard = entry.name.shard();
        let is_of_image = self.image_shard == Some(shard);
        let from = &mut self.shards[shard];
        let dev = match entry.has(Entry::OTHER_DEV) {
            false if is_of_image => IMAGE_DEV,
            true => from.other_devs.get(&entry.name).copied().unwrap_or(dir_dev),
            false => dir_dev,
        };
        let attributes = |local: usize| from.attributes[local];
        entry.attributes = self.attributes.number(shard, entry.attributes, attributes);
        if entry.xattrs != NONE {
            let sets = &mut from.xattr_sets.values;
            let take = |local: usize| std::mem::take(&mut sets[local]);
            entry.xattrs = self.xattrs.number(shard, entry.xattrs, take);
        }
        if dev != dir_dev && !is_of_image {
            self.other_devs.insert(index, dev);
        }
        if from.plain.contains(&entry.name) {
            self.plain.insert(index);
        }
        if entry.has(Entry::LINKED) {
            let kind = self.attributes.distinct.values[entry.attributes as usize].0;
            self.linked.push((dev, entry.ino, kind, index));
        }
        self.more_times.extend(times);
        self.entries.push(entry);
    }

    fn finish(mut self, origin: Origin) -> ScannedTree {
        let mut texts = Vec::new();
        for mut shard in std::mem::take(&mut self.shards) {
            shard.names.shrink_to_fit();
            shard.targets.shrink_to_fit();
            let Shard {
                names,
                targets,
                target_starts,
                ..
            } = shard;
            texts.push(Texts {
                names,
                targets,
                target_starts,
            });
        }
        let links = group_links(std::mem::take(&mut self.linked));
        self.unify_links(&links);
        ScannedTree {
            origin,
            entries: self.entries,
            more_times: self.more_times,
            dirs: self.dirs,
            depth: self.depth,
            texts,
            attributes: self.attributes.distinct.values,
            xattr_sets: self.xattrs.distinct.values,
            devs: self.devs,
            other_devs: self.other_devs,
            links,
            plain: self.plain,
            given: HashMap::new(),
            equal_links: OnceLock::new(),
        }
    }

    /// Gives all names of an inode the state of the first one, because the inode may have changed
    /// during the walk.
    fn unify_links(&mut self, links: &LinkGroups) {
        self.entries
            .iter_mut()
            .for_each(|entry| entry.set(Entry::LINKED, false));
        for group in 0..links.count() {
            let names = links.names(group);
            let first = self.entries[names[0] as usize];
            let mut times = self.more_times.get(names[0] as usize).copied();
            if let Some(times) = &mut times {
                // Reading a symlink's target by one name changed the atime seen by the next name.
                times.atime = names
                    .iter()
                    .filter_map(|&name| self.more_times[name as usize].atime)
                    .min();
            }
            for &index in names {
                let entry = &mut self.entries[index as usize];
                entry.set_mtime(first.mtime());
                entry.set(Entry::LINKED, true);
                (entry.attributes, entry.xattrs) = (first.attributes, first.xattrs);
                if first.link == NONE {
                    // The size of a symlink belongs to its target, and each name has its own copy
                    // of the target.
                    entry.size = first.size;
                }
                if let Some(times) = times {
                    self.more_times[index as usize] = times;
                }
            }
        }
    }
}

/// Groups names by inode. An inode with only one name in the tree forms no group.
fn group_links(mut linked: Vec<Linked>) -> LinkGroups {
    linked.sort_unstable();
    let same = |a: &Linked, b: &Linked| (a.0, a.1, a.2) == (b.0, b.1, b.2);
    let mut runs: Vec<&[Linked]> = linked.chunk_by(same).filter(|run| run.len() > 1).collect();
    runs.sort_unstable_by_key(|run| run[0].3);
    let mut links = LinkGroups::default();
    runs.iter()
        .for_each(|run| links.push(run.iter().map(|&(_, _, _, entry)| entry)));
    links.index();
    links
}
