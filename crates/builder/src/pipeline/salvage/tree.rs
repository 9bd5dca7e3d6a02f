//! The tree of a damaged image, as far as it is left.

use super::orphans::Orphans;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use weald_format::entries::{EntryBlock, EntryKind};
use weald_format::limits::DEPTH_MAX;
use weald_format::{
    Attributes, ContentId, Digest, FileKind, Result, Timestamp, XattrSet, XattrSetId,
};
use weald_image::{Image, Left};

/// Permissions of a file and of a directory whose own are lost: for their owner alone.
const LOST_FILE: u16 = 0o600;
const LOST_DIR: u16 = 0o700;

/// What is lost of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The file: its content cannot be read.
    Content,
    /// As many entries of the directory, with their names.
    Entries(u64),
    /// All entries of the directory; their number is not known.
    Directory,
    /// Permissions and owner.
    Attributes,
    /// Extended attributes.
    Xattrs,
    /// The mtime.
    Mtime,
    /// That it is a hard link of other names.
    Link,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content => f.write_str("its content is damaged"),
            Self::Entries(1) => f.write_str("one of its entries is damaged, with its name"),
            Self::Entries(count) => {
                write!(f, "{count} of its entries are damaged, with their names")
            }
            Self::Directory => f.write_str("the list of its entries is damaged"),
            Self::Attributes => f.write_str("permissions and owner are damaged"),
            Self::Xattrs => f.write_str("extended attributes are damaged"),
            Self::Mtime => f.write_str("its mtime is damaged"),
            Self::Link => f.write_str("its hard links are damaged: the name is a file of its own"),
        }
    }
}

/// Called with a path, without a slash in front, and what is lost of it.
pub type TellLost<'a> = dyn Fn(&[u8], Lost) + 'a;

/// Where the entries of a directory are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Below {
    /// A template; the number of its first entry, if it is known.
    Template(u64, Option<u64>),
    /// Entries whose template is lost.
    Entries(Range<u64>),
    /// The directory of what has lost its place in the tree.
    Orphans,
    /// The directory of contents without a name.
    Contents,
    /// Nowhere: nothing is known of them.
    Nothing,
}

/// Other names of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// None.
    One,
    /// All in this directory; the number is that of the first one.
    Inside { nlink: u64, back: u64 },
    /// In several directories; the number of the first one.
    Across(u64),
}

/// An entry that is left.
#[derive(Debug, Clone)]
pub struct Entry {
    pub name: Vec<u8>,
    pub kind: FileKind,
    pub attributes: Attributes,
    pub mtime: Timestamp,
    pub xattrs: Option<Arc<XattrSet>>,
    pub content: Option<ContentId>,
    pub target: Vec<u8>,
    pub below: Option<Below>,
    pub names: Names,
}

impl Entry {
    /// A directory that the damaged tree does not have.
    fn added(name: Vec<u8>, below: Below) -> Self {
        Self {
            name,
            kind: FileKind::Directory,
            attributes: attributes_of_lost(FileKind::Directory),
            mtime: Timestamp::default(),
            xattrs: None,
            content: None,
            target: Vec::new(),
            below: Some(below),
            names: Names::One,
        }
    }
}

fn attributes_of_lost(kind: FileKind) -> Attributes {
    Attributes {
        permissions: if kind == FileKind::Directory {
            LOST_DIR
        } else {
            LOST_FILE
        },
        ..Attributes::default()
    }
}

/// A directory of the walk.
pub struct Dir<'a> {
    /// Its depth; that of the root is 1.
    pub depth: u64,
    /// Its entries, in byte order of their names.
    pub entries: &'a [Entry],
}

/// A directory that the walk has not visited yet.
struct Pending {
    below: Below,
    parent: Arc<[u8]>,
    name: Vec<u8>,
    depth: u64,
}

/// What is left of the tree of an image.
pub struct DamagedTree<'a> {
    image: &'a Image,
    digests: &'a [Option<Digest>],
    root: Entry,
    /// What is lost of the root itself.
    root_lost: Vec<Lost>,
    orphans: Orphans,
}

