//! The tree of a volume, as the builder takes it.

use super::survey::{LeftOut, Survey, Tell};
use super::walk::{Directory, Walk};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use weald_builder::stream::{
    BlockExtent, BlockSink, BlockTree, ContentStore, LinkInfo, StreamEntry, StreamRoot, StreamSize,
    TreeSink, TreeSource,
};
use weald_format::pages::Link;
use weald_format::tree_digest::ContentHasher;
use weald_format::volume::{InodeRow, NameRow};
use weald_format::{
    Attributes, BlockId, ContentId, Digest, Error, FileKind, Ino, Result, Timestamp, XattrSet,
};
use weald_volume::{BlockPlace, FileExtent, VolumeReader};

/// Memory of a regular file while the volume is sealed, bytes.
const FILE_LEN: u64 = 48;

/// A name of an inode that has several: its number, and that of the directory's first name.
#[derive(Debug, Clone, Copy)]
struct LinkedName {
    no: u64,
    dir_no: u64,
}

/// The names that are known of an inode, and how many it has.
#[derive(Debug, Default)]
struct Linked {
    names: Vec<LinkedName>,
    nlink: u64,
}

/// What two contents must have in common to be one in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// Their bytes, which are all read.
    Bytes,
    /// The places of their bytes in blocks. Nothing is read.
    Places,
}

/// A volume that is sealed.
pub struct SealSource<'a> {
    reader: &'a VolumeReader,
    tell: &'a Tell<'a>,
    is_strict: bool,
    identity: Identity,
    left_out: LeftOut,
    size: StreamSize,
    /// The names of inodes with several, in order.
    linked: HashMap<Ino, Linked>,
    contents: HashMap<Ino, ContentId>,
}

/// Callback that visits a directory. It returns whether to go on.
type VisitDirectory<'a> = dyn FnMut(&Directory<'_>) -> Result<bool> + 'a;

/// Callback that visits an inode in a directory, by one of its names.
type VisitInode<'a> = dyn FnMut(&InodeRow, &Directory<'_>, &NameRow) -> Result<()> + 'a;

impl<'a> SealSource<'a> {
    /// Counts the tree of `reader`, without what an image cannot have, which `tell` gets. With
    /// `is_strict`, `tell` ends the seal. `identity` says which contents are one.
    ///
    /// # Errors
    /// Those of `tell`; `Io`, `Corrupt` if the root directory cannot be read.
    pub fn new(
        reader: &'a VolumeReader,
        tell: &'a Tell<'a>,
        (is_strict, identity): (bool, Identity),
    ) -> Result<Self> {
        let mut source = Self {
            reader,
            tell,
            is_strict,
            identity,
            left_out: Survey::run(reader, tell)?,
            size: StreamSize::default(),
            linked: HashMap::new(),
            contents: HashMap::new(),
        };
        source.count()?;
        Ok(source)
    }

    /// Counts what is not left out.
    fn count(&mut self) -> Result<()> {
        let mut size = StreamSize {
            entry_count: 1,
            ..StreamSize::default()
        };
        let (mut linked, mut data_len): (HashMap<Ino, Linked>, u64) = (HashMap::new(), 0);
        self.each_directory(&mut |dir| {
            let (names, first_no) = (dir.names, dir.first_no);
            size.entry_count += names.len() as u64;
            size.directory_count_max = size.directory_count_max.max(names.len() as u64);
            size.depth = size.depth.max(dir.depth);
            for (no, name) in (first_no..).zip(names) {
                if name.kind == FileKind::Directory {
                    continue;
                }
                let row = self.reader.inode(name.ino)?;
                if row.nlink > 1 {
                    let dir_no = first_no;
                    let inode = linked.entry(name.ino).or_default();
                    inode.names.push(LinkedName { no, dir_no });
                    inode.nlink = if self.reader.is_part() {
                        row.nlink.into()
                    } else {
                        inode.names.len() as u64
                    };
                }
                data_len = data_len.saturating_add(row.allocated);
            }
            Ok(true)
        })?;
        size.data_len = Some(data_len);
        size.memory_len = size.entry_count * FILE_LEN;
        (self.size, self.linked) = (size, linked);
        Ok(())
    }

    /// Visits all directories in preorder.
    fn each_directory(&self, visit: &mut VisitDirectory<'_>) -> Result<()> {
        let mut walk = Walk::new(self.reader.root());
        let mut next_no = 2u64;
        while let Some(dir) = walk.next() {
            let mut names = self.reader.names(dir.ino)?;
            names.retain(|name| self.left_out.keeps(dir.ino, name));
            if !visit(&Directory::new(&dir, &names, next_no, walk.above()))? {
                return Ok(());
            }
            next_no += names.len() as u64;
            walk.enter(&dir, &names);
        }
        Ok(())
    }

