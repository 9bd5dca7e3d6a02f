//! Interface between the driver and a file tree. The reader's [`Image`] implements it; so do the
//! stubs of tests and benchmarks.

use std::ops::{ControlFlow, Deref};
use std::sync::Arc;
use weald_format::{InodeNo, ROOT_INODE, Result, XattrSet};
use weald_image::{FileBytes, Image, Inode, Run};

/// Callback for a directory entry: its index, name and inode. `Break` ends the walk.
pub type VisitEntry<'a> = dyn FnMut(u64, &[u8], &Inode) -> ControlFlow<()> + 'a;

/// Features that any inode of a tree uses. The kernel need not ask for a feature that no inode has.
/// A feature set without need costs requests; one missing hides data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Some inode has extended attributes.
    pub has_xattrs: bool,
    /// Some inode has a POSIX ACL among them.
    pub has_acls: bool,
    /// Some regular file has holes.
    pub has_holes: bool,
    /// Some inode has a birth time. The kernel repeats its request for inodes without one.
    pub has_btimes: bool,
    /// Nearly all contents are stored uncompressed: readahead costs a copy and no decoding.
    pub is_plain: bool,
}

/// Figures for statfs(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Bytes of content.
    pub content_len: u64,
    /// Number of names in the tree, including the root.
    pub name_count: u64,
}

/// A file tree that does not change, apart from what [`Tree::is_followed`] allows. Each method has
/// the meaning of the method of the same name of [`Image`].
pub trait Tree: Send + Sync + 'static {
    /// Bytes of a file: part of the result of [`Tree::read`].
    type Chunk: Deref<Target = [u8]>;

    /// Features of the whole tree.
    fn features(&self) -> Features;

    /// Figures for statfs(2).
    fn capacity(&self) -> Capacity;

    /// The inode with number `ino`.
    ///
    /// # Errors
    /// `NotFound` for a number outside the tree; errors of reading.
    fn inode(&self, ino: InodeNo) -> Result<Inode>;

    /// Directory that holds the first name of `ino`; the root is its own parent.
    ///
    /// # Errors
    /// As [`Tree::inode`].
    fn parent(&self, ino: InodeNo) -> Result<InodeNo>;

    /// The entry of directory `dir` called `name`.
    ///
    /// # Errors
    /// `Invalid` if `dir` is not a directory; errors of reading.
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>>;

    /// Visits the entries of `dir` from index `start` on, in an order that never changes.
    ///
    /// # Errors
    /// As [`Tree::lookup`].
    /// # Cost
    /// An implementation must reach `start` cheaply: the kernel reads a directory in many calls.
    fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()>;

    /// The target of a symlink.
    ///
    /// # Errors
    /// Errors of reading.
    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>>;

    /// The extended attributes of an inode, sorted by name.
    ///
    /// # Errors
    /// Errors of reading.
    fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>>;

    /// Reads `len` bytes of a regular file from `offset`, in a few consecutive chunks; fewer bytes
    /// only at the end of the file.
    ///
    /// # Errors
    /// Errors of reading.
    fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<Self::Chunk>>;

    /// Visits the data and hole runs of a regular file that overlap `offset ..`, in order.
    ///
    /// # Errors
    /// Errors of reading.
    fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Ends reads that wait for a server: nobody wants their results.
    fn stop_waiting(&self) {}

    /// Whether the root shows another tree from one request to the next. Its entries have other
    /// numbers then, and the numbers below the entries of before stay what they are, as long as the
    /// kernel knows one of them: [`Tree::lookup`] of a name counts what it finds, and
    /// [`Tree::read_dir`] holds its tree while it calls `visit`.
    fn is_followed(&self) -> bool {
        false
    }

    /// Begins a listing of the root. The directory with the number that is returned stays as it is
    /// until [`Tree::end_listing`].
    fn begin_listing(&self) -> InodeNo {
        ROOT_INODE
    }

    /// Ends a listing of the root.
    fn end_listing(&self, _dir: InodeNo) {}

    /// The kernel gets one more answer that names `ino`, which it knows, or which `read_dir` shows.
    fn remember(&self, _ino: InodeNo) {}

    /// The kernel gives back `count` answers that named `ino`.
    fn forget(&self, _ino: InodeNo, _count: u64) {}
}

/// A shared tree.
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

    fn stop_waiting(&self) {
        T::stop_waiting(self);
    }

    fn is_followed(&self) -> bool {
        T::is_followed(self)
    }

    fn begin_listing(&self) -> InodeNo {
        T::begin_listing(self)
    }

    fn end_listing(&self, dir: InodeNo) {
        T::end_listing(self, dir);
    }

    fn remember(&self, ino: InodeNo) {
        T::remember(self, ino);
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        T::forget(self, ino, count);
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

    fn stop_waiting(&self) {
        Self::stop_waiting(self);
    }

    fn features(&self) -> Features {
        let has_xattrs = self.has_xattrs();
        Features {
            has_xattrs,
            has_acls: has_xattrs,
            has_holes: true,
            // A builder stores birth times for all inodes or for none.
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
