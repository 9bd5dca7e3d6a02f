//! The forest as a pure function: any directory of it can be drawn without the others.
//!
//! The lowest directories, *leaves*, are numbered from 0 in the order of a walk, version by
//! version. Everything about a file follows from four values: the seed, the position of its
//! directory in one version (so that versions are similar), its number in the directory, and the
//! number of changes up to its version.

use crate::content::Content;
use crate::draw::{Key, Share};
use crate::names::{NameInput, append_number};
use crate::shapes::SizeRule;
use crate::spec::{Spec, SymlinkStyle};
use std::ops::Range;
use weald_format::{Attributes, Result, Timestamp, Xattr, XattrSet};

/// Purposes for which numbers are drawn.
mod purpose {
    pub const DIRECTORY: u64 = 1;
    pub const FILE: u64 = 2;
    pub const KIND: u64 = 3;
    pub const NAME: u64 = 4;
    pub const CONTENT: u64 = 5;
    pub const DUPLICATE: u64 = 6;
    pub const TIME: u64 = 7;
    pub const OWNER: u64 = 8;
    pub const MODE: u64 = 9;
    pub const XATTRS: u64 = 10;
    pub const TARGET: u64 = 11;
    pub const CHANGE: u64 = 12;
    pub const ACL: u64 = 13;
}

/// A forest.
#[derive(Debug, Clone)]
pub struct Forest {
    spec: Spec,
    seed: Key,
    /// Number of leaves in one version.
    leaves_per_version: u64,
}

/// Kind of a leaf's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A regular file.
    File(Content),
    /// A symlink. The range in [`Leaf::text`] holds its target.
    Symlink(Range<usize>),
    /// A hard link to the file with this number in the same leaf.
    HardLink(u64),
    /// A hard link to a file of the leaf before. The range in [`Leaf::text`] holds the name of that
    /// file.
    HardLinkAcross(Range<usize>),
}

/// An entry of a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Range of its name in [`Leaf::text`].
    pub name: Range<usize>,
    /// Number in the leaf.
    pub index: u64,
    /// Kind.
    pub body: Body,
    /// Permissions and owner; unused for hard links.
    pub attributes: Attributes,
    /// mtime, if it is set; unused for hard links.
    pub mtime: Option<Timestamp>,
    /// Whether the file has an attribute in the namespace `user`.
    pub has_xattrs: bool,
    /// Whether the file has an access control list.
    pub has_acl: bool,
}

/// A leaf: one of the lowest directories.
#[derive(Debug, Clone, Default)]
pub struct Leaf {
    /// Names and targets.
    pub text: Vec<u8>,
    /// Entries in byte order of their names.
    pub entries: Vec<Entry>,
}

impl Entry {
    /// Whether it is a hard link to another entry.
    pub fn is_hard_link(&self) -> bool {
        matches!(self.body, Body::HardLink(_) | Body::HardLinkAcross(_))
    }
}

impl Leaf {
    /// Name of `entry`.
    pub fn name(&self, entry: &Entry) -> &[u8] {
        &self.text[entry.name.clone()]
    }

    fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }
}

/// Position of a file: a leaf of one version of the tree, and a number.
#[derive(Clone, Copy)]
struct FilePosition {
    /// Number of its leaf within the version.
    leaf: u64,
    /// Key from which everything in that leaf is drawn.
    leaf_key: Key,
    index: u64,
    version: u64,
}

impl FilePosition {
    /// The file with the same number in another leaf.
    fn in_leaf(self, leaf: u64, forest: &Forest) -> Self {
        let leaf_key = forest.leaf_key(leaf);
        Self {
            leaf,
            leaf_key,
            ..self
        }
    }

    fn key(self) -> Key {
        self.leaf_key.part(self.index)
    }
}

/// The entries of one leaf, to be drawn one by one.
#[derive(Clone, Copy)]
pub struct LeafEntries<'a> {
    forest: &'a Forest,
    /// The first entry.
    first: FilePosition,
}

impl LeafEntries<'_> {
    /// Draws entry `index` alone. Replaces the entries of `leaf`.
    ///
    /// # Cost
    /// As [`Forest::leaf`] for an entry.
    pub fn draw(&self, index: u64, leaf: &mut Leaf) {
        leaf.clear();
        let position = FilePosition {
            index,
            ..self.first
        };
        self.forest.add_entry(position, leaf);
    }
}

impl Forest {
    /// Makes the forest of `spec`.
    ///
    /// # Errors
    /// As [`Spec::validate`].
    pub fn new(spec: Spec) -> Result<Self> {
        spec.validate()?;
        let (_, dirs) = spec.fanout.split_last().unwrap_or((&0, &[]));
        let leaves_per_version = dirs.iter().product();
        Ok(Self {
            seed: Key::new(spec.seed),
            leaves_per_version,
            spec,
        })
    }

