//! The reader: opens an image and answers what its tree and its files hold; verifies every byte
//! before it is used.
//!
//! Neighbours: `format` parses, `codec` decodes, `io` reads. It never links a writer and never
//! prints.
#![forbid(unsafe_code)]
// Untrusted bytes never panic; encoders, which see only what this program made, say so where they
// need to.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable
    )
)]

#[path = "cache/prefetch_pool.rs"]
mod ahead;
#[path = "open/bases.rs"]
mod bases;
#[path = "cache/block.rs"]
mod block;
mod cache;
mod check;
#[path = "read/contents.rs"]
mod content;
#[path = "check/contents.rs"]
mod content_check;
#[path = "check/damage.rs"]
mod damage;
#[path = "open/generations.rs"]
mod generations;
#[path = "cached_records/partial_block.rs"]
mod growing;
#[path = "hotness/text.rs"]
mod hot;
#[path = "inspect/sections.rs"]
mod inspect;
#[path = "check/tree_digest.rs"]
mod instances;
#[path = "read/decode_cost.rs"]
mod needs;
#[path = "read/extent_groups.rs"]
mod parts;
#[path = "read/access_pattern.rs"]
mod readers;
#[path = "hotness/recorder.rs"]
mod recorder;
#[path = "cached_records/records.rs"]
mod records;
#[path = "inspect/space.rs"]
mod stages;
#[path = "check/templates.rs"]
mod template_check;
#[path = "inspect/raw_access.rs"]
mod transfer;
mod tree;
#[path = "warmup/replay.rs"]
mod warm;

pub use block::Block;
pub use cache::{CacheCounts, SharedCache, page_len_max};
pub use check::{CheckOptions, CheckReport, Finding};
pub use content::Chunk;
use content::Reader;
pub use generations::{Generation, generations, last_whole_generation};
pub use hot::Hotness;
pub use inspect::{MadeShare, SectionInfo, Share};
pub use needs::Needs;
pub use stages::{Stages, StreamStages};
pub use transfer::VisitEntryBlock;
pub use tree::kind_name;
pub use warm::{PrefetchHandle, PrefetchReport, PrefetchSet};

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::container::{
    FOOTER_LEN, Footer, FooterRecord, HEADER_LEN, RecordRef, RecordType, SUPERBLOCK_LEN,
    SuperblockRecord,
};
use weald_format::directory::{Directory, check_lens};
use weald_format::limits::DIRECTORY_LEN_MAX;
use weald_format::{
    Attributes, ByteLen, ByteOffset, ContentId, Digest, EntryIndex, Error, FileKind, InodeNo,
    Result, TemplateId, Times, XattrSet, XattrSetId,
};
use weald_io::{FileSource, ReadAt};
use zerocopy::FromBytes;

/// How to open an image.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Hard limit of cached decoded bytes, a quarter of it for pages of the tree; these get 8 MiB
    /// even where a quarter is less, so that a walk does not decode them over and over. 0 keeps
    /// nothing.
    pub cache_len: ByteLen,
    /// Keep what is decoded in this cache, which other images may use too, instead of one of
    /// `cache_len` bytes.
    pub cache: Option<Arc<SharedCache>>,
    /// Refuse any image whose image digest is not this; where no generation is asked for, older
    /// ones are looked through for it.
    pub expected_digest: Option<Digest>,
    /// Read this generation; `None` reads the last one.
    pub generation: Option<u64>,
    /// Threads that decode ahead of who reads in order; 0 = none. Images of one cache share those
    /// of the first that has any.
    pub prefetch_threads: usize,
    /// Where base images are looked for, besides the directory of the image itself.
    pub base_dirs: Vec<PathBuf>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            cache_len: ByteLen(256 << 20),
            cache: None,
            expected_digest: None,
            generation: None,
            prefetch_threads: 0,
            base_dirs: Vec::new(),
        }
    }
}

/// Where an image begins in its file; it ends where the file ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageStart {
    /// At this byte.
    At(ByteOffset),
    /// Where the footer at the end of the file says: behind a script that mounts it, a boot loader,
    /// anything.
    Auto,
}

impl Default for ImageStart {
    fn default() -> Self {
        Self::At(ByteOffset(0))
    }
}

impl From<u64> for ImageStart {
    fn from(offset: u64) -> Self {
        Self::At(ByteOffset(offset))
    }
}

