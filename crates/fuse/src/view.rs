//! Maps the kernel's view of a mount to a [`Tree`]: node ids, `.` and `..`, offsets of directory
//! entries, hidden attributes.

use crate::attr::{Overrides, attributes};
use crate::faults::Faults;
use crate::options::Access;
use crate::tree::{Features, Tree};
use crate::wire::{Attr, NodeId};
use rustix::io::Errno;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;
use weald_filter::AttributeChoice;
use weald_format::{FileKind, InodeNo, ROOT_INODE, Result, XattrSet, permissions_without_acl};
use weald_image::Inode;

/// Offsets of `.` and `..` in a directory; entry `i` has offset `i` + 3. An offset points after its
/// entry.
const AFTER_DOT: u64 = 1;
const AFTER_DOT_DOT: u64 = 2;

/// Prefix of the names of the two POSIX ACLs.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// Callback for a directory entry: the offset after it, its name and its inode. Returns true if the
/// buffer has no room for it.
pub(crate) type AddEntry<'a> = dyn FnMut(u64, &[u8], &Inode) -> bool + 'a;

/// Mount options that change how a tree appears.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    /// Directory that becomes the root of the mount.
    pub(crate) root: InodeNo,
    /// Attributes replaced on every inode.
    pub(crate) overrides: Overrides,
    /// What owners and groups become, in ACLs, too.
    pub(crate) maps: AttributeChoice,
    /// Users that may access the mount.
    pub(crate) access: Access,
}

/// A tree as the mount shows it.
pub(crate) struct View<T> {
    pub(crate) tree: T,
    pub(crate) shown: Shown,
    pub(crate) features: Features,
    faults: Faults,
}

impl<T: Tree> View<T> {
    pub(crate) fn new(tree: T, shown: Shown) -> Self {
        let features = tree.features();
        Self {
            tree,
            shown,
            features,
            faults: Faults::default(),
        }
    }

    /// Inode number of a node. Node id 1 is always the root of the mount, `shown.root`; no other
    /// inode has this node id.
    pub(crate) fn tree_ino(&self, node: NodeId) -> InodeNo {
        if node == NodeId::ROOT {
            self.shown.root
        } else {
            InodeNo(node.0)
        }
    }

    pub(crate) fn node_id(&self, ino: InodeNo) -> NodeId {
        if ino == self.shown.root {
            NodeId::ROOT
        } else {
            NodeId(ino.0)
        }
    }

    pub(crate) fn inode(&self, node: NodeId) -> Result<Inode> {
        self.tree.inode(self.tree_ino(node))
    }

    fn parent(&self, node: NodeId) -> Result<Inode> {
        let ino = self.tree_ino(node);
        let parent = if ino == self.shown.root {
            ino
        } else {
            self.tree.parent(ino)?
        };
        self.tree.inode(parent)
    }

    /// Finds an entry by name. The kernel looks up `.` and `..` to open file handles
    /// (`FUSE_EXPORT_SUPPORT`), and `.` also of inodes that are not directories.
    pub(crate) fn find(&self, dir: NodeId, name: &[u8]) -> Result<Option<Inode>> {
        match name {
            b"." => self.inode(dir).map(Some),
            b".." => self.parent(dir).map(Some),
            _ => self.tree.lookup(self.tree_ino(dir), name),
        }
    }

    pub(crate) fn attributes(&self, inode: &Inode) -> Attr {
        let node = self.node_id(inode.ino);
        let permissions = self.permissions(inode);
        let overrides = &self.shown.overrides;
        let owners = self.shown.maps.attributes_of(inode.attributes);
        let data_len = self.data_len(inode);
        attributes(inode, node, data_len, (owners, permissions), overrides)
    }

    /// The permission bits to show. Where options hide ACLs, nobody gets what an ACL denied; where
    /// it cannot be read, the owner alone gets in. Symlinks keep their bits: lstat(2) says
    /// `lrwxrwxrwx` whatever the umask.
    fn permissions(&self, inode: &Inode) -> u16 {
        let (stored, overrides) = (inode.attributes.permissions, &self.shown.overrides);
        if inode.kind == FileKind::Symlink || !overrides.is_active() {
            return stored;
        }
        let without_acl = match inode.xattr_set.map(|_| self.tree.xattrs(inode)) {
            None => stored,
            Some(Ok(set)) => permissions_without_acl(stored, &set, overrides.ids()),
            Some(Err(error)) => {
                self.faults.answer("extended attributes", inode.ino, &error);
                stored & 0o7700
            }
        };
        without_acl & !overrides.umask
    }

    /// Bytes of a file outside holes. If the extent map is damaged, the result is the file size, so
    /// that stat(2) still works.
    fn data_len(&self, inode: &Inode) -> u64 {
        if inode.kind != FileKind::Regular {
            return 0;
        }
        if !self.features.has_holes || inode.content.is_none() {
            return inode.size.0;
        }
        let mut data_len = 0u64;
        let walked = self.tree.runs(inode, 0, &mut |run| {
            data_len = data_len.saturating_add(if run.is_hole { 0 } else { run.len });
            ControlFlow::Continue(())
        });
        match walked {
            Ok(()) => data_len,
            Err(error) => {
                self.faults.answer("map", inode.ino, &error);
                inode.size.0
            }
        }
    }

