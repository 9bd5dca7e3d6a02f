//! An open image: its tree and its files.

use crate::cache::counts::CacheCounts;
use crate::cache::prefetch_pool::PrefetchTarget;
use crate::cache::shared::SharedCache;
use crate::cached_records::records::{BaseStreams, CachedRecords};
use crate::open::bases::{self, BasePlace};
use crate::open::directory::{find_start, open_directory};
use crate::open::generations;
use crate::open::mended::Mended;
use crate::open::options::{ImageStart, OpenOptions};
use crate::read::contents::{Client, Contents, FileBytes};
use crate::read::decode_ahead::{DecodeJob, DecodePlanner};
use crate::read::extent_map::{ExtentMap, Run};
use crate::records::page::Page;
use crate::tree::Tree;
use crate::tree::inode::{Inode, VisitEntry, kind_name};
use crate::tree::view::DirectoryView;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weald_format::container::{FOOTER_LEN, Footer, RecordType};
use weald_format::directory::{Base, Directory};
use weald_format::entries::EntryBlock;
use weald_format::pages::{Link, Template};
use weald_format::{
    Attributes, ByteLen, ContentId, Digest, Error, FileKind, InodeNo, Result, XattrSet,
};
use weald_io::{FileSource, ReadAt};

/// An open image. Cheap to share (`Arc`), usable from many threads.
pub struct Image {
    pub(crate) footer: Footer,
    pub(crate) directory: Arc<Directory>,
    pub(crate) records: Arc<CachedRecords>,
    pub(crate) tree: Tree,
    pub(crate) map: Arc<ExtentMap>,
    pub(crate) contents: Arc<Contents>,
    pub(crate) base_streams: BaseStreams<Self>,
    pub(crate) summary: Summary,
    pub(crate) mended: Arc<Mended>,
}

/// An open directory: its position in the tree, which saves a walk the descent from the root.
#[derive(Debug, Clone, Copy)]
pub struct OpenedDirectory(DirectoryView);

/// Called with the block of an entry and the index of the entry in the block.
pub type VisitEntryBlock<'a> = dyn FnMut(&EntryBlock, usize) -> Result<()> + 'a;

/// Numbers about an open image that are known without a read.
#[derive(Debug, Clone)]
pub struct Summary {
    /// Digest of the directory record, which authenticates everything in the image.
    pub image_digest: Digest,
    /// Digest of names, attributes and contents, independent of codec, block size and order.
    pub tree_digest: Digest,
    /// Generation of this footer, from 1.
    pub generation: u64,
    /// Names in the tree, that of the root included.
    pub name_count: u64,
    /// Stored entries: those of distinct directories.
    pub entry_count: u64,
    /// Distinct directories.
    pub template_count: u64,
    /// Distinct non-empty contents.
    pub content_count: u64,
    /// Bytes of all distinct contents, holes included.
    pub content_len: u64,
    /// Bytes of the image file.
    pub image_len: u64,
    /// Bytes of the largest decoded block: the most that one read can need at once.
    pub block_len_max: u64,
}

impl Image {
    /// Opens an image from any storage.
    ///
    /// # Errors
    /// `Corrupt`, also if a base image is not found; `Unsupported`, `Limit`, `Io`; `Invalid` if the
    /// image digest is not `expected_digest`.
    /// # Cost
    /// Reads the superblock, the footer and the directory, also those of base images.
    pub fn open(source: Arc<dyn ReadAt>, options: &OpenOptions) -> Result<Self> {
        Self::open_at_depth(source, options, 0)
    }

