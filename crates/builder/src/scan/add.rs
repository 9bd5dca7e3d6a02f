//! Lays single entries over a walk before it is sorted, and gives attributes to entries after that.
//!
//! The new names and each directory that gets some are in a shard of their own, the last one, which
//! overrides the others.

use super::assemble::{DirLocation, assemble, find_dirs};
use super::options::ScanOptions;
use super::shard::{Entry, MoreTimes, NONE, NOT_ENTERED, RawDir, Shard};
use super::tree::ScannedTree;
use super::walk::Walked;
use crate::options::addition::{Addition, Given};
use crate::{Observer, Problem};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weald_format::limits::{FILE_LEN_MAX, NAME_LEN_MAX, TARGET_LEN_MAX};
use weald_format::{Attributes, Error, FileKind, Result, Timestamp};
use weald_image::kind_name;

/// Builds the tree of a walk with the additions of `options`. Also returns the problems of the
/// walk, unordered.
///
/// # Errors
/// As [`assemble`]; `Invalid` for additions that do not fit into the tree; `Io`, `NotFound` for
/// contents that cannot be read.
pub fn assemble_with(
    walked: Walked,
    options: &ScanOptions<'_>,
    observer: &dyn Observer,
) -> Result<(ScannedTree, Vec<Problem>)> {
    if options.additions.is_empty() {
        return assemble(walked);
    }
    let (walked, given) = add(walked, options.additions, observer)?;
    let (mut tree, problems) = assemble(walked)?;
    for (path, given) in &given {
        tree.give(path, given);
    }
    Ok((tree, problems))
}

/// What is given to entries, by path.
type GivenAt = BTreeMap<Vec<u8>, Given>;

fn add(
    mut walked: Walked,
    additions: &[Addition],
    observer: &dyn Observer,
) -> Result<(Walked, GivenAt)> {
    let shards = std::mem::take(&mut walked.shards);
    let mut adder = Adder {
        found: find_dirs(&shards, walked.dir_count),
        added: Shard::new(shards.len()),
        shards,
        dirs: BTreeMap::new(),
        next_number: walked.dir_count,
        files: Vec::new(),
        root_mtime: walked.root_entry.mtime(),
        given: GivenAt::new(),
        observer,
    };
    for addition in additions {
        let put = adder.put(addition);
        put.map_err(|e| e.context(&addition.place))?;
    }
    let shard = adder.shards.len();
    let Adder {
        mut shards,
        mut added,
        dirs,
        next_number,
        files,
        given,
        ..
    } = adder;
    for (number, dir) in dirs {
        let first = added.entries.len();
        for (entry, times) in dir.items.into_values() {
            added.entries.push(entry);
            if walked.keeps_more_times {
                added.more_times.push(times);
            }
        }
        added.dirs.push(RawDir {
            number,
            first,
            count: added.entries.len() - first,
            dev: dir.dev,
        });
    }
    shards.push(added);
    walked.shards = shards;
    walked.dir_count = next_number;
    walked.origin.add_files(files, shard);
    Ok((walked, given))
}

/// An entry with its times.
type Item = (Entry, MoreTimes);

/// A directory that gets entries.
struct Changed {
    dev: u64,
    items: BTreeMap<Vec<u8>, Item>,
}

struct Adder<'a> {
    shards: Vec<Shard>,
    found: Vec<DirLocation>,
    added: Shard,
    /// By number.
    dirs: BTreeMap<u32, Changed>,
    next_number: u32,
    files: Vec<PathBuf>,
    root_mtime: Timestamp,
    given: GivenAt,
    observer: &'a dyn Observer,
}