/// An open image. Cheap to share (`Arc`), usable from many threads.
pub struct Image {
    footer: Footer,
    directory: Arc<Directory>,
    records: Arc<records::Records>,
    tree: tree::Tree,
    contents: Arc<content::Contents>,
    summary: Summary,
}

/// One inode as one of its names shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// `st_ino`: shared by all hard links of a file.
    pub ino: InodeNo,
    /// The dense number of this very name; equals `ino` for all but the later names of a
    /// hard-linked file.
    pub name_no: InodeNo,
    /// What it is.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// `st_nlink` (directories: 2 + sub-directories).
    pub nlink: u64,
    /// Bytes of a regular file or of a symlink's target; number of entries of a directory; 0 for
    /// others.
    pub size: ByteLen,
    /// Times.
    pub times: Times,
    /// Extended attributes, if it has any.
    pub xattr_set: Option<XattrSetId>,
    /// Which content a non-empty regular file has.
    pub content: Option<ContentId>,
    /// Which template a directory has.
    pub template: Option<TemplateId>,
    /// Where its entry lies (needed for link targets).
    pub entry: EntryIndex,
}

/// What is called with each entry's index in its directory, name and inode.
pub type VisitEntry<'a> = dyn FnMut(u64, &[u8], &Inode) -> ControlFlow<()> + 'a;

/// A run of a file's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub len: u64,
    /// Absent data that reads as zero.
    pub is_hole: bool,
}

/// Numbers about an open image that cost nothing to tell.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Digest of the directory record: authenticates everything.
    pub image_digest: Digest,
    /// Logical identity: names, attributes and content, whatever codec, block size or order.
    pub tree_digest: Digest,
    /// Generation of this footer, from 1.
    pub generation: u64,
    /// Inodes named (entries of the expanded tree, the root included).
    pub name_count: u64,
    /// Entries stored (of distinct templates).
    pub entry_count: u64,
    /// Distinct directories.
    pub template_count: u64,
    /// Distinct non-empty contents.
    pub content_count: u64,
    /// Bytes of all distinct contents, holes included.
    pub content_len: u64,
    /// Bytes of the image file.
    pub image_len: u64,
    /// Most decoded bytes that one read can need at once (largest block).
    pub block_len_max: u64,
}

impl Image {
    /// Opens an image from any storage; reads the superblock, the footer and the directory only,
    /// and likewise of base images.
    ///
    /// # Errors
    /// `Corrupt`, also where a base image is not found; `Unsupported`, `Limit`, `Io`; `Invalid`
    /// where `expected_digest` differs.
    pub fn open(source: Arc<dyn ReadAt>, options: &OpenOptions) -> Result<Self> {
        Self::open_at_depth(source, options, 0)
    }

    /// Opens an image that lies below `depth` others.
    fn open_at_depth(source: Arc<dyn ReadAt>, options: &OpenOptions, depth: usize) -> Result<Self> {
        let (superblock_digest, footer) = generations::open_footer(&*source)?;
        let footer = generations::choose(&*source, footer, options)?;
        let image_len = footer.footer_offset.saturating_add(FOOTER_LEN as u64);
        let directory = Arc::new(open_directory(&*source, &footer, &superblock_digest)?);
        let cache = match &options.cache {
            Some(cache) => cache.clone(),
            None => SharedCache::of_one(options.cache_len),
        };
        let share = OpenOptions {
            cache: Some(cache.clone()),
            ..options.clone()
        };
        let bases = bases::open_all(&directory, &share, depth)?;
        let base_streams = bases::streams(&directory, &bases);
        let tag = cache.tag(&footer.image_digest, footer.generation);
        let records = records::Records::new(source, directory.clone(), base_streams, tag);
        let records = Arc::new(records);
        let tree = tree::Tree::new(records.clone(), directory.name_count)?;
        let threads = options.prefetch_threads;
        let contents = content::Contents::new(records.clone(), &directory, threads);
        let summary = summarize(&footer, &directory, &records, &tree, image_len);
        Ok(Self {
            footer,
            directory,
            records,
            tree,
            contents,
            summary,
        })
    }

    /// Opens the image in the file at `path`, which begins at `start`, for instance at byte `0`.
    ///
    /// # Errors
    /// As [`Image::open`]; `Corrupt` where [`ImageStart::Auto`] does not find it.
    pub fn open_path(
        path: &Path,
        start: impl Into<ImageStart>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let start = match start.into() {
            ImageStart::At(offset) => offset,
            ImageStart::Auto => {
                let found = find_start(&FileSource::open(path, 0)?);
                found.map_err(|e| e.context("find the image").context(path.display()))?
            }
        };
        let source = FileSource::open(path, start.0)?;
        Self::open_beside(path, source, options, 0)
    }