/// Called with each directory; returns whether to go on.
pub type VisitDir<'a> = dyn FnMut(&Dir<'_>) -> Result<bool> + 'a;

impl<'a> DamagedTree<'a> {
    /// Finds the root and what is not below it.
    ///
    /// # Cost
    /// Reads the metadata; 2 bytes of memory for each template and content.
    pub fn new(image: &'a Image, digests: &'a [Option<Digest>]) -> Self {
        let mut tree = Self {
            image,
            digests,
            root: Entry::added(Vec::new(), Below::Nothing),
            root_lost: Vec::new(),
            orphans: Orphans::default(),
        };
        tree.find_root();
        let root = match tree.root.below {
            Some(Below::Template(id, _)) => Some(id),
            _ => None,
        };
        tree.orphans = Orphans::find(image, digests, root);
        tree
    }

    /// What is not below the root.
    pub fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// The root directory.
    pub fn root(&self) -> &Entry {
        &self.root
    }

    fn find_root(&mut self) {
        let holder = self.image.summary().template_count;
        let lost = RefCell::new(Vec::new());
        let mut found = None;
        if let Ok(template) = self.image.template(holder) {
            let range = template.entry_start..template.entry_start.saturating_add(1);
            let tell = |_: &[u8], what| lost.borrow_mut().push(what);
            let reading = Reading {
                tree: self,
                path: b"",
                tell: &tell,
                parent: holder,
                is_root: true,
            };
            let mut entries = reading.entries(range, Some(1));
            found = entries.pop().filter(|e| e.kind == FileKind::Directory);
        }
        // The template of the root is written last but for the holder.
        let guess = || {
            let id = holder.checked_sub(1)?;
            let names = self.image.template(id).ok()?.subtree_count;
            let is_root = names.checked_add(1) == Some(self.image.summary().name_count);
            is_root.then(|| Entry::added(Vec::new(), Below::Template(id, Some(2))))
        };
        let mut lost = lost.into_inner();
        match found {
            Some(root) => self.root = root,
            None => {
                lost = vec![Lost::Attributes];
                match guess() {
                    Some(root) => self.root = root,
                    None => lost.push(Lost::Directory),
                }
            }
        }
        self.root_lost = lost;
    }

