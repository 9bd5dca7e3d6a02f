//! Puts one walk over another: merges them before they are sorted.
//!
//! Invariants:
//! 1. The shards of the lower walk come first, then those of the upper one, then one for the
//!    directories with entries of both. The shard of an entry's name also holds its attributes and
//!    target.
//! 2. Directories of the lower walk keep their numbers; those of the upper one follow. A directory
//!    of both is in the last shard, which overrides the others, under its lower number, or in a
//!    layer of overlayfs, which can show a lower directory twice, under its upper one.

use super::assemble::{DirLocation, find_dirs};
use super::layer::{Layer, LayerKind};
use super::shard::{Entry, MoreTimes, NONE, NOT_ENTERED, RawDir, Shard};
use super::upper::{Mark, Marks};
use super::walk::Walked;
use crate::Problem;
use crate::options::AddAt;
use crate::scan::source::{IMAGE_DEV, Origin};
use std::cmp::Ordering;
use std::collections::HashMap;
use weald_format::{Attributes, Error, FileKind, Result};
use weald_image::kind_name;

/// Permissions of created parent directories.
const PARENT_PERMISSIONS: u16 = 0o755;

/// Gets the path of an entry that is replaced.
type Tell<'a> = dyn Fn(&[u8]) + 'a;

/// An entry with its times.
type Item = (Entry, MoreTimes);

impl Walked {
    /// A walk of a root without entries, made for the tree of `upper` at `at`, whose shards begin
    /// with number 1.
    pub fn empty(upper: &Self, at: &AddAt) -> Self {
        let mut shard = Shard::new(0);
        shard.push(b"", 0);
        let attributes = shard.intern_attributes(FileKind::Directory, made_attributes(at));
        let mut root_entry = shard.entries.pop().expect("just pushed");
        root_entry.set_mtime(upper.root_entry.mtime());
        (root_entry.attributes, root_entry.link) = (attributes, 0);
        shard.dirs.push(RawDir {
            number: 0,
            first: 0,
            count: 0,
            dev: upper.root_dev,
        });
        Self {
            origin: Origin::none(),
            root_dev: upper.root_dev,
            root_entry,
            root_times: upper.root_times,
            shards: vec![shard],
            dir_count: 1,
            keeps_more_times: upper.keeps_more_times,
        }
    }
}

fn made_attributes(at: &AddAt) -> Attributes {
    Attributes {
        permissions: PARENT_PERMISSIONS,
        uid: at.uid,
        gid: at.gid,
        rdev: 0,
    }
}

/// Puts the walk `upper` of `layer` over the walk `lower`. `told` gets the path of each entry that
/// is replaced, unless both are directories or `lower` is an image.
pub fn merge(
    mut upper: Walked,
    mut lower: Walked,
    layer: &Layer<'_>,
    told: &Tell<'_>,
) -> Result<Walked> {
    let at = &layer.at;
    let is_image = lower.origin.is_image();
    let first = lower.shards.len();
    let base = lower.dir_count;
    let dir_count = base.checked_add(upper.dir_count);
    let dir_count = dir_count.filter(|&count| count < NOT_ENTERED - u32::from(u16::MAX));
    let dir_count = dir_count.ok_or_else(|| Error::limit("more than 2^32 directories"))?;
    upper
        .shards
        .iter_mut()
        .for_each(|shard| move_dirs(shard, base));
    if is_image {
        for shard in &mut lower.shards {
            shard.dirs.iter_mut().for_each(|dir| dir.dev = IMAGE_DEV);
        }
        lower.root_dev = IMAGE_DEV;
    }
    let marks = match layer.kind {
        LayerKind::Plain => None,
        LayerKind::Upper { xattrs, .. } => Some(Marks::take(&mut upper.shards, first, xattrs)),
    };
    let mut shards = lower.shards;
    shards.append(&mut upper.shards);
    let mut merge = Merge {
        found: find_dirs(&shards, dir_count),
        merged: Shard::new(shards.len()),
        shards,
        next_number: dir_count,
        keeps_more_times: upper.keeps_more_times,
        marks,
        link_devs: HashMap::new(),
        told: (!is_image).then_some(told),
        waiting: Vec::new(),
    };
    upper.root_entry.link = base;
    let root = (upper.root_entry, upper.root_times);
    let (mut root_entry, mut root_times) = (lower.root_entry, lower.root_times);
    if at.path.is_empty() {
        (root_entry, root_times) = root;
        let mark = merge.mark(&root_entry).cloned();
        let is_opaque = mark.as_ref().is_some_and(|mark| mark.is_opaque);
        if let Some(mark) = mark {
            root_entry.xattrs = mark.xattrs;
        }
        root_entry.link = 0;
        merge.waiting.push(Waiting {
            number: 0,
            lower: (!is_opaque).then_some(0),
            upper: base,
            path: Vec::new(),
        });
    } else {
        merge.put_at(at, root)?
    }
    merge.run();
    let Merge {
        mut shards,
        merged,
        next_number,
        ..
    } = merge;
    shards.push(merged);
    let mut origin = lower.origin;
    let is_upper = matches!(layer.kind, LayerKind::Upper { .. });
    origin.push(upper.origin, at.prefix_len(), is_upper);
    Ok(Walked {
        origin,
        root_dev: if at.path.is_empty() {
            upper.root_dev
        } else {
            lower.root_dev
        },
        root_entry,
        root_times,
        shards,
        dir_count: next_number,
        keeps_more_times: upper.keeps_more_times,
    })
}

