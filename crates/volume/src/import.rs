//! A new volume with the files of an image.
//!
//! An image of the same store shares with the volume the blocks that a volume can decode. These are
//! blocks of ordinary and of incompressible data without a dictionary and without a history. All
//! other data is copied: programs (their blocks are filtered by their address), data that recipes
//! make, and data of base images.

use crate::create::{first_rows, root_batch};
use crate::index::BlockPlace;
use crate::layer::{ContentRange, RangeContent};
use crate::open_store::OpenStore;
use crate::options::{OpenOptions, VolumeOptions};
use crate::properties::is_property;
use crate::volume::Volume;
use hashbrown::HashMap;
use rustix::io::Errno;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use weald_format::container::{Codec, RecordType};
use weald_format::directory::Category;
use weald_format::limits::FILE_LEN_MAX;
use weald_format::pages;
use weald_format::store::{ImageMap, Part};
use weald_format::{BlockId, Error, ErrorKind, FileKind, InodeNo, ROOT_INODE, Timestamp};
use weald_image::{Image, Inode};
use weald_store::{CollectOptions, Store, StoreWriter, WriteOptions};
use weald_vfs::{Failure, Ino, Nanoseconds, NewInode, NewStat, Outcome, WritableFs};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Bytes that are copied at once.
const IMPORTED_AT_ONCE_LEN: u64 = 4 << 20;

/// Shared ranges that enter the volume in one change, which takes memory.
const SEGMENTS_AT_ONCE: usize = 4096;

/// The image that a volume is made of.
#[derive(Clone, Copy)]
pub struct ImportSource<'a> {
    /// The image.
    pub image: &'a Image,
    /// Its name in the store of the new volume, if it is there.
    pub name: Option<&'a str>,
}

/// Figures about a volume that was made of an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VolumeImport {
    /// Number of names, the root left out.
    pub name_count: u64,
    /// Bytes that lie in blocks of the image.
    pub shared_len: u64,
    /// Bytes that were copied.
    pub copied_len: u64,
}

/// Follows the making of a volume.
pub trait ImportObserver {
    /// Gets the figures so far; returns whether to go on.
    fn progress(&mut self, done: &VolumeImport) -> bool;

    /// Gets the path of a file that is left out whole, or of a directory that is with everything
    /// below it: the image is damaged there, or the volume cannot have it. An error ends the
    /// import.
    ///
    /// # Errors
    /// Its own.
    fn left_out(&mut self, path: &[u8], error: Error) -> Result<()>;
}

/// Why an entry was not made.
struct Refused {
    failure: Failure,
    /// The image is damaged there, or the volume cannot have the entry: others can still be made.
    is_local: bool,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        let is_local = failure.cause.is_none() && failure.errno == Errno::FBIG;
        Self { failure, is_local }
    }
}

/// The reason for an entry that the image could not give.
fn of_image(error: Error) -> Refused {
    let is_local = error.is_unreadable();
    let failure = error.into();
    Refused { failure, is_local }
}

/// Creates the volume `name` with the files of an image, without those that are damaged. `secret`,
/// `now` and `options` are as for [`crate::create`], except that the root directory is that of the
/// image.
///
/// # Errors
/// As [`crate::create`], and those of `observer`; `Corrupt` if the root of the image is damaged;
/// `Invalid` if the volume cannot have one of its names, or if `observer` ends the import. After an
/// error there is no volume.
pub fn create_from(
    store: &Store,
    name: &str,
    source: ImportSource<'_>,
    (options, secret, now): (&VolumeOptions, [u8; 16], Nanoseconds),
    observer: &mut dyn ImportObserver,
) -> Result<VolumeImport> {
    let writer_name = format!("process {} (weald volume create)", std::process::id());
    let mut writer = store.write(WriteOptions::new(writer_name.clone()))?;
    let (row, root) = first_rows(options, secret, now)?;
    let first = &|volume_no| root_batch(volume_no, &root, options.chunking);
    let shared = match source.name {
        Some(name) => SharedBlocks::of(source.image, &store.map(name)?)?,
        None => SharedBlocks::default(),
    };
    let (hidden, _) = writer.create_hidden_volume(name, row, first)?;
    let open_options = OpenOptions {
        background: false,
        writer_name,
        ..OpenOptions::default()
    };
    let opened = OpenStore::of_writer(store, writer, &open_options);
    let volume = Volume::open_row(&opened, &hidden, open_options)?;
    drop(opened);
    let mut import = Import {
        volume: &volume,
        image: source.image,
        shared,
        links: HashMap::new(),
        done: VolumeImport::default(),
        now,
    };
    let imported = import.tree(observer);
    let done = import.done;
    match imported.and_then(|()| volume.publish(name)) {
        Ok(()) => volume.close().map(|()| done),
        Err(error) => {
            drop(volume);
            // The error that the caller gets says more than one of the removal, which the next
            // writer completes.
            let _ = remove_unfinished(store);
            Err(error)
        }
    }
}