    /// Visits all directories in preorder. `tell` gets what is lost.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn each_dir(&self, tell: &TellLost<'_>, visit: &mut VisitDir<'_>) -> Result<()> {
        self.root_lost.iter().for_each(|lost| tell(b"", *lost));
        let mut pending = vec![Pending {
            below: self.root.below.clone().unwrap_or(Below::Nothing),
            parent: Arc::from(&b""[..]),
            name: Vec::new(),
            depth: 1,
        }];
        while let Some(dir) = pending.pop() {
            let path: Arc<[u8]> = match &*dir.parent {
                b"" => Arc::from(dir.name),
                parent => Arc::from([parent, b"/", &*dir.name].concat()),
            };
            let mut entries = self.entries_of(&dir.below, &path, tell);
            if dir.depth >= DEPTH_MAX as u64 - 4 {
                let deeper = entries.iter_mut().filter(|e| e.below.is_some());
                deeper.for_each(|entry| entry.below = Some(Below::Nothing));
            }
            if dir.depth == 1 {
                self.add_orphans(&mut entries);
            }
            let shown = Dir {
                depth: dir.depth,
                entries: &entries,
            };
            if !visit(&shown)? {
                return Ok(());
            }
            for entry in entries.into_iter().rev() {
                let Some(below) = entry.below else { continue };
                pending.push(Pending {
                    below,
                    parent: path.clone(),
                    name: entry.name,
                    depth: dir.depth + 1,
                });
            }
        }
        Ok(())
    }

    /// Adds the directory of orphans to the entries of the root, under a name that is free.
    fn add_orphans(&self, entries: &mut Vec<Entry>) {
        if self.orphans.is_empty() {
            return;
        }
        let mut name = b"lost+found".to_vec();
        let mut number = 1;
        while entries.binary_search_by(|e| e.name.cmp(&name)).is_ok() {
            name = format!("lost+found.{number}").into_bytes();
            number += 1;
        }
        let place = entries.partition_point(|e| e.name < name);
        for (at, entry) in entries.iter_mut().enumerate().skip(place) {
            if let Names::Inside { back, .. } = &mut entry.names
                && at as u64 - *back < place as u64
            {
                *back += 1;
            }
        }
        entries.insert(place, Entry::added(name, Below::Orphans));
    }

    fn entries_of(&self, below: &Below, path: &[u8], tell: &TellLost<'_>) -> Vec<Entry> {
        let reading = |parent| Reading {
            tree: self,
            path,
            tell,
            parent,
            is_root: false,
        };
        match below {
            Below::Template(id, base) => match self.image.template(*id) {
                Ok(template) => {
                    let end = template.entry_start.saturating_add(template.entry_count);
                    let end = end.min(self.image.summary().entry_count);
                    reading(*id).entries(template.entry_start..end, *base)
                }
                Err(_) => {
                    tell(path, Lost::Directory);
                    Vec::new()
                }
            },
            Below::Entries(range) => {
                let parent = self.image.summary().template_count;
                reading(parent).entries(range.clone(), None)
            }
            Below::Orphans => self.orphan_dirs(),
            Below::Contents => self.nameless(),
            Below::Nothing => {
                if !path.is_empty() {
                    tell(path, Lost::Directory);
                }
                Vec::new()
            }
        }
    }

    fn orphan_dirs(&self) -> Vec<Entry> {
        let orphans = &self.orphans;
        let mut entries = Vec::new();
        if !orphans.contents.is_empty() {
            entries.push(Entry::added(b"contents".to_vec(), Below::Contents));
        }
        for id in &orphans.templates {
            let name = format!("directory-{id}").into_bytes();
            entries.push(Entry::added(name, Below::Template(*id, None)));
        }
        for range in &orphans.entries {
            let name = format!("entries-{}", range.start).into_bytes();
            entries.push(Entry::added(name, Below::Entries(range.clone())));
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        entries
    }

    fn nameless(&self) -> Vec<Entry> {
        let digest = |id: &ContentId| self.digests.get(id.0 as usize).copied().flatten();
        let contents = self.orphans.contents.iter();
        let mut entries: Vec<Entry> = contents
            .filter_map(|id| {
                let name = digest(id)?.to_string().into_bytes();
                Some(Entry {
                    kind: FileKind::Regular,
                    attributes: attributes_of_lost(FileKind::Regular),
                    content: Some(*id),
                    below: None,
                    ..Entry::added(name, Below::Nothing)
                })
            })
            .collect();
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        entries.dedup_by(|a, b| a.name == b.name);
        entries
    }
}

/// Reads the entries of one directory.
struct Reading<'t, 'a> {
    tree: &'t DamagedTree<'a>,
    path: &'t [u8],
    tell: &'t TellLost<'t>,
    /// Templates below have smaller numbers.
    parent: u64,
    /// Whether the directory holds the root, which has no name.
    is_root: bool,
}

/// An entry of a block.
#[derive(Clone, Copy)]
struct EntryPlace<'b> {
    block: &'b EntryBlock,
    index: usize,
    /// The number of its name.
    no: Option<u64>,
}