/// Adds `base` to the numbers of the directories in `shard`.
fn move_dirs(shard: &mut Shard, base: u32) {
    shard.dirs.iter_mut().for_each(|dir| dir.number += base);
    let Shard {
        entries,
        attributes,
        ..
    } = shard;
    for entry in entries {
        let is_dir = attributes[entry.attributes as usize].0 == FileKind::Directory;
        if is_dir && entry.link != NOT_ENTERED {
            entry.link += base;
        }
    }
}

/// A directory that is still to be put together.
struct Waiting {
    /// The number that it gets.
    number: u32,
    /// The lower directory, if there is one.
    lower: Option<u32>,
    /// The upper directory.
    upper: u32,
    /// Its path from the root, with a slash at the end; empty for the root.
    path: Vec<u8>,
}

struct Merge<'a> {
    shards: Vec<Shard>,
    /// Location of each directory of the two walks.
    found: Vec<DirLocation>,
    /// The shard of directories of both.
    merged: Shard,
    /// Number of the next created directory.
    next_number: u32,
    keeps_more_times: bool,
    /// What the xattrs of overlayfs in the upper walk say, if it is a layer of overlayfs.
    marks: Option<Marks>,
    /// Upper inodes with several names and data in the image below, and their numbers.
    link_devs: HashMap<u64, u64>,
    /// Gets the paths of what is replaced.
    told: Option<&'a Tell<'a>>,
    waiting: Vec<Waiting>,
}

