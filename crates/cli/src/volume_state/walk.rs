//! The order in which directories of a volume are visited: preorder, with the names above each.

use std::sync::Arc;
use weald_format::volume::NameRow;
use weald_format::{FileKind, Ino};

/// A directory that is still to come.
pub struct Pending {
    /// Its inode number.
    pub ino: Ino,
    /// Its level; the root has 1.
    pub depth: u64,
    name: Option<Arc<NameRow>>,
}

/// The directories that are still to come, and the way to the current one.
pub struct Walk {
    pending: Vec<Pending>,
    above: Vec<Arc<NameRow>>,
}

impl Walk {
    /// A walk that begins at `root`.
    pub fn new(root: Ino) -> Self {
        let root = Pending {
            ino: root,
            depth: 1,
            name: None,
        };
        Self {
            pending: vec![root],
            above: Vec::new(),
        }
    }

    /// The next directory.
    pub fn next(&mut self) -> Option<Pending> {
        let dir = self.pending.pop()?;
        // The root has no name.
        self.above.truncate(dir.depth.saturating_sub(2) as usize);
        self.above.extend(dir.name.clone());
        Some(dir)
    }

    /// Adds the directories among `names` of `dir`.
    pub fn enter(&mut self, dir: &Pending, names: &[Arc<NameRow>]) {
        let dirs = names.iter().filter(|name| name.kind == FileKind::Directory);
        self.pending.extend(dirs.rev().map(|name| Pending {
            ino: name.ino,
            depth: dir.depth + 1,
            name: Some(name.clone()),
        }));
    }

    /// The names from the root to the current directory.
    pub fn above(&self) -> &[Arc<NameRow>] {
        &self.above
    }

    /// The path of `name` in the current directory, or of the directory itself.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        joined(&self.above, name)
    }
}

/// A directory that is visited.
pub struct Directory<'a> {
    /// Its inode number.
    pub ino: Ino,
    /// Its names, in byte order.
    pub names: &'a [Arc<NameRow>],
    /// Number of the first of them in the image.
    pub first_no: u64,
    /// Its level; the root has 1.
    pub depth: u64,
    above: &'a [Arc<NameRow>],
}

impl<'a> Directory<'a> {
    /// The directory `dir` below the names `above`.
    pub fn new(
        dir: &Pending,
        names: &'a [Arc<NameRow>],
        first_no: u64,
        above: &'a [Arc<NameRow>],
    ) -> Self {
        Self {
            ino: dir.ino,
            names,
            first_no,
            depth: dir.depth,
            above,
        }
    }

    /// The path of `name` in it.
    pub fn path_of(&self, name: &[u8]) -> Vec<u8> {
        joined(self.above, name)
    }
}

fn joined(above: &[Arc<NameRow>], name: &[u8]) -> Vec<u8> {
    let above = above.iter().map(|row| row.name.as_slice());
    let names: Vec<&[u8]> = above
        .chain([name])
        .filter(|name| !name.is_empty())
        .collect();
    names.join(&b'/')
}
