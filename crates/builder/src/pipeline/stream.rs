//! Builds an image of a tree that comes as a stream: no directory on disk, and nothing kept of the
//! part that has passed.
//!
//! The source first hands over its contents, then its tree, directory by directory. A directory
//! comes whole and before its subdirectories. The builder holds only the directories on the path to
//! the current one, so a tree may have any number of entries.

mod contents;
mod tree;
mod walk;

use crate::options::BuildOptions;
use crate::pipeline::plan::{self, Plan, TreeSize};
use crate::pipeline::report::{Outcome, StoredLens};
use crate::progress::{Progress, Report, Stage, Watch};
use crate::write::emit::Emitted;
use crate::write::image_writer::{ImageWriter, Sink};
use crate::write::metadata::MetadataWriter;
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

pub use crate::pipeline::destination::spool_dir;
pub use crate::write::tree_writer::LinkInfo;

/// Entries between two progress reports.
const ENTRIES_PER_REPORT: u64 = 1 << 16;

/// A tree that comes as a stream.
pub trait TreeSource {
    /// Facts about the stream. The builder asks before the contents, when estimates are enough, and
    /// again after them, when the values must be right.
    fn size(&self) -> StreamSize;

    /// Returns the root directory. The builder asks after the contents.
    ///
    /// # Errors
    /// Its own.
    fn root(&self) -> Result<StreamRoot>;

    /// Hands over every content. The source remembers the ids that `store` returns; equal contents
    /// get the same id.
    ///
    /// # Errors
    /// Its own, and those of `store`.
    fn contents(&mut self, store: &mut dyn ContentStore) -> Result<()>;

    /// Hands over the tree in preorder: the entries of the root, then, for each subdirectory in
    /// turn, its entries and the directories below it. The builder may call it several times. It
    /// ends early if the sink returns false.
    ///
    /// # Errors
    /// Its own, and those of `sink`.
    fn tree(&mut self, sink: &mut dyn TreeSink) -> Result<()>;

    /// Hands over the tree as a depth-first walk and returns true, or returns false if it comes by
    /// [`TreeSource::tree`]. All entries of a walk have the same mtime, and no inode has two names.
    /// # Errors
    /// Its own, and those of `sink`.
    fn walk(&mut self, sink: &mut dyn WalkSink) -> Result<bool> {
        let _ = sink;
        Ok(false)
    }

    /// Hands over every name of each inode whose names lie in several directories, in the order of
    /// their numbers. The root has number 1; the others count in the order of [`TreeSource::tree`].
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

/// Facts about a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamSize {
    /// Number of entries; 0 if unknown.
    pub entry_count: u64,
    /// Bytes of data in files; `None` if unknown.
    pub data_len: Option<u64>,
    /// Maximum number of entries of one directory.
    pub directory_count_max: u64,
    /// Depth of the deepest directory.
    pub depth: u64,
    /// Memory that the source itself may hold, bytes.
    pub memory_len: u64,
    /// Whether all entries have the same mtime, so that the builder need not find out where mtimes
    /// take less space.
    pub has_one_mtime: bool,
    /// Whether no content will come, so that compression needs no memory.
    pub has_no_contents: bool,
}

/// A content that can be read more than once.
pub trait StreamBody {
    /// Length in bytes, holes included; at least 1.
    fn content_len(&self) -> u64;

    /// Data runs, ascending and not adjacent; `None` if there are no holes.
    fn runs(&self) -> Option<Vec<Range<u64>>>;

    /// Fills `out` with the bytes from `start` on.
    ///
    /// # Errors
    /// `Io`.
    fn read(&self, start: u64, out: &mut [u8]) -> Result<()>;
}

/// Takes contents.
pub trait ContentStore {
    /// Stores a content unless the image has it already, and returns its id.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`; `Invalid` if the build was interrupted.
    fn store(&mut self, body: &dyn StreamBody) -> Result<ContentId>;
}

