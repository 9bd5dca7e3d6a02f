//! The tree of a volume, as the builder takes it.

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
    Attributes, ContentId, Digest, Error, FileKind, Result, Timestamp, XattrSet, limits,
};
use weald_volume::{FileExtent, VolumeReader};

/// Memory of a regular file while the volume is sealed, bytes.
const FILE_LEN: u64 = 48;

/// A name of an inode that has several: its number, and that of the directory's first name.
#[derive(Debug, Clone, Copy)]
struct LinkedName {
    no: u64,
    dir_no: u64,
}

/// A volume that is sealed.
pub struct SealSource<'a> {
    reader: &'a VolumeReader,
    size: StreamSize,
    /// The names of inodes with several, in order.
    linked: HashMap<u64, Vec<LinkedName>>,
    contents: HashMap<u64, ContentId>,
}

/// Callback that visits a directory: its names, in byte order, the number of the first of them, and
/// the depth. It returns whether to go on.
type VisitDirectory<'a> = dyn FnMut(&[Arc<NameRow>], u64, u64) -> Result<bool> + 'a;

/// Callback that visits an inode.
type VisitInode<'a> = dyn FnMut(u64, &InodeRow) -> Result<()> + 'a;

impl<'a> SealSource<'a> {
    /// Counts the tree of `reader`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `Limit` for a tree that is too deep.
    pub fn new(reader: &'a VolumeReader) -> Result<Self> {
        let mut source = Self {
            reader,
            size: StreamSize::default(),
            linked: HashMap::new(),
            contents: HashMap::new(),
        };
        let mut size = StreamSize {
            entry_count: 1,
            ..StreamSize::default()
        };
        let (mut linked, mut data_len): (HashMap<u64, Vec<_>>, u64) = (HashMap::new(), 0);
        source.each_directory(&mut |names, first_no, depth| {
            size.entry_count += names.len() as u64;
            size.directory_count_max = size.directory_count_max.max(names.len() as u64);
            size.depth = size.depth.max(depth);
            for (no, name) in (first_no..).zip(names) {
                if name.kind == FileKind::Directory {
                    continue;
                }
                let row = reader.inode(name.ino)?;
                if row.nlink > 1 {
                    let dir_no = first_no;
                    let names = linked.entry(name.ino).or_default();
                    names.push(LinkedName { no, dir_no });
                }
                data_len = data_len.saturating_add(row.allocated);
            }
            Ok(true)
        })?;
        size.data_len = Some(data_len);
        size.memory_len = size.entry_count * FILE_LEN;
        (source.size, source.linked) = (size, linked);
        Ok(source)
    }

    /// Visits all directories in preorder.
    fn each_directory(&self, visit: &mut VisitDirectory<'_>) -> Result<()> {
        let mut pending = vec![(self.reader.root(), 1u64)];
        let mut next_no = 2u64;
        while let Some((dir, depth)) = pending.pop() {
            if depth > limits::DEPTH_MAX as u64 {
                let what = "the directories are nested deeper than an image can have them";
                return Err(Error::limit(what));
            }
            let names = self.reader.names(dir)?;
            if !visit(&names, next_no, depth)? {
                return Ok(());
            }
            next_no += names.len() as u64;
            let dirs = names.iter().filter(|name| name.kind == FileKind::Directory);
            pending.extend(dirs.rev().map(|name| (name.ino, depth + 1)));
        }
        Ok(())
    }

    /// Visits every regular file that is not empty once.
    fn each_file(&self, visit: &mut VisitInode<'_>) -> Result<()> {
        let mut seen = std::collections::HashSet::new();
        self.each_directory(&mut |names, _, _| {
            for name in names.iter().filter(|name| name.kind == FileKind::Regular) {
                let row = self.reader.inode(name.ino)?;
                if row.size > 0 && (row.nlink == 1 || seen.insert(name.ino)) {
                    visit(name.ino, &row)?;
                }
            }
            Ok(true)
        })
    }

    fn link_info(&self, ino: u64, no: u64) -> LinkInfo {
        let Some(names) = self.linked.get(&ino).filter(|names| names.len() > 1) else {
            return LinkInfo::Single;
        };
        let first = names[0];
        match names.iter().all(|name| name.dir_no == first.dir_no) {
            true => LinkInfo::Inside {
                nlink: names.len() as u64,
                back: no - first.no,
            },
            false => LinkInfo::Across,
        }
    }

    fn digest(&self, size: u64, extents: &[FileExtent]) -> Result<Digest> {
        let data = || extents.iter().filter(|extent| extent.block.is_some());
        let mut hasher = match data().map(|extent| extent.len).sum::<u64>() == size {
            true => ContentHasher::dense(),
            false => {
                let mut runs: Vec<(u64, u64)> = Vec::new();
                for extent in data() {
                    match runs.last_mut() {
                        Some((start, len)) if *start + *len == extent.start => *len += extent.len,
                        _ => runs.push((extent.start, extent.len)),
                    }
                }
                ContentHasher::sparse(size, &runs)
            }
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
    xattrs: XattrSet,
    link: LinkInfo,
}

impl Entry {
    fn of(reader: &VolumeReader, ino: u64, link: LinkInfo) -> Result<Self> {
        let row = reader.inode(ino)?;
        let xattrs = match row.xattr_count {
            0 => XattrSet::new(),
            _ => reader.xattrs(ino)?,
        };
        Ok(Self { row, xattrs, link })
    }

    fn attributes(&self) -> Attributes {
        let device = u64::from(self.row.rdev);
        // The numbers of `new_encode_dev` in the kernel's `include/linux/kdev_t.h`.
        let (major, minor) = (
            (device >> 8) & 0xfff,
            device & 0xff | (device >> 12) & 0xf_ff00,
        );
        Attributes {
            permissions: self.row.permissions,
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
        let entry = Entry::of(self.reader, self.reader.root(), LinkInfo::Single)?;
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
        self.each_directory(&mut |names, first_no, _| {
            let entries = (first_no..)
                .zip(names)
                .map(|(no, name)| Entry::of(self.reader, name.ino, self.link_info(name.ino, no)))
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
        for (ino, names) in &self.linked {
            let first_no = names[0].no;
            if !matches!(self.link_info(*ino, first_no), LinkInfo::Across) {
                continue;
            }
            for name in names {
                let link = Link {
                    name_no: name.no,
                    first_no,
                    nlink: names.len() as u64,
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
        self.each_file(&mut |ino, row| {
            let extents = self.reader.extents(ino)?;
            let digest = self.digest(row.size, &extents)?;
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
        Ok(())
    }
}

fn block_extent(extent: &FileExtent) -> BlockExtent {
    BlockExtent {
        len: extent.len,
        block: extent.block.map(|(id, offset)| (id, offset.into())),
    }
}

/// The ranges of blocks that files use.
pub struct Used(HashMap<u64, Vec<Range<u32>>>);

impl Used {
    /// Collects the ranges of all files.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn of(source: &SealSource<'_>) -> Result<Self> {
        let mut used: HashMap<u64, Vec<Range<u32>>> = HashMap::new();
        source.each_file(&mut |ino, _| {
            for extent in source.reader.extents(ino)? {
                if let Some((id, offset)) = extent.block {
                    let end = offset.saturating_add(extent.len as u32);
                    used.entry(id).or_default().push(offset..end);
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
    pub fn ranges(&self, id: u64) -> &[Range<u32>] {
        self.0.get(&id).map_or(&[], Vec::as_slice)
    }
}
