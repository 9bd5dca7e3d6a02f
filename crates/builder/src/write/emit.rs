//! Writes the tree of a scanned source, directory by directory.

use crate::dedup::contents::ContentTable;
use crate::options::BuildOptions;
use crate::scan::{DirNo, EntryNo, ScannedTree};
use crate::write::changed_xattrs::ChangedXattrs;
use crate::write::image_writer::{ImageWriter, Sink};
use crate::write::metadata::MetadataWriter;
use crate::write::times::TimesWriter;
use crate::write::tree_writer::{Body, LinkInfo, NewEntry, Out, TreeSummary, TreeWriter, mask_of};
use std::collections::HashMap;
use std::sync::Arc;
use weald_format::container::RecordType;
use weald_format::entries::EntryKind;
use weald_format::limits::ITEMS_PER_PAGE;
use weald_format::pages::{self, Link};
use weald_format::tree_digest::TreeHasher;
use weald_format::{Attributes, ContentId, Digest, FileKind, Result, Timestamp, XattrSet};
use weald_image::{Image, Inode};

/// Result of reading a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct FileState(u32);

impl FileState {
    /// No regular file, or an empty one.
    pub const EMPTY: Self = Self(u32::MAX);
    /// The file could not be read and is left out of the image.
    pub const OMITTED: Self = Self(u32::MAX - 1);

    /// The file has this content.
    pub fn content(id: ContentId) -> Self {
        Self(id.0 as u32)
    }
}

/// Metadata of an entry in the image that is appended to, for a file that cannot be read now.
#[derive(Debug, Clone)]
pub struct Previous {
    attributes: Attributes,
    times: [Timestamp; 4],
    xattrs: Arc<XattrSet>,
}

impl Previous {
    /// Returns the metadata of `inode` in the image `old`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn of(inode: &Inode, old: &Image) -> Result<Self> {
        let times = inode.times;
        let mtime = times.mtime;
        let others = [times.atime, times.ctime, times.btime].map(|time| time.unwrap_or(mtime));
        let [atime, ctime, btime] = others;
        Ok(Self {
            attributes: inode.attributes,
            times: [mtime, atime, ctime, btime],
            xattrs: old.xattrs(inode)?,
        })
    }
}

/// Everything that the tree is made from.
pub struct Emitter<'a> {
    /// The source.
    pub tree: &'a ScannedTree,
    /// State of every entry, by entry number.
    pub states: &'a [FileState],
    /// Contents.
    pub contents: &'a ContentTable,
    /// Normalisation and times.
    pub options: &'a BuildOptions,
    /// The extended attributes that the options change.
    pub changed: &'a ChangedXattrs,
    /// Numbers of omitted entries, ascending.
    pub omitted: &'a [u32],
    /// Entries kept from `appended_to`, by entry number.
    pub previous: &'a HashMap<u32, Previous>,
    /// The image that the build appends to; `None` for a new image.
    pub appended_to: Option<&'a Image>,
}

/// Writes the link table, which lists the inodes with names in several directories, page by page,
/// and adds it to the tree digest.
pub struct LinkPages<'a, 'o, 'h> {
    out: &'a mut Out<'o>,
    hasher: &'h mut TreeHasher,
    page: Vec<Link>,
    /// Names below this number are covered by earlier pages.
    covered: u64,
}

impl<'a, 'o, 'h> LinkPages<'a, 'o, 'h> {
    /// Creates a writer of pages into `out`.
    pub fn new(out: &'a mut Out<'o>, hasher: &'h mut TreeHasher) -> Self {
        Self {
            out,
            hasher,
            page: Vec::new(),
            covered: 0,
        }
    }

    /// Adds a name. Names come in the order of their numbers.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`.
    pub fn push(&mut self, link: &Link) -> Result<()> {
        self.hasher.add_link(link);
        self.page.push(*link);
        if self.page.len() == ITEMS_PER_PAGE {
            self.finish()
        } else {
            Ok(())
        }
    }