    /// Opens a base image.
    fn open_file(path: &Path, options: &OpenOptions, depth: usize) -> Result<Self> {
        Self::open_beside(path, FileSource::open(path, 0)?, options, depth)
    }

    /// Opens the image in `source`, which is the file at `path`: bases lie beside it first of all.
    fn open_beside(
        path: &Path,
        source: FileSource,
        options: &OpenOptions,
        depth: usize,
    ) -> Result<Self> {
        let dir = match path.parent() {
            Some(dir) if dir != Path::new("") => dir.to_owned(),
            _ => PathBuf::from("."),
        };
        let mut options = options.clone();
        if !options.base_dirs.contains(&dir) {
            options.base_dirs.insert(0, dir);
        }
        Self::open_at_depth(Arc::new(source), &options, depth)
            .map_err(|e| e.context(path.display()))
    }

    /// Numbers about the image.
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// The root directory.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn root(&self) -> Result<Inode> {
        let root = self.inode(weald_format::ROOT_INODE)?;
        match root.kind {
            FileKind::Directory => Ok(root),
            kind => Err(Error::corrupt(
                "tree",
                0,
                "F-8.4",
                format!("the root is a {}", kind_name(kind)),
            )),
        }
    }

    /// The inode with number `ino` (also a `name_no`: then the inode that this name shows).
    ///
    /// # Errors
    /// `NotFound` for a number the image does not have.
    /// # Cost
    /// A descent from the root: O(depth · log fan-out) with the templates on the way cached.
    pub fn inode(&self, ino: InodeNo) -> Result<Inode> {
        self.tree.inode(ino.0)
    }

    /// The directory that holds the name `ino` (the root's parent is the root).
    ///
    /// # Errors
    /// `NotFound` for a number the image does not have.
    pub fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        Ok(InodeNo(self.tree.holder_of(ino.0)?.no))
    }

    /// The entry of directory `dir` called `name`.
    ///
    /// # Errors
    /// `Invalid` where `dir` is not a directory.
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        self.tree.lookup(&self.tree.directory(dir.0)?, name)
    }

    /// Visits the entries of `dir` in byte order of their names, from the `start`-th on (0-based;
    /// no `.` or `..`); `visit` gets index, name and inode and stops the walk with `Break`.
    ///
    /// # Errors
    /// `Invalid` where `dir` is not a directory; `Io`, `Corrupt`.
    pub fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        self.tree
            .read_dir(&self.tree.directory(dir.0)?, start, visit)
    }

    /// The directory `dir`, opened.
    ///
    /// # Errors
    /// `Invalid` where `dir` is not a directory.
    /// # Cost
    /// A descent from the root, as [`Image::inode`], unless it was opened not long ago.
    pub fn open_directory(&self, dir: InodeNo) -> Result<OpenedDirectory> {
        self.tree.directory(dir.0).map(OpenedDirectory)
    }

    /// The directory `dir`, which lies in `parent`, opened.
    ///
    /// # Errors
    /// `Corrupt` where it does not lie there.
    pub fn open_directory_in(
        &self,
        parent: &OpenedDirectory,
        dir: InodeNo,
    ) -> Result<OpenedDirectory> {
        let opened = self.tree.directory_in(&parent.0, dir.0);
        opened.map(OpenedDirectory)
    }

    /// As [`Image::read_dir`], of an opened directory.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn read_opened(
        &self,
        dir: &OpenedDirectory,
        start: u64,
        visit: &mut VisitEntry<'_>,
    ) -> Result<()> {
        self.tree.read_dir(&dir.0, start, visit)
    }

    /// Names below `inode` at any depth: 0 where it is no directory.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads one page, whatever the number.
    pub fn names_below(&self, inode: &Inode) -> Result<u64> {
        match inode.template {
            Some(id) => Ok(self.tree.template(id.0)?.subtree_count),
            None => Ok(0),
        }
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// `Invalid` where the inode is none.
    pub fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.tree.target(inode.entry)
    }

    /// The extended attributes of an inode (empty where it has none).
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        match inode.xattr_set {
            Some(id) => self.tree.xattrs(id),
            None => Ok(Arc::default()),
        }
    }

    /// Attributes `id`.
    pub(crate) fn attributes(&self, id: u64) -> Result<Attributes> {
        let found = self.records.record_of_item(RecordType::Attributes, 0, id)?;
        let index = id.saturating_sub(found.first_item) as usize;
        match &*self.records.page(&found)? {
            records::Page::Attributes(items) => items.get(index).copied(),
            _ => None,
        }
        .ok_or_else(|| Error::corrupt("tree", 0, "F-12.2", format!("no attributes {id}")))
    }

    /// The whole link table.
    pub(crate) fn all_links(&self) -> Result<Vec<weald_format::pages::Link>> {
        let mut links = Vec::new();
        self.each_page(RecordType::Links, &mut |page| {
            if let records::Page::Links(page) = page {
                links.extend_from_slice(page);
            }
            Ok(())
        })?;
        Ok(links)
    }

    /// Whether any inode has extended attributes.
    pub fn has_xattrs(&self) -> bool {
        self.records.item_count(RecordType::Xattrs, 0) > 0
    }

    /// Up to `len` bytes of a regular file from `offset`; shorter only at the end of the file.
    /// Copies only where the range spans several blocks or holes.
    ///
    /// # Errors
    /// `Invalid` where the inode is no regular file; `Io`, `Corrupt`.
    pub fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<Chunk> {
        let Some(content) = content_of(inode)? else {
            return Ok(Chunk::empty());
        };
        let chunk = self.contents.read(content, offset, len)?;
        self.note_read(inode, offset, chunk.len());
        Ok(chunk)
    }

    /// The same bytes in several chunks, one after the other, where that saves a copy: of blocks
    /// that follow each other. None is empty. It is for the kernel, which reads ahead by itself:
    /// where it asks for much at once nobody else does.
    ///
    /// # Errors
    /// As [`Image::read`].
    pub fn read_chunks(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<Chunk>> {
        let Some(content) = content_of(inode)? else {
            return Ok(Vec::new());
        };
        let chunks = self
            .contents
            .read_chunks(content, offset, len, Reader::Kernel)?;
        self.note_read(inode, offset, chunks.iter().map(|c| c.len()).sum());
        Ok(chunks)
    }

    fn note_read(&self, inode: &Inode, offset: u64, len: usize) {
        if let Some(recorder) = self.records.recorder() {
            let end = offset.saturating_add(len as u64);
            recorder.file(inode.name_no.0, offset..end);
        }
    }

    /// Fills `buf` from `offset`; returns how many bytes the file had.
    ///
    /// # Errors
    /// As [`Image::read`].
    pub fn read_at(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let chunk = self.read(inode, offset, buf.len())?;
        match buf.split_at_mut_checked(chunk.len()) {
            Some((head, _)) => head.copy_from_slice(&chunk),
            None => return Err(Error::limit("read gave more than was asked for")),
        }
        Ok(chunk.len())
    }

    /// Visits the data and hole runs of a regular file that touch `offset ..`, in order, merged
    /// where adjacent.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn runs(
        &self,
        inode: &Inode,
        offset: u64,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        match inode.content {
            Some(content) => self.contents.runs(content, offset, visit),
            None => Ok(()),
        }
    }

    /// Drops the cached blocks that nobody asked for since the last call. Threads that read ahead
    /// call it every minute, but not for a cache of many images.
    pub fn rest(&self) {
        self.records.rest();
    }

    /// Drops every cached block and page, and forgets who reads in order.
    pub fn drop_caches(&self) {
        self.records.drop_caches();
        self.tree.drop_caches();
        self.contents.forget_readers();
    }

    /// Hits and misses of this image, not of its bases, and how full its cache is, which may be
    /// that of other images too.
    pub fn cache_counts(&self) -> CacheCounts {
        self.records.cache_counts()
    }

    /// Bytes of blocks of this image, not of its bases, that were decoded since it was opened, and
    /// bytes that recipes made.
    pub fn decoded_len(&self) -> ByteLen {
        ByteLen(self.records.decoded_len())
    }
}