/// Opens the store again, which removes volumes without a name, and frees their space.
fn remove_unfinished(store: &Store) -> Result<()> {
    let writer_name = format!("process {} (weald volume create)", std::process::id());
    let mut writer: StoreWriter = store.write(WriteOptions::new(writer_name))?;
    let options = CollectOptions {
        copy_below_percent: 0,
        ..CollectOptions::default()
    };
    let check_cancelled = &mut |_: &_| ControlFlow::Continue(());
    writer.collect(&options, check_cancelled).map(drop)
}

/// A block of a stream: its first address, its length, and its number in the store if a volume can
/// refer to it.
#[derive(Debug, Clone, Copy)]
struct StreamBlock {
    start: u64,
    len: u64,
    id: Option<BlockId>,
}

/// The blocks of each stream of an image, in order.
#[derive(Debug, Default)]
struct SharedBlocks(Vec<Vec<StreamBlock>>);

impl SharedBlocks {
    fn of(image: &Image, map: &ImageMap) -> Result<Self> {
        let mut at = 0;
        let mut ids: HashMap<u64, BlockId> = HashMap::new();
        for part in &map.parts {
            if let Part::Block { id, .. } = part {
                ids.insert(at, *id);
            }
            at += part.len();
        }
        let mut streams = Vec::new();
        for (no, stream) in (0u8..).zip(&image.directory().streams) {
            let mut blocks = Vec::new();
            let is_plain = matches!(
                stream.category,
                Category::General | Category::Incompressible
            );
            let mut start = 0;
            image.each_record(RecordType::Data, no, &mut |record, _| {
                let decodes_alone = matches!(
                    record.codec,
                    Codec::None | Codec::Lz4 | Codec::Zstd | Codec::Xz | Codec::Brotli
                );
                blocks.push(StreamBlock {
                    start,
                    len: record.raw_len,
                    id: ids
                        .get(&record.offset)
                        .copied()
                        .filter(|_| is_plain && decodes_alone),
                });
                start += record.raw_len;
                Ok(())
            })?;
            streams.push(blocks);
        }
        Ok(Self(streams))
    }

    /// Splits `len` bytes of a stream from `address` on by blocks. `visit` gets the length of each
    /// part, and the places of those that a volume can share.
    fn each_part(
        &self,
        (stream, address, len): (u8, u64, u64),
        visit: &mut dyn FnMut(u64, Option<BlockPlace>),
    ) {
        let blocks = self
            .0
            .get(usize::from(stream))
            .map_or(&[][..], Vec::as_slice);
        let first = blocks.partition_point(|block| block.start + block.len <= address);
        let (mut at, end) = (address, address + len);
        for block in blocks.get(first..).unwrap_or_default() {
            if at >= end {
                return;
            }
            let part_end = end.min(block.start + block.len);
            let offset = (at - block.start) as u32;
            let place = block.id.map(|block| BlockPlace { block, offset });
            visit(part_end - at, place);
            at = part_end;
        }
        if at < end {
            visit(end - at, None);
        }
    }
}

/// A directory of the image whose entries are to come.
struct Pending {
    inode: Inode,
    to: Ino,
    /// The directory that holds it; `None` for the root.
    holder: Option<Ino>,
    /// Its place in the list of directories.
    place: usize,
}