    /// Writes the open page.
    ///
    /// # Errors
    /// As [`LinkPages::push`].
    pub fn finish(&mut self) -> Result<()> {
        let page = std::mem::take(&mut self.page);
        let Some(last) = page.last() else {
            return Ok(());
        };
        // A reader finds a page by any name number between the last name of the page before
        // (exclusive) and its own last name (inclusive).
        let end = last.name_no + 1;
        let bytes = pages::encode_links(&page);
        self.out
            .push(RecordType::Links, bytes, end - self.covered)?;
        self.covered = end;
        Ok(())
    }
}

/// Result of writing the tree.
pub struct Emitted {
    /// Counts and root digest.
    pub summary: TreeSummary,
    /// Digest of names, attributes and contents.
    pub tree_digest: Digest,
}

impl Emitter<'_> {
    /// Writes the tree: templates, entries, link table and times. mtimes go into the entries or
    /// into a times overlay, whichever is smaller.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`.
    pub fn emit(&self, image: &mut ImageWriter, metadata: &mut MetadataWriter) -> Result<Emitted> {
        let uses_overlay = match self.appended_to {
            Some(image) => image.has_times_overlay(),
            None => self.is_overlay_smaller()?,
        };
        let mut out = Out { image, metadata };
        let summary = self.emit_entries(&mut out, !uses_overlay, false)?;
        if uses_overlay {
            self.emit_times(&mut out)?;
        }
        let mut hasher = TreeHasher::new(&summary.root_digest);
        self.emit_links(&mut out, &mut hasher)?;
        metadata.finish(image)?;
        Ok(Emitted {
            summary,
            tree_digest: hasher.finish(),
        })
    }

    /// Whether the file could not be read and is omitted.
    pub fn is_omitted(&self, entry: EntryNo) -> bool {
        self.states[entry.0 as usize] == FileState::OMITTED
    }

    /// Number of the content of a regular file that is not empty, not left out, and not kept from
    /// the image that the build appends to.
    pub fn fresh_content(&self, entry: EntryNo) -> Option<u32> {
        let state = self.states[entry.0 as usize];
        let is_old = self.tree.is_kept(entry) || self.previous.contains_key(&entry.0);
        let is_file = self.tree.kind(entry) == FileKind::Regular;
        let is_stored = state != FileState::EMPTY && state != FileState::OMITTED;
        (is_file && is_stored && !is_old).then_some(state.0)
    }

    /// Attributes, times and extended attributes of an entry in the image.
    pub fn facts(&self, entry: EntryNo) -> (Attributes, [Timestamp; 4], Option<&XattrSet>) {
        (
            self.attributes(entry),
            self.times(entry),
            self.xattrs(entry),
        )
    }

    /// Whether `entry` differs from `old_inode`, which has the same name in the image `old`. mtimes
    /// of directories are ignored.
    ///
    /// # Errors
    /// `Io`, `Corrupt` from `old`.
    pub fn is_changed(&self, entry: EntryNo, old: &Image, old_inode: &Inode) -> Result<bool> {
        let is_kept = self.tree.is_kept(entry) && !self.tree.has_upper();
        if is_kept || self.previous.contains_key(&entry.0) {
            return Ok(false);
        }
        let (new, kind) = (self.new_entry(entry), self.tree.kind(entry));
        let is_same_body = match new.body {
            // Contents keep their ids when an image is appended to.
            Body::Content(id, _) => old_inode.content == Some(id),
            Body::Empty => old_inode.content.is_none(),
            Body::Target(target) => {
                old_inode.kind == FileKind::Symlink && old.read_link(old_inode)? == target
            }
            Body::None => true,
        };
        let has_same_mtime = kind == FileKind::Directory || new.times[0] == old_inode.times.mtime;
        let is_same = kind == old_inode.kind
            && new.attributes == old_inode.attributes
            && has_same_mtime
            && is_same_body
            && new.xattrs.is_some() == old_inode.xattr_set.is_some();
        match new.xattrs.filter(|_| is_same) {
            Some(set) => Ok(*set != *old.xattrs(old_inode)?),
            None => Ok(!is_same),
        }
    }

    /// Whether a times overlay makes the image smaller. It can only if entries without mtimes are
    /// at least a fifth fewer, so both ways are tried in full only then.
    fn is_overlay_smaller(&self) -> Result<bool> {
        let mut image = ImageWriter::begin(Sink::Count)?;
        let mut metadata = MetadataWriter::new(1);
        let mut out = Out {
            image: &mut image,
            metadata: &mut metadata,
        };
        let with_mtimes = self.emit_entries(&mut out, true, true)?.entry_count;
        let without_mtimes = self.emit_entries(&mut out, false, true)?.entry_count;
        if without_mtimes * 5 > with_mtimes * 4 {
            return Ok(false);
        }
        Ok(self.trial_len(false)? < self.trial_len(true)?)
    }

    fn trial_len(&self, mtime_inside: bool) -> Result<u64> {
        let mut image = ImageWriter::begin(Sink::Count)?;
        let mut metadata = MetadataWriter::new(3);
        let mut out = Out {
            image: &mut image,
            metadata: &mut metadata,
        };
        self.emit_entries(&mut out, mtime_inside, false)?;
        if !mtime_inside {
            self.emit_times(&mut out)?;
        }
        metadata.finish(&mut image)?;
        Ok(image.position())
    }

    fn emit_entries(
        &self,
        out: &mut Out<'_>,
        mtime_inside: bool,
        counts_only: bool,
    ) -> Result<TreeSummary> {
        let o = self.options;
        let mask = mask_of(mtime_inside, o.keep_atime, o.keep_ctime, o.keep_btime);
        let mut writer = TreeWriter::new(mask, u64::from(self.tree.entry_count()), counts_only);
        if let Some(image) = self.appended_to {
            writer.load_templates_of(image)?;
        }
        writer.enter();
        let mut stack = vec![(ScannedTree::ROOT, self.tree.entries_of(DirNo(0)))];
        while let Some((_, rest)) = stack.last_mut() {
            match rest.next() {
                Some(entry) => match self.tree.dir(entry) {
                    Some(dir) => {
                        writer.enter();
                        stack.push((entry, self.tree.entries_of(dir)));
                    }
                    None if self.states[entry.0 as usize] == FileState::OMITTED => {}
                    None => writer.add(out, &self.new_entry(entry))?,
                },
                None => {
                    if let Some((entry, _)) = stack.pop() {
                        writer.leave(out, &self.new_entry(entry))?;
                    }
                }
            }
        }
        writer.finish(out)
    }

    fn new_entry(&self, entry: EntryNo) -> NewEntry<'_> {
        let tree = self.tree;
        let kind = tree.kind(entry);
        let state = self.states[entry.0 as usize];
        let (kind, body) = match kind {
            FileKind::Directory => (EntryKind::Directory, Body::None),
            FileKind::Regular if state == FileState::EMPTY => (EntryKind::Empty, Body::Empty),
            FileKind::Regular => {
                let id = ContentId(u64::from(state.0));
                (EntryKind::File, Body::Content(id, self.contents.digest(id)))
            }
            FileKind::Symlink => (
                EntryKind::Symlink,
                Body::Target(tree.target(entry).unwrap_or(b"")),
            ),
            FileKind::CharDevice => (EntryKind::CharDevice, Body::None),
            FileKind::BlockDevice => (EntryKind::BlockDevice, Body::None),
            FileKind::Fifo => (EntryKind::Fifo, Body::None),
            FileKind::Socket => (EntryKind::Socket, Body::None),
        };
        let xattrs = match self.previous.get(&entry.0) {
            Some(previous) => Some(&*previous.xattrs).filter(|set| !set.is_empty()),
            None => self.xattrs(entry),
        };
        NewEntry {
            name: tree.name(entry),
            kind,
            attributes: self.attributes(entry),
            times: self.times(entry),
            xattrs,
            body,
            link: self.link_info(entry),
        }
    }

    /// The extended attributes of an entry that is not kept as it was in the image before.
    fn xattrs(&self, entry: EntryNo) -> Option<&XattrSet> {
        let number = self.tree.xattrs_no(entry);
        if self.tree.is_kept(entry) || self.options.rules.keeps_xattrs() {
            number.map(|number| &self.tree.xattr_sets()[number as usize])
        } else {
            self.changed.of(number, self.tree.kind(entry))
        }
    }

    fn attributes(&self, entry: EntryNo) -> Attributes {
        let given = self.tree.given(entry);
        given.attributes_of(self.ruled_attributes(entry))
    }

    /// The attributes of an entry as the source and the rules have them.
    fn ruled_attributes(&self, entry: EntryNo) -> Attributes {
        if let Some(previous) = self.previous.get(&entry.0) {
            return previous.attributes;
        }
        let mut attributes = *self.tree.attributes(entry);
        if self.tree.is_kept(entry) {
            return attributes;
        }
        if let Some(number) = self.tree.xattrs_no(entry) {
            let set = Some(&self.tree.xattr_sets()[number as usize]);
            let (rules, permissions) = (&self.options.rules, attributes.permissions);
            let changed = self.xattrs(entry);
            attributes.permissions = rules.permissions_of(permissions, set, changed);
        }
        if entry == ScannedTree::ROOT {
            self.options.root_attributes_of(attributes)
        } else {
            (self.options).attributes_of(attributes, self.tree.kind(entry))
        }
    }

    fn mtime(&self, entry: EntryNo) -> Timestamp {
        if let Some(previous) = self.previous.get(&entry.0) {
            return previous.times[0];
        }
        if let Some(mtime) = self.tree.given(entry).mtime {
            return mtime;
        }
        let mtime = self.tree.mtime(entry);
        if self.tree.is_kept(entry) {
            mtime
        } else if entry == ScannedTree::ROOT {
            self.options.root_mtime_of(mtime)
        } else {
            self.options.mtime.apply(mtime)
        }
    }

    fn times(&self, entry: EntryNo) -> [Timestamp; 4] {
        if let Some(previous) = self.previous.get(&entry.0) {
            return previous.times;
        }
        let times = self.tree.times(entry);
        // If the source has no btime, use mtime, as extraction would.
        let mtime = self.mtime(entry);
        [
            mtime,
            times.atime.unwrap_or(mtime),
            times.ctime.unwrap_or(mtime),
            times.btime.unwrap_or(mtime),
        ]
    }

    fn link_info(&self, entry: EntryNo) -> LinkInfo {
        let Some(group) = self.tree.link_group(entry) else {
            return LinkInfo::Single;
        };
        let mut names = self.tree.link_names(group);
        let nlink = names.len() as u64;
        let (Some(first), Some(last)) = (names.next(), names.next_back()) else {
            return LinkInfo::Single;
        };
        // Entries of a directory have consecutive numbers, so all names between the first and the
        // last lie in the same directory as these.
        if self.tree.dir_of(first) == self.tree.dir_of(last) {
            LinkInfo::Inside {
                nlink,
                back: self.name_no(entry) - self.name_no(first),
            }
        } else {
            LinkInfo::Across
        }
    }

    /// Number of a name in the image: as in the scan, without omitted entries.
    fn name_no(&self, entry: EntryNo) -> u64 {
        let before = self.omitted.partition_point(|&o| o < entry.0);
        u64::from(entry.0) - before as u64 + 1
    }

    /// Writes the names of inodes that cross directories, ordered by number, in pages.
    fn emit_links(&self, out: &mut Out<'_>, hasher: &mut TreeHasher) -> Result<()> {
        let mut links: Vec<Link> = Vec::new();
        for group in 0..self.tree.link_group_count() {
            let names: Vec<EntryNo> = self.tree.link_names(group).collect();
            let Some(&first) = names.first() else {
                continue;
            };
            let is_across = self.link_info(first) == LinkInfo::Across;
            if is_across && self.states[first.0 as usize] != FileState::OMITTED {
                let link = |name: &EntryNo| Link {
                    name_no: self.name_no(*name),
                    first_no: self.name_no(first),
                    nlink: names.len() as u64,
                };
                links.extend(names.iter().map(link));
            }
        }
        links.sort_unstable_by_key(|l| l.name_no);
        let mut pages = LinkPages::new(out, hasher);
        links.iter().try_for_each(|link| pages.push(link))?;
        pages.finish()
    }

    /// Writes the mtimes of all names, ordered by number.
    fn emit_times(&self, out: &mut Out<'_>) -> Result<()> {
        let mut times = TimesWriter::default();
        let mut kept =
            (0..self.tree.entry_count()).filter(|&e| self.states[e as usize] != FileState::OMITTED);
        kept.try_for_each(|entry| times.push(out, self.mtime(EntryNo(entry))))?;
        times.finish(out)
    }
}
