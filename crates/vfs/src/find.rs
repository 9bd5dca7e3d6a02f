//! The conditions of a search.

use crate::{Glob, PathGlob};
use std::cmp::Ordering;
use weald_format::{FileKind, Timestamp};
use weald_image::Inode;

/// Comparison with a number as in find(1): `+N` more than N, `-N` less than N, `N` exactly N.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// Required order of the number found and `value`.
    pub ordering: Ordering,
    /// The number to compare with.
    pub value: u64,
}

impl Comparison {
    /// Whether `found` satisfies the comparison.
    pub fn holds(&self, found: u64) -> bool {
        found.cmp(&self.value) == self.ordering
    }
}

/// Condition on permission bits, as in find(1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permissions {
    /// All 12 bits are equal to these.
    Exactly(u16),
    /// All of these bits are set; others may be.
    AllOf(u16),
    /// At least one of these bits is set, or there are none.
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

/// Conditions of a search. All must hold; of several names (paths, kinds), one must match.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Patterns for the name.
    pub names: Vec<Glob>,
    /// Patterns for the path from the root of the image.
    pub paths: Vec<PathGlob>,
    /// Types of inodes.
    pub kinds: Vec<FileKind>,
    /// Sizes in bytes; only regular files satisfy them.
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
    /// Number of hard links.
    pub links: Option<Comparison>,
    /// Only empty regular files and empty directories.
    pub is_empty: bool,
    /// Only inodes with extended attributes.
    pub has_xattrs: bool,
    /// Least depth below the start of the search.
    pub depth_min: usize,
}

impl Query {
    /// Whether a match depends only on the entry itself, not on the place of its directory. The
    /// link count depends on the place, and so do times in a times overlay.
    pub(crate) fn depends_on_entry_only(&self, has_times_overlay: bool) -> bool {
        let asks_times = self.newer_than.is_some() || self.older_than.is_some();
        self.paths.is_empty() && self.links.is_none() && !(asks_times && has_times_overlay)
    }

    /// Whether the entry `name` at `path` (without a leading `/`), `depth` levels below the start,
    /// matches.
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