    pub(crate) fn answer(&self, part: &str, node: NodeId, error: &weald_format::Error) -> Errno {
        self.faults.answer(part, self.tree_ino(node), error)
    }

    /// Calls `add` for the entries of `dir` after `offset`, until the buffer is full. If a failure
    /// follows the first entry, the next call, which starts there, returns it.
    pub(crate) fn list(&self, dir: NodeId, offset: u64, add: &mut AddEntry<'_>) -> Result<()> {
        let mut is_empty = true;
        let listed = self
            .list_dots(dir, offset, add, &mut is_empty)
            .and_then(|is_full| {
                if is_full {
                    return Ok(());
                }
                let start = offset.saturating_sub(AFTER_DOT_DOT);
                self.tree
                    .read_dir(self.tree_ino(dir), start, &mut |index, name, inode| {
                        if add(index + AFTER_DOT_DOT + 1, name, inode) {
                            return ControlFlow::Break(());
                        }
                        is_empty = false;
                        ControlFlow::Continue(())
                    })
            });
        if is_empty { listed } else { Ok(()) }
    }

    fn list_dots(
        &self,
        dir: NodeId,
        offset: u64,
        add: &mut AddEntry<'_>,
        is_empty: &mut bool,
    ) -> Result<bool> {
        if offset < AFTER_DOT && add(AFTER_DOT, b".", &self.inode(dir)?) {
            return Ok(true);
        }
        if offset < AFTER_DOT_DOT && add(AFTER_DOT_DOT, b"..", &self.parent(dir)?) {
            return Ok(true);
        }
        *is_empty &= offset >= AFTER_DOT_DOT;
        Ok(false)
    }

    /// Extended attributes of an inode; `None` if it has none.
    fn xattrs(&self, node: NodeId) -> Result<Option<Arc<XattrSet>>> {
        let inode = self.inode(node)?;
        match inode.xattr_set {
            Some(_) => self.tree.xattrs(&inode).map(Some),
            None => Ok(None),
        }
    }

    /// Whether the mount hides an attribute. It hides ACLs if the options contradict them. It shows
    /// `trusted.` names: the kernel denies their values to all users but root, and with
    /// `FUSE_ALLOW_IDMAP` the request does not carry the user id.
    fn is_hidden(&self, name: &[u8]) -> bool {
        name.starts_with(ACL_PREFIX) && self.shown.overrides.is_active()
    }

    pub(crate) fn xattr_value(&self, node: NodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
        if self.is_hidden(name) {
            return Ok(None);
        }
        Ok(self.xattrs(node)?.and_then(|set| {
            let index = set
                .binary_search_by(|xattr| xattr.name.as_slice().cmp(name))
                .ok()?;
            // The kernel decides by the ids in an ACL.
            let xattr = self.shown.maps.xattr_of(set.get(index)?)?;
            Some(xattr.value)
        }))
    }

    pub(crate) fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        let set = self.xattrs(node)?.unwrap_or_default();
        for xattr in set.iter().filter(|xattr| !self.is_hidden(&xattr.name)) {
            names.extend_from_slice(&xattr.name);
            names.push(0);
        }
        Ok(names)
    }

    /// First offset from `offset` on in a hole (or in data); the end of the file counts as a hole.
    pub(crate) fn seek(&self, node: NodeId, offset: u64, wants_hole: bool) -> Result<Option<u64>> {
        let inode = self.inode(node)?;
        if offset >= inode.size.0 {
            return Ok(None);
        }
        let mut found = wants_hole.then_some(inode.size.0);
        self.tree.runs(&inode, offset, &mut |run| {
            if run.is_hole != wants_hole {
                return ControlFlow::Continue(());
            }
            found = Some(run.offset.max(offset));
            ControlFlow::Break(())
        })?;
        Ok(found)
    }
}

/// Directory of `tree` at `path`. Symlinks are not followed.
///
/// # Errors
/// `NotFound`; `Invalid` if a component is not a directory. The message names the component.
pub(crate) fn find_dir<T: Tree>(tree: &T, path: &Path) -> Result<InodeNo> {
    let mut ino = ROOT_INODE;
    for component in path.components() {
        let Component::Normal(name) = component else {
            continue;
        };
        let found = tree.lookup(ino, name.as_bytes())?;
        let shown = path.display();
        ino = match found {
            Some(inode) if inode.kind == FileKind::Directory => inode.ino,
            Some(_) => {
                let what = format!("subdir={shown}: {} is not a directory", name.display());
                return Err(weald_format::Error::invalid(what));
            }
            None => {
                let what = format!("subdir={shown}: the image has no {}", name.display());
                return Err(weald_format::Error::not_found(what));
            }
        };
    }
    Ok(ino)
}
