//! Visits the tree in the order of inode numbers: the entries of a directory in a row, then those
//! of its sub-directories, one after the other.

use std::ops::ControlFlow;
use weald_format::{FileKind, InodeNo, Result};
use weald_image::{Image, Inode, OpenedDirectory};
use weald_vfs::shown_path;

/// Entries that are read at once.
const LISTED_AT_ONCE: usize = 256;

/// Opens the directory `dir` of `parent`, or the root. Without its parent, a directory is found by
/// descent from the root, so that a walk would take time by the square of the depth.
pub(super) fn open(
    image: &Image,
    parent: Option<&OpenedDirectory>,
    dir: InodeNo,
) -> Result<OpenedDirectory> {
    match parent {
        Some(parent) => image.open_directory_in(parent, dir),
        None => image.open_directory(dir),
    }
}

/// Calls `visit` for each entry of the directory `opened`, in order of their names.
fn each_entry(
    image: &Image,
    opened: &OpenedDirectory,
    visit: &mut dyn FnMut(&[u8], &Inode) -> Result<()>,
) -> Result<()> {
    let (mut batch, mut start) = (Vec::with_capacity(LISTED_AT_ONCE), 0);
    loop {
        batch.clear();
        image.read_opened(opened, start, &mut |_, name, inode| {
            batch.push((name.to_vec(), inode.clone()));
            if batch.len() == LISTED_AT_ONCE {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        for (name, inode) in &batch {
            visit(name, inode)?;
        }
        if batch.len() < LISTED_AT_ONCE {
            return Ok(());
        }
        start += LISTED_AT_ONCE as u64;
    }
}

/// Gets the directory, the name and the inode; returns the number that the inode has in the EROFS
/// image.
pub(super) type VisitInode<'a> = dyn FnMut(&Dir, &[u8], &Inode) -> Result<u64> + 'a;

/// An entry of a directory with `.` and `..`.
pub(super) enum DirEntry<'a> {
    /// The directory itself.
    This,
    /// The directory above.
    Parent,
    /// A name.
    Name(&'a [u8], &'a Inode),
}

impl DirEntry<'_> {
    /// The name.
    pub fn name(&self) -> &[u8] {
        match self {
            Self::This => b".",
            Self::Parent => b"..",
            Self::Name(name, _) => name,
        }
    }
}

/// As [`each_entry`], with `.` and `..` in their order.
pub(super) fn each_dir_entry(
    image: &Image,
    dir: &OpenedDirectory,
    visit: &mut dyn FnMut(&DirEntry<'_>) -> Result<()>,
) -> Result<()> {
    let mut dots = [DirEntry::This, DirEntry::Parent].into_iter().peekable();
    each_entry(image, dir, &mut |name, inode| {
        while let Some(dot) = dots.next_if(|dot| dot.name() < name) {
            visit(&dot)?;
        }
        visit(&DirEntry::Name(name, inode))
    })?;
    dots.try_for_each(|dot| visit(&dot))
}

/// A directory whose entries are visited.
pub(super) struct Dir {
    /// Its number in the EROFS image.
    pub nid: u64,
    /// The directory, to open those in it.
    pub opened: OpenedDirectory,
    path_len: usize,
    /// Sub-directories that are still to visit, last first: number and name.
    pending: Vec<(InodeNo, u64, Vec<u8>)>,
}

/// Visits all entries but the root.
///
/// # Cost
/// Holds the names of the sub-directories of each directory on the way.
pub(super) fn each_inode(image: &Image, root_nid: u64, visit: &mut VisitInode<'_>) -> Result<()> {
    let mut path = Vec::new();
    let mut root = Dir {
        nid: root_nid,
        opened: open(image, None, weald_format::ROOT_INODE)?,
        path_len: 0,
        pending: Vec::new(),
    };
    enter(image, &mut root, &path, visit)?;
    let mut stack = vec![root];
    while let Some(dir) = stack.last_mut() {
        path.truncate(dir.path_len);
        let Some((no, nid, name)) = dir.pending.pop() else {
            stack.pop();
            continue;
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        let mut child = Dir {
            nid,
            opened: open(image, Some(&dir.opened), no)?,
            path_len: path.len(),
            pending: Vec::new(),
        };
        enter(image, &mut child, &path, visit)?;
        stack.push(child);
    }
    Ok(())
}

/// Visits the entries of `dir` at `path` and lists its sub-directories.
fn enter(image: &Image, dir: &mut Dir, path: &[u8], visit: &mut VisitInode<'_>) -> Result<()> {
    let mut pending = Vec::new();
    each_entry(image, &dir.opened, &mut |name, inode| {
        let located = |e: weald_format::Error| e.context(shown_path(&join(path, name)));
        let nid = visit(dir, name, inode).map_err(located)?;
        if inode.kind == FileKind::Directory {
            pending.push((inode.ino, nid, name.to_vec()));
        }
        Ok(())
    })?;
    pending.reverse();
    dir.pending = pending;
    Ok(())
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        name.to_vec()
    } else {
        [dir, b"/", name].concat()
    }
}
