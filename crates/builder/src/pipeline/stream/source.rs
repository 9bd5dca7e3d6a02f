//! The interface of a tree that comes as a stream: what a source hands over, and what takes it.

use crate::write::tree_writer::LinkInfo;
use std::ops::Range;
use weald_format::pages::Link;
use weald_format::{Attributes, ContentId, FileKind, Result, Timestamp, XattrSet};

/// A tree that comes as a stream.
pub trait TreeSource {
    /// Facts about the stream. The builder asks before the contents, when estimates are enough, and
    /// again after them, when the values must be right.
    fn size(&self) -> StreamSize;

    /// Returns the root directory. The builder asks after the contents.
    ///
    /// # Errors
    /// Its own.
    fn root(&self) -> Result<StreamRoot>;

    /// Hands over every content. The source remembers the ids that `store` returns; equal contents
    /// get the same id.
    ///
    /// # Errors
    /// Its own, and those of `store`.
    fn contents(&mut self, store: &mut dyn ContentStore) -> Result<()>;

    /// Hands over the tree in preorder: the entries of the root, then, for each subdirectory in
    /// turn, its entries and the directories below it. The builder may call it several times. It
    /// ends early if the sink returns false.
    ///
    /// # Errors
    /// Its own, and those of `sink`.
    fn tree(&mut self, sink: &mut dyn TreeSink) -> Result<()>;

    /// Hands over the tree as a depth-first walk and returns true, or returns false if it comes by
    /// [`TreeSource::tree`]. All entries of a walk have the same mtime, and no inode has two names.
    /// # Errors
    /// Its own, and those of `sink`.
    fn walk(&mut self, sink: &mut dyn WalkSink) -> Result<bool> {
        let _ = sink;
        Ok(false)
    }

    /// Hands over every name of each inode whose names lie in several directories, in the order of
    /// their numbers. The root has number 1; the others count in the order of [`TreeSource::tree`].
    ///
    /// # Errors
    /// Its own, and those of `sink`.
    fn links(&mut self, sink: &mut dyn FnMut(&Link) -> Result<()>) -> Result<()> {
        let _ = sink;
        Ok(())
    }
}

/// The root directory of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamRoot {
    /// Permissions and owner.
    pub attributes: Attributes,
    /// mtime.
    pub mtime: Timestamp,
    /// Extended attributes.
    pub xattrs: XattrSet,
}

impl StreamRoot {
    pub(super) fn entry(&self) -> StreamEntry<'_> {
        StreamEntry {
            name: b"",
            kind: FileKind::Directory,
            attributes: self.attributes,
            mtime: self.mtime,
            xattrs: Some(&self.xattrs).filter(|set| !set.is_empty()),
            content: None,
            target: b"",
            link: LinkInfo::Single,
        }
    }
}

/// Facts about a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamSize {
    /// Number of entries; 0 if unknown.
    pub entry_count: u64,
    /// Bytes of data in files; `None` if unknown.
    pub data_len: Option<u64>,
    /// Maximum number of entries of one directory.
    pub directory_count_max: u64,
    /// Depth of the deepest directory.
    pub depth: u64,
    /// Memory that the source itself may hold, bytes.
    pub memory_len: u64,
    /// Whether all entries have the same mtime, so that the builder need not find out where mtimes
    /// take less space.
    pub has_one_mtime: bool,
    /// Whether no content will come, so that compression needs no memory.
    pub has_no_contents: bool,
}

/// A content that can be read more than once.
pub trait StreamBody {
    /// Length in bytes, holes included; at least 1.
    fn content_len(&self) -> u64;

    /// Data runs, ascending and not adjacent; `None` if there are no holes.
    fn runs(&self) -> Option<Vec<Range<u64>>>;

    /// Fills `out` with the bytes from `start` on.
    ///
    /// # Errors
    /// `Io`.
    fn read(&self, start: u64, out: &mut [u8]) -> Result<()>;
}

/// Takes contents.
pub trait ContentStore {
    /// Stores a content unless the image has it already, and returns its id.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`; `Invalid` if the build was interrupted.
    fn store(&mut self, body: &dyn StreamBody) -> Result<ContentId>;
}

/// Takes the tree.
pub trait TreeSink {
    /// Takes the entries of the next directory, names in byte order. Returns false if no more are
    /// needed.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`; `Invalid` for names out of order, or if the build was interrupted.
    fn directory(&mut self, entries: &[StreamEntry<'_>]) -> Result<bool>;
}

/// Takes the tree as a walk. The root is open at the start. The entries of a directory come in byte
/// order of their names, each subdirectory at its position.
pub trait WalkSink {
    /// Takes an entry of the open directory that is no directory itself.
    ///
    /// # Errors
    /// `Io`, `Full`; `Limit` if the directories on the path take more memory than the budget has;
    /// `Invalid` for names out of order, or if the build was interrupted.
    fn entry(&mut self, entry: &StreamEntry<'_>) -> Result<()>;

    /// Opens a subdirectory of the open directory.
    fn enter(&mut self);

    /// Closes the open directory; `entry` is its own entry.
    ///
    /// # Errors
    /// As [`WalkSink::entry`].
    fn leave(&mut self, entry: &StreamEntry<'_>) -> Result<()>;
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy)]
pub struct StreamEntry<'a> {
    /// Name.
    pub name: &'a [u8],
    /// Kind.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// mtime.
    pub mtime: Timestamp,
    /// Extended attributes.
    pub xattrs: Option<&'a XattrSet>,
    /// Content of a regular file; `None` if it is empty.
    pub content: Option<ContentId>,
    /// Target of a symlink; empty for other kinds.
    pub target: &'a [u8],
    /// Hard links.
    pub link: LinkInfo,
}
