//! The first pass: walks the image once, lists its entries level by level, and counts what decides
//! about the layout.

use super::bits::Bits;
use super::levels::{Data, Entry, Item, Levels, Node};
use super::options::{INLINE_FILE_LEN_MAX, ImageOptions, check_device, check_file};
use std::collections::HashMap;
use weald_format::{FileKind, Result};
use weald_image::{Image, Inode};
use weald_vfs::{Located, Step, Walker, shown_path};

/// Numbers that are used once, and those that are used more often.
#[derive(Default)]
pub(super) struct Uses {
    pub once: Bits,
    pub repeated: Bits,
}

impl Uses {
    fn note(&mut self, number: u64) {
        if self.once.insert(number) {
            self.repeated.insert(number);
        }
    }
}

/// Counters of the walk.
#[derive(Default)]
pub(super) struct Census {
    /// Inodes of the image, stubs included.
    pub inode_count: u64,
    /// The oldest modification time.
    pub min_mtime: Option<(u64, u32)>,
    /// Contents that become objects.
    pub contents: Uses,
    /// Sets of xattrs.
    pub sets: Uses,
    /// Character devices 0, 0, and directories that have some.
    pub whiteout_count: u64,
    pub whiteout_dir_count: u64,
    pub stub_count: u64,
    /// Inodes with several names.
    pub link_count: u64,
    /// Number of the root's xattr set plus one; 0 without xattrs.
    pub root_set: u64,
}

/// Walks the image.
pub(super) fn gather(image: &Image, options: &ImageOptions<'_>) -> Result<(Levels, Census)> {
    let memory_len = (options.memory_len / 8).min(64 << 20) as usize;
    let root = image.root()?;
    let mut gatherer = Gatherer {
        image,
        levels: Levels::new(memory_len, options.temp_dir.to_owned()),
        census: Census::default(),
        links: HashMap::new(),
        has_whiteout: Vec::new(),
        next_stub: 0,
        root: root.clone(),
        root_count: 0,
    };
    let start = Located {
        path: Vec::new(),
        inode: root,
    };
    let mut walker = Walker::new(image, start);
    while let Some(step) = walker.step()? {
        match step {
            Step::Leave => {
                gatherer.has_whiteout.pop();
            }
            Step::Enter(visit) => {
                options.check_cancelled()?;
                let taken = gatherer.take(visit.depth, visit.name, &visit.inode);
                taken.map_err(|error| error.context(shown_path(walker.path())))?;
            }
        }
    }
    gatherer.finish()
}

/// A link whose further names are still to come.
struct OpenLink {
    number: u64,
    remaining_count: u64,
    kind: FileKind,
}

struct Gatherer<'a> {
    image: &'a Image,
    levels: Levels,
    census: Census,
    links: HashMap<u64, OpenLink>,
    /// For each open directory, whether it has a whiteout so far.
    has_whiteout: Vec<bool>,
    /// Number of the next stub among the 256.
    next_stub: u16,
    root: Inode,
    root_count: u64,
}