/// The names of all directories so far, each with the place of its parent, for messages. Paths
/// would take memory by the square of the depth.
struct Directories(Vec<(usize, Vec<u8>)>);

impl Directories {
    /// Only the root, at place 0.
    fn new() -> Self {
        Self(vec![(0, Vec::new())])
    }

    /// Adds a directory. Returns its place.
    fn add(&mut self, parent: usize, name: &[u8]) -> usize {
        self.0.push((parent, name.to_vec()));
        self.0.len() - 1
    }

    /// The name of a directory.
    fn name(&self, place: usize) -> &[u8] {
        self.0.get(place).map_or(&[], |(_, name)| name)
    }

    /// The path of `name` in a directory; that of the directory itself for an empty one.
    fn path(&self, place: usize, name: &[u8]) -> Vec<u8> {
        let mut parts = vec![name];
        let mut at = place;
        while let Some((parent, name)) = self.0.get(at).filter(|(parent, _)| *parent < at) {
            parts.push(name);
            at = *parent;
        }
        if name.is_empty() {
            parts.remove(0);
        }
        let mut path = Vec::new();
        for part in parts.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        path
    }
}

struct Import<'a> {
    volume: &'a Volume,
    image: &'a Image,
    shared: SharedBlocks,
    /// Inodes with several names, by their number in the image.
    links: HashMap<InodeNo, Ino>,
    done: VolumeImport,
    now: Nanoseconds,
}