/// A directory of an image whose place is known: what a walk saves a descent from the root with.
#[derive(Debug, Clone, Copy)]
pub struct OpenedDirectory(tree::DirectoryView);

/// Where the image begins that ends where `file` ends: its footer, which is last, tells its own
/// place in the image. The content of a regular file, if it has any.
fn content_of(inode: &Inode) -> Result<Option<ContentId>> {
    match inode.kind {
        FileKind::Regular => Ok(inode.content),
        kind => {
            let what = format!("{} is not a regular file", kind_name(kind));
            Err(Error::invalid(what))
        }
    }
}

fn find_start(file: &dyn ReadAt) -> Result<ByteOffset> {
    let bad = |offset, rule, what: String| Error::corrupt("footer", offset, rule, what);
    let Some(footer_at) = file.len().checked_sub(FOOTER_LEN as u64) else {
        let what = format!("expected {FOOTER_LEN} bytes, found {}", file.len());
        return Err(bad(0, "F-4.1", what));
    };
    let mut bytes = [0; FOOTER_LEN];
    file.read_exact_at(&mut bytes, footer_at)?;
    let told = FooterRecord::ref_from_bytes(&bytes).map_or(0, |r| r.footer_offset.get());
    let footer = Footer::parse(&bytes, told).map_err(|e| e.at_offset(footer_at))?;
    let Some(start) = footer_at.checked_sub(footer.footer_offset) else {
        let what = format!(
            "it lies at byte {} of the image, but at {footer_at} of the file: truncated at the front?",
            footer.footer_offset
        );
        return Err(bad(footer_at, "F-4.4", what));
    };
    let mut superblock = [0; SUPERBLOCK_LEN];
    file.read_exact_at(&mut superblock, start)?;
    SuperblockRecord::parse(&superblock).map_err(|e| e.at_offset(start))?;
    Ok(ByteOffset(start))
}

