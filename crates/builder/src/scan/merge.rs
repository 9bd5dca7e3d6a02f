//! Adds a directory to the tree of an image: merges the walks of both before they are sorted.
//!
//! Invariants:
//! 1. The shards of the directory come first, then that of the image, then one for the directories
//!    with entries of both. The shard of an entry's name also holds its attributes and target.
//! 2. Directories of the image keep their numbers; those of the source directory follow. A merged
//!    directory has its number in the image. Its entries are in the last shard, which overrides the
//!    shard of the image.

use super::assemble::{DirLocation, assemble, find_dirs};
use super::error::{source_error, walk_error};
use super::image::walk_image;
use super::options::ScanOptions;
use super::shard::{Entry, MoreTimes, NONE, NOT_ENTERED, RawDir, SHARD_COUNT_MAX, Shard};
use super::tree::ScannedTree;
use super::walk::{Walked, walk};
use crate::Observer;
use crate::options::AddAt;
use crate::scan::source::{IMAGE_DEV, Origin};
use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;
use weald_filter::Filter;
use weald_format::{Attributes, Error, FileKind, Result};
use weald_image::{Image, kind_name};

/// Permissions of created parent directories.
const PARENT_PERMISSIONS: u16 = 0o755;

/// Reads the tree of `image` and adds the directory `source` at `at`. Names of `source` replace
/// existing ones. Two directories of the same name are merged and get the attributes of the one in
/// `source`. The options about what to keep apply to `source` only.
///
/// # Errors
/// As [`super::scan`] and [`super::scan_image`]; `Invalid` if a component of `at` exists and is no
/// directory.
/// # Cost
/// As both, and 48 more bytes for each entry of a directory that both have.
pub fn scan_onto(
    source: &Path,
    image: &Arc<Image>,
    at: &AddAt,
    options: &ScanOptions<'_>,
    observer: &dyn Observer,
) -> Result<ScannedTree> {
    if options.threads > SHARD_COUNT_MAX - 2 {
        return Err(Error::limit(format!(
            "{} threads: at most {} are possible",
            options.threads,
            SHARD_COUNT_MAX - 2
        )));
    }
    let everything = ScanOptions {
        filter: &Filter::new(),
        script: None,
        keep_xattrs: true,
        ..*options
    };
    let root = weald_sys::open_dir(source).map_err(|e| source_error(source, e))?;
    let added = walk(root, options, observer).map_err(|e| walk_error(source, e))?;
    let kept = walk_image(image, &everything, added.shards.len(), observer)?;
    let (tree, mut problems) = assemble(merge(added, kept, at)?)?;
    problems.sort_by(|a, b| a.path.cmp(&b.path));
    problems
        .iter()
        .for_each(|problem| observer.problem(problem));
    Ok(tree)
}

/// An entry with its times.
type Item = (Entry, MoreTimes);