/// Takes the tree.
pub trait TreeSink {
    /// Takes the entries of the next directory, names in byte order. Returns false if no more are
    /// needed.
    ///
    /// # Errors
    /// `Io`, `Full`, `Limit`; `Invalid` for names out of order, or if the build was interrupted.
    fn directory(&mut self, entries: &[StreamEntry<'_>]) -> Result<bool>;
}

/// Takes the tree as a walk. The root is open at the start. The entries of a directory come in byte
/// order of their names, each subdirectory at its position.
pub trait WalkSink {
    /// Takes an entry of the open directory that is no directory itself.
    ///
    /// # Errors
    /// `Io`, `Full`; `Limit` if the directories on the path take more memory than the budget has;
    /// `Invalid` for names out of order, or if the build was interrupted.
    fn entry(&mut self, entry: &StreamEntry<'_>) -> Result<()>;

    /// Opens a subdirectory of the open directory.
    fn enter(&mut self);

    /// Closes the open directory; `entry` is its own entry.
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
    /// Kind.
    pub kind: FileKind,
    /// Permissions, owner, device.
    pub attributes: Attributes,
    /// mtime.
    pub mtime: Timestamp,
    /// Extended attributes.
    pub xattrs: Option<&'a XattrSet>,
    /// Content of a regular file; `None` if it is empty.
    pub content: Option<ContentId>,
    /// Target of a symlink; empty for other kinds.
    pub target: &'a [u8],
    /// Hard links.
    pub link: LinkInfo,
}

/// Builds an image of `source` at `target`. The image appears there only when it is complete.
///
/// # Errors
/// As [`crate::build_image`], and those of the source. `Unsupported` for appending and for base
/// images.
/// # Cost
/// Reads the contents once (those of more than 4 MiB twice), the tree once, and up to 2^20 of its
/// entries once more.
pub fn build_stream(
    source: &mut dyn TreeSource,
    target: &Path,
    overwrite: bool,
    options: &BuildOptions,
    watch: &dyn Watch,
) -> Result<Report> {
    options.validate()?;
    if options.append || !options.bases.is_empty() {
        let what = "an input stream can neither be appended nor use base images";
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
    plan.report_raised_limit(watch);
    let out = OutputFile::create(target, options.target_kind)?;
    let mut image = ImageWriter::begin(Sink::File(out))?;
    let mut metadata = MetadataWriter::new(options.metadata_level);
    let mut reporter = ProgressReporter::new(watch, &size);
    let stored = write_contents(
        source,
        &mut image,
        &mut metadata,
        &plan,
        options,
        target,
        &mut reporter,
    )?;
    reporter.begin(Stage::Tree, 0);
    let size = source.size();
    let contents_count = stored.contents.table.count();
    let check = |tree: &TreeSize| Plan::check_tree(options, tree, contents_count, size.memory_len);
    check(&tree_size(&size))?;
    let held_len = size.memory_len
        + contents_count * plan::CONTENT_LEN
        + options.memory_len / tree::KNOWN_SHARE;
    let threads = plan.metadata_threads(&tree_size(&size), held_len);
    metadata.encode_with(threads);
    reporter.entry_total = size.entry_count;
    let emitted = write_tree(
        source,
        (&mut image, &mut metadata),
        &Rules::new(&stored.contents.table, options, &check),
        threads,
        &mut reporter,
    )?;
    seal(image, stored, &emitted, overwrite)
}

fn tree_size(size: &StreamSize) -> TreeSize {
    TreeSize {
        // Only the entries of the directories on the current path are held.
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

/// Reports progress at intervals.
struct ProgressReporter<'a> {
    watch: &'a dyn Watch,
    stage: Stage,
    entry_total: u64,
    read_total: u64,
    entry_count: u64,
    read_len: u64,
    last_report: Instant,
}

impl<'a> ProgressReporter<'a> {
    fn new(watch: &'a dyn Watch, size: &StreamSize) -> Self {
        Self {
            watch,
            stage: Stage::Write,
            entry_total: size.entry_count,
            read_total: size.data_len.unwrap_or(0),
            entry_count: 0,
            read_len: 0,
            last_report: Instant::now(),
        }
    }

    /// Begins a stage that reads `read_total` bytes; 0 if unknown.
    fn begin(&mut self, stage: Stage, read_total: u64) {
        (self.stage, self.read_total, self.read_len) = (stage, read_total, 0);
    }

    /// Adds to the counters, reports if the interval has passed, and fails if the build was
    /// cancelled.
    fn advance(&mut self, entries: u64, len: u64, written_len: u64) -> Result<()> {
        let before = self.entry_count / ENTRIES_PER_REPORT;
        self.entry_count += entries;
        self.read_len += len;
        if len == 0 && self.entry_count / ENTRIES_PER_REPORT == before {
            return Ok(());
        }
        if self.watch.is_cancelled() {
            return Err(Error::invalid("interrupted"));
        }
        if self.last_report.elapsed().as_millis() >= 100 {
            self.last_report = Instant::now();
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