    /// Opens an image that is a base image of `depth` others, one on another.
    pub(crate) fn open_at_depth(
        source: Arc<dyn ReadAt>,
        options: &OpenOptions,
        depth: usize,
    ) -> Result<Self> {
        let mended = Arc::new(Mended::new(source)?);
        let source: Arc<dyn ReadAt> = mended.clone();
        let (superblock_digest, footer) = generations::open_footer(&*source)?;
        let footer = generations::choose(&*source, footer, options)?;
        let image_len = footer.footer_offset.saturating_add(FOOTER_LEN as u64);
        let directory = Arc::new(open_directory(&*source, &footer, &superblock_digest)?);
        let cache = match &options.cache {
            Some(cache) => cache.clone(),
            None => SharedCache::for_one_image(options.cache_len),
        };
        let base_options = OpenOptions {
            cache: Some(cache.clone()),
            ..options.clone()
        };
        let bases = Self::open_bases(&directory, &base_options, depth)?;
        let base_streams = bases::streams(&directory, &bases);
        let tag = cache.tag(&footer.image_digest, footer.generation);
        let base_records = parts_of(&base_streams, |image| image.records.clone());
        let shared_tag = options.shared_tag(&cache);
        let mut records =
            CachedRecords::new(source, directory.clone(), base_records, tag, shared_tag);
        records.decode_whole_blocks(options.reads_everything);
        let records = Arc::new(records);
        let tree = Tree::new(records.clone(), directory.name_count)?;
        let threads = options.prefetch_threads;
        let base_maps = parts_of(&base_streams, |image| image.map.clone());
        let map = Arc::new(ExtentMap::new(records.clone(), base_maps));
        let base_contents = parts_of(&base_streams, |image| image.contents.clone());
        let contents = Contents::new(
            map.clone(),
            records.clone(),
            base_contents,
            &directory,
            threads,
        );
        let summary = summarize(&footer, &directory, &records, &tree, image_len);
        Ok(Self {
            footer,
            directory,
            records,
            tree,
            map,
            contents,
            base_streams,
            summary,
            mended,
        })
    }

    /// Opens the image that begins at `start` (usually byte 0) of the file at `path`, or the image
    /// of a store that `path` names as `STORE:NAME`, or the image at the URL `path` (the last two
    /// with the feature `places`). Base images are searched in the directory of the file, or in the
    /// store, first.
    ///
    /// # Errors
    /// As [`Image::open`]; `Corrupt` if [`ImageStart::Auto`] finds no image; for an image of a
    /// store also those of [`Image::open_stored`].
    pub fn open_path(
        path: &Path,
        start: impl Into<ImageStart>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let start = start.into();
        #[cfg(feature = "places")]
        if let Some(opened) = Self::open_elsewhere(path, start, options) {
            return opened;
        }
        let file = weald_io::open_to_read(path)?;
        Self::open_file(file, path, start, options)
    }

    /// As [`Image::open_path`], of a file that is open already. Only base images are looked up by
    /// `path`: in its directory first.
    ///
    /// # Errors
    /// As [`Image::open_path`].
    pub fn open_file(
        file: File,
        path: &Path,
        start: impl Into<ImageStart>,
        options: &OpenOptions,
    ) -> Result<Self> {
        let start = match start.into() {
            ImageStart::At(offset) => offset,
            ImageStart::Auto => {
                let twin = file.try_clone();
                let twin = twin.map_err(|e| Error::io(path.display().to_string(), e))?;
                let found = find_start(&FileSource::new(twin, path, 0)?);
                found.map_err(|e| e.context("find the image").context(path.display()))?
            }
        };
        let source = FileSource::new(file, path, start.0)?;
        Self::open_beside(path, source, options, 0)
    }

    /// Opens the base images of an image that is itself a base image of `depth` others.
    fn open_bases(
        directory: &Directory,
        options: &OpenOptions,
        depth: usize,
    ) -> Result<Vec<Arc<Self>>> {
        bases::check_depth(directory, depth)?;
        let bases = directory.bases.iter();
        bases
            .map(|base| Self::open_base(base, options, depth))
            .collect()
    }