impl Adder<'_> {
    fn put(&mut self, addition: &Addition) -> Result<()> {
        let names = addition.path.split(|&b| b == b'/');
        let names: Vec<&[u8]> = names.filter(|name| !name.is_empty()).collect();
        if let Some(name) = names.iter().find(|name| name.len() > NAME_LEN_MAX) {
            let what = format!("a name of {} bytes, at most {NAME_LEN_MAX}", name.len());
            return Err(Error::limit(what));
        }
        let Some((name, dirs)) = names.split_last() else {
            if addition
                .kind
                .is_some_and(|kind| kind != FileKind::Directory)
            {
                return Err(Error::invalid("the root of a tree is a directory"));
            }
            self.give(addition);
            return Ok(());
        };
        let mut number = 0;
        for (depth, name) in dirs.iter().enumerate() {
            number = self.enter(number, name, &names[..=depth])?;
        }
        let old = self.open(number).items.get(*name).copied();
        let old_kind = old.map(|(entry, _)| self.kind(&entry));
        let kind = addition.kind.or(old_kind);
        let shown = String::from_utf8_lossy(&addition.path).into_owned();
        let Some(kind) = kind else {
            let what = format!("{shown}: no type, and nothing there whose attributes to change");
            return Err(Error::invalid(what));
        };
        let replaces = addition.contents.is_some()
            || addition.target.is_some()
            || addition.rdev.is_some()
            || old_kind != Some(kind);
        if replaces {
            let old = old.filter(|_| old_kind == Some(kind));
            if old_kind.is_some() && old.is_none() {
                self.observer
                    .replaced(&addition.path, Path::new(&addition.place));
                self.given.retain(|path, _| !is_in(path, &addition.path));
            }
            let item = self.item(name, kind, addition, (number, old));
            let item = item.map_err(|e| e.context(&shown))?;
            self.open(number).items.insert(name.to_vec(), item);
        }
        self.give(addition);
        Ok(())
    }

    fn give(&mut self, addition: &Addition) {
        let given = self.given.entry(addition.path.clone()).or_default();
        given.merge(&addition.given);
    }

    /// The directory of a number, to be changed.
    fn open(&mut self, number: u32) -> &mut Changed {
        if !self.dirs.contains_key(&number) {
            let changed = self.load(number);
            self.dirs.insert(number, changed);
        }
        self.dirs.get_mut(&number).expect("just opened")
    }

    fn load(&self, number: u32) -> Changed {
        let DirLocation { shard, index } = self.found[number as usize];
        let shard = &self.shards[shard as usize];
        let dir = shard.dirs[index as usize];
        let raw = dir.first..dir.first + dir.count;
        let items = raw.filter_map(|raw| {
            let entry = shard.entries[raw];
            let is_entered = self.kind(&entry) == FileKind::Directory && entry.link != NOT_ENTERED;
            let is_unlisted = is_entered
                && (self.found.get(entry.link as usize)).is_some_and(|found| found.is_unlisted());
            let times = shard.more_times.get(raw).copied().unwrap_or_default();
            (!is_unlisted).then(|| (self.name(&entry).to_vec(), (entry, times)))
        });
        Changed {
            dev: dir.dev,
            items: items.collect(),
        }
    }

    /// The number of the directory `name` in that of `number`, which is made if nothing is there.
    fn enter(&mut self, number: u32, name: &[u8], path: &[&[u8]]) -> Result<u32> {
        let old = self.open(number).items.get(name).copied();
        let dev = self.open(number).dev;
        let (mut entry, times) = match old {
            Some(old) => old,
            None => self.item(
                name,
                FileKind::Directory,
                &Addition::default(),
                (number, None),
            )?,
        };
        if self.kind(&entry) != FileKind::Directory {
            return Err(Error::invalid(format!(
                "'{}' is a {} in the tree, expected a directory or nothing",
                String::from_utf8_lossy(&path.join(&b'/')),
                kind_name(self.kind(&entry))
            )));
        }
        if entry.link == NOT_ENTERED {
            let other = self.shard(&entry).other_devs.get(&entry.name).copied();
            entry.link = self.make_dir(other.unwrap_or(dev))?;
        }
        self.open(number)
            .items
            .insert(name.to_vec(), (entry, times));
        Ok(entry.link)
    }

    /// A directory without entries.
    fn make_dir(&mut self, dev: u64) -> Result<u32> {
        let number = self.next_number;
        let next = number.checked_add(1).filter(|&next| next < NOT_ENTERED);
        self.next_number = next.ok_or_else(|| Error::limit("more than 2^32 directories"))?;
        let items = BTreeMap::new();
        self.dirs.insert(number, Changed { dev, items });
        Ok(number)
    }

    /// A new entry of `kind`, with the attributes of `old`, which has its name in the directory.
    fn item(
        &mut self,
        name: &[u8],
        kind: FileKind,
        addition: &Addition,
        (number, old): (u32, Option<Item>),
    ) -> Result<Item> {
        let mut attributes = old.map_or(usual_attributes(kind), |(old, _)| {
            self.shard(&old).attributes[old.attributes as usize].1
        });
        if kind.is_device() {
            attributes.rdev = match (addition.rdev, old) {
                (Some(rdev), _) => rdev,
                (None, Some(_)) => attributes.rdev,
                (None, None) => return Err(Error::invalid("no device")),
            };
        }
        let xattrs = old.and_then(|(old, _)| {
            let sets = &self.shard(&old).xattr_sets.values;
            sets.get(old.xattrs as usize).cloned()
        });
        let mut mtime = old.map_or(self.root_mtime, |(old, _)| old.mtime());
        self.added.push(name, 0);
        let mut entry = self.added.entries.pop().expect("just pushed");
        match kind {
            FileKind::Directory => entry.link = self.make_dir(self.dirs[&number].dev)?,
            FileKind::Symlink => {
                let target = addition.target.as_deref().unwrap_or_default();
                if target.is_empty() || target.len() > TARGET_LEN_MAX || target.contains(&0) {
                    return Err(Error::invalid(format!(
                        "link: expected a target of 1 to {TARGET_LEN_MAX} bytes"
                    )));
                }
                entry.size = target.len() as u64;
                entry.link = self.added.target_starts.len() as u32;
                self.added
                    .target_starts
                    .push(self.added.targets.len() as u64);
                self.added.targets.extend_from_slice(target);
            }
            FileKind::Regular => {
                if let Some(path) = &addition.contents {
                    mtime = self.take_file(&mut entry, path, addition.size)?;
                } else if addition.size.is_some_and(|size| size > 0) {
                    let what = "size: a file without contents= is empty";
                    return Err(Error::invalid(what));
                }
            }
            _ => {}
        }
        entry.set_mtime(mtime);
        entry.attributes = self.added.intern_attributes(kind, attributes);
        entry.xattrs = xattrs.map_or(NONE, |set| self.added.intern_xattrs(set));
        Ok((entry, MoreTimes::default()))
    }

    /// Makes `entry` the file at `path`, which must have `size` bytes. Returns its mtime.
    fn take_file(
        &mut self,
        entry: &mut Entry,
        path: &Path,
        size: Option<u64>,
    ) -> Result<Timestamp> {
        let shown = path.display();
        let stat = weald_sys::stat_path(path).map_err(|e| Error::io(shown.to_string(), e))?;
        if stat.kind != FileKind::Regular || stat.size > FILE_LEN_MAX {
            return Err(Error::invalid(format!("{shown}: expected a regular file")));
        }
        if let Some(size) = size.filter(|&size| size != stat.size) {
            return Err(Error::invalid(format!(
                "size: the line says {size} bytes, {shown} has {}",
                stat.size
            )));
        }
        (entry.size, entry.ino) = (stat.size, stat.ino);
        entry.link = self.files.len() as u32;
        self.files.push(path.to_owned());
        entry.set(Entry::OTHER_DEV, true);
        self.added.other_devs.insert(entry.name, stat.dev);
        Ok(stat.mtime)
    }

    fn shard(&self, entry: &Entry) -> &Shard {
        self.shards.get(entry.name.shard()).unwrap_or(&self.added)
    }

    fn kind(&self, entry: &Entry) -> FileKind {
        self.shard(entry).attributes[entry.attributes as usize].0
    }

    fn name(&self, entry: &Entry) -> &[u8] {
        entry.name.slice(&self.shard(entry).names)
    }
}

/// Whether `path` is `dir` or lies in it.
fn is_in(path: &[u8], dir: &[u8]) -> bool {
    let below = path.strip_prefix(dir);
    below.is_some_and(|below| matches!(below.first(), None | Some(b'/')))
}

/// Attributes of an entry of which nothing is said: of root, and readable for all.
fn usual_attributes(kind: FileKind) -> Attributes {
    Attributes {
        permissions: match kind {
            FileKind::Directory => 0o755,
            FileKind::Symlink => 0o777,
            _ => 0o644,
        },
        ..Attributes::default()
    }
}
