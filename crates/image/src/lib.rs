//! The reader: opens an image and answers what its tree and its files hold; verifies every byte before it is used.
//!
//! Neighbours: `format` parses, `codec` decodes, `io` reads. It never links a writer and never prints.
#![forbid(unsafe_code)]
#![allow(unused_variables, dead_code)] // removed with the last todo

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use weald_format::{
    Attributes, ByteLen, ContentId, Digest, EntryIndex, FileKind, InodeNo, Result, TemplateId, Times, XattrSet,
    XattrSetId,
};
use weald_io::ReadAt;

/// How to open an image.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Hard limit of cached decoded bytes.
    pub cache_len: ByteLen,
    /// Refuse any image whose image digest is not this.
    pub expected_digest: Option<Digest>,
    /// Threads that decode ahead of sequential readers; 0 = none.
    pub prefetch_threads: usize,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { cache_len: ByteLen(256 << 20), expected_digest: None, prefetch_threads: 0 }
    }
}

/// An open image. Cheap to share (`Arc`), usable from many threads.
pub struct Image {
    _private: (),
}

/// One inode as one of its names shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// `st_ino`: shared by all hard links of a file.
    pub ino: InodeNo,
    /// The dense number of this very name; equals `ino` for all but the later names of a hard-linked file.
    pub name_no: InodeNo,
    /// What it is.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// `st_nlink` (directories: 2 + sub-directories).
    pub nlink: u64,
    /// Bytes of a regular file or of a symlink's target; number of entries of a directory; 0 for others.
    pub size: ByteLen,
    /// Times.
    pub times: Times,
    /// Extended attributes, if it has any.
    pub xattr_set: Option<XattrSetId>,
    /// Which content a non-empty regular file has.
    pub content: Option<ContentId>,
    /// Which template a directory has.
    pub template: Option<TemplateId>,
    /// Where its entry lies (needed for link targets).
    pub entry: EntryIndex,
}

/// A run of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
    /// Absent data that reads as zero.
    pub is_hole: bool,
}

/// Bytes handed out by [`Image::read`]: a part of a cached block, or a copy of several parts.
pub struct Chunk {
    _private: (),
}

impl std::ops::Deref for Chunk {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        todo!()
    }
}

/// Numbers about an open image that cost nothing to tell.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Digest of the directory record: authenticates everything.
    pub image_digest: Digest,
    /// Logical identity: names, attributes and content, whatever codec, block size or order.
    pub tree_digest: Digest,
    /// Generation of this footer, from 1.
    pub generation: u64,
    /// Inodes named (entries of the expanded tree, the root included).
    pub name_count: u64,
    /// Entries stored (of distinct templates).
    pub entry_count: u64,
    /// Distinct directories.
    pub template_count: u64,
    /// Distinct non-empty contents.
    pub content_count: u64,
    /// Bytes of all distinct contents, holes included.
    pub content_len: u64,
    /// Bytes of the image file.
    pub image_len: u64,
    /// Most decoded bytes that one read can need at once (largest block).
    pub block_len_max: u64,
}

impl Image {
    /// Opens an image from any storage; reads the superblock, the footer and the directory only.
    ///
    /// # Errors
    /// `Corrupt`, `Unsupported`, `Limit`, `Io`; `Invalid` where `expected_digest` differs.
    pub fn open(source: Arc<dyn ReadAt>, options: &OpenOptions) -> Result<Self> {
        todo!()
    }

    /// Opens the image file at `path`, which begins `start` bytes into the file.
    pub fn open_path(path: &Path, start: u64, options: &OpenOptions) -> Result<Self> {
        todo!()
    }

    /// Numbers about the image.
    pub fn summary(&self) -> &Summary {
        todo!()
    }

    /// The root directory.
    pub fn root(&self) -> Result<Inode> {
        todo!()
    }

    /// The inode with number `ino` (also a `name_no`: then the inode that this name shows).
    ///
    /// # Errors
    /// `NotFound` for a number the image does not have.
    /// # Cost
    /// A descent from the root: O(depth · log fan-out) with the templates on the way cached.
    pub fn inode(&self, ino: InodeNo) -> Result<Inode> {
        todo!()
    }

    /// The directory that holds the name `ino` (the root's parent is the root).
    pub fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        todo!()
    }

    /// The entry of directory `dir` called `name`.
    ///
    /// # Errors
    /// `Invalid` where `dir` is not a directory.
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        todo!()
    }

    /// Visits the entries of `dir` in byte order of their names, from the `start`-th on (0-based; no `.` or `..`);
    /// `visit` gets index, name and inode and stops the walk with `Break`.
    pub fn read_dir(
        &self,
        dir: InodeNo,
        start: u64,
        visit: &mut dyn FnMut(u64, &[u8], &Inode) -> ControlFlow<()>,
    ) -> Result<()> {
        todo!()
    }

    /// The target of a symlink.
    pub fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        todo!()
    }

    /// The extended attributes of an inode (empty where it has none).
    pub fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        todo!()
    }

    /// Up to `len` bytes of a regular file from `offset`; shorter only at the end of the file. Copies only where the
    /// range spans several blocks or holes.
    pub fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Chunk> {
        todo!()
    }

    /// Fills `buf` from `offset`; returns how many bytes the file had.
    pub fn read_at(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        todo!()
    }

    /// Visits the data and hole runs of a regular file that touch `offset ..`, in order, merged where adjacent.
    pub fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        todo!()
    }

    /// Drops every cached block and page.
    pub fn drop_caches(&self) {
        todo!()
    }
}
