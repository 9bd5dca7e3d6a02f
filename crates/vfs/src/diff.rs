//! What differs between two trees: names, attributes, contents, links.
//!
//! A tree is anything that lists its directories in byte order: an image (`image_tree`) or a
//! directory of the host (`export`). Memory: one open listing a level and side, a small record for
//! every inode that has several names, and pairs of directories known as equal, which are limited.

use crate::text::shown;
use crate::time::utc_nanoseconds;
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use weald_format::{Attributes, Error, FileKind, Result, Times, Timestamp, XattrSet};

/// Bytes of two files compared at once.
const PIECE_LEN: usize = 1 << 20;
/// Pairs of directories that are remembered as equal, about 24 bytes each.
const EQUAL_COUNT_MAX: usize = 1 << 20;

/// Identifies an inode with several names within its tree (a host needs device and number).
pub type LinkKey = (u64, u64);

/// What every tree knows of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The same for all names of an inode.
    pub link_key: LinkKey,
    /// What it is.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// Number of names.
    pub nlink: u64,
    /// Bytes of a regular file.
    pub size: u64,
    /// Times; one that is `None` on either side is not compared.
    pub times: Times,
}

/// One name of a directory.
#[derive(Debug, Clone)]
pub struct Child<N> {
    /// The name; empty for the root.
    pub name: Vec<u8>,
    /// What it is.
    pub facts: Facts,
    /// What the tree needs to find it again.
    pub node: N,
}

/// A tree to compare. Every method may fail with what its storage reports; `dir` is where `child`
/// was listed, `None` for the root.
pub trait Tree {
    /// What leads to an inode.
    type Node;
    /// A directory that is being listed.
    type Dir;

    /// The root directory.
    fn root(&self) -> Result<Child<Self::Node>>;
    /// Starts to list the directory `child`.
    fn open_dir(&self, dir: Option<&Self::Dir>, child: &Child<Self::Node>) -> Result<Self::Dir>;
    /// The next entry of `dir` in byte order of names.
    fn next_child(&self, dir: &mut Self::Dir) -> Result<Option<Child<Self::Node>>>;
    /// The target of a symlink.
    fn link_target(&self, dir: Option<&Self::Dir>, child: &Child<Self::Node>) -> Result<Vec<u8>>;
    /// The extended attributes, sorted by name.
    fn xattrs(&self, dir: Option<&Self::Dir>, child: &Child<Self::Node>) -> Result<XattrSet>;
    /// A number that directories of this tree share only where everything below them is the same,
    /// but for which names belong to one inode. `None` where the tree cannot tell.
    fn sameness(&self, _child: &Child<Self::Node>) -> Option<u64> {
        None
    }
    /// Something that reads a regular file.
    fn open_file(
        &self,
        dir: Option<&Self::Dir>,
        child: &Child<Self::Node>,
    ) -> Result<Box<dyn FileReader + '_>>;
}

/// Reads a regular file.
pub trait FileReader {
    /// Where data may begin at or behind `offset`: what lies before it is a hole. The file's length
    /// where none follows.
    ///
    /// # Errors
    /// What the storage reports.
    fn next_data(&mut self, offset: u64) -> Result<u64>;

    /// Fills `buf` from `offset` as far as the file goes: less than its length only at the end.
    ///
    /// # Errors
    /// What the storage reports.
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize>;
}

/// What can differ between two inodes of one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Aspect {
    /// What it is; then nothing else is compared.
    Kind,
    /// Permission bits.
    Mode,
    /// Owner.
    Uid,
    /// Group.
    Gid,
    /// Device number.
    Device,
    /// Bytes of a regular file; then its content is not compared.
    Size,
    /// Bytes of a regular file differ.
    Content,
    /// Target of a symlink.
    Target,
    /// Last change of content.
    Mtime,
    /// Last access.
    Atime,
    /// Last change of inode.
    Ctime,
    /// Birth.
    Btime,
    /// Extended attributes.
    Xattrs,
    /// Which other names the inode has.
    Links,
}

impl Aspect {
    /// All of them, in the order in which they are told.
    pub const ALL: [Self; 14] = [
        Self::Kind,
        Self::Mode,
        Self::Uid,
        Self::Gid,
        Self::Device,
        Self::Size,
        Self::Content,
        Self::Target,
        Self::Mtime,
        Self::Atime,
        Self::Ctime,
        Self::Btime,
        Self::Xattrs,
        Self::Links,
    ];

