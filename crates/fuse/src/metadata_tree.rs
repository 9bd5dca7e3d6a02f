//! The tree of a composefs image, as the lower layer of an overlayfs that a user mounts in a user
//! namespace. Such an overlayfs reads `user.overlay.*` where that of root reads
//! `trusted.overlay.*`.

use crate::tree::{Capacity, Features, Tree, VisitEntry};
use std::ops::ControlFlow;
use std::sync::Arc;
use weald_erofs::reader::{self, FileReader, Volume};
use weald_format::{
    Attributes, ByteLen, ContentId, EntryIndex, Error, FileKind, InodeNo, ROOT_INODE, Result,
    Times, Xattr, XattrSet, XattrSetId,
};
use weald_image::{Inode, Run};

/// Prefix of the xattrs that overlayfs reads for root.
const OF_ROOT: &[u8] = b"trusted.";
/// Prefix of those that it reads with the option `userxattr`.
const OF_USERS: &[u8] = b"user.";
/// Text behind the prefix.
const OVERLAY_NAMESPACE: &[u8] = b"overlay.";

/// The tree of a composefs image. Files whose data are objects read as zeros here; overlayfs reads
/// the objects.
pub struct MetadataTree {
    volume: Volume,
    root_nid: u64,
    capacity: Capacity,
}

impl MetadataTree {
    /// The tree of `volume`. `capacity` is what statfs(2) shows.
    ///
    /// # Errors
    /// Errors of reading the root.
    pub fn new(volume: Volume, capacity: Capacity) -> Result<Self> {
        let root_nid = volume.root()?.nid;
        Ok(Self {
            volume,
            root_nid,
            capacity,
        })
    }

    /// No inode lies at number 1, where the superblock is, so that it can be the root's.
    fn ino_of(&self, nid: u64) -> InodeNo {
        if nid == self.root_nid {
            ROOT_INODE
        } else {
            InodeNo(nid)
        }
    }

    fn inode_of(&self, ino: InodeNo) -> Result<reader::Inode> {
        self.volume.inode(if ino == ROOT_INODE {
            self.root_nid
        } else {
            ino.0
        })
    }

    fn translate(&self, inode: &reader::Inode) -> Inode {
        let ino = self.ino_of(inode.nid);
        let is_file = inode.kind == FileKind::Regular && inode.size > 0;
        Inode {
            ino,
            name_no: ino,
            kind: inode.kind,
            attributes: Attributes {
                permissions: inode.permissions,
                uid: inode.uid,
                gid: inode.gid,
                rdev: inode.rdev,
            },
            nlink: inode.nlink.into(),
            size: ByteLen(inode.size),
            times: Times {
                mtime: inode.mtime,
                ..Times::default()
            },
            xattr_set: Some(XattrSetId(0)),
            content: is_file.then_some(ContentId(0)),
            template: None,
            entry: EntryIndex(0),
        }
    }
}

impl Tree for MetadataTree {
    type Chunk = Vec<u8>;

    fn features(&self) -> Features {
        Features {
            has_xattrs: true,
            has_acls: true,
            has_holes: false,
            has_btimes: false,
            is_plain: true,
        }
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        self.inode_of(ino).map(|inode| self.translate(&inode))
    }

    fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        let dir = self.inode_of(ino)?;
        let found = match dir.kind {
            FileKind::Directory => self.volume.find(&dir, b"..")?,
            _ => None,
        };
        let nid = found.ok_or_else(|| Error::not_found("the directory of an inode"))?;
        Ok(self.ino_of(nid))
    }

    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        match self.volume.find(&self.inode_of(dir)?, name)? {
            Some(nid) => Ok(Some(self.translate(&self.volume.inode(nid)?))),
            None => Ok(None),
        }
    }

    fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        let dir = self.inode_of(dir)?;
        self.volume
            .list(&dir, start, &mut |index, name, nid| match name {
                b"." | b".." => Ok(ControlFlow::Continue(())),
                _ => {
                    let inode = self.volume.inode(nid)?;
                    Ok(visit(index, name, &self.translate(&inode)))
                }
            })
    }

    fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.volume.target(&self.inode_of(inode.ino)?)
    }

    fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        let set = self.volume.xattrs(&self.inode_of(inode.ino)?)?;
        let mut set: XattrSet = set.into_iter().filter_map(for_users).collect();
        set.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Arc::new(set))
    }

    fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode_of(inode.ino)?;
        let len = inode.size.saturating_sub(offset).min(len as u64);
        let mut bytes = vec![0; len as usize];
        FileReader::new(&inode).read_exact_at(&self.volume, offset, &mut bytes)?;
        Ok(vec![bytes])
    }

    fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        if offset < inode.size.0 {
            let _ = visit(whole(inode.size));
        }
        Ok(())
    }
}

/// The xattr as overlayfs with the option `userxattr` wants it; `None` for one that it would take
/// for its own.
fn for_users(mut xattr: Xattr) -> Option<Xattr> {
    if let Some(rest) = xattr.name.strip_prefix(OF_ROOT)
        && rest.starts_with(OVERLAY_NAMESPACE)
    {
        xattr.name = [OF_USERS, rest].concat();
        return Some(xattr);
    }
    let rest = xattr.name.strip_prefix(OF_USERS);
    if rest.is_some_and(|rest| rest.starts_with(OVERLAY_NAMESPACE)) {
        None
    } else {
        Some(xattr)
    }
}

/// The run of a file without holes.
fn whole(size: ByteLen) -> Run {
    Run {
        offset: 0,
        len: size.0,
        is_hole: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Would catch: an xattr of a user's file that overlayfs would take for its own, and one of
    /// overlayfs that it would not find.
    #[test]
    fn names_of_overlayfs_become_those_of_users() {
        for (name, expected) in [
            ("trusted.overlay.redirect", Some("user.overlay.redirect")),
            (
                "trusted.overlay.overlay.whiteout",
                Some("user.overlay.overlay.whiteout"),
            ),
            ("user.overlay.whiteout", None),
            ("user.overlayfs", Some("user.overlayfs")),
            ("trusted.other", Some("trusted.other")),
        ] {
            let xattr = Xattr {
                name: name.into(),
                value: b"v".to_vec(),
            };
            let found = for_users(xattr).map(|xattr| xattr.name);
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{name}");
        }
    }
}