    fn open_base(base: &Base, options: &OpenOptions, depth: usize) -> Result<Arc<Self>> {
        let found = bases::find(base, options)?;
        let options = OpenOptions {
            expected_digest: Some(base.image_digest),
            generation: None,
            ..options.clone()
        };
        let depth = depth.saturating_add(1);
        let (image, shown) = match found {
            BasePlace::File(path) => {
                let source = FileSource::open(&path, 0)?;
                let image = Self::open_beside(&path, source, &options, depth)?;
                (image, path.display().to_string())
            }
            #[cfg(feature = "places")]
            BasePlace::Remote(source) => {
                let shown = source.location().shown();
                (Self::open_beside_url(*source, &options, depth)?, shown)
            }
            #[cfg(feature = "places")]
            BasePlace::Stored(source) => {
                let shown = source.shown();
                let options = OpenOptions {
                    store: Some(source.store().clone()),
                    ..options
                };
                let image = Self::open_at_depth(Arc::new(source), &options, depth);
                (image.map_err(|e| e.context(&shown))?, shown)
            }
        };
        bases::check_stream_count(base, &image.directory).map_err(|e| e.context(shown))?;
        Ok(Arc::new(image))
    }

    /// Opens the image in `source`, the file at `path`; base images are searched beside it first.
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

    /// Whether anything was read from second copies, because the originals are damaged.
    pub fn is_mended(&self) -> bool {
        self.mended.is_used()
    }

    /// Numbers about the image that are known without a read.
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

    /// The inode with number `ino`. A `name_no` gives the inode of that name.
    ///
    /// # Errors
    /// `NotFound` if the image does not have the number; `Io`, `Corrupt`.
    /// # Cost
    /// A descent from the root: O(depth · log fan-out) if the templates on the way are cached.
    pub fn inode(&self, ino: InodeNo) -> Result<Inode> {
        self.tree.inode(ino.0)
    }

    /// The directory that holds the name `ino`. The parent of the root is the root.
    ///
    /// # Errors
    /// `NotFound` if the image does not have the number; `Io`, `Corrupt`.
    pub fn parent(&self, ino: InodeNo) -> Result<InodeNo> {
        Ok(InodeNo(self.tree.holder_of(ino.0)?.no))
    }

    /// The entry `name` of directory `dir`, or `None` if there is none.
    ///
    /// # Errors
    /// `Invalid` if `dir` is not a directory; `Io`, `Corrupt`.
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<Inode>> {
        self.tree.lookup(&self.tree.directory(dir.0)?, name)
    }

    /// Visits the entries of `dir` in byte order of their names, without `.` and `..`, from the
    /// 0-based index `start` on. `visit` gets index, name and inode and stops the walk with
    /// `Break`.
    ///
    /// # Errors
    /// `Invalid` if `dir` is not a directory; `Io`, `Corrupt`.
    pub fn read_dir(&self, dir: InodeNo, start: u64, visit: &mut VisitEntry<'_>) -> Result<()> {
        self.tree
            .read_dir(&self.tree.directory(dir.0)?, start, visit)
    }

    /// Opens the directory `dir`.
    ///
    /// # Errors
    /// `Invalid` if `dir` is not a directory; `Io`, `Corrupt`.
    /// # Cost
    /// A descent from the root, as [`Image::inode`], unless its position is cached.
    pub fn open_directory(&self, dir: InodeNo) -> Result<OpenedDirectory> {
        self.tree.directory(dir.0).map(OpenedDirectory)
    }

    /// Opens the directory `dir`, which is a sub-directory of `parent`, without a descent.
    ///
    /// # Errors
    /// `Corrupt` if it is not a sub-directory of `parent`; `Io`.
    pub fn open_directory_in(
        &self,
        parent: &OpenedDirectory,
        dir: InodeNo,
    ) -> Result<OpenedDirectory> {
        let opened = self.tree.directory_in(&parent.0, dir.0);
        opened.map(OpenedDirectory)
    }

    /// The same as [`Image::read_dir`], for an open directory.
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

    /// Number of names below `inode` at any depth; 0 if it is not a directory.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    /// # Cost
    /// Reads one page.
    pub fn names_below(&self, inode: &Inode) -> Result<u64> {
        match inode.template {
            Some(id) => Ok(self.tree.template(id.0)?.subtree_count),
            None => Ok(0),
        }
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// `Invalid` if the inode is not a symlink; `Io`, `Corrupt`.
    pub fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.tree.target(inode.entry)
    }

