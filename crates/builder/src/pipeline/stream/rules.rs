//! Contents and limits for the entries of a stream.

use super::source::StreamEntry;
use crate::dedup::contents::ContentTable;
use crate::options::BuildOptions;
use crate::options::walk::HardLinks;
use crate::pipeline::plan::TreeSize;
use crate::write::tree_writer::{Body, LinkInfo, NewEntry};
use std::borrow::Cow;
use weald_format::entries::EntryKind;
use weald_format::{Attributes, FileKind, Result, Timestamp, XattrSet};

/// Share of the memory budget for known directories, as a divisor.
pub const KNOWN_SHARE: u64 = 4;

/// Contents and options for all entries.
pub struct Rules<'a> {
    contents: &'a ContentTable,
    options: &'a BuildOptions,
    /// Refuses trees that take too much memory.
    check: &'a dyn Fn(&TreeSize) -> Result<()>,
}

impl<'a> Rules<'a> {
    /// Creates rules for entries with these contents and options. `check` refuses trees that take
    /// too much memory.
    pub fn new(
        contents: &'a ContentTable,
        options: &'a BuildOptions,
        check: &'a dyn Fn(&TreeSize) -> Result<()>,
    ) -> Self {
        Self {
            contents,
            options,
            check,
        }
    }

    /// Checks the memory for `entry_count` entries in `depth` open directories.
    ///
    /// # Errors
    /// `Limit`.
    pub fn check(&self, entry_count: u64, depth: u64) -> Result<()> {
        (self.check)(&TreeSize {
            entry_count,
            depth,
            xattr_set_count: 0,
            xattrs_len: 0,
        })
    }

    /// Memory for known directories, bytes. It is a share of the budget alone, so that every
    /// machine writes the same bytes.
    pub fn known_len(&self) -> u64 {
        self.options.memory_len / KNOWN_SHARE
    }

    /// Converts an entry for the tree writer, with its extended attributes.
    fn new_entry<'e>(&self, entry: &StreamEntry<'e>) -> NewEntry<'e> {
        let (kind, body) = match entry.kind {
            FileKind::Directory => (EntryKind::Directory, Body::None),
            FileKind::Regular => match entry.content {
                None => (EntryKind::Empty, Body::Empty),
                Some(id) => (EntryKind::File, Body::Content(id, self.contents.digest(id))),
            },
            FileKind::Symlink => (EntryKind::Symlink, Body::Target(entry.target)),
            FileKind::CharDevice => (EntryKind::CharDevice, Body::None),
            FileKind::BlockDevice => (EntryKind::BlockDevice, Body::None),
            FileKind::Fifo => (EntryKind::Fifo, Body::None),
            FileKind::Socket => (EntryKind::Socket, Body::None),
        };
        let is_root = entry.name.is_empty();
        let mtime = if is_root {
            self.root_mtime(entry.mtime)
        } else {
            self.mtime(entry.mtime)
        };
        NewEntry {
            name: entry.name,
            kind,
            attributes: self.attributes(entry),
            times: [mtime; 4],
            xattrs: entry.xattrs,
            body,
            link: if self.splits_links() {
                LinkInfo::Single
            } else {
                entry.link
            },
        }
    }

    /// Whether each name becomes a file of its own.
    pub fn splits_links(&self) -> bool {
        self.options.hard_links == HardLinks::Split
    }

    fn attributes(&self, entry: &StreamEntry<'_>) -> Attributes {
        if entry.name.is_empty() {
            self.options.root_attributes_of(entry.attributes)
        } else {
            self.options.attributes_of(entry.attributes, entry.kind)
        }
    }

    /// The extended attributes that the options leave of those of `entry`, and its permissions
    /// with them.
    fn xattrs<'e>(&self, entry: &StreamEntry<'e>) -> (u16, Option<Cow<'e, XattrSet>>) {
        let rules = &self.options.rules;
        let changed = rules.xattrs_of(entry.xattrs, entry.kind);
        let permissions = entry.attributes.permissions;
        let permissions = rules.permissions_of(permissions, entry.xattrs, changed.as_deref());
        (permissions, changed)
    }

    /// Calls `take` with the entry for the tree writer.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn with_entry<T>(
        &self,
        entry: &StreamEntry<'_>,
        take: impl FnOnce(&NewEntry<'_>) -> Result<T>,
    ) -> Result<T> {
        let (permissions, xattrs) = self.xattrs(entry);
        let attributes = Attributes {
            permissions,
            ..entry.attributes
        };
        take(&self.new_entry(&StreamEntry {
            attributes,
            xattrs: xattrs.as_deref(),
            ..*entry
        }))
    }

    /// The mtime that the image stores for `mtime` of the root.
    pub fn root_mtime(&self, mtime: Timestamp) -> Timestamp {
        self.options.root_mtime_of(mtime)
    }

    /// Returns the mtime that the image stores for `mtime`.
    pub fn mtime(&self, mtime: Timestamp) -> Timestamp {
        self.options.mtime.apply(mtime)
    }
}