    /// Its word in options and output.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kind => "type",
            Self::Mode => "mode",
            Self::Uid => "uid",
            Self::Gid => "gid",
            Self::Device => "device",
            Self::Size => "size",
            Self::Content => "content",
            Self::Target => "target",
            Self::Mtime => "mtime",
            Self::Atime => "atime",
            Self::Ctime => "ctime",
            Self::Btime => "btime",
            Self::Xattrs => "xattrs",
            Self::Links => "links",
        }
    }
}

/// One aspect that differs, with both sides in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub aspect: Aspect,
    /// The first tree's.
    pub left: String,
    /// The second tree's.
    pub right: String,
}

/// What is the matter with one path.
#[derive(Debug)]
pub enum Difference {
    /// Only the first tree has it (and all below it, which is not told).
    OnlyLeft(FileKind),
    /// Only the second tree has it (and all below it, which is not told).
    OnlyRight(FileKind),
    /// Both have it, with differences.
    Changed(Vec<Change>),
    /// It could not be compared.
    Failed(Error),
}

/// Compares two trees but for the aspects in `ignored`; tells `report` of each path that differs,
/// in the order of a depth-first walk, until it breaks. What cannot be read is reported and the
/// rest compared.
///
/// # Errors
/// Where a root cannot be read.
///
/// # Cost
/// Reads every file whose kind and size agree on both sides. Of directories that are stored once on
/// both sides, one pair is compared where nothing differs.
pub fn compare<L: Tree, R: Tree>(
    left: &L,
    right: &R,
    ignored: &[Aspect],
    report: &mut dyn FnMut(&[u8], Difference) -> ControlFlow<()>,
) -> Result<()> {
    let (left_root, right_root) = (left.root()?, right.root()?);
    let (left_dir, right_dir) = (
        left.open_dir(None, &left_root)?,
        right.open_dir(None, &right_root)?,
    );
    let mut comparer = Comparer {
        left,
        right,
        ignored,
        links: Links::default(),
        path: Vec::new(),
        report,
        told_count: 0,
        linked_count: 0,
        equal: HashSet::new(),
    };
    let mut levels = Vec::new();
    let flow = comparer.pair((None, &left_root), (None, &right_root));
    if flow.is_break() {
        return Ok(());
    }
    levels.push(Level::new(left_dir, right_dir, 0));
    while let Some(level) = levels.last_mut() {
        match comparer.step(level) {
            ControlFlow::Break(()) => break,
            ControlFlow::Continue(Next::Same) => {}
            ControlFlow::Continue(Next::Up) => {
                comparer.remember(level);
                levels.pop();
            }
            ControlFlow::Continue(Next::Down(deeper)) => levels.push(deeper),
        }
    }
    Ok(())
}

/// A pair of directories being merged.
struct Level<L: Tree, R: Tree> {
    left: Side<L>,
    right: Side<R>,
    path_len: usize,
    /// What the pair may be remembered by, and what had been told and linked when it was begun.
    sameness: Option<(u64, u64)>,
    told_count: u64,
    linked_count: u64,
}

struct Side<T: Tree> {
    dir: T::Dir,
    next: Option<Child<T::Node>>,
    is_at_end: bool,
}

impl<T: Tree> Side<T> {
    fn new(dir: T::Dir) -> Self {
        Self {
            dir,
            next: None,
            is_at_end: false,
        }
    }

    /// Makes `next` the next entry, if there is one; a listing that fails is at its end.
    fn advance(&mut self, tree: &T) -> Result<()> {
        if self.next.is_none() && !self.is_at_end {
            self.is_at_end = true;
            self.next = tree.next_child(&mut self.dir)?;
            self.is_at_end = self.next.is_none();
        }
        Ok(())
    }
}

impl<L: Tree, R: Tree> Level<L, R> {
    fn new(left: L::Dir, right: R::Dir, path_len: usize) -> Self {
        Self {
            left: Side::new(left),
            right: Side::new(right),
            path_len,
            sameness: None,
            told_count: 0,
            linked_count: 0,
        }
    }
}

enum Next<D> {
    Same,
    Up,
    Down(D),
}