    /// The extended attributes of an inode, which may be none.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn xattrs(&self, inode: &Inode) -> Result<Arc<XattrSet>> {
        match inode.xattr_set {
            Some(id) => self.tree.xattrs(id),
            None => Ok(Arc::default()),
        }
    }

    /// Attributes number `id`.
    ///
    /// # Errors
    /// `Corrupt` if there are none; `Io`.
    pub(crate) fn attributes(&self, id: u64) -> Result<Attributes> {
        let found = self.records.record_of_item(RecordType::Attributes, 0, id)?;
        let index = id.saturating_sub(found.first_item) as usize;
        match &*self.records.page(&found)? {
            Page::Attributes(items) => items.get(index).copied(),
            _ => None,
        }
        .ok_or_else(|| Error::corrupt("tree", 0, "F-12.2", format!("no attributes {id}")))
    }

    /// The whole link table.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(crate) fn all_links(&self) -> Result<Vec<Link>> {
        let mut links = Vec::new();
        self.records.each_page(RecordType::Links, &mut |page| {
            if let Page::Links(page) = page {
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

    /// Up to `len` bytes of a regular file from `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// `Invalid` if the inode is not a regular file; `Io`, `Corrupt`.
    /// # Cost
    /// Copies the bytes only if the range spans several blocks or holes.
    pub fn read(&self, inode: &Inode, offset: u64, len: usize) -> Result<FileBytes> {
        let Some(content) = content_of(inode)? else {
            return Ok(FileBytes::empty());
        };
        let bytes = self.contents.read(content, offset, len)?;
        self.note_read(inode, offset, bytes.len());
        Ok(bytes)
    }

    /// The same bytes for the kernel: in several consecutive buffers, none of them empty, if that
    /// saves a copy. For large requests the prefetch is left to the kernel's own readahead.
    ///
    /// # Errors
    /// As [`Image::read`].
    pub fn read_vectored(&self, inode: &Inode, offset: u64, len: usize) -> Result<Vec<FileBytes>> {
        let Some(content) = content_of(inode)? else {
            return Ok(Vec::new());
        };
        let buffers = self
            .contents
            .read_vectored(content, offset, len, Client::Kernel)?;
        self.note_read(inode, offset, buffers.iter().map(|b| b.len()).sum());
        Ok(buffers)
    }

    /// Visits the blocks and recipes that have bytes of the file `inode` and that `planner` has not
    /// planned yet, until they have `len_max` bytes.
    ///
    /// # Errors
    /// `Invalid` if the inode is not a regular file; `Io`, `Corrupt`.
    /// # Cost
    /// Visits the extents of the file.
    pub fn plan_decoding(
        &self,
        inode: &Inode,
        planner: &mut DecodePlanner,
        len_max: u64,
        visit: &mut dyn FnMut(DecodeJob),
    ) -> Result<()> {
        match content_of(inode)? {
            Some(content) => planner.plan(&self.map, content, len_max, visit),
            None => Ok(()),
        }
    }

    /// Decodes what `job` says into the cache. Ignores failures: the reader meets them again and
    /// reports them.
    pub fn decode_ahead(&self, job: &DecodeJob) {
        self.contents.decode_ahead(job.stream, job.address, job.len);
    }

    fn note_read(&self, inode: &Inode, offset: u64, len: usize) {
        if let Some(recorder) = self.records.recorder() {
            let end = offset.saturating_add(len as u64);
            recorder.file(inode.name_no.0, offset..end);
        }
    }

    /// Fills `buf` with the bytes from `offset` on; returns the number of bytes read, which is less
    /// than the length of `buf` only at the end of the file.
    ///
    /// # Errors
    /// As [`Image::read`].
    pub fn read_at(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let bytes = self.read(inode, offset, buf.len())?;
        match buf.split_at_mut_checked(bytes.len()) {
            Some((head, _)) => head.copy_from_slice(&bytes),
            None => {
                return Err(Error::limit(
                    "a read returned more bytes than were requested",
                ));
            }
        }
        Ok(bytes.len())
    }

    /// Visits the data runs and holes of a regular file in order, from `offset` on. Adjacent runs
    /// of the same kind are merged.
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
            Some(content) => self.map.runs(content, offset, visit),
            None => Ok(()),
        }
    }

    /// Evicts the cached blocks that were not requested since the last call. For a private cache,
    /// an idle prefetch thread does so every minute; for a cache of many images its owner does
    /// ([`crate::SharedCache::evict_idle`]).
    pub fn evict_idle_blocks(&self) {
        self.records.evict_idle_blocks();
    }

    /// Removes all blocks and pages of the image from the cache and forgets the access patterns of
    /// its readers.
    pub fn drop_caches(&self) {
        self.records.drop_caches();
        self.tree.drop_caches();
        self.contents.forget_readers();
    }

    /// Hits and misses of this image without its base images, and limit and use of its cache, which
    /// other images may share.
    pub fn cache_counts(&self) -> CacheCounts {
        self.records.cache_counts()
    }

    /// Bytes of blocks that were decoded since the image was opened, and bytes that recipes made;
    /// base images do not count.
    pub fn decoded_len(&self) -> ByteLen {
        ByteLen(self.records.decoded_len())
    }

    /// Bytes of a content, holes included.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, also if there is no such content.
    pub fn content_len(&self, id: ContentId) -> Result<u64> {
        self.map.range_of(id).map(|(_, len)| len)
    }

    /// As [`Image::runs`], for a whole content.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn content_runs(
        &self,
        id: ContentId,
        visit: &mut dyn FnMut(Run) -> ControlFlow<()>,
    ) -> Result<()> {
        self.map.runs(id, 0, visit)
    }

    /// Visits the entries of a template in order.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, and those of `visit`.
    pub fn each_entry_of(
        &self,
        template: &Template,
        visit: &mut VisitEntryBlock<'_>,
    ) -> Result<()> {
        let start = template.entry_start;
        let end = start.saturating_add(template.entry_count);
        self.tree.each_entry(start, end, &mut |_, block, place| {
            visit(block, place)?;
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Ends reads of this image and its base images that wait for a server, now and from now on:
    /// the image is about to be closed.
    pub fn stop_waiting(&self) {
        self.records.stop_waiting();
        for base in self.bases() {
            base.stop_waiting();
        }
    }

    /// Whether contents of this image lie in base images.
    pub fn has_bases(&self) -> bool {
        self.base_streams.iter().any(Option::is_some)
    }

    /// The base images to which streams of this image refer, each once.
    pub(crate) fn bases(&self) -> Vec<Arc<Self>> {
        let mut bases: Vec<Arc<Self>> = Vec::new();
        for (image, _) in self.base_streams.iter().flatten() {
            if !bases.iter().any(|known| Arc::ptr_eq(known, image)) {
                bases.push(image.clone());
            }
        }
        bases
    }
}

/// The content of a regular file, if it is not empty.
pub(crate) fn content_of(inode: &Inode) -> Result<Option<ContentId>> {
    match inode.kind {
        FileKind::Regular => Ok(inode.content),
        kind => {
            let what = format!("{} is not a regular file", kind_name(kind));
            Err(Error::invalid(what))
        }
    }
}

/// One part of each base image in `streams`.
fn parts_of<T>(streams: &BaseStreams<Image>, part: impl Fn(&Image) -> Arc<T>) -> BaseStreams<T> {
    let part_of = |(image, stream): &(Arc<Image>, u8)| (part(image), *stream);
    streams.iter().map(|s| s.as_ref().map(part_of)).collect()
}

fn summarize(
    footer: &Footer,
    directory: &Directory,
    records: &CachedRecords,
    tree: &Tree,
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
