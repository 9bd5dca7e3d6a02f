//! The part of a tree that a reader of few paths is shown: the names on the way to each, and what
//! it wants below. All other directories look empty, so that nothing is read for them.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use weald_format::volume::NameRow;
use weald_format::{FileKind, Ino};

/// Symbolic links that the way to one path may follow; a reader of the image refuses more.
pub const LINKS_MAX: usize = 64;

/// Levels of names below a path that a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Levels(pub usize);

impl Levels {
    /// The names of a directory, which its size and its link count are made of.
    pub const NAMES: Self = Self(1);
    /// All that is below.
    pub const ALL: Self = Self(usize::MAX);

    /// One level less.
    fn below(self) -> Self {
        match self {
            Self::ALL => Self::ALL,
            Self(count) => Self(count.saturating_sub(1)),
        }
    }
}

/// A path, from the root of the volume, that a reader looks at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownPath {
    /// Names with slashes between them. Links on the way, and at its end, are followed.
    pub path: Vec<u8>,
    /// What is wanted below, if it leads to a directory.
    pub levels: Levels,
}

/// What a directory shows.
#[derive(Debug)]
pub enum ShownNames {
    /// Nothing.
    Nothing,
    /// All its names.
    All,
    /// These, in byte order.
    Few(Vec<Arc<NameRow>>),
}

/// A directory of the part.
#[derive(Debug)]
enum Dir {
    Way(BTreeMap<Vec<u8>, Arc<NameRow>>),
    Whole(Levels),
}

/// The directories that are shown with names in them. A walk from the root adds those below.
#[derive(Debug, Default)]
pub struct ShownPart {
    dirs: Mutex<BTreeMap<Ino, Dir>>,
}

impl ShownPart {
    /// Shows a name on the way to a path.
    pub fn add_name(&self, dir: Ino, name: Arc<NameRow>) {
        let mut dirs = self.dirs.lock();
        let shown = dirs.entry(dir).or_insert_with(|| Dir::Way(BTreeMap::new()));
        if let Dir::Way(names) = shown {
            names.insert(name.name.clone(), name);
        }
    }

    /// Shows all names of a directory, and as many levels less of those below.
    pub fn add_levels(&self, dir: Ino, levels: Levels) {
        if levels == Levels(0) {
            return;
        }
        let mut dirs = self.dirs.lock();
        let known = match dirs.get(&dir) {
            Some(Dir::Whole(known)) => *known,
            _ => Levels(0),
        };
        dirs.insert(dir, Dir::Whole(levels.max(known)));
    }

    /// What a directory shows.
    pub fn names(&self, dir: Ino) -> ShownNames {
        match self.dirs.lock().get(&dir) {
            None => ShownNames::Nothing,
            Some(Dir::Whole(_)) => ShownNames::All,
            Some(Dir::Way(names)) => ShownNames::Few(names.values().cloned().collect()),
        }
    }

    /// Adds what is wanted below a directory that shows all its names, which are these.
    pub fn enter(&self, dir: Ino, names: &[Arc<NameRow>]) {
        let levels = match self.dirs.lock().get(&dir) {
            Some(Dir::Whole(levels)) => levels.below(),
            _ => return,
        };
        let dirs = names.iter().filter(|name| name.kind == FileKind::Directory);
        dirs.for_each(|name| self.add_levels(name.ino, levels));
    }
}

/// The way to a path, as far as it is not gone yet.
#[derive(Debug)]
pub struct Way {
    /// The directories from the root on.
    dirs: Vec<Ino>,
    /// Names, the next one last.
    rest: Vec<Vec<u8>>,
    link_count: usize,
}

impl Way {
    /// The way from `root` along `path`.
    pub fn new(root: Ino, path: &[u8]) -> Self {
        let mut way = Self {
            dirs: vec![root],
            rest: Vec::new(),
            link_count: 0,
        };
        way.push(path);
        way
    }

    fn push(&mut self, path: &[u8]) {
        let names = path.split(|byte| *byte == b'/').rev();
        let names = names.filter(|name| !matches!(*name, b"" | b"."));
        self.rest.extend(names.map(<[u8]>::to_vec));
    }

    /// The directory that the way is in.
    pub fn dir(&self) -> Ino {
        self.dirs.last().copied().unwrap_or(Ino::ROOT)
    }

    /// The next name to look for in it; `None` at the end.
    pub fn next_name(&mut self) -> Option<Vec<u8>> {
        loop {
            let name = self.rest.pop()?;
            if name != b".." {
                return Some(name);
            }
            if self.dirs.len() > 1 {
                self.dirs.pop();
            }
        }
    }

    /// Goes into a directory.
    pub fn enter(&mut self, dir: Ino) {
        self.dirs.push(dir);
    }

    /// Follows a link. Returns false after too many.
    pub fn follow(&mut self, target: &[u8]) -> bool {
        self.link_count += 1;
        if target.starts_with(b"/") {
            self.dirs.truncate(1);
        }
        self.push(target);
        self.link_count <= LINKS_MAX
    }
}
