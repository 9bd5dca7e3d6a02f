//! Scans the tree of an image into one shard, directory by directory.

use super::add::assemble_with;
use super::options::ScanOptions;
use super::shard::{Entry, MoreTimes, NONE, NOT_ENTERED, RawDir, Shard};
use super::tree::ScannedTree;
use super::walk::Walked;
use crate::options::script::{Candidate, Script};
use crate::progress::{Observer, Progress, Stage};
use crate::scan::source::{LayerSource, Origin};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weald_filter::{DIR_FILE_LEN_MAX, DirRules};
use weald_format::{
    Attributes, Error, FileKind, Ids, InodeNo, Result, XattrSetId, permissions_without_acl,
};
use weald_image::{Image, Inode, OpenedDirectory};

/// Least time between two progress reports.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Reads the tree of `image`.
///
/// # Errors
/// `Io`, `Corrupt`; `Limit` as [`super::scan`]; `Invalid` "interrupted" if cancelled, or if the
/// script fails.
/// # Cost
/// Reads every entry; memory as [`super::scan`].
pub fn scan_image(
    image: &Arc<Image>,
    options: &ScanOptions<'_>,
    observer: &dyn Observer,
) -> Result<ScannedTree> {
    let walked = walk_image(image, options, observer)?;
    let (tree, _) = assemble_with(walked, options, observer)?;
    Ok(tree)
}

/// Scans the tree of `image` into the shard with number 0. `link` of a regular file is the id of
/// its content.
pub fn walk_image(
    image: &Arc<Image>,
    options: &ScanOptions<'_>,
    observer: &dyn Observer,
) -> Result<Walked> {
    let mut walk = ImageWalk {
        image,
        options,
        observer,
        shard: Shard::new(0),
        xattrs: HashMap::new(),
        dir_count: 1,
        file_len: 0,
        last_report: Instant::now(),
    };
    let root = image.root()?;
    walk.push(b"", &root, b"")?;
    let root_entry = walk.shard.entries.pop().ok_or_else(no_root)?;
    let root_times = walk.shard.more_times.pop().unwrap_or_default();
    let mut waiting = vec![Waiting {
        parent: None,
        ino: root.ino,
        number: 0,
        prefix: Vec::new(),
        above: DirRules::default(),
    }];
    while let Some(dir) = waiting.pop() {
        walk.list(dir, &mut waiting)?;
    }
    Ok(Walked {
        origin: Origin::new(LayerSource::Image(image.clone()), 0..1),
        root_dev: 0,
        root_entry,
        root_times,
        dir_count: walk.dir_count,
        shards: vec![walk.shard],
        keeps_more_times: options.keeps_more_times(),
    })
}

fn no_root() -> Error {
    Error::invalid("no root")
}

/// A directory that is to be listed.
struct Waiting {
    /// The directory that it lies in: from the root, it would be found in as many steps as it is
    /// deep.
    parent: Option<OpenedDirectory>,
    ino: InodeNo,
    number: u32,
    /// Path with a trailing slash, if the filter or the script needs paths.
    prefix: Vec<u8>,
    /// Rules in force in the parent.
    above: DirRules,
}

struct ImageWalk<'a> {
    image: &'a Image,
    options: &'a ScanOptions<'a>,
    observer: &'a dyn Observer,
    shard: Shard,
    /// Xattr sets of the image seen so far, and their numbers in the shard.
    xattrs: HashMap<XattrSetId, u32>,
    dir_count: u32,
    file_len: u64,
    last_report: Instant,
}