    /// Visits every regular file that is not empty once.
    fn each_file(&self, visit: &mut VisitInode<'_>) -> Result<()> {
        let mut seen = std::collections::HashSet::new();
        self.each_directory(&mut |dir| {
            let files = dir.names.iter();
            for name in files.filter(|name| name.kind == FileKind::Regular) {
                let row = self.reader.inode(name.ino)?;
                if row.size > 0 && (row.nlink == 1 || seen.insert(name.ino)) {
                    visit(&row, dir, name)?;
                }
            }
            Ok(true)
        })
    }

    fn link_info(&self, ino: Ino, no: u64) -> LinkInfo {
        let Some(inode) = self.linked.get(&ino).filter(|inode| inode.nlink > 1) else {
            return LinkInfo::Single;
        };
        let first = inode.names[0];
        let is_inside = inode.names.iter().all(|name| name.dir_no == first.dir_no);
        if is_inside && inode.nlink == inode.names.len() as u64 {
            LinkInfo::Inside {
                nlink: inode.nlink,
                back: no - first.no,
            }
        } else {
            LinkInfo::Across
        }
    }

    /// Leaves out inodes whose content cannot be read, and tells each of their names.
    fn leave_out(&mut self, damaged: &HashMap<Ino, Error>) -> Result<()> {
        if damaged.is_empty() {
            return Ok(());
        }
        self.each_directory(&mut |dir| {
            for name in dir.names {
                if let Some(error) = damaged.get(&name.ino) {
                    (self.tell)(&dir.path_of(&name.name), error)?;
                }
            }
            Ok(true)
        })?;
        damaged.keys().for_each(|ino| self.left_out.add_inode(*ino));
        self.count()
    }

    /// Reads the content of a file: its digest, and where it lies.
    fn read(&self, ino: Ino, size: u64) -> Result<(Digest, Vec<FileExtent>)> {
        let extents = self.reader.extents(ino)?;
        let digest = match self.identity {
            Identity::Bytes => self.digest(size, &extents)?,
            Identity::Places => digest_of_places(size, &extents),
        };
        Ok((digest, extents))
    }

    fn digest(&self, size: u64, extents: &[FileExtent]) -> Result<Digest> {
        let data = || extents.iter().filter(|extent| extent.block.is_some());
        let mut hasher = if data().map(|extent| extent.len).sum::<u64>() == size {
            ContentHasher::dense()
        } else {
            let mut runs: Vec<(u64, u64)> = Vec::new();
            for extent in data() {
                match runs.last_mut() {
                    Some((start, len)) if *start + *len == extent.start => *len += extent.len,
                    _ => runs.push((extent.start, extent.len)),
                }
            }
            ContentHasher::sparse(size, &runs)
        };
        for extent in data() {
            self.reader
                .read(extent, &mut |bytes| hasher.update(bytes))?;
        }
        Ok(hasher.finish())
    }
}

/// An entry with everything that [`StreamEntry`] refers to.
struct Entry {
    row: Arc<InodeRow>,
    permissions: u16,
    xattrs: XattrSet,
    link: LinkInfo,
}

impl Entry {
    fn of(source: &SealSource<'_>, ino: Ino, link: LinkInfo) -> Result<Self> {
        let row = source.reader.inode(ino)?;
        let bare = source.left_out.permissions_without_xattrs(ino);
        let xattrs = match (row.xattr_count, bare) {
            (0, _) | (_, Some(_)) => XattrSet::new(),
            _ => source.reader.xattrs(ino)?,
        };
        Ok(Self {
            permissions: bare.unwrap_or(row.permissions),
            row,
            xattrs,
            link,
        })
    }

    fn attributes(&self) -> Attributes {
        let device = u64::from(self.row.rdev);
        // The numbers of `new_encode_dev` in the kernel's `include/linux/kdev_t.h`.
        let (major, minor) = (
            (device >> 8) & 0xfff,
            device & 0xff | (device >> 12) & 0xf_ff00,
        );
        Attributes {
            permissions: self.permissions,
            uid: self.row.uid,
            gid: self.row.gid,
            rdev: major << 32 | minor,
        }
    }

    fn mtime(&self) -> Timestamp {
        let mtime = self.row.mtime;
        Timestamp {
            seconds: mtime.div_euclid(1_000_000_000) as i64,
            nanoseconds: mtime.rem_euclid(1_000_000_000) as u32,
        }
    }
}