fn nanoseconds(time: Timestamp) -> Nanoseconds {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

impl Import<'_> {
    fn tree(&mut self, observer: &mut dyn ImportObserver) -> Result<()> {
        let root = self.image.inode(ROOT_INODE)?;
        let named = |failure| error_of(failure, b"/");
        self.root(&root).map_err(named)?;
        let mut directories = Directories::new();
        let mut pending = vec![Pending {
            inode: root,
            to: Ino::ROOT,
            holder: None,
            place: 0,
        }];
        while let Some(dir) = pending.pop() {
            let mut entries: Vec<(Vec<u8>, Inode)> = Vec::new();
            let read = self
                .image
                .read_dir(dir.inode.ino, 0, &mut |_, name, inode| {
                    entries.push((name.to_vec(), inode.clone()));
                    ControlFlow::Continue(())
                });
            if let Err(error) = read {
                let refused = of_image(error);
                let path = directories.path(dir.place, b"");
                let Some(holder) = dir.holder.filter(|_| refused.is_local) else {
                    return Err(error_of(refused.failure, &path));
                };
                let name = directories.name(dir.place);
                self.leave_out((holder, name), &path, refused, observer)?;
                self.done.name_count -= 1;
                continue;
            }
            for (name, inode) in entries {
                if !observer.progress(&self.done) {
                    return Err(Error::invalid("interrupted"));
                }
                let to = match self.entry(dir.to, &name, &inode) {
                    Ok(to) => to,
                    Err(refused) => {
                        let path = directories.path(dir.place, &name);
                        self.leave_out((dir.to, &name), &path, refused, observer)?;
                        continue;
                    }
                };
                self.done.name_count += 1;
                if inode.kind == FileKind::Directory {
                    let place = directories.add(dir.place, &name);
                    pending.push(Pending {
                        inode,
                        to,
                        holder: Some(dir.to),
                        place,
                    });
                }
            }
            let made = self.properties(dir.to, &dir.inode).and_then(|()| {
                let times = self.times(&dir.inode);
                Ok(self.volume.set_stat(dir.to, &times, self.now)?)
            });
            made.map_err(|refused| error_of(refused.failure, &directories.path(dir.place, b"")))?;
        }
        Ok(())
    }

    /// Removes what was made of `name` in `dir`, and tells that it is left out, or returns why the
    /// import ends.
    fn leave_out(
        &mut self,
        (dir, name): (Ino, &[u8]),
        path: &[u8],
        refused: Refused,
        observer: &mut dyn ImportObserver,
    ) -> Result<()> {
        if !refused.is_local {
            return Err(error_of(refused.failure, path));
        }
        let error = match refused.failure {
            Failure {
                errno: Errno::FBIG, ..
            } => Error::limit(format!(
                "a file of a volume has at most {FILE_LEN_MAX} bytes"
            )),
            Failure { cause, errno } => cause.unwrap_or_else(|| Error::invalid(errno.to_string())),
        };
        let removed = match self.volume.lookup(dir, name) {
            Ok(found) if found.kind == FileKind::Directory => {
                self.volume.rmdir(dir, name, self.now).map(Some)
            }
            Ok(found) => {
                self.links.retain(|_, ino| *ino != found.ino);
                self.volume.unlink(dir, name, self.now).map(Some)
            }
            Err(failure) if failure.errno == Errno::NOENT => Ok(None),
            Err(failure) => Err(failure),
        };
        let dropped = removed.and_then(|gone| match gone {
            Some(gone) => self.volume.forget(gone.ino),
            None => Ok(()),
        });
        dropped.map_err(|failure| error_of(failure, path))?;
        observer.left_out(path, error)
    }

    fn times(&self, inode: &Inode) -> NewStat {
        let mtime = nanoseconds(inode.times.mtime);
        NewStat {
            mtime: Some(mtime),
            atime: Some(inode.times.atime.map_or(mtime, nanoseconds)),
            ctime: inode.times.ctime.map(nanoseconds),
            ..NewStat::default()
        }
    }

    fn root(&self, root: &Inode) -> Outcome<()> {
        let new = NewStat {
            permissions: Some(root.attributes.permissions),
            uid: Some(root.attributes.uid),
            gid: Some(root.attributes.gid),
            ..NewStat::default()
        };
        self.volume.set_stat(Ino::ROOT, &new, self.now)?;
        for xattr in self
            .image
            .xattrs(root)?
            .iter()
            .filter(|xattr| !is_property(&xattr.name))
        {
            let mode = weald_vfs::XattrMode::Set;
            self.volume
                .set_xattr(Ino::ROOT, &xattr.name, &xattr.value, mode, self.now)?;
        }
        Ok(())
    }

    /// Creates one name. Returns its inode.
    fn entry(&mut self, dir: Ino, name: &[u8], inode: &Inode) -> Result<Ino, Refused> {
        let has_links = inode.nlink > 1 && inode.kind != FileKind::Directory;
        if has_links && let Some(known) = self.links.get(&inode.ino) {
            let ctime = self.volume.stat(*known)?.ctime;
            return Ok(self.volume.link(*known, dir, name, ctime)?.ino);
        }
        let xattrs = self.image.xattrs(inode).map_err(of_image)?;
        let xattrs: Vec<(&[u8], &[u8])> = xattrs
            .iter()
            .filter(|xattr| !is_property(&xattr.name))
            .map(|xattr| (xattr.name.as_slice(), xattr.value.as_slice()))
            .collect();
        let target = match inode.kind {
            FileKind::Symlink => self.image.read_link(inode).map_err(of_image)?,
            _ => Vec::new(),
        };
        let (major, minor) = (
            inode.attributes.rdev >> 32,
            inode.attributes.rdev & 0xffff_ffff,
        );
        let new = NewInode {
            kind: inode.kind,
            permissions: inode.attributes.permissions,
            uid: inode.attributes.uid,
            gid: inode.attributes.gid,
            // `new_encode_dev` in the kernel's `include/linux/kdev_t.h`.
            rdev: (minor & 0xff | major << 8 | (minor & !0xff) << 12) as u32,
            target: &target,
            xattrs: &xattrs,
        };
        let btime = inode.times.btime.map_or(self.now, nanoseconds);
        let ino = self.volume.create(dir, name, &new, btime)?.ino;
        if has_links {
            self.links.insert(inode.ino, ino);
        }
        if inode.kind == FileKind::Regular {
            self.properties(ino, inode)?;
            self.content(ino, inode)?;
        }
        let times = self.times(inode);
        self.volume.set_stat(ino, &times, self.now)?;
        Ok(ino)
    }

    /// Sets the properties that the image has for an inode. Those of a directory come after its
    /// entries, which would inherit them.
    fn properties(&self, ino: Ino, inode: &Inode) -> Result<(), Refused> {
        if inode.xattr_set.is_none() {
            return Ok(());
        }
        for xattr in self
            .image
            .xattrs(inode)
            .map_err(of_image)?
            .iter()
            .filter(|xattr| is_property(&xattr.name))
        {
            let mode = weald_vfs::XattrMode::Set;
            let set = self
                .volume
                .set_xattr(ino, &xattr.name, &xattr.value, mode, self.now);
            set.map_err(|failure| {
                let name = weald_vfs::shown(&xattr.name);
                let what = format!("the volume refuses the attribute {name} of the image");
                Failure::from(Error::invalid(what).with_source(error_of(failure, &xattr.value)))
            })?;
        }
        Ok(())
    }

    fn content(&mut self, ino: Ino, inode: &Inode) -> Result<(), Refused> {
        let Some(content) = inode.content else {
            return Ok(());
        };
        let size = NewStat {
            size: Some(inode.size.0),
            ..NewStat::default()
        };
        self.volume.set_stat(ino, &size, self.now)?;
        // Ranges in order; those without a block are copied.
        let mut ranges: Vec<(Range<u64>, Option<BlockPlace>)> = Vec::new();
        let mut at = 0;
        self.image
            .each_extent_of(content, &mut |extent| {
                let pages::Source::Stream { stream, address } = extent.source else {
                    at += extent.len;
                    return Ok(());
                };
                let place = (stream, address, extent.len);
                self.shared.each_part(place, &mut |len, block| {
                    match ranges.last_mut() {
                        Some((last, None)) if block.is_none() && last.end == at => last.end += len,
                        _ => ranges.push((at..at + len, block)),
                    }
                    at += len;
                });
                Ok(())
            })
            .map_err(of_image)?;
        let mut segments = Vec::new();
        for (range, block) in ranges {
            match block {
                Some(BlockPlace { block, offset }) => {
                    self.done.shared_len += range.end - range.start;
                    let source = RangeContent::Block(block, offset);
                    segments.push(ContentRange { range, source });
                }
                None => self.copy(ino, inode, range)?,
            }
        }
        for run in segments.chunk_by(|a: &ContentRange, b| a.range.end == b.range.start) {
            for part in run.chunks(SEGMENTS_AT_ONCE) {
                self.volume.put_segments(ino, part.to_vec(), self.now)?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, ino: Ino, inode: &Inode, range: Range<u64>) -> Result<(), Refused> {
        let mut at = range.start;
        while at < range.end {
            // Whole windows stay whole.
            let end = range
                .end
                .min((at / IMPORTED_AT_ONCE_LEN + 1) * IMPORTED_AT_ONCE_LEN);
            let bytes = self.image.read(inode, at, (end - at) as usize);
            let bytes = bytes.map_err(of_image)?;
            let bytes: Arc<[u8]> = Arc::from(&bytes[..]);
            if bytes.len() as u64 != end - at {
                let what = "the image has less content than it says";
                return Err(of_image(Error::corrupt("content", 0, "F-10.3", what)));
            }
            let segment = ContentRange {
                range: at..end,
                source: RangeContent::Bytes(bytes, 0),
            };
            self.volume.put_segments(ino, vec![segment], self.now)?;
            self.done.copied_len += end - at;
            at = end;
        }
        Ok(())
    }
}

/// The error of an operation on `path`.
fn error_of(failure: Failure, path: &[u8]) -> Error {
    let shown = weald_vfs::shown(path);
    let error = match (failure.cause, failure.errno) {
        (Some(cause), _) => cause,
        (None, Errno::EXIST) => Error::invalid(
            "the volume would not tell this name from another one of its directory: leave out \
             --case-insensitive",
        ),
        (None, Errno::NOSPC) => {
            Error::new(ErrorKind::Full, "no space left on the disk of the store")
        }
        (None, errno) => Error::invalid(errno.to_string()),
    };
    error.context(shown)
}
