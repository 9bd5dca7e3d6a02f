//! Visits the whole tree.

use super::directory::{DirBlock, out_of_order};
use super::{Inode, Volume, damaged};
use weald_format::limits::{DEPTH_MAX, PATH_LEN_MAX};
use weald_format::{Error, FileKind, Result};

/// Longest path of an image that Weald wrote, in bytes: its trees are no deeper.
const OWN_PATH_LEN_MAX: usize = DEPTH_MAX * 256;

/// Bytes of the image that each name takes at least.
const DIRENT_LEN: u64 = 12;

/// A directory on the way to the current entry.
struct OpenDir {
    inode: Inode,
    parent_nid: u64,
    block_no: u64,
    entry_no: usize,
    /// Bytes of its path.
    path_len: usize,
    /// Last name.
    last: Vec<u8>,
}

/// Visits the entries of an image, depth first, each directory before its entries. It keeps the
/// directories on the way to the current one only.
pub struct Walker {
    open: Vec<OpenDir>,
    /// The block of the innermost directory.
    block: Option<DirBlock>,
    path: Vec<u8>,
    is_started: bool,
    /// Names that may follow until the image is known to have circles: more than it has room for.
    remaining_count: u64,
    path_len_max: usize,
}

impl Walker {
    /// A walker that begins at the root of `volume`.
    pub fn new(volume: &Volume) -> Self {
        let remaining_count = volume.windows.len() / DIRENT_LEN;
        Self {
            open: Vec::new(),
            block: None,
            path: Vec::new(),
            is_started: false,
            remaining_count,
            path_len_max: PATH_LEN_MAX,
        }
    }

    /// As [`Walker::new`], for an image that Weald wrote: its paths may be as long as those of a
    /// tree of the greatest depth.
    pub fn of_own(volume: &Volume) -> Self {
        Self {
            path_len_max: OWN_PATH_LEN_MAX,
            ..Self::new(volume)
        }
    }

    /// Path of the current entry; empty for the root.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Goes to the next entry; the root comes first. Returns `None` at the end.
    ///
    /// # Errors
    /// `Io`; `Invalid` for damage, also for directories that contain each other; `Limit` for paths
    /// longer than the limit; `Unsupported` for features that the reader lacks.
    pub fn next(&mut self, volume: &Volume) -> Result<Option<Inode>> {
        if !self.is_started {
            self.is_started = true;
            let root = volume.root()?;
            if root.kind != FileKind::Directory {
                return Err(damaged("its root is no directory"));
            }
            self.enter(root, root.nid);
            return Ok(Some(root));
        }
        loop {
            let Some(dir) = self.open.last() else {
                return Ok(None);
            };
            self.path.truncate(dir.path_len);
            match self.next_entry(volume)? {
                Some(inode) => return Ok(Some(inode)),
                None => {
                    self.open.pop();
                    self.block = None;
                }
            }
        }
    }

    fn enter(&mut self, inode: Inode, parent_nid: u64) {
        self.block = None;
        self.open.push(OpenDir {
            inode,
            parent_nid,
            block_no: 0,
            entry_no: 0,
            path_len: self.path.len(),
            last: Vec::new(),
        });
    }

    /// The next entry of the innermost directory; `None` at its end.
    fn next_entry(&mut self, volume: &Volume) -> Result<Option<Inode>> {
        loop {
            let Some(dir) = self.open.last_mut() else {
                return Ok(None);
            };
            let start = dir.block_no.saturating_mul(volume.block_len());
            if start >= dir.inode.size {
                return Ok(None);
            }
            let block = match self.block.take() {
                Some(block) => block,
                None => DirBlock::read(volume, &dir.inode, dir.block_no)?,
            };
            let Some(entry) = block.entries().get(dir.entry_no) else {
                dir.block_no = dir.block_no.saturating_add(1);
                dir.entry_no = 0;
                continue;
            };
            let name = block.name(entry);
            if name <= dir.last.as_slice() {
                return Err(out_of_order(&dir.last, name));
            }
            dir.last.clear();
            dir.last.extend_from_slice(name);
            dir.entry_no = dir.entry_no.saturating_add(1);
            let nid = entry.nid;
            self.remaining_count = self
                .remaining_count
                .checked_sub(1)
                .ok_or_else(|| damaged("directories that contain each other"))?;
            let expected_nid = match name {
                b"." => dir.inode.nid,
                b".." => dir.parent_nid,
                _ => {
                    self.block = Some(block);
                    return self.visit(volume, nid).map(Some);
                }
            };
            if nid != expected_nid {
                return Err(damaged(format_args!(
                    "'{}' of a directory is inode {nid}, expected {expected_nid}",
                    name.escape_ascii()
                )));
            }
            self.block = Some(block);
        }
    }

    /// Goes to the entry of the innermost directory's last name.
    fn visit(&mut self, volume: &Volume, nid: u64) -> Result<Inode> {
        let Some(dir) = self.open.last() else {
            return Err(damaged("an entry without a directory"));
        };
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&dir.last);
        if self.path.len() > self.path_len_max {
            let start = self.path.get(..64).unwrap_or_default().escape_ascii();
            let what = format!("{start}…: a path of more than {} bytes", self.path_len_max);
            return Err(Error::limit(what));
        }
        let parent_nid = dir.inode.nid;
        let inode = volume.inode(nid)?;
        if inode.kind == FileKind::Directory {
            self.enter(inode, parent_nid);
        }
        Ok(inode)
    }
}