    /// Its specification.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Number of leaves in all versions.
    pub fn leaf_count(&self) -> u64 {
        self.leaves_per_version * self.spec.versions.max(1)
    }

    /// Number of entries in every leaf.
    pub fn files_per_leaf(&self) -> u64 {
        self.spec.fanout.last().copied().unwrap_or(0)
    }

    /// Number of directories below the root on the path to a leaf, the leaf included; 0 if the root
    /// is the only leaf.
    pub fn depth(&self) -> usize {
        self.spec.fanout.len() - 1 + usize::from(self.spec.versions > 0)
    }

    /// Number of leaves below a directory of `level`. The root has level 0.
    pub fn leaves_below(&self, level: usize) -> u64 {
        let dirs = &self.spec.fanout[..self.spec.fanout.len() - 1];
        let first = match self.spec.versions > 0 {
            true if level == 0 => return self.leaf_count(),
            true => level - 1,
            false => level,
        };
        dirs[first..].iter().product()
    }

    /// Number of directories, the root included.
    pub fn directory_count(&self) -> u64 {
        let on_level = |level| self.leaf_count() / self.leaves_below(level);
        (0..=self.depth()).map(on_level).sum()
    }

    /// Appends the name of the directory of `level`, at least 1, on the path to `leaf`.
    pub fn dir_name(&self, level: usize, leaf: u64, out: &mut Vec<u8>) {
        let below = self.leaves_below(level);
        if self.spec.versions > 0 && level == 1 {
            out.push(b'v');
            let width = self.spec.versions.saturating_sub(1).checked_ilog10();
            append_number(leaf / below, width.map_or(1, |w| w as usize + 1), out);
            return;
        }
        let number = leaf % self.leaves_per_version / below;
        let count = self.spec.fanout[level - 1 - usize::from(self.spec.versions > 0)];
        let key = self
            .seed
            .part(purpose::DIRECTORY)
            .part(level as u64)
            .part(number);
        let name = NameInput {
            key,
            index: number % count,
            count,
            epoch: 0,
            len: 0,
            is_file: false,
        };
        self.spec.dir_names.append(&name, out);
    }

    /// mtime of the directory of `level` on the path to `leaf`, by the rule of its first file;
    /// `None` if it is not set.
    pub fn dir_mtime(&self, level: usize, leaf: u64) -> Option<Timestamp> {
        let below = self.leaves_below(level);
        let first = leaf / below * below;
        let key = self
            .seed
            .part(purpose::TIME)
            .part(level as u64)
            .part(first % self.leaves_per_version);
        self.spec.times.draw(key, first * self.files_per_leaf(), 0)
    }

    /// Permissions and owner of every directory.
    pub fn dir_attributes(&self) -> Attributes {
        let (uid, gid) = self.spec.owners.first().copied().unwrap_or_default();
        Attributes {
            permissions: self.spec.dir_mode,
            uid,
            gid,
            rdev: 0,
        }
    }

    /// Draws leaf `number`. Replaces the entries of `leaf`.
    ///
    /// # Cost
    /// 30 to 500 ns per entry, and a sort if the names are not in order.
    pub fn leaf(&self, number: u64, leaf: &mut Leaf) {
        leaf.clear();
        let first = self.position(number, 0);
        for index in 0..self.files_per_leaf() {
            self.add_entry(FilePosition { index, ..first }, leaf);
        }
        let text = &leaf.text;
        let is_sorted = leaf
            .entries
            .is_sorted_by(|a, b| text[a.name.clone()] < text[b.name.clone()]);
        if !is_sorted {
            leaf.entries
                .sort_unstable_by(|a, b| text[a.name.clone()].cmp(&text[b.name.clone()]));
        }
    }

