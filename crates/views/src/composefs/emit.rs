//! The second and the third pass: places of all inodes, then their bytes, in breadth-first order.
//!
//! Two readers go over the list of entries: one is at the inode, the other at the entries of the
//! directory, which follow those of the directories before it. So no table of inodes is needed.

use super::digests::{DigestReader, Digests};
use super::gather::Census;
use super::levels::{Cursor, Data, Entry, Item, Levels, Node};
use super::options::{Format, ImageOptions, Sink};
use super::xattrs::{NodePlace, XattrTable, Xattrs};
use crate::spill::{Ascending, AscendingReader, Spill};
use std::collections::VecDeque;
use weald_codec::{FSVERITY_DIGEST_LEN as DIGEST_LEN, FsVerity};
use weald_erofs::dump::join_device;
use weald_erofs::layout::{BLOCK_LEN, SLOT_LEN, SUPERBLOCK_OFFSET, data_layout};
use weald_erofs::writer::{
    DirBlock, DirLayout, DirShape, FIRST_INODE_OFFSET, InodeFields, Shape, SuperblockFields, Tail,
    fits_compact, hole_chunk_bits, hole_chunk_count, nid_at, round_up,
};
use weald_format::{Error, FileKind, Result};

/// Bytes that are collected before they are written.
const EMITTED_AT_ONCE_LEN: usize = 256 << 10;

/// Memory of each list of numbers and blocks before it goes to a file.
const LIST_MEMORY_LEN: usize = 4 << 20;

/// Magic number of composefs, in the header before the superblock.
const COMPOSEFS_MAGIC: u32 = 0xd078_629a;

/// Version of the header.
const HEADER_VERSION: u32 = 1;

/// Bit of the header: some inode has a POSIX ACL.
const FLAG_ACL: u32 = 1;

/// Bytes of the chunk that has no data, in the index of a file.
const NULL_CHUNK: [u8; 4] = [0xff; 4];

/// Where everything lies.
struct Plan {
    /// Numbers of all inodes.
    nids: Ascending,
    /// Numbers of the inodes with several names.
    links: Vec<u64>,
    root_nid: u64,
    inodes_end: u64,
    /// Blocks behind the shared xattrs.
    block_count: u64,
}

/// Writes the image.
pub(super) struct Emitter<'a> {
    pub levels: &'a Levels,
    pub census: &'a Census,
    pub digests: &'a Digests,
    pub table: XattrTable<'a>,
    pub options: &'a ImageOptions<'a>,
}