impl Merge<'_> {
    fn run(&mut self) {
        while let Some(dir) = self.waiting.pop() {
            let lower = dir.lower.map(|number| self.list(number).0);
            let (upper, dev) = self.list(dir.upper);
            self.put(&dir, dev, &lower.unwrap_or_default(), upper);
        }
    }

    /// Inserts the `root` of the upper walk at a path below the root of the lower one.
    fn put_at(&mut self, at: &AddAt, root: Item) -> Result<()> {
        let names: Vec<&[u8]> = at.path.split(|&b| b == b'/').collect();
        // The deepest existing directory on the path.
        let (mut number, mut depth) = (0, 0);
        for (index, name) in names.iter().enumerate() {
            let Some(entry) = self.find(number, name) else {
                break;
            };
            let kind = self.kind(&entry);
            if kind != FileKind::Directory {
                let place = match self.told {
                    None => "the image",
                    Some(_) => "an earlier source",
                };
                return Err(not_a_directory(&names[..=index], kind, place));
            }
            if index + 1 < names.len() {
                (number, depth) = (entry.link, index + 1);
            }
        }
        let [missing @ .., last] = &names[depth..] else {
            return Err(Error::invalid("no path"));
        };
        let mut item = self.named(root, last);
        let (lower, dev) = self.list(number);
        for (index, name) in missing.iter().enumerate().rev() {
            let made = self.next_number;
            self.next_number += 1;
            let parent = self.parent(at, name, made, &item);
            let made = made_dir(made, &names[..=depth + index]);
            self.put(&made, dev, &[], vec![item]);
            item = parent;
        }
        self.put(&made_dir(number, &names[..depth]), dev, &lower, vec![item]);
        Ok(())
    }

    /// Renames the root of the upper walk to `name`.
    fn named(&mut self, (mut entry, times): Item, name: &[u8]) -> Item {
        let shard = &mut self.shards[entry.name.shard()];
        shard.push(name, entry.ino);
        if let Some(named) = shard.entries.pop() {
            entry.name = named.name;
        }
        (entry, times)
    }

    /// Creates a directory `name` above `below`, which neither tree has. It gets the caller's owner
    /// and the times of the source, so that the same source gives the same bytes.
    fn parent(&mut self, at: &AddAt, name: &[u8], number: u32, below: &Item) -> Item {
        let shard = &mut self.merged;
        let attributes = shard.intern_attributes(FileKind::Directory, made_attributes(at));
        shard.push(name, 0);
        let mut entry = shard.entries.pop().expect("just pushed");
        entry.set_mtime(below.0.mtime());
        (entry.attributes, entry.link, entry.xattrs) = (attributes, number, NONE);
        (entry, below.1)
    }

    fn shard(&self, entry: &Entry) -> &Shard {
        self.shards.get(entry.name.shard()).unwrap_or(&self.merged)
    }

    fn kind(&self, entry: &Entry) -> FileKind {
        self.shard(entry).attributes[entry.attributes as usize].0
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        entry.name.slice(&self.shard(entry).names)
    }

    fn mark(&self, entry: &Entry) -> Option<&Mark> {
        self.marks.as_ref()?.of(entry)
    }

    /// The entry `name` of the directory `number`.
    fn find(&self, number: u32, name: &[u8]) -> Option<Entry> {
        let DirLocation { shard, index } = *self.found.get(number as usize)?;
        let shard = &self.shards[shard as usize];
        let RawDir { first, count, .. } = *shard.dirs.get(index as usize)?;
        let entries = &shard.entries[first..first + count];
        let index = entries.binary_search_by(|entry| self.name(entry).cmp(name));
        index.ok().map(|index| entries[index])
    }

    /// Returns the entries and the device of a directory, without subdirectories that could not be
    /// listed, which was reported.
    fn list(&self, number: u32) -> (Vec<Item>, u64) {
        let DirLocation { shard, index } = self.found[number as usize];
        let shard = &self.shards[shard as usize];
        let RawDir {
            first, count, dev, ..
        } = shard.dirs[index as usize];
        let item = |raw: usize| {
            let times = shard.more_times.get(raw).copied();
            (shard.entries[raw], times.unwrap_or_default())
        };
        let items = (first..first + count).map(item);
        let is_listed = |(entry, _): &Item| {
            self.kind(entry) != FileKind::Directory
                || entry.link == NOT_ENTERED
                || self
                    .found
                    .get(entry.link as usize)
                    .is_none_or(|found| !found.is_unlisted())
        };
        (items.filter(is_listed).collect(), dev)
    }

    /// Writes the directory `dir` with the entries of `lower` and `upper`, both sorted. An entry of
    /// `upper` replaces one of the same name; two directories wait to be merged.
    fn put(&mut self, dir: &Waiting, dev: u64, lower: &[Item], upper: Vec<Item>) {
        let first = self.merged.entries.len();
        let mut lower = lower.iter().copied().peekable();
        for (entry, times) in upper {
            while let Some(item) = lower.next_if(|item| self.order(item, &entry) == Ordering::Less)
            {
                self.push(item);
            }
            let same = lower.next_if(|item| self.order(item, &entry) == Ordering::Equal);
            let same = same.map(|(same, _)| same);
            let shown = match self.mark(&entry).cloned() {
                None => Some(self.put_over(dir, entry, same)),
                Some(mark) => self.put_marked(dir, entry, &mark, same),
            };
            if let Some(entry) = shown {
                self.push((entry, times));
            }
        }
        lower.for_each(|item| self.push(item));
        self.merged.dirs.push(RawDir {
            number: dir.number,
            first,
            count: self.merged.entries.len() - first,
            dev,
        });
    }

    /// What is shown for `entry` of a plain layer over `same`, which has its name.
    fn put_over(&mut self, dir: &Waiting, mut entry: Entry, same: Option<Entry>) -> Entry {
        let Some(same) = same else {
            return entry;
        };
        let is_dir = |entry: &Entry| self.kind(entry) == FileKind::Directory;
        if is_dir(&same) && is_dir(&entry) {
            if entry.link == NOT_ENTERED {
                entry.link = same.link;
                return entry;
            }
            if same.link != NOT_ENTERED {
                let path = [&dir.path, self.name(&entry), b"/"].concat();
                self.waiting.push(Waiting {
                    number: same.link,
                    lower: Some(same.link),
                    upper: entry.link,
                    path,
                });
                entry.link = same.link;
            }
        } else if let Some(told) = self.told {
            told(&[&dir.path, self.name(&entry)].concat());
        }
        entry
    }

    /// What is shown for `entry` of a layer of overlayfs over `same`; `None` for a whiteout, and
    /// for a file whose data are missing, which is reported.
    fn put_marked(
        &mut self,
        dir: &Waiting,
        mut entry: Entry,
        mark: &Mark,
        same: Option<Entry>,
    ) -> Option<Entry> {
        entry.xattrs = mark.xattrs;
        let (kind, attributes) = self.shard(&entry).attributes[entry.attributes as usize];
        let is_empty_file = kind == FileKind::Regular && entry.size == 0;
        if kind == FileKind::CharDevice && attributes.rdev == 0 || mark.is_whiteout && is_empty_file
        {
            return None;
        }
        let named = mark
            .redirect
            .as_deref()
            .map(|path| self.lower_at(dir, path));
        let below = named
            .unwrap_or(same)
            .filter(|below| self.kind(below) == kind);
        match kind {
            FileKind::Directory => {
                if mark.redirect.is_some() && below.is_none() {
                    self.report(
                        dir,
                        &entry,
                        "renamed in this layer, and not in the image below it",
                    );
                }
                let below = below.filter(|_| !mark.is_opaque).map(|below| below.link);
                if entry.link == NOT_ENTERED {
                    return Some(entry);
                }
                let path = [&dir.path, self.name(&entry), b"/"].concat();
                self.waiting.push(Waiting {
                    number: entry.link,
                    lower: below,
                    upper: entry.link,
                    path,
                });
            }
            FileKind::Regular if mark.is_metacopy => match below {
                Some(below) => return Some(self.with_content(&entry, &below)),
                None => {
                    let what = "left out: its data should be in the image below, and are not";
                    self.report(dir, &entry, what);
                    return None;
                }
            },
            _ => {}
        }
        Some(entry)
    }

    /// The entry of the lower walk at `path`, which a layer of overlayfs names: from the root, or a
    /// name in the lower directory of `dir`.
    fn lower_at(&self, dir: &Waiting, path: &[u8]) -> Option<Entry> {
        let Some(path) = path.strip_prefix(b"/") else {
            return self.find(dir.lower?, path);
        };
        let mut names = path.split(|&byte| byte == b'/');
        let first = self.find(0, names.next()?);
        names.fold(first, |found, name| {
            let found = found.filter(|found| self.kind(found) == FileKind::Directory);
            self.find(found?.link, name)
        })
    }

    /// The file `entry` with the data of the file `below` of the image: an entry that is kept from
    /// there, with other attributes.
    fn with_content(&mut self, entry: &Entry, below: &Entry) -> Entry {
        let name = self.name(entry).to_vec();
        let from = self.shard(entry);
        let (kind, attributes) = from.attributes[entry.attributes as usize];
        let xattrs = from.xattr_sets.values.get(entry.xattrs as usize).cloned();
        let shard = &mut self.shards[below.name.shard()];
        shard.push(&name, below.ino);
        let mut kept = shard.entries.pop().expect("just pushed");
        kept.set_mtime(entry.mtime());
        (kept.size, kept.link) = (below.size, below.link);
        kept.attributes = shard.intern_attributes(kind, attributes);
        kept.xattrs = xattrs.map_or(NONE, |set| shard.intern_xattrs(set));
        if entry.has(Entry::LINKED) {
            // Names of this inode, and not of the one below: they get a device of their own.
            let next = self.link_devs.len() as u64;
            let number = *self.link_devs.entry(entry.ino).or_insert(next);
            kept.set(Entry::LINKED, true);
            kept.set(Entry::OTHER_DEV, true);
            shard.other_devs.insert(kept.name, IMAGE_DEV - 1 - number);
        }
        kept
    }

    fn report(&mut self, dir: &Waiting, entry: &Entry, what: &str) {
        let path = [&dir.path, self.name(entry)].concat();
        let shard = entry.name.shard();
        self.shards[shard].problems.push(Problem {
            path,
            what: what.to_owned(),
        });
    }

    fn order(&self, item: &Item, entry: &Entry) -> Ordering {
        self.name(&item.0).cmp(self.name(entry))
    }

    fn push(&mut self, (entry, times): Item) {
        self.merged.entries.push(entry);
        if self.keeps_more_times {
            self.merged.more_times.push(times);
        }
    }
}

/// A directory at the path of `names` that gets `number`.
fn made_dir(number: u32, names: &[&[u8]]) -> Waiting {
    let path = names.iter().flat_map(|name| [name, &b"/"[..]]);
    Waiting {
        number,
        lower: None,
        upper: number,
        path: path.collect::<Vec<_>>().concat(),
    }
}

fn not_a_directory(names: &[&[u8]], kind: FileKind, place: &str) -> Error {
    Error::invalid(format!(
        "'{}' is a {} in {place}, expected a directory or nothing",
        String::from_utf8_lossy(&names.join(&b'/')),
        kind_name(kind)
    ))
}
