//! An image of a tree that comes as a stream: no directory on disk, and nothing kept of what has
//! passed.
//!
//! First the source hands over its contents, then its tree, directory by directory: a directory
//! comes whole, before those in it. What is held are the directories on the way to the one that
//! comes, so a tree may have any number of entries.

mod contents;
mod tree;
mod walk;

use crate::emit::Emitted;
use crate::image_writer::{ImageWriter, Sink};
use crate::metadata::MetadataWriter;
use crate::options::BuildOptions;
use crate::plan::{self, Plan, TreeSize};
use crate::report::{Outcome, StoredLens};
use crate::watch::{Progress, Report, Stage, Watch};
use contents::{Stored, write_contents};
use std::ops::Range;
use std::path::Path;
use std::time::Instant;
use tree::{Rules, write_tree};
use weald_format::pages::Link;
use weald_format::{
    Attributes, ContentId, Error, ErrorKind, FileKind, Result, Timestamp, XattrSet,
};
use weald_io::OutputFile;

pub use crate::pipeline::spool_dir;
pub use crate::tree_writer::LinkInfo;

/// Entries between two looks at the clock.
const TELL_COUNT: u64 = 1 << 16;

/// A tree that comes as a stream.
pub trait TreeSource {
    /// What is known of it. Asked once before the contents, and once more when they have passed:
    /// then it must be right.
    fn size(&self) -> StreamSize;

    /// The root directory. Asked for when the contents have passed.
    ///
    /// # Errors
    /// Its own.
    fn root(&self) -> Result<StreamRoot>;

    /// Hands every content over; the source remembers the numbers that it gets for them. Equal
    /// contents get one number.
    ///
    /// # Errors
    /// Its own, and those of `store`.
    fn contents(&mut self, store: &mut dyn ContentStore) -> Result<()>;

    /// Hands the tree over: the root's entries first, then for each directory among them in turn,
    /// its entries, and so on. May be asked for more than once, and ends early where the sink says
    /// so.
    ///
    /// # Errors
    /// Its own, and those of `sink`.
    fn tree(&mut self, sink: &mut dyn TreeSink) -> Result<()>;

    /// Hands the tree over as a walk, depth first, and tells true; or false where it comes by
    /// [`TreeSource::tree`]. All entries of a walk have one mtime, and no inode has two names.
    ///
    /// # Errors
    /// Its own, and those of `sink`.
    fn walk(&mut self, sink: &mut dyn WalkSink) -> Result<bool> {
        let _ = sink;
        Ok(false)
    }

    /// Hands over every name of an inode whose names lie in several directories, in the order of
    /// their numbers. The root has number 1; then names count in the order in which
    /// [`TreeSource::tree`] hands them over.
    ///
    /// # Errors
    /// Its own, and those of `sink`.
    fn links(&mut self, sink: &mut dyn FnMut(&Link) -> Result<()>) -> Result<()> {
        let _ = sink;
        Ok(())
    }
}

/// The root directory of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StreamRoot {
    /// Permissions and owner.
    pub attributes: Attributes,
    /// mtime.
    pub mtime: Timestamp,
    /// Extended attributes.
    pub xattrs: XattrSet,
}

impl StreamRoot {
    fn entry(&self) -> StreamEntry<'_> {
        StreamEntry {
            name: b"",
            kind: FileKind::Directory,
            attributes: self.attributes,
            mtime: self.mtime,
            xattrs: Some(&self.xattrs).filter(|set| !set.is_empty()),
            content: None,
            target: b"",
            link: LinkInfo::Single,
        }
    }
}

/// What is known of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamSize {
    /// Entries; 0 where nobody knows.
    pub entry_count: u64,
    /// Bytes of data in files; `None` where nobody knows.
    pub data_len: Option<u64>,
    /// Most entries of one directory.
    pub directory_count_max: u64,
    /// Most directories in each other.
    pub depth: u64,
    /// Bytes of memory that the source itself may hold.
    pub memory_len: u64,
    /// All entries have one mtime, so that nobody need try where mtimes take less.
    pub has_one_mtime: bool,
    /// No content will come, so that packing them needs no memory.
    pub has_no_contents: bool,
}

/// A content that can be read more than once.
pub trait StreamBody {
    /// Bytes, holes included; above 0.
    fn content_len(&self) -> u64;

    /// Where data lies, in order and not touching each other; `None` where there are no holes.
    fn runs(&self) -> Option<Vec<Range<u64>>>;

    /// Fills `out` with the bytes from `start` on.
    ///
    /// # Errors
    /// `Io`.
    fn read(&self, start: u64, out: &mut [u8]) -> Result<()>;
}

/// Takes contents.
pub trait ContentStore {
    /// Stores a content, unless it is there, and tells its number.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`; `Invalid` where the build was interrupted.
    fn store(&mut self, body: &dyn StreamBody) -> Result<ContentId>;
}