/// A child with the directory that lists it.
type At<'a, T> = (Option<&'a <T as Tree>::Dir>, &'a Child<<T as Tree>::Node>);

struct Comparer<'a, L: Tree, R: Tree> {
    left: &'a L,
    right: &'a R,
    ignored: &'a [Aspect],
    links: Links,
    path: Vec<u8>,
    report: &'a mut dyn FnMut(&[u8], Difference) -> ControlFlow<()>,
    /// Paths told of.
    told_count: u64,
    /// Pairs met of which one has several names.
    linked_count: u64,
    /// Pairs of directories in which nothing differs wherever they stand.
    equal: HashSet<(u64, u64)>,
}

impl<L: Tree, R: Tree> Comparer<'_, L, R> {
    fn step(&mut self, level: &mut Level<L, R>) -> ControlFlow<(), Next<Level<L, R>>> {
        self.path.truncate(level.path_len);
        let advanced = level
            .left
            .advance(self.left)
            .and_then(|()| level.right.advance(self.right));
        if let Err(error) = advanced {
            self.tell(Difference::Failed(error))?;
            // Half a listing would call the rest of the other side missing.
            return ControlFlow::Continue(Next::Up);
        }
        let order = match (&level.left.next, &level.right.next) {
            (None, None) => return ControlFlow::Continue(Next::Up),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.name.cmp(&right.name),
        };
        let left = level.left.next.take_if(|_| order.is_le());
        let right = level.right.next.take_if(|_| order.is_ge());
        match (left, right) {
            (Some(left), Some(right)) => self.both(level, &left, &right),
            (Some(left), None) => self.one(&left.name, Difference::OnlyLeft(left.facts.kind)),
            (None, Some(right)) => self.one(&right.name, Difference::OnlyRight(right.facts.kind)),
            (None, None) => ControlFlow::Continue(Next::Up),
        }
    }

    fn one(&mut self, name: &[u8], difference: Difference) -> ControlFlow<(), Next<Level<L, R>>> {
        self.push_name(name);
        self.tell(difference)?;
        ControlFlow::Continue(Next::Same)
    }

    fn both(
        &mut self,
        level: &Level<L, R>,
        left: &Child<L::Node>,
        right: &Child<R::Node>,
    ) -> ControlFlow<(), Next<Level<L, R>>> {
        self.push_name(&left.name);
        self.pair(
            (Some(&level.left.dir), left),
            (Some(&level.right.dir), right),
        )?;
        if [left.facts.kind, right.facts.kind] != [FileKind::Directory; 2] {
            return ControlFlow::Continue(Next::Same);
        }
        let sameness = self.left.sameness(left).zip(self.right.sameness(right));
        if sameness.is_some_and(|pair| self.equal.contains(&pair)) {
            return ControlFlow::Continue(Next::Same);
        }
        let dirs = self
            .left
            .open_dir(Some(&level.left.dir), left)
            .and_then(|left_dir| {
                let right_dir = self.right.open_dir(Some(&level.right.dir), right)?;
                Ok((left_dir, right_dir))
            });
        match dirs {
            Ok((left_dir, right_dir)) => {
                let mut deeper = Level::new(left_dir, right_dir, self.path.len());
                deeper.sameness = sameness;
                deeper.told_count = self.told_count;
                deeper.linked_count = self.linked_count;
                ControlFlow::Continue(Next::Down(deeper))
            }
            Err(error) => {
                self.tell(Difference::Failed(error))?;
                ControlFlow::Continue(Next::Same)
            }
        }
    }

    fn push_name(&mut self, name: &[u8]) {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name);
    }

    /// Remembers the pair of `level`, which is at its end, where nothing below it differed and no
    /// link led out of it.
    fn remember(&mut self, level: &Level<L, R>) {
        let is_equal =
            level.told_count == self.told_count && level.linked_count == self.linked_count;
        if let Some(pair) = level.sameness.filter(|_| is_equal)
            && self.equal.len() < EQUAL_COUNT_MAX
        {
            self.equal.insert(pair);
        }
    }

    fn tell(&mut self, difference: Difference) -> ControlFlow<()> {
        self.told_count += 1;
        (self.report)(&self.path, difference)
    }

    /// Compares two inodes of one path, not what is below them.
    fn pair(&mut self, left: At<'_, L>, right: At<'_, R>) -> ControlFlow<()> {
        match self.changes(left, right) {
            Ok(changes) if changes.is_empty() => ControlFlow::Continue(()),
            Ok(changes) => self.tell(Difference::Changed(changes)),
            Err(error) => self.tell(Difference::Failed(error)),
        }
    }

    fn changes(&mut self, left: At<'_, L>, right: At<'_, R>) -> Result<Vec<Change>> {
        let (a, b) = (&left.1.facts, &right.1.facts);
        let mut changes = Vec::new();
        if a.kind != b.kind {
            self.note(
                &mut changes,
                Aspect::Kind,
                Some((kind_word(a.kind).into(), kind_word(b.kind).into())),
            );
            return Ok(changes);
        }
        self.note_attributes(&mut changes, a, b);
        let is_known_pair = self.note_links(&mut changes, a, b);
        if a.kind == FileKind::Regular
            && a.size == b.size
            && !is_known_pair
            && self.wants(Aspect::Content)
        {
            let offset = self.first_difference(left, right)?;
            let words =
                offset.map(|offset| (String::new(), format!("differs from byte {offset} on")));
            self.note(&mut changes, Aspect::Content, words);
        }
        if a.kind == FileKind::Symlink && self.wants(Aspect::Target) {
            let targets = (
                self.left.link_target(left.0, left.1)?,
                self.right.link_target(right.0, right.1)?,
            );
            let words = (targets.0 != targets.1).then(|| (shown(&targets.0), shown(&targets.1)));
            self.note(&mut changes, Aspect::Target, words);
        }
        if self.wants(Aspect::Xattrs) {
            let sets = (
                self.left.xattrs(left.0, left.1)?,
                self.right.xattrs(right.0, right.1)?,
            );
            self.note(&mut changes, Aspect::Xattrs, xattr_words(&sets.0, &sets.1));
        }
        changes.sort_by_key(|change| {
            Aspect::ALL
                .iter()
                .position(|aspect| *aspect == change.aspect)
        });
        Ok(changes)
    }

    fn wants(&self, aspect: Aspect) -> bool {
        !self.ignored.contains(&aspect)
    }

    fn note(&self, changes: &mut Vec<Change>, aspect: Aspect, words: Option<(String, String)>) {
        if let Some((left, right)) = words.filter(|_| self.wants(aspect)) {
            changes.push(Change {
                aspect,
                left,
                right,
            });
        }
    }

    fn note_attributes(&self, changes: &mut Vec<Change>, left: &Facts, right: &Facts) {
        let (a, b) = (&left.attributes, &right.attributes);
        let octal = |bits: u16| format!("{bits:04o}");
        // Linux gives every symlink the mode 0777.
        if left.kind != FileKind::Symlink {
            self.note(
                changes,
                Aspect::Mode,
                differing(a.permissions, b.permissions, octal),
            );
        }
        self.note(
            changes,
            Aspect::Uid,
            differing(a.uid, b.uid, |id| id.to_string()),
        );
        self.note(
            changes,
            Aspect::Gid,
            differing(a.gid, b.gid, |id| id.to_string()),
        );
        let device = |rdev: u64| format!("{}:{}", rdev >> 32, rdev & 0xffff_ffff);
        self.note(changes, Aspect::Device, differing(a.rdev, b.rdev, device));
        if left.kind == FileKind::Regular {
            self.note(
                changes,
                Aspect::Size,
                differing(left.size, right.size, |size| size.to_string()),
            );
        }
        let (a, b) = (&left.times, &right.times);
        for (aspect, a, b) in [
            (Aspect::Mtime, Some(a.mtime), Some(b.mtime)),
            (Aspect::Atime, a.atime, b.atime),
            (Aspect::Ctime, a.ctime, b.ctime),
            (Aspect::Btime, a.btime, b.btime),
        ] {
            let words = a
                .zip(b)
                .and_then(|(a, b)| differing(a, b, |time: Timestamp| utc_nanoseconds(time)));
            self.note(changes, aspect, words);
        }
    }

    /// Notes where the names of one inode on one side belong to several on the other; answers
    /// whether this very pair of inodes was met before.
    fn note_links(&mut self, changes: &mut Vec<Change>, left: &Facts, right: &Facts) -> bool {
        if left.kind == FileKind::Directory || (left.nlink < 2 && right.nlink < 2) {
            return false;
        }
        self.linked_count += 1;
        let (is_known, words) = self.links.meet(left.link_key, right.link_key, &self.path);
        self.note(changes, Aspect::Links, words);
        is_known
    }

    /// The offset of the first difference of two files of one length; what is a hole in both is not
    /// read.
    fn first_difference(&self, left: At<'_, L>, right: At<'_, R>) -> Result<Option<u64>> {
        let size = left.1.facts.size;
        if size == 0 {
            return Ok(None);
        }
        let (mut a, mut b) = (
            self.left.open_file(left.0, left.1)?,
            self.right.open_file(right.0, right.1)?,
        );
        let room = usize::try_from(size).unwrap_or(PIECE_LEN).min(PIECE_LEN);
        let (mut a_piece, mut b_piece) = (vec![0; room], vec![0; room]);
        let mut offset = 0;
        loop {
            offset = a.next_data(offset)?.min(b.next_data(offset)?);
            if offset >= size {
                return Ok(None);
            }
            let len = usize::try_from(size - offset).unwrap_or(room).min(room);
            let (a_room, b_room) = (a_piece.split_at_mut(len).0, b_piece.split_at_mut(len).0);
            let common_len = a.read_at(offset, a_room)?.min(b.read_at(offset, b_room)?);
            let same_count = a_room
                .iter()
                .zip(&*b_room)
                .take(common_len)
                .take_while(|(a, b)| a == b)
                .count();
            offset += same_count as u64;
            // Also where a file has become shorter meanwhile.
            if same_count < len {
                return Ok(Some(offset));
            }
        }
    }
}

