//! The third pass: writes inodes and directories.

use super::contents::{Contents, Layout, Stored};
use super::inode_positions::{InodePositions, PositionReader};
use super::options::{ErofsOptions, block_no, check_cancelled};
use super::shape::{Body, Measured};
use super::shared::SharedXattrs;
use super::tree::{DirEntry, each_dir_entry, each_inode, open};
use crate::spill::Spill;
use weald_erofs::layout::{BLOCK_LEN, SLOT_LEN, data_layout};
use weald_erofs::writer::{
    DirBlock, DirLayout, InodeFields, filter_bit, put_area_header, put_index_header, put_xattr,
};
use weald_format::{Error, FileKind, ROOT_INODE, Result, Timestamp};
use weald_image::{Image, Inode, OpenedDirectory};
use weald_io::OutputFile;

/// Bytes of an index that are copied at once.
const INDEX_COPY_LEN: u64 = 64 << 10;

pub(super) struct Emitter<'a> {
    image: &'a Image,
    contents: &'a Contents,
    shared: &'a SharedXattrs,
    positions: &'a InodePositions,
    out: &'a mut OutputFile,
    options: &'a ErofsOptions<'a>,
    epoch: Timestamp,
    /// Offset of the metadata in the image.
    meta_start: u64,
    /// Blocks of directories and long targets, which follow the inodes.
    blocks: Spill,
    /// Offset of these blocks in the image.
    blocks_start: u64,
    /// Places of children of the directory that is written.
    children: PositionReader<'a>,
    inode_no: u32,
    buffer: Vec<u8>,
}

impl<'a> Emitter<'a> {
    /// An emitter at the position of `out`, where the inodes begin.
    ///
    /// # Errors
    /// `Io`, `Corrupt` of the image.
    pub fn new(
        image: &'a Image,
        (contents, shared): (&'a Contents, &'a SharedXattrs),
        positions: &'a InodePositions,
        out: &'a mut OutputFile,
        options: &'a ErofsOptions<'a>,
    ) -> Result<Self> {
        let memory_len = (options.memory_len / 8).min(64 << 20) as usize;
        let meta_start = out.position();
        Ok(Self {
            image,
            contents,
            shared,
            positions,
            options,
            epoch: image.root()?.times.mtime,
            meta_start,
            blocks: Spill::new(memory_len, options.temp_dir.to_owned()),
            blocks_start: (meta_start + positions.len).next_multiple_of(BLOCK_LEN),
            children: positions.reader(),
            out,
            inode_no: 0,
            buffer: Vec::new(),
        })
    }

    /// Writes all inodes, and the blocks of directories behind them.
    ///
    /// # Errors
    /// `Io`, `Full`; those of the image; `Invalid` if cancelled; `Limit` of the format.
    pub fn write_tree(&mut self) -> Result<()> {
        let mut own = self.positions.reader();
        let root = self.image.root()?;
        let root_start = own.of(ROOT_INODE)?;
        let root_nid = root_start / SLOT_LEN;
        self.write_inode((None, &root), root_start, root_nid)?;
        let (image, options) = (self.image, self.options);
        each_inode(image, root_nid, &mut |dir, _, inode| {
            check_cancelled(options)?;
            let start = own.of(inode.name_no)?;
            if inode.ino == inode.name_no {
                self.write_inode((Some(&dir.opened), inode), start, dir.nid)?;
            }
            Ok(start / SLOT_LEN)
        })?;
        self.pad_to(self.blocks_start)?;
        let out = &mut *self.out;
        self.blocks.each_piece(&mut |piece| out.write_all(piece))
    }

    fn pad_to(&mut self, end: u64) -> Result<()> {
        let position = self.out.position();
        let len = end.checked_sub(position);
        let len = len.ok_or_else(|| Error::invalid("an inode overlaps the one before it"))?;
        let zeros = [0; BLOCK_LEN as usize];
        let zeros = zeros.get(..len as usize);
        self.out
            .write_all(zeros.ok_or_else(|| Error::invalid("a gap between inodes"))?)
    }

    /// Writes an inode that begins at `start` of the metadata, with all that lies behind it. It is
    /// an entry of the directory `parent`, or the root.
    fn write_inode(
        &mut self,
        (parent, inode): (Option<&OpenedDirectory>, &Inode),
        start: u64,
        parent_nid: u64,
    ) -> Result<()> {
        let (contents, shared) = (self.contents, self.shared);
        let measured = Measured::new(self.image, contents, shared, (parent, inode), self.epoch)?;
        self.pad_to(self.meta_start + start)?;
        let mut tail = Vec::new();
        let first_block = self.next_block()?;
        let (layout, union, size) = match measured.body {
            Body::None => {
                let union = device_number(inode.attributes.rdev)?;
                (data_layout::PLAIN, union, 0)
            }
            Body::Target(len) => {
                tail = self.image.read_link(inode)?;
                if measured.shape.has_target_block() {
                    tail.resize(BLOCK_LEN as usize, 0);
                    self.blocks.append(&tail)?;
                    tail.clear();
                    (data_layout::PLAIN, first_block, len)
                } else {
                    (data_layout::INLINE, 0, len)
                }
            }
            Body::Directory(dir) => {
                let opened = open(self.image, parent, inode.ino)?;
                self.directory(&opened, start / SLOT_LEN, parent_nid, &mut tail)?;
                if tail.is_empty() {
                    (data_layout::PLAIN, first_block, dir.size())
                } else {
                    (data_layout::INLINE, first_block, dir.size())
                }
            }
            Body::File(stored) => {
                let (layout, union) = file_layout(&stored);
                (layout, union, inode.size.0)
            }
        };
        self.buffer.clear();
        let attributes = &inode.attributes;
        self.inode_no = self.inode_no.wrapping_add(1);
        let fields = InodeFields {
            is_compact: measured.is_compact,
            data_layout: layout,
            xattr_len: measured.shape.xattr_len,
            mode: inode.kind.mode_bits() as u16 | attributes.permissions,
            nlink: inode.nlink,
            size,
            union,
            ino: self.inode_no,
            uid: attributes.uid,
            gid: attributes.gid,
            mtime: inode.times.mtime.seconds as u64,
            mtime_nsec: inode.times.mtime.nanoseconds,
        };
        fields.put(&mut self.buffer);
        self.put_xattrs(inode)?;
        self.buffer.extend_from_slice(&tail);
        self.out.write_all(&self.buffer)?;
        match measured.body {
            Body::File(stored) => self.write_extra(&stored),
            _ => Ok(()),
        }
    }