/// Takes the tree.
pub trait TreeSink {
    /// The entries of the next directory, names in byte order. Returns whether more is wanted.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`; `Invalid` for names out of order, and where the build was
    /// interrupted.
    fn directory(&mut self, entries: &[StreamEntry<'_>]) -> Result<bool>;
}

/// Takes the tree as a walk: the root is open; of each directory the entries come in byte order of
/// their names, each subdirectory in its place.
pub trait WalkSink {
    /// An entry of the open directory that is no directory itself.
    ///
    /// # Errors
    /// `Io`, `Full`; `Limit` where the directories on the way take more memory than there is;
    /// `Invalid` for names out of order, and where the build was interrupted.
    fn entry(&mut self, entry: &StreamEntry<'_>) -> Result<()>;

    /// Opens a directory in the one that is open.
    fn enter(&mut self);

    /// Closes the open directory; `entry` is its own.
    ///
    /// # Errors
    /// As [`WalkSink::entry`].
    fn leave(&mut self, entry: &StreamEntry<'_>) -> Result<()>;
}

/// An entry of a directory.
#[derive(Debug, Clone, Copy)]
pub struct StreamEntry<'a> {
    /// Name.
    pub name: &'a [u8],
    /// What it is.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// mtime.
    pub mtime: Timestamp,
    /// Extended attributes.
    pub xattrs: Option<&'a XattrSet>,
    /// Of a regular file its content, unless it is empty.
    pub content: Option<ContentId>,
    /// Of a symlink its target; else empty.
    pub target: &'a [u8],
    /// Whether it shares its inode with other names.
    pub link: LinkInfo,
}

/// Builds an image of `source` at `target`, which appears only when complete.
///
/// # Errors
/// As [`crate::build_image`], and those of the source. `Unsupported` for appending, and for bases.
/// # Cost
/// One pass over contents (two over those of more than 4 MiB), one over the tree, and up to 2^20
/// entries of it once more.
pub fn build_stream(
    source: &mut dyn TreeSource,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    watch: &dyn Watch,
) -> Result<Report> {
    options.validate()?;
    if options.append || !options.bases.is_empty() {
        let what = "a stream cannot be appended, or lie on a base";
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    if !overwrite {
        weald_io::refuse_existing(target)?;
    }
    let size = source.size();
    let names_alone;
    let options = match size.has_no_contents {
        true => {
            names_alone = options.without_contents();
            &names_alone
        }
        false => options,
    };
    let cpu_count = std::thread::available_parallelism().map_or(1, |n| n.get());
    let plan = Plan::new(options, cpu_count, &tree_size(&size), size.memory_len)?;
    plan.tell(watch);
    let out = OutputFile::create(target, options.target_kind)?;
    let mut image = ImageWriter::begin(Sink::File(out))?;
    let mut metadata = MetadataWriter::new(options.metadata_level);
    let mut teller = Teller::new(watch, &size);
    let stored = write_contents(
        source,
        &mut image,
        &mut metadata,
        &plan,
        options,
        target,
        &mut teller,
    )?;
    teller.begin(Stage::Tree, 0);
    let size = source.size();
    let contents_count = stored.contents.table.count();
    let check = |tree: &TreeSize| Plan::check_tree(options, tree, contents_count, size.memory_len);
    check(&tree_size(&size))?;
    let held_len = size.memory_len
        + contents_count * plan::CONTENT_LEN
        + options.memory_len / tree::KNOWN_SHARE;
    let threads = plan.metadata_threads(&tree_size(&size), held_len);
    metadata.share_out(threads);
    teller.entry_total = size.entry_count;
    let emitted = write_tree(
        source,
        (&mut image, &mut metadata),
        &Rules::new(&stored.contents.table, options, &check),
        threads,
        &mut teller,
    )?;
    seal(image, stored, &emitted, overwrite)
}

fn tree_size(size: &StreamSize) -> TreeSize {
    TreeSize {
        // Only the entries of the directories on the way are held.
        entry_count: size.directory_count_max,
        depth: size.depth,
        xattr_set_count: 0,
        xattrs_len: 0,
    }
}

fn seal(
    image: ImageWriter,
    mut stored: Stored,
    emitted: &Emitted,
    overwrite: bool,
) -> Result<Report> {
    let lens = StoredLens::of(&image);
    let streams = std::mem::take(&mut stored.contents.streams);
    let name_count = emitted.summary.name_count;
    let sealed = image.seal(
        emitted.tree_digest,
        name_count,
        streams,
        Vec::new(),
        overwrite,
    )?;
    let outcome = Outcome {
        sealed,
        old_len: None,
        changes: None,
        stored: lens,
        emitted,
        contents: &stored.contents,
        file_len: stored.file_len,
        dedup_len: stored.dedup_len,
    };
    Ok(outcome.report())
}

/// Tells how far it is, now and then.
struct Teller<'a> {
    watch: &'a dyn Watch,
    stage: Stage,
    entry_total: u64,
    read_total: u64,
    entry_count: u64,
    read_len: u64,
    last: Instant,
}

impl<'a> Teller<'a> {
    fn new(watch: &'a dyn Watch, size: &StreamSize) -> Self {
        Self {
            watch,
            stage: Stage::Write,
            entry_total: size.entry_count,
            read_total: size.data_len.unwrap_or(0),
            entry_count: 0,
            read_len: 0,
            last: Instant::now(),
        }
    }

    /// Begins a stage that reads `read_total` bytes; 0 where that is not known.
    fn begin(&mut self, stage: Stage, read_total: u64) {
        (self.stage, self.read_total, self.read_len) = (stage, read_total, 0);
    }

    /// Counts, tells if it is time, and ends the build if somebody wants that.
    fn tell(&mut self, entries: u64, len: u64, written_len: u64) -> Result<()> {
        let before = self.entry_count / TELL_COUNT;
        self.entry_count += entries;
        self.read_len += len;
        if len == 0 && self.entry_count / TELL_COUNT == before {
            return Ok(());
        }
        if self.watch.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
        if self.last.elapsed().as_millis() >= 100 {
            self.last = Instant::now();
            self.watch.progress(&Progress {
                stage: self.stage,
                entry_count: self.entry_count,
                entry_total: self.entry_total,
                read_len: self.read_len,
                read_total: self.read_total,
                written_len,
            });
        }
        Ok(())
    }
}