impl ImageWalk<'_> {
    fn needs_paths(&self) -> bool {
        !self.options.filter.is_empty() || self.options.script.is_some_and(Script::wants_entries)
    }

    fn list(&mut self, dir: Waiting, waiting: &mut Vec<Waiting>) -> Result<()> {
        if self.observer.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
        let first = self.shard.entries.len();
        let image = self.image;
        let rules = self.rules(&dir)?;
        let mut failed = None;
        let opened = match &dir.parent {
            Some(parent) => image.open_directory_in(parent, dir.ino)?,
            None => image.open_directory(dir.ino)?,
        };
        image.read_opened(&opened, 0, &mut |_, name, inode| match self.take(
            &rules,
            &dir.prefix,
            name,
            inode,
        ) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(()), Err)?;
        self.shard.sort_and_dedup(first);
        self.queue_children(first, (&opened, &dir.prefix), &rules, waiting)?;
        self.shard.dirs.push(RawDir {
            number: dir.number,
            first,
            count: self.shard.entries.len() - first,
            dev: 0,
        });
        self.report_progress();
        Ok(())
    }

    /// Returns the rules in force in `dir`.
    fn rules(&self, dir: &Waiting) -> Result<DirRules> {
        let filter = self.options.filter;
        if !filter.asks_dirs() {
            return Ok(DirRules::default());
        }
        let path = dir.prefix.strip_suffix(b"/").unwrap_or(&dir.prefix);
        filter.below(&dir.above, path, &mut |name| {
            let inode = self.image.lookup(dir.ino, name)?;
            let Some(inode) = inode.filter(|inode| inode.kind != FileKind::Directory) else {
                return Ok(None);
            };
            match inode.kind {
                FileKind::Regular if inode.size.0 <= DIR_FILE_LEN_MAX => {
                    let mut text = vec![0; inode.size.0 as usize];
                    let mut done = 0;
                    while done < text.len() {
                        match self.image.read_at(&inode, done as u64, &mut text[done..])? {
                            0 => break,
                            len => done += len,
                        }
                    }
                    Ok(Some(text))
                }
                FileKind::Regular => Err(Error::limit(format!(
                    "filter file: longer than {DIR_FILE_LEN_MAX} bytes"
                ))),
                // Same as in a directory of the host: symlinks are not followed.
                FileKind::Symlink => Err(Error::invalid("filter file: a symbolic link")),
                _ => Ok(None),
            }
        })
    }

    /// Numbers the directories from entry `first` on and queues them.
    fn queue_children(
        &mut self,
        first: usize,
        (opened, prefix): (&OpenedDirectory, &[u8]),
        rules: &DirRules,
        waiting: &mut Vec<Waiting>,
    ) -> Result<()> {
        let needs_paths = self.needs_paths();
        let Shard {
            entries,
            attributes,
            names,
            ..
        } = &mut self.shard;
        for entry in &mut entries[first..] {
            if attributes[entry.attributes as usize].0 != FileKind::Directory {
                continue;
            }
            entry.link = self.dir_count;
            let next = self.dir_count.checked_add(1);
            self.dir_count = next.filter(|&n| n < NOT_ENTERED).ok_or_else(too_many)?;
            let prefix = if needs_paths {
                [prefix, entry.name.slice(names), b"/"].concat()
            } else {
                Vec::new()
            };
            waiting.push(Waiting {
                parent: Some(*opened),
                ino: InodeNo(entry.ino),
                number: entry.link,
                prefix,
                above: rules.clone(),
            });
        }
        Ok(())
    }

    /// Adds an entry unless the filter or the script excludes it.
    fn take(&mut self, rules: &DirRules, prefix: &[u8], name: &[u8], inode: &Inode) -> Result<()> {
        let mut entry_path = Vec::new();
        if self.needs_paths() {
            let path = [prefix, name].concat();
            entry_path.clone_from(&path);
            let is_dir = inode.kind == FileKind::Directory;
            let is_excluded = self.options.filter.excludes(rules, &path, is_dir);
            let (size, mtime) = (inode.size.0, inode.times.mtime);
            let is_kept = || {
                let path = || path.clone();
                let (kind, is_cancelled) = (inode.kind, &|| self.observer.is_cancelled());
                self.options
                    .is_kept(path, kind, size, &inode.attributes, mtime, is_cancelled)
            };
            if is_excluded || !is_kept()? {
                return Ok(());
            }
        }
        self.push(name, inode, &entry_path)
    }

    /// Adds an entry; a script gets its `path`.
    fn push(&mut self, name: &[u8], inode: &Inode, path: &[u8]) -> Result<()> {
        let mut link = NONE;
        let mut size = 0;
        match inode.kind {
            FileKind::Regular => {
                size = inode.size.0;
                link = inode.content.map_or(NONE, |id| id.0 as u32);
            }
            FileKind::Symlink => {
                let target = self.image.read_link(inode)?;
                size = target.len() as u64;
                link = self.shard.target_starts.len() as u32;
                let start = self.shard.targets.len() as u64;
                self.shard.target_starts.push(start);
                self.shard.targets.extend_from_slice(&target);
            }
            _ => {}
        }
        let mut xattrs = self.xattrs(inode)?;
        let mut attributes = inode.attributes;
        if inode.xattr_set.is_some() && !self.options.keep_xattrs {
            let set = self.image.xattrs(inode)?;
            attributes.permissions =
                permissions_without_acl(attributes.permissions, &set, Ids::Kept);
        }
        let is_plain = self.change(path, inode, (&mut attributes, &mut xattrs))?;
        let attributes = self.shard.intern_attributes(inode.kind, attributes);
        self.shard.push(name, inode.ino.0);
        let index = self.shard.entries.len() - 1;
        self.shard.set_plain(index, is_plain);
        if let Some(entry) = self.shard.entries.last_mut() {
            entry.set_mtime(inode.times.mtime);
            let is_linked =
                inode.nlink > 1 && inode.kind != FileKind::Directory && !self.options.splits_links;
            entry.set(Entry::LINKED, is_linked);
            (entry.size, entry.attributes, entry.link, entry.xattrs) =
                (size, attributes, link, xattrs);
        }
        if self.options.keeps_more_times() {
            let (options, times) = (self.options, &inode.times);
            self.shard.more_times.push(MoreTimes {
                atime: times.atime.filter(|_| options.keep_atime),
                ctime: times.ctime.filter(|_| options.keep_ctime),
                btime: times.btime.filter(|_| options.keep_btime),
            });
        }
        self.file_len = self.file_len.saturating_add(size);
        Ok(())
    }

    /// Lets a script change the entry at `path`: its attributes, and the number of its extended
    /// attributes. Returns whether its contents are not to be compressed.
    fn change(
        &mut self,
        path: &[u8],
        inode: &Inode,
        (attributes, xattrs): (&mut Attributes, &mut u32),
    ) -> Result<bool> {
        if !self.options.script.is_some_and(Script::changes) {
            return Ok(false);
        }
        let sets = &self.shard.xattr_sets.values;
        let mut set = sets.get(*xattrs as usize).cloned().unwrap_or_default();
        let (size, mtime) = (inode.size.0, inode.times.mtime);
        let candidate = Candidate::new(path, inode.kind, size, attributes, mtime);
        let observer = self.observer;
        let is_cancelled = &|| observer.is_cancelled();
        let changed = (attributes, &mut set);
        let is_plain = self.options.change(&candidate, changed, is_cancelled)?;
        *xattrs = if set.is_empty() {
            NONE
        } else {
            self.shard.intern_xattrs(set)
        };
        Ok(is_plain)
    }

    fn xattrs(&mut self, inode: &Inode) -> Result<u32> {
        let Some(id) = inode.xattr_set.filter(|_| self.options.keep_xattrs) else {
            return Ok(NONE);
        };
        if let Some(&known) = self.xattrs.get(&id) {
            return Ok(known);
        }
        let set = self.image.xattrs(inode)?;
        let number = self.shard.intern_xattrs((*set).clone());
        self.xattrs.insert(id, number);
        Ok(number)
    }

    fn report_progress(&mut self) {
        if self.last_report.elapsed() >= PROGRESS_INTERVAL {
            self.last_report = Instant::now();
            self.observer.progress(&Progress {
                stage: Stage::Scan,
                entry_count: self.shard.entries.len() as u64,
                entry_total: self.image.summary().name_count,
                read_len: self.file_len,
                read_total: 0,
                written_len: 0,
            });
        }
    }
}

fn too_many() -> Error {
    Error::limit("more than 2^32 directories")
}