    /// The entries of leaf `number`, to be drawn one by one.
    pub fn entries(&self, number: u64) -> LeafEntries<'_> {
        LeafEntries {
            forest: self,
            first: self.position(number, 0),
        }
    }

    fn position(&self, number: u64, index: u64) -> FilePosition {
        let leaf = number % self.leaves_per_version;
        FilePosition {
            leaf,
            leaf_key: self.leaf_key(leaf),
            index,
            version: number / self.leaves_per_version,
        }
    }

    fn leaf_key(&self, leaf: u64) -> Key {
        self.seed.part(purpose::FILE).part(leaf)
    }

    fn add_entry(&self, position: FilePosition, leaf: &mut Leaf) {
        let key = position.key();
        let body = self.body(position, key, leaf);
        let start = leaf.text.len();
        let len = match &body {
            // A link whose target is a link became a file, but keeps its name.
            Body::File(content) if self.is_file(position) => content.len(),
            _ => 0,
        };
        self.append_name_of_len(position, key, len, &mut leaf.text);
        let spec = &self.spec;
        let number = (position.version * self.leaves_per_version + position.leaf)
            * self.files_per_leaf()
            + position.index;
        let is_file = matches!(body, Body::File(_));
        let is_drawn =
            |purpose, share: Share| is_file && !share.is_none() && key.part(purpose).is_in(share);
        let time_key = key.part(purpose::TIME);
        leaf.entries.push(Entry {
            name: start..leaf.text.len(),
            index: position.index,
            attributes: self.attributes(key, matches!(body, Body::Symlink(_))),
            mtime: spec.times.draw(
                time_key,
                number,
                self.epoch(position, time_key, spec.time_changes),
            ),
            has_xattrs: is_drawn(purpose::XATTRS, spec.xattrs),
            has_acl: is_drawn(purpose::ACL, spec.acls),
            body,
        });
    }

    /// The last version, up to that of `position`, that drew a change of probability `share` for
    /// `key`.
    fn epoch(&self, position: FilePosition, key: Key, share: Share) -> u64 {
        if share.is_none() {
            return 0;
        }
        let changes = key.part(purpose::CHANGE);
        (1..=position.version)
            .rev()
            .find(|&v| changes.part(v).is_in(share))
            .unwrap_or(0)
    }

    fn append_name(&self, position: FilePosition, out: &mut Vec<u8>) {
        let len = if self.is_file(position) {
            self.content(position).len()
        } else {
            0
        };
        self.append_name_of_len(position, position.key(), len, out);
    }

    /// The same if the key of the file and its length (0 for links) are known.
    fn append_name_of_len(&self, position: FilePosition, key: Key, len: u64, out: &mut Vec<u8>) {
        let key = key.part(purpose::NAME);
        let name = NameInput {
            key,
            index: position.index,
            count: self.files_per_leaf(),
            epoch: self.epoch(position, key, self.spec.name_changes),
            len,
            is_file: true,
        };
        self.spec.names.append(&name, out);
    }

    fn is_file(&self, position: FilePosition) -> bool {
        let spec = &self.spec;
        let others = [spec.symlinks, spec.hard_links, spec.hard_links_across];
        let others = Share::sum(&others).unwrap_or_default();
        others.is_none() || !position.key().part(purpose::KIND).is_in(others)
    }

    fn body(&self, position: FilePosition, key: Key, leaf: &mut Leaf) -> Body {
        if self.is_file(position) {
            return Body::File(self.content(position));
        }
        let spec = &self.spec;
        let kind = key.part(purpose::KIND);
        let target = key.part(purpose::TARGET);
        let links = Share::sum(&[spec.symlinks, spec.hard_links]).unwrap_or_default();
        if kind.is_in(spec.symlinks) {
            let start = leaf.text.len();
            self.append_target(position, target, &mut leaf.text);
            return Body::Symlink(start..leaf.text.len());
        }
        let other = FilePosition {
            index: target.below(self.files_per_leaf()),
            ..position
        };
        if kind.is_in(links) {
            if self.is_file(other) {
                return Body::HardLink(other.index);
            }
        } else if let Some(before) = self.leaf_before(position) {
            let other = other.in_leaf(before, self);
            if self.is_file(other) {
                let start = leaf.text.len();
                self.append_name(other, &mut leaf.text);
                return Body::HardLinkAcross(start..leaf.text.len());
            }
        }
        // The target is a link itself.
        Body::File(self.content(position))
    }

    /// The leaf before that of `position` in the same directory, for every second leaf. So links
    /// always connect pairs of leaves.
    fn leaf_before(&self, position: FilePosition) -> Option<u64> {
        let count = *self.spec.fanout.iter().rev().nth(1)?;
        (position.leaf % count % 2 == 1).then(|| position.leaf - 1)
    }

    /// Whether leaf `number` may have links to the leaf before it.
    pub fn has_links_to_leaf_before(&self, number: u64) -> bool {
        let position = self.position(number, 0);
        !self.spec.hard_links_across.is_none() && self.leaf_before(position).is_some()
    }

    fn append_target(&self, position: FilePosition, key: Key, out: &mut Vec<u8>) {
        let style = match self.spec.symlink_style {
            SymlinkStyle::Mixed => match key.part(1).below(3) {
                0 => SymlinkStyle::Relative,
                1 => SymlinkStyle::Dangling,
                _ => SymlinkStyle::Annex,
            },
            style => style,
        };
        let index = key.below(self.files_per_leaf());
        match style {
            SymlinkStyle::Dangling | SymlinkStyle::Mixed => {
                out.extend_from_slice(b"gone/");
                append_number(key.bits(), 1, out);
            }
            SymlinkStyle::Annex => {
                (0..self.depth()).for_each(|_| out.extend_from_slice(b"../"));
                out.extend_from_slice(b".git/annex/objects/");
                let name = NameInput {
                    key,
                    index: 0,
                    count: 1,
                    epoch: 0,
                    len: key.part(2).below(1 << 30),
                    is_file: true,
                };
                let mut annex = Vec::new();
                crate::names::NameStyle::Annex.append(&name, &mut annex);
                let directory = [annex.as_slice(), b"/", &annex].concat();
                out.extend_from_slice(&directory);
            }
            // A file of the leaf before, or of this leaf.
            SymlinkStyle::Relative => {
                let leaf = self.leaf_before(position).unwrap_or(position.leaf);
                if leaf != position.leaf {
                    out.extend_from_slice(b"../");
                    let number = position.version * self.leaves_per_version + leaf;
                    self.dir_name(self.depth(), number, out);
                    out.push(b'/');
                }
                let other = FilePosition { index, ..position }.in_leaf(leaf, self);
                self.append_name(other, out);
            }
        }
    }

    fn content(&self, position: FilePosition) -> Content {
        let spec = &self.spec;
        let own = position.key();
        if spec.sizes == SizeRule::Empty {
            return Content::new(own, 0, false, own, Vec::new());
        }
        let is_duplicate = own.part(purpose::DUPLICATE).is_in(spec.duplicates);
        let base = if is_duplicate {
            let bits = own.part(purpose::DUPLICATE).part(1);
            let other = position.in_leaf(bits.below(self.leaves_per_version), self);
            let index = bits.part(2).below(self.files_per_leaf());
            FilePosition { index, ..other }.key()
        } else {
            own
        };
        let changes = own.part(purpose::CONTENT).part(purpose::CHANGE);
        let epochs = if spec.content_changes.is_none() {
            Vec::new()
        } else {
            (1..=position.version)
                .filter(|&v| changes.part(v).is_in(spec.content_changes))
                .collect()
        };
        let key = base.part(purpose::CONTENT);
        Content::new(
            key,
            spec.sizes.draw(key),
            key.part(1).is_in(spec.sparse),
            own,
            epochs,
        )
    }

    fn attributes(&self, key: Key, is_symlink: bool) -> Attributes {
        let pick = |purpose, count: usize| match count {
            0 | 1 => 0,
            _ => key.part(purpose).below(count as u64) as usize,
        };
        let owners = &self.spec.owners;
        let (uid, gid) = owners
            .get(pick(purpose::OWNER, owners.len()))
            .copied()
            .unwrap_or_default();
        let modes = &self.spec.modes;
        Attributes {
            permissions: if is_symlink {
                0o777
            } else {
                modes
                    .get(pick(purpose::MODE, modes.len()))
                    .copied()
                    .unwrap_or(0o644)
            },
            uid,
            gid,
            rdev: 0,
        }
    }

    /// Extended attributes of `entry` in leaf `number`.
    pub fn xattrs(&self, number: u64, entry: &Entry) -> XattrSet {
        let key = self.position(number, entry.index).key();
        let mut set = Vec::new();
        if entry.has_acl {
            set.push(Xattr {
                name: b"system.posix_acl_access".to_vec(),
                value: acl(entry.attributes.permissions, key.part(purpose::ACL)),
            });
        }
        if entry.has_xattrs {
            // Few distinct values, as labels have.
            let label = key.part(purpose::XATTRS).part(1).below(16);
            set.push(Xattr {
                name: b"user.forest.label".to_vec(),
                value: format!("label {label}").into_bytes(),
            });
        }
        set
    }
}

/// An access control list that agrees with `permissions`, with one more user, drawn from `key`.
///
/// # Source
/// Linux, `include/uapi/linux/posix_acl_xattr.h`.
fn acl(permissions: u16, key: Key) -> Vec<u8> {
    const UNDEFINED: u32 = u32::MAX;
    let entry = |tag: u16, bits: u16, id: u32| {
        let (tag, bits, id) = (
            tag.to_le_bytes(),
            (bits & 7).to_le_bytes(),
            id.to_le_bytes(),
        );
        [tag.as_slice(), &bits, &id].concat()
    };
    let user = 1000 + key.part(1).below(16) as u32;
    [
        2u32.to_le_bytes().to_vec(),
        entry(1, permissions >> 6, UNDEFINED),
        entry(2, 4, user),
        entry(4, permissions >> 3, UNDEFINED),
        // The mask: it becomes the group bits of the mode.
        entry(16, permissions >> 3, UNDEFINED),
        entry(32, permissions, UNDEFINED),
    ]
    .concat()
}
