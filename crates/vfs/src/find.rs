//! Which entries of a tree a search wants.

use crate::{Glob, PathGlob};
use std::cmp::Ordering;
use weald_format::{FileKind, Timestamp};
use weald_image::Inode;

/// A number compared as find(1) does: `+N` more than, `-N` less than, `N` exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// How the number found must stand to `value`.
    pub ordering: Ordering,
    /// The number given.
    pub value: u64,
}

impl Comparison {
    /// Whether `found` is as wanted.
    pub fn holds(&self, found: u64) -> bool {
        found.cmp(&self.value) == self.ordering
    }
}

/// Permission bits wanted: as find(1), exactly these, at least these, any of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permissions {
    /// All 12 bits as given.
    Exactly(u16),
    /// All bits given, maybe more.
    AllOf(u16),
    /// One of the bits given, or none was given.
    AnyOf(u16),
}

impl Permissions {
    fn holds(self, found: u16) -> bool {
        match self {
            Self::Exactly(bits) => found == bits,
            Self::AllOf(bits) => found & bits == bits,
            Self::AnyOf(bits) => bits == 0 || found & bits != 0,
        }
    }
}

/// What a search wants: all conditions given must hold; of several names (paths, kinds), one must.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Patterns for the name.
    pub names: Vec<Glob>,
    /// Patterns for the path from the root of the image.
    pub paths: Vec<PathGlob>,
    /// Kinds.
    pub kinds: Vec<FileKind>,
    /// Sizes in bytes; only regular files have one here.
    pub sizes: Vec<Comparison>,
    /// Modified after this time.
    pub newer_than: Option<Timestamp>,
    /// Modified before this time.
    pub older_than: Option<Timestamp>,
    /// Permission bits.
    pub permissions: Option<Permissions>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Number of names of the inode.
    pub links: Option<Comparison>,
    /// Only regular files of no bytes and directories of no entries.
    pub is_empty: bool,
    /// Only inodes with extended attributes.
    pub has_xattrs: bool,
    /// Least depth below where the search starts.
    pub depth_min: usize,
}

impl Query {
    /// Whether the same entry is wanted wherever its directory stands. Names of an inode are
    /// counted by where they stand, and so are times where they are kept apart from entries.
    pub(crate) fn asks_entries_alone(&self, has_times_overlay: bool) -> bool {
        let asks_times = self.newer_than.is_some() || self.older_than.is_some();
        self.paths.is_empty() && self.links.is_none() && !(asks_times && has_times_overlay)
    }

    /// Whether the entry called `name` at `path` (no leading `/`), `depth` below the start, is
    /// wanted.
    pub fn wants(&self, path: &[u8], name: &[u8], inode: &Inode, depth: usize) -> bool {
        depth >= self.depth_min
            && (self.kinds.is_empty() || self.kinds.contains(&inode.kind))
            && self.wants_attributes(inode)
            && self.wants_size(inode)
            && self.newer_than.is_none_or(|time| inode.times.mtime > time)
            && self.older_than.is_none_or(|time| inode.times.mtime < time)
            && (self.names.is_empty() || self.names.iter().any(|glob| glob.matches(name)))
            && (self.paths.is_empty() || self.paths.iter().any(|glob| glob.matches(path)))
    }

    fn wants_attributes(&self, inode: &Inode) -> bool {
        let attributes = &inode.attributes;
        self.permissions
            .is_none_or(|wanted| wanted.holds(attributes.permissions))
            && self.uid.is_none_or(|uid| uid == attributes.uid)
            && self.gid.is_none_or(|gid| gid == attributes.gid)
            && self.links.is_none_or(|wanted| wanted.holds(inode.nlink))
            && (!self.has_xattrs || inode.xattr_set.is_some())
    }