impl Gatherer<'_> {
    fn take(&mut self, depth: usize, name: Vec<u8>, inode: &Inode) -> Result<()> {
        if inode.kind == FileKind::Directory {
            self.has_whiteout.push(false);
        }
        if depth == 0 {
            return Ok(());
        }
        if depth == 1 {
            self.put_stubs_before(&name)?;
            self.root_count += 1;
        }
        if inode.kind != FileKind::Directory
            && inode.nlink > 1
            && let Some(link) = self.links.get_mut(&inode.ino.0)
        {
            let (item, kind) = (Item::Link(link.number), link.kind);
            link.remaining_count = link.remaining_count.saturating_sub(1);
            if link.remaining_count == 0 {
                self.links.remove(&inode.ino.0);
            }
            return self.levels.push(depth, &Entry { name, kind, item });
        }
        let entry = self.inode_entry(name, inode)?;
        if entry.is_whiteout() {
            self.census.whiteout_count += 1;
            if let Some(flag) = self.has_whiteout.last_mut()
                && !std::mem::replace(flag, true)
            {
                self.census.whiteout_dir_count += 1;
            }
        }
        self.levels.push(depth, &entry)
    }

    /// The entry of an inode that is met for the first time.
    fn inode_entry(&mut self, name: Vec<u8>, inode: &Inode) -> Result<Entry> {
        let mut link = 0;
        let is_whiteout = inode.kind == FileKind::CharDevice && inode.attributes.rdev == 0;
        if inode.kind != FileKind::Directory && inode.nlink > 1 {
            let number = self.census.link_count;
            self.census.link_count += 1;
            link = number + 1;
            let open = OpenLink {
                number,
                remaining_count: inode.nlink - 1,
                kind: if is_whiteout {
                    FileKind::Regular
                } else {
                    inode.kind
                },
            };
            self.links.insert(inode.ino.0, open);
        }
        let data = self.data_of(inode)?;
        let node = self.node(inode, link, data);
        Ok(Entry {
            name,
            kind: inode.kind,
            item: Item::Inode(node),
        })
    }

    fn node(&mut self, inode: &Inode, link: u64, data: Data) -> Node {
        let mtime = inode.times.mtime;
        let ours = (mtime.seconds as u64, mtime.nanoseconds);
        let least = self.census.min_mtime.map_or(ours, |least| least.min(ours));
        self.census.min_mtime = Some(least);
        self.census.inode_count += 1;
        if let Some(set) = inode.xattr_set {
            self.census.sets.note(set.0);
        }
        Node {
            attributes: inode.attributes,
            mtime,
            nlink: inode.nlink,
            xattr_set: inode.xattr_set.map_or(0, |set| set.0 + 1),
            link,
            data,
        }
    }

    fn data_of(&mut self, inode: &Inode) -> Result<Data> {
        let size = inode.size.0;
        check_file(inode.kind, size)?;
        Ok(match (inode.kind, inode.content) {
            (FileKind::Directory, _) => Data::Directory(size),
            (FileKind::Symlink, _) => Data::Symlink(self.image.read_link(inode)?),
            (FileKind::Regular, Some(content)) if size > INLINE_FILE_LEN_MAX => {
                self.census.contents.note(content.0);
                Data::External {
                    size,
                    content: content.0,
                }
            }
            (FileKind::Regular, _) => {
                let bytes = self.image.read(inode, 0, INLINE_FILE_LEN_MAX as usize)?;
                Data::Inline(bytes.to_vec())
            }
            _ => {
                check_device(inode.attributes.rdev)?;
                Data::None
            }
        })
    }

    /// Lists the stubs whose names come before `name` in the root.
    fn put_stubs_before(&mut self, name: &[u8]) -> Result<()> {
        while self.next_stub < 256 {
            let stub = format!("{:02x}", self.next_stub).into_bytes();
            match stub.as_slice().cmp(name) {
                std::cmp::Ordering::Less => self.put_stub(stub)?,
                std::cmp::Ordering::Equal => self.next_stub += 1,
                std::cmp::Ordering::Greater => return Ok(()),
            }
        }
        Ok(())
    }

    fn put_stub(&mut self, name: Vec<u8>) -> Result<()> {
        self.next_stub += 1;
        self.root_count += 1;
        self.census.stub_count += 1;
        self.census.inode_count += 1;
        let node = Node {
            attributes: weald_format::Attributes {
                permissions: 0o644,
                rdev: 0,
                ..self.root.attributes
            },
            mtime: self.root.times.mtime,
            nlink: 1,
            xattr_set: 0,
            link: 0,
            data: Data::Stub,
        };
        let entry = Entry {
            name,
            kind: FileKind::CharDevice,
            item: Item::Inode(node),
        };
        self.levels.push(1, &entry)
    }

    fn finish(mut self) -> Result<(Levels, Census)> {
        while self.next_stub < 256 {
            self.put_stub(format!("{:02x}", self.next_stub).into_bytes())?;
        }
        let root = self.root.clone();
        let node = self.node(&root, 0, Data::Directory(self.root_count));
        self.census.root_set = node.xattr_set;
        let entry = Entry {
            name: Vec::new(),
            kind: FileKind::Directory,
            item: Item::Inode(node),
        };
        self.levels.push(0, &entry)?;
        Ok((self.levels, self.census))
    }
}
