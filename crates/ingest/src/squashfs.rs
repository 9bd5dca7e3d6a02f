//! Reader of SquashFS images, version 4, as mksquashfs writes them since 2009.
//!
//! The bytes are not trusted. Nothing that the image announces is allocated: tables are read where
//! they are needed, one block at a time, and the lists of directories together may have no more
//! bytes than their table, so that directories that contain each other end in an error. The
//! modules, each using only those above it:
//!
//! 1. `failure` makes errors, `codec` decodes blocks, `superblock` validates the image's start.
//! 2. `blocks` reads blocks of metadata, `table` the tables that lie in them.
//! 3. `inode` and `directory` parse metadata, `xattrs` those of inodes.
//! 4. `data` reads the data of files.
//!
//! Source: `fs/squashfs/squashfs_fs.h` of Linux 6.12; `squashfs.rst` in its Documentation.

mod blocks;
mod codec;
mod data;
mod directory;
mod failure;
mod inode;
mod superblock;
mod table;
mod xattrs;

use crate::first_names::FirstNames;
use crate::member::{Member, MemberKind};
use crate::members::{DataBudget, Layout, Members, Tell};
use blocks::MetadataBlocks;
use data::FileData;
use directory::DirReader;
use failure::damaged;
use inode::{Inode, InodeRef};
use std::path::{Path, PathBuf};
use superblock::Superblock;
use table::Table;
use weald_format::limits::PATH_LEN_MAX;
use weald_format::{Attributes, Error, FileKind, Result};
use weald_io::{FileSource, ReadAt};
use xattrs::Xattrs;

/// A directory on the way to the current entry.
struct OpenDir {
    entries: DirReader,
    /// Bytes of its path.
    path_len: usize,
}

/// Reads a SquashFS image, depth first.
pub struct SquashfsReader {
    /// The image's path, for messages.
    path: PathBuf,
    superblock: Superblock,
    blocks: MetadataBlocks,
    ids: Table,
    xattrs: Xattrs,
    open: Vec<OpenDir>,
    is_started: bool,
    current: Vec<u8>,
    data: FileData,
    layout: Option<Layout>,
    links: FirstNames<u32>,
    budget: DataBudget,
    /// Bytes of lists of directories, and sizes in lists of blocks, that may still be read.
    remaining_dir_len: u64,
    remaining_block_count: u64,
}

impl SquashfsReader {
    /// Whether `front`, the first bytes of a file, is the start of an image.
    pub fn is_squashfs(front: &[u8]) -> bool {
        front.starts_with(superblock::MAGIC)
    }

    /// Opens the image at `path`: a regular file or a block device. Paths of files with several
    /// names may take `links_len` bytes.
    ///
    /// # Errors
    /// `NotFound`, `Io`; `Invalid` for a file that is no image or a damaged one; `Unsupported` for
    /// codecs and versions that are not read.
    pub fn open(path: &Path, links_len: u64) -> Result<Self> {
        let file = FileSource::open(path, 0)?;
        let budget = DataBudget::of_image(file.len());
        let named = |e: Error| e.context(path.display());
        let superblock = Superblock::read(&file).map_err(named)?;
        let blocks = MetadataBlocks::new(file, &superblock);
        let dirs = superblock.dir_table;
        let dir_block_count = blocks.count(dirs, superblock.end_of(dirs));
        let inodes = superblock.inode_table;
        let inode_block_count = blocks.count(inodes, superblock.end_of(inodes));
        Ok(Self {
            path: path.to_owned(),
            ids: Table::ids(&superblock),
            xattrs: Xattrs::read(&superblock, &blocks).map_err(named)?,
            open: Vec::new(),
            is_started: false,
            current: Vec::new(),
            data: FileData::new(&superblock),
            layout: None,
            links: FirstNames::new(links_len),
            budget,
            remaining_dir_len: dir_block_count.saturating_mul(blocks::BLOCK_LEN as u64),
            remaining_block_count: inode_block_count.saturating_mul(blocks::BLOCK_LEN as u64 / 4),
            superblock,
            blocks,
        })
    }