    fn wants_size(&self, inode: &Inode) -> bool {
        let is_sized = matches!(inode.kind, FileKind::Regular | FileKind::Directory);
        let is_fitting =
            |wanted: &Comparison| inode.kind == FileKind::Regular && wanted.holds(inode.size.0);
        self.sizes.iter().all(is_fitting) && (!self.is_empty || is_sized && inode.size.0 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weald_format::{Attributes, ByteLen, EntryIndex, InodeNo, Times};

    fn file(size: u64, permissions: u16) -> Inode {
        Inode {
            ino: InodeNo(7),
            name_no: InodeNo(7),
            kind: FileKind::Regular,
            attributes: Attributes {
                permissions,
                uid: 1000,
                gid: 100,
                rdev: 0,
            },
            nlink: 2,
            size: ByteLen(size),
            times: Times {
                mtime: Timestamp {
                    seconds: 100,
                    nanoseconds: 5,
                },
                ..Times::default()
            },
            xattr_set: None,
            content: None,
            template: None,
            entry: EntryIndex(0),
        }
    }

    fn wants(query: Query) -> bool {
        query.wants(b"src/lib.rs", b"lib.rs", &file(10, 0o644), 2)
    }

    #[test]
    fn each_condition_can_refuse() {
        let compare = |ordering, value| Comparison { ordering, value };
        let at = |seconds, nanoseconds| {
            Some(Timestamp {
                seconds,
                nanoseconds,
            })
        };
        let glob = |text: &str| vec![Glob::parse(text.as_bytes()).unwrap()];
        let path = |text: &str| vec![PathGlob::parse(text.as_bytes()).unwrap()];
        let base = Query::default;
        for (query, expected) in [
            (base(), true),
            (
                Query {
                    names: glob("*.rs"),
                    ..base()
                },
                true,
            ),
            (
                Query {
                    names: glob("*.c"),
                    ..base()
                },
                false,
            ),
            (
                Query {
                    paths: path("src/*"),
                    ..base()
                },
                true,
            ),
            (
                Query {
                    paths: path("*.rs"),
                    ..base()
                },
                false,
            ),
            (
                Query {
                    kinds: vec![FileKind::Directory],
                    ..base()
                },
                false,
            ),
            (
                Query {
                    kinds: vec![FileKind::Directory, FileKind::Regular],
                    ..base()
                },
                true,
            ),
            (
                Query {
                    sizes: vec![compare(Ordering::Greater, 9)],
                    ..base()
                },
                true,
            ),
            (
                Query {
                    sizes: vec![compare(Ordering::Greater, 10)],
                    ..base()
                },
                false,
            ),
            (
                Query {
                    sizes: vec![compare(Ordering::Greater, 9), compare(Ordering::Less, 10)],
                    ..base()
                },
                false,
            ),
            (
                Query {
                    newer_than: at(100, 4),
                    ..base()
                },
                true,
            ),
            (
                Query {
                    newer_than: at(100, 5),
                    ..base()
                },
                false,
            ),
            (
                Query {
                    older_than: at(100, 6),
                    ..base()
                },
                true,
            ),
            (
                Query {
                    older_than: at(100, 5),
                    ..base()
                },
                false,
            ),
            (
                Query {
                    permissions: Some(Permissions::Exactly(0o600)),
                    ..base()
                },
                false,
            ),
            (
                Query {
                    permissions: Some(Permissions::AllOf(0o600)),
                    ..base()
                },
                true,
            ),
            (
                Query {
                    permissions: Some(Permissions::AllOf(0o700)),
                    ..base()
                },
                false,
            ),
            (
                Query {
                    permissions: Some(Permissions::AnyOf(0o700)),
                    ..base()
                },
                true,
            ),
            (
                Query {
                    permissions: Some(Permissions::AnyOf(0o111)),
                    ..base()
                },
                false,
            ),
            (
                Query {
                    uid: Some(0),
                    ..base()
                },
                false,
            ),
            (
                Query {
                    gid: Some(100),
                    ..base()
                },
                true,
            ),
            (
                Query {
                    links: Some(compare(Ordering::Equal, 1)),
                    ..base()
                },
                false,
            ),
            (
                Query {
                    is_empty: true,
                    ..base()
                },
                false,
            ),
            (
                Query {
                    has_xattrs: true,
                    ..base()
                },
                false,
            ),
            (
                Query {
                    depth_min: 2,
                    ..base()
                },
                true,
            ),
            (
                Query {
                    depth_min: 3,
                    ..base()
                },
                false,
            ),
        ] {
            assert_eq!(wants(query.clone()), expected, "{query:?}");
        }
    }
}
