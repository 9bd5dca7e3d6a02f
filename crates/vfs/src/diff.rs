//! Comparison of two trees: names, attributes, contents, links.
//!
//! A tree is anything that lists its directories in byte order: an image (`image_tree`) or a
//! directory of the host (`export`). Memory: one open listing for each level and side, a small
//! record for every inode with several names, and a limited number of directory pairs known to be
//! equal.

mod aspect;
mod links;
mod tree;

pub use aspect::{Aspect, Change};
pub use tree::{Child, Facts, FileReader, LinkKey, Tree};

use crate::text::shown;
use crate::time::utc_nanoseconds;
use crate::{Choice, Scope};
use links::Links;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::ControlFlow;
use weald_format::{Error, FileKind, Result, Timestamp, XattrSet};

/// Bytes of two files that are compared at a time.
const PIECE_LEN: usize = 1 << 20;
/// Most pairs of directories that are remembered as equal, about 24 bytes each.
const EQUAL_COUNT_MAX: usize = 1 << 20;

/// A difference at one path.
#[derive(Debug)]
pub enum Difference {
    /// Only the first tree has the path, and everything below it.
    OnlyLeft(Only),
    /// Only the second tree has the path, and everything below it.
    OnlyRight(Only),
    /// Both trees have the path, with differences.
    Changed(Changed),
    /// The path could not be compared.
    Failed(Error),
}

/// What one tree has and the other has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Only {
    /// What it is.
    pub kind: FileKind,
    /// Bytes of its content.
    pub len: u64,
}

impl Only {
    fn of(facts: &Facts) -> Self {
        Self {
            kind: facts.kind,
            len: facts.size,
        }
    }
}

/// How two entries with one path differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// Each aspect in which they do.
    pub changes: Vec<Change>,
    /// Bytes of the contents in both trees.
    pub lens: [u64; 2],
    /// Whether both are regular files.
    pub is_file: bool,
}

/// What [`compare`] leaves out.
#[derive(Debug, Clone, Copy, Default)]
pub struct CompareOptions<'a> {
    /// Aspects that do not count.
    pub ignored: &'a [Aspect],
    /// Whether everything below a directory that one tree lacks is reported, too.
    pub lists_all: bool,
    /// Which entries are compared; `None` for all.
    pub choice: Option<&'a Choice>,
}

/// Compares two trees. Passes each path that differs to
/// `report` in the order of a depth-first walk, until it breaks. An unreadable path is reported,
/// and the rest is compared.
///
/// # Errors
/// If a root cannot be read.
///
/// # Cost
/// Reads every file whose type and size agree on both sides. Equal pairs of directories that both
/// trees store once are compared once.
pub fn compare<L: Tree, R: Tree>(
    left: &L,
    right: &R,
    options: &CompareOptions<'_>,
    report: &mut dyn FnMut(&[u8], Difference) -> ControlFlow<()>,
) -> Result<()> {
    let (left_root, right_root) = (left.root()?, right.root()?);
    let (left_dir, right_dir) = (
        left.open_dir(None, &left_root)?,
        right.open_dir(None, &right_root)?,
    );
    let everything = Choice::default();
    let choice = options.choice.unwrap_or(&everything);
    let scope = choice.selection.root(&mut |_| {});
    let mut comparer = Comparer {
        left,
        right,
        choice,
        ignored: options.ignored,
        lists_all: options.lists_all,
        links: Links::default(),
        path: Vec::new(),
        report,
        reported_count: 0,
        linked_count: 0,
        equal: HashSet::new(),
    };
    if scope.is_wanted() {
        let flow = comparer.pair((None, &left_root), (None, &right_root));
        if flow.is_break() {
            return Ok(());
        }
    }
    let mut levels = vec![Level::new(Some(left_dir), Some(right_dir), scope)];
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
    /// Depth of its entries.
    depth: usize,
    scope: Scope,
    /// Identifiers of the pair, and the counters of the comparison at its start.
    subtree_ids: Option<(u64, u64)>,
    reported_count: u64,
    linked_count: u64,
}

struct Side<T: Tree> {
    /// `None` if this tree has not the directory.
    dir: Option<T::Dir>,
    next: Option<Child<T::Node>>,
    is_at_end: bool,
}

impl<T: Tree> Side<T> {
    fn new(dir: Option<T::Dir>) -> Self {
        Self {
            is_at_end: dir.is_none(),
            dir,
            next: None,
        }
    }

