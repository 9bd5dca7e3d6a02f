//! The trait of a tree that is compared, and its entries.

use weald_format::{Attributes, FileKind, Result, Times, XattrSet};

/// Identifies an inode with several names within its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkKey {
    /// On a host the number of its device, else 0.
    pub device: u64,
    /// Number of the inode there.
    pub ino: u64,
}

/// Facts about an inode that every tree has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The same for all names of an inode.
    pub link_key: LinkKey,
    /// Its type.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// Number of hard links.
    pub nlink: u64,
    /// Bytes of a regular file.
    pub size: u64,
    /// Times. A time that is `None` on one side is not compared.
    pub times: Times,
}

/// One entry of a directory.
#[derive(Debug, Clone)]
pub struct Child<N> {
    /// The name; empty for the root.
    pub name: Vec<u8>,
    /// Facts about its inode.
    pub facts: Facts,
    /// The tree's own reference to it.
    pub node: N,
}

/// A tree to compare. Every method may fail with an error of its storage. `dir` is the directory
/// that listed `child`, `None` for the root.
pub trait Tree {
    /// A reference to an inode.
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
    /// An identifier that two directories of this tree share only if everything below them is
    /// equal, apart from which names belong to one inode. `None` if the tree has no such
    /// identifier.
    fn subtree_id(&self, _child: &Child<Self::Node>) -> Option<u64> {
        None
    }
    /// Opens a regular file.
    fn open_file(
        &self,
        dir: Option<&Self::Dir>,
        child: &Child<Self::Node>,
    ) -> Result<Box<dyn FileReader + '_>>;
}

/// Reads a regular file.
pub trait FileReader {
    /// The offset of the next data at or behind `offset`; everything before it is a hole. The
    /// length of the file if no data follow.
    ///
    /// # Errors
    /// Errors of the storage.
    fn next_data(&mut self, offset: u64) -> Result<u64>;

    /// Fills `buf` with the bytes from `offset` on; returns their number, which is less than the
    /// length of `buf` only at the end of the file.
    ///
    /// # Errors
    /// Errors of the storage.
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize>;
}