impl Reading<'_, '_> {
    /// The entries with these numbers in the image; the first one has the number `base` in the
    /// tree.
    fn entries(&self, range: Range<u64>, base: Option<u64>) -> Vec<Entry> {
        let count = range.end.saturating_sub(range.start);
        // Where the names below the next directory begin.
        let mut next = base.and_then(|base| base.checked_add(count));
        let mut lost_count = 0;
        let mut entries: Vec<Entry> = Vec::new();
        // The first name in this directory, by the number of its entry, and how many there are.
        let mut inside: HashMap<u64, Vec<usize>> = HashMap::new();
        let start = range.start;
        let visited = self.tree.image.each_left_entry(range, &mut |left| {
            let (at, block, index) = match left {
                Left::Entry(at, block, index) => (at, block, index),
                Left::Lost(_, count, _) => {
                    lost_count += count;
                    next = None;
                    return Ok(());
                }
            };
            let no = base.and_then(|base| base.checked_add(at.saturating_sub(start)));
            let place = EntryPlace { block, index, no };
            let name = block.name(index);
            let is_odd = matches!(name, b"" | b"." | b"..") != self.is_root;
            let is_behind = entries.last().is_none_or(|last| &*last.name < name);
            if is_odd || (!is_behind && !self.is_root) {
                lost_count += 1;
                return Ok(());
            }
            let Some(entry) = self.entry(&place, &mut next) else {
                return Ok(());
            };
            if block.nlink(index) >= 2 && entry.kind != FileKind::Directory {
                let first = at.saturating_sub(block.link_back(index));
                inside.entry(first).or_default().push(entries.len());
            }
            entries.push(entry);
            Ok(())
        });
        debug_assert!(visited.is_ok());
        for places in inside.values().filter(|places| places.len() > 1) {
            for place in places {
                let (nlink, back) = (places.len() as u64, (place - places[0]) as u64);
                entries[*place].names = Names::Inside { nlink, back };
            }
        }
        if lost_count > 0 {
            (self.tell)(self.path, Lost::Entries(lost_count));
        }
        entries
    }

    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        match self.path {
            b"" => name.to_vec(),
            path => [path, b"/", name].concat(),
        }
    }

    /// The entry at `place`; `None` if it is a file without its content. `next` is the number of
    /// the first name below the next directory.
    fn entry(&self, place: &EntryPlace<'_>, next: &mut Option<u64>) -> Option<Entry> {
        let (image, block, index) = (self.tree.image, place.block, place.index);
        let (name, body) = (block.name(index), block.body(index));
        let stored = block.kind(index);
        let kind = stored.file_kind();
        let lost = |what| (self.tell)(&self.path_of(name), what);
        let mut below = None;
        if stored == EntryKind::Directory {
            below = Some(self.below(body, next));
        }
        let content = (stored == EntryKind::File).then_some(ContentId(body));
        if stored == EntryKind::File {
            let digest = self.tree.digests.get(usize::try_from(body).ok()?);
            if digest.copied().flatten().is_none() {
                lost(Lost::Content);
                return None;
            }
        }
        let attributes = image.left_attributes(block.attributes(index));
        let mut attributes = attributes.unwrap_or_else(|_| {
            lost(Lost::Attributes);
            attributes_of_lost(kind)
        });
        let xattrs = match block.xattrs(index).checked_sub(1) {
            None => None,
            Some(id) => image
                .left_xattrs(XattrSetId(id))
                .inspect_err(|_| {
                    lost(Lost::Xattrs);
                    // An ACL among them may have denied any other user.
                    attributes.permissions &= 0o7700;
                })
                .ok(),
        };
        let mtime = image.left_mtime(place.no, block, index);
        let mtime = mtime.unwrap_or_else(|_| {
            lost(Lost::Mtime);
            Timestamp::default()
        });
        Some(Entry {
            name: name.to_vec(),
            kind,
            attributes,
            mtime,
            xattrs,
            content,
            target: block.target(index).to_vec(),
            below,
            names: self.names(place, kind, &lost),
        })
    }

    fn below(&self, id: u64, next: &mut Option<u64>) -> Below {
        let template = self.tree.image.template(id);
        if id >= self.parent {
            *next = None;
            return Below::Nothing;
        }
        let base = *next;
        *next = match template {
            Ok(template) => base.and_then(|base| base.checked_add(template.subtree_count)),
            Err(_) => None,
        };
        Below::Template(id, base)
    }

    fn names(&self, place: &EntryPlace<'_>, kind: FileKind, lost: &dyn Fn(Lost)) -> Names {
        if place.block.nlink(place.index) != 0 || kind == FileKind::Directory {
            return Names::One;
        }
        let link = place.no.and_then(|no| self.tree.image.left_link(no).ok());
        match link {
            Some(link) => Names::Across(link.first_no),
            None => {
                lost(Lost::Link);
                Names::One
            }
        }
    }
}