/// Inserts the walk `added` of a directory into the walk `kept` of an image, at `at`.
fn merge(mut added: Walked, mut kept: Walked, at: &AddAt) -> Result<Walked> {
    let (Origin::Directory(dir), Origin::Image(image)) = (added.origin, kept.origin) else {
        return Err(Error::invalid("expected a directory and an image"));
    };
    let image_shard = added.shards.len();
    let base = kept.dir_count;
    let dir_count = base.checked_add(added.dir_count);
    let dir_count = dir_count.filter(|&count| count < NOT_ENTERED - u32::from(u16::MAX));
    let dir_count = dir_count.ok_or_else(|| Error::limit("more than 2^32 directories"))?;
    added
        .shards
        .iter_mut()
        .for_each(|shard| move_dirs(shard, base));
    let mut shards = added.shards;
    for shard in &mut kept.shards {
        shard.dirs.iter_mut().for_each(|dir| dir.dev = IMAGE_DEV);
    }
    shards.append(&mut kept.shards);
    let mut merge = Merge {
        found: find_dirs(&shards, dir_count),
        merged: Shard::new(shards.len()),
        shards,
        next_number: dir_count,
        keeps_more_times: added.keeps_more_times,
        waiting: Vec::new(),
    };
    added.root_entry.link = base;
    let root = (added.root_entry, added.root_times);
    let (mut root_entry, mut root_times) = (kept.root_entry, kept.root_times);
    if at.path.is_empty() {
        (root_entry, root_times) = root;
        root_entry.link = 0;
        merge.waiting.push((0, base));
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
    Ok(Walked {
        origin: Origin::Added {
            dir,
            image,
            image_shard,
            at_len: at.prefix_len(),
        },
        root_dev: if at.path.is_empty() {
            added.root_dev
        } else {
            IMAGE_DEV
        },
        root_entry,
        root_times,
        shards,
        dir_count: next_number,
        keeps_more_times: added.keeps_more_times,
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

struct Merge {
    shards: Vec<Shard>,
    /// Location of each directory of the two walks.
    found: Vec<DirLocation>,
    /// The shard of merged directories.
    merged: Shard,
    /// Number of the next created directory.
    next_number: u32,
    keeps_more_times: bool,
    /// Directories still to be merged: numbers in the image and in the source.
    waiting: Vec<(u32, u32)>,
}

impl Merge {
    fn run(&mut self) {
        while let Some((number, added)) = self.waiting.pop() {
            let (old, _) = self.list(number);
            let (new, dev) = self.list(added);
            self.put(number, dev, &old, new);
        }
    }

    /// Inserts the `root` of the source at a path below the root of the image.
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
                return Err(not_a_directory(&names[..=index], kind));
            }
            if index + 1 < names.len() {
                (number, depth) = (entry.link, index + 1);
            }
        }
        let [missing @ .., last] = &names[depth..] else {
            return Err(Error::invalid("no path"));
        };
        let mut item = self.named(root, last);
        for name in missing.iter().rev() {
            let made = self.next_number;
            self.next_number += 1;
            let parent = self.parent(at, name, made, &item);
            self.put(made, IMAGE_DEV, &[], vec![item]);
            item = parent;
        }
        let (old, dev) = self.list(number);
        self.put(number, dev, &old, vec![item]);
        Ok(())
    }

    /// Renames the root of the source to `name`.
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
        let attributes = Attributes {
            permissions: PARENT_PERMISSIONS,
            uid: at.uid,
            gid: at.gid,
            rdev: 0,
        };
        let shard = &mut self.merged;
        let attributes = shard.intern_attributes(FileKind::Directory, attributes);
        shard.push(name, 0);
        let mut entry = shard.entries.pop().expect("just pushed");
        entry.set_mtime(below.0.mtime());
        (entry.attributes, entry.link, entry.xattrs) = (attributes, number, NONE);
        (entry, below.1)
    }

    fn kind(&self, entry: &Entry) -> FileKind {
        let shard = self.shards.get(entry.name.shard()).unwrap_or(&self.merged);
        shard.attributes[entry.attributes as usize].0
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        let shard = self.shards.get(entry.name.shard()).unwrap_or(&self.merged);
        entry.name.slice(&shard.names)
    }

    fn find(&self, number: u32, name: &[u8]) -> Option<Entry> {
        let DirLocation { shard, index } = self.found[number as usize];
        let shard = &self.shards[shard as usize];
        let RawDir { first, count, .. } = shard.dirs[index as usize];
        let entries = &shard.entries[first..first + count];
        let index = entries.binary_search_by(|entry| entry.name.slice(&shard.names).cmp(name));
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
                || !self.found[entry.link as usize].is_unlisted()
        };
        (items.filter(is_listed).collect(), dev)
    }

    /// Writes directory `number` with the entries of `old` and `new`, both sorted. An entry of
    /// `new` replaces one of the same name; two directories are queued for merging.
    fn put(&mut self, number: u32, dev: u64, old: &[Item], new: Vec<Item>) {
        let first = self.merged.entries.len();
        let mut old = old.iter().copied().peekable();
        for (mut entry, times) in new {
            while let Some(item) = old.next_if(|item| self.order(item, &entry) == Ordering::Less) {
                self.push(item);
            }
            let same = old.next_if(|item| self.order(item, &entry) == Ordering::Equal);
            let is_dir = |entry: &Entry| self.kind(entry) == FileKind::Directory;
            if let Some((same, _)) = same.filter(|(same, _)| is_dir(same) && is_dir(&entry)) {
                if entry.link != NOT_ENTERED {
                    self.waiting.push((same.link, entry.link));
                }
                entry.link = same.link;
            }
            self.push((entry, times));
        }
        old.for_each(|item| self.push(item));
        self.merged.dirs.push(RawDir {
            number,
            first,
            count: self.merged.entries.len() - first,
            dev,
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

fn not_a_directory(names: &[&[u8]], kind: FileKind) -> Error {
    Error::invalid(format!(
        "--at: '{}' is a {} in the image, expected a directory or nothing",
        String::from_utf8_lossy(&names.join(&b'/')),
        kind_name(kind)
    ))
}