impl Emitter<'_> {
    /// Writes all bytes to `sink`; returns their number and their fs-verity digest.
    ///
    /// # Errors
    /// Those of `sink` and of the image; `Limit` of the format; `Invalid` if cancelled.
    pub fn emit(mut self, sink: &mut Sink<'_>) -> Result<(u64, [u8; DIGEST_LEN])> {
        let plan = self.plan()?;
        let mut out = Out::new(sink);
        self.put_head(&plan, &mut out)?;
        let blocks = self.put_inodes(&plan, &mut out)?;
        out.pad_to(plan.inodes_end)?;
        self.table.each_shared(&mut |bytes| out.put(bytes))?;
        out.pad_to(data_start(&plan, self.table.len()))?;
        blocks.each_piece(&mut |piece| out.put(piece))?;
        out.finish()
    }

    fn epoch(&self) -> (u64, u32) {
        self.census.min_mtime.unwrap_or_default()
    }

    fn is_compact(&self, node: &Node, size: u64) -> bool {
        let mtime = (node.mtime.seconds as u64, node.mtime.nanoseconds);
        let ids = &node.attributes;
        mtime == self.epoch() && fits_compact(node.nlink, ids.uid, ids.gid, size)
    }

    fn plan(&mut self) -> Result<Plan> {
        let mut inodes = self.levels.cursor();
        let mut children = self.levels.cursor();
        children.next()?;
        let mut plan = Plan {
            nids: Ascending::new(LIST_MEMORY_LEN, self.options.temp_dir.to_owned()),
            links: vec![0; self.census.link_count as usize],
            root_nid: 0,
            inodes_end: 0,
            block_count: 0,
        };
        let mut position = FIRST_INODE_OFFSET;
        let mut is_root = true;
        while let Some(entry) = inodes.next()? {
            self.options.check_cancelled()?;
            let Item::Inode(node) = &entry.item else {
                continue;
            };
            let mut dir = DirShape::default();
            let mut place = NodePlace {
                is_root,
                is_whiteout: entry.is_whiteout(),
                has_whiteout: false,
            };
            if let Data::Directory(count) = node.data {
                let mut layout = DirLayout::default();
                place.has_whiteout = each_child(&mut children, count, &mut |name, _| {
                    layout.push(name.len());
                    Ok(())
                })?;
                dir = layout.shape();
            }
            let xattrs = self.table.of(node, place, &[0; DIGEST_LEN]);
            let xattrs = xattrs.map_err(|error| in_entry(error, &entry))?;
            let shape = self.shape(node, &dir, &xattrs);
            let start = shape.start(position);
            position = start + shape.len();
            plan.block_count += dir.block_count + u64::from(shape.has_target_block());
            plan.nids.push(nid_at(start))?;
            let link = node.link.checked_sub(1);
            if let Some(slot) = link.and_then(|link| plan.links.get_mut(link as usize)) {
                *slot = nid_at(start);
            }
            if is_root {
                plan.root_nid = nid_at(start);
                is_root = false;
            }
        }
        plan.inodes_end = round_up(position, SLOT_LEN);
        Ok(plan)
    }

    fn shape(&self, node: &Node, dir: &DirShape, xattrs: &Xattrs) -> Shape {
        let tail = match &node.data {
            Data::Directory(_) => Tail::Bytes(dir.tail_len),
            Data::Inline(bytes) => Tail::Bytes(bytes.len() as u64),
            Data::External { size, .. } => Tail::Bytes(hole_chunk_count(*size) * 4),
            Data::Symlink(target) => Tail::Target(target.len() as u64),
            Data::None | Data::Stub => Tail::None,
        };
        let tail = match tail {
            Tail::Bytes(0) => Tail::None,
            tail => tail,
        };
        let inode_len = if self.is_compact(node, size_of_data(node, dir)) {
            size_of::<weald_erofs::layout::CompactInode>()
        } else {
            size_of::<weald_erofs::layout::ExtendedInode>()
        };
        Shape {
            inode_len: inode_len as u64,
            xattr_len: xattrs.len(),
            tail,
        }
    }

    fn put_head(&self, plan: &Plan, out: &mut Out<'_, '_>) -> Result<()> {
        let flags = if self.table.has_acl() { FLAG_ACL } else { 0 };
        let version = match self.options.format {
            Format::V0 => 0_u32,
            Format::V1 | Format::AsNeeded => 1,
        };
        for field in [COMPOSEFS_MAGIC, HEADER_VERSION, flags, version] {
            out.put(&field.to_le_bytes())?;
        }
        out.pad_to(SUPERBLOCK_OFFSET)?;
        let data_start = data_start(plan, self.table.len());
        let block_count = data_start / BLOCK_LEN + plan.block_count;
        let too_large = |_| Error::limit("the image needs more than 16 TiB");
        let fields = SuperblockFields {
            root_nid: plan.root_nid as u16,
            inode_count: self.census.inode_count,
            epoch: self.epoch(),
            block_count: u32::try_from(block_count).map_err(too_large)?,
            xattr_block: (plan.inodes_end / BLOCK_LEN) as u32,
        };
        fields.put(&mut out.buffer);
        Ok(())
    }

    /// Writes the inodes; returns the blocks that come behind the shared xattrs.
    fn put_inodes(&mut self, plan: &Plan, out: &mut Out<'_, '_>) -> Result<Spill> {
        let mut inodes = self.levels.cursor();
        let mut nids = plan.nids.reader();
        let mut digests = self.digests.reader();
        let mut dirs = DirWriter::new(self.levels, plan, self.options)?;
        let blocks_start = data_start(plan, self.table.len()) / BLOCK_LEN;
        let mut ino = 0_u32;
        while let Some(entry) = inodes.next()? {
            self.options.check_cancelled()?;
            let Item::Inode(node) = &entry.item else {
                continue;
            };
            let nid = nids.next()?;
            let union_block = blocks_start + dirs.blocks.len() / BLOCK_LEN;
            let mut place = NodePlace {
                is_root: ino == 0,
                is_whiteout: entry.is_whiteout(),
                has_whiteout: false,
            };
            let mut dir = DirShape::default();
            if let Data::Directory(count) = node.data {
                (dir, place.has_whiteout) = dirs.next_dir(nid, count)?;
            }
            let digest = digest_of(node, &mut digests)?;
            let xattrs = self.table.of(node, place, &digest)?;
            let shape = self.shape(node, &dir, &xattrs);
            out.pad_to(shape.start(out.position()))?;
            assert_eq!(nid_at(out.position()), nid, "layout and bytes agree");
            let fields = self.fields(&entry, node, &dir, &shape, union_block as u32, ino);
            fields.put(&mut out.buffer);
            xattrs.put(&mut out.buffer, plan.inodes_end);
            match &node.data {
                Data::Directory(_) => out.put(&dirs.tail)?,
                Data::Symlink(target) if shape.has_target_block() => dirs.put_block(target)?,
                Data::Symlink(bytes) | Data::Inline(bytes) => out.put(bytes)?,
                Data::External { size, .. } => {
                    for _ in 0..hole_chunk_count(*size) {
                        out.put(&NULL_CHUNK)?;
                    }
                }
                Data::None | Data::Stub => {}
            }
            ino = ino.wrapping_add(1);
        }
        Ok(dirs.blocks)
    }

    fn fields(
        &self,
        entry: &Entry,
        node: &Node,
        dir: &DirShape,
        shape: &Shape,
        block: u32,
        ino: u32,
    ) -> InodeFields {
        let size = size_of_data(node, dir);
        let has_tail = shape.tail != Tail::None && !shape.has_target_block();
        let (data_layout, union) = match &node.data {
            Data::External { size, .. } => (data_layout::CHUNKED, hole_chunk_bits(*size)),
            Data::Directory(_) if dir.block_count > 0 && has_tail => (data_layout::INLINE, block),
            Data::Directory(_) if dir.block_count > 0 => (data_layout::PLAIN, block),
            Data::Symlink(_) if shape.has_target_block() => (data_layout::PLAIN, block),
            _ if has_tail => (data_layout::INLINE, 0),
            _ => (data_layout::PLAIN, join_device(node.attributes.rdev) as u32),
        };
        let kind = if entry.is_whiteout() {
            FileKind::Regular
        } else {
            entry.kind
        };
        InodeFields {
            is_compact: self.is_compact(node, size),
            data_layout,
            xattr_len: shape.xattr_len,
            mode: kind.mode_bits() as u16 | node.attributes.permissions,
            nlink: node.nlink,
            size,
            union,
            ino,
            uid: node.attributes.uid,
            gid: node.attributes.gid,
            mtime: node.mtime.seconds as u64,
            mtime_nsec: node.mtime.nanoseconds,
        }
    }
}

