//! Visits the tree in the order of inode numbers: the entries of a directory in a row, then those
//! of its sub-directories, one after the other.

use std::ops::ControlFlow;
use weald_format::{FileKind, InodeNo, Result};
use weald_image::{Image, Inode};
use weald_vfs::shown_path;

/// Entries that are read at once.
const LISTED_AT_ONCE: usize = 256;

/// Calls `visit` for each entry of the directory `dir`, in order of their names.
pub(super) fn each_entry(
    image: &Image,
    dir: InodeNo,
    visit: &mut dyn FnMut(&[u8], &Inode) -> Result<()>,
) -> Result<()> {
    let opened = image.open_directory(dir)?;
    let (mut batch, mut start) = (Vec::with_capacity(LISTED_AT_ONCE), 0);
    loop {
        batch.clear();
        image.read_opened(&opened, start, &mut |_, name, inode| {
            batch.push((name.to_vec(), inode.clone()));
            match batch.len() == LISTED_AT_ONCE {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
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
    dir: InodeNo,
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
    /// Its number.
    pub no: InodeNo,
    /// Its number in the EROFS image.
    pub nid: u64,
    path: Vec<u8>,
    /// Sub-directories that are still to visit, last first: number and name.
    pending: Vec<(InodeNo, u64, Vec<u8>)>,
}

/// Visits all entries but the root.
///
/// # Cost
/// Holds the names of the sub-directories of each directory on the way.
pub(super) fn each_inode(image: &Image, root_nid: u64, visit: &mut VisitInode<'_>) -> Result<()> {
    let mut stack = vec![Dir {
        no: weald_format::ROOT_INODE,
        nid: root_nid,
        path: Vec::new(),
        pending: Vec::new(),
    }];
    if let Some(root) = stack.last_mut() {
        enter(image, root, visit)?;
    }
    while let Some(dir) = stack.last_mut() {
        let Some((no, nid, name)) = dir.pending.pop() else {
            stack.pop();
            continue;
        };
        let mut child = Dir {
            no,
            nid,
            path: join(&dir.path, &name),
            pending: Vec::new(),
        };
        enter(image, &mut child, visit)?;
        stack.push(child);
    }
    Ok(())
}

/// Visits the entries of `dir` and lists its sub-directories.
fn enter(image: &Image, dir: &mut Dir, visit: &mut VisitInode<'_>) -> Result<()> {
    let mut pending = Vec::new();
    each_entry(image, dir.no, &mut |name, inode| {
        let located = |e: weald_format::Error| e.context(shown_path(&join(&dir.path, name)));
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
    match dir.is_empty() {
        true => name.to_vec(),
        false => [dir, b"/", name].concat(),
    }
}