    /// Sets `next` to the next entry, if there is one; a failed listing is at its end.
    fn advance(&mut self, tree: &T) -> Result<()> {
        if self.next.is_none()
            && !self.is_at_end
            && let Some(dir) = &mut self.dir
        {
            self.is_at_end = true;
            self.next = tree.next_child(dir)?;
            self.is_at_end = self.next.is_none();
        }
        Ok(())
    }
}

impl<L: Tree, R: Tree> Level<L, R> {
    /// A pair of roots.
    fn new(left: Option<L::Dir>, right: Option<R::Dir>, scope: Scope) -> Self {
        Self {
            left: Side::new(left),
            right: Side::new(right),
            path_len: 0,
            depth: 1,
            scope,
            subtree_ids: None,
            reported_count: 0,
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
    choice: &'a Choice,
    ignored: &'a [Aspect],
    lists_all: bool,
    links: Links,
    path: Vec<u8>,
    report: &'a mut dyn FnMut(&[u8], Difference) -> ControlFlow<()>,
    /// Paths that were reported.
    reported_count: u64,
    /// Pairs of inodes of which one has several names.
    linked_count: u64,
    /// Pairs of directories that are equal at any place in the trees.
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
            self.report(Difference::Failed(error))?;
            // With half a listing, the rest of the other side would count as missing.
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
        if let Some(name) = left.as_ref().map(|child| &child.name) {
            self.push_name(name);
        } else if let Some(name) = right.as_ref().map(|child| &child.name) {
            self.push_name(name);
        }
        let left = left.and_then(|child| Some((self.scope(level, &child)?, child)));
        let right = right.and_then(|child| Some((self.scope(level, &child)?, child)));
        match (left, right) {
            (Some((scope, left)), Some((_, right))) => self.both(level, scope, &left, &right),
            (Some((scope, left)), None) => {
                let only = Only::of(&left.facts);
                self.one(only, (level.depth, scope), Difference::OnlyLeft, |own| {
                    let dir = own.left.open_dir(level.left.dir.as_ref(), &left)?;
                    Ok((Some(dir), None))
                })
            }
            (None, Some((scope, right))) => {
                let only = Only::of(&right.facts);
                self.one(only, (level.depth, scope), Difference::OnlyRight, |own| {
                    let dir = own.right.open_dir(level.right.dir.as_ref(), &right)?;
                    Ok((None, Some(dir)))
                })
            }
            // Left out.
            (None, None) => ControlFlow::Continue(Next::Same),
        }
    }

    /// The scope of an entry at the current path; `None` if it is left out.
    fn scope<N>(&self, level: &Level<L, R>, child: &Child<N>) -> Option<Scope> {
        let is_dir = child.facts.kind == FileKind::Directory;
        let path = (self.path.as_slice(), child.name.as_slice());
        self.choice.child(&level.scope, path, level.depth, is_dir)
    }

    /// Reports an entry of one tree, at a depth and with a scope. `open` opens it if it is a
    /// directory.
    fn one(
        &mut self,
        only: Only,
        (depth, scope): (usize, Scope),
        difference: fn(Only) -> Difference,
        open: impl FnOnce(&Self) -> Result<(Option<L::Dir>, Option<R::Dir>)>,
    ) -> ControlFlow<(), Next<Level<L, R>>> {
        if scope.is_wanted() {
            self.report(difference(only))?;
        }
        let is_entered = self.lists_all || !scope.is_wanted();
        if !is_entered || only.kind != FileKind::Directory {
            return ControlFlow::Continue(Next::Same);
        }
        match open(self) {
            Ok((left, right)) => {
                let mut deeper = Level::new(left, right, scope);
                (deeper.path_len, deeper.depth) = (self.path.len(), depth + 1);
                ControlFlow::Continue(Next::Down(deeper))
            }
            Err(error) => {
                self.report(Difference::Failed(error))?;
                ControlFlow::Continue(Next::Same)
            }
        }
    }

    fn both(
        &mut self,
        level: &Level<L, R>,
        scope: Scope,
        left: &Child<L::Node>,
        right: &Child<R::Node>,
    ) -> ControlFlow<(), Next<Level<L, R>>> {
        if scope.is_wanted() {
            self.pair(
                (level.left.dir.as_ref(), left),
                (level.right.dir.as_ref(), right),
            )?;
        }
        if [left.facts.kind, right.facts.kind] != [FileKind::Directory; 2] {
            return ControlFlow::Continue(Next::Same);
        }
        // What is left out at one path may be compared at another.
        let ids = || self.left.subtree_id(left).zip(self.right.subtree_id(right));
        let subtree_ids = self.choice.is_everything().then(ids).flatten();
        if subtree_ids.is_some_and(|pair| self.equal.contains(&pair)) {
            return ControlFlow::Continue(Next::Same);
        }
        let dirs = self
            .left
            .open_dir(level.left.dir.as_ref(), left)
            .and_then(|left_dir| {
                let right_dir = self.right.open_dir(level.right.dir.as_ref(), right)?;
                Ok((left_dir, right_dir))
            });
        match dirs {
            Ok((left_dir, right_dir)) => {
                let mut deeper = Level::new(Some(left_dir), Some(right_dir), scope);
                (deeper.path_len, deeper.depth) = (self.path.len(), level.depth + 1);
                deeper.subtree_ids = subtree_ids;
                deeper.reported_count = self.reported_count;
                deeper.linked_count = self.linked_count;
                ControlFlow::Continue(Next::Down(deeper))
            }
            Err(error) => {
                self.report(Difference::Failed(error))?;
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

    /// Remembers the pair of `level`, which is at its end, if nothing below it differed and no
    /// inode in it has several names.
    fn remember(&mut self, level: &Level<L, R>) {
        let is_equal =
            level.reported_count == self.reported_count && level.linked_count == self.linked_count;
        if let Some(pair) = level.subtree_ids.filter(|_| is_equal)
            && self.equal.len() < EQUAL_COUNT_MAX
        {
            self.equal.insert(pair);
        }
    }

    fn report(&mut self, difference: Difference) -> ControlFlow<()> {
        self.reported_count += 1;
        (self.report)(&self.path, difference)
    }

    /// Compares two inodes at one path, without their entries.
    fn pair(&mut self, left: At<'_, L>, right: At<'_, R>) -> ControlFlow<()> {
        match self.changes(left, right) {
            Ok(changes) if changes.is_empty() => ControlFlow::Continue(()),
            Ok(changes) => self.report(Difference::Changed(Changed {
                changes,
                lens: [left.1.facts.size, right.1.facts.size],
                is_file: [left.1.facts.kind, right.1.facts.kind] == [FileKind::Regular; 2],
            })),
            Err(error) => self.report(Difference::Failed(error)),
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

    /// Notes a difference if the names of one inode on one side belong to several inodes on the
    /// other. Returns whether this pair of inodes was compared before.
    fn note_links(&mut self, changes: &mut Vec<Change>, left: &Facts, right: &Facts) -> bool {
        if left.kind == FileKind::Directory || (left.nlink < 2 && right.nlink < 2) {
            return false;
        }
        self.linked_count += 1;
        let (is_known, words) = self.links.add(left.link_key, right.link_key, &self.path);
        self.note(changes, Aspect::Links, words);
        is_known
    }

    /// The offset of the first difference between two files of equal length. A range that is a hole
    /// in both is not read.
    fn first_difference(&self, left: At<'_, L>, right: At<'_, R>) -> Result<Option<u64>> {
        let size = left.1.facts.size;
        if size == 0 {
            return Ok(None);
        }
        let (mut a, mut b) = (
            self.left.open_file(left.0, left.1)?,
            self.right.open_file(right.0, right.1)?,
        );
        let buffer_len = usize::try_from(size).unwrap_or(PIECE_LEN).min(PIECE_LEN);
        let (mut a_piece, mut b_piece) = (vec![0; buffer_len], vec![0; buffer_len]);
        let mut offset = 0;
        loop {
            offset = a.next_data(offset)?.min(b.next_data(offset)?);
            if offset >= size {
                return Ok(None);
            }
            let len = usize::try_from(size - offset)
                .unwrap_or(buffer_len)
                .min(buffer_len);
            let (a_part, b_part) = (a_piece.split_at_mut(len).0, b_piece.split_at_mut(len).0);
            let common_len = a.read_at(offset, a_part)?.min(b.read_at(offset, b_part)?);
            let same_count = a_part
                .iter()
                .zip(&*b_part)
                .take(common_len)
                .take_while(|(a, b)| a == b)
                .count();
            offset += same_count as u64;
            // A file that has become shorter meanwhile differs, too.
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

/// The name of an inode type, as stat(1) prints it.
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

/// The names of the xattrs that only one side has, and of those that differ, marked with `*`.
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

#[cfg(test)]
mod tests;