/// Writes directories in the order of their inodes.
struct DirWriter<'a> {
    children: Cursor<'a>,
    nids: AscendingReader<'a>,
    links: &'a [u64],
    /// Numbers of directories whose sub-directories are still to come, and how many of them.
    parents: VecDeque<(u64, u64)>,
    blocks: Spill,
    /// The bytes behind the inode of the last directory.
    tail: Vec<u8>,
}

impl<'a> DirWriter<'a> {
    fn new(levels: &'a Levels, plan: &'a Plan, options: &ImageOptions<'_>) -> Result<Self> {
        let mut children = levels.cursor();
        let mut nids = plan.nids.reader();
        children.next()?;
        nids.next()?;
        Ok(Self {
            children,
            nids,
            links: &plan.links,
            parents: VecDeque::from([(plan.root_nid, 1)]),
            blocks: Spill::new(LIST_MEMORY_LEN, options.temp_dir.to_owned()),
            tail: Vec::new(),
        })
    }

    /// Writes the next directory, which has the number `own` and `count` entries: its blocks to
    /// `blocks`, the rest to `tail`. Returns its shape and whether it has whiteouts.
    fn next_dir(&mut self, own: u64, count: u64) -> Result<(DirShape, bool)> {
        let parent = self.next_parent();
        let (nids, links, blocks) = (&mut self.nids, self.links, &mut self.blocks);
        let mut layout = DirLayout::default();
        let mut block = DirBlock::default();
        let mut bytes = Vec::new();
        let mut subdir_count = 0;
        let has_whiteout = each_child(&mut self.children, count, &mut |name, child| {
            let (nid, kind) = match child {
                Child::Dot => (own, FileKind::Directory),
                Child::DotDot => (parent, FileKind::Directory),
                Child::Entry(entry) => (nid_of(entry, nids, links)?, kind_in_image(entry)),
            };
            subdir_count += u64::from(matches!(child, Child::Entry(_)) && kind.mode_bits() == DIR);
            if layout.push(name.len()) {
                bytes.clear();
                block.take(&mut bytes);
                bytes.resize(BLOCK_LEN as usize, 0);
                blocks.append(&bytes)?;
            }
            block.push(name, nid, kind);
            Ok(())
        })?;
        let shape = layout.shape();
        self.tail.clear();
        block.take(&mut self.tail);
        if shape.tail_len == 0 && !self.tail.is_empty() {
            self.tail.resize(BLOCK_LEN as usize, 0);
            self.blocks.append(&self.tail)?;
            self.tail.clear();
        }
        if subdir_count > 0 {
            self.parents.push_back((own, subdir_count));
        }
        Ok((shape, has_whiteout))
    }