/// Reads and verifies the directory of the generation that `footer` ends.
fn open_directory(
    source: &dyn ReadAt,
    footer: &Footer,
    superblock_digest: &Digest,
) -> Result<Directory> {
    let directory = read_directory(source, footer)?;
    let same = directory.superblock_digest == *superblock_digest
        && directory.generation == footer.generation
        && directory.tree_digest == footer.tree_digest
        && directory.previous_footer == footer.previous_footer.unwrap_or(0);
    match same {
        true => Ok(directory),
        false => {
            let what = "superblock or footer differ from what the directory says of them";
            Err(Error::corrupt(
                "directory",
                footer.directory_offset,
                "F-7.1",
                what,
            ))
        }
    }
}

fn read_directory(source: &dyn ReadAt, footer: &Footer) -> Result<Directory> {
    let bad = |rule, what: String| Error::corrupt("directory", footer.directory_offset, rule, what);
    if footer.directory_len > DIRECTORY_LEN_MAX {
        return Err(Error::limit(format!(
            "directory of {} bytes",
            footer.directory_len
        )));
    }
    let mut bytes = vec![0; footer.directory_len as usize];
    source.read_exact_at(&mut bytes, footer.directory_offset)?;
    let digest = Digest::of(&bytes);
    if digest != footer.image_digest {
        return Err(bad(
            "F-4.5",
            format!(
                "image digest: expected {}, found {digest}",
                footer.image_digest
            ),
        ));
    }
    let (header, stored) = bytes.split_at_checked(HEADER_LEN).unwrap_or((&[], &[]));
    let record = RecordRef::parse_header(header, footer.directory_offset)?;
    let fits =
        record.record_type == RecordType::Directory && record.stored_len == stored.len() as u64;
    if !fits || record.digest != Digest::of(stored) {
        return Err(bad("F-4.6", "record header does not fit the footer".into()));
    }
    check_lens(&record).map_err(|e| e.at_offset(record.offset))?;
    let raw = weald_codec::Decoder::default()
        .decode(record.codec, stored, record.raw_len as usize, None)
        .map_err(|e| e.at_offset(record.offset))?;
    let directory = Directory::parse(&raw).map_err(|e| e.at_offset(record.offset))?;
    directory
        .check_fits(footer.directory_offset)
        .map_err(|e| e.at_offset(record.offset))?;
    Ok(directory)
}

fn summarize(
    footer: &Footer,
    directory: &Directory,
    records: &records::Records,
    tree: &tree::Tree,
    image_len: u64,
) -> Summary {
    Summary {
        image_digest: footer.image_digest,
        tree_digest: footer.tree_digest,
        generation: footer.generation,
        name_count: directory.name_count,
        entry_count: records.item_count(RecordType::Entries, 0),
        template_count: tree.template_count(),
        content_count: records.item_count(RecordType::Contents, 0),
        content_len: records.item_count(RecordType::Extents, 0),
        image_len,
        block_len_max: directory
            .streams
            .iter()
            .map(|s| s.block_len_max)
            .max()
            .unwrap_or(0),
    }
}