    /// Adds the image and the entry to an error.
    fn located(&self, error: Error) -> Error {
        let entry = weald_vfs::shown_path(&self.current);
        error.context(format_args!("{}: {entry}", self.path.display()))
    }

    /// Goes to the next entry; the root comes first.
    fn next_inode(&mut self) -> Result<Option<Inode>> {
        if !self.is_started {
            self.is_started = true;
            let root = self.inode(InodeRef(self.superblock.root))?;
            if root.kind != FileKind::Directory {
                return Err(damaged("its root is no directory"));
            }
            self.enter(&root)?;
            return Ok(Some(root));
        }
        loop {
            let Some(dir) = self.open.last_mut() else {
                return Ok(None);
            };
            self.current.truncate(dir.path_len);
            let Some(entry) = dir.entries.next(&mut self.blocks)? else {
                self.open.pop();
                continue;
            };
            if !self.current.is_empty() {
                self.current.push(b'/');
            }
            self.current.extend_from_slice(&entry.name);
            if self.current.len() > PATH_LEN_MAX {
                let what = format!("a path of more than {PATH_LEN_MAX} bytes");
                return Err(Error::limit(what));
            }
            let inode = self.inode(entry.inode)?;
            if inode.kind == FileKind::Directory {
                self.enter(&inode)?;
            }
            return Ok(Some(inode));
        }
    }

    fn inode(&mut self, place: InodeRef) -> Result<Inode> {
        Inode::read(&mut self.blocks, &self.superblock, place)
    }

    fn enter(&mut self, inode: &Inode) -> Result<()> {
        let entries = DirReader::new(&self.superblock, inode)?;
        let remaining_len = self.remaining_dir_len.checked_sub(entries.len());
        self.remaining_dir_len = remaining_len.ok_or_else(|| {
            damaged("its directories have more names than their table: they contain each other")
        })?;
        self.open.push(OpenDir {
            entries,
            path_len: self.current.len(),
        });
        Ok(())
    }

    fn take(&mut self, inode: &Inode, member: &mut Member) -> Result<()> {
        *member = Member::default();
        match &*self.current {
            // Every stream may name the root so.
            b"" => member.path.push(b'.'),
            path => member.path.extend_from_slice(path),
        }
        let is_dir = inode.kind == FileKind::Directory;
        if !is_dir
            && let Some(first) = self
                .links
                .first_path(inode.number, inode.nlink, &member.path)?
        {
            member.kind = MemberKind::HardLink;
            member.target = first;
            return Ok(());
        }
        member.kind = MemberKind::Entry(inode.kind);
        member.attributes = Attributes {
            permissions: inode.permissions,
            uid: self.ids.id(&mut self.blocks, inode.uid_no)?,
            gid: self.ids.id(&mut self.blocks, inode.gid_no)?,
            rdev: inode.rdev,
        };
        member.mtime = inode.mtime;
        member.xattrs = self.xattrs.of(&mut self.blocks, inode.xattr_no)?;
        member.target.clone_from(&inode.target);
        if inode.kind == FileKind::Regular {
            let count_max = &mut self.remaining_block_count;
            let layout = self.data.begin(&mut self.blocks, inode, count_max)?;
            self.budget.take(layout.data_len())?;
            self.layout = Some(layout);
        }
        Ok(())
    }
}

impl Members for SquashfsReader {
    fn next(&mut self, member: &mut Member, _tell: &mut Tell<'_>) -> Result<bool> {
        self.layout = None;
        let next = self.next_inode().map_err(|e| self.located(e))?;
        let Some(inode) = next else {
            return Ok(false);
        };
        let taken = self.take(&inode, member);
        taken.map(|()| true).map_err(|e| self.located(e))
    }

    fn has_contents(&self) -> bool {
        true
    }

    fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn read_data(&mut self, out: &mut [u8]) -> Result<()> {
        let read = self.data.read(&mut self.blocks, out);
        read.map_err(|e| self.located(e))
    }
}