    fn next_parent(&mut self) -> u64 {
        let Some((nid, count)) = self.parents.front_mut() else {
            return 0;
        };
        let nid = *nid;
        *count -= 1;
        if *count == 0 {
            self.parents.pop_front();
        }
        nid
    }

    fn put_block(&mut self, bytes: &[u8]) -> Result<()> {
        let mut block = bytes.to_vec();
        block.resize(BLOCK_LEN as usize, 0);
        self.blocks.append(&block)
    }
}

const DIR: u32 = FileKind::Directory.mode_bits();

/// An entry of a directory of the image.
enum Child<'a> {
    Dot,
    DotDot,
    Entry(&'a Entry),
}

type VisitChild<'a> = dyn FnMut(&[u8], &Child<'_>) -> Result<()> + 'a;

/// Visits the next `count` entries, and `.` and `..` at their places in the order of names. Returns
/// whether there are whiteouts.
fn each_child(cursor: &mut Cursor<'_>, count: u64, visit: &mut VisitChild<'_>) -> Result<bool> {
    let mut dots = [(&b"."[..], Child::Dot), (&b".."[..], Child::DotDot)].into_iter();
    let mut dot = dots.next();
    let mut has_whiteout = false;
    for _ in 0..count {
        let Some(entry) = cursor.next()? else {
            break;
        };
        while let Some((name, child)) = dot.take_if(|(name, _)| *name < entry.name.as_slice()) {
            visit(name, &child)?;
            dot = dots.next();
        }
        has_whiteout |= entry.is_whiteout();
        visit(&entry.name, &Child::Entry(&entry))?;
    }
    while let Some((name, child)) = dot {
        visit(name, &child)?;
        dot = dots.next();
    }
    Ok(has_whiteout)
}

fn nid_of(entry: &Entry, nids: &mut AscendingReader<'_>, links: &[u64]) -> Result<u64> {
    match &entry.item {
        Item::Inode(_) => nids.next(),
        Item::Link(link) => Ok(links.get(*link as usize).copied().unwrap_or_default()),
    }
}

fn kind_in_image(entry: &Entry) -> FileKind {
    if entry.is_whiteout() {
        FileKind::Regular
    } else {
        entry.kind
    }
}

/// Size of an inode's data as the inode has it.
fn size_of_data(node: &Node, dir: &DirShape) -> u64 {
    match &node.data {
        Data::Directory(_) => dir.size(),
        Data::Inline(bytes) | Data::Symlink(bytes) => bytes.len() as u64,
        Data::External { size, .. } => *size,
        Data::None | Data::Stub => 0,
    }
}

fn digest_of(node: &Node, digests: &mut DigestReader<'_>) -> Result<[u8; DIGEST_LEN]> {
    match node.data {
        Data::External { content, .. } => digests.of(content),
        _ => Ok([0; DIGEST_LEN]),
    }
}

fn in_entry(error: Error, entry: &Entry) -> Error {
    error.context(weald_vfs::shown(&entry.name))
}

fn data_start(plan: &Plan, table_len: u64) -> u64 {
    round_up(plan.inodes_end + table_len, BLOCK_LEN)
}

/// Output in order.
struct Out<'a, 'b> {
    sink: &'a mut Sink<'b>,
    buffer: Vec<u8>,
    written_len: u64,
    verity: FsVerity,
}

impl<'a, 'b> Out<'a, 'b> {
    fn new(sink: &'a mut Sink<'b>) -> Self {
        Self {
            sink,
            buffer: Vec::with_capacity(EMITTED_AT_ONCE_LEN + BLOCK_LEN as usize),
            written_len: 0,
            verity: FsVerity::new(),
        }
    }

    fn position(&self) -> u64 {
        self.written_len + self.buffer.len() as u64
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= EMITTED_AT_ONCE_LEN {
            self.flush()
        } else {
            Ok(())
        }
    }

    /// Appends zeros up to `position`, which is at most two blocks ahead.
    fn pad_to(&mut self, position: u64) -> Result<()> {
        let len = position.saturating_sub(self.position());
        assert!(len < 2 * BLOCK_LEN, "layout and bytes agree");
        self.buffer.resize(self.buffer.len() + len as usize, 0);
        self.put(&[])
    }

    fn flush(&mut self) -> Result<()> {
        self.verity.update(&self.buffer);
        (self.sink)(&self.buffer)?;
        self.written_len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<(u64, [u8; DIGEST_LEN])> {
        self.flush()?;
        Ok((self.written_len, self.verity.finish()))
    }
}