    /// The block that the next bytes of `blocks` get.
    fn next_block(&self) -> Result<u32> {
        block_no(self.blocks_start + self.blocks.len())
    }

    fn put_xattrs(&mut self, inode: &Inode) -> Result<()> {
        let set = self.image.xattrs(inode)?;
        if set.is_empty() {
            return Ok(());
        }
        let bits = set.iter().fold(0, |bits, x| bits | filter_bit(&x.name));
        let ids = self.shared.of(inode);
        put_area_header(&mut self.buffer, bits, ids.len() as u8);
        for id in ids {
            self.buffer.extend_from_slice(&id.to_le_bytes());
        }
        if !ids.is_empty() {
            return Ok(());
        }
        for xattr in set.iter() {
            put_xattr(&mut self.buffer, &xattr.name, &xattr.value);
        }
        Ok(())
    }

    /// Writes the tail or the index of a file.
    fn write_extra(&mut self, stored: &Stored) -> Result<()> {
        let unit = match stored.layout {
            Layout::Plain(_) => 1,
            Layout::Chunks(_) => 4,
            Layout::Compressed(_) => 8,
        };
        self.pad_to(self.out.position().next_multiple_of(unit))?;
        if let (Layout::Compressed(_), Some(codec)) = (stored.layout, self.options.codec) {
            self.buffer.clear();
            put_index_header(&mut self.buffer, codec);
            self.out.write_all(&self.buffer)?;
        }
        let (mut at, mut remaining) = (stored.extra_start, u64::from(stored.extra_len));
        while remaining > 0 {
            let len = remaining.min(INDEX_COPY_LEN);
            self.buffer.resize(len as usize, 0);
            self.contents.extras.read_at(&mut self.buffer, at)?;
            self.out.write_all(&self.buffer)?;
            (at, remaining) = (at + len, remaining - len);
        }
        Ok(())
    }

    /// Appends the whole blocks of a directory to the list of blocks, and the tail to `tail`.
    fn directory(
        &mut self,
        dir: &OpenedDirectory,
        nid: u64,
        parent: u64,
        tail: &mut Vec<u8>,
    ) -> Result<()> {
        let (mut layout, mut block) = (DirLayout::default(), DirBlock::default());
        let mut bytes = Vec::new();
        let (blocks, children) = (&mut self.blocks, &mut self.children);
        each_dir_entry(self.image, dir, &mut |entry| {
            if layout.push(entry.name().len()) {
                put_block(&mut block, &mut bytes, blocks)?;
            }
            let (nid, kind) = match entry {
                DirEntry::This => (nid, FileKind::Directory),
                DirEntry::Parent => (parent, FileKind::Directory),
                DirEntry::Name(_, inode) => (children.of(inode.name_no)? / SLOT_LEN, inode.kind),
            };
            block.push(entry.name(), nid, kind);
            Ok(())
        })?;
        match layout.shape().tail_len {
            0 => put_block(&mut block, &mut bytes, blocks),
            _ => {
                block.take(tail);
                Ok(())
            }
        }
    }
}

fn put_block(block: &mut DirBlock, bytes: &mut Vec<u8>, blocks: &mut Spill) -> Result<()> {
    bytes.clear();
    block.take(bytes);
    bytes.resize(BLOCK_LEN as usize, 0);
    blocks.append(bytes)
}

/// The data layout of a file, and the field that belongs to it.
fn file_layout(stored: &Stored) -> (u16, u32) {
    match stored.layout {
        Layout::Plain(block) if stored.extra_len == 0 => (data_layout::PLAIN, block),
        Layout::Plain(block) => (data_layout::INLINE, block),
        Layout::Chunks(bits) => (data_layout::CHUNKED, bits.into()),
        Layout::Compressed(block_count) => (data_layout::COMPRESSED_FULL, block_count),
    }
}

/// The device number in the kernel's form of 32 bits; 0 for other inodes.
fn device_number(rdev: u64) -> Result<u32> {
    let (major, minor) = (rdev >> 32, rdev & u64::from(u32::MAX));
    if major > 0xfff || minor > 0xf_ffff {
        return Err(Error::limit(format!(
            "the device number {major}, {minor} has more than 32 bits, which EROFS cannot hold"
        )));
    }
    Ok(((minor & 0xff) | major << 8 | (minor & 0xf_ff00) << 12) as u32)
}
