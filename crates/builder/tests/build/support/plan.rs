//! Description of a tree, which is created on disk in any order.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weald_format::Timestamp;
use weald_sys::{NewTimes, NodeKind};
use weald_testkit::Rng;

/// Kind of a path.
#[derive(Debug, Clone)]
pub enum Kind {
    Dir,
    /// Bytes at offsets, and the length of the file; holes between them.
    File(Vec<(u64, Vec<u8>)>, u64),
    /// Another name of an earlier item, by its path.
    Link(String),
    Symlink(String),
    Fifo,
    CharDevice(u64),
}

/// One path of a tree.
#[derive(Debug, Clone)]
pub struct Item {
    pub path: String,
    pub kind: Kind,
    pub permissions: u16,
    pub owner: (u32, u32),
    pub mtime: Timestamp,
    pub xattrs: Vec<(String, Vec<u8>)>,
}

/// A tree: parents before children.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub items: Vec<Item>,
}

impl Plan {
    /// Adds a path with mode 755 or 644, owner 0:0 and an mtime derived from its position.
    pub fn add(&mut self, path: impl Into<String>, kind: Kind) -> &mut Item {
        let number = self.items.len() as u64;
        let permissions = if matches!(kind, Kind::Dir) {
            0o755
        } else {
            0o644
        };
        let mtime = Timestamp {
            seconds: 1_600_000_000 + (number * 7919 % 100_000) as i64,
            nanoseconds: (number * 104_729 % 1_000_000_000) as u32,
        };
        self.items.push(Item {
            path: path.into(),
            kind,
            permissions,
            owner: (0, 0),
            mtime,
            xattrs: Vec::new(),
        });
        self.items.last_mut().unwrap()
    }

    pub fn dir(&mut self, path: impl Into<String>) -> &mut Item {
        self.add(path, Kind::Dir)
    }

    /// A file without holes.
    pub fn file(&mut self, path: impl Into<String>, data: Vec<u8>) -> &mut Item {
        let len = data.len() as u64;
        self.add(path, Kind::File(vec![(0, data)], len))
    }

    /// Creates the tree in the existing directory `root`. The order of siblings and files depends
    /// on `seed`.
    pub fn make(&self, root: &Path, seed: u64) {
        let mut rng = Rng::new(seed);
        let is_link = |item: &Item| matches!(item.kind, Kind::Link(_));
        let mut dirs: Vec<&Item> = self
            .items
            .iter()
            .filter(|i| matches!(i.kind, Kind::Dir))
            .collect();
        let mut others: Vec<&Item> = self
            .items
            .iter()
            .filter(|i| !matches!(i.kind, Kind::Dir) && !is_link(i))
            .collect();
        let mut links: Vec<&Item> = self.items.iter().filter(|i| is_link(i)).collect();
        shuffle(&mut dirs, &mut rng);
        dirs.sort_by_key(|item| item.path.matches('/').count());
        shuffle(&mut others, &mut rng);
        shuffle(&mut links, &mut rng);
        for item in dirs.iter().chain(&others).chain(&links) {
            make_item(root, item);
        }
        // Temporary names change the order of many file systems' directories.
        for item in dirs.iter().filter(|_| seed != 0) {
            let passing = root
                .join(&item.path)
                .join(format!("passing{}", rng.below(1000)));
            std::fs::write(&passing, b"").unwrap();
            std::fs::remove_file(&passing).unwrap();
        }
        others
            .iter()
            .chain(dirs.iter().rev())
            .for_each(|item| set_attributes(root, item, &mut rng));
        let root_fd = weald_sys::open_dir(root).unwrap();
        weald_sys::chmod_fd(&root_fd, 0o755).unwrap();
        let mtime = Some(Timestamp {
            seconds: 1_700_000_000,
            nanoseconds: 1,
        });
        weald_sys::set_times_fd(&root_fd, NewTimes { mtime, atime: None }).unwrap();
    }
}

fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for end in (1..items.len()).rev() {
        items.swap(end, rng.below(end as u64 + 1) as usize);
    }
}

fn make_item(root: &Path, item: &Item) {
    let path = root.join(&item.path);
    let here = || weald_sys::open_dir(root).unwrap();
    match &item.kind {
        Kind::Dir => std::fs::create_dir(&path).unwrap(),
        Kind::File(runs, len) => {
            let file = File::create_new(&path).unwrap();
            runs.iter()
                .for_each(|(offset, data)| file.write_all_at(data, *offset).unwrap());
            file.set_len(*len).unwrap();
        }
        Kind::Link(old) => std::fs::hard_link(root.join(old), &path).unwrap(),
        Kind::Symlink(target) => std::os::unix::fs::symlink(target, &path).unwrap(),
        Kind::Fifo => {
            weald_sys::make_node_at(here(), item.path.as_bytes(), NodeKind::Fifo, 0o600).unwrap()
        }
        Kind::CharDevice(rdev) => {
            let kind = NodeKind::CharDevice(*rdev);
            weald_sys::make_node_at(here(), item.path.as_bytes(), kind, 0o600).unwrap();
        }
    }
}

fn set_attributes(root: &Path, item: &Item, rng: &mut Rng) {
    let (dir, name) = (weald_sys::open_dir(root).unwrap(), item.path.as_bytes());
    weald_sys::chown_at(&dir, name, item.owner.0, item.owner.1).unwrap();
    if !matches!(item.kind, Kind::Symlink(_)) {
        weald_sys::chmod_at(&dir, name, item.permissions).unwrap();
    }
    let mut xattrs: Vec<_> = item.xattrs.iter().collect();
    shuffle(&mut xattrs, rng);
    for (xattr, value) in xattrs {
        weald_sys::set_xattr_at(&dir, name, xattr.as_bytes(), value).unwrap();
    }
    let times = NewTimes {
        mtime: Some(item.mtime),
        atime: None,
    };
    weald_sys::set_times_at(&dir, name, times).unwrap();
}