fn differing<T: PartialEq + Copy>(
    left: T,
    right: T,
    word: impl Fn(T) -> String,
) -> Option<(String, String)> {
    (left != right).then(|| (word(left), word(right)))
}

/// The word for a kind, as stat(1) has it.
pub const fn kind_word(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Directory => "directory",
        FileKind::Regular => "regular file",
        FileKind::Symlink => "symbolic link",
        FileKind::CharDevice => "character device",
        FileKind::BlockDevice => "block device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// The names of the xattrs that only one side has or that differ (marked `*`).
fn xattr_words(left: &XattrSet, right: &XattrSet) -> Option<(String, String)> {
    let words = |own: &XattrSet, other: &XattrSet| {
        let differing = own.iter().filter(|xattr| !other.contains(xattr));
        let is_shared = |name: &[u8]| other.iter().any(|xattr| xattr.name == name);
        let word = |name: &[u8]| shown(name) + if is_shared(name) { "*" } else { "" };
        differing
            .map(|xattr| word(&xattr.name))
            .collect::<Vec<_>>()
            .join(",")
    };
    (left != right).then(|| (words(left, right), words(right, left)))
}

/// Which inode of one tree is which of the other, for inodes of several names.
#[derive(Default)]
struct Links {
    to_right: HashMap<LinkKey, (LinkKey, Box<[u8]>)>,
    to_left: HashMap<LinkKey, (LinkKey, Box<[u8]>)>,
}

impl Links {
    /// Whether the pair is known, and the first names of either inode where they contradict each
    /// other.
    fn meet(
        &mut self,
        left: LinkKey,
        right: LinkKey,
        path: &[u8],
    ) -> (bool, Option<(String, String)>) {
        let word = |known: Option<&(LinkKey, Box<[u8]>)>| {
            known.map_or_else(String::new, |(_, first)| {
                format!("linked to {}", shown(first))
            })
        };
        let (of_left, of_right) = (self.to_right.get(&left), self.to_left.get(&right));
        let (is_known, words) = match (of_left, of_right) {
            (Some(a), Some(b)) if a.0 == right && b.0 == left => (true, None),
            (None, None) => (false, None),
            (a, b) => (false, Some((word(a), word(b)))),
        };
        // Also after a contradiction: further names of the side that was not known contradict, too.
        self.to_right
            .entry(left)
            .or_insert_with(|| (right, path.into()));
        self.to_left
            .entry(right)
            .or_insert_with(|| (left, path.into()));
        (is_known, words)
    }
}

#[cfg(test)]
mod tests;