impl TreeSource for SealSource<'_> {
    fn size(&self) -> StreamSize {
        self.size
    }

    fn root(&self) -> Result<StreamRoot> {
        let entry = Entry::of(self, self.reader.root(), LinkInfo::Single)?;
        Ok(StreamRoot {
            attributes: entry.attributes(),
            mtime: entry.mtime(),
            xattrs: entry.xattrs,
        })
    }

    fn contents(&mut self, _: &mut dyn ContentStore) -> Result<()> {
        Ok(())
    }

    fn tree(&mut self, sink: &mut dyn TreeSink) -> Result<()> {
        self.each_directory(&mut |dir| {
            let names = dir.names;
            let entries = (dir.first_no..)
                .zip(names)
                .map(|(no, name)| Entry::of(self, name.ino, self.link_info(name.ino, no)))
                .collect::<Result<Vec<_>>>()?;
            let shown = names.iter().zip(&entries).map(|(name, entry)| StreamEntry {
                name: &name.name,
                kind: name.kind,
                attributes: entry.attributes(),
                mtime: entry.mtime(),
                xattrs: Some(&entry.xattrs).filter(|set| !set.is_empty()),
                content: self.contents.get(&name.ino).copied(),
                target: &entry.row.target,
                link: entry.link,
            });
            sink.directory(&shown.collect::<Vec<_>>())
        })
    }

    fn links(&mut self, sink: &mut dyn FnMut(&Link) -> Result<()>) -> Result<()> {
        let mut links = BTreeMap::new();
        for (ino, inode) in &self.linked {
            let first_no = inode.names[0].no;
            if !matches!(self.link_info(*ino, first_no), LinkInfo::Across) {
                continue;
            }
            for name in &inode.names {
                let link = Link {
                    name_no: name.no,
                    first_no,
                    nlink: inode.nlink,
                };
                links.insert(name.no, link);
            }
        }
        links.values().try_for_each(sink)
    }
}

impl BlockTree for SealSource<'_> {
    fn block_contents(&mut self, sink: &mut dyn BlockSink) -> Result<()> {
        let mut contents = HashMap::new();
        let mut damaged: HashMap<Ino, Error> = HashMap::new();
        self.each_file(&mut |row, dir, name| {
            let ino = name.ino;
            let (digest, extents) = match self.read(ino, row.size) {
                Ok(read) => read,
                Err(error) if self.is_strict || !error.is_unreadable() => {
                    return Err(error.context(weald_vfs::shown_path(&dir.path_of(&name.name))));
                }
                Err(error) => {
                    damaged.insert(ino, error.context("left out"));
                    return Ok(());
                }
            };
            let known = sink.find(&digest);
            let id = match known {
                Some(id) => id,
                None => {
                    let extents: Vec<_> = extents.iter().map(block_extent).collect();
                    sink.add(digest, &extents)?
                }
            };
            contents.insert(ino, id);
            sink.count(row.size, known.is_some())
        })?;
        self.contents = contents;
        self.leave_out(&damaged)
    }
}

/// A digest that two files have in common if their bytes lie at the same places.
fn digest_of_places(size: u64, extents: &[FileExtent]) -> Digest {
    let mut bytes = Vec::with_capacity(8 + extents.len() * 24);
    bytes.extend_from_slice(&size.to_le_bytes());
    for extent in extents {
        let (block, offset) = match extent.block {
            Some(place) => (place.block.0, u64::from(place.offset)),
            None => (0, u64::MAX),
        };
        for number in [extent.len, block, offset] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }
    Digest::of(&bytes)
}

fn block_extent(extent: &FileExtent) -> BlockExtent {
    BlockExtent {
        len: extent.len,
        block: extent.block.map(|place| (place.block, place.offset.into())),
    }
}

/// The ranges of blocks that files use.
pub struct Used(HashMap<BlockId, Vec<Range<u32>>>);

impl Used {
    /// Collects the ranges of all files.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn of(source: &SealSource<'_>) -> Result<Self> {
        let mut used: HashMap<BlockId, Vec<Range<u32>>> = HashMap::new();
        source.each_file(&mut |_, _, name| {
            let extents = match source.reader.extents(name.ino) {
                // The file is left out later.
                Err(error) if error.is_unreadable() => return Ok(()),
                extents => extents?,
            };
            for extent in extents {
                if let Some(BlockPlace { block, offset }) = extent.block {
                    let end = offset.saturating_add(extent.len as u32);
                    used.entry(block).or_default().push(offset..end);
                }
            }
            Ok(())
        })?;
        for ranges in used.values_mut() {
            ranges.sort_unstable_by_key(|range| range.start);
            let mut joined: Vec<Range<u32>> = Vec::with_capacity(ranges.len());
            for range in ranges.drain(..) {
                match joined.last_mut() {
                    Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                    _ => joined.push(range),
                }
            }
            *ranges = joined;
        }
        Ok(Self(used))
    }

    /// The used ranges of block `id`, in order.
    pub fn ranges(&self, id: BlockId) -> &[Range<u32>] {
        self.0.get(&id).map_or(&[], Vec::as_slice)
    }
}
