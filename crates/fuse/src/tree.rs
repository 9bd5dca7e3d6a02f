//! What the driver needs of a tree. The reader's [`Image`] is one; stubs that measure or test the
//! driver are others.

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use weald_format::{InodeNo, Result, XattrSet};
use weald_image::{FileBytes, Image, Inode, Run};

/// Gets an entry's index, name and inode; ends the walk with `Break`.
pub type VisitEntry<'a> = dyn FnMut(u64, &[u8], &Inode) -> ControlFlow<()> + 'a;

/// What is known of a whole tree without a look at its inodes; lets the kernel stop asking
/// questions whose answer is always no. Claiming too much costs requests, claiming too little hides
/// what is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Some inode has extended attributes.
    pub has_xattrs: bool,
    /// Some inode has a POSIX ACL among them.
    pub has_acls: bool,
    /// Some regular file has holes.
    pub has_holes: bool,
    /// Some inode has a time of birth. Where others of the tree have none, the kernel asks for
    /// theirs again and again.
    pub has_btimes: bool,
    /// Nearly all of the contents is stored as it is: what is read besides costs a copy, nothing is
    /// decoded for it.
    pub is_plain: bool,
}

/// The figures that statfs(2) tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes of content.
    pub content_len: u64,
    /// Names in the tree, the root included.
    pub name_count: u64,
}

/// A file tree that never changes. Every method means what the method of the same name of [`Image`]
/// means.
pub trait Tree: Send + Sync + 'static {
    /// Bytes of a file, some of those that [`Tree::read`] hands out.
    type Chunk: Deref<Target = [u8]>;

    /// What is known of the whole tree.
    fn features(&self) -> Features;

    /// The figures for statfs(2).
    fn capacity(&self) -> Capacity;

    /// The inode with number `ino`.
    ///
    /// # Errors
    /// `NotFound` for a number that the tree does not have; whatever reading gives.
    fn inode(&self, ino: InodeNo) -> Result<Inode>;

    /// The directory that holds the first name of `ino`; the root's is the root.
    ///
    /// # Errors
    /// As [`Tree::inode`].
    fn parent(&self, ino: InodeNo) -> Result<InodeNo>;

    /// The entry of directory `dir` called `name`.
    ///
    /// # Errors
    /// `Invalid` where `dir` is not a directory; whatever reading gives.
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>>;

    /// Visits the entries of `dir` from the `start`-th on, in an order that never changes.
    ///
    /// # Errors
    /// As [`Tree::lookup`].
    /// # Cost
    /// Reaching `start` must be cheap: a directory is read in many calls.
    fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()>;

    /// The target of a symlink.
    ///
    /// # Errors
    /// Whatever reading gives.
    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>>;

    /// The extended attributes of an inode, sorted by name.
    ///
    /// # Errors
    /// Whatever reading gives.
    fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>>;

    /// Up to `len` bytes of a regular file from `offset`, in a few chunks one after the other;
    /// fewer only at its end.
    ///
    /// # Errors
    /// Whatever reading gives.
    fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<Self::Chunk>>;

    /// Visits the data and hole runs of a regular file that touch `offset ..`, in order.
    ///
    /// # Errors
    /// Whatever reading gives.
    fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()>;
}

/// A tree that somebody else holds too.
impl<T: Tree> Tree for Arc<T> {
    type Chunk = T::Chunk;

    fn features(&self) -> Features {
        T::features(self)
    }

    fn capacity(&self) -> Capacity {
        T::capacity(self)
    }

    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        T::inode(self, ino)
    }

    fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        T::parent(self, ino)
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        T::lookup(self, dir, name)
    }

    fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        T::read_dir(self, dir, start, visit)
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        T::read_link(self, inode)
    }

    fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        T::xattrs(self, inode)
    }

    fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<T::Chunk>> {
        T::read(self, inode, offset, len)
    }

    fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        T::runs(self, inode, offset, visit)
    }
}

impl Tree for Image {
    type Chunk = FileBytes;

    fn features(&self) -> Features {
        let has_xattrs = self.has_xattrs();
        Features {
            has_xattrs,
            has_acls: has_xattrs,
            has_holes: true,
            // A builder keeps them of all inodes or of none.
            has_btimes: self.root().is_ok_and(|root| root.times.btime.is_some()),
            is_plain: self.is_mostly_incompressible(),
        }
    }

    fn capacity(&self) -> Capacity {
        let summary = self.summary();
        Capacity {
            content_len: summary.content_len,
            name_count: summary.name_count,
        }
    }

    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        Image::inode(self, ino)
    }

    fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        Image::parent(self, ino)
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        Image::lookup(self, dir, name)
    }

    fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        Image::read_dir(self, dir, start, visit)
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        Image::read_link(self, inode)
    }

    fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        Image::xattrs(self, inode)
    }

    fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<FileBytes>> {
        Image::read_vectored(self, inode, offset, len)
    }

    fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        Image::runs(self, inode, offset, visit)
    }
}
